// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/sliced_exchange.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>
#include <collprobe/quant/detail/quantised_memory.hpp>
#include <collprobe/scan/statistics.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Counts the steps in the device's memory. A body for `for_each`, for one index.
struct count_step {
    std::uint64_t* step;
    COLLPROBE_HD void operator()(std::uint64_t) const noexcept { ++*step; }
};

/// Adds the digests of messages to those of the ranks that they go to or come from. A body for `for_each` over the
/// ranks of a communicator.
struct add_digests {
    const std::uint64_t* digests;
    std::uint64_t stride; ///< 0: all of the ranks get the first message
    const std::uint32_t* ranks; ///< in the world, `ranks_stride` numbers apart; null for the world itself
    std::uint64_t ranks_stride;
    std::uint64_t salt; ///< tells the messages of a pair of ranks apart
    std::uint64_t* sums;

    COLLPROBE_HD void operator()(std::uint64_t peer) const noexcept
    {
        sums[ranks == nullptr ? peer : ranks[peer * ranks_stride]] += mix64(digests[peer * stride] ^ salt);
    }
};

/// The bytes of all ranks' messages of `blocks` blocks each, at most.
inline std::uint64_t bytes_of_messages(const codec& how, std::uint64_t ranks, std::uint64_t blocks) noexcept
{
    return ranks * wire_layout::of(how, blocks).bytes();
}
/// The least bytes of an area of the scratch memory.
inline std::uint64_t least_area(
    const quantisation& within, const quantisation& across, std::uint64_t ranks) noexcept
{
    const std::uint64_t a = bytes_of_messages(codec::of<float>(within), ranks, 1);
    const std::uint64_t b = bytes_of_messages(codec::of<float>(across), ranks, 1);
    return ((a > b ? a : b) + 63) / 64 * 64;
}

/// What one quantised call is made with.
struct quantised_call {
    const quantisation& within; ///< of the messages within a node, or between all ranks
    const quantisation& across; ///< of those between nodes, and of the result
    std::uint32_t number; ///< of the call in its step
    quantised_errors* errors; ///< null if nobody wants them
    std::uint64_t* digests; ///< `quantised_calls::digests_to`
    call_site where;
};

/// Makes one quantised call: a codec of sliced exchanges whose messages are codes. One object per call.
template <floating_element T, communicator Comm, class Groups>
class quantised_exchange {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using memory_type = quantised_memory<device>;
    using levels_type = exchange_levels<Comm, Groups>;
    using piece = slice_plan::piece;

public:
    using wire = std::uint8_t;

    quantised_exchange(Comm& comm, Groups* nodes, memory_type& memory, const quantised_call& call,
        const collective_call& what, const T* send, T* receive, stream_ref on)
        : levels_(comm, nodes, what.what == collective::all_gather), memory_(memory), call_(call), on_(on),
          within_(levels_.is_across(0) ? call.across : call.within),
          errors_(call.errors == nullptr ? memory.errors.data() : call.errors),
          rank_(static_cast<std::uint64_t>(comm.rank())), send_(send), receive_(receive),
          scatters_(what.what == collective::reduce_scatter),
          divisor_(what.operation == reduction::average ? static_cast<std::uint32_t>(comm.size()) : 1),
          plan_(plan_of(what))
    {
        if (call.digests == nullptr) return;
        for (auto& each : memory_.digests)
            if (each.size() == 0) each = typename device::template buffer<std::uint64_t>(levels_.ranks());
        device::zero(on_, view<std::uint64_t>(call.digests, 4 * levels_.ranks()));
    }
    quantised_exchange(const quantised_exchange&) = delete;

    /// Finds the residuals that the call of the step before has left, or makes memory for new ones.
    template <class Caller>
    feedback_state find_feedback(const collective_call& what, const Caller& who)
    {
        const bool input = call_.within.feedback == error_feedback::all;
        const bool sums = call_.across.feedback != error_feedback::none;
        if (!input && !sums) return feedback_state::none;
        const std::uint64_t slice = plan_.slice_elements();
        const feedback_layout layout{static_cast<std::uint32_t>(what.what), static_cast<std::uint32_t>(what.type),
            plan_.count, plan_.next({}).length, input ? slice * levels_.ranks() : 0,
            sums && levels_.count() == 2 ? slice * levels_.slices_per_message(0) : 0,
            sums && what.what == collective::all_reduce ? slice : 0};
        auto& all = memory_.feedback;
        while (all.size() <= call_.number) all.emplace_back();
        feedback_ = &all[call_.number];
        if (feedback_->layout == layout) return feedback_state::continued;
        if constexpr (can_capture<stream_ref>) {
            if (on_.capturing(call_.where)) {
                who.fail(status::unsupported, "a captured call with feedback needs the errors of an earlier call: "
                                              "make the step once before");
            }
        }
        const bool had_errors = feedback_->layout != feedback_layout();
        if (had_errors) memory_.dropped.push_back(std::move(*feedback_));
        *feedback_ = {layout, typename device::template buffer<float>(layout.input + layout.node + layout.result)};
        device::zero(on_, view<float>(feedback_->residuals));
        return had_errors ? feedback_state::dropped : feedback_state::fresh;
    }

