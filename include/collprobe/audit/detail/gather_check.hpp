// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/detail/gather_verdict.hpp>
#include <collprobe/step/step_arena.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/statistics.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Checks that every rank received from the all-gathers of a step what the owners of the shards sent, by exact digests.
/// `before` digests this rank's shard. `after` digests all shards received. `end` lets the ranks exchange the owners'
/// digests, and writes this rank's `receiver_report` of each call. From the reports of all ranks `judge_gather` makes
/// the verdict.
/// There is no tolerance and no false alarm. Damage is missed with the probability stated at `digest_state`. Damage
/// that happened before `before` is not seen. Damage to a digest shows as damage of its shard.
/// Preconditions: all ranks call `before` and `after` around the same all-gathers, in place or out of place.
/// Stream behaviour: everything is enqueued; the host never waits. It allocates until a step is as large as the largest
/// before.
/// Cost of a call: one read of the shard, unless the caller has its digest, and one of the result, in one launch (one
/// for each 4,096 ranks). Cost of a step: an all-gather of 8 bytes a rank and call; for each call a launch and a copy
/// of 8 bytes.
template <class Device>
class gather_check {
public:
    using stream_ref = typename Device::stream_ref;
    using workspace = typename Device::workspace;

    explicit gather_check(int ranks) : ranks_(static_cast<std::uint64_t>(ranks)) { Device::load_kernels(); }

    void clear() noexcept
    {
        open_.clear();
        own_.clear();
        others_.clear();
    }

    /// Calls from this index on were not made in the end.
    void forget(std::uint64_t first) noexcept
    {
        for (; !open_.empty() && open_.back().call >= first; open_.pop_back()) {
            own_.take_back(open_.back().own);
        }
    }

    /// `has_digest`: the caller has the shard's digest, and gives it at the end.
    template <element T>
    void before(std::uint64_t call, view<const T> shard, bool has_digest, stream_ref stream, workspace& reduces)
    {
        open_.push_back({call, own_.take(1), others_.take(ranks_), has_digest});
        if (has_digest) return;
        Device::reduce(stream, digest_reducer<T>(shard), shard.count(), open_.back().own, reduces);
    }

    template <element T>
    void after(std::uint64_t call, view<const T> whole, stream_ref stream, workspace& reduces)
    {
        // As bytes: one kernel for all types.
        const view<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(whole.data()), whole.size_bytes());
        for (std::size_t i = open_.size(); i-- > 0;) {
            if (open_[i].call != call) continue;
            Device::reduce_parts(stream, digest_reducer<std::uint8_t>(bytes), ranks_, bytes.count() / ranks_,
                open_[i].received, reduces);
            return;
        }
    }

    /// Behind all calls of the step, of which there are `calls`. `digest_of(call)`: the digest of a shard, if
    /// the caller has it. `report_of(call)`: `receiver_report::words` words that the device writes.
    template <communicator Comm, class DigestOf, class ReportOf>
    void end(Comm& ranks, std::uint64_t calls, stream_ref stream, const DigestOf& digest_of,
        const ReportOf& report_of, call_site where)
    {
        forget(calls);
        for (const in_step& each : open_) {
            if (!each.has_digest) continue;
            const view<const std::uint64_t> known(digest_of(each.call), 1);
            Device::copy(stream, known, view<std::uint64_t>(each.own, 1), where);
        }
        own_.for_each_used([&](view<std::uint64_t> own) {
            const view<std::uint64_t> owners(others_.take(ranks_ * own.count()), ranks_ * own.count());
            ranks.all_gather(view<const std::uint64_t>(own), owners, stream, where);
            for (const in_step& each : open_) {
                const auto index = static_cast<std::uint64_t>(each.own - own.data());
                if (each.own < own.data() || index >= own.count()) continue;
                Device::sum_each(stream, 1,
                    compare_shards{owners.data() + index, own.count(), each.received, ranks_, report_of(each.call)});
            }
        });
    }

private:
    struct in_step {
        std::uint64_t call;
        std::uint64_t* own; ///< the digest of this rank's shard
        std::uint64_t* received;
        bool has_digest;
    };
    std::uint64_t ranks_;
    std::vector<in_step> open_;
    step_arena<Device, std::uint64_t> own_{64};
    step_arena<Device, std::uint64_t> others_{1024};
};

} // namespace collprobe::detail
