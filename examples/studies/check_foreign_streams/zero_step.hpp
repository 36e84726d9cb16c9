// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>

// The last include: from here on CUDA's and NCCL's names tell the checker.
#include <collprobe/order/nccl/intercept.hpp>

/// One step of ZeRO stage 1 as llm.c has it, by reading: each rank's optimiser updates its slot of every layer's
/// parameters on one stream; all-gathers of a group bring the slots to all ranks on another.
namespace check_foreign_streams {

inline constexpr int layers = 3;

inline void must(cudaError_t code)
{
    if (code != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(code));
}
inline void must(ncclResult_t code)
{
    if (code != ncclSuccess) throw std::runtime_error(std::string("NCCL: ") + ncclGetErrorString(code));
}

/// A rank of the trainer: what others have made, and will free.
struct zero_rank {
    int rank;
    ncclComm_t comm;
    cudaStream_t compute;
    cudaStream_t traffic;
    std::size_t slot; ///< parameters of a layer that are this rank's
    float* masters[layers]; ///< [slot]
    float* parameters[layers]; ///< [rank][slot]

    float* own(int layer) const { return parameters[layer] + static_cast<std::size_t>(rank) * slot; }
};

/// `update(masters, parameters, count, stream)` launches the optimiser's kernel. A kernel is no call of CUDA's that could
/// tell the checker, so the trainer says what it reads and writes.
template <class Update>
void optimizer(const zero_rank& self, const Update& update)
{
    const std::size_t bytes = self.slot * sizeof(float);
    for (int layer = 0; layer < layers; ++layer) {
        const collprobe::memory_range masters(self.masters[layer], bytes);
        collprobe::ordered::touch(self.compute, {masters}, {masters, {self.own(layer), bytes}}, "adamw");
        update(self.masters[layer], self.own(layer), self.slot, self.compute);
    }
}

/// As found: nothing lets `traffic` wait for `compute`.
inline void gather(const zero_rank& self)
{
    must(ncclGroupStart());
    for (int layer = 0; layer < layers; ++layer) {
        must(ncclAllGather(
            self.own(layer), self.parameters[layer], self.slot, ncclFloat, self.comm, self.traffic));
    }
    must(ncclGroupEnd());
}

/// The cure: one call, two events. The slots are where they belong, so nothing is copied.
inline void gather_guarded(const zero_rank& self, collprobe::nccl::communicator_ref& comm)
{
    using item = collprobe::gather_item<collprobe::cuda::device, float>;
    using collprobe::view;
    const auto of_layer = [&](int layer) {
        return item{.source = view<const float>(self.own(layer), self.slot),
            .destination = view<float>(self.parameters[layer], self.slot * static_cast<std::size_t>(comm.size()))};
    };
    const item items[] = {of_layer(0), of_layer(1), of_layer(2)};
    static_assert(std::size(items) == layers);
    collprobe::copy_then_all_gather(items, comm, self.traffic, {self.compute}, {self.compute});
}

} // namespace check_foreign_streams
