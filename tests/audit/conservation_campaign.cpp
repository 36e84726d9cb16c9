// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// conservation_campaign [reductions = 90] [seed = 1] [type = all] [largest count = 16384] [by kind]: clean reductions
// of each type, order and operation, of 2 to 64 ranks and all kinds of gradients, judged at 8 standard deviations. With
// a fifth argument each kind has a row of its own. Exit status 1 if there is a false alarm.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>

#include "conservation_cases.hpp"

using namespace collprobe;

namespace {

struct tally {
    std::uint64_t reductions = 0;
    std::uint64_t bins = 0;
    std::uint64_t alarms = 0;
    std::uint64_t unchecked = 0;
    double squares = 0;
    double worst = 0;
    char where[80] = "";
};

template <floating_element T>
void one(testing::gradient_pool<T>& pool, testing::gradients kind, testing::simulated_order order, reduction operation,
    int ranks, std::uint64_t most, tally& counts)
{
    const sketch_options options{.bins = 64u << 2 * (pool.random()() % 4)};
    const std::uint64_t count = 1 + pool.random()() % most;
    const auto inputs = pool.make(kind, ranks, count);
    const auto output = testing::reduce_simulated(inputs, order, operation);
    const testing::judged_reduction<T> judged(inputs, output, operation, testing::rounding_of(order), options);
    const detail::conservation_result verdict = judged.verdict();
    ++counts.reductions;
    if (!verdict.checked) ++counts.unchecked;
    if (!verdict.conserved) ++counts.alarms;
    if (verdict.residual > counts.worst) {
        counts.worst = verdict.residual;
        std::snprintf(counts.where, sizeof counts.where, "%s, n = %d, d = %llu, k = %u", name(kind), ranks,
            static_cast<unsigned long long>(count), options.bins);
    }
    for (std::uint64_t bin = 0; bin < options.bins; ++bin) {
        double z = 0;
        if (judged.result[options.bins + bin] > 0 && judged.judge.measure(bin, z)) {
            counts.squares += z * z;
            ++counts.bins;
        }
    }
}

void print(const char* type, const char* order, reduction operation, const char* kind, const tally& counts)
{
    std::printf("| %s | %s | %s | %s | %llu | %llu | %llu | %.3f | %.2f | %s |\n", type, order, name(operation), kind,
        static_cast<unsigned long long>(counts.reductions), static_cast<unsigned long long>(counts.unchecked),
        static_cast<unsigned long long>(counts.alarms),
        counts.bins == 0 ? 0.0 : std::sqrt(counts.squares / static_cast<double>(counts.bins)), counts.worst, counts.where);
    std::fflush(stdout);
}

template <floating_element T>
std::uint64_t run(std::uint64_t reductions, std::uint64_t seed, std::uint64_t most, bool by_kind)
{
    std::uint64_t alarms = 0;
    testing::gradient_pool<T> pool(seed);
    constexpr auto kinds = static_cast<std::uint64_t>(testing::gradients::count);
    constexpr int sizes[] = {2, 3, 4, 5, 7, 8, 16, 32, 64};
    constexpr std::uint64_t size_count = std::size(sizes);
    static_assert(std::gcd(kinds, size_count) == 1, "else kinds and sizes do not meet all of each other");
    for (int order = 0; order < static_cast<int>(testing::simulated_order::count); ++order) {
        for (const reduction operation : {reduction::sum, reduction::average}) {
            const auto how = static_cast<testing::simulated_order>(order);
            std::vector<tally> rows(by_kind ? kinds : 1);
            for (std::uint64_t i = 0; i < reductions; ++i) {
                tally& counts = rows[i % rows.size()];
                const auto kind = static_cast<testing::gradients>(i % kinds);
                one<T>(pool, kind, how, operation, sizes[i % size_count], most, counts);
            }
            for (std::size_t k = 0; k < rows.size(); ++k) {
                print(element_traits<T>::name, name(how), operation,
                    by_kind ? name(static_cast<testing::gradients>(k)) : "all", rows[k]);
                alarms += rows[k].alarms;
            }
        }
    }
    return alarms;
}

} // namespace

int main(int argc, char** argv)
{
    const std::uint64_t reductions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 90;
    const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const char* const only = argc > 3 ? argv[3] : "all";
    const std::uint64_t most = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 16384;
    const bool by_kind = argc > 5;
    std::uint64_t alarms = 0;
    std::printf("| type | order | operation | gradients | reductions | not checked | alarms | rms | largest | of |\n"
                "|---|---|---|---|---|---|---|---|---|---|\n");
    for (int type = 0; type < 256; ++type) {
        with_floating_type(static_cast<element_type>(type), [&](auto zero) {
            using T = decltype(zero);
            if (std::strcmp(only, "all") != 0 && std::strcmp(only, element_traits<T>::name) != 0) return;
            alarms += run<T>(reductions, seed, most, by_kind);
        });
    }
    return alarms == 0 ? 0 : 1;
}
