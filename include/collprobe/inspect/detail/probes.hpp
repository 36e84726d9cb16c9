// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/inspect/detail/call.hpp>
#include <collprobe/inspect/detail/names.hpp>
#include <collprobe/inspect/detail/search.hpp>
#include <collprobe/inspect/detail/sum_tree.hpp>

/// Probes: sums of values that show the order and the bits of partial sums.
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

/// One rank of the pair sends a large value, the other its negative, and every other rank a unit. The units that arrive
/// are those added after the two large values have met: `arrived`, by element, or the number of ranks if the sum is no
/// number of units. All positions are probed at once.
template <floating_element T>
void probe_pair(
    summing_calls<T>& calls, const rank_pair& pair, int rank, int ranks, std::vector<std::uint32_t>& arrived)
{
    using probe = absorbing<T>;
    const auto n = static_cast<std::uint32_t>(ranks);
    const auto own = static_cast<std::uint32_t>(rank);
    const double unit = power_of_two(probe::small(ranks));
    arrived.assign(arrived.size(), 0);
    // At most as many units at a time as T can count.
    for (std::uint32_t first = 0; first < n; first += probe::most_units) {
        const bool counts = own >= first && own - first < probe::most_units;
        const double value = own == pair.pivot ? power_of_two(probe::large)
            : own == pair.other                ? -power_of_two(probe::large)
            : counts                           ? unit
                                               : 0;
        for (std::uint64_t i = 0; i < arrived.size(); ++i) calls.send()[i] = T(value);
        calls.all_reduce(arrived.size());
        for (std::uint64_t i = 0; i < arrived.size(); ++i) {
            const std::uint32_t units = units_in(calls.received()[i], unit, n);
            arrived[i] = arrived[i] < n && units < n ? arrived[i] + units : n;
        }
    }
}

/// The number of calls that `probe_pair` makes.
template <floating_element T>
constexpr std::uint64_t calls_of_a_probe(int ranks) noexcept
{
    return (static_cast<std::uint64_t>(ranks) - 1) / absorbing<T>::most_units + 1;
}

/// The arithmetic that was found for one group of positions.
struct group_arithmetic {
    shown_order shown;
    /// Significant bits of the result of each addition except the last; then, if the last one adds more than two
    /// partial sums, the bits that it keeps of them. One number for `exact`. Empty if unknown.
    std::vector<int> bits;

    /// The number of roundings of a value to `own` bits or less, for each addition and the result.
    int roundings(int own) const
    {
        if (shown.kind == order_class::exact) return 1;
        int result = 1;
        for (std::size_t k = 0; k + 1 < shown.tree.size(); ++k) result += bits[k] <= own ? 1 : 0;
        return result;
    }
    /// Whether order and bits are known.
    bool known() const { return shown.kind == order_class::exact || (!shown.tree.empty() && !bits.empty()); }
};

/// The largest number of bits that a probe of T can show.
template <floating_element T>
inline constexpr int most_bits = element_traits<T>::max_exponent > 100 ? 121 : 25;

/// The ranks that show the bits of one partial sum.
struct bit_probe {
    std::uint32_t one = 0, little = 1, minus = 2;
    std::size_t from = 0, to = 1; ///< the members of `group_arithmetic::bits` that get the result
};

/// The probes for one group: at most 32, each for its partial sum and those of a few more terms.
inline std::vector<bit_probe> bit_probes(const sum_tree& tree)
{
    if (tree.empty()) return {bit_probe{}}; // any three ranks are suitable
    std::vector<bit_probe> probes;
    const std::size_t inner = tree.size() - 1;
    const std::size_t step = (inner + 31) / 32;
    for (std::size_t at = 0; at < inner; at += step) {
        bit_probe probe{tree[at][0], tree[at][1], 0, at, at + step < inner ? at + step : inner};
        const auto adds = [&](const joint_addition& sums) {
            return std::find(sums.begin(), sums.end(), probe.one) != sums.end();
        };
        std::size_t next = at + 1;
        while (!adds(tree[next])) ++next;
        probe.minus = tree[next][tree[next][0] == probe.one ? 1 : 0];
        probes.push_back(probe);
    }
    const joint_addition& last = tree.back();
    if (last.size() > 2) probes.push_back({last[0], last[1], last[2], inner, inner + 1});
    return probes;
}

/// For the partial sum after an addition, a rank on one side of the addition sends 1, a rank on the other side 2^-p,
/// and a rank that is added next sends -1. If 2^-p arrives, the sum had at least p + 1 bits. Each group of positions
/// searches for its own largest p.
template <floating_element T>
void probe_bits(summing_calls<T>& calls, std::vector<group_arithmetic>& groups,
    const std::vector<std::uint32_t>& group_of, int rank, int ranks)
{
    if (ranks < 3) return;
    struct search {
        int kept = 0; ///< 2^-kept arrives
        int lost = most_bits<T>;
        bool arrived = true;
    };
    std::vector<std::vector<bit_probe>> probes;
    std::size_t rounds = 0;
    for (group_arithmetic& group : groups) {
        probes.push_back(bit_probes(group.shown.tree));
        group.bits.assign(probes.back().back().to, 0);
        rounds = std::max(rounds, probes.back().size());
    }
    for (std::size_t round = 0; round < rounds; ++round) {
        std::vector<search> searches(groups.size());
        const auto probe_of = [&](std::size_t g) { return probes[g][std::min(round, probes[g].size() - 1)]; };
        for (int open = most_bits<T>; open > 1; open = (open + 1) / 2) { // as many rounds as the longest search
            std::vector<T> own;
            for (std::size_t g = 0; g < groups.size(); ++g) {
                const auto me = static_cast<std::uint32_t>(rank);
                const bit_probe probe = probe_of(g);
                own.push_back(T(me == probe.one ? 1.0
                        : me == probe.little    ? power_of_two(-(searches[g].kept + searches[g].lost) / 2)
                        : me == probe.minus     ? -1.0
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
            const bit_probe probe = probe_of(g);
            for (std::size_t k = probe.from; k < probe.to; ++k) groups[g].bits[k] = searches[g].kept + 1;
        }
    }
    for (group_arithmetic& group : groups) {
        if (group.shown.tree.empty() && group.shown.kind != order_class::exact) group.bits.clear();
    }
}

} // namespace collprobe::detail
