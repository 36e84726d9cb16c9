// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report.hpp>

#include "quant/probed_steps.hpp"

namespace collprobe::testing::quantisation_probe_test {

using std::uint64_t;

namespace {

constexpr quantisation int4{.format = code_format::int4};
constexpr quantisation int8{.format = code_format::int8};
constexpr quantisation fed_back_int8{.format = code_format::int8, .feedback = error_feedback::all};

struct exact_error {
    double squares = 0;
    double mean_squares = 0;
    double db() const { return 10 * std::log10(mean_squares / squares); }
};

/// The error of the mean, out of all ranks' elements as they were given.
template <class T>
exact_error error_of(const probed_run& run, const probed_steps& of, const gradients& make)
{
    const int n = of.ranks.ranks();
    std::vector<double> mean(make(0, 0).size());
    for (int r = 0; r < n; ++r) {
        const std::vector<float> x = make(r, 0);
        for (std::size_t i = 0; i < x.size(); ++i) mean[i] += static_cast<double>(static_cast<float>(T(x[i]))) / n;
    }
    exact_error found;
    for (std::size_t i = 0; i < mean.size(); ++i) {
        const double unit = of.operation == reduction::sum ? n : 1;
        found.squares += std::pow(run.result(of.scatters, i) / unit - mean[i], 2);
        found.mean_squares += mean[i] * mean[i];
    }
    return found;
}

template <class T>
void check_against_exact(const probed_steps& of, double signal = 0.003)
{
    constexpr uint64_t count = 1 << 16;
    constexpr double sigma = 0.01;
    const auto make = [&](int rank, int) { return gradient(rank, count, signal, sigma); };
    const probed_run run = run_steps<T>(of, make);
    const call_quantisation& call = run.call();
    const exact_error exact = error_of<T>(run, of, make);
    CHECK(call.outcome.quantised());
    CHECK(call.bins == 4096);
    // Four deviations of an energy, of both energies for their ratio.
    const double deviation = std::sqrt(2.0 / call.bins);
    CHECK(std::fabs(call.aggregate_sqnr_db - exact.db()) < 10 * std::log10(1 + 4 * std::sqrt(2.0) * deviation));
    CHECK(call.coherence > 0.9);
    CHECK(call.coherence < 1.1);
    CHECK(is_nan(call.drift));
    CHECK(call.bias < 6);
    if (sizeof(T) < 4) return;
    // Over the noise of the mean, sigma^2 / n an element.
    const double ratio = exact.squares / (count * sigma * sigma / of.ranks.ranks());
    CHECK(call.noise_ratio == doctest::Approx(ratio).epsilon(0.05));
    using enum quantisation_verdict;
    CHECK(std::string(name(call.verdict)) == name(ratio > 0.1 ? harmful : ratio > 0.01 ? visible : negligible));
    CHECK(quantisation_suspects(run.record()).empty() == (ratio <= 0.1));
}

} // namespace

TEST_CASE("noise ratio and error of the result are those of exact arithmetic, and independent roundings have a coherence of 1")
{
    for (const shape ranks : {shape{0, 8}, shape{2, 2}, shape{2, 4}}) {
        for (const bool scatters : {false, true}) {
            for (const quantisation& across : {int4, int8}) {
                const bool sums = scatters == (across.format == code_format::int4);
                check_against_exact<float>({ranks, ranks.nodes == 0 ? across : int8, across, scatters,
                    sums ? reduction::sum : reduction::average});
            }
        }
    }
    // The signal is in the mean, whose rounding to bfloat16 is a fifth of the error.
    check_against_exact<bfloat16>({{0, 4}, int8, int8, true, reduction::average}, 0.03);
    check_against_exact<bfloat16>({{0, 4}, int8, int8, false, reduction::sum});
    check_against_exact<float16>({{0, 4}, int8, int8, true, reduction::average});
    const quantisation e4m3{.format = code_format::e4m3};
    check_against_exact<float>({{0, 4}, e4m3, e4m3, false, reduction::average});
    const quantisation rotated{.format = code_format::int4, .rotate = true};
    check_against_exact<float>({{0, 4}, rotated, rotated, true, reduction::average});
}

TEST_CASE("roundings of equal gradients have a coherence of the number of ranks, and stochastic ones do not")
{
    const auto make = [](int, int) { return gradient(0, 1 << 16, 0, 1); };
    for (const shape ranks : {shape{0, 2}, shape{0, 8}}) {
        const double n = ranks.ranks();
        CHECK(run_steps({ranks, int4, int4, true}, make).call().coherence == doctest::Approx(n).epsilon(0.1));
        const quantisation stochastic{.format = code_format::int4, .rounding = code_rounding::stochastic};
        const call_quantisation call = run_steps({ranks, stochastic, stochastic, true}, make).call();
        CHECK(call.coherence == doctest::Approx(1).epsilon(0.1));
    }
    // An owner's codes of int8 have another scale, and so errors of their own: 2n / (n + 1) of equal energies.
    const probed_steps of{{0, 8}, int8, int8, false};
    const probed_run run = run_steps(of, make);
    CHECK(run.call().coherence > 1.5);
    CHECK(run.call().aggregate_sqnr_db == doctest::Approx(error_of<float>(run, of, make).db()).epsilon(0.02));
}

TEST_CASE("errors that stay from step to step are biased, and those of other gradients or other random bits are not")
{
    const auto stuck = [](int rank, int) { return gradient(rank, 1 << 14, 0, 1); };
    const auto fresh = [](int rank, int step) { return gradient(rank + 100 * step, 1 << 14, 0, 1); };
    const quantisation stochastic{.format = code_format::int8, .rounding = code_rounding::stochastic};
    const auto steps_of = [](const quantisation& how, bool scatters) {
        return probed_steps{{0, 4}, how, how, scatters, reduction::average, 5};
    };
    for (const bool scatters : {false, true}) {
        const probed_run run = run_steps(steps_of(int8, scatters), stuck);
        for (std::size_t step = 0; step < run.records.size(); ++step) {
            const step_record& record = run.records[step];
            const call_quantisation& call = record.calls.at(0).quantisation;
            CHECK(call.drifting_steps == static_cast<int>(step));
            CHECK((call.verdict == quantisation_verdict::biased) == (step >= 3));
            if (step == 0) continue;
            CHECK(call.drift == doctest::Approx(1));
            if (step < 3) continue;
            REQUIRE(quantisation_suspects(record).size() == 1);
            CHECK(quantisation_suspects(record)[0].statistic == call.drift);
            CHECK(quantisation_suspects(record)[0].threshold == quantisation_limits{}.drift);
        }
        for (const probed_run& clean :
            {run_steps(steps_of(int8, scatters), fresh), run_steps(steps_of(stochastic, scatters), stuck)}) {
            CHECK(std::fabs(clean.call().drift) < 0.25);
            CHECK(clean.call().drifting_steps == 0);
            CHECK(quantisation_suspects(clean.record()).empty());
        }
    }
    const call_quantisation call = run_steps(steps_of(fed_back_int8, false), stuck).call();
    CHECK(call.verdict == quantisation_verdict::negligible);
    CHECK(call.drift < quantisation_limits{}.drift);
    CHECK(call.coherence < 2); // over the roundings of two steps
}

TEST_CASE("with feedback the roundings of two steps are in the result, and no more than they can be")
{
    const auto noise = [](int rank, int step) { return gradient(rank + 100 * step, 1 << 13, 0, 1); };
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        const quantisation how{.format = code_format::int4, .feedback = error_feedback::all};
        for (const step_record& record : run_steps({of, how, how, false, reduction::average, 5}, noise).records) {
            const call_quantisation& call = record.calls.at(0).quantisation;
            CAPTURE(call.coherence);
            CHECK(call.coherence > 0.7);
            CHECK(call.coherence < 1.5);
            CHECK(call.verdict != quantisation_verdict::corrupt);
        }
        // What divides by the nodes instead of the ranks returns twice the mean, of all ranks alike.
        probed_steps doubled{of, fed_back_int8, fed_back_int8, false, reduction::average, 3};
        doubled.faults = {{.kind = fault_kind::scale, .magnitude = 2}};
        for (const step_record& record : run_steps(doubled, noise).records)
            CHECK(record.calls.at(0).quantisation.verdict == quantisation_verdict::corrupt);
    }
}

