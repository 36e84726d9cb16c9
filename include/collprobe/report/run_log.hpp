// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/words.hpp>

/// What the records of a run said, kept for a comparison: of one communicator, by one or several of its ranks.
namespace collprobe::inline COLLPROBE_ABI::report {

/// One call of a step.
struct logged_call {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    bool has_digest = false;
    std::uint32_t name = 0; ///< `run_log::text` of it; empty if the call has none
    std::uint32_t line = 0; ///< "train.cpp:88", or empty
    std::uint64_t count = 0; ///< elements that each rank got; of a reduce-scatter those that it sent
    std::uint64_t digest = 0;
    double norm = collprobe::detail::not_a_number(); ///< of the result
    std::size_t first_sample = 0;
    std::size_t samples = 0;
};

struct logged_step {
    std::uint64_t step = 0;
    std::uint64_t first_call = 0; ///< sequence number of its first call; unknown if it has no calls
    std::uint64_t unseen_calls = 0; ///< that no probe looked at
    /// A hash of what else a step tells: numbers by rank, norms, non-finite elements, agreement, findings but `late`.
    std::uint64_t facts = 0;
    int ranks = 0;
    int writer = -1; ///< the rank whose record this is
    int attempt = 0; ///< how often the run had been started again
    std::array<double, detail::metric_count> metrics{}; ///< by `metric`
    std::size_t first_entry = 0;
    std::size_t calls = 0;
};

/// An alarm with its steps. Alarms of the same check, call and ranks are one.
struct logged_alarm {
    finding_kind what = finding_kind::non_finite;
    damage where = damage::unknown;
    int call = -1;
    std::string name; ///< of the call or the value; of `call_missing` that of the missing call
    std::string line;
    std::vector<int> ranks;
    std::vector<std::uint64_t> steps; ///< ascending
};

namespace detail {

/// Whether both tell the same. Without a call they do so of a value, or of a missing call, by its name.
inline bool is_same_alarm(const logged_alarm& a, const logged_alarm& b)
{
    return a.what == b.what && a.call == b.call && (a.call >= 0 || a.name == b.name) && a.ranks == b.ranks;
}

/// "bucket 1 'wte'"; without a call the name of the value, of the missing call, or "whole step"
COLLPROBE_COLD_INLINE std::string describe_place(const logged_alarm& raised)
{
    const std::string name = raised.name.empty() ? std::string() : '\'' + raised.name + '\'';
    if (raised.call < 0) return name.empty() ? "whole step" : name;
    std::string text = "bucket " + std::to_string(raised.call);
    if (!name.empty()) text += ' ' + name;
    else if (!raised.line.empty()) text += " (" + raised.line + ")";
    return text;
}

} // namespace detail

/// A rank whose records are in the log.
struct log_writer {
    int rank = -1; ///< -1: unknown
    std::uint64_t steps = 0;
    std::uint64_t last_step = 0;
    std::uint64_t dropped = 0; ///< records that it lost before it could write them
    bool has_ended = false; ///< it wrote the end of the run
    int attempt = 0;
};

/// Two ranks that tell different things of one step. Records are equal on all ranks, so one of the logs is damaged.
struct log_disagreement {
    std::uint64_t step = 0;
    int writer = -1;
    int other = -1; ///< whose record was there before
};

/// Collects the records of a run, from a probe or from files, of one rank or of several: the ranks' records are equal,
/// so one rank's suffice, and those that one rank lost come from another.
/// A rank that writes a step at or before its last one has started again, from a checkpoint for instance. From that
/// step on only the new records count.
/// Cost: memory of about 200 bytes a step, 80 a call and 8 a sampled element; adding a step again compares it.
class run_log {
public:
    static constexpr std::size_t most = 4096; ///< different alarms that are kept; the others are counted

    explicit run_log(std::string run = "run", std::string communicator = "world")
        : run_(std::move(run)), communicator_(std::move(communicator)), texts_(1)
    {
    }

