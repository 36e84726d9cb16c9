// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/checked_collectives.hpp>
#include <collprobe/comm/mpi/detail/check.hpp>
#include <collprobe/comm/mpi/detail/handle.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/comm/mpi/detail/moves.hpp>
#include <collprobe/comm/mpi/environment.hpp>
#include <collprobe/comm/mpi/options.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/order/hooks.hpp>

/// MPI's communicators: ranks as processes, on one machine or many, that compute on the CPU. MPI 3.1 or newer,
/// initialised for calls from any thread (`environment` does that), because streams call MPI.
/// Errors. Every error is a `collprobe::error`. comm/mpi/README.md says what happens if a process dies, throws or
/// hangs.
/// - `invalid_argument`, at the call: nothing is written. Without `verify_calls` the communicator stays usable, and the
///   peers wait until this rank makes the right call.
/// - The ranks meet before each collective. All fail alike and write nothing: `mismatch` for different calls, types,
///   counts, operations or roots, with culprits as in `local`; `timeout` with the missing ranks; `peer_failure` for a
///   rank with a bad argument or a failed stream. If `options::verify_calls` is false, MPI compares nothing and waits
///   for ever.
/// - What MPI refuses, with MPI's text: `mismatch` for a message longer than expected, `device_failure` for a lack of
///   memory, else `peer_failure`. On a borrowed `MPI_Comm` the lender's error handler runs first; MPI's default one
///   ends the job.
/// - `timeout` of `synchronize`: work is left. Without `verify_calls` MPI cannot name the missing ranks.
/// A failure is final: each later call throws it. It also goes to the stream of the call.
namespace collprobe::inline COLLPROBE_ABI::mpi {

class communicator;

/// A borrowed `MPI_Comm`. It must outlive this object and its copies, which are the same rank. Cheap to copy and to
/// move.
///
/// Arithmetic is that of `local`: 8-bit and 16-bit types round at each combination, a floating-point average multiplies
/// each value by 1/n first, integers wrap, min and max prefer a number to a NaN and order -0 < +0, subnormal numbers
/// count. MPI chooses the order of sums and products; MPI's standard advises the same bits on all ranks, and
/// implementations give them. A count of 0 calls nothing. README.md has the limit of counts.
/// Preconditions: one host thread uses the object at a time. Buffers are aligned. While its work is queued, no other
/// code makes collective calls on the `MPI_Comm` (so prefer `communicator::duplicate`, which has its own). Calls on
/// several communicators that share a stream come in the same order on all ranks.
///
/// Stream behaviour: a collective returns once enqueued, never waits for the work, and runs on the stream's thread.
/// As MPI demands, the collectives of one communicator run one after the other in call order: a later call on another
/// stream sleeps until the earlier one is done. MPI may wait busily for a peer within a call, not between calls.
/// Cost: that of MPI's own collectives; comm/mpi/README.md lists the additional copies and memory.
class communicator_ref : public collprobe::detail::checked_collectives<communicator_ref, host::device> {
public:
    /// Reads rank and size, and duplicates the `MPI_Comm` for the messages of `verify_calls`: all ranks make one, and
    /// make it once, not for each call. Without `verify_calls` it is not collective.
    /// \throws error `invalid_argument`: MPI not initialised, MPI_COMM_NULL, an inter-communicator, a time-out of 0;
    ///   `unsupported`: MPI without MPI_THREAD_MULTIPLE; MPI's errors.
    explicit communicator_ref(MPI_Comm borrowed, options settings = {}, call_site where = call_site::current())
        : communicator_ref(
            collprobe::detail::make_ref<detail::handle>(borrowed, std::move(settings), false), where)
    {
    }
    // A move copies, because the object that is moved from may be the owner.
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
        const detail::argument_check check(handle_, call.what, &on, call.where);
        const call_description what = checked(check, call, on);
        const order_hooks::silent inner_work;
        enqueue(what, call, on, &detail::move<T>);
    }

    /// A new communicator of the ranks with the same `color`, ranked by `key`, then by old rank; empty for
    /// `no_color`. It has the parent's options and a name like "mpi/split3.color1" for the fourth split of "mpi".
    /// Stream behaviour: blocks the calling thread until this rank's earlier calls are done and all ranks call. So
    /// this thread must not postpone work that these calls wait for until after the split.
    /// \throws error `invalid_argument` for a color below -1; else see the top of this file.
    std::optional<communicator> split(int color, int key, call_site where = call_site::current()) const;

    /// Reports a bad argument of this rank in a `call` on the stream `on`. With `verify_calls` the communicator fails
    /// on all ranks when the stream reaches the call; else nothing happens. For adaptors with their own rules, before
    /// they throw `why`.
    void refuse(const error& why, collective call, stream_ref on) const
    {
        detail::argument_check::tell(handle_, call, &on, why);
    }

    /// Throws the communicator's failure, if it has one. Never blocks.
    void check(call_site where = call_site::current()) const { handle_->require_usable("check", where); }

