// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/metrics/call_period.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

COLLPROBE_INLINE std::uint32_t call_track::power(std::uint64_t exponent) noexcept
{
    std::uint32_t result = 1;
    for (std::uint32_t square = base; exponent != 0; exponent >>= 1, square *= square) {
        if (exponent % 2 == 1) result *= square;
    }
    return result;
}

COLLPROBE_INLINE call_track::call_track(std::uint32_t longest, std::uint64_t pushed_before)
    : hashes_(std::size_t{2} * longest),
      mask_(std::uint64_t{2} * longest - 1),
      pushed_before_(pushed_before),
      pushed_(pushed_before),
      longest_(longest)
{
}

/// Looks, at every `wide` / 2 symbols, at the periods in (wide / 2, wide] that explain more than the one
/// followed.
COLLPROBE_INLINE void call_track::look_for_period() noexcept
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

/// The least period in [first, last] for which the last `length` symbols repeat; 0 if there is none.
COLLPROBE_INLINE std::uint32_t call_track::first_repeat(
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

/// Precondition: the last `known_matches` symbols are those `period` before.
COLLPROBE_INLINE void call_track::follow(std::uint32_t period, std::uint64_t known_matches) noexcept
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

/// Decides whether the run is a step's. (It has no shorter period: that would have the same run, and be found
/// before.)
COLLPROBE_INLINE void call_track::judge() noexcept
{
    judged_at_ = least_run(period_, distinct_symbols(period_));
    is_ready_ = run_ >= judged_at_;
}

/// Three periods, or so many symbols that they repeat by chance with probability 2^-32. One or two calls may
/// be the layers of a step.
COLLPROBE_INLINE std::uint64_t call_track::least_run(std::uint32_t period, std::uint32_t distinct) noexcept
{
    // 32 / log2(distinct), rounded up
    constexpr unsigned char matches[16] = {32, 32, 32, 21, 16, 14, 13, 12, 11, 11, 10, 10, 9, 9, 9, 9};
    const std::uint64_t needed = std::uint64_t{period} + (distinct < 16 ? matches[distinct] : 8);
    std::uint64_t result = 3 * std::uint64_t{period};
    if (needed > result) result = needed;
    if (period <= longest_of_layers && result < layers) result = layers;
    return result;
}

/// Of the last `length`; 16 stands for all numbers from there on.
COLLPROBE_INLINE std::uint32_t call_track::distinct_symbols(std::uint32_t length) const noexcept
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

} // namespace detail

COLLPROBE_INLINE call_period::call_period(std::uint64_t calls_before)
    : tracks_{detail::call_track(longest, calls_before), detail::call_track(longest / 2, calls_before),
        detail::call_track(longest / 4, calls_before)}
{
    for (std::uint64_t& from : unlocked_from_) from = calls_before;
    counts_.calls = calls_before;
}

COLLPROBE_INLINE void call_period::mark(std::uint64_t step, step_source by) noexcept
{
    if (by != step_source::nvtx) by = step_source::marked;
    if (by == step_source::nvtx && marked_by_ == step_source::marked) return;
    mark_ = step;
    marked_by_ = by;
}

COLLPROBE_INLINE void call_period::unmark() noexcept { marked_by_ = step_source::calls; }

COLLPROBE_INLINE call_place call_period::place_of(
    std::uint64_t signature, std::uint64_t bytes, const std::uint64_t* tag) noexcept
{
    constexpr std::uint64_t always_large = 65536;
    if (bytes > largest_) {
        largest_ = bytes;
        large_from_ = detail::lesser(always_large, bytes / 64);
    }
    const bool is_large = bytes >= large_from_;
    ++counts_.calls;
    push(signature, is_large);
    call_place place = found_place(is_large);
    look_for_step(is_large);
    if (tag != nullptr) tell(place, tagged_, *tag, step_source::tag, is_large);
    else if (marked_by_ != step_source::calls) tell(place, marked_, mark_, marked_by_, is_large);

    place.first = serial_ == 0 || place.step != last_step_ || place.source != last_source_;
    const bool is_unlocked = place.source == step_source::calls;
    if (place.first) {
        ++serial_;
        last_step_ = place.step;
        last_source_ = place.source;
        ++counts_.steps;
        counts_.steps_unlocked += is_unlocked;
    }
    counts_.calls_unlocked += is_unlocked;
    if (place.extra) {
        ++counts_.extra_calls;
        place.bucket = bucket_of_extra();
    }
    return place;
}

COLLPROBE_INLINE void call_period::push(std::uint64_t signature, bool is_large) noexcept
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

COLLPROBE_INLINE void call_period::tell(
    call_place& place, told_step& told, std::uint64_t step, step_source source, bool is_large) noexcept
{
    if (told.source != source || told.step != step) told = {step, 0, source};
    place.step = step;
    place.source = source;
    place.extra = !is_large;
    if (is_large) place.bucket = told.large_calls++;
}

