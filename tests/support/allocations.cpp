// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstdlib>
#include <new>

#include "count_allocations.hpp"

std::atomic<long> allocations{0};

namespace {

void count_one() { allocations.fetch_add(1, std::memory_order_relaxed); }

} // namespace

#if defined(COLLPROBE_WRAPPED_NEW) // the linker's --wrap=_Znwm
extern "C" void* __real__Znwm(std::size_t bytes);
extern "C" void* __wrap__Znwm(std::size_t bytes)
{
    count_one();
    return __real__Znwm(bytes);
}
#else
// Not inlined: g++ would see std::free of what came from operator new, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes)
{
    count_one();
    if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
