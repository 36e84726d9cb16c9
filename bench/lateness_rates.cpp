// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// Measures what `lateness_watch` says of late and of even ranks, and when the evidence of a run (`exchangeability_watch`)
/// names a rank by it. Prints markdown tables: see bench/results/lateness.md.
///
///     lateness_rates [--steps N] [--real]
///
/// With --real the tables are of steps of `probed` on in-process ranks that sleep, by the clock of the host. Without:
/// A step has one call (or four, where a table says so). Before each call a rank works 5 ms plus a noise of its own, of
/// scale 20 us:
///     Gaussian     standard deviation 20 us
///     lognormal    20 us exp(z), z standard normal
///     t3           20 us times Student's t of 3 degrees
/// Then it enters the call. All leave it 300 us after the last has entered, each with a constant delay of its own (up to
/// 5 us, by its place in the ring, say) and a jitter of 1 us, and begin to work again. Clocks tick each microsecond.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/metrics/exchangeability.hpp>
#include <collprobe/metrics/lateness.hpp>
#include <collprobe/step/probed.hpp>

#include "cpu_timing.hpp"
#include "program.hpp"
#include "random.hpp"

namespace {

using namespace collprobe;

constexpr int sizes[] = {2, 4, 8, 64};
constexpr double delays_ns[] = {1e5, 2e5, 5e5, 1e6, 1e7};

enum class shape { gaussian, lognormal, t3 };
constexpr const char* shape_names[] = {"Gaussian", "lognormal", "t3"};

/// Calls `print(noise, ranks)` for a row of each, behind the first two columns.
template <class Print>
void print_rows(Print print)
{
    for (const shape noise : {shape::gaussian, shape::lognormal, shape::t3}) {
        for (const int ranks : sizes) {
            std::printf("| %s | %d |", shape_names[static_cast<int>(noise)], ranks);
            print(noise, ranks);
            std::printf("\n");
        }
    }
}

/// Ranks that work and meet, on the clock of an outside observer.
class job {
public:
    job(int ranks, shape noise, std::uint64_t seed) : extra_work(size(ranks)), extra_in_call(size(ranks)),
        bias(size(ranks)), in_call(size(ranks)), before(size(ranks)), random_(seed), noise_(noise), free_(size(ranks)),
        left_(size(ranks)), own_end_(size(ranks))
    {
        for (double& end : own_end_) end = 5000 * random_.uniform();
    }
    random_numbers& random() { return random_; }

    /// One call, and the times that the probes of the ranks measure.
    void call()
    {
        double all_entered = 0;
        std::vector<double>& entered = in_call; // until the call ends
        for (std::size_t r = 0; r < free_.size(); ++r) {
            entered[r] = free_[r] + std::max(0.0, 5e6 + extra_work[r] + scale * noise());
            all_entered = std::max(all_entered, entered[r]);
        }
        all_entered += extra_transport;
        for (std::size_t r = 0; r < free_.size(); ++r) {
            const double end = all_entered + 3e5 + own_end_[r] + extra_in_call[r] + 1000 * std::fabs(random_.normal());
            before[r] = tick(entered[r] - left_[r]);
            in_call[r] = tick(end + bias[r] - entered[r]);
            // Where the host sets the pace, work does not wait for the probe of the end.
            left_[r] = end + bias[r];
            free_[r] = host_paced ? end : end + bias[r];
        }
    }

    std::vector<double> extra_work; ///< before the next call
    std::vector<double> extra_in_call; ///< between the end of the transport and that of the call
    double extra_transport = 0; ///< between the last entry and the end of the transport
    std::vector<double> bias; ///< constant: the end is stamped so much later
    bool host_paced = false;
    double scale = 20000; ///< of the noise
    std::vector<double> in_call;
    std::vector<double> before;

private:
    static std::size_t size(int ranks) { return static_cast<std::size_t>(ranks); }
    static double tick(double ns) { return 1000 * std::floor(ns / 1000); }
    double noise()
    {
        if (noise_ == shape::gaussian) return random_.normal();
        return noise_ == shape::lognormal ? std::exp(random_.normal()) : random_.student(3);
    }

