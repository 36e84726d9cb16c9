// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The calls of a communicator in which all ranks take part. (`barrier` and `split` move no data, so a probed call
/// never is one of them.)
enum class collective : std::uint8_t {
    all_reduce,
    reduce_scatter,
    all_gather,
    all_to_all,
    broadcast,
    barrier,
    split,
};

constexpr const char* name(collective call) noexcept
{
    switch (call) {
    case collective::all_reduce: return "all_reduce";
    case collective::reduce_scatter: return "reduce_scatter";
    case collective::all_gather: return "all_gather";
    case collective::all_to_all: return "all_to_all";
    case collective::broadcast: return "broadcast";
    case collective::barrier: return "barrier";
    case collective::split: return "split";
    }
    return "unknown";
}

/// The function that a reduction computes of the n values of an element. `average` is the sum over n, as NCCL defines
/// it. For integers it is the sum, then a truncating division; for floating point each value times 1/n, then the sum.
enum class reduction : std::uint8_t { sum, average, min, max, product };

constexpr const char* name(reduction operation) noexcept
{
    switch (operation) {
    case reduction::sum: return "sum";
    case reduction::average: return "average";
    case reduction::min: return "min";
    case reduction::max: return "max";
    case reduction::product: return "product";
    }
    return "unknown";
}

/// The color of a rank that joins no part of a `split`.
inline constexpr int no_color = -1;

} // namespace collprobe
