// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/comm/local/detail/reduce_in_order.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/sum/exact_sum.hpp>

#include "support/element_types.hpp"

// Reductions without communicators: what ranks send, what they get, and the judgement of it.
namespace collprobe::testing::conservation_test {
namespace {

enum class gradients { gaussian, layered, aligned, one_large, cancelling, sparse, tiny, identical, halves, constant, count };

/// How a reduction rounds: the orders of `local`, and exact sums rounded once.
enum class simulated_order { ring, tree, linear, single, count };

constexpr rounding_order rounding_of(simulated_order order)
{
    return order == simulated_order::tree ? rounding_order::tree
        : order == simulated_order::single ? rounding_order::single
                                           : rounding_order::linear;
}

/// Random numbers to cut gradients from: making new ones for each reduction would take longer than all the rest.
template <floating_element T>
class gradient_pool {
public:
    explicit gradient_pool(std::uint64_t seed) : random_(seed), normal_(size)
    {
        std::normal_distribution<float> normal;
        for (float& x : normal_) x = normal(random_);
        heavy_.resize(size);
        // Layers that differ by orders of magnitude, and elements with a tail like that of Student's t with 3 degrees
        // of freedom.
        float layer = 1;
        for (std::size_t i = 0; i < size; ++i) {
            if (i % 777 == 0) layer = std::exp(2.3f * normal(random_));
            const float a = normal(random_), b = normal(random_), c = normal(random_);
            heavy_[i] = layer * normal_[i] / std::sqrt((a * a + b * b + c * c) / 3 + 1e-3f);
        }
    }

    std::mt19937_64& random() { return random_; }

    /// One buffer for each rank.
    std::vector<std::vector<T>> make(gradients kind, int ranks, std::uint64_t count)
    {
        std::vector<std::vector<T>> all(static_cast<std::size_t>(ranks), std::vector<T>(count));
        const auto place = [&] { return static_cast<std::size_t>(random_() % (size - count - 1)); };
        const auto large = static_cast<int>(random_() % static_cast<unsigned>(ranks));
        const float constant = std::exp(static_cast<float>(random_() % 1000) * 1e-3f);
        const std::size_t common = place();
        // Half has few exponents.
        const float unit = sizeof(T) == 2 ? 0.05f : 1e-3f;
        for (int rank = 0; rank < ranks; ++rank) {
            std::vector<T>& mine = all[static_cast<std::size_t>(rank)];
            const float* const own = normal_.data() + place();
            const float* const tails = heavy_.data() + place();
            const auto fill = [&](auto value) {
                for (std::size_t i = 0; i < count; ++i) {
                    // With all the digits of a double.
                    if constexpr (sizeof(T) == 8) mine[i] = value(i) * (1 + 1e-7 * static_cast<double>(own[i ^ 1]));
                    else mine[i] = T(value(i));
                }
            };
            switch (kind) {
            case gradients::gaussian: fill([&](std::size_t i) { return unit * own[i]; }); break;
            case gradients::layered: fill([&](std::size_t i) { return clipped(unit * tails[i]); }); break;
            case gradients::aligned: fill([&](std::size_t i) { return unit * (normal_[common + i] + 0.1f * own[i]); }); break;
            case gradients::one_large: fill([&](std::size_t i) { return unit * own[i] * (rank == large ? 100.f : 1.f); }); break;
            case gradients::cancelling:
                fill([&](std::size_t i) { return unit * (normal_[common + i] * (rank % 2 == 0 ? 1.f : -1.f) + 0.01f * own[i]); });
                break;
            case gradients::sparse: fill([&](std::size_t i) { return i % 64 == 7 ? unit * own[i] : 0.f; }); break;
            case gradients::tiny: {
                const double least = std::ldexp(1.0, element_traits<T>::min_exponent - element_traits<T>::digits + 3);
                for (std::size_t i = 0; i < count; ++i) mine[i] = T(static_cast<double>(own[i]) * least);
                break;
            }
            // The same on all ranks, to the last digit; and with the opposite sign on the second half of them.
            case gradients::identical:
            case gradients::halves: {
                const bool negates = kind == gradients::halves && rank >= ranks / 2;
                for (std::size_t i = 0; i < count; ++i) {
                    const std::size_t at = common + i;
                    const double x = static_cast<double>(unit) * normal_[at] * (1 + 1e-7 * normal_[at ^ 1]);
                    mine[i] = T(negates ? -x : x);
                }
                break;
            }
            case gradients::constant:
            case gradients::count: fill([&](std::size_t) { return unit * constant; }); break;
            }
        }
        return all;
    }

private:
    static constexpr std::size_t size = 1 << 20;
    static float clipped(float x) { return sizeof(T) == 2 && std::fabs(x) > 1000 ? 1000.f : x; }

