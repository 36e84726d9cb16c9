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

/// Each collective by calls of MPI: in place, averages, and counts beyond `int`. All ranks have the same arguments.
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
    std::uint64_t limit; ///< the largest number of elements in one call of MPI, all parts together
};

/// Calls `body(first, count)` for pieces of at most `limit`.
template <class Body>
void by_pieces(std::uint64_t count, std::uint64_t limit, Body body)
{
    for (std::uint64_t first = 0; first < count; first += limit) {
        body(first, static_cast<int>(count - first < limit ? count - first : limit));
    }
}

/// Whether each rank multiplies by 1/n first.
template <element T>
bool scales(reduction operation) noexcept
{
    return floating_element<T> && operation == reduction::average;
}

template <element T>
void scale(T* scaled, const T* values, std::uint64_t count, int ranks)
{
    by_pieces(count, 1u << 30, [&](std::uint64_t first, int some) {
        collprobe::detail::prepare(reduction::average, scaled + first, values + first, some, ranks);
    });
}

template <element T>
void complete(reduction operation, T* result, std::uint64_t count, int ranks)
{
    by_pieces(count, 1u << 30, [&](std::uint64_t first, int some) {
        collprobe::detail::complete(operation, result + first, some, ranks);
    });
}

template <element T>
void all_reduce(const transfer& of, const T* send, T* receive)
{
    if (scales<T>(of.operation)) {
        scale(receive, send, of.count, of.size);
        send = receive;
    }
    const MPI_Datatype type = value_type<T>();
    const MPI_Op operation = operation_of<T>(of.operation);
    by_pieces(of.count, of.limit, [&](std::uint64_t first, int count) {
        const void* const from = send == receive ? MPI_IN_PLACE : send + first;
        require(MPI_Allreduce(from, receive + first, count, type, operation, of.comm), "MPI_Allreduce");
    });
    complete(of.operation, receive, of.count, of.size);
}

template <element T>
void reduce_scatter(const transfer& of, const T* send, T* receive)
{
    const MPI_Datatype type = value_type<T>();
    const MPI_Op operation = operation_of<T>(of.operation);
    const std::uint64_t whole = of.count * static_cast<std::uint64_t>(of.size);
    const bool in_place = receive == send + static_cast<std::uint64_t>(of.rank) * of.count;
    if (whole <= of.limit) {
        T* into = receive;
        if (scales<T>(of.operation)) {
            T* const scaled = of.spare.of<T>(whole);
            scale(scaled, send, whole, of.size);
            send = scaled;
        } else if (in_place) {
            // MPI's in-place means something else: it would write over the other parts.
            into = of.spare.of<T>(of.count);
        }
        require(MPI_Reduce_scatter_block(send, into, static_cast<int>(of.count), type, operation, of.comm),
            "MPI_Reduce_scatter_block");
        if (into != receive) std::memcpy(receive, into, of.count * sizeof(T));
    } else {
        for (int root = 0; root < of.size; ++root) {
            const T* const part = send + static_cast<std::uint64_t>(root) * of.count;
            by_pieces(of.count, of.limit, [&](std::uint64_t first, int count) {
                const void* from = part + first;
                if (scales<T>(of.operation)) {
                    T* const scaled = of.spare.of<T>(static_cast<std::uint64_t>(count));
                    scale(scaled, part + first, static_cast<std::uint64_t>(count), of.size);
                    from = scaled;
                } else if (in_place && root == of.rank) {
                    from = MPI_IN_PLACE;
                }
                require(MPI_Reduce(from, receive + first, count, type, operation, root, of.comm), "MPI_Reduce");
            });
        }
    }
    complete(of.operation, receive, of.count, of.size);
}

/// Calls `move(type, count)` with MPI's type and count for a part of `of.count` elements.
template <element T, class Move>
void with_part(const transfer& of, Move move)
{
    if (of.count * static_cast<std::uint64_t>(of.size) <= of.limit) {
        move(bits_type<T>(), static_cast<int>(of.count));
    } else {
        const large_type part(bits_type<T>(), sizeof(T), of.count, of.limit);
        move(part.get(), 1);
    }
}

template <element T>
void all_gather(const transfer& of, const T* send, T* receive)
{
    const bool in_place = send == receive + static_cast<std::uint64_t>(of.rank) * of.count;
    with_part<T>(of, [&](MPI_Datatype type, int count) {
        const void* const from = in_place ? MPI_IN_PLACE : send;
        require(MPI_Allgather(from, count, type, receive, count, type, of.comm), "MPI_Allgather");
    });
}

template <element T>
void all_to_all(const transfer& of, const T* send, T* receive)
{
    with_part<T>(of, [&](MPI_Datatype type, int count) {
        require(MPI_Alltoall(send, count, type, receive, count, type, of.comm), "MPI_Alltoall");
    });
}

template <element T>
void broadcast(const transfer& of, const T* send, T* receive)
{
    const bool from_elsewhere = of.rank == of.root && send != receive;
    by_pieces(of.count, of.limit, [&](std::uint64_t first, int count) {
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
