// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One allocation of the calling thread by `new` that fails: the first, second ... from now on; 0 is none.
/// CMake links allocations.cpp to the tests that include this.
extern thread_local long failing_allocation;
