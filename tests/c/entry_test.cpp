// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The C entry around collectives of the caller, in host memory: numbers and findings.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>

#include "c_ranks.hpp"

namespace collprobe::testing::entry_test {
namespace {

template <class T>
constexpr collprobeDataType_t type_of()
{
    if constexpr (std::is_same_v<T, float>) return collprobeFloat32;
    else if constexpr (std::is_same_v<T, double>) return collprobeFloat64;
    else if constexpr (std::is_same_v<T, float16>) return collprobeFloat16;
    else if constexpr (std::is_same_v<T, bfloat16>) return collprobeBfloat16;
    else if constexpr (std::is_same_v<T, float8_e4m3>) return collprobeFloat8e4m3;
    else return collprobeFloat8e5m2;
}

/// Shows an all-reduce that sums, in place.
template <class T = float>
void show_sum(const c_rank& own, const char* name, const std::vector<T>& input, const std::vector<T>& result)
{
    std::vector<T> data = input;
    std::uint64_t token = 0;
    ok(collprobeObserveInput(own.probe, collprobeAllReduceCall, type_of<T>(), collprobeSum, data.data(),
        data.size(), name, nullptr, &token));
    data = result; // as a call in place does: the input was read
    ok(collprobeObserveResult(own.probe, token, data.data(), data.size(), nullptr));
}
template <class T = float>
void show_sum(const c_rank& own, std::uint64_t step, std::size_t count, const char* name)
{
    show_sum<T>(own, name, numbers_of<T>(own.rank, step, count), sum_of<T>(own.ranks, step, count));
}
void end_step(const c_rank& own, std::uint64_t step, double loss = 2, double weight = 1)
{
    collprobeStep_t seen = COLLPROBE_STEP_INIT;
    seen.loss = loss;
    seen.weight = weight;
    ok(collprobeEndStep(own.probe, step, &seen, nullptr));
}
/// Ends the step and takes its record.
void finish_step(const c_rank& own, std::uint64_t step, double loss = 2, double weight = 1)
{
    end_step(own, step, loss, weight);
    ok(collprobePoll(own.probe, 1));
}

constexpr int ranks = 4;
constexpr std::size_t count = 1000;

} // namespace

TEST_CASE_TEMPLATE("the numbers of a step are those of the ranks' data", T, float, double, float16, bfloat16)
{
    // Rank r has 1 in the first element and r + 1 in one of its own: the dot of any two ranks is 1.
    const std::array<double, ranks> norms{std::sqrt(2), std::sqrt(5), std::sqrt(10), std::sqrt(17)};
    const double sum_of_norms = std::accumulate(norms.begin(), norms.end(), 0.0);
    const double products = 6, lengths = (sum_of_norms * sum_of_norms - (2 + 5 + 10 + 17)) / 2;
    const std::vector<T> sum{T(4.0f), T(1.0f), T(2.0f), T(3.0f), T(4.0f)};
    const double mean = (1 + 2 + 3 + 4.0) / 4;

    run_c_probes(ranks, [&](c_rank& own) {
        std::vector<T> input(sum.size());
        input[0] = T(1.0f);
        input[static_cast<std::size_t>(own.rank) + 1] = sum[static_cast<std::size_t>(own.rank) + 1];
        show_sum<T>(own, "wte", input, sum);
        finish_step(own, 7, own.rank + 1.0, own.rank == 3 ? 3 : 1);
        require_silence(own.probe);
        const auto near = [&](const char* name, double wanted, int rank = -1) {
            const double got = value_of(own.probe, name, rank);
            require(std::abs(got - wanted) <= 1e-6 * std::abs(wanted),
                std::string(name) + " is " + std::to_string(got) + ", not " + std::to_string(wanted));
        };
        near("step", 7);
        near("findings", 0);
        near("calls", 1);
        near("loss.mean", mean);
        near("loss.weighted_mean", (1 + 2 + 3 + 3 * 4.0) / 6);
        near("loss.std", std::sqrt((2 * 2.25 + 2 * 0.25) / 4));
        near("loss.range", 3);
        for (int r = 0; r < ranks; ++r) {
            near("loss", r + 1.0, r);
            near("gradient_norm", norms[static_cast<std::size_t>(r)], r);
        }
        near("gradient_norm.range", norms.back() - norms.front());
        near("result_norm", std::sqrt(16 + 1 + 4 + 9 + 16));
        near("cosine.pooled", products / lengths);
        require(is_nan(value_of(own.probe, "cosine", 0)), "the inputs are gone: no cosine of a rank");
    });
}

TEST_CASE("a loss that is NaN is a finding; one that is not known is none")
{
    run_c_probes(ranks, [&](c_rank& own) {
        finish_step(own, 0, COLLPROBE_UNKNOWN);
        require_silence(own.probe);
        require(is_nan(value_of(own.probe, "loss", 1)), "a loss");
        ok(collprobeEndStep(own.probe, 1, nullptr, nullptr));
        ok(collprobePoll(own.probe, 1));
        require_silence(own.probe);
        finish_step(own, 2, own.rank == 1 ? detail::not_a_number() : 2.5);
        const auto found = findings_of(own.probe);
        require(found.size() == 1 && found[0].rank == 1 && found[0].call_index == -1 && found[0].call.empty(),
            "none");
    });
}

TEST_CASE("two ranks with the same data are named; a rank whose result differs too")
{
    run_c_probes(ranks, [&](c_rank& own) {
        const auto input = numbers_of(own.rank == 3 ? 1 : own.rank, 0, count);
        show_sum(own, "wte", input, sum_of<float>(ranks, 0, count));
        finish_step(own, 0);
        const auto copies = findings_of(own.probe);
        require(!copies.empty() && copies[0].kind == "duplicate" && contains(copies[0].text, "rank 3")
                && contains(copies[0].text, "rank 1"),
            copies.empty() ? "none" : copies[0].text);

        auto result = sum_of<float>(ranks, 1, count);
        if (own.rank == 2) result[9] += 1;
        show_sum(own, "wte", numbers_of(own.rank, 1, count), result);
        finish_step(own, 1);
        bool is_named = false;
        for (const c_finding& of : findings_of(own.probe))
            is_named = is_named || (of.kind == "result_differs" && of.rank == 2);
        require(is_named, "rank 2 is not named");
    });
}

TEST_CASE("results come in any order")
{
    run_c_probes(ranks, [&](c_rank& own) {
        std::mt19937 random(5 + static_cast<unsigned>(own.rank)); // another order on each rank
        for (std::uint64_t step = 0; step < 20; ++step) {
            std::vector<std::uint64_t> tokens(12);
            std::vector<std::size_t> order;
            for (std::size_t b = 0; b < tokens.size(); ++b) {
                const auto input = numbers_of(own.rank, 100 * step + b, count + b);
                ok(collprobeObserveInput(own.probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum,
                    input.data(), input.size(), ("bucket" + std::to_string(b)).c_str(), nullptr, &tokens[b]));
                order.push_back(b);
            }
            std::shuffle(order.begin(), order.end(), random);
            for (const std::size_t b : order) {
                auto result = sum_of<float>(ranks, 100 * step + b, count + b);
                if (step == 13 && b == 7 && own.rank == 1) result[3] = 1e6f;
                ok(collprobeObserveResult(own.probe, tokens[b], result.data(), result.size(), nullptr));
            }
            finish_step(own, step);
            const auto found = findings_of(own.probe);
            if (step != 13) {
                require(found.empty(), found.empty() ? "" : found[0].text);
                continue;
            }
            require(found.size() == 1 && found[0].kind == "result_differs" && found[0].rank == 1
                    && found[0].call == "bucket7" && found[0].call_index == 7,
                found.empty() ? "none" : found[0].text);
        }
    });
}

TEST_CASE("all kinds and types are taken; fp8 is read, integers are counted")
{
    run_c_probes(2, [&](c_rank& own) {
        for (int type = collprobeInt8; type <= collprobeFloat8e5m2; ++type) {
            for (int call = collprobeAllReduceCall; call <= collprobeAllToAllCall; ++call) {
                alignas(8) unsigned char bytes[8 * 64] = {}; // zeros of any type
                const std::uint64_t gets = call == collprobeReduceScatterCall ? 16
                    : call == collprobeAllGatherCall                          ? 64
                                                                              : 32;
                std::uint64_t token = 0;
                ok(collprobeObserveInput(own.probe, collprobeCall_t(call), collprobeDataType_t(type),
                    collprobeAvg, bytes, 32, nullptr, nullptr, &token));
                ok(collprobeObserveResult(own.probe, token, bytes, gets, nullptr));
            }
        }
        finish_step(own, 3);
        require(value_of(own.probe, "calls") == 6 * 4, "floating-point calls");
        require(value_of(own.probe, "calls_not_read") == 6 * 4, "integer calls");

        auto codes = numbers_of<float8_e4m3>(own.rank, 0, 64);
        if (own.rank == 1) codes[5] = float8_e4m3::from_bits(0x7f);
        auto sum = sum_of<float8_e4m3>(2, 0, 64);
        sum[5] = float8_e4m3::from_bits(0x7f);
        show_sum<float8_e4m3>(own, "codes", codes, sum);
        finish_step(own, 4);
        const auto found = findings_of(own.probe);
        require(found.size() == 1 && found[0].rank == 1 && found[0].element == 5, "the NaN of fp8");
    });
}

TEST_CASE("a call without a name has kind and place; names may be new in each step for ever")
{
    run_c_probes(2, [&](c_rank& own) {
        const auto step_of = [&](std::uint64_t step, const char* first, const char* second) {
            auto input = numbers_of(own.rank, step, 8);
            auto sum = sum_of<float>(2, step, 8);
            if (own.rank == 1) input[1] = std::numeric_limits<float>::infinity();
            sum[1] = input[1];
            show_sum(own, step, 8, first);
            show_sum(own, second, input, sum);
            finish_step(own, step);
            const auto found = findings_of(own.probe);
            std::string name = "none";
            for (const auto& of : found)
                if (of.call_index == 1) name = of.call;
            return name;
        };
        require(step_of(0, nullptr, "") == "all_reduce#1", "the place");
        require(step_of(1, "a", "letter\xc3\xa9") == "letter\xc3\xa9", "the name");
        const std::string longer(300, 'x');
        require(step_of(2, "a", longer.c_str()) == std::string(255, 'x'), "the begin of a long name");
        // What a probe keeps of names is bounded: behind 16,384 of them a new one is told by its place.
        for (std::uint64_t step = 3; step < 3 + 16'384 / 16; ++step) {
            for (int b = 0; b < 16; ++b) {
                const std::string name = "step" + std::to_string(step) + "/bucket" + std::to_string(b);
                ok(collprobeExpectNumber(own.probe, collprobeEqual, name.c_str(), 1));
            }
            ok(collprobeEndStep(own.probe, step, nullptr, nullptr));
            ok(collprobePoll(own.probe, 1));
        }
        require(step_of(5000, "a", "new") == "all_reduce#1", "no room for names");
        require(step_of(5001, "a", "letter\xc3\xa9") == "letter\xc3\xa9", "a name that is known");
    });
}

TEST_CASE("a rank that sends or gets nothing is left out")
{
    run_c_probes(ranks, [&](c_rank& own) {
        const std::vector<float> result = sum_of(3, 0, count); // of the others
        std::uint64_t token = 0;
        const auto input = numbers_of(own.rank, 0, count);
        ok(collprobeObserveInput(own.probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum,
            own.rank == 3 ? COLLPROBE_NO_BUFFER : input.data(), count, "expert", nullptr, &token));
        if (own.rank == 1) ok(collprobeObserveResult(own.probe, token, COLLPROBE_NO_BUFFER, 0, nullptr));
        else ok(collprobeObserveResult(own.probe, token, result.data(), count, nullptr));
        finish_step(own, 0);
        require_silence(own.probe);
    });
}

TEST_CASE("values that must be equal or distinct")
{
    run_c_probes(3, [&](c_rank& own) {
        for (std::uint64_t step = 0; step < 3; ++step) {
            std::vector<std::int64_t> weights(50, 9);
            if (step == 2 && own.rank == 0) weights[49] = 8;
            ok(collprobeExpectBuffer(
                own.probe, collprobeEqual, "weights", collprobeInt64, weights.data(), 50, nullptr));
            ok(collprobeExpectNumber(
                own.probe, collprobeEqual, "lr", step == 1 && own.rank == 2 ? 0.2 : 0.1));
            ok(collprobeExpectNumber(
                own.probe, collprobeDistinct, "seed", step == 2 ? own.rank / 2 : own.rank));
            finish_step(own, step);
            const auto found = findings_of(own.probe);
            if (step == 0) require(found.empty(), found.empty() ? "" : found[0].text);
            if (step == 1) {
                require(found.size() == 1 && found[0].kind == "value_differs" && found[0].call == "lr"
                        && found[0].rank == 2 && found[0].exact,
                    found.empty() ? "none" : found[0].text);
            }
            if (step != 2) continue;
            std::string all;
            for (const auto& of : found) all += of.kind + ' ' + of.call + ' ' + std::to_string(of.rank) + ';';
            require(contains(all, "value_differs weights 0;") && contains(all, "value_repeats seed 1;"), all);
        }
    });
}

TEST_CASE("a late peer holds up neither reads nor the ends of steps")
{
    // The all-gather of rank 0 waits until rank 0 itself has ended three steps.
    struct held {
        c_rank own;
        std::atomic<int> ended{0};
        static int all_gather(void* context, const void* send, void* receive, std::size_t bytes)
        {
            auto& of = *static_cast<held*>(context);
            for (int ms = 0; of.ended < 3 && ms < soon_ms; ++ms)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return of.ended < 3 ? 9 : c_rank::all_gather(&of.own, send, receive, bytes);
        }
    };
    run_c_ranks(2, [&](c_rank& own) {
        held of{own};
        collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
        options.allGather = &held::all_gather;
        options.context = &of;
        ok(collprobeCreate(&own.probe, own.rank, own.ranks, &options));
        for (std::uint64_t step = 0; step < 3; ++step) {
            show_sum(own, step, count, "wte");
            end_step(own, step);
            require(collprobePoll(own.probe, 0) == collprobeNotReady, "a record");
            ++of.ended;
        }
        for (std::uint64_t step = 0; step < 3; ++step) {
            ok(collprobePoll(own.probe, 1));
            require(value_of(own.probe, "step") == static_cast<double>(step), "the order of steps");
        }
        require(collprobePoll(own.probe, 1) == collprobeNotReady, "one more record");
        ok(collprobeDestroy(own.probe));
    });
}

TEST_CASE("every other step; the state goes on in another run")
{
    std::vector<std::vector<unsigned char>> states(ranks);
    for (const bool is_second : {false, true}) {
        run_c_ranks(ranks, [&](c_rank& own) {
            collprobeOptions_t options = own.options();
            options.every = 2;
            options.name = "data_parallel";
            ok(collprobeCreate(&own.probe, own.rank, own.ranks, &options));
            auto& state = states[static_cast<std::size_t>(own.rank)];
            if (is_second) ok(collprobeRestoreState(own.probe, state.data(), state.size()));
            for (std::uint64_t step = 0; step < 20; ++step) {
                show_sum(own, step, count, "wte");
                finish_step(own, step, 2 + 0.01 * own.rank);
                require(
                    (value_of(own.probe, "calls") == 1) == (step % 2 == 0), "the steps that are looked at");
            }
            std::size_t bytes = 0;
            ok(collprobeSaveState(own.probe, nullptr, &bytes));
            std::vector<unsigned char> room(bytes);
            ok(collprobeSaveState(own.probe, room.data(), &bytes));
            require(room.size() == bytes && (!is_second || room != state), "the state");
            state = room;
            ok(collprobeDestroy(own.probe));
        });
        for (const auto& of : states) CHECK(of == states[0]);
    }
}

TEST_CASE("the record as table and as JSON")
{
    run_c_probes(2, [&](c_rank& own) {
        show_sum(own, 3, count, "wte");
        finish_step(own, 3, 1.5);
        const char* text = nullptr;
        ok(collprobeGetText(own.probe, collprobeTable, nullptr, &text));
        require(contains(text, "step 3\n") && contains(text, "1.5"), text);
        ok(collprobeGetText(own.probe, collprobeJson, "run \"7\"", &text));
        require(contains(text, "\"run\":\"run \\\"7\\\"\"") && contains(text, "\"wte\""), text);
    });
}

} // namespace collprobe::testing::entry_test
