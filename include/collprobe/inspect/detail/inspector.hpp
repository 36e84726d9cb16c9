// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/middle.hpp>
#include <collprobe/inspect/detail/call.hpp>
#include <collprobe/inspect/detail/codes.hpp>
#include <collprobe/inspect/detail/data.hpp>
#include <collprobe/inspect/detail/names.hpp>
#include <collprobe/inspect/detail/probes.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The inspection of one type and size.
template <floating_element T, communicator Comm>
class inspector {
public:
    inspector(Comm& comm, stream_ref_of<Comm> on, std::uint64_t count, const inspect_options& options, call_site where)
        : rank_(comm.rank()), ranks_(comm.size()), count_(count), options_(options), groups_(count),
          calls_(comm, on, 2 * count, 2 * count, where),
          verdicts_(comm, on, sizeof(verdict), sizeof(verdict) * static_cast<std::uint64_t>(comm.size()), where)
    {
        result_.communicator = name_of(comm);
        result_.element = element_traits<T>::type;
        result_.count = count;
        result_.ranks = ranks_;
    }

    inspection run()
    {
        find_codes();
        if (result_.codes.empty()) {
            find_order();
            find_bits();
        }
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
    };

    /// The next calls depend on the observations, so these must be equal on all ranks.
    void find_codes()
    {
        arithmetic_.assign(1, {});
        if (ranks_ == 1) return;
        const code_block block = find_block<T>(calls_, rank_, count_);
        digest(block.first);
        digest(block.elements);
        if (!digests_agree() || block.elements == 0) return;
        const code_values codes = find_values<T>(calls_, block, rank_, count_, options_.seed);
        for (const double each : codes.values) digest(to_bits(each));
        if (!digests_agree()) return;
        result_.codes = codes.name();
        result_.code_block = block.elements;
        result_.order = order_class::codes;
        if (codes.name() == "unknown") return;
        result_.roundings_per_element = count_code_roundings<T>(calls_, block, codes, rank_, ranks_, count_);
        digest(static_cast<std::uint64_t>(result_.roundings_per_element));
    }

    void find_order()
    {
        arithmetic_.clear();
        const std::vector<rank_pair> pairs = pairs_to_probe(ranks_);
        groups_ = probe_order<T>(calls_, pairs, rank_, ranks_, count_);
        for (const std::uint32_t group : groups_.group_of) digest(group);
        for (const auto& group : groups_.groups) {
            for (const std::uint32_t size : group.sizes) digest(size);
            arithmetic_.push_back({groups_.too_many ? shown_order{} : recognise(group.sizes, pairs, ranks_), {}});
        }
        // The next calls depend on the observations, so these must be equal on all ranks.
        if (!digests_agree()) {
            groups_ = position_groups(count_);
            arithmetic_.assign(1, {});
        }
        std::vector<shown_order> shown;
        for (const group_arithmetic& group : arithmetic_) shown.push_back(group.shown);
        result_.order = classify(shown, ranks_);
        for (std::size_t g = 0; g < arithmetic_.size() && g < 64; ++g) {
            const summation_order& order = arithmetic_[g].shown.order;
            result_.orders.push_back({ranks_ > 64 || order.empty() ? std::string() : brackets_of(order),
                groups_.groups[g].first, groups_.groups[g].elements});
        }
    }

    void find_bits()
    {
        probe_bits<T>(calls_, arithmetic_, groups_.group_of, rank_, ranks_);
        bool known = true;
        int least = most_bits<T>;
        int roundings = 0;
        for (group_arithmetic& group : arithmetic_) {
            const bool no_order = group.shown.kind == order_class::exact || group.shown.kind == order_class::fused;
            if (group.shown.order.empty() && !no_order && ranks_ > 1) {
                group.bits.clear();
                known = false;
            }
            int here = 1; // the rounding of the result
            for (const int bits : group.bits) {
                least = bits < least ? bits : least;
                if (bits <= own_bits && !no_order) ++here;
            }
            roundings = here > roundings ? here : roundings;
        }
        if (known) result_.roundings_per_element = ranks_ == 1 ? 0 : roundings;
        if (known && ranks_ > 2) {
            result_.partial_sum_bits = least;
            result_.partial_sum_bits_or_more = least == most_bits<T>;
        }
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

    std::vector<verdict> all_verdicts()
    {
        std::memcpy(verdicts_.send(), &own_, sizeof own_);
        verdicts_.all_gather(sizeof own_);
        std::vector<verdict> all(static_cast<std::size_t>(ranks_));
        std::memcpy(all.data(), verdicts_.received(), all.size() * sizeof own_);
        return all;
    }
    bool digests_agree()
    {
        for (const verdict& each : all_verdicts())
            result_.ranks_agree = result_.ranks_agree && each.digest == own_.digest;
        return result_.ranks_agree;
    }

    /// Sets the result to the worst of the ranks' observations.
    void agree()
    {
        sum_errors errors{0, 0, 1, 0, 0};
        const std::vector<verdict> all = all_verdicts();
        for (const verdict& each : all) {
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
        result_.max_ulp = errors.max_ulp;
        result_.rms_ulp = square_root(errors.squares / static_cast<double>(errors.elements));
        if (errors.predicted != 0) {
            result_.reproduced = static_cast<double>(errors.reproduced) / static_cast<double>(errors.predicted);
        }
        result_.algbw_gbs = static_cast<double>(result_.bytes()) / (result_.time_us * 1e3);
        result_.busbw_gbs = result_.algbw_gbs * 2 * (ranks_ - 1) / ranks_;
    }

    int rank_;
    int ranks_;
    std::uint64_t count_;
    inspect_options options_;
    inspection result_;
    verdict own_;
    position_groups groups_;
    std::vector<group_arithmetic> arithmetic_;
    blocking_calls<T, Comm> calls_;
    blocking_calls<std::uint8_t, Comm> verdicts_;
};

} // namespace collprobe::detail
