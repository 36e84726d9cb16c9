// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <collprobe/core/ulp.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/order.hpp>

/// What the order of a sum and its accumulator do to the result, for summation_table and summation_order_bench.
namespace summation {

using namespace collprobe;

enum class order_kind { linear, ring, tree, recursive_halving, pairwise, permuted };

inline const char* name(order_kind kind)
{
    constexpr const char* names[] = {"linear", "ring", "tree", "recursive_halving", "pairwise", "permuted"};
    return names[static_cast<int>(kind)];
}

/// The orders that the elements of a message are added in: those of a ring differ by chunk, those of a tree by half.
inline std::vector<summation_order> orders_of(order_kind kind, int n)
{
    switch (kind) {
    case order_kind::linear: return {linear_order(n)};
    case order_kind::ring: {
        std::vector<summation_order> orders;
        for (int chunk = 0; chunk < n; ++chunk) orders.push_back(rotated_order(n, ring_start(chunk, n)));
        return orders;
    }
    case order_kind::tree: return {tree_order(n, 0), tree_order(n, 1)};
    case order_kind::recursive_halving: return {recursive_halving_order(n)};
    case order_kind::pairwise: return {pairwise_order(n)};
    case order_kind::permuted: {
        std::vector<int> permutation(static_cast<std::size_t>(n));
        std::iota(permutation.begin(), permutation.end(), 0);
        std::shuffle(permutation.begin(), permutation.end(), std::mt19937_64(5));
        return {permuted_order(permutation)};
    }
    }
    return {};
}

/// n terms for each of `count` elements, an element's terms side by side.
template <floating_element T>
struct message {
    int n = 0;
    std::size_t count = 0;
    std::vector<T> terms;
    const T* of(std::size_t element) const { return terms.data() + element * static_cast<std::size_t>(n); }
};

enum class input { normal, same_sign, wide, gradients };

inline const char* name(input kind)
{
    constexpr const char* names[] = {"normal", "same_sign", "wide", "gradients"};
    return names[static_cast<int>(kind)];
}

/// N(0, 1), its magnitude, or N(0, 1) times 2^k with k even among -20 .. 20.
template <floating_element T>
message<T> random_message(input kind, int n, std::size_t count)
{
    message<T> result{n, count, std::vector<T>(static_cast<std::size_t>(n) * count)};
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    for (T& term : result.terms) {
        double value = normal(random);
        if (kind == input::same_sign) value = std::abs(value);
        if (kind == input::wide) value = std::ldexp(value, static_cast<int>(random() % 41) - 20);
        term = T(value);
    }
    return result;
}

/// One gradient a rank from NumPy files of floats, as examples/studies/silent_inconsistency --dump writes them into a folder;
/// n = 0 if there are none.
template <floating_element T>
message<T> gradients(const char* folder, std::size_t most)
{
    message<T> result;
    std::vector<std::filesystem::path> files;
    std::error_code none;
    if (folder != nullptr) {
        for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
            if (entry.path().filename().string().starts_with("grad_")) files.push_back(entry.path());
        }
    }
    std::sort(files.begin(), files.end());
    std::vector<std::vector<float>> ranks;
    for (const auto& path : files) {
        std::ifstream file(path, std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(file), {}};
        const std::size_t end = bytes.find('\n');
        if (end == std::string::npos || bytes.find("'<f4'") > end) return {};
        ranks.emplace_back((bytes.size() - end - 1) / 4);
        std::copy_n(bytes.data() + end + 1, 4 * ranks.back().size(), reinterpret_cast<char*>(ranks.back().data()));
        if (ranks.back().size() != ranks[0].size()) return {};
    }
    if (ranks.empty()) return {};
    result.n = static_cast<int>(ranks.size());
    // Spread over all of them.
    const std::size_t step = (ranks[0].size() + most - 1) / most;
    for (std::size_t i = 0; i < ranks[0].size(); i += step) {
        ++result.count;
        for (const auto& rank : ranks) result.terms.push_back(T(rank[i]));
    }
    return result;
}

/// The orders of a message's elements, in equal shares.
class summation {
public:
    summation(order_kind kind, int n, std::size_t count) : orders_(orders_of(kind, n)), count_(count) {}
    const summation_order& of(std::size_t element) const { return orders_[element * orders_.size() / count_]; }

private:
    std::vector<summation_order> orders_;
    std::size_t count_;
};

struct accuracy {
    double relative_rms = 0; ///< error against the exact sum, over its root mean square
    double largest_ulp = 0; ///< the largest error, in units of the last place of the correctly rounded sum
    double changed = 0; ///< share of elements with other bits after the ranks have moved on by about a third
};

template <accumulation in, floating_element T>
accuracy measure(order_kind kind, const message<T>& from)
{
    const summation orders(kind, from.n, from.count);
    std::vector<T> moved(static_cast<std::size_t>(from.n));
    double squares = 0;
    double errors = 0;
    accuracy result;
    std::size_t changed = 0;
    for (std::size_t i = 0; i < from.count; ++i) {
        const T* const terms = from.of(i);
        const T sum = sum_in_order<in>(terms, orders.of(i));
        exact_sum<T> exact;
        for (int k = 0; k < from.n; ++k) exact.add(terms[k]);
        const double wanted = exact.template round<double>();
        const double error = std::abs(static_cast<double>(sum) - wanted);
        squares += wanted * wanted;
        errors += error * error;
        result.largest_ulp = std::max(result.largest_ulp, error / ulp(exact.round()));
        std::rotate_copy(terms, terms + (from.n / 3 | 1) % from.n, terms + from.n, moved.begin());
        changed += to_bits(sum_in_order<in>(moved.data(), orders.of(i))) != to_bits(sum) ? 1 : 0;
    }
    result.relative_rms = std::sqrt(errors / squares);
    result.changed = static_cast<double>(changed) / static_cast<double>(from.count);
    return result;
}

} // namespace summation
