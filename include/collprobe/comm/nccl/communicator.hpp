// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <nccl.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/comm/nccl/detail/call.hpp>
#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/comm/nccl/group.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/order/hooks.hpp>

/// NCCL's communicators, borrowed from a trainer. NCCL 2.19 or newer; any C++ compiler, no nvcc. comm/README.md has the
/// rules of errors, comm/nccl/README.md the details and the calls that may block for ever.
///
/// An asynchronous error, such as a lost peer or a failed network or kernel, is a `peer_failure` (ncclRemoteError) or a
/// `device_failure`, with NCCL's last error text. Each call looks for one at its start; `check` and `synchronize` do so
/// too. `timeout`: a call on a non-blocking communicator is not enqueued in time, or `synchronize` has work left; the
/// next call waits again.
namespace collprobe::inline COLLPROBE_ABI::nccl {

/// A borrowed `ncclComm_t`. It must outlive this object and its copies; copies are the same rank. Cheap to copy and
/// move.
///
/// Preconditions: one host thread uses it at a time; only `fail` may come from any thread. Buffers are device, pinned
/// or managed memory, aligned to their elements; they need not be registered. Calls on several communicators come in
/// the same order on all ranks. Copy this object instead of making a second one of the same `ncclComm_t`: two do not
/// know each other's groups and failures. Graphs that captured barriers are destroyed before the last copy.
/// Stream behaviour: a collective is on its stream when it returns (in a `group`: at the group's end), also on a
/// non-blocking communicator; an event recorded behind it covers it. It never waits for the work and allocates
/// nothing. It may be captured from the first call on; then all ranks must capture, and launch the graph together
/// (NCCL user guide, CUDA graphs). The collectives of one communicator run one after the other, even on different
/// streams. Do not rely on that order for your own data (NVIDIA/nccl issue 574).
/// A count of 0 calls nothing. Arithmetic and the order of additions are NCCL's.
/// Cost: a call takes about a microsecond of the host beyond NCCL's own, most of it for the check of its buffers. The
/// README has the bytes that each collective sends.
class communicator_ref : public collectives<communicator_ref, cuda::device> {
public:
    /// Waits until the `ncclComm_t` is initialised (if that is under way), reads its rank, size and device, and takes
    /// the memory that barriers need. Make it once, not for each call.
    /// \throws error `invalid_argument` for a null handle or a time-out of 0; NCCL's errors; `timeout`.
    explicit communicator_ref(ncclComm_t borrowed, options settings = {}, call_site where = call_site::current())
        : handle_(collprobe::detail::make_ref<detail::handle>(borrowed, std::move(settings), where))
    {
    }
    communicator_ref(std::nullptr_t, options = {}, call_site = call_site::current()) = delete;
    // A move copies: the object that is moved from is the same rank still.
    communicator_ref(const communicator_ref&) = default;
    communicator_ref& operator=(const communicator_ref&) = default;

    int rank() const noexcept { return handle_->rank(); }
    int size() const noexcept { return handle_->size(); }
    const std::string& name() const noexcept { return handle_->settings().name; }
    /// `options::timeout_ms`.
    std::int64_t timeout_ms() const noexcept { return handle_->settings().timeout_ms; }
    /// The ordinal of the rank's GPU.
    int device_ordinal() const noexcept { return handle_->device(); }
    /// The `ncclComm_t`, for calls that this library does not make.
    ncclComm_t native_handle() const noexcept { return handle_->comm(); }
    /// Makes the rank's GPU current while the result lives. The collectives here do not need it.
    [[nodiscard]] cuda::device_guard device_scope(call_site where = call_site::current()) const
    {
        return cuda::device_guard(handle_->device(), where);
    }
    /// Whether a collective called now is enqueued when it returns: false in a group. Code that enqueues work behind
    /// a collective must ask first. README.md says how a group of `ncclGroupStart` itself is noticed.
    bool enqueues_at_once() const noexcept { return !group::is_open() && !handle_->sees_raw_group(); }
    /// Several collectives as one, until the `end` of the result. For algorithms that know which calls they put into
    /// the group.
    [[nodiscard]] group group_scope(call_site where = call_site::current()) const { return group(where); }
    /// Has `follower` told when the open `group` ends. False in a group that `ncclGroupStart` itself opened: nothing
    /// tells when that one ends.
    bool follow_group(group_follower& follower) const
    {
        if (!group::is_open()) return false;
        detail::open_group::here().followers.add(follower);
        return true;
    }
    /// Throws the error that `call` would throw for this stream and buffer. For code that reads the buffer before the
    /// call.
    template <class T>
    void check_buffer(view<T> buffer, const char* argument, collective call, stream_ref on,
        call_site where = call_site::current()) const
    {
        const caller who(*this, call, where);
        const auto current = usable_device(who, on);
        const std::string flaw = collprobe::detail::flaw_of_buffer(buffer);
        if (!flaw.empty()) who.refuse(argument + flaw);
        detail::require_memory(who, *handle_, on, buffer.data(), buffer.count(), sizeof(T), argument);
    }

