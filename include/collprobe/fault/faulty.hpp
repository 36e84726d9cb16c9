// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/fault/detail/body.hpp>
#include <collprobe/fault/detail/memory.hpp>
#include <collprobe/fault/detail/plan_fault.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The memory that a `faulty` communicator may use, and the calls that its faults may hit.
struct faulty_options {
    /// The largest buffer that a fault may have to copy (`during`, `stale`, `duplicate_shard`). Only lists with such
    /// faults allocate: this many bytes for copies, for another rank's data, and for each call that is kept.
    std::uint64_t max_bytes = 16 << 20;
    std::uint64_t max_injections = 4096; ///< entries of the log, at most 2^24; later injections are only counted
    /// The collectives that count as calls and may be hit; empty: all that carry data. Others are forwarded.
    std::vector<collective> calls = {};
};

/// A communicator that applies a list of faults to the buffers of its collectives. It satisfies the communicator
/// concept: `faulty comm{world, {{.kind = fault_kind::bit_flips, .rank = 2, .call = 7}}};`. README.md says where to
/// stack it.
/// Calls are counted from 0, equally on all ranks. Within a call the order is: faults `before`, `during`, the
/// collective, faults `after`; within a phase, the order of the list. A call that the wrapped communicator will refuse
/// is forwarded unchanged, with its errors.
/// Preconditions: all ranks give the same list. For faults `before` the send buffer must be writable memory. With
/// `during`, a rank's own part of an in-place result is damaged too, because it is sent.
/// Stream behaviour: everything is enqueued on the call's stream; the host neither waits nor allocates. Captured calls
/// have the faults planned at capture, in every run of the graph.
/// Errors: those of the wrapped communicator; `invalid_argument` if a fault must copy a buffer above `max_bytes`;
/// `unsupported` for `duplicate_shard` without a broadcast, and for a fault inside an NCCL group.
/// Cost: none in a call without a fault, except a copy for a later `stale`. Otherwise one pass over the damaged
/// elements, a copy for `during`, and a broadcast for `duplicate_shard`.
template <communicator Comm>
class faulty : public adaptor<faulty<Comm>, Comm> {
    using base_type = adaptor<faulty, Comm>;
    using base_type::comm_;

public:
    using typename base_type::device;
    using typename base_type::stream_ref;
    using base_type::rank;
    using base_type::size;

    /// Takes ownership of the communicator and allocates the memory that the faults need.
    /// \throws error `invalid_argument` for an impossible fault, with its index in the list, and for options that need
    ///   more memory than any machine has.
    faulty(Comm comm, std::vector<fault> faults, const faulty_options& options = {},
        call_site where = call_site::current())
        : base_type(std::move(comm)),
          faults_(std::move(faults)),
          max_bytes_(options.max_bytes / 64 * 64),
          max_injections_(options.max_injections)
    {
        const detail::caller<Comm> who(comm_, "faulty", where);
        for (std::size_t i = 0; i < faults_.size(); ++i) {
            const std::string wrong = detail::what_is_wrong(faults_[i], size());
            if (!wrong.empty()) who.fail(status::invalid_argument, "fault " + std::to_string(i) + ": " + wrong);
        }
        for (const collective each : options.calls) counted_ |= bit(each);
        if (options.calls.empty()) counted_ = ~0u;
        const detail::fault_needs needs(faults_);
        constexpr std::uint64_t address_space = std::uint64_t{1} << 47;
        if (needs.copies() != 0 && max_bytes_ > address_space / needs.copies()) {
            who.fail(status::invalid_argument, "max_bytes is " + std::to_string(max_bytes_)
                + ", of which these faults need " + std::to_string(needs.copies()) + " times: more than any memory");
        }
        if (max_injections_ > detail::most_injections) {
            who.fail(status::invalid_argument, "max_injections is above " + std::to_string(detail::most_injections)
                + ": the log is allocated at once");
        }
        log_.reserve(static_cast<std::size_t>(max_injections_));
        const auto scope = comm_.device_scope();
        if (needs.any()) {
            memory_ = detail::in_flight<detail::fault_memory<device>>(base_type::timeout_ms(), needs, max_bytes_);
        } else {
            device::load_kernels();
        }
    }
    /// Legal while calls are under way. A moved-from object can only be destroyed or assigned to.
    faulty(faulty&&) = default;
    faulty& operator=(faulty&& other) noexcept { return detail::replace(*this, std::move(other)); }
    /// Waits until no work uses the object's memory, at most the communicator's time-out; after that it is leaked.
    ~faulty() = default;

