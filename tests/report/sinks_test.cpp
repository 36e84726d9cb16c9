// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <csignal>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <collprobe/detail/thread.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/report/sinks.hpp>

#include "sample.hpp"
#include "support/checks.hpp"
#include "support/count_allocations.hpp"

namespace collprobe::testing::sinks_test {
namespace {

/// What a sink was told, in order: "open", "step 3", "alarm 3", "inspection", "close".
struct told {
    std::vector<std::string> calls;
    std::vector<std::uint64_t> dropped;
    std::uint64_t last_ns = 0;
    int flushes = 0;
};

class listening : public report::sink {
public:
    explicit listening(told& to, std::string fails_at = "") : to_(&to), fails_at_(std::move(fails_at)) {}
    std::string target() const override { return fails_at_.empty() ? "" : "a listener"; }
    void open(const run_record& run) override { hear("open " + run.name); }
    void on_step(const step_record& record, const record_context& context) override
    {
        hear("step " + std::to_string(record.step));
        to_->dropped.push_back(context.dropped);
        CHECK(context.unix_ns >= to_->last_ns);
        to_->last_ns = context.unix_ns;
    }
    void on_alarm(const finding& raised, const record_context&) override
    {
        hear("alarm " + std::to_string(raised.step));
    }
    void on_inspection(const inspection&, const record_context&) override { hear("inspection"); }
    void flush(const record_context&) override { ++to_->flushes; }
    void close(const record_context&) override { hear("close"); }

private:
    void hear(const std::string& what)
    {
        to_->calls.push_back(what);
        if (what == fails_at_) throw std::runtime_error("no " + what);
    }

