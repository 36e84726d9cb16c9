// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// exact_sums [sums a type = 200000] [seed = 1] [threads = all] [type = all]: random and adversarial sums and
// averages, by `exact_sum` and by `sum_rows`, against the oracle. Exit status 1 if there is any mismatch.
#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/sum_rows.hpp>

#include "exact_oracle.hpp"
#include "sum_cases.hpp"

using namespace collprobe;

namespace {

constexpr int width = 8;
constexpr std::uint64_t batch = 100'000; // sums between two looks at the counter

struct tally {
    std::uint64_t sums = 0;
    std::uint64_t averages = 0;
    std::uint64_t permuted = 0;
    std::uint64_t mismatches = 0;
};

template <floating_element T>
void report(const char* what, const std::vector<T>& rows, int terms, int column, std::uint32_t divisor, T got, T wanted)
{
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    std::printf("%s: %s over %u: got %" PRIx64 ", not %" PRIx64 ":", element_traits<T>::name, what, divisor,
        std::uint64_t{to_bits(got)}, std::uint64_t{to_bits(wanted)});
    for (int k = 0; k < terms && k < 20; ++k) {
        std::printf(" %" PRIx64, std::uint64_t{to_bits(rows[static_cast<std::size_t>(k * width + column)])});
    }
    std::printf("\n");
}

/// One block of `width` sums with as many terms each.
template <floating_element T>
void run_block(testing::random_bits& random, tally& counts)
{
    const int terms = testing::random_terms(random);
    const std::uint32_t divisor = testing::random_divisor(random, terms);
    const bool one_kind = random.one_in(2);
    const auto kinds = static_cast<int>(testing::difficulty::count);
    int kind = random.between(0, kinds - 1);
    std::vector<T> rows(static_cast<std::size_t>(terms * width));
    std::vector<T> column(static_cast<std::size_t>(terms));
    T wanted[width];
    for (int i = 0; i < width; ++i) {
        if (!one_kind) kind = random.between(0, kinds - 1);
        testing::sum_cases<T>::fill(random, static_cast<testing::difficulty>(kind), column.data(), terms);
        testing::exact_oracle<T> oracle;
        exact_sum<T> sum;
        for (int k = 0; k < terms; ++k) {
            const T value = column[static_cast<std::size_t>(k)];
            oracle.add(value);
            sum.add(value);
            rows[static_cast<std::size_t>(k * width + i)] = value;
        }
        wanted[i] = oracle.round(divisor);
        const T got = sum.round(divisor);
        if (to_bits(got) != to_bits(wanted[i])) {
            ++counts.mismatches;
            report("exact_sum", rows, terms, i, divisor, got, wanted[i]);
        }
    }
    const auto check_rows = [&](const char* what) {
        T got[width];
        const sum_rows<accumulation::exact, T, width> body{
            {rows.data(), 1, width, 0}, static_cast<std::uint64_t>(terms), got, width, divisor};
        host::device::for_each(host::stream::at_once(), 1, body);
        for (int i = 0; i < width; ++i) {
            if (to_bits(got[i]) == to_bits(wanted[i])) continue;
            ++counts.mismatches;
            report(what, rows, terms, i, divisor, got[i], wanted[i]);
        }
    };
    check_rows("sum_rows");
    counts.sums += width;
    counts.averages += divisor != 1 ? width : 0;
    if (!random.one_in(4)) return;
    for (int k = terms - 1; k > 0; --k) {
        const auto other = static_cast<std::ptrdiff_t>(random.below(static_cast<std::uint64_t>(k) + 1));
        std::swap_ranges(rows.begin() + k * width, rows.begin() + (k + 1) * width, rows.begin() + other * width);
    }
    check_rows("sum_rows, permuted");
    counts.permuted += width;
}

template <floating_element T>
bool run(std::uint64_t sums, std::uint64_t seed, unsigned threads)
{
    std::atomic<std::uint64_t> next_batch{0};
    const std::uint64_t batches = (sums + batch - 1) / batch;
    std::vector<tally> parts(threads);
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < threads; ++t) {
        workers.emplace_back([&, t] {
            for (std::uint64_t b = next_batch++; b < batches; b = next_batch++) {
                const auto type = static_cast<std::uint64_t>(element_traits<T>::type);
                testing::random_bits random{detail::mix64(seed << 8 | type) ^ b << 32};
                const std::uint64_t end = parts[t].sums + std::min(batch, sums - b * batch);
                while (parts[t].sums < end) run_block<T>(random, parts[t]);
                if (batches >= 100 && b % (batches / 10) == 0) {
                    std::fprintf(stderr, "%s: %" PRIu64 " %%\n", element_traits<T>::name, b * 100 / batches);
                }
            }
        });
    }
    for (std::thread& worker : workers) worker.join();
    tally all;
    for (const tally& part : parts) {
        all.sums += part.sums;
        all.averages += part.averages;
        all.permuted += part.permuted;
        all.mismatches += part.mismatches;
    }
    std::printf("%s: %" PRIu64 " sums, %" PRIu64 " of them averages, %" PRIu64 " again in another order, %" PRIu64
                " mismatches\n",
        element_traits<T>::name, all.sums, all.averages, all.permuted, all.mismatches);
    std::fflush(stdout);
    return all.mismatches == 0;
}

} // namespace

int main(int argc, char** argv)
{
    const std::uint64_t sums = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200'000;
    const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const unsigned threads = argc > 3 ? static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10))
                                      : std::max(1u, std::thread::hardware_concurrency());
    const auto wants = [&](const char* type) { return argc <= 4 || std::strcmp(argv[4], type) == 0; };
    bool right = sums > 0 && threads > 0;
    if (wants("half")) right &= run<float16>(sums, seed, threads);
    if (wants("bfloat16")) right &= run<bfloat16>(sums, seed, threads);
    if (wants("float")) right &= run<float>(sums, seed, threads);
    if (wants("double")) right &= run<double>(sums, seed, threads);
    return right ? 0 : 1;
}
