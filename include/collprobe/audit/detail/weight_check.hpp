// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/config.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/metrics/average_weights.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/step_sketches.hpp>

/// With which weights the ranks' inputs are in a result: what the device computes, from sketches.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Different results of the ranks of an observed call, each of which has weights.
inline constexpr int most_weighed_results = 4;

/// What a rank has to say about its weight in a call.
struct weight_entry {
    std::uint64_t state = 0; ///< 0: not looked at; else 1 + the `weights_refusal`
    double weight = 0;
    double deviation = 0; ///< standard deviation of the weight
    double systematic = 0; ///< how far rounding takes the weight if its errors depend on the inputs
    double diverse = 0; ///< `sample_magnitudes` of the input
    double degrees = 0; ///< of freedom, behind that deviation
    double residual = 0; ///< as in `call_weights`
    double residual_limit = 0;
    double scale = 0; ///< as told when the call was made
    std::uint32_t bins = 0;
    std::uint32_t averages = 0; ///< 1: the operation of the call is an average
    std::uint64_t result = 0; ///< digest of the sketch of the result: equal on ranks with equal results
    /// Of an observed call: the weights in the results of other ranks that are not this rank's, by the lowest rank.
    struct other_weight {
        double weight = 0; ///< NaN by bits if it is unknown
        double deviation = 0; ///< with `systematic` in it; if there is none, less 0 by the `weights_refusal`
    } others[most_weighed_results - 1];
};

/// Whether the elements of an input take so few magnitudes that sums of them, and so their rounding errors, repeat.
/// Such errors depend on the inputs, and may lie in the direction of one: no number of elements averages them out.
COLLPROBE_HD inline bool has_few_magnitudes(const weight_entry& of) noexcept
{
    return !(of.diverse >= 120); // the pairs of 16 elements
}

/// Over one place, for `sum_each`: looks at 128 elements, and notes the number of pairs that are not zero, less 64 for
/// each pair of equal magnitude. It is above 0 if a pair is equal with a chance below 1 in 64.
template <element T>
struct sample_magnitudes {
    view<const T> data;
    weight_entry* to;
    bool averages = false; ///< to note, too

    static constexpr std::uint64_t most = 128;

    COLLPROBE_HD double part(std::uint64_t, unsigned lane, unsigned lanes) const noexcept
    {
        const std::uint64_t samples = data.count() < most ? data.count() : most;
        double sum = 0;
        for (std::uint64_t i = lane; i < samples; i += lanes) {
            const auto mine = magnitude(i);
            for (std::uint64_t k = 0; k < i && mine != 0; ++k) {
                const auto other = magnitude(k);
                if (other != 0) sum += other == mine ? 1 - 64 : 1;
            }
        }
        return sum;
    }
    COLLPROBE_HD void store(std::uint64_t, double sum) const noexcept
    {
        to->diverse = sum;
        to->averages = averages ? 1 : 0;
    }

private:
    /// Bits of a sample's magnitude: of any place in its stretch, so that no period of the buffer matters.
    COLLPROBE_HD auto magnitude(std::uint64_t sample) const noexcept
    {
        using bits = typename element_traits<T>::bits_type;
        const std::uint64_t stretch = data.count() < most ? 1 : data.count() / most;
        const T value = data[sample * stretch + mix64(sample) % stretch];
        return static_cast<bits>(bit_cast<bits>(value) & static_cast<bits>(~element_traits<T>::sign_mask));
    }
};

/// The least number of bins with elements, beyond the ranks: below that the noise is not known well enough.
inline constexpr double least_weight_degrees = 31;

/// The largest square of a rounding error over its mean, which is f u^2 / 3 (audit/conservation_bound.md).
inline constexpr double worst_rounding = 5;

/// The bins of a sketch for weights: no more than elements. `most`: 0 for 16 bins a rank, 256 to 4096.
constexpr std::uint64_t weight_bins(std::uint64_t most, int ranks, std::uint64_t count) noexcept
{
    std::uint64_t limit = most;
    if (most == 0) {
        limit = 256;
        while (limit < 4096 && limit < 16 * static_cast<std::uint64_t>(ranks)) limit *= 2;
    }
    std::uint64_t bins = 64;
    while (bins < limit && bins < count) bins *= 2;
    return bins;
}

