// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// How often a step's outliers are false, and what is named: prints markdown tables, see bench/results/outliers.md.
///
///     outlier_rates [--steps N] [--ranks n,n,...] [--calls n,n,...] [--trials N]
///     outlier_rates --run PREFIX --ranks N    of a recorded run: files PREFIX.0 ... PREFIX.<N - 1>, a line a step:
///                                             number of the step, loss, then norm and largest magnitude of each bucket
///     outlier_rates --bits                    one flipped bit in one element of one rank's gradient
///
/// The numbers of ranks, on the logarithm's scale, about a common level that moves by 10 % from step to step:
///     gaussian, t3, t2     2 % times a Gaussian, a Student's t of 3 or 2 degrees
///     lognormal            2 % times exp(0.8 g), less its mean
///     exponential          2 % times an exponential of either sign: a power law of the number itself
///     memory               Gaussian, of each rank's own: x' = 0.9 x + noise
///     habits               Gaussian; rank r has a level of its own, 10 % sin(r)
///     trends               Gaussian; rank r moves by 1e-4 sin(r) a step
///     warm-up              Gaussian; the width falls from 20 % to 2 % in 500 steps
///     spikes               Gaussian; the common level jumps by e^2 in one step of a hundred

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/metrics/outlier.hpp>

#include "program.hpp"
#include "random.hpp"

namespace {

using namespace collprobe;
using row = std::vector<double>;

constexpr const char* tails[] = {"gaussian", "t3", "t2", "lognormal", "exponential", "memory", "habits", "trends", "warm-up", "spikes"};
constexpr double alarm_rate = 1e-7;
constexpr double rate = 1e-4; ///< as a probe has it
constexpr std::uint64_t first_seed = 20260601;

class healthy_numbers {
public:
    healthy_numbers(std::size_t ranks, std::string tail, std::uint64_t seed)
        : values(ranks), tail_(std::move(tail)), random_(seed), own_(ranks)
    {
    }
    void step()
    {
        level_ = 0.1 * random_.normal() + (tail_ == "spikes" && steps_ % 100 == 7 ? 2 : 0);
        begin_call();
        ++steps_;
    }
    /// Another number of the same step.
    void begin_call()
    {
        for (std::size_t r = 0; r < values.size(); ++r) values[r] = level_ + 0.02 * noise(r);
    }
    row values;

private:
    double noise(std::size_t r)
    {
        const double rank = std::sin(static_cast<double>(r));
        if (tail_ == "t3") return random_.student(3);
        if (tail_ == "t2") return random_.student(2);
        if (tail_ == "lognormal") return std::exp(0.8 * random_.normal()) - std::exp(0.32);
        if (tail_ == "exponential") return (random_.bits() & 1) != 0 ? std::log(random_.uniform()) : -std::log(random_.uniform());
        if (tail_ == "memory") return own_[r] = 0.9 * own_[r] + std::sqrt(0.19) * random_.normal();
        const double width = tail_ == "warm-up" ? 1 + 9 * std::exp(-static_cast<double>(steps_) / 217) : 1;
        const double level = tail_ == "habits" ? 5 * rank : tail_ == "trends" ? 0.005 * static_cast<double>(steps_) * rank : 0;
        return level + width * random_.normal();
    }

    std::string tail_;
    random_numbers random_;
    row own_;
    double level_ = 0;
    std::uint64_t steps_ = 0;
};

struct step_findings {
    bool any = false;
    bool alarm = false;
    bool right = false; ///< `who` is among the named
};
void take(step_findings& into, view<const outlier> found, int who)
{
    for (const outlier& one : found) {
        into.any = true;
        into.alarm = into.alarm || one.false_alarms_per_step <= alarm_rate;
        into.right = into.right || one.rank == who || one.rank < 0;
    }
}

struct finding_counts {
    long found = 0, alarms = 0; ///< steps

