// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Observed collectives: in any order, read on the calling thread, by communicators that have only an all-gather; and some
// in which ranks send or get nothing: experts, stages, a reduction to one rank.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/audit/audit.hpp>
#include <collprobe/scan/digest.hpp>

#include "support/steps.hpp"

namespace collprobe::testing::observed_test {
namespace {

constexpr std::uint64_t count = 3000;

std::vector<float> gradient_of(int rank)
{
    std::vector<float> gradient(count);
    for (std::uint64_t i = 0; i < count; ++i)
        gradient[i] = static_cast<float>(static_cast<int>((i * 31 + static_cast<unsigned>(rank) * 17) % 97) - 48);
    return gradient;
}

struct part_in_it {
    std::vector<bool> sends;
    std::vector<bool> gets;
    int harmed = -1;
    collective what = collective::all_reduce;
};

/// The record of a step in which those that send sum their gradients by other means.
template <class... Parts>
step_record record_of(const part_in_it& of, const Parts&... parts)
{
    const step_record record = testing::records_of({}, [&](auto& comm, host::stream& stream, int, auto&) {
        const auto r = static_cast<std::size_t>(comm.rank());
        std::vector<float> sum(count, 0.0f);
        for (int rank = 0; rank < 4; ++rank) {
            const std::vector<float> term = gradient_of(rank);
            for (std::uint64_t i = 0; i < count && of.sends[static_cast<std::size_t>(rank)]; ++i) sum[i] += term[i];
        }
        if (of.what == collective::reduce_scatter)
            sum = {sum.begin() + comm.rank() * 750, sum.begin() + (comm.rank() + 1) * 750};
        if (comm.rank() == of.harmed) sum[17] += 1000;
        const std::vector<float> own = gradient_of(comm.rank());
        const auto site = call_site::named("expert");
        const auto token = of.sends[r]
            ? comm.observe(view<const float>(own), stream, of.what, reduction::sum, site)
            : comm.template observe_no_input<float>(count, stream, of.what, reduction::sum, site);
        if (of.gets[r]) token.result(view<const float>(sum), stream);
        else token.no_result(stream);
        // A usual call beside it.
        std::vector<float> all(count);
        comm.all_reduce(own, view(all), reduction::sum, stream);
        stream.synchronize();
    }, parts...)[0];
    CHECK(record.calls[0].count == count);
    CHECK(record.calls[1].without_input + record.calls[1].without_result == 0);
    CHECK(record.calls[1].results_agree);
    return record;
}

const std::vector<bool> all{true, true, true, true}, none(4), inner{false, true, true, false}, lacks_2{true, true, false, true};

} // namespace

TEST_CASE("the results of those that have one are compared, and no other rank is suspect")
{
    constexpr collective scatters = collective::reduce_scatter;
    const struct {
        part_in_it of;
        const char* told;
        const char* audited;
    } cases[] = {
        {{.sends = inner, .gets = inner}, "", ""}, // an expert's gradient
        {{.sends = all, .gets = {true, true, true, false}, .harmed = 1}, "result_differs 1 in 0", "result_differs 1 in 0"},
        // Of two results that differ none is named, unless the sum shows which one is right.
        {{.sends = all, .gets = {true, false, false, true}, .harmed = 3}, "result_differs in 0", "result_differs 3 in 0"},
        {{.sends = all, .gets = {false, false, true, false}}, "", ""}, // a reduction to one rank
        // It may be scaled on purpose: without weights that explain it, it is no plain sum, and no damage for certain.
        {{.sends = all, .gets = {false, false, true, false}, .harmed = 2}, "", ""},
        {{.sends = all, .gets = all, .what = scatters}, "", ""},
        {{.sends = all, .gets = lacks_2, .what = scatters}, "", ""},
        {{.sends = lacks_2, .gets = all, .what = scatters}, "", ""},
        {{.sends = none, .gets = none}, "", ""}, // a call that no rank takes part in
    };
    for (const auto& each : cases) {
        CAPTURE(&each - cases);
        const step_record plain = record_of(each.of), audited = record_of(each.of, audit());
        CHECK(testing::told(plain) == each.told);
        CHECK(testing::told(audited) == each.audited);
        for (const step_record* const record : {&plain, &audited}) {
            const call_record& call = record->calls[0];
            CHECK(call.results_agree == (std::string(each.told) == ""));
            CHECK(call.without_input == static_cast<std::uint64_t>(std::count(each.of.sends.begin(), each.of.sends.end(), false)));
            CHECK(call.without_result == static_cast<std::uint64_t>(std::count(each.of.gets.begin(), each.of.gets.end(), false)));
            // Of parts that are not all there no norm is known.
            const bool is_whole = each.of.what == scatters ? each.of.gets == all : each.of.gets != none;
            if (call.results_agree) CHECK(is_finite(call.result_norm) == is_whole);
        }
        const call_audit& sum = audited.calls[0].audit;
        const bool is_sum = each.of.sends == all && each.of.harmed < 0 && (each.of.what != scatters || each.of.gets == all);
        if (is_sum) CHECK((sum.sum_checked && sum.conserved));
        if (each.of.harmed == 2) CHECK((!sum.sum_checked && sum.is_other_sum()));
    }

    std::vector<float> sum = gradient_of(1);
    for (std::uint64_t i = 0; i < count; ++i) sum[i] += gradient_of(2)[i];
    const step_record record = record_of({.sends = inner, .gets = inner});
    const call_record& call = record.calls[0];
    CHECK(call.has_result_digest);
    CHECK(call.result_digest == digest(view<const float>(sum)));
    CHECK(call.result_norm == doctest::Approx(norm_of(sum)));
    CHECK(call.gradient_norm.finite == 2);
    CHECK(call.gradient_norm.minimum == doctest::Approx(std::min(norm_of(gradient_of(1)), norm_of(gradient_of(2)))));
    CHECK(call.lateness.present == 0);
    CHECK(record.calls[1].gradient_norm.finite == 4);
}

TEST_CASE("a gather whose result some ranks do not get is compared by digest")
{
    for (const int harmed : {-1, 0}) {
        const step_record record = testing::records_of({3}, [&](auto& comm, host::stream& stream, int, auto&) {
            const std::vector<float> own = gradient_of(comm.rank());
            std::vector<float> whole;
            for (int rank = 0; rank < 3; ++rank) {
                const std::vector<float> shard = gradient_of(rank);
                whole.insert(whole.end(), shard.begin(), shard.end());
            }
            if (comm.rank() == harmed) whole[5] = 1e6f;
            const auto token = comm.observe(view<const float>(own), stream, collective::all_gather);
            if (comm.rank() == 1) token.no_result(stream);
            else token.result(view<const float>(whole), stream);
            stream.synchronize();
        }, audit())[0];
        CHECK(record.findings.size() == (harmed < 0 ? 0 : 1));
        CHECK(record.calls[0].results_agree == (harmed < 0));
    }
}

TEST_CASE("what cannot be told of ranks that have nothing is refused, on the rank that asks")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        const host::stream stream;
        probed summed(world, {.mode = report_mode::summary});
        const auto refused = error_of([&] { summed.observe_no_input<float>(8, stream); });
        REQUIRE(mentions(refused, "needs the mode gather"));
        CHECK(refused->code() == status::unsupported);
        CHECK(std::string(refused->call()) == "observe_no_input");
        probed comm(world);
        CHECK_THROWS_AS(comm.observe_no_input<float>(8, stream, collective::broadcast), error);
        const auto token = comm.observe_no_input<float>(8, stream);
        CHECK_THROWS_AS(comm.end_step(0, stream), error); // no result yet
        token.no_result(stream);
        CHECK_THROWS_AS(token.no_result(stream), error); // it has one
        comm.end_step(0, stream);
        stream.synchronize();
    });
}

