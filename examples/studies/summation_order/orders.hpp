// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/sum/sum_in_order.hpp>

#include "../digits/words.hpp"
#include "placed_orders.hpp"
#include "rooted_orders.hpp"

/// The orders and accumulations that are compared, by the names of the inspector (`inspect_all_reduce`).
namespace summation {

using namespace collprobe;

enum class order_kind {
    linear,
    ring,
    tree,
    single_tree,
    recursive_doubling,
    recursive_halving,
    two_level,
    pairwise,
    reversed,
    mpi_ring,
    in_order_binary,
    level_binary,
    k_ary,
    k_nomial,
    k_nomial_preorder,
    chains,
};

struct order_name {
    order_kind kind;
    const char* text;
    bool has_number; ///< such as the k of a k-nomial tree
    const char* meaning;
};

inline constexpr order_name order_names[] = {
    {order_kind::linear, "linear", false, "by rank, at every place"},
    {order_kind::ring, "ring", false, "NCCL's: by rank around the ring, each chunk from another rank on"},
    {order_kind::tree, "tree", false, "NCCL's double binary tree: each half of the elements has one"},
    {order_kind::single_tree, "single_tree", false, "the first of those two for all elements"},
    {order_kind::recursive_doubling, "recursive_doubling", false, "neighbours first, then pairs, fours, ..."},
    {order_kind::recursive_halving, "recursive_halving", false, "the farthest first"},
    {order_kind::two_level, "two_level", true, "nodes of N ranks, each by rank; then the nodes"},
    {order_kind::pairwise, "pairwise", false, "as recursive_doubling, but the last ranks wait if n is no power of 2"},
    {order_kind::reversed, "reversed", false, "from the last rank down"},
    {order_kind::mpi_ring, "mpi_ring", false, "Open MPI's ring: chunk k from rank k on, of nearly equal lengths"},
    {order_kind::in_order_binary, "in_order_binary", false, "a tree from the last rank"},
    {order_kind::level_binary, "level_binary", false, "a tree from rank 0"},
    {order_kind::k_ary, "k_ary", true, "a tree from rank 0 with N children a rank"},
    {order_kind::k_nomial, "k_nomial", true, "a tree from rank 0; with 2 binomial"},
    {order_kind::k_nomial_preorder, "k_nomial_preorder", true, "the same, subtrees of ranks that follow each other"},
    {order_kind::chains, "chains", true, "N chains of ranks that follow each other, added to rank 0"},
};

/// An order, with its number if it has one; 0 stands for the default number.
struct order_choice {
    order_kind kind = order_kind::linear;
    int number = 0;

