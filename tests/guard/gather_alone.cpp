// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A program that includes nothing of collprobe but the gather of a trainer's own handles: it links as C++ and as CUDA,
// since such a gather needs no kernel.
#include <collprobe/guard/nccl/copy_then_all_gather.hpp>

int main(int arguments, char**)
{
    const float* shard = nullptr;
    float* parameters = nullptr;
    ncclComm_t comm = nullptr;
    cudaStream_t compute = nullptr;
    // That it links is the test: without a communicator there is nothing to run.
    if (arguments > 1)
        collprobe::copy_then_all_gather(shard, 0, parameters, 0, comm, compute, {compute}, {compute});
    return 0;
}
