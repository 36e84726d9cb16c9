// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/step_sketches.hpp>

/// Whether the results of a step are the sums of its inputs, by a linear checksum.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The bins of a sketch of a sum: at most `conservation_options::sketch`, at least 16 elements in each (but at least 64
/// bins), and rows of at most 4 KiB: a thread of a GPU then has the same bins throughout, and on a CPU they stay in the
/// first cache.
constexpr std::uint32_t bins_for(
    std::uint64_t count, element_type type, const conservation_options& options) noexcept
{
    const auto size = static_cast<std::uint32_t>(bytes_of(type));
    const std::uint32_t row = round_bytes / (size > 1 ? size : 2);
    return sketch_bins(options.sketch.bins < row ? options.sketch.bins : row, count);
}

/// Checks by a linear checksum whether the results of the all-reduces and reduce-scatters of a step are the sums or
/// averages of the ranks' inputs: adds the sketches over the ranks and compares bin by bin, up to a bound for rounding
/// (`conservation_bound`). Sums of integers are not checked. Every rank judges its own results. If an input is not
/// finite, nothing is checked. A result that is not finite is a violation if no sum of the inputs can overflow.
/// README.md says what is seen. Preconditions: all ranks make the same calls, with the same options.
/// Stream behaviour: of `step_sketches`. Cost of a call: a read of the input, one of the result; memory on the device:
/// 32 bytes a bin. Cost of a step: an all-reduce of 16 bytes a bin and call (twice that for a reduce-scatter), and a
/// launch for each call. On a GPU each lane has 2 KiB a bin (at least 8 MiB in all).
/// Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix operations" (1984).
template <class Device>
class conservation_check : public step_sketches<Device, conservation_bound> {
    using sketches = step_sketches<Device, conservation_bound>;

public:
    /// Precondition: `require_sketch_options` accepts the sketch.
    conservation_check(const conservation_options& options, int ranks)
        : sketches(options.sketch.bins, options.sketch.seed), options_(options), ranks_(ranks),
          terms_(terms_of(options.order, ranks))
    {
    }

    /// Where the sketch of the call's input is to go; empty if it is not checked, which holds on all ranks or on none.
    template <element T, class Call>
    sketch_target before(const Call& call)
    {
        if constexpr (floating_element<T>) {
            // Codes make a sum another one than that of the inputs: `quantisation_probe` looks at those.
            if (!call.is_sum() || call.is_quantised()) return {};
            const std::uint32_t bins = bins_for(call.count(), element_traits<T>::type, options_);
            return this->open(call,
                conservation_bound::of<T>(
                    call.operation(), options_.order, ranks_, (call.count() + bins - 1) / bins, terms_),
                bins);
        }
        return {};
    }
    /// Behind all calls of the step. `out_of(call)` is where the device writes a verdict. That on a reduce-scatter is
    /// of all parts: all ranks get the same, which does not tell whose part was damaged.
    template <class Step, class OutOf>
    void end(Step& step, const OutOf& out_of)
    {
        this->add_up(step);
        for (const auto& each : this->opened()) {
            Device::reduce(step.stream(), conservation_judge{each.of_input, each.of_result, each.bins, each.note},
                each.bins, out_of(each.call), reduces_);
        }
    }

private:
    conservation_options options_;
    int ranks_;
    rounded_terms terms_;
    typename Device::workspace reduces_;
};

} // namespace collprobe::detail
