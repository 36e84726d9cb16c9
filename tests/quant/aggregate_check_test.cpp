// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/audit.hpp>
#include <collprobe/fault/faulty.hpp>

#include "quant/flipping.hpp"
#include "quant/probed_steps.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using std::uint64_t;

namespace {

constexpr quantisation int4{.format = code_format::int4};
constexpr quantisation int8{.format = code_format::int8};

struct exact_error {
    double squares = 0;
    double mean_squares = 0;
};

/// The error of the mean, out of all ranks' elements as they were given.
template <class T, class Make>
exact_error error_of(const probed_run& run, const probed_steps& of, int step, const Make& make)
{
    const int n = of.ranks.ranks();
    std::vector<double> mean(make(0, step).size());
    for (int r = 0; r < n; ++r) {
        const std::vector<float> x = make(r, step);
        for (std::size_t i = 0; i < x.size(); ++i) mean[i] += static_cast<double>(static_cast<float>(T(x[i]))) / n;
    }
    exact_error found;
    for (std::size_t i = 0; i < mean.size(); ++i) {
        const double unit = of.operation == reduction::sum ? n : 1;
        const double value = result_of(run, of.scatters, i) / unit;
        found.squares += std::pow(value - mean[i], 2);
        found.mean_squares += mean[i] * mean[i];
    }
    return found;
}

template <class T>
void check_against_exact(const probed_steps& of, double signal = 0.003)
{
    const auto make = [&](int rank, int) { return gradient(rank, 1 << 16, signal, 0.01); };
    const probed_run run = run_steps<T>(of, make);
    const call_quantisation& call = run.call();
    const exact_error exact = error_of<T>(run, of, 0, make);
    CHECK(call.bins == 4096);
    // Four deviations of an energy, of both energies for their ratio.
    const double deviation = std::sqrt(2.0 / call.bins);
    const double db = 10 * std::log10(exact.mean_squares / exact.squares);
    CHECK(std::fabs(call.aggregate_sqnr_db - db) < 10 * std::log10(1 + 4 * std::sqrt(2.0) * deviation));
    CHECK(call.coherence > 0.9);
    CHECK(call.coherence < 1.1);
    CHECK(is_nan(call.drift));
    CHECK(quantisation_suspects(run.record()).empty() == (call.verdict >= quantisation_verdict::visible));
}

} // namespace

