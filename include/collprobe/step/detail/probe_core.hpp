// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <unistd.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/step/detail/judged_steps.hpp>
#include <collprobe/step/detail/open_step.hpp>
#include <collprobe/step/detail/step_memory.hpp>
#include <collprobe/step/detail/step_parts.hpp>
#include <collprobe/step/observation.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/probe_options.hpp>

namespace collprobe::inline COLLPROBE_ABI::c {
template <class Comm, class Streams>
class probe_of; ///< knows observed calls by their numbers
} // namespace collprobe::c

namespace collprobe::inline COLLPROBE_ABI::detail {

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

/// How a probe adds calls and values to its open step, and what ends it. `probed` has what users call.
template <communicator Comm, class... Parts>
class probe_core : public adaptor<probed<Comm, Parts...>, Comm>, private group_follower,
                   protected located<probed<Comm, Parts...>> {
    friend located<probed<Comm, Parts...>>;
    using base_type = adaptor<probed<Comm, Parts...>, Comm>;

public:
    using typename base_type::device, typename base_type::stream_ref;
    using base_type::rank, base_type::size;

protected:
    using base_type::comm_;
    using caller = detail::caller<Comm>;
    using part_list = detail::step_parts<Parts...>;
    using step_memory = detail::step_memory<device, typename part_list::template memory<device>>;
    using tools = typename step_memory::tools_type;
    using block = detail::step_block<device>;
    using slot = detail::step_in_flight<device>;
    using captured_work = detail::captured_work<tools>;
    using begun_call = detail::begun_call<device>;
    static constexpr bool can_exchange
        = Comm::has_collective(collective::all_reduce) && Comm::has_collective(collective::all_to_all);

    probe_core(Comm comm, probe_options options, call_site where, Parts... parts)
        : base_type(std::move(comm)), group_follower(&probe_core::when_group_ended),
          options_(checked(options, comm_, part_list::has_summaries, where)),
          parts_(options.statistics ? options.every : -1, std::move(parts)...),
          form_{options_.mode, static_cast<std::uint64_t>(comm_.size()), options.direction == direction_mode::exact,
              {static_cast<std::uint64_t>(options.order_sample), part_list::entry_bytes,
                  options.statistics, options.times && options.statistics && options.results},
              part_list::words, static_cast<std::uint64_t>(options.expectations)},
          judged_(options, form_),
          is_crowded_(!detail::can_capture<stream_ref> && !(options.lateness_floor_ns > 0)
              && comm_.size() > sysconf(_SC_NPROCESSORS_ONLN))
    {
        const auto scope = comm_.device_scope();
        memory_ = in_flight<step_memory>(this->timeout_ms(), form_, options, parts_, where);
        this->cell_ = &memory_->probe;
        *this->cell_ = static_cast<probed<Comm, Parts...>*>(this);
    }

    detail::replay_ticket ticket_of(std::uint64_t step, const auto& ring, unsigned char* host_block) const noexcept
    {
        return {step, ring.next_serial(), ring.lost_ago(), is_crowded_, host_block};
    }

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
    void tell_number(const char* what, Number value, expectation of, const caller& who)
    {
        require_expectation(of, who);
        // Integers of any size keep their bits, and all types of a number of that value tell the same.
        const auto number = static_cast<double>(value);
        std::uint64_t bits = to_bits(number);
        if constexpr (!std::is_floating_point_v<Number>) bits = detail::mix64(static_cast<std::uint64_t>(value));
        open_.numbers.push_back({{named(what, who), of}, {0, detail::mix64(bits), number}});
    }
    template <element T>
    void tell_buffer(const char* what, view<const T> value, stream_ref stream, expectation of, const caller& who)
    {
        require_expectation(of, who);
        who.require_readable(value, what);
        comm_.check_buffer(value, what, collective::all_gather, stream, who.where());
        const auto scope = comm_.device_scope();
        block& open = open_step(stream, who);
        auto& on = open_.tools().lanes[enter_lane(stream, who)];
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
        if (of != expectation::equal && options_.mode == report_mode::summary)
            who.fail(status::unsupported, "the mode summary compares values for equality alone");
        who.require(open_.told() < form_.room_for_values,
            "the step has no room for more values: raise probe_options::expectations");
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
        begun_call at{0, 0, stream};
        begin<T>(call, input, nullptr, view<const T>(), stream, who, [] {}, [&](const begun_call& now) { at = now; });
        return open_.observe(at, call);
    }
    template <element T>
    void end_observed(std::uint64_t number, view<const T> result, stream_ref stream, call_site where)
    {
        const caller who(comm_, "result", where);
        require_immediate(who);
        open_.end_observed(number, who, [&, this](const auto& of) {
            const auto ranks = static_cast<std::uint64_t>(size());
            who.require(of.call.type == element_traits<T>::type, "result has another type than the input");
            who.require_readable(result, "result");
            who.require(result.count() * (of.call.call == collective::reduce_scatter ? ranks : 1)
                    == of.call.count * (of.call.call == collective::all_gather ? ranks : 1),
                "result does not have the count that the collective makes of its input");
            read_observed(of.at, result.data(), result.count(), stream, who);
        });
    }
    void end_observed(std::uint64_t number, stream_ref stream, call_site where)
    {
        const caller who(comm_, "no_result", where);
        require_ranks_apart(who);
        require_immediate(who);
        open_.end_observed(
            number, who, [&, this](const auto& of) { read_observed(of.at, nullptr, 0, stream, who); });
    }
    void read_observed(
        begun_call at, const void* result, std::uint64_t count, stream_ref stream, const caller& who)
    {
        if (at.read_result == nullptr) return;
        const auto scope = comm_.device_scope();
        at.result = result;
        at.result_count = count;
        at.stream = stream;
        at.lane = enter_lane(stream, who);
        read_late(at);
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
            const bool survives = made.what == collective::all_reduce && made.send != made.receive;
            begin<T>(call, input, survives ? input.data() : nullptr, view<const T>(result), stream, who, make,
                [&, this](const begun_call& at) {
                    if (in_group) open_.keep_for_group(at);
                    else read_result<T>(at, call);
                });
        }
    }
    /// Adds a call to the open step: reads the input, runs `make`, and then `made(call)`, unless nothing looks at it.
    template <element T, class Make, class Made>
    void begin(detail::probed_call& call, view<const T> input, const T* surviving, view<const T> result,
        stream_ref stream, const caller& who, const Make& make, const Made& made)
    {
        if (std::uint64_t* const left_out = find_room<T>(call, stream, who)) {
            make();
            ++*left_out; // once it was made
            return;
        }
        if (call.is_gradient() && options_.direction == direction_mode::exact && !comm_.enqueues_at_once()) {
            who.fail(status::unsupported,
                "inside a group: exact direction needs messages between the ranks before each call");
        }
        const int lane = enter_lane(stream, who);
        const std::uint64_t index = open_.next(static_cast<std::uint64_t>(options_.largest_step), who.where());
        const begun_call at{index, lane, stream, call.is_gradient() ? surviving : nullptr, result.data(),
            result.count(), [](void* self, const begun_call& of, const detail::probed_call& its_call) {
                static_cast<probe_core*>(self)->template read_result<T>(of, its_call);
            }};
        detail::enqueue_marked(open_.tools().lanes[lane].done, stream, [&, this] {
            read_input<T>(at, call, input);
            make();
            open_->add(call);
            made(at);
        });
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
        auto& of = static_cast<probe_core&>(self);
        of.open_.end_group(enqueued, [&of](const begun_call& at) {
            const auto scope = of.comm_.device_scope();
            of.read_late(at);
        });
    }