    /// Blocks the caller until the work on `on` is done, as the stream's own `synchronize` does, but at most for
    /// `options::timeout_ms`; with `verify_calls` for a second more, in which a waiting call finds the missing ranks.
    /// \throws error `timeout` if work is left then; the stream's error.
    void synchronize(stream_ref on, call_site where = call_site::current()) const
    {
        const std::int64_t timeout_ms = handle_->settings().timeout_ms;
        const bool verifies = handle_->verifies();
        try {
            on.synchronize(timeout_ms < 0 || !verifies ? timeout_ms : timeout_ms + 1000, where);
        } catch (const error& known) {
            // A time-out that names no rank is the stream's.
            if (known.code() != status::timeout || known.rank() >= 0) throw;
            throw error(status::timeout,
                "work on the stream did not finish within " + std::to_string(timeout_ms) + " ms: a peer is late"
                    + (verifies ? " or dead" : ", dead or made another call (verify_calls tells which)"),
                handle_->origin("synchronize", where));
        }
    }

protected:
    using handle_ref = collprobe::detail::ref<detail::handle>;

    communicator_ref(handle_ref handle, call_site where) : handle_(std::move(handle)) { handle_->open(where); }

    handle_ref handle_;

private:
    using call_description = collprobe::detail::call_description;
    using mover = void (*)(collective, const detail::transfer&);

    /// One rank's part in a collective, in its stream.
    struct task {
        handle_ref handle;
        std::uint64_t number;
        call_description what;
        const void* send;
        void* receive;
        mover move;
        call_site where;

        void operator()() const
        {
            handle->perform(number, what, detail::absence::none, where,
                [this] { move(what.call, handle->transfer_of(what, send, receive)); });
        }
        void cancel(const std::exception_ptr& cause) const noexcept
        {
            handle->miss(number, what, detail::absence::stream_failed,
                detail::list_ranks({handle->rank()}) + " could not take part in " + collprobe::name(what.call)
                    + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause),
                where);
        }
    };

    void enqueue(const call_description& what, const collective_call& call, stream_ref on, mover move) const
    {
        const std::uint64_t number = handle_->next_call();
        try {
            on.enqueue(task{handle_, number, what, call.send, call.receive, move, call.where});
        } catch (const std::exception& cause) {
            // The number is taken, and no task will run with it.
            handle_->fail({status::peer_failure,
                detail::list_ranks({rank()}) + " could not enqueue: " + cause.what(), {rank()}});
            throw;
        }
    }
};

/// An owned `MPI_Comm`. It is a `communicator_ref` too: to lend it, copy it as a `communicator_ref`, for as long as
/// this object lives.
///
/// The destructor waits until this rank's calls are done and frees the `MPI_Comm`; it throws nothing. If the
/// communicator has failed, or an exception passes, it neither waits nor frees: MPI_Finalize ends the `MPI_Comm`.
class communicator : public communicator_ref {
public:
    /// A communicator with the ranks of `original`. It does not use `original` afterwards. Blocks the caller until
    /// all ranks call.
    /// \throws error as `communicator_ref`'s constructor.
    static communicator duplicate(MPI_Comm original, options settings = {}, call_site where = call_site::current())
    {
        const communicator_ref borrowed(
            original, {.timeout_ms = settings.timeout_ms, .name = settings.name, .verify_calls = false}, where);
        MPI_Comm created = MPI_COMM_NULL;
        if (const int code = MPI_Comm_dup(original, &created); code != MPI_SUCCESS) {
            throw error(detail::status_of(code), detail::describe({code, "MPI_Comm_dup"}),
                {.call = "mpi::communicator", .communicator = settings.name, .where = where});
        }
        return adopt(created, std::move(settings), where);
    }

    /// Takes over an `MPI_Comm` that the caller has created, and sets its error handler so that MPI's errors return.
    /// \throws error as `communicator_ref`'s constructor; the caller keeps the `MPI_Comm` then.
    static communicator adopt(MPI_Comm owned, options settings = {}, call_site where = call_site::current())
    {
        return communicator(
            collprobe::detail::make_ref<detail::handle>(owned, std::move(settings), true), where);
    }

    communicator(communicator&& other) noexcept
        : communicator_ref(other), exceptions_(other.exceptions_)
    {
        other.handle_ = {};
    }
    communicator& operator=(communicator&& other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(whole_, other.whole_);
        std::swap(exceptions_, other.exceptions_);
        return *this;
    }
    ~communicator()
    {
        if (!handle_) return;
        handle_->end(std::uncaught_exceptions() > exceptions_);
    }

private:
    communicator(const handle_ref& handle, call_site where) : communicator_ref(handle, where) {}

    int exceptions_ = std::uncaught_exceptions();
};

inline std::optional<communicator> communicator_ref::split(int color, int key, call_site where) const
{
    const detail::argument_check check(handle_, collective::split, nullptr, where);
    if (color < no_color) check.fail("color " + std::to_string(color) + " is below no_color");
    const auto [part, settings] = handle_->split(color, key, where);
    if (part == MPI_COMM_NULL) return std::nullopt;
    return communicator::adopt(part, settings, where);
}

static_assert(collprobe::communicator<communicator_ref> && collprobe::communicator<communicator>);

} // namespace collprobe::mpi
