// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/overlapped_pieces.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>
#include <collprobe/quant/detail/quantised_memory.hpp>
#include <collprobe/scan/digest_reducer.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Counts the steps in the device's memory. A body for `for_each`, for one index.
struct count_step {
    std::uint64_t* step;
    COLLPROBE_HD void operator()(std::uint64_t) const noexcept { ++*step; }
};

/// Adds the digests of messages to those of the ranks that they go to or come from. `peers`: a rank for each message;
/// null if message i has rank i. A body for `for_each`.
struct add_digests {
    const std::uint64_t* digests;
    std::uint64_t stride; ///< 0: all messages have the first digest
    const std::uint32_t* peers;
    std::uint64_t salt; ///< tells the messages of a pair of ranks apart
    std::uint64_t* sums;

    COLLPROBE_HD void operator()(std::uint64_t message) const noexcept
    {
        sums[peers == nullptr ? message : peers[message]] += mix64(digests[message * stride] ^ salt);
    }
};

/// `parts_of_one` for the communicators of a node and across nodes.
template <class Groups>
struct parts_in_nodes {
    parts_of_one<typename Groups::part> within;
    parts_of_one<typename Groups::part> across;
    parts_in_nodes(Groups* nodes, std::uint64_t count, element_type type)
        : within(nodes->within_node(), count, type), across(nodes->across_nodes(), count, type)
    {
    }
};
template <>
struct parts_in_nodes<void> {
    parts_in_nodes(void*, std::uint64_t, element_type) noexcept {}
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

/// The pieces of a quantised call: the same part of each of the slices. Slices that the caller gives have
/// `stride` elements; a buffer that is reduced as a whole has none, and each piece is cut into slices of its
/// own.
struct quantised_plan {
    std::uint64_t slices;
    std::uint64_t stride; ///< elements of a slice; 0 if each piece has slices of its own
    std::uint64_t count; ///< elements of the buffer
    std::uint64_t block;
    std::uint64_t most_blocks; ///< of a slice in a piece

    struct piece {
        std::uint64_t first = 0; ///< of the part, in a slice; or of the piece, in the buffer
        std::uint64_t length = 0; ///< elements of each slice
        std::uint64_t count = 0; ///< elements that the next piece starts behind; 0 behind the last piece
        std::uint64_t blocks_before = 0; ///< of one slice, in the pieces before
    };
    piece next(const piece& before) const noexcept
    {
        piece at;
        at.first = before.first + before.count;
        at.blocks_before = before.blocks_before + (before.length + block - 1) / block;
        const std::uint64_t end = stride == 0 ? count : stride;
        if (at.first >= end) return at;
        const std::uint64_t left = end - at.first;
        const std::uint64_t most = most_blocks * block;
        if (stride == 0) {
            const std::uint64_t wanted = (left + slices * block - 1) / (slices * block) * block;
            at.length = wanted < most ? wanted : most;
            at.count = at.length * slices;
        } else {
            at.length = left < most ? left : most;
            at.count = at.length;
        }
        return at;
    }
    /// Blocks of a slice in all pieces.
    std::uint64_t blocks() const noexcept
    {
        piece at = next({});
        while (at.count != 0) at = next(at);
        return at.blocks_before;
    }
    message_slices cut(
        const piece& at, std::uint64_t messages, std::uint64_t slices_per_message) const noexcept
    {
        message_slices made;
        made.messages = static_cast<std::uint32_t>(messages);
        made.slices_per_message = static_cast<std::uint32_t>(slices_per_message);
        made.block = static_cast<std::uint32_t>(block);
        made.stride = stride == 0 ? at.length : stride;
        made.first = at.first;
        made.length = at.length;
        made.count = count;
        return made;
    }
};

/// Makes one quantised call. One object per call.
template <floating_element T, communicator Comm, class Groups>
class quantised_exchange {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using memory_type = quantised_memory<device>;
    using piece = quantised_plan::piece;
    static constexpr bool has_groups = !std::is_void_v<Groups>;

public:
    quantised_exchange(Comm& comm, Groups* nodes, memory_type& memory, const quantisation& within,
        const quantisation& across, std::uint32_t call, quantised_errors* errors,
        std::uint64_t* digests, stream_ref on, call_site where)
        : comm_(comm),
          nodes_(nodes),
          memory_(memory),
          within_(each_is_a_node(nodes) ? across : within),
          feeds_inputs_(within.feedback == error_feedback::all),
          across_(across),
          call_(call),
          errors_(errors == nullptr ? memory.errors.data() : errors),
          probed_(errors != nullptr),
          digests_(digests),
          on_(on),
          where_(where),
          ranks_(static_cast<std::uint64_t>(comm.size())),
          rank_(static_cast<std::uint64_t>(comm.rank()))
    {
        if constexpr (has_groups) {
            locals_ = static_cast<std::uint64_t>(nodes->ranks_per_node());
            nodes_count_ = static_cast<std::uint64_t>(nodes->nodes());
        }
    }
    quantised_exchange(const quantised_exchange&) = delete;

