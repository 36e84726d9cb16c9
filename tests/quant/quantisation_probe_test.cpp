// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/report.hpp>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>

#include "quant/probed_steps.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using std::uint64_t;

TEST_CASE("the noise ratio is that of the exact errors")
{
    constexpr uint64_t count = 1 << 16;
    constexpr double sigma = 0.01;
    for (const shape of : {shape{0, 8}, shape{2, 4}}) {
        for (const bool scatters : {true, false}) {
            for (const reduction operation : {reduction::average, reduction::sum}) {
                const quantisation int4{.format = code_format::int4};
                const quantisation int8{.format = code_format::int8};
                for (const quantisation& across : {int4, int8}) {
                    // The signal is smaller than the noise, and the blocks have both.
                    const auto make = [&](int rank) { return gradient(rank, count, sigma / 2, sigma); };
                    const probed_run got
                        = one_step(of, of.nodes == 0 ? across : int8, across, scatters, operation, make);
                    // The exact error of the mean over its exact noise, sigma^2 / 8 an element.
                    double error = 0;
                    std::vector<double> mean(count);
                    for (int r = 0; r < 8; ++r) {
                        const std::vector<float> x = make(r);
                        for (uint64_t i = 0; i < count; ++i) mean[i] += double{x[i]} / 8;
                    }
                    const double unit = operation == reduction::sum ? 8 : 1;
                    for (uint64_t i = 0; i < count; ++i) {
                        const uint64_t part = count / 8;
                        const float value = scatters ? got.results[i / part][i % part] : got.results[0][i];
                        error += std::pow(double{value} / unit - mean[i], 2);
                    }
                    const double exact = error / (count * sigma * sigma / 8);
                    const call_quantisation& call = got.call();
                    CHECK(call.seen);
                    CHECK(call.outcome.quantised());
                    CHECK(call.noise_ratio == doctest::Approx(exact).epsilon(0.05));
                    const quantisation_verdict wanted = exact > 0.1 ? quantisation_verdict::harmful
                        : exact > 0.01                              ? quantisation_verdict::visible
                                                                    : quantisation_verdict::negligible;
                    CHECK(name(call.verdict) == name(wanted));
                    CHECK(call.bias < 6);
                    if (wanted != quantisation_verdict::harmful)
                        CHECK(quantisation_suspects(got.record()).empty());
                }
            }
        }
    }
}

TEST_CASE("a rank with a heavy tail and its worst block are named")
{
    const quantisation how{.format = code_format::int4};
    for (const bool harmful : {false, true}) {
        const auto make = [&](int rank) {
            std::vector<float> x = gradient(rank, 1 << 15, 0, 1);
            for (std::size_t i = 0; i < x.size() && (rank == 2 || harmful); i += 128)
                x[i] = rank == 2 && i == 8960 ? 20.0f : 8.0f;
            return x;
        };
        const probed_run got = one_step({0, 4}, how, how, false, reduction::average, make);
        const call_quantisation& call = got.call();
        CHECK(call.worst_rank == 2);
        CHECK(call.worst_block == 8960);
        const std::vector<finding> named = quantisation_suspects(got.record());
        CHECK(named.size() == (harmful ? 1 : 0));
        CHECK((call.verdict == quantisation_verdict::harmful) == harmful);
        for (const finding& each : named) {
            CHECK(each.rank() == 2);
            CHECK(each.index == 8960);
        }
    }
}

TEST_CASE("zeros and expected zeros are those of the theory")
{
    // Shares of Gaussian elements that int4 makes zero, by the size of the block.
    const struct {
        std::uint32_t block;
        double share;
    } rows[] = {{32, 0.132}, {128, 0.159}, {512, 0.183}, {1024, 0.193}};
    for (const auto& row : rows) {
        const quantisation how{.format = code_format::int4, .block = row.block};
        const probed_run got = one_step({0, 2}, how, how, false, reduction::average,
            [](int rank) { return gradient(rank, 1 << 18, 0, 1); });
        const call_quantisation& call = got.call();
        CHECK(call.zeroed == doctest::Approx(row.share).epsilon(0.03));
        CHECK(call.zeroed_expected == doctest::Approx(row.share).epsilon(0.05));
    }
    // Nearly as many by stochastic rounding.
    const quantisation how{.format = code_format::int4, .rounding = code_rounding::stochastic};
    const call_quantisation call = one_step({0, 2}, how, how, false, reduction::average,
        [](int rank) { return gradient(rank, 1 << 16, 0, 1); }).call();
    CHECK(call.zeroed == doctest::Approx(0.159).epsilon(0.03));
    CHECK(call.zeroed_expected == doctest::Approx(call.zeroed).epsilon(0.05));
}

