// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Faults to try checks and alarms with.

#include <collprobe/fault/faulty.hpp>
#include <collprobe/fault/types.hpp>
