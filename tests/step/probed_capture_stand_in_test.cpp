// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Whole steps in CUDA graphs: probes, collectives and report, replayed with fresh data.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/nccl/group.hpp>
#include <collprobe/fault/faulty.hpp>

#include "nccl_steps.hpp"
#include "tests/support/failing_part.hpp"
#include "tests/support/rank_clocks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::probed_capture_stand_in_test {
namespace {

/// What `record` enqueues on `stream`, ready to be launched.
struct graph : captured_graph {
    template <class Record>
    graph(cuda::stream_ref stream, Record record) : captured_graph(stream, cudaStreamCaptureModeThreadLocal)
    {
        record();
        cuda::check(end(), "end of a capture");
    }
};

/// Begins a capture and gives it up, whatever became of it.
template <class Record>
void in_lost_capture(cuda::stream_ref stream, Record record)
{
    const captured_graph lost(stream, cudaStreamCaptureModeThreadLocal);
    record();
}

using probed_nccl = probed<nccl::communicator_ref>;

/// The calls of a step, and a value.
template <class Comm>
void make_calls_of_step(Comm& comm, trainer& rank)
{
    rank.reduce(comm);
    comm.expect_equal("step", view<const std::uint64_t>(rank.told), rank.stream);
}
/// A step that is not captured.
template <class Comm>
step_record make_step(Comm& comm, trainer& rank, std::uint64_t step)
{
    make_calls_of_step(comm, rank);
    comm.end_step(step, rank.seen(step), rank.stream);
    return next_record(comm);
}

/// A step that was captured: the rank's reductions, or what `calls` makes.
template <class Comm>
struct recorded {
    Comm& comm;
    trainer& rank;
    captured_step captured;
    graph launched;

    recorded(Comm& of, trainer& by) : recorded(of, by, [&] { make_calls_of_step(of, by); }) {}
    template <class Calls>
    recorded(Comm& of, trainer& by, Calls calls)
        : comm(of), rank(by), launched(by.stream, [&] {
              calls();
              captured = of.end_captured_step(by.seen_on_device(), by.stream);
          })
    {
    }
    void launch() const { launched.launch(rank.stream); }
    void replay(std::uint64_t number) const
    {
        comm.replay(captured, number, rank.stream, [this] { launch(); });
    }
};

} // namespace

TEST_CASE("replays note times: a rank that launches late is last, and work between replays is known")
{
    constexpr double late_ns = 20e6, tick = 256;
    const auto is_late = [](double ns) { return std::fabs(ns - late_ns) <= 2 * tick; };
    const held_clock clock;
    const auto all = std::make_shared<arrivals>(3);
    run_trainers(3, [&](testing::nccl_owner& world, trainer& rank) {
        const auto enqueue = [](cuda::stream_ref on, std::function<void()> task) {
            cuda::check(stand_in::enqueue(on.get(), std::move(task)), "enqueue");
        };
        probed comm(with_rank_clocks(nccl::communicator_ref(world), all, enqueue));
        const recorded step(comm, rank);
        for (std::uint64_t number = 0; number < 20; ++number) {
            rank.prepare(number);
            const int late = static_cast<int>(number * 7 % 3);
            if (late == rank.rank)
                enqueue(rank.stream, [] { held_clock::set_ahead_ns(held_clock::ahead_ns() + 20'000'000); });
            step.replay(number);
            const step_record record = next_record(comm);
            CHECK(record.lateness.calls == 3);
            CHECK(record.lateness.present == 3);
            CHECK(record.calls[0].lateness.last == late);
            CHECK(is_late(record.calls[0].lateness.spread));
            CHECK(record.lateness.last == late);
            CHECK(is_late(record.lateness.behind));
            if (number == 0) continue;
            CHECK(record.lateness_by_rank[static_cast<std::size_t>(late)].latest == record.lateness.behind);
            CHECK(is_late(record.lateness.behind_before));
        }
    });
}

