// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/detail/step_arena.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/one_read.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A sum whose result is checked.
struct checked_sum {
    std::uint64_t call = 0; ///< index in the step
    std::uint64_t count = 0; ///< elements of the whole result
    reduction operation = reduction::sum;
    bool is_part = false; ///< a reduce-scatter: each rank has a part of the result
};

/// The bins of a sketch of a sum: at most `conservation_options::sketch`, and at least `rows` elements in each. An
/// average of integers has all bins, because the limit of its check grows with the elements of a bin.
template <element T>
constexpr std::uint32_t bins_for(const checked_sum& sum, const conservation_options& options) noexcept
{
    const std::uint32_t most = options.sketch.bins;
    if (!floating_element<T> && sum.operation == reduction::average) return most;
    const std::uint64_t rows = options.rows;
    std::uint32_t bins = 64;
    while (bins < most && 2 * bins <= sum.count / rows) bins *= 2;
    return bins;
}

/// Checks by a linear checksum whether the results of the all-reduces and reduce-scatters of a step are the sums or
/// averages of the ranks' inputs. `before` and `after` say what sketch of the rank's input and result the caller must
/// make, before and behind the collective. `end` adds the sketches over the ranks and compares bin by bin, up to a
/// bound for rounding (`conservation_bound`). Integer sums must match exactly. Every rank judges its own results. If an
/// input is not finite, nothing is checked. A result that is not finite is a violation if no sum of the inputs can
/// overflow. README.md says what is seen.
/// Preconditions: all ranks call `before` and `after` around the same collectives, with the same options. Calls of the
/// same `lane` run one after the other.
/// Stream behaviour: everything is enqueued; the host never waits. It allocates until a step is as large as the largest
/// before.
/// Cost of a call: a read of the input, one of the result; memory on the device: 32 bytes a bin. Cost of a step: an
/// all-reduce of 16 bytes a bin and call (8 for integers; twice that for a reduce-scatter), and a launch for each call.
/// On a GPU each lane has 2 KiB a bin (8 MiB in all).
/// Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix operations" (1984).
template <class Device>
class conservation_check {
public:
    using stream_ref = typename Device::stream_ref;

    /// \throws error `invalid_argument` unless the number of bins is a power of two from 64 to 2^20, `sigmas` is finite
    ///   and above 0, and `rows` is above 0.
    conservation_check(const conservation_options& options, int ranks, call_site where = call_site::current())
        : options_(checked(options, where)), ranks_(ranks), terms_(terms_of(options.order, ranks))
    {
        Device::load_kernels();
    }

    void clear() noexcept
    {
        open_.clear();
        added_sums_.clear();
        added_words_.clear();
        own_numbers_.clear();
    }

    /// Calls from this index on were not made in the end.
    void forget(std::uint64_t first) noexcept
    {
        for (; !open_.empty() && open_.back().sum.call >= first; open_.pop_back()) {
            added_sums_.take_back(open_.back().of_input);
            added_words_.take_back(open_.back().of_input);
        }
    }

    template <element T>
    sketch_target<T> before(const checked_sum& sum, int lane)
    {
        // This holds on all ranks or on none.
        if (!judge<T>(sum, nullptr, nullptr).can_check) return {};
        const std::uint32_t bins = bins_for<T>(sum, options_);
        const std::uint64_t numbers = sketch_numbers<T>(bins);
        auto* const of_input = added<T>().take(sum.is_part ? 2 * numbers : numbers);
        auto* const of_result = sum.is_part
            ? of_input + numbers
            : reinterpret_cast<sketch_sum<T>*>(own_numbers_.take(numbers));
        open_.push_back({sum, of_input, of_result, &conservation_check::template judge_one<T>});
        return {0, bins, options_.sketch.seed, of_input, scratch<T>(lane)};
    }

    /// `count`: elements of the result, or of this rank's part. Then the step's message adds the sketches of all parts,
    /// so all ranks get the same verdict, which does not tell whose part was damaged.
    template <element T>
    sketch_target<T> after(std::uint64_t call, std::uint64_t count, int rank, int lane)
    {
        for (std::size_t i = open_.size(); i-- > 0;) {
            const in_step& each = open_[i];
            if (each.sum.call != call) continue;
            const std::uint64_t first = each.sum.is_part ? count * static_cast<std::uint64_t>(rank) : 0;
            return {first, bins_for<T>(each.sum, options_), options_.sketch.seed,
                static_cast<sketch_sum<T>*>(each.of_result), scratch<T>(lane)};
        }
        return {};
    }

    /// Behind all calls of the step, of which there are `calls`. `out_of(call)` is where the device writes a verdict.
    template <communicator Comm, class OutOf>
    void end(Comm& ranks, std::uint64_t calls, stream_ref stream, const OutOf& out_of, call_site where)
    {
        forget(calls);
        const auto add = [&](auto sums) {
            using number = typename decltype(sums)::value_type;
            ranks.all_reduce(view<const number>(sums), sums, reduction::sum, stream, where);
        };
        added_sums_.for_each_used(add);
        added_words_.for_each_used(add);
        for (const in_step& each : open_) (this->*each.judge)(each, stream, out_of(each.sum.call));
    }

private:
    struct in_step {
        checked_sum sum;
        void* of_input;
        void* of_result;
        void (conservation_check::*judge)(const in_step&, stream_ref, conservation_result*);
    };

    static const conservation_options& checked(const conservation_options& options, call_site where)
    {
        require_sketch_options(options.sketch, "audit", where);
        require(is_finite(options.sigmas) && options.sigmas > 0, "audit", "sigmas must be finite and above 0", where);
        require(options.rows != 0, "audit", "rows is 0", where);
        return options;
    }
    /// The sketches that are added over the ranks.
    template <element T>
    auto& added() noexcept
    {
        if constexpr (floating_element<T>) return added_sums_;
        else return added_words_;
    }
    template <element T>
    conservation_judge<T> judge(const checked_sum& sum, const void* of_input, const void* of_result) const
    {
        const std::uint32_t bins = bins_for<T>(sum, options_);
        return judge_conservation<T>(static_cast<const sketch_sum<T>*>(of_input),
            static_cast<const sketch_sum<T>*>(of_result), bins, (sum.count + bins - 1) / bins, sum.operation,
            options_.order, ranks_, options_.sigmas, terms_);
    }
    template <element T>
    void judge_one(const in_step& each, stream_ref stream, conservation_result* out)
    {
        Device::reduce(stream, judge<T>(each.sum, each.of_input, each.of_result),
            bins_for<T>(each.sum, options_), out, reduces_);
    }
    template <element T>
    sketch_sum<T>* scratch(int lane)
    {
        const auto index = static_cast<std::size_t>(lane);
        if (scratch_.size() <= index) scratch_.resize(index + 1);
        if (scratch_[index].size() == 0) {
            scratch_[index] =
                typename Device::template buffer<double>(sketch_scratch_numbers<Device>(options_.sketch.bins));
        }
        return reinterpret_cast<sketch_sum<T>*>(scratch_[index].data());
    }

    conservation_options options_;
    int ranks_;
    rounded_terms terms_;
    std::vector<in_step> open_;
    step_arena<Device, double> added_sums_{1 << 14};
    step_arena<Device, std::uint64_t> added_words_{1 << 12};
    step_arena<Device, double> own_numbers_{1 << 14}; ///< numbers of any kind
    std::vector<typename Device::template buffer<double>> scratch_; ///< by lane
    typename Device::workspace reduces_;
};

} // namespace collprobe::detail
