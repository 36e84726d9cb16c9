// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/detail/math.hpp>

#include "call_track.hpp"

/// Finds the steps of a training program from the sequence of its calls on a communicator. call_period.md has the rules
/// with their reasons, what they find in recorded programs, and what no rule can find.
namespace collprobe_preload {

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
    using collprobe::detail::mix64;
    const std::uint64_t kind
        = mix64(mix64((std::uint64_t{operation} << 32 | type) + 1) + (std::uint64_t{reduction} << 32 | root));
    return (kind & 0xffffff0000000000u) | mix64(kind + count) >> 24;
}

/// Extra calls of a step have buckets from here on.
inline constexpr std::uint32_t first_extra_bucket = 4096;

/// Where a call belongs.
struct call_place {
    /// As told. Found steps count up; a number may be left out, none comes again.
    std::uint64_t step = 0;
    /// The index of a regular call in its step. An extra call has a number of its own, given by its signature and by
    /// how often that came in this step. In a step of source `calls`: the index of the call. In a told step: the index
    /// among the large calls; small calls are extra.
    std::uint32_t bucket = 0;
    step_source source = step_source::calls;
    bool first = false; ///< of the step
    bool extra = false; ///< no regular call of the step: it came in between
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
    explicit call_period(std::uint64_t calls_before = 0)
        : calls_(calls_before), tracks_{call_track(longest, calls_before), call_track(longest / 2, calls_before),
            call_track(longest / 4, calls_before)}
    {
        for (std::uint64_t& from : unlocked_from_) from = calls_before;
    }

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
    void mark(std::uint64_t step, step_source by = step_source::marked) noexcept
    {
        if (by != step_source::nvtx) by = step_source::marked;
        if (by == step_source::nvtx && marked_by_ == step_source::marked) return;
        mark_ = step;
        marked_by_ = by;
    }

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
        call_place& place, told_step& told, std::uint64_t step, step_source source, bool is_large) noexcept
    {
        if (told.source != source || told.step != step) told = {step, 0, source};
        place.step = step;
        place.source = source;
        place.extra = !is_large;
        if (is_large) place.bucket = told.large_calls++;
    }

    bool begins_next(bool is_large) noexcept;
    bool follow(bool is_large) noexcept;
    void finish_step() noexcept;

    void lose() noexcept
    {
        if (held_.is_established) {
            was_established_ = true;
            for (int which = 0; which < 3; ++which) established_until_[which] = tracks_[which].pushed();
        }
        held_ = {};
        unlocked_step_ = ++step_;
        index_ = 0;
        for (const sequence which : {large, all, kinds}) unlocked_from_[which] = track(which).pushed();
    }

    void remember() noexcept;
    void look_for_step(bool is_large) noexcept;
    bool look_for_known_step(bool is_large, std::uint32_t longer_than) noexcept;

    void prepare(sequence from) noexcept
    {
        next_ = pattern_of(from, track(from).period(), track(from).run());
        if (from == all) next_.large_calls = large_calls_of_all();
    }

    step_pattern pattern_of(sequence from, std::uint32_t period, std::uint64_t run) const noexcept;

    /// While an established step was followed within the last period of a sequence, that sequence is no step: it
    /// holds steps, and something else.
    bool may_follow(sequence from) const noexcept
    {
        return !was_established_ || track(from).pushed() - established_until_[from] >= track(from).period();
    }

    /// Whether the period of all calls holds more than one of the large ones, which only need more evidence.
    bool repeats_large_calls() noexcept
    {
        const call_track& calls = track(large);
        return calls.period() > call_track::longest_of_layers && calls.period() < large_calls_of_all()
            && calls.run() > large_calls_of_all();
    }

    std::uint32_t large_calls_of_all() noexcept;
    std::uint32_t bucket_of_extra() noexcept;

    call_track& track(sequence which) noexcept { return tracks_[which]; }
    const call_track& track(sequence which) const noexcept { return tracks_[which]; }
    bool comes(const step_pattern& pattern) const noexcept
    {
        return track(pattern.from).symbol_at(pattern.begin + pattern.next)
            == (pattern.from == kinds ? kind_ : symbol_);
    }
    bool holds_layers() const noexcept
    {
        return held_.from == large && held_.period <= call_track::longest_of_layers
            && !held_.is_established;
    }
    static bool has_symbol(sequence from, bool is_large) noexcept { return from == all || is_large; }

    std::uint64_t calls_ = 0;
    call_track tracks_[3];
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

inline call_place call_period::place_of(
    std::uint64_t signature, std::uint64_t bytes, const std::uint64_t* tag) noexcept
{
    constexpr std::uint64_t always_large = 65536;
    if (bytes > largest_) {
        largest_ = bytes;
        large_from_ = collprobe::detail::lesser(always_large, bytes / 64);
    }
    const bool is_large = bytes >= large_from_;
    ++calls_;
    push(signature, is_large);
    call_place place = found_place(is_large);
    look_for_step(is_large);
    if (tag != nullptr) tell(place, tagged_, *tag, step_source::tag, is_large);
    else if (marked_by_ != step_source::calls) tell(place, marked_, mark_, marked_by_, is_large);

    place.first = serial_ == 0 || place.step != last_step_ || place.source != last_source_;
    if (place.first) {
        ++serial_;
        last_step_ = place.step;
        last_source_ = place.source;
    }
    if (place.extra) place.bucket = bucket_of_extra();
    return place;
}

