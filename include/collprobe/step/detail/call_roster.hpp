// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/detail/sorted_calls.hpp>
#include <collprobe/step/detail/message.hpp>

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
    void clear();

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
    template <class Both, class Gone, class Fresh>
    void walk(kind& of, const Both& both, const Gone& gone, const Fresh& fresh);
    static member member_of(const probed_call& call, bool has_places, const sorted_call& at, std::uint64_t begun);
    kind* find_kind(view<const probed_call> calls);
    void find_differences(kind& of, view<const probed_call> calls, bool has_places);
    void find_lost(kind& of, std::uint64_t step);
    void name_lost(const kind& of);
    void learn(kind& of, view<const probed_call> calls, bool has_places, bool is_news);
    void begin_kind(view<const probed_call> calls, bool has_places, std::uint64_t unseen);
    void tell(const kind& of, step_record& out);

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

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/step/detail/call_roster.ipp>
#endif
