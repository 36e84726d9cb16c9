// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/config.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/element.hpp>

/// The plain data that probes write and reports read. Nothing here computes more than a root.
namespace collprobe {

/// "No such index": the first non-finite element of a buffer that has none.
inline constexpr std::uint64_t no_index = ~std::uint64_t{0};

/// What one read of a buffer tells. Moments, norms and extrema are over the finite elements only, so
/// one NaN does not hide the rest. Integers are taken as doubles (exact below 2^53).
///
/// Travels between ranks as bytes: all ranks must be built alike.
struct statistics {
    std::uint64_t count = 0; ///< elements read
    std::uint64_t nan = 0;
    std::uint64_t positive_infinity = 0;
    std::uint64_t negative_infinity = 0;
    std::uint64_t zero = 0; ///< of either sign
    std::uint64_t subnormal = 0;
    std::uint64_t first_nonfinite = no_index; ///< index of the first NaN or infinity
    std::uint64_t digest = 0; ///< of the bytes (probe/digest.hpp), 0 where not asked for
    double minimum = 0; ///< extrema and moments are 0 where no element is finite
    double maximum = 0;
    double absolute_maximum = 0;
    double mean = 0;
    double l1 = 0; ///< sum of absolute values
    /// Sum of squared distances from the mean, and sum of squares, both times 2^(-2 scale): `scale`
    /// is 0 unless squares of doubles would leave the range of a double.
    double m2 = 0;
    double sum_of_squares = 0;
    std::int32_t scale = 0;
    element_type type = element_type::float32;
    std::uint8_t has_digest = 0;
    std::uint8_t padding[2] = {0, 0};

