// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Probed NCCL communicators: what they report, what they cost and what they refuse.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/weight_probe.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/nccl/group.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "nccl_steps.hpp"
#include "tests/support/checks.hpp"
#include "tests/support/held_clock.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::probed_stand_in_test {
namespace {

constexpr const std::size_t (&sizes)[3] = trainer::sizes;

using probed_nccl = probed<nccl::communicator_ref>;
using probed_sums = probed<reproducible<nccl::communicator_ref>>;

// What the communicator says of itself is not hidden by what wraps it.
template <class C>
concept says_all = requires(C& comm, view<const float> data, cuda::stream_ref stream, const error& why) {
    comm.check();
    comm.check_buffer(data, "send", collective::all_reduce, stream);
    comm.synchronize(stream, std::int64_t{1});
    comm.name();
    comm.fail("why");
    comm.device_scope();
    comm.enqueues_at_once();
};
static_assert(says_all<nccl::communicator_ref> && says_all<reproducible<nccl::communicator_ref>> && says_all<probed_sums>);

/// The records of rank 0 from the same steps on the CPU.
std::vector<step_record> on_host(int ranks, const probe_options& options, std::uint64_t steps)
{
    std::vector<step_record> records;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed comm(world, options);
        for (std::uint64_t step = 0; step < steps; ++step) {
            std::vector<std::vector<float>> send, receive;
            for (const std::size_t size : sizes) {
                send.push_back(gradient(world.rank(), step + size, size));
                receive.emplace_back(size);
                comm.all_reduce(send.back(), view(receive.back()), reduction::sum, stream);
            }
            comm.end_step(step, trainer::seen_by(world.rank(), step), stream);
            stream.synchronize(soon_ms);
            step_record record = next_record(comm);
            if (world.rank() == 0) records.push_back(std::move(record));
        }
    });
    return records;
}

/// How often some functions of CUDA were called.
struct call_counts {
    std::uint64_t launches = stand_in::calls("cudaLaunchKernel");
    std::uint64_t records = stand_in::calls("cudaEventRecord");
    std::uint64_t waits = stand_in::calls("cudaStreamWaitEvent");
    std::uint64_t copies = stand_in::calls("cudaMemcpyAsync");
    std::uint64_t blocking = stand_in::calls("cudaStreamSynchronize") + stand_in::calls("cudaEventSynchronize")
        + stand_in::calls("cudaDeviceSynchronize");
    std::uint64_t created = stand_in::calls("cudaMalloc") + stand_in::calls("cudaHostAlloc")
        + stand_in::calls("cudaEventCreateWithFlags") + stand_in::calls("cudaStreamCreateWithFlags");
};

} // namespace

TEST_CASE("the records are those of the same steps on the CPU, bit for bit, on one stream or several")
{
    for (const int ranks : {1, 2, 3}) {
        for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
            for (const direction_mode direction : {direction_mode::pooled, direction_mode::exact}) {
                // Distances from a mean are no integers: their sum over three ranks depends on the order.
                if (mode == report_mode::summary && ranks > 2) continue;
                const probe_options options{.mode = mode, .direction = direction, .scratch_bytes = 1 << 14};
                const auto expected = on_host(ranks, options, 6);
                run_trainers(ranks, [&](testing::nccl_owner& world, trainer& rank) {
                    probed_nccl comm(world, options);
                    for (std::uint64_t step = 0; step < 6; ++step) {
                        rank.prepare(step);
                        const bool one_stream = step % 2 == 0;
                        for (std::size_t b = 0; b < 3; ++b) {
                            rank.reduce(comm, b, rank.streams[one_stream ? 0 : (b + step) % 3]);
                        }
                        comm.end_step(step, rank.seen(step), rank.streams[step % 3]);
                        check_same(next_record(comm), expected[step]);
                    }
                });
            }
        }
    }
}