    /// Finds the errors that the call of the step before has left, or makes memory for new ones.
    template <class Caller>
    feedback_state find_feedback(const collective_arguments& what, const Caller& who)
    {
        const bool input = feeds_inputs_;
        const bool sums = across_.feedback != error_feedback::none;
        if (!input && !sums) return feedback_state::none;
        const quantised_plan plan = plan_of(what);
        const std::uint64_t slice = plan.blocks() * plan.block;
        const feedback_layout layout{static_cast<std::uint32_t>(what.call),
            static_cast<std::uint32_t>(what.type), plan.count, plan.next({}).length,
            input ? slice * ranks_ : 0, sums && two_level() ? slice * nodes_count_ : 0,
            sums && what.call == collective::all_reduce ? slice : 0};
        auto& all = memory_.feedback;
        while (all.size() <= call_) all.emplace_back();
        feedback_memory<device>& mine = all[call_];
        feedback_state state = feedback_state::continued;
        if (mine.layout != layout) {
            require_no_capture(who);
            const bool had_errors = mine.layout != feedback_layout();
            state = had_errors ? feedback_state::dropped : feedback_state::fresh;
            if (had_errors) memory_.dropped.push_back(std::move(mine));
            mine.layout = layout;
            mine.errors = typename device::template buffer<float>(layout.numbers());
            device::zero(on_, view<float>(mine.errors));
        }
        feedback_ = &mine;
        return state;
    }

    void all_gather(view<const T> send, view<T> receive)
    {
        const quantised_plan plan = plan_for(send.count(), ranks_ * send.count());
        begin_digests();
        const codec how = codec::of<T>(across_);
        run(
            plan,
            [&, this](const piece& at, int slot) {
                const message_slices cut = own(plan, at);
                const std::uint64_t bytes = wire_layout::of(how, cut.blocks_per_slice()).bytes();
                unsigned char* const codes = memory_.area(slot, 0);
                // The shard is the rank's part of a buffer that does not exist before the gather.
                encode(how, cut, shifted(send.data(), rank_ * plan.stride), codes + rank_ * bytes, bytes,
                    nullptr, at.blocks_before == 0);
                gather(comm_, codes, rank_, bytes, on_, flat_is_across());
            },
            [](const piece&, int, stream_ref) {},
            [&, this](const piece& at, int slot) {
                message_slices cut = plan.cut(at, ranks_, 1);
                decode(how, cut, memory_.area(slot, 0), receive.data(), at.blocks_before == 0);
            });
        roundings_ = 1;
    }

    void reduce(view<const T> send, view<T> receive, bool scatters, bool average)
    {
        const quantised_plan plan
            = scatters ? plan_for(receive.count(), send.count()) : plan_for(0, send.count());
        const auto divisor = static_cast<std::uint32_t>(average ? ranks_ : 1);
        begin_digests();
        roundings_ = (two_level() ? 2 : 1) + (scatters ? 0 : 1);
        // The element with index 0, of which the rank may have none.
        T* const to = scatters ? shifted(receive.data(), rank_ * plan.stride) : receive.data();
        const codec result = codec::of<T>(across_);
        run(
            plan,
            [&, this](const piece& at, int slot) {
                send_slices(plan, at, slot, send.data());
            },
            [&, this](const piece& at, int slot, stream_ref sums) {
                sum_slices(plan, at, slot, scatters ? to : nullptr, divisor, sums);
            },
            [&, this](const piece& at, int slot) {
                if (scatters) return;
                message_slices cut = plan.cut(at, ranks_, 1);
                const std::uint64_t bytes = wire_layout::of(result, cut.blocks_per_slice()).bytes();
                unsigned char* const codes = memory_.area(slot, 0);
                if (two_level()) {
                    if constexpr (has_groups) {
                        gather(nodes_->within_node(), codes, local(), nodes_count_ * bytes, on_, false);
                        cut.nodes = static_cast<std::uint32_t>(nodes_count_);
                        cut.slice_of = memory_.slices.data();
                    }
                } else {
                    gather(comm_, codes, rank_, bytes, on_, flat_is_across());
                }
                decode(result, cut, codes, to, at.blocks_before == 0);
            });
    }

