// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/probe_core.hpp>
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
class probed : public detail::probe_core<Comm, Parts...> {
    static_assert((detail::is_words<typename Parts::entry> && ...),
        "a part needs a type entry of whole 8-byte words: step/part.hpp");
    static_assert((step_part<Parts> && ...), "a part with a type summary, of whole 8-byte words, needs a static "
        "summarize(entry) and judge_summary(summaries, record): step/README.md");
    template <class, class>
    friend class c::probe_of;
    using core = detail::probe_core<Comm, Parts...>;
    using typename core::block, typename core::caller, typename core::captured_work, typename core::part_list;
    using typename core::slot;
    using core::comm_, core::form_, core::judged_, core::memory_, core::open_, core::parts_;
    using core::await, core::exchange, core::is_capturing, core::judge_finished, core::named, core::next_slot;
    using core::open_step, core::require_complete, core::require_expectation, core::require_ranks_apart;
    using core::tell_buffer, core::tell_number, core::wait_for_oldest;

public:
    using typename core::device, typename core::stream_ref;

    /// A call that the caller makes itself, for its result. Copy it freely. It finds its probe where that was moved to,
    /// and must not be used when the probe is gone.
    class observed_call {
    public:
        /// The call's result on this rank, of the input's type; on any stream, in any order of the calls.
        /// \throws error `invalid_argument` for a count that the collective does not make of the input, and if the call
        ///   has its result, or its step was abandoned.
        template <element T>
        void result(view<const T> result, stream_ref stream, call_site where = call_site::current()) const
        {
            static_cast<probed*>(*probe_)->template end_observed<T>(number_, result, stream, where);
        }
        /// This rank gets nothing. \throws error as above, and as `observe_no_input`.
        void no_result(stream_ref stream, call_site where = call_site::current()) const
        {
            static_cast<probed*>(*probe_)->end_observed(number_, stream, where);
        }

    private:
        friend probed;
        template <class, class>
        friend class c::probe_of;
        observed_call(void* const* probe, std::uint64_t number) : probe_(probe), number_(number) {}
        void* const* probe_;
        std::uint64_t number_;
    };