TEST_CASE("an audited step in a graph gives the records of the same steps uncaptured, and names what is damaged in it")
{
    // Among the graph's calls: a sum on its way, what rank 1 receives of the gather, or nothing.
    const std::vector<fault> damages[] = {{},
        {{.kind = fault_kind::bit_flips, .phase = fault_phase::during, .rank = 1, .call = 3}},
        {{.kind = fault_kind::bit_flips, .phase = fault_phase::after, .rank = 1, .call = 4}}};
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const bool statistics : {true, false}) {
            for (const std::vector<fault>& damage_done : damages) {
                CAPTURE(name(mode));
                CAPTURE(statistics);
                run_trainers(3, [&](testing::nccl_owner& world, trainer& rank) {
                    device_vector<float> numbers(100), shard(50), whole(150);
                    const auto make_calls = [&](auto& comm) {
                        rank.reduce(comm);
                        const view<float> all(numbers.data(), numbers.size());
                        comm.all_reduce(view<const float>(all), all, reduction::sum, rank.stream);
                        comm.all_gather(view<const float>(shard), view<float>(whole), rank.stream);
                    };
                    const auto prepare = [&](std::uint64_t step) {
                        rank.prepare(step);
                        numbers.set(std::vector<float>(100, static_cast<float>(step) + static_cast<float>(rank.rank)), rank.stream);
                        shard.set(gradient(rank.rank, step, 50), rank.stream);
                    };
                    const probe_options options{.mode = mode, .statistics = statistics};
                    const audit_options checks{.conservation = {.sketch = {.bins = 64}}};
                    probed plain{nccl::communicator_ref(world), options, audit(checks)};
                    probed comm{faulty{nccl::communicator_ref(world), damage_done, {.max_bytes = 1 << 14}}, options,
                        audit(checks)};
                    const recorded step(comm, rank, [&] { make_calls(comm); });
                    for (std::uint64_t number = 5; number < 9; ++number) {
                        prepare(number);
                        make_calls(plain);
                        plain.end_step(number, rank.seen(number), rank.stream);
                        prepare(number);
                        step.replay(number);
                        const step_record expected = next_record(plain);
                        const step_record record = next_record(comm);
                        CHECK(expected.findings.empty());
                        REQUIRE(record.calls.size() == 5);
                        if (damage_done.empty()) {
                            check_same(record, expected);
                            CHECK(record.calls[3].audit.sum_checked);
                            continue;
                        }
                        REQUIRE(record.findings.size() == 1);
                        const bool of_sum = damage_done[0].call == 3;
                        CHECK(record.findings[0].call == (of_sum ? 3 : 4));
                        if (of_sum) CHECK(record.findings[0].what == finding_kind::sum_differs);
                        else if (mode == report_mode::gather) CHECK(record.findings[0].rank() == 1);
                        else CHECK(record.findings[0].what == finding_kind::result_differs);
                    }
                });
            }
        }
    }
}

TEST_CASE("weights of averages in a graph are those of the same steps uncaptured")
{
    run_trainers(3, [](testing::nccl_owner& world, trainer& rank) {
        probed plain{nccl::communicator_ref(world), {}, weight_probe({.every = 1})};
        probed comm{nccl::communicator_ref(world), {}, weight_probe({.every = 1})};
        const recorded step(comm, rank);
        for (std::uint64_t number = 5; number < 8; ++number) {
            rank.prepare(number);
            const step_record expected = make_step(plain, rank, number);
            step.replay(number);
            const step_record record = next_record(comm);
            check_same(record, expected);
            REQUIRE(record.calls.size() == 3);
            for (std::size_t c = 0; c < 3; ++c)
                CHECK(record.calls[c].weights.how == (c == 1 ? averaging::unknown : averaging::sum));
        }
    });
}

