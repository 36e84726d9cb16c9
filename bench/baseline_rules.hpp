// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

/// The alarms that others have published, as published, with their flaws: to compare with, not to use.
///
/// Each is a class with `rule_verdict judge(const rule_input&)`, called once a step; `published_rules` has them all. What a
/// rule does in every process by itself is done here for all ranks at once. Preconditions, not checked: the views have the
/// sizes below, the same in each step. O(ranks x buckets) a step, no allocation after construction. Copies are independent:
/// to ask what a rule would say of a step without its learning from it, ask a copy.
namespace baseline {

using collprobe::is_finite;
using collprobe::view;
namespace detail = collprobe::detail;

/// What a step shows to the rules.
struct rule_input {
    int ranks = 1;
    int buckets = 1;
    view<const double> local_norms; ///< of the gradients before they are reduced: bucket b of rank r at r * buckets + b
    view<const double> reduced_norms; ///< per rank: of the whole gradient that it received
    view<const double> update_sizes; ///< per rank: largest RMS, over parameter groups, of lr m / (sqrt(v) + eps)
    double loss = 0; ///< mean over the ranks

    double local_norm(int rank, int bucket) const noexcept
    {
        return local_norms[static_cast<std::size_t>(rank * buckets + bucket)];
    }
    double local_norm(int rank) const noexcept ///< of the whole gradient
    {
        double sum = 0;
        for (int b = 0; b < buckets; ++b) sum += local_norm(rank, b) * local_norm(rank, b);
        return detail::square_root(sum);
    }
};

/// What a rule says of a step.
struct rule_verdict {
    bool alarmed = false;
    int rank = -1; ///< the lowest rank that it names; -1 for a rule that names none
    int named = 0; ///< how many it names

    void name(int which) noexcept
    {
        alarmed = true;
        if (named++ == 0) rank = which;
    }
};

/// Megatron-LM, check_for_nan_in_grad and check_for_large_grads (rerun_state_machine.py, is_unexpectedly_large): a rank's
/// norm of a bucket is not finite, or at least 10 times the largest of its first 100 samples; then the step is rerun.
///
/// Flaws: one maximum for all buckets ("grads"), so a spike in a small one is not seen; the 100 samples are calls, not steps:
/// with 76 buckets the second step ends them; the maximum is never renewed, so a run whose norms fall goes blind; a factor
/// of 10 sees no disturbance of some per cent; ranks are not compared. (Its norm is single precision and overflows
/// above 1.8e19, which is not imitated.)
class megatron {
public:
    explicit megatron(int ranks, int samples = 100)
        : samples_(samples), seen_(static_cast<std::size_t>(ranks)), largest_(static_cast<std::size_t>(ranks))
    {
    }
    rule_verdict judge(const rule_input& step) noexcept
    {
        rule_verdict verdict;
        for (int r = 0; r < step.ranks; ++r) {
            const std::size_t at = static_cast<std::size_t>(r);
            bool bad = false;
            for (int b = 0; b < step.buckets; ++b) {
                const double norm = step.local_norm(r, b);
                const bool is_sample = is_finite(norm) && seen_[at] < samples_;
                seen_[at] += is_sample ? 1 : 0;
                if (is_sample && norm > largest_[at]) largest_[at] = norm;
                bad = bad || !is_finite(norm) || (!is_sample && norm >= largest_[at] * 10);
            }
            if (bad) verdict.name(r);
        }
        return verdict;
    }

private:
    int samples_;
    std::vector<int> seen_;
    std::vector<double> largest_;
};

/// fairseq, Trainer._check_grad_norms: every rank's norm of the *reduced* gradient must be finite and equal that of rank 0
/// to 1e-6: max |n_r - n_0| / (n_0 + 1e-6) < 1e-6. Otherwise the job ends, with a list of all norms.
///
/// Flaws: sees only results that differ, and those only by their norm: a swap, or small damage of a large gradient,
/// passes; compares with rank 0, so names nobody; wrong inputs and wrong sums are alike on all ranks.
class fairseq {
public:
    rule_verdict judge(const rule_input& step) const noexcept
    {
        const double first = step.reduced_norms[0];
        bool finite = true;
        double largest = 0;
        for (int r = 0; r < step.ranks; ++r) {
            const double norm = step.reduced_norms[static_cast<std::size_t>(r)];
            finite = finite && is_finite(norm);
            if (finite && detail::absolute(norm - first) > largest) largest = detail::absolute(norm - first);
        }
        return {!finite || !(largest / (first + 1e-6) < 1e-6)};
    }
};

/// llm.c, llmc/outlier_detector.h: z-scores of the mean loss and of the reduced norm over the last 128 steps; the update is
/// skipped where one exceeds the user's threshold (-sl, -sg; off by default: there is no published number).
///
/// Flaws: the new value is in its own window, so no z exceeds sqrt(127) = 11.3; E[x^2] - E[x]^2 cancels; a NaN stays in the
/// running sums for good, and the detector is silent from then on; one number for all ranks, so nobody is named.
class llm_c {
public:
    static constexpr int window = 128;

