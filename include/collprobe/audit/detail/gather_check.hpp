// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/audit/detail/gather_verdict.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/digest_reducer.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Checks that every rank received from an all-gather what the owners of the shards sent, by exact digests. `before`
/// digests this rank's shard. `after` digests all shards received, lets the ranks exchange the owners' digests, and
/// writes this rank's `receiver_report`. From the reports of all ranks `judge_gather` makes the verdict.
/// There is no tolerance and no false alarm. Damage is missed with probability 2^-62 or less (`digest_state`). Damage
/// that happened before `before` is not seen. Damage to a digest shows as damage of its shard.
/// Preconditions: all ranks call both around the same all-gather, in place or out of place; one such pair at a time.
/// Stream behaviour: everything is enqueued; the host neither waits nor allocates.
/// Cost: one read of the shard and one of the result (a launch for each shard), and an all-gather of 8 bytes a rank.
template <class Device>
class gather_check {
public:
    using stream_ref = typename Device::stream_ref;

    /// Allocates.
    explicit gather_check(int ranks)
        : own_(1), owners_(static_cast<std::uint64_t>(ranks)), received_(static_cast<std::uint64_t>(ranks))
    {
        Device::load_kernels();
    }

    template <element T>
    void before(view<const T> shard, stream_ref stream, typename Device::workspace& reduces)
    {
        Device::reduce(stream, digest_reducer<T>{shard}, shard.count(), own_.data(), reduces);
    }

    /// `report`: `receiver_report::words` words that the device writes.
    template <element T, communicator Comm>
    void after(Comm& ranks, view<const T> whole, stream_ref stream, typename Device::workspace& reduces,
        std::uint64_t* report, call_site where)
    {
        const std::uint64_t shards = owners_.size();
        const std::uint64_t count = whole.count() / shards;
        for (std::uint64_t rank = 0; rank < shards; ++rank) {
            Device::reduce(stream, digest_reducer<T>{whole.part(rank * count, count)}, count,
                received_.data() + rank, reduces);
        }
        ranks.all_gather(view<const std::uint64_t>(own_), view<std::uint64_t>(owners_), stream, where);
        Device::sum_each(stream, 1, compare_shards{owners_.data(), received_.data(), shards, report});
    }

private:
    typename Device::template buffer<std::uint64_t> own_; ///< the digest of this rank's shard
    typename Device::template buffer<std::uint64_t> owners_;
    typename Device::template buffer<std::uint64_t> received_;
};

} // namespace collprobe::detail
