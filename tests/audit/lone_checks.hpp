// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/audit/detail/conservation_check.hpp>
#include <collprobe/audit/detail/gather_check.hpp>
#include <collprobe/comm/communicator.hpp>

/// The checks of an audit without a step around them. Synchronise the stream before they go.
namespace collprobe::testing {

/// `check.before<float>(gradient, stream, operation)`, the collective, `check.after<float>(result, out, stream)`.
template <communicator Comm>
class conservation_check {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    explicit conservation_check(Comm& comm, const conservation_options& options = {})
        : comm_(comm), check_(made(comm, options))
    {
    }
    /// `is_part`: the collective is a reduce-scatter.
    template <element T>
    void before(std::type_identity_t<view<const T>> send, stream_ref stream, reduction operation = reduction::sum,
        bool is_part = false)
    {
        const auto scope = comm_.device_scope();
        check_.clear();
        const auto target = check_.template before<T>({0, send.count(), operation, is_part}, 0);
        if constexpr (floating_element<T>) detail::enqueue_sketch<device, T>(stream, send, target);
    }
    template <element T>
    void after(std::type_identity_t<view<const T>> result, detail::conservation_result* out, stream_ref stream)
    {
        const auto scope = comm_.device_scope();
        auto& ranks = comm_.innermost();
        device::fill(stream, view<detail::conservation_result>(out, 1), {0, 0, 0, false, true});
        const auto target = check_.template after<T>(0, result.count(), ranks.rank(), 0);
        if constexpr (floating_element<T>) detail::enqueue_sketch<device, T>(stream, result, target);
        check_.end(ranks, 1, stream, [&](std::uint64_t) { return out; }, call_site::current());
    }

private:
    static detail::conservation_check<device> made(Comm& comm, const conservation_options& options)
    {
        const auto scope = comm.device_scope();
        return detail::conservation_check<device>(options, comm.size());
    }
    Comm& comm_;
    detail::conservation_check<device> check_;
};

/// `check.before<float>(shard, stream)`, the all-gather, `check.after<float>(whole, stream)`; once the stream is
/// through, `check.verdict()`.
template <communicator Comm>
class gather_check {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    explicit gather_check(Comm& comm) : gather_check(comm, comm.device_scope()) {}

    template <element T>
    void before(std::type_identity_t<view<const T>> shard, stream_ref stream)
    {
        const auto scope = comm_.device_scope();
        check_.clear();
        check_.template before<T>(0, shard, false, stream, reduces_);
    }
    template <element T>
    void after(std::type_identity_t<view<const T>> whole, stream_ref stream)
    {
        const auto scope = comm_.device_scope();
        check_.template after<T>(0, whole, stream, reduces_);
        check_.end(comm_.innermost(), 1, stream, [](std::uint64_t) { return nullptr; },
            [&, this](std::uint64_t) { return own_.data(); }, call_site::current());
        comm_.innermost().all_gather(view<const std::uint64_t>(own_), view<std::uint64_t>(all_), stream);
        device::copy(stream, view<const std::uint64_t>(view<std::uint64_t>(all_)), view<std::uint64_t>(host_));
    }
    detail::gather_verdict verdict() const
    {
        std::vector<detail::receiver_report> reports;
        for (std::size_t at = 0; at < host_.size(); at += detail::receiver_report::words) {
            reports.push_back({host_.data() + at});
        }
        return detail::judge_gather(reports);
    }

private:
    static constexpr std::uint64_t words = detail::receiver_report::words;
    template <class Scope>
    gather_check(Comm& comm, const Scope&)
        : comm_(comm), check_(comm.size()), own_(words), all_(words * static_cast<std::uint64_t>(comm.size())),
          host_(words * static_cast<std::uint64_t>(comm.size()))
    {
    }

    Comm& comm_;
    detail::gather_check<device> check_;
    typename device::workspace reduces_;
    typename device::template buffer<std::uint64_t> own_, all_;
    typename device::template host_buffer<std::uint64_t> host_;
};

} // namespace collprobe::testing
