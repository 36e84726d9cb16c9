// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/call_order.hpp>
#include <collprobe/comm/detail/failure.hpp>
#include <collprobe/comm/mpi/detail/moves.hpp>
#include <collprobe/comm/mpi/detail/types.hpp>
#include <collprobe/core/collective.hpp>
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

/// The time-out and the name of an MPI communicator.
struct options {
    /// How long `synchronize` waits for a stream. A negative number means for ever.
    std::int64_t timeout_ms = 30'000;
    /// The communicator's name in messages.
    std::string name = "mpi";
};

namespace detail {

using mover = void (*)(const transfer&);

/// The state that the copies of a communicator and its queued work share: the `MPI_Comm`, the order of calls and the
/// failure. One host thread at a time makes calls; the work runs on the threads of the streams.
class handle : public collprobe::detail::ref_counted {
public:
    /// Reads the properties of the `MPI_Comm`.
    /// \throws error as `communicator_ref`'s constructor.
    handle(MPI_Comm comm, options settings, call_site where) : comm_(comm), settings_(std::move(settings))
    {
        const error_origin unknown{.call = "mpi::communicator_ref", .communicator = settings_.name, .where = where};
        require_threads(unknown);
        if (comm_ == MPI_COMM_NULL) throw error(status::invalid_argument, "the MPI_Comm is MPI_COMM_NULL", unknown);
        if (settings_.timeout_ms == 0) {
            throw error(status::invalid_argument, "timeout_ms is 0: nothing could be waited for", unknown);
        }
        try {
            int inter = 0;
            require(MPI_Comm_test_inter(comm_, &inter), "MPI_Comm_test_inter");
            if (inter != 0) throw error(status::invalid_argument, "the MPI_Comm is an inter-communicator", unknown);
            require(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
            require(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
        } catch (const refusal& said) {
            throw error(status_of(said.code), describe(said), unknown);
        }
    }
    handle(const handle&) = delete;

    MPI_Comm comm() const noexcept { return comm_; }
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    const options& settings() const noexcept { return settings_; }

    error_origin origin(const char* call, call_site where) const
    {
        return {.call = call, .rank = rank_, .size = size_, .communicator = settings_.name, .where = where};
    }
    /// \throws error the failure, if there is one.
    void require_usable(const char* call, call_site where) const
    {
        failure_.require_none([&, this] { return origin(call, where); });
    }
    /// Stores the first failure, which is final: no call takes place that has not begun.
    void fail(collprobe::detail::failure cause)
    {
        failure_.set(std::move(cause));
        order_.close();
    }

    /// The same because of this rank.
    void lose_rank(const std::string& why)
    {
        fail({status::peer_failure, collprobe::detail::list_ranks({rank_}) + why, {rank_}});
    }

    /// The number of the call that the rank makes now.
    std::uint64_t next_call() noexcept { return order_.take(); }

    /// Does call `number` of the communicator by `move`, when the calls before it are done.
    /// \throws error the communicator's failure, which is final.
    void perform(std::uint64_t number, const collective_call& call, mover move)
    {
        const char* const name = collprobe::name(call.what);
        (void)order_.await(number, collprobe::detail::deadline::never());
        require_usable(name, call.where);
        try {
            move({call, comm_, rank_, size_, collprobe::detail::agreed_count(call, size_), scratch_});
        } catch (const refusal& said) {
            fail({status_of(said.code), describe(said), {}});
        } catch (const std::exception& cause) {
            fail({status::device_failure,
                std::string(name) + " (call " + std::to_string(number) + " of the communicator) could not be done: "
                    + cause.what(),
                {rank_}});
        }
        require_usable(name, call.where);
        order_.pass();
    }

private:
    MPI_Comm comm_;
    options settings_;
    int rank_ = -1;
    int size_ = 0;
    collprobe::detail::call_order order_;
    scratch scratch_; // only the call whose turn it is uses it
    collprobe::detail::first_failure failure_;
};

} // namespace detail

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
class communicator_ref : public collectives<communicator_ref, host::device> {
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
        const caller who(*this, call.what, call.where);
        who.require_right(call);
        require_countable(call, who);
        order_hooks::call(on, rank(), call, false);
        const order_hooks::silent inner_work;
        enqueue(call, on, &detail::move<T>);
    }

    /// Throws the communicator's failure, if it has one. Never blocks.
    void check(call_site where = call_site::current()) const { handle_->require_usable("check", where); }

    /// Makes each later call of this rank throw `peer_failure` with the reason, also calls that wait in a stream. The
    /// peers notice nothing.
    void fail(const std::string& reason) const { handle_->lose_rank(" gave up: " + reason); }

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
    using caller = collprobe::detail::caller<communicator_ref>;

    /// One rank's part in a collective, in its stream.
    struct task {
        collprobe::detail::ref<detail::handle> handle;
        std::uint64_t number;
        collective_call call;
        detail::mover move;

        void operator()() const { handle->perform(number, call, move); }
        void cancel(const std::exception_ptr& cause) const noexcept
        {
            handle->lose_rank(std::string(" could not take part in ") + collprobe::name(call.what)
                + ", because earlier work on its stream failed: " + collprobe::detail::message_of(cause));
        }
    };

    /// Calls without parts go piece by piece, so their counts have no limit.
    static void require_countable(const collective_call& call, const caller& who)
    {
        const auto [send_has_parts, receive_has_parts, rule] = collprobe::detail::shape_of(call.what);
        const std::uint64_t elements = send_has_parts ? call.send_count : receive_has_parts ? call.receive_count : 0;
        if (elements <= detail::most_elements) return;
        who.refuse(std::string(send_has_parts ? "send" : "receive") + " has " + std::to_string(elements)
                + " elements: MPI takes at most " + std::to_string(detail::most_elements)
                + " in a call, all parts together",
            status::unsupported);
    }

    void enqueue(const collective_call& call, stream_ref on, detail::mover move) const
    {
        const std::uint64_t number = handle_->next_call();
        try {
            on.enqueue(task{handle_, number, call, move});
        } catch (const std::exception& cause) {
            // The number is taken, and no task will run with it.
            handle_->lose_rank(std::string(" could not enqueue: ") + cause.what());
            throw;
        }
    }

    collprobe::detail::ref<detail::handle> handle_;
};

static_assert(collprobe::communicator<communicator_ref>);

} // namespace collprobe::mpi
