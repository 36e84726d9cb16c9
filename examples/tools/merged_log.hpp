// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/words.hpp>
#include <collprobe/scan/sketch.hpp>

#include "log_files.hpp"
#include "read_rank_log.hpp"
#include "step_cuts.hpp"

/// The lines of a communicator's ranks, put together and judged.
namespace tools {

/// The step of a call, in the order of the run: a run that goes back to a checkpoint repeats steps.
struct step_place {
    std::uint64_t attempt = 0;
    std::uint64_t step = 0;

    friend auto operator<=>(const step_place&, const step_place&) = default;
};

/// What a rank of a communicator has written.
struct writing_rank {
    bool has_begun = false;
    bool is_complete = false; ///< its file has no more lines
    rank_begin begin;
    rank_process process;
    step_place last; ///< the step of its last call
    double news = 0; ///< when its last line was read
    std::uint64_t lines = 0; ///< about calls
    std::uint64_t last_call = 0; ///< sequence number of the last call that it wrote; if there are `lines`
    std::uint64_t last_us = 0; ///< of any line
    std::uint64_t dropped = 0; ///< records
    std::optional<rank_coverage> coverage; ///< the last
    std::string end; ///< how; empty: it goes on, or was killed

    int global_rank() const noexcept { return begin.global_rank >= 0 ? begin.global_rank : process.global_rank; }
};

/// A call that the ranks did not make alike.
struct call_mismatch {
    std::uint64_t sequence = 0;
    std::uint64_t step = 0;
    std::vector<int> ranks; ///< unlike most; empty if there is no majority
    std::string text; ///< "all_reduce of 1000 float32, rank 2 all_gather of 1000 float32"
};

/// A rank that stopped while others went on.
struct stopped_rank {
    int rank = 0;
    bool wrote_any = false;
    std::uint64_t last_call = 0; ///< that it wrote
    std::uint64_t others = 0; ///< the last call that others wrote
};

/// Calls `raise` for each alarm of a judged step. Of the calls of several steps, what recurs in each is told once; of
/// checks of the program's own, what each of them says.
template <class Raise>
void for_each_alarm(collprobe::alarms& from, const collprobe::step_record& record, const Raise& raise)
{
    const collprobe::view<const collprobe::finding> raised = from.judge(record);
    for (std::size_t i = 0; i < raised.size(); ++i) {
        const auto is_told = [&](const collprobe::finding& before) {
            return before.what == raised[i].what && before.ranks == raised[i].ranks
                && (before.what != collprobe::finding_kind::of_part
                    || std::string_view(before.other.site.name) == raised[i].other.site.name);
        };
        if (record.repeats || std::none_of(raised.begin(), raised.begin() + i, is_told)) raise(raised[i]);
    }
}

/// What was judged of a communicator.
struct merge_counts {
    std::uint64_t steps = 0; ///< that were judged
    std::uint64_t calls = 0; ///< that were judged
    /// Steps of which no call is there of all ranks, and calls that some ranks lack: up to the last one that every rank
    /// has written.
    std::uint64_t other_steps = 0;
    std::uint64_t other_calls = 0;
    std::uint64_t unknown_calls = 0; ///< of kinds or types that cannot be judged
    std::uint64_t late_lines = 0; ///< that came after their step was judged
    std::uint64_t compared = 0; ///< results that must be alike on all ranks
    std::uint64_t differing = 0;
    std::uint64_t sums = 0; ///< that were checked
    std::uint64_t wrong_sums = 0;
    std::uint64_t nonfinite_sums = 0; ///< that were not checked, because their results have NaN or infinity
    std::uint64_t multiplied_sums = 0; ///< that were not checked, because ranks multiply their inputs first

    std::uint64_t unchecked_sums() const noexcept { return nonfinite_sums + multiplied_sums; }
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t first_call = 0;
    std::uint64_t last_call = 0;
    std::uint64_t mismatches = 0;
    std::uint64_t cut_steps = 0; ///< steps that begin elsewhere than the ranks wrote
    std::uint64_t first_cut = 0;
    std::uint64_t last_cut = 0;
    std::uint64_t uncut_calls = 0; ///< that stay in steps of a number of calls
    std::uint64_t uncut_steps = 0; ///< so many
    std::uint64_t first_uncut = 0; ///< call
    std::uint64_t last_uncut = 0;
};

class merged_communicator {
public:
    /// Takes what was found: a step, then its alarms.
    struct listener {
        std::function<void(const collprobe::step_record&, std::uint64_t unix_us)> on_step;
        std::function<void(const collprobe::finding&, std::uint64_t unix_us)> on_alarm;
        std::function<void(const call_mismatch&)> on_mismatch;
    };
    static constexpr double patience = 10; ///< seconds without a line, after which a rank does not hold up the others
    static constexpr double quiet = 2; ///< seconds without a line, after which a step that seems complete is

