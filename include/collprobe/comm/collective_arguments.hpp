// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The reason why `count` elements of `element_bytes` bytes at `data` cannot be used, to be put after the name of an
/// argument; empty if there is none.
std::string flaw_of_buffer(const void* data, std::uint64_t count, std::uint64_t element_bytes);
template <class T>
std::string flaw_of_buffer(view<T> buffer)
{
    return flaw_of_buffer(buffer.data(), buffer.count(), alignof(T));
}

/// The flaw of two buffers that overlap and are not as in place, where `part` begins `elements` elements behind the
/// begin of `whole`: "send and receive overlap: in place send is receive + 16 elements, 0x1040, and it is 0x1000,
/// receive + 0 elements". The arguments that have "_name" are those of the call.
std::string flaw_of_place(const char* part_name, const void* part, const char* whole_name, const void* whole,
    std::uint64_t elements, std::uint64_t element_bytes);

/// One rank's arguments of a collective, without the type of the elements.
struct collective_arguments {
    collective call = collective::barrier;
    element_type type = element_type::uint8;
    reduction operation = reduction::sum;
    int root = -1;
    const void* send = nullptr;
    std::uint64_t send_count = 0;
    void* receive = nullptr;
    std::uint64_t receive_count = 0;

    std::uint64_t element_bytes() const noexcept { return static_cast<std::uint64_t>(bytes_of(type)); }
    /// Whether the rank's `send` is read.
    bool sends(int rank) const noexcept { return call != collective::broadcast || rank == root; }
    view<const unsigned char> bytes_sent(int rank) const noexcept
    {
        return {static_cast<const unsigned char*>(send), sends(rank) ? send_count * element_bytes() : 0};
    }
    view<const unsigned char> bytes_received() const noexcept
    {
        return {static_cast<const unsigned char*>(receive), receive_count * element_bytes()};
    }
};

template <collective Call, class T>
collective_arguments arguments_of(view<const T> send, view<T> receive, reduction operation = reduction::sum,
    int root = -1) noexcept
{
    return {Call, element_traits<T>::type, operation, root, send.data(), send.count(), receive.data(), receive.count()};
}

/// The buffers of a collective that hold a part for each rank.
struct collective_shape {
    bool send_has_parts;
    bool receive_has_parts;
    const char* rule; ///< the shape in words, for messages
};
constexpr collective_shape shape_of(collective call) noexcept
{
    switch (call) {
    case collective::reduce_scatter: return {true, false, "size() times as many to send as to receive"};
    case collective::all_gather: return {false, true, "size() times as many to receive as to send"};
    case collective::all_to_all: return {true, true, "equal counts that are a multiple of size()"};
    case collective::all_reduce:
    case collective::broadcast:
    case collective::barrier:
    case collective::split: break;
    }
    return {false, false, "equal counts"};
}

/// The count on which the ranks must agree: the elements of a part, if the buffer has parts.
inline std::uint64_t agreed_count(const collective_arguments& with, int size) noexcept
{
    return with.receive_count / (shape_of(with.call).receive_has_parts ? static_cast<std::uint64_t>(size) : 1);
}

/// The error in the arguments of a collective of `size` ranks, the same for every communicator; empty if there is
/// none.
std::string flaw_of_arguments(const collective_arguments& with, int rank, int size);

} // namespace collprobe::detail

#if COLLPROBE_DEFINITIONS
#include <collprobe/comm/detail/collective_arguments.ipp>
#endif
