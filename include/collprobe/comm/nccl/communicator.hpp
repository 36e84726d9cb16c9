// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <nccl.h>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/checked_collectives.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/comm/nccl/detail/call.hpp>
#include <collprobe/comm/nccl/detail/check.hpp>
#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/comm/nccl/group.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/cuda/device.hpp>

/// NCCL's communicators, borrowed from a trainer or created here. NCCL 2.19 or newer; any C++ compiler, no nvcc.
///
/// Errors. Every error is a `collprobe::error`. comm/nccl/README.md has the details, and lists the calls that may
/// block for ever.
/// - `invalid_argument`, at the call: a bad argument. `unsupported`, at the call: a stream that would silently give
///   wrong data. Nothing is enqueued, and the communicator stays usable. The peers wait until this rank makes the
///   right call, or until they are aborted.
/// - `mismatch`, on all ranks: different counts, types, operations or roots, if `options::verify_calls` is on.
///   Without it such calls hang or move wrong data, because NCCL does not compare them.
/// - `peer_failure` (ncclRemoteError) or `device_failure`: an asynchronous error, such as a lost peer or a failed
///   network or kernel, with NCCL's last error text. Each call looks for one at its start; `check` and `synchronize`
///   do so too.
/// - `timeout`: a call on a non-blocking communicator is not enqueued in time, `synchronize` has work left, or a rank
///   does not come to a verified call.
/// Asynchronous errors, an abort and `mismatch` are final: each later call throws the same error.
namespace collprobe::inline COLLPROBE_ABI::nccl {

class communicator;

/// A borrowed `ncclComm_t`. It must outlive this object and its copies; copies are the same rank. Cheap to copy and
/// move.
///
/// Preconditions: one host thread uses it at a time; only `abort` may come from any thread. Buffers are device,
/// pinned or managed memory, aligned to their elements; they need not be registered. Calls on several communicators
/// come in the same order on all ranks. Copy this object instead of making a second one of the same `ncclComm_t`: see
/// comm/nccl/README.md.
/// Stream behaviour: a collective is on its stream when it returns (in a `group`: at the group's end), also on a
/// non-blocking communicator; an event recorded behind it covers it. It never waits for the work and allocates
/// nothing. It may be captured from the first call on; then all ranks must capture, and launch the graph together
/// (NCCL user guide, CUDA graphs). The collectives of one communicator run one after the other, even on different
/// streams. Do not rely on that order for your own data (NVIDIA/nccl issue 574).
/// A count of 0 calls nothing. Arithmetic and the order of additions are NCCL's.
/// Cost: a call takes about a microsecond of the host beyond NCCL's own, most of it `options::check_buffers`. The
/// README has the bytes that each collective sends.
class communicator_ref : public collprobe::detail::checked_collectives<communicator_ref, cuda::device> {
public:
    /// Waits until the `ncclComm_t` is initialised (if that is under way), reads its rank, size and device, and takes
    /// the memory that barriers need. Make it once, not for each call.
    /// \throws error `invalid_argument` for a null handle or a time-out of 0; NCCL's errors; `timeout`.
    explicit communicator_ref(ncclComm_t borrowed, options settings = {}, call_site where = call_site::current())
        : communicator_ref(
            collprobe::detail::make_ref<detail::handle>(borrowed, std::move(settings), false), where)
    {
    }
    communicator_ref(std::nullptr_t, options = {}, call_site = call_site::current()) = delete;
    // A move copies, because the object that is moved from may be the owner.
    communicator_ref(const communicator_ref&) = default;
    communicator_ref& operator=(const communicator_ref&) = default;

    int rank() const noexcept { return handle_->rank(); }
    int size() const noexcept { return handle_->size(); }
    const std::string& name() const noexcept { return handle_->settings().name; }
    /// `options::timeout_ms`.
    std::int64_t timeout_ms() const noexcept { return handle_->settings().timeout_ms; }
    /// The ordinal of the rank's GPU.
    int device_ordinal() const noexcept { return handle_->device(); }
    /// The `ncclComm_t`, for calls that this library does not make. Dangling after an abort.
    ncclComm_t native_handle() const noexcept { return handle_->comm(); }
    /// Makes the rank's GPU current while the result lives. The collectives here do not need it.
    [[nodiscard]] cuda::device_guard device_scope(call_site where = call_site::current()) const
    {
        return cuda::device_guard(handle_->device(), where);
    }
    /// Whether a collective called now is enqueued when it returns: false in a group. Code that enqueues work behind
    /// a collective must ask first. `options::watch_groups` says how a group of `ncclGroupStart` itself is noticed.
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
        detail::argument_check(*handle_, call, on, where).buffer(buffer, argument);
    }

