// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/gram.hpp>
#include <collprobe/comm/overlapped_pieces.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/reduce/contract.hpp>
#include <collprobe/reduce/detail/exchange_plan.hpp>
#include <collprobe/reduce/detail/fixed_point.hpp>
#include <collprobe/sum/sum_rows.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory and the stream of a reduction. The memory holds two pieces, so that one piece is summed, on the stream
/// `sums`, while the other is in transit.
template <class Device>
struct reduce_memory {
    explicit reduce_memory(std::uint64_t bytes) : scratch(bytes / 2 / 64 * 64 * 2) { Device::load_kernels(); }

    view<unsigned char> slot(int which) const noexcept
    {
        return view<unsigned char>(scratch).part(static_cast<std::uint64_t>(which) * slot_bytes(), slot_bytes());
    }
    std::uint64_t slot_bytes() const noexcept { return scratch.size() / 2; }
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, use.done); }

    typename Device::template buffer<unsigned char> scratch;
    typename Device::stream sums;
    typename Device::event begun;
    typename Device::event arrived[2];
    typename Device::event summed[2];
    ordered_use<Device> use;
};

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

/// Reduces floating-point sums by moving the terms to the ranks that add them. One object per call.
template <accumulation in, floating_element T, communicator Comm>
class exchange {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    static constexpr std::uint64_t unit = 16 / sizeof(T);
    static constexpr int width = static_cast<int>(device::body_bytes / sizeof(T));
    /// 1 on a GPU, so that neighbouring threads access neighbouring memory.
    static constexpr int packed_at_a_time = static_cast<int>(device::body_bytes / 16);

public:
    struct call {
        const T* send; ///< one leaf after the other
        std::uint64_t leaf_count; ///< elements in a leaf
        std::uint64_t leaves;
        std::uint32_t divisor;
    };

    exchange(Comm& comm, reduce_memory<device>& memory, const call& what, stream_ref on, call_site where)
        : comm_(comm), memory_(memory), what_(what), on_(on), where_(where),
          ranks_(static_cast<std::uint64_t>(comm.size()))
    {
    }
    exchange(const exchange&) = delete;

    /// The least memory, in bytes, for a reduction.
    static std::uint64_t least_memory(std::uint64_t ranks, std::uint64_t leaves) noexcept
    {
        return 2 * ((leaves + 2) * ranks * 16 + 64);
    }

    std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }
    std::uint64_t collectives() const noexcept { return collectives_; }

    /// For each piece: all-to-all of slices, sum on the slice's owner, all-gather.
    void all_reduce(view<T> receive)
    {
        // A padded piece needs two more runs: the copy that is sent, and all results.
        const exchange_plan plan(receive.count(), ranks_, unit, room(what_.leaves + 2));
        run(plan, [&](const exchange_plan::piece& piece, int slot) { scatter(piece, slot); },
            [&](const exchange_plan::piece& piece, int slot, stream_ref sums) {
                T* const received = memory(slot);
                T* const result = piece.padded ? results(slot, piece) : receive.data() + piece.first;
                sum({received, what_.leaves, piece.part, piece.part * ranks_},
                    result + rank() * piece.part, piece.part, sums);
            },
            [&, this](const exchange_plan::piece& piece, int slot) { gather(piece, slot, receive); });
    }

    /// All-gather of all terms, sum on every rank.
    void all_reduce_at_once(view<T> receive)
    {
        const std::uint64_t most = room(what_.leaves * ranks_);
        run(pieces_of(receive.count(), most),
            [&](const exchange_plan::piece& piece, int slot) {
                for (std::uint64_t leaf = 0; leaf < what_.leaves; ++leaf) {
                    gather_from(view<const T>(what_.send + leaf * what_.leaf_count + piece.first, piece.count),
                        view<T>(memory(slot) + leaf * ranks_ * piece.count, ranks_ * piece.count));
                }
            },
            [&](const exchange_plan::piece& piece, int slot, stream_ref sums) {
                sum({memory(slot), what_.leaves, piece.count, piece.count * ranks_}, receive.data() + piece.first,
                    piece.count, sums);
            },
            [](const exchange_plan::piece&, int) {});
    }

    /// All-to-all of slices, sum on the slice's owner.
    void reduce_scatter(view<T> receive)
    {
        const std::uint64_t most = room((what_.leaves + 1) * ranks_);
        run(pieces_of(receive.count(), most),
            [&](const exchange_plan::piece& piece, int slot) {
                const std::uint64_t run = piece.count * ranks_;
                T* const packed = memory(slot) + what_.leaves * run;
                for (std::uint64_t leaf = 0; leaf < what_.leaves; ++leaf) {
                    const T* from = what_.send + leaf * what_.leaf_count;
                    if (piece.count != receive.count()) {
                        const pack_parts<T, packed_at_a_time> pack{
                            from + piece.first, receive.count(), ranks_, piece.count, packed};
                        device::for_each(on_, pack.blocks(), pack);
                        from = packed;
                    }
                    exchange_parts(view<const T>(from, run), view<T>(memory(slot) + leaf * run, run));
                }
            },
            [&](const exchange_plan::piece& piece, int slot, stream_ref sums) {
                sum({memory(slot), what_.leaves, piece.count, piece.count * ranks_}, receive.data() + piece.first,
                    piece.count, sums);
            },
            [](const exchange_plan::piece&, int) {});
    }