TEST_CASE("a probed call adds two launches and one record, a step one copy to the host, and nothing waits or allocates")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        run_trainers(1, [mode](testing::nccl_owner& world, trainer& rank) {
            probed_nccl comm(world, {.mode = mode});
            const auto step = [&](std::uint64_t number) {
                const call_counts before;
                rank.reduce(comm, 0, rank.streams[0]); // its lane waits for the last step's work
                const call_counts first;
                CHECK(first.launches - before.launches == 2);
                CHECK(first.records - before.records == 1);
                CHECK(first.waits - before.waits <= 1);
                rank.reduce(world, 1, rank.streams[0]);
                const call_counts bare;
                rank.reduce(comm, 1, rank.streams[0]);
                const call_counts second;
                CHECK(second.launches - bare.launches == 2);
                CHECK(second.records - bare.records == 1);
                CHECK(second.waits == bare.waits);
                CHECK(second.copies - bare.copies == bare.copies - first.copies); // NCCL's own, of one rank
                comm.end_step(number, {}, rank.streams[0]);
                const call_counts ended;
                CHECK(ended.records - second.records == 1);
                const unsigned of_values = number == 8 || number > 30 ? 1 : 0;
                CHECK(ended.launches - second.launches == (mode == report_mode::gather ? 1 : 3) + of_values);
            };
            for (std::uint64_t number = 0; number < 8; ++number) {
                step(number);
                (void)next_record(comm);
            }
            comm.expect_equal("weights", view<const float>(rank.send[0]), rank.streams[0]);
            const call_counts before;
            for (std::uint64_t number = 8; number < 40; ++number) {
                step(number);
                CHECK(next_record(comm).expectations.size() == (number == 8 || number > 30 ? 1 : 0));
                if (number >= 30) comm.expect_equal("weights", view<const float>(rank.send[0]), rank.streams[0]);
            }
            const call_counts after;
            CHECK(after.blocking == before.blocking);
            CHECK(after.created == before.created);
        });
    }
}

TEST_CASE("samples add two launches a call, exact direction one for each half of its memory and at most two more")
{
    const auto launches = [](const probe_options& options) { // of a rank
        run_trainers(2, [&](testing::nccl_owner& world, trainer& rank) {
            probed_nccl comm(world, options);
            rank.reduce(comm);
            comm.end_step(0, {}, rank.stream);
            (void)next_record(comm);
        });
        return call_counts().launches / 2; // a run begins with 0
    };
    const std::uint64_t plain = launches({});
    CHECK(launches({.order_sample = 4}) == plain + 2 * 3);
    // Three calls, of 4000, 132 and 16388 bytes; with much memory each pair of ranks is cut into parts.
    CHECK(launches({.direction = direction_mode::exact, .scratch_bytes = 1 << 14}) == plain + (1 + 1 + 3) + 1);
    CHECK(launches({.direction = direction_mode::exact}) == plain + 3 * (1 + 2) + 1);
}

TEST_CASE("the current device stays what it was")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        const int elsewhere = (world.device_ordinal() + 3) % 8;
        const cuda::device_guard away(elsewhere);
        const auto check_away = [&] {
            int current = -1;
            cudaGetDevice(&current);
            CHECK(current == elsewhere);
        };
        probed_nccl comm(world);
        check_away();
        rank.reduce(comm, 0, rank.streams[0]);
        check_away();
        comm.end_step(0, {}, rank.streams[0]);
        check_away();
        CHECK(next_record(comm).calls.size() == 1);
    });
}

TEST_CASE("steps on more streams than foreseen allocate once and then no more")
{
    for (const int ranks : {2, 1}) {
        run_trainers(ranks, [&](testing::nccl_owner& world, trainer& rank) {
            probed_nccl comm(world, {.streams = 1});
            std::uint64_t allocated[2] = {};
            for (std::uint64_t step = 0; step < 20; ++step) {
                for (std::size_t b = 0; b < 3; ++b) rank.reduce(comm, b, rank.streams[(b + step) % 3]);
                comm.end_step(step, {}, rank.streams[0]);
                CHECK(next_record(comm).calls.size() == 3);
                allocated[step == 0 ? 0 : 1] = stand_in::calls("cudaMalloc");
            }
            if (ranks == 1) CHECK(allocated[0] == allocated[1]);
        });
    }
}

using audited_nccl = probed<nccl::communicator_ref, audit>;
using measured_nccl = probed<nccl::communicator_ref, audit, weight_probe>;

