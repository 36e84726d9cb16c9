// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/config.hpp>
#include <collprobe/sum/order.hpp>

/// Trees of additions, of which some may add several partial sums at once.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The partial sums that are added at once, two or more. A partial sum has the number of its lowest rank. Ascending.
using joint_addition = std::vector<std::uint32_t>;

/// The additions of one sum, those of fewer terms first, then by their lowest rank. So equal trees are equal vectors,
/// and each addition comes after those that it needs. The result is in partial sum 0.
using sum_tree = std::vector<joint_addition>;

/// The number of terms of each addition's result.
inline std::vector<std::uint32_t> result_sizes(const sum_tree& tree)
{
    std::vector<std::uint32_t> results;
    std::vector<std::uint32_t> terms; // by partial sum
    for (const joint_addition& sums : tree) {
        std::uint32_t result = 0;
        for (const std::uint32_t sum : sums) {
            if (sum >= terms.size()) terms.resize(sum + std::size_t{1}, 1);
            result += terms[sum];
        }
        terms[sums[0]] = result;
        results.push_back(result);
    }
    return results;
}

/// The tree of additions in any valid sequence. The result of an addition has the number of its first partial sum.
inline sum_tree tree_of(const std::vector<joint_addition>& additions)
{
    std::size_t ranks = 1;
    for (const joint_addition& sums : additions) ranks += sums.size() - 1;
    std::vector<std::uint32_t> lowest(ranks), terms(ranks, 1);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) lowest[rank] = rank;
    std::vector<std::pair<std::uint32_t, joint_addition>> sorted;
    for (joint_addition sums : additions) {
        const std::uint32_t into = sums[0];
        std::uint32_t all = 0;
        for (std::uint32_t& sum : sums) {
            all += terms[sum];
            sum = lowest[sum];
        }
        std::sort(sums.begin(), sums.end());
        lowest[into] = sums[0];
        terms[into] = all;
        sorted.emplace_back(all, std::move(sums));
    }
    std::sort(sorted.begin(), sorted.end());
    sum_tree tree;
    for (auto& each : sorted) tree.push_back(std::move(each.second));
    return tree;
}

inline sum_tree tree_of(const summation_order& order)
{
    std::vector<joint_addition> additions;
    for (const addition& step : order) additions.push_back({step.into, step.from});
    return tree_of(additions);
}

/// Whether each addition has two terms.
inline bool is_binary(const sum_tree& tree)
{
    for (const joint_addition& sums : tree) {
        if (sums.size() != 2) return false;
    }
    return true;
}

/// For pairs of ranks, the number of terms of the smallest partial sum that contains both.
class meeting_sizes {
public:
    explicit meeting_sizes(const sum_tree& tree) : terms_(result_sizes(tree))
    {
        std::size_t ranks = 1;
        for (const joint_addition& sums : tree) ranks += sums.size() - 1;
        // Nodes are the ranks, followed by the additions: a parent has a higher number than its children.
        above_.resize(ranks + tree.size());
        terms_.insert(terms_.begin(), ranks, 1);
        std::vector<std::size_t> node_of(ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank) node_of[rank] = rank;
        for (std::size_t k = 0; k < tree.size(); ++k) {
            for (const std::uint32_t sum : tree[k]) above_[node_of[sum]] = ranks + k;
            node_of[tree[k][0]] = ranks + k;
        }
    }
    std::uint32_t operator()(std::size_t one, std::size_t other) const
    {
        while (one != other) (one < other ? one : other) = above_[one < other ? one : other];
        return terms_[one];
    }

private:
    std::vector<std::uint32_t> terms_; ///< by node
    std::vector<std::size_t> above_;
};

/// Text such as "((0+1)+2)+3", or "(0+1+2)+(3+4+5)". Parts of more terms come first, then those of lower ranks, since
/// addition is commutative.
inline std::string brackets_of(const sum_tree& tree)
{
    struct part {
        std::uint32_t terms = 1;
        std::string text;
    };
    std::vector<part> parts;
    std::string text;
    for (const joint_addition& sums : tree) {
        for (const std::uint32_t sum : sums) {
            for (std::size_t rank = parts.size(); rank <= sum; ++rank) parts.push_back({1, std::to_string(rank)});
        }
        joint_addition sorted = sums;
        std::sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
            return parts[a].terms != parts[b].terms ? parts[a].terms > parts[b].terms : a < b;
        });
        text.clear();
        std::uint32_t terms = 0;
        for (const std::uint32_t sum : sorted) {
            text += (terms == 0 ? "" : "+") + parts[sum].text;
            terms += parts[sum].terms;
        }
        parts[sums[0]] = {terms, '(' + text + ')'};
    }
    return text;
}

/// The ranks in the order in which a chain adds them (the first two in either order); empty if it is no chain.
inline std::vector<std::uint32_t> chain_of(const sum_tree& tree)
{
    std::vector<std::uint32_t> chain;
    if (!is_binary(tree)) return chain;
    const std::vector<std::uint32_t> terms = result_sizes(tree);
    for (std::size_t k = 0; k < tree.size(); ++k) {
        if (terms[k] != k + 2) return {};
        if (k == 0) chain = tree[0];
        else chain.push_back(tree[k][0] == tree[k - 1][0] ? tree[k][1] : tree[k][0]);
    }
    return chain;
}

} // namespace collprobe::detail
