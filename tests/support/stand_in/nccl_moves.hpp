// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>

#include "tests/support/stand_in/nccl_world.hpp"

/// What the ranks of a call get, of what all of them send: `send_of(peer)`, `factor_of(peer)`.
namespace collprobe::stand_in::nccl {

inline std::size_t result_bytes(const operation& own, int rank, int ranks)
{
    const bool whole = own.what == kind::all_gather || own.what == kind::all_to_all;
    return own.receives(rank) ? own.count * bytes_of(own.type) * (whole ? static_cast<std::size_t>(ranks) : 1) : 0;
}

template <class SendOf, class FactorOf>
void move_all(const operation& own, int rank, int ranks, SendOf send_of, FactorOf factor_of, unsigned char* result)
{
    if (!own.receives(rank)) return;
    const std::size_t part = own.count * bytes_of(own.type);
    const auto mine = static_cast<std::size_t>(rank);
    switch (own.what) {
    case kind::all_reduce:
    case kind::reduce:
    case kind::reduce_scatter:
        with_type(own.type, [&](auto zero) {
            using T = decltype(zero);
            const std::size_t first = own.what == kind::reduce_scatter ? mine * own.count : 0;
            for (std::size_t i = 0; i < own.count; ++i) {
                const auto value = [&](int peer) { return element_at<T>(send_of(peer), first + i); };
                const T reduced = reduce<T>(own.reduction, ranks, value, factor_of);
                std::memcpy(result + i * sizeof(T), &reduced, sizeof(T));
            }
        });
        break;
    case kind::all_gather:
    case kind::all_to_all:
        for (int peer = 0; peer < ranks; ++peer) {
            const unsigned char* const from = send_of(peer) + (own.what == kind::all_to_all ? mine * part : 0);
            std::memcpy(result + static_cast<std::size_t>(peer) * part, from, part);
        }
        break;
    case kind::broadcast: std::memcpy(result, send_of(own.root), part); break;
    case kind::transfers: break;
    }
}

} // namespace collprobe::stand_in::nccl
