// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>
#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/detail/exchange_value.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap {
namespace detail {

/// One call of this header, as its errors describe it.
struct mpi_call {
    MPI_Comm comm;
    const char* name; ///< the public function
    call_site where;
    int rank = -1;
    int size = 0;

    mpi_call(MPI_Comm over, const char* function, const call_site& line)
        : comm(over), name(function), where(line)
    {
        mpi::detail::require_usable({.call = name, .where = where}, "MPI_Init");
        if (comm == MPI_COMM_NULL)
            throw failure(status::invalid_argument, "the communicator is MPI_COMM_NULL");
        int inter = 0;
        check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
        if (inter != 0) throw failure(status::invalid_argument, "the communicator is an inter-communicator");
        check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
        check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    }

    error failure(status code, const std::string& message, std::vector<int> culprits = {}) const
    {
        return {code, message, {.call = name, .rank = rank, .size = size, .where = where},
            std::move(culprits)};
    }

    /// Throws if the communicator's error handler returns. By default MPI ends the job instead.
    void check(int code, const char* what) const
    {
        if (code != MPI_SUCCESS) throw failure(status::peer_failure, mpi::detail::describe({code, what}));
    }
};

inline void exchange_mpi(const mpi_call& call, view<std::uint8_t> value)
{
    // A rank that cannot take part sends this value in place of its size, so that no rank waits for it.
    constexpr std::uint64_t refused = UINT64_MAX;
    const bool null = value.data() == nullptr && !value.empty();
    const std::uint64_t own = null || value.count() > max_value_bytes ? refused : value.count();
    std::vector<std::uint64_t> all(static_cast<std::size_t>(call.size));
    call.check(MPI_Allgather(&own, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, call.comm), "MPI_Allgather");
    if (own == refused) {
        throw call.failure(status::invalid_argument,
            null ? std::string("value is null")
                 : "a value of " + std::to_string(value.count()) + " bytes: expected at most "
                    + std::to_string(max_value_bytes));
    }
    std::vector<int> culprits;
    for (int rank = 0; rank < call.size; ++rank) {
        const std::uint64_t theirs = all[static_cast<std::size_t>(rank)];
        if (theirs == refused || theirs != all[0]) culprits.push_back(rank);
    }
    if (!culprits.empty()) {
        const std::uint64_t theirs = all[static_cast<std::size_t>(culprits[0])];
        const std::string message = theirs == refused
            ? collprobe::detail::list_ranks(culprits) + " passed a value that no exchange carries (null, or too large)"
            : collprobe::detail::list_ranks(culprits) + " expected a value of " + std::to_string(theirs)
                + " bytes, rank 0 has one of " + std::to_string(all[0]);
        throw call.failure(status::mismatch, message, std::move(culprits));
    }
    call.check(MPI_Bcast(value.data(), static_cast<int>(value.count()), MPI_BYTE, 0, call.comm), "MPI_Bcast");
}

} // namespace detail

/// The job that a communicator's ranks form. Collective over `comm`: it counts the ranks on this rank's machine. Path
/// and key stay empty: `exchange_mpi` needs neither.
/// \throws error `invalid_argument`: MPI not initialized, no communicator or one between two groups; `peer_failure`
///   with MPI's text, if the communicator's error handler returns (by default MPI ends the job).
inline job job_from_mpi(MPI_Comm comm, call_site where = call_site::current())
{
    const detail::mpi_call call(comm, "bootstrap::job_from_mpi", where);
    job result;
    result.rank = call.rank;
    result.size = call.size;
    MPI_Comm machine = MPI_COMM_NULL;
    call.check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, call.rank, MPI_INFO_NULL, &machine),
        "MPI_Comm_split_type");
    MPI_Comm_rank(machine, &result.local_rank);
    MPI_Comm_size(machine, &result.local_size);
    MPI_Comm_free(&machine);
    return result;
}

/// Gives every rank the `value` of rank 0, over MPI. Collective over `comm`; waits as MPI does, with no time-out.
/// Shapes: as for `exchange`.
/// \throws error as `job_from_mpi`; `invalid_argument`: value null or too large; `mismatch` on the other ranks then;
///   also if sizes differ, with the ranks that differ from rank 0 in `culprits()`.
/// Cost: an all-gather of 8 bytes and a broadcast.
template <detail::exchangeable T>
void exchange_mpi(MPI_Comm comm, T&& value, call_site where = call_site::current())
{
    detail::exchange_mpi(detail::mpi_call(comm, "bootstrap::exchange_mpi", where), detail::memory_of(value));
}

} // namespace collprobe::bootstrap