    merged_communicator(std::uint64_t key, text_pool& texts, const collprobe::probe_options& settings, listener to)
        : key_(key), texts_(&texts), settings_(settings), to_(std::move(to))
    {
    }

    std::uint64_t key() const noexcept { return key_; }
    const std::string& name() const noexcept { return name_; }
    /// The lowest of the job's ranks that wrote, and the number of the communicator among those of its process.
    std::pair<int, int> place() const noexcept
    {
        const int rank = naming_rank_ < 0 ? 0 : ranks_[static_cast<std::size_t>(naming_rank_)].global_rank();
        return {rank, ordinal_};
    }
    int size() const noexcept { return static_cast<int>(ranks_.size()); }
    const std::vector<writing_rank>& ranks() const noexcept { return ranks_; }
    const merge_counts& counts() const noexcept { return counts_; }
    const collprobe::report::run_findings& found() const noexcept { return found_; }
    const std::vector<std::string>& notes() const noexcept { return notes_; } ///< the first few; no findings
    const std::vector<call_mismatch>& mismatches() const noexcept { return mismatches_; } ///< the first few

    /// `ordinal`: of the communicator among those of the process. \throws bad_line
    void begin(int writer, const rank_begin& begin, const rank_process& process, int ordinal)
    {
        if (!ranks_.empty() && begin.ranks != size())
            throw bad_line("has another number of 'ranks' than other ranks have");
        if (ranks_.empty()) ranks_.resize(static_cast<std::size_t>(begin.ranks));
        writing_rank& of = rank_at(writer);
        if (of.has_begun && (of.process.pid != process.pid || of.process.host != process.host)) {
            throw bad_line("is of a rank that process " + std::to_string(of.process.pid) + " on '" + of.process.host
                + "' writes, too");
        }
        of.has_begun = true;
        of.begin = begin;
        of.process = process;
        // Ranks number their communicators for themselves, so the lowest rank's number is taken.
        if (!begin.name.empty()) name_ = begin.name;
        else if (naming_rank_ < 0 || writer < naming_rank_) name_ = "comm" + std::to_string(ordinal);
        if (naming_rank_ >= 0 && writer >= naming_rank_) return;
        naming_rank_ = writer;
        ordinal_ = ordinal;
    }

    /// A line of a rank that has begun. `now`: in seconds, on a clock that runs on. \throws bad_line
    void add(rank_line& line, double now)
    {
        writing_rank& of = rank_at(line.writer);
        if (!of.has_begun) throw bad_line("is of a communicator that has no line 'comm' before");
        of.news = last_news_ = now;
        if (first_news_ < 0) first_news_ = now;
        of.last_us = std::max(of.last_us, line.time_us);
        of.dropped = std::max(of.dropped, line.dropped);
        if (auto* const call = line.as<rank_call>()) {
            add_call(of, line.writer, std::move(*call));
        } else if (auto* const coverage = line.as<rank_coverage>()) {
            of.coverage = std::move(*coverage);
        } else if (auto* const end = line.as<rank_end>()) {
            of.end = end->how.empty() ? "end" : end->how;
        } else if (auto* const raised = line.as<collprobe::finding>()) {
            if (own_alarms_.size() < collprobe::report::run_findings::most)
                own_alarms_.push_back({*raised, line.time_us});
        }
    }
    /// The rank's file has no more lines; or the rank has none.
    void complete(int writer) { rank_at(writer).is_complete = true; }

