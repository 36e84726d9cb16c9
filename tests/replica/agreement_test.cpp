// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>

#include "support/counted_memory.hpp"
#include "support/counting.hpp"
#include "support/element_types.hpp"
#include "support/errors.hpp"
#include "replica/damage.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::agreement_test {
namespace {

const local::options settings{.timeout_ms = 20'000};

/// What rank 0 found, once all ranks were seen to have found the same.
class agreed_verdict {
public:
    explicit agreed_verdict(int ranks) : found_(static_cast<std::size_t>(ranks)) {}
    std::vector<disagreement>& of(int rank) { return found_[static_cast<std::size_t>(rank)]; }

    const std::vector<disagreement>& get() const
    {
        for (const std::vector<disagreement>& other : found_) {
            REQUIRE(other.size() == found_[0].size());
            for (std::size_t b = 0; b < other.size(); ++b) {
                const disagreement &x = other[b], &y = found_[0][b];
                CHECK(x.buffer == y.buffer);
                CHECK(x.majority == y.majority);
                CHECK(x.groups == y.groups);
                CHECK(x.holders == y.holders);
                CHECK(x.others == y.others);
                REQUIRE(x.differences.size() == y.differences.size());
                for (std::size_t d = 0; d < x.differences.size(); ++d)
                    CHECK(testing::same(x.differences[d], y.differences[d]));
                REQUIRE(x.ranges.size() == y.ranges.size());
                for (std::size_t r = 0; r < x.ranges.size(); ++r) CHECK(x.ranges[r].first == y.ranges[r].first);
            }
        }
        return found_[0];
    }

private:
    std::vector<std::vector<disagreement>> found_;
};

/// Locates what `change(rank, buffers)` did to equal buffers of two kinds on each rank.
template <class Change>
std::vector<disagreement> located(int ranks, const Change& change)
{
    const testing::watchdog guard("locate", 60);
    agreed_verdict all(ranks);
    local::run(ranks, settings, [&](local::communicator& comm) {
        std::vector<float> weights(20'000, 0.5f);
        std::vector<bfloat16> momentum(333, bfloat16(1.0f));
        change(comm.rank(), weights, momentum);
        agreement check(comm);
        const host::stream stream;
        const std::vector<replica> buffers{view(weights), view(momentum)};
        const bool same = check.agreed(buffers, stream);
        all.of(comm.rank()) = check.locate(buffers, stream);
        if (same != all.of(comm.rank()).empty()) throw std::runtime_error("check and locate differ");
    });
    return all.get();
}

} // namespace

TEST_CASE("equal buffers agree, in one message that does not grow with them")
{
    for (const int ranks : {1, 2, 3, 8}) {
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100'000}}) {
            std::vector<std::uint64_t> sent(static_cast<std::size_t>(ranks)), calls(sent.size());
            std::vector<std::uint8_t> same(sent.size());
            local::run(ranks, settings, [&](local::communicator& comm) {
                counting counted(comm);
                std::vector<double> values(count, 1.0 / 3);
                std::vector<std::int8_t> others(count, std::int8_t{-1});
                agreement check(counted, {.max_buffers = 2});
                const host::stream stream;
                const auto me = static_cast<std::size_t>(comm.rank());
                same[me] = check.agreed(std::vector<replica>{view(values), view(others)}, stream);
                sent[me] = counted.bytes;
                calls[me] = counted.calls;
            });
            for (std::size_t r = 0; r < sent.size(); ++r) {
                CHECK(same[r] == 1);
                CHECK(sent[r] == 3 * 16); // two buffers, and the number of the check
                CHECK(calls[r] == 1);
            }
        }
    }
}

TEST_CASE("a comparison reads a buffer once")
{
    local::run(1, settings, [](local::communicator& comm) {
        counted_memory<double> values(1 << 19);
        agreement check(comm);
        const host::stream stream;
        const std::vector<replica> all{view<double>(values.data(), 1 << 19)};
        CHECK(values.passes([&] { CHECK(check.agreed(all, stream)); }) == 1);
    });
}

TEST_CASE("several damaged ranks and buffers each have their own differences")
{
    const std::vector<disagreement> found = located(7, [](int rank, auto& weights, auto& momentum) {
        if (rank == 0) weights[0] = 7;
        if (rank == 3) {
            for (std::size_t i = 100; i < 5'100; ++i) weights[i] = 0;
            momentum[332] = bfloat16(2.0f);
        }
        if (rank == 6) weights[19'999] = weights[7] = 1;
    });
    REQUIRE(found.size() == 2);
    const disagreement& weights = found[0];
    CHECK(weights.majority);
    CHECK(weights.groups == 4);
    CHECK(weights.holders == std::vector{1, 2, 4, 5});
    CHECK(weights.others == std::vector{0, 3, 6});
    REQUIRE(weights.differences.size() == 3);
    CHECK(weights.differences[0].elements == 1);
    CHECK(weights.differences[1].first == 100);
    CHECK(weights.differences[1].last == 5'099);
    CHECK(weights.differences[1].elements == 5'000);
    CHECK(weights.differences[2].first == 7);
    CHECK(weights.differences[2].last == 19'999);
    CHECK(weights.differences[2].elements == 2);
    const disagreement& momentum = found[1];
    CHECK(momentum.buffer == 1);
    CHECK(momentum.others == std::vector{3});
    CHECK(momentum.differences[0].first == 332);
    CHECK(momentum.differences[0].expected_bits == 0x3f80);
    CHECK(momentum.differences[0].actual_bits == 0x4000);
}

TEST_CASE("two of two that differ, and exactly half, are no majority: nobody is blamed")
{
    for (const int ranks : {2, 4}) {
        const std::vector<disagreement> found = located(ranks, [&](int rank, auto& weights, auto&) {
            if (rank >= ranks / 2) weights[5] = 1;
        });
        REQUIRE(found.size() == 1);
        const disagreement& it = found[0];
        CHECK(!it.majority);
        CHECK(it.groups == 2);
        CHECK(it.holders.front() == 0); // what the others are compared with
        CHECK(static_cast<int>(it.others.size()) == ranks / 2);
        for (const difference& each : it.differences) CHECK(each.first == 5);
    }
    // All differ: three groups of one.
    const std::vector<disagreement> found = located(3, [](int rank, auto& weights, auto&) { weights[5] = float(rank); });
    CHECK(!found[0].majority);
    CHECK(found[0].groups == 3);
    // Control: one more on a side, and there is one.
    CHECK(located(5, [](int rank, auto& weights, auto&) { if (rank >= 3) weights[5] = 1; })[0].majority);
}

TEST_CASE("a rank with another count, another type or another number of buffers is named")
{
    const testing::watchdog guard("shapes", 60);
    for (int kind = 0; kind < 5; ++kind) {
        CAPTURE(kind);
        agreed_verdict all(4);
        local::run(4, settings, [&](local::communicator& comm) {
            const bool odd = comm.rank() == 2;
            std::vector<float> first(100, 1.0f);
            std::vector<std::uint32_t> same_bits(100, 0x3f800000);
            std::vector<float> longer(odd && kind == 0 ? 101 : 100, 0.0f);
            std::vector<replica> buffers{view(first), view(longer)};
            if (odd && kind == 1) buffers[1] = view<float>();
            if (odd && kind == 2) buffers[0] = view(same_bits);
            if (odd && kind == 3) buffers.pop_back();
            if (odd && kind == 4) buffers.push_back(view(first)); // which most ranks do not have
            agreement check(comm, {.max_buffers = 3});
            const host::stream stream;
            all.of(comm.rank()) = check.locate(buffers, stream);
        });
        const std::vector<disagreement>& found = all.get();
        REQUIRE(found.size() == 1);
        CHECK(found[0].buffer == (kind == 2 ? 0 : kind == 4 ? 2 : 1));
        CHECK(found[0].others == std::vector{2});
        CHECK(!found[0].differences[0].same_shape);
        CHECK(found[0].differences[0].elements == 0);
        CHECK(found[0].ranges.empty());
    }
}

TEST_CASE("buffers are compared as the work before the call leaves them")
{
    const testing::watchdog guard("behind work", 60);
    local::run(3, settings, [](local::communicator& comm) {
        std::vector<double> data(64), other(64);
        agreement check(comm, {.max_buffers = 2});
        const host::stream stream;
        const std::vector<replica> buffers{view(other), view(data)};
        for (int k = 0; k < 4; ++k) {
            stream.enqueue([&data, value = k % 2 == 0 ? 0 : comm.rank()] { data[3] = value; });
            if (check.agreed(buffers, stream) != (k % 2 == 0)) throw std::runtime_error("a wrong answer");
        }
    });
}

TEST_CASE("ranks that have made different numbers of comparisons get an error, not an answer")
{
    const local::group group(3, settings);
    const auto outcomes = testing::run_each(group, [](local::communicator& comm) {
        std::vector<double> data(64);
        const std::vector<replica> buffers{view(data)};
        const host::stream stream;
        agreement first(comm), second(comm);
        if (!first.agreed(buffers, stream)) throw std::runtime_error("a wrong answer");
        (void)(comm.rank() == 1 ? second : first).agreed(buffers, stream);
    });
    for (const testing::rank_outcome& each : outcomes) {
        REQUIRE(each.failure());
        CHECK(each.failure()->code() == status::mismatch);
    }
}

TEST_CASE("bad buffers are refused by name, and the rank may compare the right ones")
{
    for (int kind = 0; kind < 3; ++kind) {
        const local::group group(3, {.timeout_ms = 60'000});
        std::optional<error> refused;
        const auto outcomes = testing::run_each(group, [&](local::communicator& comm) {
            std::vector<float> data(8);
            std::vector<replica> buffers{view(data), view(data)};
            if (comm.rank() == 1 && kind == 0) buffers[1].data = nullptr;
            if (comm.rank() == 1 && kind == 1) buffers[1] = view(reinterpret_cast<float*>(reinterpret_cast<char*>(data.data()) + 2), 4);
            if (comm.rank() == 1 && kind == 2) buffers.push_back(view(data));
            agreement check(comm, {.max_buffers = 2});
            const host::stream stream;
            if (comm.rank() == 1) refused = testing::error_of([&] { (void)check.agreed(buffers, stream); });
            buffers = {view(data), view(data)};
            if (!check.agreed(buffers, stream)) throw std::runtime_error("the right buffers");
        });
        for (const auto& outcome : outcomes) CHECK_FALSE(outcome.thrown);
        REQUIRE(refused);
        CHECK(refused->code() == status::invalid_argument);
        CHECK(refused->rank() == 1);
        CHECK(std::string(refused->what()).find(kind == 2 ? "max_buffers" : "buffer 1") != std::string::npos);
    }
    local::run(1, settings, [](local::communicator& comm) {
        CHECK_THROWS_AS(agreement(comm, {.max_buffers = 0}), error);
    });
}

TEST_CASE("a comparison whose stream failed has no answer, but an error")
{
    local::run(1, settings, [](local::communicator& comm) {
        std::vector<float> data(8);
        agreement check(comm);
        const host::stream stream;
        stream.enqueue([] { throw std::runtime_error("the step went wrong"); });
        CHECK_THROWS_WITH(
            check.agreed(std::vector<replica>{view(data)}, stream), doctest::Contains("the step went wrong"));
    });
}

TEST_CASE("damage over more than a message of block digests is located exactly, and repaired piece by piece")
{
    const testing::watchdog guard("large", 120);
    for (const bool everywhere : {false, true}) {
        agreed_verdict all(3);
        raw_buffer clean(700'001, element_type::float32);
        testing::random_numbers random{5};
        clean.randomise(random);
        raw_buffer damaged = clean;
        for (std::uint64_t i = 17; i < clean.count; i += everywhere ? 13 : 250'000) damaged.set_bits(i, ~clean.bits(i));
        local::run(3, settings, [&](local::communicator& comm) {
            raw_buffer mine = comm.rank() == 2 ? damaged : clean;
            agreement check(comm);
            const host::stream stream;
            all.of(comm.rank()) = check.locate(std::vector{mine.as_replica()}, stream);
            const repair_result result = majority_repair(check, std::vector{mine.as_replica()}, stream);
            testing::require(result.repaired && result.rounds == 1, "not repaired");
            testing::require(testing::differences_of(clean, mine, 0).elements == 0, "other bits");
        });
        REQUIRE(all.get().size() == 1);
        CHECK(testing::same(all.get()[0].differences[0], testing::differences_of(clean, damaged, 2)));
        CHECK(testing::ranges_fit(all.get()[0], clean, {&damaged}));
        CHECK((all.get()[0].ranges.size() == 3) == !everywhere);
    }
}

TEST_CASE("random damage of every kind to any minority is found, named and repaired, and nothing else is")
{
    constexpr int cases = COLLPROBE_TEST_UNLESS_SANITIZED(COLLPROBE_TEST_UNLESS_BRIEF(300, 100), 40);
    for (const int ranks : {3, 4, 8, 16}) {
        const testing::watchdog guard("random damage", 120);
        local::run(ranks, settings, [&](local::communicator& comm) {
            testing::random_numbers random{static_cast<std::uint64_t>(ranks)}; // the same on all ranks
            agreement check(comm, {.max_buffers = 1});
            const host::stream stream;
            for (int k = 0; k < cases; ++k) {
                const auto kind = static_cast<testing::damage_kind>(k % static_cast<int>(testing::damage_kind::count));
                raw_buffer clean(random.between(1, k % 3 == 0 ? 40 : 4000), static_cast<element_type>(random.below(10)));
                clean.randomise(random);
                std::vector<int> bad;
                std::vector<raw_buffer> damaged;
                const std::uint64_t most = k % 5 != 0 ? 1 : static_cast<std::uint64_t>(ranks - 1) / 2;
                for (int r = 0; r < ranks && bad.size() < most; ++r) {
                    if (random.below(2) == 0 && r + 1 < ranks) continue;
                    bad.push_back(r);
                    damaged.push_back(clean);
                    testing::damage_once(damaged.back(), kind, random);
                    while (testing::differences_of(clean, damaged.back(), r).elements == 0) // two flips of the same bit
                        testing::damage_once(damaged.back(), testing::damage_kind::bits, random);
                }
                raw_buffer mine = clean;
                testing::require(check.agreed(std::vector{mine.as_replica()}, stream), "clean buffers differ");
                std::vector<const raw_buffer*> all;
                for (std::size_t i = 0; i < bad.size(); ++i) {
                    if (bad[i] == comm.rank()) mine = damaged[i];
                    all.push_back(&damaged[i]);
                }
                const std::vector<disagreement> found = check.locate(std::vector{mine.as_replica()}, stream);
                const std::string what = "case " + std::to_string(k);
                testing::require(found.size() == 1 && found[0].majority && found[0].others == bad, what + ": who");
                testing::require(found[0].count == clean.count && found[0].holders.size() + bad.size() == static_cast<std::size_t>(ranks), what + ": holders");
                // One rank looks closely, in turn.
                for (std::size_t i = 0; i < bad.size() && k % ranks == comm.rank(); ++i) {
                    const difference expected = testing::differences_of(clean, damaged[i], bad[i]);
                    testing::require(testing::same(found[0].differences.at(i), expected), what + ": where");
                }
                testing::require(k % ranks != comm.rank() || testing::ranges_fit(found[0], clean, all), what + ": ranges");
                (void)majority_repair(check, std::vector{mine.as_replica()}, stream);
                testing::require(testing::differences_of(clean, mine, 0).elements == 0, what + ": not repaired");
            }
        });
    }
}

} // namespace collprobe::testing::agreement_test