    void reduce(quantised_outcome& outcome)
    {
        sliced_exchange exchange(levels_, *this, memory_, on_, call_.where);
        exchange.reduce(plan_, !scatters_);
        tell(exchange.traffic(), levels_.count() + (scatters_ ? 0 : 1), outcome);
    }
    void gather(quantised_outcome& outcome)
    {
        sliced_exchange exchange(levels_, *this, memory_, on_, call_.where);
        exchange.gather(plan_);
        tell(exchange.traffic(), 1, outcome);
    }

    unsigned char* outgoing(int slot) const noexcept { return memory_.slot(slot); }
    unsigned char* incoming(const piece&, int slot, std::uint64_t) const noexcept
    {
        return memory_.slot(slot) + memory_.area_bytes();
    }
    unsigned char* results(const piece&, int slot) const noexcept { return memory_.slot(slot); }
    std::uint64_t sends() const noexcept { return 1; }
    std::uint64_t message(const piece& at, int level) const noexcept
    {
        return wire_layout::of(codec::of<T>(level == 0 ? within_ : call_.across),
            cut(at, 1, levels_.slices_per_message(level)).blocks_per_message())
            .bytes();
    }
    std::uint64_t result_message(const piece& at) const noexcept
    {
        return wire_layout::of(codec::of<T>(call_.across), cut(at, 1, 1).blocks()).bytes();
    }

    const unsigned char* encode(const piece& at, int slot, std::uint64_t)
    {
        float* const kept = feedback_ == nullptr ? nullptr : feedback_->input(at.before * levels_.ranks());
        encode(within_, cut(at, levels_.messages(0), levels_.slices_per_message(0)), send_, outgoing(slot),
            message(at, 0), kept, at);
        return outgoing(slot);
    }
    /// Into this rank's place among the results. What the rank sends is its part of a buffer that does not exist before
    /// the gather.
    void encode_own(const piece& at, int slot)
    {
        const std::uint64_t bytes = result_message(at);
        encode(call_.across, own(at), shifted(send_, rank_ * plan_.stride), results(at, slot) + rank_ * bytes, bytes,
            nullptr, at);
    }
    void combine(const piece& at, int slot, int level, stream_ref on)
    {
        const bool is_last = level + 1 == levels_.count();
        // The sums of a node may be beyond the numbers of T.
        const codec in = level == 0 ? codec::of<T>(within_) : codec::of<float>(call_.across);
        const codec out = is_last ? codec::of<T>(call_.across) : codec::of<float>(call_.across);
        const std::uint64_t bytes = result_message(at);
        float* const kept = feedback_ == nullptr ? nullptr
            : is_last                            ? feedback_->result(at.before)
                                                 : feedback_->node(at.before * levels_.slices_per_message(0));
        // Where the element with index 0 would be, of which the rank may have none.
        T* const to = is_last && scatters_ ? shifted(receive_, rank_ * plan_.stride) : nullptr;
        const message_slices of = is_last ? own(at) : cut(at, 1, levels_.slices_per_message(0), levels_.first_place(1));
        combined_errors* const errors = is_last ? &errors_->owned : &errors_->node;
        device::reduce(on,
            combine_reducer<T>{in, of, incoming(at, slot, 0), message(at, level),
                static_cast<std::uint32_t>(levels_.messages(level)), is_last ? divisor_ : 1, is_probed(),
                to, encoder(out, is_last ? 2 : 1, kept),
                outgoing(slot) + (is_last ? levels_.own_place() * bytes : 0), bytes,
                at.before == 0 ? nullptr : errors},
            of.blocks(), errors, workspace(on));
    }
    void decode(const piece& at, int slot)
    {
        const message_slices all = cut(at, levels_.ranks(), 1);
        std::uint64_t* const nonfinite = &errors_->nonfinite_results;
        device::reduce(on_,
            decode_reducer<T>{codec::of<T>(call_.across), all, results(at, slot), result_message(at), receive_,
                at.before == 0 ? nullptr : nonfinite},
            all.blocks(), nonfinite, memory_.call_workspace);
    }
    /// Takes the digests of messages to the ranks of a level, or from them. One message: all of them get it.
    void note(int level, const unsigned char* first, std::uint64_t messages, std::uint64_t bytes, stream_ref on,
        bool arrived)
    {
        if (call_.digests == nullptr) return;
        const bool own_stream = on == on_;
        std::uint64_t* const digests = memory_.digests[own_stream ? 0 : 1].data();
        device::reduce_parts(on, digest_reducer<std::uint8_t>(view<const std::uint8_t>(first, messages * bytes)),
            messages, bytes, digests, workspace(on));
        const bool in_world = levels_.count() == 1;
        const std::uint64_t table = (arrived ? 2 : 0) + (own_stream ? 0 : 1);
        device::for_each(on, levels_.messages(level),
            add_digests{digests, messages == 1 ? 0u : 1u,
                in_world ? nullptr
                         : memory_.places.data() + (level == 0 ? levels_.own_message(1) : levels_.first_place(1)),
                level == 0 ? levels_.slices_per_message(0) : 1, noted_, call_.digests + table * levels_.ranks()});
        noted_ += arrived ? 1 : 0;
    }

private:
    /// A pointer to where an element would be that stands `back` elements before `from`.
    template <class U>
    static U* shifted(U* from, std::uint64_t back) noexcept
    {
        return reinterpret_cast<U*>(reinterpret_cast<std::uintptr_t>(from) - back * sizeof(U));
    }

