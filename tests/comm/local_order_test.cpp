// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <type_traits>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/detail/math.hpp>

#include "support/run_ranks.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::local_order_test {

using local::reduction_order;

namespace {

template <class T>
using buffers = std::vector<std::vector<T>>; // one per rank

/// One hop, written apart from the library: 16-bit types go by way of double, which is wide enough for
/// the second rounding to do no harm; `volatile` keeps `-ffast-math` from fusing hops.
template <class T>
T hop(reduction operation, T a, T b)
{
    if constexpr (floating_element<T>) {
        using wide = std::conditional_t<sizeof(T) == 4, float, double>;
        const auto x = static_cast<wide>(a);
        const auto y = static_cast<wide>(b);
        if (operation == reduction::min) return x < y ? a : b;
        if (operation == reduction::max) return x > y ? a : b;
        volatile wide result = x;
        result = operation == reduction::product ? result * y : result + y;
        return T(static_cast<wide>(result));
    } else {
        __extension__ typedef __int128 wide;
        __extension__ typedef unsigned __int128 unsigned_wide;
        const wide x = a;
        const wide y = b;
        switch (operation) {
        case reduction::sum:
        case reduction::average: return static_cast<T>(x + y);
        case reduction::product:
            return static_cast<T>(static_cast<unsigned_wide>(x) * static_cast<unsigned_wide>(y));
        case reduction::min: return x < y ? a : b;
        case reduction::max: return x > y ? a : b;
        }
        return a;
    }
}

template <class T>
buffers<T> scaled(reduction operation, buffers<T> values)
{
    if constexpr (floating_element<T>) {
        if (operation == reduction::average) {
            const T scale = T(1.0 / static_cast<double>(values.size()));
            for (auto& rank : values) {
                for (T& value : rank) value = hop(reduction::product, value, scale);
            }
        }
    }
    return values;
}

template <class T>
void divide(reduction operation, std::vector<T>& values, int ranks)
{
    if constexpr (!floating_element<T>) {
        __extension__ typedef __int128 wide;
        if (operation != reduction::average) return;
        for (T& value : values) value = static_cast<T>(static_cast<wide>(value) / ranks);
    }
}

template <class T>
std::vector<T> linear_reference(reduction operation, const buffers<T>& input)
{
    const buffers<T> values = scaled(operation, input);
    std::vector<T> result = values[0];
    for (std::size_t rank = 1; rank < values.size(); ++rank) {
        for (std::size_t i = 0; i < result.size(); ++i) result[i] = hop(operation, result[i], values[rank][i]);
    }
    divide(operation, result, static_cast<int>(values.size()));
    return result;
}

/// A ring all-reduce by messages: in each step every rank sends one chunk to its right neighbour,
/// which adds its own values and passes the result on in the next step.
template <class T>
std::vector<T> ring_reference(reduction operation, const buffers<T>& input)
{
    const buffers<T> values = scaled(operation, input);
    const std::size_t n = values.size();
    const std::size_t count = values[0].size();
    std::size_t chunk = (count + n - 1) / n;
    while (chunk * sizeof(T) % 16 != 0) ++chunk;
    struct message {
        std::size_t chunk = 0;
        std::vector<T> data;
    };
    const auto own = [&](std::size_t rank, std::size_t index) {
        message piece{index, {}};
        for (std::size_t i = index * chunk; i < (index + 1) * chunk && i < count; ++i) {
            piece.data.push_back(values[rank][i]);
        }
        return piece;
    };
    std::vector<message> in_flight(n); // by receiver
    for (std::size_t rank = 0; rank < n; ++rank) in_flight[(rank + 1) % n] = own(rank, (rank + n - 1) % n);
    for (std::size_t step = 1; step < n; ++step) {
        std::vector<message> next(n);
        for (std::size_t rank = 0; rank < n; ++rank) {
            const message& received = in_flight[rank];
            message mine = own(rank, received.chunk);
            for (std::size_t i = 0; i < mine.data.size(); ++i) {
                mine.data[i] = hop(operation, received.data[i], mine.data[i]);
            }
            next[(rank + 1) % n] = std::move(mine);
        }
        in_flight = std::move(next);
    }
    std::vector<T> result(count);
    for (std::size_t rank = 0; rank < n; ++rank) {
        // After the last step a chunk has just left the rank of its number.
        const message& last = in_flight[(rank + 1) % n];
        REQUIRE(last.chunk == rank);
        for (std::size_t i = 0; i < last.data.size(); ++i) result[rank * chunk + i] = last.data[i];
    }
    divide(operation, result, static_cast<int>(n));
    return result;
}

/// The in-order tree built top-down from its definition: a subtree of height h spans 2^h - 1 nodes,
/// its root in the middle; nodes that do not exist are replaced by their left subtree.
struct tree {
    std::map<int, std::vector<int>> children;
    int build(int first, int span, int nodes) // returns the root of the subtree, or -1
    {
        if (span == 0 || first >= nodes) return -1;
        const int half_span = span / 2;
        const int middle = first + half_span;
        const int left = build(first, half_span, nodes);
        if (middle >= nodes) return left;
        const int right = build(middle + 1, half_span, nodes);
        for (const int child : {left, right}) {
            if (child >= 0) children[middle].push_back(child);
        }
        return middle;
    }
    explicit tree(int nodes)
    {
        int span = 1;
        while (span < nodes - 1) span = 2 * span + 1;
        const int top = build(1, span, nodes);
        if (top >= 0) children[0].push_back(top);
    }
};

template <class T>
T climb(reduction operation, const tree& links, int node, const std::vector<T>& value_of_node)
{
    T partial = value_of_node[static_cast<std::size_t>(node)];
    const auto found = links.children.find(node);
    if (found == links.children.end()) return partial;
    for (const int child : found->second) {
        partial = hop(operation, partial, climb(operation, links, child, value_of_node));
    }
    return partial;
}

template <class T>
std::vector<T> tree_reference(reduction operation, const buffers<T>& input)
{
    const buffers<T> values = scaled(operation, input);
    const std::size_t n = values.size();
    const tree links(static_cast<int>(n));
    std::vector<T> result;
    const std::size_t count = values[0].size();
    for (std::size_t i = 0; i < count; ++i) {
        const bool second = i >= (count + 1) / 2;
        std::vector<T> by_node(n);
        for (std::size_t rank = 0; rank < n; ++rank) {
            const std::size_t node = !second ? rank : n % 2 == 0 ? n - 1 - rank : (rank + n - 1) % n;
            by_node[node] = values[rank][i];
        }
        result.push_back(climb(operation, links, 0, by_node));
    }
    divide(operation, result, static_cast<int>(n));
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
    const auto linear = reduce_all(reduction_order::linear, operations, input);
    const auto ring = reduce_all(reduction_order::ring, operations, input);
    const auto tree = reduce_all(reduction_order::tree, operations, input);
    for (std::size_t at = 0; at < operations.size(); ++at) {
        const reduction operation = operations[at];
        CAPTURE(name(operation));
        CAPTURE(element_traits<T>::name);
        CAPTURE(ranks);
        CAPTURE(count);
        CHECK(same_bits(linear[at], linear_reference(operation, input)));
        CHECK(same_bits(ring[at], ring_reference(operation, input)));
        CHECK(same_bits(tree[at], tree_reference(operation, input)));
    }
}

} // namespace