COLLPROBE_INLINE call_place call_period::found_place(bool is_large) noexcept
{
    call_place place;
    const bool begins = next_.period != 0 && begins_next(is_large);
    if (held_.period != 0) {
        const std::uint32_t index = held_.next;
        place.extra = !has_symbol(held_.from, is_large) || !(begins || follow(is_large));
        if (held_.period != 0) {
            place.period = held_.period;
            place.locked = true;
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
COLLPROBE_INLINE bool call_period::begins_next(bool is_large) noexcept
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
        ++counts_.locks;
        return true;
    }
    // In the sequence of all calls a step begins with a large one.
    if (next_.next == 0) ++next_.begin;
    else if (++next_.next == next_.period) next_.next = 0;
    return false;
}

/// Whether this call is the expected one of the step that is held. Too many others end that.
COLLPROBE_INLINE bool call_period::follow(bool is_large) noexcept
{
    if (comes(held_)) {
        const std::int64_t most = std::int64_t{64} + held_.period;
        held_.credit += held_.credit < most;
        return true;
    }
    held_.has_extra = true;
    if (is_large) held_.credit -= 8;
    const detail::call_track& calls = track(held_.from);
    if (held_.credit < 0 || calls.pushed() + 2 - held_.begin - held_.next >= calls.kept()) {
        lose();
        // The unlocked step begins with this call.
        for (const sequence which : {large, all, kinds}) unlocked_from_[which] -= has_symbol(which, is_large);
    }
    return false;
}

COLLPROBE_INLINE void call_period::finish_step() noexcept
{
    const detail::call_track& calls = track(held_.from);
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

COLLPROBE_INLINE void call_period::lose() noexcept
{
    if (held_.is_established) {
        was_established_ = true;
        for (int which = 0; which < 3; ++which) established_until_[which] = tracks_[which].pushed();
    }
    held_ = {};
    ++counts_.losses;
    unlocked_step_ = ++step_;
    index_ = 0;
    for (const sequence which : {large, all, kinds}) unlocked_from_[which] = track(which).pushed();
}

/// Keeps a hash of the step, by which it is found again after one period.
COLLPROBE_INLINE void call_period::remember() noexcept
{
    constexpr std::uint32_t least = 16;
    const std::uint32_t periods = held_.period < least ? (least + held_.period - 1) / held_.period : 1;
    if (held_.clean_steps < periods) return;
    const std::uint32_t hashed = periods * held_.period;
    const std::uint32_t factor = detail::call_track::power(hashed);
    const std::uint32_t hash = track(held_.from).hash_of_last(hashed, factor);
    known_step* place = &known_[0];
    for (known_step& known : known_) {
        if (known.period == held_.period && known.from == held_.from && known.hash == hash) {
            place = &known;
            break;
        }
        if (known.used < place->used) place = &known;
    }
    *place = {held_.period, hash, factor, hashed, held_.large_calls, held_.from, held_.is_established,
        counts_.calls};
    held_.is_known = true;
}

COLLPROBE_INLINE void call_period::look_for_step(bool is_large) noexcept
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
            && track(all).period() > detail::call_track::longest_of_layers && may_follow(all)) {
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

/// Whether the period of all calls holds more than one of the large ones, which only need more evidence.
COLLPROBE_INLINE bool call_period::repeats_large_calls() noexcept
{
    const detail::call_track& calls = track(large);
    return calls.period() > detail::call_track::longest_of_layers && calls.period() < large_calls_of_all()
        && calls.run() > large_calls_of_all();
}

/// How many calls of the period of all calls are large.
COLLPROBE_INLINE std::uint32_t call_period::large_calls_of_all() noexcept
{
    const detail::call_track& calls = track(all);
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

/// While an established step was followed within the last period of a sequence, that sequence is no step: it
/// holds steps, and something else.
COLLPROBE_INLINE bool call_period::may_follow(sequence from) const noexcept
{
    return !was_established_ || track(from).pushed() - established_until_[from] >= track(from).period();
}

COLLPROBE_INLINE bool call_period::look_for_known_step(bool is_large, std::uint32_t longer_than) noexcept
{
    for (known_step& known : known_) {
        if (known.period <= longer_than || !has_symbol(known.from, is_large)) continue;
        const detail::call_track& calls = track(known.from);
        if (calls.symbols_at_hand() < known.hashed) continue;
        if (calls.hash_of_last(known.hashed, known.factor) != known.hash) continue;
        next_ = pattern_of(known.from, known.period, known.hashed);
        next_.large_calls = known.large_calls;
        next_.is_established = known.is_established;
        next_.is_known = true;
        known.used = counts_.calls;
        return true;
    }
    return false;
}

COLLPROBE_INLINE void call_period::prepare(sequence from) noexcept
{
    next_ = pattern_of(from, track(from).period(), track(from).run());
    if (from == all) next_.large_calls = large_calls_of_all();
}

/// The step whose period explains the last `run` symbols; it began with the first of these.
COLLPROBE_INLINE call_period::step_pattern call_period::pattern_of(
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
COLLPROBE_INLINE std::uint32_t call_period::bucket_of_extra() noexcept
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

} // namespace collprobe::inline COLLPROBE_ABI
