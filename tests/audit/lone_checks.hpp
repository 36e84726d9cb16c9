// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include <collprobe/audit/detail/conservation_check.hpp>
#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/step/part.hpp>

/// The checks of an audit without a step around them. Synchronise the stream before they go.
namespace collprobe::testing {

/// A single call as a part sees it, which is also the step of it.
template <class Comm>
struct lone_call {
    using inner = std::remove_reference_t<decltype(std::declval<Comm&>().innermost())>;
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    explicit lone_call(Comm& of) : comm(of.innermost()) {}
    const lone_call& on(stream_ref stream)
    {
        on_stream.emplace(stream);
        return *this;
    }

    inner& ranks() const noexcept { return comm; }
    stream_ref stream() const noexcept { return *on_stream; }
    call_site where() const noexcept { return {}; }
    std::uint64_t calls() const noexcept { return 1; }
    std::uint64_t index() const noexcept { return 0; }
    int lane() const noexcept { return 0; }
    collective what() const noexcept { return facts.call; }
    reduction operation() const noexcept { return facts.operation; }
    element_type type() const noexcept { return facts.type; }
    std::uint64_t count() const noexcept { return facts.count; }
    bool has_leaves() const noexcept { return facts.has_leaves; }
    bool is_sum() const noexcept { return facts.is_sum(); }
    bool is_observed() const noexcept { return facts.is_observed; }
    bool is_quantised() const noexcept { return false; }
    report_mode mode() const noexcept { return report_mode::gather; }
    bool has_input_digest() const noexcept { return false; }
    bool has_result_digest() const noexcept { return false; }
    const std::uint64_t* input_digest(std::uint64_t) const noexcept { return nullptr; }
    typename device::workspace& workspace() const noexcept { return reduces; }
    void reduce(const auto& reducer, std::uint64_t count, auto* to) const
    {
        device::reduce(*on_stream, reducer, count, to, reduces);
    }

    inner& comm;
    detail::probed_call facts;
    std::optional<stream_ref> on_stream;
    mutable typename device::workspace reduces;
};

/// `check.before<float>(gradient, stream, operation)`, the collective, `check.after<float>(result, out, stream)`.
template <communicator Comm>
class conservation_check {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    explicit conservation_check(Comm& comm, const conservation_options& options = {})
        : conservation_check(comm, options, comm.device_scope())
    {
    }
    /// `is_part`: the collective is a reduce-scatter.
    template <element T>
    void before(std::type_identity_t<view<const T>> send, stream_ref stream, reduction operation = reduction::sum,
        bool is_part = false)
    {
        const auto scope = comm_.device_scope();
        check_.clear();
        call_.facts.call = is_part ? collective::reduce_scatter : collective::all_reduce;
        call_.facts.operation = operation;
        call_.facts.count = send.count();
        const auto target = check_.template before<T>(call_.on(stream));
        if constexpr (floating_element<T>) detail::enqueue_sketch<device, T>(stream, send, target);
    }
    template <element T>
    void after(std::type_identity_t<view<const T>> result, detail::conservation_result* out, stream_ref stream)
    {
        const auto scope = comm_.device_scope();
        device::fill(stream, view<detail::conservation_result>(out, 1), {0, 0, 0, false, true});
        const auto target = check_.after(call_.on(stream), result.count());
        if constexpr (floating_element<T>) detail::enqueue_sketch<device, T>(stream, result, target);
        check_.end(call_, [&](std::uint64_t) { return out; });
    }

private:
    template <class Scope>
    conservation_check(Comm& comm, const conservation_options& options, const Scope&)
        : comm_(comm), call_(comm), check_(options, comm.size())
    {
    }
    Comm& comm_;
    lone_call<Comm> call_;
    detail::conservation_check<device> check_;
};

/// What an audit says of one call.
struct verdict {
    step_record record;

    const call_record& call() const { return record.calls.at(0); }
    const std::vector<int>& culprits() const { return call().audit.culprits; }
    /// Of an all-gather: no shard is damaged.
    bool intact() const { return call().results_agree && record.findings.empty(); }
    /// Shards, counted at each receiver.
    std::uint64_t damaged() const
    {
        return intact() ? 0 : static_cast<std::uint64_t>(record.findings.at(0).statistic);
    }
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
        check_.template before<T>(call_.on(stream), shard);
    }
    template <element T>
    void after(std::type_identity_t<view<const T>> whole, stream_ref stream)
    {
        const auto scope = comm_.device_scope();
        check_.template after<T>(call_.on(stream), whole);
        check_.end(call_,
            [&, this](std::uint64_t) { return reinterpret_cast<detail::shard_report*>(own_.data()); });
        comm_.innermost().all_gather(view<const std::uint64_t>(own_), view<std::uint64_t>(all_), stream);
        device::copy(stream, view<const std::uint64_t>(view<std::uint64_t>(all_)), view<std::uint64_t>(host_));
    }
    testing::verdict verdict() const
    {
        std::vector<detail::audit_entry> entries(static_cast<std::size_t>(comm_.size()));
        for (std::size_t r = 0; r < entries.size(); ++r)
            entries[r].shards = reinterpret_cast<const detail::shard_report*>(host_.data())[r];
        testing::verdict made;
        made.record.calls.resize(1);
        detail::audit_judge(comm_.size()).judge_shards(entries, 0, made.record);
        return made;
    }

private:
    static constexpr std::uint64_t words = sizeof(detail::shard_report) / sizeof(std::uint64_t);
    template <class Scope>
    gather_check(Comm& comm, const Scope&)
        : comm_(comm), call_(comm), check_(comm.size()), own_(words),
          all_(words * static_cast<std::uint64_t>(comm.size())), host_(words * static_cast<std::uint64_t>(comm.size()))
    {
        call_.facts.call = collective::all_gather;
    }

    Comm& comm_;
    lone_call<Comm> call_;
    detail::gather_check<device> check_;
    typename device::template buffer<std::uint64_t> own_, all_;
    typename device::template host_buffer<std::uint64_t> host_;
};

} // namespace collprobe::testing