inline void call_period::push(std::uint64_t signature, bool is_large) noexcept
{
    symbol_ = (static_cast<std::uint32_t>((signature * 0x9e3779b97f4a7c15u) >> 32) & ~1u) | is_large;
    const bool is_held = held_.period != 0;
    large_in_a_row_ = is_large ? large_in_a_row_ + 1 : 0;
    track(all).push(symbol_, (!is_held || holds_layers()) && large_in_a_row_ < track(all).kept());
    if (!is_large) return;
    track(large).push(symbol_, !held_.is_established);
    kind_ = (static_cast<std::uint32_t>(signature >> 40) + 1) * 0x85ebca6bu;
    track(kinds).push(kind_, !is_held);
    if (is_held) return;
    if (kinds_period_ != track(kinds).period()) {
        kinds_period_ = track(kinds).period();
        stable_calls_ = 0;
    }
    if (kinds_period_ != 0 && track(large).symbol_at(track(large).pushed() - kinds_period_) == symbol_) {
        ++stable_calls_;
    }
}

inline call_place call_period::found_place(bool is_large) noexcept
{
    call_place place;
    const bool begins = next_.period != 0 && begins_next(is_large);
    if (held_.period != 0) {
        const std::uint32_t index = held_.next;
        place.extra = !has_symbol(held_.from, is_large) || !(begins || follow(is_large));
        if (held_.period != 0) {
            place.source = step_source::period;
            if (!place.extra) {
                place.bucket = index;
                step_ += index == 0 && !begins;
            }
            place.step = step_;
            if (!place.extra && ++held_.next == held_.period) finish_step();
            return place;
        }
        place.extra = false;
    }
    place.step = step_;
    place.bucket = index_;
    if (++index_ == calls_of_unlocked_step) {
        index_ = 0;
        ++step_;
    }
    return place;
}

/// Follows the step that is about to be held. True if it is held from this call on.
inline bool call_period::begins_next(bool is_large) noexcept
{
    if (!has_symbol(next_.from, is_large)) return false;
    if (!comes(next_)) {
        next_ = {};
        return false;
    }
    if (next_.next == 0 && is_large) {
        held_ = next_;
        next_ = {};
        step_ = held_.first_step > step_ ? held_.first_step : step_ + 1;
        return true;
    }
    // In the sequence of all calls a step begins with a large one.
    if (next_.next == 0) ++next_.begin;
    else if (++next_.next == next_.period) next_.next = 0;
    return false;
}

/// Whether this call is the expected one of the step that is held. Too many others end that.
inline bool call_period::follow(bool is_large) noexcept
{
    if (comes(held_)) {
        const std::int64_t most = std::int64_t{64} + held_.period;
        held_.credit += held_.credit < most;
        return true;
    }
    held_.has_extra = true;
    if (is_large) held_.credit -= 8;
    const call_track& calls = track(held_.from);
    if (held_.credit < 0 || calls.pushed() + 2 - held_.begin - held_.next >= calls.kept()) {
        lose();
        // The unlocked step begins with this call.
        for (const sequence which : {large, all, kinds}) unlocked_from_[which] -= has_symbol(which, is_large);
    }
    return false;
}

inline void call_period::finish_step() noexcept
{
    const call_track& calls = track(held_.from);
    held_.next = 0;
    ++held_.steps;
    if (held_.has_extra) {
        held_.clean_steps = 0;
        held_.has_extra = false;
        if (calls.pushed() + 2 - held_.begin >= calls.kept()) return lose();
    } else {
        held_.begin = calls.pushed() + 1 - held_.period;
        ++held_.clean_steps;
    }
    const bool is_short = held_.period < 5;
    if (!held_.is_established && held_.steps >= (is_short ? 1024 : 32)) {
        held_.is_established = true;
        held_.is_known = false;
    }
    if (!held_.is_known && held_.steps >= (is_short ? 1024 : 4)) remember();
}

/// Keeps a hash of the step, by which it is found again after one period.
inline void call_period::remember() noexcept
{
    constexpr std::uint32_t least = 16;
    const std::uint32_t periods = held_.period < least ? (least + held_.period - 1) / held_.period : 1;
    if (held_.clean_steps < periods) return;
    const std::uint32_t hashed = periods * held_.period;
    const std::uint32_t factor = call_track::power(hashed);
    const std::uint32_t hash = track(held_.from).hash_of_last(hashed, factor);
    known_step* place = &known_[0];
    for (known_step& known : known_) {
        if (known.period == held_.period && known.from == held_.from && known.hash == hash) {
            place = &known;
            break;
        }
        if (known.used < place->used) place = &known;
    }
    *place = {held_.period, hash, factor, hashed, held_.large_calls, held_.from, held_.is_established, calls_};
    held_.is_known = true;
}

