// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/record_queue.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/metrics/order_sensitivity.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/detail/buffers.hpp>
#include <collprobe/step/detail/gram.hpp>
#include <collprobe/step/detail/judge.hpp>
#include <collprobe/step/detail/measure_orders.hpp>
#include <collprobe/step/detail/message.hpp>
#include <collprobe/step/detail/replay.hpp>
#include <collprobe/step/detail/summary.hpp>
#include <collprobe/step/detail/wire_layout.hpp>
#include <collprobe/step/observation.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A communicator that records what the ranks hand to it. It satisfies the communicator concept and forwards every
/// call. It reads floating-point inputs before the call and results after it; only parts look at calls of integers.
/// Once a step the ranks exchange their records in one small message.
/// Preconditions: all ranks make the same calls in the same order, with the same options; one thread at a time. A rank
/// alone may repeat a call that threw, but not with `exact` direction, whose messages come before the call.
/// Stream behaviour: everything is enqueued on the call's stream; in an `nccl::group`, what reads a result when the
/// group ends. The host neither waits nor allocates once a step has reached its full size, unless it is more than
/// `steps_in_flight - 1` steps ahead of its streams. A whole step may be captured in a graph (`end_captured_step`).
/// Errors: those of the wrapped communicator. `invalid_argument`, if that communicator accepts the buffer, for a
/// floating-point buffer that is misaligned, or null with a count above 0. `unsupported` inside a group of
/// `ncclGroupStart` itself, whose end nothing tells; and, with `exact` direction, of gradients in any group.
/// Cost of a call: two launches, an event record, one read of the input and one of the result. Cost of a step: a
/// message to every rank of `128 * calls + 40` bytes (`summary`: a reduction of `104 * calls + 192`) and a copy to the
/// host. README.md has the costs of options.
template <communicator Comm, class... Parts>
class probed : public adaptor<probed<Comm, Parts...>, Comm>, private group_follower {
    static_assert((step_part<Parts> && ...), "a part needs a type entry of whole 8-byte words: step/part.hpp");
    using base_type = adaptor<probed, Comm>;
    using base_type::comm_;

public:
    using typename base_type::device;
    using typename base_type::stream_ref;
    using base_type::rank;
    using base_type::size;
    using base_type::timeout_ms;

    /// Takes ownership of the communicator and allocates all buffers on its device.
    /// \throws error `invalid_argument` for an option out of range; those of the parts.
    explicit probed(
        Comm comm, probe_options options = {}, Parts... parts, call_site where = call_site::current())
        : base_type(std::move(comm)),
          group_follower(&probed::when_group_ended),
          options_(checked(options, where)),
          parts_(std::move(parts)...),
          form_{options.mode, static_cast<std::uint64_t>(comm_.size()), options.direction == direction_mode::exact,
              {static_cast<std::uint64_t>(options.order_sample), (sizeof(typename Parts::entry) + ... + 0),
                  options.statistics, options.times && options.statistics && options.results},
              (detail::summary_words<Parts>() + ... + 0), static_cast<std::uint64_t>(options.expectations)},
          judge_(comm_.size(), options.false_alarms_per_step, options.mode, form_.layout.times,
              lateness_floor(), evidence_options()),
          meter_(comm_.size(), detail::sample_orders(comm_.size(), options.order_sample > 0 ? options.orders : 0)),
          unread_(static_cast<std::size_t>(options.unread_steps))
    {
        const auto scope = comm_.device_scope();
        memory_ = std::apply(
            [&, this](const Parts&... each) {
                return detail::in_flight<step_memory>(timeout_ms(), form_, options, where, each...);
            },
            parts_);
    }
    /// Legal while steps are under way and while one is being captured. Captured steps belong to the new object. A
    /// moved-from object can only be destroyed or assigned to.
    probed(probed&&) = default;
    probed& operator=(probed&& other) noexcept { return detail::replace(*this, std::move(other)); }
    /// Waits until no stream uses this object's buffers, at most the communicator's time-out. If a peer never enters a
    /// collective, the buffers used by the blocked work are leaked. Drops unread steps. A graph with a captured step
    /// must not be launched any more.
    ~probed() = default;

    /// Probes the input, makes the call, probes the result. A reduction with leaves counts as one call: it is checked
    /// for non-finite values and for results that differ between ranks, but not as a gradient, because the rank's
    /// gradient is the sum of the leaves, which is not in memory.
    template <element T>
    outcome_of<Comm, T> make(const collective_call& call, stream_ref stream)
    {
        const auto forward = [&, this] { return comm_.template make<T>(call, stream); };
        if (call.what == collective::barrier) return forward();
        return detail::made_within(forward, [&, this](detail::function_ref<void()> make) {
            around<T>(call, stream, make);
        });
    }

    /// Several calls as one, until the `end` of the result; as that of the wrapped communicator.
    auto group_scope(call_site where = call_site::current()) const { return comm_.group_scope(where); }

    /// Probes a collective that the caller makes itself, by any library: `observe_input` before it, `observe_result`
    /// behind it, on the same stream. The record has it as a call of the kind `what`, between ranks of this
    /// communicator. A rank that sends nothing, such as to the gradient of an expert that it does not have, calls
    /// `observe_no_input` with the elements that the others send; one that gets nothing `observe_no_result`.
    /// With several at a time, a result says by what `observe_input` returned whose it is; otherwise it is
    /// that of the oldest one.
    /// Precondition: all ranks observe the same inputs, in the same order. Results may come in any order.
    /// \throws error `invalid_argument` for a result whose type or count is not that of the collective, or without an
    ///   input; at `end_step` for an input without a result. `unsupported` for a broadcast and in a group; of
    ///   `observe_no_...` in the mode `summary`, with `exact` direction, and of calls that travel as codes.
    template <element T>
    observed_call observe_input(view<const T> input, stream_ref stream, collective what = collective::all_reduce,
        reduction operation = reduction::average, call_site where = call_site::current())
    {
        return observe<T>(caller(comm_, "observe_input", where), input, input.count(), stream, what, operation);
    }
    template <element T>
    observed_call observe_no_input(std::uint64_t count, stream_ref stream, collective what = collective::all_reduce,
        reduction operation = reduction::average, call_site where = call_site::current())
    {
        const caller who(comm_, "observe_no_input", where);
        require_ranks_apart(who);
        return observe<T>(who, view<const T>(), count, stream, what, operation);
    }
    template <element T>
    void observe_result(view<const T> result, stream_ref stream, observed_call of = observed_call::oldest,
        call_site where = call_site::current())
    {
        const caller who(comm_, "observe_result", where);
        const std::size_t at = find_observed(of, who);
        const detail::probed_call& call = observed_[at].call;
        who.require(call.type == element_traits<T>::type, "result has another type than the input");
        who.require_readable(result, "result");
        const std::uint64_t ranks = static_cast<std::uint64_t>(size());
        const bool gathers = call.call == collective::all_gather;
        const bool scatters = call.call == collective::reduce_scatter;
        who.require(result.count() * (scatters ? ranks : 1) == call.count * (gathers ? ranks : 1),
            "result does not have the count that the collective makes of its input");
        end_observed(at, result.data(), result.count(), stream, who);
    }
    void observe_no_result(stream_ref stream, observed_call of = observed_call::oldest,
        call_site where = call_site::current())
    {
        const caller who(comm_, "observe_no_result", where);
        require_ranks_apart(who);
        end_observed(find_observed(of, who), nullptr, 0, stream, who);
    }

