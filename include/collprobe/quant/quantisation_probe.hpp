// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/part.hpp>

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
    /// The rate at which a step without bias has a biased call, if the errors of elements are independent.
    double false_alarms_per_step = 1e-6;
};

namespace detail {

/// What a rank has to say about a call.
struct quantisation_entry {
    quantised_errors errors;
    quantised_outcome outcome;
    std::uint64_t seen = 0;
};
static_assert(sizeof(quantisation_entry) % 8 == 0);

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
/// `finding::quantisation`. README.md of this folder has the numbers, their formulas and the verdicts.
/// Preconditions: the communicator under `probed` is `quantised`, or an adaptor around it; the mode is
/// `gather`. Cost of a call: arithmetic in the reads of the quantised call, no read of memory; one launch.
/// 600 bytes a call and rank in the step's message.
class quantisation_probe {
public:
    using entry = detail::quantisation_entry;

    quantisation_probe() = default;
    /// \throws error `invalid_argument` for a limit out of range.
    explicit quantisation_probe(const quantisation_limits& limits, call_site where = call_site::current())
        : limits_(limits)
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
    }

    template <element T, class Call>
    void before(Call& call, view<const T>, entry* to) const
    {
        if (call.quantised() != nullptr) call.quantised()->errors_to = &to->errors;
    }
    template <element T, class Call>
    void after(Call& call, view<const T>, entry* to) const
    {
        quantised_calls* const calls = call.quantised();
        if (calls == nullptr) return;
        calls->errors_to = nullptr; // a call that was forwarded has left it
        const collective what = call.what();
        if (what != collective::all_reduce && what != collective::reduce_scatter
            && what != collective::all_gather)
            return;
        Call::device::for_each(call.stream(), 1, detail::write_quantised_outcome{to, calls->last});
    }

    void judge(const part_entries<entry>& entries, step_record& record);

private:
    quantisation_limits limits_;
};

} // namespace collprobe::inline COLLPROBE_ABI

#if COLLPROBE_DEFINITIONS
#include <collprobe/quant/detail/quantisation_probe.ipp>
#endif