inline void call_period::look_for_step(bool is_large) noexcept
{
    if (held_.period != 0) {
        if (held_.is_established) return;
        if (held_.has_extra && look_for_known_step(is_large, held_.period)) return;
        if (next_.period != 0) return;
        // A longer sequence of large calls explains what was extra to a short one, as layers in a step.
        if (is_large && track(large).is_ready() && track(large).period() > held_.large_calls
            && may_follow(large)) {
            prepare(large);
        } else if (holds_layers() && track(all).is_ready()
            && track(all).period() > call_track::longest_of_layers && may_follow(all)) {
            prepare(all);
        }
        return;
    }
    if (look_for_known_step(is_large, 0)) return;
    if (next_.period != 0 && next_.from != all) return;
    if (is_large && track(large).is_ready() && may_follow(large)) return prepare(large);
    if (next_.period != 0) return;
    if (track(all).is_ready() && may_follow(all) && !repeats_large_calls()) return prepare(all);
    // Counts that vary: some call of each step has to be the same, and no sequence with counts may be under
    // way.
    constexpr std::uint32_t shortest = 8;
    constexpr std::uint64_t stable = 2;
    if (is_large && track(kinds).is_ready() && track(kinds).period() >= shortest && stable_calls_ >= stable
        && track(large).period() <= track(kinds).period() && may_follow(kinds)) {
        prepare(kinds);
    }
}

/// How many calls of the period of all calls are large.
inline std::uint32_t call_period::large_calls_of_all() noexcept
{
    const call_track& calls = track(all);
    const std::uint64_t run_began = calls.pushed() - calls.run();
    if (counted_run_ != run_began || counted_period_ != calls.period()) {
        counted_run_ = run_began;
        counted_period_ = calls.period();
        counted_large_ = 0;
        for (std::uint32_t i = 0; i < counted_period_; ++i)
            counted_large_ += calls.symbol_at(calls.pushed() - i) & 1;
    }
    return counted_large_;
}

inline bool call_period::look_for_known_step(bool is_large, std::uint32_t longer_than) noexcept
{
    for (known_step& known : known_) {
        if (known.period <= longer_than || !has_symbol(known.from, is_large)) continue;
        const call_track& calls = track(known.from);
        if (calls.symbols_at_hand() < known.hashed) continue;
        if (calls.hash_of_last(known.hashed, known.factor) != known.hash) continue;
        next_ = pattern_of(known.from, known.period, known.hashed);
        next_.large_calls = known.large_calls;
        next_.is_established = known.is_established;
        next_.is_known = true;
        known.used = calls_;
        return true;
    }
    return false;
}

/// The step whose period explains the last `run` symbols; it began with the first of these.
inline call_period::step_pattern call_period::pattern_of(
    sequence from, std::uint32_t period, std::uint64_t run) const noexcept
{
    step_pattern result;
    result.period = period;
    result.from = from;
    result.next = static_cast<std::uint32_t>(run % period);
    result.begin = track(from).pushed() + 1 - period - result.next;
    result.large_calls = period;
    result.credit = period;
    const std::uint64_t before = track(from).pushed() - run; // symbols
    if (held_.period == 0 && before >= unlocked_from_[from]) {
        result.first_step = unlocked_step_ + (before > unlocked_from_[from]) + (run + period - 1) / period;
    }
    return result;
}

/// Equal calls of a step are told apart by their order. A call that finds no place shares the last number.
inline std::uint32_t call_period::bucket_of_extra() noexcept
{
    constexpr std::uint32_t most_occurrences = 16;
    constexpr std::uint32_t places = 2 * most_extras;
    for (std::uint32_t occurrence = 0; occurrence < most_occurrences; ++occurrence) {
        std::uint32_t place = ((symbol_ + occurrence * 0x9e3779b9u) * 0x85ebca6bu) >> 23;
        static_assert(places == 1u << (32 - 23));
        for (;; place = (place + 1) % places) {
            if (extra_index_[place] == 0) {
                if (extra_count_ == most_extras - 1) return first_extra_bucket + most_extras - 1;
                extras_[extra_count_] = {symbol_, occurrence, serial_};
                extra_index_[place] = static_cast<std::uint16_t>(++extra_count_);
                return first_extra_bucket + extra_count_ - 1;
            }
            extra_call& found = extras_[extra_index_[place] - 1];
            if (found.symbol != symbol_ || found.occurrence != occurrence) continue;
            if (found.step == serial_) break; // this one has come in this step
            found.step = serial_;
            return first_extra_bucket + extra_index_[place] - 1;
        }
    }
    return first_extra_bucket + most_extras - 1;
}

} // namespace collprobe_preload
