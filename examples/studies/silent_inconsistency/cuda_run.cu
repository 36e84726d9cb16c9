// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <string>

#include <cuda_runtime.h>

#include <collprobe/collprobe.cuh>
#include <collprobe/device/cuda/device.hpp>

#include "../../support/device_ranks.hpp"
#include "cuda_run.hpp"
#include "device_trainer.hpp"
#include "train.hpp"

namespace trainer {

namespace cuda = collprobe::cuda;
namespace local = collprobe::local;

static_assert(max_cuda_ranks == local::device_communicator<cuda::device>::max_ranks);

std::string describe_gpus()
{
    int count = 0;
    cuda::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    cudaDeviceProp first{};
    cuda::check(cudaGetDeviceProperties(&first, 0), "cudaGetDeviceProperties", 0);
    return std::to_string(count) + (count == 1 ? " GPU (" : " GPUs (") + first.name + ")";
}

run_result train_on_cuda(const job& work, run_reports& reports, progress& shown)
{
    return with_wire_type(work.given.element, [&]<class Wire>(Wire) {
        return train<device_trainer<Wire, local::device_communicator<cuda::device>>>(
            work, reports, shown, [&](auto rank) { local::run_on<cuda::device>(work.given.ranks, {}, rank); });
    });
}

} // namespace trainer
