// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/fault/types.hpp>

/// The random draws of faults: time, rank and place. Pure functions.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A collective as one rank sees it. Together with the draws it determines which elements a fault hits.
struct fault_target {
    collective where = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t send = 0; ///< elements that this rank sends; 0 on a rank that is not the root of a broadcast
    std::uint64_t receive = 0;
    int size = 1; ///< number of ranks
};

/// Draw number `number` of a key.
COLLPROBE_HD constexpr std::uint64_t fault_draw(std::uint64_t key, std::uint64_t number) noexcept
{
    return mix64(key + (number + 1) * 0x9e3779b97f4a7c15u);
}

/// A draw as a number in [0, 1).
constexpr double as_fraction(std::uint64_t draw) noexcept { return static_cast<double>(draw >> 11) * 0x1p-53; }

constexpr bool is_scheduled(const fault& what, std::uint64_t call) noexcept
{
    if (what.call == fault::every_call) return what.period == 0 || call % what.period == 0;
    if (call == what.call) return true;
    return what.period != 0 && call > what.call && (call - what.call) % what.period == 0;
}

/// Whether a fault strikes a rank in a call. Sets `key` to the key of its further draws.
constexpr bool strikes(const fault& what, std::uint32_t which, std::uint64_t call, int rank, int size,
    std::uint64_t& key) noexcept
{
    if (!is_scheduled(what, call)) return false;
    // If the fault hits one random rank, all ranks share one draw; otherwise each rank has its own.
    const std::uint64_t of_call = fault_draw(fault_draw(mix64(what.seed), which), call);
    const std::uint64_t of_rank = fault_draw(of_call, static_cast<std::uint64_t>(rank) + 2);
    if (what.rank == fault::random_rank) {
        if (static_cast<int>(fault_draw(of_call, 0) % static_cast<std::uint64_t>(size)) != rank) return false;
    } else if (what.rank != fault::every_rank && what.rank != rank) {
        return false;
    }
    const std::uint64_t chance = what.rank == fault::random_rank ? fault_draw(of_call, 1) : fault_draw(of_rank, 0);
    if (as_fraction(chance) >= what.probability) return false;
    key = fault_draw(of_rank, 1);
    return true;
}

/// The number of elements that a kind hits by default; the largest number stands for all.
constexpr std::uint64_t usual_elements(fault_kind kind) noexcept
{
    constexpr std::uint64_t all = ~std::uint64_t{0};
    constexpr std::uint64_t usual[] = {1, all, all, 64, 8, all, 2, all, 1, 1}; // in the order of the kinds
    return usual[static_cast<std::size_t>(kind)];
}

/// Chooses `first` and `elements` within `count` elements. Returns false if there is no room.
constexpr bool place(const fault& what, std::uint64_t key, std::uint64_t count, injection& into) noexcept
{
    const std::uint64_t wanted = what.elements != 0 ? what.elements : usual_elements(what.kind);
    if (count == 0) return false;
    const bool is_tail = what.kind == fault_kind::untouched_tail;
    const std::uint64_t stride = is_tail ? 1 : what.stride;
    const auto fit = [&](std::uint64_t from) {
        const std::uint64_t room = (count - 1 - from) / stride + 1;
        return wanted < room ? wanted : room;
    };
    into.stride = stride;
    into.elements = fit(0);
    into.first = count - into.elements; // the tail
    if (!is_tail && what.first != fault::random_place) {
        if (what.first >= count) return false;
        into.first = what.first;
        into.elements = fit(what.first);
    } else if (!is_tail) {
        const std::uint64_t last_first = count - 1 - (into.elements - 1) * stride;
        into.first = fault_draw(key, 0) % (last_first / what.alignment + 1) * what.alignment;
    }
    if (what.kind == fault_kind::swap) into.elements -= into.elements % 2;
    return into.elements != 0;
}

/// The bits to flip in an element of `width` bits; 0 if a given mask has no bit in the element.
constexpr std::uint64_t choose_bits(const fault& what, std::uint64_t key, int width) noexcept
{
    if (what.mask != 0) return width == 64 ? what.mask : what.mask & ((std::uint64_t{1} << width) - 1);
    std::uint64_t mask = 0;
    std::uint64_t number = 1;
    for (int bits = what.bits < width ? what.bits : width; bits > 0;) {
        const std::uint64_t bit = std::uint64_t{1} << (fault_draw(key, number++) % static_cast<std::uint64_t>(width));
        if ((mask & bit) != 0) continue;
        mask |= bit;
        --bits;
    }
    return mask;
}

/// Computes the effect of fault number `which` on a rank in a call; returns false if there is none.
constexpr bool plan_fault(const fault& what, std::uint32_t which, std::uint64_t call, int rank,
    const fault_target& target, injection& into) noexcept
{
    into = {};
    if (!strikes(what, which, call, rank, target.size, into.key)) return false;
    std::uint64_t count = what.phase == fault_phase::after ? target.receive : target.send;
    switch (what.kind) {
    case fault_kind::gaussian:
    case fault_kind::nan:
    case fault_kind::infinity:
        if (!is_floating(target.type)) return false;
        break;
    case fault_kind::stale:
        if (call < what.lag) return false;
        break;
    case fault_kind::duplicate_shard:
        if (target.size == 1) return false;
        if (what.phase == fault_phase::after) {
            if (target.where != collective::all_gather && target.where != collective::all_to_all) return false;
            count /= static_cast<std::uint64_t>(target.size);
        } else if (target.where == collective::broadcast) {
            return false; // the call has one sender
        }
        break;
    default: break;
    }
    into.call = call;
    into.rank = rank;
    into.kind = what.kind;
    into.phase = what.phase;
    into.where = target.where;
    into.fault = which;
    if (what.kind == fault_kind::duplicate_shard && what.phase == fault_phase::after) {
        // The fault overwrites one whole part, so its place is the place of that part.
        const auto size = static_cast<std::uint64_t>(target.size);
        const std::uint64_t part = what.first != fault::random_place ? what.first : fault_draw(into.key, 0) % size;
        into.source = what.source >= 0 ? what.source : static_cast<int>((part + 1) % size);
        if (part >= size || into.source == static_cast<int>(part) || count == 0) return false;
        into.first = part * count;
        into.elements = count;
        return true;
    }
    if (!place(what, into.key, count, into)) return false;
    if (what.kind == fault_kind::duplicate_shard) {
        into.source = what.source >= 0 ? what.source : (rank + 1) % target.size;
        return into.source != rank;
    }
    if (what.kind == fault_kind::bit_flips) {
        into.mask = choose_bits(what, into.key, 8 * bytes_of(target.type));
        return into.mask != 0;
    }
    return true;
}

} // namespace collprobe::detail
