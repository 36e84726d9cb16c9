// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include <collprobe/comm/mpi_handle.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/host.hpp>
#include <collprobe/error.hpp>
#include <collprobe/view.hpp>

namespace collprobe::mpi::detail {

/// Refuses bad arguments of one rank's call before MPI sees them. Nothing is enqueued then, and the
/// communicator stays usable: the peers wait until the rank makes the call right. With `verify_calls`
/// they are told instead, when the stream comes to it, and the communicator fails on all ranks.
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
        if (comm_->verifies()) {
            const notice tell{comm_, comm_->next_call(), call_,
                list_ranks({comm_->rank()}) + " gave a bad argument: " + bad.what(), where_};
            if (on_ == nullptr) tell();
            else on_->enqueue(tell);
        }
        throw bad;
    }
    void operation(reduction operation) const
    {
        if (operation <= reduction::product) return;
        fail("operation " + std::to_string(static_cast<int>(operation)) + " is no reduction");
    }
    void root(int root) const
    {
        if (root >= 0 && root < comm_->size()) return;
        fail("root " + std::to_string(root) + " is not a rank: there are " + std::to_string(comm_->size()));
    }
    template <class T>
    void buffer(view<T> buffer, const char* argument) const
    {
        if (buffer.data() == nullptr && !buffer.empty()) {
            fail(std::string(argument) + " is null with count " + std::to_string(buffer.count()));
        }
        if (!buffer.aligned()) {
            fail(std::string(argument) + " is not aligned to " + std::to_string(alignof(T)) + " bytes");
        }
        if (buffer.count() > static_cast<std::uint64_t>(INT64_MAX) / sizeof(T)) {
            fail(std::string(argument) + " has the impossible count " + std::to_string(buffer.count()));
        }
    }
    /// That `send` has `send_parts` parts where `receive` has `receive_parts`.
    template <class T>
    void shape(view<const T> send, std::uint64_t send_parts, view<T> receive, std::uint64_t receive_parts,
        const char* rule) const
    {
        if (send.count() % send_parts == 0 && receive.count() % receive_parts == 0
            && send.count() / send_parts == receive.count() / receive_parts) {
            return;
        }
        fail(std::string("not ") + rule + ": send.count() is " + std::to_string(send.count())
            + ", receive.count() is " + std::to_string(receive.count()) + ", size() is "
            + std::to_string(comm_->size()));
    }
    /// That no byte is shared, unless exactly `in_place`.
    template <class T>
    void placement(view<const T> send, view<T> receive, bool in_place) const
    {
        if (in_place
            || !collprobe::detail::overlap(send.data(), send.size_bytes(), receive.data(), receive.size_bytes())) {
            return;
        }
        fail(call_ == collective::all_to_all ? "send and receive overlap"
                                             : "send and receive overlap, but not as they do in place");
    }

private:
    /// What the peers are told, in the order of calls.
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