    /// Judges the steps that all ranks have ended.
    void judge_ended()
    {
        while (!pending_.empty() && has_ended(pending_.begin()->first)) judge_first();
    }
    /// Also those that seem ended, where files grow.
    void judge_ended(double now)
    {
        while (!pending_.empty() && (has_ended(pending_.begin()->first) || seems_ended(now))) judge_first();
    }
    /// Judges all that is there.
    void judge_rest()
    {
        while (!pending_.empty()) judge_first();
        finish_cuts();
        raise_own_alarms();
    }
    bool has_ended() const
    {
        return !ranks_.empty()
            && std::all_of(ranks_.begin(), ranks_.end(), [](const writing_rank& each) { return !each.end.empty(); });
    }

    /// The ranks that wrote nothing at all.
    std::vector<int> missing_ranks() const
    {
        std::vector<int> missing;
        for (int r = 0; r < size(); ++r) {
            if (!ranks_[static_cast<std::size_t>(r)].has_begun) missing.push_back(r);
        }
        return missing;
    }
    /// The ranks that wrote nothing for some time while others did, and lack calls.
    std::vector<stopped_rank> stopped_ranks() const
    {
        std::uint64_t most = 0;
        std::uint64_t newest = 0;
        bool any = false;
        for (const writing_rank& each : ranks_) {
            any = any || each.lines != 0;
            most = std::max(most, each.last_call);
            newest = std::max(newest, each.last_us);
        }
        std::vector<stopped_rank> stopped;
        for (int r = 0; r < size() && any; ++r) {
            const writing_rank& of = ranks_[static_cast<std::size_t>(r)];
            const bool has_all = of.lines != 0 && of.last_call == most;
            const bool went_on = static_cast<double>(newest - of.last_us) > 1e6 * patience;
            if (of.has_begun && !has_all && went_on && of.end.empty()) {
                stopped.push_back({r, of.lines != 0, of.last_call, most});
            }
        }
        return stopped;
    }

    /// Facts for sinks, as the lowest rank has them.
    collprobe::run_record facts() const
    {
        collprobe::run_record run;
        run.communicator = name_;
        run.communicator_id = collprobe::detail::hexadecimal(key_);
        run.ranks = size();
        std::vector<std::string> hosts;
        for (const writing_rank& each : ranks_) {
            if (each.has_begun) hosts.push_back(each.process.host);
        }
        std::sort(hosts.begin(), hosts.end());
        run.nodes = static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
        if (naming_rank_ < 0) return run;
        const writing_rank& of = ranks_[static_cast<std::size_t>(naming_rank_)];
        run.name = of.process.run.empty() ? "run" : of.process.run;
        run.job = of.process.job;
        run.host = of.process.host;
        run.device = of.begin.device;
        run.rank = naming_rank_;
        run.global_rank = of.global_rank();
        run.process = static_cast<std::int64_t>(of.process.pid);
        run.started_ns = 1000 * of.process.started_us;
        run.library = of.process.version;
        run.settings = of.process.settings;
        return run;
    }
    /// "rank 2 (global 18, host node7)"
    std::string who(int rank) const
    {
        std::string text = "rank " + std::to_string(rank);
        if (rank < 0 || rank >= size() || !ranks_[static_cast<std::size_t>(rank)].has_begun) return text;
        const writing_rank& of = ranks_[static_cast<std::size_t>(rank)];
        text += of.global_rank() < 0 ? " (" : " (global " + std::to_string(of.global_rank()) + ", ";
        return text + "host " + of.process.host + ")";
    }

private:
    struct own_alarm {
        collprobe::finding raised;
        std::uint64_t time_us;
    };
    struct known_call {
        call_form form;
        bool is_known = false; ///< its kind and its type can be judged
        bool is_sum = true; ///< false: the operation is one that nobody knows
        collprobe::merged_call call;
    };
    using pending_call = std::vector<std::optional<rank_call>>; ///< by rank
    using pending_step = std::map<std::uint64_t, pending_call>; ///< by sequence number

    writing_rank& rank_at(int writer)
    {
        if (writer < 0 || writer >= size()) throw bad_line("has a 'writer' that the communicator does not have");
        return ranks_[static_cast<std::size_t>(writer)];
    }

    void add_call(writing_rank& of, int writer, rank_call call)
    {
        if (of.lines != 0 && call.step < of.last.step) ++of.last.attempt;
        of.last.step = call.step;
        of.last_call = of.lines == 0 ? call.sequence : std::max(of.last_call, call.sequence);
        ++of.lines;
        if (judged_ && of.last <= *judged_) {
            ++counts_.late_lines;
            return;
        }
        pending_call& all = pending_[of.last][call.sequence];
        all.resize(ranks_.size());
        all[static_cast<std::size_t>(writer)] = std::move(call);
    }