    void tell(quantised_outcome& outcome) const noexcept
    {
        outcome.within = within_.format;
        outcome.levels = two_level() ? 2 : 1;
        outcome.ranks_per_node = two_level() ? static_cast<std::uint32_t>(locals_) : 0;
        outcome.bytes_sent = bytes_sent_;
        outcome.bytes_across = bytes_across_;
        outcome.collectives = collectives_;
        outcome.roundings_per_element = static_cast<std::uint32_t>(roundings_);
    }

private:
    bool two_level() const noexcept { return locals_ > 1 && nodes_count_ > 1; }
    bool flat_is_across() const noexcept { return each_is_a_node(nodes_); }
    /// Whether each rank is a node of its own, so that all messages go between nodes.
    static bool each_is_a_node([[maybe_unused]] const Groups* nodes) noexcept
    {
        if constexpr (has_groups) return nodes->ranks_per_node() == 1 && nodes->nodes() > 1;
        else return false;
    }
    std::uint64_t local() const noexcept
    {
        if constexpr (has_groups) return static_cast<std::uint64_t>(nodes_->local_rank());
        else return 0;
    }
    std::uint64_t node() const noexcept
    {
        if constexpr (has_groups) return static_cast<std::uint64_t>(nodes_->node());
        else return 0;
    }

    /// A pointer to where an element would be that stands `back` elements before `from`.
    template <class U>
    static U* shifted(U* from, std::uint64_t back) noexcept
    {
        return reinterpret_cast<U*>(reinterpret_cast<std::uintptr_t>(from) - back * sizeof(U));
    }

    quantised_plan plan_of(const collective_arguments& what) const noexcept
    {
        return what.call == collective::reduce_scatter ? plan_for(what.receive_count, what.send_count)
                                                       : plan_for(0, what.send_count);
    }
    quantised_plan plan_for(std::uint64_t stride, std::uint64_t count) const noexcept
    {
        const auto bytes_of_block = [](const codec& how) {
            return std::uint64_t{how.code_bytes()} + scale_bytes;
        };
        const std::uint64_t in = bytes_of_block(codec::of<T>(within_));
        const std::uint64_t out = bytes_of_block(codec::of<T>(across_));
        // Each message pads two planes by less than 16 bytes.
        const std::uint64_t area = memory_.area_bytes();
        const std::uint64_t padding = 32 * ranks_;
        const std::uint64_t room = area > padding ? (area - padding) / (ranks_ * (in > out ? in : out)) : 0;
        return {ranks_, stride, count, within_.block, room == 0 ? 1 : room};
    }
    /// The blocks of the slice that this rank owns.
    message_slices own(const quantised_plan& plan, const piece& at) const noexcept
    {
        message_slices cut = plan.cut(at, 1, 1);
        cut.first += rank_ * cut.stride;
        return cut;
    }

    template <class Send, class Add, class Finish>
    void run(const quantised_plan& plan, const Send& send, const Add& add, const Finish& finish)
    {
        run_overlapped(memory_, on_, where_, plan, send, add, finish);
    }

    void send_slices(const quantised_plan& plan, const piece& at, int slot, const T* from)
    {
        const codec how = codec::of<T>(within_);
        message_slices cut = plan.cut(at, two_level() ? locals_ : ranks_, two_level() ? nodes_count_ : 1);
        if (two_level()) cut.slice_of = memory_.slices.data();
        const std::uint64_t bytes = wire_layout::of(how, cut.blocks_per_message()).bytes();
        float* const kept = feedback_ == nullptr || feedback_->input() == nullptr
            ? nullptr
            : feedback_->input() + at.blocks_before * ranks_ * plan.block;
        encode(how, cut, from, memory_.area(slot, 0), bytes, kept, at.blocks_before == 0);
        if (two_level()) {
            if constexpr (has_groups) {
                exchange(nodes_->within_node(), memory_.area(slot, 0), memory_.area(slot, 1), locals_, bytes,
                    on_, false);
            }
        } else {
            exchange(
                comm_, memory_.area(slot, 0), memory_.area(slot, 1), ranks_, bytes, on_, flat_is_across());
        }
    }

