// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#if defined(__CUDA_ARCH__)
#endif
