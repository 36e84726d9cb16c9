// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/step/detail/call_series.hpp>
#include <collprobe/step/detail/message.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Finds calls that steps do not make any more: step/README.md has the rules. Uses what all ranks know alike.
/// Steps of one kind share at least half of their calls, and of the elements; others are not compared.
/// Bounded: it knows 8 kinds of steps, of each four times the calls of its largest step and 32; and 256 steps by the
/// hash of their calls, which miss nothing when they come again.
/// Cost: O(calls) if the step is as the last one; else of two sorts, and O(kinds * calls).
/// A template for the reason of `basic_step_judge`.
template <class = void>
class basic_missing_calls_check {
public:
    /// Appends to `out` what the step misses. `with_integers`: all calls of integers are among `calls`; without it none
    /// of them counts. `unseen`: calls of the step that may be missing in `calls` alone.
    void judge(view<const probed_call> calls, bool has_places, bool with_integers, std::uint64_t unseen,
        step_record& out)
    {
        if (calls.empty()) return;
        ++step_;
        const bool is_same_view = with_integers == with_integers_ && unseen == last_unseen_;
        calls_ = calls;
        has_places_ = has_places;
        with_integers_ = with_integers;
        last_unseen_ = unseen;
        if (order_.see(calls, has_places) && is_same_view) {
            if (last_ == no_kind) return;
            ++kinds_[last_].steps;
            kinds_[last_].used = step_;
            return;
        }
        last_ = no_kind;
        sorted_.clear();
        std::uint64_t hash = with_integers_ ? 1 : 0;
        order_.for_each_sorted([&, this](std::uint32_t call, std::uint64_t identity, std::uint64_t order) {
            if (!with_integers_ && !is_floating(calls[call].type)) return;
            sorted_.push_back({identity, order, call});
            hash = mix64(hash + identity);
        });
        if (sorted_.empty()) return;
        kind* of = find_kind();
        const bool is_known = std::find(known_.begin(), known_.end(), hash) != known_.end();
        if (of != nullptr) {
            find_lost(*of, out.step);
            if (!is_known && !lost_.empty() && unseen > of->unseen) return;
            if (!is_known) tell(*of, out);
            learn(*of, !is_known && (!left_out_.empty() || !added_.empty()));
        } else {
            of = begin_kind();
        }
        of->unseen = std::max(of->unseen, unseen);
        of->used = step_;
        last_ = static_cast<std::size_t>(of - kinds_.data());
        if (is_known) return;
        constexpr std::size_t most_known = 256;
        if (known_.size() < most_known) known_.push_back(hash);
        else known_[next_known_++ % most_known] = hash;
    }
    /// Knows no step any more.
    void clear() { *this = {}; }

private:
    static constexpr std::uint32_t none = ~std::uint32_t{0};

    struct member {
        std::uint64_t identity;
        std::uint64_t order;
        std::uint64_t place; ///< 0 without places
        std::uint64_t begun; ///< steps of the kind before its first one
        call_form form;
        reduction operation;
        std::uint32_t position; ///< in the last step that had it
        bool is_optional = false; ///< some step was without it
        std::uint32_t here = none; ///< the call in `sorted_` that it is
    };
    struct kind {
        std::vector<member> members; ///< ascending by identity and order
        std::uint64_t steps = 0;
        std::uint64_t news = 0; ///< steps in which a call was left out or added for the first time
        std::uint64_t last_news = 0; ///< `steps` behind it
        std::uint64_t unseen = 0; ///< at most, in a step that misses nothing
        std::uint64_t used = 0;
        std::size_t largest = 0;
    };
    struct sorted_call {
        std::uint64_t identity;
        std::uint64_t order;
        std::uint32_t call;
        bool is_known = false; ///< a member of the kind
    };
    /// A member that the step has not, or a call that no member is.
    struct difference {
        std::uint64_t form; ///< kind, type and operation
        std::uint64_t place;
        std::uint64_t count;
        std::uint32_t at; ///< of the member, or the call in `sorted_`
        bool is_fresh;
    };
    struct lost {
        missing_call what;
        std::uint64_t identity;
        bool is_named;
    };