    /// Has the statistics, or the part P, look at the next step that is not captured, beside those of `every`. On all
    /// ranks alike, and before the step's first call.
    void request() noexcept { requested_ |= 1; }
    template <step_part P>
        requires(std::is_same_v<P, Parts> || ...)
    void request() noexcept
    {
        for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t, std::uint64_t) {
            if constexpr (std::is_same_v<std::remove_cvref_t<decltype(part)>, P>) requested_ |= std::uint64_t{2} << I;
        });
    }

    /// Says that a value must be the same on all ranks in this step: a learning rate, a loss scale, what all ranks must
    /// have decided alike; or, of a buffer, gradients behind their synchronisation, weights, buffers of a model. Bits
    /// are compared. Where they differ, `step_record::expectations` has the groups of ranks, each rank's number (of a
    /// buffer its L2 norm), and the step since when; `value_differs` names those that differ from most ranks.
    /// A step may consist of such values alone. `what` is the name: as that of a call (`call_site::name`).
    /// Preconditions: all ranks tell the same values in the same order. One thread at a time.
    /// Stream behaviour: a buffer is read on `stream`, at its place there. A number is taken now.
    /// Cost: 24 bytes of the step's message a value (`summary`: 32); one read of a buffer.
    /// \throws error `invalid_argument` for a buffer that is null with a count above 0 or misaligned, and for more
    ///   values than `probe_options::expectations`. `unsupported` for a number in a captured step, in which it would be
    ///   the same for ever: give a buffer.
    template <class Number>
        requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
    void expect_equal(const char* what, Number value, call_site where = call_site::current())
    {
        tell_number(what, value, expectation::equal, {comm_, "expect_equal", where});
    }
    template <element T>
    void expect_equal(
        const char* what, view<const T> value, stream_ref stream, call_site where = call_site::current())
    {
        tell_buffer(what, value, stream, expectation::equal, {comm_, "expect_equal", where});
    }
    /// The same of a value that no two ranks may have alike: a seed, a digest of sample ids. `value_repeats`
    /// names all ranks that have the value of another one.
    /// \throws error as above; `unsupported` in the mode `summary`, which cannot tell.
    template <class Number>
        requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
    void expect_distinct(const char* what, Number value, call_site where = call_site::current())
    {
        tell_number(what, value, expectation::distinct, {comm_, "expect_distinct", where});
    }
    template <element T>
    void expect_distinct(
        const char* what, view<const T> value, stream_ref stream, call_site where = call_site::current())
    {
        tell_buffer(what, value, stream, expectation::distinct, {comm_, "expect_distinct", where});
    }

    /// The same of the sample ids that this rank has drawn, in an epoch or a step: with those of the other ranks they
    /// must be `whole`, which is equal on all ranks, each sample as often as there. They are not where each rank
    /// shuffles by a seed of its own: `value_repeats` without a rank. If the sampler fills up the last batch
    /// with samples that it has drawn before, `whole` has these twice.
    /// \throws error as above; `unsupported` in the mode `summary`.
    void expect_partition(const char* what, const sample_set& drawn, const sample_set& whole,
        call_site where = call_site::current())
    {
        const caller who(comm_, "expect_partition", where);
        require_expectation(expectation::partition, who);
        told_.push_back({{named(what, who), expectation::partition, whole},
            {0, drawn.digest, static_cast<double>(drawn.count)}});
    }

    /// Ends a step, which consists of the calls probed since the previous step ended. Collective.
    /// `step` is a number that the caller chooses, equal on all ranks.
    /// Preconditions: work that computes what `seen` points to is before this call on `stream`; the memory stays valid
    /// until `stream` has read it.
    /// Stream behaviour: enqueued on `stream`, behind the probed work of every stream used in the step.
    /// \throws error `invalid_argument` on a capturing stream, for a null address, and for a value as weight that is
    ///   negative or not finite. (A rank with such a weight in memory has no part in the weighted loss.)
    void end_step(std::uint64_t step, stream_ref stream, call_site where = call_site::current())
    {
        end_step(step, step_observation(), stream, where);
    }
    void end_step(std::uint64_t step, const step_observation& seen, stream_ref stream,
        call_site where = call_site::current())
    {
        const caller who(comm_, "end_step", where);
        require_numbers(seen, who);
        require_immediate(who);
        require_observed(who);
        const auto scope = comm_.device_scope();
        who.require(!is_capturing(stream, where),
            "the stream is capturing: a step in a graph ends with end_captured_step");
        block& open = open_step(stream, who);
        tell_numbers(open);
        in_flight_step& to = memory_->ring[next_in_ring(where)];
        const std::uint64_t report_bytes = detail::step_report::room_bytes(form_, open.room());
        if (to.disturbed && to.host.size() < report_bytes) await(to.done, where);
        to.make_room(report_bytes);
        detail::enqueue_marked(memory_->reported, stream, [&, this] {
            if (memory_->reported.recorded()) stream.wait(memory_->reported, where);
            await_disturbance(to, stream, where);
            memory_->tools.lanes.join(stream, where);
            open.join_pieces(form_, stream, to.outgrown, where);
            memory_->make_room(to, form_, stream, where);
            const detail::replay_ticket numbers{step, next_serial(), lost_ago(), nullptr};
            exchange(memory_->tools, header_of(open, seen, numbers, nullptr), stream, where);
            device::copy(stream, view<const unsigned char>(report_of(open).used(open.has_gram)),
                host_report(to, open).used(open.has_gram), where);
        });
        to.done = memory_->reported;
        to.own.unread_calls = std::exchange(unread_calls_, 0);
        await_report(to, step, nullptr, where);
        close_step();
    }

    /// Ends a step whose calls were captured. The graph then contains the step's probes, collectives and report.
    /// Collective; captured on `stream`, behind the probed work of every stream of the step.
    /// Preconditions: the whole step is captured, in one capture, and a graph contains one step. The memory that `seen`
    /// points to stays valid: the device reads it at the end of each replay. The graph is launched by `replay` only; a
    /// direct launch makes no report, may overwrite the report of a replay under way, and is not waited for.
    /// The graph uses this object's buffers, so it must not be launched after the object or the step is gone.
    /// \throws error `invalid_argument` unless `stream` is capturing, and for a weight as in `end_step`; `unsupported`
    ///   for a loss or norm that is a value: it would be the same in each replay.
    captured_step end_captured_step(
        const step_observation& seen, stream_ref stream, call_site where = call_site::current())
        requires detail::can_capture<stream_ref>
    {
        const caller who(comm_, "end_captured_step", where);
        require_numbers(seen, who);
        require_immediate(who);
        require_observed(who);
        const auto scope = comm_.device_scope();
        who.require(is_capturing(stream, where),
            "the stream is not capturing: a step outside a graph ends with end_step");
        const block& open = open_step(stream, who);
        if (!told_.empty()) {
            told_.clear();
            who.fail(status::unsupported,
                "a number of the host would be the same in each replay: give expect_equal a buffer");
        }
        if (detail::is_given(seen.loss) || detail::is_given(seen.gradient_norm)) {
            who.fail(status::unsupported,
                "a loss or norm of the host would be the same in each replay: give the address of one");
        }
        captured_work& work = *capture_;
        work.block.unread_calls = std::exchange(unread_calls_, 0);
        work.tools.lanes.join(stream, where);
        exchange(work.tools, header_of(open, seen, {}, work.tickets.data()), stream, where);
        const view<unsigned char> used = report_of(open).used(open.has_gram);
        device::for_each(stream, used.count() / sizeof(detail::publish_report::word),
            detail::publish_report{work.tickets.data(), work.report.data(),
                static_cast<std::uint64_t>(used.data() - work.report.data())});
        close_step();
        return captured_step(work.serial);
    }

    /// Launches a captured step once. Collective. Calls `launch` without arguments, which enqueues the graph on
    /// `stream`. `poll` returns the record in the order of the `end_step` and `replay` calls. Several replays may be
    /// under way. `step` is a number that the caller chooses, equal on all ranks.
    /// Stream behaviour: `stream` first waits for the previous replay of this step, on any stream. The
    /// host waits for the oldest step if `steps_in_flight` are under way.
    /// \throws error `invalid_argument` for a step that was released or belongs to another communicator, on a
    ///   capturing stream, if probed calls wait for their `end_step`, or if `launch` calls this object; the error of a
    ///   failed communicator; any exception of `launch`. After an exception no step counts as launched.
    template <class Launch>
        requires detail::can_capture<stream_ref>
    void replay(const captured_step& captured, std::uint64_t step, stream_ref stream, Launch&& launch,
        call_site where = call_site::current())
    {
        static_assert(std::is_void_v<decltype(launch())>, "check what the launch returns, inside the callable");
        const caller who(comm_, "replay", where);
        captured_work& work = find(captured, who);
        who.require(open_ == nullptr, "the calls since the last step have not been ended");
        const auto scope = comm_.device_scope();
        who.require(!is_capturing(stream, where), "the stream is capturing");
        // A graph's collectives bypass the communicator, so only this call can refuse a communicator that has failed.
        comm_.check(where);
        in_flight_step& to = memory_->ring[next_in_ring(where)];
        const auto write_tickets = [&](detail::replay_ticket next) {
            device::for_each(
                stream, 1, detail::write_tickets{work.tickets.data(), {.next = next, .current = {}}});
        };
        try {
            detail::enqueue_marked(work.replayed, stream, [&, this] {
                if (work.replayed.recorded()) stream.wait(work.replayed, where);
                await_disturbance(to, stream, where);
                write_tickets({step, next_serial(), lost_ago(), to.host.data()});
                launching_ = true;
                try {
                    launch();
                } catch (...) {
                    launching_ = false;
                    try {
                        write_tickets({}); // otherwise a launch without a replay would take the ticket of this one
                    } catch (...) { // the first error is the informative one
                    }
                    throw;
                }
                launching_ = false;
            });
        } catch (...) {
            // Work enqueued before the exception may still write the report.
            to.done = work.replayed;
            to.disturbed = true;
            throw;
        }
        to.done = work.replayed;
        ++work.unjudged;
        await_report(to, step, &work, where);
    }

    /// Releases the memory of a captured step for another capture. Its graph must not be launched any more.
    /// Blocks the caller until the step's replays are done.
    void release(const captured_step& captured, call_site where = call_site::current())
        requires detail::can_capture<stream_ref>
    {
        captured_work& work = find(captured, caller(comm_, "release", where));
        while (work.unjudged != 0) wait_for_oldest(where);
        await(work.replayed, where); // a replay whose launch threw has no report to wait for
        work.serial = 0;
    }

    /// Forgets the calls of a capture that failed or was given up. The next call may open a new step.
    void abandon_capture() noexcept
        requires detail::can_capture<stream_ref>
    {
        if (capture_ == nullptr) return;
        capture_->serial = 0;
        in_group_.clear();
        observed_.clear();
        told_.clear();
        unread_calls_ = 0;
        close_step();
    }

    /// Fills `out` with the next finished step and returns true; returns false if no step has finished, also if none is
    /// pending (`pending_steps`): a step whose `end_step` threw is not, and never has a record. Never blocks.
    /// Steps come in the order in which they were ended. If `out` is the same object each time, its memory is reused.
    /// Legal while a stream is capturing.
    /// \throws error of the stream or communicator if the step's work failed, when it is that step's turn; the step is
    ///   lost. (A caller that does not poll gets the error from a call that waits for the oldest step.)
    bool poll(step_record& out)
    {
        (void)*memory_; // throws in an object that was moved from
        judge_finished();
        if (unread_.pop(out)) return true;
        throw_failure();
        return false;
    }

    /// As `poll`, but waits for the step; returns false if no step is pending. Every rank gets the same record from the
    /// same call, so a collective (such as a repair) can depend on it. `poll` may answer earlier on one rank.
    bool wait(step_record& out, call_site where = call_site::current())
    {
        while (!poll(out)) {
            if (pending_steps() == 0) return false;
            wait_for_oldest(where);
        }
        return true;
    }

    /// A part, such as for what its `judge` has kept.
    template <step_part P>
        requires(std::is_same_v<P, Parts> || ...)
    P& part() noexcept
    {
        return std::get<P>(parts_);
    }

    /// What the evidence over the run (`probe_options::false_alarms_per_run`) and the judge of numbers have learnt:
    /// 8-byte words, to be saved with a checkpoint. The same on every rank once all steps have been polled. Empty if no
    /// evidence is gathered.
    std::vector<std::uint64_t> evidence_state() const
    {
        return judge_.evidence_state();
    }
    /// Goes on from a saved state, on every rank the same, after the last step was polled (`pending_steps` is 0).
    /// \throws error `invalid_argument` for words that are no such state, or one of other ranks or groups, or if no
    ///   evidence is gathered; then nothing changes.
    void restore_evidence(view<const std::uint64_t> state, call_site where = call_site::current())
    {
        caller(comm_, "restore_evidence", where).require(judge_.has_evidence(), "no evidence is gathered");
        judge_.restore_evidence(state, where);
        judge_.know_losses_until(static_cast<std::uint32_t>(ended_));
        last_lost_ = 0;
    }

    /// Steps that were ended or replayed but neither returned by `poll` nor dropped.
    std::uint64_t pending_steps() const noexcept { return ended_ - judged_ + unread_.size(); }
    /// Finished steps that were dropped because `poll` was not called for `unread_steps` steps.
    std::uint64_t dropped_steps() const noexcept { return unread_.dropped(); }

