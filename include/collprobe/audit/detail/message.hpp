// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <collprobe/audit/detail/judge.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/arrival_keys.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>

/// The messages of an audited step, and the memory for them.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct audit_header {
    std::uint64_t step;
    std::uint32_t calls;
    std::uint32_t serial; ///< 1 for the first step that the rank ended, and so on: older reports have other numbers

    friend bool operator==(const audit_header&, const audit_header&) = default;
};
static_assert(std::is_trivially_copyable_v<audit_entry> && sizeof(audit_entry) % 8 == 0);

COLLPROBE_HD constexpr std::uint64_t audit_bytes(std::uint64_t call_count) noexcept
{
    return sizeof(audit_header) + call_count * sizeof(audit_entry);
}

/// The summary of a call, to be reduced with max: O(1) bytes for any number of ranks.
struct audit_keys {
    std::uint64_t digest;
    std::uint64_t digest_complement;
    std::uint64_t residual; ///< the bits of the largest residual / limit; for numbers >= 0 bits order as values
    std::uint64_t checked; ///< 1 if any rank could check the sum
};
/// The summary of the step.
struct audit_step_keys {
    std::uint64_t step;
    std::uint64_t step_complement;
    arrival_keys arrival;
};
static_assert(sizeof(audit_keys) == 4 * sizeof(std::uint64_t) && sizeof(audit_step_keys) == 4 * sizeof(std::uint64_t));

COLLPROBE_HD constexpr std::uint64_t audit_key_count(std::uint64_t call_count) noexcept { return 4 + 4 * call_count; }

/// Index 0 writes the step's keys, index b + 1 those of call b.
struct pack_audit {
    const unsigned char* message;
    int rank;
    int ranks;
    std::uint64_t* keys;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        const auto& header = *reinterpret_cast<const audit_header*>(message);
        if (index == 0) {
            *reinterpret_cast<audit_step_keys*>(keys)
                = {header.step, ~header.step, arrival_keys::of(header.serial, rank, ranks)};
            return;
        }
        const std::uint64_t b = index - 1;
        const audit_entry& entry = reinterpret_cast<const audit_entry*>(message + sizeof(audit_header))[b];
        // For integers every distance above 0 is too large.
        const double exact = entry.sum.residual > 0 ? power_of_two(1000) : 0;
        const double ratio = entry.sum.limit > 0 ? entry.sum.residual / entry.sum.limit : exact;
        const std::uint64_t checked = entry.sum.checked ? 1 : 0;
        *reinterpret_cast<audit_keys*>(keys + audit_key_count(b))
            = {entry.digest, ~entry.digest, checked * to_bits(ratio), checked};
    }
};

struct write_audit_header {
    unsigned char* message;
    audit_header value;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        *reinterpret_cast<audit_header*>(message) = value;
    }
};

/// The facts about an audited call that are known before it runs.
struct audited_call {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t count = 0;
    bool by_shards = false; ///< judged by a `gather_verdict`

    /// Whether all ranks should receive the same bits.
    bool is_replicated() const noexcept { return call != collective::reduce_scatter; }
};

/// Judges a call by its summary: whether it was damaged, not on which rank. A residual is in units of its limit.
inline void judge_audit_keys(const audit_keys& keys, int call_index, call_audit& out, step_audit& step)
{
    out.agree = keys.digest == ~keys.digest_complement;
    out.majority = out.agree;
    out.sum_checked = keys.checked != 0;
    out.residual = bit_cast<double>(keys.residual);
    out.residual_limit = out.sum_checked ? 1 : 0;
    out.conserved = out.residual <= 1;
    out.culprits.clear();
    out.where = out.agree && out.conserved ? damage::none : out.agree ? damage::reduce : damage::unknown;
    if (!out.agree) step.suspects.push_back({.call = call_index, .what = finding::result_differs, .statistic = 2});
    if (!out.conserved) {
        step.suspects.push_back(
            {.call = call_index, .what = finding::sum_differs, .statistic = out.residual, .threshold = 1});
    }
}

/// A step from its first call until it is judged.
template <class Device>
struct audit_in_flight {
    audit_in_flight(std::uint64_t room, std::uint64_t ranks, report_mode mode)
        : calls(room),
          message(audit_bytes(room)),
          report(report_bytes(room, ranks, mode)),
          host(report_bytes(room, ranks, mode)),
          gathers(room),
          host_gathers(room)
    {
    }
    static std::uint64_t report_bytes(std::uint64_t room, std::uint64_t ranks, report_mode mode) noexcept
    {
        return mode == report_mode::gather ? ranks * audit_bytes(room) : 8 * audit_key_count(room);
    }
    audit_entry& entry(std::uint64_t call_index) const noexcept
    {
        return reinterpret_cast<audit_entry*>(message.data() + sizeof(audit_header))[call_index];
    }
    /// Rank r's message in the report.
    const audit_header& header(std::size_t rank) const noexcept
    {
        return *reinterpret_cast<const audit_header*>(host.data() + rank * audit_bytes(call_count));
    }
    const audit_entry& reported(std::size_t rank, std::uint64_t call_index) const noexcept
    {
        return reinterpret_cast<const audit_entry*>(&header(rank) + 1)[call_index];
    }
    const std::uint64_t* keys() const noexcept { return reinterpret_cast<const std::uint64_t*>(host.data()); }

    std::vector<audited_call> calls;
    std::uint64_t call_count = 0;
    std::uint64_t unaudited = 0;
    std::uint64_t step = 0;
    call_site where;
    typename Device::template buffer<unsigned char> message; ///< an `audit_header`, then entries
    typename Device::template buffer<unsigned char> report; ///< the messages of all ranks, or keys
    typename Device::template host_buffer<unsigned char> host; ///< the copy of `report` on the host
    typename Device::template buffer<gather_verdict> gathers; ///< one entry per call, used by all-gathers
    typename Device::template host_buffer<gather_verdict> host_gathers;
    std::uint64_t gathered = 0; ///< number of calls judged by shards
    typename Device::event done;
};

/// All memory that enqueued work uses.
template <class Device>
struct audit_memory {
    audit_memory(int steps, std::uint64_t room, std::uint64_t ranks, report_mode mode)
    {
        ring.reserve(static_cast<std::size_t>(steps));
        const typename Device::stream stream;
        for (int i = 0; i < steps; ++i) {
            ring.emplace_back(room, ranks, mode);
            // The memory may hold a report of an object that was freed.
            Device::zero(stream, view<unsigned char>(ring.back().report));
            std::memset(ring.back().host.data(), 0, ring.back().host.size());
        }
        stream.synchronize();
    }
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, last); }

    std::vector<audit_in_flight<Device>> ring; ///< the k-th step uses slot k % size
    typename Device::workspace workspace;
    typename Device::event last; ///< end of the last call or report; each waits for the one before
};

} // namespace collprobe::detail
