// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The ways to order a copy and the all-gather that reads it, for the benchmarks on either device.
#include <cstdint>
#include <vector>

#include <collprobe/guard/copy_then_all_gather.hpp>

namespace collprobe::bench {

enum class ordering { unordered, events_by_hand, guarded, guarded_buffers, stream_synchronized, device_synchronized };
inline constexpr int orderings = 6;

constexpr const char* name(ordering how)
{
    constexpr const char* names[orderings]
        = {"unordered", "events by hand", "guarded", "guarded buffers", "stream synchronised", "device synchronised"};
    return names[static_cast<int>(how)];
}

/// A shard on its way: copied on the producer's stream, gathered on another, read on a third.
template <class Comm>
struct shard_on_its_way {
    using device = typename Comm::device;

    explicit shard_on_its_way(std::uint64_t count, std::uint64_t ranks) : source(count), shard(count), full(count * ranks) {}

    /// Enqueues copy and gather. (The guarded buffers have the copy on the stream of the gather.)
    void step(Comm& comm, ordering how)
    {
        const view<const float> from(source.data(), source.size());
        const view<float> to = shard.memory();
        const auto gather = [&] { comm.all_gather(view<const float>(to), full.memory(), communication); };
        if (how != ordering::guarded_buffers) device::copy(producer, from, to);
        switch (how) {
        case ordering::unordered: return gather();
        case ordering::events_by_hand:
            copied.record(producer);
            communication.wait(copied);
            gather();
            gathered.record(communication);
            consumer.wait(gathered);
            return;
        case ordering::guarded:
            copy_then_all_gather(to, full.memory(), comm, communication, {producer}, {consumer});
            return;
        case ordering::guarded_buffers:
            copy_then_all_gather(from, full, comm, communication, {producer}, {consumer}, {.shard = &shard});
            return;
        case ordering::stream_synchronized:
            producer.synchronize();
            gather();
            communication.synchronize();
            return;
        case ordering::device_synchronized:
            synchronize();
            gather();
            synchronize();
            return;
        }
    }
    void synchronize() const
    {
        producer.synchronize();
        communication.synchronize();
        consumer.synchronize();
    }

    typename device::template buffer<float> source;
    guarded<device, float> shard, full;
    typename device::event copied, gathered;
    typename device::stream producer, communication, consumer;
};

} // namespace collprobe::bench
