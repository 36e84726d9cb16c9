// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/replica.hpp>

/// Of `replica_averaging`: replaces replicas of floating-point elements by their average over the ranks.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// to[i] = from[i] in another floating-point type. A body for `for_each`.
template <floating_element From, floating_element To>
struct convert_element {
    const From* from;
    To* to;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        to[index] = static_cast<To>(static_cast<float>(from[index]));
    }
};

/// Elements of float scratch memory needed to average a list: none without elements narrower than float. Larger buffers
/// are averaged in pieces.
inline std::uint64_t scratch_for(const std::vector<replica>& buffers) noexcept
{
    constexpr std::uint64_t most = std::uint64_t{1} << 20;
    std::uint64_t needed = 0;
    for (const replica& each : buffers) {
        if (bytes_of(each.type) < 4 && each.count > needed) needed = each.count;
    }
    return needed < most ? needed : most;
}

/// Memory for averages in place.
template <class Device>
struct averaging_memory {
    averaging_memory(const std::vector<replica>& buffers, std::size_t) : scratch(scratch_for(buffers)) {}
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, done); }

    typename Device::template buffer<float> scratch;
    typename Device::event done; ///< the last average
};

/// \throws error `invalid_argument` naming the first buffer that has no average.
template <communicator Comm>
void require_averages(const caller<Comm>& who, view<const replica> buffers, const char* list)
{
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        const element_type type = buffers[i].type;
        std::string wrong = std::string(" holds ") + name(type) + ", which is not floating-point";
        with_floating_type(type, [&]<class T>(T) { wrong = flaw_of_buffer(buffers[i].as<T>()); });
        if (!wrong.empty()) who.fail(status::invalid_argument, list + ("[" + std::to_string(i) + "]" + wrong));
    }
}

/// Enqueues the average of `from` over the ranks into `to` (of the same type and count; the same memory, or
/// disjoint) on `stream`. Narrow elements are sent as float, and the average is rounded once. `scratch`: at least one
/// element if there are such.
template <class Comm>
void average_replica(Comm& comm, const replica& from, const replica& to, view<float> scratch,
    stream_ref_of<Comm> stream, call_site where)
{
    using device = typename Comm::device;
    with_floating_type(from.type, [&]<class T>(T) {
        if constexpr (sizeof(T) >= sizeof(float)) {
            comm.all_reduce(view<const T>(from.as<T>()), to.as<T>(), reduction::average, stream, where);
        } else {
            for (std::uint64_t first = 0; first < from.count; first += scratch.count()) {
                const std::uint64_t left = from.count - first;
                const view<float> piece = scratch.part(0, left < scratch.count() ? left : scratch.count());
                device::for_each(stream, piece.count(),
                    convert_element<T, float>{from.as<T>().data() + first, piece.data()});
                comm.all_reduce(view<const float>(piece), piece, reduction::average, stream, where);
                device::for_each(stream, piece.count(),
                    convert_element<float, T>{piece.data(), to.as<T>().data() + first});
            }
        }
    });
}

} // namespace collprobe::detail
