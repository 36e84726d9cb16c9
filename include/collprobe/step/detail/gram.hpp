// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/sum/dot.hpp>

/// The dot products of the ranks' gradients with each other, for `direction_mode::exact`.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Row and column of the `index`-th pair i <= j of n, counted row by row.
struct pair_of_ranks {
    std::uint64_t row;
    std::uint64_t column;

    COLLPROBE_HD static pair_of_ranks at(std::uint64_t index, std::uint64_t n) noexcept
    {
        std::uint64_t row = 0;
        for (; index >= n - row; ++row) index -= n - row;
        return {row, row + index};
    }
};

/// Adds the dot products of all pairs i <= j of contributions to `sums`: item `pair * parts + part`. Each dot product
/// is in `parts` parts of about equal length. A body for `sum_each`.
template <element T>
struct pair_dots {
    const T* contributions; // n runs of `length` elements
    std::uint64_t length;
    std::uint64_t n;
    std::uint64_t parts;
    double* sums;

    COLLPROBE_HD double part(std::uint64_t item, unsigned lane, unsigned lanes) const noexcept
    {
        const pair_of_ranks pair = pair_of_ranks::at(item / parts, n);
        const std::uint64_t step = length / parts + (length % parts != 0 ? 1 : 0);
        const std::uint64_t first = lesser(item % parts * step, length);
        const std::uint64_t count = lesser(step, length - first);
        return dot(contributions + pair.row * length + first, contributions + pair.column * length + first, count,
            lane, lanes);
    }
    COLLPROBE_HD void store(std::uint64_t item, double sum) const noexcept
    {
        const pair_of_ranks pair = pair_of_ranks::at(item / parts, n);
        sums[parts == 1 ? pair.row * n + pair.column : item] += sum; // without parts they are the matrix itself
    }
};

/// Adds the parts of each pair's sum to the matrix.
struct add_parts {
    const double* sums;
    std::uint64_t n;
    std::uint64_t parts;
    double* gram;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const pair_of_ranks pair = pair_of_ranks::at(index, n);
        double sum = 0;
        for (std::uint64_t part = 0; part < parts; ++part) sum += sums[index * parts + part];
        gram[pair.row * n + pair.column] += sum;
    }
};

/// Adds this rank's part of the Gram matrix G_ij = g_i . g_j of the ranks' buffers to `partial`. The sum of `partial`
/// over the ranks is the matrix of the whole buffers.
/// Shapes: `partial` is an n x n row-major matrix in device memory; only the upper triangle is used. `scratch` is
/// device memory of at least `2 * n * sizeof(T)` bytes.
/// Preconditions: collective, with the same counts and scratch sizes on all ranks. No other work uses `scratch` until
/// the work is done.
/// Stream behaviour: everything is enqueued on `stream`. An all-to-all gives each rank its 1/n of every rank's
/// elements, in chunks that fit `scratch`. `buffer` is only read.
/// Cost: (n-1)/n of the buffer sent, two passes over it, n/2 multiply-adds an element. Few pairs are cut into parts.
template <element T, communicator Comm>
void accumulate_gram(Comm& comm, view<const T> buffer, view<double> partial, view<unsigned char> scratch,
    stream_ref_of<Comm> stream, call_site where = call_site::current())
{
    using device = typename Comm::device;
    const auto n = static_cast<std::uint64_t>(comm.size());
    const std::uint64_t pairs = n * (n + 1) / 2;
    std::uint64_t parts = pairs < device::parallel_sums ? device::parallel_sums / pairs : 1;
    if (parts * pairs * sizeof(double) > scratch.count() / 16) parts = 1;
    const std::uint64_t parts_bytes = parts == 1 ? 0 : parts * pairs * sizeof(double);
    const std::uint64_t room = (scratch.count() - parts_bytes) / (2 * sizeof(T) * n) * n; // elements of one chunk
    const caller who(comm, "accumulate_gram", where);
    who.require(partial.count() == n * n, "partial must hold size x size numbers");
    who.require(room != 0, "scratch is too small");
    double* const sums = parts == 1 ? partial.data() : reinterpret_cast<double*>(scratch.data());
    if (parts != 1) device::fill(stream, view<double>(sums, parts * pairs), 0.0, where);
    T* const received = reinterpret_cast<T*>(scratch.data() + parts_bytes);
    T* const padded = received + room;
    for (std::uint64_t first = 0; first < buffer.count(); first += room) {
        view<const T> chunk = buffer.part(first, lesser(buffer.count() - first, room));
        if (chunk.count() % n != 0) {
            const view<T> whole(padded, (chunk.count() + n - 1) / n * n);
            device::copy(stream, chunk, whole.part(0, chunk.count()), where);
            device::zero(stream, whole.part(chunk.count(), whole.count() - chunk.count()), where);
            chunk = whole;
        }
        comm.all_to_all(chunk, view<T>(received, chunk.count()), stream, where);
        device::sum_each(stream, pairs * parts, pair_dots<T>{received, chunk.count() / n, n, parts, sums});
    }
    if (parts != 1) device::for_each(stream, pairs, add_parts{sums, n, parts, partial.data()});
}

} // namespace collprobe::detail
