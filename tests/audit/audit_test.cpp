// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "support/steps.hpp"

namespace collprobe::testing::audit_test {
namespace {

/// Damages what comes out of collectives of floats: `harm(rank, result)`, on its stream.
template <communicator Comm, class Harm>
class damaging : public adaptor<damaging<Comm, Harm>, Comm> {
    using base_type = adaptor<damaging, Comm>;

public:
    using typename base_type::stream_ref;
    damaging(Comm comm, Harm harm) : base_type(std::move(comm)), harm_(std::move(harm)) {}

    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        base_type::template make<T>(call, on);
        if constexpr (std::is_same_v<T, float>)
            on.enqueue([harm = harm_, rank = this->rank(), result = call.received<T>()] { harm(rank, result); });
    }

private:
    Harm harm_;
};

template <class T>
std::vector<T> gradient(int rank, std::uint64_t count)
{
    std::vector<T> data;
    std::uint64_t state = 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(rank) + 1);
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t bits = detail::mix64(state += 0x9e3779b97f4a7c15u);
        if constexpr (floating_element<T>) data.push_back(static_cast<T>(static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f));
        else data.push_back(static_cast<T>(bits));
    }
    return data;
}

/// The record of an audited step whose results are harmed. `make(comm, stream)`.
template <class Harm, class Make>
step_record harmed(int ranks, const probe_options& options, const Harm& harm, const Make& make, const audit_options& checks = {})
{
    return testing::records_over({ranks, 1, options}, [&](local::communicator& world) { return damaging(world, harm); },
        [&](auto& comm, host::stream& stream, int, auto&) {
            make(comm, stream);
            stream.synchronize(30'000);
        }, audit(checks))[0];
}
/// Of one all-reduce.
template <class Harm>
step_record reduced(int ranks, const probe_options& options, const Harm& harm, reduction operation = reduction::average,
    const audit_options& checks = {})
{
    return harmed(ranks, options, harm, [&](auto& comm, host::stream& stream) {
        std::vector<float> data = gradient<float>(comm.rank(), 10'000);
        comm.all_reduce(view(data), operation, stream);
        stream.synchronize(30'000);
    }, checks);
}
void flip(float& value, unsigned bit)
{
    value = detail::bit_cast<float>(to_bits(value) ^ (std::uint32_t{1} << bit));
}
const probe_options audit_alone{.statistics = false};
static_assert(detail::bins_for(1 << 20, element_type::bfloat16, {}) == 2048);
static_assert(detail::bins_for(1 << 20, element_type::float32, {}) == 1024);

} // namespace

TEST_CASE("clean steps raise nothing, whatever the type, operation and count")
{
    for (const auto& [ranks, order] : {std::pair{1, local::reduction_order::linear}, {2, local::reduction_order::ring},
             {3, local::reduction_order::tree}, {4, local::reduction_order::ring}, {8, local::reduction_order::tree}}) {
        const bool is_tree = order == local::reduction_order::tree;
        for (const step_record& record : records_of({ranks, 3, audit_alone, order}, [](auto& comm, host::stream& stream, int step, auto&) {
                 const std::uint64_t count = std::uint64_t{1} << (6 * step); // 1, 64, 4096
                 const auto reduce = [&]<class T>(T, reduction operation) {
                     const std::vector<T> own = gradient<T>(comm.rank(), count + static_cast<std::uint64_t>(step));
                     std::vector<T> sum(own.size());
                     comm.all_reduce(own, view(sum), operation, stream);
                     stream.synchronize(30'000);
                 };
                 reduce(float{}, reduction::sum);
                 reduce(float{}, reduction::average);
                 reduce(double{}, reduction::average);
                 reduce(bfloat16{}, reduction::average);
                 reduce(std::int32_t{}, reduction::sum);
                 reduce(std::uint8_t{}, reduction::sum);
                 reduce(std::int64_t{}, reduction::average);
                 for (const reduction other : {reduction::max, reduction::min, reduction::product}) reduce(float{}, other);
                 std::vector<float> in_place = gradient<float>(comm.rank(), count);
                 comm.all_reduce(in_place, view(in_place), reduction::sum, stream);
                 std::vector<float> gathered(count * static_cast<std::uint64_t>(comm.size()));
                 comm.all_gather(in_place, view(gathered), stream);
                 comm.broadcast(in_place, view(in_place), 0, stream);
                 comm.all_reduce(view<const float>(), view<float>(), reduction::sum, stream);
                 stream.synchronize(30'000);
             }, audit({.conservation = {.order = is_tree ? rounding_order::tree : rounding_order::linear}}))) {
            CHECK(record.ranks == ranks);
            CHECK(record.findings.empty());
            REQUIRE(record.calls.size() == 14);
            for (std::size_t c = 0; c < 14; ++c) {
                const call_record& call = record.calls[c];
                CHECK(call.results_agree);
                CHECK(call.audit.conserved);
                CHECK(call.audit.where == damage::none);
                if (c < 13) CHECK(call.audit.sum_checked == (c < 4 || c == 10)); // sums and averages of floating-point numbers
            }
            CHECK(record.calls[0].audit.bins == (record.step == 2 ? 256 : 64)); // of 16 elements or more
            CHECK(record.calls[2].type == element_type::float64);
            CHECK(record.calls[11].call == collective::all_gather);
        }
    }
}

TEST_CASE("any flipped bit of one rank's result names the rank, and in a summary none")
{
    for (const bool statistics : {false, true}) {
        for (const int ranks : {3, 4, 7}) {
            for (const int bad : {0, ranks - 1}) {
                for (const unsigned bit : {0u, 12u, 23u, 30u, 31u}) {
                    for (const report_mode mode : both_modes) {
                        const step_record record = reduced(ranks, {.mode = mode, .statistics = statistics},
                            [=](int rank, view<float> result) { if (rank == bad) flip(result[1234], bit); });
                        const bool is_named = mode == report_mode::gather;
                        const call_record& found = record.calls.at(0);
                        CHECK_FALSE(found.results_agree);
                        CHECK(found.audit.where == (is_named ? damage::broadcast : damage::unknown));
                        CHECK(found.audit.culprits == (is_named ? std::vector<int>{bad} : std::vector<int>()));
                        CHECK(told(record) == "result_differs" + (is_named ? " " + std::to_string(bad) : "") + " in 0");
                    }
                }
            }
        }
    }
}

TEST_CASE("a result that is wrong on all ranks alike was damaged in the reduction, and is certain by how far off it is")
{
    for (const reduction operation : {reduction::sum, reduction::average}) {
        double residual = 0;
        for (const report_mode mode : both_modes) {
            for (const float by : {1.0f, 5e-7f}) {
                const probe_options options{.mode = mode, .statistics = false};
                const auto harm = [=](int, view<float> result) { result[4321] += operation == reduction::sum ? 4 * by : by; };
                const step_record record = reduced(4, options, harm, operation);
                const call_record& found = record.calls.at(0);
                CHECK(found.results_agree);
                CHECK_FALSE(found.audit.conserved);
                CHECK(found.audit.where == damage::reduce);
                CHECK(found.audit.culprits.empty());
                CHECK(found.audit.residual > found.audit.residual_limit);
                REQUIRE(record.findings.size() == 1);
                CHECK(record.findings[0].what == finding_kind::sum_differs);
                CHECK(record.findings[0].exact == (by == 1));
                CHECK_FALSE(record.findings[0].by_length);
                CHECK(record.findings[0].false_alarms_per_step > 0);
                if (by != 1) continue;
                CHECK(record.findings[0].false_alarms_per_step < 1e-10);
                if (mode == report_mode::gather) residual = found.audit.residual;
                else CHECK(to_bits(found.audit.residual) == to_bits(residual)); // in both modes
                const step_record unchecked = reduced(4, options, harm, operation, {.sums = false});
                CHECK_FALSE(unchecked.calls.at(0).audit.sum_checked); // only agreement
                CHECK(unchecked.findings.empty());
            }
        }
    }
}

TEST_CASE("two ranks: the sum tells which received a changed, swapped, stale or infinite element, rounding hides what is below it")
{
    using floats = view<float>;
    const auto check = [](const char* label, bool is_seen, auto change) {
        for (const int bad : {0, 1}) {
            CAPTURE(label);
            const call_record found = reduced(2, audit_alone, [&](int rank, floats result) {
                if (rank == bad) change(rank, result);
            }, reduction::sum).calls.at(0);
            CHECK(found.audit.where == (is_seen ? damage::broadcast : damage::unknown));
            CHECK(found.audit.culprits == (is_seen ? std::vector<int>{bad} : std::vector<int>()));
        }
    };
    check("changed", true, [](int, floats result) { result[77] += 0.25f; });
    check("rounded", false, [](int, floats result) { flip(result[77], 0); });
    check("swapped", true, [](int, floats result) { std::swap(result[3], result[9000]); });
    check("swapped in a bin", true, [](int, floats result) { std::swap(result[3], result[3 + 4096]); });
    check("stale", true, [](int rank, floats result) { std::ranges::copy(gradient<float>(rank, result.count()), result.data()); });
    check("lost tail", true, [](int rank, floats result) {
        const auto own = gradient<float>(rank, result.count());
        std::copy(own.end() - 8, own.end(), result.end() - 8);
    });
    check("infinite", true, [](int, floats result) { result[130] = detail::bit_cast<float>(0x7f800000u); });
    check("NaN", true, [](int, floats result) { result[130] = detail::bit_cast<float>(0x7fc00000u); });
}

TEST_CASE("a reduce-scatter is checked over all its parts, and nobody is named")
{
    for (const report_mode mode : both_modes) {
        for (const float by : {0.0f, 0.5f}) {
            const step_record record = harmed(4, {.mode = mode, .statistics = false},
                [=](int rank, view<float> part) { if (rank == 2) part[99] += by; }, [](auto& comm, host::stream& stream) {
                    const std::vector<float> own = gradient<float>(comm.rank(), 4000);
                    std::vector<float> part(1000);
                    comm.reduce_scatter(own, view(part), reduction::average, stream);
                    stream.synchronize(30'000);
                });
            const call_record& found = record.calls.at(0);
            CHECK(found.call == collective::reduce_scatter);
            CHECK(found.audit.sum_checked);
            CHECK(found.results_agree);
            CHECK(found.audit.conserved == (by == 0));
            CHECK(found.audit.where == (by == 0 ? damage::none : damage::unknown));
            CHECK(record.findings.size() == (by == 0 ? 0 : 1));
        }
    }
}

TEST_CASE("a summary of unlike results, whose sum some ranks could not check, names nobody")
{
    for (const std::uint64_t of_nan : {std::uint64_t{5}, std::uint64_t{9}}) { // below and above the digest of the others
        detail::audit_keys all{};
        for (int rank = 0; rank < 4; ++rank) {
            detail::audit_entry own{rank == 3 ? of_nan : 7, {}};
            if (rank != 3) own.sum = {0.5, 0, 64, true, true};
            const detail::audit_keys keys = audit::summarize(own);
            all = {std::max(all.digest, keys.digest), std::max(all.digest_complement, keys.digest_complement),
                std::max(all.residual, keys.residual), std::max(all.unchecked, keys.unchecked)};
        }
        step_record record;
        record.ranks = 4;
        record.mode = report_mode::summary;
        record.calls.resize(1);
        record.calls[0].call = collective::all_reduce;
        record.calls[0].type = element_type::float16;
        record.calls[0].count = 1024;
        record.calls[0].results_agree = true;
        audit checks;
        checks.judge_summary(part_summaries<detail::audit_keys>(reinterpret_cast<std::uint64_t*>(&all), 4), record);
        CHECK_FALSE(record.calls[0].results_agree);
        CHECK(record.calls[0].audit.where == damage::unknown);
        CHECK(record.calls[0].audit.culprits.empty());
        CHECK(told(record) == "result_differs in 0");
    }
}

namespace {

/// The record of an audited all-gather of `count` elements a rank, with a fault and results that are harmed.
template <element T, class Harm>
step_record gathered(int ranks, std::uint64_t count, bool in_place, const std::vector<fault>& faults, const Harm& harm)
{
    return testing::records_over({ranks, 1, {.statistics = count % 2 == 0}},
        [&](local::communicator& world) { return damaging(faulty(world, faults), harm); },
        [&](auto& comm, host::stream& stream, int, auto&) {
            const auto rank = static_cast<std::uint64_t>(comm.rank());
            const std::vector<T> shard = gradient<T>(comm.rank(), count);
            std::vector<T> all(count * static_cast<std::uint64_t>(ranks));
            view<const T> send(shard);
            if (in_place) send = view<const T>(std::copy(shard.begin(), shard.end(), all.data() + rank * count) - count, count);
            comm.all_gather(send, view(all), stream);
            stream.synchronize(30'000);
        }, audit())[0];
}
void leave(int, view<float>) {}

} // namespace

TEST_CASE("a receiver of a damaged shard is named, with its owner, and what all others received alike was sent so")
{
    for (int ranks = 3; ranks <= 16; ++ranks) {
        const int receiver = ranks * 2 / 3 - 1, owner = ranks * 5 / 7;
        const step_record record = gathered<float>(ranks, 33, ranks % 2 == 0, {}, [=](int rank, view<float> all) {
            if (rank == receiver) flip(all[static_cast<std::uint64_t>(owner) * 33 + 5], static_cast<unsigned>(ranks));
        });
        CHECK(record.calls[0].audit.where == damage::broadcast);
        REQUIRE(told(record) == "shard_differs " + std::to_string(receiver) + " in 0");
        CHECK(record.findings[0].other_rank == owner);
        CHECK(record.findings[0].statistic == 1);
    }
    for (const int ranks : {2, 3, 4, 9}) { // though the owner's own copy is right
        const step_record record = gathered<float>(ranks, 10, true, {}, [](int rank, view<float> all) { if (rank != 0) flip(all[3], 30); });
        CHECK(record.calls[0].audit.where == (ranks == 2 ? damage::unknown : damage::input));
        CHECK(record.calls[0].audit.culprits == (ranks == 2 ? std::vector<int>{} : std::vector<int>{0}));
        CHECK(record.findings.at(0).statistic == ranks - 1);
    }
}

TEST_CASE("a shard that was sent wrong and one that arrived wrong name owner and receiver, ascending")
{
    const step_record record = gathered<float>(4, 10, false, {}, [](int rank, view<float> all) {
        if (rank < 2) flip(all[30], 9);
        if (rank == 1) flip(all[0], 9);
    });
    CHECK(record.calls[0].audit.where == damage::unknown);
    CHECK(record.calls[0].audit.culprits == std::vector<int>{1, 3});
}

TEST_CASE("of many damaged shards the list is bounded, and the count is not")
{
    const step_record record = gathered<float>(16, 4, false, {}, [](int rank, view<float> all) {
        for (std::uint64_t owner = 0; owner < 16; ++owner) flip(all[4 * owner], static_cast<unsigned>(rank));
    });
    CHECK(record.findings.at(0).statistic == 256);
    CHECK(record.calls[0].audit.culprits == std::vector<int>{0, 1, 2, 3, 4, 5}); // three shards of each receiver, 16 in all
}

TEST_CASE("random damage to what is gathered is always seen: its receiver is named, or the owner that sent it, as input")
{
    const int rounds = std::getenv("COLLPROBE_ROUNDS") != nullptr ? std::atoi(std::getenv("COLLPROBE_ROUNDS")) : 100;
    constexpr fault_kind kinds[] = {fault_kind::nan, fault_kind::infinity, fault_kind::zero_slice, fault_kind::swap,
        fault_kind::scale, fault_kind::bit_flips, fault_kind::bit_flips, fault_kind::bit_flips, fault_kind::bit_flips};
    for (int round = 0; round < rounds; ++round) {
        const auto seed = static_cast<std::uint64_t>(round);
        CAPTURE(seed);
        const int ranks = 3 + round % 14;
        const bool is_sent_so = round % 4 < 2;
        fault one{.kind = kinds[round % 9], .phase = is_sent_so ? fault_phase::during : fault_phase::after,
            .rank = static_cast<int>(seed * 7 % static_cast<std::uint64_t>(ranks)), .bits = 1 + round % 8, .magnitude = 3, .seed = seed};
        // Of one element, or of 32 that begin at a multiple of 32, as of a warp.
        if (one.kind == fault_kind::bit_flips && round % 3 == 2)
            one.elements = 32, one.alignment = 32, one.stride = std::uint64_t{1} << round % 8;
        const step_record record = gathered<bfloat16>(ranks, 2 + 37 * (seed % 50), round % 3 == 0, {one}, leave);
        CHECK(record.calls[0].audit.where == (is_sent_so ? damage::input : damage::broadcast));
        REQUIRE(told(record) == "shard_differs " + std::to_string(one.rank) + " in 0");
        if (is_sent_so) CHECK(record.findings[0].other_rank == one.rank);
        if (is_sent_so) CHECK(record.findings[0].statistic == ranks);
    }
}

TEST_CASE("with statistics too a call is judged once, whatever its type; a sum of several leaves a rank for agreement alone")
{
    const step_record record = testing::records_over({4},
        [](local::communicator& world) { return reproducible{world, contract<reproducibility::correctly_rounded>{}}; },
        [](auto& comm, host::stream& stream, int, auto& seen) {
            std::vector<float> data = gradient<float>(comm.rank(), 5000), sum(1000);
            std::vector<std::int32_t> counts(100, comm.rank());
            comm.all_reduce(view(data), reduction::average, stream);
            comm.all_reduce(view(counts), reduction::sum, stream);
            comm.all_reduce(data, view(sum), reduction::sum, stream, reduction_extras{5});
            stream.synchronize(30'000);
            seen.loss = 1;
        }, audit({.conservation = {.order = rounding_order::single}}))[0];
    CHECK(record.findings.empty());
    REQUIRE(record.calls.size() == 3);
    for (std::size_t c = 0; c < 3; ++c) {
        CHECK(record.calls[c].audit.checked);
        CHECK(record.calls[c].audit.sum_checked == (c == 0));
        CHECK(record.calls[c].inputs.size() == (c == 1 ? 0 : 4)); // no statistics of integers
        CHECK(record.calls[c].gradient_norm.finite == (c == 1 ? 0 : 4));
    }
}

TEST_CASE("statistics and audit look at every k-th step, or at those that are asked for")
{
    for (const report_mode mode : both_modes) {
        local::run(2, {.timeout_ms = 20'000}, [&](local::communicator& world) {
            host::stream stream;
            probed comm(world, {.mode = mode, .every = 3}, audit({.every = 0}));
            std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
            std::normal_distribution<float> normal;
            std::vector<float> gradient(100);
            std::vector<int> tokens(3, 1);
            for (std::uint64_t step = 0; step < 8; ++step) {
                if (step == 2 || step == 3) comm.request<audit>();
                if (step == 4) comm.request();
                for (float& x : gradient) x = normal(random);
                comm.all_reduce(gradient, view(gradient), reduction::sum, stream);
                comm.all_reduce(tokens, view(tokens), reduction::max, stream);
                comm.end_step(100 + 7 * step, {.loss = 1.0}, stream); // the caller's numbers do not matter
                step_record record;
                REQUIRE(comm.wait(record));
                CHECK(record.loss.mean == 1);
                const bool audited = step == 2 || step == 3;
                const bool measured = step % 3 == 0 || step == 4;
                // What nothing has read has no norm.
                CHECK(record.gradient_norms.size() == (measured ? 2 : 0));
                CHECK(is_finite(record.gradient_norm.mean) == measured);
                // Only parts look at integers.
                REQUIRE(record.calls.size() == (audited ? 2 : measured ? 1 : 0));
                if (record.calls.empty()) continue;
                CHECK(record.calls[0].audit.checked == audited);
                CHECK(record.calls[0].audit.sum_checked == audited);
                CHECK(is_finite(record.calls[0].gradient_norm.mean) == measured);
                CHECK(record.findings.empty());
            }
        });
    }
}

TEST_CASE("wrong options are refused by name")
{
    CHECK(testing::contains(testing::refusal([] { audit({.every = -1}); }), "every"));
    local::run(1, [](local::communicator& world) {
        CHECK(testing::contains(testing::refusal([&] {
            probed made{world, {}, audit({.conservation = {.sketch = {.bins = 100}}})};
        }), "bins is 100"));
    });
}

} // namespace collprobe::testing::audit_test