    /// Whether no rank writes about the step any more.
    bool has_ended(const step_place& place) const
    {
        return std::all_of(ranks_.begin(), ranks_.end(), [&](const writing_rank& each) {
            return (each.lines != 0 && each.last > place) || each.is_complete || !each.end.empty();
        });
    }
    /// The same where files may still grow: the ranks wrote the same calls of the step and are beyond it. A rank that
    /// has been silent for long does not count.
    bool seems_ended(double now) const
    {
        const auto& [place, calls] = *pending_.begin();
        const bool has_all = std::all_of(calls.begin(), calls.end(), [](const auto& each) {
            return std::all_of(each.second.begin(), each.second.end(), [](const auto& of) { return of.has_value(); });
        });
        const bool is_quiet = has_all && now - last_news_ >= quiet;
        return std::all_of(ranks_.begin(), ranks_.end(), [&, of = place](const writing_rank& each) {
            if (each.lines != 0 && each.last > of) return true;
            if (is_quiet && each.coverage && each.coverage->step > of.step) return true;
            return now - std::max(each.news, first_news_) >= patience;
        });
    }

    void judge_first()
    {
        const step_place place = pending_.begin()->first;
        pending_step calls = std::move(pending_.begin()->second);
        pending_.erase(pending_.begin());
        const bool went_back = judged_ && place.attempt > judged_->attempt;
        judged_ = place;
        if (went_back) {
            finish_cuts();
            forget();
        }
        take({place.step, std::move(calls), true, -1, place.step});
    }
    /// After that nothing is compared with steps before.
    void forget()
    {
        if (judge_) judge_->forget();
        if (alarms_) alarms_->reset();
        cuts_.clear();
        last_number_.reset();
    }

    /// A step, or a part of one.
    struct step_calls {
        std::uint64_t step = 0;
        pending_step calls;
        bool is_whole = true; ///< false: it may have more calls
        std::int64_t last = -1; ///< index of its last call in the step that it is cut by
        std::uint64_t written = 0; ///< its number in the ranks' files
    };

    static const rank_call& any_of(const pending_call& call)
    {
        return **std::find_if(call.begin(), call.end(), [](const auto& each) { return each.has_value(); });
    }
    static std::vector<call_form> forms_of(const pending_step& calls, bool with_extra)
    {
        std::vector<call_form> forms;
        for (const auto& [sequence, call] : calls) {
            const call_form& form = any_of(call).form;
            if (with_extra || form.bucket < collprobe_preload::first_extra_bucket) forms.push_back(form);
        }
        return forms;
    }
    static std::uint64_t span_of(const pending_step& calls)
    {
        return calls.rbegin()->first - calls.begin()->first + 1;
    }
    static bool is_uncut(const pending_step& calls) { return !any_of(calls.begin()->second).repeats; }

