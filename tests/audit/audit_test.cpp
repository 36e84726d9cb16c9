// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/host_gate.hpp"
#include "support/rank_memory.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

namespace {

/// What happens to a result on its stream, by rank.
using damage_of_floats = std::function<void(int rank, view<float>)>;

/// Damages what comes out of float all-reduces, all-gathers and broadcasts.
template <communicator Comm>
class damaging : public adaptor<damaging<Comm>, Comm> {
    using base_type = adaptor<damaging, Comm>;

public:
    using typename base_type::stream_ref;
    damaging(Comm comm, damage_of_floats what) : base_type(std::move(comm)), what_(std::move(what)) {}

    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        base_type::template make<T>(call, on);
        if (call.what != collective::all_to_all && call.what != collective::barrier) apply(call.received<T>(), on);
    }

private:
    template <class T>
    void apply(view<T> result, stream_ref on)
    {
        if constexpr (std::is_same_v<T, float>)
            on.enqueue([what = what_, rank = this->rank(), result] { what(rank, result); });
    }
    damage_of_floats what_;
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

/// Equal on all ranks.
struct tested {
    report_mode mode = report_mode::gather;
    bool sums = true;
};

/// Options of a step that audits, and takes no statistics.
probe_options audits_alone(probe_options options = {})
{
    options.statistics = false;
    return options;
}

/// The records that every rank polled after `steps` calls of `make(comm, stream, step)`, checked to be equal.
template <class Make>
std::vector<step_record> audits(int ranks, std::uint64_t steps, const tested& options,
    const damage_of_floats& what, const Make& make)
{
    std::vector<std::vector<step_record>> seen(static_cast<std::size_t>(ranks));
    testing::local_provider{ranks}.run([&](local::communicator& world) {
        probed comm{damaging(world, what), audits_alone({.mode = options.mode}), audit({.sums = options.sums})};
        host::stream stream;
        for (std::uint64_t step = 0; step < steps; ++step) {
            make(comm, stream, step);
            comm.end_step(step, stream);
        }
        stream.synchronize(30'000);
        step_record record;
        while (comm.poll(record)) seen[static_cast<std::size_t>(world.rank())].push_back(record);
        CHECK(comm.pending_steps() == 0);
    });
    for (const std::vector<step_record>& of_rank : seen) {
        REQUIRE(of_rank.size() == seen[0].size());
        for (std::size_t s = 0; s < of_rank.size(); ++s) {
            CHECK(of_rank[s].step == seen[0][s].step);
            REQUIRE(of_rank[s].findings.size() == seen[0][s].findings.size());
            REQUIRE(of_rank[s].calls.size() == seen[0][s].calls.size());
            for (std::size_t b = 0; b < of_rank[s].calls.size(); ++b) {
                CHECK(of_rank[s].calls[b].audit.where == seen[0][s].calls[b].audit.where);
                CHECK(of_rank[s].calls[b].audit.culprits == seen[0][s].calls[b].audit.culprits);
                CHECK(of_rank[s].calls[b].audit.residual == seen[0][s].calls[b].audit.residual);
            }
        }
    }
    return seen[0];
}

/// One all-reduce of floats a step.
std::vector<step_record> reduce_audits(int ranks, const tested& options, const damage_of_floats& what,
    std::uint64_t steps = 1, std::uint64_t count = 10'000, reduction operation = reduction::average)
{
    return audits(ranks, steps, options, what, [&](auto& comm, host::stream& stream, std::uint64_t) {
        const std::vector<float> own = gradient<float>(comm.rank(), count);
        std::vector<float> all(count);
        comm.all_reduce(own, view(all), operation, stream);
        stream.synchronize(30'000);
    });
}

const damage_of_floats none = [](int, view<float>) {};
void flip(float& value, unsigned bit)
{
    value = detail::bit_cast<float>(to_bits(value) ^ (std::uint32_t{1} << bit));
}

} // namespace

TEST_CASE("clean steps raise nothing, whatever the type, operation and count")
{
    for (const int ranks : {1, 2, 3, 4, 8}) {
        const auto all = audits(ranks, 3, {}, none, [](auto& comm, host::stream& stream, std::uint64_t step) {
            const std::uint64_t count = std::uint64_t{1} << (6 * step); // 1, 64, 4096
            const auto reduce = [&]<class T>(T, reduction operation) {
                const std::vector<T> own = gradient<T>(comm.rank(), count + step);
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
            reduce(float{}, reduction::max);
            reduce(std::int64_t{}, reduction::average);
            std::vector<float> in_place = gradient<float>(comm.rank(), count);
            comm.all_reduce(in_place, view(in_place), reduction::sum, stream);
            std::vector<float> gathered(count * static_cast<std::uint64_t>(comm.size()));
            comm.all_gather(view<const float>(in_place), view(gathered), stream);
            comm.broadcast(view<const float>(in_place), view(in_place), 0, stream);
            comm.all_reduce(view<const float>(), view<float>(), reduction::sum, stream);
            stream.synchronize(30'000);
        });
        REQUIRE(all.size() == 3);
        for (const step_record& record : all) {
            CHECK(record.ranks == ranks);
            CHECK(record.findings.empty());
            REQUIRE(record.calls.size() == 12);
            for (const call_record& bucket : record.calls) {
                CHECK(bucket.results_agree);
                CHECK(bucket.audit.conserved);
                CHECK(bucket.audit.where == damage::none);
            }
            CHECK(record.calls[0].audit.sum_checked);
            CHECK(record.calls[0].audit.bins >= 64);
            CHECK_FALSE(record.calls[4].audit.sum_checked); // integers
            CHECK_FALSE(record.calls[6].audit.sum_checked);
            CHECK_FALSE(record.calls[9].audit.sum_checked);
            CHECK(record.calls[2].type == element_type::float64);
            CHECK(record.calls[9].call == collective::all_gather);
        }
    }
}

TEST_CASE("any flipped bit of one rank's result names the rank")
{
    for (const int ranks : {3, 4, 7}) {
        for (const int bad : {0, ranks - 1}) {
            for (const unsigned bit : {0u, 12u, 23u, 30u, 31u}) {
                const auto all = reduce_audits(ranks, {}, [=](int rank, view<float> result) {
                    if (rank == bad) flip(result[1234], bit);
                });
                REQUIRE(all.size() == 1);
                const call_record& found = all[0].calls.at(0);
                CHECK_FALSE(found.results_agree);
                CHECK(found.audit.where == damage::broadcast);
                CHECK(found.audit.culprits == std::vector<int>{bad});
                REQUIRE(all[0].findings.size() == 1);
                CHECK(all[0].findings[0].rank() == bad);
                CHECK(all[0].findings[0].what == finding_kind::result_differs);
            }
        }
    }
}

TEST_CASE("the sum tells which of two ranks received damage, and a damage below the rounding names nobody")
{
    for (const int bad : {0, 1}) {
        const auto large = reduce_audits(2, {}, [=](int rank, view<float> result) {
            if (rank == bad) result[77] += 0.25f;
        });
        CHECK(large.at(0).calls.at(0).audit.where == damage::broadcast);
        CHECK(large[0].calls[0].audit.culprits == std::vector<int>{bad});
        const auto small = reduce_audits(2, {}, [=](int rank, view<float> result) {
            if (rank == bad) flip(result[77], 0);
        });
        CHECK(small.at(0).calls.at(0).audit.where == damage::unknown);
        CHECK(small[0].calls[0].audit.culprits.empty());
    }
}

TEST_CASE("a result that is wrong on all ranks alike was damaged in the reduction")
{
    for (const reduction operation : {reduction::sum, reduction::average}) {
        const auto all = reduce_audits(
            4, {}, [](int, view<float> result) { result[4321] += 1; }, 2, 10'000, operation);
        REQUIRE(all.size() == 2);
        for (const step_record& record : all) {
            CHECK(record.calls.at(0).results_agree);
            CHECK_FALSE(record.calls[0].audit.conserved);
            CHECK(record.calls[0].audit.where == damage::reduce);
            CHECK(record.calls[0].audit.culprits.empty());
            CHECK(record.calls[0].audit.residual > record.calls[0].audit.residual_limit);
            REQUIRE(record.findings.size() == 1);
            CHECK(record.findings[0].what == finding_kind::sum_differs);
        }
    }
}

TEST_CASE("all-gathers and broadcasts that deliver other bits to a rank name it")
{
    const auto all = audits(
        3, 1, {}, [](int rank, view<float> result) { if (rank == 2) flip(result[0], 3); },
        [](auto& comm, host::stream& stream, std::uint64_t) {
            std::vector<float> own = gradient<float>(comm.rank(), 100);
            std::vector<float> gathered(300);
            comm.all_gather(view<const float>(own), view(gathered), stream);
            comm.broadcast(view<const float>(own), view(own), 1, stream);
            stream.synchronize(30'000);
        });
    for (const call_record& bucket : all.at(0).calls) {
        CHECK(bucket.audit.where == damage::broadcast);
        CHECK(bucket.audit.culprits == std::vector<int>{2});
    }
}

TEST_CASE("a reduce-scatter is checked over all its parts, and nobody is named")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const float by : {0.0f, 0.5f}) {
            const auto all = audits(
                4, 1, {.mode = mode}, [=](int rank, view<float> part) { if (rank == 2) part[99] += by; },
                [](auto& comm, host::stream& stream, std::uint64_t) {
                    const std::vector<float> own = gradient<float>(comm.rank(), 4000);
                    std::vector<float> part(1000);
                    comm.reduce_scatter(view<const float>(own), view(part), reduction::average, stream);
                    stream.synchronize(30'000);
                });
            const call_record& found = all.at(0).calls.at(0);
            CHECK(found.call == collective::reduce_scatter);
            CHECK(found.audit.sum_checked);
            CHECK(found.results_agree);
            CHECK(found.audit.conserved == (by == 0));
            CHECK(found.audit.where == (by == 0 ? damage::none : damage::unknown));
            CHECK(all[0].findings.size() == (by == 0 ? 0 : 1));
        }
    }
}

TEST_CASE("the summary tells the same without names, and is silent on clean steps")
{
    const tested summary{.mode = report_mode::summary};
    CHECK(reduce_audits(4, summary, none, 3).at(2).findings.empty());
    const auto differs = reduce_audits(4, summary, [](int rank, view<float> result) {
        if (rank == 3) flip(result[5], 1);
    });
    CHECK_FALSE(differs.at(0).calls.at(0).results_agree);
    CHECK(differs[0].calls[0].audit.where == damage::unknown);
    const auto wrong = reduce_audits(4, summary, [](int, view<float> result) { result[5] += 1; });
    CHECK(wrong.at(0).calls.at(0).results_agree);
    CHECK(wrong[0].calls[0].audit.where == damage::reduce);
    const auto named = reduce_audits(4, {}, [](int, view<float> result) { result[5] += 1; });
    CHECK(wrong[0].calls[0].audit.residual > 8);
    CHECK(to_bits(wrong[0].calls[0].audit.residual) == to_bits(named.at(0).calls.at(0).audit.residual));
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
        REQUIRE(record.findings.size() == 1);
        CHECK(record.findings[0].what == finding_kind::result_differs);
        CHECK_FALSE(record.findings[0].is_named());
    }
}

TEST_CASE("without sums only agreement is checked")
{
    const auto all = reduce_audits(4, {.sums = false}, [](int, view<float> result) { result[5] += 1; });
    CHECK_FALSE(all.at(0).calls.at(0).audit.sum_checked);
    CHECK(all[0].findings.empty());
}

TEST_CASE("a NaN of a rank's own gradient is not blamed on the reduction")
{
    const auto all = audits(3, 1, {}, none, [](auto& comm, host::stream& stream, std::uint64_t) {
        std::vector<float> own = gradient<float>(comm.rank(), 100);
        if (comm.rank() == 1) own[7] = detail::bit_cast<float>(0x7fc00000u);
        comm.all_reduce(own, view(own), reduction::sum, stream);
        stream.synchronize(30'000);
    });
    CHECK_FALSE(all.at(0).calls.at(0).audit.sum_checked);
    CHECK(all[0].calls[0].audit.where == damage::none);
}

TEST_CASE("calls on several streams are one step, and many steps may be under way")
{
    testing::local_provider{4}.run([](local::communicator& world) {
        probed comm{local::communicator(world), audits_alone({.steps_in_flight = 2, .unread_steps = 3}), audit()};
        std::vector<float> a = gradient<float>(world.rank(), 5000);
        std::vector<float> b(5000), c(5000);
        host::stream first, second;
        host::event ready;
        for (std::uint64_t step = 0; step < 20; ++step) {
            comm.all_reduce(a, view(b), reduction::average, first);
            ready.record(first);
            second.wait(ready);
            comm.all_reduce(b, view(c), reduction::average, second);
            ready.record(second);
            first.wait(ready);
            comm.end_step(step, first);
        }
        first.synchronize(30'000);
        step_record record;
        std::uint64_t read = 0;
        while (comm.poll(record)) {
            CHECK(record.step == comm.dropped_steps() + read);
            CHECK(record.calls.size() == 2);
            CHECK(record.findings.empty());
            ++read;
        }
        CHECK(read + comm.dropped_steps() == 20);
    });
}

TEST_CASE("a step grows with its calls")
{
    testing::local_provider{2}.run([](local::communicator& world) {
        probed comm{local::communicator(world), audits_alone({.calls = 1}), audit()};
        host::stream stream;
        std::vector<float> data(10, 1.0f);
        comm.all_reduce(data, view(data), reduction::sum, stream);
        comm.all_reduce(data, view(data), reduction::sum, stream);
        comm.end_step(0, stream);
        stream.synchronize(30'000);
        CHECK(data[9] == 4.0f);
        step_record record;
        REQUIRE(comm.poll(record));
        CHECK(record.calls.size() == 2);
        CHECK(record.calls[1].audit.sum_checked);
        CHECK(record.unprobed_calls == 0);
    });
}

TEST_CASE("ranks that end different steps are told so, and name the same ranks")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const int ranks : {2, 4}) {
            testing::local_provider{ranks}.run([&](local::communicator& world) {
                probed comm{local::communicator(world), audits_alone({.mode = mode}), audit()};
                host::stream stream;
                comm.end_step(world.rank() == 1 ? 7 : 3, stream);
                stream.synchronize(30'000);
                step_record record;
                std::optional<error> thrown;
                try {
                    comm.poll(record);
                } catch (const error& e) {
                    thrown = e;
                }
                REQUIRE(thrown);
                CHECK(thrown->code() == status::mismatch);
                CHECK(thrown->rank() == world.rank());
                if (mode == report_mode::summary) return;
                CHECK(thrown->culprits() == (ranks == 2 ? std::vector<int>{0, 1} : std::vector<int>{1}));
            });
        }
    }
}

TEST_CASE("a step whose work failed is no healthy step, also if somebody else heard of the failure")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        testing::local_provider{1}.run([&](local::communicator& world) {
            probed comm{local::communicator(world), audits_alone({.mode = mode, .steps_in_flight = 2}), audit()};
            host::stream stream;
            step_record record;
            for (int i = 0; i < 3; ++i) { // so that there are old reports
                comm.end_step(0, stream);
                stream.synchronize(30'000);
                CHECK(comm.poll(record));
            }
            const testing::host_gate gate; // work that has failed before it would make end_step throw
            gate.close(stream);
            stream.enqueue([] { throw std::runtime_error("broken"); });
            comm.end_step(0, stream);
            gate.open();
            CHECK_THROWS_AS(stream.synchronize(30'000), std::runtime_error);
            std::optional<error> thrown;
            try {
                comm.poll(record);
            } catch (const error& e) {
                thrown = e;
            }
            REQUIRE(thrown);
            CHECK(thrown->code() == status::device_failure);
        });
    }
}

TEST_CASE("a wrong sum of integers is certain, in both modes, one of floats by how far off it is")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        testing::local_provider{4}.run([&](local::communicator& world) {
            probed comm{damaging(local::communicator(world), [](int, view<float> result) { result[3] += 0.002f; }),
                audits_alone({.mode = mode}), audit()};
            host::stream stream;
            // Beneath the audit: the same wrong element for all ranks. Sums of integers are not checked.
            std::vector<std::int32_t> whole(1000, 5);
            std::vector<float> own = gradient<float>(world.rank(), 5000);
            comm.all_reduce(own, view(own), reduction::sum, stream);
            comm.all_reduce(whole, view(whole), reduction::sum, stream);
            comm.end_step(0, stream);
            step_record record;
            REQUIRE(comm.wait(record));
            REQUIRE(record.findings.size() == 1);
            CHECK(record.findings[0].exact);
            CHECK(record.findings[0].false_alarms_per_step > 0);
            CHECK(record.findings[0].false_alarms_per_step < 1e-10);
            CHECK_FALSE(comm.wait(record)); // none is pending
        });
    }
    for (const auto& [by, certain] : {std::pair{0.002f, true}, std::pair{5e-7f, false}}) {
        const auto all = reduce_audits(4, {}, [by = by](int, view<float> result) { result[3] += by; });
        REQUIRE(all.at(0).findings.size() == 1);
        CHECK(all[0].findings[0].exact == certain);
    }
}

TEST_CASE("a shard that was damaged on its way out names its owner, as input, with statistics and without")
{
    for (const bool statistics : {false, true}) {
        testing::local_provider{4}.run([&](local::communicator& world) {
            probed comm{faulty(local::communicator(world),
                            {{.kind = fault_kind::bit_flips, .phase = fault_phase::during, .rank = 2, .call = 0}}),
                {.statistics = statistics}, audit()};
            host::stream stream;
            const std::vector<float> own = gradient<float>(world.rank(), 100);
            std::vector<float> all(400);
            comm.all_gather(own, view(all), stream);
            comm.end_step(0, stream);
            step_record record;
            REQUIRE(comm.wait(record));
            CHECK(record.calls.at(0).audit.where == damage::input);
            REQUIRE(record.findings.size() == 1);
            CHECK(record.findings[0].what == finding_kind::shard_differs);
            CHECK(record.findings[0].rank() == 2);
            CHECK(record.findings[0].other_rank == 2);
        });
    }
}

TEST_CASE("with statistics too a call is judged once, whatever its type")
{
    testing::local_provider{4}.run([](local::communicator& world) {
        probed comm{reproducible{damaging(local::communicator(world), [](int, view<float>) {}),
                        contract<reproducibility::correctly_rounded>{}},
            {}, audit({.conservation = {.order = rounding_order::single}})};
        host::stream stream;
        std::vector<float> data = gradient<float>(world.rank(), 5000);
        std::vector<std::int32_t> counts(100, world.rank());
        comm.all_reduce(data, view(data), reduction::average, stream);
        comm.all_reduce(counts, view(counts), reduction::sum, stream);
        comm.end_step(0, {.loss = 1}, stream);
        step_record record;
        REQUIRE(comm.wait(record));
        CHECK(record.findings.empty());
        REQUIRE(record.calls.size() == 2);
        for (const call_record& call : record.calls) {
            CHECK(call.audit.checked);
            CHECK(call.audit.sum_checked == is_floating(call.type));
        }
        CHECK(record.calls[0].inputs.size() == 4);
        CHECK(record.calls[0].gradient_norm.finite == 4);
        CHECK(record.calls[1].inputs.empty()); // no statistics of integers
        CHECK(record.calls[1].gradient_norm.finite == 0);
    });
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const bool statistics : {true, false}) {
            testing::local_provider{3}.run([&](local::communicator& world) {
                probed comm{damaging(world, [](int rank, view<float> result) { if (rank == 1) flip(result[5], 30); }),
                    {.mode = mode, .statistics = statistics}, audit()};
                host::stream stream;
                const std::vector<float> own = gradient<float>(world.rank(), 1000);
                std::vector<float> sum(own.size());
                comm.all_reduce(own, view(sum), reduction::sum, stream);
                comm.end_step(0, stream);
                step_record record;
                REQUIRE(comm.wait(record));
                std::vector<finding> differs;
                for (const finding& found : record.findings) {
                    if (found.what == finding_kind::result_differs) differs.push_back(found);
                }
                REQUIRE(differs.size() == 1);
                CHECK(differs[0].rank() == (mode == report_mode::gather ? 1 : -1));
                CHECK_FALSE(record.calls[0].results_agree);
            });
        }
    }
}

TEST_CASE("a sum of several leaves a rank is checked for agreement alone")
{
    testing::local_provider{3}.run([](local::communicator& world) {
        probed comm{reproducible{local::communicator(world), contract<reproducibility::correctly_rounded>{}}, {}, audit()};
        host::stream stream;
        const std::vector<float> leaves = gradient<float>(world.rank(), 3 * 1001);
        std::vector<float> sum(1001);
        comm.all_reduce(leaves, view(sum), reduction::sum, stream, reduction_extras{3});
        comm.end_step(0, {.loss = 1}, stream);
        step_record record;
        REQUIRE(comm.wait(record));
        CHECK(record.findings.empty());
        REQUIRE(record.calls.size() == 1);
        CHECK(record.calls[0].audit.checked);
        CHECK_FALSE(record.calls[0].audit.sum_checked);
    });
}

TEST_CASE("a collective that the caller makes is observed, and its damage is named")
{
    for (const int harmed : {-1, 2}) {
        local::run(4, {.timeout_ms = 20'000}, [&](local::communicator& world) {
            const bool harms = world.rank() == harmed;
            host::stream stream;
            probed comm(world, {}, audit());
            std::vector<float> gradient(3000, static_cast<float>(1 + world.rank())), part(750);
            const auto flat = comm.observe(view<const float>(gradient), stream, collective::all_reduce,
                reduction::sum, call_site::named("flat"));
            CHECK_THROWS_AS(comm.end_step(0, stream), error);
            const auto scattered
                = comm.observe(view<const float>(gradient), stream, collective::reduce_scatter, reduction::sum);
            world.reduce_scatter(gradient, view(part), reduction::sum, stream);
            world.all_reduce(gradient, view(gradient), reduction::sum, stream);
            stream.enqueue([&] {
                if (harms) gradient[17] += 0.5f;
            });
            CHECK_THROWS_AS(flat.result(view<const double>(), stream), error);
            CHECK_THROWS_AS(flat.result(view<const float>(part), stream), error);
            flat.result(view<const float>(gradient), stream);
            scattered.result(view<const float>(part), stream);
            CHECK_THROWS_AS(scattered.result(view<const float>(part), stream), error);
            comm.end_step(0, stream);
            stream.synchronize(20'000);
            step_record record;
            REQUIRE(comm.wait(record));
            REQUIRE(record.calls.size() == 2);
            CHECK(record.calls[0].site.name == std::string("flat"));
            CHECK(record.calls[0].gradient_norm.maximum_rank == 3);
            CHECK(record.calls[1].call == collective::reduce_scatter);
            CHECK(record.calls[1].audit.sum_checked);
            CHECK(record.calls[1].audit.conserved);
            REQUIRE(record.findings.size() == (harmed < 0 ? 0 : 1));
            if (harmed >= 0) {
                CHECK(record.findings[0].rank() == harmed);
                CHECK(record.findings[0].what == finding_kind::result_differs);
            }
        });
    }
}

TEST_CASE("statistics and audit look at every k-th step, or at those that are asked for")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
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
                comm.end_step(step, {.loss = 1.0}, stream);
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
            CHECK_THROWS_AS(audit({.every = -1}), error);
        });
    }
}