/// Two reductions, and a reduce-scatter in place.
template <class Comm>
void mixed_calls(Comm& comm, trainer& rank, bool spread)
{
    const auto on = [&](std::size_t b) -> const cuda::stream& { return rank.streams[spread ? b : 0]; };
    for (std::size_t b = 0; b < 2; ++b) rank.reduce(comm, b, on(b));
    const auto ranks = static_cast<std::uint64_t>(comm.size());
    const view<float> whole(rank.send[2].data(), sizes[2] / ranks * ranks);
    const view<float> part = whole.part(static_cast<std::uint64_t>(rank.rank) * (whole.count() / ranks),
        whole.count() / ranks);
    comm.reduce_scatter(view<const float>(whole), part, reduction::sum, on(2), call_site::named("scattered"));
}

TEST_CASE("calls in a group have the records of the same calls made one by one")
{
    for (const int ranks : {1, 2, 3}) {
        run_nccl(ranks, [&](testing::nccl_owner& world) {
            measured_nccl one_by_one(world, {}, audit(), weight_probe({.every = 1}));
            measured_nccl together_made(world, {}, audit(), weight_probe({.every = 1}));
            trainer rank(world);
            for (std::uint64_t step = 0; step < 4; ++step) {
                const bool spread = step >= 2;
                step_record alone, grouped;
                for (step_record* out : {&alone, &grouped}) {
                    measured_nccl& comm = out == &alone ? one_by_one : together_made;
                    rank.prepare(step);
                    if (out == &alone) {
                        mixed_calls(comm, rank, spread);
                    } else {
                        nccl::group together;
                        mixed_calls(comm, rank, spread);
                        check_refused([&] { comm.end_step(step, {}, rank.streams[0]); }, "inside a group",
                            status::unsupported);
                        if (step % 2 == 0) together.end(); // else its destructor ends it
                    }
                    const view<float> shard(rank.receive[1].data() + 11 * rank.rank, 11);
                    comm.all_gather(view<const float>(shard),
                        view<float>(rank.receive[1].data(), 11 * static_cast<std::uint64_t>(ranks)),
                        rank.streams[spread ? 1 : 0]);
                    comm.end_step(step, rank.seen(step), rank.streams[0]);
                    *out = next_record(comm);
                    for (const cuda::stream& stream : rank.streams) stream.synchronize(soon_ms);
                }
                check_same(alone, grouped);
                REQUIRE(grouped.calls.size() == 4);
                CHECK(grouped.findings.empty());
                CHECK(grouped.calls[2].site.name == std::string("scattered"));
                for (const call_record& call : grouped.calls) CHECK(call.audit.checked);
                for (std::size_t c = 0; c < 3; ++c) {
                    CHECK(grouped.calls[c].audit.sum_checked);
                    CHECK(grouped.calls[c].weights.seen);
                    CHECK(grouped.calls[c].weights.how == alone.calls[c].weights.how);
                    CHECK(grouped.calls[c].weights.weights == alone.calls[c].weights.weights);
                }
                CHECK(grouped.calls[2].weights.how == (ranks == 1 ? averaging::mean : averaging::sum));
            }
        });
    }
}

TEST_CASE("the calls of a group that failed are not in the step")
{
    stand_in::reset();
    nccl::options blocking;
    blocking.mode = nccl::blocking_mode::blocking; // NCCL gives up others
    const auto outcomes = run_each_nccl(2, 8, blocking, [](testing::nccl_owner& world) {
        audited_nccl comm(world, {}, audit());
        trainer rank(world);
        rank.prepare(0);
        rank.reduce(comm, 2, rank.streams[0]);
        {
            nccl::group together;
            rank.reduce(comm, 0, rank.streams[0]);
            rank.reduce(comm, 1, rank.streams[1]);
            const ncclComm_t none = nullptr;
            CHECK(ncclAllReduce(nullptr, nullptr, 0, ncclUint8, ncclSum, none, nullptr) != ncclSuccess);
            CHECK_THROWS_AS(together.end(), error);
        }
        {
            // The object may move while it follows a group.
            nccl::group together;
            rank.reduce(comm, 1, rank.streams[0]);
            audited_nccl moved(std::move(comm));
            together.end();
            comm = std::move(moved);
        }
        comm.end_step(0, {}, rank.streams[0]);
        const step_record record = next_record(comm);
        CHECK(record.findings.empty());
        REQUIRE(record.calls.size() == 2);
        CHECK(record.calls[0].count == sizes[2]);
        CHECK(record.calls[1].count == sizes[1]);
        CHECK(record.calls[1].audit.sum_checked);
    });
    check_all(outcomes);
}

