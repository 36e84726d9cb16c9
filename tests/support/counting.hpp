// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/comm/local/communicator.hpp>

namespace collprobe::testing {

/// A communicator, not an adaptor, that counts what this rank is asked to send.
class counting : public local::communicator {
public:
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;

    explicit counting(const local::communicator& of) : local::communicator(of) {}

    template <element T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation, stream_ref on,
        call_site where = call_site::current())
    {
        count(send.size_bytes());
        local::communicator::all_reduce(send, receive, operation, on, where);
    }
    template <element T>
    void all_gather(std::type_identity_t<view<const T>> send, view<T> receive, stream_ref on,
        call_site where = call_site::current())
    {
        count(send.size_bytes());
        local::communicator::all_gather(send, receive, on, where);
    }
    template <element T>
    void broadcast(std::type_identity_t<view<const T>> send, view<T> receive, int root, stream_ref on,
        call_site where = call_site::current())
    {
        count(receive.size_bytes());
        local::communicator::broadcast(send, receive, root, on, where);
    }

private:
    void count(std::uint64_t sent)
    {
        ++calls;
        bytes += sent;
    }
};

} // namespace collprobe::testing
