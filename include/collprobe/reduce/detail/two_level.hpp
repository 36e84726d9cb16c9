// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/reduce/detail/exchange.hpp>
#include <collprobe/reduce/detail/exchange_plan.hpp>
#include <collprobe/reduce/detail/partial_form.hpp>
#include <collprobe/sum/partial_rows.hpp>
#include <collprobe/sum/sum_rows.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Part k of a copy is part `at[k]`.
struct parts_by_table {
    const std::uint32_t* at;
    COLLPROBE_HD std::uint64_t operator()(std::uint64_t k) const noexcept { return at[k]; }
};
/// Rows of `columns` parts each become columns: the copy has first the first part of each row.
struct parts_transposed {
    std::uint64_t rows;
    std::uint64_t columns;
    COLLPROBE_HD std::uint64_t operator()(std::uint64_t k) const noexcept { return k % rows * columns + k / rows; }
};

/// Reduces floating-point sums in two levels. A buffer has a slice for each rank, in the order of the local ranks, and
/// for each of those in the order of the nodes. (A reduce-scatter reads the ranks' parts in that order.) For each
/// piece:
/// 1. all-to-all within the node: local rank l gets the slices of all ranks with that local rank;
/// 2. the sums of the node's terms of these slices, as `partial_form` has them;
/// 3. all-to-all across the nodes: each rank gets the nodes' sums of its own slice;
/// 4. the sum of those, node after node, divided and rounded once;
/// 5. for an all-reduce, all-gathers across the nodes and then within the node.
/// The bits of an element do not depend on its slice or piece. One object per call.
template <accumulation in, floating_element T, communicator Comm, class Groups>
class two_level {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using partial = partial_sums<in, T>;
    using number = typename partial::number;
    static constexpr std::uint64_t unit = 16 / sizeof(T);
    template <class Element>
    static constexpr int width = static_cast<int>(device::body_bytes / sizeof(Element));
    static constexpr int packed_at_a_time = static_cast<int>(device::body_bytes / 16);

public:
    struct call {
        const T* send; ///< one leaf after the other
        std::uint64_t leaf_count; ///< elements in a leaf
        std::uint64_t leaves;
        std::uint32_t divisor;
    };

    two_level(Groups& groups, reduce_memory<device>& memory, const call& what, stream_ref on, call_site where)
        : groups_(groups), memory_(memory), what_(what), on_(on), where_(where),
          nodes_(static_cast<std::uint64_t>(groups.nodes())),
          node_ranks_(static_cast<std::uint64_t>(groups.ranks_per_node())),
          form_(partial::form(node_terms(), ranks() * what.leaves)),
          partial_bytes_(partial::bytes(form_, node_terms()))
    {
    }
    two_level(const two_level&) = delete;

    std::uint64_t bytes_within() const noexcept { return bytes_within_; }
    std::uint64_t bytes_across() const noexcept { return bytes_across_; }
    std::uint64_t collectives() const noexcept { return collectives_; }

    void all_reduce(view<T> receive)
    {
        const exchange_plan plan(receive.count(), ranks(), unit, largest_part() * ranks());
        run(plan, [&, this](const exchange_plan::piece& piece, int slot) { scatter(piece, slot); },
            [&, this](const exchange_plan::piece& piece, int slot) { return own_slice(piece, slot, receive); },
            [&, this](const exchange_plan::piece& piece, int slot, stream_ref on) {
                gather_across(piece, slot, receive, on);
            },
            [&, this](const exchange_plan::piece& piece, int slot) { gather_within(piece, slot, receive); });
    }

    void reduce_scatter(view<T> receive)
    {
        run(parts_plan{receive.count(), largest_part() / unit * unit},
            [&, this](const exchange_plan::piece& piece, int slot) { scatter_parts(piece, slot, receive.count()); },
            [&](const exchange_plan::piece& piece, int) { return receive.data() + piece.first; },
            [](const exchange_plan::piece&, int, stream_ref) {}, [](const exchange_plan::piece&, int) {});
    }

    /// Enough memory, in bytes, for any accumulator and element type.
    static std::uint64_t least_memory(std::uint64_t nodes, std::uint64_t node_ranks, std::uint64_t leaves) noexcept
    {
        const std::uint64_t node_terms = node_ranks * leaves * 16;
        const std::uint64_t numbers = 16 * sizeof(double);
        // Of `unit` elements: no form has more.
        const std::uint64_t partial = node_terms > numbers ? node_terms : numbers;
        return 2 * (nodes * node_ranks * (leaves + 1) * 16 + 2 * nodes * partial + (regions + 1) * alignment);
    }

private:
    static constexpr std::uint64_t regions = 4;
    static constexpr std::uint64_t alignment = 64;