    std::mt19937_64 random_;
    std::vector<float> normal_;
    std::vector<float> heavy_;
};

/// Exact sums, rounded once. Out of the scope that sets the mode of subnormal numbers.
template <floating_element T>
[[gnu::noinline]] void reduce_exactly(const std::vector<std::vector<T>>& inputs, std::uint32_t divisor, std::vector<T>& result)
{
    for (std::size_t i = 0; i < result.size(); ++i) {
        if constexpr (sizeof(T) == 8) {
            exact_sum<T> sum;
            for (const auto& input : inputs) sum.add(input[i]);
            result[i] = sum.round(divisor);
        } else {
            // As good as exact for few terms, and many times faster.
            double sum = 0;
            for (const auto& input : inputs) sum += static_cast<double>(input[i]);
            result[i] = T(sum / divisor);
        }
    }
}

template <element T>
std::vector<T> reduce_simulated(const std::vector<std::vector<T>>& inputs, simulated_order order, reduction operation)
{
    const auto ranks = static_cast<int>(inputs.size());
    const std::uint64_t count = inputs[0].size();
    const detail::gradual_underflow as_ieee_has_it; // under -ffast-math the program flushes subnormal numbers to zero
    std::vector<T> result(count);
    if (order == simulated_order::single) {
        if constexpr (floating_element<T>) {
            reduce_exactly(inputs, operation == reduction::average ? static_cast<std::uint32_t>(ranks) : 1, result);
            return result;
        }
    }
    const auto how = order == simulated_order::ring ? local::reduction_order::ring
        : order == simulated_order::tree            ? local::reduction_order::tree
                                                    : local::reduction_order::linear;
    local::detail::reduce_in_order<T>(how, operation, ranks, count, 0, count,
        [&](int rank) { return inputs[static_cast<std::size_t>(rank)].data(); },
        [&](const T* values, std::uint64_t first, int some) {
            for (int i = 0; i < some; ++i) result[first + static_cast<std::uint64_t>(i)] = values[i];
        });
    return result;
}

/// The sketches of a reduction, ready to be judged.
template <floating_element T>
struct judged_reduction {
    std::vector<double> input;
    std::vector<double> result;
    detail::conservation_judge judge;

    judged_reduction(const std::vector<std::vector<T>>& inputs, const std::vector<T>& output, reduction operation,
        rounding_order order, const sketch_options& options = {})
        : input(sketch_numbers(options)), result(input.size())
    {
        std::vector<double> own(input.size());
        for (const auto& each : inputs) {
            sketch<T>(each, view<double>(own), options);
            for (std::size_t i = 0; i < own.size(); ++i) input[i] += own[i];
        }
        sketch<T>(output, view<double>(result), options);
        const std::uint64_t rows = detail::sketch_source<T>{output, 0, options.bins, options.seed}.rows();
        judge = {input.data(), result.data(), options.bins,
            detail::conservation_bound::of<T>(operation, order, static_cast<int>(inputs.size()), rows,
                detail::terms_of(order, static_cast<int>(inputs.size())))};
    }

