// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/inspect/detail/names.hpp>
#include <collprobe/inspect/detail/order.hpp>
#include <collprobe/sum/order.hpp>

/// Probes: sums of values that show the order and the bits of partial sums. `calls` is a `blocking_calls`.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The probes need 25 digits of fixed point, which 8-bit floating point has not.
template <class T>
concept inspectable = floating_element<T> && sizeof(T) >= 2;

/// Values for probes. A partial sum that contains 2^large loses up to n units of 2^small, in T and in every wider
/// accumulator that T's range can show (for half: float, but not double). Up to 2^14 ranks.
template <floating_element T>
struct absorbing {
    static constexpr int large = element_traits<T>::bytes == 8 ? 600 : element_traits<T>::max_exponent > 100 ? 100 : 15;
    static constexpr int small(int ranks) noexcept
    {
        if (large > 15) return 0;
        int exponent = -14; // of the smallest normal half, as long as n of them are at most 2^-10
        while (exponent > -24 && ranks > (1 << (-10 - exponent))) --exponent;
        return exponent;
    }
    /// The largest number of units that T itself counts exactly.
    static constexpr std::uint32_t most_units = std::uint32_t{1}
        << (element_traits<T>::digits < 16 ? element_traits<T>::digits : 16);
};

/// Groups the positions of a message by the order that they show; each probe refines the groups.
struct position_groups {
    static constexpr std::size_t most = 1024; ///< further groups join the first: an algorithm has fewer

    struct group {
        pair_sizes sizes; ///< one per probe so far
        std::uint64_t first = 0;
        std::uint64_t elements = 0;
    };
    std::vector<std::uint32_t> group_of; ///< by element
    std::vector<group> groups;
    bool too_many = false;

    explicit position_groups(std::uint64_t count) : group_of(count, 0), groups(1) { groups[0].elements = count; }

    /// `size(element)` is the number that the probe shows for an element.
    template <class Size>
    void refine(Size size)
    {
        std::vector<group> next;
        std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> parts(groups.size()); // size, new group
        for (std::uint64_t element = 0; element < group_of.size(); ++element) {
            const std::uint32_t old = group_of[element];
            const std::uint32_t shows = size(element);
            auto part = parts[old].begin();
            while (part != parts[old].end() && part->first != shows) ++part;
            if (part == parts[old].end()) {
                too_many = too_many || next.size() == most;
                const std::size_t fresh = next.size() == most ? 0 : next.size();
                if (fresh == next.size()) {
                    next.push_back({groups[old].sizes, element, 0});
                    next.back().sizes.push_back(shows);
                }
                parts[old].emplace_back(shows, static_cast<std::uint32_t>(fresh));
                part = parts[old].end() - 1;
            }
            group_of[element] = part->second;
            ++next[part->second].elements;
        }
        groups = std::move(next);
    }
};

/// The number of units, below `limit`, that a sum amounts to; `limit` if the sum is no such number. Compares bits,
/// because a build that flushes subnormal numbers would otherwise take one for zero.
template <floating_element T>
std::uint32_t units_in(T sum, double unit, std::uint32_t limit) noexcept
{
    using bits = typename element_traits<T>::bits_type;
    if (static_cast<bits>(to_bits(sum) & ~element_traits<T>::sign_mask) == 0) return 0;
    const double ratio = is_finite(sum) ? static_cast<double>(sum) / unit : 0;
    const std::uint32_t units = ratio > 0 && ratio < limit ? static_cast<std::uint32_t>(ratio) : 0;
    return to_bits(T(unit * units)) == to_bits(sum) ? units : limit;
}

