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

TEST_CASE("the accumulated error stays below one residual of each rounding, in one level and two, of sums and their parts")
{
    const auto drift_of = [](shape of, bool scatters, bool constant, error_feedback kept) {
        std::vector<double> drift(static_cast<std::size_t>(of.ranks()));
        const quantisation how{.format = code_format::int4, .block = 32, .feedback = kept};
        const quantised_options in_pieces{.least_bytes = 1, .scratch_bytes = 2048};
        on_ranks(of, how, how, in_pieces, [&](auto& comm) {
            const host::stream stream;
            const auto me = static_cast<std::size_t>(comm.rank()), n = static_cast<std::size_t>(comm.size());
            const std::size_t part = 1400, first = scatters ? me * part : 0;
            std::vector<float> x(part * n), send(x), result(scatters ? part : part * n);
            std::vector<double> difference(result.size());
            for (uint64_t step = 0; step < 50; ++step) {
                for (std::size_t r = 0; r < n; ++r) {
                    draw(x, static_cast<int>(r), constant ? 0 : step);
                    std::fill_n(x.begin() + 32, 32, 0.0f); // a block of zeros
                    for (std::size_t i = 0; i < result.size(); ++i)
                        difference[i] -= double{x[first + i]} / static_cast<double>(n);
                    if (r == me) send = x;
                }
                const quantised_outcome did = scatters
                    ? comm.reduce_scatter(view<const float>(send), view<float>(result), reduction::average, stream)
                    : comm.all_reduce(view<const float>(send), view<float>(result), reduction::average, stream);
                comm.next_step(stream);
                stream.synchronize(soon_ms);
                const feedback_state expected = step == 0 ? feedback_state::fresh : feedback_state::continued;
                require(kept == error_feedback::none || did.feedback == expected, "feedback");
                for (std::size_t i = 0; i < result.size(); ++i) difference[i] += double{result[i]};
            }
            for (const double each : difference) drift[me] = std::max(drift[me], std::abs(each));
        });
        return *std::max_element(drift.begin(), drift.end());
    };
    for (const shape of : {shape{0, 3}, shape{2, 2}}) {
        for (const bool scatters : {false, true}) {
            CAPTURE(of.nodes);
            CAPTURE(scatters);
            const double own = largest_residual(1), node = of.nodes == 0 ? 0 : largest_residual(1 + own);
            const double bound = own + node + (scatters ? 0 : largest_residual(1 + own + node));
            for (const bool constant : {true, false})
                CHECK(drift_of(of, scatters, constant, error_feedback::all) <= bound);
            CHECK(drift_of(of, scatters, true, error_feedback::none) > 3 * bound); // the control
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
