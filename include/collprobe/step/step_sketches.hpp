// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/step_arena.hpp>

/// The sketches of what the calls of a step sum, and of the sums, for parts that check these.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// At most so many bins, and with more than 64 at least 16 of `count` elements in each.
constexpr std::uint32_t sketch_bins(std::uint32_t most, std::uint64_t count) noexcept
{
    std::uint32_t bins = 64;
    while (bins < most && 2 * bins <= count / 16) bins *= 2;
    return bins;
}

/// A sketch of each rank: that of rank r begins at `first + r * stride`.
struct gathered_sketch {
    const double* first = nullptr;
    std::uint64_t stride = 0;
};

/// Base of what checks sums: the sketches of the inputs and results of a step's calls. Those of the inputs, and of the
/// parts of a reduce-scatter, are added over the ranks by one all-reduce at the step's end, or gathered.
/// A check opens the calls that it looks at, with a `Note` and a number of bins, and judges `opened` at the end.
/// Preconditions: all ranks open the same calls with the same sketches. Calls and steps are as a part sees them.
/// Stream behaviour: everything is enqueued; the host never waits. It allocates until a step is as large as the
/// largest before. Memory on the device: 32 bytes a bin and call; on a GPU each lane has 2 KiB a bin.
template <class Device, class Note>
class step_sketches {
public:
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
        everyone_.clear();
        gathered_.clear();
    }
    /// Calls from this index on were not made in the end.
    void forget(std::uint64_t first) noexcept
    {
        for (; !open_.empty() && open_.back().call >= first; open_.pop_back())
            added_sums_.take_back(open_.back().of_input);
    }

    /// Where the sketch of the result is to go, or of this rank's part, of `count` elements. Empty if the call was not
    /// opened.
    template <class Call>
    sketch_target after(const Call& call, std::uint64_t count)
    {
        for (std::size_t i = open_.size(); i-- > 0;) {
            const entry& each = open_[i];
            if (each.call < call.index()) break;
            if (each.call != call.index()) continue;
            const std::uint64_t first = each.is_part ? count * static_cast<std::uint64_t>(call.ranks().rank()) : 0;
            return {first, each.bins, seed_, each.of_result, scratch(call.lane())};
        }
        return {};
    }

protected:
    /// Opens a call; where the sketch of its input is to go. `shares_result`: the sketch of the result is added, or
    /// gathered, with that of the input; that of a part always is.
    template <class Call>
    sketch_target open(const Call& call, const Note& note, std::uint64_t bins, bool shares_result = false)
    {
        const std::uint64_t numbers = 2 * bins;
        const bool is_part = call.what() == collective::reduce_scatter;
        const bool is_shared = is_part || shares_result;
        // What all ranks must have alike is taken last: a rank repeats a call in which an allocation failed.
        auto* const free = scratch(call.lane());
        auto* const own = is_shared ? nullptr : own_numbers_.take(numbers);
        if (open_.size() == open_.capacity()) open_.reserve(2 * open_.size() + 8);
        auto* const of_input = added_sums_.take(numbers * (is_shared ? 2 : 1));
        open_.push_back({note, call.index(), bins, is_part, of_input, is_shared ? of_input + numbers : own});
        return {0, bins, seed_, of_input, free};
    }
    const std::vector<entry>& opened() const noexcept { return open_; }

    /// Adds up over the ranks, behind all calls of the step.
    template <class Step>
    void add_up(Step& step)
    {
        added_sums_.for_each_used([&](view<double> sums) {
            step.ranks().all_reduce(view<const double>(sums), sums, reduction::sum, step.stream(), step.where());
        });
    }
    /// In place of `add_up`: gathers what that would add. It takes the memory of all ranks.
    template <class Step>
    void gather(Step& step)
    {
        added_sums_.for_each_used([&](view<double> sums) {
            const std::uint64_t numbers = sums.count() * static_cast<std::uint64_t>(step.ranks().size());
            const view<double> all(everyone_.take(numbers), numbers);
            gathered_.push_back({sums, all.data()});
            step.ranks().all_gather(view<const double>(sums), all, step.stream(), step.where());
        });
    }
    /// What was gathered of `entry::of_input` and the numbers behind it.
    gathered_sketch gathered(const double* of_input) const noexcept
    {
        for (const gathered_piece& each : gathered_) {
            if (overlap(each.from.data(), each.from.size_bytes(), of_input, sizeof(double)))
                return {each.all + (of_input - each.from.data()), each.from.count()};
        }
        return {};
    }

private:
    double* scratch(int lane)
    {
        const auto index = static_cast<std::size_t>(lane);
        if (scratch_.size() <= index) scratch_.resize(index + 1);
        const std::uint64_t numbers = sketch_scratch_numbers<Device>(most_bins_); // none on the host
        if (scratch_[index].size() < numbers) scratch_[index] = typename Device::template buffer<double>(numbers);
        return scratch_[index].data();
    }

    /// What was taken of a piece of `added_sums_`, and that of all ranks.
    struct gathered_piece {
        view<const double> from;
        const double* all;
    };

    std::uint64_t most_bins_;
    std::uint64_t seed_;
    std::vector<entry> open_;
    step_arena<Device, double> added_sums_{1 << 14};
    step_arena<Device, double> own_numbers_{1 << 14};
    step_arena<Device, double> everyone_{1 << 14};
    std::vector<gathered_piece> gathered_;
    std::vector<typename Device::template buffer<double>> scratch_; ///< by lane
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
