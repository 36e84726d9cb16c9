// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Reductions under a contract of reproducibility.

#include <collprobe/reduce/contract.hpp>
#include <collprobe/reduce/reduction_outcome.hpp>
#include <collprobe/reduce/reproducible.hpp>