TEST_CASE("the error of the result is that of exact arithmetic, and independent roundings have a coherence of 1")
{
    for (const shape ranks : {shape{0, 8}, shape{2, 2}, shape{2, 4}}) {
        for (const bool scatters : {false, true}) {
            const reduction operation = scatters ? reduction::sum : reduction::average;
            check_against_exact<float>({ranks, int8, int4, scatters, operation});
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
    const quantisation float_scale{.format = code_format::int8, .rounding = code_rounding::nearest};
    const probed_run run = run_steps({{0, 8}, float_scale, float_scale, false}, make);
    const exact_error exact = error_of<float>(run, {{0, 8}, int8, int8, false}, 0, make);
    CHECK(run.call().coherence > 1.5);
    CHECK(run.call().aggregate_sqnr_db
        == doctest::Approx(10 * std::log10(exact.mean_squares / exact.squares)).epsilon(0.02));
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
    const quantisation fed_back{.format = code_format::int8, .feedback = error_feedback::all};
    const call_quantisation call = run_steps(steps_of(fed_back, false), stuck).call();
    CHECK(call.verdict == quantisation_verdict::negligible);
    CHECK(call.drift < quantisation_limits{}.drift);
    CHECK(call.coherence < 2); // over the roundings of two steps
}

TEST_CASE("with feedback the roundings of two steps are in the result, and no more than they can be")
{
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        const quantisation how{.format = code_format::int4, .feedback = error_feedback::all};
        const auto noise = [](int rank, int step) { return gradient(rank + 100 * step, 1 << 13, 0, 1); };
        const probed_run clean = run_steps({of, how, how, false, reduction::average, 5}, noise);
        for (std::size_t step = 0; step < 5; ++step) {
            const call_quantisation& call = clean.records.at(step).calls.at(0).quantisation;
            CAPTURE(call.coherence);
            CHECK(call.coherence > 0.7);
            CHECK(call.coherence < 1.5);
            CHECK(call.verdict != quantisation_verdict::corrupt);
        }
        // What divides by the nodes instead of the ranks returns twice the mean, of all ranks alike.
        const quantisation finer{.format = code_format::int8, .feedback = error_feedback::all};
        on_ranks(of, finer, finer, tiny, [&](auto& comm) {
            const host::stream stream;
            const fault doubled{.kind = fault_kind::scale, .magnitude = 2};
            probed probe(faulty(std::move(comm), {doubled}), {}, quantisation_probe());
            for (int step = 0; step < 3; ++step) {
                const std::vector<float> send = noise(probe.rank(), step);
                std::vector<float> mean(send.size());
                probe.all_reduce(view<const float>(send), view(mean), reduction::average, stream);
                probe.end_step(static_cast<uint64_t>(step), stream);
                step_record record;
                require(probe.wait(record), "no record");
                const call_quantisation& call = record.calls.at(0).quantisation;
                const std::string said = "coherence " + std::to_string(call.coherence);
                require(call.verdict == quantisation_verdict::corrupt, said);
            }
        });
    }
}

TEST_CASE("results that are subnormal numbers of their type have roundings that are known")
{
    for (const bool scatters : {false, true}) {
        for (const double size : {1e-4, 1e-5, 1e-6, 1e-7}) {
            CAPTURE(size);
            probed_steps of{{0, 4}, {.format = code_format::int8}, {.format = code_format::int8}, scatters};
            const probed_run run
                = run_steps<float16>(of, [&](int rank, int) { return gradient(rank, 1 << 14, 0, size); });
            CAPTURE(run.call().coherence);
            CHECK(run.call().coherence < 1.5);
            CHECK(run.call().coherence > (size > 1e-7 ? 0.5 : 0.1)); // a result that is all zero has a smaller error
            CHECK(run.call().verdict != quantisation_verdict::corrupt);
        }
    }
}

TEST_CASE("equal gradients have no noise, whatever the rounding")
{
    probed_steps of{{0, 4}};
    of.within = of.across = {.format = code_format::int8, .rounding = code_rounding::stochastic};
    of.steps = 8;
    const auto equal = [](int, int step) { return gradient(step, 1 << 14, 0, 1); };
    for (const step_record& record : run_steps(of, equal).records) {
        const call_quantisation& call = record.calls.at(0).quantisation;
        CHECK(is_nan(call.noise_ratio));
        CHECK(call.verdict == quantisation_verdict::negligible);
    }
    // Then the error of the result counts, which the codes between nodes have made.
    probed_steps two{{2, 2}};
    two.within = {.format = code_format::int8};
    two.across = {.format = code_format::int4};
    const probed_run run = run_steps(two, equal);
    CHECK(run.call().sqnr_db > 40);
    CHECK(run.call().aggregate_sqnr_db < 20);
    CHECK(run.call().verdict == quantisation_verdict::harmful);
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
    const probed_run means = run_steps({{0, 3}, int8, int8, true, reduction::average, 5}, make);
    CHECK(means.call().drift == doctest::Approx(1));
    CHECK(means.call().verdict == quantisation_verdict::negligible);
    CHECK(means.call().aggregate_sqnr_db > 100);
    const probed_run sums = run_steps<bfloat16>({{0, 3}, int8, int8, true, reduction::sum, 5}, make);
    CHECK(sums.call().drift == doctest::Approx(1));
    CHECK(sums.call().verdict == quantisation_verdict::negligible);
    CHECK(sums.call().aggregate_sqnr_db < 60);
}

TEST_CASE("an audit takes gathered codes for no damage, and damaged ones for some")
{
    for (const bool damaged : {false, true}) {
        local::run(3, {.timeout_ms = soon_ms}, [&](local::communicator& bare) {
            flips_of_rank mine{{{damaged ? 1 : -1, collective::all_gather, 0, 5, 1}}, bare.rank()};
            quantised comm(flipping<local::communicator>(bare, mine), int8, tiny);
            host::stream stream;
            probed probe(std::move(comm), {}, audit());
            const std::vector<float> shard = gradient(probe.rank(), 512, 0, 1);
            std::vector<float> all(3 * 512);
            probe.all_gather(view<const float>(shard), view<float>(all), stream);
            probe.end_step(1, stream);
            step_record record;
            require(probe.wait(record), "no record");
            require(record.calls.at(0).results_agree != damaged, "agreement");
            const std::vector<finding> named = suspects_of(record, finding_kind::result_differs);
            require(named.size() == (damaged ? 1 : 0) && (!damaged || named[0].rank() == 1), "who");
            require(suspects_of(record, finding_kind::shard_differs).empty(), "shards");
        });
    }
}

TEST_CASE("an audit and a probe share out the sketches of a step, and a probe without them has none")
{
    const auto look = [](auto first, auto second, auto& comm, bool measured) {
        host::stream stream;
        probed probe(std::move(comm), {}, std::move(first), std::move(second));
        const std::vector<float> small = gradient(probe.rank(), 1024, 0, 1);
        const std::vector<float> large = gradient(probe.rank(), 4096, 0, 1);
        std::vector<float> result(4096);
        for (uint64_t step = 0; step < 2; ++step) {
            probe.all_reduce(view<const float>(small), view<float>(result).part(0, 1024), reduction::sum, stream);
            probe.all_reduce(view<const float>(large), view<float>(result), reduction::sum, stream);
            probe.end_step(step, stream);
            step_record record;
            require(probe.wait(record), "no record");
            require(record.calls.at(0).audit.sum_checked && !record.calls.at(1).audit.sum_checked, "audit");
            const call_quantisation& call = record.calls.at(1).quantisation;
            require((call.bins == 256) == measured && record.calls.at(0).quantisation.bins == 0, "bins");
            require(!measured || (call.aggregate_sqnr_db > 35 && call.aggregate_sqnr_db < 45), "error");
        }
    };
    const quantised_options options{.least_bytes = 1 << 13};
    on_ranks({0, 3}, int8, int8, options, [&](auto& comm) { look(audit(), quantisation_probe(), comm, true); });
    on_ranks({0, 3}, int8, int8, options, [&](auto& comm) { look(quantisation_probe(), audit(), comm, true); });
    on_ranks({0, 3}, int8, int8, options, [&](auto& comm) {
        look(quantisation_probe({}, {.aggregate = false}), audit(), comm, false);
    });
}