    told* to_;
    std::string fails_at_;
};

/// Blocks the writing thread in its first step until it is let go.
class blocking : public report::sink {
public:
    explicit blocking(std::atomic<int>& state) : state_(&state) {}
    std::string target() const override { return ""; }
    void on_step(const step_record&, const record_context&) override
    {
        if (state_->load() >= 2) return;
        state_->store(1);
        wait_for(2);
    }
    void wait_for(int wanted) const
    {
        const auto until = detail::deadline::in_ms(60'000);
        while (state_->load() < wanted && !until.passed()) usleep(1000);
    }

private:
    std::atomic<int>* state_;
};

finding alarm_of(std::uint64_t step)
{
    finding raised;
    raised.step = step;
    raised.ranks = {1, 2};
    return raised;
}

constexpr report::sinks_options quiet{.tell = false};

} // namespace

TEST_CASE("every sink gets every record, in the order in which they were put, between open and close")
{
    told first;
    told second;
    {
        run_record run;
        run.name = "r";
        report::sinks out(run, quiet, listening(first), listening(second));
        for (std::uint64_t step = 0; step < 50; ++step) {
            out.put(sample_step(step));
            if (step % 10 == 0) out.put(alarm_of(step));
        }
        out.put(inspection());
        out.close();
        out.put(sample_step(99)); // too late: counted
        CHECK(out.dropped() == 1);
        CHECK(out.failures().empty());
    }
    CHECK(first.calls == second.calls);
    REQUIRE(first.calls.size() == 58);
    CHECK(first.calls.front() == "open r");
    CHECK(first.calls[1] == "step 0");
    CHECK(first.calls[2] == "alarm 0");
    CHECK(first.calls[56] == "inspection");
    CHECK(first.calls.back() == "close");
}

TEST_CASE("flush returns when the sinks have written what was put before")
{
    told heard;
    report::sinks out(run_record(), quiet, listening(heard));
    for (std::uint64_t step = 0; step < 5; ++step) {
        out.put(sample_step(step));
        out.flush();
        CHECK(heard.calls.back() == "step " + std::to_string(step));
    }
    CHECK(heard.flushes >= 5);
}

TEST_CASE("flush without a record waits for the opening, so that its failure is known")
{
    for (int i = 0; i < 20; ++i) {
        told heard;
        report::sinks out(run_record(), quiet, listening(heard, "open run"));
        out.flush();
        CHECK_FALSE(out.failures().empty());
    }
}

TEST_CASE("a sink that throws is not called again, is told once, and the others go on")
{
    for (const std::string at : {"open run", "step 2", "alarm 2", "inspection", "close"}) {
        CAPTURE(at);
        told bad;
        told good;
        report::sinks out(run_record(), quiet, listening(bad, at), listening(good));
        for (std::uint64_t step = 0; step < 5; ++step) {
            out.put(sample_step(step));
            out.put(alarm_of(step));
        }
        out.put(inspection());
        out.close();
        CHECK(bad.calls.back() == at);
        CHECK(good.calls.size() == 13);
        REQUIRE(out.failures().size() == 1);
        CHECK(contains(out.failures()[0], "'a listener' is not written any more: no " + at));
    }
}

TEST_CASE("while the writer is busy records wait up to the room, then they are dropped and counted")
{
    told heard;
    std::atomic<int> state{0};
    report::sinks out(run_record(), {.room = 8, .tell = false}, blocking(state), listening(heard));
    out.put(sample_step(0));
    const auto until = detail::deadline::in_ms(60'000);
    while (state.load() == 0 && !until.passed()) usleep(1000);
    REQUIRE(state.load() == 1);
    for (std::uint64_t step = 1; step < 21; ++step) out.put(sample_step(step));
    CHECK(out.dropped() == 12);
    state.store(2);
    out.flush();
    out.put(sample_step(21));
    out.close();
    REQUIRE(heard.calls.size() == 12); // open, 0 to 8, 21, close
    CHECK(heard.calls[9] == "step 8");
    CHECK(heard.calls[10] == "step 21");
    CHECK(heard.dropped.front() == 0);
    CHECK(heard.dropped.back() == 12); // the next line says so
}

TEST_CASE("of two sinks with one path the second is not opened")
{
    told first;
    told second;
    report::sinks out(run_record(), quiet, listening(first, "never"), listening(second, "never"));
    out.put(sample_step(0));
    out.close();
    CHECK(first.calls.size() == 3);
    CHECK(second.calls.empty());
    REQUIRE(out.failures().size() == 1);
    CHECK(contains(out.failures()[0], "another sink writes it"));
}

namespace {

std::atomic<int> handled{0};

/// Writes to a pipe without a reader.
class to_pipe : public report::sink {
public:
    explicit to_pipe(int end) : end_(end) {}
    std::string target() const override { return "pipe"; }
    void on_step(const step_record&, const record_context&) override
    {
        kill(getpid(), SIGUSR1); // is handled by another thread
        if (write(end_, "x", 1) < 0) throw std::runtime_error("no reader");
    }

private:
    int end_;
};

} // namespace

TEST_CASE("the writing thread takes no signals: a pipe without a reader is an error of its sink")
{
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    close(ends[0]);
    static pthread_t caller;
    caller = pthread_self();
    std::signal(SIGUSR1, [](int) { handled += pthread_equal(pthread_self(), caller) ? 1 : 100; });
    report::sinks out(run_record(), quiet, to_pipe(ends[1]));
    out.put(sample_step(0));
    out.close();
    std::signal(SIGUSR1, SIG_DFL);
    close(ends[1]);
    CHECK(handled == 1);
    REQUIRE(out.failures().size() == 1);
    CHECK(contains(out.failures()[0], "no reader"));
}

TEST_CASE("records put by several threads all arrive")
{
    told heard;
    {
        report::sinks out(run_record(), {.room = 4096, .tell = false}, listening(heard));
        std::vector<detail::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([&out, t] {
                const step_record record = sample_step(static_cast<std::uint64_t>(t));
                for (int i = 0; i < 100; ++i) out.put(record);
            });
        }
        threads.clear();
        CHECK(out.dropped() == 0);
    }
    CHECK(heard.calls.size() == 402);
}

namespace {

/// A sink that allocates nothing, and waits in its first record while it is told to.
class slow_sink : public report::sink {
public:
    explicit slow_sink(std::atomic<int>& state) : state_(state) {}
    std::string target() const override { return ""; }
    void on_step(const step_record&, const record_context&) override { wait(); }
    void on_alarm(const finding&, const record_context&) override { wait(); }

private:
    void wait()
    {
        int hold = 1;
        if (!state_.compare_exchange_strong(hold, 2)) return;
        while (state_ == 2) sched_yield();
    }
    std::atomic<int>& state_; ///< 1: wait in the next record, 2: waits, 0: go on
};

} // namespace

TEST_CASE("after the first records a put allocates nothing")
{
    std::atomic<int> state{0};
    report::sinks out(run_record(), {.room = 4, .tell = false}, slow_sink(state));
    step_record record = sample_step(1);
    record.calls.resize(5);
    for (call_record& call : record.calls) call.inputs.resize(8);
    const finding raised = alarm_of(1);
    const auto fill = [&](const auto& with) { // one with the writer and four that wait: all the memory that there is
        state = 1;
        out.put(with);
        while (state != 2) sched_yield();
        for (int i = 0; i < 4; ++i) out.put(with);
        state = 0;
        out.flush();
    };
    const auto round = [&] {
        fill(record);
        fill(raised);
    };
    round();
    const long before = allocations.load();
    for (int i = 0; i < 4; ++i) round();
    CHECK(allocations.load() == before);
    CHECK(out.dropped() == 0);
}

TEST_CASE("as many records have memory as have waited together, not all that there is room for")
{
    struct : report::sink {
        std::string target() const override { return ""; }
        void on_step(const step_record& record, const record_context&) override { lists.insert(record.losses.data()); }
        std::set<const double*> lists;
    } seen;
    report::record_writer out({}, {&seen}, {.room = 64});
    step_record record;
    record.losses.resize(1000);
    for (int step = 0; step < 100; ++step) {
        out.put(record);
        out.flush();
    }
    CHECK(seen.lists.size() <= 2);
}

TEST_CASE("the facts of the process and of the communicator are in the run")
{
    struct {
        int rank() const { return 2; }
        int size() const { return 5; }
    } const comm;
    setenv("SLURM_JOB_ID", "job 7", 1);
    const run_record run = report::describe_run(comm, "a run");
    unsetenv("SLURM_JOB_ID");
    CHECK(run.name == "a run");
    CHECK(run.rank == 2);
    CHECK(run.ranks == 5);
    CHECK(run.rank_of_job() == 2);
    CHECK(run.job == "job 7");
    CHECK(run.process == getpid());
    CHECK_FALSE(run.host.empty());
    CHECK_FALSE(run.library.empty());
    CHECK(run.started_ns > 1'700'000'000'000'000'000u);
}

} // namespace collprobe::testing::sinks_test
