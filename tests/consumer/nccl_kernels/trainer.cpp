// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <collprobe/collprobe.hpp>
#include <collprobe/comm/nccl/communicator.hpp>

using namespace collprobe;

/// A probed step of one rank. Without a GPU it is linked, and says so.
int main()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("linked; there is no GPU to run on\n");
        return 0;
    }
    ncclComm_t comm = nullptr;
    if (ncclCommInitAll(&comm, 1, nullptr) != ncclSuccess) return 1;
    {
        const cuda::stream stream;
        cuda::buffer<float> gradient(1000), average(1000);
        cuda::device::zero(stream, view(gradient));
        probed probe{nccl::communicator_ref(comm)};
        probe.all_reduce(view<const float>(gradient.data(), 1000), view(average), reduction::average, stream);
        probe.end_step(7, {.loss = 0.5}, stream);
        stream.synchronize(20'000);
        step_record record;
        if (!probe.poll(record) || record.step != 7 || record.losses[0] != 0.5) return 1;
        std::printf("%s", report::step_table(record).c_str());
    }
    return ncclCommDestroy(comm) == ncclSuccess ? 0 : 1;
}
