// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What a step says of who came late: from stamps that are made up, and from ranks that are made late.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>

#include "support/element_types.hpp"
#include "support/rank_clocks.hpp"

namespace collprobe::testing::step_lateness_test {
namespace {
thread_local long processors = 0; // that this thread is told of; 0: those of the machine
}

extern "C" long sysconf(int name) noexcept
{
    static const auto real = reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"));
    return processors > 0 && name == _SC_NPROCESSORS_ONLN ? processors : real(name);
}

namespace {

constexpr double tick = 256; // ns
constexpr double ms = 1e6;

/// A number of ticks near that time.
double ticks(double ns) { return tick * std::round(ns / tick); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Ranks whose work and collectives take the time that the test says. Each has a clock of its own.
class job {
public:
    job(int ranks, double false_alarms_per_step, double floor_ns = 10000, double false_alarms_per_run = 0)
        : arrival(size(ranks)), ranks_(ranks), now_(size(ranks)), clock_(size(ranks)), random_(7),
          judge_(ranks,
              {.lateness_floor_ns = floor_ns, .false_alarms_per_step = false_alarms_per_step,
                  .false_alarms_per_run = false_alarms_per_run}, report_mode::gather, true)
    {
        for (double& clock : clock_) clock = tick * static_cast<double>(random_() % (std::uint64_t{1} << 50)); // days
    }

    /// A call that all ranks enter after work of `arrival[r]`, and leave 0.3 ms after the last has entered.
    void call(detail::probed_call what = {.count = 64, .has_input = true, .has_result = true})
    {
        double last = 0;
        for (std::size_t r = 0; r < now_.size(); ++r) {
            now_[r] += arrival[r];
            last = std::max(last, now_[r]);
        }
        stamps_.emplace_back();
        for (std::size_t r = 0; r < now_.size(); ++r) {
            stamps_.back().push_back({stamp(r, now_[r]), stamp(r, last + ticks(0.3 * ms))});
            now_[r] = last + ticks(0.3 * ms);
        }
        calls_.push_back(what);
    }
    /// A rank enters and leaves the last call at other times, so much later.
    void move_last(std::size_t rank, double entered, double left)
    {
        detail::call_times& times = stamps_.back()[rank];
        times.entered += static_cast<clock_stamp>(static_cast<std::int64_t>(entered / tick));
        times.left += static_cast<clock_stamp>(static_cast<std::int64_t>(left / tick));
    }
    void pause(double ns)
    {
        for (double& now : now_) now += ns;
    }

    const step_record& end_step()
    {
        const detail::message_layout layout{.times = true};
        const std::uint64_t bytes = layout.bytes(calls_.size());
        std::vector<std::uint64_t> words(static_cast<std::size_t>(ranks_) * bytes / 8);
        auto* const all = reinterpret_cast<unsigned char*>(words.data());
        for (int r = 0; r < ranks_; ++r) {
            unsigned char* const message = all + static_cast<std::uint64_t>(r) * bytes;
            *reinterpret_cast<detail::step_header*>(message) = {step_, 2 + 0.1 * normal_(random_), 1, detail::not_given(), 0};
            for (std::size_t b = 0; b < calls_.size(); ++b) {
                detail::call_entry entry{};
                entry.input.count = calls_[b].count;
                entry.input.zero = entry.input.count - 1; // too few others for the bits to tell anything
                entry.input.sum_of_squares = std::exp(0.1 * normal_(random_));
                entry.result.digest = b;
                layout.entry(message, b) = entry;
                layout.times_of(message, b) = stamps_[b][static_cast<std::size_t>(r)];
            }
        }
        judge_.judge(detail::gathered_step(all, ranks_, calls_.size(), layout), calls_, {}, {}, record_);
        record_.settle_findings();
        ++step_;
        calls_.clear();
        stamps_.clear();
        return record_;
    }

    std::mt19937_64& random() { return random_; }
    double normal() { return normal_(random_); }

    std::vector<double> arrival; ///< work of each rank before its next calls, in ns

private:
    static std::size_t size(int ranks) { return static_cast<std::size_t>(ranks); }
    clock_stamp stamp(std::size_t rank, double at) const
    {
        return detail::stamp_of(static_cast<std::uint64_t>(at + clock_[rank]));
    }

    int ranks_;
    std::vector<double> now_;
    std::vector<double> clock_;
    std::mt19937_64 random_;
    std::normal_distribution<double> normal_;
    detail::step_judge judge_;
    std::vector<detail::probed_call> calls_;
    std::vector<std::vector<detail::call_times>> stamps_;
    std::uint64_t step_ = 0;
    step_record record_;
};

/// The suspects whose lateness over the run is unlike that of the others.
std::vector<finding> late_of(const step_record& record)
{
    std::vector<finding> found;
    for (const finding& each : record.findings)
        if (each.what == finding_kind::unlike && each.evidence.metric == finding_kind::late) found.push_back(each);
    return found;
}

constexpr double no_floor = 1e-9; ///< ns; 0 would be the default
constexpr double usual_evidence = 0.01; ///< false alarms in a run, as `probed` has it

} // namespace

TEST_CASE("the numbers of a call and of a step are those of the stamps, on clocks that differ by days")
{
    job ranks(4, 1e-4);
    for (int step = 0; step < 3; ++step) {
        CAPTURE(step);
        ranks.arrival = {ticks(5 * ms), ticks(5.2 * ms), ticks(9 * ms), ticks(5.1 * ms)};
        ranks.call();
        ranks.arrival = {ticks(1 * ms), ticks(2 * ms), ticks(1.25 * ms), ticks(1.5 * ms)};
        ranks.call();
        const step_record& record = ranks.end_step();
        const call_lateness& first = record.calls[0].lateness;
        CHECK(first.present == 4);
        CHECK(first.last == 2);
        CHECK(first.next == 1);
        CHECK(first.spread == ticks(9 * ms) - ticks(5 * ms));
        CHECK(first.gain == ticks(9 * ms) - ticks(5.2 * ms));
        CHECK(first.transport == ticks(0.3 * ms));
        if (step == 0) CHECK(is_nan(first.gain_before)); // nothing is known of the time before the first call
        else CHECK(first.gain_before == first.gain);
        const call_lateness& second = record.calls[1].lateness;
        CHECK(second.last == 1);
        CHECK(second.next == 3);
        CHECK(second.gain == ticks(2 * ms) - ticks(1.5 * ms));
        CHECK(second.gain_before == second.gain);
        CHECK(record.lateness.calls == 2);
        CHECK(record.lateness.last == 2);
        // The others' median is that of rank 3; the arrivals at both calls add up.
        CHECK(record.lateness.behind == ticks(9 * ms) - ticks(5.1 * ms) + ticks(1.25 * ms) - ticks(1.5 * ms));
        REQUIRE(record.lateness_by_rank.size() == 4);
        CHECK(record.lateness_by_rank[2].latest == record.lateness.behind);
        CHECK(record.lateness_by_rank[2].share_last == 1);
        CHECK(record.findings.empty());
    }
}

TEST_CASE("a rank that is late in one step, as it has never been, is named in that step with the delay")
{
    job ranks(8, 1e-4, 10000, usual_evidence);
    int others = 0;
    for (int step = 0; step < 150; ++step) {
        for (double& each : ranks.arrival) each = ticks((5 + 0.02 * std::fabs(ranks.normal())) * ms);
        if (step == 120) ranks.arrival[3] += ticks(100 * ms);
        if (step == 130) ranks.arrival[3] -= ticks(4 * ms); // early: nobody waits for it
        ranks.call();
        const step_record record = ranks.end_step();
        int late = 0;
        for (const finding& each : record.findings) {
            if (each.what != finding_kind::late) continue;
            CHECK(each.rank() == 3);
            CHECK(std::fabs(each.number.value - 100 * ms) < ms);
            CHECK(each.number.expected < ms);
            CHECK(contains(report::describe(each), "its delay at the calls, "));
            ++late;
        }
        if (step == 120) CHECK(late == 1);
        else others += late;
    }
    CHECK(others == 0);
}

TEST_CASE("a rank that is late in each step by more than the floor is named once, with the odds, and the delay is right to 10 per cent")
{
    for (const double delay : {0.005, 0.1, 1.0, 10.0}) { // the floor is 0.01
        CAPTURE(delay);
        const double noise = delay < 0.01 ? 500 : 20'000; // below the floor the rank is the last, too
        job ranks(8, 1e-4, 10000, usual_evidence);
        alarms watch(8);
        int named = 0;
        for (int step = 0; step < 400; ++step) {
            for (std::size_t r = 0; r < 8; ++r)
                ranks.arrival[r] = ticks(std::max(0.0, 5 * ms + noise * ranks.normal()));
            if (step >= 100) ranks.arrival[5] += ticks(delay * ms);
            ranks.call();
            const step_record& record = ranks.end_step();
            const view<const finding> raised = watch.judge(record);
            for (const finding& each : late_of(record)) {
                ++named;
                CHECK(step >= 100);
                CHECK(step < 130);
                CHECK(each.rank() == 5);
                CHECK(each.call == -1);
                CHECK_FALSE(each.exact);
                CHECK(each.evidence.side == rank_side::largest);
                CHECK(std::max(each.evidence.odds / 100, each.evidence.recurrence / 1e7) >= 1);
                CHECK(std::fabs(record.lateness_by_rank[5].latest - delay * ms) < 0.1 * delay * ms + 4 * 20000);
                CHECK(contains(report::describe(each), "its delay at the calls was the largest in "));
                REQUIRE(raised.size() == 1);
                CHECK(raised[0].what == finding_kind::unlike);
                CHECK(raised[0].evidence.metric == finding_kind::late);
                CHECK(raised[0].ranks == std::vector<int>{5});
                CHECK(raised[0].where == damage::none);
            }
            if (step < 300 || delay < 0.01) continue; // the window is full of late steps
            const rank_lateness& of = record.lateness_by_rank[5];
            CHECK(record.evidence_by_rank[5].unlike);
            CHECK(std::fabs(of.behind - delay * ms) < 0.1 * delay * ms);
            CHECK(std::fabs(of.behind_before - of.behind) < 0.01 * delay * ms);
            const std::string table = report::step_table(record);
            CHECK(contains(table, "unlike the others: rank 5, its delay at the calls was the largest in "));
            CHECK(contains(table, "\nlate: rank 5, by "));
            CHECK(contains(table, " in the median of 128 steps, "));
            const std::string line = report::json_line("", record);
            CHECK(contains(line, "\"late\":[{\"rank\":5,\"behind\":"));
            CHECK_FALSE(contains(line, "},{\"rank\":5,\"behind\":"));
        }
        CHECK(named == (delay < 0.01 ? 0 : 1));
    }
}

TEST_CASE("ranks that keep their order below the floor do not silence the evidence of one that is late")
{
    job ranks(8, 1e-4, 10000, usual_evidence);
    int named = 0;
    for (int step = 0; step < 300; ++step) {
        for (std::size_t r = 0; r < 8; ++r) ranks.arrival[r] = ticks(5 * ms + 1000 * static_cast<double>(r));
        if (step >= 200) ranks.arrival[5] += ticks(ms);
        ranks.call();
        for (const finding& each : late_of(ranks.end_step())) {
            ++named;
            CHECK(each.rank() == (step < 200 ? -1 : 5));
        }
    }
    CHECK(named == 1);
}

TEST_CASE("of more than 256 ranks the lateness of each is renewed by turns")
{
    job ranks(300, 1e-4);
    step_record record;
    for (int step = 0; step < 260; ++step) {
        for (double& each : ranks.arrival) each = ticks(5 * ms);
        if (step >= 100) ranks.arrival[290] += ticks(step == 259 ? 2 * ms : ms);
        ranks.call();
        record = ranks.end_step();
    }
    REQUIRE(record.lateness_by_rank.size() == 300);
    CHECK(record.lateness_by_rank[290].behind == ticks(ms));
    CHECK(record.lateness_by_rank[290].latest == ticks(2 * ms)); // in each step
    CHECK(record.lateness_by_rank[10].behind == 0);
    for (const rank_lateness& each : record.lateness_by_rank) CHECK(each.steps == 128);
}

TEST_CASE("all statistical checks of a step with times alarm no more often than stated")
{
    const double rate = 1e-2;
    const int steps = COLLPROBE_TEST_UNLESS_BRIEF(COLLPROBE_TEST_UNLESS_SANITIZED(20'000, 3'000), 4'000);
    job ranks(8, rate, no_floor);
    int suspicious = 0;
    for (int step = 0; step < steps; ++step) {
        for (int b = 0; b < 2; ++b) {
            for (double& work : ranks.arrival) work = ticks(std::max(0.0, 5 * ms + 20000 * ranks.normal()));
            ranks.call();
        }
        suspicious += ranks.end_step().findings.empty() ? 0 : 1;
    }
    MESSAGE("alarms in ", steps, " even steps: ", suspicious);
    CHECK(suspicious <= rate * steps);
    CHECK(suspicious > rate * steps / 20);
}

TEST_CASE("calls that overlap count no moment twice")
{
    // A group of three calls: all inputs are read, then all results.
    job ranks(4, 1e-4);
    for (int step = 0; step < 3; ++step) {
        ranks.arrival = {ticks(1 * ms), ticks(1 * ms), ticks(3 * ms), ticks(1 * ms)};
        ranks.call();
        ranks.arrival = std::vector<double>(4, 0.0);
        for (int b = 1; b < 3; ++b) {
            ranks.call();
            for (std::size_t r = 0; r < 4; ++r) // entered just behind the call before; 10 us for the read of a result
                ranks.move_last(r, -b * ticks(0.3 * ms) - (r == 2 ? 0 : ticks(2 * ms)), -b * ticks(0.29 * ms));
        }
        const step_record& record = ranks.end_step();
        CHECK(record.lateness.last == 2);
        CHECK(std::fabs(record.lateness.behind - 2 * ms) < 2 * tick);
        CHECK(record.calls[0].lateness.spread == ticks(3 * ms) - ticks(1 * ms));
        CHECK(record.calls[2].lateness.spread == 0);
    }
}

TEST_CASE("a pause of any length between steps spoils at most the time before the next call")
{
    for (const double minutes : {5.0, 10.0, 17.0, 20.0, 30.0, 1000.0}) {
        CAPTURE(minutes);
        job ranks(4, 1e-4);
        for (int step = 0; step < 6; ++step) {
            ranks.arrival = {ticks(1 * ms), ticks(1 * ms), ticks(3 * ms), ticks(1 * ms)};
            if (step == 3) ranks.pause(ticks(minutes * 60e9));
            for (int b = 0; b < 2; ++b) ranks.call();
            const step_record& record = ranks.end_step();
            CHECK(record.lateness.last == 2);
            CHECK(record.lateness.behind == 2 * (ticks(3 * ms) - ticks(1 * ms)));
            if (step != 0 && step != 3) CHECK(record.lateness.behind_before == record.lateness.behind);
        }
    }
}

TEST_CASE("nothing is said of calls that do not tell who is late")
{
    job ranks(4, 1e-4);
    ranks.arrival = {0, 0, ticks(1 * ms), 0};
    ranks.call({.call = collective::broadcast, .count = 64, .has_input = true, .has_result = true});
    ranks.call({.count = 64}); // of integers, or of a step without statistics
    ranks.call({.count = 0, .has_input = true, .has_result = true});
    const step_record& record = ranks.end_step();
    for (const call_record& call : record.calls) CHECK(call.lateness.present == 0);
    CHECK(record.lateness.calls == 0);
    CHECK(record.lateness.last == -1);
    CHECK(record.lateness_by_rank.empty());
    CHECK_FALSE(contains(report::json_line("", record), "lateness"));
    // The broadcast's end is known, so that the time before the next call is.
    ranks.call({.call = collective::broadcast, .count = 64, .has_input = true, .has_result = true});
    ranks.call();
    CHECK(ranks.end_step().calls[1].lateness.gain_before == ticks(1 * ms));
}

namespace {

/// Runs steps of two calls on in-process ranks, each with a clock of its own. By these clocks, the rank
/// `late_in(step)` comes to the second call 20 ms after the others, which are up to 10 us apart.
/// Each has enough processors, but for rank `crowded`.
template <class LateIn, class See>
void run_late(
    int ranks, int steps, const probe_options& options, const LateIn& late_in, const See& see, int crowded = -1)
{
    const held_clock clock;
    const auto all = std::make_shared<arrivals>(ranks);
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        processors = world.rank() == crowded ? ranks - 1 : ranks;
        probed comm(with_rank_clocks(world, all, [](auto on, auto task) { on.enqueue(std::move(task)); }), options);
        std::mt19937_64 random(static_cast<std::uint64_t>(comm.rank()));
        const auto work_for = [&](double ns) {
            const auto took = static_cast<std::int64_t>(ns) + static_cast<std::int64_t>(random() % 10'000);
            stream.enqueue([took] { held_clock::set_ahead_ns(held_clock::ahead_ns() + took); });
        };
        std::vector<float> send(64, 1.0f), receive(64);
        for (int step = 0; step < steps; ++step) {
            work_for(0);
            comm.all_reduce(send, view(receive), reduction::sum, stream);
            work_for(late_in(step) == comm.rank() ? 20 * ms : 0);
            comm.all_reduce(send, view(receive), reduction::sum, stream);
            comm.end_step(static_cast<std::uint64_t>(step), stream);
            step_record record;
            REQUIRE(comm.wait(record));
            if (comm.rank() == 0) see(record);
        }
    });
}

} // namespace

TEST_CASE("another in-process rank is late in each step: the call and the step say which, and the run names none; late once, it is named")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        int step = 0;
        const auto late_in = [](int number) { return number * 7 % 4; };
        run_late(4, 40, {.mode = mode, .lateness_floor_ns = 50'000}, late_in, [&](const step_record& record) {
            const call_lateness& call = record.calls[1].lateness;
            CHECK(call.present == 4);
            CHECK(call.last == late_in(step));
            CHECK(std::fabs(call.spread - 20 * ms) < 0.02 * ms);
            CHECK(record.lateness.last == late_in(step));
            CHECK(std::fabs(record.lateness.behind - 20 * ms) < 0.05 * ms);
            CHECK(record.lateness.stands_out == (step > 16));
            CHECK(late_of(record).empty());
            CHECK(is_nan(call.gain) == (mode == report_mode::summary));
            ++step;
        });
        CHECK(step == 40);
        run_late(4, 40, {.mode = mode}, [](int number) { return number == 35 ? 1 : -1; }, [](const step_record& record) {
            int late = -1;
            for (const finding& each : record.findings) late = each.what == finding_kind::late ? each.rank() : late;
            CHECK(late == (record.step == 35 ? 1 : -1));
        });
    }
}

