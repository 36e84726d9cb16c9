// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The step of examples/studies/check_foreign_streams over the stand-ins. Compiled with COLLPROBE_STREAM_ORDER=1.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
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

void on_each_rank(const std::function<void(int)>& body)
{
    run_threads(ranks, [&](int rank) {
        must(cudaSetDevice(rank % 8));
        body(rank);
    });
}

struct rank_state {
    cuda::buffer<float> masters{layers * slot};
    cuda::buffer<float> parameters{layers * ranks * slot};
    cuda::stream compute, traffic;
    zero_rank self{};
    std::optional<nccl::communicator_ref> comm;
};

/// The ranks of a trainer. Made before the checker: the stand-in ends streams on a thread of its own, when it likes.
class job {
public:
    job()
    {
        ncclUniqueId id{};
        must(ncclGetUniqueId(&id));
        on_each_rank([&](int rank) {
            rank_state& made = states_[static_cast<std::size_t>(rank)].emplace();
            made.self = {.rank = rank, .comm = nullptr, .compute = made.compute.get(),
                .traffic = made.traffic.get(), .slot = slot, .masters = {}, .parameters = {}};
            for (int layer = 0; layer < layers; ++layer) {
                made.self.masters[layer] = made.masters.data() + static_cast<std::size_t>(layer) * slot;
                made.self.parameters[layer] = made.parameters.data() + static_cast<std::size_t>(layer) * ranks * slot;
                for (std::size_t i = 0; i < slot; ++i) made.self.masters[layer][i] = master_of(rank, layer, i);
            }
            must(ncclCommInitRank(&made.self.comm, ranks, id, rank));
            made.comm.emplace(made.self.comm);
        });
    }
    job(const job&) = delete;
    ~job()
    {
        on_each_rank([&](int rank) {
            rank_state& ended = *states_[static_cast<std::size_t>(rank)];
            ended.comm.reset();
            must(ncclCommDestroy(ended.self.comm));
        });
    }

    /// Runs `step(self, comm)` on every rank; on how many the parameters were right then.
    template <class Step>
    int run(Step step)
    {
        std::atomic<int> right{0};
        on_each_rank([&](int rank) {
            rank_state& own = *states_[static_cast<std::size_t>(rank)];
            step(own.self, *own.comm);
            must(cudaStreamSynchronize(own.self.traffic));
            must(cudaStreamSynchronize(own.self.compute));
            right += gathered(own.self) ? 1 : 0;
        });
        return right;
    }

private:
    std::array<std::optional<rank_state>, ranks> states_;
};

} // namespace

TEST_CASE("the step as found lacks an edge from the optimiser to the all-gather, and the report names both")
{
    job trainer;
    stream_order checker;
    checker.install();
    // Real order that the checker does not hear of, so that this test has no race of its own: the report does not
    // depend on whether the data were wrong.
    const auto unseen = [](const zero_rank& self) { must((cudaStreamSynchronize)(self.compute)); };
    CHECK(trainer.run([&](const zero_rank& self, nccl::communicator_ref&) {
        optimizer(self, update);
        unseen(self);
        gather(self);
    }) == ranks);
    const std::vector<stream_hazard> hazards = checker.hazards();
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
    job trainer;
    stream_order checker;
    checker.install();
    CHECK(trainer.run([](const zero_rank& self, nccl::communicator_ref& comm) {
        optimizer(self, update);
        gather_guarded(self, comm);
    }) == ranks);
    for (const stream_hazard& found : checker.hazards()) MESSAGE(found.message());
    CHECK(checker.hazard_count() == 0);
}

} // namespace collprobe::testing::check_foreign_streams_stand_in_test
