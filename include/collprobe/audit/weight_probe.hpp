// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/audit/detail/observed_sums.hpp>
#include <collprobe/audit/detail/weight_check.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/step_sketches.hpp>

namespace collprobe::inline COLLPROBE_ABI {

namespace detail {

struct distinct_results;

} // namespace detail

/// What `weight_probe` looks at, and what it expects. Equal on all ranks.
struct weight_probe_options {
    /// It looks at the first of so many steps, as with `probe_options::every`; with 0 at those that are asked for by
    /// `probed::request<weight_probe>`. A captured step has it only with 1.
    int every = 100;
    /// Of a sketch, a power of two from 64: four times as many halve what is random in the bounds. 0: 16 a rank, 256 to
    /// 4096. A small buffer has no more bins than elements (but at least 64).
    std::uint32_t bins = 0;
    std::uint64_t seed = sketch_options().seed; ///< with that of the audit, both use one read
    /// Forms that are no suspects. Empty: of an average `mean` and `token_weighted`, of a sum these and `sum`.
    std::vector<averaging> expected = {};
    double scale = 1; ///< the first `weight_probe::scale`
    /// How rarely a weight is off by more than its bound to one side, if the errors of a sketch's bins are Gaussian:
    /// 1e-9 are six deviations. At least 1e-12.
    double miss = 1e-9;
    /// The share of a result's norm of no input, beyond what rounding explains, above which it is a suspect
    /// (`finding::unexplained`). For an average, nothing else belongs there; where a result has other parts on purpose,
    /// such as weight decay or momentum, 1 tells none.
    double unexplained = 0.05;
};

/// A part of a step that finds the weight with which each rank's input is in the result of a sum or an average, by
/// least squares over sketches, and names the form of these weights: mean, sum, divided twice, weighted by tokens, a
/// rank lost or doubled. Use: `probed comm(world, options, weight_probe())`; its findings are in
/// `call_record::weights`. Forms that are not expected are suspects, `finding::weights`; so is what no input explains,
/// `finding::unexplained`. With `observe_input` and
/// `observe_result` all that happens to gradients between two places is seen. The tokens of a rank are
/// `step_observation::weight`.
/// Preconditions: the mode is `gather`. At most 64 ranks: with more, calls are refused in the record. All-reduces and
/// reduce-scatters of floating-point sums and averages; calls with leaves are not looked at.
/// Cost of a call in a step that it looks at: arithmetic in the step's reads; with `audit`, a launch each. Cost of such
/// a step: an all-gather of 16 bytes a bin and call (twice for a reduce-scatter and what is observed), nine launches a
/// call (of an observed all-reduce 37), n^2 multiplications a bin. 136 bytes a call and rank in each step's message.
/// README.md has the model.
class weight_probe : public detail::reads_with_sketches {
public:
    using entry = detail::weight_entry;

    weight_probe() = default;
    /// \throws error `invalid_argument` for an option out of range.
    explicit weight_probe(weight_probe_options options, call_site where = call_site::current())
        : options_(std::move(options))
    {
        detail::require(options_.every >= 0, "weight_probe", "every is below 0", where);
        if (options_.bins != 0) detail::require_sketch_options({.bins = options_.bins}, "weight_probe", where);
        detail::require(options_.miss >= 1e-12 && options_.miss <= 0.01, "weight_probe",
            "miss is not between 1e-12 and 0.01", where);
        detail::require(is_finite(options_.unexplained) && options_.unexplained >= 0, "weight_probe",
            "unexplained is negative or not finite", where);
        scale(options_.scale, where);
    }

    /// Tells the factor between input and result, beside the average itself, of the calls from now on: such as 1 / 1024
    /// for a loss scale that is taken out behind the call. A captured step keeps that of its capture.
    /// \throws error `invalid_argument` for a factor that is 0 or not finite.
    void scale(double factor, call_site where = call_site::current())
    {
        detail::require(is_finite(factor) && (factor < 0 || factor > 0), "weight_probe",
            "the scale is 0 or not finite", where);
        options_.scale = factor;
    }

    int every() const noexcept { return options_.every; }

    template <class Device>
    struct memory {
        memory(const weight_probe& of, int ranks) : sums(of.options_.bins, of.options_.seed, ranks) {}
        void clear() noexcept { sums.clear(); }
        detail::weight_check<Device> sums;
    };

    template <element T, class Call>
    sketch before(Call& call, view<const T> input, entry* to) const
    {
        call.memory().sums.forget(call.index()); // a call that was not made in the end left its index to this one
        if constexpr (floating_element<T>) {
            if (!is_looked_at(call)) return {};
            if (call.ranks().size() <= detail::most_weighted_ranks) {
                Call::device::sum_each(call.stream(), 1,
                    detail::sample_magnitudes<T>{input, to, call.operation() == reduction::average});
                return call.memory().sums.template before<T>(call.index(), call.count(),
                    call.what() == collective::reduce_scatter, call.is_observed(), options_.scale, call.lane());
            }
            Call::device::for_each(call.stream(), 1, detail::refuse_weights{to, weights_refusal::many_ranks});
        }
        return {};
    }
    template <element T, class Call>
    sketch after(Call& call, view<const T> result, entry*) const
    {
        if constexpr (floating_element<T>) {
            return call.memory().sums.template after<T>(
                call.index(), result.count(), call.ranks().rank(), call.lane());
        } else {
            return {};
        }
    }
    template <class Step>
    void end_step(Step& step) const
    {
        step.memory().sums.end(step.ranks(), step.calls(), step.stream(),
            [&](std::uint64_t call) { return step.entry(call); }, step.where());
    }

    void judge(const part_entries<entry>& entries, step_record& record);

private:
    template <class Call>
    static bool is_looked_at(const Call& call) noexcept
    {
        return call.mode() == report_mode::gather && !call.has_leaves()
            && (call.what() == collective::all_reduce || call.what() == collective::reduce_scatter)
            && (call.operation() == reduction::sum || call.operation() == reduction::average);
    }
    bool is_expected(averaging how, bool averages, bool has_equal_tokens) const noexcept;
    /// Collects and names the weights in one of the results of a call, and appends what is to be told of them.
    void judge_result(const part_entries<entry>& entries, int call, const detail::distinct_results& results, int which,
        call_weights& out, step_record& record);

    weight_probe_options options_;
    std::vector<double> tokens_; ///< of the step that is judged, by rank
};

} // namespace collprobe

#if COLLPROBE_DEFINITIONS
#include <collprobe/audit/detail/weight_probe.ipp>
#endif
