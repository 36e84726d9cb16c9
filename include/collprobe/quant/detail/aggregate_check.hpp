// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record/quantisation.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/quant/detail/aggregate_error.hpp>
#include <collprobe/step/step_sketches.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A reduction whose error is measured.
struct measured_sum {
    collective what = collective::all_reduce;
    element_type type = element_type::float32;
    reduction operation = reduction::sum;
    std::uint64_t count = 0; ///< elements that each rank sends

    friend bool operator==(const measured_sum&, const measured_sum&) = default;
};

/// Measures the errors of a step's quantised reductions by sketches of their inputs and results, and compares each with
/// that of the step before. Costs and stream behaviour: of `step_sketches`; an all-reduce of 16 bytes a bin and call
/// (as much again for a reduce-scatter), a launch for each call, and 8 bytes a bin and call that are kept.
template <class Device>
class aggregate_check : public step_sketches<Device, measured_sum> {
public:
    aggregate_check(std::uint32_t most_bins, std::uint64_t seed, int ranks)
        : step_sketches<Device, measured_sum>(most_bins, seed), most_bins_(most_bins), ranks_(ranks)
    {
    }

    /// Where the sketch of the input of a call is to go. `count`: elements of the input.
    template <class Call>
    sketch_target before(const Call& call, std::uint64_t count)
    {
        return this->open(
            call, {call.what(), call.type(), call.operation(), count}, sketch_bins(most_bins_, count));
    }
    /// Behind all calls of the step. `out_of(call)`: the entry where the device writes what it measured.
    template <class Step, class OutOf>
    void end(Step& step, const OutOf& out_of)
    {
        this->add_up(step);
        bool captured = false;
        if constexpr (can_capture<typename Device::stream_ref>) captured = step.stream().capturing(step.where());
        for (const auto& each : this->opened()) {
            const measured_sum& sum = each.note;
            const double mean = 1.0 / ranks_;
            aggregate_reducer compare{static_cast<const double*>(each.of_input),
                static_cast<const double*>(each.of_result), mean, sum.operation == reduction::average ? 1 : mean,
                nullptr, false, each.bins};
            // A graph would have to set its first error to zero, but once.
            if (!captured) compare.has_last = keep_error(each.call, each.bins, sum, compare.error);
            Device::reduce(step.stream(), compare, each.bins, &out_of(each.call)->aggregate, reduces_);
        }
    }

private:
    /// The error of a call, for the next step.
    struct kept_error {
        measured_sum sum;
        std::uint64_t bins = 0; ///< 0: none
        typename Device::template buffer<double> error;
    };

    /// Finds room for the error of a call. Returns whether that of the step before is there.
    bool keep_error(std::uint64_t call, std::uint64_t bins, const measured_sum& sum, double*& error)
    {
        while (kept_.size() <= call) kept_.emplace_back();
        kept_error& mine = kept_[static_cast<std::size_t>(call)];
        const bool has_last = mine.bins == bins && mine.sum == sum;
        if (mine.error.size() == 0) mine.error = typename Device::template buffer<double>(most_bins_);
        mine.sum = sum;
        mine.bins = bins;
        error = mine.error.data();
        return has_last;
    }

    std::uint32_t most_bins_;
    int ranks_;
    std::vector<kept_error> kept_; ///< by the call's index in a step
    typename Device::workspace reduces_;
};

} // namespace collprobe::inline COLLPROBE_ABI::detail
