// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/quant/quantisation_probe.hpp>

#include "quant/quantised_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
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
