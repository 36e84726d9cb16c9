// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/order/hooks.hpp>
#include <collprobe/quant/detail/quantised_exchange.hpp>
#include <collprobe/quant/detail/quantised_memory.hpp>
#include <collprobe/quant/format.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The memory and the limits of a `quantised` communicator. Equal on all ranks.
struct quantised_options {
    /// A call with fewer bytes is forwarded: of the buffer that is reduced, or gathered from all ranks.
    std::uint64_t least_bytes = 1 << 20;
    /// Device memory for codes in transit. Larger buffers go in pieces; a piece fits half of this memory.
    std::uint64_t scratch_bytes = 16 << 20;
};

/// A communicator whose sums, averages and all-gathers of large floating-point buffers travel as codes of 4
/// or 8 bits. All ranks get the same bits. It forwards everything else, and counts it with the reason.
/// README.md has the algorithms and the bytes that are moved and sent.
///
///     quantised flat{world, {.format = code_format::int8}};
///     node_groups nodes(world, 8); // ranks of a node
///     quantised comm{world, nodes, {.format = code_format::int8}, {.format = code_format::int4}};
///
/// Preconditions: one thread at a time, as for the groups, which must outlive this object. Equal options on
/// all ranks. With feedback or stochastic rounding all ranks call `next_step` behind the calls of a step;
/// `probed` does so itself. Stream behaviour: enqueued on the call's stream and on a stream of this object.
/// The host neither waits nor allocates, except for feedback in the first step. Calls may be captured; those
/// with feedback from the second step on. Errors: those of the wrapped communicator; `invalid_argument` for
/// wrong buffers; `unsupported` in an NCCL group.
template <communicator Comm, class Groups = void>
class quantised : public adaptor<quantised<Comm, Groups>, Comm> {
    using base_type = adaptor<quantised, Comm>;
    using base_type::comm_;
    static constexpr bool two_level = !std::is_void_v<Groups>;

public:
    using base_type::rank;
    using base_type::size;
    using typename base_type::device;
    using typename base_type::stream_ref;

    /// The element types that become codes.
    template <element T>
    static constexpr bool quantises
        = std::is_same_v<T, float> || std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

    /// Takes the communicator over and allocates the scratch memory.
    /// \throws error `invalid_argument` for a quantisation that does not exist, and for too little scratch
    /// memory.
    explicit quantised(Comm comm, quantisation how = {}, quantised_options options = {},
        call_site where = call_site::current()) requires(!two_level)
        : quantised(std::move(comm), nullptr, how, how, options, where)
    {
    }
    /// The same on two levels: `within` for the exchange in the node, `across` for that between nodes and for
    /// the result. With one rank in each node all messages go between nodes, and so have the format `across`.
    template <class Nodes>
    requires(std::is_same_v<Nodes, Groups>) quantised(Comm comm, Nodes& nodes, quantisation within = {},
        quantisation across = {.format = code_format::int4}, quantised_options options = {},
        call_site where = call_site::current())
        : quantised(std::move(comm), &nodes, within, across, options, where)
    {
    }
    /// Legal while calls are under way. A moved-from object can only be destroyed or assigned to.
    quantised(quantised&&) = default;
    quantised& operator=(quantised&& other) noexcept { return detail::replace(*this, std::move(other)); }
    /// Waits until no work uses this object's memory, at most the communicator's time-out; after that it is
    /// leaked.
    ~quantised() = default;

    /// The results have these errors:
    /// - `all_reduce`, sum or average: of two roundings to codes (three with node groups);
    /// - `reduce_scatter`, sum or average: of one rounding to codes (two with node groups);
    /// - `all_gather`: `receive` becomes the ranks' `send` as their codes decode to on every rank: on the sender, too.
    ///   With node groups the codes have the format `across`.
    template <element T> quantised_outcome make(const collective_call& call, stream_ref stream)
    {
        if (call.what != collective::all_gather && !call.reduces()) {
            comm_.template make<T>(call, stream);
            return {};
        }
        const std::uint64_t bytes
            = sizeof(T) * (call.what == collective::all_gather ? call.receive_count : call.send_count);
        const unquantised_reason why_not = calls_.reason(call.what, call.type, call.operation, bytes);
        ++calls_.counts[static_cast<int>(why_not)];
        const auto ranks = static_cast<std::uint64_t>(comm_.size());
        const std::uint64_t plain = bytes / ranks * (ranks - 1) * (call.what == collective::all_reduce ? 2 : 1);
        if constexpr (quantises<T>) {
            if (why_not == unquantised_reason::none) {
                quantised_outcome made = quantise<T>(call, stream);
                made.bytes_plain = plain;
                made.average = call.operation == reduction::average;
                return calls_.last = made;
            }
        }
        comm_.template make<T>(call, stream);
        return calls_.last
            = {.why_not = why_not, .bytes_sent = plain, .bytes_plain = plain, .collectives = 1};
    }

    /// Ends a step: the next call is the first of the next one. Stochastic rounding takes other random bits,
    /// and feedback finds the errors that the same call of this step has left. Captured, it is part of the
    /// graph. Stream behaviour: enqueued on `stream`, which must be ordered behind the calls of the step and
    /// before the next.
    void next_step(stream_ref stream, call_site where = call_site::current())
    {
        const auto scope = comm_.device_scope();
        memory_->use.wait_for_last(stream, where);
        device::for_each(stream, 1, detail::count_step{memory_->step.data()});
        memory_->use.wait_for_last(stream, where).record(stream);
        call_ = 0;
    }