    void add(const step_findings& now)
    {
        found += now.any ? 1 : 0;
        alarms += now.alarm ? 1 : 0;
    }
};

/// One number with a series for each call. `shift` is added to the number of rank `who` in the middle call.
step_findings judge(outlier_detector& detector, healthy_numbers& numbers, std::size_t calls, int who = -1, double shift = 0)
{
    numbers.step();
    for (std::size_t call = 0; call < calls; ++call) {
        if (call > 0) numbers.begin_call();
        if (who >= 0 && call == calls / 2) numbers.values[static_cast<std::size_t>(who)] += shift;
        detector.add(0, call, numbers.values, static_cast<int>(call));
    }
    step_findings found;
    take(found, detector.judge(0), who);
    return found;
}

void print_tails(long steps, const std::vector<int>& sizes, const std::vector<int>& calls, int trials)
{
    constexpr double shifts[] = {1.1, 1.2, 1.4, 2, 5};
    std::printf("| numbers | ranks | calls | steps | findings in 10,000 steps, %.3g stated | alarms | named: times 1.1 | 1.2 | 1.4 | 2 | 5 |\n", 1e4 * rate);
    std::printf("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for (const char* const tail : tails) {
        for (const int ranks : sizes) {
            for (const int of_calls : calls) {
                const auto n = static_cast<std::size_t>(ranks), count = static_cast<std::size_t>(of_calls);
                healthy_numbers numbers(n, tail, first_seed + n);
                outlier_detector detector(ranks, 1, rate);
                detector.resize(count);
                finding_counts said;
                for (long step = 0; step < steps; ++step) said.add(judge(detector, numbers, count));
                std::printf("| %s | %d | %d | %ld | %.2f | %ld |", tail, ranks, of_calls, steps,
                    1e4 * static_cast<double>(said.found) / static_cast<double>(steps), said.alarms);
                for (const double shift : shifts) {
                    int named = 0;
                    for (int trial = 0; trial < trials; ++trial) {
                        // Single faults in copies, so that none teaches the next one.
                        for (int step = 0; step < 40; ++step) judge(detector, numbers, count);
                        outlier_detector copy = detector;
                        named += judge(copy, numbers, count, trial % ranks, std::log(shift)).right ? 1 : 0;
                    }
                    std::printf(trials > 0 ? " %d %% |" : " - |", 100 * named / std::max(trials, 1));
                }
                std::printf("\n");
                std::fflush(stdout);
            }
        }
    }
}

using recorded_run = std::vector<std::vector<row>>; // by rank and step: loss, then norm and magnitude by bucket

recorded_run read_run(const std::string& prefix, int ranks)
{
    recorded_run run;
    for (int r = 0; r < ranks; ++r) {
        std::ifstream file(prefix + '.' + std::to_string(r));
        if (!file) throw support::usage_error("--run: there is no file " + prefix + '.' + std::to_string(r));
        std::vector<row>& steps = run.emplace_back();
        for (std::string line; std::getline(file, line);) {
            std::istringstream numbers(line);
            row step;
            for (double x = 0; numbers >> x;) step.push_back(x);
            if (step.size() >= 4) steps.push_back({step.begin() + 1, step.end()});
        }
        steps.erase(steps.begin()); // DDP makes its buckets anew behind the first step
    }
    return run;
}

/// Judges a recorded step as a probe does. The gradient of rank `who` is multiplied by `factor`.
step_findings judge(outlier_detector& detector, const recorded_run& run, std::size_t step, int who = -1, double factor = 1)
{
    const std::size_t buckets = (run[0][step].size() - 1) / 2;
    detector.resize(2 + 2 * buckets);
    row values(run.size()), squares(run.size());
    step_findings found;
    for (std::size_t r = 0; r < run.size(); ++r) values[r] = logarithm_of(run[r][step][0]);
    detector.add(0, 0, values);
    take(found, detector.judge(0), who);
    for (std::size_t column = 1; column <= 2 * buckets; ++column) {
        for (std::size_t r = 0; r < run.size(); ++r) {
            const double number = run[r][step][column] * (static_cast<int>(r) == who ? factor : 1);
            if (column % 2 == 1) squares[r] += number * number;
            values[r] = logarithm_of(number);
        }
        detector.add(column % 2 == 1 ? 2 : 3, 1 + column, values, static_cast<int>(column - 1) / 2);
    }
    take(found, detector.judge(2), who);
    take(found, detector.judge(3), who);
    for (std::size_t r = 0; r < run.size(); ++r) values[r] = 0.5 * logarithm_of(squares[r]);
    detector.add(1, 1, values);
    take(found, detector.judge(1), who);
    return found;
}

void print_run(const std::string& prefix, int ranks)
{
    const recorded_run run = read_run(prefix, ranks);
    std::size_t steps = run[0].size();
    for (const std::vector<row>& of : run) steps = std::min(steps, of.size());
    constexpr double factors[] = {2, 3, 5, 10, 20, 100, 1000};
    std::printf("| rate stated | steps | with findings | alarms | gradient of one rank times 2 | 3 | 5 | 10 | 20 | 100 | 1000 |\n");
    std::printf("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for (const double stated : {1e-4, 1e-3, 1e-2}) {
        outlier_detector detector(ranks, 5, stated); // as with the cosine
        finding_counts said;
        int faults = 0;
        int named[std::size(factors)] = {};
        for (std::size_t step = 0; step < steps; ++step) {
            if (step > 300 && step % 20 == 19) {
                ++faults;
                for (std::size_t i = 0; i < std::size(factors); ++i) {
                    outlier_detector copy = detector;
                    named[i] += judge(copy, run, step, static_cast<int>(step / 20) % ranks, factors[i]).right ? 1 : 0;
                }
            }
            said.add(judge(detector, run, step));
        }
        std::printf("| %.0e | %zu | %ld | %ld |", stated, steps, said.found, said.alarms);
        for (const int of : named) std::printf(" %d %% |", faults > 0 ? 100 * of / faults : 0);
        std::printf("\n");
    }
}

/// A rank's gradient, of which norm and largest magnitude are known, also after one element has changed.
struct gradient {
    std::vector<float> elements;
    double squares = 0;
    double largest = 0;
    double second = 0; ///< the largest but one