    COLLPROBE_HD constexpr std::uint64_t infinite() const noexcept { return positive_infinity + negative_infinity; }
    COLLPROBE_HD constexpr std::uint64_t nonfinite() const noexcept { return nan + infinite(); }
    COLLPROBE_HD constexpr std::uint64_t finite() const noexcept { return count - nonfinite(); }
    /// Euclidean norm. Infinity only if the norm itself is beyond the largest double.
    COLLPROBE_HD double l2() const noexcept { return detail::square_root(sum_of_squares) * scale_factor(); }
    /// Population standard deviation (divides by the number of finite elements); 0 where none is.
    COLLPROBE_HD double standard_deviation() const noexcept
    {
        return finite() == 0 ? 0 : detail::square_root(m2 / static_cast<double>(finite())) * scale_factor();
    }

private:
    COLLPROBE_HD double scale_factor() const noexcept { return detail::power_of_two(scale); }
};

static_assert(std::is_trivially_copyable_v<statistics> && sizeof(statistics) == 128);

/// How one number per rank is spread over the ranks. A field that is undefined is NaN by its bits
/// (`is_nan` tells, also under `-ffast-math`): the sample deviation of one rank, say.
struct spread {
    double mean = detail::not_a_number();
    double std = detail::not_a_number(); ///< population form, divides by n: the published definition
    double std_sample = detail::not_a_number(); ///< divides by n - 1
    double range = detail::not_a_number(); ///< largest minus smallest
    double cv = detail::not_a_number(); ///< std / |mean|
    double minimum = detail::not_a_number();
    double maximum = detail::not_a_number();
    int minimum_rank = -1; ///< lowest rank that holds it
    int maximum_rank = -1;
    int finite = 0; ///< ranks whose number is finite: the only ones counted above
};

/// How the gradients of the ranks point. Undefined values are NaN by their bits.
struct alignment {
    double mean_pairwise = detail::not_a_number(); ///< mean of cos(g_i, g_j) over all pairs i < j
    double pooled = detail::not_a_number(); ///< the same, each pair weighted by its norms
    /// Gradient noise scale in units of one rank's batch: multiply by samples per rank for B_simple.
    double noise_scale = detail::not_a_number();
    double predicted_cosine = detail::not_a_number(); ///< 1 / (1 + noise_scale), smoothed over steps
    std::vector<double> leave_one_out; ///< per rank: cosine with the sum of all other ranks
};

/// The question a verdict answers.
enum class check : std::uint8_t {
    non_finite, ///< NaN or infinity in the rank's buffer: exact
    /// The rank holds the same bits as another, in a bucket or as sample ids: exact. All ranks that hold
    /// them are named, since equal bits do not tell whose they are.
    duplicate,
    stale, ///< the rank's buffer is bit for bit what it was in the step before: exact
    result_differs, ///< ranks received different bits from a collective that gives all the same: exact
    shard_differs, ///< a rank received other bits of a shard than its owner sent: exact
    replica_differs, ///< a rank holds other weights, or optimizer state, than the others: exact
    /// The result is not the sum of the inputs: exact for integers, else statistical.
    sum_differs,
    loss, ///< statistical, with a stated false-alarm rate
    gradient_norm, ///< statistical
    cosine, ///< statistical: leave-one-out cosine
};

constexpr const char* name(check what) noexcept
{
    switch (what) {
    case check::non_finite: return "non_finite";
    case check::duplicate: return "duplicate";
    case check::stale: return "stale";
    case check::result_differs: return "result_differs";
    case check::shard_differs: return "shard_differs";
    case check::replica_differs: return "replica_differs";
    case check::sum_differs: return "sum_differs";
    case check::loss: return "loss";
    case check::gradient_norm: return "gradient_norm";
    case check::cosine: return "cosine";
    }
    return "unknown";
}

/// One rank that a check names, with the evidence.
struct suspect {
    int rank = -1; ///< -1: the check found that something is wrong, but not whose it is
    /// `duplicate`: the lowest other rank that holds the same; `shard_differs`: the owner of the shard; else -1.
    int other_rank = -1;
    int bucket = -1; ///< index of the bucket in the step, -1 for the whole step
    check what = check::non_finite;
    double statistic = 0; ///< what was measured: a score, or a count for exact checks
    double threshold = 0; ///< what it was compared with; 0 for exact checks
    std::uint64_t index = no_index; ///< first bad element where one is known
    bool by_history = false; ///< statistical: the score is that of the rank against its own past, not the other ranks
    bool exact = true; ///< no chance, and no rounding, explains it
    /// At most so often a healthy step has such a suspect, where the check states it by itself; else 0.
    double false_alarms_per_step = 0;
};

/// The calls of a communicator in which all ranks take part. (`barrier` and `split` move no data: they
/// are never the collective of a bucket.)
enum class collective : std::uint8_t {
    all_reduce,
    reduce_scatter,
    all_gather,
    all_to_all,
    broadcast,
    barrier,
    split,
};

constexpr const char* name(collective call) noexcept
{
    switch (call) {
    case collective::all_reduce: return "all_reduce";
    case collective::reduce_scatter: return "reduce_scatter";
    case collective::all_gather: return "all_gather";
    case collective::all_to_all: return "all_to_all";
    case collective::broadcast: return "broadcast";
    case collective::barrier: return "barrier";
    case collective::split: return "split";
    }
    return "unknown";
}

/// How the records of a step reached the ranks.
enum class report_mode : std::uint8_t {
    gather, ///< every rank has every rank's records: exact tables, up to about a thousand ranks
    /// Sums, extrema with their rank and digest agreement only: same size for any n. Checks: non-finite
    /// values (the worst rank is named) and differing results (no rank is); no others.
    summary,
};

constexpr const char* name(report_mode mode) noexcept
{
    return mode == report_mode::gather ? "gather" : "summary";
}

/// How much a reduction depends on the order of its terms, measured on a sample of its elements: see
/// `order_meter`.
struct order_sensitivity {
    std::uint64_t elements = 0; ///< in the sample; 0 if nothing was measured
    std::uint64_t nonfinite = 0; ///< sampled, but left out: exact sum, result or the sum of an order is not finite
    std::uint64_t orders = 0; ///< how many orders were compared
    std::uint64_t changed = 0; ///< elements whose bits are not the same in all orders
    std::uint64_t max_ulp_spread = 0; ///< largest distance of the sums of one element in two orders
    /// Of the communicator's own result, in units in the last place from the correctly rounded one.
    double rms_ulp_error = 0;
    double max_ulp_error = 0;
};

/// Both samples as one.
inline order_sensitivity merged(const order_sensitivity& a, const order_sensitivity& b) noexcept
{
    const auto larger = [](auto x, auto y) { return x > y ? x : y; };
    order_sensitivity all{a.elements + b.elements, a.nonfinite + b.nonfinite, larger(a.orders, b.orders),
        a.changed + b.changed, larger(a.max_ulp_spread, b.max_ulp_spread), 0,
        larger(a.max_ulp_error, b.max_ulp_error)};
    if (all.elements != 0) {
        all.rms_ulp_error = detail::square_root(
            (static_cast<double>(a.elements) * a.rms_ulp_error * a.rms_ulp_error
                + static_cast<double>(b.elements) * b.rms_ulp_error * b.rms_ulp_error)
            / static_cast<double>(all.elements));
    }
    return all;
}

/// One probed collective of a step, over all ranks.
struct bucket_record {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t count = 0; ///< elements that each rank sent
    spread gradient_norm; ///< of the L2 norms of what the ranks sent
    double pooled_cosine = detail::not_a_number(); ///< of sums and averages, else undefined
    std::uint64_t nonfinite = 0; ///< summed over ranks
    /// Whether every rank's result has the same bits; true where the collective promises no such thing.
    bool results_agree = true;
    order_sensitivity order; ///< of sums and averages, where asked for
    std::vector<statistics> inputs; ///< per rank; empty in `summary` mode
};

/// Where on the way from inputs to results the damage was done, as far as the checks tell.
enum class damage : std::uint8_t {
    none, ///< no check has fired
    input, ///< a rank's own data, before the collective
    reduce, ///< the sum, alike for all ranks
    broadcast, ///< on the way of the result to some ranks, or in their memory
    duplicated_data, ///< ranks that should have their own data have the same
    unknown, ///< something is wrong, and the evidence does not tell what
};

constexpr const char* name(damage where) noexcept
{
    switch (where) {
    case damage::none: return "none";
    case damage::input: return "input";
    case damage::reduce: return "reduce";
    case damage::broadcast: return "broadcast";
    case damage::duplicated_data: return "duplicated_data";
    case damage::unknown: return "unknown";
    }
    return "unknown";
}

/// What was found in one audited collective of a step. Equal on every rank.
struct bucket_audit {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    std::uint64_t count = 0; ///< elements that each rank sent
    bool agree = true; ///< every rank holds the bits that it should: of the result, or of every shard
    bool majority = true; ///< more than half of the ranks hold the same result
    bool sum_checked = false; ///< the sum could be checked, and was
    bool conserved = true; ///< the sum came out right: all ranks hold it, or some do, and who does not is named
    /// Largest distance of a checksum of the result from that of the inputs, in standard deviations of what
    /// rounding does to it, over the ranks; and what it must not exceed. 0 where the sum was not checked. Of integers
    /// the distance itself; in a `summary` all in units of the limit.
    double residual = 0;
    double residual_limit = 0;
    damage where = damage::none;
    std::vector<int> culprits; ///< ranks that hold, or sent, what is damaged; empty where none can be named
};

/// What the audit of a step found.
struct step_audit {
    std::uint64_t step = 0;
    int ranks = 0;
    std::vector<bucket_audit> buckets;
    std::vector<suspect> suspects; ///< bucket by bucket; empty on a healthy step
    std::uint64_t unaudited_calls = 0; ///< calls beyond the bucket limit: forwarded, not checked
};

/// What an alarm advises to do.
enum class advice : std::uint8_t {
    none, ///< note it
    recheck, ///< repeat the step, or look closer: the evidence is statistical
    skip, ///< drop the step's update
    resync, ///< restore the ranks from another one
    quarantine, ///< take the rank out: it was named again and again
};

constexpr const char* name(advice what) noexcept
{
    switch (what) {
    case advice::none: return "none";
    case advice::recheck: return "recheck";
    case advice::skip: return "skip";
    case advice::resync: return "resync";
    case advice::quarantine: return "quarantine";
    }
    return "unknown";
}

/// Something that somebody should know of, with the evidence. Equal on every rank.
struct alarm_record {
    std::uint64_t step = 0;
    int bucket = -1; ///< index of the bucket in the step, -1 for the whole step
    check what = check::non_finite;
    damage where = damage::unknown;
    std::vector<int> ranks; ///< that are named, ascending; empty where none can be
    double statistic = 0; ///< the largest of its evidence, and what that was compared with
    double threshold = 0; ///< 0 for exact checks
    double false_alarms_per_step = 0; ///< at most this many on a healthy run; 0 for exact checks
    int strikes = 1; ///< how often the same was seen in the window of steps that counts
    advice action = advice::none;
    int source = -1; ///< of `resync`: a rank that holds what is right
};

/// All that the ranks agreed on about one step. Equal on every rank.
struct step_record {
    std::uint64_t step = 0;
    int ranks = 0;
    report_mode mode = report_mode::gather;
    spread loss;
    spread loss_weighted; ///< each rank weighted by its tokens; as `loss` where the weights are equal
    spread gradient_norm; ///< of the whole gradient, all buckets together
    alignment cosine; ///< of the whole gradient
    std::vector<double> losses; ///< per rank; empty in `summary` mode
    std::vector<double> gradient_norms; ///< per rank; empty in `summary` mode
    std::vector<bucket_record> buckets;
    std::vector<suspect> suspects; ///< loss first, then bucket by bucket, then direction; empty on a healthy step
    std::uint64_t unprobed_calls = 0; ///< calls beyond the bucket limit: forwarded, not measured

    /// Of all buckets together.
    order_sensitivity order() const noexcept
    {
        order_sensitivity all;
        for (const bucket_record& bucket : buckets) all = merged(all, bucket.order);
        return all;
    }
};

} // namespace collprobe