    /// \throws error see the top of this file.
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        make_of_any_type(call, on);
    }

    /// Throws the failure, if there is one: an asynchronous error, or a `fail`. Never blocks.
    /// Precondition: called from the thread of the calls.
    /// Cost: some atomic loads; call it as often as you like.
    void check(call_site where = call_site::current()) const { (void)handle_->check("check", where); }

    /// Blocks the caller until the work on `on` is done, as `cudaStreamSynchronize` does. Watches the communicator
    /// meanwhile and gives up after `options::timeout_ms`. Polls; invalidates no capture.
    /// \throws error `timeout` if work is left then; the communicator's failure; `device_failure` if the stream
    ///   failed; `invalid_argument` if the stream is being captured.
    void synchronize(stream_ref on, call_site where = call_site::current()) const
    {
        synchronize(on, handle_->settings().timeout_ms, where);
    }
    /// The same with another time-out; a negative number of milliseconds means none.
    void synchronize(stream_ref on, std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        handle_->wait(on, timeout_ms, "synchronize", where);
    }

    /// Makes each later call of this rank throw `peer_failure` with the reason, and ends a wait in `synchronize`, from
    /// any thread. To be called before the `ncclComm_t` is aborted. The peers notice nothing.
    void fail(const std::string& reason) const
    {
        handle_->fail(
            {status::peer_failure, collprobe::detail::list_ranks({rank()}) + " gave up: " + reason, {rank()}});
    }

private:
    using caller = collprobe::detail::caller<communicator_ref>;

    /// Makes the rank's GPU current while the result lives.
    /// \throws error the failure, if there is one; for a stream that cannot be used.
    cuda::device_guard usable_device(const caller& who, stream_ref on) const
    {
        handle_->require_usable(who.call(), who.where());
        cuda::device_guard current(handle_->device(), who.where());
        detail::require_stream(who, *handle_, on);
        return current;
    }
    /// NCCL takes the type as a number.
    void make_of_any_type(const collective_call& call, stream_ref on) const
    {
        const caller who(*this, call.what, call.where);
        const auto current = usable_device(who, on);
        who.require_right(call);
        if (call.reduces() && !detail::can_reduce(call.type)) {
            who.refuse(
                std::string("NCCL before 2.24 does not reduce ") + collprobe::name(call.type), status::unsupported);
        }
        const std::uint64_t bytes = call.element_bytes();
        if (call.sends(rank()))
            detail::require_memory(who, *handle_, on, call.send, call.send_count, bytes, "send");
        detail::require_memory(who, *handle_, on, call.receive, call.receive_count, bytes, "receive");
        // In a group NCCL may enqueue a call of several ranks later. (It enqueues a call of one rank at once.)
        order_hooks::call(on, rank(), call, size() > 1);
        const order_hooks::silent inner_work;
        const bool is_barrier = call.what == collective::barrier;
        if (is_barrier ? size() == 1 : call.receive_count == 0) {
            (void)handle_->check(who.call(), call.where);
            return;
        }
        handle_->enqueue(detail::function_of(call.what), who.call(), call.where, [&, this](ncclComm_t comm) {
            if (is_barrier)
                return ncclAllReduce(handle_->zero(), handle_->zero(), 1, ncclUint8, ncclMax, comm, on.get());
            return detail::make_call(call, rank(), size(), comm, on.get());
        });
    }

    collprobe::detail::ref<detail::handle> handle_;
};

static_assert(collprobe::communicator<communicator_ref>);

} // namespace collprobe::nccl
