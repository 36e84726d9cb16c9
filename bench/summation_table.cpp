// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// summation_table [elements = 10000]: what an all-reduce's order and accumulator do to a sum of n ranks, as Markdown.
#include <cstdio>

#include "summation_order.hpp"

using namespace summation;

namespace {

constexpr int sizes[] = {2, 4, 8, 64, 256, 1024};

void table(input kind, const char* what, std::size_t count)
{
    std::printf("%s\n\n| n | bf16 ring | bf16 pairwise | float32, one rounding | ring / float32 | exact |\n"
                "|---|---|---|---|---|---|\n",
        what);
    for (const int n : sizes) {
        const auto terms = random_message<bfloat16>(kind, n, count);
        const double ring = measure<accumulation::native>(order_kind::ring, terms).relative_rms;
        const double pairwise = measure<accumulation::native>(order_kind::pairwise, terms).relative_rms;
        const double wide = measure<accumulation::float32>(order_kind::ring, terms).relative_rms;
        const double exact = measure<accumulation::exact>(order_kind::linear, terms).relative_rms;
        std::printf("| %d | %.1e | %.1e | %.1e | %.1fx | %.1e |\n", n, ring, pairwise, wide, ring / wide, exact);
        std::fflush(stdout);
    }
    std::printf("\n");
}

void flips(input kind, const char* what, std::size_t count)
{
    std::printf("%s\n\n| n | bf16 ring | bf16 pairwise | bf16, float32 | half, float32 | float, float32 | bf16, float64 | "
                "half, float64 | float, float64 | bf16, exact | half, exact | float, exact | double, exact |\n"
                "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        what);
    for (const int n : sizes) {
        const auto b = random_message<bfloat16>(kind, n, count);
        const auto h = random_message<float16>(kind, n, count);
        const auto f = random_message<float>(kind, n, count);
        const auto d = random_message<double>(kind, n, count);
        const double shares[] = {
            measure<accumulation::native>(order_kind::ring, b).changed,
            measure<accumulation::native>(order_kind::pairwise, b).changed,
            measure<accumulation::float32>(order_kind::ring, b).changed,
            measure<accumulation::float32>(order_kind::ring, h).changed,
            measure<accumulation::float32>(order_kind::ring, f).changed,
            measure<accumulation::float64>(order_kind::ring, b).changed,
            measure<accumulation::float64>(order_kind::ring, h).changed,
            measure<accumulation::float64>(order_kind::ring, f).changed,
            measure<accumulation::exact>(order_kind::ring, b).changed,
            measure<accumulation::exact>(order_kind::ring, h).changed,
            measure<accumulation::exact>(order_kind::ring, f).changed,
            measure<accumulation::exact>(order_kind::ring, d).changed,
        };
        std::printf("| %d |", n);
        for (const double share : shares) {
            if (share == 0) std::printf(" 0 |");
            else std::printf(share < 0.01 ? " %.2f %% |" : " %.0f %% |", 100 * share);
        }
        std::printf("\n");
        std::fflush(stdout);
    }
    std::printf("\n");
}

} // namespace

int main(int argc, char** argv)
{
    const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000;
    table(input::normal, "Relative RMS error of a sum of n terms, N(0, 1) in bfloat16:", count);
    table(input::same_sign, "The same for |N(0, 1)|, all of one sign:", count);
    flips(input::normal, "Share of elements whose bits change when the ranks move on by a third, N(0, 1):", count);
    flips(input::wide, "The same with exponents spread over 2^-20 .. 2^20:", count);
}
