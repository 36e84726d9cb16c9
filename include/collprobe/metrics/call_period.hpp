// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/core/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/detail/call_track.hpp>

/// Finds the steps of a training program from the sequence of its calls on a communicator. metrics/README.md
/// has the rules with their reasons, what they find in recorded programs, and what no rule can find.
namespace collprobe::inline COLLPROBE_ABI {

/// Where the number of a step comes from, in order of trust.
enum class step_source : std::uint8_t {
    tag, ///< the call carried it
    marked, ///< the program told it before the calls of the step
    nvtx, ///< the program told it by a range for profilers
    period, ///< it counts the returns of a repeated sequence of calls
    calls, ///< it counts blocks of `call_period::calls_of_unlocked_step` calls
};

constexpr const char* name(step_source source) noexcept
{
    switch (source) {
    case step_source::tag: return "tag";
    case step_source::marked: return "marked";
    case step_source::nvtx: return "nvtx";
    case step_source::period: return "period";
    case step_source::calls: return "calls";
    }
    return "unknown";
}

/// What makes two calls the same one of two steps, as a hash: numbers that all ranks give alike, in any
/// numbering. No addresses, streams or handles. Its upper 24 bits do not depend on `count`.
constexpr std::uint64_t call_signature(
    unsigned operation, unsigned type, std::uint64_t count, unsigned reduction, unsigned root) noexcept
{
    const std::uint64_t kind = detail::mix64(
        detail::mix64((std::uint64_t{operation} << 32 | type) + 1) + (std::uint64_t{reduction} << 32 | root));
    return (kind & 0xffffff0000000000u) | detail::mix64(kind + count) >> 24;
}

/// Extra calls of a step have buckets from here on.
inline constexpr std::uint32_t first_extra_bucket = 4096;

/// Where a call belongs.
struct call_place {
    /// As told. Found steps count up; a number may be left out, none comes again.
    std::uint64_t step = 0;
    /// The index of a regular call in its step: 0 to `period` - 1. An extra call has a number of its own,
    /// given by its signature and by how often that came in this step. In a step of source `calls`: the index
    /// of the call. In a told step: the index among the large calls; small calls are extra.
    std::uint32_t bucket = 0;
    std::uint32_t period = 0; ///< regular calls of a found step; 0: none is found
    step_source source = step_source::calls;
    bool first = false; ///< of the step
    bool locked = false; ///< a found step is followed, also beneath told ones
    bool extra = false; ///< no regular call of the step: it came in between
};

struct call_counts {
    std::uint64_t calls = 0;
    std::uint64_t extra_calls = 0;
    std::uint64_t calls_unlocked = 0;
    std::uint64_t steps = 0; ///< begun, of any source
    std::uint64_t steps_unlocked = 0; ///< those of source `calls`
    std::uint64_t locks = 0;
    std::uint64_t losses = 0;
};

/// Finds steps, call by call. Give it all collective calls of a communicator in their order.
///
/// The step is the sequence of calls that came three times in a row and explains most of the latest calls, of
/// large calls first. Calls that come in between are extra; too many of them end the lock. The step begins
/// where the repetition began. A call is large with at least 64 KiB, or 1/64 of the largest one so far.
/// Limits: 4096 large calls a step, or 2048 of any size.
/// Preconditions: no concurrent use. Equal sequences give equal places: no clock, address or random number
/// has a part.
/// Cost: about 12 ns a call while a step is followed, up to 40 ns while none is; 61 KiB, most of it allocated
/// by the constructor.
class call_period {
public:
    static constexpr std::uint32_t calls_of_unlocked_step = 1024;
    static constexpr std::uint32_t longest = 4096;

    /// `calls_before`: where the counts of calls begin.
    explicit call_period(std::uint64_t calls_before = 0);

    /// The place of the next call. `bytes` as the call gives them, alike on all ranks.
    call_place add(std::uint64_t signature, std::uint64_t bytes) noexcept
    {
        return place_of(signature, bytes, nullptr);
    }
    /// The same for a call that carries the number of its step.
    call_place add(std::uint64_t signature, std::uint64_t bytes, std::uint64_t tag) noexcept
    {
        return place_of(signature, bytes, &tag);
    }
    /// The calls from here on are of this step, until the next mark. `by` is `marked` or `nvtx`; the latter
    /// does nothing where the program marks its steps itself.
    void mark(std::uint64_t step, step_source by = step_source::marked) noexcept;
    /// No more told steps.
    void unmark() noexcept;

    const call_counts& counted() const noexcept { return counts_; }
    /// Regular calls of the step that is followed; 0: none is.
    std::uint32_t period() const noexcept { return held_.period; }

private:
    enum sequence : std::uint8_t { large, all, kinds }; // in order of preference