    /// \throws error see the top of this file.
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        make_of_any_type(call, on);
    }

    /// A new communicator of the ranks with the same `color`, ranked by `key`, then by old rank; empty for
    /// `no_color`. It has the parent's options and a name like "nccl/split3.color1" for the fourth split of "nccl".
    /// It is owned, and must be destroyed before its parent's `ncclComm_t`.
    /// Stream behaviour: blocks the calling thread until all ranks call. No stream takes part.
    /// \throws error `invalid_argument` for a color below -1 or within a group; `timeout` (non-blocking
    ///   communicators); NCCL's errors.
    std::optional<communicator> split(int color, int key, call_site where = call_site::current()) const;

    /// Throws the failure, if there is one: an asynchronous error, an abort, a mismatch. Never blocks.
    /// Precondition: called from the thread of the calls.
    /// Cost: some atomic loads; call it as often as you like.
    void check(call_site where = call_site::current()) const { handle_->check("check", where); }

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
        handle_->wait(on, timeout_ms, "synchronize", false, where, [timeout_ms] {
            return "work on the stream did not finish within " + std::to_string(timeout_ms)
                + " ms: a peer is late, dead or made another call (verify_calls tells which)";
        });
    }

    /// Ends this rank's part by `ncclCommAbort`. Its work on the device stops, and part of the data may have moved.
    /// Each later call throws `peer_failure` with the reason. NCCL does not tell the peers: each peer needs a
    /// time-out or its own abort, unless it notices the abort itself. The `ncclComm_t` is gone: a lender must neither
    /// use nor destroy it.
    /// Preconditions: none on the calling thread, also while another thread is blocked in NCCL; but no thread is in
    /// `ncclCommDestroy` of the communicator. While a `group` has calls of it, the abort happens at the group's end,
    /// which throws the reason. On a failed communicator an abort only ends it.
    void abort(const std::string& reason) const
    {
        handle_->fail({status::peer_failure,
            collprobe::detail::list_ranks({rank()}) + " aborted: " + reason, {rank()}});
        handle_->abort(0);
    }

    /// Reports a bad argument of this rank in a `call` on the stream `on`. With `verify_calls` the peers in the call,
    /// or that come to it, get `peer_failure` that names this rank. For adaptors with their own rules, before they
    /// throw `why`.
    void refuse(const error& why, collective call, stream_ref on) const
    {
        handle_->tell_refusal(call, on, why.where());
    }

protected:
    using handle_ref = collprobe::detail::ref<detail::handle>;

    communicator_ref(handle_ref handle, call_site where) : handle_(std::move(handle)) { handle_->open(where); }

    handle_ref handle_;

private:
    /// NCCL takes the type as a number.
    void make_of_any_type(const collective_call& call, stream_ref on) const
    {
        const call_site where = call.where;
        const detail::argument_check check(*handle_, call.what, on, where);
        // In a group NCCL may enqueue a call of several ranks later. (It enqueues a call of one rank at once.)
        const auto what = checked(check, call, on, size() > 1);
        const order_hooks::silent inner_work;
        if (handle_->verifies()) handle_->verify(what, false, on, where);
        const bool is_barrier = what.call == collective::barrier;
        if (is_barrier ? size() == 1 : what.count == 0) {
            handle_->check(collprobe::name(what.call), where);
            return;
        }
        handle_->enqueue(detail::function_of(what.call), collprobe::name(what.call), where, [&, this](ncclComm_t comm) {
            if (is_barrier)
                return ncclAllReduce(handle_->zero(), handle_->zero(), 1, ncclUint8, ncclMax, comm, on.get());
            return detail::make_call(
                what, call.sends(rank()) ? call.send : call.receive, call.receive, size(), comm, on.get());
        });
    }
};

/// A new id for `communicator::create`. One rank makes it and gives it to all by other means (a file, a socket, MPI).
/// It serves for one communicator. That rank's process must live until all ranks have used the id.
inline ncclUniqueId unique_id(call_site where = call_site::current())
{
    ncclUniqueId id{};
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result == ncclSuccess) return id;
    throw error(detail::status_of(result),
        std::string("ncclGetUniqueId failed: ") + detail::name(result) + ", " + ncclGetErrorString(result)
            + detail::last_error(nullptr),
        {.call = "nccl::unique_id", .where = where});
}

