// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/guard/detail/access_history.hpp>
#include <collprobe/guard/detail/stream_edges.hpp>
#include <collprobe/guard/gather_options.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/guard/shard_layout.hpp>
#include <collprobe/guard/stream_list.hpp>
#include <collprobe/order/hooks.hpp>
#include <collprobe/quant/format.hpp>
#include <collprobe/quant/slice_codec.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// An all-gather of weights as codes of 4 or 8 bits (qwZ of ZeRO++). Each rank encodes its shard once for each update
/// and keeps the codes; each gather moves them, and all ranks decode all of them, their own too. So all ranks have the
/// same bits, and a gather does not read the shard. Use:
///
///     quantised_all_gather<nccl::communicator, bfloat16> weights(world, count, {.format = code_format::int8});
///     weights.encode(master, step, compute, {}, {});                           // once for each update
///     weights.gather(parameters, step, communication, {compute}, {compute});   // forward, backward, micro-batches
/// Shapes: `count` elements, equal on all ranks; rank r has those of `shard_range()`, the last ranks fewer or none.
/// Preconditions: equal arguments on all ranks; one thread at a time. In a capture the calls count, not the launches
/// of the graph: make the launch an access to `codes()` and `arrivals()`.
/// Stream behaviour: ordered by events on any streams, as with `guarded`; the host neither waits nor allocates.
/// Source: Wang et al., ZeRO++, arXiv 2306.10209, section 3.1; the race that the edges prevent: arXiv 2407.01614.
template <communicator Comm, element T>
    requires(has_all_gather<Comm, std::uint8_t> && detail::has_codes<T>)
class quantised_all_gather {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using streams = stream_list<stream_ref>;
    using value_type = T;

    /// Allocates the codes of this rank's shard, on the communicator's device, and those of all ranks on arrival.
    /// `arrivals`: other memory for the latter, at least `arrival_bytes`, which many objects may share: a gather then
    /// waits until the last one is decoded. `comm` and `arrivals` must outlive this object. The destructor waits at
    /// most `timeout_ms` for work that uses it, as `guarded` does.
    /// \throws error `invalid_argument` for a quantisation that does not exist, feedback, or too little memory.
    quantised_all_gather(Comm& comm, std::uint64_t count, const quantisation& how = {},
        guarded<device, std::uint8_t>* arrivals = nullptr, std::int64_t timeout_ms = 30'000,
        call_site where = call_site::current())
        : comm_(&comm), layout_(layout_of(comm, count, how, where)), codec_(codec_of(layout_, how)),
          message_bytes_(codec_.message_bytes()), shared_arrivals_(arrivals), memory_(allocate(timeout_ms, where))
    {
    }

    std::uint64_t count() const noexcept { return layout_.count; }
    /// The elements that this rank encodes: those of `encode`'s source.
    shard_layout::range shard_range() const noexcept { return layout_.primary(); }
    /// The generation of the codes; 0 if there are none.
    std::uint64_t generation() const { return memory_->codes.generation(); }
    /// The codes of this rank's shard, and those of all ranks on arrival: to order a release or the launch of a graph.
    guarded<device, std::uint8_t>& codes() { return memory_->codes; }
    guarded<device, std::uint8_t>& arrivals()
    {
        return shared_arrivals_ != nullptr ? *shared_arrivals_ : memory_->arrivals;
    }

    /// The bytes of memory that arrivals need.
    static std::uint64_t arrival_bytes(const Comm& comm, std::uint64_t count, const quantisation& how = {},
        call_site where = call_site::current())
    {
        const shard_layout layout = layout_of(comm, count, how, where);
        return layout.ranks() * codec_of(layout, how).message_bytes();
    }
    /// Bytes of codes and scales that one gather receives from the other ranks.
    std::uint64_t gather_bytes() const noexcept { return (layout_.ranks() - 1) * message_bytes_; }
    /// For comparison: bytes that an all-gather of the elements receives.
    std::uint64_t plain_bytes() const noexcept { return (layout_.ranks() - 1) * layout_.slot() * sizeof(T); }
    /// How often a shard was encoded and gathered. Each gather is one collective.
    std::uint64_t encodings() const noexcept { return encodings_; }
    std::uint64_t gathers() const noexcept { return gathers_; }

