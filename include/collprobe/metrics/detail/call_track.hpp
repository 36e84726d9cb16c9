// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

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
    explicit call_track(std::uint32_t longest, std::uint64_t pushed_before = 0);

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
    static std::uint32_t power(std::uint64_t exponent) noexcept;

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
    std::uint32_t first_repeat(
        std::uint32_t first, std::uint32_t last, std::uint32_t length, std::uint32_t factor) const noexcept;
    void follow(std::uint32_t period, std::uint64_t known_matches) noexcept;
    void judge() noexcept;
    static std::uint64_t least_run(std::uint32_t period, std::uint32_t distinct) noexcept;
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

} // namespace collprobe::inline COLLPROBE_ABI::detail