    /// How many calls were quantised, and how many forwarded for each reason.
    std::uint64_t counts(unquantised_reason why) const noexcept
    {
        return calls_.counts[static_cast<int>(why)];
    }
    /// How many calls had errors of an earlier one that were dropped.
    std::uint64_t feedback_dropped() const noexcept { return calls_.feedback_dropped; }
    const quantisation& within() const noexcept { return within_; }
    const quantisation& across() const noexcept { return across_; }

    /// Where a call writes what it did to the numbers, and what the last call was: for parts of a step.
    quantised_calls* quantisation_calls() noexcept { return &calls_; }

private:
    using caller = detail::caller<Comm>;
    using memory_type = detail::quantised_memory<device>;

    quantised(Comm comm, Groups* nodes, const quantisation& within, const quantisation& across,
        const quantised_options& options, call_site where)
        : base_type(std::move(comm)), nodes_(nodes), within_(within), across_(across), options_(options)
    {
        const caller who(comm_, "quantised", where);
        require_valid(within_, "quantised", where);
        require_valid(across_, "quantised", where);
        who.require(within_.block == across_.block, "within and across differ in their blocks");
        who.require(within_.rotate == across_.rotate && (!within_.rotate || within_.seed == across_.seed),
            "within and across differ in their rotations");
        const auto scope = comm_.device_scope();
        const std::uint64_t least
            = 4 * detail::least_area(within_, across_, static_cast<std::uint64_t>(comm_.size()));
        if (options_.scratch_bytes < least) {
            who.fail(status::invalid_argument,
                "scratch_bytes is " + std::to_string(options_.scratch_bytes) + ": "
                    + std::to_string(comm_.size()) + " ranks need " + std::to_string(least));
        }
        calls_.least_bytes = options_.least_bytes;
        calls_.ranks = comm_.size();
        std::vector<std::uint32_t> places;
        if constexpr (two_level) {
            for (int local = 0; local < nodes->ranks_per_node(); ++local)
                for (int node = 0; node < nodes->nodes(); ++node)
                    places.push_back(static_cast<std::uint32_t>(nodes->world_rank(node, local)));
        }
        memory_ = detail::in_flight<memory_type>(base_type::timeout_ms(), options_.scratch_bytes, places);
    }

    template <element T> quantised_outcome quantise(const collective_call& call, stream_ref stream)
    {
        const call_site where = call.where;
        const view<const T> send = call.sent<T>();
        const view<T> receive = call.received<T>();
        const caller who(comm_, call.what, where);
        who.require_immediate();
        comm_.check_buffer(send, "send", call.what, stream, where);
        comm_.check_buffer(receive, "receive", call.what, stream, where);
        const std::string flaw = detail::flaw_of_arguments(call, rank(), size());
        if (!flaw.empty()) who.fail(status::invalid_argument, flaw);
        order_hooks::access(stream, name(call.what), send, receive, where);
        const order_hooks::silent inner_work;
        const auto scope = comm_.device_scope();
        memory_type& memory = *memory_;
        typename device::event& done = memory.use.wait_for_last(stream, where);
        quantised_outcome outcome{.across = across_.format,
            .block = within_.block,
            .levels = two_level ? 2u : 1u};
        const std::uint32_t number = call_++;
        detail::enqueue_marked(done, stream, [&, this] {
            const detail::quantised_call how{within_, across_, number,
                std::exchange(calls_.errors_to, nullptr), std::exchange(calls_.digests_to, nullptr), where};
            detail::quantised_exchange<T, Comm, Groups> work(
                comm_, nodes_, memory, how, call, send.data(), receive.data(), stream);
            if (call.what == collective::all_gather) {
                work.gather(outcome);
            } else {
                outcome.feedback = work.find_feedback(call, who);
                outcome.inputs_fed_back = within_.feedback == error_feedback::all;
                outcome.sums_fed_back = across_.feedback != error_feedback::none;
                if (outcome.feedback == feedback_state::dropped) ++calls_.feedback_dropped;
                work.reduce(outcome);
            }
        });
        return outcome;
    }

    Groups* nodes_;
    quantisation within_;
    quantisation across_;
    quantised_options options_;
    std::uint32_t call_ = 0; ///< of the step
    quantised_calls calls_;
    detail::in_flight<memory_type> memory_;
};

template <class Comm>
quantised(Comm) -> quantised<Comm>;
template <class Comm>
quantised(Comm, quantisation) -> quantised<Comm>;
template <class Comm>
quantised(Comm, quantisation, quantised_options) -> quantised<Comm>;
template <class Comm, class World>
quantised(Comm, node_groups<World>&) -> quantised<Comm, node_groups<World>>;
template <class Comm, class World>
quantised(Comm, node_groups<World>&, quantisation) -> quantised<Comm, node_groups<World>>;
template <class Comm, class World>
quantised(Comm, node_groups<World>&, quantisation, quantisation) -> quantised<Comm, node_groups<World>>;
template <class Comm, class World>
quantised(Comm, node_groups<World>&, quantisation, quantisation, quantised_options)
    -> quantised<Comm, node_groups<World>>;

} // namespace collprobe::inline COLLPROBE_ABI