    const order_name& entry() const { return order_names[static_cast<std::size_t>(kind)]; }
    const char* word() const { return entry().text; }
    std::string text() const { return number == 0 ? word() : word() + (':' + std::to_string(number)); }
    /// Ranks of a node: 8 if there are several such nodes, else half of the ranks.
    int number_for(int ranks) const
    {
        if (number != 0 || !entry().has_number) return number;
        if (kind != order_kind::two_level) return 2;
        return ranks >= 16 ? 8 : std::max(2, ranks / 2);
    }
    friend bool operator==(const order_choice&, const order_choice&) = default;
};

/// "ring", "k_nomial:4"
/// \throws trainer::usage_error for anything else
inline order_choice parse_order(std::string_view option, std::string_view text)
{
    const std::size_t colon = text.find(':');
    std::string known;
    for (const order_name& each : order_names) {
        known += (known.empty() ? "" : ", ") + std::string(each.text);
        if (text.substr(0, colon) != each.text) continue;
        order_choice choice{each.kind};
        if (colon == std::string_view::npos) return choice;
        if (!each.has_number) throw trainer::usage_error(std::string(option) + ": '" + each.text + "' has no number");
        choice.number = trainer::number(option, text.substr(colon + 1), 2, 65536);
        return choice;
    }
    throw trainer::usage_error(std::string(option) + ": '" + std::string(text) + "' is none of " + known);
}

/// The orders that are compared unless others are asked for.
inline std::vector<order_choice> default_orders()
{
    return {{order_kind::linear}, {order_kind::ring}, {order_kind::tree}, {order_kind::single_tree},
        {order_kind::recursive_doubling}, {order_kind::recursive_halving}, {order_kind::two_level}};
}

/// Open MPI 4.1's ring: the first chunks are longer by one element if the count is no multiple of n.
/// Source: ompi/mca/coll/base/coll_base_allreduce.c, ompi_coll_base_allreduce_intra_ring.
inline std::vector<placed_order> mpi_ring_orders(int n, std::uint64_t count, std::uint64_t first, std::uint64_t end)
{
    const auto ranks = static_cast<std::uint64_t>(n);
    if (count < ranks) return {{0, recursive_doubling_order(n)}};
    const auto begin = [&](std::uint64_t k) { return k * (count / ranks) + std::min(k, count % ranks); };
    std::vector<placed_order> orders;
    for (std::uint64_t k = 0; k < ranks; ++k) {
        if (begin(k) < end && begin(k + 1) > first) orders.push_back({begin(k), rotated_order(n, static_cast<int>(k))});
    }
    return orders;
}

/// Sizes of the groups into which `all` in their sequence are dealt: groups of `size`, of which the last may be smaller.
inline std::vector<int> groups_of(int all, int size)
{
    std::vector<int> sizes;
    for (int first = 0; first < all; first += size) sizes.push_back(std::min(size, all - first));
    return sizes;
}

/// Sizes of the shares of `ranks` ranks in `leaves` leaves: as equal as can be, the first ones larger.
inline std::vector<int> shares_of(int leaves, int ranks)
{
    std::vector<int> sizes(static_cast<std::size_t>(ranks), leaves / ranks);
    for (int k = 0; k < leaves % ranks; ++k) ++sizes[static_cast<std::size_t>(k)];
    return sizes;
}

/// The message of an all-reduce, of which the elements from `first` up to `end` are looked at.
struct message {
    std::uint64_t count = 0;
    int element_bytes = 4;
    std::uint64_t first = 0;
    std::uint64_t end = ~std::uint64_t{0};
};

/// The orders of an all-reduce over n ranks.
inline std::vector<placed_order> orders_over_ranks(order_choice choice, int n, const message& of)
{
    const int k = choice.number_for(n);
    switch (choice.kind) {
    case order_kind::linear: break;
    case order_kind::ring: return ring_orders(n, of.count, of.element_bytes, of.first, of.end);
    case order_kind::tree: return tree_orders(n, of.count);
    case order_kind::single_tree: return {{0, tree_order(n, 0)}};
    case order_kind::recursive_doubling: return {{0, recursive_doubling_order(n)}};
    case order_kind::recursive_halving: return {{0, recursive_halving_order(n)}};
    case order_kind::two_level: {
        const std::vector<int> nodes = groups_of(n, k);
        return {{0, two_level_order(nodes, linear_order(static_cast<int>(nodes.size())))}};
    }
    case order_kind::pairwise: return {{0, pairwise_order(n)}};
    case order_kind::reversed: {
        std::vector<int> downwards(static_cast<std::size_t>(n));
        std::iota(downwards.rbegin(), downwards.rend(), 0);
        return {{0, permuted_order(downwards)}};
    }
    case order_kind::mpi_ring: return mpi_ring_orders(n, of.count, of.first, of.end);
    case order_kind::in_order_binary: return {{0, in_order_binary_order(n)}};
    case order_kind::level_binary: return {{0, level_binary_order(n)}};
    case order_kind::k_ary: return {{0, k_ary_order(n, k)}};
    case order_kind::k_nomial: return {{0, k_nomial_order(n, k)}};
    case order_kind::k_nomial_preorder: return {{0, k_nomial_preorder_order(n, k)}};
    case order_kind::chains: return {{0, chains_order(n, k)}};
    }
    return {{0, linear_order(n)}};
}

/// The same over leaves that are dealt to the ranks: each rank first adds its own, one after the other. `permutation`:
/// rank r of the order is rank permutation[r] of the leaves; empty for none.
inline std::vector<placed_order> orders_over_leaves(
    order_choice choice, int leaves, int ranks, const message& of, const std::vector<int>& permutation = {})
{
    std::vector<placed_order> orders = orders_over_ranks(choice, ranks, of);
    for (placed_order& each : orders) {
        for (addition& step : each.order) {
            if (permutation.empty()) break;
            step = {static_cast<std::uint32_t>(permutation[step.into]), static_cast<std::uint32_t>(permutation[step.from])};
        }
        if (leaves != ranks) each.order = two_level_order(shares_of(leaves, ranks), each.order);
    }
    return orders;
}

/// What the sum of a message is made with: where it rounds, and in which order.
struct method {
    order_choice order;
    accumulation in = accumulation::native;
};

/// Whether `in` is another arithmetic than `native`.
inline bool is_of_its_own(accumulation in, element_type type)
{
    if (in == accumulation::float32) return type != element_type::float32 && type != element_type::float64;
    return in != accumulation::float64 || type != element_type::float64;
}

/// Each order with each accumulation. An exact sum has no order: it has the first one's name. `even_if_native`: keeps
/// accumulations in the element type by another name.
inline std::vector<method> methods_of(const std::vector<order_choice>& orders,
    const std::vector<accumulation>& accumulations, element_type type, bool even_if_native = false)
{
    std::vector<method> all;
    for (const accumulation in : accumulations) {
        if (!even_if_native && !is_of_its_own(in, type)) continue;
        for (const order_choice& order : orders) {
            all.push_back({order, in});
            if (in == accumulation::exact) break;
        }
    }
    return all;
}

/// `sum_in_order` with an accumulation that is known at run time. Precondition: it holds T.
template <floating_element T>
void add_rows(accumulation in, const T* const* rows, const std::vector<placed_order>& orders, T* result,
    std::uint64_t place, std::uint64_t count)
{
    switch (in) {
    case accumulation::native: return summation::sum_in_order<accumulation::native>(rows, orders, result, place, count);
    case accumulation::float32:
        if constexpr (sizeof(T) <= 4) summation::sum_in_order<accumulation::float32>(rows, orders, result, place, count);
        return;
    case accumulation::float64: return summation::sum_in_order<accumulation::float64>(rows, orders, result, place, count);
    case accumulation::exact: return summation::sum_in_order<accumulation::exact>(rows, orders, result, place, count);
    }
}

} // namespace summation