    explicit llm_c(double threshold) : threshold_(threshold) {}
    rule_verdict judge(const rule_input& step) noexcept
    {
        const double loss = loss_.update(step.loss);
        const double norm = norm_.update(step.reduced_norms[0]);
        return {(is_finite(loss) && loss > threshold_) || (is_finite(norm) && norm > threshold_)};
    }

    /// The z-scores by themselves.
    class series {
    public:
        /// The z of `value`; NaN by bits until the window is full.
        double update(double value) noexcept
        {
            if (count_ < window) {
                values_[count_++] = value;
                sum_ += value;
                squares_ += value * value;
                return detail::not_a_number();
            }
            const double old = values_[next_];
            sum_ -= old;
            squares_ -= old * old;
            values_[next_] = value;
            sum_ += value;
            squares_ += value * value;
            next_ = (next_ + 1) % window;
            if (!is_finite(sum_) || !is_finite(squares_)) return detail::not_a_number();
            const double mean = sum_ / window;
            const double variance = squares_ / window - mean * mean;
            if (variance < 0) return detail::not_a_number();
            const double deviation = detail::square_root(variance);
            return deviation > 0 ? (value - mean) / deviation : 0;
        }

    private:
        double values_[window] = {};
        int count_ = 0;
        int next_ = 0;
        double sum_ = 0;
        double squares_ = 0;
    };

private:
    double threshold_;
    series loss_;
    series norm_;
};

/// Ascend, torch_npu's and MindSpore's feature value detection (NPU_ASD_CONFIG): a rank's gradient norm, sampled, is a strike
/// if it is not finite, above 1e6, or above 100 times its running mean (beta 0.99; such values are not absorbed). Three
/// strikes of a rank within 480 minutes start a check of its matrix products. `window` is the number of steps that stand for the
/// 480 minutes.
///
/// Flaws: a norm that is a hundredfold is no silent error any more; each rank by itself; a level that rises for good
/// is never learned; what a strike means depends on how long a step takes.
class ascend {
public:
    ascend(int ranks, std::uint64_t window) : window_(window), states_(static_cast<std::size_t>(ranks)) {}
    rule_verdict judge(const rule_input& step) noexcept
    {
        rule_verdict verdict;
        ++now_;
        for (int r = 0; r < step.ranks; ++r) {
            state& own = states_[static_cast<std::size_t>(r)];
            const double norm = step.local_norm(r);
            const bool too_large = !is_finite(norm) || norm > 1e6;
            if (too_large || (own.weight > 0 && norm > 100 * own.mean / own.weight)) {
                const std::uint64_t third = own.strikes[own.next]; // of three, this one included
                own.strikes[own.next] = now_;
                own.next = own.next == 0 ? 1 : 0;
                if (third != 0 && now_ - third < window_) verdict.name(r);
                continue;
            }
            own.mean = beta * own.mean + (1 - beta) * norm;
            own.weight = beta * own.weight + (1 - beta);
        }
        return verdict;
    }

private:
    struct state {
        double mean = 0;
        double weight = 0; // of the values in it: the mean starts at zero
        std::uint64_t strikes[2] = {0, 0}; // the last two, as steps from 1
        int next = 0; // the older one
    };

