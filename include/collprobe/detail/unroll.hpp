// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Before a loop of device code: the compiler unrolls it whole, or not at all. Nothing for the host, whose compiler
/// warns of pragmas that it does not know.
#if defined(__CUDA_ARCH__)
#define COLLPROBE_UNROLL _Pragma("unroll")
#define COLLPROBE_NO_UNROLL _Pragma("unroll 1")
#else
#define COLLPROBE_UNROLL
#define COLLPROBE_NO_UNROLL
#endif
