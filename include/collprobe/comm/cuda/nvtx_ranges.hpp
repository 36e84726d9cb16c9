// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA toolkits have NVTX's headers in their include folder. Without them this file declares nothing.
#if __has_include(<nvtx3/nvToolsExt.h>)

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <nvtx3/nvToolsExt.h>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/collective_arguments.hpp>
#include <collprobe/comm/intercepting_adaptor.hpp>
#include <collprobe/comm/reduction_extras.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

/// The domain `collprobe` of this process, and the registered names of its ranges.
class nvtx_domain {
public:
    /// Null if no tool is loaded.
    static const nvtx_domain* of_process()
    {
        static const nvtx_domain one;
        return one.domain_ == nullptr ? nullptr : &one;
    }

    void push(collective call, std::uint64_t bytes) const noexcept
    {
        nvtxEventAttributes_t range{};
        range.version = NVTX_VERSION;
        range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
        range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        range.message.registered = names_[static_cast<std::size_t>(call)];
        range.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
        range.payload.ullValue = bytes;
        nvtxDomainRangePushEx(domain_, &range);
    }
    void pop() const noexcept { nvtxDomainRangePop(domain_); }

private:
    nvtx_domain() noexcept : domain_(nvtxDomainCreateA("collprobe"))
    {
        if (domain_ == nullptr) return;
        for (std::size_t i = 0; i < names_.size(); ++i) {
            names_[i] = nvtxDomainRegisterStringA(domain_, name(static_cast<collective>(i)));
        }
    }

    nvtxDomainHandle_t domain_;
    std::array<nvtxStringHandle_t, 7> names_{}; ///< by `collective`
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
class nvtx_ranges : public detail::intercepting_adaptor<nvtx_ranges<Comm>, Comm> {
    using base_type = detail::intercepting_adaptor<nvtx_ranges, Comm>;
    friend base_type;
    using base_type::comm_;

public:
    using base_type::base_type;
    using typename base_type::stream_ref;

    using base_type::all_reduce;
    using base_type::reduce_scatter;
    /// Reductions with leaves, if the wrapped communicator has them.
    template <element T>
        requires detail::has_all_reduce_with_extras<Comm, T>
    reduction_outcome all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, const reduction_extras& extras, call_site where = call_site::current())
    {
        const range lasting(detail::arguments_of<collective::all_reduce>(send, receive, operation), comm_.size());
        return comm_.all_reduce(send, receive, operation, stream, extras, where);
    }
    template <element T>
        requires detail::has_reduce_scatter_with_extras<Comm, T>
    reduction_outcome reduce_scatter(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, const reduction_extras& extras, call_site where = call_site::current())
    {
        const range lasting(detail::arguments_of<collective::reduce_scatter>(send, receive, operation), comm_.size());
        return comm_.reduce_scatter(send, receive, operation, stream, extras, where);
    }
    void barrier(stream_ref stream, call_site where = call_site::current())
        requires has_barrier<Comm>
    {
        const range lasting({.call = collective::barrier}, comm_.size());
        comm_.barrier(stream, where);
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
    class range {
    public:
        range(const detail::collective_arguments& with, int size) : domain_(detail::nvtx_domain::of_process())
        {
            if (domain_ == nullptr) return;
            domain_->push(with.call, detail::agreed_count(with, size) * with.element_bytes());
        }
        range(const range&) = delete;
        ~range()
        {
            if (domain_ != nullptr) domain_->pop();
        }

    private:
        const detail::nvtx_domain* domain_; ///< null: nobody listens
    };

    template <element T>
    void around(const detail::collective_arguments& with, view<const T> send, view<T>, stream_ref, call_site,
        detail::forward_call<T> forward)
    {
        const range lasting(with, comm_.size());
        forward(send);
    }
};

template <class Comm>
nvtx_ranges(Comm) -> nvtx_ranges<Comm>;

} // namespace collprobe
#endif
