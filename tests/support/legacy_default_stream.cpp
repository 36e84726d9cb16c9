// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/device/cuda/stream.hpp>

collprobe::cuda::stream_ref legacy_null_stream()
{
    return cudaStream_t{};
}