TEST_CASE("a capture whose number cannot be had takes no captured step")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world, {.captured_steps = 1});
        // Each of the questions of a capture's first call fails once.
        for (unsigned skip = 0; skip < 6; ++skip) {
            bool failed = false;
            const graph given_up(rank.stream, [&] {
                stand_in::fail_next("cudaStreamGetCaptureInfo", cudaErrorUnknown, skip);
                try {
                    rank.reduce(comm);
                } catch (const error&) {
                    failed = true;
                }
                if (!failed) stand_in::fail_next("cudaStreamGetCaptureInfo", cudaSuccess, 0);
                comm.abandon_capture();
            });
            CHECK(failed);
        }
        const recorded step(comm, rank);
        rank.prepare(1);
        step.replay(1);
        CHECK(next_record(comm).calls.size() == 3);
    });
}

TEST_CASE("a replay that fails on one rank alone makes all forget")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed comm(nccl::communicator_ref(world), {}, failing_part{world.rank() == 1});
        const recorded step(comm, rank);
        for (std::uint64_t number = 0; number < 10; ++number) {
            rank.prepare(number);
            step.replay(number);
            if (number == 5 && world.rank() == 1) {
                step_record lost;
                CHECK_THROWS_AS(comm.wait(lost), error);
                continue;
            }
            const step_record record = next_record(comm);
            CHECK(record.step == number);
            CHECK(record.first_call == 3 * number);
            CHECK(record.forgot == (number == 6));
        }
    });
}

TEST_CASE("a captured step has no numbers of the host, and counts the calls that it has no room for")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world, {.calls = 2});
        const recorded step(comm, rank, [&] {
            rank.reduce(comm);
            check_error(error_of([&] { (void)comm.end_captured_step({.loss = 1.5}, rank.stream); }),
                status::unsupported, {"a loss or norm of the host", "give the address"});
            comm.expect_equal("lr", 0.5);
            check_refused([&] { (void)comm.end_captured_step(rank.seen_on_device(), rank.stream); },
                "a number of the host", status::unsupported);
        });
        rank.prepare(1);
        step.replay(1);
        const step_record record = next_record(comm);
        CHECK(record.calls.size() == 2);
        CHECK(record.unprobed_calls == 1);
    });
}

TEST_CASE("a probe moves within a capture and between replays, and its captured steps go with it")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl plain(world);
        probed_nccl first(world, {.captured_steps = 2});
        std::optional<probed_nccl> second;
        captured_step captured;
        rank.stream.synchronize(soon_ms);
        const graph step(rank.stream, [&] {
            make_calls_of_step(first, rank);
            second.emplace(std::move(first));
            captured = second->end_captured_step(rank.seen_on_device(), rank.stream);
        });
        std::vector<probed_nccl> probes;
        probes.push_back(std::move(*second));
        second.reset();
        const auto replay = [&](probed_nccl& comm, const captured_step& which, std::uint64_t number) {
            comm.replay(which, number, rank.stream, [&] { step.launch(rank.stream); });
        };
        for (std::uint64_t number = 0; number < 6; ++number) {
            rank.prepare(number);
            const step_record expected = make_step(plain, rank, number);
            replay(probes[0], captured, number);
            probes.push_back(probed_nccl(world, {.captured_steps = 1})); // moves the first, now and then
            check_same(next_record(probes[0]), expected);
        }
        check_refused([&] { replay(probes[1], captured, 7); }, "no such captured step");
        check_refused([&] { replay(probes[0], captured_step(), 7); }, "no such captured step");
        probes[0].release(captured);
        check_refused([&] { replay(probes[0], captured, 7); }, "no such captured step");
    });
}

