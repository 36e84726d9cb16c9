// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/collective_calls.hpp>
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

/// MPI's communicators: ranks as processes, on one machine or many, that compute on the CPU. MPI 3.1 or
/// newer, initialised for calls from any thread (`environment` does that): streams call it.
///
/// Errors. Every one is a `collprobe::error`.
/// - A bad argument throws `invalid_argument` at the call. Nothing is enqueued, and the communicator
///   stays usable; but the peers wait until this rank calls right.
/// - MPI does not compare what the ranks call, and waits for ever. With `options::verify_calls` the ranks
///   meet before each collective, and all of them fail alike: `mismatch` for different calls, types,
///   counts, operations or roots, which names the culprits as `local` does; `timeout` that names the ranks
///   that did not come in time; `peer_failure` for a rank that gave a bad argument, or whose stream had
///   failed before. A collective that fails so has written nothing.
/// - What MPI itself refuses fails with MPI's text: `mismatch` where a message was longer than expected,
///   `device_failure` without memory, else `peer_failure`. On a borrowed `MPI_Comm` the lender's error
///   handler comes first; the one that MPI starts with ends the job.
/// - `timeout` of `synchronize`: work is left. Without `verify_calls` MPI cannot say who is missing.
/// A failure is final: each later call throws the same. It goes to the stream of the call.
///
/// A process that dies ends the job: mpirun sees to that. One that throws, or hangs, does not: its peers
/// wait inside MPI, where no time-out reaches and which no other call ends (nor does a stream's
/// destructor), but for MPI_Abort. `environment` calls it where an exception leaves it. With
/// `verify_calls` a rank waits for its peers outside of MPI's collectives, and gets out.
namespace collprobe::inline COLLPROBE_ABI::mpi {

class communicator;

/// A borrowed `MPI_Comm`: it must outlive this object and its copies, which are the same rank, and
/// nobody else may make collective calls on it while work of this object is queued. So prefer
/// `communicator::duplicate`, which has one of its own. Cheap to copy and to move. Used by one host
/// thread at a time.
///
/// Collectives return once enqueued and run on the stream's thread; they never wait for the work. Those of
/// one communicator run one after the other in call order, even on different streams, as MPI demands: on
/// another stream the later call waits, asleep, for the earlier. Calls on several communicators must come
/// in the same order on all ranks, if they share a stream. MPI may wait busily for a peer within a call;
/// between calls nothing does.
///
/// Buffers need nothing but to be aligned. A count of 0 calls nothing; counts beyond `int` are fine. Sums
/// and products have MPI's order of combinations, so all ranks get the same bits where MPI gives them
/// (its standard advises it, implementations do). Arithmetic is that of `local`: 16-bit types round at
/// each combination, a floating-point average multiplies each value by 1/n first, integers wrap, min and
/// max prefer a number to a NaN and order -0 < +0, subnormal numbers count.
///
/// Cost: MPI's of MPI_Allreduce, MPI_Reduce_scatter_block, MPI_Allgather, MPI_Alltoall, MPI_Bcast, MPI_Barrier. An
/// average of floating point reads and writes the buffer once more; of a reduce-scatter it takes memory for `send`,
/// which stays with the communicator. A reduce-scatter in place takes memory for `receive`, and a copy; a broadcast
/// that is not in place a copy on the root.
class communicator_ref : public collprobe::detail::collective_calls<communicator_ref, host::device> {
    using calls = collprobe::detail::collective_calls<communicator_ref, host::device>;
    friend calls;

public:
    /// Reads rank and size. With `verify_calls` it is collective: it duplicates the `MPI_Comm` for its
    /// own messages. Make it once, not for each call.
    /// \throws error `invalid_argument`: MPI not initialised, MPI_COMM_NULL, an inter-communicator, a
    ///   time-out of 0; `unsupported`: MPI without MPI_THREAD_MULTIPLE; what MPI says.
    explicit communicator_ref(MPI_Comm borrowed, options settings = {}, call_site where = call_site::current())
        : communicator_ref(
            collprobe::detail::make_ref<detail::handle>(borrowed, std::move(settings), false), where)
    {
    }
    // Moving copies: what is moved from may be the owner.
    communicator_ref(const communicator_ref&) = default;
    communicator_ref& operator=(const communicator_ref&) = default;

    int rank() const noexcept { return handle_->rank(); }
    int size() const noexcept { return handle_->size(); }
    const std::string& name() const noexcept { return handle_->settings().name; }
    /// `options::timeout_ms`.
    std::int64_t timeout_ms() const noexcept { return handle_->settings().timeout_ms; }
    /// The `MPI_Comm`, for calls that are not made here.
    MPI_Comm native_handle() const noexcept { return handle_->comm(); }