    /// Cuts the ranks' parts of a reduce-scatter into pieces.
    struct parts_plan {
        std::uint64_t count;
        std::uint64_t most;
        exchange_plan::piece next(const exchange_plan::piece& before) const noexcept
        {
            const std::uint64_t first = before.first + before.count;
            const std::uint64_t left = count - first;
            const std::uint64_t here = left < most ? left : most;
            return {first, here, here, false};
        }
    };

    std::uint64_t ranks() const noexcept { return nodes_ * node_ranks_; }
    std::uint64_t node_terms() const noexcept { return node_ranks_ * what_.leaves; }
    std::uint64_t own_slice_index() const noexcept
    {
        return static_cast<std::uint64_t>(groups_.local_rank()) * nodes_ + static_cast<std::uint64_t>(groups_.node());
    }

    // A slot holds the copy that is sent and later the results, then the terms received, the node's sums, and the sums
    // received.
    std::uint64_t largest_part() const noexcept
    {
        return (memory_.slot_bytes() - regions * alignment)
            / (ranks() * (what_.leaves + 1) * sizeof(T) + 2 * nodes_ * partial_bytes_);
    }
    static constexpr std::uint64_t aligned(std::uint64_t bytes) noexcept
    {
        return (bytes + alignment - 1) / alignment * alignment;
    }
    T* copy(int slot) const noexcept { return reinterpret_cast<T*>(memory_.slot(slot).data()); }
    T* received(int slot, std::uint64_t part) const noexcept
    {
        return reinterpret_cast<T*>(memory_.slot(slot).data() + aligned(ranks() * part * sizeof(T)));
    }
    unsigned char* node_sums(int slot, std::uint64_t part) const noexcept
    {
        return reinterpret_cast<unsigned char*>(received(slot, part))
            + aligned(what_.leaves * ranks() * part * sizeof(T));
    }
    unsigned char* received_sums(int slot, std::uint64_t part) const noexcept
    {
        return node_sums(slot, part) + aligned(nodes_ * part * partial_bytes_);
    }

    void scatter(const exchange_plan::piece& piece, int slot)
    {
        for (std::uint64_t leaf = 0; leaf < what_.leaves; ++leaf) {
            view<const T> from(what_.send + leaf * what_.leaf_count + piece.first, piece.count);
            if (piece.padded) {
                device::for_each(on_, ranks() * piece.part, copy_padded<T>{from, copy(slot)});
                from = view<const T>(copy(slot), ranks() * piece.part);
            }
            exchange_within(from, slot, piece.part, leaf);
        }
    }
    void scatter_parts(const exchange_plan::piece& piece, int slot, std::uint64_t whole_part)
    {
        for (std::uint64_t leaf = 0; leaf < what_.leaves; ++leaf) {
            const pack_parts<T, packed_at_a_time, parts_by_table> pack{
                what_.send + leaf * what_.leaf_count + piece.first, whole_part, ranks(), piece.part, copy(slot),
                {memory_.rank_of_slice.data()}};
            device::for_each(on_, pack.blocks(), pack);
            exchange_within(view<const T>(copy(slot), ranks() * piece.part), slot, piece.part, leaf);
        }
    }
    void exchange_within(view<const T> from, int slot, std::uint64_t part, std::uint64_t leaf)
    {
        const std::uint64_t run = ranks() * part;
        groups_.within_node().all_to_all(from, view<T>(received(slot, part) + leaf * run, run), on_, where_);
        bytes_within_ += (node_ranks_ - 1) * nodes_ * part * sizeof(T);
        ++collectives_;
    }

