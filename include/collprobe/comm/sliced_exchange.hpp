// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/slice_plan.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>

/// Reductions by moving terms to the ranks that add them: for each piece of the buffer an all-to-all of slices, their
/// sum on the slice's owner, an all-gather. What travels, and how it is added, is a codec's.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory, the stream and the events of sliced exchanges. If work overlaps messages, the memory holds two pieces,
/// of which one is added, on the stream `sums`, while the other is in transit.
template <class Device>
struct exchange_memory {
    static constexpr std::uint64_t slots = Device::overlaps_messages ? 2 : 1;

    explicit exchange_memory(std::uint64_t bytes) : scratch(bytes / slots / 64 * 64 * slots) { Device::load_kernels(); }

    std::uint64_t slot_bytes() const noexcept { return scratch.size() / slots; }
    unsigned char* slot(int which) const noexcept
    {
        return scratch.data() + static_cast<std::uint64_t>(which) * slot_bytes();
    }
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, use.done); }

    typename Device::template buffer<unsigned char> scratch;
    typename Device::stream sums;
    typename Device::event begun;
    typename Device::event arrived[2];
    typename Device::event summed[2];
    ordered_use<Device> use;
};

/// Runs the pieces of a call: for each, `send` on the call's stream, `add`, then `finish` on the call's stream. Where
/// work overlaps messages and there are several pieces, one is added on the stream `memory.sums` while the next is
/// sent, so that a piece uses memory slot 0 or 1 in turn. Else everything is on the call's stream.
template <class Device, class StreamRef, class Send, class Add, class Finish>
void run_pieces(exchange_memory<Device>& memory, StreamRef on, call_site where, const slice_plan& plan,
    const Send& send, const Add& add, const Finish& finish)
{
    slice_plan::piece at = plan.next({});
    if (!Device::overlaps_messages || plan.next(at).count == 0) {
        for (; at.count != 0; at = plan.next(at)) {
            send(at, 0);
            add(at, 0, on);
            finish(at, 0);
        }
        return;
    }
    const StreamRef sums = memory.sums;
    memory.begun.record(on);
    sums.wait(memory.begun, where);
    try {
        slice_plan::piece before;
        int slot = 0;
        for (; at.count != 0; at = plan.next(at)) {
            send(at, slot);
            memory.arrived[slot].record(on);
            sums.wait(memory.arrived[slot], where);
            add(at, slot, sums);
            memory.summed[slot].record(sums);
            if (before.count != 0) {
                on.wait(memory.summed[1 - slot], where);
                finish(before, 1 - slot);
            }
            before = at;
            slot = 1 - slot;
        }
        on.wait(memory.summed[1 - slot], where);
        finish(before, 1 - slot);
    } catch (...) {
        try { // work that waits for the call's stream must also wait for the sums
            memory.summed[0].record(sums);
            on.wait(memory.summed[0], where);
        } catch (...) { // the first error is the informative one
        }
        throw;
    }
}

/// The communicators of an exchange: one for all ranks, or with several nodes of several ranks one within each node
/// and one across the nodes. A message of a level holds a slice for each rank of the levels behind it. The slices of an
/// area are in the order of their places: by local rank, and for each by node.
template <communicator Comm, class Groups>
class exchange_levels {
    static constexpr bool has_groups = !std::is_void_v<Groups>;

public:
    /// `flat`: one level, also with nodes.
    exchange_levels(Comm& comm, Groups* nodes, bool flat = false) noexcept : comm_(comm), nodes_(nodes)
    {
        if constexpr (has_groups) {
            node_ranks_ = static_cast<std::uint64_t>(nodes->ranks_per_node());
            node_count_ = static_cast<std::uint64_t>(nodes->nodes());
        }
        count_ = !flat && node_ranks_ > 1 && node_count_ > 1 ? 2 : 1;
    }

    int count() const noexcept { return count_; }
    std::uint64_t ranks() const noexcept { return static_cast<std::uint64_t>(comm_.size()); }
    /// The ranks of a level's communicator, which are the messages of its all-to-all.
    std::uint64_t messages(int level) const noexcept
    {
        return count() == 1 ? ranks() : level == 0 ? node_ranks_ : node_count_;
    }
    std::uint64_t slices_per_message(int level) const noexcept { return count() - level == 2 ? node_count_ : 1; }
    /// The place of the message that this rank keeps.
    std::uint64_t own_message(int level) const noexcept
    {
        if constexpr (has_groups) {
            if (count() == 2) return static_cast<std::uint64_t>(level == 0 ? nodes_->local_rank() : nodes_->node());
        }
        return static_cast<std::uint64_t>(comm_.rank());
    }
    /// The place of the first slice that this rank's peers of a level share.
    std::uint64_t first_place(int level) const noexcept { return level == 0 ? 0 : own_message(0) * node_count_; }
    std::uint64_t own_place() const noexcept
    {
        return count() == 1 ? own_message(0) : first_place(1) + own_message(1);
    }
    /// Whether a level's messages go between nodes. They all do if each rank is a node of its own.
    bool is_across(int level) const noexcept { return level == 1 || (node_ranks_ == 1 && node_count_ > 1); }

