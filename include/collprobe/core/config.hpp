// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/version.hpp>

#if !defined(_MSVC_LANG) && (!defined(__cplusplus) || __cplusplus < 202002L)
#error "collprobe needs C++20: compile with -std=c++20 or newer"
#endif

/// Marks a function that is compiled for the host and, under nvcc, for the device too.
#if defined(__CUDACC__)
#define COLLPROBE_HD __host__ __device__
#else
#define COLLPROBE_HD
#endif

/// 1: streams, buffers and communicators tell the checker of stream order what they do, if one is installed
/// (order/stream_order.hpp). 0, the default: no code is generated for that. All translation units of a program
/// must have the same value, and links to CMake's target `collprobe::stream_order` give them 1.
#if !defined(COLLPROBE_STREAM_ORDER)
#define COLLPROBE_STREAM_ORDER 0
#endif

/// A file that is compiled with COLLPROBE_COMPILED (CMake's target `collprobe::compiled` defines it) sees declarations
/// of what does not depend on a type, and of the common instances of what does; that library holds their definitions.
/// In other files headers end with the definitions (`.ipp`). Files of both kinds link to each other. Files with the
/// checker of stream order are always of the second kind. Nvcc's pass for the device needs no host functions.
#if defined(COLLPROBE_COMPILED) && !COLLPROBE_STREAM_ORDER
#define COLLPROBE_LIBRARY 1
#define COLLPROBE_INLINE
#else
#define COLLPROBE_LIBRARY 0
#define COLLPROBE_INLINE inline
#endif
#if COLLPROBE_LIBRARY || defined(__CUDA_ARCH__)
#define COLLPROBE_DEFINITIONS 0
#else
#define COLLPROBE_DEFINITIONS 1
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

/// The standard headers this library may include in an umbrella header are few on purpose: an empty
/// file that includes `collprobe.hpp` must stay cheap to compile. `<cmath>`, `<memory>`, `<thread>`,
/// `<functional>` and `<immintrin.h>` each cost more than all of collprobe; `detail/` has what is
/// needed of them.
///
/// Nothing here may rely on `x != x` or on `std::isnan`: a translation unit compiled with
/// `-ffast-math` folds them to a constant. Classify by bits (element.hpp).
