// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <collprobe/c/detail/probe.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>

/// The probe around NCCL. Included where the kernels are compiled.
namespace collprobe::inline COLLPROBE_ABI::c {

namespace {

/// The message of a step travels by NCCL, on the stream that ends it.
struct caller_streams {
    cuda::stream_ref of(collprobeStream_t on) const noexcept { return on; }
    cuda::stream_ref exchange(collprobeStream_t on) const noexcept { return on; }
};

class nccl_probe : public probe_of<nccl::communicator_ref, caller_streams> {
public:
    nccl_probe(ncclComm_t comm, const char* name, const probe_options& options)
        : probe_of(options, caller_streams(), comm, settings_of(name), call_site{})
    {
    }

    void all_reduce(const buffer& send, void* receive, reduction operation, call_site where,
        collprobeStream_t on) override
    {
        collprobe::detail::with_type(send.type, [&, this]<class T>(T) {
            probe_.all_reduce(send.as<T>(), view<T>(static_cast<T*>(receive), send.count), operation,
                streams_.of(on), where);
        });
    }
    void reduce_scatter(const buffer& send, void* receive, reduction operation, call_site where,
        collprobeStream_t on) override
    {
        const auto size = static_cast<std::uint64_t>(ranks());
        collprobe::detail::with_type(send.type, [&, this]<class T>(T) {
            const view<const T> all(static_cast<const T*>(send.data), send.count * size);
            probe_.reduce_scatter(
                all, view<T>(static_cast<T*>(receive), send.count), operation, streams_.of(on), where);
        });
    }
    void all_gather(const buffer& send, void* receive, call_site where, collprobeStream_t on) override
    {
        const auto size = static_cast<std::uint64_t>(ranks());
        collprobe::detail::with_type(send.type, [&, this]<class T>(T) {
            const view<T> all(static_cast<T*>(receive), send.count * size);
            probe_.all_gather(send.as<T>(), all, streams_.of(on), where);
        });
    }
    void copy_then_all_gather(const buffer& source, void* destination, std::uint64_t slot_count, call_site where,
        collprobeStream_t on, view<const collprobeStream_t> producers, view<const collprobeStream_t> consumers) override
    {
        const auto size = static_cast<std::uint64_t>(ranks());
        const std::vector<cuda::stream_ref> before(producers.begin(), producers.end());
        const std::vector<cuda::stream_ref> behind(consumers.begin(), consumers.end());
        collprobe::detail::with_type(source.type, [&, this]<class T>(T) {
            collprobe::copy_then_all_gather(source.as<T>(), view<T>(static_cast<T*>(destination), slot_count * size),
                probe_, streams_.of(on), before, behind, {}, where);
        });
    }

private:
    static nccl::options settings_of(const char* name)
    {
        nccl::options settings;
        if (name[0] != '\0') settings.name = name;
        return settings;
    }
};

/// The groups that the calling thread has open.
std::deque<nccl::group>& open_groups()
{
    static thread_local std::deque<nccl::group> open;
    return open;
}

} // namespace
} // namespace collprobe::c

namespace collprobe::inline COLLPROBE_ABI {

c::any_probe* c::make_nccl_probe(collprobeNcclComm_t comm, const char* name, const probe_options& options)
{
    return new nccl_probe(comm, name, options);
}

void c::start_group() { open_groups().emplace_back(call_site{}); }

void c::end_group()
{
    collprobe::detail::require(
        !open_groups().empty(), "", "no collprobeGroupStart of this thread before it", call_site{});
    struct forget_last {
        ~forget_last() { open_groups().pop_back(); }
    } const at_exit;
    open_groups().back().end(call_site{});
}

} // namespace collprobe
