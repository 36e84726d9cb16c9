// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/simd/dispatch.hpp>
#include <collprobe/simd/gradual_underflow.hpp>

/// Vectors of the processor and the operations on them that kernels use: the compilers' vector extensions, and single
/// instructions where they have none, or g++ would take several. No `__builtin_ia32_*`: each year's compilers drop
/// some. No <immintrin.h>: with it a file that includes collprobe.hpp compiles a sixth longer.
namespace collprobe::inline COLLPROBE_ABI::detail {

#if COLLPROBE_X86_SIMD
template <class Element, int bytes>
struct vector_of {
    typedef Element type __attribute__((vector_size(bytes)));
};
template <class Element, int bytes>
using vector = typename vector_of<Element, bytes>::type;
#endif

} // namespace collprobe::detail

#define COLLPROBE_KERNEL <collprobe/simd/detail/vector_kernel.hpp>
#include <collprobe/simd/dispatch.hpp>