TEST_CASE("errors with a mean are biased, and those without are not")
{
    for (const bool biased : {false, true}) {
        // Elements a quarter of a code above a code are all rounded down.
        const auto make = [&](int rank) {
            std::mt19937_64 random(static_cast<unsigned>(rank));
            std::vector<float> x(1 << 14);
            for (std::size_t i = 0; i < x.size(); ++i) {
                const float near = static_cast<float>(static_cast<int>(random() % 13) - 6);
                x[i] = i % 128 == 0 ? 7.0f : near + (biased || random() % 2 == 0 ? 0.25f : -0.25f);
            }
            return x;
        };
        const quantisation how{.format = code_format::int4};
        const probed_run got = one_step({0, 4}, how, how, true, reduction::average, make);
        const call_quantisation& call = got.call();
        if (biased) CHECK(call.verdict == quantisation_verdict::biased);
        else CHECK(call.verdict != quantisation_verdict::biased);
        if (biased)
            CHECK(quantisation_suspects(got.record()).at(0).threshold
                < quantisation_suspects(got.record()).at(0).statistic);
    }
}

namespace {

enum class wrong { nothing, divisor, type, stale_part };

/// Quantised averages whose results, the same on all ranks, are not those of the codes.
template <class Comm>
struct miscomputing : adaptor<miscomputing<Comm>, Comm> {
    wrong how;
    miscomputing(Comm comm, wrong what) : miscomputing::adaptor(std::move(comm)), how(what) {}

    template <element T>
    void make(const collective_call& call, stream_ref_of<Comm> stream)
    {
        this->comm_.template make<T>(call, stream);
        if constexpr (std::is_same_v<T, float>) {
            if (call.what != collective::all_reduce || call.operation != reduction::average) return;
            stream.enqueue([this, receive = call.received<T>()] {
                for (uint64_t i = 0; i < receive.count(); ++i) receive[i] = spoilt(receive[i], i);
            });
        }
    }
    float spoilt(float x, uint64_t i) const
    {
        if (how == wrong::divisor) return 2 * x;
        if (how == wrong::type) return static_cast<float>(std::bit_cast<float16>(to_bits(bfloat16(x))));
        return how == wrong::stale_part && i / 128 == 3 ? -x : x; // a block with the scale of another
    }
};

} // namespace

TEST_CASE("a result that no roundings can have is corrupt, and alike roundings are not")
{
    for (const code_format format : {code_format::int8, code_format::int4}) {
        for (const wrong how : {wrong::nothing, wrong::divisor, wrong::type, wrong::stale_part}) {
            CAPTURE(static_cast<int>(how));
            CAPTURE(static_cast<int>(format));
            // A block of 32 is less than what the codes of 4 bits lose.
            if (how == wrong::stale_part && format == code_format::int4) continue;
            const quantisation codes{.format = format};
            for (const bool equal : {false, true}) {
                if (equal && how != wrong::nothing) continue;
                probed_run run;
                run.results.resize(4);
                const probed_steps of{{2, 2}, codes, codes};
                on_ranks(of.ranks, codes, codes, tiny, [&](auto& comm) {
                    miscomputing over(std::move(comm), how);
                    const auto make = [&](int rank, int) { return gradient(equal ? 0 : rank, 1 << 12, 0.5, 1); };
                    make_steps<float>(of, over, make, run);
                });
                const bool seen = how != wrong::nothing;
                CHECK((run.call().verdict == quantisation_verdict::corrupt) == seen);
                CHECK((run.call().coherence > 7) == seen);
                if (!seen) continue;
                REQUIRE(quantisation_suspects(run.record()).empty());
                REQUIRE_FALSE(run.record().findings.empty());
                CHECK(run.record().findings.back().what == finding_kind::codes_differ);
                CHECK(run.record().findings.back().rank() == -1);
            }
        }
    }
}

TEST_CASE("what is fed back is neither biased nor lost, and what is not is judged")
{
    // Most elements are small and of one sign, and become zero.
    const auto make = [](int rank, int step) {
        std::vector<float> x = gradient(rank + 8 * step, 128 * 40, 0, 1e-3);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 16 != 0 ? std::abs(x[i]) : i % 32 == 0 ? 1.0f : -1.0f;
        return x;
    };
    for (const error_feedback kept : {error_feedback::none, error_feedback::all}) {
        CAPTURE(name(kept));
        const quantisation how{.format = code_format::int8, .feedback = kept};
        const auto call = run_steps({{2, 2}, how, how, false, reduction::average, 3}, make).call();
        CHECK(call.outcome.inputs_fed_back == (kept == error_feedback::all));
        CHECK(call.outcome.sums_fed_back == (kept != error_feedback::none));
        CHECK((call.bias > 5) == (kept != error_feedback::all));
        CHECK((call.verdict == quantisation_verdict::negligible) == (kept == error_feedback::all));
    }
}

