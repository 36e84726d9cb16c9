// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/checked_collectives.hpp>
#include <collprobe/comm/mpi/detail/handle.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/comm/mpi/detail/moves.hpp>
#include <collprobe/comm/mpi/options.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/order/hooks.hpp>

/// MPI's communicators, borrowed: ranks as processes, on one machine or many, that compute on the CPU. MPI 3.1 or
/// newer, initialised by MPI_Init_thread for calls from any thread, because streams call MPI.
///
/// Errors. comm/README.md has the rules of all communicators; comm/mpi/README.md says what happens if a process dies,
/// throws or hangs. What MPI refuses comes with MPI's text, as the failure of the communicator and of the call's
/// stream: `mismatch` for a message longer than expected, `device_failure` for a lack of memory, else `peer_failure`.
/// But MPI first runs the error handler of the `MPI_Comm`, and the default one ends the job.
namespace collprobe::inline COLLPROBE_ABI::mpi {

/// A borrowed `MPI_Comm`. It must outlive this object and its copies, which are the same rank. Cheap to copy and to
/// move.
///
/// Arithmetic is that of `local`: 8-bit and 16-bit types round at each combination, a floating-point average multiplies
/// each value by 1/n first, integers wrap, min and max prefer a number to a NaN and order -0 < +0, subnormal numbers
/// count. MPI chooses the order of sums and products; MPI's standard advises the same bits on all ranks, and
/// implementations give them. A count of 0 calls nothing. README.md has the limit of counts.
/// Preconditions: one host thread uses the object at a time. Buffers are aligned. While its work is queued, no other
/// code makes collective calls on the `MPI_Comm`, so give it one of its own, by MPI_Comm_dup. Calls on several
/// communicators that share a stream come in the same order on all ranks.
///
/// Stream behaviour: a collective returns once enqueued, never waits for the work, and runs on the stream's thread.
/// As MPI demands, the collectives of one communicator run one after the other in call order: a later call on another
/// stream sleeps until the earlier one is done. MPI may wait busily for a peer within a call, not between calls.
/// Cost: that of MPI's own collectives; comm/mpi/README.md lists the additional copies and memory.
class communicator_ref : public collprobe::detail::checked_collectives<communicator_ref, host::device> {
public:
    /// Reads rank and size. Not collective.
    /// \throws error `invalid_argument`: MPI not initialised, MPI_COMM_NULL, an inter-communicator, a time-out of 0;
    ///   `unsupported`: MPI without MPI_THREAD_MULTIPLE; MPI's errors.
    explicit communicator_ref(MPI_Comm borrowed, options settings = {}, call_site where = call_site::current())
        : handle_(collprobe::detail::make_ref<detail::handle>(borrowed, std::move(settings), where))
    {
    }
    // A move copies: the object that is moved from is the same rank still.
    communicator_ref(const communicator_ref&) = default;
    communicator_ref& operator=(const communicator_ref&) = default;

    int rank() const noexcept { return handle_->rank(); }
    int size() const noexcept { return handle_->size(); }
    const std::string& name() const noexcept { return handle_->settings().name; }
    /// `options::timeout_ms`.
    std::int64_t timeout_ms() const noexcept { return handle_->settings().timeout_ms; }
    /// The `MPI_Comm`, for calls that this library does not make.
    MPI_Comm native_handle() const noexcept { return handle_->comm(); }

    /// \throws error `invalid_argument`; the communicator's failure.
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        handle_->require_usable(collprobe::name(call.what), call.where);
        require_right(call);
        require_countable(call);
        const call_description what = report(call, on);
        const order_hooks::silent inner_work;
        enqueue(what, call, on, &detail::move<T>);
    }

    /// Throws the communicator's failure, if it has one. Never blocks.
    void check(call_site where = call_site::current()) const { handle_->require_usable("check", where); }

    /// Makes each later call of this rank throw `peer_failure` with the reason, also calls that wait in a stream. The
    /// peers notice nothing.
    void fail(const std::string& reason) const
    {
        handle_->fail(
            {status::peer_failure, collprobe::detail::list_ranks({rank()}) + " gave up: " + reason, {rank()}});
    }

    /// Blocks the caller until the work on `on` is done, as the stream's own `synchronize` does, but at most for
    /// `options::timeout_ms`.
    /// \throws error `timeout` if work is left then; the stream's error.
    void synchronize(stream_ref on, call_site where = call_site::current()) const
    {
        synchronize(on, timeout_ms(), where);
    }
    /// The same with another time-out; a negative number of milliseconds means none.
    void synchronize(stream_ref on, std::int64_t timeout_ms, call_site where = call_site::current()) const
    {
        try {
            on.synchronize(timeout_ms, where);
        } catch (const error& known) {
            // A time-out that names no rank is the stream's.
            if (known.code() != status::timeout || known.rank() >= 0) throw;
            throw error(status::timeout,
                "work on the stream did not finish within " + std::to_string(timeout_ms)
                    + " ms: a peer is late, dead or made another call (agreed tells which)",
                handle_->origin("synchronize", where));
        }
    }

private:
    using call_description = collprobe::detail::call_description;
    using mover = void (*)(collective, const detail::transfer&);

    /// One rank's part in a collective, in its stream.
    struct task {
        collprobe::detail::ref<detail::handle> handle;
        std::uint64_t number;
        call_description what;
        const void* send;
        void* receive;
        mover move;
        call_site where;

        void operator()() const { handle->perform(number, what, send, receive, where, move); }
        void cancel(const std::exception_ptr& cause) const noexcept
        {
            handle->fail({status::peer_failure,
                collprobe::detail::list_ranks({handle->rank()}) + " could not take part in "
                    + collprobe::name(what.call)
                    + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause),
                {handle->rank()}});
        }
    };

    /// Calls without parts go piece by piece, so their counts have no limit.
    void require_countable(const collective_call& call) const
    {
        const auto [send_has_parts, receive_has_parts, rule] = collprobe::detail::shape_of(call.what);
        const std::uint64_t elements = send_has_parts ? call.send_count : receive_has_parts ? call.receive_count : 0;
        if (elements <= detail::most_elements) return;
        refuse(collprobe::name(call.what), call.where,
            std::string(send_has_parts ? "send" : "receive") + " has " + std::to_string(elements)
                + " elements: MPI takes at most " + std::to_string(detail::most_elements)
                + " in a call, all parts together",
            status::unsupported);
    }

    void enqueue(const call_description& what, const collective_call& call, stream_ref on, mover move) const
    {
        const std::uint64_t number = handle_->next_call();
        try {
            on.enqueue(task{handle_, number, what, call.send, call.receive, move, call.where});
        } catch (const std::exception& cause) {
            // The number is taken, and no task will run with it.
            handle_->fail({status::peer_failure,
                collprobe::detail::list_ranks({rank()}) + " could not enqueue: " + cause.what(), {rank()}});
            throw;
        }
    }

    collprobe::detail::ref<detail::handle> handle_;
};

static_assert(collprobe::communicator<communicator_ref>);

} // namespace collprobe::mpi
