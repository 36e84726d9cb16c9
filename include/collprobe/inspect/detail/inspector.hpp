// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/inspect/detail/call.hpp>
#include <collprobe/inspect/detail/data.hpp>
#include <collprobe/inspect/detail/names.hpp>
#include <collprobe/inspect/detail/probes.hpp>
#include <collprobe/inspect/detail/rank_exchange.hpp>
#include <collprobe/inspect/detail/search.hpp>
#include <collprobe/inspect/detail/sum_tree.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The inspection of one type and size. It knows the communicator by its calls alone, so it is compiled once.
template <floating_element T>
class inspector {
public:
    /// `calls`: of twice as many elements.
    inspector(int rank, int ranks, std::string communicator, std::uint64_t count, const inspect_options& options,
        summing_calls<T>& calls, rank_exchange& told)
        : rank_(rank), ranks_(ranks), count_(count), options_(options), groups_(ranks, count), calls_(calls),
          told_(told)
    {
        result_.communicator = std::move(communicator);
        result_.element = element_traits<T>::type;
        result_.count = count;
        result_.ranks = ranks_;
    }

    inspection run()
    {
        find_order();
        find_bits();
        count_roundings();
        for (std::uint64_t round = 0; round * count_ < 64; ++round) compare_sums(round);
        time_calls();
        agree();
        return result_;
    }

private:
    static constexpr int own_bits = element_traits<T>::digits;

    /// The observations of one rank, to be compared with those of the others.
    struct verdict {
        std::uint64_t digest = 0;
        bool run_stable = true;
        bool size_stable = true;
        bool permutation_stable = true;
        sum_errors errors{};
        double time_us = 0;
        int bits = 0; ///< as `inspection::partial_sum_bits`
        int roundings = -1;
    };

