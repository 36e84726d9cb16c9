// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

namespace collprobe::testing {

/// Copies elements to device memory, where every stream finds them. `cudaMemcpy` alone does not do that: from pageable
/// memory it returns when the source has been read, and a stream that does not wait for the default stream may be there
/// before the bytes.
template <class T>
void upload(void* to, const T* from, std::size_t count)
{
    if (count == 0) return;
    REQUIRE(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
}

} // namespace collprobe::testing