TEST_CASE("results that are subnormal numbers of their type have roundings that are known")
{
    for (const bool scatters : {false, true}) {
        for (const double size : {1e-4, 1e-5, 1e-6, 1e-7}) {
            CAPTURE(size);
            const call_quantisation call = run_steps<float16>({{0, 4}, int8, int8, scatters},
                [&](int rank, int) { return gradient(rank, 1 << 14, 0, size); }).call();
            CAPTURE(call.coherence);
            CHECK(call.coherence < 1.5);
            CHECK(call.coherence > (size > 1e-7 ? 0.5 : 0.1)); // a result that is all zero has a smaller error
            CHECK(call.verdict != quantisation_verdict::corrupt);
        }
    }
}

TEST_CASE("equal gradients have no noise, whatever the rounding")
{
    const quantisation how{.format = code_format::int8, .rounding = code_rounding::stochastic};
    const auto equal = [](int, int step) { return gradient(step, 1 << 14, 0, 1); };
    for (const step_record& record : run_steps({{0, 4}, how, how, false, reduction::average, 8}, equal).records) {
        CHECK(is_nan(record.calls.at(0).quantisation.noise_ratio));
        CHECK(record.calls.at(0).quantisation.verdict == quantisation_verdict::negligible);
    }
    // Then the error of the result counts, which the codes between nodes have made.
    const call_quantisation call = run_steps({{2, 2}, int8, int4}, equal).call();
    CHECK(call.sqnr_db > 40);
    CHECK(call.aggregate_sqnr_db < 20);
    CHECK(call.verdict == quantisation_verdict::harmful);
}

