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
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/sorted_calls.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Finds calls that steps do not make any more: step/README.md has the rules. Uses what all ranks know alike.
/// Steps of one kind share at least half of their calls, and of the elements; others are not compared.
/// Bounded: it knows 8 kinds of steps, of each four times the calls of its largest step and 32; and 256 steps by the
/// hash of their calls, which miss nothing when they come again.
/// Cost: O(calls) if the step is as the last one; else of two sorts, and O(kinds * calls).
class call_roster {
public:
    /// Appends to `out` what the step misses. `with_integers`: all calls of integers are among `calls`; without it none
    /// of them counts. `unseen`: calls of the step that may be missing in `calls` alone.
    void judge(view<const probed_call> calls, bool has_places, bool with_integers, std::uint64_t unseen,
        step_record& out);
    /// Knows no step any more.
    COLLPROBE_COLD_INLINE void clear() { *this = {}; }

private:
    struct member {
        std::uint64_t identity = 0;
        std::uint64_t order = 0;
        std::uint64_t place = 0; ///< 0 without places
        std::uint64_t begun = 0; ///< steps of the kind before its first one
        call_form form = {};
        reduction operation = reduction::sum;
        std::uint32_t position = 0; ///< in the last step that had it
        bool is_optional = false; ///< some step was without it

        bool before(std::uint64_t other_identity, std::uint64_t other_order) const noexcept
        {
            return identity < other_identity || (identity == other_identity && order < other_order);
        }
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

    static bool is_required(const kind& of, const member& each) noexcept
    {
        return !each.is_optional && of.steps - each.begun >= each.begun;
    }
    /// Gives each pair of a member and a call, each member without a call, and each call without a member.
    void walk(kind& of, const auto& both, const auto& gone, const auto& fresh)
    {
        std::uint32_t m = 0;
        for (std::uint32_t s = 0; s < sorted_.size(); ++s) {
            while (m < of.members.size() && of.members[m].before(sorted_[s].identity, sorted_[s].order)) gone(m++);
            const bool is_there = m < of.members.size() && of.members[m].identity == sorted_[s].identity
                && of.members[m].order == sorted_[s].order;
            if (is_there) both(m++, s);
            else fresh(s);
        }
        while (m < of.members.size()) gone(m++);
    }

    COLLPROBE_COLD_INLINE static member member_of(
        const probed_call& call, bool has_places, const sorted_call& at, std::uint64_t begun)
    {
        return {at.identity, at.order, has_places ? call.place : 0, begun,
            {.call = call.call, .type = call.type, .count = call.count, .site = call.site}, call.operation, at.call,
            false};
    }