    /// Where this rank's slice of the results goes.
    T* own_slice(const exchange_plan::piece& piece, int slot, view<T> receive) const noexcept
    {
        return whole(piece, slot, receive) + own_slice_index() * piece.part;
    }
    T* whole(const exchange_plan::piece& piece, int slot, view<T> receive) const noexcept
    {
        return piece.padded ? copy(slot) : receive.data() + piece.first;
    }
    /// The results of this rank's local rank in all nodes.
    view<T> slices(const exchange_plan::piece& piece, int slot, view<T> receive) const noexcept
    {
        const std::uint64_t first = static_cast<std::uint64_t>(groups_.local_rank()) * nodes_ * piece.part;
        return {whole(piece, slot, receive) + first, nodes_ * piece.part};
    }
    void gather_across(const exchange_plan::piece& piece, int slot, view<T> receive, stream_ref on)
    {
        groups_.across_nodes().all_gather(view<const T>(own_slice(piece, slot, receive), piece.part),
            slices(piece, slot, receive), on, where_);
        bytes_across_ += (nodes_ - 1) * piece.part * sizeof(T);
        ++collectives_;
    }
    void gather_within(const exchange_plan::piece& piece, int slot, view<T> receive)
    {
        T* const all = whole(piece, slot, receive);
        const view<const T> own(slices(piece, slot, receive));
        groups_.within_node().all_gather(own, view<T>(all, ranks() * piece.part), on_, where_);
        bytes_within_ += (node_ranks_ - 1) * own.size_bytes();
        ++collectives_;
        if (piece.padded) {
            device::copy(on_, view<const T>(all, piece.count), receive.part(piece.first, piece.count), where_);
        }
    }

    void sum_within(const exchange_plan::piece& piece, int slot, stream_ref on)
    {
        const std::uint64_t part = piece.part;
        const std::uint64_t slices = nodes_ * part;
        const term_rows<T> rows{received(slot, part), what_.leaves, slices, ranks() * part};
        unsigned char* const to = node_sums(slot, part);
        const auto enqueue = [&](const auto& body) { device::for_each(on, body.blocks(), body); };
        if constexpr (in == accumulation::compensated) {
            enqueue(sum_rows_to_pairs<T, width<T>>{
                rows, node_terms(), reinterpret_cast<typename partial::pair*>(to), part, nodes_});
        } else if constexpr (in != accumulation::exact) {
            enqueue(sum_rows<in, T, width<T>, number>{rows, node_terms(), reinterpret_cast<number*>(to), slices, 1});
        } else if (form_ == partial_form::terms) {
            enqueue(pack_parts<T, packed_at_a_time, parts_transposed>{received(slot, part), part,
                nodes_ * node_terms(), part, reinterpret_cast<T*>(to), {node_terms(), nodes_}});
        } else if (form_ == partial_form::words) {
            enqueue(sum_rows_to_words<T>{rows, node_terms(), reinterpret_cast<std::uint32_t*>(to), part, nodes_});
        } else if constexpr (partial::number_is_exact(1)) {
            enqueue(sum_rows<accumulation::float64, T, width<T>, number>{
                rows, node_terms(), reinterpret_cast<number*>(to), slices, 1});
        }
    }
    void exchange_across(const exchange_plan::piece& piece, int slot, stream_ref on)
    {
        switch (form_) {
        case partial_form::number: return exchange_sums<number>(piece.part, slot, on);
        case partial_form::pair: return exchange_sums<typename partial::pair>(piece.part, slot, on);
        case partial_form::terms: return exchange_sums<T>(piece.part, slot, on);
        case partial_form::words: return exchange_sums<std::uint32_t>(piece.part, slot, on);
        }
    }
    template <class Element>
    void exchange_sums(std::uint64_t part, int slot, stream_ref on)
    {
        const std::uint64_t count = nodes_ * part * partial_bytes_ / sizeof(Element);
        groups_.across_nodes().all_to_all(
            view<const Element>(reinterpret_cast<const Element*>(node_sums(slot, part)), count),
            view<Element>(reinterpret_cast<Element*>(received_sums(slot, part)), count), on, where_);
        bytes_across_ += (nodes_ - 1) * part * partial_bytes_;
        ++collectives_;
    }
    void sum_across(const exchange_plan::piece& piece, int slot, T* result, stream_ref on)
    {
        const std::uint64_t part = piece.part;
        const unsigned char* const from = received_sums(slot, part);
        const auto enqueue = [&](const auto& body) { device::for_each(on, body.blocks(), body); };
        if constexpr (in == accumulation::compensated) {
            enqueue(sum_rows_of_pairs<T, width<T>>{
                reinterpret_cast<const typename partial::pair*>(from), nodes_, result, part, what_.divisor});
        } else if constexpr (in != accumulation::exact) {
            enqueue(sum_rows<in, number, width<number>, T>{
                {reinterpret_cast<const number*>(from), 1, part, 0}, nodes_, result, part, what_.divisor});
        } else if (form_ == partial_form::terms) {
            enqueue(sum_rows<in, T, width<T>>{{reinterpret_cast<const T*>(from), 1, part, 0}, nodes_ * node_terms(),
                result, part, what_.divisor});
        } else if (form_ == partial_form::words) {
            enqueue(sum_rows_of_words<T>{
                reinterpret_cast<const std::uint32_t*>(from), nodes_, result, part, what_.divisor});
        } else if constexpr (partial::number_is_exact(1)) {
            enqueue(sum_rows_of_exact_doubles<T, width<double>>{
                reinterpret_cast<const double*>(from), nodes_, result, part, what_.divisor});
        }
    }

