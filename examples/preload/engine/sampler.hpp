// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <collprobe/detail/math.hpp>

#include "call_period.hpp"

namespace collprobe_preload {

enum class sampling : std::uint8_t {
    files, ///< ranks write what they see: each may keep its own budget
    inband, ///< ranks send what they see in the program's own calls: all have to choose the same calls
};

struct sampler_options {
    sampling mode = sampling::files;
    double budget = 0.01; ///< share of the device's time that probes may take
    std::uint64_t every = 0; ///< probes every k-th step; 0: by the budget, or 16 in mode `inband`
    double bytes_per_second = 1e12; ///< that the device reads, until probes were measured
    double seconds_per_probe = 10e-6; ///< of a probed call beside its bytes, until probes were measured
};

/// What is known at the beginning of a step: totals since the communicator was made.
struct sampler_facts {
    double now_s = 0; ///< any clock that does not go back
    double probe_s = 0; ///< time on the device of the probes that have ended
    std::uint64_t probes = 0; ///< their number
    std::uint64_t probe_bytes = 0; ///< and what they read
};

struct sampler_coverage {
    std::uint64_t calls = 0;
    std::uint64_t probeable = 0; ///< of these
    std::uint64_t chosen = 0; ///< of these
    std::uint64_t steps = 0;
    std::uint64_t steps_chosen = 0; ///< with a chosen call
    std::uint64_t every = 0; ///< now
    double share_predicted = 0; ///< of the device's time, with `every` as it is now; 0: not known yet
    double share_measured = 0; ///< since the first step
};

/// Chooses the calls of a communicator that are probed.
///
/// Of known steps (told, or found by period) all calls of those whose number is a multiple of k. Of others
/// every k-th call of each signature, of each from another one on. Without a given k, mode `files`
/// keeps the predicted share of the device's time within the budget: k is a power of two, so that the calls
/// that a rank chooses with the larger k are among those of a rank with the smaller. It changes at the
/// beginning of a step only. It grows at once, so far that the prediction is within the budget, or within
/// half of it while the measured share since the first step is above. It is halved if for eight steps in a
/// row the prediction with half of it was below 0.7 budgets. In mode `inband` a choice depends on the
/// sequence of calls alone. Preconditions: no concurrent use. No clock, no allocation; O(1) a call.
class sampler {
public:
    static constexpr std::uint64_t usual_every = 16;
    static constexpr std::uint64_t largest_every = std::uint64_t{1} << 20;
    static constexpr int steps_before_halving = 8;

    explicit sampler(const sampler_options& options = {}) noexcept
        : options_(options),
          every_(options.every != 0 ? options.every : usual_every),
          adapts_(options.mode == sampling::files && options.every == 0)
    {
    }

    /// Before `add` of a call with `first`.
    void step_began(const call_place&, const sampler_facts& facts) noexcept
    {
        if (coverage_.steps != 0) measure_step(facts);
        else first_s_ = facts.now_s;
        begun_s_ = facts.now_s;
        const double elapsed = facts.now_s - first_s_;
        coverage_.share_measured = elapsed > 0 ? facts.probe_s / elapsed : 0;
        if (adapts_ && seconds_per_step_ > 0) adapt();
        coverage_.share_predicted = share_with(every_);
        ++coverage_.steps;
        coverage_.steps_chosen += step_is_chosen_;
        step_is_chosen_ = false;
        step_bytes_ = 0;
        step_probes_ = 0;
    }

    /// Whether to probe this call, with reads of `probe_bytes` in all. One that cannot be probed is counted.
    bool add(const call_place& place, std::uint64_t signature, std::uint64_t probe_bytes,
        bool can_probe = true) noexcept
    {
        const std::uint64_t number
            = place.source == step_source::calls ? occurrence(signature) : place.step;
        ++coverage_.calls;
        if (!can_probe) return false;
        ++coverage_.probeable;
        step_bytes_ += static_cast<double>(probe_bytes);
        step_probes_ += 1;
        const bool chosen
            = (every_ & (every_ - 1)) == 0 ? (number & (every_ - 1)) == 0 : number % every_ == 0;
        coverage_.chosen += chosen;
        step_is_chosen_ = step_is_chosen_ || chosen;
        return chosen;
    }

    std::uint64_t every() const noexcept { return every_; }
    double predicted_share() const noexcept { return coverage_.share_predicted; }
    double measured_share() const noexcept { return coverage_.share_measured; }
    sampler_coverage covered() const noexcept
    {
        sampler_coverage result = coverage_;
        result.steps_chosen += step_is_chosen_;
        result.every = every_;
        return result;
    }

private:
    struct counted_signature {
        std::uint64_t signature = 0;
        std::uint64_t next = 0; // number of its next call; 0: a free place
    };