    /// The kind that shares most with the step; null: none.
    COLLPROBE_COLD_INLINE kind* find_kind(view<const probed_call> calls)
    {
        kind* best = nullptr;
        double most = 0;
        for (kind& each : kinds_) {
            double elements[4] = {}; // shared, of the step, required, required and there
            double numbers[4] = {};
            const auto add = [&](int which, std::uint64_t count) {
                elements[which] += static_cast<double>(count);
                numbers[which] += 1;
            };
            walk(each,
                [&, this](std::uint32_t m, std::uint32_t s) {
                    const std::uint64_t count = calls[sorted_[s].call].count;
                    add(0, count);
                    add(1, count);
                    if (!is_required(each, each.members[m])) return;
                    add(2, count);
                    add(3, count);
                },
                [&, this](std::uint32_t m) {
                    const member& gone = each.members[m];
                    if (counts(gone) && is_required(each, gone)) add(2, gone.form.count);
                },
                [&, this](std::uint32_t s) { add(1, calls[sorted_[s].call].count); });
            const bool is_alike = numbers[0] > 0 && 2 * numbers[0] >= numbers[1] && 2 * elements[0] >= elements[1]
                && 2 * numbers[3] >= numbers[2] && 2 * elements[3] >= elements[2];
            if (!is_alike || (best != nullptr && elements[0] <= most)) continue;
            best = &each;
            most = elements[0];
        }
        return best;
    }
    /// Of calls that are at the same place and of the same form but for the count, members that are gone become
    /// calls that are new: `pairs_`. What is over is `left_out_` and `added_`.
    COLLPROBE_COLD_INLINE void find_differences(kind& of, view<const probed_call> calls, bool has_places)
    {
        differences_.clear();
        walk(of, [](std::uint32_t, std::uint32_t) {},
            [&, this](std::uint32_t m) {
                member& gone = of.members[m];
                if (!counts(gone) || gone.is_optional) return;
                if (!is_required(of, gone)) {
                    gone.is_optional = true;
                    return;
                }
                differences_.push_back({probed_call::form_of(gone.form.call, gone.form.type, gone.operation),
                    gone.place, gone.form.count, m, false});
            },
            [&, this](std::uint32_t s) {
                const probed_call& call = calls[sorted_[s].call];
                differences_.push_back({probed_call::form_of(call.call, call.type, call.operation),
                    has_places ? call.place : 0, call.count, s, true});
            });
        std::sort(differences_.begin(), differences_.end(), [](const difference& a, const difference& b) {
            if (a.form != b.form) return a.form < b.form;
            if (a.place != b.place) return a.place < b.place;
            if (a.is_fresh != b.is_fresh) return b.is_fresh;
            return a.count != b.count ? a.count > b.count : a.at < b.at;
        });
    }
    /// Fills `lost_`: the members that are gone and that no new calls make good.
    COLLPROBE_COLD_INLINE void find_lost(kind& of, std::uint64_t step)
    {
        pairs_.clear();
        left_out_.clear();
        added_.clear();
        lost_.clear();
        const auto steps_of = [&](std::uint32_t m) { return of.steps - of.members[m].begun; };
        std::size_t end = 0;
        for (std::size_t begin = 0; begin < differences_.size(); begin = end) { // calls of one form
            std::uint64_t lacking = 0;
            std::uint64_t more = 0;
            const std::size_t lost_before = lost_.size();
            for (; end < differences_.size() && differences_[end].form == differences_[begin].form;) { // at one place
                const std::size_t first = end;
                std::size_t fresh = first;
                const auto is_here = [&, this](std::size_t i) {
                    return i < differences_.size() && differences_[i].form == differences_[first].form
                        && differences_[i].place == differences_[first].place;
                };
                while (is_here(fresh) && !differences_[fresh].is_fresh) ++fresh;
                for (end = fresh; is_here(end);) ++end;
                const std::size_t gone = fresh - first;
                const std::size_t paired = std::min(gone, end - fresh);
                std::uint64_t before = 0;
                std::uint64_t after = 0;
                std::uint64_t steps = of.steps;
                for (std::size_t i = first; i < fresh; ++i) {
                    const difference& each = differences_[i];
                    before += each.count;
                    steps = std::min(steps, steps_of(each.at));
                    if (i - first < paired) continue;
                    left_out_.push_back(each.at);
                    if (paired != 0) continue;
                    const member& missing = of.members[each.at];
                    lost_.push_back({{missing.form, step, steps_of(each.at), 1}, missing.identity, false});
                    lacking += each.count;
                }
                for (std::size_t i = 0; i < paired; ++i) {
                    pairs_.push_back(differences_[first + i]);
                    pairs_.push_back(differences_[fresh + i]);
                }
                for (std::size_t i = fresh; i < end; ++i) {
                    after += differences_[i].count;
                    if (i - fresh < paired) continue;
                    added_.push_back(differences_[i].at);
                    more += differences_[i].count;
                }
                if (paired == 0 || paired == gone || after >= before) continue;
                // Other buckets, with less in them.
                call_form less = of.members[differences_[first].at].form;
                less.count = before - after;
                lacking += less.count;
                lost_.push_back({{less, step, steps, 0}, 0, true});
            }
            if (more >= lacking) lost_.resize(lost_before);
        }
        name_lost(of);
    }
    /// Of calls that only their order tells apart, the one that is lost stands where the sequences part.
    COLLPROBE_COLD_INLINE void name_lost(const kind& of)
    {
        constexpr std::size_t most = 64;
        if (lost_.empty() || lost_.size() > most) return;
        std::vector<const member*> sequence;
        for (const member& each : of.members)
            if (counts(each) && !each.is_optional) sequence.push_back(&each);
        std::sort(sequence.begin(), sequence.end(),
            [](const member* a, const member* b) { return a->position < b->position; });
        std::vector<sorted_call> by_place = sorted_;
        std::sort(by_place.begin(), by_place.end(),
            [](const sorted_call& a, const sorted_call& b) { return a.call < b.call; });
        std::size_t at = 0;
        for (const member* const each : sequence) {
            if (at < by_place.size() && by_place[at].identity == each->identity) {
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
            for (std::size_t next = at; next < by_place.size() && next < at + most; ++next) {
                if (by_place[next].identity != each->identity) continue;
                at = next + 1;
                break;
            }
        }
    }
    COLLPROBE_COLD_INLINE void learn(
        kind& of, view<const probed_call> calls, bool has_places, bool is_news)
    {
        walk(of,
            [&, this](std::uint32_t m, std::uint32_t s) {
                of.members[m].position = sorted_[s].call;
                of.members[m].form.site = calls[sorted_[s].call].site;
            },
            [](std::uint32_t) {}, [](std::uint32_t) {});
        for (const std::uint32_t m : left_out_) of.members[m].is_optional = true;
        for (std::size_t i = 0; i < pairs_.size(); i += 2) {
            const sorted_call& now = sorted_[pairs_[i + 1].at];
            member& was = of.members[pairs_[i].at];
            was = member_of(calls[now.call], has_places, now, was.begun);
        }
        for (const std::uint32_t s : added_)
            of.members.push_back(member_of(calls[sorted_[s].call], has_places, sorted_[s], of.steps));
        if (!pairs_.empty() || !added_.empty()) {
            std::sort(of.members.begin(), of.members.end(),
                [](const member& a, const member& b) { return a.before(b.identity, b.order); });
        }
        ++of.steps;
        if (is_news) {
            ++of.news;
            of.last_news = of.steps;
        }
        of.used = step_;
        of.largest = std::max(of.largest, sorted_.size());
        if (of.members.size() <= 4 * of.largest + 32) return;
        of.members.clear();
        for (const sorted_call& each : sorted_) of.members.push_back(member_of(calls[each.call], has_places, each, 0));
        of.steps = 1;
        of.last_news = 0;
    }
    COLLPROBE_COLD_INLINE void begin_kind(
        view<const probed_call> calls, bool has_places, std::uint64_t unseen)
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
        for (const sorted_call& each : sorted_) of.members.push_back(member_of(calls[each.call], has_places, each, 0));
        of.steps = 1;
        of.unseen = unseen;
        of.used = step_;
        of.largest = sorted_.size();
        last_ = static_cast<std::size_t>(&of - kinds_.data());
    }
    COLLPROBE_COLD_INLINE void tell(const kind& of, step_record& out)
    {
        if (lost_.empty()) return;
        // A kind whose steps still change has its calls left out by habit.
        const bool is_settled = of.steps - of.last_news >= 3 && of.steps >= 8 * of.news * of.news;
        constexpr std::size_t most_lines = 4;
        for (const bool is_certain : {true, false}) {
            const missing_call* largest = nullptr;
            std::uint64_t steps = of.steps;
            std::size_t lines = 0;
            std::uint32_t calls = 0;
            for (const lost& each : lost_) {
                if ((is_settled && each.what.steps >= 3) != is_certain) continue;
                ++lines;
                calls += each.what.calls;
                steps = std::min(steps, each.what.steps);
                if (largest == nullptr || each.what.call.count > largest->call.count) largest = &each.what;
            }
            const auto put = [&](const missing_call& what) {
                if (!is_certain) {
                    out.missing_calls.push_back(what);
                    return;
                }
                out.add({.what = finding_kind::call_missing,
                    .statistic = static_cast<double>(what.calls),
                    .number = {.steps = static_cast<std::uint32_t>(std::min<std::uint64_t>(what.steps, 0xffffffffu)),
                        .since = what.since},
                    .other = what.call});
            };
            if (lines > most_lines) {
                put({largest->call, largest->since, steps, calls});
                continue;
            }
            for (const lost& each : lost_)
                if ((is_settled && each.what.steps >= 3) == is_certain) put(each.what);
        }
    }

