// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/view.hpp>
#include <collprobe/step/detail/sorted_calls.hpp>
#include <collprobe/step/detail/message.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Knows the calls of a step again in later steps. A call is the same if its place in the program is (its name, else
/// its line), its kind, type, operation and count, and its order among the calls of its step for which all that is the
/// same. So a step that has more calls than another, or fewer, moves nothing.
/// Bounded: it knows four times the calls of the largest step, and 32. Series not seen for longest go first.
class call_series {
public:
    /// Gives each call its series. `has_places`: the ranks agree on the places in the program; if they do not, these
    /// tell nothing. Cost: O(calls) if the step is as the last one, else O(known * log(known)). Valid until the next
    /// call.
    view<const series_place> find(view<const probed_call> calls, bool has_places);

    /// All slots are below it.
    std::size_t slots() const noexcept { return used_.size(); }
    /// By slot: the number of its series; 0 if none has it.
    std::vector<std::uint64_t> numbers() const;
    /// Knows no call of earlier steps any more.
    void clear();
    /// As new, but for the numbers of series that begin.
    void reset();
    /// The series that have begun: the number of the last one.
    std::uint64_t begun() const noexcept { return begun_; }

    /// 8-byte words, of which `restore` makes such series again: in the same slots, with new numbers, each less its
    /// old one by as much as the others. `first` is subtracted from the numbers.
    void save(std::vector<std::uint64_t>& words, std::uint64_t first) const;
    /// False for words that `save` cannot have written; then nothing changes.
    bool restore(view<const std::uint64_t> words);

private:
    struct known {
        std::uint64_t identity;
        std::uint64_t order; ///< among those of a step with this identity
        series_place at;

        bool before(const known& other) const noexcept
        {
            return identity < other.identity || (identity == other.identity && order < other.order);
        }
    };

    void make_room(std::size_t more);

    std::vector<known> known_; ///< ascending by identity and order
    std::vector<std::uint64_t> used_; ///< by slot: the last step with it
    std::vector<std::uint32_t> unused_; ///< slots, the next one last
    sorted_calls order_;
    std::vector<known> fresh_;
    std::vector<std::uint32_t> fresh_calls_;
    std::vector<series_place> places_;
    std::size_t largest_ = 0; ///< calls in a step
    std::uint64_t step_ = 0;
    std::uint64_t begun_ = 0;
};

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/step/detail/call_series.ipp>
#endif