TEST_CASE_TEMPLATE("every order equals a simulation of its messages bit for bit", T, COLLPROBE_TEST_ALL_ELEMENT_TYPES)
{
    for (const int ranks : {1, 2, 3, 5, 8, 14, 17}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{37}, std::size_t{1500}}) {
            check_orders<T>(ranks, count);
        }
    }
}

TEST_CASE("orders hold with 64 and 256 ranks")
{
    check_orders<bfloat16>(64, 333);
    check_orders<float>(64, 2000);
    check_orders<float16>(256, 300);
}

TEST_CASE("the double tree is the published one")
{
    // The picture for 14 ranks: 0 above 8 above 4 and 12, and so on.
    const int parents[] = {-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12};
    for (int rank = 0; rank < 14; ++rank) CHECK(collprobe::detail::double_tree(0, rank, 14).parent == parents[rank]);
}

TEST_CASE("a ring reduce-scatter ends part r at rank r and the tree takes the ring")
{
    constexpr int n = 5;
    constexpr std::size_t part = 30;
    const auto input = random_buffers<float16>(n, n * part, 21);
    for (const reduction_order order : {reduction_order::linear, reduction_order::ring, reduction_order::tree}) {
        buffers<float16> output(n, std::vector<float16>(part));
        testing::local_provider{n, order}.run([&](local::communicator& comm) {
            const auto rank = static_cast<std::size_t>(comm.rank());
            const host::stream stream;
            comm.reduce_scatter(view<const float16>(input[rank]), view<float16>(output[rank]), reduction::sum, stream);
            stream.synchronize();
        });
        for (std::size_t rank = 0; rank < n; ++rank) {
            const std::size_t start = order == reduction_order::linear ? 0 : (rank + 1) % n;
            std::vector<float16> wanted;
            for (std::size_t i = 0; i < part; ++i) {
                float16 sum = input[start][rank * part + i];
                for (std::size_t hops = 1; hops < n; ++hops) {
                    sum = hop(reduction::sum, sum, input[(start + hops) % n][rank * part + i]);
                }
                wanted.push_back(sum);
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
    for (const auto order : {reduction_order::linear, reduction_order::ring, reduction_order::tree}) {
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
