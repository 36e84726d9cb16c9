// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

/// One allocation of the calling thread by `new` that fails: the first, second ... from now on; 0 is none.
/// Include it in one source file of a program.
namespace {
thread_local long failing_allocation = 0;
} // namespace

// Not inlined: g++ would see std::free of what came from operator new, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes)
{
    const bool fails = failing_allocation > 0 && --failing_allocation == 0;
    if (void* const memory = fails ? nullptr : std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