    /// The ranks make the same probes, also if they see different orders.
    void find_order()
    {
        std::vector<std::uint32_t> arrived(count_);
        const auto probe = [&, this](const rank_pair& pair) {
            probe_pair<T>(calls_, pair, rank_, ranks_, arrived);
            return [&, this](std::uint64_t i) { // the number of terms; 0 if there is none
                const auto n = static_cast<std::uint32_t>(ranks_);
                return arrived[i] < n ? n - arrived[i] : 0;
            };
        };
        const auto unite = [this](std::vector<std::uint8_t>& wanted) {
            const std::vector<std::uint8_t> all = told_.bytes(wanted.data(), wanted.size());
            for (std::size_t i = 0; i < all.size(); ++i) wanted[i % wanted.size()] |= all[i];
        };
        const std::uint64_t each = calls_of_a_probe<T>(ranks_);
        const bool complete
            = search_orders(groups_, ranks_, options_.seed, options_.most_order_calls / each, probe, unite);
        result_.order_calls = groups_.probes.size() * each;
        arithmetic_.clear();
        for (const std::uint32_t group : groups_.group_of) digest(group);
        for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
            for (const std::uint32_t size : groups_.groups[g].sizes) digest(size);
            arithmetic_.push_back({name_group(g, complete), {}});
        }
        orders_agree_ = digests_agree();
        tell_orders();
    }

    shown_order name_group(std::size_t which, bool complete) const
    {
        const auto& group = groups_.groups[which];
        const auto loses_nothing = [](std::uint32_t size) { return size == 2; };
        if (ranks_ > 2 && group.sizes.size() + 1 >= static_cast<std::size_t>(ranks_)
            && std::all_of(group.sizes.begin(), group.sizes.end(), loses_nothing)) {
            return {order_class::exact};
        }
        shown_order shown = recognise(groups_.tree_of_group(which), ranks_);
        if (!complete && shown.tree.empty() && group.known.possible()) shown.kind = order_class::call_limit;
        return shown;
    }

    /// Sets the name and the list of the orders. If they differ between ranks, each rank tells its own, as text.
    void tell_orders()
    {
        std::vector<shown_order> shown;
        for (const group_arithmetic& group : arithmetic_) shown.push_back(group.shown);
        result_.order = classify(shown, ranks_);
        for (std::size_t g = 0; g < arithmetic_.size() && g < 64; ++g) {
            result_.orders.push_back({ranks_ > 256 ? std::string() : brackets_of(shown[g].tree),
                groups_.groups[g].first, groups_.groups[g].elements});
        }
        if (orders_agree_) return;
        const int kind = static_cast<int>(result_.order);
        std::vector<order_list> lists = told_.orders({kind, std::move(result_.orders)});
        result_.orders = merged(lists);
        for (const order_list& each : lists) {
            if (each.kind != kind) result_.order = order_class::other;
        }
        for (const order_list& each : lists) { // one unfinished search of a rank hides a name
            if (each.kind == static_cast<int>(order_class::call_limit)) result_.order = order_class::call_limit;
        }
    }

    /// If the ranks see different orders, then no probe is suitable for all of them. Each rank finds for itself the
    /// accumulator with which its orders reproduce random sums.
    void find_bits()
    {
        if (orders_agree_) {
            probe_bits<T>(calls_, arithmetic_, groups_.group_of, rank_, ranks_);
            return;
        }
        sum_terms(count_, options_.seed, rank_, 0, 0, count_);
        for (const int bits : {own_bits, 24, 53}) {
            if (bits < own_bits) continue;
            std::vector<group_arithmetic> tried = arithmetic_;
            for (group_arithmetic& group : tried) group.bits.assign(group.shown.tree.size(), bits);
            sum_errors found;
            const std::uint64_t step = (count_ - 1) / options_.samples + 1;
            for (std::uint64_t i = 0; i < count_; i += step) {
                found.add(calls_.received()[i], options_.seed, i, ranks_, tried[groups_.group_of[i]]);
            }
            if (found.predicted == 0 || found.reproduced != found.predicted) continue;
            arithmetic_ = std::move(tried);
            for (group_arithmetic& group : arithmetic_) {
                if (group.shown.tree.empty()) group.bits.clear();
            }
            return;
        }
    }

    void count_roundings()
    {
        if (ranks_ <= 2) {
            own_.roundings = ranks_ - 1;
            return;
        }
        int least = most_bits<T>;
        int roundings = 0;
        for (const group_arithmetic& group : arithmetic_) {
            if (!group.known()) return;
            for (const int bits : group.bits) least = std::min(least, bits);
            roundings = std::max(roundings, group.roundings(own_bits));
        }
        own_.bits = least;
        own_.roundings = roundings;
    }

    /// Sends the terms of `as_rank`; element i is term `first + (i + shift) % period`.
    void sum_terms(std::uint64_t count, std::uint64_t seed, int as_rank, std::uint64_t first, std::uint64_t shift,
        std::uint64_t period)
    {
        for (std::uint64_t i = 0; i < count; ++i) {
            calls_.send()[i]
                = random_term<T>(seed, static_cast<std::uint32_t>(as_rank), first + (i + shift) % period);
        }
        calls_.all_reduce(count);
    }

    void compare_sums(std::uint64_t round)
    {
        const std::uint64_t first = round * count_;
        sum_terms(count_, options_.seed, rank_, first, 0, count_);
        const std::vector<T> sums(calls_.received(), calls_.received() + count_);
        for (const T sum : sums) digest(to_bits(sum));
        const auto same = [&, this] { return std::memcmp(sums.data(), calls_.received(), count_ * sizeof(T)) == 0; };
        for (int again = 1; again < options_.repeats; ++again) {
            calls_.all_reduce(count_);
            own_.run_stable = own_.run_stable && same();
        }
        for (int deal = 0; deal < options_.permutations; ++deal) {
            sum_terms(count_, options_.seed, dealt(deal), first, 0, count_);
            own_.permutation_stable = own_.permutation_stable && same();
        }
        compare_places(round);
        const std::uint64_t step = (count_ - 1) / options_.samples + 1;
        for (std::uint64_t i = 0; i < count_; i += step) {
            own_.errors.add(sums[i], options_.seed, first + i, ranks_, arithmetic_[groups_.group_of[i]]);
        }
    }

    /// Sums the same few terms at many places, in messages of several sizes.
    void compare_places(std::uint64_t round)
    {
        const std::uint64_t period = count_ < 1021 ? count_ : 1021; // a prime, so no multiple of a chunk size
        const std::uint64_t seed = options_.seed + 1 + round;
        std::vector<T> expected;
        std::uint64_t shift = 0;
        for (const std::uint64_t count : {count_, 2 * count_, (count_ + 1) / 2, (count_ + 2) / 3, (count_ + 16) / 17,
                 std::uint64_t{1}}) {
            sum_terms(count, seed, rank_, 0, shift, period);
            if (shift == 0) expected.assign(calls_.received(), calls_.received() + period);
            for (std::uint64_t i = 0; i < count; ++i) {
                const bool same = to_bits(calls_.received()[i]) == to_bits(expected[(i + shift) % period]);
                own_.size_stable = own_.size_stable && same;
            }
            shift += 7;
        }
    }

    /// The rank whose terms this rank sends: rotated (deal 0), reversed (deal 1), then random.
    int dealt(int deal) const
    {
        if (deal == 0) return (rank_ + 1) % ranks_;
        if (deal == 1) return ranks_ - 1 - rank_;
        std::vector<int> hands(static_cast<std::size_t>(ranks_));
        for (int rank = 0; rank < ranks_; ++rank) hands[static_cast<std::size_t>(rank)] = rank;
        for (std::size_t left = hands.size(); left > 1; --left) {
            std::swap(hands[left - 1], hands[mix64(static_cast<std::uint64_t>(deal) * 65536 + left) % left]);
        }
        return hands[static_cast<std::size_t>(rank_)];
    }

    void time_calls()
    {
        for (int i = 0; i < options_.warm_ups; ++i) calls_.timed_all_reduce(count_);
        std::vector<std::int64_t> times;
        for (int i = 0; i < options_.timed; ++i) times.push_back(calls_.timed_all_reduce(count_));
        own_.time_us = static_cast<double>(middle_of(view(times)).at) * 1e-3;
    }

    void digest(std::uint64_t value) noexcept { own_.digest = mix64(own_.digest ^ value) + value; }

    bool digests_agree()
    {
        for (const verdict& each : told_.all(own_))
            result_.ranks_agree = result_.ranks_agree && each.digest == own_.digest;
        return result_.ranks_agree;
    }

    /// Sets the result to the worst of the ranks' observations.
    void agree()
    {
        sum_errors errors{0, 0, 1, 0, 0};
        const std::vector<verdict> all = told_.all(own_);
        int bits = all[0].bits;
        int roundings = all[0].roundings;
        for (const verdict& each : all) {
            bits = std::min(bits, each.bits);
            const bool known = roundings >= 0 && each.roundings >= 0;
            roundings = known ? std::max(roundings, each.roundings) : -1;
            result_.ranks_agree = result_.ranks_agree && each.digest == all[0].digest;
            result_.run_stable = result_.run_stable && each.run_stable;
            result_.size_stable = result_.size_stable && each.size_stable;
            result_.permutation_stable = result_.permutation_stable && each.permutation_stable;
            const auto larger = [](double a, double b) { return a < b ? b : a; };
            result_.time_us = larger(result_.time_us, each.time_us);
            errors.max_ulp = larger(errors.max_ulp, each.errors.max_ulp);
            errors.squares = larger(errors.squares, each.errors.squares);
            errors.elements = each.errors.elements;
            errors.predicted += each.errors.predicted;
            errors.reproduced += each.errors.reproduced;
        }
        result_.partial_sum_bits = bits;
        result_.partial_sum_bits_or_more = bits == most_bits<T>;
        result_.roundings_per_element = roundings;
        if (!result_.run_stable) forget_order();
        result_.max_ulp = errors.max_ulp;
        result_.rms_ulp = square_root(errors.squares / static_cast<double>(errors.elements));
        if (errors.predicted != 0) {
            result_.reproduced = static_cast<double>(errors.reproduced) / static_cast<double>(errors.predicted);
        }
        result_.algbw_gbs = static_cast<double>(result_.bytes()) / (result_.time_us * 1e3);
        result_.busbw_gbs = result_.algbw_gbs * 2 * (ranks_ - 1) / ranks_;
    }

    /// If the order changes between calls, then the probes do not belong together, whatever they seem to show.
    void forget_order()
    {
        if (ranks_ <= 2) return;
        if (result_.order != order_class::call_limit) result_.order = order_class::other;
        for (auto& each : result_.orders) each.brackets.clear();
        result_.partial_sum_bits = 0;
        result_.partial_sum_bits_or_more = false;
        result_.roundings_per_element = -1;
    }

    int rank_;
    int ranks_;
    std::uint64_t count_;
    inspect_options options_;
    inspection result_;
    verdict own_;
    position_groups groups_;
    std::vector<group_arithmetic> arithmetic_;
    bool orders_agree_ = true; ///< all ranks see the same orders
    summing_calls<T>& calls_;
    rank_exchange& told_;
};

} // namespace collprobe::detail