    /// Null if there is room for the call in the open step; else where it is counted that nothing looks at it.
    template <element T>
    std::uint64_t* find_room(detail::probed_call& call, stream_ref stream, const caller& who)
    {
        block& open = open_step(stream, who);
        const bool takes_statistics = floating_element<T> && (open.due & 1) != 0;
        if (!takes_statistics && open.due >> 1 == 0) return &open_.unread_calls;
        call.has_input = takes_statistics;
        // Of an observed call it must be known which ranks have a result.
        call.has_result = takes_statistics && options_.results
            && (call.is_observed || !parts_.reads_result(open.due, call.call, options_.mode));
        if (open.call_count < open.room()) return nullptr;
        if (memory_->captured.open() == nullptr) {
            if (open.call_count < static_cast<std::uint64_t>(options_.largest_step)) return nullptr;
            if (!std::exchange(open.is_refused, true)) refuse_endless_step(open, who);
        }
        return &open.unprobed_calls;
    }
    [[noreturn]] void refuse_endless_step(const block& open, const caller& who) const
    {
        who.fail(status::invalid_argument,
            std::string("call ") + std::to_string(open.call_count + 1) + " of one step: "
                + (memory_->ring.ended() == 0 ? "no step has ended yet" : "no step has ended since the first of them")
                + ". Call end_step, or raise probe_options::largest_step; later calls are made and not looked at");
    }
    auto seen(const begun_call& at, const detail::probed_call& call)
    {
        auto& ranks = comm_.innermost();
        return detail::seen_call<std::remove_reference_t<decltype(ranks)>>{ranks, at.stream, at.index, at.lane, call,
            options_.mode, comm_.quantisation_calls(), open_.tools().lanes[at.lane].workspace};
    }
    template <element T>
    void read_input(const begun_call& at, const detail::probed_call& call, view<const T> input)
    {
        open_.await_rewritten(at, true, call.site);
        parts_.template read_input<T>(seen(at, call), *open_, open_.tools().part_memory, input);
        if constexpr (floating_element<T> && can_exchange) {
            if (call.is_gradient() && is_exact())
                open_.tools().template add_to_gram<T>(comm_.innermost(), input, *open_, at.stream, call.site);
        }
    }
    template <element T>
    void read_result(const begun_call& at, const detail::probed_call& call)
    {
        const view<const T> result(static_cast<const T*>(at.result), at.result_count);
        open_.await_rewritten(at, false, call.site);
        parts_.template read_result<T>(seen(at, call), *open_, open_.tools().part_memory, result,
            static_cast<const T*>(at.surviving));
    }
    bool is_exact() const
    {
        if (options_.direction != direction_mode::exact) return false;
        const auto every = static_cast<std::uint64_t>(options_.exact_every);
        return memory_->captured.open() != nullptr ? every == 1 : memory_->ring.ended() % every == 0;
    }
    void read_late(const begun_call& at)
    {
        detail::enqueue_marked(open_.tools().lanes[at.lane].done, at.stream,
            [&, this] { at.read_result(this, at, open_->calls[at.index]); });
    }
    /// Completes the open step's message and lets the ranks exchange their messages. Returns the report.
    view<unsigned char> exchange(const step_observation& seen, const detail::replay_ticket& known,
        detail::replay_tickets* tickets, stream_ref stream, call_site where)
    {
        tools& with = open_.tools();
        auto& ranks = comm_.innermost();
        parts_.end_step(ranks, *open_, with.part_memory, stream, where);
        with.exchange.run(ranks, parts_, *open_,
            {open_->message(), form_.layout, open_->places.data(), options_.statistics && !options_.results, seen,
                known, tickets}, stream, where);
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
        const captured_work* const captured = memory_->captured.open();
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
            captured_work& work = memory_->captured.begin(number, who);
            open_.open(work.block, work.tools, due);
        } else {
            slot& to = next_slot(where);
            to.outgrown.clear();
            open_.open(to.own, memory_->tools, parts_.due(memory_->ring.ended(), false));
        }
        return *open_;
    }

    int enter_lane(stream_ref stream, const caller& who)
    {
        const bool is_captured = memory_->captured.open() != nullptr;
        const int found = open_.tools().lanes.enter(stream, !is_captured, who.where(), [&, this] {
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
            judged_.add(of, serial, ring.calls(), parts_,
                [&, this](const char* call) { return caller(comm_, call, of.where).origin(); });
        });
    }

    probe_options options_;
    part_list parts_;
    detail::step_report::shape form_;
    detail::judged_steps judged_;
    bool is_crowded_; ///< `step_header::is_crowded`
    detail::in_flight<step_memory> memory_;
    detail::open_step<tools> open_;
};

} // namespace collprobe::detail