    bool counts(const member& each) const noexcept { return with_integers_ || is_floating(each.form.type); }

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
    std::size_t last_ = no_kind; ///< kind of the last step
    std::uint64_t last_unseen_ = 0;
    bool with_integers_ = true;

    static constexpr std::size_t no_kind = ~std::size_t{0};
};

COLLPROBE_COLD_INLINE void call_roster::judge(
    view<const probed_call> calls, bool has_places, bool with_integers, std::uint64_t unseen, step_record& out)
{
    if (calls.empty()) return;
    ++step_;
    const bool is_same_view = with_integers == with_integers_ && unseen == last_unseen_;
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
    kind* const of = find_kind(calls);
    const bool is_known = std::find(known_.begin(), known_.end(), hash) != known_.end();
    if (of != nullptr) {
        find_differences(*of, calls, has_places);
        find_lost(*of, out.step);
        if (!is_known && !lost_.empty() && unseen > of->unseen) return;
        if (!is_known) tell(*of, out);
        learn(*of, calls, has_places, !is_known && (!left_out_.empty() || !added_.empty()));
        if (unseen > of->unseen) of->unseen = unseen;
        last_ = static_cast<std::size_t>(of - kinds_.data());
    } else {
        begin_kind(calls, has_places, unseen);
    }
    if (is_known) return;
    constexpr std::size_t most_known = 256;
    if (known_.size() < most_known) known_.push_back(hash);
    else known_[next_known_++ % most_known] = hash;
}

} // namespace collprobe::detail