/// For each pair of ranks, one sends a large value, the other its negative, and every other rank a unit. The units that
/// arrive are those added after the two large values have met. All positions are probed at once.
template <floating_element T, class Calls>
position_groups probe_order(Calls& calls, const std::vector<rank_pair>& pairs, int rank, int ranks, std::uint64_t count)
{
    using probe = absorbing<T>;
    const auto n = static_cast<std::uint32_t>(ranks);
    const auto own = static_cast<std::uint32_t>(rank);
    const double unit = power_of_two(probe::small(ranks));
    position_groups result(count);
    std::vector<std::uint32_t> arrived(count);
    for (const rank_pair& pair : pairs) {
        // At most as many units at a time as T can count.
        arrived.assign(count, 0);
        for (std::uint32_t first = 0; first < n; first += probe::most_units) {
            const bool counts = own >= first && own - first < probe::most_units;
            const double value = own == pair.low ? power_of_two(probe::large)
                : own == pair.high               ? -power_of_two(probe::large)
                : counts                         ? unit
                                                 : 0;
            for (std::uint64_t i = 0; i < count; ++i) calls.send()[i] = T(value);
            calls.all_reduce(count);
            for (std::uint64_t i = 0; i < count; ++i) {
                const std::uint32_t units = units_in(calls.received()[i], unit, n);
                arrived[i] = arrived[i] < n && units < n ? arrived[i] + units : n;
            }
        }
        result.refine([&](std::uint64_t i) { return arrived[i] < n ? n - arrived[i] : 0; });
    }
    return result;
}

/// The arithmetic that was found for one group of positions.
struct group_arithmetic {
    shown_order shown;
    /// Significant bits of the partial sum after each addition except the last; one number for `exact` and for `fused`.
    /// 0 if unknown.
    std::vector<int> bits;
};

/// The largest number of bits that a probe of T can show.
template <floating_element T>
inline constexpr int most_bits = element_traits<T>::max_exponent > 100 ? 121 : 25;

/// For the partial sum after an addition, a rank on one side of the addition sends 1, a rank on the other side 2^-p,
/// and a rank that is added next sends -1. If 2^-p arrives, the sum had at least p + 1 bits. Each group of positions
/// searches for its own largest p. With many ranks up to 32 partial sums are probed; each stands for those after it.
template <floating_element T, class Calls>
void probe_bits(Calls& calls, std::vector<group_arithmetic>& groups, const std::vector<std::uint32_t>& group_of,
    int rank, int ranks)
{
    if (ranks < 3) return;
    struct search {
        std::uint32_t one = 0, little = 1, minus = 2; ///< ranks
        int kept = 0; ///< 2^-kept arrives
        int lost = most_bits<T>;
        bool arrived = true;
    };
    const auto inner = static_cast<std::size_t>(ranks) - 2; // number of partial sums
    const std::size_t step = (inner + 31) / 32;
    for (group_arithmetic& group : groups) group.bits.assign(group.shown.order.empty() ? 1 : inner, 0);
    for (std::size_t at = 0; at < inner; at += step) {
        std::vector<search> searches(groups.size());
        for (std::size_t g = 0; g < groups.size(); ++g) {
            const summation_order& order = groups[g].shown.order;
            if (order.empty()) continue; // any three ranks are suitable
            const auto [into, from] = order[at];
            searches[g].one = into;
            searches[g].little = from;
            std::size_t next = at + 1;
            while (order[next].into != into && order[next].from != into) ++next;
            searches[g].minus = order[next].into == into ? order[next].from : order[next].into;
        }
        for (int open = most_bits<T>; open > 1; open = (open + 1) / 2) { // as many rounds as the longest search
            std::vector<T> own;
            for (const search& each : searches) {
                const auto me = static_cast<std::uint32_t>(rank);
                own.push_back(T(me == each.one ? 1.0
                        : me == each.little    ? power_of_two(-(each.kept + each.lost) / 2)
                        : me == each.minus     ? -1.0
                                               : 0.0));
            }
            for (std::size_t i = 0; i < group_of.size(); ++i) calls.send()[i] = own[group_of[i]];
            calls.all_reduce(group_of.size());
            for (search& each : searches) each.arrived = true;
            for (std::size_t i = 0; i < group_of.size(); ++i) {
                using bits = typename element_traits<T>::bits_type;
                const auto magnitude = static_cast<bits>(to_bits(calls.received()[i]) & ~element_traits<T>::sign_mask);
                if (magnitude == 0) searches[group_of[i]].arrived = false;
            }
            for (search& each : searches) {
                if (each.lost - each.kept < 2) continue;
                (each.arrived ? each.kept : each.lost) = (each.kept + each.lost) / 2;
            }
        }
        for (std::size_t g = 0; g < groups.size(); ++g) {
            std::vector<int>& bits = groups[g].bits;
            for (std::size_t k = at; k < at + step && k < bits.size(); ++k) bits[k] = searches[g].kept + 1;
        }
    }
}

} // namespace collprobe::detail