    detail::conservation_result verdict() const { return judge.finish(detail::reduce_blocks(judge, judge.bins)); }
};

/// Normal values of rank `rank`.
template <element T>
std::vector<T> values_of(int rank, std::size_t count, double scale = 0.05)
{
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 11);
    std::normal_distribution<double> normal;
    std::vector<T> values(count);
    for (T& x : values) x = T(scale * normal(random));
    return values;
}

} // namespace

TEST_CASE_TEMPLATE("inputs that are not finite, and sums that overflow, are not judged",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const auto verdict_of = [](auto change) {
        std::vector<std::vector<T>> inputs;
        for (int rank = 0; rank < 3; ++rank) inputs.push_back(values_of<T>(rank, 500));
        change(inputs);
        const auto result = reduce_simulated(inputs, simulated_order::ring, reduction::sum);
        return judged_reduction<T>(inputs, result, reduction::sum, rounding_order::linear, {.bins = 64}).verdict();
    };
    using all = std::vector<std::vector<T>>;
    const T infinite = detail::bit_cast<T>(element_traits<T>::smallest_nonfinite);
    const T nan = detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(element_traits<T>::smallest_nonfinite | 1));
    const T largest = detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(element_traits<T>::smallest_nonfinite - 1));
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[1][44] = infinite; }).checked);
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[1][44] = nan; }).checked);
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[0][44] = inputs[1][44] = largest; }).checked);
    CHECK(verdict_of([&](all& inputs) { inputs[0][44] = inputs[1][44] = largest; }).conserved);
    CHECK(verdict_of([](all&) {}).checked);
}

TEST_CASE("exact sums rounded once are judged more sharply")
{
    gradient_pool<float> pool(3);
    const auto inputs = pool.make(gradients::gaussian, 8, 16384);
    for (const reduction operation : {reduction::sum, reduction::average}) {
        const auto result = reduce_simulated(inputs, simulated_order::single, operation);
        const auto judged = [&](rounding_order order) {
            const auto verdict = judged_reduction<float>(inputs, result, operation, order).verdict();
            CHECK(verdict.checked);
            CHECK(verdict.conserved);
            return verdict.residual;
        };
        CHECK(judged(rounding_order::linear) < judged(rounding_order::single));
    }
}

TEST_CASE("doubles near the limits of their squares, and subnormal gradients, raise no alarm")
{
    for (const double scale : {1e-320, 1e-300, 1e-170, 1e-150, 1e140, 1e152, 1e160}) {
        CAPTURE(scale);
        for (const reduction operation : {reduction::sum, reduction::average}) {
            std::vector<std::vector<double>> inputs;
            for (int rank = 0; rank < 3; ++rank) inputs.push_back(values_of<double>(rank, 5000, scale));
            auto result = reduce_simulated(inputs, simulated_order::ring, operation);
            const auto verdict = [&] {
                return judged_reduction<double>(inputs, result, operation, rounding_order::linear, {.bins = 64})
                    .verdict();
            };
            CHECK(verdict().conserved);
            if (scale > 1e-160 && scale < 1e150) {
                CHECK(verdict().checked);
                result[1000] += scale;
                CHECK_FALSE(verdict().conserved);
            }
        }
    }
}