    static bool before(const auto& a, const auto& b) noexcept
    {
        return a.identity < b.identity || (a.identity == b.identity && a.order < b.order);
    }
    static bool is_required(const kind& of, const member& each) noexcept
    {
        return !each.is_optional && of.steps - each.begun >= each.begun;
    }
    bool counts(const member& each) const noexcept { return with_integers_ || is_floating(each.form.type); }
    const probed_call& call_of(const sorted_call& each) const noexcept { return calls_[each.call]; }
    member member_of(const sorted_call& at, std::uint64_t begun) const noexcept
    {
        const probed_call& call = call_of(at);
        return {at.identity, at.order, has_places_ ? call.place : 0, begun,
            {.call = call.call, .type = call.type, .count = call.count, .site = call.site}, call.operation, at.call};
    }
    /// Which members the step has.
    void match(kind& of) noexcept
    {
        std::uint32_t s = 0;
        for (sorted_call& each : sorted_) each.is_known = false;
        for (member& each : of.members) {
            while (s < sorted_.size() && before(sorted_[s], each)) ++s;
            const bool is_here = s < sorted_.size() && !before(each, sorted_[s]);
            each.here = is_here ? s : none;
            if (is_here) sorted_[s].is_known = true;
        }
    }

    /// The kind that shares most with the step, matched; null: none.
    kind* find_kind()
    {
        struct total {
            double elements = 0;
            double calls = 0;
            void add(std::uint64_t count) noexcept { elements += static_cast<double>(count), calls += 1; }
            bool is_half_of(const total& all) const noexcept
            {
                return 2 * calls >= all.calls && 2 * elements >= all.elements;
            }
        };
        total step;
        for (const sorted_call& each : sorted_) step.add(call_of(each).count);
        kind* best = nullptr;
        double most = 0;
        for (kind& each : kinds_) {
            match(each);
            total shared, required, kept;
            for (const member& one : each.members) {
                const bool is_here = one.here != none;
                if (is_here) shared.add(one.form.count);
                if (!is_required(each, one) || !(is_here || counts(one))) continue;
                required.add(one.form.count);
                if (is_here) kept.add(one.form.count);
            }
            if (shared.calls == 0 || !shared.is_half_of(step) || !kept.is_half_of(required)) continue;
            if (best != nullptr && shared.elements <= most) continue;
            best = &each;
            most = shared.elements;
        }
        if (best != nullptr) match(*best);
        return best;
    }
    /// Of calls that are at the same place and of the same form but for the count, members that are gone become
    /// calls that are new: `pairs_`. What is over is `left_out_` and `added_`; and `lost_`: members that are gone and
    /// that no new calls of their form make good.
    void find_lost(kind& of, std::uint64_t step)
    {
        differences_.clear();
        for (std::uint32_t m = 0; m < of.members.size(); ++m) {
            member& gone = of.members[m];
            if (gone.here != none || !counts(gone) || gone.is_optional) continue;
            gone.is_optional = !is_required(of, gone);
            if (gone.is_optional) continue;
            differences_.push_back({probed_call::form_of(gone.form.call, gone.form.type, gone.operation), gone.place,
                gone.form.count, m, false});
        }
        for (std::uint32_t s = 0; s < sorted_.size(); ++s) {
            const probed_call& call = call_of(sorted_[s]);
            if (sorted_[s].is_known) continue;
            differences_.push_back({probed_call::form_of(call.call, call.type, call.operation),
                has_places_ ? call.place : 0, call.count, s, true});
        }
        std::sort(differences_.begin(), differences_.end(), [](const difference& a, const difference& b) {
            if (a.form != b.form) return a.form < b.form;
            if (a.place != b.place) return a.place < b.place;
            if (a.is_fresh != b.is_fresh) return b.is_fresh;
            return a.count != b.count ? a.count > b.count : a.at < b.at;
        });
        pairs_.clear();
        left_out_.clear();
        added_.clear();
        lost_.clear();
        for (std::size_t at = 0; at < differences_.size();) {
            const std::uint64_t form = differences_[at].form;
            const std::size_t lost_before = lost_.size();
            std::uint64_t lacking = 0;
            std::uint64_t more = 0;
            while (at < differences_.size() && differences_[at].form == form)
                at = find_lost_at_place(of, step, at, lacking, more);
            if (more >= lacking) lost_.resize(lost_before);
        }
        name_lost(of);
    }
    /// From `first` on. Returns the first difference at another place.
    std::size_t find_lost_at_place(
        const kind& of, std::uint64_t step, std::size_t first, std::uint64_t& lacking, std::uint64_t& more)
    {
        const auto steps_of = [&](const difference& gone) { return of.steps - of.members[gone.at].begun; };
        std::size_t end = first;
        const auto is_here = [&, this](bool is_fresh) {
            return end < differences_.size() && differences_[end].form == differences_[first].form
                && differences_[end].place == differences_[first].place && differences_[end].is_fresh == is_fresh;
        };
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        std::uint64_t steps = of.steps;
        for (; is_here(false); ++end) {
            before += differences_[end].count;
            steps = std::min(steps, steps_of(differences_[end]));
        }
        const std::size_t fresh = end;
        for (; is_here(true); ++end) after += differences_[end].count;
        const std::size_t paired = std::min(fresh - first, end - fresh);
        for (std::size_t i = 0; i < paired; ++i) {
            pairs_.push_back(differences_[first + i]);
            pairs_.push_back(differences_[fresh + i]);
        }
        for (std::size_t i = first + paired; i < fresh; ++i) {
            const difference& gone = differences_[i];
            left_out_.push_back(gone.at);
            if (paired != 0) continue;
            const member& missing = of.members[gone.at];
            lost_.push_back({{missing.form, step, steps_of(gone), 1}, missing.identity, false});
            lacking += gone.count;
        }
        for (std::size_t i = fresh + paired; i < end; ++i) {
            added_.push_back(differences_[i].at);
            more += differences_[i].count;
        }
        if (paired == 0 || paired == fresh - first || after >= before) return end;
        // Other buckets, with less in them.
        call_form less = of.members[differences_[first].at].form;
        less.count = before - after;
        lacking += less.count;
        lost_.push_back({{less, step, steps, 0}, 0, true});
        return end;
    }
    /// Of calls that only their order tells apart, the one that is lost stands where the sequences part.
    void name_lost(const kind& of)
    {
        constexpr std::size_t most = 64;
        if (lost_.empty() || lost_.size() > most) return;
        std::vector<const member*> sequence;
        for (const member& each : of.members)
            if (counts(each) && !each.is_optional) sequence.push_back(&each);
        std::sort(sequence.begin(), sequence.end(),
            [](const member* a, const member* b) { return a->position < b->position; });
        std::vector<std::uint64_t> now(calls_.size()); // the identities of the step's calls, in its order
        for (const sorted_call& each : sorted_) now[each.call] = each.identity;
        std::erase(now, 0u);
        std::size_t at = 0;
        for (const member* const each : sequence) {
            if (at < now.size() && now[at] == each->identity) {
                ++at;
                continue;
            }
            const auto found = std::find_if(lost_.begin(), lost_.end(),
                [each](const lost& one) { return !one.is_named && one.identity == each->identity; });
            if (found != lost_.end()) {
                found->what.call = each->form;
                found->is_named = true;
                continue;
            }
            const std::size_t end = std::min(now.size(), at + most);
            const std::size_t next = static_cast<std::size_t>(
                std::find(now.data() + at, now.data() + end, each->identity) - now.data());
            if (next < end) at = next + 1;
        }
    }
    void learn(kind& of, bool is_news)
    {
        for (member& each : of.members) {
            if (each.here == none) continue;
            each.position = sorted_[each.here].call;
            each.form.site = call_of(sorted_[each.here]).site;
        }
        for (const std::uint32_t m : left_out_) of.members[m].is_optional = true;
        for (std::size_t i = 0; i < pairs_.size(); i += 2) {
            member& was = of.members[pairs_[i].at];
            was = member_of(sorted_[pairs_[i + 1].at], was.begun);
        }
        for (const std::uint32_t s : added_) of.members.push_back(member_of(sorted_[s], of.steps));
        if (!pairs_.empty() || !added_.empty())
            std::sort(of.members.begin(), of.members.end(), [](const auto& a, const auto& b) { return before(a, b); });
        ++of.steps;
        if (is_news) {
            ++of.news;
            of.last_news = of.steps;
        }
        of.largest = std::max(of.largest, sorted_.size());
        if (of.members.size() <= 4 * of.largest + 32) return;
        begin_members(of);
        of.last_news = 0;
    }
    void begin_members(kind& of) const
    {
        of.members.clear();
        for (const sorted_call& each : sorted_) of.members.push_back(member_of(each, 0));
        of.steps = 1;
    }
    kind* begin_kind()
    {
        constexpr std::size_t most_kinds = 8;
        if (kinds_.size() < most_kinds) kinds_.emplace_back();
        // A kind that came often stays.
        kind& of = kinds_.back().steps == 0 ? kinds_.back()
                                            : *std::min_element(kinds_.begin(), kinds_.end(),
                                                [](const kind& a, const kind& b) {
                                                    return a.steps != b.steps ? a.steps < b.steps : a.used < b.used;
                                                });
        start_over(of, &kind::members);
        begin_members(of);
        of.largest = sorted_.size();
        return &of;
    }
    void tell(const kind& has, step_record& out) const
    {
        // A kind whose steps still change has its calls left out by habit.
        const bool is_settled = has.steps - has.last_news >= 3 && has.steps >= 8 * has.news * has.news;
        constexpr std::size_t most_lines = 4;
        for (const bool is_certain : {true, false}) {
            const auto is_told = [&](const missing_call& of) { return (is_settled && of.steps >= 3) == is_certain; };
            const auto put = [&](const missing_call& what) {
                if (!is_certain) return out.missing_calls.push_back(what);
                out.add({.what = finding_kind::call_missing,
                    .statistic = static_cast<double>(what.calls),
                    .number = {.steps = static_cast<std::uint32_t>(std::min<std::uint64_t>(what.steps, none)),
                        .since = what.since},
                    .other = what.call});
            };
            missing_call all{.since = out.step, .steps = has.steps, .calls = 0};
            std::size_t lines = 0;
            for (const lost& each : lost_) {
                if (!is_told(each.what)) continue;
                if (++lines == 1 || each.what.call.count > all.call.count) all.call = each.what.call;
                all.calls += each.what.calls;
                all.steps = std::min(all.steps, each.what.steps);
            }
            if (lines > most_lines) {
                put(all);
                continue;
            }
            for (const lost& each : lost_)
                if (is_told(each.what)) put(each.what);
        }
    }

    view<const probed_call> calls_; ///< of the step that is judged
    bool has_places_ = false;
    bool with_integers_ = true;
    sorted_calls order_;
    std::vector<sorted_call> sorted_; ///< of the step
    std::vector<kind> kinds_;
    std::vector<std::uint64_t> known_; ///< hashes of steps; the oldest one at `next_known_` once it is full
    std::size_t next_known_ = 0;
    std::vector<difference> differences_;
    std::vector<difference> pairs_; ///< a member, then the call that it is with another count
    std::vector<std::uint32_t> left_out_; ///< members
    std::vector<std::uint32_t> added_; ///< in `sorted_`
    std::vector<lost> lost_;
    std::uint64_t step_ = 0;
    static constexpr std::size_t no_kind = ~std::size_t{0};
    std::size_t last_ = no_kind; ///< the kind of the last step
    std::uint64_t last_unseen_ = 0;
};

using missing_calls_check = basic_missing_calls_check<>;

} // namespace collprobe::detail
