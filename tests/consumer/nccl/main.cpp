// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <collprobe/comm/nccl/communicator.hpp>

/// Links NCCL and the CUDA runtime for real; needs no GPU.
int main()
{
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return 1;
    std::printf("NCCL %d, compiled with %d\n", version, NCCL_VERSION_CODE);
    const ncclComm_t none = nullptr;
    try {
        collprobe::nccl::communicator_ref comm(none);
        const collprobe::cuda::stream stream;
        comm.barrier(stream);
    } catch (const collprobe::error& refused) {
        std::printf("%s\n", refused.what());
        return refused.code() == collprobe::status::invalid_argument ? 0 : 1;
    }
    return 1;
}
