// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "quant/quantised_ranks.hpp"

namespace collprobe::testing::quantised_feedback_test {

using std::uint64_t;

namespace {

/// The largest error of one rounding to int4 of elements up to `magnitude`, to which an error of its own is
/// added.
double largest_residual(double magnitude)
{
    const double up = 1 + 0x1p-7;
    return magnitude * up / 7 / (1 - up / 14) / 2;
}

/// Elements in -1 to 1 of a rank and step.
void draw(std::vector<float>& x, int rank, uint64_t step)
{
    std::mt19937 random(static_cast<unsigned>(step * 64) + static_cast<unsigned>(rank) + 1);
    for (float& v : x) v = static_cast<float>(random() >> 8) * 0x1p-23f - 1;
}

} // namespace

TEST_CASE("the accumulated error stays below one residual of each rounding, over 1000 steps")
{
    for (const error_feedback kept : {error_feedback::all, error_feedback::none}) {
        for (const bool constant : {true, false}) {
            CAPTURE(name(kept));
            CAPTURE(constant);
            double drift = 0;
            const quantisation how{.format = code_format::int4, .block = 32, .feedback = kept};
            on_ranks({0, 2}, how, how, {.least_bytes = 1}, [&](auto& comm) {
                const host::stream stream;
                quantised decoder(
                    comm.base(), {.format = code_format::int4, .block = 32}, {.least_bytes = 1});
                std::vector<float> x(70), result(70), decoded(140);
                std::vector<double> difference(70);
                for (uint64_t step = 0; step < 1000; ++step) {
                    if (step == 0 || !constant) draw(x, comm.rank(), step);
                    comm.all_reduce(view<const float>(x), view<float>(result), reduction::average, stream);
                    comm.next_step(stream);
                    // What goes into the sum: the elements, or without feedback of the ranks what they decode
                    // to.
                    if (kept == error_feedback::all)
                        comm.base().all_gather(view<const float>(x), view<float>(decoded), stream);
                    else decoder.all_gather(view<const float>(x), view<float>(decoded), stream);
                    stream.synchronize(soon_ms);
                    for (std::size_t i = 0; i < 70; ++i)
                        difference[i]
                            += double{result[i]} - (double{decoded[i]} + double{decoded[70 + i]}) / 2;
                }
                if (comm.rank() != 0) return;
                for (const double each : difference) drift = std::max(drift, std::abs(each));
            });
            const double own = largest_residual(1);
            const double bound = own + largest_residual(1 + own);
            if (kept == error_feedback::none) CHECK(drift > 3 * bound);
            else CHECK(drift <= bound);
        }
    }
}

TEST_CASE("the errors of blocks that became zero vanish, and do no harm")
{
    const quantisation how{.format = code_format::int4, .block = 32, .feedback = error_feedback::all};
    on_ranks({0, 2}, how, how, {.least_bytes = 1}, [&](auto& comm) {
        const host::stream stream;
        std::vector<float> x(64), result(64);
        std::vector<double> total(64);
        draw(x, comm.rank(), 0);
        for (const float size : {1.0f, 0x1p-120f}) {
            std::vector<float> sent(x);
            for (float& v : sent) v *= size;
            for (int step = 0; step < 500; ++step) {
                comm.all_reduce(view<const float>(sent), view<float>(result), reduction::average, stream);
                comm.next_step(stream);
                stream.synchronize(soon_ms);
                for (const float v : result) require(is_finite(v), "a result is not finite");
                std::fill(sent.begin(), sent.end(), 0.0f);
            }
            for (const float v : result)
                require(std::abs(v) < 0x1p-120f, "an error stayed: " + std::to_string(v));
        }
        for (int step = 0; step < 50; ++step) {
            comm.all_reduce(view<const float>(x), view<float>(result), reduction::average, stream);
            comm.next_step(stream);
            stream.synchronize(soon_ms);
            for (std::size_t i = 0; i < 64; ++i) total[i] += double{result[i]};
        }
        std::vector<float> both(128);
        comm.base().all_gather(view<const float>(x), view<float>(both), stream);
        stream.synchronize(soon_ms);
        for (std::size_t i = 0; i < 64; ++i) {
            const double wanted = 25 * (double{both[i]} + double{both[64 + i]});
            require(std::abs(total[i] - wanted) < 0.4,
                "after the zeros: off by " + std::to_string(total[i] - wanted));
        }
    });
}

TEST_CASE("errors that are fed back do not add up in two levels, nor in the parts of a reduce-scatter")
{
    const quantisation how{.format = code_format::int4, .feedback = error_feedback::all};
    for (const shape of : {shape{0, 3}, shape{2, 2}}) {
        for (const bool scatters : {false, true}) {
            on_ranks(of, how, how, tiny, [&](auto& comm) {
                host::stream stream;
                const auto n = static_cast<uint64_t>(comm.size());
                const uint64_t part = 700, count = part * n;
                std::vector<float> send;
                std::vector<double> wanted(count);
                for (uint64_t r = 0; r < n; ++r) {
                    std::vector<float> x = random_elements<float>(count, static_cast<unsigned>(r) + 3);
                    for (uint64_t i = 128; i < 256; ++i) x[i] = 0; // a block of zeros
                    for (uint64_t i = 0; i < count; ++i) wanted[i] += double{x[i]} / static_cast<double>(n);
                    if (r == static_cast<uint64_t>(comm.rank())) send = x;
                }
                std::vector<float> result(scatters ? part : count);
                std::vector<double> total(result.size());
                constexpr int steps = 200;
                for (int step = 0; step < steps; ++step) {
                    const quantised_outcome did = scatters
                        ? comm.reduce_scatter(view<const float>(send), view<float>(result), reduction::average, stream)
                        : comm.all_reduce(view<const float>(send), view<float>(result), reduction::average, stream);
                    comm.next_step(stream);
                    stream.synchronize(soon_ms);
                    require(did.feedback == (step == 0 ? feedback_state::fresh : feedback_state::continued), "feedback");
                    for (std::size_t i = 0; i < result.size(); ++i) total[i] += double{result[i]};
                }
                const uint64_t first = scatters ? static_cast<uint64_t>(comm.rank()) * part : 0;
                for (std::size_t i = 0; i < result.size(); ++i) // one residual each of the ranks, the nodes and the owner
                    require(std::abs(total[i] - steps * wanted[first + i]) < 3, "an error of many steps");
            });
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

} // namespace collprobe::testing::quantised_feedback_test
