// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/quant/detail/aggregate_check.hpp>
#include <collprobe/quant/detail/aggregate_error.hpp>
#include <collprobe/quant/detail/message_check.hpp>
#include <collprobe/scan/sketch.hpp>
#include <collprobe/step/part.hpp>
#include <collprobe/step/step_sketches.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The limits of the verdicts. Equal on all ranks.
struct quantisation_limits {
    /// The noise ratios from which on quantisation is visible and harmful.
    double visible = 0.01;
    double harmful = 0.1;
    /// The same for gathers, which have no gradient noise: the energy of the errors over that of the
    /// elements.
    double visible_error = 1e-4;
    double harmful_error = 1e-2;
    /// Blocks are degenerate if more elements became zero than this, and than `degenerate` times what is
    /// expected of Gaussian elements.
    double zeroed = 0.25;
    double degenerate = 1.5;
    /// Errors are biased only if their mean is above this part of the root mean square of the elements.
    double mean_error = 1e-3;
    /// Errors are stuck, and so biased, if their cosine with those of the step before is above this, over so many
    /// steps in a row. (Their energy must be above the square of `mean_error`.) Stochastic rounding by the same random
    /// bits in each step has just below 0.5: half of its errors' energy is that of the bits, half that of the elements.
    double drift = 0.35;
    int drift_steps = 3;
    /// The rate at which a step without bias has a biased call, if the errors of elements are independent.
    double false_alarms_per_step = 1e-6;
};

/// What `quantisation_probe` looks at, beside what the codes cost. Equal on all ranks.
struct quantisation_checks {
    /// The error of sums and averages, by sketches of inputs and results. Without it the probe costs less.
    bool aggregate = true;
    /// Whether the messages of codes arrived as they were sent: names sender and receiver. Reads the codes twice more
    /// on each way, in a launch for each message, and sends 8 bytes to each rank for a call.
    bool messages = false;
    sketch_options sketch = {};
    /// A small buffer has fewer bins, so that there are at least so many elements in a bin (but at least 64 bins).
    std::uint32_t rows = 16;
};

namespace detail {

/// What a rank has to say about a call.
struct quantisation_entry {
    quantised_errors errors;
    quantised_outcome outcome;
    std::uint64_t seen = 0;
    aggregate_error aggregate;
    damaged_messages messages;
};
static_assert(sizeof(quantisation_entry) % 8 == 0);

/// What a call of the next step is judged with.
struct last_roundings {
    std::uint64_t number = 0; ///< of the series that it is of
    double energy = not_a_number(); ///< of all roundings to codes in the mean
    std::uint64_t step = 0;
    int drifting_steps = 0; ///< in a row, whose errors were like those of the step before
};

/// Writes what the host knows about a call. A body for `for_each`, for one index.
struct write_quantised_outcome {
    quantisation_entry* to;
    quantised_outcome outcome;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        to->outcome = outcome;
        to->seen = 1;
    }
};

} // namespace detail

/// A part of a step that says what quantisation did to each call: `probed comm(quantised{world, how},
/// options, quantisation_probe())`. Its findings are in `call_record::quantisation`, its suspects are
/// `finding::quantisation` and `finding::codes_differ`. README.md of this folder has the numbers, their formulas
/// and the verdicts.
/// Preconditions: the communicator under `probed` is `quantised`, or an adaptor around it; the mode is
/// `gather`. Cost of a call: arithmetic in the reads of the quantised call and, for a sum, of the step; two launches.
/// Cost of a step: 688 bytes a call and rank in its message, and for each sum an all-reduce of 16 bytes a bin
/// (twice that for a reduce-scatter). `quantisation_checks` has those of the checks that are off unless asked for.
class quantisation_probe : public detail::reads_with_sketches {
public:
    using entry = detail::quantisation_entry;

