// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The step of examples/studies/check_foreign_streams over the stand-ins. Compiled with COLLPROBE_STREAM_ORDER=1.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/order/stream_order.hpp>

#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"

#include "../../examples/studies/check_foreign_streams/zero_step.hpp"

namespace collprobe::testing::check_foreign_streams_stand_in_test {

using namespace check_foreign_streams;

namespace {

constexpr std::size_t slot = 500;
constexpr int ranks = 4;

float master_of(int rank, int layer, std::size_t i)
{
    return static_cast<float>(1000 * rank + 100 * layer) + static_cast<float>(i) / 1024;
}
void update(const float* masters, float* parameters, std::size_t count, cudaStream_t stream)
{
    must((cudaMemcpyAsync)(parameters, masters, count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
}
bool gathered(const zero_rank& self)
{
    for (int layer = 0; layer < layers; ++layer) {
        for (std::size_t i = 0; i < ranks * slot; ++i) {
            const float expected = master_of(static_cast<int>(i / slot), layer, i % slot);
            if (self.parameters[layer][i] != expected) return false; // the stand-in's device memory is the host's
        }
    }
    return true;
}

/// What the checker reports of `step(self, comm)` on every rank of a trainer, whose parameters are right then. The
/// checker is there for the step alone: the stand-in ends streams on a thread of its own, when it likes.
template <class Step>
std::vector<stream_hazard> hazards_of(Step step)
{
    ncclUniqueId id{};
    must(ncclGetUniqueId(&id));
    std::barrier all_here(ranks);
    std::optional<stream_order> checker;
    std::vector<stream_hazard> found;
    std::atomic<int> right{0};
    run_threads(ranks, [&](int rank) {
        must(cudaSetDevice(rank % 8));
        const cuda::buffer<float> masters(layers * slot), parameters(layers * ranks * slot);
        const cuda::stream compute, traffic;
        zero_rank self = {.rank = rank, .comm = nullptr, .compute = compute.get(), .traffic = traffic.get(), .slot = slot,
            .masters = {}, .parameters = {}};
        for (int layer = 0; layer < layers; ++layer) {
            self.masters[layer] = masters.data() + static_cast<std::size_t>(layer) * slot;
            self.parameters[layer] = parameters.data() + static_cast<std::size_t>(layer) * ranks * slot;
            for (std::size_t i = 0; i < slot; ++i) self.masters[layer][i] = master_of(rank, layer, i);
        }
        must(ncclCommInitRank(&self.comm, ranks, id, rank));
        {
            nccl::communicator_ref comm(self.comm);
            all_here.arrive_and_wait();
            if (rank == 0) checker.emplace().install();
            all_here.arrive_and_wait();
            step(self, comm);
            must(cudaStreamSynchronize(self.traffic));
            must(cudaStreamSynchronize(self.compute));
            right += gathered(self) ? 1 : 0;
            all_here.arrive_and_wait();
            if (rank == 0) {
                found = checker->hazards();
                checker.reset();
            }
            all_here.arrive_and_wait();
        }
        must(ncclCommDestroy(self.comm));
    });
    CHECK(right == ranks);
    return found;
}

} // namespace

TEST_CASE("the step as found lacks an edge from the optimiser to the all-gather, and the report names both")
{
    // Real order that the checker does not hear of, so that this test has no race of its own: the report does not
    // depend on whether the data were wrong.
    const auto unseen = [](const zero_rank& self) { must((cudaStreamSynchronize)(self.compute)); };
    const std::vector<stream_hazard> hazards = hazards_of([&](const zero_rank& self, nccl::communicator_ref&) {
        optimizer(self, update);
        unseen(self);
        gather(self);
    });
    REQUIRE(hazards.size() == 1);
    const stream_hazard& found = hazards[0];
    CAPTURE(found.message());
    CHECK(found.kind == hazard_kind::read_after_write);
    CHECK(std::string(found.earlier.operation) == "adamw");
    CHECK(std::string(found.later.operation) == "ncclAllGather");
    CHECK(std::string(found.earlier.where.file).find("zero_step.hpp") != std::string::npos);
    CHECK(std::string(found.later.where.file).find("zero_step.hpp") != std::string::npos);
    CHECK(found.count == ranks * layers);
    CHECK(found.further_runs == 1); // the all-gather is in place: it reads what adamw writes, and counts as writing it
}

TEST_CASE("one guarded call in its place is silent, and the parameters are right")
{
    const auto hazards = hazards_of([](const zero_rank& self, nccl::communicator_ref& comm) {
        optimizer(self, update);
        gather_guarded(self, comm);
    });
    for (const stream_hazard& found : hazards) MESSAGE(found.message());
    CHECK(hazards.empty());
}

} // namespace collprobe::testing::check_foreign_streams_stand_in_test
