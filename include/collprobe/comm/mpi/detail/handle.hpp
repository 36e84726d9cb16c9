// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/call_order.hpp>
#include <collprobe/comm/detail/failure.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/comm/mpi/detail/moves.hpp>
#include <collprobe/comm/mpi/options.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

using collprobe::detail::call_order;
using collprobe::detail::failure;

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
    void fail(failure cause)
    {
        failure_.set(std::move(cause));
        order_.close();
    }

    /// The number of the call that the rank makes now.
    std::uint64_t next_call() noexcept { return order_.take(); }

    /// Does call `number` of the communicator by `move(transfer)`, when the calls before it are done.
    /// \throws error the communicator's failure, which is final.
    template <class Move>
    void perform(std::uint64_t number, const collprobe::detail::call_description& what, const void* send, void* receive,
        call_site where, Move move)
    {
        const char* const call = collprobe::name(what.call);
        (void)order_.await(number, collprobe::detail::deadline::never());
        require_usable(call, where);
        try {
            move(what.call,
                transfer{comm_, rank_, size_, what.operation, what.root, what.count, send, receive, scratch_});
        } catch (const refusal& said) {
            fail({status_of(said.code), describe(said), {}});
        } catch (const std::exception& cause) {
            fail({status::device_failure,
                std::string(call) + " (call " + std::to_string(number) + " of the communicator) could not be done: "
                    + cause.what(),
                {rank_}});
        }
        require_usable(call, where);
        order_.pass();
    }

private:
    MPI_Comm comm_;
    options settings_;
    int rank_ = -1;
    int size_ = 0;
    call_order order_;
    scratch scratch_; // only the call whose turn it is uses it
    collprobe::detail::first_failure failure_;
};

} // namespace collprobe::mpi::detail
