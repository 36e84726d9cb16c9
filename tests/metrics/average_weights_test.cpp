// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/audit/detail/weight_check.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/standard_normal.hpp>
#include <collprobe/metrics/average_weights.hpp>
#include <collprobe/metrics/outlier.hpp>
#include <collprobe/scan/sketch.hpp>

namespace collprobe::testing::average_weights_test {
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
    std::vector<double> weights = {}; ///< of each rank's elements, before they are added
    std::vector<double> tokens = {};
    double behind = 1; ///< the factor of the sum
    bool has_pieces = true; ///< the sum is that of a ring: each of n pieces begins with another rank
    averaging how = averaging::mean;
    std::vector<int> named = {}; ///< ranks that are lost or doubled
};

constexpr averaging forms[] = {averaging::mean, averaging::sum, averaging::divided_twice, averaging::token_weighted,
    averaging::rank_lost, averaging::rank_doubled, averaging::other};

averaged random_case(std::uint64_t seed)
{
    random_numbers random(seed);
    averaged of;
    of.how = forms[seed % 7];
    constexpr int sizes[] = {2, 3, 4, 5, 6, 7, 8, 8, 12, 16, 16, 24, 32, 64};
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
        of.weights[odd] = 0.4 * total / n; // of no form, whatever the others are
        of.weights[(odd + 1) % ranks] = 1.6 * total / n;
        break;
    default: break;
    }
    if (divides_behind) of.behind = 1 / total;
    else for (double& each : of.weights) each /= total;
    return of;
}

