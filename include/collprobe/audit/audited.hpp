// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/audit/detail/conservation_check.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/audit/detail/message.hpp>
#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/intercepting_adaptor.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/fixed_array.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/record_queue.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/scan/digest_reducer.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// What `audited` checks, and how many steps it holds. Equal on all ranks.
struct audit_options {
    report_mode mode = report_mode::gather; ///< `summary`: O(1) bytes a call for any n, but no rank is named
    bool sums = true; ///< check sums and averages, at the cost of one more read of the input and of the result
    conservation_options conservation = {};
    int max_calls = 64; ///< audited calls a step, at most 2^20; further ones are forwarded and counted
    int steps_in_flight = 4; ///< steps whose reports may be under way
    int unread_steps = 64; ///< finished steps kept for `poll`; then the oldest is dropped
};

/// A communicator that checks its results: whether all ranks hold the same bits, and whether a sum is the sum of the
/// inputs. Once a step the ranks exchange their findings and reach the same verdict: which call was damaged, where, and
/// which ranks hold the damage. Use: `end_step` and `poll` as of `probed`; README.md shows how the two stack.
/// Checked: all-reduce (agreement; sums and averages by a checksum), reduce-scatter (the sum, over all parts),
/// all-gather (digests of the shards; agreement in a `summary`), broadcast (agreement). Other calls are forwarded.
/// Preconditions: all ranks make the same calls in the same order, with the same options; one thread at a time.
/// Stream behaviour: everything is enqueued on the call's stream, behind the previous audited call on any stream. Its
/// messages go through the innermost communicator. The host neither waits nor allocates once a step has reached its
/// full size, unless it runs more than `steps_in_flight - 1` steps ahead: then the next call waits for the oldest step.
/// Errors: those of the wrapped communicator; `invalid_argument` for an option out of range or a buffer that is not
/// aligned, or null with a count above 0; `unsupported` on a capturing stream and in an NCCL group.
/// Cost of a call: one read of the result; for a sum one more read of the input and of the result, and an all-reduce
/// of `16 * bins` bytes; for an all-gather one read of the shard and two small messages. Cost of a step: `gather` sends
/// `16 + 40 * calls` bytes to every rank, `summary` reduces `32 + 32 * calls`; and one or two copies to the host.
template <communicator Comm>
class audited : public detail::intercepting_adaptor<audited<Comm>, Comm> {
    using base_type = detail::intercepting_adaptor<audited, Comm>;
    friend base_type;
    using base_type::comm_;

public:
    using typename base_type::device;
    using typename base_type::stream_ref;
    using base_type::rank;
    using base_type::size;
    using base_type::timeout_ms;

    /// Takes ownership of the communicator and allocates all buffers on its device.
    /// \throws error `invalid_argument` for an option out of range.
    explicit audited(Comm comm, audit_options options = {}, call_site where = call_site::current())
        : base_type(std::move(comm)),
          options_(checked(options, where)),
          sums_(comm_, options.conservation, where),
          shards_(comm_),
          judge_(comm_.size()),
          words_(static_cast<std::size_t>(comm_.size())),
          unread_(static_cast<std::size_t>(options.unread_steps))
    {
        const auto scope = detail::enter_device(comm_);
        memory_ = detail::in_flight<detail::audit_memory<device>>(timeout_ms(), options.steps_in_flight,
            static_cast<std::uint64_t>(options.max_calls), static_cast<std::uint64_t>(comm_.size()), options.mode);
    }
    /// Legal while steps are under way. A moved-from object can only be destroyed or assigned to.
    audited(audited&&) = default;
    audited& operator=(audited&& other) noexcept { return detail::replace(*this, std::move(other)); }
    /// Waits until no stream uses this object's buffers, at most the communicator's time-out; after that the buffers
    /// are leaked. Drops unread steps.
    ~audited() = default;