    random_numbers random_;
    shape noise_;
    std::vector<double> free_;
    std::vector<double> left_;
    std::vector<double> own_end_;
};

/// What a step's judge does with times: measures lateness, and gathers evidence from it beyond the floor.
class lateness_judge {
public:
    static constexpr double share = 0.0625; ///< of the error, as in a step

    /// `floor_ns` 0: all differences count, even those below the noise.
    explicit lateness_judge(int ranks, double floor_ns = 10000, const exchangeability_options& rules = {.tolerance = 0.25},
        double share_of_error = share)
        : watch_(ranks, floor_ns), evidence_(ranks, rules), latest_(static_cast<std::size_t>(ranks)), has_floor_(floor_ns > 0)
    {
        evidence_.add(finding_kind::late, {.largest = share_of_error});
    }

    call_lateness add(const std::vector<double>& in_call, const std::vector<double>& before)
    {
        return watch_.add(in_call, before);
    }
    step_lateness end_step()
    {
        evidence_.begin_step(step_++);
        const step_lateness found = watch_.end_step();
        if (!is_finite(found.floor)) return found;
        for (std::size_t r = 0; r < latest_.size(); ++r)
            latest_[r] = lateness_beyond(has_floor_ ? found.floor : 0, watch_.of(static_cast<int>(r)).latest);
        evidence_.judge(0, latest_, has_floor_ ? 2 * found.floor : 0);
        return found;
    }
    rank_lateness of(int rank) const { return watch_.of(rank); }
    bool is_named(int rank) const { return evidence_.by_rank()[static_cast<std::size_t>(rank)].unlike; }
    bool is_silent() const { return evidence_.silent() != 0; }
    /// The ranks that this step has named; -1 if it cannot tell which.
    view<const exchangeability_watch::named_rank> named() const { return evidence_.named(); }

private:
    lateness_watch watch_;
    exchangeability_watch evidence_;
    std::vector<double> latest_;
    bool has_floor_;
    std::uint64_t step_ = 0;
};

double percent(long part, long all) { return 100.0 * static_cast<double>(part) / static_cast<double>(all); }

constexpr int even_steps = 200; // before the delay begins

struct outcome {
    long named = 0; ///< steps in which the late rank was named over time
    long right = 0; ///< steps in which it was last
    long right_and_out = 0; ///< and beyond the floor
    int first = -1; ///< steps until it was named
    long wrong = 0; ///< times that another was named
    long silent = 0; ///< steps in which the evidence was
    double error = 0; ///< largest error of the median lateness, per cent

