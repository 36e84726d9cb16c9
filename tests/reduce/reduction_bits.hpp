// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "support/device_bits.hpp"

/// The results of reductions under a contract, to be compared between devices.
namespace collprobe::testing {

/// An all-reduce of `count` elements or a reduce-scatter of as many as the ranks share.
struct reduction_call {
    collective what;
    reduction operation;
};

/// What all ranks get of the calls, one behind the other, of `count` elements with `leaves`. `with_reducer(world, use)`
/// calls `use(comm)` with the reducer.
template <element T, class Provider, class With>
std::vector<T> reduction_bits(const Provider& provider, const std::vector<reduction_call>& calls, std::uint64_t count,
    std::uint64_t leaves, const With& with_reducer)
{
    const auto ranks = static_cast<std::uint64_t>(provider.size());
    const std::uint64_t part = count / ranks;
    std::uint64_t per_rank = 0;
    for (const reduction_call& each : calls) per_rank += each.what == collective::all_reduce ? count : part;
    std::vector<T> all(ranks * per_rank);
    provider.run([&](auto& world) {
        using device = typename std::remove_reference_t<decltype(world)>::device;
        const auto guard = world.device_scope();
        const auto rank = static_cast<std::uint64_t>(world.rank());
        typename device::template host_buffer<T> staging(leaves * count);
        typename device::template host_buffer<T> result(per_rank);
        typename device::template buffer<T> send(leaves * count);
        typename device::template buffer<T> receive(per_rank);
        const typename device::stream stream;
        with_reducer(world, [&](auto& comm) {
            for (std::uint64_t i = 0; i < staging.size(); ++i) staging[i] = wild_value<T>(world.rank(), i);
            device::template fill<unsigned char>(stream,
                view<unsigned char>(reinterpret_cast<unsigned char*>(receive.data()), per_rank * sizeof(T)), 0);
            device::template copy<T>(stream, view<const T>(staging), view<T>(send));
            const reduction_extras extras{leaves};
            std::uint64_t at = 0;
            for (const reduction_call& each : calls) {
                if (each.what == collective::all_reduce) {
                    comm.all_reduce(
                        view<const T>(send), view<T>(receive).part(at, count), each.operation, stream, extras);
                    at += count;
                } else {
                    comm.reduce_scatter(view<const T>(send).part(0, leaves * ranks * part),
                        view<T>(receive).part(at, part), each.operation, stream, extras);
                    at += part;
                }
            }
            device::template copy<T>(stream, view<const T>(receive), view<T>(result));
            stream.synchronize(60'000);
        });
        std::memcpy(static_cast<void*>(all.data() + rank * per_rank), result.data(), per_rank * sizeof(T));
    });
    return all;
}

} // namespace collprobe::testing