    /// Of the last steps, the lesser of two middle ones: no first step, checkpoint or evaluation counts as
    /// the usual time.
    double median_seconds() const noexcept
    {
        double sorted[intervals];
        const std::size_t count = std::min<std::size_t>(measured_steps_, intervals);
        std::copy(last_seconds_, last_seconds_ + count, sorted);
        std::nth_element(sorted, sorted + (count - 1) / 2, sorted + count);
        return sorted[(count - 1) / 2];
    }
    double model(double bytes, double probes) const noexcept
    {
        return bytes / options_.bytes_per_second + probes * options_.seconds_per_probe;
    }
    double share_with(std::uint64_t every) const noexcept
    {
        if (!(seconds_per_step_ > 0)) return 0;
        return probe_seconds_of_step_ * measured_by_model_ / (seconds_per_step_ * static_cast<double>(every));
    }

    /// Takes the step that has ended into the averages.
    void measure_step(const sampler_facts& facts) noexcept
    {
        const double seconds = facts.now_s - begun_s_;
        if (seconds > 0) {
            ++measured_steps_;
            const double weight = 1 / static_cast<double>(std::min<std::uint64_t>(measured_steps_, 8));
            last_seconds_[(measured_steps_ - 1) % intervals] = seconds;
            const double usual = median_seconds();
            if (measured_steps_ < intervals) seconds_per_step_ = usual;
            else seconds_per_step_ += weight * (std::min(seconds, 2 * usual) - seconds_per_step_);
            probe_seconds_of_step_ += weight * (model(step_bytes_, step_probes_) - probe_seconds_of_step_);
        }
        constexpr std::uint64_t enough = 16;
        if (facts.probes >= seen_.probes + enough) {
            const double expected = model(static_cast<double>(facts.probe_bytes - seen_.probe_bytes),
                static_cast<double>(facts.probes - seen_.probes));
            const double ratio = (facts.probe_s - seen_.probe_s) / expected;
            if (collprobe::is_finite(ratio) && ratio > 0) {
                measured_by_model_ = seen_.probes == 0 ? ratio : (measured_by_model_ + ratio) / 2;
            }
            seen_ = facts;
        }
    }

    void adapt() noexcept
    {
        const double allowed
            = coverage_.share_measured > options_.budget ? options_.budget / 2 : options_.budget;
        if (share_with(every_) > allowed) {
            while (every_ < largest_every && share_with(every_) > allowed) every_ *= 2;
            steps_with_room_ = 0;
        } else if (every_ > 1 && share_with(every_ / 2) < 0.7 * allowed) {
            if (++steps_with_room_ < steps_before_halving) return;
            every_ /= 2;
            steps_with_room_ = 0;
        } else {
            steps_with_room_ = 0;
        }
    }

    /// Counts the calls of a signature, from a number of its own: how many signatures came before. So the
    /// same holds for calls that all differ. Calls that find no place in the table are chosen evenly, in an
    /// order that repeats with none of the program: by the multiples of the golden ratio.
    std::uint64_t occurrence(std::uint64_t signature) noexcept
    {
        std::size_t place = static_cast<std::size_t>(collprobe::detail::mix64(signature) % places);
        for (std::size_t tries = 0; tries < 8; ++tries, place = (place + 1) % places) {
            counted_signature& found = counted_[place];
            if (found.next == 0) {
                found = {signature, signatures_ + 1};
                return signatures_++;
            }
            if (found.signature == signature) return found.next++;
        }
        const std::uint64_t fraction = signatures_++ * 0x9e3779b97f4a7c15u >> 32;
        return fraction * std::min(every_, std::uint64_t{1} << 32) >> 32;
    }

    sampler_options options_;
    std::uint64_t every_;
    bool adapts_;
    bool step_is_chosen_ = false;
    int steps_with_room_ = 0;
    sampler_coverage coverage_;
    sampler_facts seen_; // when `measured_by_model_` was computed
    double first_s_ = 0;
    double begun_s_ = 0;
    double step_bytes_ = 0; // if all its probeable calls were probed
    double step_probes_ = 0;
    std::uint64_t measured_steps_ = 0;
    static constexpr std::size_t intervals = 8;
    double last_seconds_[intervals] = {};
    double seconds_per_step_ = 0; // an average that counts none of them as more than twice their median
    double probe_seconds_of_step_ = 0; // by the model; an average over about eight steps
    double measured_by_model_ = 1;
    static constexpr std::size_t places = 512;
    counted_signature counted_[places];
    std::uint64_t signatures_ = 0;
};

} // namespace collprobe_preload