TEST_CASE("numbers that are exact as codes do not drift")
{
    // Small integers and a largest element of 127: all codes are exact. The mean of three is rounded in float, and
    // their sum, of nine bits, in bfloat16: always the same way, but no other codes would help.
    const auto make = [](int rank, int) {
        std::vector<float> x(3 * 128 * 40);
        std::mt19937_64 random(static_cast<unsigned>(rank));
        for (float& v : x) v = static_cast<float>(static_cast<int>(random() % 255) - 127);
        for (std::size_t i = 0; i < x.size(); i += 128) x[i] = 127;
        return x;
    };
    const call_quantisation means = run_steps({{0, 3}, int8, int8, true, reduction::average, 5}, make).call();
    const call_quantisation sums = run_steps<bfloat16>({{0, 3}, int8, int8, true, reduction::sum, 5}, make).call();
    for (const call_quantisation& call : {means, sums}) {
        CHECK(call.drift == doctest::Approx(1));
        CHECK(call.verdict == quantisation_verdict::negligible);
    }
    CHECK(means.aggregate_sqnr_db > 100);
    CHECK(sums.aggregate_sqnr_db < 60);
}

TEST_CASE("a rank with a heavy tail and its worst block are named")
{
    for (const bool harmful : {false, true}) {
        const probed_run got = run_steps({{0, 4}, int4, int4}, [&](int rank, int) {
            std::vector<float> x = gradient(rank, 1 << 15, 0, 1);
            for (std::size_t i = 0; i < x.size() && (rank == 2 || harmful); i += 128)
                x[i] = rank == 2 && i == 8960 ? 20.0f : 8.0f;
            return x;
        });
        CHECK(got.call().worst_rank == 2);
        CHECK(got.call().worst_block == 8960);
        CHECK((got.call().verdict == quantisation_verdict::harmful) == harmful);
        const std::vector<finding> named = quantisation_suspects(got.record());
        CHECK(named.size() == (harmful ? 1 : 0));
        for (const finding& each : named) {
            CHECK(each.rank() == 2);
            CHECK(each.index == 8960);
        }
    }
}

TEST_CASE("zeros and expected zeros are those of the theory")
{
    const auto check = [](const quantisation& how, double share) {
        const call_quantisation call
            = run_steps({{0, 2}, how, how}, [](int rank, int) { return gradient(rank, 1 << 18, 0, 1); }).call();
        CHECK(call.zeroed == doctest::Approx(share).epsilon(0.03));
        CHECK(call.zeroed_expected == doctest::Approx(share).epsilon(0.05));
    };
    // Shares of Gaussian elements that int4 makes zero, by the size of the block; nearly as many by stochastic rounding.
    check({.format = code_format::int4, .block = 32}, 0.132);
    check({.format = code_format::int4, .block = 128}, 0.159);
    check({.format = code_format::int4, .block = 1024}, 0.193);
    check({.format = code_format::int4, .rounding = code_rounding::stochastic}, 0.159);
}