    /// Judges a step as the ranks wrote it, or cuts it. Calls that the ranks wrote without a step, because no period of
    /// their sequence was known yet, or any more, belong to steps like the one before them, or like the one behind.
    void take(step_calls of)
    {
        const bool is_uncut_step = is_uncut(of.calls);
        if (!is_uncut_step && !any_of(of.calls.begin()->second).is_found) { // the program told it
            finish_cuts();
            cuts_.clear();
            return judge(of);
        }
        const std::vector<call_form> forms = forms_of(of.calls, is_uncut_step);
        const bool has_next = !pending_.empty() && pending_.begin()->first.attempt == judged_->attempt;
        if (is_uncut_step) {
            if (!cuts_.empty() && cuts_.fit(forms, span_of(of.calls))) return cut(std::move(of));
            finish_cuts();
            held_ = std::move(of);
            return;
        }
        const bool has_neighbour
            = has_next && pending_.begin()->first.step == of.step + 1 && !is_uncut(pending_.begin()->second);
        const std::uint64_t span
            = has_neighbour ? pending_.begin()->second.begin()->first - of.calls.begin()->first : span_of(of.calls);
        if (held_) cut_held(of, forms, span);
        const bool goes_on = open_ && of.calls.begin()->first - open_->calls.rbegin()->first <= cuts_.unwritten() + 3;
        const bool is_part = !cuts_.empty() && cuts_.is_part(forms);
        if ((goes_on && is_part) || repeats_calls(of.calls)) return cut(std::move(of));
        finish_open(false);
        if (!is_part || cuts_.is_whole(forms.size())) cuts_.learn(forms, span);
        else name_by_cuts(of.calls);
        // Where the lock was lost, or the log ends, the step may have lacked its last calls.
        of.is_whole = has_next && !is_uncut(pending_.begin()->second);
        judge(of);
    }
    /// Whether calls that the step has as extra ones are regular calls of steps before: it holds several steps.
    bool repeats_calls(const pending_step& calls) const
    {
        return std::any_of(calls.begin(), calls.end(), [this](const auto& each) {
            const call_form& form = any_of(each.second).form;
            return form.bucket >= collprobe_preload::first_extra_bucket && cuts_.find(form) >= 0;
        }) && cuts_.fit(forms_of(calls, true), span_of(calls));
    }
    /// The calls before the first step that was found are cut by it, from its end backwards.
    void cut_held(const step_calls& by, const std::vector<call_form>& forms, std::uint64_t span)
    {
        step_calls before = std::move(*held_);
        held_.reset();
        step_cuts cuts;
        cuts.learn(forms, span);
        if (!cuts.fit(forms_of(before.calls, true), span_of(before.calls))) {
            judge(before);
            return;
        }
        cuts_ = cuts;
        // The period that was found may begin within a step: the first call of all begins one.
        for (const auto& [sequence, call] : before.calls) {
            const std::int64_t at = last_number_ ? 0 : cuts_.find(any_of(call).form);
            if (at > 0) cuts_.begin_with(at);
            if (at >= 0) break;
        }
        const std::uint64_t least = last_number_ ? *last_number_ + 1 : 0;
        std::vector<step_calls> steps;
        // What came first, if its calls are none of the step, is a step of its own.
        bool is_first = true;
        while (!before.calls.empty()) {
            const call_form form = any_of(before.calls.begin()->second).form;
            const bool is_known = cuts_.find(form) >= 0;
            const bool begins = steps.empty() || (is_known && (is_first || cuts_.find(form, steps.back().last) < 0));
            if (is_known) is_first = false;
            if (begins) steps.push_back({0, {}, !(steps.empty() && last_number_), -1, before.written});
            move_first(before.calls, steps.back());
        }
        std::uint64_t number = by.step < steps.size() ? 0 : by.step - steps.size();
        number = std::max(number, least);
        for (step_calls& each : steps) each.step = number++;
        if (!cuts_.begins_with(forms.front())) {
            open_ = std::move(steps.back());
            steps.pop_back();
        }
        for (const step_calls& each : steps) judge(each);
    }
    /// Moves the first call to a step, which gives it its place.
    void move_first(pending_step& from, step_calls& to)
    {
        const call_form form = any_of(from.begin()->second).form;
        const std::int64_t at = cuts_.find(form, to.last);
        const std::uint64_t bucket
            = at >= 0 ? cuts_.bucket(at) : collprobe_preload::first_extra_bucket + static_cast<std::uint64_t>(to.calls.size());
        if (at >= 0) to.last = at;
        for (std::optional<rank_call>& each : from.begin()->second) {
            if (!each) continue;
            each->form.bucket = bucket;
            each->repeats = true;
        }
        to.calls.insert(from.extract(from.begin()));
    }
    /// Calls that go on behind `open_`.
    void cut(step_calls of)
    {
        if (open_ && of.calls.begin()->first - open_->calls.rbegin()->first > cuts_.unwritten() + 3) finish_open(false);
        while (!of.calls.empty()) {
            const call_form form = any_of(of.calls.begin()->second).form;
            const bool begins = !open_ || (cuts_.find(form) >= 0 && cuts_.find(form, open_->last) < 0);
            if (begins) {
                const bool is_first = !open_ && is_uncut(of.calls);
                finish_open(true);
                open_ = step_calls{of.step, {}, !is_first, -1, of.written};
            }
            move_first(of.calls, *open_);
        }
    }
    /// `has_ended`: another one begins.
    void finish_open(bool has_ended)
    {
        if (!open_) return;
        step_calls last = std::move(*open_);
        open_.reset();
        last.is_whole = last.is_whole && has_ended;
        judge(last);
        if (counts_.cut_steps++ == 0) counts_.first_cut = record_.step;
        counts_.last_cut = record_.step;
    }
    void finish_cuts()
    {
        finish_open(false);
        if (!held_) return;
        const step_calls alone = std::move(*held_);
        held_.reset();
        judge(alone);
    }
    /// Gives the calls of a step that lacks some the places that they had.
    void name_by_cuts(pending_step& calls)
    {
        std::int64_t last = -1;
        for (auto& [sequence, call] : calls) {
            const call_form form = any_of(call).form;
            if (form.bucket >= collprobe_preload::first_extra_bucket) continue;
            last = cuts_.find(form, last) >= 0 ? cuts_.find(form, last) : cuts_.find(form);
            for (std::optional<rank_call>& each : call)
                if (each) each->form.bucket = cuts_.bucket(last);
        }
    }

