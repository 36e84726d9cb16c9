// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/step_arena.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What a receiver of an all-gather finds of its shards.
struct shard_report {
    struct shard {
        std::uint64_t owner;
        std::uint64_t digest; ///< of what came
    };
    std::uint64_t wrong; ///< shards that are not as their owners sent them
    shard first[3]; ///< of them, by owner

    COLLPROBE_HD static constexpr std::uint64_t most() noexcept { return sizeof(first) / sizeof(shard); }
    std::uint64_t listed() const noexcept { return wrong < most() ? wrong : most(); }
    bool has(std::uint64_t owner, std::uint64_t digest) const noexcept
    {
        for (std::uint64_t i = 0; i < listed(); ++i)
            if (first[i].owner == owner && first[i].digest == digest) return true;
        return false;
    }
};

/// Compares the digests of the shards that a rank received with those of their owners. A body for `sum_each` with one
/// item; the sum is the number of wrong shards, nearly always 0.
struct compare_shards {
    const std::uint64_t* owners; ///< one digest per rank, at distances of `stride`
    std::uint64_t stride;
    const std::uint64_t* received;
    std::uint64_t ranks;
    shard_report* report;

    COLLPROBE_HD double part(std::uint64_t, unsigned lane, unsigned lanes) const noexcept
    {
        double wrong = 0;
        for (std::uint64_t rank = lane; rank < ranks; rank += lanes) wrong += is_right(rank) ? 0 : 1;
        return wrong;
    }
    COLLPROBE_HD void store(std::uint64_t, double wrong) const noexcept
    {
        *report = {static_cast<std::uint64_t>(wrong), {}};
        if (report->wrong == 0) return;
        std::uint64_t listed = 0;
        for (std::uint64_t rank = 0; rank < ranks && listed < shard_report::most(); ++rank)
            if (!is_right(rank)) report->first[listed++] = {rank, received[rank]};
    }

private:
    COLLPROBE_HD bool is_right(std::uint64_t rank) const noexcept { return owners[rank * stride] == received[rank]; }
};

/// Checks that every rank received from the all-gathers of a step what the owners of the shards sent, by exact digests:
/// the ranks exchange those of the owners, and each writes its `shard_report` of each call. From the reports of all
/// ranks `audit_judge` makes the verdict.
/// There is no tolerance and no false alarm. Damage is missed with the probability stated at `digest_state`. Damage
/// that happened before `before` is not seen. Damage to a digest shows as damage of its shard.
/// Preconditions: all ranks make the same all-gathers, in place or out of place. Calls and steps are as a part sees
/// them. Stream behaviour: everything is enqueued; the host never waits. It allocates until a step is as large as the
/// largest before.
/// Cost of a call: one read of the shard, unless the step has its digest, and one of the result, in one launch (one
/// for each 4,096 ranks). Cost of a step: an all-gather of 8 bytes a rank and call; for each call a launch and a copy
/// of 8 bytes.
template <class Device>
class gather_check {
public:
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
        for (; !open_.empty() && open_.back().call >= first; open_.pop_back()) own_.take_back(open_.back().own);
    }
    template <element T, class Call>
    void before(const Call& call, view<const T> shard)
    {
        // Elements that come out of codes are not those of the shard: of such a gather only agreement is checked. So it
        // is with an observed one unless the step tells which ranks have the result.
        if (call.what() != collective::all_gather || call.mode() != report_mode::gather || call.is_quantised()
            || (call.is_observed() && !call.has_result_digest()))
            return;
        if (open_.size() == open_.capacity()) open_.reserve(2 * open_.size() + 8);
        auto* const received = others_.take(ranks_);
        open_.push_back({call.index(), own_.take(1), received, call.has_input_digest()}); // taken last, as all ranks do
        if (!call.has_input_digest()) call.reduce(digest_reducer<T>(shard), shard.count(), open_.back().own);
    }
    /// Returns whether the call is one that is checked.
    template <element T, class Call>
    bool after(const Call& call, view<const T> whole)
    {
        // As bytes: one kernel for all types.
        const view<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(whole.data()), whole.size_bytes());
        for (std::size_t i = open_.size(); i-- > 0;) {
            if (open_[i].call < call.index()) break;
            if (open_[i].call != call.index()) continue;
            Device::reduce_parts(call.stream(), digest_reducer<std::uint8_t>(bytes), ranks_, bytes.count() / ranks_,
                open_[i].received, call.workspace());
            return true;
        }
        return false;
    }
    /// Behind all calls of the step. `report_of(call)`: the `shard_report` that the device writes.
    template <class Step, class ReportOf>
    void end(const Step& step, const ReportOf& report_of)
    {
        for (const in_step& each : open_) {
            if (!each.has_digest) continue;
            const view<const std::uint64_t> known(step.input_digest(each.call), 1);
            Device::copy(step.stream(), known, view<std::uint64_t>(each.own, 1), step.where());
        }
        own_.for_each_used([&, this](view<std::uint64_t> own) {
            const view<std::uint64_t> owners(others_.take(ranks_ * own.count()), ranks_ * own.count());
            step.ranks().all_gather(view<const std::uint64_t>(own), owners, step.stream(), step.where());
            for (const in_step& each : open_) {
                const auto index = static_cast<std::uint64_t>(each.own - own.data());
                if (each.own < own.data() || index >= own.count()) continue;
                Device::sum_each(step.stream(), 1,
                    compare_shards{owners.data() + index, own.count(), each.received, ranks_, report_of(each.call)});
            }
        });
    }

private:
    struct in_step {
        std::uint64_t call;
        std::uint64_t* own; ///< the digest of this rank's shard
        std::uint64_t* received;
        bool has_digest; ///< the step has it
    };

    std::uint64_t ranks_;
    std::vector<in_step> open_;
    step_arena<Device, std::uint64_t> own_{64};
    step_arena<Device, std::uint64_t> others_{1024};
};

} // namespace collprobe::detail
