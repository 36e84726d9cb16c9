// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/detail/dot.hpp>
#include <collprobe/element.hpp>
#include <collprobe/view.hpp>

namespace collprobe {

namespace detail {

/// Row and column of the `index`-th pair i <= j of n, row by row.
struct pair_of_ranks {
    std::uint64_t row;
    std::uint64_t column;

    COLLPROBE_HD static pair_of_ranks at(std::uint64_t index, std::uint64_t n) noexcept
    {
        std::uint64_t row = 0;
        while (index >= n - row) {
            index -= n - row;
            ++row;
        }
        return {row, row + index};
    }
};

/// Adds to gram[i * n + j] the dot of contributions i and j, for one pair i <= j.
template <element T>
struct add_pair_dot {
    const T* contributions; // n runs of `length` elements
    std::uint64_t length;
    std::uint64_t n;
    double* gram;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const pair_of_ranks pair = pair_of_ranks::at(index, n);
        gram[pair.row * n + pair.column]
            += dot(contributions + pair.row * length, contributions + pair.column * length, length);
    }
};

/// Copies `source` behind which zeros fill up to a whole number of slices.
template <element T>
struct copy_padded {
    view<const T> source;
    T* destination;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        destination[index] = index < source.count() ? source[index] : T{};
    }
};

} // namespace detail

/// Adds this rank's part of the Gram matrix G_ij = g_i . g_j of the ranks' buffers to `partial`, an
/// n x n row-major matrix in device memory of which the upper triangle is used. The sum of `partial`
/// over the ranks is the matrix of the whole buffers; the caller zeroes it before and sums it after.
///
/// An all-to-all hands each rank its 1/n of every rank's elements, in chunks that fit `scratch`
/// (bytes in device memory, at least `2 * n * sizeof(T)`, not used by others until the work is done).
/// Stream behaviour: everything is enqueued on `stream`; `buffer` is only read.
/// Collective: all ranks call it with the same counts and scratch sizes.
/// Cost: (n-1)/n of the buffer sent, two passes over it, n/2 multiply-adds per element.
template <element T, has_all_to_all<T> Comm>
void accumulate_gram(Comm& comm, view<const T> buffer, view<double> partial, view<unsigned char> scratch,
    stream_ref_of<Comm> stream, call_site where = call_site::current())
{
    using device = typename Comm::device;
    const auto n = static_cast<std::uint64_t>(comm.size());
    const std::uint64_t room = scratch.count() / (2 * sizeof(T) * n) * n; // elements of one chunk
    if (partial.count() != n * n || room == 0) {
        throw error(status::invalid_argument,
            partial.count() != n * n ? "partial must hold size x size numbers" : "scratch is too small",
            {.call = "accumulate_gram", .rank = comm.rank(), .size = comm.size(), .communicator = {}, .where = where});
    }
    T* const received = reinterpret_cast<T*>(scratch.data());
    T* const padded = received + room;
    for (std::uint64_t first = 0; first < buffer.count(); first += room) {
        const std::uint64_t left = buffer.count() - first;
        view<const T> chunk = buffer.part(first, left < room ? left : room);
        if (chunk.count() % n != 0) {
            const std::uint64_t whole = (chunk.count() + n - 1) / n * n;
            device::for_each(stream, whole, detail::copy_padded<T>{chunk, padded});
            chunk = view<const T>(padded, whole);
        }
        comm.all_to_all(chunk, view<T>(received, chunk.count()), stream, where);
        device::for_each(stream, n * (n + 1) / 2,
            detail::add_pair_dot<T>{received, chunk.count() / n, n, partial.data()});
    }
}

} // namespace collprobe