private:
    using caller = detail::caller<Comm>;
    using block = detail::step_buffers<device>;
    using tools = detail::step_tools<device, Parts...>;
    using captured_work = detail::captured_work<device, Parts...>;
    using in_flight_step = detail::step_in_flight<device, Parts...>;
    using step_memory = detail::step_memory<device, Parts...>;
    static constexpr bool has_parts = sizeof...(Parts) != 0;
    static constexpr bool has_sketches = (detail::has_sketches<Parts> || ...);
    static constexpr int most_calls = 1 << 20;
    static constexpr bool can_reduce = Comm::has_collective(collective::all_reduce);
    static constexpr bool can_exchange = can_reduce && Comm::has_collective(collective::all_to_all);

    double lateness_floor() const noexcept
    {
        if (options_.lateness_floor_ns > 0) return options_.lateness_floor_ns;
        constexpr bool on_cpu = !detail::can_capture<stream_ref>;
        return on_cpu && comm_.size() > sysconf(_SC_NPROCESSORS_ONLN) ? 0x1p52 : 50'000;
    }
    const probe_options& checked(const probe_options& options, call_site where) const
    {
        const caller who(comm_, "probed", where);
        const auto check = [&](bool condition, const char* message) { who.require(condition, message); };
        const auto need = [&](bool is_wanted, bool has_it, const char* message) {
            if (is_wanted && !has_it) who.fail(status::unsupported, message);
        };
        need(options.mode == report_mode::summary, can_reduce, "the mode summary needs a communicator with all_reduce");
        need(options.direction == direction_mode::exact, can_exchange,
            "exact direction needs a communicator with all_reduce and all_to_all");
        who.require_range("largest_step", options.largest_step, 1, most_calls);
        who.require_range("calls", options.calls, 1, options.largest_step);
        who.require_range("steps_in_flight", options.steps_in_flight, 2, 250); // `step_header::last_lost` tells of 255
        who.require_range("unread_steps", options.unread_steps, 1);
        who.require_range("every", options.every, 0);
        who.require_range("exact_every", options.exact_every, 1);
        who.require_range("expectations", options.expectations, 0, 65536);
        who.require_range("streams", options.streams, 1);
        who.require_range("captured_steps", options.captured_steps, 0);
        who.require_range("order_sample", options.order_sample, 0);
        who.require_range("orders", options.orders, 2);
        const bool reads_results = options.statistics && options.results;
        check(options.order_sample == 0 || (options.mode == report_mode::gather && reads_results),
            "order_sample needs the mode gather, statistics and results");
        check(options.direction == direction_mode::pooled || options.statistics, "exact direction needs statistics");
        check(options.mode == report_mode::gather || (detail::has_summary<Parts> && ...),
            "the mode summary needs parts that have a summary");
        check(detail::is_rate(options.false_alarms_per_step), "false_alarms_per_step must lie between 0 and 1");
        check(is_finite(options.false_alarms_per_run) && options.false_alarms_per_run >= 0
                && options.false_alarms_per_run < 1,
            "false_alarms_per_run must be 0, or lie between 0 and 1");
        check(is_finite(options.tolerance) && options.tolerance >= 0, "tolerance must not be negative");
        check(options.groups.empty() || options.groups.size() == static_cast<std::size_t>(comm_.size()),
            "groups must have an entry for each rank, or none");
        const double floor = options.lateness_floor_ns;
        check(is_finite(floor) && floor >= 0 && floor < 0x1p53,
            "lateness_floor_ns must be 0 to 2^53");
        check(options.mode == report_mode::gather || comm_.size() <= detail::most_summary_ranks,
            "summary mode is made for at most 1,048,576 ranks");
        return options;
    }

    std::optional<exchangeability_options> evidence_options() const
    {
        if (!(options_.false_alarms_per_run > 0)) return {};
        return exchangeability_options{
            .false_alarms_per_run = options_.false_alarms_per_run,
            .tolerance = options_.tolerance,
            .groups = options_.groups};
    }

    /// Lets `stream` wait for work that a launch enqueued on the step's memory before it threw.
    void await_disturbance(in_flight_step& to, stream_ref stream, call_site where)
    {
        if (to.disturbed && to.done.recorded()) stream.wait(to.done, where);
        to.disturbed = false;
    }

    void require_no_launch(const caller& who) const
    {
        (void)*memory_; // throws in an object that was moved from
        who.require(!launching_, "the launch of a replay must not make calls of this communicator");
    }
    void require_immediate(const caller& who)
    {
        require_no_launch(who);
        who.require_immediate();
        require_no_group(who);
    }
    static void require_numbers(const step_observation& seen, const caller& who)
    {
        who.require(!seen.loss.is_null() && !seen.weight.is_null() && !seen.gradient_norm.is_null(),
            "the address of a loss, weight or norm is null");
        who.require(seen.weight.is_read() || (is_finite(seen.weight.value()) && !(seen.weight.value() < 0)),
            "the weight, a number of samples or tokens, is negative or not finite");
    }
    void require_observed(const caller& who) const
    {
        if (observed_.empty()) return;
        who.fail(status::invalid_argument,
            std::to_string(observed_.size()) + " calls of observe_input have no observe_result yet");
    }

    template <class Number>
    void tell_number(const char* what, Number value, expectation of, const caller& who)
    {
        require_expectation(of, who);
        // Integers of any size keep their bits, and all types of a number of that value tell the same.
        const auto number = static_cast<double>(value);
        std::uint64_t bits = to_bits(number);
        if constexpr (!std::is_floating_point_v<Number>) bits = detail::mix64(static_cast<std::uint64_t>(value));
        told_.push_back({{named(what, who), of}, {0, detail::mix64(bits), number}});
    }
    template <element T>
    void tell_buffer(const char* what, view<const T> value, stream_ref stream, expectation of, const caller& who)
    {
        require_expectation(of, who);
        who.require_readable(value, what);
        comm_.check_buffer(value, what, collective::all_gather, stream, who.where());
        const auto scope = comm_.device_scope();
        block& open = open_step(stream, who);
        lane& on = open_tools().lanes[enter_lane(stream, who)];
        detail::enqueue_marked(on.done, stream, [&] {
            statistics* const to = open.read_values.data() + open.value_count;
            if constexpr (floating_element<T>)
                device::reduce(stream, statistics_reducer<T>(value), value.count(), to, on.workspace);
            else device::reduce(stream, detail::count_reducer<T>(value), value.count(), to, on.workspace);
        });
        open.tell({named(what, who), of},
            {{0, detail::mix64(value.count() << 8 | static_cast<std::uint64_t>(element_traits<T>::type)), 0}, true});
    }
    static call_site named(const char* what, const caller& who) noexcept
    {
        call_site site = who.where();
        site.name = what;
        return site;
    }
    void require_expectation(expectation of, const caller& who)
    {
        require_immediate(who);
        if (of != expectation::equal && options_.mode == report_mode::summary) {
            who.fail(status::unsupported, "the mode summary compares values for equality alone");
        }
        const std::uint64_t told = told_.size() + (open_ != nullptr ? open_->value_count : 0);
        who.require(told < form_.room_for_values,
            "the step has no room for more values: raise probe_options::expectations");
    }
    /// The numbers that the host has told are the last values of the step.
    void tell_numbers(block& open)
    {
        for (const auto& [of, value] : told_) open.tell(of, {value, false});
        told_.clear();
    }

    /// Of calls in which ranks send or get nothing.
    void require_ranks_apart(const caller& who)
    {
        if (options_.mode == report_mode::gather && options_.direction != direction_mode::exact
            && comm_.quantisation_calls() == nullptr) return;
        who.fail(status::unsupported, "needs the mode gather, without exact direction and without quantised calls");
    }
    /// `count`: of the elements that a rank sends, if it sends any.
    template <element T>
    observed_call observe(const caller& who, view<const T> input, std::uint64_t count, stream_ref stream,
        collective what, reduction operation)
    {
        require_immediate(who);
        if (what == collective::broadcast || what == collective::barrier || what == collective::split) {
            who.fail(status::unsupported, std::string(name(what)) + " has no input of each rank");
        }
        who.require_readable(input, "input");
        const auto scope = comm_.device_scope();
        const auto ranks = static_cast<std::uint64_t>(size());
        detail::probed_call call{.call = what,
            .type = element_traits<T>::type,
            .operation = operation,
            .count = count,
            .site = who.where(),
            .result_count = count / (what == collective::reduce_scatter ? ranks : 1)
                * (what == collective::all_gather ? ranks : 1)};
        call.is_observed = true;
        const left_out why = begin_call<T>(call, stream, who);
        count_left_out(why);
        const bool seen = why == left_out::no;
        observed next{detail::next_observed_call(), {0, 0, stream, nullptr, nullptr, 0, nullptr}, call, seen};
        if (seen) {
            half_probed& half = next.half;
            half = half_of<T>(call, nullptr, view<const T>(), stream, who);
            detail::enqueue_marked(lane_of(half).done, stream, [&, this] {
                or_forget(half, [&, this] { probe_input<T>(half, call, input); });
            });
            open_->add(call);
        }
        observed_.push_back(next);
        return next.number;
    }
    /// Its place in `observed_`.
    std::size_t find_observed(observed_call of, const caller& who)
    {
        require_immediate(who);
        who.require(!observed_.empty(), "no observe_input before it");
        if (of == observed_call::oldest) return 0;
        std::size_t at = 0;
        while (at != observed_.size() && observed_[at].number != of) ++at;
        who.require(at != observed_.size(), "its observe_input has a result, or is not of this communicator and step");
        return at;
    }
    void end_observed(std::size_t at, const void* result, std::uint64_t count, stream_ref stream, const caller& who)
    {
        observed next = observed_[at];
        const auto scope = comm_.device_scope();
        if (next.seen) {
            next.half.result = result;
            next.half.result_count = count;
            next.half.stream = stream;
            next.half.lane = enter_lane(stream, who);
            probe_late(next.half);
        }
        observed_.erase(observed_.begin() + static_cast<std::ptrdiff_t>(at));
    }

    static bool is_capturing([[maybe_unused]] stream_ref stream, [[maybe_unused]] call_site where)
    {
        if constexpr (detail::can_capture<stream_ref>) return stream.capturing(where);
        else return false;
    }

    /// The first half of a call was probed.
    struct half_probed {
        std::uint64_t index; ///< of the call in its step
        int lane;
        stream_ref stream;
        const void* surviving; ///< the input, if the result can be compared with it
        const void* result;
        std::uint64_t result_count;
        void (probed::*probe_result)(const half_probed&, const detail::probed_call&);
    };

    /// Runs `make` between the probes of the input and the result; in a group the result is probed when the group has
    /// ended. Of a broadcast only the root has an input.
    template <element T>
    void around(const collective_call& made, stream_ref stream, detail::function_ref<void()> make)
    {
        if constexpr (!floating_element<T> && !has_parts) {
            make();
            ++unread_calls_;
        } else {
            const call_site where = made.where;
            const view<const T> input = made.sends(rank()) ? made.sent<T>() : view<const T>();
            const view<T> result = made.received<T>();
            detail::probed_call call{.call = made.what,
                .type = made.type,
                .operation = made.operation,
                .count = made.what == collective::broadcast ? made.receive_count : made.send_count,
                .has_leaves = made.leaves != 1,
                .site = where,
                .result_count = made.receive_count};
            call.has_codes = detail::travels_as_codes(comm_.quantisation_calls(), call);
            const caller who(comm_, call.call, where);
            who.require_readable(input, "send");
            who.require_readable(result, "receive");
            if (!call.has_leaves) who.require_right(made); // before anything counts the call
            const bool in_group = joins_group(who);
            comm_.check_buffer(input, "send", call.call, stream, where);
            comm_.check_buffer(result, "receive", call.call, stream, where);
            const auto scope = comm_.device_scope();
            if (const left_out why = begin_call<T>(call, stream, who); why != left_out::no) {
                make();
                return count_left_out(why);
            }
            if (in_group && call.is_gradient() && options_.direction == direction_mode::exact) {
                who.fail(status::unsupported,
                    "inside a group: exact direction needs messages between the ranks before each call");
            }
            const bool survives = made.what == collective::all_reduce && made.send != made.receive;
            const half_probed half = half_of<T>(call, survives ? input.data() : nullptr, result, stream, who);
            detail::enqueue_marked(lane_of(half).done, stream, [&, this] {
                or_forget(half, [&, this] {
                    probe_input<T>(half, call, input);
                    make();
                });
                open_->add(call);
                if (in_group) in_group_.push_back(half);
                else probe_result<T>(half, call);
            });
        }
    }

    /// Whether the call is made in a group, whose end this object then waits for.
    bool joins_group(const caller& who)
    {
        require_no_launch(who);
        if (!comm_.enqueues_at_once()) {
            if (!comm_.innermost().follow_group(*this)) {
                who.require_immediate(": nothing tells when a group of ncclGroupStart itself ends. Use nccl::group");
            }
            return true;
        }
        require_no_group(who);
        return false;
    }
    static void when_group_ended(group_follower& self, bool enqueued) noexcept
    {
        static_cast<probed&>(self).end_calls_of_group(enqueued);
    }
    void end_calls_of_group(bool enqueued) noexcept
    {
        try {
            const auto scope = comm_.device_scope();
            if (!enqueued && !in_group_.empty()) {
                const half_probed& first = in_group_.front();
                detail::enqueue_marked(lane_of(first).done, first.stream,
                    [&, this] { forget_calls(first.index, open_->call_count, first.stream); });
            }
            for (const half_probed& half : in_group_) {
                if (enqueued) probe_late(half);
            }
        } catch (...) { // the group's calls are made; the next call of this object throws
            if (!late_failure_) late_failure_ = std::current_exception();
        }
        in_group_.clear();
    }
    void probe_late(const half_probed& half)
    {
        detail::enqueue_marked(lane_of(half).done, half.stream,
            [&, this] { (this->*half.probe_result)(half, open_->calls[half.index]); });
    }
    /// Precondition: the calling thread has no group open.
    void require_no_group(const caller& who)
    {
        who.require(in_group_.empty(), "another thread has a group open, with calls of this communicator");
        if (late_failure_) std::rethrow_exception(std::exchange(late_failure_, nullptr));
    }
    /// Makes the last call of the step.
    template <class Make>
    void or_forget(const half_probed& half, const Make& make)
    {
        try {
            make();
        } catch (...) {
            forget_calls(half.index, half.index + 1, half.stream);
            throw;
        }
    }
    /// Takes back the last calls of the step: they were not made.
    void forget_calls(std::uint64_t first, std::uint64_t end, stream_ref stream) noexcept
    {
        open_->call_count = first;
        is_rewritten_ = true;
        if constexpr (has_parts) {
            try {
                open_tools().lanes.join(stream, call_site::current());
                open_->zero_entries(first, end, stream, call_site::current());
            } catch (...) { // the first error tells more
            }
        }
    }

    /// Why a call of the open step is made and not looked at.
    enum class left_out : std::uint8_t { no, unread, no_room };
    /// Of a call that was made.
    void count_left_out(left_out why) noexcept
    {
        if (why == left_out::unread) ++unread_calls_;
        if (why == left_out::no_room) ++open_->unprobed_calls;
    }
    /// Finds room for a call in the open step.
    template <element T>
    left_out begin_call(detail::probed_call& call, stream_ref stream, const caller& who)
    {
        block& open = open_step(stream, who);
        const bool takes_statistics = floating_element<T> && (open.due & 1) != 0;
        if (!takes_statistics && open.due >> 1 == 0) return left_out::unread;
        call.has_input = takes_statistics;
        // Of an observed call it must be known which ranks have a result.
        call.has_result = takes_statistics && options_.results
            && (call.is_observed || !is_read_by_part(open.due, call.call));
        if (open.call_count < open.room()) return left_out::no;
        if (capture_ == nullptr) {
            if (open.call_count < static_cast<std::uint64_t>(options_.largest_step)) return left_out::no;
            if (!std::exchange(open.is_refused, true)) refuse_endless_step(open, who);
        }
        return left_out::no_room;
    }
    bool is_read_by_part(std::uint64_t due, collective what)
    {
        bool found = false;
        for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t, std::uint64_t) {
            if constexpr (requires { part.reads_result(what, options_.mode); }) {
                found = found || (is_due<I>(due) && part.reads_result(what, options_.mode));
            }
        });
        return found;
    }
    template <element T>
    half_probed half_of(const detail::probed_call& call, const T* surviving, view<const T> result, stream_ref stream,
        const caller& who)
    {
        const int on = enter_lane(stream, who);
        if (open_->call_count == open_->room()) {
            open_->add_piece(static_cast<std::uint64_t>(options_.largest_step), who.where());
        }
        return {open_->call_count, on, stream, call.is_gradient() ? surviving : nullptr, result.data(), result.count(),
            &probed::template probe_result<T>};
    }

    using lane = typename detail::stream_lanes<device>::lane;
    lane& lane_of(const half_probed& half) { return open_tools().lanes[half.lane]; }

    template <element T>
    void probe_input(const half_probed& half, const detail::probed_call& call, view<const T> input)
    {
        [[maybe_unused]] const auto sketches = let_parts_look(half, call,
            [&](auto& part, const auto& seen, auto* entry) { return part.template before<T>(seen, input, entry); });
        if constexpr (floating_element<T>) {
            auto* const to = call.has_input ? &open_->entry(half.index).input : nullptr;
            const reduction_times times = open_->input_times(half.index);
            auto& scratch = lane_of(half).workspace;
            if constexpr (has_sketches) {
                detail::read_input<device, T>(half.stream, input, to, sketches.first, scratch, times);
                sketches.make_others(half.stream, input);
            } else if (to != nullptr) {
                device::reduce(half.stream, statistics_reducer<T>(input), input.count(), to, scratch, times);
            }
            if (!call.has_input) return;
            if (call.is_gradient()) add_to_gram(*open_, input, half.stream, call.site);
            const auto at = open_->at(half.index);
            sample(call, input, 0, form_.layout.input_sample(at.message, at.index), half.stream);
        }
    }
    template <element T>
    void probe_result(const half_probed& half, const detail::probed_call& call)
    {
        const view<const T> result(static_cast<const T*>(half.result), half.result_count);
        [[maybe_unused]] const auto sketches = let_parts_look(half, call,
            [&](auto& part, const auto& seen, auto* entry) { return part.template after<T>(seen, result, entry); });
        if constexpr (floating_element<T>) {
            auto* const to = call.has_result ? &open_->entry(half.index).result : nullptr;
            const auto* const input = static_cast<const T*>(half.surviving);
            const reduction_times times = open_->result_times(half.index);
            auto& scratch = lane_of(half).workspace;
            if constexpr (has_sketches) {
                detail::read_result<device, T>(half.stream, result, input, to, sketches.first, scratch, times);
                sketches.make_others(half.stream, result);
            } else if (to != nullptr) {
                device::reduce(
                    half.stream, detail::result_reducer<T>(result, input), result.count(), to, scratch, times);
            }
            if (!call.has_result) return;
            const std::uint64_t part = call.call == collective::reduce_scatter ? result.count() : 0;
            const auto at = open_->at(half.index);
            sample(call, result, part * static_cast<std::uint64_t>(rank()),
                form_.layout.result_sample(at.message, at.index), half.stream);
        }
    }
    /// The sketches that parts want of a buffer. The step's read makes the first.
    struct wanted_sketches {
        detail::sketch_target first;
        detail::sketch_target others[sizeof...(Parts) + 1];
        std::size_t other_count = 0;

        template <class T>
        void make_others(stream_ref stream, view<const T> data) const
        {
            for (std::size_t i = 0; i < other_count; ++i)
                detail::make_sketch<device, T>(stream, data, first, others[i]);
        }
    };
    /// Calls `look(part, call, entry)` for each part, and returns the sketches that they want.
    template <class Look>
    wanted_sketches let_parts_look(const half_probed& half, const detail::probed_call& call, const Look& look)
    {
        if (is_rewritten_) open_tools().lanes.join(half.stream, call.site);
        wanted_sketches sketches;
        for_each_part_of(half, call, [&](auto& part, const auto& seen, auto* entry) {
            if constexpr (detail::has_sketches<decltype(part)>) {
                const auto wanted = look(part, seen, entry);
                if (wanted.empty()) return;
                if (sketches.first.empty()) sketches.first = wanted;
                else sketches.others[sketches.other_count++] = wanted;
            } else {
                look(part, seen, entry);
            }
        });
        return sketches;
    }
    [[noreturn]] void refuse_endless_step(const block& open, const caller& who) const
    {
        who.fail(status::invalid_argument,
            std::string("call ") + std::to_string(open.call_count + 1) + " of one step: "
                + (ended_ == 0 ? "no step has ended yet" : "no step has ended since the first of them")
                + ". Call end_step, or raise probe_options::largest_step; later calls are made and not looked at");
    }

    /// Calls `use(part, call, entry)` for each part that looks at the step.
    template <class Use>
    void for_each_part_of(const half_probed& half, const detail::probed_call& call, const Use& use)
    {
        tools& with = open_tools();
        const auto at = open_->at(half.index);
        unsigned char* const entries = form_.layout.parts_of(at.message, at.index);
        for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t offset, std::uint64_t) {
            if (!is_due<I>(open_->due)) return;
            using entry_type = typename std::remove_cvref_t<decltype(part)>::entry;
            const part_call seen(comm_.innermost(), half.stream, half.index, half.lane, call, options_.mode,
                comm_.quantisation_calls(), lane_of(half).workspace, std::get<I>(with.part_memory));
            use(part, seen, reinterpret_cast<entry_type*>(entries + offset));
        });
    }

    /// Bits as in `step_buffers::due`.
    template <std::size_t I>
    static bool is_due(std::uint64_t bits) noexcept
    {
        return (bits >> (1 + I) & 1) != 0;
    }
    std::uint64_t due_now(bool captured)
    {
        const auto is = [&, this](int every, std::uint64_t bit) {
            if (every == 1) return bit;
            if (captured) return std::uint64_t{0};
            const bool asked = (requested_ & bit) != 0;
            return asked || (every > 0 && ended_ % static_cast<std::uint64_t>(every) == 0) ? bit : 0;
        };
        std::uint64_t bits = options_.statistics ? is(options_.every, 1) : 0;
        for_each_part([&]<std::size_t I>(auto& part, std::uint64_t, std::uint64_t) {
            if constexpr (requires { part.every(); }) bits |= is(part.every(), std::uint64_t{2} << I);
            else bits |= std::uint64_t{2} << I;
        });
        return bits;
    }

    /// Calls `use<I>(part, offset of its entry, offset of its summary words)` for each part.
    template <class Use>
    void for_each_part(const Use& use)
    {
        [&, this]<std::size_t... I>(std::index_sequence<I...>) {
            std::uint64_t offset = 0;
            std::uint64_t words = 0;
            [[maybe_unused]] const auto next = [&, this]<std::size_t K>() {
                auto& part = std::get<K>(parts_);
                using part_type = std::remove_cvref_t<decltype(part)>;
                use.template operator()<K>(part, offset, words);
                offset += sizeof(typename part_type::entry);
                words += detail::summary_words<part_type>();
            };
            (next.template operator()<I>(), ...);
        }(std::index_sequence_for<Parts...>());
    }

    /// Samples elements of a gradient; `here` begins with the gradient's element `first`.
    template <floating_element T>
    void sample(const detail::probed_call& call, view<const T> here, std::uint64_t first, std::uint64_t* words,
        stream_ref stream)
    {
        // Other calls are not sampled, but every word of the message must be initialised.
        device::for_each(stream, form_.layout.samples,
            detail::take_sample<T>{here, first, call.is_gradient() ? call.count : 0, form_.layout.samples, words});
    }

    template <element T>
    void add_to_gram(block& open, view<const T> input, stream_ref stream, call_site where)
    {
        if (options_.direction != direction_mode::exact) return;
        const auto every = static_cast<std::uint64_t>(options_.exact_every);
        if (capture_ != nullptr ? every != 1 : ended_ % every != 0) return;
        if constexpr (can_exchange) {
            tools& with = open_tools();
            const view<double> gram(open.gram);
            if (with.gram_done.recorded()) stream.wait(with.gram_done, where);
            if (!open.has_gram) {
                device::fill(stream, gram, 0.0, where);
                open.has_gram = true;
            }
            detail::accumulate_gram<T>(
                comm_.innermost(), input, gram, view<unsigned char>(with.gram_scratch), stream, where);
            with.gram_done.record(stream);
        }
    }

    /// Completes the open step's message and lets the ranks exchange their messages.
    void exchange(tools& with, const detail::write_header& write_header, stream_ref stream, call_site where)
    {
        const block& open = *open_;
        auto& ranks = comm_.innermost();
        for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t offset, std::uint64_t) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            auto& memory = std::get<I>(with.part_memory);
            const part_step<std::remove_reference_t<decltype(ranks)>, typename part_type::entry,
                std::remove_reference_t<decltype(memory)>>
                step(ranks, stream, where, open.message(), form_.layout, offset, open.call_count, memory);
            if constexpr (requires { part.end_step(step); }) {
                if (is_due<I>(open.due)) part.end_step(step);
            }
        });
        device::for_each(stream, open.call_count + 1, write_header);
        const detail::message_layout layout = layout_of(open);
        detail::told_value* const values = layout.values(open.message(), open.call_count);
        if (open.value_count != 0) {
            device::for_each(stream, open.value_count,
                detail::write_values{values, open.values.data(), open.read_values.data()});
        }
        const detail::step_report report = report_of(open);
        const view<unsigned char> own(open.message(), layout.bytes(open.call_count));
        if (options_.mode == report_mode::gather) {
            ranks.all_gather(view<const unsigned char>(own), report.messages(), stream, where);
        } else {
            device::for_each(stream, open.call_count + 1,
                detail::pack_summary{open.message(), open.gradients.data(), open.call_count, rank(), size(),
                    with.reference(), report.summary(), layout});
            if (open.value_count != 0) {
                device::for_each(
                    stream, open.value_count, detail::pack_values{values, rank(), report.told_keys()});
            }
            for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t offset, std::uint64_t words) {
                using part_type = std::remove_cvref_t<decltype(part)>;
                if constexpr (detail::has_summary<part_type>) {
                    device::for_each(stream, open.call_count, detail::pack_part<part_type>{open.message(),
                        form_.layout, offset, report.part_words() + words, form_.part_words});
                }
            });
            if constexpr (can_reduce) {
                ranks.all_reduce(report.sums(), reduction::sum, stream, where);
                ranks.all_reduce(report.keys(), reduction::max, stream, where);
            }
            device::for_each(
                stream, open.call_count + 1, detail::advance_reference{report.summary(), with.reference()});
        }
        if constexpr (can_exchange) {
            if (open.has_gram)
                ranks.all_reduce(view<const double>(open.gram), report.gram(), reduction::sum, stream, where);
        }
        if constexpr (has_parts) {
            device::zero(stream, own, where);
        }
        comm_.next_step(stream, where);
    }

    detail::step_report report_of(const block& seen) const noexcept
    {
        unsigned char* const to = capture_ != nullptr ? capture_->report.data() : memory_->report.data();
        return {to, form_.with_values(seen.value_count), seen.call_count};
    }
    detail::step_report host_report(const in_flight_step& of, const block& seen) const noexcept
    {
        return {of.host.data(), form_.with_values(seen.value_count), seen.call_count};
    }
    detail::message_layout layout_of(const block& seen) const noexcept
    {
        return form_.with_values(seen.value_count).layout;
    }

    /// Returns the step being recorded. Its first call decides whether the step is captured.
    block& open_step(stream_ref stream, const caller& who)
    {
        const call_site where = who.where();
        const bool capturing = is_capturing(stream, where);
        if (open_ != nullptr) {
            who.require(capturing || capture_ == nullptr,
                "the open step is being captured, this stream is not: end it with end_captured_step, or "
                "forget it with abandon_capture");
            who.require(!capturing || capture_ != nullptr,
                "the open step has calls from outside this capture: end it before the capture");
            if constexpr (detail::can_capture<stream_ref>) {
                // An invalidated capture has number 0, and CUDA refuses every later call in it.
                const unsigned long long number = capturing ? stream.capture_number(where) : 0;
                who.require(number == 0 || number == capture_->capture,
                    "the open step is of another capture: end it there, or forget it with abandon_capture");
            }
            return *open_;
        }
        if (capturing) {
            captured_work* unused = nullptr;
            for (captured_work& work : memory_->captured) {
                if (work.serial == 0) unused = &work;
            }
            who.require(unused != nullptr,
                "all captured steps are in use: release one, or ask for more by probe_options::captured_steps");
            unsigned long long number = 0;
            if constexpr (detail::can_capture<stream_ref>) number = stream.capture_number(where);
            capture_ = unused; // nothing was taken if the number could not be had
            capture_->serial = detail::next_capture_serial();
            capture_->capture = number;
            capture_->tools.lanes.forget();
            capture_->tools.gram_done = {};
            open_ = &capture_->block;
        } else {
            in_flight_step& slot = memory_->ring[next_in_ring(where)];
            slot.outgrown.clear();
            open_ = &slot.own;
        }
        open_->clear();
        open_->due = due_now(capturing);
        if (!capturing) requested_ = 0;
        is_rewritten_ = false;
        for_each_part([&, this]<std::size_t I>(auto&, std::uint64_t, std::uint64_t) {
            auto& memory = std::get<I>(open_tools().part_memory);
            if constexpr (requires { memory.clear(); }) memory.clear();
        });
        return *open_;
    }

    void close_step() noexcept
    {
        open_tools().lanes.end_step();
        open_ = nullptr;
        capture_ = nullptr;
    }

    tools& open_tools() noexcept { return capture_ == nullptr ? memory_->tools : capture_->tools; }

    int enter_lane(stream_ref stream, const caller& who)
    {
        const int found = open_tools().lanes.enter(stream, capture_ == nullptr, who.where(), [&, this] {
            // The parts' memory is in use until the last step has ended.
            if (has_parts && capture_ == nullptr && memory_->reported.recorded()) {
                stream.wait(memory_->reported, who.where());
            }
        });
        who.require(found >= 0,
            "a captured step has calls on more streams than probe_options::streams, and memory cannot be "
            "allocated in a capture");
        return found;
    }

    captured_work& find(const captured_step& captured, const caller& who)
    {
        require_no_launch(who);
        for (captured_work& work : memory_->captured) {
            if (captured.serial_ != 0 && captured.serial_ == work.serial && &work != capture_) return work;
        }
        who.fail(status::invalid_argument, "no such captured step: it was released, or is not this communicator's");
    }

    /// Index of the next step's slot; waits for the oldest step if all slots are taken.
    std::size_t next_in_ring(call_site where)
    {
        if (ended_ - judged_ == memory_->ring.size()) judge_finished();
        while (ended_ - judged_ == memory_->ring.size()) wait_for_oldest(where);
        return static_cast<std::size_t>(ended_ % memory_->ring.size());
    }

    /// Blocks the caller until the work in front of `done` is over, however long that takes.
    /// \throws error the communicator's failure; then the work may stay on its stream for ever.
    void await(const typename device::event& done, call_site where) const
    {
        while (!detail::finished_by(detail::deadline::in_ms(100), done)) comm_.check(where);
    }

    void wait_for_oldest(call_site where)
    {
        throw_failure();
        await(oldest().done, where);
        judge_finished();
    }

    in_flight_step& oldest()
    {
        return memory_->ring[static_cast<std::size_t>(judged_ % memory_->ring.size())];
    }

    /// `step_header::serial` of the step that ends now.
    std::uint32_t next_serial() const noexcept { return static_cast<std::uint32_t>(ended_ + 1); }
    detail::write_header header_of(const block& open, const step_observation& seen,
        const detail::replay_ticket& known, detail::replay_tickets* tickets) const noexcept
    {
        return {open.message(), form_.layout, open.places.data(), options_.statistics && !options_.results, seen, known,
            tickets};
    }
    std::uint32_t lost_ago() const noexcept
    {
        const std::uint64_t ago = ended_ + 1 - last_lost_;
        return last_lost_ == 0 || ago > 255 ? 0 : static_cast<std::uint32_t>(ago);
    }

    void await_report(in_flight_step& of, std::uint64_t step, captured_work* from, call_site where) noexcept
    {
        of.step = step;
        of.from = from;
        of.where = where;
        ++ended_;
    }

    /// Judges the steps whose messages have arrived, in order, up to the first failed step.
    void judge_finished()
    {
        while (judged_ < ended_ && !failure_) {
            in_flight_step& next = oldest();
            try {
                if (!next.done.query()) return;
                judge(next);
            } catch (...) {
                failure_ = std::current_exception(); // this step will never have a record
                last_lost_ = judged_ + 1;
            }
            count_judged(next);
        }
    }

    /// Throws the failure of the oldest failed step, once.
    void throw_failure()
    {
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }

    void count_judged(const in_flight_step& finished) noexcept
    {
        const block& seen = finished.seen();
        calls_judged_ += seen.call_count + seen.unprobed_calls + seen.unread_calls;
        ++judged_;
        if (finished.from != nullptr) --finished.from->unjudged;
    }

    void judge(const in_flight_step& finished)
    {
        step_record& out = unread_.next();
        const block& seen = finished.seen();
        const detail::step_report report = host_report(finished, seen);
        const view<const detail::probed_call> calls(seen.calls.data(), seen.call_count);
        const view<const double> gram = seen.has_gram ? report.gram() : view<double>();
        const view<const detail::expected_value> expected(seen.expected.data(), seen.value_count);
        const auto serial = static_cast<std::uint32_t>(judged_ + 1);
        const auto origin = [&, this] { return caller(comm_, "end_step", finished.where).origin(); };
        bool has_places = false;
        if (options_.mode == report_mode::gather) {
            const detail::gathered_step step(
                report.messages().data(), comm_.size(), seen.call_count, layout_of(seen));
            require_arrived(step.has_arrived(serial), finished);
            judge_.require_same_step(step, origin);
            judge_.judge(step, calls, expected, gram, out);
            has_places = judge_.has_places();
            detail::measure_orders(meter_, step, calls, out);
            for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t offset, std::uint64_t) {
                if (!is_due<I>(seen.due)) return;
                using entry_type = typename std::remove_cvref_t<decltype(part)>::entry;
                part.judge(part_entries<entry_type>(step, calls, judge_.series(), offset), out);
            });
        } else {
            const detail::summary_parts step = report.summary();
            require_arrived(step.keys->arrival.complete(serial, size()), finished);
            detail::require_same_step(*step.keys, finished.step, origin);
            detail::judge_summary(
                judge_, step, size(), calls, {report.told_keys(), seen.value_count}, expected, gram, out);
            for_each_part([&, this]<std::size_t I>(auto& part, std::uint64_t, std::uint64_t words) {
                using part_type = std::remove_cvref_t<decltype(part)>;
                if constexpr (detail::has_summary<part_type>) {
                    if (!is_due<I>(seen.due)) return;
                    part.judge_summary(part_summaries<typename part_type::summary>(
                        report.part_words() + words, form_.part_words), out);
                }
            });
        }
        out.unprobed_calls = seen.unprobed_calls;
        out.unread_calls = seen.unread_calls;
        if (seen.unprobed_calls != 0) out.forget_result_norm();
        out.first_call = calls_judged_;
        judge_.judge_missing(calls, has_places, out.unread_calls == 0, out.unprobed_calls, out);
        out.settle_findings();
        unread_.push();
    }

    void require_arrived(bool arrived, const in_flight_step& finished) const
    {
        if (arrived) return;
        caller(comm_, "poll", finished.where)
            .fail(status::device_failure,
                "the records of step " + std::to_string(finished.step) + " never arrived: work on its stream failed");
    }

    probe_options options_;
    std::tuple<Parts...> parts_;
    detail::step_report::shape form_;
    detail::step_judge judge_;
    detail::order_meter meter_; ///< has no orders if nothing is sampled
    detail::record_queue<step_record> unread_;
    struct observed {
        observed_call number;
        half_probed half;
        detail::probed_call call;
        bool seen;
    };
    std::vector<half_probed> in_group_; ///< calls whose group has not ended
    std::vector<observed> observed_; ///< inputs whose results are to come
    std::vector<std::pair<detail::expected_value, detail::told_value>> told_; ///< numbers of the host, in this step
    std::uint64_t unread_calls_ = 0; ///< since the last step ended
    bool is_rewritten_ = false; ///< a stream has cleared entries of the open step: others must wait for it
    std::uint64_t requested_ = 0; ///< bits as in `step_buffers::due`
    std::exception_ptr late_failure_; ///< of a probe when a group had ended, until it is thrown
    std::exception_ptr failure_; ///< of the step after the last unread one; no later step is judged before it is thrown
    detail::in_flight<step_memory> memory_;
    block* open_ = nullptr; ///< the block that the current step's calls write; null before the step's first call
    captured_work* capture_ = nullptr; ///< the captured step that owns `open_`; null if the step is not captured
    bool launching_ = false; ///< true during the launch of a replay
    std::uint64_t ended_ = 0; ///< steps ended or replayed
    std::uint64_t judged_ = 0;
    std::uint64_t calls_judged_ = 0;
    std::uint64_t last_lost_ = 0; ///< `step_header::serial` of the last step whose record failed; 0: none
};

template <communicator Comm, step_part... Parts>
probed(Comm, probe_options, Parts...) -> probed<Comm, Parts...>;

} // namespace collprobe

#if defined(COLLPROBE_COMPILED) && !COLLPROBE_STREAM_ORDER
#define COLLPROBE_INSTANCE extern template
#include <collprobe/compiled/host_instances.hpp>
#endif