/// Equal for the sketches of equal results. A sum of independent terms: one thread need not wait for each.
COLLPROBE_HD inline std::uint64_t digest_of_sketch(const double* numbers, std::uint64_t bins) noexcept
{
    std::uint64_t digest = 0;
    for (std::uint64_t k = 0; k < 2 * bins; ++k) digest += mix64(to_bits(numbers[k]) + k * 0x9e3779b97f4a7c15u);
    return digest;
}

/// The least squares of one call: what its bodies read and write. Each bin is a row, divided by the size of its error:
/// first the root of the inputs' energy, then, with the weights that this gives, the deviation of rounding.
struct weight_system {
    gathered_sketch inputs;
    const double* result; ///< this rank's sketch; null: those of the ranks' parts lie behind those of the inputs
    std::uint64_t bins;
    int ranks;
    conservation_bound rounding; ///< of `ranks` roundings of the element type, one after the other

    int rank; ///< whose weight this rank writes

    double* memory; ///< `numbers`: what the functions below name, one behind the other
    int other = -1; ///< which of the others' results, if `result` is that of this rank and there are so many

    static constexpr std::uint64_t numbers(std::uint64_t bins, int ranks) noexcept
    {
        const auto n = static_cast<std::uint64_t>(ranks);
        return 7 * bins + packed_place(n + 1, 0) + 5 * n + sizeof(weight_entry) / sizeof(double);
    }
    /// By bin: one over the squared size; 0 without inputs; NaN by bits if not finite.
    COLLPROBE_HD double* row_weights() const noexcept { return memory; }
    /// By bin: the sketch of the whole result, and behind it its energies.
    COLLPROBE_HD double* of_result() const noexcept { return row_weights() + bins; }
    /// By bin: of the residual; of a single rounding; of `rounding`; shares in the own weight.
    COLLPROBE_HD double* squares() const noexcept { return of_result() + 2 * bins; }
    COLLPROBE_HD double* products() const noexcept { return squares() + 4 * bins; } ///< as `solve_weights` has them
    COLLPROBE_HD double* weights() const noexcept // by rank, as all that follows
    {
        return products() + packed_place(static_cast<std::uint64_t>(ranks) + 1, 0);
    }
    COLLPROBE_HD const double* of_rank(int which) const noexcept
    {
        return inputs.first + static_cast<std::uint64_t>(which) * inputs.stride;
    }
    COLLPROBE_HD double* variances() const noexcept { return weights() + ranks; }
    COLLPROBE_HD double* scales() const noexcept { return weights() + 2 * ranks; }
    COLLPROBE_HD double* influence() const noexcept { return weights() + 3 * ranks; }
    /// Whether the rank's input is not zero.
    COLLPROBE_HD bool has_input(int which) const noexcept { return scales()[which] > 0; }
    /// By rank: of the results of an observed call, which lie behind the inputs.
    COLLPROBE_HD std::uint64_t* digests() const noexcept
    {
        return reinterpret_cast<std::uint64_t*>(weights() + 4 * ranks);
    }
    /// What is said of another result.
    COLLPROBE_HD weight_entry* of_other() const noexcept
    {
        return reinterpret_cast<weight_entry*>(weights() + 5 * ranks);
    }
    /// The lowest rank with result number `other`, counted from 0 and by that rank, of those that are not this rank's.
    /// -1: there is none.
    COLLPROBE_HD int holder() const noexcept
    {
        int before = 0;
        for (int r = 0; r < ranks; ++r) {
            bool is_new = digests()[r] != digests()[rank];
            for (int lower = 0; lower < r && is_new; ++lower) is_new = digests()[lower] != digests()[r];
            if (is_new && before++ == other) return r;
        }
        return -1;
    }
};

/// Over the bins.
struct weigh_rows {
    weight_system system;