    /// A rank's steps in the order in which it wrote them.
    void add(const step_record& record, int writer = -1);
    void add(const finding& raised, int writer = -1);

    /// `records_dropped` of a line: so many since the run began.
    COLLPROBE_COLD_INLINE void add_dropped(std::uint64_t records, int writer = -1)
    {
        log_writer& by = writer_of(writer);
        if (records > by.dropped) by.dropped = records;
    }

    void add_end(int writer = -1) { writer_of(writer).has_ended = true; }

    const std::string& run() const noexcept { return run_; }
    const std::string& communicator() const noexcept { return communicator_; }
    int ranks() const noexcept { return steps_.empty() ? 0 : steps_.back().ranks; }
    const std::vector<logged_step>& steps() const noexcept { return steps_; } ///< ascending
    view<const logged_call> calls(const logged_step& of) const noexcept
    {
        return {calls_.data() + of.first_entry, of.calls};
    }
    view<const double> sample(const logged_call& of) const noexcept
    {
        return {samples_.data() + of.first_sample, of.samples};
    }
    const std::string& text(std::uint32_t index) const noexcept { return texts_[index]; }
    const std::vector<logged_alarm>& alarms() const noexcept { return alarms_; } ///< in the order of the records
    std::uint64_t alarms_left_out() const noexcept { return alarms_left_out_; }
    const std::vector<log_writer>& writers() const noexcept { return writers_; }
    /// At most 16; `disagreement_count` has the number of all.
    const std::vector<log_disagreement>& disagreements() const noexcept { return disagreements_; }
    std::uint64_t disagreement_count() const noexcept { return disagreement_count_; }
    /// The steps at which the run was started again.
    const std::vector<std::uint64_t>& restarts() const noexcept { return restarts_; }

    /// Ranges of steps that are missing between others: the sequence numbers of the calls show it or, where calls are
    /// missing, the numbers of the steps.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> missing_steps() const;

private:
    COLLPROBE_COLD_INLINE log_writer& writer_of(int rank)
    {
        if (last_writer_ < writers_.size() && writers_[last_writer_].rank == rank) return writers_[last_writer_];
        for (last_writer_ = 0; last_writer_ < writers_.size(); ++last_writer_) {
            if (writers_[last_writer_].rank == rank) return writers_[last_writer_];
        }
        writers_.push_back({.rank = rank});
        return writers_.back();
    }

    COLLPROBE_COLD_INLINE std::uint32_t index_of(std::string_view text)
    {
        // The calls of a step have as many texts as the step has calls, so a search through all is short.
        for (std::size_t i = 0; i < texts_.size(); ++i) {
            if (texts_[i] == text) return static_cast<std::uint32_t>(i);
        }
        texts_.emplace_back(text);
        return static_cast<std::uint32_t>(texts_.size() - 1);
    }

    bool agrees(const logged_step& known, const step_record& record) const;
    void store(logged_step& place, const step_record& record);

