// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/fault/types.hpp>

/// Which faults are possible, and their random draws: time, rank and place. Pure functions.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The reason why a fault is impossible with `size` ranks; empty if it is possible.
inline std::string what_is_wrong(const fault& each, int size)
{
    const auto no_rank = [size](const char* member, int value, const char* or_else) {
        return std::string(member) + " is " + std::to_string(value) + ": expected 0 <= " + member + " < "
            + std::to_string(size) + ", or " + or_else;
    };
    const bool is_duplicate = each.kind == fault_kind::duplicate_shard;
    if (each.kind > fault_kind::infinity) return "kind is no fault_kind";
    if (each.phase > fault_phase::after) return "phase is no fault_phase";
    if (each.rank < fault::random_rank || each.rank >= size) {
        return no_rank("rank", each.rank, "every_rank or random_rank");
    }
    // Test the bits first: comparisons with NaN are meaningless under -ffast-math.
    if (!is_finite(each.probability) || each.probability < 0 || each.probability > 1) {
        return "probability is not between 0 and 1";
    }
    if (each.stride == 0) return "stride is 0";
    if (each.alignment == 0) return "alignment is 0";
    if (each.bits < 1 || each.bits > 64) return "bits is not between 1 and 64";
    if (!is_finite(each.magnitude)) return "magnitude is not finite";
    if (each.kind == fault_kind::gaussian && each.magnitude < 0) return "magnitude is a variance, and negative";
    if (each.kind == fault_kind::untouched_tail && each.phase != fault_phase::after) {
        return "an untouched tail is one of the result: phase must be after";
    }
    if (each.kind == fault_kind::untouched_tail && each.elements > 4096) return "more than 4096 elements of a tail";
    if (each.kind == fault_kind::swap && each.elements % 2 != 0) return "an odd number of elements to swap";
    if (each.kind == fault_kind::stale && (each.lag == 0 || each.lag > 4096)) return "lag is not between 1 and 4096";
    if (is_duplicate && (each.source < -1 || each.source >= size)) return no_rank("source", each.source, "-1");
    if (is_duplicate && each.phase != fault_phase::after && each.source >= 0 && each.source == each.rank) {
        return "source is the rank itself";
    }
    return {};
}

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