TEST_CASE("uncaptured steps and replays mix on any streams, and their records come in order")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        run_trainers(3, [mode](testing::nccl_owner& world, trainer& rank) {
            const cuda::stream other;
            probed_nccl comm(world, {.mode = mode, .direction = direction_mode::exact, .captured_steps = 2});
            const auto uncaptured = [&](std::uint64_t number) {
                rank.prepare(number);
                rank.reduce(comm);
                comm.end_step(number, rank.seen(number), rank.stream);
            };
            uncaptured(0);
            uncaptured(1);
            const recorded first(comm, rank);
            uncaptured(2);
            const recorded second(comm, rank);
            rank.prepare(3);
            first.replay(3);
            second.replay(4);
            for (const std::uint64_t number : {5u, 6u}) {
                const recorded<probed_nccl>& step = number == 5 ? first : second;
                comm.replay(step.captured, number, other, [&] { step.launched.launch(other); });
            }
            first.replay(7);
            other.synchronize(soon_ms);
            uncaptured(8);
            double cosine = 0;
            for (std::uint64_t number = 0; number < 9; ++number) {
                const step_record record = next_record(comm);
                CHECK(record.step == number);
                CHECK(record.calls.size() == 3);
                CHECK(record.loss.mean
                    == doctest::Approx(2.25 + static_cast<double>(number >= 3 && number < 8 ? 3 : number)));
                if (number == 3) cosine = record.cosine.mean_pairwise; // that of all replays of these data
                if (number > 3 && number < 8) CHECK(record.cosine.mean_pairwise == cosine);
            }
            CHECK(comm.pending_steps() == 0);
            CHECK(comm.dropped_steps() == 0);
        });
    }
}

TEST_CASE("a captured step may fork to other streams: each bucket on its own, with memory of its own")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        run_trainers(2, [mode](testing::nccl_owner& world, trainer& rank) {
            const std::vector<cuda::stream> side(2);
            const probe_options options{.mode = mode, .direction = direction_mode::exact, .scratch_bytes = 1 << 14};
            probed_nccl plain(world, options), comm(world, options);
            const recorded step(comm, rank, [&] {
                cuda::event fork;
                fork.record(rank.stream);
                for (const cuda::stream& other : side) other.wait(fork);
                const cuda::stream_ref on[3] = {side[0], rank.stream, side[1]};
                for (std::size_t b = 0; b < 3; ++b) rank.reduce(comm, b, on[b]);
                comm.expect_equal("step", view<const std::uint64_t>(rank.told), rank.stream);
            });
            for (std::uint64_t number = 0; number < 5; ++number) {
                rank.prepare(number);
                step.replay(number);
                check_same(next_record(comm), make_step(plain, rank, number));
            }
        });
    }
}

TEST_CASE("what a graph cannot hold is refused by name, and the capture can be given up")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world, {.streams = 1});
        check_refused([&] { (void)comm.end_captured_step({}, rank.stream); }, "end_step");
        check_refused([&] { comm.replay({}, 0, rank.stream, [] {}); }, "no such captured step");

        in_lost_capture(rank.stream, [&] {
            check_refused([&] { comm.end_step(0, {}, rank.stream); }, "end_captured_step");
            rank.reduce(comm);
            const cuda::stream other;
            const auto on_other = [&] {
                comm.all_reduce(view<const float>(rank.send[0]), view<float>(rank.receive[0]), reduction::sum, other);
            };
            check_refused(on_other, "abandon_capture");
            cuda::event fork;
            fork.record(rank.stream);
            other.wait(fork);
            check_refused(on_other, "probe_options::streams");
            cuda::event join;
            join.record(other);
            rank.stream.wait(join);
        });
        check_refused([&] { rank.reduce(comm); }, "abandon_capture");
        in_lost_capture(rank.stream, [&] { // another one
            check_refused([&] { rank.reduce(comm); }, "abandon_capture");
            check_refused([&] { (void)comm.end_captured_step({}, rank.stream); }, "another capture");
        });
        comm.abandon_capture();

        rank.reduce(comm);
        in_lost_capture(rank.stream, [&] { check_refused([&] { rank.reduce(comm); }, "before the capture"); });
        comm.end_step(1, rank.seen(1), rank.stream);
        CHECK(next_record(comm).calls.size() == 3);

        rank.stream.synchronize(soon_ms);
        captured_step captured;
        const graph step(rank.stream, [&] {
            rank.reduce(comm);
            captured = comm.end_captured_step({}, rank.stream);
        });
        in_lost_capture(rank.stream, [&] {
            check_refused([&] { rank.reduce(comm); }, "captured_steps");
            check_refused([&] { comm.replay(captured, 2, rank.stream, [] {}); }, "the stream is capturing");
        });
        rank.reduce(comm);
        check_refused([&] { comm.replay(captured, 2, rank.stream, [] {}); }, "have not been ended");
        comm.end_step(2, rank.seen(2), rank.stream);
        CHECK(next_record(comm).step == 2);

        probed_nccl stranger(world);
        check_refused([&] { stranger.replay(captured, 3, rank.stream, [] {}); }, "no such captured step");
        comm.replay(captured, 3, rank.stream, [&] { step.launch(rank.stream); });
        const step_record record = next_record(comm);
        CHECK(record.step == 3);
        REQUIRE(record.losses.size() == 1);
        CHECK(is_nan(record.losses[0])); // none was given
        comm.release(captured);
        check_refused([&] { comm.replay(captured, 4, rank.stream, [] {}); }, "no such captured step");
    });
}

