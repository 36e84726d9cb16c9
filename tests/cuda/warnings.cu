// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a trainer's file has of the library, compiled with the warnings that a trainer may have on.
#include <collprobe/collprobe.cuh>
#include <collprobe/guard/nccl/copy_then_all_gather.hpp>

using namespace collprobe;

void one_step(ncclComm_t comm, cudaStream_t stream, bfloat16* gradients, bfloat16* shard, std::uint64_t count)
{
    nccl::communicator_ref world(comm);
    probed step{world};
    step.all_reduce(view<const bfloat16>(gradients, count), view<bfloat16>(gradients, count), reduction::average,
        collprobe::cuda::stream_ref(stream));
    step.end_step(0, {.loss = 1}, collprobe::cuda::stream_ref(stream));
    copy_then_all_gather(shard, count / 2, gradients, count / 2, comm, stream, {stream}, {});
}

int main() { return 0; }