    COLLPROBE_HD void operator()(std::uint64_t bin) const noexcept
    {
        const std::uint64_t bins = system.bins;
        double energy = 0, sum = 0, of_sum = 0;
        for (int r = 0; r < system.ranks; ++r) energy += system.of_rank(r)[bins + bin];
        if (system.result == nullptr) {
            for (int r = 0; r < system.ranks; ++r) {
                sum += system.of_rank(r)[2 * bins + bin];
                of_sum += system.of_rank(r)[3 * bins + bin];
            }
        } else {
            const int holder = system.other < 0 ? -1 : system.holder();
            const double* const of = holder < 0 ? system.result : system.of_rank(holder) + 2 * bins;
            sum = of[bin];
            of_sum = of[bins + bin];
        }
        const bool finite = is_finite(energy) && is_finite(of_sum) && is_finite(sum);
        system.row_weights()[bin] = !finite ? not_a_number() : energy > 0x1p-960 ? 1 / energy : 0;
        system.of_result()[bin] = sum;
        system.of_result()[bins + bin] = of_sum;
    }
};

/// Over the ranks: `digests` of their results.
struct digest_results {
    weight_system system;

    COLLPROBE_HD void operator()(std::uint64_t rank) const noexcept
    {
        system.digests()[rank]
            = digest_of_sketch(system.of_rank(static_cast<int>(rank)) + 2 * system.bins, system.bins);
    }
};

/// The inner products of inputs and result. For `sum_each`, over the places of `packed_place`.
struct weight_products {
    weight_system system;

    COLLPROBE_HD double part(std::uint64_t place, unsigned lane, unsigned lanes) const noexcept
    {
        int row = 0;
        while (packed_place(static_cast<std::uint64_t>(row) + 1, 0) <= place) ++row;
        const int column = static_cast<int>(place - packed_place(static_cast<std::uint64_t>(row), 0));
        const double* const a = row < system.ranks ? system.of_rank(row) : system.of_result();
        const double* const b = column < system.ranks ? system.of_rank(column) : system.of_result();
        const std::uint64_t step = lanes;
        double sums[4] = {0, 0, 0, 0}; // one alone would wait for itself at every addition
        std::uint64_t bin = lane;
        for (; bin + 3 * step < system.bins; bin += 4 * step) {
            for (std::uint64_t k = 0; k < 4; ++k) {
                const std::uint64_t at = bin + k * step;
                sums[k] += a[at] * system.row_weights()[at] * b[at];
            }
        }
        for (; bin < system.bins; bin += step) sums[0] += a[bin] * system.row_weights()[bin] * b[bin];
        return (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    COLLPROBE_HD void store(std::uint64_t place, double sum) const noexcept { system.products()[place] = sum; }
};

/// For one index.
struct solve_weight_system {
    weight_system system;
    weight_entry* to;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        const weights_solution found
            = solve_weights(system.products(), system.ranks, system.weights(), system.variances(), system.scales());
        weight_influence(
            system.products(), system.ranks, system.rank, system.weights(), system.scales(), system.influence());
        to->state = 1 + static_cast<std::uint64_t>(found.why_not);
        // What the factorisation itself rounds, in units of the result over the input.
        to->deviation = found.least_pivot > 0 ? 0x1p-50 * system.ranks / found.least_pivot : 0;
    }
};

/// Over the bins: how far the weighted inputs are from the result, and how far rounding takes it.
struct weight_residuals {
    weight_system system;
    bool reweighs; ///< whether rows are to be divided by the deviation of rounding, for a second solution