TEST_CASE("an abandoned capture takes along its observed inputs and the calls of an open group")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed comm(nccl::communicator_ref(world), {}, audit());
        std::vector<decltype(comm)::observed_call> lost;
        in_lost_capture(rank.stream, [&] {
            lost.push_back(comm.observe(view<const float>(rank.send[0]), rank.stream));
            nccl::group together;
            rank.reduce(comm);
            comm.abandon_capture();
            together.end();
        });
        check_refused([&] { lost[0].result(view<const float>(rank.receive[0]), rank.stream); }, "abandoned");
        rank.reduce(comm);
        comm.end_step(0, rank.seen(0), rank.stream);
        const step_record record = next_record(comm);
        CHECK(record.calls.size() == 3);
        CHECK(record.findings.empty());
    });
}

TEST_CASE("what was asked for the next step is not spent on a captured one, which cannot have it")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed comm(nccl::communicator_ref(world), {.every = 0}, audit({.every = 0}));
        comm.request();
        comm.request<audit>();
        const recorded step(comm, rank);
        for (std::uint64_t s = 0; s < 4; s += 2) {
            step.replay(s);
            step_record record = next_record(comm);
            CHECK(record.calls.empty());
            CHECK(record.unread_calls == 3);
            rank.reduce(comm);
            comm.end_step(s + 1, rank.seen(s), rank.stream);
            record = next_record(comm);
            CHECK(record.calls.size() == (s == 0 ? 3 : 0));
            for (const call_record& call : record.calls) CHECK((call.audit.sum_checked && !call.inputs.empty()));
        }
    });
}

TEST_CASE("a released step makes room for another capture, after its replays")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world, {.direction = direction_mode::exact, .steps_in_flight = 8});
        for (std::uint64_t round = 0; round < 3; ++round) {
            const recorded step(comm, rank, [&] {
                for (std::uint64_t calls = 0; calls <= round; ++calls) rank.reduce(comm);
            });
            for (std::uint64_t i = 0; i < 5; ++i) step.replay(10 * round + i);
            comm.release(step.captured);
        }
        for (std::uint64_t i = 0; i < 15; ++i) {
            const step_record record = next_record(comm);
            CHECK(record.step == 10 * (i / 5) + i % 5);
            CHECK(record.calls.size() == 3 * (i / 5 + 1));
        }
    });
}

TEST_CASE("a communicator that was aborted launches nothing")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        const recorded step(comm, rank);
        int launched = 0;
        const auto launch = [&] {
            ++launched;
            step.launch();
        };
        comm.replay(step.captured, 0, rank.stream, launch);
        CHECK(next_record(comm).step == 0);
        comm.fail("enough");
        check_refused([&] { comm.replay(step.captured, 1, rank.stream, launch); }, "enough", status::peer_failure);
        CHECK(launched == 1);
        CHECK(comm.pending_steps() == 0);
    });
}

TEST_CASE("a captured step is unknown to a communicator that came to live where another was")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        std::optional<probed_nccl> comm;
        captured_step captured[2];
        for (captured_step& each : captured) {
            comm.reset();
            comm.emplace(world);
            each = recorded(*comm, rank).captured;
        }
        check_refused([&] { comm->replay(captured[0], 0, rank.stream, [] {}); }, "no such captured step");
        comm->release(captured[1]);
    });
}

