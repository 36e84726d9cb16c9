// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/comm/local.hpp>
#include <collprobe/integrity/agreement.hpp>
#include <collprobe/integrity/periodic_averaging.hpp>
#include <collprobe/integrity/replica.hpp>
#include <collprobe/view.hpp>

namespace aggregation_faults {

/// Repair by majority as long as there is one: compares the replicas behind each step, and copies what most ranks
/// hold to the others. Where no majority exists, as when noise hits every rank, it averages every ten steps from then on.
class majority_or_average {
public:
    using communicator = collprobe::local::communicator;
    static constexpr std::uint64_t fallback_interval = 10;

    majority_or_average(communicator& comm, std::vector<collprobe::replica> replicas)
        : comm_(comm), replicas_(std::move(replicas)),
          agreement_(comm, {.max_buffers = static_cast<int>(replicas_.size())})
    {
    }

    void step(collprobe::host::stream_ref stream)
    {
        using namespace collprobe;
        if (average_) {
            (void)average_->step(stream);
            return;
        }
        bytes_ += 16 * replicas_.size() + 16;
        if (agreement_.agreed(replicas_, stream)) return;
        const agreement_verdict verdict = agreement_.locate(replicas_, stream);
        for (const disagreement& each : verdict.buffers) {
            if (each.majority) continue;
            average_.emplace(comm_, replicas_, periodic_options{.interval = fallback_interval});
            return;
        }
        for (const disagreement& each : verdict.buffers) {
            const view<std::uint8_t> bytes = replicas_[static_cast<std::size_t>(each.buffer)].bytes();
            comm_.broadcast(view<const std::uint8_t>(bytes), bytes, each.holders[0], stream);
            bytes_ += bytes.count();
        }
        ++rounds_;
    }
    void finish(collprobe::host::stream_ref stream)
    {
        if (average_) average_->average(stream);
    }

    bool fell_back() const { return average_.has_value(); }
    std::uint64_t rounds() const { return rounds_ + (average_ ? average_->rounds() : 0); }
    std::uint64_t bytes() const { return bytes_ + (average_ ? average_->bytes() : 0); }

private:
    communicator& comm_;
    std::vector<collprobe::replica> replicas_;
    collprobe::agreement<communicator> agreement_;
    std::optional<collprobe::periodic_averaging<communicator>> average_;
    std::uint64_t rounds_ = 0;
    std::uint64_t bytes_ = 0;
};

} // namespace aggregation_faults