    slice_plan plan_of(const collective_call& what) const noexcept
    {
        const bool gathers = what.what == collective::all_gather;
        const auto bytes_of_block = [](const codec& how) {
            return std::uint64_t{how.code_bytes()} + scale_bytes;
        };
        const std::uint64_t in = bytes_of_block(codec::of<T>(within_));
        const std::uint64_t out = bytes_of_block(codec::of<T>(call_.across));
        // Each message pads two planes by less than 16 bytes.
        const std::uint64_t area = memory_.area_bytes();
        const std::uint64_t padding = 32 * levels_.ranks();
        const std::uint64_t room = area > padding ? (area - padding) / (levels_.ranks() * (in > out ? in : out)) : 0;
        return {levels_.ranks(), gathers ? what.send_count : scatters_ ? what.receive_count : 0,
            gathers ? what.receive_count : what.send_count, within_.block, (room == 0 ? 1 : room) * within_.block};
    }
    /// The slices of messages of a piece, from a place on.
    message_slices cut(const piece& at, std::uint64_t messages, std::uint64_t slices_per_message,
        std::uint64_t first_place = 0) const noexcept
    {
        message_slices made;
        made.messages = static_cast<std::uint32_t>(messages);
        made.slices_per_message = static_cast<std::uint32_t>(slices_per_message);
        made.block = static_cast<std::uint32_t>(plan_.unit);
        made.stride = plan_.stride == 0 ? at.length : plan_.stride;
        made.first = at.first;
        made.length = at.length;
        made.count = plan_.count;
        if (levels_.count() == 2) made.slice_of = memory_.places.data() + first_place;
        return made;
    }
    /// This rank's slice.
    message_slices own(const piece& at) const noexcept
    {
        message_slices one = cut(at, 1, 1);
        one.first += rank_ * one.stride;
        one.slice_of = nullptr;
        return one;
    }

    bool is_probed() const noexcept { return call_.errors != nullptr; }
    auto& workspace(stream_ref on) const noexcept
    {
        return on == on_ ? memory_.call_workspace : memory_.sums_workspace; // a call of one piece has one stream
    }
    block_encoder encoder(const codec& how, std::uint32_t phase, float* kept) const noexcept
    {
        return {how, {how.seed, memory_.step.data(), static_cast<std::uint32_t>(rank_), call_.number * 8 + phase},
            kept, is_probed()};
    }
    void encode(const quantisation& how, const message_slices& of, const T* from, unsigned char* messages,
        std::uint64_t bytes, float* kept, const piece& at)
    {
        device::reduce(on_,
            encode_reducer<T>{encoder(codec::of<T>(how), 0, kept), of, from, messages, bytes,
                at.before == 0 ? nullptr : &errors_->input},
            of.blocks(), &errors_->input, memory_.call_workspace);
    }
    void tell(const exchange_traffic& sent, int roundings, quantised_outcome& outcome) const noexcept
    {
        const bool two_levels = levels_.count() == 2;
        outcome.within = within_.format;
        outcome.levels = two_levels ? 2 : 1;
        outcome.ranks_per_node = two_levels ? static_cast<std::uint32_t>(levels_.messages(0)) : 0;
        outcome.bytes_sent = sent.bytes;
        outcome.bytes_across = sent.bytes_across;
        outcome.collectives = sent.collectives;
        outcome.roundings_per_element = static_cast<std::uint32_t>(roundings);
    }

    levels_type levels_;
    memory_type& memory_;
    quantised_call call_;
    stream_ref on_;
    const quantisation& within_; ///< of the first messages: `across`, if these go between nodes
    quantised_errors* errors_;
    std::uint64_t rank_;
    const T* send_;
    T* receive_;
    bool scatters_;
    std::uint32_t divisor_;
    slice_plan plan_;
    feedback_memory<device>* feedback_ = nullptr;
    std::uint64_t noted_ = 0; ///< exchanges whose messages have digests
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