    /// Ends a step, which consists of the calls audited since the previous step ended. Collective.
    /// `step` is a number that the caller chooses, equal on all ranks.
    /// Stream behaviour: enqueued on `stream`, behind the audited work of every stream.
    /// \throws error `unsupported` on a capturing stream.
    void end_step(std::uint64_t step, stream_ref stream, call_site where = call_site::current())
    {
        require_immediate(caller(comm_, "end_step", where), stream);
        const auto scope = detail::enter_device(comm_);
        in_flight_step& open = open_step(stream, where);
        auto& ranks = detail::innermost(comm_);
        detail::enqueue_marked(memory_->last, stream, [&] {
            follow(stream, where);
            const std::uint64_t bytes = detail::audit_bytes(open.call_count);
            device::for_each(stream, 1, detail::write_audit_header{open.message.data(), header_of(open, step, ended_)});
            if (options_.mode == report_mode::gather) {
                const view<unsigned char> all(open.report.data(), bytes * static_cast<std::uint64_t>(size()));
                ranks.all_gather(view<const unsigned char>(open.message.data(), bytes), all, stream, where);
                if (open.gathered != 0) {
                    device::copy(stream, view<const detail::gather_verdict>(open.gathers.data(), open.call_count),
                        view(open.host_gathers.data(), open.call_count), where);
                }
                device::copy(stream, view<const unsigned char>(all), view(open.host.data(), all.count()), where);
            } else {
                const view<std::uint64_t> keys(
                    reinterpret_cast<std::uint64_t*>(open.report.data()), detail::audit_key_count(open.call_count));
                device::for_each(stream, open.call_count + 1,
                    detail::pack_audit{open.message.data(), rank(), size(), keys.data()});
                ranks.all_reduce(view<const std::uint64_t>(keys), keys, reduction::max, stream, where);
                device::copy(stream, view<const std::uint64_t>(keys),
                    view(reinterpret_cast<std::uint64_t*>(open.host.data()), keys.count()), where);
            }
        });
        open.done = memory_->last;
        open.step = step;
        open.where = where;
        open_ = nullptr;
        ++ended_;
    }

    /// Fills `out` with the next finished step and returns true; returns false if no step has finished. Never blocks.
    /// Steps come in the order in which they were ended. `out` may be the same object each time.
    /// \throws error of the stream or communicator if the step's work failed, `mismatch` if the ranks ended
    ///   different steps, when it is that step's turn; the step is lost.
    bool poll(step_audit& out)
    {
        judge_finished();
        if (unread_.pop(out)) return true;
        throw_failure();
        return false;
    }

    /// As `poll`, but waits for the step; returns false if no step is pending. Every rank gets the same audit from the
    /// same call, so a collective (such as a repair) can depend on it. `poll` may answer earlier on one rank.
    bool wait(step_audit& out, call_site where = call_site::current())
    {
        while (!poll(out)) {
            if (pending_steps() == 0) return false;
            wait_for_oldest(where);
        }
        return true;
    }

    /// Steps that were ended but neither returned by `poll` nor dropped.
    std::uint64_t pending_steps() const noexcept { return ended_ - judged_ + unread_.size(); }
    /// Finished steps that were dropped because `poll` was not called for `unread_steps` steps.
    std::uint64_t dropped_steps() const noexcept { return unread_.dropped(); }

private:
    using caller = detail::caller<Comm>;
    using in_flight_step = detail::audit_in_flight<device>;

    const audit_options& checked(const audit_options& options, call_site where) const
    {
        const caller who(comm_, "audited", where);
        who.require_range("max_calls", options.max_calls, 1, 1 << 20);
        who.require_range("steps_in_flight", options.steps_in_flight, 2);
        who.require_range("unread_steps", options.unread_steps, 1);
        return options;
    }

    /// Refuses captures and NCCL groups: the checks must run behind the call, and once.
    static void require_immediate(const caller& who, [[maybe_unused]] stream_ref stream)
    {
        if constexpr (detail::can_capture<stream_ref>) {
            if (stream.capturing(who.where())) who.fail(status::unsupported, "audited calls cannot be captured");
        }
        who.require_immediate(", or make the calls on base()");
    }

    /// Reads the input, makes the call, reads the result.
    template <element T>
    void around(const detail::collective_arguments& with, view<const T> send, view<T> result, stream_ref stream,
        call_site where, detail::forward_call<T> forward)
    {
        if (with.call == collective::all_to_all) return forward(send);
        const bool is_broadcast = with.call == collective::broadcast;
        const bool is_gather = with.call == collective::all_gather;
        const view<const T> input = is_broadcast ? view<const T>() : send;
        const detail::audited_call call{.call = with.call,
            .type = with.type,
            .count = is_broadcast ? with.receive_count : with.send_count,
            .by_shards = is_gather && options_.mode == report_mode::gather};
        const caller who(comm_, call.call, where);
        if (!input.readable() || !result.readable()) {
            // The wrapped communicator should refuse, because it can notify the peers. If it accepts, this object
            // refuses.
            forward(send);
            who.require_readable(input, "send");
            who.require_readable(result, "receive");
        }
        require_immediate(who, stream);
        detail::check_buffer(comm_, input, "send", call.call, stream, where);
        detail::check_buffer(comm_, result, "receive", call.call, stream, where);
        const auto scope = detail::enter_device(comm_);
        in_flight_step& open = open_step(stream, where);
        if (open.call_count == open.calls.size()) {
            ++open.unaudited;
            forward(send);
            return;
        }
        const reduction operation = with.operation;
        const bool sum = options_.sums && !is_broadcast && !is_gather
            && (operation == reduction::sum || operation == reduction::average);
        detail::audit_entry& entry = open.entry(open.call_count);
        detail::gather_verdict* const gathered = open.gathers.data() + open.call_count;
        detail::enqueue_marked(memory_->last, stream, [&] {
            follow(stream, where);
            if (sum) sums().template before<T>(input, stream, where);
            if (call.by_shards) shards().template before<T>(input, stream, where);
            forward(send);
            open.calls[open.call_count] = call;
            ++open.call_count;
            if (call.by_shards) {
                ++open.gathered;
                shards().template after<T>(view<const T>(result), gathered, stream, where);
                return;
            }
            if (!call.is_replicated()) {
                if (sum) sums().template after_reduce_scatter<T>(result, operation, &entry.sum, stream, where);
                return;
            }
            device::reduce(stream, detail::digest_reducer<T>{view<const T>(result)}, result.count(), &entry.digest,
                memory_->workspace);
            if (sum) sums().template after<T>(result, operation, &entry.sum, stream, where);
        });
    }