TEST_CASE("errors with a mean are biased, and those without are not")
{
    for (const bool biased : {false, true}) {
        // Elements a quarter of a code above a code are all rounded down.
        const probed_run got = run_steps({{0, 4}, int4, int4, true}, [&](int rank, int) {
            std::mt19937_64 random(static_cast<unsigned>(rank));
            std::vector<float> x(1 << 14);
            for (std::size_t i = 0; i < x.size(); ++i) {
                const float near = static_cast<float>(static_cast<int>(random() % 13) - 6);
                x[i] = i % 128 == 0 ? 7.0f : near + (biased || random() % 2 == 0 ? 0.25f : -0.25f);
            }
            return x;
        });
        CHECK((got.call().verdict == quantisation_verdict::biased) == biased);
        if (!biased) continue;
        const finding told = quantisation_suspects(got.record()).at(0);
        CHECK(told.threshold < told.statistic);
    }
}

TEST_CASE("a result that no roundings can have is corrupt, and alike roundings are not")
{
    const std::vector<fault> nothing, divisor{{.kind = fault_kind::scale, .magnitude = 2}},
        sign_of_a_block{{.kind = fault_kind::scale, .first = 384, .elements = 128, .magnitude = -1}};
    const auto check = [](const quantisation& codes, const std::vector<fault>& faults, bool equal) {
        probed_steps of{{2, 2}, codes, codes};
        of.faults = faults; // of all ranks alike
        const probed_run run
            = run_steps(of, [&](int rank, int) { return gradient(equal ? 0 : rank, 1 << 12, 0.5, 1); });
        const bool seen = !faults.empty();
        CHECK((run.call().verdict == quantisation_verdict::corrupt) == seen);
        CHECK((run.call().coherence > 7) == seen);
        if (!seen) return;
        REQUIRE(quantisation_suspects(run.record()).empty());
        REQUIRE_FALSE(run.record().findings.empty());
        CHECK(run.record().findings.back().what == finding_kind::codes_differ);
        CHECK(run.record().findings.back().rank() == -1);
    };
    for (const quantisation& codes : {int8, int4}) {
        check(codes, nothing, false);
        check(codes, nothing, true);
        check(codes, divisor, false);
    }
    check(int8, sign_of_a_block, false); // a block of 32 is less than what the codes of 4 bits lose
}

TEST_CASE("what is fed back is neither biased nor lost, and what is not is judged")
{
    // Most elements are small and of one sign, and become zero.
    const auto make = [](int rank, int step) {
        std::vector<float> x = gradient(rank + 8 * step, 128 * 40, 0, 1e-3);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 16 != 0 ? std::abs(x[i]) : i % 32 == 0 ? 1.0f : -1.0f;
        return x;
    };
    for (const quantisation& how : {int8, fed_back_int8}) {
        const bool is_fed_back = how.feedback == error_feedback::all;
        const auto call = run_steps({{2, 2}, how, how, false, reduction::average, 3}, make).call();
        CHECK(call.outcome.inputs_fed_back == is_fed_back);
        CHECK(call.outcome.sums_fed_back == is_fed_back);
        CHECK((call.bias > 5) == !is_fed_back);
        CHECK((call.verdict == quantisation_verdict::negligible) == is_fed_back);
    }
}

