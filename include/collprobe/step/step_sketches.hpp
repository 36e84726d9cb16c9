// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/step_arena.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A sketch of each rank: that of rank r begins at `first + r * stride`.
struct gathered_sketch {
    const double* first = nullptr;
    std::uint64_t stride = 0;
};

/// The sketches of the inputs and results of a step's sums. Those of the inputs, and of the parts of a reduce-scatter,
/// are added over the ranks by one all-reduce at the step's end, or gathered. `Note`: what the owner keeps of a call.
/// Preconditions: all ranks open the same calls with the same sketches. Calls of the same `lane` run one after the
/// other. Stream behaviour: everything is enqueued; the host never waits. It allocates until a step is as large as the
/// largest before. Memory on the device: 32 bytes a bin and call; on a GPU each lane has 2 KiB a bin.
template <class Device, class Note>
class step_sketches {
public:
    using stream_ref = typename Device::stream_ref;

    struct entry {
        Note note;
        std::uint64_t call; ///< index in the step
        std::uint64_t bins;
        bool is_part; ///< a reduce-scatter: each rank has a part of the result
        double* of_input;
        double* of_result;
    };

    /// `most_bins`: of any sketch.
    step_sketches(std::uint64_t most_bins, std::uint64_t seed) : most_bins_(most_bins), seed_(seed)
    {
        Device::load_kernels();
    }

    void clear() noexcept
    {
        open_.clear();
        added_sums_.clear();
        own_numbers_.clear();
    }
    /// Calls from this index on were not made in the end.
    void forget(std::uint64_t first) noexcept
    {
        for (; !open_.empty() && open_.back().call >= first; open_.pop_back()) {
            added_sums_.take_back(open_.back().of_input);
        }
    }

    /// Opens a call; where the sketch of its input is to go. `shares_result`: the sketch of the result is added, or
    /// gathered, with that of the input; that of a part always is.
    sketch_target before(
        const Note& note, std::uint64_t call, std::uint64_t bins, bool is_part, int lane, bool shares_result = false)
    {
        const std::uint64_t numbers = 2 * bins;
        const bool is_shared = is_part || shares_result;
        auto* const of_input = added_sums_.take(numbers * (is_shared ? 2 : 1));
        auto* const of_result = is_shared ? of_input + numbers : own_numbers_.take(numbers);
        open_.push_back({note, call, bins, is_part, of_input, of_result});
        return {0, bins, seed_, of_input, scratch(lane)};
    }
    /// Where the sketch of the result is to go, or of this rank's part, of `count` elements. Empty if the call was not
    /// opened.
    sketch_target after(std::uint64_t call, std::uint64_t count, int rank, int lane)
    {
        for (std::size_t i = open_.size(); i-- > 0;) {
            const entry& each = open_[i];
            if (each.call != call) continue;
            const std::uint64_t first = each.is_part ? count * static_cast<std::uint64_t>(rank) : 0;
            return {first, each.bins, seed_, each.of_result, scratch(lane)};
        }
        return {};
    }

    /// Adds up over the ranks, behind all calls of the step.
    void add_up(communicator auto& ranks, stream_ref stream, call_site where)
    {
        added_sums_.for_each_used([&](view<double> sums) {
            ranks.all_reduce(view<const double>(sums), sums, reduction::sum, stream, where);
        });
    }
    /// In place of `add_up`: gathers what that would add. It takes the memory of all ranks.
    void gather(communicator auto& ranks, stream_ref stream, call_site where)
    {
        added_sums_.for_each_used([&](view<double> sums) {
            const auto n = static_cast<std::uint64_t>(ranks.size());
            gathered_piece* to = nullptr;
            for (gathered_piece& each : gathered_) {
                if (each.from == sums.data()) to = &each;
            }
            if (to == nullptr) {
                typename Device::template buffer<double> all(n * added_sums_.room_at(sums.data()));
                gathered_.push_back({sums.data(), 0, std::move(all)});
                to = &gathered_.back();
            }
            to->used = sums.count();
            ranks.all_gather(view<const double>(sums), view<double>(to->all.data(), n * to->used), stream, where);
        });
    }
    /// What was gathered of `entry::of_input` and the numbers behind it.
    gathered_sketch gathered(const double* of_input) const noexcept
    {
        for (const gathered_piece& each : gathered_) {
            const auto offset
                = reinterpret_cast<std::uintptr_t>(of_input) - reinterpret_cast<std::uintptr_t>(each.from);
            if (offset < each.used * sizeof(double)) return {each.all.data() + offset / sizeof(double), each.used};
        }
        return {};
    }
    const std::vector<entry>& open() const noexcept { return open_; }
    std::uint64_t seed() const noexcept { return seed_; }

private:
    double* scratch(int lane)
    {
        const auto index = static_cast<std::size_t>(lane);
        if (scratch_.size() <= index) scratch_.resize(index + 1);
        const std::uint64_t numbers = sketch_scratch_numbers<Device>(most_bins_); // none on the host
        if (scratch_[index].size() < numbers) scratch_[index] = typename Device::template buffer<double>(numbers);
        return scratch_[index].data();
    }

    /// A piece of `added_sums_`, of all ranks.
    struct gathered_piece {
        const double* from;
        std::uint64_t used;
        typename Device::template buffer<double> all;
    };

    std::uint64_t most_bins_;
    std::uint64_t seed_;
    std::vector<entry> open_;
    step_arena<Device, double> added_sums_{1 << 14};
    step_arena<Device, double> own_numbers_{1 << 14};
    std::vector<gathered_piece> gathered_;
    std::vector<typename Device::template buffer<double>> scratch_; ///< by lane
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