    void name(long step)
    {
        ++named;
        if (first < 0) first = static_cast<int>(step - even_steps);
    }
    std::string steps_until() const { return first < 0 ? "-" : std::to_string(first); }
};

/// A rank is late from step `even_steps` on, in one of `calls`: always the same, or for -1 another in each step.
outcome run(job& ring, lateness_judge& watch, double delay, int always, int calls, long steps)
{
    outcome result;
    const bool fixed = always >= 0;
    auto culprit = static_cast<std::size_t>(fixed ? always : 0);
    for (long s = 0; s < even_steps + steps; ++s) {
        const bool late = s >= even_steps;
        if (!fixed) culprit = static_cast<std::size_t>(ring.random().bits() % ring.extra_work.size());
        for (int k = 0; k < calls; ++k) {
            if (late && k == calls / 2) ring.extra_work[culprit] = delay;
            ring.call();
            ring.extra_work[culprit] = 0;
            watch.add(ring.in_call, ring.before);
        }
        const step_lateness found = watch.end_step();
        result.silent += watch.is_silent() ? 1 : 0;
        for (const auto& named : watch.named())
            if (!fixed || !late || named.rank != static_cast<int>(culprit)) ++result.wrong;
        if (!late) continue;
        if (watch.is_named(static_cast<int>(culprit))) result.name(s);
        const bool right = found.last == static_cast<int>(culprit);
        result.right += right ? 1 : 0;
        result.right_and_out += right && found.stands_out ? 1 : 0;
        if (fixed && s >= even_steps + static_cast<long>(lateness_watch::window))
            result.error = std::max(result.error, 100 * std::fabs(watch.of(static_cast<int>(culprit)).behind - delay) / delay);
    }
    return result;
}

void print_late(bool fixed, int calls, long steps, std::uint64_t seed)
{
    std::printf("| noise | ranks |");
    for (const double delay : delays_ns) std::printf(" %g ms |", delay / 1e6);
    std::printf("\n|---|---|---|---|---|---|---|\n");
    print_rows([&](shape noise, int ranks) {
        for (const double delay : delays_ns) {
            job ring(ranks, noise, seed++);
            lateness_judge watch(ranks);
            const outcome found = run(ring, watch, delay, fixed ? (ranks - 1) / 2 : -1, calls, steps);
            if (fixed) std::printf(" %.1f; %s; %.1f; %.1f; %ld |", percent(found.named, steps), found.steps_until().c_str(),
                percent(found.right_and_out, steps), found.error, found.wrong);
            else std::printf(" %.1f; %.1f; %ld |", percent(found.right, steps), percent(found.right_and_out, steps), found.wrong);
        }
    });
}

void print_even(long steps, std::uint64_t seed)
{
    std::printf("| noise | ranks | as in a step | once in 100 steps: %g allowed | the same, no floor | largest share of "
                "steps last / its share by chance | noise, us |\n|---|---|---|---|---|---|---|\n",
        static_cast<double>(steps) / 100);
    // By recurrence alone, and with all of the error: else there is nothing to count.
    const exchangeability_options often{.false_alarms_per_run = 1e-300, .steps_between_alarms = 100};
    print_rows([&](shape noise, int ranks) {
        job ring(ranks, noise, seed++);
        lateness_judge watches[] = {lateness_judge(ranks), lateness_judge(ranks, 10000, often, 1), lateness_judge(ranks, 0, often, 1)};
        std::uint64_t named[3] = {};
        std::vector<long> last(static_cast<std::size_t>(ranks));
        step_lateness found;
        for (long s = 0; s < steps; ++s) {
            ring.call();
            for (int w = 2; w >= 0; --w) {
                watches[w].add(ring.in_call, ring.before);
                found = watches[w].end_step();
                named[w] += watches[w].named().size();
            }
            ++last[static_cast<std::size_t>(found.last)];
        }
        for (const std::uint64_t of : named) std::printf(" %llu |", static_cast<unsigned long long>(of));
        std::printf(" %.2f | %.0f |", static_cast<double>(*std::max_element(last.begin(), last.end())) * ranks / static_cast<double>(steps),
            found.noise / 1000);
    });
}

void print_bias(long steps, std::uint64_t seed)
{
    std::printf("| pace | bias | ranks | times named | its median lateness, us |\n|---|---|---|---|---|\n");
    for (const bool host_paced : {false, true}) {
        for (const double bias : {-5e3, -2e5, 2e5}) {
            for (const int ranks : sizes) {
                job ring(ranks, shape::gaussian, seed++);
                const int biased = ranks / 2;
                ring.bias[static_cast<std::size_t>(biased)] = bias;
                ring.host_paced = host_paced;
                ring.call(); // the first one begins with no bias
                lateness_judge watch(ranks);
                std::size_t named = 0;
                for (long s = 0; s < steps; ++s) {
                    ring.call();
                    watch.add(ring.in_call, ring.before);
                    watch.end_step();
                    named += watch.named().size();
                }
                std::printf("| %s | %g us | %d | %zu | %.0f |\n", host_paced ? "host" : "device", bias / 1000, ranks, named,
                    watch.of(biased).behind / 1000);
            }
        }
    }
}

/// Ranks that keep their order by little, as by their place in the ring, and one of them that is late by 1 ms.
void print_differences(long steps, std::uint64_t seed)
{
    std::printf("| noise, us | ranks | 0 to 0 us | 0 to 2 us | 0 to 5 us | 0 to 10 us |\n|---|---|---|---|---|---|\n");
    for (const double scale : {1e3, 5e3, 2e4}) {
        for (const int ranks : {4, 8, 64}) {
            std::printf("| %g | %d |", scale / 1000, ranks);
            for (const double width : {0, 2000, 5000, 10000}) {
                job ring(ranks, shape::gaussian, seed++);
                ring.scale = scale;
                ring.host_paced = true;
                for (std::size_t r = 0; r < ring.bias.size(); ++r)
                    ring.bias[r] = -width * static_cast<double>(r) / (ranks - 1);
                lateness_judge watch(ranks, 50000); // as in a step
                const outcome found = run(ring, watch, 1e6, 1, 1, steps);
                std::printf(" %s; %.0f |", found.steps_until().c_str(), percent(found.silent, even_steps + steps));
            }
            std::printf("\n");
        }
    }
}

void print_causes(std::uint64_t seed)
{
    std::printf("| delay of 1 ms | how often | rank 3 is named | its median lateness, us | explained by work, us | gain a "
                "step, us | of that before calls, us | others named | median `transport`, us |\n"
                "|---|---|---|---|---|---|---|---|---|\n");
    constexpr const char* places[] = {"work before the call", "end of the call", "transport"};
    for (const int where : {0, 1, 2}) {
        for (const int every : {1, 4}) { // calls
            job ring(8, shape::gaussian, seed++);
            lateness_judge watch(8);
            std::size_t others = 0;
            std::vector<double> transport;
            for (int s = 0; s < 1000; ++s) {
                for (int k = 0; k < 4; ++k) {
                    const double delay = (s * 4 + k) % every == 0 ? 1e6 : 0;
                    ring.extra_work[3] = where == 0 ? delay : 0;
                    ring.extra_in_call[3] = where == 1 ? delay : 0;
                    ring.extra_transport = where == 2 ? delay : 0;
                    ring.call();
                    transport.push_back(watch.add(ring.in_call, ring.before).transport);
                }
                watch.end_step();
                for (const auto& named : watch.named()) others += named.rank != 3 ? 1u : 0u;
            }
            const rank_lateness of = watch.of(3);
            std::printf("| %s | %s | %s | %.0f | %.0f | %.0f | %.0f | %zu | %.0f |\n", places[where],
                every == 1 ? "each call" : "one call of four", watch.is_named(3) ? "yes" : "no", of.behind / 1000,
                of.behind_before / 1000, of.gain / 1000, of.gain_before / 1000, others, bench::median(transport) / 1000);
        }
    }
}

bool is_late(const rank_evidence& of, bool is_unlike) { return is_unlike && of.metric == finding_kind::late; }

struct real_outcome : outcome {
    double noise_ns = 0;
    double slept_ns = 0; ///< median of the times that the late rank slept
    double behind_ns = 0; ///< median over the late steps
};

/// Steps of two calls of 4096 floats by `probed`. The late rank sleeps before the second call of each step.
real_outcome run_real(int ranks, double delay, bool fixed, long even, long late_steps, std::uint64_t seed)
{
    real_outcome result;
    // By late step: written by the stream of the late rank, before rank 0 has the record.
    std::vector<double> slept(static_cast<std::size_t>(late_steps));
    std::vector<double> behind;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, {.lateness_floor_ns = 50'000});
        random_numbers random(seed);
        std::vector<float> send(4096, 1.0f), receive(4096);
        step_record record;
        int culprit = (ranks - 1) / 2;
        for (long s = 0; s < even + late_steps; ++s) {
            const bool late = s >= even;
            if (!fixed) culprit = static_cast<int>(random.bits() % static_cast<std::uint64_t>(ranks));
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            if (late && comm.rank() == culprit) {
                double* const took = &slept[static_cast<std::size_t>(s - even)];
                stream.enqueue([took, delay] {
                    const std::chrono::nanoseconds time(static_cast<long>(delay));
                    *took = 1e9 * bench::seconds([time] { std::this_thread::sleep_for(time); }, &bench::real_seconds);
                });
            }
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            comm.end_step(static_cast<std::uint64_t>(s), stream);
            comm.wait(record);
            if (comm.rank() != 0) continue;
            for (const finding& found : record.findings)
                if (is_late(found.evidence, found.what == finding_kind::unlike) && (!late || !fixed || !found.names(culprit)))
                    ++result.wrong;
            result.noise_ns = record.lateness.noise;
            if (!late) continue;
            const rank_lateness& of = record.lateness_by_rank[static_cast<std::size_t>(culprit)];
            behind.push_back(of.latest);
            const rank_evidence& evidence = record.evidence_by_rank[static_cast<std::size_t>(culprit)];
            if (is_late(evidence, evidence.unlike)) result.name(s);
            const bool right = record.calls[1].lateness.last == culprit;
            result.right += right ? 1 : 0;
            result.right_and_out += record.lateness.last == culprit && record.lateness.stands_out ? 1 : 0;
        }
    });
    result.slept_ns = bench::median(slept);
    result.behind_ns = bench::median(behind);
    result.error = 100 * (result.behind_ns / result.slept_ns - 1);
    return result;
}

