// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Disturbs the gradient of one rank and compares which rule notices, whether it names the rank, and when: the library's
/// numbers of a step (at the probe's rate), its alarms, its evidence over the run, and each published rule. Prints
/// markdown tables: see bench/results/alarms.md.
///
///     alarm_detection [--runs N] [--ranks N]
///
/// A run has 2000 steps; the fault begins at step 1000. A rank's gradient is g_r = G + e_r: 512 elements in 4 buckets, |G|
/// falls from 5 to 1 within a thousand steps and turns slowly; e_r has the standard deviations i^(-1/2), so that norms scatter
/// as widely as real ones do, and |e|^2 is the noise scale times |G|^2. Each rank has its own Adam, for the rule that looks at
/// updates. Everything that the alarms see goes through the library's own judge of messages.

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/step/detail/judge.hpp>

#include "baseline_rules.hpp"
#include "cpu_timing.hpp"
#include "program.hpp"
#include "random.hpp"

namespace {

using namespace collprobe;

constexpr std::size_t elements = 512;
constexpr std::size_t buckets = 4;
constexpr std::size_t part = elements / buckets;
constexpr std::uint64_t steps = 2000;
constexpr std::uint64_t onset = 1000;
constexpr std::uint64_t settled = 300; // from here on alarms count as false ones

enum class fault_kind { none, noise, scale, growth, result_noise };
struct fault {
    const char* name;
    fault_kind kind;
    double size;
    std::uint64_t burst, period; // the first `burst` of every `period` steps
};
constexpr fault faults[] = {
    {"noise of 5 %, each step", fault_kind::noise, 0.05, 1, 1},
    {"noise of 5 %, 5 steps of 100", fault_kind::noise, 0.05, 5, 100},
    {"noise of 100 %, each step", fault_kind::noise, 1, 1, 1},
    {"times 1.05, each step", fault_kind::scale, 1.05, 1, 1},
    {"times 1.3, each step", fault_kind::scale, 1.3, 1, 1},
    {"times 2, each step", fault_kind::scale, 2, 1, 1},
    {"0.2 % more in each step", fault_kind::growth, 0.002, 1, 1},
    {"sign flipped, each step", fault_kind::scale, -1, 1, 1},
    {"times 1.05, 5 steps of 100", fault_kind::scale, 1.05, 5, 100},
    {"noise of 100 %, 5 steps of 100", fault_kind::noise, 1, 5, 100},
    {"times 2, 5 steps of 100", fault_kind::scale, 2, 5, 100},
    {"sign flipped, one step", fault_kind::scale, -1, 1, steps},
    {"times 2, one step", fault_kind::scale, 2, 1, steps},
    {"times 100, one step", fault_kind::scale, 100, 1, steps},
    {"result: noise of 5 %, one step", fault_kind::result_noise, 0.05, 1, steps},
};

using vector = std::vector<double>;

double dot(const double* a, const double* b, std::size_t count)
{
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

/// Adds noise of `size` times the norm of `g`, at right angles to it.
void disturb(double* g, double size, random_numbers& random)
{
    vector noise(elements);
    for (double& x : noise) x = random.normal();
    const double along = dot(noise.data(), g, elements) / dot(g, g, elements);
    for (std::size_t i = 0; i < elements; ++i) noise[i] -= along * g[i];
    const double scale = size * std::sqrt(dot(g, g, elements) / dot(noise.data(), noise.data(), elements));
    for (std::size_t i = 0; i < elements; ++i) g[i] += scale * noise[i];
}

/// The ranks' training, as far as the rules see it.
class training {
public:
    training(int ranks, double noise_scale, std::uint64_t seed)
        : local_norms(static_cast<std::size_t>(ranks) * buckets), reduced_norms(static_cast<std::size_t>(ranks)),
          update_sizes(reduced_norms), n_(reduced_norms.size()), noise_scale_(noise_scale), random_(seed), shape_(elements),
          signal_(elements), own_(n_), gradients_(n_ * elements), momentum_(gradients_), second_(gradients_), result_(elements),
          message_bytes_(detail::message_layout{}.bytes(buckets)),
          messages_(n_ * message_bytes_ / 8),
          calls_(buckets, detail::probed_call{collective::all_reduce, element_type::float32, reduction::average, part, true, true, false}),
          judge_(ranks)
    {
        double total = 0;
        for (std::size_t i = 0; i < elements; ++i) total += 1 / static_cast<double>(i + 1);
        for (std::size_t i = 0; i < elements; ++i) {
            // The large ones in all buckets.
            shape_[(i % buckets) * part + i / buckets] = std::sqrt(noise_scale / total / static_cast<double>(i + 1));
        }
        for (double& x : signal_) x = random_.normal() / std::sqrt(static_cast<double>(elements));
        for (double& x : own_) x = 1 + 0.01 * std::sqrt(noise_scale / 2) * random_.normal();
    }

    void step(std::uint64_t t, const fault& with, std::size_t bad)
    {
        const bool faulty = t >= onset && with.kind != fault_kind::none && (t - onset) % with.period < with.burst;
        const double level = 1 + 4 * std::exp(-static_cast<double>(t) / 300);
        for (double& x : signal_) x = 0.99 * x + 0.141 * random_.normal() / std::sqrt(static_cast<double>(elements));
        std::fill(result_.begin(), result_.end(), 0.0);
        loss = 0;
        for (std::size_t r = 0; r < n_; ++r) {
            double* const g = &gradients_[r * elements];
            for (std::size_t i = 0; i < elements; ++i) g[i] = level * own_[r] * (signal_[i] + shape_[i] * random_.normal());
            if (faulty && r == bad && (with.kind == fault_kind::scale || with.kind == fault_kind::growth)) {
                const double grown = 1 + with.size * static_cast<double>(t - onset + 1);
                for (std::size_t i = 0; i < elements; ++i) g[i] *= with.kind == fault_kind::scale ? with.size : grown;
            }
            if (faulty && r == bad && with.kind == fault_kind::noise) disturb(g, with.size, random_);
            for (std::size_t i = 0; i < elements; ++i) result_[i] += g[i] / static_cast<double>(n_);
            update_sizes[r] = update_size(r);
        }
        for (std::size_t r = 0; r < n_; ++r) write(t, r, faulty && r == bad && with.kind == fault_kind::result_noise ? with.size : 0);
        judge_.judge(detail::gathered_step(reinterpret_cast<const unsigned char*>(messages_.data()), static_cast<int>(n_), buckets),
            calls_, {}, {}, record);
        record.settle_findings();
    }

    vector local_norms, reduced_norms, update_sizes;
    double loss = 0;
    step_record record;

private:
    double update_size(std::size_t r)
    {
        double largest = 0;
        for (std::size_t b = 0; b < buckets; ++b) {
            double squares = 0;
            for (std::size_t i = r * elements + b * part; i < r * elements + (b + 1) * part; ++i) {
                momentum_[i] = 0.9 * momentum_[i] + 0.1 * gradients_[i];
                second_[i] = 0.999 * second_[i] + 0.001 * gradients_[i] * gradients_[i];
                const double update = 1e-3 * momentum_[i] / (std::sqrt(second_[i]) + 1e-8);
                squares += update * update;
            }
            largest = std::max(largest, std::sqrt(squares / static_cast<double>(part)));
        }
        return largest;
    }
    void write(std::uint64_t t, std::size_t r, double result_noise)
    {
        using namespace collprobe::detail;
        vector received = result_;
        if (result_noise > 0) disturb(received.data(), result_noise, random_);
        auto* const message = reinterpret_cast<unsigned char*>(messages_.data()) + r * message_bytes_;
        // Losses scatter as norms do: 12 % where the noise scale is 2.
        const double own_loss = (2 + 8 * std::exp(-static_cast<double>(t) / 5000)) * random_.gamma(128 / noise_scale_);
        loss += own_loss / static_cast<double>(n_);
        *reinterpret_cast<step_header*>(message) = {t, own_loss, 1, not_given(), 0};
        for (std::size_t b = 0; b < buckets; ++b) {
            const double* const g = &gradients_[r * elements + b * part];
            const double* const all = &received[b * part];
            call_entry entry{};
            entry.input.count = part;
            entry.input.digest = mix64((t * 4096 + r) * 16 + b);
            entry.input.sum_of_squares = dot(g, g, part);
            for (std::size_t i = 0; i < part; ++i)
                entry.input.absolute_maximum = std::max(entry.input.absolute_maximum, std::abs(g[i]));
            entry.result = {.digest = mix64(~(t * 16 + b) ^ (result_noise > 0 ? r + 1 : 0)),
                .sum_of_squares = dot(all, all, part), .dot = dot(g, all, part), .nonfinite = 0};
            message_layout{}.entry(message, b) = entry;
            local_norms[r * buckets + b] = std::sqrt(entry.input.sum_of_squares);
        }
        reduced_norms[r] = std::sqrt(dot(received.data(), received.data(), elements));
    }

    std::size_t n_;
    double noise_scale_;
    random_numbers random_;
    vector shape_, signal_, own_, gradients_, momentum_, second_, result_;
    std::uint64_t message_bytes_;
    std::vector<std::uint64_t> messages_;
    std::vector<detail::probed_call> calls_;
    detail::step_judge judge_;
};

constexpr std::size_t own_rules = 3; // before the published ones
constexpr std::size_t rule_count = own_rules + baseline::published_rules::count;

struct tally {
    int detected = 0;
    int named = 0;
    std::vector<std::uint64_t> delays;
    long false_alarms = 0;
};

/// One run, added to the tallies.
void run_once(int ranks, double noise_scale, const fault& with, std::uint64_t seed, std::vector<tally>& out)
{
    const std::size_t bad = seed % static_cast<std::size_t>(ranks);
    training run(ranks, noise_scale, seed);
    alarms own(ranks);
    baseline::published_rules published(ranks, 5, 5000, 200);
    bool seen[rule_count] = {};
    for (std::uint64_t t = 0; t < steps; ++t) {
        run.step(t, with, bad);
        baseline::rule_verdict verdicts[rule_count];
        const auto of_others = published.judge({ranks, static_cast<int>(buckets), run.local_norms, run.reduced_norms, run.update_sizes, run.loss});
        std::copy(of_others.begin(), of_others.end(), verdicts + own_rules);
        // All that a step says together: right if it names the one rank and no other.
        const auto take = [](baseline::rule_verdict& said, const finding& found) {
            said.alarmed = true;
            for (const int rank : found.ranks) {
                if (said.named == 0 || rank != said.rank) ++said.named;
                said.rank = rank;
            }
        };
        for (const finding& found : run.record.findings)
            if (is_of_number(found.what)) take(verdicts[0], found);
        for (const finding& raised : own.judge(run.record)) take(verdicts[raised.what == finding_kind::unlike ? 2 : 1], raised);
        for (std::size_t k = 0; k < rule_count; ++k) {
            if (!verdicts[k].alarmed || t < settled) continue;
            if (t < onset || with.kind == fault_kind::none) {
                ++out[k].false_alarms;
            } else if (!seen[k]) {
                seen[k] = true;
                ++out[k].detected;
                out[k].named += verdicts[k].named == 1 && verdicts[k].rank == static_cast<int>(bad) ? 1 : 0;
                out[k].delays.push_back(t - onset);
            }
        }
    }
}

void print_table(double noise_scale, int ranks, int runs)
{
    constexpr std::uint64_t seed = 20260602;
    const auto tallies = [&](const fault& with, std::uint64_t first) {
        std::vector<tally> of(rule_count);
        for (int r = 0; r < runs; ++r) run_once(ranks, noise_scale, with, first + static_cast<std::uint64_t>(r), of);
        return of;
    };
    std::printf("\nNoise scale %g, %d ranks, %d runs:\n\n| fault | numbers in a step | alarms | evidence |", noise_scale, ranks, runs);
    for (const std::string rule : baseline::published_rules::names) std::printf(" %s |", rule == "llm.c" ? "llm.c, z > 5" : rule.c_str());
    std::printf("\n|---|");
    for (std::size_t k = 0; k < rule_count; ++k) std::printf("---|");
    std::printf("\n| no fault: false alarms in 1000 steps |");
    for (const tally& each : tallies({"", fault_kind::none, 0, 1, 1}, seed))
        std::printf(" %.3g |", 1000.0 * static_cast<double>(each.false_alarms) / static_cast<double>((steps - settled) * static_cast<std::uint64_t>(runs)));
    for (const fault& each : faults) {
        std::printf("\n| %s |", each.name);
        for (const tally& rule : tallies(each, seed + 1000)) {
            if (rule.detected == 0) std::printf(" - |");
            else std::printf(" %d %%, %d %%, %" PRIu64 " |", 100 * rule.detected / runs, 100 * rule.named / runs, bench::median(rule.delays));
        }
        std::fflush(stdout);
    }
    std::printf("\n");
}

} // namespace

int main(int argc, char** argv)
{
    support::command_line line("Which rule sees a disturbed rank", "0, 2 if the command line is wrong.");
    int runs = 40;
    int ranks = 8;
    line.number("--runs", runs, 1, 1000, "of each fault");
    line.number("--ranks", ranks, 2, 1000, "");
    return bench::run_program("alarm_detection", line, argc, argv, [&] {
        for (const double noise_scale : {2.0, 0.02, 2e-10}) print_table(noise_scale, ranks, runs);
    });
}
