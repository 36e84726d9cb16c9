// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A trainer in C style, with CUDA's streams and NCCL's communicator, under the checker of stream order: its all-gather
// does not wait for its optimiser. The checker says so at the first step, whether or not the data were wrong, and is
// silent on the same step with one guarded call. Runs on the GPUs of a job (torchrun, mpirun) and alone on one.

#include <cstddef>
#include <cstdio>
#include <exception>

#include <collprobe/collprobe.cuh>
#include <collprobe/guard.hpp>
#include <collprobe/order/stream_order.hpp>

#include "../../support/job.hpp"
#include "zero_step.hpp"

namespace {

using namespace check_foreign_streams;

/// AdamW, but for its moments: a decay of the weights.
__global__ void adamw(float* masters, float* parameters, std::size_t count)
{
    const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) parameters[i] = masters[i] *= 0.99F;
}
void update(float* masters, float* parameters, std::size_t count, cudaStream_t stream)
{
    adamw<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(masters, parameters, count);
    must(cudaGetLastError());
}

/// Prints what was reported, on rank 0; returns the number, and forgets it.
std::size_t report(collprobe::stream_order& checker, const zero_rank& self, const char* what)
{
    const auto hazards = checker.hazards();
    if (self.rank == 0) {
        std::printf("%s: %zu hazard%s\n", what, hazards.size(), hazards.size() == 1 ? "" : "s");
        for (const collprobe::stream_hazard& each : hazards) std::printf("  %s\n", each.message().c_str());
    }
    checker.clear_reports();
    return hazards.size();
}

int train(zero_rank& self, int ranks)
{
    constexpr std::size_t slot = 1 << 20;
    const auto count = static_cast<std::size_t>(ranks) * slot;
    collprobe::stream_order checker;
    checker.install();
    collprobe::cuda::buffer<float> masters(layers * slot), parameters(layers * count);
    self.slot = slot;
    for (int layer = 0; layer < layers; ++layer) {
        self.masters[layer] = masters.data() + static_cast<std::size_t>(layer) * slot;
        self.parameters[layer] = parameters.data() + static_cast<std::size_t>(layer) * count;
    }
    must(cudaMemsetAsync(masters.data(), 0, layers * slot * sizeof(float), self.compute));
    must(cudaDeviceSynchronize());

    optimizer(self, update);
    gather(self);
    must(cudaDeviceSynchronize());
    const std::size_t found = report(checker, self, "as found");

    collprobe::nccl::communicator_ref comm(self.comm);
    optimizer(self, update);
    gather_guarded(self, comm);
    must(cudaDeviceSynchronize());
    return found > 0 && report(checker, self, "guarded") == 0 ? 0 : 1;
}

int run()
{
    int gpus = 0;
    if (const cudaError_t code = cudaGetDeviceCount(&gpus); code != cudaSuccess || gpus == 0) {
        std::fprintf(stderr, "check_foreign_streams: no GPU here: %s\n", cudaGetErrorString(code));
        return 77; // "skipped", to test drivers
    }
    const job own = started_job();
    must(cudaSetDevice(own.local_rank % gpus));

    zero_rank self{.rank = own.rank, .comm = nullptr, .compute = nullptr, .traffic = nullptr, .slot = 0, .masters = {},
        .parameters = {}};
    must(ncclCommInitRank(&self.comm, own.size, id_of(own), own.rank));
    must(cudaStreamCreateWithFlags(&self.compute, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&self.traffic, cudaStreamNonBlocking));
    const int status = train(self, own.size);
    must(cudaStreamDestroy(self.traffic));
    must(cudaStreamDestroy(self.compute));
    must(ncclCommDestroy(self.comm));
    return status;
}

} // namespace

int main()
{
    try {
        return run();
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "check_foreign_streams: %s\n", problem.what());
        return 1;
    }
}