TEST_CASE("while a thread has a group open with calls of a probe, other threads do not use it")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        audited_nccl comm(world, {}, audit());
        nccl::group together;
        rank.reduce(comm, 0, rank.streams[0]);
        std::thread([&] {
            const cuda::device_guard device(world.device_ordinal());
            check_refused([&] { comm.end_step(0, rank.streams[0]); }, "another thread has a group open");
            check_refused([&] { rank.reduce(comm, 1, rank.streams[0]); }, "another thread has a group open");
        }).join();
        together.end();
        comm.end_step(0, rank.streams[0]);
        CHECK(next_record(comm).calls.size() == 1);
    });
}

TEST_CASE("in a group of ncclGroupStart, and with exact direction in any group, probed calls are refused")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        probed_nccl exact(world, {.direction = direction_mode::exact});
        CHECK(ncclGroupStart() == ncclSuccess);
        check_refused([&] { rank.reduce(comm, 0, rank.streams[0]); }, "Use nccl::group", status::unsupported);
        rank.reduce(comm.base(), 0, rank.streams[0]);
        rank.reduce(comm.base(), 1, rank.streams[0]);
        CHECK(ncclGroupEnd() <= ncclInProgress);
        world.synchronize(rank.streams[0], soon_ms);
        {
            nccl::group together;
            check_refused([&] { rank.reduce(exact, 0, rank.streams[0]); }, "exact direction", status::unsupported);
            together.end();
        }
        rank.reduce(comm, 2, rank.streams[0]);
        comm.end_step(0, {}, rank.streams[0]);
        CHECK(next_record(comm).calls.size() == 1);
    });
}

TEST_CASE("the audit of an all-gather launches as many kernels whatever the number of ranks is")
{
    std::vector<std::uint64_t> of_a_rank;
    for (const std::uint64_t ranks : {2u, 3u, 8u}) {
        run_trainers(static_cast<int>(ranks), [&](testing::nccl_owner& world, trainer& rank) {
            audited_nccl comm(world, {.statistics = false}, audit());
            const view<const float> shard(rank.send[0].data(), 100);
            comm.all_gather(shard, view<float>(rank.receive[2].data(), 100 * ranks), rank.streams[0]);
            comm.end_step(0, {}, rank.streams[0]);
            CHECK(next_record(comm).findings.empty());
        });
        CHECK(stand_in::calls("cudaLaunchKernel") % ranks == 0);
        of_a_rank.push_back(stand_in::calls("cudaLaunchKernel") / ranks);
    }
    CHECK(of_a_rank == std::vector<std::uint64_t>(3, of_a_rank[0]));
}

TEST_CASE("an observed call has a number that no call of a probe on another kind of device has")
{
    CHECK_NOTHROW(run_nccl(1, [](testing::nccl_owner& world) {
        probed_nccl comm{nccl::communicator_ref(world)};
        const cuda::device_guard here(world.device_ordinal());
        const cuda::stream stream;
        const auto call = comm.observe_no_input<float>(8, stream);
        local::run(1, [&](local::communicator& alone) {
            probed other(alone);
            host::stream beside;
            for (std::uint64_t behind = 0; behind < call.number(); ++behind) {
                const auto own = other.observe_no_input<float>(8, beside);
                require(own.number() != call.number(), "two calls of one number");
                own.no_result(beside);
            }
        });
        call.no_result(stream);
    }));
}

