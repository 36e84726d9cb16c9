// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include <collprobe/comm/mpi/detail/handle.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/host/device.hpp>

namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

/// Refuses bad arguments of one rank's call before MPI sees them. The peers are told when the stream reaches the call,
/// and the communicator fails on all ranks. Without `verify_calls` nothing is enqueued, the communicator stays usable,
/// and the peers wait until the rank makes the right call.
class argument_check {
public:
    /// `on` is null for a call that has no stream.
    /// \throws error the communicator's failure.
    argument_check(
        const collprobe::detail::ref<handle>& comm, collective call, const host::stream_ref* on, call_site where)
        : comm_(comm), call_(call), on_(on), where_(where)
    {
        comm_->require_usable(collprobe::name(call), where);
    }

    [[noreturn]] void fail(const std::string& message, status code = status::invalid_argument) const
    {
        const error bad(code, message, comm_->origin(collprobe::name(call_), where_), {comm_->rank()});
        tell(comm_, call_, on_, bad);
        throw bad;
    }
    /// If calls are verified, fails the communicator on all ranks when it reaches the bad call.
    static void tell(const collprobe::detail::ref<handle>& comm, collective call, const host::stream_ref* on,
        const error& bad)
    {
        if (!comm->verifies()) return;
        const notice told{comm, comm->next_call(), call,
            list_ranks({comm->rank()}) + " gave a bad argument: " + bad.what(), bad.where()};
        if (on == nullptr) told();
        else on->enqueue(told);
    }
    /// Refuses what MPI cannot count; accepts any memory of the process. Calls without parts go piece by piece.
    void places(const collective_call& call) const
    {
        const auto [send_has_parts, receive_has_parts, rule] = collprobe::detail::shape_of(call.what);
        const std::uint64_t elements = send_has_parts ? call.send_count : receive_has_parts ? call.receive_count : 0;
        if (elements <= most_elements) return;
        fail(std::string(send_has_parts ? "send" : "receive") + " has " + std::to_string(elements)
                + " elements: MPI takes at most " + std::to_string(most_elements) + " in a call, all parts together",
            status::unsupported);
    }

private:
    /// The message to the peers, in the order of calls.
    struct notice {
        collprobe::detail::ref<handle> comm;
        std::uint64_t number;
        collective call;
        std::string message;
        call_site where;

        void operator()() const { comm->miss(number, {.call = call}, absence::bad_argument, message, where); }
        void cancel(const std::exception_ptr&) const noexcept { (*this)(); }
    };

    const collprobe::detail::ref<handle>& comm_;
    collective call_;
    const host::stream_ref* on_;
    call_site where_;
};

} // namespace collprobe::mpi::detail
