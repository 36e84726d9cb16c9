// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include <collprobe/comm/nccl/bootstrap.hpp>
#include <collprobe/comm/nccl/communicator.hpp>

namespace inspect_all_reduce {

/// The ranks that torchrun, mpirun or srun has started, of which this process is one: each has a GPU.
class nccl_ranks {
public:
    int size() const { return world_.size(); }
    bool speaks() const { return world_.rank() == 0; }
    std::string library() const
    {
        int version = 0;
        (void)ncclGetVersion(&version); // fails for a null pointer only
        return "NCCL " + std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) + '.'
            + std::to_string(version % 100);
    }
    template <class Fn>
    void run(Fn fn)
    {
        const auto on_its_gpu = world_.device_scope();
        fn(static_cast<collprobe::nccl::communicator_ref&>(world_));
    }

private:
    static collprobe::nccl::communicator join()
    {
        int gpus = 0;
        if (const cudaError_t code = cudaGetDeviceCount(&gpus); code != cudaSuccess || gpus == 0) {
            throw std::runtime_error(std::string("no GPU here: ") + cudaGetErrorString(code));
        }
        const auto job = collprobe::bootstrap::job::from_environment();
        const ncclUniqueId id = collprobe::nccl::unique_id(job);
        const int gpu = (job.local_rank >= 0 ? job.local_rank : job.rank) % gpus;
        return collprobe::nccl::communicator::create(id, job.rank, job.size, gpu);
    }

    collprobe::nccl::communicator world_ = join();
};

} // namespace inspect_all_reduce