    void measure()
    {
        for (const float x : elements) {
            squares += static_cast<double>(x) * x;
            const double size = std::fabs(x);
            if (size > largest) second = std::exchange(largest, size);
            else if (size > second) second = size;
        }
    }
};

/// 8 ranks; in each step each has one of 16 gradients at random (Gaussian with the widths of 64 layers, which differ by
/// tenfold), times its own exp(0.05 g).
template <floating_element T>
void print_bits(const char* type)
{
    constexpr std::size_t ranks = 8;
    constexpr int bits = 8 * static_cast<int>(sizeof(T));
    constexpr int trials = 100;
    for (const std::size_t count : {std::size_t{1} << 16, std::size_t{1} << 20, std::size_t{1} << 23}) {
        random_numbers random(first_seed);
        std::vector<gradient> known(16);
        for (gradient& one : known) {
            one.elements.resize(count);
            for (std::size_t i = 0; i < count; ++i) {
                const double width = std::pow(10.0, static_cast<double>(i * 64 / count) / 63 - 3);
                one.elements[i] = static_cast<float>(T(static_cast<float>(width * random.normal())));
            }
            one.measure();
        }
        outlier_detector detector(ranks, 5); // as with loss, cosine and the norm of the whole gradient
        detector.resize(2);
        row norms(ranks), largest(ranks);
        std::size_t chosen[ranks] = {};
        const auto draw = [&] {
            for (std::size_t r = 0; r < ranks; ++r) {
                chosen[r] = random.bits() % known.size();
                const double scale = 0.05 * random.normal();
                norms[r] = 0.5 * std::log(known[chosen[r]].squares) + scale;
                largest[r] = std::log(known[chosen[r]].largest) + scale;
            }
        };
        const auto judged = [&](outlier_detector& by, int who) {
            step_findings found;
            by.add(2, 0, norms, 0);
            take(found, by.judge(2), who);
            by.add(3, 1, largest, 0);
            take(found, by.judge(3), who);
            return found.right;
        };
        for (int step = 0; step < 500; ++step) draw(), judged(detector, -1);
        for (int bit = 0; bit < bits; ++bit) {
            int named = 0, nonfinite = 0;
            double worst = 0; // of what is not named
            for (int trial = 0; trial < trials; ++trial) {
                draw(), judged(detector, -1);
                draw();
                const std::size_t who = static_cast<std::size_t>(trial) % ranks;
                const gradient& of = known[chosen[who]];
                const std::size_t at = random.bits() % count;
                const double before = of.elements[at];
                auto word = to_bits(T(of.elements[at]));
                word = static_cast<decltype(word)>(word ^ (decltype(word){1} << bit));
                const T flipped = detail::bit_cast<T>(word);
                if (!is_finite(flipped)) {
                    ++nonfinite; // an exact finding
                    continue;
                }
                const double after = static_cast<double>(static_cast<float>(flipped));
                const double squares = of.squares - before * before + after * after;
                const double others = std::fabs(before) < of.largest ? of.largest : of.second;
                norms[who] += 0.5 * std::log(squares / of.squares);
                largest[who] += std::log(std::max(others, std::fabs(after)) / of.largest);
                outlier_detector copy = detector;
                if (judged(copy, static_cast<int>(who))) {
                    ++named;
                    continue;
                }
                // The change of the mean gradient, in units of its length; without a common direction that is norm / sqrt(ranks).
                const double change = std::fabs(after - before) / std::sqrt(of.squares) / std::sqrt(static_cast<double>(ranks));
                worst = std::max(worst, change);
            }
            std::printf("| %s | 2^%d | %d | %d %% | %d %% | %.1g |\n", type, std::ilogb(static_cast<double>(count)), bit, named, nonfinite, worst);
        }
        std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char** argv)
{
    support::command_line line("Rates and powers of a step's outliers", "0, 2 if the command line is wrong.");
    long steps = 100000;
    std::vector<int> ranks{2, 4, 8, 32, 256};
    std::vector<int> calls{1};
    std::string run;
    int trials = 100;
    bool bits = false;
    line.number("--steps", steps, 1, 1'000'000'000, "");
    line.numbers("--ranks", ranks, 2, 100000, "");
    line.numbers("--calls", calls, 1, 100000, "");
    line.number("--trials", trials, 0, 1'000'000, "of each fault");
    line.text("--run", "PREFIX", run, "of the files of a recorded run");
    line.flag("--bits", bits, "");
    return bench::run_program("outlier_rates", line, argc, argv, [&] {
        if (!run.empty()) return print_run(run, ranks[0]);
        if (!bits) return print_tails(steps, ranks, calls, trials);
        std::printf("| type | elements | bit | named | NaN or infinite | largest change of the mean that is not named |\n|---|---|--:|--:|--:|--:|\n");
        print_bits<bfloat16>("bfloat16");
        print_bits<float16>("half");
        print_bits<float>("float");
    });
}
