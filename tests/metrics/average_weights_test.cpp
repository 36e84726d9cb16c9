// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/audit/detail/weight_check.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/metrics/average_weights.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/scan/sketch.hpp>

using namespace collprobe;

namespace {

class random_numbers {
public:
    explicit random_numbers(std::uint64_t seed) : state_(detail::mix64(seed + 1)) {}
    std::uint64_t bits() { return detail::mix64(state_ += 0x9e3779b97f4a7c15u); }
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    std::uint64_t below(std::uint64_t end) { return bits() % end; }
    /// Of variance 1, near enough to Gaussian.
    double bell()
    {
        const std::uint64_t four = bits();
        double sum = -131070;
        for (int k = 0; k < 4; ++k) sum += static_cast<double>(four >> (16 * k) & 0xffff);
        return sum * (1.7320508 / 65536);
    }

private:
    std::uint64_t state_;
};

/// A sum of ranks, and how it came about.
struct averaged {
    int ranks = 2;
    std::uint64_t count = 1000;
    double cosine = 0;
    std::vector<double> weights; ///< of each rank's elements, before they are added
    std::vector<double> tokens;
    double behind = 1; ///< the factor of the sum
    averaging how = averaging::mean;
    std::vector<int> named; ///< ranks that are lost or doubled
};

constexpr averaging forms[] = {averaging::mean, averaging::sum, averaging::divided_twice, averaging::token_weighted,
    averaging::rank_lost, averaging::rank_doubled, averaging::other};

averaged random_case(std::uint64_t seed)
{
    random_numbers random(seed);
    averaged of;
    of.how = forms[seed % 7];
    constexpr int sizes[] = {2, 3, 4, 5, 7, 8, 8, 12, 16, 24, 32, 48, 64};
    of.ranks = sizes[random.below(std::size(sizes))];
    of.count = 2 * random.below(1500) + 16 * static_cast<std::uint64_t>(of.ranks) + 1001;
    constexpr double cosines[] = {0, 0, 0.05, 0.3, 0.5, 0.8, 0.9, 0.97};
    of.cosine = cosines[random.below(std::size(cosines))];
    const double n = of.ranks;
    const auto ranks = static_cast<std::size_t>(of.ranks);
    const bool divides_behind = random.below(2) == 0;
    const auto odd = static_cast<std::size_t>(random.below(ranks));
    of.weights.assign(ranks, 1);
    of.tokens.assign(ranks, 1024);
    double total = n;
    switch (of.how) {
    case averaging::sum: return of;
    case averaging::divided_twice: total = n * n; break;
    case averaging::token_weighted:
        total = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
            of.tokens[r] = static_cast<double>(1 + random.below(2048));
            total += of.weights[r] = of.tokens[r];
        }
        break;
    case averaging::rank_lost:
    case averaging::rank_doubled: {
        const double times = of.how == averaging::rank_lost ? 0 : 2;
        of.weights[odd] = times;
        of.named = {static_cast<int>(odd)};
        const std::uint64_t over = random.below(3);
        total = over == 0 ? 1 : over == 1 ? n : n - 1 + times;
        break;
    }
    case averaging::other:
        total = 0;
        for (std::size_t r = 0; r < ranks; ++r) total += of.weights[r] = 0.2 + 3 * random.uniform();
        of.weights[odd] = 0.55 * total / n; // of no form, whatever the others are
        of.weights[(odd + 1) % ranks] = 1.45 * total / n;
        break;
    default: break;
    }
    if (divides_behind) of.behind = 1 / total;
    else for (double& each : of.weights) each /= total;
    return of;
}

/// The sums of products as a ring makes them: each of n pieces begins with another rank, and each addition rounds to T.
template <class T>
std::vector<T> ring_sum(const std::vector<std::vector<T>>& inputs, const averaged& of)
{
    std::vector<T> result(of.count);
    const auto n = static_cast<std::uint64_t>(of.ranks);
    for (std::uint64_t i = 0; i < of.count; ++i) {
        const std::uint64_t first = i * n / of.count;
        float sum = 0;
        for (std::uint64_t k = 0; k < n; ++k) {
            const std::uint64_t r = (first + k) % n;
            const T term = static_cast<T>(static_cast<float>(of.weights[r]) * static_cast<float>(inputs[r][i]));
            sum = k == 0 ? static_cast<float>(term) : static_cast<float>(static_cast<T>(sum + static_cast<float>(term)));
        }
        result[i] = static_cast<T>(sum * static_cast<float>(of.behind));
    }
    return result;
}

template <class T>
std::vector<std::vector<T>> random_inputs(const averaged& of, std::uint64_t seed)
{
    random_numbers random(seed);
    std::vector<std::vector<T>> inputs(static_cast<std::size_t>(of.ranks), std::vector<T>(of.count));
    const double own = std::sqrt(1 - of.cosine);
    const double shared = std::sqrt(of.cosine);
    for (std::uint64_t i = 0; i < of.count; ++i) {
        const double common = shared * random.bell();
        for (auto& each : inputs) each[i] = static_cast<T>(static_cast<float>(common + own * random.bell()));
    }
    return inputs;
}

