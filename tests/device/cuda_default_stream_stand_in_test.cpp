// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// As `nvcc --default-stream per-thread` does. No function of CUDA may be called here: it would be another
// one, which the stand-in does not have.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM

#include <doctest/doctest.h>

#include <collprobe/device/cuda/stream.hpp>

using namespace collprobe;

/// Of a translation unit that is compiled for legacy default streams.
cuda::stream_ref legacy_null_stream();

TEST_CASE("a null stream is the default stream of the translation unit that it is given in")
{
    const cuda::stream_ref here = cudaStream_t{};
    CHECK(here.is_per_thread());
    CHECK_FALSE(here.is_default());
    CHECK(here.get() == cudaStreamPerThread);
    const cuda::stream_ref there = legacy_null_stream();
    CHECK(there.is_default());
    CHECK_FALSE(there.is_per_thread());
    CHECK(there.get() == cudaStreamLegacy);
    CHECK_FALSE(here == there);
}

TEST_CASE("an explicit default stream is the same in every translation unit")
{
    CHECK(cuda::stream_ref(cudaStreamLegacy) == legacy_null_stream());
    CHECK(cuda::stream_ref(cudaStreamPerThread).is_per_thread());
    CHECK_FALSE(cuda::stream_ref(cudaStreamPerThread).is_default());
    CHECK(cuda::detail::describe(0, cudaStreamLegacy) == "device 0, default stream");
    CHECK(cuda::detail::describe(0, cudaStreamPerThread) == "device 0, per-thread stream");
}