    /// Overlaps pieces: while sums of one piece are computed, messages of another one are in transit. For each piece:
    /// `scatter`, the sums within, the messages across, the sums across into `result`, `gather_across`,
    /// `gather_within`. A buffer of one piece uses no other stream.
    template <class Plan, class Scatter, class Result, class Across, class Within>
    void run(const Plan& plan, const Scatter& scatter, const Result& result, const Across& gather_across,
        const Within& gather_within)
    {
        const exchange_plan::piece piece = plan.next({});
        const exchange_plan::piece next = plan.next(piece);
        if (next.count == 0) {
            scatter(piece, 0);
            sum_within(piece, 0, on_);
            exchange_across(piece, 0, on_);
            sum_across(piece, 0, result(piece, 0), on_);
            gather_across(piece, 0, on_);
            gather_within(piece, 0);
            return;
        }
        const stream_ref sums = memory_.sums;
        const stream_ref network = memory_.network ? stream_ref(*memory_.network) : on_;
        memory_.begun.record(on_);
        sums.wait(memory_.begun, where_);
        if (memory_.network) network.wait(memory_.begun, where_);
        const auto join = [&, this](stream_ref other, typename device::event& end) {
            try { // work that waits for the call's stream must also wait for the other streams
                end.record(other);
                on_.wait(end, where_);
            } catch (...) { // the first error is the informative one
            }
        };
        try {
            run_in_pieces(plan, piece, next, sums, network, scatter, result, gather_across, gather_within);
        } catch (...) {
            join(sums, memory_.summed[0]);
            if (memory_.network) join(network, memory_.crossed[0]);
            throw;
        }
    }
    template <class Plan, class Scatter, class Result, class Across, class Within>
    void run_in_pieces(const Plan& plan, const exchange_plan::piece& first, const exchange_plan::piece& second,
        stream_ref sums, stream_ref network, const Scatter& scatter, const Result& result,
        const Across& gather_across, const Within& gather_within)
    {
        // Two pieces are on their way, one in each slot.
        exchange_plan::piece in_slot[2] = {first, second};
        const auto compute_behind = [&, this](stream_ref messages, int slot, const auto& enqueue) {
            memory_.arrived[slot].record(messages);
            sums.wait(memory_.arrived[slot], where_);
            enqueue();
            memory_.summed[slot].record(sums);
        };
        const auto begin = [&, this](int slot) {
            scatter(in_slot[slot], slot);
            compute_behind(on_, slot, [&, this] { sum_within(in_slot[slot], slot, sums); });
        };
        const auto cross = [&, this](int slot) {
            network.wait(memory_.summed[slot], where_);
            exchange_across(in_slot[slot], slot, network);
            compute_behind(network, slot,
                [&, this] { sum_across(in_slot[slot], slot, result(in_slot[slot], slot), sums); });
        };
        const auto finish = [&, this](int slot) {
            network.wait(memory_.summed[slot], where_);
            gather_across(in_slot[slot], slot, network);
            if (memory_.network) {
                memory_.crossed[slot].record(network);
                on_.wait(memory_.crossed[slot], where_);
            }
            gather_within(in_slot[slot], slot);
        };
        begin(0);
        begin(1);
        exchange_plan::piece last = second;
        while (in_slot[0].count != 0) {
            for (int slot = 0; slot < 2; ++slot) {
                if (in_slot[slot].count != 0) cross(slot);
            }
            for (int slot = 0; slot < 2; ++slot) {
                if (in_slot[slot].count == 0) continue;
                finish(slot);
                in_slot[slot] = last.count != 0 ? plan.next(last) : exchange_plan::piece{};
                last = in_slot[slot];
                if (last.count != 0) begin(slot);
            }
        }
    }

    Groups& groups_;
    reduce_memory<device>& memory_;
    call what_;
    stream_ref on_;
    call_site where_;
    std::uint64_t nodes_;
    std::uint64_t node_ranks_;
    partial_form form_;
    std::uint64_t partial_bytes_;
    std::uint64_t bytes_within_ = 0;
    std::uint64_t bytes_across_ = 0;
    std::uint64_t collectives_ = 0;
};

} // namespace collprobe::detail