    template <element T>
    outcome_of<Comm, T> make(const collective_call& call, stream_ref stream)
    {
        running<T> now{calls_, {}, call, false, stream};
        const auto forward = [&, this] { return comm_.template make<T>(now.made, stream); };
        if (call.what == collective::barrier || (counted_ & bit(call.what)) == 0) return forward();
        ++calls_;
        // The wrapped communicator reports wrong arguments.
        if (!concerns(now.call) || !detail::flaw_of_arguments(call, rank(), size()).empty()) return forward();
        const bool sends = call.sends(rank());
        if (!comm_.enqueues_at_once()) {
            detail::caller(comm_, call.what, call.where)
                .fail(status::unsupported, detail::inside_a_group);
        }
        const auto scope = comm_.device_scope();
        now.target = {call.what, call.type, sends ? call.send_count : 0, call.receive_count, size()};
        return detail::made_within(forward, [&, this](const auto& make) {
            const auto all = [&, this] {
                if (sends) keep(fault_phase::before, now, call.template sent<T>());
                damage(fault_phase::before, now);
                damage(fault_phase::during, now);
                save_tails(now);
                make();
                keep(fault_phase::after, now, view<const T>(now.receive()));
                damage(fault_phase::after, now);
            };
            if (memory_) detail::enqueue_marked(memory_->use.wait_for_last(stream, call.where), stream, all);
            else all();
        });
    }

    /// The faults enqueued on this rank, in order: the first `max_injections`. Equal in every run.
    view<const injection> injected() const noexcept { return view<const injection>(log_); }
    std::uint64_t injected_total() const noexcept { return injections_; }
    /// Calls counted so far.
    std::uint64_t calls() const noexcept { return calls_; }

private:
    /// One call and its state in the phases.
    template <element T>
    struct running {
        std::uint64_t call;
        detail::fault_target target;
        collective_call made; ///< with the memory that is sent
        bool is_copy;
        stream_ref stream;

        view<const T> sent() const noexcept { return made.template sent<T>(); }
        view<T> receive() const noexcept { return made.template received<T>(); }
    };

    static unsigned bit(collective of) noexcept { return 1u << static_cast<unsigned>(of); }

    /// Whether this rank has work in a call. All ranks take part in a `duplicate_shard` on any rank.
    bool concerns(std::uint64_t call) const noexcept
    {
        std::uint64_t key = 0;
        for (std::uint32_t which = 0; which < faults_.size(); ++which) {
            const fault& each = faults_[which];
            if (detail::strikes(each, which, call, rank(), size(), key)) return true;
            if (each.kind == fault_kind::stale && detail::strikes(each, which, call + each.lag, rank(), size(), key)) {
                return true;
            }
            if (each.kind != fault_kind::duplicate_shard || each.phase == fault_phase::after) continue;
            for (int other = 0; other < size(); ++other) {
                if (detail::strikes(each, which, call, other, size(), key)) return true;
            }
        }
        return false;
    }

    template <element T>
    void damage(fault_phase phase, running<T>& now)
    {
        std::uint64_t tail = 0;
        for (std::uint32_t which = 0; which < faults_.size(); ++which) {
            const fault& each = faults_[which];
            if (each.phase != phase) continue;
            if (each.kind == fault_kind::duplicate_shard && phase != fault_phase::after) {
                send_anothers(which, now);
                continue;
            }
            injection one;
            if (detail::plan_fault(each, which, now.call, rank(), now.target, one)) {
                hit(one, now, now.receive().data() + one.first, tail);
            }
            if (each.kind == fault_kind::untouched_tail) tail += detail::fault_needs::tail_room(each);
        }
    }

    /// Applies one fault that does not send. `tail`: for an untouched tail, the offset of its saved elements.
    template <element T>
    void hit(injection& one, running<T>& now, T* at, std::uint64_t tail)
    {
        if (one.phase != fault_phase::after) at = writable_send(one.phase, now) + one.first;
        switch (one.kind) {
        case fault_kind::untouched_tail:
            return replace(one, now, at, reinterpret_cast<const T*>(memory_->tails.data() + tail));
        case fault_kind::stale: {
            auto& kept = one.phase == fault_phase::after ? memory_->received : memory_->sent;
            const std::uint64_t from = one.call - faults_[one.fault].lag;
            const auto& entry = kept.of(from);
            const std::uint64_t count = entry.call == from ? entry.bytes / sizeof(T) : 0;
            if (one.first >= count) return; // no data were kept, or too few
            const std::uint64_t room = (count - 1 - one.first) / one.stride + 1;
            if (room < one.elements) one.elements = room;
            return replace(one, now, at, reinterpret_cast<const T*>(kept.data(from)) + one.first);
        }
        case fault_kind::duplicate_shard:
            return replace(one, now, at,
                now.receive().data() + static_cast<std::uint64_t>(one.source) * one.elements);
        default: break;
        }
        const double magnitude = faults_[one.fault].magnitude;
        const detail::damage_elements<T> body{at, one.stride, one.kind, one.mask,
            one.kind == fault_kind::gaussian ? detail::square_root(magnitude) : magnitude, one.key};
        note(one, now, at, static_cast<const T*>(nullptr));
        device::for_each(now.stream, one.kind == fault_kind::swap ? one.elements / 2 : one.elements, body);
    }

