// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/record/statistics.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/step_arena.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What a rank found when it compared the messages of codes of a call that came with those that were sent.
struct damaged_messages {
    std::uint64_t senders = 0; ///< how many ranks' messages came otherwise than they were sent
    std::uint64_t first = 0; ///< the lowest of them
    std::uint64_t checked = 0;
};

/// Puts the digests of what was sent in order: by rank, and for each rank by call. A body for `for_each`.
struct order_digests {
    const std::uint64_t* digests; ///< of a call: `quantised_calls::digests_to`
    std::uint64_t* to; ///< of the call, for rank 0
    std::uint64_t calls;
    std::uint64_t ranks;

    COLLPROBE_HD void operator()(std::uint64_t rank) const noexcept
    {
        to[rank * calls] = digests[rank] + digests[ranks + rank];
    }
};

/// Compares what came from each rank with what that rank sent. A reducer over ranks, for the devices' `reduce`.
struct compare_messages {
    static constexpr std::uint64_t block = 4096; // on the host
    using partial = damaged_messages;

    const std::uint64_t* sent; ///< of the call, by rank 0; `calls` numbers from a rank to the next
    const std::uint64_t* digests; ///< `quantised_calls::digests_to`
    std::uint64_t calls;
    std::uint64_t ranks;

    COLLPROBE_HD static constexpr partial identity() noexcept { return {0, no_index, 1}; }
    COLLPROBE_HD void add(partial& into, std::uint64_t rank) const noexcept
    {
        const std::uint64_t came = digests[2 * ranks + rank] + digests[3 * ranks + rank];
        if (came != sent[rank * calls]) merge(into, {1, rank, 1});
    }
    void run(partial& into, std::uint64_t first, std::uint64_t count) const noexcept
    {
        for (std::uint64_t rank = first; rank < first + count; ++rank) add(into, rank);
    }
    COLLPROBE_HD static constexpr void merge(partial& into, const partial& next) noexcept
    {
        into.senders += next.senders;
        into.first = next.first < into.first ? next.first : into.first;
    }
    COLLPROBE_HD static constexpr damaged_messages finish(const partial& all) noexcept { return all; }
};

/// Checks whether the messages of a step's quantised calls arrived as they were sent, by their digests. Cost of a step:
/// an all-to-all of 8 bytes a rank and call, and two launches for each call. Memory on the device: 48 bytes a rank and
/// call. Stream behaviour: everything is enqueued; it allocates until a step is as large as the largest before.
template <class Device>
class message_check {
public:
    explicit message_check(int ranks) : ranks_(static_cast<std::uint64_t>(ranks)) {}

    void clear() noexcept
    {
        open_.clear();
        digests_.clear();
        exchanged_.clear();
    }
    /// Calls from this index on were not made in the end.
    void forget(std::uint64_t first) noexcept
    {
        for (; !open_.empty() && open_.back().call >= first; open_.pop_back())
            digests_.take_back(open_.back().digests);
    }
    /// Opens a call. Returns where it is to leave its digests.
    std::uint64_t* before(std::uint64_t call)
    {
        open_.push_back({call, digests_.take(4 * ranks_)});
        return open_.back().digests;
    }
    /// Behind all calls of the step. `out_of(call)`: the entry where the device writes what it found.
    template <class Step, class OutOf>
    void end(const Step& step, const OutOf& out_of)
    {
        if (open_.empty()) return;
        const auto count = static_cast<std::uint64_t>(open_.size());
        std::uint64_t* const sent = exchanged_.take(2 * ranks_ * count);
        std::uint64_t* const theirs = sent + ranks_ * count;
        for (std::uint64_t i = 0; i < count; ++i)
            Device::for_each(step.stream(), ranks_, order_digests{open_[i].digests, sent + i, count, ranks_});
        using ranks_type = std::remove_reference_t<decltype(step.ranks())>;
        if constexpr (ranks_type::has_collective(collective::all_to_all)) { // as all have that make quantised calls
            step.ranks().all_to_all(view<const std::uint64_t>(sent, ranks_ * count),
                view<std::uint64_t>(theirs, ranks_ * count), step.stream(), step.where());
        }
        for (std::uint64_t i = 0; i < count; ++i) {
            Device::reduce(step.stream(), compare_messages{theirs + i, open_[i].digests, count, ranks_}, ranks_,
                &out_of(open_[i].call)->messages, reduces_);
        }
    }

private:
    struct in_step {
        std::uint64_t call;
        std::uint64_t* digests;
    };
    std::uint64_t ranks_;
    std::vector<in_step> open_;
    step_arena<Device, std::uint64_t> digests_{256};
    step_arena<Device, std::uint64_t> exchanged_{256};
    typename Device::workspace reduces_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