namespace {

std::vector<float> numbers_of(int rank, int call)
{
    std::vector<float> numbers(static_cast<std::size_t>(10 + call));
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<float>((i * 31 + static_cast<unsigned>(rank * 17 + call * 7)) % 97) - 48;
    return numbers;
}

/// One rank whose one collective is an all-gather.
struct gather_only : collectives<gather_only, host::device> {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    static constexpr bool has_collective(collective what) { return what == collective::all_gather; }
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        on.enqueue([=] { std::memcpy(call.receive, call.send, static_cast<std::size_t>(call.send_count * sizeof(T))); });
    }
};

} // namespace

TEST_CASE("a result goes to its input, whatever the order")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        probed comm(world);
        const host::stream stream;
        std::vector<probed<local::communicator>::observed_call> tokens;
        std::vector<std::vector<float>> inputs, sums;
        for (int b = 0; b < 4; ++b) {
            inputs.push_back(numbers_of(world.rank(), b));
            sums.push_back(numbers_of(0, b));
            for (std::size_t i = 0; i < sums.back().size(); ++i) sums.back()[i] += numbers_of(1, b)[i];
        }
        if (world.rank() == 1) sums[2][5] += 1;
        for (const auto& input : inputs)
            tokens.push_back(comm.observe(view<const float>(input), stream));
        const auto show = [&](std::size_t b) { tokens[b].result(view<const float>(sums[b]), stream); };
        // Ranks need not have the same order.
        for (const std::size_t b : world.rank() == 0 ? std::vector{3u, 0u, 2u, 1u} : std::vector{1u, 2u, 0u, 3u}) show(b);
        const auto twice = error_of([&] { show(2); });
        require(twice && twice->code() == status::invalid_argument, "a result twice");
        comm.end_step(0, stream);
        step_record record;
        require(comm.wait(record), "a record");
        for (std::size_t b = 0; b < 4; ++b)
            require(record.calls[b].results_agree == (b != 2), std::to_string(b));

        const auto open = comm.observe(view<const float>(inputs[0]), stream);
        const auto failure = error_of([&] { show(0); });
        require(mentions(failure, "result") && mentions(failure, "step"), "a token of another step");
        const auto other_count = error_of([&] { open.result(view<const float>(sums[1]), stream); });
        require(mentions(other_count, "count"), "a result of another count");
        require(error_of([&] { open.result(view<const double>(), stream); }).has_value(), "a result of another type");
        open.no_result(stream);
        comm.end_step(1, stream);
        stream.synchronize();
    });
}

