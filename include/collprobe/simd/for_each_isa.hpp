// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// No include guard: includes the kernel file named by COLLPROBE_KERNEL once for each instruction set
// beyond the baseline, compiled for that set whatever flags the including file is compiled with. The
// kernel is one text; only the vector width and the namespace differ, so all instances share their
// logic and their bits. Does nothing when included by itself.
#if defined(COLLPROBE_KERNEL)
#if COLLPROBE_X86_SIMD

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define COLLPROBE_ISA_NAMESPACE avx2
#define COLLPROBE_ISA_WIDTH 32
#define COLLPROBE_ISA_REGISTER "x"
#include COLLPROBE_KERNEL
#undef COLLPROBE_ISA_NAMESPACE
#undef COLLPROBE_ISA_WIDTH
#undef COLLPROBE_ISA_REGISTER
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define COLLPROBE_ISA_NAMESPACE avx512
#define COLLPROBE_ISA_WIDTH 64
#define COLLPROBE_ISA_REGISTER "v"
#define COLLPROBE_ISA_AVX512
#include COLLPROBE_KERNEL
#undef COLLPROBE_ISA_NAMESPACE
#undef COLLPROBE_ISA_WIDTH
#undef COLLPROBE_ISA_REGISTER
#undef COLLPROBE_ISA_AVX512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
#undef COLLPROBE_KERNEL
#endif