TEST_CASE("a buffer or stream that the communicator refuses is not read before")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        const std::vector<float> pageable(100, 1.0f);
        device_vector<float> result(100);
        const call_counts before;
        check_refused(
            [&] { comm.all_reduce(view<const float>(pageable), view<float>(result), reduction::sum, rank.streams[0]); },
            "send is host memory");
        {
            const cuda::device_guard away(world.device_ordinal() + 1);
            const cuda::stream wrong;
            check_refused([&] { rank.reduce(comm, 0, wrong); }, "stream is on device");
        }
        CHECK(call_counts().launches == before.launches);
        comm.end_step(0, {}, rank.streams[0]);
        CHECK(next_record(comm).calls.empty());
    });
}

TEST_CASE("what passes from a step to the next on another stream waits for the last work with it")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        run_trainers(2, [mode](testing::nccl_owner& world, trainer& rank) {
            probed_nccl comm(world, {.mode = mode, .steps_in_flight = 8, .streams = 1});
            for (std::uint64_t step = 0; step < 30; ++step) {
                rank.reduce(comm, step % 3, rank.streams[step % 3]);
                comm.end_step(step, {}, rank.streams[step % 3]);
            }
            for (std::uint64_t step = 0; step < 30; ++step) CHECK(next_record(comm).step == step);
        });
    }
}

TEST_CASE("a CUDA call that fails surfaces at the probed call, and the next step works")
{
    run_trainers(1, [](testing::nccl_owner& world, trainer& rank) {
        probed_nccl comm(world);
        for (unsigned skip = 0; skip < 2; ++skip) {
            stand_in::fail_next("cudaLaunchKernel", cudaErrorLaunchOutOfResources, skip);
            check_refused([&] { rank.reduce(comm, 0, rank.streams[0]); }, "cudaLaunchKernel", status::device_failure);
        }
        stand_in::fail_next("cudaEventRecord", cudaErrorInvalidResourceHandle);
        check_refused([&] { rank.reduce(comm, 0, rank.streams[0]); }, "cudaEventRecord", status::device_failure);
        comm.end_step(0, {}, rank.streams[0]);
        (void)next_record(comm);

        stand_in::fail_next("cudaMemcpyAsync", cudaErrorInvalidValue);
        check_refused([&] { comm.end_step(1, {}, rank.streams[0]); }, "cudaMemcpyAsync", status::device_failure);
        rank.reduce(comm, 0, rank.streams[0]);
        comm.end_step(1, {}, rank.streams[0]);
        const step_record record = next_record(comm);
        CHECK(record.step == 1);
        CHECK(record.calls.size() == 1);

        stand_in::fail_next("cudaMalloc", cudaErrorMemoryAllocation, 3);
        check_refused([&] { probed_nccl broken(world); }, "cudaMalloc", status::device_failure);
    });
}

TEST_CASE("buffers outlive the work on them, whatever streams it is on")
{
    run_trainers(2, [](testing::nccl_owner& world, trainer& rank) {
        for (int round = 0; round < 5; ++round) {
            probed_nccl comm(world, {.streams = 2});
            for (std::size_t b = 0; b < 3; ++b) rank.reduce(comm, b, rank.streams[b]);
            if (round % 2 == 0) comm.end_step(0, {}, rank.streams[1]);
        }
    });
}

TEST_CASE("work that a dead peer holds up is given up after the communicator's time-out, its memory is not freed")
{
    stand_in::reset();
    const auto unfinished = [](bool dead_peer, bool ended) {
        const held_clock clock;
        std::atomic<bool> has_given_up{false};
        check_all(run_each_nccl(2, {.timeout_ms = 300},
                 [&](testing::nccl_owner& world) {
                     trainer rank(world);
                     rank.prepare(0);
                     if (!dead_peer || world.rank() == 0) {
                         probed_nccl comm(world);
                         rank.reduce(comm, 0, rank.streams[0]);
                         if (ended) comm.end_step(0, {}, rank.streams[1]);
                         clock.i_am(world.rank());
                     }
                     if (world.rank() == 0) has_given_up = true;
                     // Each memory has a deadline of its own.
                     if (dead_peer && world.rank() == 1) {
                         for (clock.advance_ms(300, {0}); !has_given_up; clock.advance_ms(300))
                             std::this_thread::sleep_for(std::chrono::milliseconds(1));
                     }
                     // The peer is dead for good: what is on the streams ends by an abort only.
                     if (dead_peer) world.abort("its peer died");
                     for (const cuda::stream& stream : rank.streams) stream.synchronize(soon_ms);
                 }));
        return stand_in::live_allocations();
    };
    for (const bool ended : {false, true}) {
        const std::size_t before = unfinished(false, ended);
        CHECK(unfinished(false, ended) == before);
        CHECK(unfinished(true, ended) > before);
    }
}

