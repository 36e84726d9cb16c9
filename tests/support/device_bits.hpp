// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

#include "run_ranks.hpp"

/// Whether reductions on a device have the bits of those on the CPU.
namespace collprobe::testing {

/// Element `index` of a rank's input: any bits at all in every seventh (NaN, infinities and subnormal
/// numbers among them), else floating-point magnitudes over a few binades, so that rounding shows the
/// order, and every fifth a subnormal number.
template <element T>
T wild_value(int rank, std::uint64_t index)
{
    using bits_type = typename element_traits<T>::bits_type;
    const std::uint64_t bits = detail::mix64(detail::mix64(index + 1) + static_cast<std::uint64_t>(rank));
    if constexpr (floating_element<T>) {
        if (index % 7 != 0) {
            const auto sign = static_cast<bits_type>(bits & element_traits<T>::sign_mask);
            const auto fraction = static_cast<bits_type>((bits >> 7) & element_traits<T>::fraction_mask);
            if (index % 5 == 0) return detail::bit_cast<T>(static_cast<bits_type>(sign | fraction));
            const double unit = static_cast<double>(bits >> 11) * 0x1p-53 + 0.5;
            const double value = unit * detail::power_of_two(static_cast<int>(bits & 7) - 4);
            return T((bits & 256) != 0 ? value : -value);
        }
    }
    return detail::bit_cast<T>(static_cast<bits_type>(bits));
}

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

/// How many elements differ in their bits; which NaN a result is may differ.
template <element T>
std::uint64_t differences(const std::vector<T>& a, const std::vector<T>& b)
{
    std::uint64_t different = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
        if (to_bits(a[i]) != to_bits(b[i]) && !(is_nan(a[i]) && is_nan(b[i]))) ++different;
    }
    return different;
}

/// How many results of the ranks on `Device`, of all reductions, have other bits than those of `local` on the CPU.
template <class Device, element T>
std::uint64_t differing_reductions(int ranks, std::uint64_t count)
{
    std::vector<reduction_call> calls;
    for (const reduction operation :
        {reduction::sum, reduction::average, reduction::min, reduction::max, reduction::product}) {
        calls.push_back({collective::all_reduce, operation});
        calls.push_back({collective::reduce_scatter, operation});
    }
    const auto as_it_is = [](auto& world, const auto& use) { use(world); };
    return differences<T>(reduction_bits<T>(local_provider{ranks}, calls, count, 1, as_it_is),
        reduction_bits<T>(device_provider<Device>{ranks}, calls, count, 1, as_it_is));
}

} // namespace collprobe::testing