TEST_CASE("a token finds its probe where it was moved to")
{
    using probe = probed<gather_only>;
    const host::stream stream;
    std::vector<float> data{3, 4};
    std::vector<probe> probes;
    probes.emplace_back(gather_only());
    const auto token = probes[0].observe(view<const float>(data), stream);
    probe moved(std::move(probes[0]));
    probes[0] = std::move(moved);
    moved = probe(gather_only());
    probes.reserve(100); // moves it
    token.result(view<const float>(data), stream);
    probes[0].end_step(0, stream);
    step_record record;
    REQUIRE(probes[0].wait(record));
    CHECK(record.calls.at(0).has_result_digest);
}

TEST_CASE("on a stream at once the caller reads, before the call returns")
{
    probed comm{gather_only()};
    const host::stream reads = host::stream::at_once();
    const host::stream messages;
    step_record record;
    for (std::uint64_t step = 0; step < 10; ++step) {
        std::vector<float> data{3, 4};
        const auto token = comm.observe(view<const float>(data), reads);
        data = {30, 40}; // in place
        token.result(view<const float>(data), reads);
        data = {-1, -1};
        comm.end_step(step, messages);
        REQUIRE(comm.wait(record));
        CHECK(record.gradient_norms[0] == doctest::Approx(5));
        CHECK(record.result_norm == doctest::Approx(50));
    }
    CHECK(reads.synchronizations() == 0);
}

TEST_CASE("what needs an all-reduce is refused at construction, where there is none")
{
    const auto failure_of
        = [](probe_options options) { return error_of([&] { probed comm(gather_only(), options); }); };
    CHECK(!failure_of({}));
    const auto summary = failure_of({.mode = report_mode::summary});
    CHECK(summary->code() == status::unsupported);
    CHECK(mentions(summary, "the mode summary needs a communicator with all_reduce"));
    const auto exact = failure_of({.direction = direction_mode::exact});
    CHECK(exact->code() == status::unsupported);
    CHECK(mentions(exact, "exact direction needs a communicator with all_reduce and all_to_all"));
}

} // namespace collprobe::testing::observed_test