    /// Both checks refer to the communicator, which moves with this object: each access rebinds them.
    detail::conservation_check<Comm>& sums() noexcept
    {
        sums_.rebind(comm_);
        return sums_;
    }
    detail::gather_check<Comm>& shards() noexcept
    {
        shards_.rebind(comm_);
        return shards_;
    }

    /// Lets `stream` wait for the audited work so far, which uses the same memory.
    void follow(stream_ref stream, call_site where) const
    {
        if (memory_->last.recorded()) stream.wait(memory_->last, where);
    }

    in_flight_step& open_step(stream_ref stream, call_site where)
    {
        if (open_ != nullptr) return *open_;
        if (ended_ - judged_ == memory_->ring.size()) judge_finished();
        while (ended_ - judged_ == memory_->ring.size()) wait_for_oldest(where);
        in_flight_step& next = memory_->ring[static_cast<std::size_t>(ended_ % memory_->ring.size())];
        next.call_count = 0;
        next.gathered = 0;
        next.unaudited = 0;
        follow(stream, where);
        device::zero(stream, view<unsigned char>(next.message), where); // an entry without a sum is not checked
        open_ = &next;
        return next;
    }

    void wait_for_oldest(call_site where)
    {
        throw_failure();
        detail::await(comm_, oldest().done, where);
        judge_finished();
    }

