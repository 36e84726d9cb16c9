// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/captured_steps.hpp>
#include <collprobe/step/detail/report_judge.hpp>
#include <collprobe/step/detail/open_step.hpp>
#include <collprobe/step/detail/report_ring.hpp>
#include <collprobe/step/detail/step_parts.hpp>
#include <collprobe/step/step_observation.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/probe_options.hpp>

/// The probe: what users call, then what a call of it does.
namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// All memory that the enqueued work of a probe uses.
template <class Device>
struct step_memory {
    step_memory(const step_report::shape& form, const probe_options& options, const auto& parts, call_site where)
        : resources(form, options, parts(), where),
          ring(options.steps_in_flight, form, static_cast<std::uint64_t>(options.calls), where),
          captured(form, options, parts, where) {}
    bool finished_by(deadline until) const noexcept
    {
        return captured.finished_by(until) && resources.lanes.finished_by(until)
            && detail::finished_by(until, reported);
    }

    step_resources<Device> resources; ///< shared by all steps that are not captured
    report_ring<Device> ring;
    captured_steps<Device> captured;
    void* probe = nullptr; ///< where its owner is: `located`
    typename Device::event reported; ///< the last `end_step`: exchanges come one after the other
};

/// The base of an object that is found where it was moved to: in a cell of its memory, which stays where it is.
template <class Self>
class located {
protected:
    located() = default;
    located(located&& other) noexcept : cell_(std::exchange(other.cell_, nullptr))
    {
        if (cell_ != nullptr) *cell_ = static_cast<Self*>(this);
    }
    void** cell_ = nullptr;
};

} // namespace detail

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
/// message to every rank of `128 * calls + 40` bytes (`summary`: a reduction of `104 * calls + 304`) and a copy to the
/// host. README.md has the costs of options.
template <communicator Comm, class... Parts>
class probed : public adaptor<probed<Comm, Parts...>, Comm>, group_follower, detail::located<probed<Comm, Parts...>> {
    static_assert((detail::is_words<typename Parts::entry> && ...),
        "a part needs a type entry of whole 8-byte words: step/part.hpp");
    static_assert((step_part<Parts> && ...), "a part with a type summary, of whole 8-byte words, needs a static "
        "summarize(entry) and judge_summary(summaries, record): step/README.md");
    friend detail::located<probed>;
    using base_type = adaptor<probed<Comm, Parts...>, Comm>;
    using base_type::comm_, detail::located<probed>::cell_;

public:
    using typename base_type::device, typename base_type::stream_ref;
    using base_type::rank, base_type::size;

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

        std::uint64_t number() const noexcept { return number_; } ///< for `observed`; of no other call in the process

