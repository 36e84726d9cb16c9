// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>


namespace collprobe_preload {

/// A sequence of 32-bit symbols, and the period that explains the longest part of its end.
///
/// Let L(p) be the length of the longest end of the sequence with period p. The period that is followed is
/// that of the largest L(p); of equal ones, that found first. It is found before L(p) = 3 p. Hashes only
/// propose a period; from then on it has to hold symbol by symbol. Cost: `push` is O(1) on average: a period
/// in (w / 2, w] is looked for at every w / 2 symbols.
class call_track {
public:
    /// Periods up to this one need a run of `layers` symbols, because a step may have as many equal layers.
    static constexpr std::uint32_t longest_of_layers = 2;
    static constexpr std::uint64_t layers = 192;

    /// Finds periods up to `longest`, a power of two of at least 8. `pushed_before`: where its count begins.
    explicit call_track(std::uint32_t longest, std::uint64_t pushed_before = 0)
        : hashes_(std::size_t{2} * longest),
          mask_(std::uint64_t{2} * longest - 1),
          pushed_before_(pushed_before),
          pushed_(pushed_before),
          longest_(longest)
    {
    }

    /// Without `looks`, no new period is looked for; later ones are found all the same.
    void push(std::uint32_t symbol, bool looks = true) noexcept
    {
        const std::uint32_t hash = hash_at(pushed_) * base + symbol;
        ++pushed_;
        hashes_[static_cast<std::size_t>(pushed_ & mask_)] = hash;
        if (period_ != 0) {
            if (symbol_at(pushed_ - period_) == symbol) {
                if (++run_ == judged_at_) judge();
            } else {
                period_ = 0;
                run_ = 0;
                judged_at_ = 0;
                quiet_from_ = ~std::uint64_t{0};
                is_ready_ = false;
            }
        }
        if (looks && pushed_ % 4 == 0 && run_ < quiet_from_) look_for_period();
    }

    std::uint64_t pushed() const noexcept { return pushed_; }
    /// The period that is followed, 0 for none, and L of it.
    std::uint32_t period() const noexcept { return period_; }
    std::uint64_t run() const noexcept { return run_; }
    /// The run has three periods, and is so long that no random sequence has it.
    bool is_ready() const noexcept { return is_ready_; }

    /// Symbol number `at`, from 1. Precondition: it is among the last `kept()`.
    std::uint32_t symbol_at(std::uint64_t at) const noexcept { return hash_at(at) - hash_at(at - 1) * base; }
    std::uint64_t kept() const noexcept { return mask_; }
    /// Precondition: there are so many symbols, and they are kept. `factor` is power(length).
    std::uint32_t hash_of_last(std::uint64_t length, std::uint32_t factor) const noexcept
    {
        return hash_at(pushed_) - hash_at(pushed_ - length) * factor;
    }
    std::uint64_t symbols_at_hand() const noexcept
    {
        const std::uint64_t seen = pushed_ - pushed_before_;
        return seen < kept() ? seen : kept();
    }

    /// `base` to that power, modulo 2^32.
    static std::uint32_t power(std::uint64_t exponent) noexcept
    {
        std::uint32_t result = 1;
        for (std::uint32_t square = base; exponent != 0; exponent >>= 1, square *= square) {
            if (exponent % 2 == 1) result *= square;
        }
        return result;
    }

private:
    static constexpr std::uint32_t base = 0x9e3779b5u; // odd, with powers of the largest order

    std::uint32_t hash_at(std::uint64_t at) const noexcept
    {
        return hashes_[static_cast<std::size_t>(at & mask_)];
    }
    /// Whether the last `length` symbols are those `distance` before.
    bool repeats(std::uint64_t length, std::uint64_t distance, std::uint32_t factor) const noexcept
    {
        return hash_of_last(length, factor)
            == hash_at(pushed_ - distance) - hash_at(pushed_ - distance - length) * factor;
    }
    void look_for_period() noexcept;

    /// The least period in [first, last] for which the last `length` symbols repeat; 0 if there is none.
    std::uint32_t first_repeat(
        std::uint32_t first, std::uint32_t last, std::uint32_t length, std::uint32_t factor) const noexcept
    {
        const std::uint32_t sought = hash_of_last(length, factor);
        const std::uint32_t* const hashes = hashes_.data();
        const auto mask = static_cast<std::uint32_t>(mask_);
        auto end = static_cast<std::uint32_t>(pushed_) - first;
        for (std::uint32_t period = first; period <= last; ++period, --end) {
            if (hashes[end & mask] - hashes[(end - length) & mask] * factor == sought) return period;
        }
        return 0;
    }