    /// A sequence of calls that is expected to come again and again.
    struct step_pattern {
        std::uint32_t period = 0; // 0: none
        std::uint32_t next = 0; // index of the call that is expected
        std::uint64_t begin = 0; // of the symbols of a step without extra ones, in the track
        sequence from = large;
        bool has_extra = false; // the step so far
        bool is_known = false;
        bool is_established = false;
        std::uint32_t large_calls = 0; // of a step
        std::int64_t credit = 0;
        std::uint64_t steps = 0;
        std::uint64_t clean_steps = 0; // the last ones in a row without extra symbols
        std::uint64_t first_step = 0; // its number, at least
    };
    /// A step that was followed before.
    struct known_step {
        std::uint32_t period = 0; // 0: none
        std::uint32_t hash = 0; // of its last `hashed` symbols
        std::uint32_t factor = 0; // power(hashed)
        std::uint32_t hashed = 0;
        std::uint32_t large_calls = 0;
        sequence from = large;
        bool is_established = false;
        std::uint64_t used = 0; // number of the call
    };
    /// An extra call: the n-th of its signature in a step.
    struct extra_call {
        std::uint32_t symbol = 0;
        std::uint32_t occurrence = 0;
        std::uint32_t step = 0; // the last one it came in, by `serial_`
    };
    struct told_step {
        std::uint64_t step = 0;
        std::uint32_t large_calls = 0; // so far
        step_source source = step_source::calls; // `calls`: none
    };

    call_place place_of(std::uint64_t signature, std::uint64_t bytes, const std::uint64_t* tag) noexcept;
    void push(std::uint64_t signature, bool is_large) noexcept;
    call_place found_place(bool is_large) noexcept;
    static void tell(
        call_place& place, told_step& told, std::uint64_t step, step_source source, bool is_large) noexcept;
    bool begins_next(bool is_large) noexcept;
    bool follow(bool is_large) noexcept;
    void finish_step() noexcept;
    void lose() noexcept;
    void remember() noexcept;
    void look_for_step(bool is_large) noexcept;
    bool look_for_known_step(bool is_large, std::uint32_t longer_than) noexcept;
    void prepare(sequence from) noexcept;
    step_pattern pattern_of(sequence from, std::uint32_t period, std::uint64_t run) const noexcept;
    bool may_follow(sequence from) const noexcept;
    bool repeats_large_calls() noexcept;
    std::uint32_t large_calls_of_all() noexcept;
    std::uint32_t bucket_of_extra() noexcept;

    detail::call_track& track(sequence which) noexcept { return tracks_[which]; }
    const detail::call_track& track(sequence which) const noexcept { return tracks_[which]; }
    bool comes(const step_pattern& pattern) const noexcept
    {
        return track(pattern.from).symbol_at(pattern.begin + pattern.next)
            == (pattern.from == kinds ? kind_ : symbol_);
    }
    bool holds_layers() const noexcept
    {
        return held_.from == large && held_.period <= detail::call_track::longest_of_layers
            && !held_.is_established;
    }
    static bool has_symbol(sequence from, bool is_large) noexcept { return from == all || is_large; }

    detail::call_track tracks_[3];
    call_counts counts_;
    std::uint64_t largest_ = 0;
    std::uint64_t large_from_ = 0;
    std::uint64_t large_in_a_row_ = 0; // calls
    std::uint32_t symbol_ = 0; // of this call; odd if it is large
    std::uint32_t kind_ = 0;

    step_pattern held_;
    step_pattern next_; // takes effect where its step begins
    known_step known_[4];
    std::uint64_t established_until_[3]
        = {}; // symbols of each track when an established step was last followed
    bool was_established_ = false;
    std::uint64_t counted_run_ = ~std::uint64_t{0}; // for this period of all calls
    std::uint32_t counted_period_ = 0;
    std::uint32_t counted_large_ = 0; // so many are large
    std::uint32_t kinds_period_ = 0; // the period of `kinds` for which these are counted:
    std::uint64_t stable_calls_ = 0; // that have the same count as well

    std::uint64_t step_ = 0; // found
    std::uint32_t index_ = 0; // of the next call in an unlocked step
    std::uint64_t unlocked_step_ = 0; // the first one since the lock was lost
    std::uint64_t unlocked_from_[3] = {}; // symbols of each track before it
    std::uint64_t last_step_ = 0; // told or found
    step_source last_source_ = step_source::calls;
    std::uint32_t serial_ = 0; // of steps, told or found

    told_step tagged_;
    told_step marked_;
    std::uint64_t mark_ = 0;
    step_source marked_by_ = step_source::calls; // `calls`: no mark

    static constexpr std::uint32_t most_extras = 256;
    extra_call extras_[most_extras];
    std::uint16_t extra_index_[2 * most_extras] = {}; // 1 + place in `extras_`; 0: none
    std::uint32_t extra_count_ = 0;
};

} // namespace collprobe::inline COLLPROBE_ABI

#if COLLPROBE_DEFINITIONS
#include <collprobe/metrics/detail/call_period.ipp>
#endif