    /// A new communicator of the ranks with the same `color`, ranked by `key`, then by old rank; empty
    /// for `no_color`. It has the parent's options and a name like "mpi/split3.color1" for the fourth
    /// split of "mpi".
    /// Blocks the calling thread until this rank's earlier calls are done and all ranks call: nothing that
    /// they wait for may come after it on this thread.
    /// \throws error `invalid_argument` for a color below -1; else see the top of this file.
    std::optional<communicator> split(int color, int key, call_site where = call_site::current()) const;

    /// What a bad argument of this rank in a `call` on the stream `on` does: with `verify_calls` the communicator
    /// fails on all ranks when the stream comes to it, else nothing happens. For adaptors with rules of their own,
    /// before they throw `why`.
    void refuse(const error& why, collective call, stream_ref on) const
    {
        detail::argument_check::tell(handle_, call, &on, why);
    }

    /// Throws the communicator's failure, if it has one. Never blocks.
    void check(call_site where = call_site::current()) const { handle_->require_usable("check", where); }

    /// Blocks the caller until the work on `on` is done, as the stream's own `synchronize`, but not for
    /// longer than `options::timeout_ms`.
    /// \throws error `timeout` if work is left then; the stream's error.
    void synchronize(stream_ref on, call_site where = call_site::current()) const
    {
        const std::int64_t timeout_ms = handle_->settings().timeout_ms;
        try {
            on.synchronize(timeout_ms, where);
        } catch (const error& known) {
            // A time-out that is no rank's is the stream's.
            if (known.code() != status::timeout || known.rank() >= 0) throw;
            throw error(status::timeout,
                "work on the stream did not finish within " + std::to_string(timeout_ms)
                    + " ms: a peer is late, dead or made another call (verify_calls tells which)",
                handle_->origin("synchronize", where));
        }
    }

protected:
    using handle_ref = collprobe::detail::ref<detail::handle>;

    communicator_ref(handle_ref handle, call_site where) : handle_(std::move(handle)) { handle_->open(where); }

    handle_ref handle_;

private:
    using call_description = collprobe::detail::call_description;
    using mover = void (*)(const detail::transfer&);

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
                [this] { move(handle->transfer_of(what, send, receive)); });
        }
        void cancel(const std::exception_ptr& cause) const noexcept
        {
            handle->miss(number, what, detail::absence::stream_failed,
                detail::list_ranks({handle->rank()}) + " could not take part in " + collprobe::name(what.call)
                    + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause),
                where);
        }
    };

    detail::argument_check checked(collective call, const stream_ref& on, call_site where) const
    {
        return {handle_, call, &on, where};
    }
    const void* identity() const noexcept { return handle_.get(); }
    template <collective Call, class T>
    static mover mover_of() noexcept
    {
        return &detail::move<Call, T>;
    }
    void launch(const call_description& what, const collprobe::detail::collective_arguments& with, stream_ref on,
        call_site where, mover move) const
    {
        const std::uint64_t number = handle_->next_call();
        try {
            on.enqueue(task{handle_, number, what, with.send, with.receive, move, where});
        } catch (const std::exception& cause) {
            // The number is taken and nobody will come for it.
            handle_->fail({status::peer_failure,
                detail::list_ranks({rank()}) + " could not enqueue: " + cause.what(), {rank()}});
            throw;
        }
    }
};

/// An owned `MPI_Comm`. It is a `communicator_ref` too: copy it as one to lend it, for as long as this
/// object lives.
///
/// The destructor waits until this rank's calls are done and frees the `MPI_Comm`; it throws nothing.
/// Where the communicator has failed, or an exception passes, it does neither: MPI_Finalize ends it.
class communicator : public communicator_ref {
public:
    /// A communicator with the ranks of `original`, which is not used afterwards. Blocks the caller until
    /// all ranks call.
    /// \throws error as `communicator_ref`'s constructor.
    static communicator duplicate(MPI_Comm original, options settings = {}, call_site where = call_site::current())
    {
        const communicator_ref borrowed(original, {.timeout_ms = settings.timeout_ms, .name = settings.name}, where);
        MPI_Comm created = MPI_COMM_NULL;
        if (const int code = MPI_Comm_dup(original, &created); code != MPI_SUCCESS) {
            throw error(detail::status_of(code), detail::describe({code, "MPI_Comm_dup"}),
                {.call = "mpi::communicator", .communicator = settings.name, .where = where});
        }
        return adopt(created, std::move(settings), where);
    }

    /// Takes over an `MPI_Comm` that the caller has created, and lets its errors return.
    /// \throws error as `communicator_ref`'s constructor; the `MPI_Comm` is the caller's then.
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

static_assert(full_communicator<communicator_ref, float> && full_communicator<communicator_ref, float16>);
static_assert(full_communicator<communicator, float> && full_communicator<communicator, bfloat16>);

} // namespace collprobe::mpi