private:
    std::uint64_t rank() const noexcept { return static_cast<std::uint64_t>(comm_.rank()); }
    T* memory(int slot) const noexcept { return reinterpret_cast<T*>(memory_.slot(slot).data()); }
    /// The number of elements of each of `copies` runs that fit in a slot.
    std::uint64_t room(std::uint64_t copies) const noexcept { return memory_.slot_bytes() / sizeof(T) / copies; }

    /// Cuts a buffer into pieces of up to `most` elements.
    struct pieces_of {
        std::uint64_t count;
        std::uint64_t most;
        pieces_of(std::uint64_t all, std::uint64_t room) noexcept
            : count(all), most(room > unit ? room / unit * unit : room)
        {
        }
        exchange_plan::piece next(const exchange_plan::piece& before) const noexcept
        {
            const std::uint64_t first = before.first + before.count;
            const std::uint64_t left = count - first;
            return {first, left < most ? left : most, 0, false};
        }
    };

    template <class Plan, class Send, class Add, class Finish>
    void run(const Plan& plan, const Send& send, const Add& add, const Finish& finish)
    {
        run_overlapped(memory_, on_, where_, plan, send, add, finish);
    }

    /// A slot holds the terms received, then, for a padded piece, the copy that is sent and the results.
    T* copy_to_send(int slot, const exchange_plan::piece& piece) const noexcept
    {
        return memory(slot) + what_.leaves * ranks_ * piece.part;
    }
    T* results(int slot, const exchange_plan::piece& piece) const noexcept
    {
        return memory(slot) + (what_.leaves + 1) * ranks_ * piece.part;
    }

    void scatter(const exchange_plan::piece& piece, int slot)
    {
        const std::uint64_t run = ranks_ * piece.part;
        for (std::uint64_t leaf = 0; leaf < what_.leaves; ++leaf) {
            view<const T> from(what_.send + leaf * what_.leaf_count + piece.first, piece.count);
            if (piece.padded) {
                T* const copy = copy_to_send(slot, piece);
                device::for_each(on_, run, copy_padded<T>{from, copy});
                from = view<const T>(copy, run);
            }
            exchange_parts(from, view<T>(memory(slot) + leaf * run, run));
        }
    }
    void gather(const exchange_plan::piece& piece, int slot, view<T> receive)
    {
        const std::uint64_t run = ranks_ * piece.part;
        T* const whole = piece.padded ? results(slot, piece) : receive.data() + piece.first;
        gather_from(view<const T>(whole + rank() * piece.part, piece.part), view<T>(whole, run));
        if (piece.padded) {
            device::copy(on_, view<const T>(whole, piece.count), receive.part(piece.first, piece.count), where_);
        }
    }

    void exchange_parts(view<const T> from, view<T> to)
    {
        comm_.all_to_all(from, to, on_, where_);
        bytes_sent_ += (from.count() - from.count() / ranks_) * sizeof(T);
        ++collectives_;
    }
    void gather_from(view<const T> own, view<T> whole)
    {
        comm_.all_gather(own, whole, on_, where_);
        bytes_sent_ += (ranks_ - 1) * own.count() * sizeof(T);
        ++collectives_;
    }

    void sum(const term_rows<T>& rows, T* result, std::uint64_t count, stream_ref on)
    {
        const sum_rows<in, T, width> body{rows, ranks_ * what_.leaves, result, count, what_.divisor};
        device::for_each(on, body.blocks(), body);
    }

    Comm& comm_;
    reduce_memory<device>& memory_;
    call what_;
    stream_ref on_;
    call_site where_;
    std::uint64_t ranks_;
    std::uint64_t bytes_sent_ = 0;
    std::uint64_t collectives_ = 0;
};

/// Reduces floating-point sums by the communicator's own reduction of integers.
template <floating_element T, communicator Comm>
class fixed_point {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using code = exponent_code<T>;

public:
    /// Bytes of memory per element.
    static constexpr std::uint64_t element_bytes = sizeof(std::int64_t) + sizeof(code);

    /// Cost: two messages per piece.
    static void all_reduce(Comm& comm, reduce_memory<device>& memory, const T* send, std::uint64_t leaf_count,
        std::uint64_t leaves, std::uint32_t divisor, view<T> receive, stream_ref on, call_site where)
    {
        const int term_bits = bits_for_terms(static_cast<std::uint64_t>(comm.size()) * leaves);
        const std::uint64_t room = memory.scratch.size() / element_bytes / 8 * 8;
        auto* const sums = reinterpret_cast<std::int64_t*>(memory.scratch.data());
        auto* const codes = reinterpret_cast<code*>(sums + room);
        for (std::uint64_t first = 0; first < receive.count(); first += room) {
            const std::uint64_t left = receive.count() - first;
            const std::uint64_t count = left < room ? left : room;
            device::for_each(on, count, code_exponents<T>{send + first, leaf_count, leaves, codes});
            comm.all_reduce(view<const code>(codes, count), view<code>(codes, count), reduction::max, on, where);
            device::for_each(on, count, quantise_leaves<T>{send + first, leaf_count, leaves, codes, term_bits, sums});
            comm.all_reduce(
                view<const std::int64_t>(sums, count), view<std::int64_t>(sums, count), reduction::sum, on, where);
            device::for_each(
                on, count, dequantise<T>{sums, codes, term_bits, divisor, receive.data() + first});
        }
    }

    static std::uint64_t pieces(const reduce_memory<device>& memory, std::uint64_t count) noexcept
    {
        const std::uint64_t room = memory.scratch.size() / element_bytes / 8 * 8;
        return (count + room - 1) / room;
    }
};

} // namespace collprobe::detail