    /// The memory on the sending side that a fault of this phase writes to.
    template <element T>
    T* writable_send(fault_phase phase, running<T>& now)
    {
        if (phase == fault_phase::during && !now.is_copy) {
            const view<T> copy(reinterpret_cast<T*>(room(memory_->copy, now)), now.sent().count());
            device::template copy<T>(now.stream, now.sent(), copy, now.made.where);
            now.made.send = copy.data();
            now.is_copy = true;
        }
        return const_cast<T*>(now.sent().data());
    }

    /// For every rank that sends another rank's data, broadcasts those data to it. Collective.
    template <element T>
    void send_anothers(std::uint32_t which, running<T>& now)
    {
        for (int victim = 0; victim < size(); ++victim) {
            injection one;
            if (!detail::plan_fault(faults_[which], which, now.call, victim, now.target, one)) continue;
            if (!Comm::has_collective(collective::broadcast)) {
                detail::caller(comm_, now.target.where, now.made.where)
                    .fail(status::unsupported, "duplicate_shard needs a broadcast");
            }
            const view<T> guest(reinterpret_cast<T*>(room(memory_->guest, now)), now.sent().count());
            comm_.innermost().broadcast(now.sent(), guest, one.source, now.stream, now.made.where);
            if (victim != rank()) continue;
            T* const at = writable_send(one.phase, now) + one.first;
            replace(one, now, at, guest.data() + one.first);
        }
    }

    template <element T>
    void save_tails(running<T>& now)
    {
        std::uint64_t tail = 0;
        for (std::uint32_t which = 0; which < faults_.size(); ++which) {
            const fault& each = faults_[which];
            if (each.kind != fault_kind::untouched_tail) continue;
            injection one;
            if (detail::plan_fault(each, which, now.call, rank(), now.target, one)) {
                const view<T> saved(reinterpret_cast<T*>(memory_->tails.data() + tail), one.elements);
                device::template copy<T>(
                    now.stream, view<const T>(now.receive()).part(one.first, one.elements), saved, now.made.where);
            }
            tail += detail::fault_needs::tail_room(each);
        }
    }

    /// Keeps the data of this call if a `stale` fault of a later call needs them.
    template <element T>
    void keep(fault_phase side, running<T>& now, view<const T> data)
    {
        bool is_needed = false;
        std::uint64_t key = 0;
        for (std::uint32_t which = 0; which < faults_.size() && !is_needed; ++which) {
            const fault& each = faults_[which];
            is_needed = each.kind == fault_kind::stale
                && (each.phase == fault_phase::after) == (side == fault_phase::after)
                && detail::strikes(each, which, now.call + each.lag, rank(), size(), key);
        }
        if (!is_needed || data.empty()) return;
        auto& kept = side == fault_phase::after ? memory_->received : memory_->sent;
        require_room(data.size_bytes(), now);
        device::template copy<T>(
            now.stream, data, view<T>(reinterpret_cast<T*>(kept.data(now.call)), data.count()), now.made.where);
        kept.of(now.call) = {now.call, data.size_bytes()};
    }

    template <element T>
    void replace(const injection& one, running<T>& now, T* at, const T* by)
    {
        note(one, now, at, by);
        device::for_each(now.stream, one.elements, detail::replace_elements<T>{at, by, one.stride});
    }

    template <element T>
    void note(const injection& one, const running<T>& now, T* at, const T* by)
    {
        const view<T> hit(at, (one.elements - 1) * one.stride + 1);
        const view<const T> read(by == nullptr ? at : by, hit.count());
        order_hooks::access(now.stream, "fault", read, hit, now.made.where);
        ++injections_;
        if (log_.size() < max_injections_) log_.push_back(one);
    }

    template <element T, class Buffer>
    unsigned char* room(const Buffer& in, const running<T>& now) const
    {
        require_room(now.sent().size_bytes(), now);
        return in.data();
    }
    template <element T>
    void require_room(std::uint64_t bytes, const running<T>& now) const
    {
        if (bytes <= max_bytes_) return;
        detail::caller(comm_, now.target.where, now.made.where)
            .fail(status::invalid_argument,
                "a fault needs a copy of " + std::to_string(bytes) + " bytes, above max_bytes, "
                    + std::to_string(max_bytes_));
    }

    std::vector<fault> faults_;
    std::uint64_t max_bytes_;
    std::uint64_t max_injections_;
    unsigned counted_ = 0;
    std::uint64_t calls_ = 0;
    std::uint64_t injections_ = 0;
    std::vector<injection> log_;
    detail::in_flight<detail::fault_memory<device>> memory_;
};

} // namespace collprobe