/// An owned `ncclComm_t`. It is a `communicator_ref` too: to lend it, copy it as a `communicator_ref`, for as long as
/// this object lives.
///
/// The destructor ends the `ncclComm_t` and throws nothing. NCCL makes it a collective: it waits until this rank's
/// work is done and the peers on the same machine end their communicators. Graphs that captured its collectives must
/// be destroyed before. If the communicator has failed, or an exception passes, the destructor aborts instead, which
/// does not wait for peers.
class communicator : public communicator_ref {
public:
    /// Joins the `size` ranks that have the same `id`, on the GPU `device_ordinal`. Blocks the caller until all ranks
    /// have come, at most `options::timeout_ms`, or for ever if `options::mode` is blocking.
    /// \throws error `invalid_argument`, NCCL's errors, or `timeout`.
    static communicator create(const ncclUniqueId& id, int rank, int size, int device_ordinal, options settings = {},
        call_site where = call_site::current())
    {
        if (settings.mode == blocking_mode::unknown) {
            settings.mode = settings.timeout_ms < 0 ? blocking_mode::blocking : blocking_mode::non_blocking;
        }
        const error_origin origin{.call = "nccl::communicator", .communicator = settings.name, .where = where};
        if (size < 1 || rank < 0 || rank >= size) {
            throw error(status::invalid_argument,
                "rank " + std::to_string(rank) + " of " + std::to_string(size) + " ranks cannot be", origin);
        }
        // Refused here, before the peers wait for this rank.
        if (settings.timeout_ms == 0) {
            throw error(status::invalid_argument, "timeout_ms is 0: nothing could be waited for", origin);
        }
        if (group::is_open()) {
            throw error(status::unsupported, "NCCL initialises it when the group ends: end the group first", origin);
        }
        const cuda::device_guard current(device_ordinal, where);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = settings.mode == blocking_mode::blocking ? 1 : 0;
        ncclComm_t created = nullptr;
        const ncclResult_t result = ncclCommInitRankConfig(&created, size, id, rank, &config);
        if (result != ncclSuccess && result != ncclInProgress) {
            std::string message = std::string("ncclCommInitRankConfig failed: ") + detail::name(result) + ", "
                + ncclGetErrorString(result) + detail::last_error(created);
            if (created != nullptr) (void)ncclCommAbort(created);
            throw error(detail::status_of(result), message, origin);
        }
        return adopt(created, std::move(settings), where);
    }

    /// Takes over an `ncclComm_t` that the caller has created.
    /// \throws error as `communicator_ref`'s constructor; the `ncclComm_t` is aborted then.
    static communicator adopt(ncclComm_t owned, options settings = {}, call_site where = call_site::current())
    {
        handle_ref handle;
        try {
            handle = collprobe::detail::make_ref<detail::handle>(owned, std::move(settings), true);
            return communicator(handle, where);
        } catch (...) { // also for a lack of memory
            if (handle && owned != nullptr) handle->abort(0);
            else if (owned != nullptr) (void)ncclCommAbort(owned);
            throw;
        }
    }

    communicator(communicator&& other) noexcept
        : communicator_ref(other), exceptions_(other.exceptions_)
    {
        other.handle_ = {};
    }
    communicator& operator=(communicator&& other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(exceptions_, other.exceptions_);
        return *this;
    }
    ~communicator()
    {
        if (!handle_) return;
        handle_->end(std::uncaught_exceptions() > exceptions_);
    }

    /// Gives the `ncclComm_t` back to the caller, who must end it. This object must not be used afterwards.
    /// \throws error the communicator's failure, because then there is nothing to give back; `invalid_argument` while
    ///   a group has calls of it.
    [[nodiscard]] ncclComm_t release(call_site where = call_site::current())
    {
        handle_->require_usable("release", where);
        if (handle_->in_open_group()) {
            throw error(status::invalid_argument, "a group has calls of the communicator: end the group first",
                handle_->origin("release", where), {rank()});
        }
        const ncclComm_t released = handle_->comm();
        (void)handle_->give_up("the ncclComm_t was released");
        return released;
    }

private:
    friend class communicator_ref;
    communicator(const handle_ref& handle, call_site where) : communicator_ref(handle, where) {}

    int exceptions_ = std::uncaught_exceptions();
};

inline std::optional<communicator> communicator_ref::split(int color, int key, call_site where) const
{
    if (color < no_color) {
        const error bad(status::invalid_argument, "color " + std::to_string(color) + " is below no_color",
            handle_->origin("split", where), {rank()});
        handle_->tell_refusal(collective::split, where);
        throw bad;
    }
    if (group::is_open()) {
        throw error(status::invalid_argument,
            "a split cannot be part of a group: its result is not there before the end",
            handle_->origin("split", where), {rank()});
    }
    const cuda::device_guard current(handle_->device(), where);
    auto [part, settings] = handle_->split(color, key, where);
    if (part == nullptr) return std::nullopt;
    return communicator::adopt(part, std::move(settings), where);
}

static_assert(collprobe::communicator<communicator_ref> && collprobe::communicator<communicator>);

} // namespace collprobe::nccl
