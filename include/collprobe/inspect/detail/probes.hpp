// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/inspect/detail/names.hpp>
#include <collprobe/inspect/detail/order.hpp>
#include <collprobe/sum/order.hpp>

/// Values that make a sum show its order and what its partial sums keep. `calls` is a `blocking_calls`.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A partial sum that holds 2^large loses up to n units of 2^small, in T and in every wider accumulator that T's
/// range allows to tell (of a half that is float, not double). Up to 2^14 ranks.
template <floating_element T>
struct absorbing {
    static constexpr int large = element_traits<T>::bytes == 8 ? 600 : element_traits<T>::max_exponent > 100 ? 100 : 15;
    static constexpr int small(int ranks) noexcept
    {
        if (large > 15) return 0;
        int exponent = -14; // the smallest normal half, while n of them are at most 2^-10
        while (exponent > -24 && ranks > (1 << (-10 - exponent))) --exponent;
        return exponent;
    }
    /// How many units are counted exactly in T itself.
    static constexpr std::uint32_t most_units = std::uint32_t{1} << (element_traits<T>::digits < 16 ? element_traits<T>::digits : 16);
};

/// The positions of a message by the order that they show, refined probe by probe.
struct position_groups {
    static constexpr std::size_t most = 1024; ///< what is beyond joins the first: too many to be an algorithm

    struct group {
        pair_sizes sizes; ///< of each probe so far
        std::uint64_t first = 0;
        std::uint64_t elements = 0;
    };
    std::vector<std::uint32_t> group_of; ///< by element
    std::vector<group> groups;
    bool too_many = false;

    explicit position_groups(std::uint64_t count) : group_of(count, 0), groups(1) { groups[0].elements = count; }

    /// `size(element)` is what a probe shows.
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

/// The number below `limit` of units that a sum is; `limit` for what is no such number. Compared by bits: a build
/// that flushes subnormal numbers must not take one for zero.
template <floating_element T>
std::uint32_t units_in(T sum, double unit, std::uint32_t limit) noexcept
{
    using bits = typename element_traits<T>::bits_type;
    if (static_cast<bits>(to_bits(sum) & ~element_traits<T>::sign_mask) == 0) return 0;
    const double ratio = is_finite(sum) ? static_cast<double>(sum) / unit : 0;
    const std::uint32_t units = ratio > 0 && ratio < limit ? static_cast<std::uint32_t>(ratio) : 0;
    return to_bits(T(unit * units)) == to_bits(sum) ? units : limit;
}

/// For each pair of ranks the large value goes out from one of them, its negative from the other, a unit from
/// everybody else: the units that arrive are those added after the two have met. All positions at once.
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
        // No more units at once than T can count.
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

/// What one group of positions is known to do.
struct group_arithmetic {
    shown_order shown;
    /// Significant bits that the partial sum after each addition keeps, but the last one; of `exact` and `fused`
    /// one number. 0 where it is unknown.
    std::vector<int> bits;
};

/// The most bits that a probe of T can show.
template <floating_element T>
inline constexpr int most_bits = element_traits<T>::max_exponent > 100 ? 121 : 25;

/// For the partial sum after an addition: 1 goes out from a rank on its one side, 2^-p from one on its other, and
/// -1 from one that is added next. If 2^-p arrives, the sum had at least p + 1 bits. Each group of positions
/// searches for its own largest p; with many ranks up to 32 partial sums are probed, which speak for those after.
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
    const auto inner = static_cast<std::size_t>(ranks) - 2; // partial sums
    const std::size_t step = (inner + 31) / 32;
    for (group_arithmetic& group : groups) group.bits.assign(group.shown.order.empty() ? 1 : inner, 0);
    for (std::size_t at = 0; at < inner; at += step) {
        std::vector<search> searches(groups.size());
        for (std::size_t g = 0; g < groups.size(); ++g) {
            const summation_order& order = groups[g].shown.order;
            if (order.empty()) continue; // any three ranks will do
            const auto [into, from] = order[at];
            searches[g].one = into;
            searches[g].little = from;
            std::size_t next = at + 1;
            while (order[next].into != into && order[next].from != into) ++next;
            searches[g].minus = order[next].into == into ? order[next].from : order[next].into;
        }
        for (int open = most_bits<T>; open > 1; open = (open + 1) / 2) { // as long as the longest search
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