    /// Takes ownership of the communicator and allocates all buffers on its device.
    /// \throws error `invalid_argument` for an option out of range; those of the parts.
    explicit probed(Comm comm, probe_options options = {}, Parts... parts, call_site where = call_site::current())
        : core(std::move(comm), std::move(options), where, std::move(parts)...) {}
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
            this->template around<T>(call, stream, make);
        });
    }

    /// Several calls as one, until the `end` of the result; as that of the wrapped communicator.
    auto group_scope(call_site where = call_site::current()) const { return comm_.group_scope(where); }

    /// Probes a collective that the caller makes itself, by any library: `auto call = probe.observe(input, stream)`
    /// before it, `call.result(result, stream)` behind it. The record has it as a call of the kind `what`, between
    /// ranks of this communicator. A rank that sends nothing, such as to the gradient of an expert that it does not
    /// have, calls `observe_no_input` with the elements that the others send; one that gets nothing `no_result`.
    /// Precondition: all ranks observe the same inputs, in the same order. Results may come in any order.
    /// \throws error `invalid_argument` for buffers as in a call; at `end_step` for a call without its result.
    ///   `unsupported` for a broadcast and in a group; of `observe_no_input` and `no_result` in the mode `summary`,
    ///   with `exact` direction, and of calls that travel as codes.
    template <element T>
    observed_call observe(view<const T> input, stream_ref stream, collective what = collective::all_reduce,
        reduction operation = reduction::average, call_site where = call_site::current())
    {
        const caller who(comm_, "observe", where);
        return {this->cell_, this->template begin_observed<T>(who, input, input.count(), stream, what, operation)};
    }
    template <element T>
    observed_call observe_no_input(std::uint64_t count, stream_ref stream, collective what = collective::all_reduce,
        reduction operation = reduction::average, call_site where = call_site::current())
    {
        const caller who(comm_, "observe_no_input", where);
        require_ranks_apart(who);
        return {this->cell_, this->template begin_observed<T>(who, view<const T>(), count, stream, what, operation)};
    }

    /// Has the statistics, or the part P, look at the next step that is not captured, beside those of `every`. On all
    /// ranks alike, and before the step's first call.
    void request() noexcept { parts_.request(1); }
    template <step_part P>
        requires(std::is_same_v<P, Parts> || ...)
    void request() noexcept { parts_.request(part_list::template bit_of<P>()); }

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
        open_.numbers.push_back({{named(what, who), expectation::partition, whole},
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
        require_complete(seen, who);
        const auto scope = comm_.device_scope();
        who.require(!is_capturing(stream, where),
            "the stream is capturing: a step in a graph ends with end_captured_step");
        const block& ended = open_step(stream, who);
        open_.complete();
        slot& to = next_slot(where);
        const std::uint64_t report_bytes = detail::step_report::room_bytes(form_, ended.room());
        if (to.done.recorded() && to.host.size() < report_bytes) await(to.done, where);
        to.make_room(report_bytes);
        detail::enqueue_marked(memory_->reported, stream, [&, this] {
            if (memory_->reported.recorded()) stream.wait(memory_->reported, where);
            if (to.done.recorded()) stream.wait(to.done, where);
            memory_->tools.lanes.join(stream, where);
            to.own.join_pieces(form_, stream, to.outgrown, where);
            memory_->tools.exchange.make_room(ended.room(), to.outgrown, stream, where);
            const detail::replay_ticket numbers = this->ticket_of(step, memory_->ring, nullptr);
            const view<unsigned char> report = exchange(seen, numbers, nullptr, stream, where);
            device::copy(stream, view<const unsigned char>(report),
                judged_.report_of(ended, to.host.data()).used(ended.has_gram), where);
        });
        to.done = memory_->reported;
        open_.close();
        memory_->ring.push(step, to.own, where);
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
        require_complete(seen, who);
        const auto scope = comm_.device_scope();
        who.require(is_capturing(stream, where),
            "the stream is not capturing: a step outside a graph ends with end_step");
        open_step(stream, who);
        if (!open_.numbers.empty()) {
            open_.numbers.clear();
            who.fail(status::unsupported,
                "a number of the host would be the same in each replay: give expect_equal a buffer");
        }
        if (detail::is_given(seen.loss) || detail::is_given(seen.gradient_norm)) {
            who.fail(status::unsupported,
                "a loss or norm of the host would be the same in each replay: give the address of one");
        }
        open_.complete();
        open_.tools().lanes.join(stream, where);
        const view<unsigned char> report
            = exchange(seen, {}, memory_->captured.open()->tickets(), stream, where);
        const std::uint64_t serial = memory_->captured.end(report, stream);
        open_.close();
        return captured_step(serial);
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
        captured_work& work = memory_->captured.find(captured.serial_, who);
        who.require(!open_.is_open(), "the calls since the last step have not been ended");
        const auto scope = comm_.device_scope();
        who.require(!is_capturing(stream, where), "the stream is capturing");
        // A graph's collectives bypass the communicator, so only this call can refuse a communicator that has failed.
        comm_.check(where);
        slot& to = next_slot(where);
        try {
            detail::enqueue_marked(work.replayed, stream, [&, this] {
                if (work.replayed.recorded()) stream.wait(work.replayed, where);
                if (to.done.recorded()) stream.wait(to.done, where);
                memory_->captured.launch(
                    work, this->ticket_of(step, memory_->ring, to.host.data()), stream, launch);
            });
        } catch (...) { // what was enqueued before may write the report
            to.done = work.replayed;
            throw;
        }
        to.done = work.replayed;
        memory_->ring.push(step, work.block, where);
    }

    /// Releases the memory of a captured step for another capture. Its graph must not be launched any more.
    /// Blocks the caller until the step's replays are done.
    void release(const captured_step& captured, call_site where = call_site::current())
        requires detail::can_capture<stream_ref>
    {
        captured_work& work = memory_->captured.find(captured.serial_, caller(comm_, "release", where));
        while (work.block.reports != 0) wait_for_oldest(where);
        await(work.replayed, where); // a replay whose launch threw has no report to wait for
        work.serial = 0;
    }

    /// Forgets the calls of a capture that failed or was given up. The next call may open a new step.
    void abandon_capture() noexcept
        requires detail::can_capture<stream_ref>
    {
        if (!memory_ || memory_->captured.open() == nullptr) return;
        memory_->captured.abandon();
        open_.abandon();
    }

    /// Fills `out` with the next finished step and returns true; returns false if no step has finished, also if none is
    /// pending (`pending_steps`): a step whose `end_step` threw is not, and never has a record. Never blocks.
    /// Steps come in the order in which they were ended. If `out` is the same object each time, its memory is reused.
    /// Legal while a stream is capturing.
    /// \throws error of the stream or communicator if the step's work failed, when it is that step's turn; the step is
    ///   lost. (A caller that does not poll gets the error from a call that waits for the oldest step.)
    bool poll(step_record& out)
    {
        judge_finished();
        if (judged_.unread.pop(out)) return true;
        memory_->ring.throw_failure();
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
    P& part() noexcept { return parts_.template get<P>(); }

    /// What the evidence over the run (`probe_options::false_alarms_per_run`) and the judge of numbers have learnt:
    /// 8-byte words, to be saved with a checkpoint. The same on every rank once all steps have been polled. Empty if no
    /// evidence is gathered.
    std::vector<std::uint64_t> evidence_state() const { return judged_.judge.evidence_state(); }
    /// Goes on from a saved state, on every rank the same, after the last step was polled (`pending_steps` is 0).
    /// \throws error `invalid_argument` for words that are no such state, or one of other ranks, groups or versions, or
    ///   if no evidence is gathered; then nothing changes.
    void restore_evidence(view<const std::uint64_t> state, call_site where = call_site::current())
    {
        caller(comm_, "restore_evidence", where).require(judged_.judge.has_evidence(), "no evidence is gathered");
        judged_.judge.restore_evidence(state, where);
        judged_.judge.know_losses_until(static_cast<std::uint32_t>(memory_->ring.ended()));
        memory_->ring.forget_losses();
    }

    /// Steps that were ended or replayed but neither returned by `poll` nor dropped.
    std::uint64_t pending_steps() const noexcept
    {
        return (memory_ ? memory_->ring.under_way() : 0) + judged_.unread.size();
    }
    /// Finished steps that were dropped because `poll` was not called for `unread_steps` steps.
    std::uint64_t dropped_steps() const noexcept { return judged_.unread.dropped(); }
};

template <communicator Comm, class... Parts>
probed(Comm, probe_options, Parts...) -> probed<Comm, Parts...>;

} // namespace collprobe

#if defined(COLLPROBE_COMPILED) && !COLLPROBE_STREAM_ORDER
#define COLLPROBE_INSTANCE extern template
#include <collprobe/compiled/host_instances.hpp>
#endif