    /// Calls `use` with a level's communicator.
    template <class Use>
    void with(int level, const Use& use) const
    {
        if constexpr (has_groups) {
            if (count() == 2) return level == 0 ? use(nodes_->within_node()) : use(nodes_->across_nodes());
        }
        use(comm_);
    }

private:
    Comm& comm_;
    Groups* nodes_;
    std::uint64_t node_ranks_ = 1;
    std::uint64_t node_count_ = 1;
    int count_ = 1;
};

/// What an exchange has sent.
struct exchange_traffic {
    std::uint64_t bytes = 0;
    std::uint64_t bytes_across = 0; ///< those of `bytes` for ranks of other nodes
    std::uint64_t collectives = 0;
};

/// Makes the exchanges of one call. `Codec` has:
/// - `wire`: the type of what travels; `message(at, level)`: how many of them a message of a level's all-to-all has,
///   and `result_message(at)`: how many a slice of the result has
/// - `sends()`: the number of all-to-alls of the first level
/// - `encode(at, slot, send)`: enqueues the making of the first level's messages and returns them
/// - `outgoing(slot)`: the messages of the next level; `incoming(at, slot, send)`: where messages arrive
/// - `combine(at, slot, level, stream)`: enqueues the addition of what arrived, into the messages of the next level,
///   or in the last one into the result
/// - `results(at, slot)`: the results of all places; `decode(at, slot)`: enqueues what is done with them
/// - for `gather`, `encode_own(at, slot)`: enqueues the making of this rank's results
/// - `note(level, messages, count, size, stream, arrived)`: is told of `count` messages before they leave and behind
///   their arrival
template <class Levels, class Codec, class Memory, class StreamRef>
class sliced_exchange {
    using wire = typename Codec::wire;
    using piece = slice_plan::piece;

public:
    sliced_exchange(const Levels& levels, Codec& codec, Memory& memory, StreamRef on, call_site where) noexcept
        : levels_(levels), codec_(codec), memory_(memory), on_(on), where_(where)
    {
    }

    const exchange_traffic& traffic() const noexcept { return traffic_; }

    /// Each rank gets its slice of the sums, or with `gathers` all of them.
    void reduce(const slice_plan& plan, bool gathers)
    {
        run_pieces(
            memory_, on_, where_, plan,
            [this](const piece& at, int slot) {
                for (std::uint64_t send = 0; send < codec_.sends(); ++send)
                    all_to_all(0, codec_.encode(at, slot, send), codec_.incoming(at, slot, send), at, on_);
            },
            [this, gathers](const piece& at, int slot, StreamRef on) {
                const int last = levels_.count() - 1;
                for (int level = 0;; ++level) {
                    codec_.combine(at, slot, level, on);
                    if (level == last) break;
                    all_to_all(level + 1, codec_.outgoing(slot), codec_.incoming(at, slot, 0), at, on);
                }
                for (int level = last; gathers && level > 0; --level) gather_results(level, at, slot, on);
            },
            [this, gathers](const piece& at, int slot) {
                if (!gathers) return;
                gather_results(0, at, slot, on_);
                codec_.decode(at, slot);
            });
    }

    /// The results that each rank makes of what it has are gathered over all ranks.
    void gather(const slice_plan& plan)
    {
        run_pieces(
            memory_, on_, where_, plan,
            [this](const piece& at, int slot) {
                codec_.encode_own(at, slot);
                all_gather(0, codec_.results(at, slot), codec_.result_message(at), on_);
            },
            [](const piece&, int, StreamRef) {}, [this](const piece& at, int slot) { codec_.decode(at, slot); });
    }

private:
    void all_to_all(int level, const wire* from, wire* to, const piece& at, StreamRef on)
    {
        const std::uint64_t messages = levels_.messages(level);
        const std::uint64_t size = codec_.message(at, level);
        codec_.note(level, from, messages, size, on, false);
        levels_.with(level, [&, this](auto& over) {
            over.all_to_all(view<const wire>(from, messages * size), view<wire>(to, messages * size), on, where_);
        });
        codec_.note(level, to, messages, size, on, true);
        count_sent(level, messages, size);
    }
    void gather_results(int level, const piece& at, int slot, StreamRef on)
    {
        const std::uint64_t slice = codec_.result_message(at);
        all_gather(level, codec_.results(at, slot) + levels_.first_place(level) * slice,
            levels_.slices_per_message(level) * slice, on);
    }
    /// In place.
    void all_gather(int level, wire* area, std::uint64_t size, StreamRef on)
    {
        const std::uint64_t messages = levels_.messages(level);
        wire* const own = area + levels_.own_message(level) * size;
        codec_.note(level, own, 1, size, on, false);
        levels_.with(level, [&, this](auto& over) {
            over.all_gather(view<const wire>(own, size), view<wire>(area, messages * size), on, where_);
        });
        codec_.note(level, area, messages, size, on, true);
        count_sent(level, messages, size);
    }
    void count_sent(int level, std::uint64_t messages, std::uint64_t size) noexcept
    {
        const std::uint64_t bytes = (messages - 1) * size * sizeof(wire);
        traffic_.bytes += bytes;
        traffic_.bytes_across += levels_.is_across(level) ? bytes : 0;
        ++traffic_.collectives;
    }

    const Levels& levels_;
    Codec& codec_;
    Memory& memory_;
    StreamRef on_;
    call_site where_;
    exchange_traffic traffic_;
};

} // namespace collprobe::detail