    COLLPROBE_HD void operator()(std::uint64_t bin) const noexcept
    {
        const std::uint64_t bins = system.bins;
        double fit = 0, energy = 0, unscaled = 0, size = 0;
        for (int r = 0; r < system.ranks; ++r) {
            if (!system.has_input(r)) continue; // it has no weight
            const double* const of = system.of_rank(r);
            const double weight = system.weights()[r];
            fit += weight * of[bin];
            energy += weight * weight * of[bins + bin];
            unscaled += of[bins + bin];
            size += weight * weight / system.ranks;
        }
        const double row = system.row_weights()[bin];
        const double distance = system.of_result()[bin] - fit;
        const double of_result = system.of_result()[bins + bin];
        const double once = 0.2 * system.rounding.unit_roundoff * system.rounding.unit_roundoff;
        const double deviation = system.rounding.deviation(energy, of_result, fit, system.of_result()[bin]);
        // Scalings before and behind the reduction round twice more.
        const double variance = deviation * deviation + 2 * once * (energy + of_result);
        system.squares()[bin] = distance * distance * row;
        system.squares()[bins + bin] = once * of_result * row;
        system.squares()[2 * bins + bin] = variance * row;
        note_influence(bin);
        // A bin of ranks that are lost has no errors, but must not decide all.
        const double next = once * size / (variance + 0x1p-10 * once * size * unscaled);
        if (reweighs && row > 0 && is_finite(next) && next > 0) system.row_weights()[bin] = next;
    }
    /// The bin's share in the determination of the own weight: the shares of all bins add up to 1.
    COLLPROBE_HD void note_influence(std::uint64_t bin) const noexcept
    {
        double moves = 0;
        if (!system.has_input(system.rank)) return void(system.squares()[3 * system.bins + bin] = 0);
        for (int r = 0; r < system.ranks; ++r) moves += system.influence()[r] * system.of_rank(r)[bin];
        system.squares()[3 * system.bins + bin]
            = moves * moves * system.row_weights()[bin] / system.variances()[system.rank];
    }
};

/// For one index.
struct write_weight {
    weight_system system;
    weight_entry* to;
    double scale;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        const std::uint64_t bins = system.bins;
        double rows = 0, residual = 0, single = 0, limit = 0, moved = 0, squared_shares = 0;
        double distances = 0, results = 0; // squares, without the weights of the rows
        to->scale = scale;
        to->bins = static_cast<std::uint32_t>(bins);
        to->result = digest_of_sketch(system.of_result(), bins);
        for (std::uint64_t bin = 0; bin < bins; ++bin) {
            if (!(system.row_weights()[bin] > 0)) continue;
            rows += 1;
            residual += system.squares()[bin];
            distances += system.squares()[bin] / system.row_weights()[bin];
            results += system.of_result()[bin] * system.of_result()[bin];
            single += system.squares()[bins + bin];
            limit += system.squares()[2 * bins + bin];
            const double share = system.squares()[3 * bins + bin];
            const double rest = 1 - share > 0x1p-20 ? 1 - share : 0x1p-20; // a bin alone has no residual
            moved += share * system.squares()[bin] / (rest * rest);
            squared_shares += share * share;
        }
        const auto n = static_cast<std::uint64_t>(system.ranks);
        double degrees = rows;
        for (int r = 0; r < system.ranks; ++r) degrees -= system.has_input(r) ? 1 : 0;
        const double square = system.products()[packed_place(n, n)];
        to->degrees = degrees;
        const auto refused = static_cast<weights_refusal>(to->state - 1);
        if (refused != weights_refusal::not_finite && degrees < least_weight_degrees)
            to->state = 1 + static_cast<std::uint64_t>(weights_refusal::few_elements);
        if (to->state != 1) return;
        // The errors of a rounded result are at least those of its last rounding. If the errors are not those of
        // rounding, the residuals of the bins that the weight depends on tell more than all.
        double noise = residual / degrees > single / rows ? residual / degrees : single / rows;
        const double by_bins = moved * rows / degrees;
        noise = by_bins > noise ? by_bins : noise;
        const double variance = system.variances()[system.rank];
        const double of_solver = to->deviation;
        to->weight = system.weights()[system.rank];
        to->deviation = square_root(noise * variance) + of_solver * square_root(square * variance);
        to->systematic = square_root(worst_rounding * limit * variance);
        to->residual = square_root(residual / square);
        to->residual_limit = 4 * square_root(limit / square) + of_solver + 0x1p-40; // what sketches in double lose
        if (to->residual > to->residual_limit && squared_shares * (1 + least_weight_degrees) > 1)
            to->state = 1 + static_cast<std::uint64_t>(weights_refusal::unexplained);
        if (to->residual > to->residual_limit && results > 0) {
            // The rows are weighted by what rounding does to them. The share of the norm is of all alike.
            const double share = square_root(distances / results);
            to->residual = share > to->residual_limit ? share : to->residual_limit * (1 + 0x1p-20);
        }
        if (!system.has_input(system.rank)) to->deviation = to->systematic = 0;
        else if (!is_finite(to->weight) || !is_finite(to->deviation) || !is_finite(to->systematic))
            to->state = 1 + static_cast<std::uint64_t>(weights_refusal::not_finite);
    }
};