    /// Adds the slices that arrived. The result goes to `to`, or as codes to this rank's place in area 0.
    void sum_slices(
        const quantised_plan& plan, const piece& at, int slot, T* to, std::uint32_t divisor, stream_ref on)
    {
        const codec in = codec::of<T>(within_);
        const codec out = codec::of<T>(across_);
        const message_slices cut = own(plan, at);
        const std::uint64_t bytes = wire_layout::of(out, cut.blocks_per_slice()).bytes();
        unsigned char* const sent = memory_.area(slot, 0);
        unsigned char* const arrived = memory_.area(slot, 1);
        const bool first = at.blocks_before == 0;
        const block_encoder of_result = encoder(out, 2,
            feedback_ == nullptr || feedback_->result() == nullptr ? nullptr
                                                                   : feedback_->result()
                    + at.blocks_before * plan.block);
        if (!two_level()) {
            const std::uint64_t stride = wire_layout::of(in, cut.blocks_per_slice()).bytes();
            combine(in, cut, arrived, stride, ranks_, divisor, to, of_result, sent + rank_ * bytes, bytes,
                &errors_->owned, first, on);
            return;
        }
        if constexpr (has_groups) {
            // The sums of a node may be beyond the numbers of T.
            const codec between = codec::of<float>(across_);
            message_slices node_cut = plan.cut(at, 1, nodes_count_);
            node_cut.slice_of = memory_.own_slices;
            const std::uint64_t stride = wire_layout::of(in, node_cut.blocks_per_message()).bytes();
            combine(in, node_cut, arrived, stride, locals_, 1, nullptr,
                encoder(between, 1,
                    feedback_ == nullptr || feedback_->node() == nullptr
                        ? nullptr
                        : feedback_->node() + at.blocks_before * nodes_count_ * plan.block),
                sent, bytes,
                &errors_->node, first, on);
            auto& across = nodes_->across_nodes();
            exchange(across, sent, arrived, nodes_count_, bytes, on, true);
            unsigned char* const mine = sent + local() * nodes_count_ * bytes;
            combine(between, cut, arrived, bytes, nodes_count_, divisor, to, of_result,
                mine + node() * bytes, bytes, &errors_->owned, first, on);
            if (to == nullptr) gather(across, mine, node(), bytes, on, true);
        }
    }

    block_encoder encoder(const codec& how, std::uint32_t phase, float* kept) const noexcept
    {
        return {how, {how.seed, memory_.step.data(), static_cast<std::uint32_t>(rank_), call_ * 8 + phase},
            kept, probed_};
    }

    void begin_digests()
    {
        if (digests_ == nullptr) return;
        for (auto& each : memory_.digests)
            if (each.size() == 0) each = typename device::template buffer<std::uint64_t>(ranks_);
        device::zero(on_, view<std::uint64_t>(digests_, 4 * ranks_));
    }

    void encode(const codec& how, const message_slices& cut, const T* from, unsigned char* messages,
        std::uint64_t bytes, float* kept, bool first)
    {
        device::reduce(on_,
            encode_reducer<T>{
                encoder(how, 0, kept), cut, from, messages, bytes, first ? nullptr : &errors_->input},
            cut.blocks(), &errors_->input, memory_.call_workspace);
    }
    void combine(const codec& how, const message_slices& cut, const unsigned char* messages,
        std::uint64_t stride, std::uint64_t terms, std::uint32_t divisor, T* to, const block_encoder& into,
        unsigned char* codes, std::uint64_t bytes, combined_errors* errors, bool first, stream_ref on)
    {
        // A call of one piece adds on its own stream.
        auto& workspace = on == on_ ? memory_.call_workspace : memory_.sums_workspace;
        device::reduce(on,
            combine_reducer<T>{how, cut, messages, stride, static_cast<std::uint32_t>(terms), divisor,
                probed_, to, into, codes, bytes, first ? nullptr : errors},
            cut.blocks(), errors, workspace);
    }
    void decode(const codec& how, const message_slices& cut, const unsigned char* messages, T* to, bool first)
    {
        device::reduce(on_,
            decode_reducer<T>{how, cut, messages, wire_layout::of(how, cut.blocks_per_message()).bytes(), to,
                first ? nullptr : &errors_->nonfinite_results},
            cut.blocks(), &errors_->nonfinite_results, memory_.call_workspace);
    }