/// What `weight_probe` computes of such buffers.
template <class T>
call_weights weights_of(const std::vector<std::vector<T>>& inputs, const std::vector<T>& result,
    const std::vector<double>& tokens = {}, double miss = 1e-9, std::uint64_t most_bins = 0)
{
    const int ranks = static_cast<int>(inputs.size());
    const std::uint64_t bins = detail::weight_bins(most_bins, ranks, result.size());
    const sketch_options options{.bins = static_cast<std::uint32_t>(bins)};
    std::vector<double> gathered(2 * bins * inputs.size());
    for (std::size_t r = 0; r < inputs.size(); ++r) {
        sketch<T>(view<const T>(inputs[r]), view<double>(gathered.data() + 2 * bins * r, 2 * bins), options);
    }
    std::vector<double> of_result(2 * bins);
    sketch<T>(view<const T>(result), view<double>(of_result), options);
    auto rounding = detail::conservation_bound::of<T>(
        reduction::average, rounding_order::linear, ranks, (result.size() + bins - 1) / bins);
    rounding.scale = 1;
    std::vector<double> scratch(detail::weight_system::numbers(bins, ranks));
    detail::weight_system system{{gathered.data(), 2 * bins}, of_result.data(), bins, ranks, rounding, nullptr,
        nullptr, nullptr, nullptr, nullptr};
    system.place(scratch.data());
    detail::weight_entry entry;
    for (std::uint64_t b = 0; b < bins; ++b) detail::weigh_rows{system}(b);
    const auto n = static_cast<std::uint64_t>(ranks);
    const detail::weight_products products{system};
    for (std::uint64_t p = 0; p < (n + 1) * (n + 2) / 2; ++p) products.store(p, products.part(p, 0, 1));
    detail::solve_weight_system{system, &entry}(0);
    for (std::uint64_t b = 0; b < bins; ++b) detail::weight_residuals{system}(b);
    call_weights out;
    const detail::weight_entry solved = entry;
    for (int r = 0; r < ranks; ++r) {
        entry = solved;
        detail::write_weight{system, &entry, r, 1}(0);
        out.why_not = static_cast<weights_refusal>(entry.state - 1);
        if (out.why_not != weights_refusal::none) {
            out.weights.clear();
            return out;
        }
        out.weights.push_back(entry.weight);
        out.bounds.push_back(detail::student_upper_quantile(miss, entry.degrees) * entry.deviation);
        out.residual = entry.residual;
        out.residual_limit = entry.residual_limit;
    }
    name_weights(out, 2 * detail::power_of_two(-element_traits<T>::digits), tokens);
    return out;
}

/// What became of some cases.
struct outcomes {
    int cases = 0;
    int wrong = 0;
    int refused = 0;
    int easy = 0; ///< bounds that are small beside a weight
    int easy_named = 0;
    int outside = 0; ///< weights beyond their bounds
    double worst = 0; ///< largest error over its bound
    double largest_error = 0; ///< in units of the mean weight
};

template <class T>
void try_case(std::uint64_t seed, outcomes& into)
{
    const averaged of = random_case(seed);
    const auto inputs = random_inputs<T>(of, seed);
    const call_weights found = weights_of(inputs, ring_sum(inputs, of), of.tokens);
    CAPTURE(seed);
    CAPTURE(of.ranks);
    CAPTURE(of.cosine);
    ++into.cases;
    const bool is_easy = sizeof(T) == 4 || (of.ranks <= 8 && of.cosine <= 0.5);
    into.easy += is_easy ? 1 : 0;
    const auto n = static_cast<double>(of.ranks);
    for (std::size_t r = 0; r < found.weights.size(); ++r) {
        const double truth = of.weights[r] * of.behind;
        // The factors in this reference are floats.
        const double error = std::abs(found.weights[r] - truth) - 2e-7 * truth;
        into.worst = std::max(into.worst, error / found.bounds[r]);
        into.outside += error > found.bounds[r] ? 1 : 0;
        double sum = 0;
        for (const double each : of.weights) sum += each * of.behind;
        into.largest_error = std::max(into.largest_error, error / sum * n);
    }
    if (found.how == averaging::unknown) {
        ++into.refused;
        return;
    }
    into.easy_named += is_easy ? 1 : 0;
    const bool is_right = found.how == of.how && found.ranks == of.named;
    into.wrong += is_right ? 0 : 1;
    if (!is_right) MESSAGE(std::string(name(of.how)), " was named ", std::string(name(found.how)));
}

#if defined(COLLPROBE_TEST_SANITIZED) || defined(COLLPROBE_TEST_BRIEF)
constexpr std::uint64_t random_cases = 70;
#else
constexpr std::uint64_t random_cases = 500;
#endif

template <class T>
void try_all()
{
    outcomes all;
    for (std::uint64_t seed = 0; seed < random_cases; ++seed) try_case<T>(seed, all);
    std::printf("%d cases of %s: %d wrong, %d refused, %d of %d easy ones named, %d weights outside, worst %.3g of "
                "its bound, largest error %.3g\n", all.cases, element_traits<T>::name, all.wrong, all.refused,
        all.easy_named, all.easy, all.outside, all.worst, all.largest_error);
    CHECK(all.wrong == 0);
    CHECK(all.outside == 0);
    CHECK(all.worst > 0.1); // bounds that are not out of all proportion
    CHECK(all.easy_named >= 0.95 * all.easy);
    CHECK(all.refused <= 0.45 * all.cases);
}

} // namespace

TEST_CASE("no form is named wrongly, and each weight is within its bound, for float")
{
    try_all<float>();
}

TEST_CASE("no form is named wrongly, and each weight is within its bound, for bfloat16 that rounds at each addition")
{
    try_all<bfloat16>();
}
