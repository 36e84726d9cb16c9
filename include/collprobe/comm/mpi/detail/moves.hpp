// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/mpi/detail/library.hpp>
#include <collprobe/comm/mpi/detail/types.hpp>
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
    T* of(std::uint64_t count)
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

struct transfer {
    MPI_Comm comm;
    int rank;
    int size;
    reduction operation;
    int root;
    std::uint64_t count; ///< elements of a part, if there are parts
    const void* send;
    void* receive;
    scratch& spare;
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
void all_reduce(const transfer& of, const T* send, T* receive)
{
    const MPI_Op operation = operation_of<T>(of.operation);
    by_pieces(of.count, [&](std::uint64_t first, int count) {
        const T* from = send + first;
        T* const into = receive + first;
        if (scales<T>(of.operation)) {
            collprobe::detail::prepare(of.operation, into, from, count, of.size);
            from = into;
        }
        require(MPI_Allreduce(from == into ? MPI_IN_PLACE : from, into, count, value_type<T>(), operation, of.comm),
            "MPI_Allreduce");
        collprobe::detail::complete(of.operation, into, count, of.size);
    });
}

template <element T>
void reduce_scatter(const transfer& of, const T* send, T* receive)
{
    const int count = static_cast<int>(of.count);
    T* into = receive;
    if (scales<T>(of.operation)) {
        const std::uint64_t whole = of.count * static_cast<std::uint64_t>(of.size);
        T* const scaled = of.spare.of<T>(whole);
        by_pieces(whole, [&](std::uint64_t first, int some) {
            collprobe::detail::prepare(of.operation, scaled + first, send + first, some, of.size);
        });
        send = scaled;
    } else if (receive == send + static_cast<std::uint64_t>(of.rank) * of.count) {
        // MPI's in-place means something else: it would write over the other parts.
        into = of.spare.of<T>(of.count);
    }
    require(MPI_Reduce_scatter_block(send, into, count, value_type<T>(), operation_of<T>(of.operation), of.comm),
        "MPI_Reduce_scatter_block");
    if (into != receive) std::memcpy(receive, into, of.count * sizeof(T));
    collprobe::detail::complete(of.operation, receive, count, of.size);
}

template <element T>
void all_gather(const transfer& of, const T* send, T* receive)
{
    const bool in_place = send == receive + static_cast<std::uint64_t>(of.rank) * of.count;
    const int count = static_cast<int>(of.count);
    const MPI_Datatype type = bits_type<T>();
    require(MPI_Allgather(in_place ? MPI_IN_PLACE : send, count, type, receive, count, type, of.comm), "MPI_Allgather");
}

template <element T>
void all_to_all(const transfer& of, const T* send, T* receive)
{
    const int count = static_cast<int>(of.count);
    const MPI_Datatype type = bits_type<T>();
    require(MPI_Alltoall(send, count, type, receive, count, type, of.comm), "MPI_Alltoall");
}

template <element T>
void broadcast(const transfer& of, const T* send, T* receive)
{
    const bool from_elsewhere = of.rank == of.root && send != receive;
    by_pieces(of.count, [&](std::uint64_t first, int count) {
        // MPI only reads the root's buffer.
        T* const buffer = from_elsewhere ? const_cast<T*>(send) : receive;
        require(MPI_Bcast(buffer + first, count, bits_type<T>(), of.root, of.comm), "MPI_Bcast");
    });
    if (from_elsewhere) std::memcpy(receive, send, of.count * sizeof(T));
}

template <element T>
void move(collective call, const transfer& of)
{
    if (call == collective::barrier) {
        require(MPI_Barrier(of.comm), "MPI_Barrier");
        return;
    }
    if (of.count == 0) return;
    const T* const send = static_cast<const T*>(of.send);
    T* const receive = static_cast<T*>(of.receive);
    switch (call) {
    case collective::all_reduce: all_reduce(of, send, receive); return;
    case collective::reduce_scatter: reduce_scatter(of, send, receive); return;
    case collective::all_gather: all_gather(of, send, receive); return;
    case collective::all_to_all: all_to_all(of, send, receive); return;
    case collective::broadcast: broadcast(of, send, receive); return;
    case collective::barrier:
    case collective::split: return;
    }
}

} // namespace collprobe::mpi::detail
