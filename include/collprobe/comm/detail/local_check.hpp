// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/detail/board.hpp>
#include <collprobe/device/host.hpp>
#include <collprobe/error.hpp>
#include <collprobe/view.hpp>

namespace collprobe::detail {

/// Refuses bad arguments of one rank's call: throws on this rank and fails the communicator, for the
/// peers that have called or will call cannot be served any more.
class argument_check {
public:
    /// \throws error the communicator's failure, if it has one.
    argument_check(board& meet, int rank, collective call, call_site where)
        : meet_(meet), rank_(rank), call_(call), where_(where)
    {
        meet.require_usable(rank, call, where);
    }

    [[noreturn]] void fail(const std::string& message, status code = status::invalid_argument) const
    {
        const error bad(code, message, meet_.origin(rank_, call_, where_), {rank_});
        meet_.fail(
            {status::peer_failure, list_ranks({rank_}) + " gave a bad argument: " + bad.what(), {rank_}});
        throw bad;
    }
    void operation(reduction operation) const
    {
        if (operation <= reduction::product) return;
        fail("operation " + std::to_string(static_cast<int>(operation)) + " is no reduction");
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
            + std::to_string(meet_.size()));
    }
    /// That no byte is shared, unless exactly `in_place`.
    template <class T>
    void placement(view<const T> send, view<T> receive, bool in_place) const
    {
        if (in_place || !overlap(send.data(), send.size_bytes(), receive.data(), receive.size_bytes())) return;
        fail(call_ == collective::all_to_all ? "send and receive overlap"
                                             : "send and receive overlap, but not as they do in place");
    }

private:
    board& meet_;
    int rank_;
    collective call_;
    call_site where_;
};

} // namespace collprobe::detail
