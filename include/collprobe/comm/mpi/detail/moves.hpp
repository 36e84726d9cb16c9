// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <collprobe/comm/mpi/detail/types.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/sum/combine.hpp>

/// Each collective by calls of MPI: in place, and averages. All ranks have the same arguments.
/// Every function throws `refusal` if a call of MPI fails.
namespace collprobe::inline COLLPROBE_ABI::mpi::detail {

/// Memory that keeps the largest size that was needed.
class scratch {
public:
    template <class T>
    T* room_for(std::uint64_t count)
    {
        if (memory_.size() < count * sizeof(T)) {
            memory_ = {}; // frees the old memory first: never both at a time
            memory_ = host::buffer<std::byte>(count * sizeof(T));
        }
        return reinterpret_cast<T*>(memory_.data());
    }

private:
    host::buffer<std::byte> memory_;
};

/// One rank's part in a call.
struct transfer {
    const collective_call& call;
    MPI_Comm comm;
    int rank;
    int size;
    std::uint64_t count; ///< elements of a part, if there are parts
    scratch& memory;
};

/// The largest number of elements in one call of MPI, all parts together: MPI counts in `int`.
constexpr std::uint64_t most_elements = 0x7fffffff;

/// Calls `body(first, count)` for pieces of `count` elements that an `int` holds.
template <class Body>
void by_pieces(std::uint64_t count, Body body, std::uint64_t most = 1u << 30)
{
    for (std::uint64_t first = 0; first < count; first += most) {
        body(first, static_cast<int>(count - first < most ? count - first : most));
    }
}

/// Whether each rank multiplies by 1/n first.
template <element T>
bool scales(reduction operation) noexcept
{
    return floating_element<T> && operation == reduction::average;
}

template <element T>
void all_reduce(const transfer& part, const T* send, T* receive)
{
    const MPI_Op operation = operation_of<T>(part.call.operation);
    by_pieces(part.count, [&](std::uint64_t first, int count) {
        const T* from = send + first;
        T* const into = receive + first;
        if (scales<T>(part.call.operation)) {
            collprobe::detail::prepare(part.call.operation, into, from, count, part.size);
            from = into;
        }
        require(MPI_Allreduce(from == into ? MPI_IN_PLACE : from, into, count, value_type<T>(), operation, part.comm),
            "MPI_Allreduce");
        collprobe::detail::complete(part.call.operation, into, count, part.size);
    });
}

template <element T>
void reduce_scatter(const transfer& part, const T* send, T* receive)
{
    const int count = static_cast<int>(part.count);
    T* into = receive;
    if (scales<T>(part.call.operation)) {
        const std::uint64_t whole = part.count * static_cast<std::uint64_t>(part.size);
        T* const scaled = part.memory.room_for<T>(whole);
        by_pieces(whole, [&](std::uint64_t first, int some) {
            collprobe::detail::prepare(part.call.operation, scaled + first, send + first, some, part.size);
        });
        send = scaled;
    } else if (receive == send + static_cast<std::uint64_t>(part.rank) * part.count) {
        // MPI's in-place means something else: it would write over the other parts.
        into = part.memory.room_for<T>(part.count);
    }
    const MPI_Op operation = operation_of<T>(part.call.operation);
    require(MPI_Reduce_scatter_block(send, into, count, value_type<T>(), operation, part.comm),
        "MPI_Reduce_scatter_block");
    if (into != receive) std::memcpy(receive, into, part.count * sizeof(T));
    collprobe::detail::complete(part.call.operation, receive, count, part.size);
}

template <element T>
void all_gather(const transfer& part, const T* send, T* receive)
{
    const bool in_place = send == receive + static_cast<std::uint64_t>(part.rank) * part.count;
    const int count = static_cast<int>(part.count);
    const MPI_Datatype type = bits_type<T>();
    require(MPI_Allgather(in_place ? MPI_IN_PLACE : send, count, type, receive, count, type, part.comm),
        "MPI_Allgather");
}

template <element T>
void all_to_all(const transfer& part, const T* send, T* receive)
{
    const int count = static_cast<int>(part.count);
    const MPI_Datatype type = bits_type<T>();
    require(MPI_Alltoall(send, count, type, receive, count, type, part.comm), "MPI_Alltoall");
}

template <element T>
void broadcast(const transfer& part, const T* send, T* receive)
{
    const bool from_elsewhere = part.rank == part.call.root && send != receive;
    by_pieces(part.count, [&](std::uint64_t first, int count) {
        // MPI only reads the root's buffer.
        T* const buffer = from_elsewhere ? const_cast<T*>(send) : receive;
        require(MPI_Bcast(buffer + first, count, bits_type<T>(), part.call.root, part.comm), "MPI_Bcast");
    });
    if (from_elsewhere) std::memcpy(receive, send, part.count * sizeof(T));
}

template <element T>
void move(const transfer& part)
{
    const collective what = part.call.what;
    if (what == collective::barrier) {
        require(MPI_Barrier(part.comm), "MPI_Barrier");
        return;
    }
    if (part.count == 0) return;
    const T* const send = part.call.sent<T>().data();
    T* const receive = part.call.received<T>().data();
    switch (what) {
    case collective::all_reduce: all_reduce(part, send, receive); return;
    case collective::reduce_scatter: reduce_scatter(part, send, receive); return;
    case collective::all_gather: all_gather(part, send, receive); return;
    case collective::all_to_all: all_to_all(part, send, receive); return;
    case collective::broadcast: broadcast(part, send, receive); return;
    case collective::barrier:
    case collective::split: return;
    }
}

} // namespace collprobe::mpi::detail