    private:
        friend probed;
        observed_call(void* const* probe, std::uint64_t number) : probe_(probe), number_(number) {}
        void* const* probe_;
        std::uint64_t number_;
    };

    /// Takes ownership of the communicator and allocates all buffers on its device.
    /// \throws error `invalid_argument` for an option out of range; those of the parts.
    explicit probed(Comm comm, probe_options options = {}, Parts... parts, call_site where = call_site::current());
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
        return {cell_, begin_observed<T>(who, input, input.count(), stream, what, operation)};
    }
    template <element T>
    observed_call observe_no_input(std::uint64_t count, stream_ref stream, collective what = collective::all_reduce,
        reduction operation = reduction::average, call_site where = call_site::current())
    {
        const caller who(comm_, "observe_no_input", where);
        require_ranks_apart(who);
        return {cell_, begin_observed<T>(who, view<const T>(), count, stream, what, operation)};
    }

    /// The call with this number.
    observed_call observed(std::uint64_t number) const noexcept { return {cell_, number}; }

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
    /// Cost: 24 bytes of the step's message a value (`summary`: 56); one read of a buffer.
    /// \throws error `invalid_argument` for a buffer that is null with a count above 0 or misaligned, and for more
    ///   values than `probe_options::expectations`. `unsupported` for a number in a captured step, in which it would be
    ///   the same for ever: give a buffer.
    template <class Number>
        requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
    void expect_equal(const char* what, Number value, call_site where = call_site::current())
    {
        tell(what, value, expectation::equal, {comm_, "expect_equal", where});
    }
    template <element T>
    void expect_equal(
        const char* what, view<const T> value, stream_ref stream, call_site where = call_site::current())
    {
        tell(what, value, stream, expectation::equal, {comm_, "expect_equal", where});
    }
    /// The same of a value that no two ranks may have alike: a seed, a digest of sample ids. `value_repeats`
    /// names all ranks that have the value of another one.
    /// \throws error as above; `unsupported` in the mode `summary`, which cannot tell.
    template <class Number>
        requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
    void expect_distinct(const char* what, Number value, call_site where = call_site::current())
    {
        tell(what, value, expectation::distinct, {comm_, "expect_distinct", where});
    }
    template <element T>
    void expect_distinct(
        const char* what, view<const T> value, stream_ref stream, call_site where = call_site::current())
    {
        tell(what, value, stream, expectation::distinct, {comm_, "expect_distinct", where});
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
        open_.numbers.push_back({named(what, expectation::partition, who, whole),
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
            memory_->resources.lanes.join(stream, where);
            to.own.join_pieces(form_, stream, to.outgrown, where);
            memory_->resources.exchange.make_room(ended.room(), to.outgrown, stream, where);
            const detail::replay_ticket numbers = memory_->ring.next_ticket(step, is_crowded_, nullptr);
            const view<unsigned char> report = exchange(seen, numbers, nullptr, stream, where);
            device::copy(stream, view<const unsigned char>(report),
                detail::report_of(form_, ended, to.host.data()).used(ended.has_gram), where);
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
        if (seen.loss.is_given() || seen.gradient_norm.is_given()) {
            who.fail(status::unsupported,
                "a loss or norm of the host would be the same in each replay: give the address of one");
        }
        open_.complete();
        open_.resources().lanes.join(stream, where);
        const view<unsigned char> report
            = exchange(seen, {}, memory_->captured.open()->tickets.data(), stream, where);
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
        auto& work = memory_->captured.find(captured.serial_, who);
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
                    work, memory_->ring.next_ticket(step, is_crowded_, to.host.data()), stream, launch);
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
        auto& work = memory_->captured.find(captured.serial_, caller(comm_, "release", where));
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
        if (reports_.unread.pop(out)) return true;
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

    /// What the evidence over the run (`probe_options::false_alarms_per_run`) and the judge of outliers have learnt:
    /// 8-byte words, to be saved with a checkpoint. The same on every rank once all steps have been polled. Empty if no
    /// evidence is gathered.
    std::vector<std::uint64_t> evidence_state() const { return reports_.judge.evidence_state(); }
    /// Goes on from a saved state, on every rank the same, after the last step was polled (`pending_steps` is 0).
    /// \throws error `invalid_argument` for words that are no such state, or one of other ranks, groups or versions, or
    ///   if no evidence is gathered; then nothing changes.
    void restore_evidence(view<const std::uint64_t> state, call_site where = call_site::current())
    {
        caller(comm_, "restore_evidence", where).require(reports_.judge.has_evidence(), "no evidence is gathered");
        reports_.judge.restore_evidence(state, where);
        reports_.judge.know_losses_until(static_cast<std::uint32_t>(memory_->ring.ended()));
        memory_->ring.forget_losses();
    }

    /// Steps that were ended or replayed but neither returned by `poll` nor dropped.
    std::uint64_t pending_steps() const noexcept
    {
        return (memory_ ? memory_->ring.under_way() : 0) + reports_.unread.size();
    }
    /// Finished steps that were dropped because `poll` was not called for `unread_steps` steps.
    std::uint64_t dropped_steps() const noexcept { return reports_.unread.dropped(); }

private:
    using caller = detail::caller<Comm>;
    using part_list = detail::step_parts<Parts...>;
    using block = detail::step_block<device>;
    using slot = detail::step_in_flight<device>;
    using begun_call = detail::begun_call<device>;

    void require_immediate(const caller& who)
    {
        memory_->captured.require_no_launch(who);
        who.require_immediate();
        open_.require_no_group(who);
    }
    void require_complete(const step_observation& seen, const caller& who)
    {
        who.require(!seen.loss.is_null() && !seen.weight.is_null() && !seen.gradient_norm.is_null(),
            "the address of a loss, weight or norm is null");
        who.require(seen.weight.is_read() || (is_finite(seen.weight.value()) && !(seen.weight.value() < 0)),
            "the weight, a number of samples or tokens, is negative or not finite");
        require_immediate(who);
        open_.require_observed(who);
    }

    template <class Number>
    void tell(const char* what, Number value, expectation of, const caller& who)
    {
        // All types of a number of that value tell the same, integers from 2^63 on apart; and -0 is not 0.
        const auto number = static_cast<double>(value);
        std::uint64_t bits = to_bits(number);
        std::int64_t whole = 0;
        if constexpr (!std::is_floating_point_v<Number>) whole = static_cast<std::int64_t>(value);
        else if (is_finite(number) && detail::absolute(number) < 0x1p63) whole = static_cast<std::int64_t>(number);
        if (!std::is_floating_point_v<Number> || (static_cast<double>(whole) == number && bits != to_bits(-0.0)))
            bits = detail::mix64(static_cast<std::uint64_t>(whole)) + (number < 0 ? 1 : 0);
        open_.numbers.push_back({named(what, of, who), {0, detail::mix64(bits), number}});
    }
    template <element T>
    void tell(const char* what, view<const T> value, stream_ref stream, expectation of, const caller& who)
    {
        const detail::expected_value expected = named(what, of, who);
        who.require_readable(value, what);
        comm_.check_buffer(value, what, collective::all_gather, stream, who.where());
        const auto scope = comm_.device_scope();
        block& open = open_step(stream, who);
        auto& on = open_.resources().lanes[enter_lane(stream, who)];
        detail::enqueue_marked(on.done, stream, [&] {
            statistics* const to = open.read_values.data() + open.value_count;
            if constexpr (floating_element<T>)
                device::reduce(stream, statistics_reducer<T>(value), value.count(), to, on.workspace);
            else device::reduce(stream, detail::count_reducer<T>(value), value.count(), to, on.workspace);
        });
        const std::uint64_t form = value.count() << 8 | static_cast<std::uint64_t>(element_traits<T>::type);
        open.tell(expected, {{0, detail::mix64(form), 0}, true});
    }
    detail::expected_value named(const char* what, expectation of, const caller& who, const sample_set& whole = {})
    {
        require_immediate(who);
        if (of != expectation::equal && options_.mode == report_mode::summary)
            who.fail(status::unsupported, "the mode summary compares values for equality alone");
        who.require(open_.told() < form_.room_for_values,
            "the step has no room for more values: raise probe_options::expectations");
        detail::expected_value value{who.where(), of, whole};
        value.site.name = what;
        return value;
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
    std::uint64_t begin_observed(const caller& who, view<const T> input, std::uint64_t count, stream_ref stream,
        collective what, reduction operation)
    {
        require_immediate(who);
        if (what == collective::broadcast || what == collective::barrier || what == collective::split)
            who.fail(status::unsupported, std::string(name(what)) + " has no input of each rank");
        who.require_readable(input, "input");
        const auto scope = comm_.device_scope();
        const auto ranks = static_cast<std::uint64_t>(size());
        detail::probed_call call{.call = what, .type = element_traits<T>::type, .operation = operation,
            .count = count, .site = who.where(),
            .result_count = count / (what == collective::reduce_scatter ? ranks : 1)
                * (what == collective::all_gather ? ranks : 1)};
        call.is_observed = true;
        return open_.observe(begin<T>(call, input, {}, stream, who, [] {}, false), call);
    }
    template <element T>
    void end_observed(std::uint64_t number, view<const T> result, stream_ref stream, call_site where)
    {
        const caller who(comm_, "result", where);
        end_observed(number, who, stream, result.data(), result.count(), [&, this](const detail::probed_call& call) {
            const auto ranks = static_cast<std::uint64_t>(size());
            who.require(call.type == element_traits<T>::type, "result has another type than the input");
            who.require_readable(result, "result");
            who.require(result.count() * (call.call == collective::reduce_scatter ? ranks : 1)
                    == call.count * (call.call == collective::all_gather ? ranks : 1),
                "result does not have the count that the collective makes of its input");
        });
    }
    void end_observed(std::uint64_t number, stream_ref stream, call_site where)
    {
        const caller who(comm_, "no_result", where);
        require_ranks_apart(who);
        end_observed(number, who, stream, nullptr, 0, [](const detail::probed_call&) {});
    }
    void end_observed(std::uint64_t number, const caller& who, stream_ref stream, const void* result,
        std::uint64_t count, detail::function_ref<void(const detail::probed_call&)> check)
    {
        require_immediate(who);
        open_.end_observed(number, who, [&, this](auto& of) {
            check(of.call);
            if (of.at.read_result == nullptr) return;
            const auto scope = comm_.device_scope();
            of.at.result = result;
            of.at.result_count = count;
            of.at.stream = stream;
            of.at.lane = enter_lane(stream, who);
            read_late(of.at);
        });
    }

    static bool is_capturing([[maybe_unused]] stream_ref stream, [[maybe_unused]] call_site where)
    {
        if constexpr (detail::can_capture<stream_ref>) return stream.capturing(where);
        else return false;
    }

    /// Runs `make` between the reads of the input and the result; in a group the result is read when the group has
    /// ended. Of a broadcast only the root has an input.
    template <element T>
    void around(const collective_call& made, stream_ref stream, detail::function_ref<void()> make)
    {
        if constexpr (!floating_element<T> && part_list::is_empty) {
            make();
            ++open_.unread_calls;
        } else {
            const call_site where = made.where;
            const view<const T> input = made.sends(rank()) ? made.sent<T>() : view<const T>();
            const view<T> result = made.received<T>();
            detail::probed_call call{.call = made.what, .type = made.type, .operation = made.operation,
                .count = made.what == collective::broadcast ? made.receive_count : made.send_count,
                .has_leaves = made.leaves != 1, .site = where, .result_count = made.receive_count};
            call.has_codes = detail::travels_as_codes(comm_.quantisation_calls(), call);
            const caller who(comm_, call.call, where);
            who.require_readable(input, "send");
            who.require_readable(result, "receive");
            if (!call.has_leaves) who.require_right(made); // before anything counts the call
            const bool in_group = joins_group(who);
            comm_.check_buffer(input, "send", call.call, stream, where);
            comm_.check_buffer(result, "receive", call.call, stream, where);
            const auto scope = comm_.device_scope();
            begin<T>(call, input, result, stream, who, make, in_group);
        }
    }
    /// Adds a call to the open step: reads the input, runs `make`, and reads the result unless it comes later. Nothing
    /// but `make` if nothing looks at the call.
    template <element T>
    begun_call begin(detail::probed_call& call, view<const T> input, view<const T> result, stream_ref stream,
        const caller& who, detail::function_ref<void()> make, bool in_group)
    {
        if (std::uint64_t* const left_out = find_room(call, stream, who)) {
            make();
            ++*left_out; // once it was made
            return {0, 0, stream};
        }
        if (call.is_gradient() && options_.direction == direction_mode::exact && !comm_.enqueues_at_once()) {
            who.fail(status::unsupported,
                "inside a group: exact direction needs messages between the ranks before each call");
        }
        const int lane = enter_lane(stream, who);
        const std::uint64_t index = open_.next(static_cast<std::uint64_t>(options_.largest_step), who.where());
        const bool survives = call.call == collective::all_reduce && call.is_gradient() && !call.is_observed
            && input.data() != result.data();
        const begun_call at{index, lane, stream, survives ? input.data() : nullptr, result.data(), result.count(),
            [](void* self, const begun_call& of, const detail::probed_call& its_call) {
                static_cast<probed*>(self)->template read_result<T>(of, its_call);
            }};
        detail::enqueue_marked(open_.resources().lanes[lane].done, stream, [&, this] {
            read_input<T>(at, call, input);
            make();
            open_->add(call);
            if (in_group) open_.keep_for_group(at);
            else if (!call.is_observed) read_result<T>(at, call);
        });
        return at;
    }

    /// Whether the call is made in a group, whose end this object then waits for.
    bool joins_group(const caller& who)
    {
        memory_->captured.require_no_launch(who);
        if (comm_.enqueues_at_once()) {
            open_.require_no_group(who);
            return false;
        }
        if (!comm_.innermost().follow_group(*this))
            who.require_immediate(": nothing tells when a group of ncclGroupStart itself ends. Use nccl::group");
        return true;
    }
    static void when_group_ended(group_follower& self, bool enqueued) noexcept
    {
        auto& of = static_cast<probed&>(self);
        of.open_.end_group(enqueued, [&of](const begun_call& at) {
            const auto scope = of.comm_.device_scope();
            of.read_late(at);
        });
    }

    /// Null if there is room for the call in the open step; else where it is counted that nothing looks at it.
    std::uint64_t* find_room(detail::probed_call& call, stream_ref stream, const caller& who)
    {
        block& open = open_step(stream, who);
        const bool takes_statistics = is_floating(call.type) && (open.due & 1) != 0;
        if (!takes_statistics && open.due >> 1 == 0) return &open_.unread_calls;
        call.has_input = takes_statistics;
        // Of an observed call it must be known which ranks have a result.
        call.has_result = takes_statistics && options_.results
            && (call.is_observed || !parts_.reads_result(open.due, call.call, options_.mode));
        if (open.call_count < open.room()) return nullptr;
        if (memory_->captured.open() == nullptr) {
            if (open.call_count < static_cast<std::uint64_t>(options_.largest_step)) return nullptr;
            if (!std::exchange(open.is_refused, true)) {
                const char* const since = memory_->ring.ended() == 0 ? "yet" : "since the first of them";
                who.fail(status::invalid_argument, "call " + std::to_string(open.call_count + 1)
                    + " of one step: no step has ended " + since
                    + ". Call end_step, or raise probe_options::largest_step; later calls are made and not looked at");
            }
        }
        return &open.unprobed_calls;
    }
    auto seen(const begun_call& at, const detail::probed_call& call)
    {
        auto& ranks = comm_.innermost();
        return detail::seen_call<std::remove_reference_t<decltype(ranks)>>{ranks, at.stream, at.index, at.lane, call,
            options_.mode, comm_.quantisation_calls(), open_.resources().lanes[at.lane].workspace};
    }
    template <element T>
    void read_input(const begun_call& at, const detail::probed_call& call, view<const T> input)
    {
        open_.await_rewritten(at, true, call.site);
        parts_.template read<false, T>(seen(at, call), *open_, *open_.resources().parts, input);
        if constexpr (floating_element<T> && Comm::has_collective(collective::all_reduce)
            && Comm::has_collective(collective::all_to_all)) {
            if (call.is_gradient() && options_.direction == direction_mode::exact)
                open_.resources().template add_to_gram<T>(comm_.innermost(), input, *open_, at.stream, call.site);
        }
    }
    template <element T>
    void read_result(const begun_call& at, const detail::probed_call& call)
    {
        const view<const T> result(static_cast<const T*>(at.result), at.result_count);
        open_.await_rewritten(at, false, call.site);
        parts_.template read<true, T>(
            seen(at, call), *open_, *open_.resources().parts, result, static_cast<const T*>(at.surviving));
    }
    void read_late(const begun_call& at)
    {
        detail::enqueue_marked(open_.resources().lanes[at.lane].done, at.stream,
            [&, this] { at.read_result(this, at, open_->calls[at.index]); });
    }
    /// Completes the open step's message and lets the ranks exchange their messages. Returns the report.
    view<unsigned char> exchange(const step_observation& seen, const detail::replay_ticket& known,
        detail::replay_tickets* tickets, stream_ref stream, call_site where)
    {
        auto& with = open_.resources();
        auto& ranks = comm_.innermost();
        parts_.end_step(ranks, *open_, *with.parts, stream, where);
        with.exchange.run(ranks, *open_,
            {open_->message(), form_.layout, open_->places.data(), options_.statistics && !options_.results, seen,
                known, tickets},
            [&, this](std::uint64_t* words) { parts_.template pack<device>(*open_, words, stream); }, stream, where);
        if constexpr (!part_list::is_empty) device::zero(stream, open_.written(), where);
        comm_.next_step(stream, where);
        return with.exchange.report(*open_).used(open_->has_gram);
    }

    /// Returns the step being recorded. Its first call decides whether the step is captured.
    block& open_step(stream_ref stream, const caller& who)
    {
        const call_site where = who.where();
        const bool capturing = is_capturing(stream, where);
        unsigned long long number = 0;
        if constexpr (detail::can_capture<stream_ref>) number = capturing ? stream.capture_number(where) : 0;
        const auto* const captured = memory_->captured.open();
        if (open_.is_open()) {
            who.require(capturing || captured == nullptr,
                "the open step is being captured, this stream is not: end it with end_captured_step, or "
                "forget it with abandon_capture");
            who.require(!capturing || captured != nullptr,
                "the open step has calls from outside this capture: end it before the capture");
            // An invalidated capture has number 0, and CUDA refuses every later call in it.
            who.require(number == 0 || number == captured->capture,
                "the open step is of another capture: end it there, or forget it with abandon_capture");
        } else if (capturing) {
            const std::uint64_t due = parts_.due(memory_->ring.ended(), true); // a part may throw
            auto& work = memory_->captured.begin(number, who);
            open_.open(work.block, work.resources, due);
        } else {
            slot& to = next_slot(where);
            to.outgrown.clear();
            open_.open(to.own, memory_->resources, parts_.due(memory_->ring.ended(), false));
        }
        return *open_;
    }

    int enter_lane(stream_ref stream, const caller& who)
    {
        const bool is_captured = memory_->captured.open() != nullptr;
        const int found = open_.resources().lanes.enter(stream, !is_captured, who.where(), [&, this] {
            // The parts' memory is in use until the last step has ended.
            if (!part_list::is_empty && !is_captured && memory_->reported.recorded())
                stream.wait(memory_->reported, who.where());
        });
        who.require(found >= 0,
            "a captured step has calls on more streams than probe_options::streams, and memory cannot be "
            "allocated in a capture");
        return found;
    }

    /// That of the next step; waits for the oldest step if all are taken.
    slot& next_slot(call_site where)
    {
        if (memory_->ring.is_full()) judge_finished();
        while (memory_->ring.is_full()) wait_for_oldest(where);
        return memory_->ring.next();
    }
    void wait_for_oldest(call_site where)
    {
        memory_->ring.throw_failure();
        await(memory_->ring.oldest().done, where);
        judge_finished();
    }
    /// Blocks the caller until the work in front of `done` is over, however long that takes.
    /// \throws error the communicator's failure; then the work may stay on its stream for ever.
    void await(const typename device::event& done, call_site where) const
    {
        while (!detail::finished_by(detail::deadline::in_ms(100), done)) comm_.check(where);
    }
    void judge_finished()
    {
        auto& ring = memory_->ring;
        ring.finish([&, this](const slot& of, std::uint32_t serial) {
            reports_.add(of, serial, ring.calls(), static_cast<detail::part_judges&>(parts_),
                [&, this](const char* call) { return caller(comm_, call, of.where).origin(); });
        });
    }

    probe_options options_;
    part_list parts_;
    detail::step_report::shape form_;
    detail::report_judge reports_;
    bool is_crowded_; ///< `step_header::is_crowded`
    detail::in_flight<detail::step_memory<device>> memory_;
    detail::open_step<device> open_;
};

template <communicator Comm, class... Parts>
probed<Comm, Parts...>::probed(Comm comm, probe_options options, Parts... parts, call_site where)
    : base_type(std::move(comm)), group_follower(&probed::when_group_ended),
      options_(detail::checked(std::move(options), caller(comm_, "probed", where).origin(),
          Comm::has_collective(collective::all_reduce), Comm::has_collective(collective::all_to_all),
          part_list::has_summaries)),
      parts_(options_.statistics ? options_.every : -1, std::move(parts)...),
      form_{options_.mode, static_cast<std::uint64_t>(comm_.size()),
          options_.direction == direction_mode::exact,
          {static_cast<std::uint64_t>(options_.order_sample), part_list::entry_bytes, options_.statistics,
              options_.times && options_.statistics && options_.results},
          part_list::words, static_cast<std::uint64_t>(options_.expectations)},
      reports_(options_, form_),
      is_crowded_(!detail::can_capture<stream_ref> && !(options_.lateness_floor_ns > 0)
          && comm_.size() > sysconf(_SC_NPROCESSORS_ONLN))
{
    const auto scope = comm_.device_scope();
    const auto memory_of_parts = [this] {
        using of_parts = typename part_list::template memory<device>;
        return detail::ref<detail::part_memories>(new of_parts(parts_, comm_.size()));
    };
    memory_ = detail::in_flight<detail::step_memory<device>>(
        this->timeout_ms(), form_, options_, memory_of_parts, where);
    cell_ = &memory_->probe;
    *cell_ = this;
}

template <communicator Comm, class... Parts>
probed(Comm, probe_options, Parts...) -> probed<Comm, Parts...>;

} // namespace collprobe

#if defined(COLLPROBE_COMPILED) && !COLLPROBE_STREAM_ORDER
#define COLLPROBE_INSTANCE extern template
#include <collprobe/compiled/host_instances.hpp>
#endif
