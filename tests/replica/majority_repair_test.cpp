// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/replica/majority_repair.hpp>
#include <collprobe/step/probed.hpp>

#include "support/counting.hpp"
#include "support/errors.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::majority_repair_test {
namespace {

const local::options settings{.timeout_ms = 20'000};

/// What a trainer has to keep alike: weights of two types, momentum, a step number.
struct model {
    std::vector<float> weights = std::vector<float>(5'000, 0.25f);
    std::vector<bfloat16> layer = std::vector<bfloat16>(777, bfloat16(3.0f));
    std::vector<double> momentum = std::vector<double>(5'000, 1e-3);
    std::vector<std::int64_t> step = {41};

    std::vector<replica> replicas() { return {view(weights), view(layer), view(momentum), view(step)}; }
    bool same_bits(const model& other) const
    {
        const auto same = [](const auto& a, const auto& b) {
            return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
        };
        return same(weights, other.weights) && same(layer, other.layer) && same(momentum, other.momentum)
            && same(step, other.step);
    }
};

struct repaired {
    repair_result result;
    model after;
    std::uint64_t bytes = 0; ///< that the rank was asked to send, in all
};

/// Flips a bit of the first element of the next broadcasts that rank `victim` receives.
class hitting : public adaptor<hitting, counting> {
public:
    int victim = 0;
    int left = 0;

    hitting(const local::communicator& of, int rank, int times) : adaptor(counting(of)), victim(rank), left(times) {}

    template <element T>
    void make(const collective_call& call, stream_ref stream)
    {
        comm_.make<T>(call, stream);
        if (call.what != collective::broadcast || rank() != victim || left == 0) return;
        --left;
        stream.enqueue([to = static_cast<unsigned char*>(call.receive)] { to[0] ^= 4; });
    }
};

/// Repairs what `damage(rank, model)` did, on every rank; `hits` broadcasts to `victim` are damaged.
template <class Damage>
std::vector<repaired> repair(int ranks, const Damage& damage, int reference_rank = -1, int victim = -1, int hits = 0)
{
    const testing::watchdog guard("repair", 60);
    std::vector<repaired> all(static_cast<std::size_t>(ranks));
    local::run(ranks, settings, [&](local::communicator& comm) {
        repaired& mine = all[static_cast<std::size_t>(comm.rank())];
        damage(comm.rank(), mine.after);
        hitting hit(comm, victim, hits);
        agreement check(hit, {.max_buffers = 4, .reference_rank = reference_rank});
        const host::stream stream;
        mine.result = majority_repair(check, mine.after.replicas(), stream);
        mine.bytes = hit.base().bytes;
    });
    for (const repaired& each : all) { // one opinion
        CHECK(each.result.repaired == all[0].result.repaired);
        CHECK(each.result.majority == all[0].result.majority);
        CHECK(each.result.rounds == all[0].result.rounds);
        CHECK(each.result.bytes == all[0].result.bytes);
    }
    return all;
}

} // namespace

TEST_CASE("while all agree a repair costs 16 bytes a buffer and changes nothing")
{
    for (const int ranks : {1, 2, 5}) {
        for (const repaired& each : repair(ranks, [](int, model&) {})) {
            CHECK(each.result.repaired);
            CHECK(each.result.majority);
            CHECK(each.result.rounds == 0);
            CHECK(each.result.bytes == 0);
            CHECK(each.result.found.empty());
            CHECK(each.bytes == 16 * (4 + 1)); // and the number of the check
            CHECK(each.after.same_bits(model()));
        }
    }
}

TEST_CASE("a minority gets back what the majority holds, bit for bit, and only what differs is sent")
{
    for (const int ranks : {3, 4, 8, 16, 64}) {
        CAPTURE(ranks);
        const auto all = repair(ranks, [&](int rank, model& m) {
            if (rank == 0) m.weights[4'321] = detail::bit_cast<float>(0x7fc00001u);
            if (rank == 0) m.step[0] = 40;
            if (rank == 2 && ranks > 4) m.momentum[0] = -m.momentum[0];
            if (rank == 3 && ranks > 8) m.layer.assign(777, bfloat16(0.0f));
        });
        for (const repaired& each : all) {
            CHECK(each.result.repaired);
            CHECK(each.result.rounds == 1);
            CHECK(!each.result.found.empty());
            CHECK(each.result.bytes == std::uint64_t{64 + 8} + (ranks > 4 ? 64 : 0) + (ranks > 8 ? 2 * 777 : 0));
            CHECK(each.after.same_bits(model()));
        }
        CHECK(all[0].result.found[0].others == std::vector{0});
    }
}

TEST_CASE("without a majority it says so and changes nothing, not even a buffer that has one")
{
    for (const int ranks : {2, 4}) {
        const auto damage = [&](int rank, model& m) {
            if (rank < ranks / 2) m.weights[9] = float(rank + 2);
            if (rank == 1) m.step[0] = 0;
        };
        const auto all = repair(ranks, damage);
        for (std::size_t r = 0; r < all.size(); ++r) {
            CHECK(!all[r].result.repaired);
            CHECK(!all[r].result.majority);
            CHECK(all[r].result.rounds == 0);
            CHECK(all[r].result.bytes == 0);
            model before;
            damage(static_cast<int>(r), before);
            CHECK(all[r].after.same_bits(before));
        }
    }
}

TEST_CASE("a rank that is named as the reference is right, whatever most ranks hold")
{
    for (const int ranks : {2, 4, 9}) {
        for (const int reference : {0, ranks - 1}) {
            CAPTURE(ranks);
            CAPTURE(reference);
            const auto damage = [&](int rank, model& m) {
                if (rank == reference) return;
                for (std::size_t i = 100; i < 116; ++i) m.weights[i] = 0.1778f; // all the others alike
                if (rank == (reference == 0 ? 1 : 0)) m.step[0] = 7; // one
            };
            const auto without = repair(ranks, damage);
            CHECK(without[0].result.majority == (ranks > 2));
            CHECK_FALSE(without[static_cast<std::size_t>(reference)].after.same_bits(model()) == (ranks > 2));
            for (const repaired& each : repair(ranks, damage, reference)) {
                CHECK(each.result.repaired);
                CHECK(each.result.majority);
                CHECK(each.result.rounds == 1);
                CHECK(each.after.same_bits(model()));
                const disagreement& found = each.result.found[0];
                CHECK(found.reference_rank == reference);
                CHECK(found.holders == std::vector{reference});
                CHECK(found.others.size() == static_cast<std::size_t>(ranks - 1));
                CHECK(found.majority == (ranks > 2)); // which is wrong
                CHECK(found.differences[0].expected_bits == to_bits(0.25f));
            }
        }
    }
    const testing::watchdog guard("bad reference", 60);
    local::run(2, settings, [](local::communicator& comm) {
        for (const int wrong : {-2, 2}) {
            CHECK_THROWS_WITH_AS(agreement(comm, {.reference_rank = wrong}),
                doctest::Contains("reference_rank must be a rank of the communicator, or -1"), error);
        }
    });
}

TEST_CASE("a rank with another shape than the reference is an error that names both")
{
    const testing::watchdog guard("other shape", 60);
    local::run(3, settings, [](local::communicator& comm) {
        std::vector<float> weights(comm.rank() == 2 ? 10 : 9, 1.0f);
        agreement check(comm, {.reference_rank = 2});
        const host::stream stream;
        const std::vector<replica> list{view(weights)};
        const auto told = testing::error_of([&] { (void)majority_repair(check, view<const replica>(list), stream); });
        CHECK(testing::mentions(told, "buffer 0 of rank 0 has another count or type than that of rank 2"));
        CHECK(told->code() == status::mismatch);
        CHECK(told->culprits() == std::vector{0});
    });
}

TEST_CASE("a repair that is hit is repeated, up to a limit, and never spoils a rank that was right")
{
    for (const int times : {0, 1, 3, 1'000}) {
        for (const int victim : {1, 3}) { // the damaged rank, and one of the majority
            CAPTURE(times);
            CAPTURE(victim);
            const auto damage = [](int rank, model& m) {
                if (rank == 1) m.weights[100] = 8;
            };
            const auto all = repair(4, damage, -1, victim, times);
            const bool is_repaired = times < 4 || victim != 1;
            for (std::size_t r = 0; r < all.size(); ++r) {
                CHECK(all[r].result.repaired == is_repaired);
                CHECK(all[r].result.majority);
                CHECK(all[r].result.rounds == (victim != 1 ? 1 : times < 4 ? times + 1 : 4));
                CHECK(all[r].after.same_bits(model()) == (is_repaired || r != 1));
            }
        }
    }
}

TEST_CASE("ranks that wait for the record of some steps ago repair in the same step, however late one of them is")
{
    const testing::watchdog guard("late repairs", 60);
    constexpr int ranks = 3, steps = 12, hit = 4;
    for (const std::uint64_t behind : {0u, 1u, 3u}) {
        std::vector<std::string> when(ranks);
        std::vector<char> right(ranks);
        local::run(ranks, settings, [&](local::communicator& comm) {
            const auto at = static_cast<std::size_t>(comm.rank());
            model mine;
            probed steps_of(comm);
            agreement check(steps_of, {.max_buffers = 4});
            const host::stream stream;
            step_record record;
            for (int step = 0; step < steps; ++step) {
                if (comm.rank() == step % ranks) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                if (step == hit && comm.rank() == 1) {
                    stream.enqueue([&mine] { mine.weights[7] = -1; });
                }
                steps_of.expect_equal("weights", view<const float>(mine.weights), stream);
                steps_of.expect_equal("momentum", view<const double>(mine.momentum), stream);
                steps_of.end_step(static_cast<std::uint64_t>(step), stream);
                bool repaired = false;
                if (steps_of.pending_steps() > behind && steps_of.wait(record) && !record.expectations[0].holds) {
                    CHECK(record.expectations[1].holds);
                    const repair_result result = majority_repair(check, mine.replicas(), stream);
                    CHECK(result.repaired);
                    repaired = result.rounds == 1;
                    CHECK(result.found.empty() == !repaired); // a step from before the repair
                }
                when[at] += repaired ? '1' : '0';
            }
            stream.synchronize(20'000);
            right[at] = mine.same_bits(model()) ? 1 : 0;
        });
        std::string expected(steps, '0');
        expected[hit + behind] = '1';
        for (int r = 0; r < ranks; ++r) {
            CHECK(when[static_cast<std::size_t>(r)] == expected);
            CHECK(right[static_cast<std::size_t>(r)] == 1);
        }
    }
}

} // namespace collprobe::testing::majority_repair_test