    void follow(std::uint32_t period, std::uint64_t known_matches) noexcept;

    /// Decides whether the run is a step's. (It has no shorter period: that would have the same run, and be found
    /// before.)
    void judge() noexcept
    {
        judged_at_ = least_run(period_, distinct_symbols(period_));
        is_ready_ = run_ >= judged_at_;
    }

    /// Three periods, or so many symbols that they repeat by chance with probability 2^-32. One or two calls may
    /// be the layers of a step.
    static std::uint64_t least_run(std::uint32_t period, std::uint32_t distinct) noexcept
    {
        // 32 / log2(distinct), rounded up
        constexpr unsigned char matches[16] = {32, 32, 32, 21, 16, 14, 13, 12, 11, 11, 10, 10, 9, 9, 9, 9};
        const std::uint64_t needed = std::uint64_t{period} + (distinct < 16 ? matches[distinct] : 8);
        std::uint64_t result = 3 * std::uint64_t{period};
        if (needed > result) result = needed;
        if (period <= longest_of_layers && result < layers) result = layers;
        return result;
    }

    std::uint32_t distinct_symbols(std::uint32_t length) const noexcept;

    std::vector<std::uint32_t> hashes_; // of all symbols up to the last ones: h * base + symbol
    std::uint64_t mask_;
    std::uint64_t pushed_before_;
    std::uint64_t pushed_;
    std::uint64_t run_ = 0;
    std::uint64_t judged_at_ = 0; // the run at which `judge` is due; 0: never
    std::uint64_t quiet_from_ = ~std::uint64_t{0}; // the run from which on no other period can explain more
    std::uint32_t longest_;
    std::uint32_t period_ = 0;
    bool is_ready_ = false;
};

/// Looks, at every `wide` / 2 symbols, at the periods in (wide / 2, wide] that explain more than the one
/// followed.
inline void call_track::look_for_period() noexcept
{
    constexpr std::uint32_t narrowest = 8;
    const std::uint64_t at_hand = symbols_at_hand();
    std::uint32_t factor = base * base * base * base; // power(wide / 2)
    for (std::uint32_t wide = narrowest; wide <= longest_ && pushed_ % (wide / 2) == 0;
         wide *= 2, factor *= factor) {
        // Two periods of a run of this length have a common divisor that is a period (Fine and Wilf, 1965).
        if (period_ != 0 && run_ >= std::uint64_t{period_} + wide) continue;
        std::uint32_t period = wide == narrowest ? 1 : wide / 2 + 1;
        for (; period <= wide && period + wide / 2 <= at_hand; ++period) {
            if (run_ < period + wide / 2) {
                const std::uint64_t most = at_hand - wide / 2;
                period = first_repeat(
                    period, most < wide ? static_cast<std::uint32_t>(most) : wide, wide / 2, factor);
                if (period != 0) follow(period, wide / 2);
                else break;
            } else if (const std::uint64_t matches = run_ + 1 - period; run_ < at_hand) {
                if (repeats(matches, period, power(matches))) follow(period, matches);
            }
        }
    }
}

/// Precondition: the last `known_matches` symbols are those `period` before.
inline void call_track::follow(std::uint32_t period, std::uint64_t known_matches) noexcept
{
    std::uint64_t least = known_matches;
    std::uint64_t most = symbols_at_hand() - period;
    while (least < most) {
        const std::uint64_t middle = least + (most - least + 1) / 2;
        if (repeats(middle, period, power(middle))) least = middle;
        else most = middle - 1;
    }
    period_ = period;
    run_ = period + least;
    quiet_from_ = std::uint64_t{period} + longest_;
    is_ready_ = false;
    judged_at_ = least_run(period, period);
    if (run_ >= judged_at_) judge();
}

/// Of the last `length`; 16 stands for all numbers from there on.
inline std::uint32_t call_track::distinct_symbols(std::uint32_t length) const noexcept
{
    if (length >= 16) return 16; // two distinct ones give enough evidence then
    std::uint32_t seen[16];
    std::uint32_t distinct = 0;
    for (std::uint32_t i = 0; i < length; ++i) {
        const std::uint32_t symbol = symbol_at(pushed_ - i);
        std::uint32_t same = 0;
        while (same < distinct && seen[same] != symbol) ++same;
        if (same == distinct) seen[distinct++] = symbol;
    }
    return distinct;
}

} // namespace collprobe_preload
