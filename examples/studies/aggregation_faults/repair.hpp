// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>
#include <collprobe/replica/replica.hpp>
#include <collprobe/replica/replica_averaging.hpp>

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
        const repair_result result = majority_repair(agreement_, replicas_, stream);
        const auto checks = static_cast<std::uint64_t>(result.rounds) + 1;
        bytes_ += checks * (16 * replicas_.size() + 16) + result.bytes;
        rounds_ += static_cast<std::uint64_t>(result.rounds);
        if (!result.majority) average_.emplace(comm_, replicas_, every{.steps = fallback_interval});
    }
    void finish(collprobe::host::stream_ref stream)
    {
        if (average_) average_->finish(stream);
    }

    bool fell_back() const { return average_.has_value(); }
    std::uint64_t rounds() const { return rounds_ + (average_ ? average_->rounds() : 0); }
    /// Those of the search for who differs, a few KiB at each repair, not counted.
    std::uint64_t bytes() const { return bytes_ + (average_ ? average_->bytes() : 0); }

private:
    communicator& comm_;
    std::vector<collprobe::replica> replicas_;
    collprobe::agreement<communicator> agreement_;
    std::optional<collprobe::replica_averaging<communicator, collprobe::every>> average_;
    std::uint64_t rounds_ = 0;
    std::uint64_t bytes_ = 0;
};

} // namespace aggregation_faults
