// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// confusion_table [trials of each fault = 25] [clean steps = 2000] [seed = 1] [ranks = all]
//     [part = all, or float, bfloat16, lengths, lasting, kinds]
//
// Which check sees which fault, names the right rank, and tells where it happened: every injector, at several strengths,
// on a rank's own gradient, in the reduction and on the way back, beside the published rules. Prints markdown. Between
// two faults are three clean steps, and each configuration begins with clean steps: alarms of clean steps are false, and
// are counted for the two apart.
//
// Each fault is the only one of its run: what a step with a fault has taught is forgotten, by the probe
// (`restore_evidence`), by alarms and published rules (copies judge the step) and by Adam. So no rule that asks for several
// steps sees one of these faults: Ascend's column is that of its first strike, which never alarms.
//
// Then: what the lengths of inputs and results prove of a fault on the way, without an audit (`call_record::excess`).
// At the end: the same faults of a rank's own gradient, in each step of a run, from the first step on and behind
// healthy steps: what the numbers of a step, the alarms about them and the evidence over the run make of them.
// `kinds`: small programs with the faults of public reports, and their healthy twins of [clean steps] (kinds.hpp).
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault/faulty.hpp>

#include "baseline_rules.hpp"
#include "cpu_timing.hpp"
#include "kinds.hpp"

using namespace collprobe;

namespace {

constexpr std::uint64_t bucket_counts[2] = {8192, 640};
constexpr std::uint64_t buckets = 2;
constexpr std::uint64_t warm_up = 160; // llm.c's window is 128 steps, Megatron's samples are 100 calls
constexpr std::uint64_t steps_per_trial = 4;

/// A fault, where it is put in, and what should be said of it.
struct scenario {
    const char* label;
    damage truth;
    fault what;
};

/// Strengths are relative to the root mean square of a gradient's elements, which is about 1e-2 here.
constexpr double rms = 1e-2;

std::vector<scenario> scenarios(int ranks, bool is_half_precision)
{
    const std::uint64_t sign = is_half_precision ? 0x8000u : 0x80000000u;
    const std::uint64_t top_exponent_bit = sign >> 1;
    std::vector<scenario> all;
    const auto add = [&](const char* label, fault what) {
        for (const damage truth : {damage::input, damage::reduce, damage::broadcast}) {
            if (what.kind == fault_kind::untouched_tail && truth != damage::broadcast) continue;
            if (what.kind == fault_kind::duplicate_shard && truth == damage::broadcast) continue;
            // A sum of wrong data is wrong for all: one rank alone has nobody to send it another's.
            if (ranks == 1 && what.kind == fault_kind::duplicate_shard) continue;
            what.phase = truth == damage::input ? fault_phase::before
                : truth == damage::reduce      ? fault_phase::during
                                               : fault_phase::after;
            const bool duplicated = what.kind == fault_kind::duplicate_shard && truth == damage::input;
            all.push_back({label, duplicated ? damage::duplicated_data : truth, what});
        }
    };
    add("one bit", {.kind = fault_kind::bit_flips});
    add("top bit of the exponent", {.kind = fault_kind::bit_flips, .mask = top_exponent_bit});
    add("three bits", {.kind = fault_kind::bit_flips, .bits = 3});
    add("two bits of 32 elements, 4 apart",
        {.kind = fault_kind::bit_flips, .elements = 32, .stride = 4, .alignment = 32, .bits = 2});
    add("noise, 1 %", {.kind = fault_kind::gaussian, .magnitude = 1e-4 * rms * rms});
    add("noise, 5 %", {.kind = fault_kind::gaussian, .magnitude = 25e-4 * rms * rms});
    add("noise, 100 %", {.kind = fault_kind::gaussian, .magnitude = rms * rms});
    add("times 1.05", {.kind = fault_kind::scale, .magnitude = 1.05});
    add("times 2", {.kind = fault_kind::scale, .magnitude = 2});
    add("times 100", {.kind = fault_kind::scale, .magnitude = 100});
    add("sign flipped", {.kind = fault_kind::scale, .magnitude = -1});
    add("64 elements zero", {.kind = fault_kind::zero_slice});
    add("all elements zero", {.kind = fault_kind::zero_slice, .first = 0, .elements = bucket_counts[0]});
    add("last 8 untouched", {.kind = fault_kind::untouched_tail});
    add("stale by a step", {.kind = fault_kind::stale, .lag = buckets});
    add("two swapped", {.kind = fault_kind::swap});
    add("another rank's data", {.kind = fault_kind::duplicate_shard});
    add("NaN", {.kind = fault_kind::nan});
    add("infinity", {.kind = fault_kind::infinity});
    return all;
}

using baseline::published_rules;

bool is_exact(finding_kind what) { return what == finding_kind::non_finite || what == finding_kind::duplicate || what == finding_kind::stale; }
bool is_evidence(finding_kind what) { return what == finding_kind::unlike; }

/// What was said of steps, in so many of them.
struct said_counts {
    int steps = 0;
    int exact = 0; ///< non-finite, duplicate or stale inputs
    int differs = 0, sum = 0, numbers = 0, evidence = 0; ///< findings
    int alarmed = 0;
    int rules[published_rules::count] = {};

