// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The plain data that probes write and reports read. No function here computes more than a square root.

#include <collprobe/core/record/run.hpp>
#include <collprobe/core/record/step.hpp>
