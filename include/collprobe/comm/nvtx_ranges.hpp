// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/intercepting_adaptor.hpp>
#include <collprobe/comm/reduction_extras.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#if !defined(COLLPROBE_NVTX) || COLLPROBE_NVTX
#include <collprobe/comm/detail/cuda/nvtx.hpp>
#endif

/// 1: `nvtx_ranges` makes ranges; 0: it only forwards, and NVTX's headers are not included. The default is 1 where the
/// compiler finds headers that know payloads, which CUDA toolkits have in their include folder.
#if !defined(COLLPROBE_NVTX)
#if defined(NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID)
#define COLLPROBE_NVTX 1
#else
#define COLLPROBE_NVTX 0
#endif
#endif

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// Nobody listens.
class no_tool {
public:
    explicit constexpr no_tool(std::uint64_t) noexcept {}
    static constexpr bool listens() noexcept { return false; }
    static auto enter(collective, std::uint64_t, std::int32_t) noexcept
    {
        struct range {
            ~range() {} // a guard in the eyes of compilers, which warn of unused variables
        };
        return range{};
    }
};

#if COLLPROBE_NVTX
using tool_at_hand = nvtx_tool;
#else
using tool_at_hand = no_tool;
#endif

/// Equal on all ranks.
template <communicator Comm>
std::uint64_t hash_of_communicator(const Comm& comm)
{
    std::uint64_t hash = mix64(static_cast<std::uint64_t>(comm.size()));
    for (const char each : name_of(comm)) hash = mix64(hash + static_cast<unsigned char>(each));
    return hash;
}

} // namespace detail

/// A communicator whose collectives show as ranges in Nsight Systems and other tools that read NVTX, in the domain
/// `collprobe`: `nvtx_ranges comm(world);`. It satisfies the communicator concept; README.md of this folder says more.
///
/// A range has the name of the call ("all_reduce") and lasts as long as the call on the calling thread: of calls that
/// enqueue work, the time to enqueue it. Its payload is the communicator's number, the message size in bytes as NCCL
/// counts it (for `all_gather`, `reduce_scatter` and `all_to_all` that of one rank's part), then the reduction or the
/// root. An exception ends the range.
/// Beneath `probed` it shows the collectives alone, around it the probes with them.
/// Linking: with NVTX, older systems need `-ldl`.
/// Cost: without a tool a branch for each call; with one, what the tool takes.
/// `Tool`: not for users. It keeps files with and without NVTX apart.
template <communicator Comm, class Tool = detail::tool_at_hand>
class nvtx_ranges : public detail::intercepting_adaptor<nvtx_ranges<Comm, Tool>, Comm> {
    using base_type = detail::intercepting_adaptor<nvtx_ranges, Comm>;
    friend base_type;
    using base_type::comm_;

public:
    using typename base_type::stream_ref;

    /// Takes the communicator over. `number` stands for it in the payloads; 0: a hash of its name and size, so that
    /// communicators that differ in neither look alike.
    explicit nvtx_ranges(Comm comm, std::uint64_t number = 0)
        : base_type(std::move(comm)), tool_(number != 0 ? number : detail::hash_of_communicator(comm_))
    {
    }

    using base_type::all_reduce;
    using base_type::reduce_scatter;
    /// Reductions with leaves or a Gram matrix, if the wrapped communicator has them.
    template <element T>
        requires detail::has_all_reduce_with_extras<Comm, T>
    reduction_outcome all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, const reduction_extras& extras, call_site where = call_site::current())
    {
        return in_range(detail::arguments_of<collective::all_reduce>(send, receive, operation),
            [&, this] { return comm_.all_reduce(send, receive, operation, stream, extras, where); });
    }
    template <element T>
        requires detail::has_reduce_scatter_with_extras<Comm, T>
    reduction_outcome reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, const reduction_extras& extras, call_site where = call_site::current())
    {
        return in_range(detail::arguments_of<collective::reduce_scatter>(send, receive, operation),
            [&, this] { return comm_.reduce_scatter(send, receive, operation, stream, extras, where); });
    }
    void barrier(stream_ref stream, call_site where = call_site::current())
        requires has_barrier<Comm>
    {
        in_range({.call = collective::barrier}, [&, this] { comm_.barrier(stream, where); });
    }
    /// A part of the wrapped communicator, not wrapped.
    auto split(int color, int key, call_site where = call_site::current())
        requires has_split<Comm>
    {
        return in_range({.call = collective::split}, [&, this] { return comm_.split(color, key, where); });
    }

    // Nothing here has work behind a call, so calls may be collected.
    template <class C = Comm>
        requires has_group_scope<C>
    auto group_scope(call_site where = call_site::current()) const
    {
        return comm_.group_scope(where);
    }
    template <class C = Comm>
        requires has_follow_group<C>
    bool follow_group(group_follower& follower) const
    {
        return comm_.follow_group(follower);
    }

private:
    template <class Call>
    decltype(auto) in_range(const detail::collective_arguments& with, const Call& call)
    {
        if (!tool_.listens()) return call();
        const std::uint64_t bytes = detail::agreed_count(with, comm_.size()) * with.element_bytes();
        const int extra = with.call == collective::broadcast ? with.root : static_cast<int>(with.operation);
        const auto range = tool_.enter(with.call, bytes, extra);
        return call();
    }
    template <element T>
    void around(const detail::collective_arguments& with, view<const T> send, view<T>, stream_ref, call_site,
        detail::forward_call<T> forward)
    {
        in_range(with, [&] { forward(send); });
    }

    [[no_unique_address]] Tool tool_;
};

template <class Comm>
nvtx_ranges(Comm) -> nvtx_ranges<Comm>;
template <class Comm>
nvtx_ranges(Comm, std::uint64_t) -> nvtx_ranges<Comm>;

} // namespace collprobe