    std::string run_;
    std::string communicator_;
    std::vector<logged_step> steps_;
    std::vector<logged_call> calls_;
    std::vector<double> samples_;
    std::vector<std::string> texts_; ///< the first is empty
    std::vector<logged_alarm> alarms_;
    std::uint64_t alarms_left_out_ = 0;
    std::vector<log_writer> writers_;
    std::size_t last_writer_ = 0;
    std::vector<log_disagreement> disagreements_;
    std::uint64_t disagreement_count_ = 0;
    std::vector<std::uint64_t> restarts_; ///< by attempt, from 1
};

namespace detail {

/// Whether two numbers are the same to a reader: the same bits, or both undefined.
COLLPROBE_COLD_INLINE bool same_number(double a, double b) noexcept
{
    return to_bits(a) == to_bits(b) || (is_nan(a) && is_nan(b));
}

/// The elements that a call is about, whatever the number of ranks and of gradients that each of them adds.
COLLPROBE_COLD_INLINE std::uint64_t elements_of(const call_record& call) noexcept
{
    return call.call == collective::reduce_scatter ? call.count : call.result_count;
}

COLLPROBE_COLD_INLINE std::uint64_t facts_of(const step_record& record) noexcept
{
    std::uint64_t hash = 0;
    const auto add = [&hash](std::uint64_t word) {
        hash = collprobe::detail::mix64((hash ^ word) + 0x9e3779b97f4a7c15u);
    };
    const auto add_number = [&add](double value) { add(is_nan(value) ? 0x7ff8000000000000u : to_bits(value)); };
    const auto add_index = [&add](int value) { add(static_cast<std::uint64_t>(static_cast<std::int64_t>(value))); };
    for (const std::vector<double>* each : {&record.losses, &record.gradient_norms, &record.cosine.leave_one_out}) {
        add(each->size());
        for (const double value : *each) add_number(value);
    }
    for (const call_record& call : record.calls) {
        add_number(call.result_norm);
        add_number(call.pooled_cosine);
        add(call.nonfinite);
        add(call.results_agree ? 1 : 0);
        add(call.audit.checked ? 1 + static_cast<std::uint64_t>(call.audit.where) : 0);
    }
    for (const finding& found : record.findings) {
        if (found.what == finding_kind::late) continue; // of time
        for (const int rank : found.ranks) add_index(rank);
        add_index(found.other_rank);
        add_index(found.call);
        add(static_cast<std::uint64_t>(found.what));
    }
    return hash;
}

} // namespace detail

COLLPROBE_COLD_INLINE bool run_log::agrees(const logged_step& known, const step_record& record) const
{
    if (known.ranks != record.ranks || known.calls != record.calls.size()) return false;
    if (known.facts != detail::facts_of(record)) return false;
    for (int which = 0; which < detail::metric_count; ++which) {
        const double now = detail::value_of(static_cast<metric>(which), record);
        if (!detail::same_number(known.metrics[static_cast<std::size_t>(which)], now)) return false;
    }
    for (std::size_t c = 0; c < record.calls.size(); ++c) {
        const logged_call& before = calls_[known.first_entry + c];
        const call_record& now = record.calls[c];
        if (before.call != now.call || before.type != now.type || before.count != detail::elements_of(now)
            || before.has_digest != now.has_result_digest
            || (before.has_digest && before.digest != now.result_digest)
            || !detail::same_number(before.norm, now.result_norm) || before.samples != now.result_sample.size()) {
            return false;
        }
        for (std::size_t i = 0; i < before.samples; ++i) {
            if (!detail::same_number(samples_[before.first_sample + i], now.result_sample[i])) return false;
        }
    }
    return true;
}

COLLPROBE_COLD_INLINE void run_log::store(logged_step& place, const step_record& record)
{
    place.step = record.step;
    place.first_call = record.first_call;
    place.unseen_calls = record.unprobed_calls + record.unread_calls;
    place.ranks = record.ranks;
    place.facts = detail::facts_of(record);
    for (int which = 0; which < detail::metric_count; ++which) {
        place.metrics[static_cast<std::size_t>(which)] = detail::value_of(static_cast<metric>(which), record);
    }
    place.first_entry = calls_.size();
    place.calls = record.calls.size();
    const logged_step* const like = steps_.empty() ? nullptr : &steps_.back();
    for (std::size_t c = 0; c < record.calls.size(); ++c) {
        const call_record& each = record.calls[c];
        logged_call entry;
        entry.call = each.call;
        entry.type = each.type;
        entry.count = detail::elements_of(each);
        entry.has_digest = each.has_result_digest;
        entry.digest = each.result_digest;
        entry.norm = each.result_norm;
        entry.first_sample = samples_.size();
        entry.samples = each.result_sample.size();
        samples_.insert(samples_.end(), each.result_sample.begin(), each.result_sample.end());
        const std::string line = each.site.line == 0 ? std::string() : detail::short_line(each.site);
        const logged_call* const before // mostly the same call of another step
            = like != nullptr && c < like->calls ? &calls_[like->first_entry + c] : nullptr;
        const bool has_name_of_before = before != nullptr && texts_[before->name] == each.site.name;
        entry.name = has_name_of_before ? before->name : index_of(each.site.name);
        entry.line = before != nullptr && texts_[before->line] == line ? before->line : index_of(line);
        calls_.push_back(entry);
    }
}

COLLPROBE_COLD_INLINE void run_log::add(const step_record& record, int writer)
{
    log_writer& by = writer_of(writer);
    if (by.steps != 0 && record.step <= by.last_step) {
        ++by.attempt;
        const auto attempt = static_cast<std::size_t>(by.attempt);
        if (restarts_.size() < attempt) restarts_.push_back(record.step);
        std::uint64_t& from = restarts_[attempt - 1];
        if (record.step < from) from = record.step;
        const auto is_of_before = [&](const logged_step& each) {
            return each.step >= record.step && each.attempt < by.attempt;
        };
        steps_.erase(std::remove_if(steps_.begin(), steps_.end(), is_of_before), steps_.end());
    }
    ++by.steps;
    by.last_step = record.step;
    for (std::size_t later = static_cast<std::size_t>(by.attempt); later < restarts_.size(); ++later) {
        if (restarts_[later] <= record.step) return; // the run went back to a step before this one
    }
    const auto place = std::lower_bound(steps_.begin(), steps_.end(), record.step,
        [](const logged_step& each, std::uint64_t step) { return each.step < step; });
    if (place != steps_.end() && place->step == record.step) {
        if (agrees(*place, record)) return;
        ++disagreement_count_;
        if (disagreements_.size() < 16) disagreements_.push_back({record.step, writer, place->writer});
        return;
    }
    logged_step added;
    added.writer = writer;
    added.attempt = by.attempt;
    store(added, record);
    steps_.insert(place, added);
}

COLLPROBE_COLD_INLINE void run_log::add(const finding& raised, int writer)
{
    writer_of(writer);
    const call_site& site = raised.what == finding_kind::call_missing ? raised.other.site : raised.site;
    logged_alarm added{raised.what, raised.where, raised.call, site.name,
        site.line == 0 ? std::string() : detail::short_line(site), raised.ranks, {raised.step}};
    for (logged_alarm& known : alarms_) {
        if (!detail::is_same_alarm(known, added)) continue;
        const auto place = std::lower_bound(known.steps.begin(), known.steps.end(), raised.step);
        if (place == known.steps.end() || *place != raised.step) known.steps.insert(place, raised.step);
        return;
    }
    if (alarms_.size() == most) {
        ++alarms_left_out_;
        return;
    }
    alarms_.push_back(std::move(added));
}

COLLPROBE_COLD_INLINE std::vector<std::pair<std::uint64_t, std::uint64_t>> run_log::missing_steps() const
{
    std::vector<std::pair<std::uint64_t, std::uint64_t>> missing;
    for (std::size_t i = 1; i < steps_.size(); ++i) {
        const logged_step& before = steps_[i - 1];
        const logged_step& now = steps_[i];
        if (now.step == before.step + 1) continue;
        const bool is_numbered = before.calls != 0 && now.calls != 0 && now.attempt == before.attempt;
        // The caller may number its steps by tens, or record one of ten: then that one counts the calls between.
        const std::uint64_t end = before.first_call + before.calls;
        const std::uint64_t latest = end + before.unseen_calls + now.unseen_calls;
        const bool counts_calls_between = now.unseen_calls != 0 && now.first_call >= end && now.first_call <= latest;
        if (is_numbered && (now.first_call == end + before.unseen_calls || counts_calls_between)) continue;
        missing.emplace_back(before.step + 1, now.step - 1);
    }
    return missing;
}

} // namespace collprobe::report
