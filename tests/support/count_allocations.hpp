// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

/// Counts what a test program allocates with `new`. CMake links allocations.cpp to the tests that include this.
extern std::atomic<long> allocations;