    template <class Over>
    void exchange(Over& over, const unsigned char* from, unsigned char* to, std::uint64_t messages,
        std::uint64_t bytes, stream_ref on, bool across)
    {
        using bytes_type = std::uint8_t;
        const std::uint32_t* const peers = ranks_of(over, across);
        note_messages(from, messages, bytes, messages, peers, on, false);
        over.all_to_all(view<const bytes_type>(from, messages * bytes),
            view<bytes_type>(to, messages * bytes), on, where_);
        note_messages(to, messages, bytes, messages, peers, on, true);
        note_sent((messages - 1) * bytes, across);
    }
    /// Gathers the parts of an area in place.
    template <class Over>
    void gather(
        Over& over, unsigned char* area, std::uint64_t mine, std::uint64_t bytes, stream_ref on, bool across)
    {
        using bytes_type = std::uint8_t;
        const auto parts = static_cast<std::uint64_t>(over.size());
        const std::uint32_t* const peers = ranks_of(over, across);
        note_messages(area + mine * bytes, 1, bytes, parts, peers, on, false);
        over.all_gather(view<const bytes_type>(area + mine * bytes, bytes),
            view<bytes_type>(area, parts * bytes), on, where_);
        note_messages(area, parts, bytes, parts, peers, on, true);
        note_sent((parts - 1) * bytes, across);
    }
    /// The ranks of the world that are those of a group; null for the world itself.
    template <class Over>
    const std::uint32_t* ranks_of(const Over& over, bool across) const
    {
        if (static_cast<const void*>(&over) == static_cast<const void*>(&comm_)) return nullptr;
        return across ? memory_.own_slices : memory_.slices.data() + node() * locals_;
    }
    /// Takes the digests of messages to `peers` ranks, or from them. One message: all of them get it.
    void note_messages(const unsigned char* first, std::uint64_t messages, std::uint64_t bytes,
        std::uint64_t peers, const std::uint32_t* ranks, stream_ref on, bool arrived)
    {
        if (digests_ == nullptr) return;
        const bool own_stream = on == on_;
        auto& workspace = own_stream ? memory_.call_workspace : memory_.sums_workspace;
        std::uint64_t* const digests = memory_.digests[own_stream ? 0 : 1].data();
        for (std::uint64_t i = 0; i < messages; ++i) {
            device::reduce(on, digest_reducer<std::uint8_t>{view<const std::uint8_t>(first + i * bytes, bytes)},
                bytes, digests + i, workspace);
        }
        const std::uint64_t table = (arrived ? 2 : 0) + (own_stream ? 0 : 1);
        device::for_each(on, peers,
            add_digests{digests, messages == 1 ? 0u : 1u, ranks, collectives_, digests_ + table * ranks_});
    }
    void note_sent(std::uint64_t bytes, bool across) noexcept
    {
        bytes_sent_ += bytes;
        bytes_across_ += across ? bytes : 0;
        ++collectives_;
    }

    template <class Caller>
    void require_no_capture(const Caller& who) const
    {
        if constexpr (can_capture<stream_ref>) {
            if (on_.capturing(where_)) {
                who.fail(status::unsupported,
                    "a captured call with feedback needs the errors of an earlier call: make the step once "
                    "before");
            }
        }
    }

    Comm& comm_;
    Groups* nodes_;
    memory_type& memory_;
    const quantisation& within_; ///< of the first messages: `across`, if these go between nodes
    bool feeds_inputs_;
    const quantisation& across_;
    std::uint32_t call_;
    quantised_errors* errors_;
    bool probed_;
    std::uint64_t* digests_; ///< `quantised_calls::digests_to`
    stream_ref on_;
    call_site where_;
    std::uint64_t ranks_;
    std::uint64_t rank_;
    std::uint64_t locals_ = 1;
    std::uint64_t nodes_count_ = 1;
    feedback_memory<device>* feedback_ = nullptr;
    std::uint64_t bytes_sent_ = 0;
    std::uint64_t bytes_across_ = 0;
    std::uint64_t collectives_ = 0;
    int roundings_ = 0;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