    static constexpr double beta = 0.99;
    std::uint64_t window_;
    std::uint64_t now_ = 0;
    std::vector<state> states_;
};

/// Altenbernd et al. (arXiv 2604.00726), equations 7 to 13: with R_t the update size of a rank, dR_t = R_t - R_(t-1), mu the mean
/// of dR over the warm-up (until it ends, over the steps so far) and G_t = max(0, |g_t| - |g_(t-1)|) before clipping, alarm if dR_t > mu / (alpha sqrt(G_t)), or
/// if the norm is not finite; then the step is computed again. alpha = 0.05; the length of the warm-up is the user's.
///
/// Flaws: as published dR is signed, so mu telescopes to (R_end - R_0) / warm-up, which says nothing about how much R
/// jumps, and is negative where updates shrink: then nearly every step with rising norm alarms. (`absolute_jumps`: the authors'
/// program takes |dR| instead.) G_t has the unit of a gradient, so rescaling the loss changes the rule. Nothing is
/// seen where the norm does not rise. mu is frozen after the warm-up.
class altenbernd {
public:
    altenbernd(int ranks, int warm_up, bool absolute_jumps = false)
        : warm_up_(warm_up), absolute_jumps_(absolute_jumps), states_(static_cast<std::size_t>(ranks))
    {
    }
    rule_verdict judge(const rule_input& step) noexcept
    {
        rule_verdict verdict;
        for (int r = 0; r < step.ranks; ++r) {
            state& own = states_[static_cast<std::size_t>(r)];
            const double size = step.update_sizes[static_cast<std::size_t>(r)];
            const double norm = step.local_norm(r);
            if (!is_finite(norm) || !is_finite(size)) {
                verdict.name(r);
                continue;
            }
            double jump = size - own.size;
            if (absolute_jumps_) jump = detail::absolute(jump);
            const double rise = norm - own.norm;
            if (own.steps > 0) {
                if (own.steps <= warm_up_) own.jumps += jump;
                const double mean = own.jumps / (own.steps < warm_up_ ? own.steps : warm_up_);
                if (rise > 0 && jump > mean / (0.05 * detail::square_root(rise))) verdict.name(r);
            }
            own.size = size;
            own.norm = norm;
            ++own.steps;
        }
        return verdict;
    }

private:
    struct state {
        double size = 0, norm = 0;
        double jumps = 0; // sum over the warm-up
        int steps = 0;
    };

    int warm_up_;
    bool absolute_jumps_;
    std::vector<state> states_;
};

/// ByteRobust (arXiv 2509.16293): the loss or the norm of the reduced gradient is not finite, or 5 times what it was in the step
/// before. Names nobody, and cannot see less than a fivefold jump; what stays high is seen once.
class byterobust {
public:
    rule_verdict judge(const rule_input& step) noexcept
    {
        const double norm = step.reduced_norms[0];
        if (!is_finite(step.loss) || !is_finite(norm)) return {true};
        const bool jumps = steps_++ > 0 && (step.loss >= 5 * loss_ || norm >= 5 * norm_);
        loss_ = step.loss;
        norm_ = norm;
        return {jumps};
    }

private:
    double loss_ = 0;
    double norm_ = 0;
    std::uint64_t steps_ = 0;
};

/// All of them. `threshold`, `window`, `warm_up`: llm.c's, Ascend's and Altenbernd's, which nobody has published.
class published_rules {
public:
    static constexpr std::size_t count = 7;
    static constexpr const char* names[count]
        = {"Megatron", "fairseq", "llm.c", "Ascend", "Altenbernd", "Altenbernd, abs", "ByteRobust"};

    published_rules(int ranks, double threshold, std::uint64_t window, int warm_up)
        : megatron_(ranks), llm_c_(threshold), ascend_(ranks, window), altenbernd_(ranks, warm_up), absolute_(ranks, warm_up, true)
    {
    }
    /// In the order of their names.
    std::array<rule_verdict, count> judge(const rule_input& step)
    {
        return {megatron_.judge(step), fairseq_.judge(step), llm_c_.judge(step), ascend_.judge(step), altenbernd_.judge(step),
            absolute_.judge(step), byterobust_.judge(step)};
    }

private:
    megatron megatron_;
    fairseq fairseq_;
    llm_c llm_c_;
    ascend ascend_;
    altenbernd altenbernd_, absolute_;
    byterobust byterobust_;
};

} // namespace baseline