TEST_CASE("a call that is forwarded says why, and calls without codes have no verdict")
{
    on_ranks({0, 2}, {}, {}, {.least_bytes = 1 << 12}, [&](auto& comm) {
        host::stream stream;
        probed probe(std::move(comm), {}, quantisation_probe());
        std::vector<float> small(8, 1.0f);
        std::vector<float> large = gradient(probe.rank(), 4096, 0, 1);
        probe.all_reduce(view<const float>(small), view<float>(small), reduction::sum, stream);
        probe.all_reduce(view<const float>(large), view<float>(large), reduction::max, stream);
        probe.all_reduce(view<const float>(large), view<float>(large), reduction::sum, stream);
        probe.broadcast(view<const float>(large), view<float>(large), 0, stream);
        probe.end_step(1, stream);
        step_record record;
        require(probe.wait(record), "no record");
        const auto& calls = record.calls;
        require(calls.at(0).quantisation.outcome.why_not == unquantised_reason::small, "small");
        require(calls.at(1).quantisation.outcome.why_not == unquantised_reason::operation, "max");
        require(calls.at(2).quantisation.outcome.why_not == unquantised_reason::none, "sum");
        require(!calls.at(3).quantisation.seen, "broadcast");
        const std::string table = report::step_table(record);
        require(contains(table, "bucket 0 (") && contains(table, "not quantised, because of its small size"), table);
        require(contains(table, "int8, blocks of 128, "), table);
        const std::string json = report::json_line("run", record);
        require(contains(json, "\"unquantised\":\"operation\""), json);
        require(contains(json, "\"verdict\":\"negligible\",\"within\":\"int8\""), json);
        require(contains(json, "\"aggregate_sqnr_db\":"), json);
        require(contains(json, "\"drift\":\"nan\",\"drifting_steps\":0,"), json);
        require(contains(table, " dB in the result)"), table);
        require(calls.at(0).quantisation.verdict == quantisation_verdict::unknown, "no verdict");
        require(calls.at(2).quantisation.verdict == quantisation_verdict::negligible,
            std::string() + name(calls.at(2).quantisation.verdict)
                + std::to_string(calls.at(2).quantisation.sqnr_db));
    });
}

TEST_CASE("an infinity among the inputs is in the result, and is no finding of quantisation")
{
    const quantisation how{.format = code_format::int8};
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        const probed_run got = one_step(of, how, how, false, reduction::average, [](int rank) {
            std::vector<float> x = gradient(rank, 1 << 12, 0, 1);
            if (rank == 1) x[5] = std::numeric_limits<float>::infinity();
            return x;
        });
        const call_quantisation& call = got.call();
        CHECK(call.nonfinite == 1);
        CHECK(call.nonfinite_results == 1);
        CHECK(call.verdict == quantisation_verdict::negligible);
        CHECK(quantisation_suspects(got.record()).empty());
    }
}

TEST_CASE("a result with an infinity that neither inputs nor codes have is corrupt, and an overflow of the sum is not")
{
    constexpr uint64_t count = 4096;
    for (const bool spoils : {true, false}) {
        CAPTURE(spoils);
        on_ranks({0, 3}, {.format = code_format::int8}, {}, tiny, [&](auto& comm) {
            host::stream stream;
            // Inverts the exponent of an element that is zero, in the results of all ranks alike.
            std::vector<fault> faults;
            if (spoils) faults.push_back({.first = 7, .elements = 1, .mask = 0x7c00});
            probed probe(faulty(std::move(comm), faults), {}, quantisation_probe());
            std::vector<float16> send;
            for (const float x : gradient(probe.rank(), count, 0, 1)) send.push_back(float16(x));
            send[7] = float16(spoils ? 0.0f : 60000.0f);
            std::vector<float16> sum(count);
            probe.all_reduce(view<const float16>(send), view(sum), reduction::sum, stream);
            probe.end_step(0, stream);
            step_record record;
            require(probe.wait(record), "no record");
            stream.synchronize(soon_ms);
            require(!is_finite(sum[7]), "finite");
            const call_quantisation& call = record.calls.at(0).quantisation;
            require(record.calls.at(0).results_agree, "not alike");
            require(call.nonfinite_results == (spoils ? 0 : 1), "codes");
            require((call.verdict == quantisation_verdict::corrupt) == spoils, name(call.verdict));
            require((suspects_of(record, finding_kind::codes_differ).size() == 1) == spoils, "suspects");
            require(is_nan(call.coherence) == !spoils, "coherence");
        });
    }
}

TEST_CASE("an audit checks the sums of calls without codes, and takes the errors of codes for no damage")
{
    on_ranks({0, 3}, {.format = code_format::int4}, {}, {.least_bytes = 1 << 12}, [&](auto& comm) {
        host::stream stream;
        probed probe(std::move(comm), {}, audit(), quantisation_probe());
        std::vector<float> small = gradient(probe.rank(), 512, 0, 1);
        std::vector<float> large = gradient(probe.rank(), 4096, 0, 1);
        for (uint64_t step = 0; step < 3; ++step) {
            probe.all_reduce(view<const float>(small), view<float>(small), reduction::average, stream);
            probe.all_reduce(view<const float>(large), view<float>(large), reduction::average, stream);
            probe.end_step(step, stream);
            step_record record;
            require(probe.wait(record), "no record");
            require(record.calls.at(0).audit.sum_checked, "the small call was not checked");
            require(!record.calls.at(1).audit.sum_checked, "the sum of decoded elements was checked");
            require(record.calls.at(1).audit.checked && record.calls.at(1).results_agree, "agreement");
            for (const finding& each : record.findings) require(each.what != finding_kind::sum_differs, "sum_differs");
            require(record.calls.at(1).quantisation.seen, "not seen");
        }
    });
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