TEST_CASE("a launch that launches nothing is reported")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        const recorded step(comm, rank);
        comm.replay(step.captured, 2, rank.stream, [] {});
        rank.stream.synchronize(soon_ms);
        step_record record;
        check_refused([&] { comm.poll(record); }, "records of step 2 never arrived", status::device_failure);
        step.replay(3);
        CHECK(next_record(comm).step == 3);
    });
}

TEST_CASE("a launch outside a replay reports nothing and disturbs no report")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        const recorded step(comm, rank);
        step.launch(); // a warm-up
        step.replay(1);
        step.launch();
        rank.stream.synchronize(soon_ms);
        CHECK(comm.pending_steps() == 1);
        CHECK(next_record(comm).step == 1);
        check_refused([&] { comm.replay(step.captured, 2, rank.stream, [&] { step.replay(3); }); },
            "must not make calls of this communicator");
        check_refused([&] { comm.replay(step.captured, 2, rank.stream, [&] { rank.reduce(comm); }); },
            "must not make calls of this communicator");
        step.replay(4);
        CHECK(next_record(comm).step == 4);
    });
}

TEST_CASE("a launch that throws leaves nothing that writes a later report, whether it launched or not")
{
    stand_in::reset();
    for (const bool launched : {false, true}) {
        CAPTURE(launched);
        const device_vector<float> send(1000), first_result(1000), second_result(1000);
        const cuda::stream first, second;
        probed<alone> comm(alone{});
        const auto reduce = [&](const device_vector<float>& result, cuda::stream_ref on) {
            comm.all_reduce(view<const float>(send), view<float>(result), reduction::sum, on);
        };
        captured_step captured;
        const graph step(first, [&] {
            reduce(first_result, first);
            captured = comm.end_captured_step({}, first);
        });
        gate closed(first);
        CHECK_THROWS_AS(comm.replay(captured, 7, first,
                            [&] {
                                if (launched) step.launch(first);
                                throw std::runtime_error("after the launch");
                            }),
            std::runtime_error);
        CHECK(comm.pending_steps() == 0);
        if (!launched) step.launch(first);
        // The step after it has the same place for its report.
        reduce(second_result, second);
        comm.end_step(8, {}, second);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        closed.open();
        first.synchronize(soon_ms);
        second.synchronize(soon_ms);
        CHECK(next_record(comm).step == 8);
        comm.replay(captured, 9, first, [&] { step.launch(first); });
        CHECK(next_record(comm).step == 9);
    }
}

TEST_CASE("polling disturbs nobody's capture")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        rank.reduce(comm);
        comm.end_step(0, rank.seen(0), rank.stream);
        const cuda::stream theirs;
        cuda::check(cudaStreamBeginCapture(theirs.get(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
        step_record record;
        while (!comm.poll(record)) std::this_thread::yield();
        std::thread([&] { CHECK_FALSE(comm.poll(record)); }).join();
        cudaGraph_t theirs_captured = nullptr;
        CHECK(cudaStreamEndCapture(theirs.get(), &theirs_captured) == cudaSuccess);
        cudaGraphDestroy(theirs_captured);
    });
}

TEST_CASE("buffers outlive the replays that use them")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        for (int round = 0; round < 5; ++round) {
            probed_nccl comm(world);
            const recorded step(comm, rank);
            step.replay(0);
            step.replay(1);
        }
    });
}

TEST_CASE("exact alignment with the statistics of each second step leaves captured steps without the extra message")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world, {.direction = direction_mode::exact, .every = 2});
        const recorded step(comm, rank);
        for (std::uint64_t number = 0; number < 6; ++number) {
            rank.prepare(number);
            const bool exact = number % 2 == 0;
            if (exact) {
                rank.reduce(comm);
                comm.end_step(number, rank.seen(number), rank.stream);
            } else {
                step.replay(number);
            }
            CHECK(is_nan(next_record(comm).cosine.mean_pairwise) == !exact);
        }
    });
}

} // namespace collprobe::testing::probed_capture_stand_in_test