void print_real(long steps, std::uint64_t seed)
{
    std::printf("## Steps of `probed` on in-process ranks, %u cores\n\n", std::thread::hardware_concurrency());
    std::printf("| ranks | even steps | named | noise, us |\n|---|---|---|---|\n");
    for (const int ranks : {2, 4, 8}) {
        const real_outcome even = run_real(ranks, 0, true, steps, 0, seed);
        std::printf("| %d | %ld | %ld | %.0f |\n", ranks, steps, even.wrong, even.noise_ns / 1000);
    }
    std::printf("\n| late rank | ranks | slept, us | median lateness, us | error | steps that name it over time | first after "
                "| steps whose call names it | steps whose sum names it | others named |\n"
                "|---|---|---|---|---|---|---|---|---|---|\n");
    const long late_steps = steps / 50;
    for (const bool fixed : {true, false}) {
        for (const int ranks : {2, 4}) {
            for (const double delay : delays_ns) {
                const real_outcome of = run_real(ranks, delay, fixed, even_steps, late_steps, ++seed);
                std::printf("| %s | %d | %.0f | %.0f | %+.1f %% | %s | %s | %.1f %% | %.1f %% | %ld |\n",
                    fixed ? "the same" : "another in each step", ranks, of.slept_ns / 1000, of.behind_ns / 1000, of.error,
                    fixed ? (std::to_string(of.named * 100 / late_steps) + " %").c_str() : "-",
                    fixed ? of.steps_until().c_str() : "-", percent(of.right, late_steps),
                    percent(of.right_and_out, late_steps), of.wrong);
            }
        }
    }
}