    void judge(const step_calls& of)
    {
        const pending_step& all = of.calls;
        std::uint64_t step = of.step;
        if (last_number_ && step <= *last_number_) step = *last_number_ + 1;
        bool is_whole = of.is_whole;
        calls_.clear();
        is_sum_.clear();
        blocks_.clear();
        std::uint64_t unix_us = 0;
        std::uint64_t first = 0;
        std::uint64_t last = 0;
        bool repeats = true;
        const std::uint64_t end = end_of_all();
        for (const auto& [sequence, ranks] : all) {
            if (!std::all_of(ranks.begin(), ranks.end(), [](const auto& each) { return each.has_value(); })) {
                counts_.other_calls += sequence < end ? 1 : 0;
                is_whole = false;
                continue;
            }
            if (!is_alike(sequence, step, ranks)) {
                is_whole = false;
                continue;
            }
            const known_call& known = known_of(ranks[0]->form);
            if (!known.is_known) {
                ++counts_.unknown_calls;
                is_whole = false;
                continue;
            }
            if (calls_.empty()) first = sequence;
            last = sequence;
            calls_.push_back(known.call);
            calls_.back().bins = common_bins(ranks);
            is_sum_.push_back(known.is_sum);
            for (const std::optional<rank_call>& own : ranks) {
                const auto* const bytes = reinterpret_cast<const unsigned char*>(own->block.data());
                blocks_.push_back({own->block.empty() ? nullptr : bytes, own->has_input, own->has_result,
                    known.is_sum ? own->scale : collprobe::detail::not_a_number()});
                unix_us = std::max(unix_us, own->time_us);
                repeats = repeats && own->repeats;
            }
        }
        if (calls_.empty()) {
            counts_.other_steps += !all.empty() && all.begin()->first < end ? 1 : 0;
            return;
        }
        if (!judge_) make_judges();
        last_number_ = step;
        written_steps_.push_back(of.written);
        // A first call 1 says that numbers begin with 1.
        const std::uint64_t begin = next_call_ ? *next_call_ : first == 1 ? 1 : 0;
        judge_->judge({.step = step, .first_call = first,
                          .unread_calls = last + 1 > begin + calls_.size() ? last + 1 - begin - calls_.size() : 0,
                          .unseen_calls = is_whole ? last + 1 - first - calls_.size() : ~std::uint64_t{0},
                          .calls = calls_, .blocks = blocks_, .repeats = repeats,
                          .follows = next_call_ && *next_call_ == first},
            record_);
        next_call_ = last + 1;
        count(first, last);
        found_.add(record_);
        for (const collprobe::missing_call& each : record_.missing_calls) {
            if (notes_.size() < 20) notes_.push_back(collprobe::report::describe(each));
        }
        to_.on_step(record_, unix_us);
        for_each_alarm(*alarms_, record_, [&, this](const collprobe::finding& each) { raise(each, unix_us); });
        if (repeats) return;
        if (counts_.uncut_steps++ == 0) counts_.first_uncut = first;
        counts_.last_uncut = last;
        counts_.uncut_calls += calls_.size();
    }

    /// Behind the last call that every rank has come to.
    std::uint64_t end_of_all() const
    {
        std::uint64_t end = ~std::uint64_t{0};
        for (const writing_rank& each : ranks_) end = std::min(end, each.lines == 0 ? 0 : each.last_call + 1);
        return end;
    }

