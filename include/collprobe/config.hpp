// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
/// (guard/stream_order.hpp). 0, the default: no code is generated for that. All translation units of a program
/// must have the same value, and links to CMake's target `collprobe::stream_order` give them 1.
#if !defined(COLLPROBE_STREAM_ORDER)
#define COLLPROBE_STREAM_ORDER 0
#endif

namespace collprobe {

/// The standard headers this library may include in an umbrella header are few on purpose: an empty
/// file that includes `collprobe.hpp` must stay cheap to compile. `<cmath>`, `<memory>`, `<thread>`,
/// `<functional>` and `<immintrin.h>` each cost more than all of collprobe; `detail/` has what is
/// needed of them.
///
/// Nothing here may rely on `x != x` or on `std::isnan`: a translation unit compiled with
/// `-ffast-math` folds them to a constant. Classify by bits (element.hpp).

} // namespace collprobe
