// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include <doctest/doctest.h>

#include "quant/quantised_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using std::uint64_t;

TEST_CASE("stochastic rounding differs between ranks and steps, and not between pieces")
{
    const std::vector<float> input = random_elements<float>(20'000, 9);
    std::vector<std::vector<float>> by_scratch;
    for (const uint64_t scratch : {uint64_t{64} << 10, uint64_t{1} << 20}) {
        const quantisation how{.format = code_format::int4, .rounding = code_rounding::stochastic};
        std::vector<float> steps[2];
        on_ranks({0, 2}, how, how, {.least_bytes = 1, .scratch_bytes = scratch}, [&](auto& comm) {
            host::stream stream;
            std::vector<float> all(2 * input.size());
            for (auto& step : steps) {
                comm.all_gather(view<const float>(input), view<float>(all), stream);
                comm.next_step(stream);
                stream.synchronize(soon_ms);
                if (comm.rank() == 0) step = all;
            }
        });
        const std::size_t half = input.size();
        CHECK(std::memcmp(steps[0].data(), steps[0].data() + half, 4 * half) != 0);
        CHECK(std::memcmp(steps[0].data(), steps[1].data(), 4 * half) != 0);
        by_scratch.push_back(steps[0]);
    }
    CHECK(by_scratch[0] == by_scratch[1]);
}

TEST_CASE("errors that are fed back do not add up")
{
    for (const shape of : {shape{0, 3}, shape{2, 2}}) {
        for (const bool scatters : {false, true}) {
            const quantisation with{.format = code_format::int4, .feedback = error_feedback::all};
            const quantisation without{.format = code_format::int4};
            double drift[2] = {};
            for (const bool kept : {false, true}) {
                std::mutex lock;
                on_ranks(of, kept ? with : without, kept ? with : without, tiny, [&](auto& comm) {
                    host::stream stream;
                    const auto n = static_cast<uint64_t>(comm.size());
                    const uint64_t part = 700;
                    const uint64_t count = part * n;
                    std::vector<float> send
                        = random_elements<float>(count, static_cast<unsigned>(comm.rank()) + 3);
                    for (uint64_t i = 128; i < 256; ++i) send[i] = 0; // a block of zeros
                    std::vector<float> result(scatters ? part : count);
                    std::vector<double> total(result.size());
                    std::vector<double> wanted(count);
                    for (int r = 0; r < comm.size(); ++r) {
                        std::vector<float> x = random_elements<float>(count, static_cast<unsigned>(r) + 3);
                        for (uint64_t i = 128; i < 256; ++i) x[i] = 0;
                        for (uint64_t i = 0; i < count; ++i)
                            wanted[i] += double{x[i]} / static_cast<double>(n);
                    }
                    constexpr int steps = 200;
                    for (int step = 0; step < steps; ++step) {
                        const quantised_outcome did = scatters
                            ? comm.reduce_scatter(
                                view<const float>(send), view<float>(result), reduction::average, stream)
                            : comm.all_reduce(
                                view<const float>(send), view<float>(result), reduction::average, stream);
                        comm.next_step(stream);
                        stream.synchronize(soon_ms);
                        require(did.feedback
                                == (!kept           ? feedback_state::none
                                        : step == 0 ? feedback_state::fresh
                                                    : feedback_state::continued),
                            "feedback");
                        for (std::size_t i = 0; i < result.size(); ++i) total[i] += double{result[i]};
                    }
                    double worst = 0;
                    const uint64_t first = scatters ? static_cast<uint64_t>(comm.rank()) * part : 0;
                    for (std::size_t i = 0; i < result.size(); ++i)
                        worst = std::max(worst, std::abs(total[i] - steps * wanted[first + i]));
                    const std::lock_guard guard(lock);
                    drift[kept] = std::max(drift[kept], worst);
                });
            }
            // One residual each of the ranks, the nodes and the owner; without feedback they add up over 200
            // steps.
            CHECK(drift[1] < 3);
            CHECK(drift[0] > 10);
        }
    }
}

TEST_CASE("feedback is dropped, and said to be, when the layout changes")
{
    on_ranks({0, 2}, {.feedback = error_feedback::all}, {}, tiny, [&](auto& comm) {
        host::stream stream;
        std::vector<float> data(5000, 1.0f);
        const auto call = [&](uint64_t count) {
            const view<float> part = view<float>(data).part(0, count);
            const quantised_outcome did
                = comm.all_reduce(view<const float>(part), part, reduction::average, stream);
            comm.next_step(stream);
            return did.feedback;
        };
        require(call(5000) == feedback_state::fresh, "fresh");
        require(call(5000) == feedback_state::continued, "continued");
        require(call(4000) == feedback_state::dropped, "dropped");
        require(call(4000) == feedback_state::continued, "continued again");
        stream.synchronize(soon_ms);
    });
}

TEST_CASE("a rotation leaves the mean, and helps heavy tails")
{
    // Gaussian elements with a few that are 50 times as large.
    std::vector<float> input = random_elements<float>(1 << 16, 12);
    for (std::size_t i = 0; i < input.size(); i += 1000) input[i] *= 50;
    double noise[2] = {};
    for (const bool rotate : {false, true}) {
        const quantisation how{.format = code_format::int4, .rotate = rotate};
        on_ranks({2, 2}, how, how, tiny, [&](auto& comm) {
            host::stream stream;
            std::vector<float> result(input);
            comm.all_reduce(view<const float>(result), view<float>(result), reduction::average, stream);
            stream.synchronize(soon_ms);
            if (comm.rank() != 0) return;
            for (std::size_t i = 0; i < input.size(); ++i)
                noise[rotate] += std::pow(double{result[i]} - double{input[i]}, 2);
        });
    }
    CHECK(noise[1] < noise[0] / 2);
}

TEST_CASE("the errors of a call are those of its numbers")
{
    const uint64_t count = 1 << 15;
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        std::vector<quantised_errors> errors(4);
        const quantisation how{.format = code_format::int8};
        on_ranks(of, how, how, tiny, [&](auto& comm) {
            host::stream stream;
            const std::vector<float> input
                = random_elements<float>(count, static_cast<unsigned>(comm.rank()) + 40);
            std::vector<float> result(count);
            quantised_errors& mine = errors[static_cast<std::size_t>(comm.rank())];
            comm.quantisation_calls()->errors_to = &mine;
            comm.all_reduce(view<const float>(input), view<float>(result), reduction::average, stream);
            stream.synchronize(soon_ms);
        });
        for (int r = 0; r < 4; ++r) {
            const quantised_errors& mine = errors[static_cast<std::size_t>(r)];
            const std::vector<float> input = random_elements<float>(count, static_cast<unsigned>(r) + 40);
            double squares = 0;
            for (const float v : input) squares += double{v} * double{v};
            CHECK(mine.input.count == count);
            CHECK(mine.input.squares == doctest::Approx(squares).epsilon(1e-6));
            CHECK(10 * std::log10(mine.input.squares / mine.input.error_squares)
                == doctest::Approx(43.73).epsilon(0.005));
            CHECK(mine.owned.errors.count == count / 4);
            CHECK(mine.nonfinite_results == 0);
            CHECK(mine.node.errors.count == (of.nodes == 0 ? 0 : count / 2));
            // The terms are independent: the squares of their sums are the sums of their squares, but for
            // chance.
            CHECK(mine.owned.sum_squares == doctest::Approx(mine.owned.term_squares).epsilon(0.05));
        }
    }
}