TEST_CASE("a host that waits for the oldest step hears that the communicator has failed")
{
    stand_in::reset();
    const auto outcomes = run_each_nccl(
        2, {}, [](testing::nccl_owner& world) {
            trainer rank(world);
            rank.prepare(0);
            if (world.rank() == 1) return; // dies
            {
                probed_sums comm{reproducible(nccl::communicator_ref(world)), {.steps_in_flight = 2}};
                for (std::uint64_t step = 0; step < 2; ++step) comm.end_step(step, {}, rank.streams[0]);
                stand_in::nccl::set_async_error(world.native_handle(), ncclRemoteError, "the peer has gone");
                check_refused([&] { comm.end_step(2, {}, rank.streams[0]); }, "the peer has gone", status::peer_failure);
                check_refused(
                    [&] { rank.reduce(comm, 0, rank.streams[0]); }, "the peer has gone", status::peer_failure);
                world.abort("it has failed");
            }
            rank.streams[0].synchronize(soon_ms);
        }, 30);
    check_all(outcomes);
}

TEST_CASE("a call on a borrowed stream makes no context but that of the communicator's device")
{
    stand_in::reset();
    stand_in::set_device_count(8);
    const watchdog guard("a call on a borrowed stream", 60);
    auto world = testing::nccl_owner::create(testing::new_nccl_id(), 0, 1, 3, {});
    trainer rank(world);
    rank.prepare(0);
    probed_sums comm{reproducible(nccl::communicator_ref(world))};
    std::exception_ptr thrown;
    stand_in::forget_contexts();
    std::thread([&] { // its current device is 0
        try {
            const cuda::stream_ref borrowed(rank.streams[0].get()); // it does not know its device
            comm.end_step(0, {}, borrowed);
            rank.reduce(comm, 0, borrowed);
            comm.end_step(1, {}, borrowed);
            comm.synchronize(borrowed, soon_ms);
        } catch (...) {
            thrown = std::current_exception();
        }
    }).join();
    if (thrown) std::rethrow_exception(thrown);
    CHECK(stand_in::has_context(3));
    CHECK_FALSE(stand_in::has_context(0));
}

TEST_CASE("equal handles of different streams are told apart: of two threads, and of a stream that came after")
{
    stand_in::reset();
    const device_vector<float> send(1000), first_result(1000), second_result(1000);
    probed<alone> comm(alone{});
    const auto reduce = [&](const device_vector<float>& result, cuda::stream_ref on) {
        comm.all_reduce(view<const float>(send), view<float>(result), reduction::sum, on);
    };
    const auto check_record = [&] {
        // The work on the first stream stands still: who does not wait for it has ended by now.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        step_record record;
        CHECK_FALSE(comm.poll(record));
    };
    SUBCASE("of two threads")
    {
        std::optional<gate> closed;
        std::thread([&] {
            closed.emplace(cudaStreamPerThread);
            reduce(first_result, cudaStreamPerThread);
        }).join();
        reduce(second_result, cudaStreamPerThread);
        comm.end_step(0, {}, cudaStreamPerThread);
        check_record();
    }
    SUBCASE("of a stream that came after")
    {
        std::optional<cuda::stream> first(std::in_place);
        const cudaStream_t handle = first->get();
        gate closed(*first);
        reduce(first_result, *first);
        first.reset();
        // Whether an allocator gives out the address again is up to it.
        std::vector<cuda::stream> others(1);
        while (others.back().get() != handle && others.size() < 50) others.emplace_back();
        const std::string used = others.back().get() == handle ? "used again" : "not used again";
        MESSAGE("the handle was ", used);
        reduce(second_result, others.back());
        comm.end_step(0, {}, others.back());
        check_record();
    }
    CHECK(next_record(comm).calls.size() == 2);
}

} // namespace collprobe::testing::probed_stand_in_test