TEST_CASE("a call that is forwarded says why, and calls without codes have no verdict")
{
    on_probes({.options = {.least_bytes = 1 << 12}}, [](auto& probe, const host::stream& stream) {
        std::vector<float> small(8, 1.0f), large = gradient(probe.rank(), 4096, 0, 1);
        probe.all_reduce(view(small), reduction::sum, stream);
        probe.all_reduce(view(large), reduction::max, stream);
        probe.all_reduce(view(large), reduction::sum, stream);
        probe.broadcast(view(large), 0, stream);
        const step_record record = end_step(probe, 1, stream);
        const auto of = [&](std::size_t call) { return record.calls.at(call).quantisation; };
        require(of(0).outcome.why_not == unquantised_reason::small, "small");
        require(of(1).outcome.why_not == unquantised_reason::operation, "max");
        require(of(2).outcome.why_not == unquantised_reason::none, "sum");
        require(!of(3).seen, "broadcast");
        require(of(0).verdict == quantisation_verdict::unknown, "no verdict");
        require(of(2).verdict == quantisation_verdict::negligible, name(of(2).verdict));
        const std::string table = report::step_table(record), json = report::json_line("run", record);
        for (const char* part : {"bucket 0 (", "not quantised, because of its small size", "int8, blocks of 128, ",
                 " dB in the result)"})
            require(contains(table, part), table);
        for (const char* part : {"\"unquantised\":\"operation\"", "\"verdict\":\"negligible\",\"within\":\"int8\"",
                 "\"aggregate_sqnr_db\":", "\"drift\":\"nan\",\"drifting_steps\":0,"})
            require(contains(json, part), json);
    });
}

TEST_CASE("an infinity among the inputs is in the result, and is no finding of quantisation")
{
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        const probed_run got = run_steps({of, int8, int8}, [](int rank, int) {
            std::vector<float> x = gradient(rank, 1 << 12, 0, 1);
            if (rank == 1) x[5] = std::numeric_limits<float>::infinity();
            return x;
        });
        CHECK(got.call().nonfinite == 1);
        CHECK(got.call().nonfinite_results == 1);
        CHECK(got.call().verdict == quantisation_verdict::negligible);
        CHECK(quantisation_suspects(got.record()).empty());
    }
}

TEST_CASE("a result with an infinity that neither inputs nor codes have is corrupt, and an overflow of the sum is not")
{
    for (const bool spoils : {true, false}) {
        CAPTURE(spoils);
        probed_steps of{{0, 3}, int8, int8, false, reduction::sum};
        // Inverts the exponent of an element that is zero, in the results of all ranks alike.
        if (spoils) of.faults = {{.first = 7, .elements = 1, .mask = 0x7c00}};
        const probed_run run = run_steps<float16>(of, [&](int rank, int) {
            std::vector<float> x = gradient(rank, 4096, 0, 1);
            x[7] = spoils ? 0.0f : 60000.0f;
            return x;
        });
        CHECK_FALSE(is_finite(run.results[2][7]));
        CHECK(run.record().calls.at(0).results_agree);
        CHECK(run.call().nonfinite_results == (spoils ? 0 : 1));
        CHECK((run.call().verdict == quantisation_verdict::corrupt) == spoils);
        CHECK((suspects_of(run.record(), finding_kind::codes_differ).size() == 1) == spoils);
        CHECK(is_nan(run.call().coherence) == !spoils);
    }
}

TEST_CASE("a sum that its type cannot hold is no damage, also where a rotation makes a whole block NaN")
{
    for (const bool rotate : {false, true}) {
        const quantisation how{.rotate = rotate};
        const probed_run run = run_steps({{0, 2}, how, how, false, reduction::sum}, [](int rank, int) {
            std::vector<float> x = gradient(rank, 1000, 0, 1);
            x[300] = 2.5e38f;
            return x;
        });
        CHECK(run.call().nonfinite == 0);
        CHECK(run.call().nonfinite_results != 0);
        CHECK(run.call().verdict == quantisation_verdict::harmful);
        CHECK(contains(report::step_table(run.record()), "sums overflow"));
    }
}