    /// Encodes `source` on `on`, behind the work enqueued so far on `producers`, and behind the gathers that still read
    /// the codes before it. `source`: a view, a container or a `guarded` buffer of `shard_range().count` elements,
    /// float, float16 or bfloat16; it is only read. An element that T cannot hold becomes NaN.
    /// `generation`: a number of the caller's, not 0, of which stochastic rounding is a function; a `guarded` source
    /// must have it. `consumers`: streams that next overwrite a source that is not `guarded`.
    /// `errors`: null, or memory of the device for what the codes do to the weights: 10 log10(squares / error_squares)
    /// is their SQNR in dB. Written in stream order.
    /// \throws error `invalid_argument`, which names the argument. The peers are not told. The codes before stay,
    ///   unless the encoding itself failed.
    /// Cost: one read of the source, a write of the codes; no communication.
    template <class Source>
        requires detail::has_codes<detail::buffer_element<Source>>
    void encode(Source&& source, std::uint64_t generation, stream_ref on, streams producers, streams consumers,
        quantisation_errors* errors = nullptr, call_site where = call_site::current())
    {
        using from_type = detail::buffer_element<Source>;
        const caller who(*comm_, "encode", where);
        memory& mine = *memory_;
        const detail::gather_buffer<device, const from_type> from(source);
        const view<const from_type> shard = from.memory();
        who.require_readable(shard, "source");
        const auto refuse = [&](const std::string& message) { who.fail(status::invalid_argument, message); };
        if (shard.count() != shard_range().count) {
            refuse("source.count() is " + std::to_string(shard.count()) + ", and this rank's shard has "
                + std::to_string(shard_range().count) + " elements");
        }
        who.require(generation != 0, "generation is 0, which stands for no codes");
        if (auto* const history = from.history(); history != nullptr && history->generation() != generation) {
            refuse("the source holds generation " + std::to_string(history->generation()) + ", and "
                + std::to_string(generation) + " is to be encoded");
        }

        const auto uses = [&](const auto& use) {
            if (auto* const history = from.history()) use(*history, shard.count(), detail::access_mode::read);
            use(mine.codes, whole, detail::access_mode::write);
        };
        const auto scope = detail::enter_device(*comm_);
        order(who, on, producers, uses);
        const view<std::uint8_t> to = mine.codes.memory();
        if constexpr (order_hooks::active) order_hooks::access(on, "encode", shard, to, where);
        mine.codes.set_generation(0);
        run(who, on, consumers, uses, [&, this] {
            codec_.template encode<device>(on, shard, to.data(), static_cast<std::uint32_t>(comm_->rank()), generation,
                errors != nullptr, errors != nullptr ? errors : mine.errors.data(), mine.encoding);
        });
        mine.codes.set_generation(generation);
        ++encodings_;
    }

    /// Gathers the codes of all ranks and decodes them into `destination`, on `on`. `destination`: a view, a container
    /// or a `guarded` buffer of `count()` elements. `generation`: that of the last `encode`.
    /// `producers`, `consumers`, handle: as for `copy_then_all_gather`.
    /// \throws error `invalid_argument`, which names the argument: a generation that the codes do not have, a wrong
    ///   count, memory of the arrivals, a producer outside the capture; `unsupported` inside a group; those of the
    ///   communicator. If the communicator supports it, the peers are notified.
    /// Cost: `gather_bytes()` in one collective; a write and a read of all codes, a write of the destination.
    template <class Destination>
        requires std::is_same_v<detail::buffer_element<Destination>, T>
    gather_handle<device> gather(Destination&& destination, std::uint64_t generation, stream_ref on, streams producers,
        streams consumers, call_site where = call_site::current())
    {
        const caller who(*comm_, "gather", where);
        who.require_immediate();
        memory& mine = *memory_;
        const detail::gather_buffer<device, T> to(destination);
        check_gather(who, to.memory(), generation, on);

        const auto uses = [&, this](const auto& use) {
            use(mine.codes, whole, detail::access_mode::read);
            use(arrivals(), whole, detail::access_mode::write);
            if (auto* const history = to.history()) use(*history, count(), detail::access_mode::write);
        };
        const auto scope = detail::enter_device(*comm_);
        try {
            order(who, on, producers, uses);
        } catch (const error& why) {
            detail::tell_refusal(*comm_, why, collective::all_gather, on);
            throw;
        }
        const auto pass_generation = [&](std::uint64_t held) {
            if (auto* const history = to.history()) history->set_generation(held);
        };
        pass_generation(0);
        typename device::event done = run(who, on, consumers, uses, [&, this] {
            const view<std::uint8_t> all = arrivals().memory().part(0, layout_.ranks() * message_bytes_);
            comm_->all_gather(view<const std::uint8_t>(mine.codes.memory()), all, on, where);
            if constexpr (order_hooks::active) order_hooks::access(on, "decode", all, to.memory(), where);
            codec_.template decode<device>(on, all.data(), to.memory(), mine.nonfinite.data(), mine.decoding);
        });
        pass_generation(generation);
        ++gathers_;
        return {on, std::move(done), gather_path::codes};
    }

private:
    using caller = detail::caller<Comm>;
    using codec_type = detail::slice_codec<T>;
    /// More than any count of bytes: the access is kept in a history even if there are no codes.
    static constexpr std::uint64_t whole = UINT64_MAX;

