// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA toolkits have NVTX's headers in their include folder. Without them this file declares nothing.
#if __has_include(<nvtx3/nvToolsExt.h>)

#include <array>
#include <cstddef>

#include <nvtx3/nvToolsExt.h>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The domain `collprobe` of this process, and the registered names of its ranges.
struct nvtx_names {
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("collprobe"); ///< null if no tool is loaded
    std::array<nvtxStringHandle_t, static_cast<std::size_t>(collective::split) + 1> of{}; ///< by `collective`

    static const nvtx_names& of_process()
    {
        static const nvtx_names one;
        return one;
    }

private:
    nvtx_names() noexcept
    {
        for (std::size_t i = 0; domain != nullptr && i < of.size(); ++i)
            of[i] = nvtxDomainRegisterStringA(domain, name(static_cast<collective>(i)));
    }
};

/// A range of the calling thread, while it lives. Nothing without a tool.
class nvtx_range {
public:
    nvtx_range(collective what, std::uint64_t bytes) : names_(nvtx_names::of_process())
    {
        if (names_.domain == nullptr) return;
        nvtxEventAttributes_t range{};
        range.version = NVTX_VERSION;
        range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
        range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        range.message.registered = names_.of[static_cast<std::size_t>(what)];
        range.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
        range.payload.ullValue = bytes;
        nvtxDomainRangePushEx(names_.domain, &range);
    }
    nvtx_range(const nvtx_range&) = delete;
    ~nvtx_range()
    {
        if (names_.domain != nullptr) nvtxDomainRangePop(names_.domain);
    }

private:
    const nvtx_names& names_;
};

} // namespace detail

/// A communicator whose collectives show as ranges in Nsight Systems and other tools that read NVTX, in the domain
/// `collprobe`: `nvtx_ranges comm(world);`. It satisfies the communicator concept.
///
/// A range has the name of the call ("all_reduce") and lasts as long as the call on the calling thread: of calls that
/// enqueue work, the time to enqueue it. Its payload is the message size in bytes as NCCL counts it (for `all_gather`,
/// `reduce_scatter` and `all_to_all` that of one rank's part). An exception ends the range.
/// Beneath `probed` it shows the collectives alone, around it the probes with them.
/// Linking: older systems need `-ldl`.
/// Cost: without a tool a branch for each call; with one, what the tool takes.
template <communicator Comm>
class nvtx_ranges : public adaptor<nvtx_ranges<Comm>, Comm> {
    using base_type = adaptor<nvtx_ranges, Comm>;
    using base_type::comm_;

public:
    using base_type::base_type;
    using typename base_type::stream_ref;

    template <element T>
    outcome_of<Comm, T> make(const collective_call& call, stream_ref stream)
    {
        const detail::nvtx_range lasting(call.what, detail::agreed_count(call, comm_.size()) * call.element_bytes());
        return comm_.template make<T>(call, stream);
    }

    // Nothing here has work behind a call, so calls may be collected.
    auto group_scope(call_site where = call_site::current()) const { return comm_.group_scope(where); }
    bool follow_group(group_follower& follower) const { return comm_.follow_group(follower); }
};

template <class Comm>
nvtx_ranges(Comm) -> nvtx_ranges<Comm>;

} // namespace collprobe
#endif