    quantisation_probe() = default;
    /// \throws error `invalid_argument` for a limit out of range.
    explicit quantisation_probe(const quantisation_limits& limits, const quantisation_checks& checks = {},
        call_site where = call_site::current())
        : limits_(limits), checks_(checks)
    {
        const auto require = [&](bool condition, const char* message) {
            detail::require(condition, "quantisation_probe", message, where);
        };
        require(limits.visible >= 0 && limits.harmful >= limits.visible,
            "harmful is below visible, or visible below 0");
        require(limits.visible_error >= 0 && limits.harmful_error >= limits.visible_error,
            "harmful_error is below visible_error, or visible_error below 0");
        require(limits.false_alarms_per_step > 0 && limits.false_alarms_per_step < 1,
            "false_alarms_per_step is not between 0 and 1");
        require(limits.drift_steps > 0, "drift_steps is not above 0");
        detail::require_sketch_options(checks.sketch, "quantisation_probe", where);
        require(checks.rows != 0, "rows is 0");
    }

    template <class Device>
    struct memory {
        memory(const quantisation_probe& of, int ranks)
            : sums(of.checks_.sketch.bins, of.checks_.sketch.seed, ranks), messages(ranks)
        {
        }
        void clear() noexcept
        {
            sums.clear();
            messages.clear();
        }
        void forget(std::uint64_t first) noexcept
        {
            sums.forget(first);
            messages.forget(first);
        }
        detail::aggregate_check<Device> sums;
        detail::message_check<Device> messages;
    };

    template <element T, class Call>
    sketch before(Call& call, view<const T> input, entry* to) const
    {
        if (call.quantised() == nullptr) return {};
        call.quantised()->errors_to = &to->errors;
        call.memory().forget(call.index()); // a call that was not made in the end left its index to this one
        if (call.mode() != report_mode::gather || !call.is_quantised()) return {};
        if (checks_.messages && has_codes(call.what()))
            call.quantised()->digests_to = call.memory().messages.before(call.index());
        if (!measures(call)) return {};
        return call.memory().sums.template before<T>({call.what(), call.type(), call.operation(), input.count()},
            call.index(), bins_for(input.count()), call.lane());
    }
    template <element T, class Call>
    sketch after(Call& call, view<const T> result, entry* to) const
    {
        quantised_calls* const calls = call.quantised();
        if (calls == nullptr) return {};
        calls->errors_to = nullptr; // a call that was forwarded has left it
        calls->digests_to = nullptr;
        if (!has_codes(call.what())) return {};
        Call::device::for_each(call.stream(), 1, detail::write_quantised_outcome{to, calls->last});
        if (!measures(call)) return {};
        return call.memory().sums.template after<T>(call.index(), result.count(), call.ranks().rank(), call.lane());
    }
    template <class Step>
    void end_step(Step& step) const
    {
        const auto entry_of = [&](std::uint64_t call) { return step.entry(call); };
        step.memory().sums.end(step.ranks(), step.calls(), step.stream(), entry_of, step.where());
        step.memory().messages.end(step.ranks(), step.calls(), step.stream(), entry_of, step.where());
    }

    void judge(const part_entries<entry>& entries, step_record& record);

private:
    static bool has_codes(collective what) noexcept
    {
        return what == collective::all_reduce || what == collective::reduce_scatter || what == collective::all_gather;
    }
    template <class Call>
    bool measures(const Call& call) const noexcept
    {
        return checks_.aggregate && call.mode() == report_mode::gather && call.is_quantised()
            && (call.what() == collective::all_reduce || call.what() == collective::reduce_scatter);
    }
    std::uint32_t bins_for(std::uint64_t count) const noexcept
    {
        std::uint32_t bins = 64;
        while (bins < checks_.sketch.bins && 2 * bins <= count / checks_.rows) bins *= 2;
        return bins;
    }

    quantisation_limits limits_;
    quantisation_checks checks_;
    std::vector<detail::last_roundings> last_; ///< by the slot of the call's series
};

} // namespace collprobe::inline COLLPROBE_ABI

#if COLLPROBE_DEFINITIONS
#include <collprobe/quant/detail/quantisation_probe.ipp>
#endif