    struct memory {
        memory(std::uint64_t message_bytes, std::uint64_t arrival_bytes, std::int64_t timeout_ms)
            : codes(message_bytes, timeout_ms), arrivals(arrival_bytes, timeout_ms), errors(1), nonfinite(1)
        {
        }
        /// All work of the object uses the codes.
        bool finished_by(detail::deadline until) const noexcept
        {
            try {
                codes.synchronize(until.is_never() ? -1 : (until.remaining_ns() + 999'999) / 1'000'000);
                return true;
            } catch (...) { // the time is over
                return false;
            }
        }

        guarded<device, std::uint8_t> codes;
        guarded<device, std::uint8_t> arrivals; ///< of no bytes if the object shares others
        typename device::template buffer<quantisation_errors> errors; ///< that nobody asks for
        typename device::template buffer<std::uint64_t> nonfinite;
        typename device::workspace encoding;
        typename device::workspace decoding;
    };

    static shard_layout layout_of(
        const Comm& comm, std::uint64_t count, const quantisation& how, call_site where)
    {
        const caller who(comm, "quantised_all_gather", where);
        require_valid(how, "quantised_all_gather", where);
        who.require(how.feedback == error_feedback::none,
            "feedback is not none: weights are encoded from a master copy, which has no error to carry on");
        const shard_layout layout{count, 1, static_cast<std::uint64_t>(comm.size()), 0,
            static_cast<std::uint64_t>(comm.rank())};
        who.require(count <= UINT64_MAX / 64, "count is impossibly large"); // all numbers of bytes are below 2^64
        return layout;
    }
    static codec_type codec_of(const shard_layout& layout, const quantisation& how) noexcept
    {
        return {how, layout.ranks(), layout.slot(), layout.count};
    }
    detail::in_flight<memory> allocate(std::int64_t timeout_ms, call_site where) const
    {
        const caller who(*comm_, "quantised_all_gather", where);
        const std::uint64_t needed = layout_.ranks() * message_bytes_;
        if (shared_arrivals_ != nullptr) {
            const view<std::uint8_t> given = shared_arrivals_->memory();
            if (given.count() < needed) {
                who.fail(status::invalid_argument, "arrivals has " + std::to_string(given.count())
                        + " bytes, and the ranks' codes need " + std::to_string(needed));
            }
            who.require(reinterpret_cast<std::uintptr_t>(given.data()) % 16 == 0,
                "arrivals does not begin at a multiple of 16 bytes");
        }
        const auto scope = detail::enter_device(*comm_);
        return detail::in_flight<memory>(
            timeout_ms, message_bytes_, shared_arrivals_ != nullptr ? 0 : needed, timeout_ms);
    }

    void check_gather(const caller& who, view<T> destination, std::uint64_t generation, stream_ref on)
    {
        const auto refuse = [&](const std::string& message) { who.refuse(collective::all_gather, on, message); };
        if (const std::string flaw = detail::flaw_of_buffer(destination); !flaw.empty()) refuse("destination" + flaw);
        if (destination.count() != count()) {
            refuse("destination.count() is " + std::to_string(destination.count()) + ", and there are "
                + std::to_string(count()) + " weights");
        }
        const std::uint64_t held = memory_->codes.generation();
        if (held == 0) refuse("no codes: nothing was encoded yet, or the encoding failed");
        if (held != generation) {
            refuse("the codes are of generation " + std::to_string(held) + ", and " + std::to_string(generation)
                + " is asked for");
        }
        if (detail::overlap(destination, arrivals().memory())) refuse("destination overlaps the arrivals");
        detail::check_buffer(*comm_, destination, "destination", collective::all_gather, on, who.where());
    }

    /// `uses(use)` calls `use(buffer, count, mode)` for the first `count` elements of each guarded buffer of the call.
    template <class Uses>
    void order(const caller& who, stream_ref on, const streams& producers, const Uses& uses) const
    {
        detail::await_producers(who, on, producers);
        uses([&](auto& buffer, std::uint64_t count, detail::access_mode mode) {
            buffer.history(who.call(), who.where()).order(on, buffer.range_of(0, count), mode, who.call(), who.where());
        });
    }
    /// Enqueues the work of a call that `order` has ordered.
    template <class Uses, class Enqueue>
    typename device::event run(
        const caller& who, stream_ref on, const streams& consumers, const Uses& uses, const Enqueue& enqueue) const
    {
        typename device::event done;
        const auto note = [&] {
            uses([&](auto& buffer, std::uint64_t count, detail::access_mode mode) {
                buffer.history(who.call(), who.where())
                    .note(on, buffer.range_of(0, count), mode, done, who.where());
            });
        };
        try {
            detail::enqueue_marked(done, on, enqueue);
        } catch (...) {
            if (done.recorded()) note();
            throw;
        }
        note();
        detail::hold_consumers(consumers, on, done, who.where());
        return done;
    }

    Comm* comm_;
    shard_layout layout_;
    codec_type codec_;
    std::uint64_t message_bytes_;
    guarded<device, std::uint8_t>* shared_arrivals_;
    detail::in_flight<memory> memory_;
    std::uint64_t encodings_ = 0;
    std::uint64_t gathers_ = 0;
};

} // namespace collprobe::inline COLLPROBE_ABI