TEST_CASE("without times, or without what they need, nothing is noted and nothing said")
{
    for (const probe_options& options :
        {probe_options{.times = false}, probe_options{.results = false}, probe_options{.statistics = false},
            probe_options{.mode = report_mode::summary, .times = false}}) {
        run_late(2, 2, options, [](int) { return 1; }, [&](const step_record& record) {
            for (const call_record& call : record.calls) CHECK(call.lateness.present == 0);
            CHECK(record.lateness.last == -1);
            CHECK(record.lateness_by_rank.empty());
        });
    }
}

TEST_CASE("ranks on CPUs that outnumber the processors of one machine are not named as late, unless a floor is given")
{
    struct kind {
        double floor_ns;
        int crowded;
        int named;
    };
    for (const kind& of : {kind{0, -1, 1}, kind{0, 0, 0}, kind{0, 3, 0}, kind{50'000, 3, 1}}) { // rank 0 looks
        int named = 0;
        run_late(4, 60, {.lateness_floor_ns = of.floor_ns}, [](int step) { return step < 40 ? -1 : 1; },
            [&](const step_record& record) {
                named += late_of(record).empty() ? 0 : 1;
                CHECK(record.calls[1].lateness.present == 4); // the numbers are there
                CHECK(record.lateness.stands_out == (of.named > 0 && record.step >= 40));
            }, of.crowded);
        CAPTURE(of.floor_ns);
        CAPTURE(of.crowded);
        CHECK((named > 0) == (of.named > 0));
    }
}

} // namespace collprobe::testing::step_lateness_test