    void make_judges()
    {
        // Ranks that share the cores of a host are late by chance.
        const bool is_on_cpu = std::all_of(
            ranks_.begin(), ranks_.end(), [](const writing_rank& each) { return each.begin.device.empty(); });
        collprobe::probe_options options = settings_;
        if (is_on_cpu) options.lateness_floor_ns = collprobe::detail::arrivals_measure::never_late;
        options.groups.clear();
        for (int r = 0; r < size() && !settings_.groups.empty(); ++r) {
            const int of_job = ranks_[static_cast<std::size_t>(r)].global_rank();
            const auto rank = static_cast<std::size_t>(of_job >= 0 ? of_job : r);
            if (rank >= settings_.groups.size())
                throw bad_input("--groups has no entry for rank " + std::to_string(rank) + " of the job");
            options.groups.push_back(settings_.groups[rank]);
        }
        judge_.emplace(size(), options);
        alarms_.emplace(size());
    }

    /// Whether all ranks made the same call. If not, that is a finding.
    bool is_alike(std::uint64_t sequence, std::uint64_t step, const pending_call& ranks)
    {
        const auto votes = [&ranks](const call_form& form) {
            return std::count_if(ranks.begin(), ranks.end(), [&form](const auto& each) { return each->form == form; });
        };
        const call_form* most = &ranks[0]->form;
        if (votes(*most) == size()) return true;
        for (const auto& each : ranks) {
            if (votes(each->form) > votes(*most)) most = &each->form;
        }
        call_mismatch found{sequence, step, {}, {}};
        const bool has_majority = 2 * votes(*most) > size();
        found.text = has_majority ? "most ranks made " + in_words(*most) : "no call is that of most ranks";
        std::size_t told = 0;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            if (has_majority && ranks[r]->form == *most) continue;
            if (has_majority) found.ranks.push_back(static_cast<int>(r));
            if (told++ < 4) found.text += ", " + who(static_cast<int>(r)) + ' ' + in_words(ranks[r]->form);
        }
        if (told > 4) found.text += ", ...";
        ++counts_.mismatches;
        if (mismatches_.size() < 4) {
            mismatches_.push_back(found);
            to_.on_mismatch(found);
        }
        return false;
    }
    static std::string in_words(const call_form& form)
    {
        return std::string(form.call) + '#' + std::to_string(form.bucket) + " of " + std::to_string(form.count) + ' '
            + form.type + (form.reduction[0] == '\0' ? "" : std::string(" (") + form.reduction + ")");
    }

