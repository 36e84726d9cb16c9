// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/sum/order.hpp>

#include "support/run_ranks.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::local_order_test {

using local::reduction_order;

namespace {

template <class T>
using buffers = std::vector<std::vector<T>>; // one per rank

constexpr reduction_order all_orders[] = {reduction_order::linear, reduction_order::ring, reduction_order::tree};

/// One hop, written apart from the library: 16-bit types go by way of double, which is wide enough for
/// the second rounding to do no harm; `volatile` keeps `-ffast-math` from fusing hops.
template <class T>
T hop(reduction operation, T a, T b)
{
    using wide = std::conditional_t<!floating_element<T>, T, std::conditional_t<sizeof(T) == 4, float, double>>;
    const auto x = static_cast<wide>(a);
    const auto y = static_cast<wide>(b);
    if (operation == reduction::min) return x < y ? a : b;
    if (operation == reduction::max) return x > y ? a : b;
    if constexpr (floating_element<T>) {
        volatile wide result = x;
        result = operation == reduction::product ? result * y : result + y;
        return T(static_cast<wide>(result));
    } else {
        const auto m = static_cast<std::uint64_t>(x);
        const auto n = static_cast<std::uint64_t>(y);
        return static_cast<T>(operation == reduction::product ? m * n : m + n);
    }
}

/// All terms in an order, with what an average does before and behind it.
template <class T>
T reduce_in(const summation_order& order, reduction operation, std::vector<T> terms)
{
    const auto ranks = static_cast<int>(terms.size());
    if constexpr (floating_element<T>) {
        const T scale = T(1.0 / ranks);
        if (operation == reduction::average) {
            for (T& term : terms) term = hop(reduction::product, term, scale);
        }
    }
    for (const addition& step : order) terms[step.into] = hop(operation, terms[step.into], terms[step.from]);
    const T result = terms[order.empty() ? 0 : order.back().into];
    if constexpr (!floating_element<T>) {
        using widest = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        if (operation == reduction::average) return static_cast<T>(static_cast<widest>(result) / static_cast<widest>(ranks));
    }
    return result;
}

/// What every rank gets: chunks of 16 bytes and more take the ring from another rank each, halves a tree each.
template <class T>
std::vector<T> expected_of(reduction_order how, reduction operation, const buffers<T>& input)
{
    const auto n = static_cast<int>(input.size());
    const std::size_t count = input[0].size();
    std::size_t chunk = (count + input.size() - 1) / input.size();
    while (chunk * sizeof(T) % 16 != 0) ++chunk;
    std::vector<summation_order> orders;
    if (how == reduction_order::linear) orders = {linear_order(n)};
    if (how == reduction_order::tree) orders = {tree_order(n, 0), tree_order(n, 1)};
    for (int start = 1; how == reduction_order::ring && start <= n; ++start) orders.push_back(rotated_order(n, start % n));
    std::vector<T> result;
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<T> terms;
        for (const std::vector<T>& rank : input) terms.push_back(rank[i]);
        const std::size_t piece = how == reduction_order::ring ? i / chunk : i >= (count + 1) / 2 ? 1 : 0;
        result.push_back(reduce_in(orders[piece % orders.size()], operation, std::move(terms)));
    }
    return result;
}

template <class T>
T random_value(std::uint64_t seed)
{
    const std::uint64_t bits = detail::mix64(seed);
    if constexpr (!floating_element<T>) {
        return static_cast<T>(bits);
    } else {
        // Signs, and magnitudes over many binades, so that the order shows in the rounding.
        const double unit = static_cast<double>(bits >> 11) * 0x1p-53 + 0.5;
        const int exponent = static_cast<int>(bits & 7) - 4;
        return T((bits & 256) != 0 ? unit * detail::power_of_two(exponent) : -unit * detail::power_of_two(exponent));
    }
}

template <class T>
buffers<T> random_buffers(int ranks, std::size_t count, std::uint64_t seed)
{
    buffers<T> result(static_cast<std::size_t>(ranks));
    for (auto& rank : result) {
        for (std::size_t i = 0; i < count; ++i) rank.push_back(random_value<T>(seed = detail::mix64(seed + 1)));
    }
    return result;
}

/// What rank 0 gets for each operation.
template <class T>
std::vector<std::vector<T>> reduce_all(
    reduction_order order, const std::vector<reduction>& operations, const buffers<T>& input)
{
    std::vector<buffers<T>> outputs(operations.size(), input);
    testing::local_provider{static_cast<int>(input.size()), order}.run([&](local::communicator& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        const host::stream stream;
        for (std::size_t at = 0; at < operations.size(); ++at) {
            comm.all_reduce(view<const T>(input[rank]), view<T>(outputs[at][rank]), operations[at], stream);
        }
        stream.synchronize();
    });
    std::vector<std::vector<T>> results;
    for (const buffers<T>& output : outputs) results.push_back(output[0]);
    return results;
}

template <class T>
std::vector<T> reduce(reduction_order order, reduction operation, const buffers<T>& input)
{
    return reduce_all(order, {operation}, input)[0];
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b)
{
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (is_nan(a[i]) && is_nan(b[i])) continue; // which NaN is not promised
        if (to_bits(a[i]) != to_bits(b[i])) return false;
    }
    return true;
}

