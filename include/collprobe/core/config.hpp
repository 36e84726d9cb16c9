// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/version.hpp>

/// What every header needs: C++20, the macros of the library, and the namespace of everything in it.
#if !defined(_MSVC_LANG) && (!defined(__cplusplus) || __cplusplus < 202002L)
#error "collprobe needs C++20: compile with -std=c++20 or newer"
#endif

/// Marks a function that is compiled for the host and, under nvcc, for the device too.
#if defined(__CUDACC__)
#define COLLPROBE_HD __host__ __device__
#else
#define COLLPROBE_HD
#endif

/// 1: streams, buffers and communicators report their actions to the checker of stream order, if one is installed
/// (order/stream_order.hpp). 0, the default: no code is generated for that. All translation units of a program must
/// have the same value. CMake's target `collprobe::stream_order` gives 1 to the targets that link to it.
#if !defined(COLLPROBE_STREAM_ORDER)
#define COLLPROBE_STREAM_ORDER 0
#endif

/// For functions that no data of a step passes through: judgements, reports, texts. Compilers optimise them for size.
/// In the compiled form they are in its library alone (compiled/README.md): so no constructors and destructors, of
/// which clang++ emits not all variants, and no functions of templates that have no instance there.
#if !defined(COLLPROBE_COMPILED) || COLLPROBE_STREAM_ORDER || defined(__CUDACC__)
#define COLLPROBE_COLD_INLINE [[gnu::cold]] inline
#elif defined(COLLPROBE_COMPILED_SOURCE)
#define COLLPROBE_COLD_INLINE [[gnu::cold, gnu::used]] inline
#elif defined(__clang__)
#define COLLPROBE_COLD_INLINE \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wgnu-inline-cpp-without-extern\"") \
        [[gnu::cold, gnu::gnu_inline]] inline _Pragma("clang diagnostic pop")
#else
#define COLLPROBE_COLD_INLINE [[gnu::cold, gnu::gnu_inline, gnu::optimize("O0")]] inline // O0: never looked into
#endif

/// The inline namespace of everything in collprobe: its name holds the version and COLLPROBE_STREAM_ORDER. Object
/// files that disagree on either share no symbol, and a call from one to the other does not link.
#define COLLPROBE_DETAIL_JOIN(major, minor, patch, suffix) v##major##_##minor##_##patch##suffix
#define COLLPROBE_DETAIL_EXPAND(major, minor, patch, suffix) COLLPROBE_DETAIL_JOIN(major, minor, patch, suffix)
#if COLLPROBE_STREAM_ORDER
#define COLLPROBE_ABI \
    COLLPROBE_DETAIL_EXPAND( \
        COLLPROBE_VERSION_MAJOR, COLLPROBE_VERSION_MINOR, COLLPROBE_VERSION_PATCH, _stream_order)
#else
#define COLLPROBE_ABI \
    COLLPROBE_DETAIL_EXPAND(COLLPROBE_VERSION_MAJOR, COLLPROBE_VERSION_MINOR, COLLPROBE_VERSION_PATCH, )
#endif

/// Umbrella headers stay cheap to compile: `<memory>`, `<thread>` and `<immintrin.h>` add 0.15 to 0.3 s, `<cmath>`
/// and `<functional>` 0.05 to 0.1 s (g++ 12). `detail/` has what the library needs of them. No code here may rely on
/// `x != x` or on `std::isnan`: `-ffast-math` folds them to a constant. Classify by bits (core/element.hpp).