    template <class Value>
    static std::optional<Value> value_of(std::string_view text)
    {
        for (int i = 0; i < 256; ++i) {
            const char* const of = collprobe::name(static_cast<Value>(i));
            if (text != "unknown" && text == of) return static_cast<Value>(i);
        }
        return std::nullopt;
    }
    /// What a form says. Mostly it is that of the same place in the step before.
    const known_call& known_of(const call_form& form)
    {
        const std::size_t place = calls_.size();
        if (place < known_.size() && known_[place].form == form) return known_[place];
        known_call found{form, false, true, {}};
        const auto call = value_of<collprobe::collective>(form.call);
        const auto type = value_of<collprobe::element_type>(form.type);
        const auto operation = value_of<collprobe::reduction>(form.reduction);
        found.is_known
            = call && type && *call != collprobe::collective::barrier && *call != collprobe::collective::split;
        if (found.is_known) {
            const bool reduces
                = *call == collprobe::collective::all_reduce || *call == collprobe::collective::reduce_scatter;
            found.is_sum = operation.has_value() || !reduces;
            found.call.call = *call;
            found.call.type = *type;
            if (operation) found.call.operation = *operation;
            found.call.count = form.count;
            found.call.result_count = form.result_count;
            found.call.bucket = form.bucket;
            const bool is_extra = form.bucket >= collprobe_preload::first_extra_bucket;
            const std::uint64_t number = form.bucket - (is_extra ? collprobe_preload::first_extra_bucket : 0);
            found.call.site = collprobe::call_site::named(texts_->kept(std::string(form.call)
                + (is_extra ? "#extra" : "#") + std::to_string(number) + ' ' + std::to_string(form.count) + ' '
                + form.type), "", "", 0);
        }
        if (place == known_.size()) known_.push_back(found);
        else known_[place] = found;
        return known_[place];
    }
    /// Sketches of several sizes or seeds cannot be added.
    std::uint64_t common_bins(const pending_call& ranks) const
    {
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            if (ranks[r]->bins != ranks[0]->bins || ranks_[r].begin.sketch_seed != ranks_[0].begin.sketch_seed)
                return 0;
        }
        return ranks[0]->bins;
    }

    void count(std::uint64_t first, std::uint64_t last)
    {
        if (counts_.steps++ == 0) {
            counts_.first_step = record_.step;
            counts_.first_call = first;
        }
        counts_.last_step = record_.step;
        counts_.last_call = last;
        counts_.calls += record_.calls.size();
        for (const collprobe::call_record& call : record_.calls) {
            const bool is_replicated = call.call != collprobe::collective::reduce_scatter;
            if (!call.audit.checked) continue;
            counts_.compared += is_replicated ? 1 : 0;
            counts_.differing += call.results_agree ? 0 : 1;
            counts_.sums += call.audit.sum_checked ? 1 : 0;
            counts_.wrong_sums += call.audit.sum_checked && !call.audit.conserved ? 1 : 0;
        }
        for (std::size_t c = 0; c < record_.calls.size(); ++c) count_unchecked(c);
    }
    /// Why a sum with a checksum was not checked.
    void count_unchecked(std::size_t c)
    {
        using collprobe::collective;
        using collprobe::reduction;
        const collprobe::merged_call& call = calls_[c];
        const collprobe::call_record& judged = record_.calls[c];
        const bool reduces = call.call == collective::all_reduce || call.call == collective::reduce_scatter;
        const bool adds = call.operation == reduction::sum || call.operation == reduction::average;
        if (!reduces || !adds || !is_sum_[c] || call.bins == 0 || !judged.audit.checked || judged.audit.sum_checked)
            return;
        const auto first = blocks_.begin() + static_cast<std::ptrdiff_t>(c * ranks_.size());
        const bool is_multiplied = std::any_of(first, first + size(), [](const collprobe::rank_block& of) {
            return collprobe::to_bits(of.scale) != collprobe::to_bits(1.0);
        });
        if (is_multiplied) ++counts_.multiplied_sums;
        else if (judged.nonfinite != 0 || judged.result_nonfinite != 0) ++counts_.nonfinite_sums;
    }

    void raise(const collprobe::finding& raised, std::uint64_t unix_us)
    {
        found_.add(raised);
        to_.on_alarm(raised, unix_us);
    }
    /// Those of steps that were not judged: the judge has found the others itself.
    void raise_own_alarms()
    {
        std::sort(written_steps_.begin(), written_steps_.end());
        for (const own_alarm& each : own_alarms_) {
            if (std::binary_search(written_steps_.begin(), written_steps_.end(), each.raised.step)) continue;
            raise(each.raised, each.time_us);
        }
        own_alarms_.clear();
    }

    std::uint64_t key_;
    text_pool* texts_;
    collprobe::probe_options settings_; ///< by which steps are judged; its groups are by rank of the job
    listener to_;
    std::string name_;
    int naming_rank_ = -1; ///< the lowest that wrote
    int ordinal_ = 0;
    std::vector<writing_rank> ranks_;
    std::map<step_place, pending_step> pending_;
    std::optional<step_place> judged_;
    std::optional<std::uint64_t> next_call_; ///< behind the last that was judged
    double first_news_ = -1;
    double last_news_ = 0;
    std::optional<collprobe::merge_ranks> judge_;
    std::optional<collprobe::alarms> alarms_;
    collprobe::report::run_findings found_;
    std::vector<std::string> notes_;
    merge_counts counts_;
    std::vector<call_mismatch> mismatches_;
    std::vector<own_alarm> own_alarms_;
    std::vector<std::uint64_t> written_steps_; ///< that were judged, by the ranks' numbers
    step_cuts cuts_;
    std::optional<step_calls> open_; ///< the step that is being cut
    std::optional<step_calls> held_; ///< calls of no known step, until a step is found behind them
    std::optional<std::uint64_t> last_number_; ///< of the last step that was judged
    std::vector<known_call> known_; ///< by place in the step
    std::vector<collprobe::merged_call> calls_;
    std::vector<bool> is_sum_; ///< by call: `known_call::is_sum`
    std::vector<collprobe::rank_block> blocks_;
    collprobe::step_record record_;
};

} // namespace tools
