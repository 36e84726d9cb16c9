// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include <collprobe/comm/nccl/communicator.hpp>

#include "../../support/job.hpp"

namespace inspect_all_reduce {

/// The ranks that torchrun, mpirun or srun has started, of which this process is one: each has a GPU.
class nccl_ranks {
public:
    nccl_ranks() = default;
    nccl_ranks(const nccl_ranks&) = delete;
    ~nccl_ranks() { (void)ncclCommDestroy(world_.native_handle()); }
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
        fn(world_);
    }

private:
    static ncclComm_t join()
    {
        int gpus = 0;
        if (const cudaError_t code = cudaGetDeviceCount(&gpus); code != cudaSuccess || gpus == 0) {
            throw std::runtime_error(std::string("no GPU here: ") + cudaGetErrorString(code));
        }
        const job own = started_job();
        (void)cudaSetDevice(own.local_rank % gpus);
        ncclComm_t made = nullptr;
        if (const ncclResult_t result = ncclCommInitRank(&made, own.size, id_of(own), own.rank); result != ncclSuccess)
            throw std::runtime_error(std::string("ncclCommInitRank: ") + ncclGetErrorString(result));
        return made;
    }

    collprobe::nccl::communicator_ref world_{join(), {.mode = collprobe::nccl::blocking_mode::blocking}};
};

} // namespace inspect_all_reduce