    void add(const step_record& record, view<const finding> raised, const std::array<baseline::rule_verdict, published_rules::count>& of_rules)
    {
        const auto any = [&](auto is) { return std::any_of(record.findings.begin(), record.findings.end(), [&](const finding& found) { return is(found.what); }); };
        ++steps;
        exact += any(is_exact);
        differs += any([](finding_kind what) { return what == finding_kind::result_differs; });
        sum += any([](finding_kind what) { return what == finding_kind::sum_differs; });
        numbers += any(is_of_number);
        evidence += any(is_evidence);
        alarmed += raised.empty() ? 0 : 1;
        for (std::size_t k = 0; k < of_rules.size(); ++k) rules[k] += of_rules[k].alarmed;
    }
};

/// What alarms say of where a fault was.
struct place_counts {
    int injected = 0, alarmed = 0, right = 0, unknown = 0, wrong = 0;

    void operator+=(const place_counts& other)
    {
        injected += other.injected;
        alarmed += other.alarmed;
        right += other.right;
        unknown += other.unknown;
        wrong += other.wrong;
    }
};

struct scenario_counts {
    said_counts said;
    place_counts place;
    int named = 0; ///< the right rank, and no other
};

struct run_counts {
    std::vector<scenario_counts> of_scenario;
    said_counts before; ///< before all faults
    said_counts between; ///< faults
};

/// What is injected in a step, if anything.
struct trial {
    std::size_t scenario = 0;
    int rank = -1; ///< -1: nothing
};

/// Near Gaussian, of variance 1: four of 16 bits each.
double normal(std::uint64_t key)
{
    const std::uint64_t bits = detail::mix64(key);
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += static_cast<double>((bits >> (16 * k)) & 0xffff) * 0x1p-16 - 0.5;
    return sum * 1.7320508;
}

/// The gradient of a rank: a common direction and noise of its own, layers of different size, a level that falls.
template <class T>
void make_gradient(std::uint64_t seed, std::uint64_t step, int rank, std::uint64_t bucket, view<T> out)
{
    const double level = rms * (0.5 + 0.5 * std::exp(-static_cast<double>(step) / 2000)) * (1 + 0.1 * normal(seed ^ (step << 20)));
    const std::uint64_t own = detail::mix64(seed + step * 1000003 + static_cast<std::uint64_t>(rank) * 7919 + bucket);
    for (std::uint64_t i = 0; i < out.count(); ++i) {
        const double layer = i % 4096 < 2048 ? 1.3 : 0.4;
        const double value = level * layer * (0.5 * normal(seed + i * 31 + bucket) + normal(own + i * 0x9e3779b97f4a7c15u));
        out[i] = static_cast<T>(static_cast<float>(value));
    }
}

/// As the rules compute it: not finite where an element is not.
double norm_of(const statistics& of) { return of.nonfinite() == 0 ? of.l2() : detail::infinity(); }

/// What the ranks show to the rules: each writes its own.
struct shown {
    explicit shown(int ranks) : reduced(static_cast<std::size_t>(ranks)), updates(reduced) {}
    std::vector<double> reduced, updates;
};

template <class T>
class rank_of_run {
public:
    rank_of_run(local::communicator& world, std::uint64_t seed, const std::vector<fault>& before,
        const std::vector<fault>& beneath, shown& to)
        : seed_(seed),
          world_(world),
          damaged_(local::communicator(world), before, {.max_bytes = 64 << 10, .max_injections = 1}),
          comm_(faulty(local::communicator(world), beneath, {.max_bytes = 64 << 10, .max_injections = 1}), {.times = false},
              audit()),
          to_(to)
    {
        for (std::uint64_t b = 0; b < buckets; ++b) {
            send_[b].resize(bucket_counts[b]);
            receive_[b].resize(bucket_counts[b]);
            scratch_[b].resize(bucket_counts[b]);
            moment_[b].resize(bucket_counts[b]);
            square_[b].resize(bucket_counts[b]);
        }
    }