/// For one index, behind `write_weight` of another result.
struct keep_other_weight {
    weight_system system;
    weight_entry* to;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept
    {
        if (system.holder() < 0) return;
        const weight_entry& of = *system.of_other();
        weight_entry::other_weight& kept = to->others[system.other];
        const bool is_refused = of.state != 1;
        kept.weight = is_refused ? not_a_number() : of.weight;
        // The bound is at least five deviations wide.
        kept.deviation = is_refused ? 1 - static_cast<double>(of.state) : of.deviation + 0.2 * of.systematic;
    }
};

/// For one index: a call that is not measured, and why.
struct refuse_weights {
    weight_entry* to;
    weights_refusal why;

    COLLPROBE_HD void operator()(std::uint64_t) const noexcept { to->state = 1 + static_cast<std::uint64_t>(why); }
};

struct weight_note {
    conservation_bound rounding;
    double scale;
    bool may_differ; ///< the ranks may have different results, which lie behind their inputs
};

/// Computes the weights with which the ranks' inputs are in the results of a step's sums, by sketches that are gathered
/// at its end. Preconditions and stream behaviour: of `step_sketches`. Cost of a step: an all-gather of 16 bytes a bin
/// and call (twice that for a reduce-scatter, and for an observed call), and eight launches for each call, beside that
/// of the sample; of an observed all-reduce 36. The products of a call take (ranks + 1)^2 * bins multiplications, four
/// times for those. Memory on the device: what all ranks send, and 56 bytes a bin.
template <class Device>
class weight_check : public step_sketches<Device, weight_note> {
    using sketches = step_sketches<Device, weight_note>;

public:
    using stream_ref = typename Device::stream_ref;

    weight_check(std::uint64_t most_bins, std::uint64_t seed, int ranks)
        : sketches(weight_bins(most_bins, ranks, ~std::uint64_t{0}), seed), most_bins_(most_bins), ranks_(ranks),
          scratch_(ranks > most_weighted_ranks
                  ? 0 : weight_system::numbers(weight_bins(most_bins, ranks, ~std::uint64_t{0}), ranks))
    {
    }

    /// `scale`: as told for this call.
    template <floating_element T, class Call>
    sketch_target before(const Call& call, double scale)
    {
        const std::uint64_t bins = weight_bins(most_bins_, ranks_, call.count());
        auto rounding = conservation_bound::of<T>(reduction::average, rounding_order::linear, ranks_,
            (call.count() + bins - 1) / bins, terms_of_linear(ranks_));
        rounding.scale = 1; // the terms are weighted before their energies are added
        const bool may_differ = call.is_observed() && call.what() != collective::reduce_scatter;
        return this->open(call, {rounding, scale, may_differ}, bins, call.is_observed());
    }
    /// Behind all calls of the step. `out_of(call)` is where the device writes.
    template <class Step, class OutOf>
    void end(Step& step, const OutOf& out_of)
    {
        this->gather(step);
        const auto n = static_cast<std::uint64_t>(ranks_);
        for (const auto& each : this->opened()) {
            weight_system system{this->gathered(each.of_input),
                each.is_part ? nullptr : static_cast<const double*>(each.of_result), each.bins, ranks_,
                each.note.rounding, step.ranks().rank(), scratch_.data()};
            weight_entry* const to = out_of(each.call);
            solve(system, to, each.note.scale, step.stream());
            if (!each.note.may_differ) continue;
            Device::for_each(step.stream(), n, digest_results{system});
            // Where there is no other result, the rank's own is solved again: only the device knows.
            for (system.other = 0; system.other < most_weighed_results - 1; ++system.other) {
                solve(system, system.of_other(), each.note.scale, step.stream());
                Device::for_each(step.stream(), 1, keep_other_weight{system, to});
            }
        }
    }

private:
    static void solve(const weight_system& system, weight_entry* to, double scale, stream_ref stream)
    {
        const auto n = static_cast<std::uint64_t>(system.ranks);
        Device::for_each(stream, system.bins, weigh_rows{system});
        for (const bool first : {true, false}) {
            Device::sum_each(stream, packed_place(n + 1, 0), weight_products{system});
            Device::for_each(stream, 1, solve_weight_system{system, to});
            Device::for_each(stream, system.bins, weight_residuals{system, first});
        }
        Device::for_each(stream, 1, write_weight{system, to, scale});
    }

    std::uint64_t most_bins_;
    int ranks_;
    typename Device::template buffer<double> scratch_; ///< of one call after the other
};

} // namespace collprobe::detail