void print_all(long steps)
{
    constexpr std::uint64_t seed = 20260701;
    const long late_steps = steps / 5;
    std::printf("## Even ranks, %ld steps\n\n", steps);
    print_even(steps, seed);
    std::printf("\n## One rank is late in each step, %ld steps\n\n", late_steps);
    print_late(true, 1, late_steps, seed + 1000);
    std::printf("\n## The same, one call of four is late\n\n");
    print_late(true, 4, late_steps, seed + 2000);
    std::printf("\n## Another rank is late in each step, %ld steps\n\n", late_steps);
    print_late(false, 1, late_steps, seed + 3000);
    std::printf("\n## A constant bias of the end of calls, %ld steps\n\n", late_steps);
    print_bias(late_steps, seed + 4000);
    std::printf("\n## Causes, 8 ranks, 1000 steps of four calls\n\n");
    print_causes(seed + 5000);
    std::printf("\n## Lasting differences below the floor, and a rank that is late by 1 ms in %ld steps\n\n", late_steps);
    print_differences(late_steps, seed + 6000);
}

} // namespace

int main(int argc, char** argv)
{
    support::command_line line("What is said of late and of even ranks", "0, 2 if the command line is wrong.");
    long steps = 20000;
    bool real = false;
    line.number("--steps", steps, 1000, 1'000'000'000, "of even ranks");
    line.flag("--real", real, "of `probed` on in-process ranks, by the clock");
    return bench::run_program("lateness_rates", line, argc, argv, [&] { real ? print_real(steps, 20260701) : print_all(steps); });
}