    /// `keep`: whether the probe and Adam go on from this step.
    void step(std::uint64_t number, bool damage_input, bool keep, step_record& record)
    {
        const std::vector<std::uint64_t> learnt = keep ? std::vector<std::uint64_t>() : comm_.evidence_state();
        for (std::uint64_t b = 0; b < buckets; ++b) {
            make_gradient<T>(seed_, number, world_.rank(), b, send_[b]);
            // The injector's `before` hits what is sent: here in a collective whose result nobody looks at.
            if (damage_input) damaged_.all_reduce(send_[b], view(scratch_[b]), reduction::sum, stream_);
        }
        for (std::uint64_t b = 0; b < buckets; ++b) {
            comm_.all_reduce(send_[b], view(receive_[b]), reduction::average, stream_);
        }
        comm_.end_step(number, {.loss = 1 + 0.05 * normal(seed_ + number * 77 + static_cast<std::uint64_t>(world_.rank()))}, stream_);
        stream_.synchronize(60'000);
        double squares = 0;
        double update = 0;
        for (std::uint64_t b = 0; b < buckets; ++b) {
            const double norm = norm_of(compute_statistics(view<const T>(receive_[b])));
            squares += norm * norm;
            update = std::max(update, adam(b, keep));
        }
        const auto r = static_cast<std::size_t>(world_.rank());
        to_.reduced[r] = std::sqrt(squares);
        to_.updates[r] = update;
        while (!comm_.poll(record)) {}
        if (!keep) comm_.restore_evidence(learnt);
        world_.barrier(stream_);
        stream_.synchronize(60'000);
    }

private:
    /// RMS of the update that Adam would make of the result.
    double adam(std::uint64_t b, bool keep)
    {
        double sum = 0;
        for (std::size_t i = 0; i < receive_[b].size(); ++i) {
            const float g = static_cast<float>(receive_[b][i]);
            const float moment = 0.9f * moment_[b][i] + 0.1f * g;
            const float square = 0.99f * square_[b][i] + 0.01f * g * g;
            const double u = 1e-3 * static_cast<double>(moment / (std::sqrt(square) + 1e-8f));
            sum += u * u;
            if (!keep) continue;
            moment_[b][i] = moment;
            square_[b][i] = square;
        }
        return is_finite(sum) ? std::sqrt(sum / static_cast<double>(receive_[b].size())) : detail::infinity();
    }

    std::uint64_t seed_;
    local::communicator& world_;
    faulty<local::communicator> damaged_;
    probed<faulty<local::communicator>, audit> comm_;
    shown& to_;
    host::stream stream_;
    std::vector<T> send_[buckets], receive_[buckets], scratch_[buckets];
    std::vector<float> moment_[buckets], square_[buckets];
};

/// Of data that two ranks hold the bits do not tell whose they are: both are named. Returns the other, or -1.
int twin_of(const fault& what, int rank, int ranks) { return what.kind == fault_kind::duplicate_shard ? (rank + 1) % ranks : -1; }

/// What the alarms said of a step in which `of` was injected on `rank`.
void count(const scenario& of, int rank, int ranks, view<const finding> raised, scenario_counts& to)
{
    ++to.place.injected;
    if (raised.empty()) return;
    ++to.place.alarmed;
    bool names_it = false, names_another = false, says_truth = false, says_other = false;
    for (const finding& one : raised) {
        for (const int named : one.ranks) {
            names_it = names_it || named == rank;
            names_another = names_another || (named != rank && named != twin_of(of.what, rank, ranks));
        }
        says_truth = says_truth || one.where == of.truth;
        says_other = says_other || (one.where != of.truth && one.where != damage::unknown);
    }
    to.named += names_it && !names_another ? 1 : 0;
    ++(says_other ? to.place.wrong : says_truth ? to.place.right : to.place.unknown);
}

template <class T>
run_counts run(int ranks, int trials, std::uint64_t clean_steps, std::uint64_t seed)
{
    const std::vector<scenario> list = scenarios(ranks, sizeof(T) == 2);
    const std::uint64_t first = warm_up + clean_steps;
    const std::uint64_t steps = first + steps_per_trial * list.size() * static_cast<std::uint64_t>(trials);
    std::vector<trial> plan(steps);
    std::vector<fault> before, beneath;
    std::uint64_t input_calls = 0;
    for (std::uint64_t k = 0; first + steps_per_trial * k < steps; ++k) {
        const std::uint64_t step = first + steps_per_trial * k;
        const std::uint64_t draw = detail::mix64(seed + 0x51ed270b * (k + 1));
        const std::size_t which = k % list.size();
        fault one = list[which].what;
        one.rank = static_cast<int>(draw % static_cast<std::uint64_t>(ranks));
        one.seed = draw;
        const std::uint64_t bucket = (draw >> 32) % buckets;
        plan[step] = {which, one.rank};
        if (one.phase == fault_phase::before) {
            // The step before is sent too, for `stale` to have.
            one.call = input_calls + buckets + bucket;
            input_calls += 2 * buckets;
            before.push_back(one);
        } else {
            one.call = step * buckets + bucket;
            beneath.push_back(one);
        }
    }
    const auto is_input = [&](std::uint64_t step) {
        return step < steps && plan[step].rank >= 0 && list[plan[step].scenario].what.phase == fault_phase::before;
    };

    run_counts result;
    result.of_scenario.resize(list.size());
    shown seen(ranks);
    local::run(ranks, [&](local::communicator& world) {
        rank_of_run<T> own(world, seed, before, beneath, seen);
        alarms watch(ranks);
        published_rules rules(ranks, 6, 10'000, 100);
        step_record record;
        std::vector<double> norms(static_cast<std::size_t>(ranks) * buckets);
        for (std::uint64_t step = 0; step < steps; ++step) {
            const bool has_fault = plan[step].rank >= 0;
            own.step(step, is_input(step) || is_input(step + 1), !has_fault, record);
            if (world.rank() != 0) continue;
            if (step % 256 == 0) {
                std::fprintf(stderr, "\r%s, %d ranks: %3.0f %%", element_traits<T>::name, ranks,
                    100.0 * static_cast<double>(step) / static_cast<double>(steps));
            }
            for (std::size_t at = 0; at < norms.size(); ++at) norms[at] = norm_of(record.calls[at % buckets].inputs[at / buckets]);
            const baseline::rule_input shown_to_rules{
                ranks, static_cast<int>(buckets), norms, seen.reduced, seen.updates, record.loss.mean};
            published_rules copy = rules;
            const auto said = (has_fault ? copy : rules).judge(shown_to_rules);
            alarms watch_copy = watch;
            const view<const finding> raised = (has_fault ? watch_copy : watch).judge(record);
            if (has_fault) {
                scenario_counts& to = result.of_scenario[plan[step].scenario];
                to.said.add(record, raised, said);
                count(list[plan[step].scenario], plan[step].rank, ranks, raised, to);
            } else if (step >= warm_up) {
                (step < first ? result.before : result.between).add(record, raised, said);
            }
        }
    });
    std::fprintf(stderr, "\r%40s\r", "");
    return result;
}

/// A fault in each step of a run from `onset` on: steps until it was seen by each way, -1: never, and whether alarms named
/// the right rank and no other.
enum way { by_exact, by_numbers, by_alarms, by_evidence };
struct lasting_outcome {
    std::array<long, 4> first = {-1, -1, -1, -1};
    bool is_right = true;
};

lasting_outcome run_lasting(int ranks, fault one, std::uint64_t onset, std::uint64_t steps, std::uint64_t seed)
{
    std::vector<fault> before;
    one.rank = static_cast<int>(detail::mix64(seed) % static_cast<std::uint64_t>(ranks));
    for (std::uint64_t step = onset; step < onset + steps; ++step) {
        one.call = step * buckets;
        one.seed = detail::mix64(seed + step);
        before.push_back(one);
    }
    lasting_outcome result;
    shown seen(ranks);
    local::run(ranks, [&](local::communicator& world) {
        rank_of_run<float> own(world, seed, before, {}, seen);
        alarms watch(ranks);
        step_record record;
        for (std::uint64_t step = 0; step < onset + steps; ++step) {
            own.step(step, true, true, record);
            if (world.rank() != 0) continue;
            const view<const finding> all = watch.judge(record);
            if (step < onset) continue;
            const auto note = [&](way how) {
                if (result.first[how] < 0) result.first[how] = static_cast<long>(step - onset);
            };
            for (const finding& found : record.findings)
                if (is_of_number(found.what)) note(by_numbers);
            for (const finding& raised : all) {
                note(is_evidence(raised.what) ? by_evidence : is_of_number(raised.what) ? by_alarms : by_exact);
                for (const int named : raised.ranks)
                    result.is_right = result.is_right && (named == one.rank || named == twin_of(one, one.rank, ranks));
            }
        }
    });
    return result;
}

void print_lasting(int ranks, int trials, std::uint64_t onset, std::uint64_t seed)
{
    constexpr std::uint64_t steps = 400;
    std::printf("\n### The same fault in each step, of one rank's own bucket 0: %d ranks, float, %d runs of %d steps with the fault, behind %d "
                "without\n\n", ranks, trials, static_cast<int>(steps), static_cast<int>(onset));
    std::printf("Median of the steps before the first finding or alarm; in brackets the runs that have one.\n\n");
    std::printf("| fault | exact alarms | numbers in a step | alarms of numbers | evidence | runs with a wrong name |\n|---|--:|--:|--:|--:|--:|\n");
    for (const scenario& each : scenarios(ranks, false)) {
        if (each.what.phase != fault_phase::before) continue;
        std::vector<long> delays[4];
        int wrong = 0;
        for (int trial = 0; trial < trials; ++trial) {
            const lasting_outcome of
                = run_lasting(ranks, each.what, onset, steps, seed + 1000 + static_cast<std::uint64_t>(trial));
            for (std::size_t k = 0; k < of.first.size(); ++k)
                if (of.first[k] >= 0) delays[k].push_back(of.first[k]);
            wrong += of.is_right ? 0 : 1;
        }
        std::printf("| %s |", each.label);
        for (const std::vector<long>& of : delays) {
            if (of.empty()) std::printf(" - |");
            else std::printf(" %ld (%zu) |", bench::median(of), of.size());
        }
        std::printf(" %d |\n", wrong);
        std::fflush(stdout);
    }
}

/// The calls whose lengths are known.
constexpr collective with_lengths[]
    = {collective::all_reduce, collective::reduce_scatter, collective::all_gather, collective::all_to_all, collective::broadcast};
constexpr std::size_t length_calls = std::size(with_lengths);

/// Steps of all these calls, each with a fault on its way if `damaged`: of how many calls the lengths prove it.
std::array<int, length_calls> count_lengths(
    int ranks, report_mode mode, const fault* damaged, std::uint64_t steps, std::uint64_t seed)
{
    std::array<int, length_calls> found{};
    std::vector<fault> faults;
    for (std::uint64_t call = 0; damaged != nullptr && call < steps * length_calls; ++call) {
        faults.push_back(*damaged);
        faults.back().call = call;
        faults.back().seed = detail::mix64(seed + call);
        faults.back().rank = call % length_calls == 4
            ? static_cast<int>((call / length_calls) % static_cast<std::uint64_t>(ranks)) // the root alone sends
            : static_cast<int>(faults.back().seed % static_cast<std::uint64_t>(ranks));
    }
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed comm(faulty(local::communicator(world), faults, {.max_bytes = 256 << 10, .max_injections = 1}),
            {.mode = mode, .times = false});
        const auto n = static_cast<std::size_t>(ranks);
        std::vector<float> send(bucket_counts[0]), same(send.size()), part(send.size() / n), whole(send.size() * n);
        step_record record;
        for (std::uint64_t step = 0; step < steps; ++step) {
            make_gradient<float>(seed, step, world.rank(), 0, send);
            comm.all_reduce(send, view(same), reduction::average, stream);
            comm.reduce_scatter(send, view(part), reduction::sum, stream);
            comm.all_gather(send, view(whole), stream);
            comm.all_to_all(send, view(same), stream);
            comm.broadcast(send, view(same), static_cast<int>(step % n), stream);
            comm.end_step(step, stream);
            comm.wait(record);
            if (world.rank() != 0) continue;
            for (std::size_t c = 0; c < length_calls; ++c) found[c] += record.calls[c].excess > 1 ? 1 : 0;
        }
    });
    return found;
}

void print_lengths(int ranks, int trials, std::uint64_t clean_steps, std::uint64_t seed)
{
    std::printf("\n### What lengths alone prove of a fault on the way: %d ranks, float, without an audit\n\n| fault | mode |", ranks);
    for (const collective each : with_lengths) std::printf(" %s |", name(each));
    std::printf("\n|---|---|--:|--:|--:|--:|--:|\n");
    const auto print = [&](const std::string& label, const fault* damaged, std::uint64_t steps, double scale) {
        for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
            std::printf("| %s | %s |", label.c_str(), name(mode));
            for (const int of : count_lengths(ranks, mode, damaged, steps, seed)) std::printf(" %.0f |", scale * of);
            std::printf("\n");
        }
    };
    for (const scenario& each : scenarios(ranks, false))
        if (each.what.phase == fault_phase::during) print(each.label, &each.what, static_cast<std::uint64_t>(trials), 100.0 / trials);
    print("none, of " + std::to_string(clean_steps) + " steps", nullptr, clean_steps, 1);
}

void print_kinds(std::uint64_t clean_steps)
{
    std::printf("\n### Faults of public reports, %d ranks, default options, and a healthy twin of each, of %" PRIu64 " steps\n\n",
        kinds::ranks, clean_steps);
    std::printf("| fault | finding | rank | told in step | can be told from step | twin: exact | other findings | alarms |\n"
                "|---|---|--:|--:|--:|--:|--:|--:|\n");
    for (const kinds::kind& each : kinds::all()) {
        const kinds::outcome wrong = kinds::run(each, true, 40);
        const kinds::outcome healthy = kinds::run(each, false, clean_steps);
        std::printf("| %s | %s | ", each.report, name(each.what));
        if (each.rank >= 0) std::printf("%d", each.rank);
        if (wrong.first == no_index) std::printf(" | never");
        else std::printf(" | %" PRIu64, wrong.first);
        std::printf(" | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " |\n", each.first, healthy.exact,
            healthy.statistical, healthy.alarms);
        std::fflush(stdout);
    }
}

/// Over all configurations: of two ranks, and of more.
place_counts of_class[2][6];

void print_classes()
{
    std::printf("\n### All together\n\n| ranks | truth | injected | alarm | right | unknown | wrong |\n|---|---|--:|--:|--:|--:|--:|\n");
    for (int more = 0; more < 2; ++more) {
        for (const damage truth : {damage::input, damage::duplicated_data, damage::reduce, damage::broadcast}) {
            const place_counts& of = of_class[more][static_cast<int>(truth)];
            if (of.injected == 0) continue;
            std::printf("| %s | %s | %d | %d |", more == 0 ? "2" : "more", name(truth), of.injected, of.alarmed);
            for (const int part : {of.right, of.unknown, of.wrong}) {
                std::printf(" %.2f %% |", of.alarmed == 0 ? 0.0 : 100.0 * part / of.alarmed);
            }
            std::printf("\n");
        }
    }
}

void print_false(const char* when, const said_counts& of)
{
    std::printf("\nFalse, in %d clean steps %s: exact %d, differs %d, sum %d, numbers %d, evidence %d, alarms %d", of.steps, when, of.exact,
        of.differs, of.sum, of.numbers, of.evidence, of.alarmed);
    for (std::size_t k = 0; k < published_rules::count; ++k) std::printf(", %s %d", published_rules::names[k], of.rules[k]);
    std::printf(".\n");
}

template <class T>
void print_table(int ranks, int trials, std::uint64_t clean_steps, std::uint64_t seed)
{
    const run_counts found = run<T>(ranks, trials, clean_steps, seed);
    const std::vector<scenario> list = scenarios(ranks, sizeof(T) == 2);
    std::printf("\n### %d ranks, %s\n\n", ranks, element_traits<T>::name);
    std::printf("| fault | truth | exact | differs | sum | numbers | alarm | named | right | unknown | wrong |");
    for (const char* rule : published_rules::names) std::printf(" %s |", rule);
    std::printf("\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for (std::size_t s = 0; s < list.size(); ++s) {
        const auto& [said, place, named] = found.of_scenario[s];
        const auto share = [&](int part, int whole) {
            if (whole == 0) std::printf(" |");
            else std::printf(" %.0f |", 100.0 * part / whole);
        };
        std::printf("| %s | %s |", list[s].label, name(list[s].truth));
        for (const int part : {said.exact, said.differs, said.sum, said.numbers, said.alarmed}) share(part, said.steps);
        // Who did it cannot be told of a reduction: it was wrong for all.
        if (list[s].truth == damage::reduce) std::printf(" |");
        else share(named, place.alarmed);
        for (const int part : {place.right, place.unknown, place.wrong}) share(part, place.alarmed);
        for (const int part : said.rules) share(part, said.steps);
        std::printf("\n");
        of_class[ranks > 2 ? 1 : 0][static_cast<int>(list[s].truth)] += place;
    }
    print_false("before all faults", found.before);
    print_false("between faults", found.between);
    std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv)
{
    const int trials = argc > 1 ? std::atoi(argv[1]) : 25;
    const std::uint64_t clean = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
    const std::uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
    const int only_ranks = argc > 4 ? std::atoi(argv[4]) : 0;
    const char* const only_part = argc > 5 ? argv[5] : "all";
    const auto wanted = [&](const char* part) { return std::strcmp(only_part, "all") == 0 || std::strcmp(only_part, part) == 0; };
    std::printf("%d trials of each fault, %" PRIu64 " clean steps, seed %" PRIu64 ". Per cent of the trials; `named`, `right`, "
                "`unknown` and `wrong` of those with an alarm. The published rules have learned from clean steps alone.\n",
        trials, clean, seed);
    for (const int ranks : only_ranks != 0 ? std::vector<int>{only_ranks} : std::vector<int>{2, 4, 8, 16}) {
        if (wanted("float")) print_table<float>(ranks, trials, clean, seed);
        if (wanted("bfloat16")) print_table<bfloat16>(ranks, trials, clean, seed);
    }
    print_classes();
    if (trials == 0) return 0;
    const int ranks = only_ranks != 0 ? only_ranks : 8;
    if (wanted("kinds")) print_kinds(clean);
    if (wanted("lengths")) print_lengths(ranks, trials, clean, seed);
    // `stale` needs a step before the first.
    for (const std::uint64_t onset : {1, 400})
        if (wanted("lasting")) print_lasting(ranks, std::min(trials, 10), onset, seed);
    return 0;
}
