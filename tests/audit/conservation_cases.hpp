// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/comm/local/detail/reduce_in_order.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/sum/exact_sum.hpp>

/// Reductions without communicators: what ranks send, what they get, and the judgement of it.
namespace collprobe::testing {

enum class gradients { gaussian, layered, aligned, one_large, cancelling, sparse, tiny, identical, halves, constant, count };

constexpr const char* name(gradients kind)
{
    constexpr const char* names[]
        = {"gaussian", "layered", "aligned", "one large", "cancelling", "sparse", "tiny", "identical", "halves", "constant"};
    return names[static_cast<int>(kind)];
}

/// How a reduction rounds: the orders of `local`, and exact sums rounded once.
enum class simulated_order { ring, tree, linear, single, count };

constexpr const char* name(simulated_order order)
{
    constexpr const char* names[] = {"ring", "tree", "linear", "single"};
    return names[static_cast<int>(order)];
}
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
    std::vector<T> result(count);
    if (order == simulated_order::single) {
        if constexpr (floating_element<T>) {
            const detail::gradual_underflow as_ieee_has_it;
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

} // namespace collprobe::testing