const std::vector<reduction> operations{reduction::sum, reduction::average, reduction::min, reduction::max, reduction::product};

template <class T>
void check_orders(int ranks, std::size_t count)
{
    const buffers<T> input = random_buffers<T>(ranks, count, 1000 * static_cast<std::uint64_t>(ranks) + count);
    for (const reduction_order order : all_orders) {
        const auto found = reduce_all(order, operations, input);
        for (std::size_t at = 0; at < operations.size(); ++at) {
            CAPTURE(local::name(order));
            CAPTURE(name(operations[at]));
            CAPTURE(element_traits<T>::name);
            CAPTURE(ranks);
            CAPTURE(count);
            CHECK(same_bits(found[at], expected_of(order, operations[at], input)));
        }
    }
}

} // namespace

TEST_CASE_TEMPLATE("every order adds as its formula says, bit for bit", T, COLLPROBE_TEST_ALL_ELEMENT_TYPES)
{
    for (const int ranks : {1, 2, 3, 5, 8, 14, 17}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{37}, std::size_t{700}}) {
            check_orders<T>(ranks, count);
        }
    }
}

TEST_CASE("orders hold with 64 and 256 ranks")
{
    check_orders<bfloat16>(64, 333);
    check_orders<float>(64, 700);
    check_orders<float16>(256, 300);
}

TEST_CASE("a ring reduce-scatter ends part r at rank r and the tree takes the ring")
{
    constexpr int n = 5;
    constexpr std::size_t part = 30;
    const auto input = random_buffers<float16>(n, n * part, 21);
    for (const reduction_order order : all_orders) {
        buffers<float16> output(n, std::vector<float16>(part));
        testing::local_provider{n, order}.run([&](local::communicator& comm) {
            const auto rank = static_cast<std::size_t>(comm.rank());
            const host::stream stream;
            comm.reduce_scatter(view<const float16>(input[rank]), view<float16>(output[rank]), reduction::sum, stream);
            stream.synchronize();
        });
        for (std::size_t rank = 0; rank < n; ++rank) {
            const int start = order == reduction_order::linear ? 0 : static_cast<int>(rank + 1) % n;
            std::vector<float16> wanted;
            for (std::size_t i = 0; i < part; ++i) {
                std::vector<float16> terms;
                for (const auto& each : input) terms.push_back(each[rank * part + i]);
                wanted.push_back(reduce_in(rotated_order(n, start), reduction::sum, terms));
            }
            CHECK(same_bits(output[rank], wanted));
        }
    }
}

TEST_CASE_TEMPLATE("min and max prefer numbers to NaN and order the zeros", T, COLLPROBE_TEST_WIDER_FLOATING_TYPES,
    float8_e5m2)
{
    using bits_type = typename element_traits<T>::bits_type;
    const auto of_bits = [](auto bits) { return detail::bit_cast<T>(static_cast<bits_type>(bits)); };
    const T nan = of_bits(element_traits<T>::exponent_mask | 1);
    const T minus_nan = of_bits(element_traits<T>::exponent_mask | element_traits<T>::sign_mask | 1);
    const T infinity = of_bits(element_traits<T>::exponent_mask);
    const T minus_infinity = of_bits(element_traits<T>::exponent_mask | element_traits<T>::sign_mask);
    const T zero = of_bits(0);
    const T minus_zero = of_bits(element_traits<T>::sign_mask);
    const T one = T(1.0f);
    const buffers<T> input{
        {nan, one, nan, zero, minus_zero, infinity, nan, minus_nan, one},
        {one, nan, nan, minus_zero, zero, nan, minus_infinity, nan, minus_nan},
        {minus_nan, nan, minus_nan, zero, zero, one, one, one, one},
    };
    for (const auto order : all_orders) {
        const auto least = reduce(order, reduction::min, input);
        const auto most = reduce(order, reduction::max, input);
        CHECK(same_bits(least, {one, one, nan, minus_zero, minus_zero, one, minus_infinity, one, one}));
        CHECK(same_bits(most, {one, one, nan, zero, zero, infinity, one, one, one}));
    }
}

TEST_CASE("non-finite and subnormal numbers go through sums in any build")
{
    const auto f = [](std::uint32_t bits) { return detail::bit_cast<float>(bits); };
    const float infinity = f(0x7f800000u);
    const auto sums = reduce<float>(reduction_order::linear, reduction::sum,
        {{infinity, infinity, f(0x7fc00000u), f(1), f(0x80000001u)}, {1.0f, -infinity, 1.0f, f(1), f(0x80000002u)}});
    CHECK(to_bits(sums[0]) == 0x7f800000u);
    CHECK(is_nan(sums[1]));
    CHECK(is_nan(sums[2]));
    CHECK(to_bits(sums[3]) == 2);
    CHECK(to_bits(sums[4]) == 0x80000003u);
    // 2^-67 squared is exact in double and half of the least bfloat16: with a bit more it rounds up.
    const auto tiny = [](double value) { return bfloat16(value); };
    const auto products = reduce<bfloat16>(reduction_order::linear, reduction::product,
        {{tiny(0x1p-67), tiny(0x1.02p-67)}, {tiny(0x1p-67), tiny(0x1p-67)}});
    CHECK(products[0].bits == 0);
    CHECK(products[1].bits == 1);
}

} // namespace collprobe::testing::local_order_test