/// The sums of products as a ring makes them: each addition rounds to T.
template <class T>
std::vector<T> ring_sum(const std::vector<std::vector<T>>& inputs, const averaged& of)
{
    std::vector<T> result(of.count);
    const auto n = static_cast<std::uint64_t>(of.ranks);
    for (std::uint64_t i = 0; i < of.count; ++i) {
        const std::uint64_t first = of.has_pieces ? i * n / of.count : 0;
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
    // Every third case is like a network: ranks of unlike norms, elements of unlike size, and many that are zero.
    const bool is_uneven = seed % 3 == 0;
    std::vector<double> sizes(inputs.size(), 1);
    for (double& each : sizes) each = is_uneven ? std::pow(30, random.uniform() - 0.5) : 1;
    for (std::uint64_t i = 0; i < of.count; ++i) {
        const double root = is_uneven ? random.uniform() : 1;
        const double size = root * root;
        const double common = shared * random.bell();
        for (std::size_t r = 0; r < inputs.size(); ++r) {
            const bool is_zero = is_uneven && detail::mix64(seed + 1000 * r + (i >> 5)) % 3 == 0;
            const double value = is_zero ? 0 : sizes[r] * size * (common + own * random.bell());
            inputs[r][i] = static_cast<T>(static_cast<float>(value));
        }
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
        reduction::average, rounding_order::linear, ranks, (result.size() + bins - 1) / bins,
        detail::terms_of_linear(ranks));
    rounding.scale = 1;
    std::vector<double> scratch(detail::weight_system::numbers(bins, ranks));
    detail::weight_system system{{gathered.data(), 2 * bins}, of_result.data(), bins, ranks, rounding, 0,
        scratch.data()};
    detail::weight_entry entry;
    const auto n = static_cast<std::uint64_t>(ranks);
    const auto solve = [&](bool first) {
        const detail::weight_products products{system};
        for (std::uint64_t p = 0; p < (n + 1) * (n + 2) / 2; ++p) products.store(p, products.part(p, 0, 1));
        detail::solve_weight_system{system, &entry}(0);
        for (std::uint64_t b = 0; b < bins && first; ++b) detail::weight_residuals{system, true}(b);
    };
    for (std::uint64_t b = 0; b < bins; ++b) detail::weigh_rows{system}(b);
    solve(true);
    solve(false);
    call_weights out;
    const detail::weight_entry solved = entry;
    bool have_few = false;
    for (const std::vector<T>& each : inputs) {
        const detail::sample_magnitudes<T> sample{each, &entry};
        sample.store(0, sample.part(0, 0, 1));
        const bool is_zero = std::all_of(each.begin(), each.end(), [](T x) { return static_cast<float>(x) == 0; });
        have_few = have_few || (!is_zero && detail::has_few_magnitudes(entry));
    }
    for (int r = 0; r < ranks; ++r) { // each rank solves all, and writes its own
        system.rank = r;
        entry = solved;
        detail::weight_influence(system.products(), ranks, r, system.weights(), system.scales(), system.influence());
        for (std::uint64_t b = 0; b < bins; ++b) {
            if (r == 0) detail::weight_residuals{system, false}(b);
            else detail::weight_residuals{system, false}.note_influence(b);
        }
        detail::write_weight{system, &entry, 1}(0);
        out.why_not = static_cast<weights_refusal>(entry.state - 1);
        if (out.why_not != weights_refusal::none) {
            out.weights.clear();
            return out;
        }
        out.weights.push_back(entry.weight);
        out.bounds.push_back(detail::student_upper_quantile(miss, entry.degrees) * entry.deviation
            + (have_few ? entry.systematic : 0) + 2 * detail::power_of_two(-element_traits<T>::digits) * std::abs(entry.weight));
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
    for (std::size_t r = 0; r < found.weights.size(); ++r) {
        const double truth = of.weights[r] * of.behind;
        // The factors in this reference are floats.
        const double error = std::abs(found.weights[r] - truth) - 2e-7 * truth;
        into.worst = std::max(into.worst, error / found.bounds[r]);
        into.outside += error > found.bounds[r] ? 1 : 0;
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
    CHECK(all.wrong == 0);
    CHECK(all.outside == 0);
    CHECK(all.worst > 0.1); // bounds that are not out of all proportion
    CHECK(all.easy_named >= 0.95 * all.easy);
    CHECK(all.refused <= (sizeof(T) == 4 ? 0 : 0.2) * all.cases);
}

call_weights named(const std::vector<double>& weights, double bound, const std::vector<double>& tokens = {},
    double scale = 1)
{
    call_weights of;
    of.weights = weights;
    of.bounds.assign(weights.size(), bound);
    of.scale = scale;
    name_weights(of, 0, tokens);
    return of;
}

template <class T>
weights_refusal refusal_of(const std::vector<std::vector<T>>& inputs, const std::vector<T>& result)
{
    const call_weights found = weights_of(inputs, result);
    CHECK(found.how == averaging::unknown);
    return found.why_not;
}

} // namespace

TEST_CASE_TEMPLATE("no form is named wrongly, and each weight is within its bound, of sums that round at each addition", T,
    float, float16, bfloat16)
{
    try_all<T>();
}

TEST_CASE_TEMPLATE("elements of 8 bits have weights, and no form", T, float8_e4m3, float8_e5m2)
{
    const averaged of{.ranks = 2, .count = 100'000, .weights = {0.5, 0.5}};
    const auto inputs = random_inputs<T>(of, 7);
    const call_weights found = weights_of(inputs, ring_sum(inputs, of));
    CHECK(found.weights.size() == 2);
    CHECK(found.why_not == weights_refusal::imprecise);
}

TEST_CASE("bounds say how precise weights are, and more bins make them sharper")
{
    averaged of{.ranks = 8, .count = 200'000 / (random_cases < 500 ? 20 : 1)};
    of.weights.assign(8, 1.0 / 8);
    const auto widest = [&](double cosine, std::uint64_t bins, auto zero) {
        using T = decltype(zero);
        of.cosine = cosine;
        const auto inputs = random_inputs<T>(of, 7);
        const call_weights found = weights_of(inputs, ring_sum(inputs, of), {}, 1e-9, bins);
        CHECK(found.how == averaging::mean);
        CHECK(found.residual < found.residual_limit);
        return 8 * *std::max_element(found.bounds.begin(), found.bounds.end());
    };
    CHECK(widest(0.05, 256, 0.0f) < 1e-6);
    const double apart = widest(0.05, 256, bfloat16());
    const double alike = widest(0.9, 256, bfloat16());
    CHECK(apart < 0.03);
    CHECK(alike > 2 * apart);
    CHECK(alike < 0.1);
    CHECK(widest(0.9, 4096, bfloat16()) < 0.5 * alike);
}

TEST_CASE("errors where one rank alone has its elements widen the bound of this rank, or nothing is said")
{
    averaged of{.ranks = 2, .count = 256 * 16};
    of.weights = {0.5, 0.5};
    double wider = 0;
    for (const std::uint64_t own_bins : {8u, 128u}) {
        for (std::uint64_t seed = 1; seed <= 40; ++seed) {
            auto inputs = random_inputs<float>(of, 3 * seed + 1);
            std::vector<float> result(of.count);
            random_numbers random(seed);
            for (std::uint64_t i = 0; i < of.count; ++i) {
                const bool is_own = i % 256 < own_bins;
                inputs[is_own ? 0 : 1][i] = 0;
                result[i] = 0.5f * (inputs[0][i] + inputs[1][i]);
                if (is_own) result[i] += 0.1f * static_cast<float>(random.bell());
            }
            const call_weights found = weights_of(inputs, result);
            if (own_bins == 8) {
                CHECK(found.why_not == weights_refusal::unexplained);
                CHECK(found.weights.empty()); // eight bins do not tell how large their errors are
                continue;
            }
            REQUIRE(found.weights.size() == 2);
            CHECK(std::abs(found.weights[1] - 0.5) < found.bounds[1]);
            wider += found.bounds[1] / found.bounds[0] / 40;
        }
    }
    CHECK(wider > 1.2);
}

TEST_CASE("buffers of which nothing can be told are refused with the reason")
{
    averaged of{.ranks = 4, .count = 5001};
    of.weights.assign(4, 0.25);
    const auto inputs = random_inputs<float>(of, 5);
    const std::vector<float> result = ring_sum(inputs, of);
    CHECK(refusal_of(std::vector(4, std::vector<float>(of.count, -0.0f)), result) == weights_refusal::few_elements);
    CHECK(refusal_of(inputs, std::vector<float>(of.count, 0.0f)) == weights_refusal::zero_result);

    auto same = inputs;
    same[3] = same[1];
    CHECK(refusal_of(same, result) == weights_refusal::collinear);
    for (std::uint64_t i = 0; i < of.count; ++i) same[3][i] = 2 * same[0][i] - same[1][i];
    CHECK(refusal_of(same, result) == weights_refusal::collinear);

    for (const std::uint32_t bits : {0x7fc00000u, 0x7f800000u, 0xff800000u}) {
        auto bad = inputs;
        bad[1][4000] = detail::bit_cast<float>(bits);
        CHECK(refusal_of(bad, result) == weights_refusal::not_finite);
        std::vector<float> bad_result = result;
        bad_result[17] = detail::bit_cast<float>(bits);
        CHECK(refusal_of(inputs, bad_result) == weights_refusal::not_finite);
    }
    for (const std::uint64_t count : {0u, 1u, 3u, 33u}) {
        averaged small{.ranks = 4, .count = count};
        small.weights.assign(4, 0.25);
        const auto few = random_inputs<float>(small, 6);
        CHECK(refusal_of(few, ring_sum(few, small)) == weights_refusal::few_elements);
    }
    // Sparse: too few elements that are not zero.
    auto sparse = inputs;
    for (auto& each : sparse) {
        for (std::uint64_t i = 30; i < of.count; ++i) each[i] = 0;
    }
    CHECK(refusal_of(sparse, ring_sum(sparse, of)) == weights_refusal::few_elements);
    // Damage that hides all else.
    std::vector<float> damaged = result;
    damaged[99] = 1e30f;
    CHECK(refusal_of(inputs, damaged) == weights_refusal::unexplained);
}

TEST_CASE("squares beyond a double are refused, the largest and smallest floats are not")
{
    averaged of{.ranks = 4, .count = 5001};
    of.weights.assign(4, 0.25);
    auto inputs = random_inputs<float>(of, 8);
    for (const float size : {0x1p120f, 0x1p-100f}) {
        auto scaled = inputs;
        for (auto& each : scaled) {
            for (float& x : each) x *= size;
        }
        CHECK(weights_of(scaled, ring_sum(scaled, of)).how == averaging::mean);
    }
    averaged wide = of;
    auto large = random_inputs<double>(wide, 9);
    for (auto& each : large) {
        for (double& x : each) x *= 0x1p600;
    }
    CHECK(refusal_of(large, std::vector<double>(large[0])) == weights_refusal::not_finite);
}

TEST_CASE_TEMPLATE("weights of elements with few magnitudes are within their bounds, and no healthy sum is suspect", T,
    float, bfloat16)
{
    // Rounding is the same in all elements of the same terms: its errors do not average out.
    outcomes all;
    const std::uint64_t cases = random_cases / 5;
    for (std::uint64_t seed = 0; seed < cases; ++seed) {
        random_numbers random(seed);
        constexpr int sizes[] = {2, 3, 5, 8, 16};
        averaged of{.ranks = sizes[random.below(5)], .count = 4096};
        of.has_pieces = false;
        of.weights.assign(static_cast<std::size_t>(of.ranks), 1);
        of.behind = 1.0 / of.ranks;
        const std::uint64_t levels = 1 + random.below(2);
        const bool has_signs = levels == 1 || random.below(2) == 0;
        const double unit = 1 + random.uniform();
        std::vector<std::vector<T>> inputs(of.weights.size(), std::vector<T>(of.count));
        for (auto& input : inputs) {
            for (T& each : input) {
                const double size = unit * static_cast<double>(1 + random.below(levels));
                each = static_cast<T>(static_cast<float>(has_signs && random.below(2) == 0 ? -size : size));
            }
        }
        const call_weights found = weights_of(inputs, ring_sum(inputs, of));
        CAPTURE(seed);
        REQUIRE(found.weights.size() == of.weights.size());
        for (std::size_t r = 0; r < found.weights.size(); ++r) {
            const double error = std::abs(found.weights[r] - of.behind);
            all.worst = std::max(all.worst, error / found.bounds[r]);
            all.outside += error > found.bounds[r] ? 1 : 0;
        }
        all.wrong += found.how != averaging::mean && found.how != averaging::unknown ? 1 : 0;
        all.refused += found.how == averaging::unknown ? 1 : 0;
        CHECK(found.why_not != weights_refusal::unexplained);
    }
    CHECK(all.wrong == 0);
    CHECK(all.outside == 0);
    CHECK(all.refused <= (sizeof(T) == 4 ? 0 : 0.5) * static_cast<double>(cases));
}

TEST_CASE("forms are named from weights, and only if one alone fits")
{
    CHECK(named({1}, 0.01).how == averaging::mean);
    CHECK(named({0.5}, 0.01).how == averaging::other);
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.01).how == averaging::mean);
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.01).common == 0.25);
    CHECK(named({1, 1}, 0.01).how == averaging::sum);
    CHECK(named({0.25, 0.25}, 0.01).how == averaging::divided_twice);
    CHECK(named({256, 256}, 1, {}, 512).how == averaging::mean);
    CHECK(named({-0.5, -0.5}, 0.01).how == averaging::other);
    CHECK(named({-0.5, -0.5}, 0.01, {}, -1).how == averaging::mean);
    CHECK(named({0.3, 0.3, 0.3}, 0.001).how == averaging::other);
    CHECK(named({0.3, 0.3, 0.3}, 0.001).common == doctest::Approx(0.3));
    CHECK(is_nan(named({0.3, 0.4, 0.3}, 0.001).common));

    for (const double others : {1.0, 0.25, 1.0 / 3}) {
        const call_weights lost = named({others, others, 0.001, others}, 0.01);
        CHECK(lost.how == averaging::rank_lost);
        CHECK(lost.ranks == std::vector<int>{2});
    }
    CHECK(named({0, 0, 0.25, 0.25}, 0.01).ranks == std::vector<int>{0, 1});
    CHECK(named({0, 0, 0, 0.25}, 0.001).how == averaging::other);
    for (const double others : {1.0, 0.25, 0.2}) {
        const call_weights doubled = named({others, 2 * others, others, others}, 0.01);
        CHECK(doubled.how == averaging::rank_doubled);
        CHECK(doubled.ranks == std::vector<int>{1});
        CHECK(doubled.common == doctest::Approx(others));
    }
    CHECK(named({0.25, 0.25, 0.25, 0.35}, 0.01).how == averaging::other);
    CHECK(named({0.25, 0.25, 0.25, 0.265}, 0.01).how == averaging::other);

    const std::vector<double> tokens{100, 200, 100, 400};
    CHECK(named({0.125, 0.25, 0.125, 0.5}, 0.001, tokens).how == averaging::token_weighted);
    CHECK(named({0.125, 0.25, 0.125, 0.5}, 0.001).how == averaging::other);
    CHECK(named({0.125 / 4, 0.25 / 4, 0.125 / 4, 0.5 / 4}, 0.001, tokens).how == averaging::divided_twice);
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.001, tokens).how == averaging::mean);
    CHECK(named({0.125, 0.25, 0.125, 0}, 0.001, tokens).ranks == std::vector<int>{3});
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.001, {7, 7, 7, 7}).how == averaging::mean);
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.001, {0, 0, 0, 0}).how == averaging::mean);
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.001, {1, 2, detail::not_a_number(), 4}).how == averaging::mean);

    // A rank without tokens is neither lost nor doubled.
    const std::vector<double> with_none{100, 200, 0, 400};
    CHECK(named({1.0 / 7, 2.0 / 7, 0, 4.0 / 7}, 0.001, with_none).how == averaging::token_weighted);
    CHECK(named({1.0 / 7, 0, 0, 4.0 / 7}, 0.001, with_none).ranks == std::vector<int>{1});
    CHECK(named({2.0 / 7, 2.0 / 7, 0, 4.0 / 7}, 0.001, with_none).ranks == std::vector<int>{0});
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.001, with_none).how == averaging::mean);
    CHECK(named({1.0 / 3, 1.0 / 3, 0, 1.0 / 3}, 0.001, {5, 5, 0, 5}).how == averaging::token_weighted);
    CHECK(named({0.25, 0.25, 0, 0.25}, 0.001, {5, 5, 0, 5}).how == averaging::other);
    CHECK(named({0, 1}, 0.001, {0, 5}).how == averaging::token_weighted);

    // A rank that sent zeros has no weight.
    const double none = detail::not_a_number(), third = 1.0 / 3;
    CHECK(named({0.25, 0.25, 0.25, none}, 0.001).how == averaging::mean);
    CHECK(named({third, third, third, none}, 0.001).how == averaging::mean);
    CHECK(named({none, third, third, third}, 0.001, {9, 9, 9, 9}).how == averaging::mean);
    CHECK(named({third, third, third, none}, 0.001, {100, 100, 100, 0}).how == averaging::token_weighted);
    CHECK(named({0.25, 0.25, 0.25, none}, 0.001, {100, 100, 100, 0}).how == averaging::mean);
    CHECK(named({0.125, 0.25, 0.125, none}, 0.001, tokens).how == averaging::token_weighted);
    CHECK(named({0.2, 0.6, 0.2, none}, 0.001, {100, 300, 100, 400}).how == averaging::token_weighted);
    CHECK(named({0.25, 0.5, 0.25, none}, 0.001, tokens).why_not == weights_refusal::ambiguous); // or rank 1 counted twice
    CHECK(named({1, 1, none, 1}, 0.001).how == averaging::sum);
    CHECK(named({0.0625, none, 0.0625, 0.0625}, 0.001).how == averaging::divided_twice);
    for (const double others : {0.25, third}) CHECK(named({others, 0, others, none}, 0.001).ranks == std::vector<int>{1});
    CHECK(named({0.25, 0.5, 0.25, none}, 0.001).how == averaging::rank_doubled);
    CHECK(named({0.4, 0.3, 0.3, none}, 0.001).how == averaging::other);
    CHECK(named({none, 0.5, 0.5, none}, 0.001).how == averaging::mean);
    for (const std::vector<double>& told : {std::vector<double>(), {0, 0, 7, 0}}) // a sum, or a mean of one
        CHECK(named({none, none, 1, none}, 0.001, told).why_not == weights_refusal::ambiguous);

    // Tokens 1 to 2, or a rank counted twice? A mean, or tokens that hardly differ?
    CHECK(named({1.0 / 3, 2.0 / 3}, 0.001, {1, 2}).why_not == weights_refusal::ambiguous);
    CHECK(named({0.5, 0.5}, 0.01, {100, 101}).why_not == weights_refusal::ambiguous);
    CHECK(named({0.25, 0.25, 0.25, 0.25}, 0.04).why_not == weights_refusal::imprecise);
    CHECK(named({0, 0}, 0).why_not == weights_refusal::imprecise);
    CHECK(named({detail::infinity(), 1}, 0.1).why_not == weights_refusal::imprecise);
}

} // namespace collprobe::testing::average_weights_test
