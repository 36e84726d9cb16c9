// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// conservation_campaign [reductions = 50] [seed = 1] [type = all] [largest count = 16384]: clean reductions of each
// type, order and operation, of 2, 3, 4, 8 and 16 ranks and all kinds of gradients but constant ones, judged at 8
// standard deviations. Then, in a table of their own, what constant gradients do. Exit status 1 if there is a false
// alarm in the first one.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
    const conservation_result verdict = judged.verdict();
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
std::uint64_t run(std::uint64_t reductions, std::uint64_t seed, std::uint64_t most, bool constant, bool by_kind)
{
    std::uint64_t alarms = 0;
    testing::gradient_pool<T> pool(seed);
    constexpr int sizes[] = {2, 3, 4, 8, 16};
    for (int order = 0; order < static_cast<int>(testing::simulated_order::count); ++order) {
        for (const reduction operation : {reduction::sum, reduction::average}) {
            const auto how = static_cast<testing::simulated_order>(order);
            const auto kinds = static_cast<std::uint64_t>(testing::gradients::constant);
            tally all;
            std::vector<tally> of_kind(kinds + 1);
            for (std::uint64_t i = 0; i < reductions; ++i) {
                const std::uint64_t kind = constant ? kinds : i % kinds;
                tally& counts = by_kind ? of_kind[kind] : all;
                one<T>(pool, static_cast<testing::gradients>(kind), how, operation, sizes[i / kinds % 5], most, counts);
            }
            if (!by_kind) of_kind = {all};
            for (std::size_t k = 0; k < of_kind.size(); ++k) {
                if (of_kind[k].reductions == 0) continue;
                print(element_traits<T>::name, name(how), operation,
                    constant ? "constant" : by_kind ? name(static_cast<testing::gradients>(k)) : "all", of_kind[k]);
                alarms += of_kind[k].alarms;
            }
        }
    }
    return alarms;
}

} // namespace

int main(int argc, char** argv)
{
    const std::uint64_t reductions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 50;
    const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const char* const only = argc > 3 ? argv[3] : "all";
    const std::uint64_t most = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 16384;
    const bool by_kind = argc > 5;
    std::uint64_t alarms = 0;
    for (const bool constant : {false, true}) {
        std::printf("%s| type | order | operation | gradients | reductions | not checked | alarms | rms | largest | of |\n"
                    "|---|---|---|---|---|---|---|---|---|---|\n",
            constant ? "\n" : "");
        for (int type = 0; type < 256; ++type) {
            with_floating_type(static_cast<element_type>(type), [&](auto zero) {
                using T = decltype(zero);
                if (std::strcmp(only, "all") != 0 && std::strcmp(only, element_traits<T>::name) != 0) return;
                const std::uint64_t found
                    = run<T>(constant ? reductions / 10 + 1 : reductions, seed, most, constant, by_kind);
                if (!constant) alarms += found;
            });
        }
    }
    return alarms == 0 ? 0 : 1;
}
