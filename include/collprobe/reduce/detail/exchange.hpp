// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/sliced_exchange.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/sum/sum_rows.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Copies the first `length` elements of each part of a buffer one after the other. A body for `for_each`: an index is
/// a block of `width` elements of every part. (To find an index's part by division would cost as much as the copy.)
/// Call it with `blocks()` indices.
template <element T, int width>
struct pack_parts {
    const T* source; ///< the first part's first element
    std::uint64_t part; ///< elements from one part to the next
    std::uint64_t parts;
    std::uint64_t length;
    T* destination;

    COLLPROBE_HD std::uint64_t blocks() const noexcept { return length / width + (length % width != 0 ? 1 : 0); }
    COLLPROBE_HD void operator()(std::uint64_t block) const noexcept
    {
        const std::uint64_t first = block * width;
        const std::uint64_t here = lesser(width, length - first);
        for (std::uint64_t k = 0; k < parts; ++k) {
            const T* const from = source + k * part;
            for (std::uint64_t i = first; i < first + here; ++i) destination[k * length + i] = from[i];
        }
    }
};

/// Reduces floating-point sums by moving the terms, as they are, to the ranks that add them: a codec of sliced
/// exchanges. One object per call.
template <accumulation in, floating_element T, communicator Comm>
class term_exchange {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using piece = slice_plan::piece;
    static constexpr std::uint64_t unit = 16 / sizeof(T); // kernels read whole words
    static constexpr int width = static_cast<int>(device::body_bytes / sizeof(T));
    /// 1 on a GPU, so that neighbouring threads access neighbouring memory.
    static constexpr int packed_at_a_time = static_cast<int>(device::body_bytes / 16);

public:
    using wire = T;
    struct call {
        const T* send; ///< one leaf after the other
        std::uint64_t leaf_count; ///< elements in a leaf
        std::uint64_t leaves;
        std::uint32_t divisor;
        view<T> receive;
        bool scatters;
    };

    term_exchange(Comm& comm, exchange_memory<device>& memory, const call& what, stream_ref on, call_site where)
        : comm_(comm), memory_(memory), what_(what), on_(on), where_(where),
          ranks_(static_cast<std::uint64_t>(comm.size())),
          plan_{ranks_, what.scatters ? what.receive.count() : 0, what.leaf_count, unit,
              room((what.leaves + 1) * ranks_)}
    {
    }
    term_exchange(const term_exchange&) = delete;

    /// The least memory, in bytes, for a reduction.
    static std::uint64_t least_memory(std::uint64_t ranks, std::uint64_t leaves) noexcept
    {
        return 2 * ((leaves + 1) * ranks * 16 + 64);
    }

    exchange_traffic run()
    {
        const exchange_levels<Comm, void> levels(comm_, nullptr);
        sliced_exchange exchange(levels, *this, memory_, on_, where_);
        exchange.reduce(plan_, !what_.scatters);
        return exchange.traffic();
    }

    /// All-gather of all terms, sum on every rank.
    exchange_traffic run_at_once()
    {
        exchange_traffic traffic;
        const slice_plan plan{1, what_.leaf_count, what_.leaf_count, unit, room(what_.leaves * ranks_)};
        run_overlapped(
            memory_, on_, where_, plan,
            [&, this](const piece& at, int slot) {
                for (std::uint64_t leaf = 0; leaf < what_.leaves; ++leaf) {
                    comm_.all_gather(view<const T>(leaf_from(leaf) + at.first, at.length),
                        view<T>(outgoing(slot) + leaf * ranks_ * at.length, ranks_ * at.length), on_, where_);
                    traffic.bytes += (ranks_ - 1) * at.length * sizeof(T);
                    ++traffic.collectives;
                }
            },
            [this](const piece& at, int slot, stream_ref on) {
                sum(outgoing(slot), at.length, what_.receive.data() + at.first, on);
            },
            [](const piece&, int) {});
        return traffic;
    }

    // A slot holds the copy that is sent, later the results, then the terms that arrive.
    T* outgoing(int slot) const noexcept { return reinterpret_cast<T*>(memory_.slot(slot)); }
    T* incoming(const piece& at, int slot, std::uint64_t leaf) const noexcept
    {
        return outgoing(slot) + (1 + leaf) * ranks_ * at.length;
    }
    std::uint64_t message(const piece& at, int) const noexcept { return at.length; }
    std::uint64_t result_message(const piece& at) const noexcept { return at.length; }
    std::uint64_t sends() const noexcept { return what_.leaves; }

    /// The terms themselves, or a copy of those that do not lie one after the other, or end too early.
    const T* encode(const piece& at, int slot, std::uint64_t leaf) const
    {
        const T* const from = leaf_from(leaf) + at.first;
        T* const copy = outgoing(slot);
        if (what_.scatters) {
            if (at.length == plan_.stride) return from;
            const pack_parts<T, packed_at_a_time> pack{from, plan_.stride, ranks_, at.length, copy};
            device::for_each(on_, pack.blocks(), pack);
            return copy;
        }
        if (!plan_.is_padded(at)) return from;
        const std::uint64_t there = plan_.count - at.first;
        device::copy(on_, view<const T>(from, there), view<T>(copy, there), where_);
        device::zero(on_, view<T>(copy + there, at.count - there), where_);
        return copy;
    }
    void combine(const piece& at, int slot, int, stream_ref on) const
    {
        T* const to = what_.scatters ? what_.receive.data() + at.first
                                     : results(at, slot) + static_cast<std::uint64_t>(comm_.rank()) * at.length;
        sum(incoming(at, slot, 0), at.length, to, on);
    }
    T* results(const piece& at, int slot) const noexcept
    {
        return plan_.is_padded(at) ? outgoing(slot) : what_.receive.data() + at.first;
    }
    void decode(const piece& at, int slot) const
    {
        if (!plan_.is_padded(at)) return;
        const std::uint64_t there = plan_.count - at.first;
        device::copy(on_, view<const T>(outgoing(slot), there), what_.receive.part(at.first, there), where_);
    }
    void note(int, const T*, std::uint64_t, std::uint64_t, stream_ref, bool) const noexcept {}

private:
    /// Elements of each of `runs` runs that fit in a slot: whole words, if there is room for any.
    std::uint64_t room(std::uint64_t runs) const noexcept
    {
        const std::uint64_t elements = memory_.slot_bytes() / sizeof(T) / runs;
        return elements > unit ? elements / unit * unit : elements;
    }
    const T* leaf_from(std::uint64_t leaf) const noexcept { return what_.send + leaf * what_.leaf_count; }

    /// Adds runs of `length` elements, of which each leaf has one for each rank.
    void sum(const T* terms, std::uint64_t length, T* result, stream_ref on) const
    {
        const sum_rows<in, T, width> body{
            {terms, what_.leaves, length, length * ranks_}, ranks_ * what_.leaves, result, length, what_.divisor};
        device::for_each(on, body.blocks(), body);
    }

    Comm& comm_;
    exchange_memory<device>& memory_;
    call what_;
    stream_ref on_;
    call_site where_;
    std::uint64_t ranks_;
    slice_plan plan_;
};

} // namespace collprobe::detail