TEST_CASE_TEMPLATE("clean reductions of all kinds raise no alarm, of all orders", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const char* const more = std::getenv("COLLPROBE_ROUNDS"); // by hand: 1000 and more
    gradient_pool<T> pool(5);
    for (int round = more != nullptr ? std::atoi(more) : 1; round > 0; --round) {
        for (int kind = 0; kind < static_cast<int>(gradients::count); ++kind) {
            for (int order = 0; order < static_cast<int>(simulated_order::count); ++order) {
                for (const int n : {2, 3, 16, 32}) {
                    const auto how = static_cast<simulated_order>(order);
                    CAPTURE(order);
                    CAPTURE(kind);
                    const auto inputs = pool.make(static_cast<gradients>(kind), n, more != nullptr ? 1 + pool.random()() % 16384 : 5000);
                    const reduction operation = (n == 3) != (round % 2 == 0) ? reduction::average : reduction::sum;
                    const auto result = reduce_simulated(inputs, how, operation);
                    const auto verdict = judged_reduction<T>(
                        inputs, result, operation, rounding_of(how), {.bins = 64u << 2 * (round % 4)}).verdict();
                    CHECK(verdict.checked);
                    CHECK(verdict.conserved);
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("the sensitivity is what theory gives - n = 8, 256 elements a bin", T, bfloat16, float)
{
    // At 8 standard deviations: half of the sum's root mean square for bfloat16, 7e-6 of it for float.
    const double threshold = sizeof(T) == 2 ? 0.5 : 7.5e-6;
    gradient_pool<T> pool(9);
    const auto inputs = pool.make(gradients::gaussian, 8, 16384);
    const auto clean = reduce_simulated(inputs, simulated_order::ring, reduction::sum);
    double squares = 0;
    for (const T x : clean) squares += static_cast<double>(x) * static_cast<double>(x);
    const double rms = std::sqrt(squares / static_cast<double>(clean.size()));
    int seen_above = 0, seen_below = 0;
    for (std::size_t place = 0; place < 200; ++place) {
        const auto is_seen = [&](double size) {
            auto result = clean;
            const std::size_t i = place * 80 + 3;
            result[i] = T(static_cast<double>(result[i]) + (static_cast<double>(result[i]) > 0 ? -size : size) * threshold * rms);
            return !judged_reduction<T>(inputs, result, reduction::sum, rounding_order::linear, {.bins = 64})
                        .verdict()
                        .conserved;
        };
        seen_above += is_seen(1.6); // 8 standard deviations and the noise of the bin
        seen_below += is_seen(0.4);
    }
    CHECK(seen_above >= 198);
    CHECK(seen_below <= 2);
}

TEST_CASE("the judge of all bins, which passes over most, finds what the judge of each finds")
{
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    constexpr std::uint32_t bins = 1024;
    for (int trial = 0; trial < 300; ++trial) {
        const int ranks = 1 + trial % 17;
        const auto order = static_cast<rounding_order>(trial % 3);
        const auto operation = trial % 2 == 0 ? reduction::sum : reduction::average;
        std::vector<double> input(2 * bins), result(2 * bins);
        const double alike = trial % 5 == 0 ? ranks : 1; // energy of the result where ranks have the same numbers
        for (std::uint32_t b = 0; b < bins; ++b) {
            const double scale = operation == reduction::sum ? 1 : 1.0 / ranks;
            const double sum = 4 * normal(random) * ranks;
            input[b] = sum;
            result[b] = scale * sum * (1 + 1e-8 * normal(random));
            input[bins + b] = 16.0 * ranks * (1 + 0.1 * normal(random));
            result[bins + b] = scale * scale * input[bins + b] * alike * (1 + 0.1 * normal(random));
        }
        const auto any = [&] { return static_cast<std::size_t>(random() % bins); };
        if (trial % 7 == 1) input[bins + any()] = detail::not_a_number();
        if (trial % 7 == 2) result[bins + any()] = detail::infinity();
        if (trial % 7 == 3) result[any()] *= 1.001;
        if (trial % 7 == 4) input[any()] = input[bins + any()] = 0;
        if (trial % 7 == 5) {
            const std::size_t empty = any();
            input[empty] = result[empty] = input[bins + empty] = result[bins + empty] = 0;
        }
        const detail::conservation_judge judge{input.data(), result.data(), bins,
            detail::conservation_bound::of<float>(operation, order, ranks, 16, detail::terms_of(order, ranks))};
        auto all = judge.identity();
        judge.run(all, 0, bins);
        auto each = judge.identity();
        for (std::uint64_t b = 0; b < bins; ++b) judge.add(each, b);
#ifdef __FAST_MATH__ // which orders operations as it likes
        CHECK(all.worst == doctest::Approx(each.worst).epsilon(1e-14));
#else
        CHECK(to_bits(all.worst) == to_bits(each.worst));
#endif
        CHECK(all.bin == each.bin);
        CHECK(all.unmeasured == each.unmeasured);
    }
}

} // namespace collprobe::testing::conservation_test