TEST_CASE("messages that are damaged on the way name their sender and receiver")
{
    constexpr collective exchange = collective::all_to_all, gather = collective::all_gather;
    // Slices of 512 elements of int8 are messages of 528 bytes, 8 of which are scales; of two slices, 1040.
    const struct {
        shape ranks;
        bool scatters;
        flip where;
        int sender;
    } rows[] = {
        {{0, 3}, false, {2, exchange, 0, 528 + 100, 1}, 1},
        {{0, 3}, false, {0, exchange, 0, 2 * 528 + 514, 128}, 2}, // a scale
        {{0, 3}, true, {1, exchange, 0, 17, 4}, 0},
        {{0, 3}, false, {1, gather, 0, 2 * 528 + 511, 64}, 2},
        {{2, 2}, false, {3, exchange, 0, 10, 1}, 2},
        {{2, 2}, true, {2, exchange, 1, 528, 2}, 2}, // to itself
        {{2, 2}, true, {2, exchange, 1, 500, 2}, 0},
        {{2, 2}, false, {0, gather, 0, 528 + 3, 1}, 2},
        {{2, 2}, false, {0, gather, 1, 2 * 528 + 3, 1}, 1},
    };
    for (const auto& row : rows) {
        for (const bool aggregate : {false, true}) {
            probed_steps of{row.ranks, int8, int8, row.scatters, reduction::average, 2,
                {.aggregate = aggregate, .messages = true}};
            of.flips = {row.where};
            const probed_run run = run_steps(of, [&](int rank, int step) {
                return gradient(rank + 10 * step, 512 * static_cast<uint64_t>(row.ranks.ranks()), 0, 1);
            });
            const call_quantisation& call = run.records.at(0).calls.at(0).quantisation;
            CHECK(call.verdict == quantisation_verdict::corrupt);
            CHECK(call.damaged_pairs == 1);
            CHECK(call.damaged_receiver == row.where.rank);
            CHECK(call.damaged_sender == row.sender);
            const std::vector<finding> named = suspects_of(run.records.at(0), finding_kind::codes_differ);
            REQUIRE(named.size() == 1);
            CHECK(named[0].rank() == row.where.rank);
            CHECK(named[0].other_rank == row.sender);
            CHECK(named[0].exact);
            CHECK(run.call().messages_checked); // of the next step, without damage
            CHECK(run.call().damaged_pairs == 0);
            CHECK(suspects_of(run.record(), finding_kind::codes_differ).empty());
        }
    }
    probed_steps pieces{{2, 2}, int8, int4, false, reduction::sum, 1, {.messages = true}};
    const auto many = [](int rank, int) { return gradient(rank, 100'001, 0, 1); };
    const probed_run clean = run_steps(pieces, many);
    CHECK(clean.call().messages_checked);
    CHECK(clean.call().verdict != quantisation_verdict::corrupt);
    pieces.flips = {{1, gather, 3, 40, 1}, {2, gather, 3, 40, 1}};
    const probed_run last = run_steps(pieces, many);
    CHECK(last.call().damaged_pairs == 2);
    CHECK(last.call().damaged_receiver == 1);
    CHECK(contains(report::step_table(last.record()), "corrupt; "));
    CHECK(contains(report::step_table(last.record()), "; damaged messages between 2 pairs of ranks"));
    CHECK(contains(report::json_line("run", last.record()), "\"damaged_pairs\":2,"));
}

TEST_CASE("codes that are gathered name who damaged them, in two levels over all ranks, too")
{
    for (const shape ranks : {shape{0, 3}, shape{3, 2}}) {
        for (const int damaged : {-1, ranks.ranks() - 1}) {
            CAPTURE(damaged);
            probed_steps of{ranks, int8, int8};
            of.checks.messages = true;
            of.flips = {{damaged, collective::all_gather, 1, 528 + 5, 1}};
            on_probes(of, [&](auto& probe, const host::stream& stream) {
                const std::vector<float> shard = gradient(probe.rank(), 512, 0, 1);
                std::vector<float> all(512 * static_cast<uint64_t>(probe.size()));
                for (int call = 0; call < 3; ++call) probe.all_gather(view<const float>(shard), view<float>(all), stream);
                const step_record record = end_step(probe, 1, stream);
                require(record.calls.at(1).quantisation.messages_checked, "not checked");
                const std::vector<finding> named = suspects_of(record, finding_kind::codes_differ);
                require(named.size() == (damaged < 0 ? 0 : 1), "pairs");
                if (damaged < 0) return;
                require(named[0].call == 1 && named[0].rank() == damaged && named[0].other_rank == 1, "who");
            });
        }
    }
}

TEST_CASE("limits and checks out of range are refused")
{
    const auto refused = [](const quantisation_limits& limits, const quantisation_checks& checks) {
        return refusal([&] { const quantisation_probe probe(limits, checks); }) != "accepted";
    };
    CHECK(refused({.visible = 0.2}, {}));
    CHECK(refused({.drift_steps = 0}, {}));
    CHECK(refused({}, {.sketch = {.bins = 100}}));
    CHECK_FALSE(refused({}, {.aggregate = false, .messages = true}));
}

} // namespace collprobe::testing::quantisation_probe_test