    in_flight_step& oldest()
    {
        return memory_->ring[static_cast<std::size_t>(judged_ % memory_->ring.size())];
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
                failure_ = std::current_exception(); // this step will never have an audit
            }
            ++judged_;
        }
    }

    /// Throws the failure of the oldest failed step, once.
    void throw_failure()
    {
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }

    void judge(const in_flight_step& finished)
    {
        step_audit& out = unread_.next();
        out.step = finished.step;
        out.ranks = size();
        out.suspects.clear();
        out.unaudited_calls = finished.unaudited;
        out.calls.resize(static_cast<std::size_t>(finished.call_count));
        if (options_.mode == report_mode::gather) judge_all_ranks(finished, out);
        else judge_summary(finished, out);
        state_certainty(out);
        unread_.push();
    }

    /// Sets how certain the suspects of sums are. A residual above the limit is not chance, but unfavourable data can
    /// cause it by rounding alone. A residual above 4 n times the limit cannot be rounding:
    /// u sqrt((n - 1) sum of m E) bounds rounding without any model of the data.
    void state_certainty(step_audit& out) const
    {
        double sums = 0;
        for (const call_audit& judged : out.calls) sums += judged.sum_checked && is_floating(judged.type) ? 1 : 0;
        const conservation_options& check_of_sums = options_.conservation;
        const double of_a_bin = detail::error_function_complement(check_of_sums.sigmas * 0.70710678118654752440);
        for (suspect& found : out.suspects) {
            if (found.what != finding::sum_differs) continue;
            if (!is_floating(out.calls[static_cast<std::size_t>(found.call)].type)) continue;
            found.exact = found.statistic > 4.0 * size() * found.threshold;
            found.false_alarms_per_step = sums * check_of_sums.sketch.bins * of_a_bin;
        }
    }
    static bool is_floating(element_type type) noexcept
    {
        bool floating = false;
        with_floating_type(type, [&](auto) { floating = true; });
        return floating;
    }

    /// `before`: number of steps that were ended before this one.
    static detail::audit_header header_of(const in_flight_step& of, std::uint64_t step, std::uint64_t before) noexcept
    {
        return {step, static_cast<std::uint32_t>(of.call_count), static_cast<std::uint32_t>(before + 1)};
    }

    [[noreturn]] void fail_never_arrived(const in_flight_step& finished) const
    {
        caller(comm_, "poll", finished.where)
            .fail(status::device_failure,
                "the audit of step " + std::to_string(finished.step) + " never arrived: work on its stream failed");
    }

    /// Throws unless all ranks ended the same step with the same number of calls.
    void require_same_step(const in_flight_step& finished) const
    {
        const auto of = [&](int r) -> const detail::audit_header& {
            return finished.header(static_cast<std::size_t>(r));
        };
        const detail::audit_header own = header_of(finished, finished.step, judged_);
        if (of(rank()) != own) fail_never_arrived(finished);
        bool all_alike = true;
        for (int r = 0; r < size(); ++r) {
            if (of(r).serial != own.serial) fail_never_arrived(finished);
            all_alike = all_alike && of(r) == own;
        }
        if (all_alike) return;
        const auto key = [&](int r) { return of(r).step ^ detail::mix64(of(r).calls); };
        detail::digest_index alike(size());
        for (int r = 0; r < size(); ++r) alike.add(key(r), r);
        const auto* const most = alike.majority();
        std::vector<int> culprits;
        std::string message = "the ranks ended different steps:";
        for (int r = 0; r < size(); ++r) {
            if (most != nullptr && key(r) == most->digest) continue;
            culprits.push_back(r);
            message += " rank " + std::to_string(r) + " step " + std::to_string(of(r).step) + " of "
                + std::to_string(of(r).calls) + " audited calls,";
        }
        message += most == nullptr ? " with no majority" : " unlike the others";
        caller(comm_, "end_step", finished.where).fail(status::mismatch, message, std::move(culprits));
    }

    call_audit& describe(const in_flight_step& finished, std::uint64_t b, step_audit& out) const
    {
        call_audit& judged = out.calls[static_cast<std::size_t>(b)];
        const detail::audited_call& call = finished.calls[static_cast<std::size_t>(b)];
        judged.call = call.call;
        judged.type = call.type;
        judged.count = call.count;
        return judged;
    }

    /// Each rank has its own part of the result, so a wrong sum cannot be distinguished from damage behind the
    /// reduction.
    static void leave_open(call_audit& judged) noexcept
    {
        if (judged.call == collective::reduce_scatter && judged.where == damage::reduce) judged.where = damage::unknown;
    }

    void judge_all_ranks(const in_flight_step& finished, step_audit& out)
    {
        require_same_step(finished);
        for (std::uint64_t b = 0; b < finished.call_count; ++b) {
            if (finished.calls[static_cast<std::size_t>(b)].by_shards) {
                detail::judge_gather_audit(
                    finished.host_gathers[b], static_cast<int>(b), describe(finished, b, out), out);
                continue;
            }
            for (std::size_t r = 0; r < words_.size(); ++r) words_[r] = finished.reported(r, b);
            call_audit& judged = describe(finished, b, out);
            judge_.judge(view<const detail::audit_entry>(words_), static_cast<int>(b), judged, out);
            leave_open(judged);
        }
    }

    void judge_summary(const in_flight_step& finished, step_audit& out)
    {
        const std::uint64_t* const keys = finished.keys();
        const auto& step = *reinterpret_cast<const detail::audit_step_keys*>(keys);
        if (!step.arrival.complete(header_of(finished, finished.step, judged_).serial, size())) {
            fail_never_arrived(finished);
        }
        if (step.step != finished.step || step.step_complement != ~finished.step) {
            caller(comm_, "end_step", finished.where)
                .fail(status::mismatch, "the ranks ended different steps, this rank " + std::to_string(finished.step));
        }
        for (std::uint64_t b = 0; b < finished.call_count; ++b) {
            const auto& of = *reinterpret_cast<const detail::audit_keys*>(keys + detail::audit_key_count(b));
            call_audit& judged = describe(finished, b, out);
            detail::judge_audit_keys(of, static_cast<int>(b), judged, out);
            leave_open(judged);
        }
    }

    audit_options options_;
    detail::conservation_check<Comm> sums_;
    detail::gather_check<Comm> shards_;
    detail::audit_judge judge_;
    detail::fixed_array<detail::audit_entry> words_; ///< the entries of all ranks for one call
    detail::record_queue<step_audit> unread_;
    std::exception_ptr failure_; ///< of the step after the last unread one; no later step is judged before it is thrown
    detail::in_flight<detail::audit_memory<device>> memory_;
    in_flight_step* open_ = nullptr; ///< the slot that the current step's calls write; null before the first call
    std::uint64_t ended_ = 0;
    std::uint64_t judged_ = 0;
};

template <class Comm>
audited(Comm, audit_options = {}, call_site = {}) -> audited<Comm>;

} // namespace collprobe
