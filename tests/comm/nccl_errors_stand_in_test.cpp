// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>

#include "support/checks.hpp"
#include "support/held_clock.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"

namespace collprobe::testing::nccl_errors_stand_in_test {

using nccl::blocking_mode;

namespace {

std::int64_t ms_since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
}

/// What the ranks of a mismatch call.
using call_t = std::function<void(nccl_owner&, cuda::stream_ref, device_values<float>&)>;

const call_t sum_8 = [](auto& c, auto on, auto& m) {
    c.all_reduce(m.in().part(0, 8), m.out().part(0, 8), reduction::sum, on);
};

} // namespace

TEST_CASE("memory or a stream of another place is refused before anything is enqueued, and can be corrected")
{
    const clean_stand_in clean;
    std::vector<float> pageable(8, 1.0f);
    const std::pair<const char*, call_t> calls[]{
        {"send is host memory that the device cannot read",
            [&](auto& comm, auto on, auto& m) { comm.all_reduce(pageable, m.out().part(0, 8), reduction::sum, on); }},
        {"receive is on device 7, the communicator on device",
            [](auto& comm, auto on, auto& m) {
                const cuda::device_guard elsewhere(7);
                const device_values<float> theirs(8, 0.0f);
                comm.all_reduce(m.in().part(0, 8), theirs.out(), reduction::sum, on);
            }},
        {"stream is on device 7, the communicator on device",
            [](auto& comm, auto, auto& m) {
                const cuda::device_guard elsewhere(7);
                const cuda::stream theirs;
                sum_8(comm, theirs, m);
            }},
    };
    for (const blocking_mode mode : nccl_modes) {
        for (const auto& [message, bad] : calls) {
            const std::string expected = message;
            CAPTURE(expected);
            std::optional<error> refusal;
            check_all(run_each_nccl(3, {.name = "dp", .mode = mode}, [&, &bad = bad](nccl_owner& comm) {
                const cuda::stream stream;
                device_values<float> memory(8, 3.0f);
                if (comm.rank() == 2) {
                    refusal = error_of([&] { bad(comm, stream, memory); });
                    comm.synchronize(stream);
                    require(memory.all(3.0f), "something was written");
                }
                sum_8(comm, stream, memory);
                comm.synchronize(stream);
                require(memory.all(9.0f), "the right call did not work");
            }));
            check_error(refusal, status::invalid_argument, {"all_reduce", message, "rank 2 of 3 of communicator 'dp'"});
            CHECK(refusal->culprits() == std::vector<int>{2});
        }
    }
}

TEST_CASE("memory of the process is taken where the device can read it")
{
    const clean_stand_in clean;
    stand_in::set_reads_pageable(true);
    const auto outcomes = run_each_nccl(2, {}, [](nccl_owner& comm) {
        const cuda::stream stream;
        std::vector<float> pageable(4, 1.0f);
        comm.all_reduce(view<const float>(pageable), view<float>(pageable), reduction::sum, stream);
        comm.synchronize(stream);
        if (pageable[3] != 2.0f) throw std::runtime_error("wrong sum");
    });
    check_all(outcomes);
}

TEST_CASE("streams on which the data would be wrong are refused")
{
    const clean_stand_in clean;
    const auto refusal = [](blocking_mode mode, cudaStream_t on) {
        std::optional<error> result;
        run_each_nccl(1, {}, [&](nccl_owner& owner) {
            nccl::communicator_ref comm(owner.native_handle(), {.mode = mode});
            device_values<float> values(4, 1.0f);
            result = error_of([&] { comm.all_reduce(values.in(), values.out(), reduction::sum, on); });
            cuda::stream_ref(on).synchronize();
        });
        return result;
    };
    check_error(refusal(blocking_mode::non_blocking, cudaStreamPerThread), status::unsupported,
        {"all_reduce", "cudaStreamPerThread", "another thread"});
    check_error(refusal(blocking_mode::unknown, cudaStreamPerThread), status::unsupported,
        {"cudaStreamPerThread", "not known to be blocking"});
    CHECK_FALSE(refusal(blocking_mode::blocking, cudaStreamPerThread));
    for (const cudaStream_t legacy : {cudaStream_t{}, cudaStreamLegacy}) {
        check_error(refusal(blocking_mode::non_blocking, legacy), status::unsupported,
            {"legacy default stream", "non-blocking"});
        CHECK_FALSE(refusal(blocking_mode::blocking, legacy));
        CHECK_FALSE(refusal(blocking_mode::unknown, legacy));
    }
}

TEST_CASE("NCCL_COMM_BLOCKING tells what a borrowed communicator is")
{
    const clean_stand_in clean;
    const auto per_thread_is_refused = [] {
        bool refused = false;
        run_each_nccl(1, {}, [&](nccl_owner& owner) {
            nccl::communicator_ref comm(owner.native_handle());
            refused = error_of([&] { comm.barrier(cudaStreamPerThread); }).has_value();
        });
        return refused;
    };
    CHECK(per_thread_is_refused());
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    CHECK_FALSE(per_thread_is_refused());
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    CHECK(per_thread_is_refused());
    unsetenv("NCCL_COMM_BLOCKING");
}

TEST_CASE("a peer that is late gives a time-out, and the communicator goes on when it has come")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : nccl_modes) {
        const held_clock clock;
        std::latch waited(1);
        std::int64_t took_ms = 0;
        std::optional<error> late;
        const auto outcomes = run_each_nccl(2, {.timeout_ms = 150, .mode = mode}, [&](nccl_owner& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            if (comm.rank() == 1) {
                clock.advance_ms(149, {0});
                clock.await_questions(0, 2); // it looks again, and waits on
                clock.advance_ms(1);
                waited.wait(); // late
            }
            comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
            if (comm.rank() == 0) {
                const auto start = std::chrono::steady_clock::now();
                clock.i_am(0);
                late = error_of([&] { comm.synchronize(stream); });
                took_ms = ms_since(start);
                waited.count_down();
            }
            comm.synchronize(stream, 60'000);
            if (!values.all(2.0f)) throw std::runtime_error("wrong sum");
        });
        check_error(late, status::timeout, {"synchronize", "did not finish within 150 ms", "a peer is late, dead"});
        CHECK(took_ms == 150);
        check_all(outcomes);
    }
}

TEST_CASE("an asynchronous error surfaces at the next call, in check and in a wait")
{
    const clean_stand_in clean;
    const std::vector<std::function<void(nccl_owner&, cuda::stream_ref, device_values<float>&)>> ways{
        [](auto& comm, auto, auto&) { comm.check(); },
        [](auto& comm, auto on, auto&) { comm.barrier(on); },
        [](auto& comm, auto on, auto& values) { comm.all_reduce(values.in(), values.out(), reduction::sum, on); },
        [](auto& comm, auto on, auto&) { comm.synchronize(on); },
    };
    for (const blocking_mode mode : nccl_modes) {
        for (const auto& way : ways) {
            std::optional<error> later;
            const auto outcomes = run_each_nccl(2, {.mode = mode}, [&](nccl_owner& comm) {
                const cuda::stream stream;
                device_values<float> values(4, 1.0f);
                if (comm.rank() == 1) return; // dead
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                stand_in::nccl::set_async_error(comm.native_handle(), ncclRemoteError, "socket closed by peer");
                const auto first = error_of([&] { way(comm, stream, values); });
                later = error_of([&] { comm.check(); });
                comm.abort("the lender ends it");
                stream.synchronize(); // the collective that could not end was ended
                throw first.value();
            });
            check_error(outcomes[0], 0, status::peer_failure, {},
                {"failed asynchronously: ncclRemoteError", "socket closed by peer"});
            check_error(later, status::peer_failure, {"check", "socket closed by peer"});
        }
    }
    // Anything else is the device's, or the system's.
    const auto outcomes = run_each_nccl(1, {}, [](nccl_owner& comm) {
        stand_in::nccl::set_async_error(comm.native_handle(), ncclUnhandledCudaError, "an illegal memory access");
        comm.check();
    });
    check_error(outcomes[0], 0, status::device_failure, {}, {"ncclUnhandledCudaError", "illegal memory access"});
}

TEST_CASE("what NCCL refuses is named; wrong use of a blocking communicator can be corrected, the rest is final")
{
    using enum blocking_mode;
    constexpr std::optional<status> none;
    const struct {
        blocking_mode mode;
        bool is_grouped, is_ended; ///< by `end`, which can throw
        ncclResult_t code;
        std::optional<status> first; ///< of the call or the end of the group
        const char* message;
        std::optional<status> later; ///< of the next call
        const char* later_message;
    } rows[]{
        {blocking, false, false, ncclInvalidUsage, status::invalid_argument, "ncclAllReduce failed: ncclInvalidUsage", none, ""},
        {blocking, false, false, ncclSystemError, status::device_failure, "ncclAllReduce failed: ncclSystemError",
            status::device_failure, "ncclSystemError"},
        {blocking, true, true, ncclInvalidUsage, status::invalid_argument, "ncclGroupEnd failed: ncclInvalidUsage", none, ""},
        {blocking, true, true, ncclSystemError, status::device_failure, "ncclGroupEnd failed: ncclSystemError",
            status::device_failure, "ncclGroupEnd gave ncclSystemError"},
        // Nobody hears of it before the communicator's next call.
        {blocking, true, false, ncclInvalidUsage, none, "", status::invalid_argument, "ncclGroupEnd gave ncclInvalidUsage"},
        // NCCL keeps a non-blocking one failed.
        {non_blocking, false, false, ncclInvalidArgument, status::invalid_argument, "cannot be used any more",
            status::device_failure, "cannot be used any more"},
        {non_blocking, true, true, ncclInvalidUsage, status::invalid_argument, "ncclGroupEnd failed: ncclInvalidUsage",
            status::device_failure, "cannot be used any more"},
    };
    for (const auto& row : rows) {
        const clean_stand_in clean;
        CAPTURE(&row - rows);
        std::optional<error> first, later;
        run_each_nccl(row.mode == blocking ? 1 : 2, {.name = "dp", .mode = row.mode}, [&](nccl_owner& comm) {
            if (comm.rank() == 1) return;
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            const cuda::device_guard elsewhere(5);
            const auto call = [&] { comm.all_reduce(values.in(), values.out(), reduction::sum, stream); };
            if (row.is_grouped) {
                nccl::group together;
                call();
                stand_in::fail_next("ncclGroupEnd", row.code);
                if (row.is_ended) first = error_of([&] { together.end(); });
            } else {
                stand_in::fail_next("ncclAllReduce", row.code);
                first = error_of(call);
            }
            CHECK_FALSE(nccl::group::is_open());
            int device = -1;
            CHECK((cudaGetDevice(&device) == cudaSuccess && device == 5));
            later = error_of(call);
            stream.synchronize();
        });
        CHECK(first.has_value() == row.first.has_value());
        if (row.first) check_error(first, *row.first, {row.message});
        CHECK(later.has_value() == row.later.has_value());
        if (row.later) check_error(later, *row.later, {"all_reduce", row.later_message, "'dp'"});
        CHECK_FALSE(mentions(later, "asynchronously"));
    }
}

TEST_CASE("waiting for a stream that is being captured is refused, and the capture stays valid")
{
    const clean_stand_in clean;
    std::optional<error> refused;
    run_each_nccl(1, {}, [&](nccl_owner& comm) {
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
        sum_8(comm, stream, values);
        refused = error_of([&] { comm.synchronize(stream); });
        // Making another communicator is legal meanwhile.
        nccl::communicator_ref other(comm.native_handle());
        CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
        cudaGraphDestroy(graph);
    });
    check_error(refused, status::invalid_argument, {"synchronize", "being captured"});
}

TEST_CASE("a thread that watches a communicator does not invalidate the capture of another")
{
    const clean_stand_in clean;
    const auto outcomes = run_each_nccl(2, {}, [&](nccl_owner& comm) {
        const cuda::stream captured;
        const cuda::stream watched;
        device_values<float> values(8, 1.0f);
        std::latch capturing(1);
        std::latch done(1);
        stand_in::enqueue(watched.get(), [&] { done.wait(); });
        auto other = comm.split(0, 0);
        std::thread watcher([&] {
            capturing.wait();
            CHECK_FALSE(error_of([&] { other->synchronize(watched); }));
        });
        CHECK(cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
        capturing.count_down();
        std::this_thread::sleep_for(std::chrono::milliseconds(20)); // it polls now
        sum_8(comm, captured, values);
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamEndCapture(captured.get(), &graph) == cudaSuccess);
        done.count_down();
        watcher.join();
        cudaGraphDestroy(graph);
    });
    check_all(outcomes);
}

TEST_CASE("fail ends a wait, from any thread, and says why; then the communicator may be aborted")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : nccl_modes) {
        const auto outcomes = run_each_nccl(2, {.name = "dp", .mode = mode}, [&](nccl_owner& comm) {
            if (comm.rank() == 1) return; // never calls
            const cuda::stream stream;
            device_values<float> values(8, 1.0f);
            sum_8(comm, stream, values);
            const auto watchdog = std::async(std::launch::async, [lent = nccl::communicator_ref(comm)] {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                lent.fail("no progress");
                lent.fail("a second reason is ignored");
            });
            const auto ended = error_of([&] { comm.synchronize(stream); });
            comm.abort("a third one, too");
            stream.synchronize(); // what hung is gone, so that nothing behind it hangs
            throw ended.value();
        });
        check_error(outcomes[0], 0, status::peer_failure, {0}, {"synchronize", "rank 0 gave up: no progress", "'dp'"});
    }
}

TEST_CASE("after fail and an abort every call throws the reason, and NCCL is not called")
{
    const clean_stand_in clean;
    run_each_nccl(1, {}, [](nccl_owner& comm) {
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        nccl::communicator_ref lent = comm;
        comm.abort("enough");
        const std::vector<std::function<void()>> calls{
            [&] { lent.all_reduce(values.in(), values.out(), reduction::sum, stream); },
            [&] { lent.barrier(stream); },
            [&] { lent.check(); },
            [&] { lent.synchronize(stream); },
        };
        for (const auto& call : calls) check_error(error_of(call), status::peer_failure, {"rank 0 gave up: enough"});
        CHECK(values.all(1.0f));
    });
}

TEST_CASE("misuse of a group is refused, and the group can still be ended")
{
    const clean_stand_in clean;
    run_each_nccl(1, {}, [](nccl_owner&) {
        {
            nccl::group outer;
            std::optional<nccl::group> inner;
            inner.emplace();
            check_error(error_of([&] { outer.end(); }), status::invalid_argument,
                {"nccl::group", "a group within it is still open"});
            std::thread([&] {
                check_error(error_of([&] { outer.end(); }), status::invalid_argument, {"another thread opened"});
            }).join();
            inner->end();
            check_error(error_of([&] { inner->end(); }), status::invalid_argument, {"ended before"});
            outer.end();
            check_error(error_of([&] { outer.end(); }), status::invalid_argument, {"ended before"});
        }
        CHECK_FALSE(nccl::group::is_open());
    });
}

TEST_CASE("a communicator that fails within a group takes no further call, and the group makes those that it has")
{
    const clean_stand_in clean;
    const auto has = [](const std::optional<error>& failure, const char* part) {
        return mentions(failure, part) && failure->code() == status::peer_failure;
    };
    for (const blocking_mode mode : nccl_modes) {
        check_all(run_each_nccl(2, {.name = "dp", .mode = mode}, [&](nccl_owner& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            device_values<float> others(4, 1.0f);
            auto healthy = comm.split(0, comm.rank());
            {
                nccl::group together;
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                healthy->all_reduce(others.in(), others.out(), reduction::sum, stream);
                std::thread([lent = nccl::communicator_ref(comm)] { lent.fail("from afar"); }).join();
                require(has(error_of([&] { comm.barrier(stream); }), "gave up: from afar"),
                    "the failure is known at once");
                if (mode == blocking_mode::blocking) together.end();
                else {
                    require(has(error_of([&] { together.end(); }), "gave up: from afar"),
                        "whoever waits for it is told");
                }
            }
            for (ncclResult_t state = ncclInProgress; state == ncclInProgress; std::this_thread::yield())
                ncclCommGetAsyncError(comm.native_handle(), &state);
            healthy->barrier(stream);
            healthy->synchronize(stream);
            require(values.all(2.0f) && others.all(2.0f), "the calls of the group");
            require(has(error_of([&] { comm.check(); }), "'dp'"), "the failure stays");
            healthy->all_reduce(others.in(), others.out(), reduction::sum, stream);
            healthy->synchronize(stream);
            require(others.all(4.0f), "the other one is usable");
        }));
    }
}

TEST_CASE("blocking and non-blocking communicators do not share a group")
{
    const clean_stand_in clean;
    std::optional<error> refused;
    const auto outcomes = run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl_owner& comm) {
        const auto id = [&] {
            static ncclUniqueId shared;
            if (comm.rank() == 0) shared = new_nccl_id();
            const cuda::stream stream;
            comm.barrier(stream);
            comm.synchronize(stream);
            return shared;
        }();
        auto other = nccl_owner::create(
            id, comm.rank(), 2, comm.device_ordinal(), {.name = "other", .mode = blocking_mode::non_blocking});
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        nccl::group together;
        comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
        const auto thrown = error_of([&] { other.barrier(stream); });
        if (comm.rank() == 0) refused = thrown;
        together.end();
        comm.synchronize(stream);
        if (!values.all(2.0f)) throw std::runtime_error("the rest of the group");
    });
    check_all(outcomes);
    check_error(refused, status::unsupported, {"barrier", "blocking and non-blocking", "'other'"});
}

TEST_CASE("a call, or a group, of a non-blocking communicator that is never enqueued times out")
{
    for (const bool grouped : {false, true}) {
        const clean_stand_in clean;
        const held_clock clock;
        std::latch created(2);
        std::jthread time([&] { clock.advance_ms(100, {0, 1}); });
        const auto outcomes = run_each_nccl(
            2, {.timeout_ms = 100, .mode = blocking_mode::non_blocking}, [&](nccl_owner& comm) {
                const cuda::stream stream;
                device_values<float> values(8, 1.0f);
                comm.barrier(stream);
                comm.synchronize(stream);
                created.arrive_and_wait();
                clock.i_am(comm.rank());
                stand_in::nccl::set_launch_delay_ms(-1);
                if (!grouped) return sum_8(comm, stream, values);
                nccl::group together;
                sum_8(comm, stream, values);
                together.end();
            });
        for (int rank = 0; rank < 2; ++rank) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {},
                {"a peer is late or dead", grouped ? "the group is still in progress after 100 ms"
                         : "ncclAllReduce is still in progress after 100 ms"});
        }
    }
}

TEST_CASE("what cannot be a communicator is refused")
{
    const clean_stand_in clean;
    const ncclComm_t none = nullptr;
    check_error(error_of([&] { nccl::communicator_ref{none}; }), status::invalid_argument,
        {"nccl::communicator_ref", "the ncclComm_t is null"});
    std::barrier counting(2); // the other rank frees nothing while this one counts allocations
    run_each_nccl(2, {}, [&](nccl_owner& comm) {
        const auto made = [&](nccl::options settings = {}) {
            return error_of([&] { const nccl::communicator_ref borrowed(comm.native_handle(), settings); });
        };
        check_error(made({.timeout_ms = 0}), status::invalid_argument, {"timeout_ms is 0"});
        const cuda::stream stream;
        comm.barrier(stream);
        comm.synchronize(stream);
        counting.arrive_and_wait();
        if (comm.rank() != 0) return counting.arrive_and_wait();
        const std::size_t live = stand_in::live_allocations();
        for (const char* const call : {"cudaMalloc", "cudaStreamCreateWithFlags", "cudaMemsetAsync"}) {
            stand_in::fail_next(call, cudaErrorECCUncorrectable);
            check_error(made(), status::device_failure, {call});
            CHECK(stand_in::live_allocations() == live);
        }
        counting.arrive_and_wait();
    });
}

TEST_CASE("a communicator that is not initialised in time is a time-out")
{
    const clean_stand_in clean;
    const cuda::device_guard current(0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t raw = nullptr;
    CHECK(ncclCommInitRankConfig(&raw, 2, new_nccl_id(), 0, &config) == ncclInProgress);
    const auto start = std::chrono::steady_clock::now();
    check_error(error_of([&] { nccl::communicator_ref(raw, {.timeout_ms = 100}); }), status::timeout,
        {"its initialisation is still in progress after 100 ms"});
    CHECK(ms_since(start) >= 100);
    CHECK(ncclCommAbort(raw) == ncclSuccess);
}

TEST_CASE("the memory of barriers goes with the last copy, unless work may hang on it")
{
    const clean_stand_in clean;
    for (const bool fails : {false, true}) {
        std::barrier both_counted(2); // the end of a communicator frees memory of its own
        run_each_nccl(2, {}, [&](nccl_owner& comm) {
            const cuda::stream stream;
            const std::uint64_t before = stand_in::calls("cudaFree");
            {
                nccl::communicator_ref first(comm.native_handle());
                const nccl::communicator_ref copy = first;
                first.barrier(stream);
                first.synchronize(stream);
                if (fails) copy.fail("enough");
            }
            if (comm.rank() == 0 && fails) CHECK(stand_in::calls("cudaFree") == before);
            if (!fails) CHECK(stand_in::calls("cudaFree") > before);
            both_counted.arrive_and_wait();
        });
    }
}

#if NCCL_VERSION_CODE >= 22700 // NCCL tells of a group that the program opens by ncclGroupStart itself

TEST_CASE("NCCL is asked at the calls whose number is a power of two, and warns of no more")
{
    const clean_stand_in clean;
    const auto warnings = [] { return stand_in::calls("warning"); };
    check_all(run_each_nccl(1, {}, [&](nccl_owner& world) {
        for (int call = 0; call < 1000; ++call) require(world.enqueues_at_once(), "no group is open");
        require(warnings() == 10, "1, 2, 4 ... 512");
        // One that comes late is seen late, and then at each call until it ends.
        ncclGroupStart();
        ncclGroupStart(); // the second of nested groups, too
        for (int call = 1001; call < 1100; ++call) {
            require(world.enqueues_at_once() == (call < 1024), "from call 1024 on");
        }
        ncclGroupEnd();
        require(!world.enqueues_at_once(), "the outer one is open");
        ncclGroupEnd();
        require(world.enqueues_at_once() && warnings() == 11, "the group has ended");
    }));
}

TEST_CASE("NCCL's warning of the question is not taken for the cause of an error")
{
    const clean_stand_in clean;
    for (const char* const said :
        {"ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER", "socket closed"}) {
        const auto outcomes = run_each_nccl(1, {}, [&](nccl_owner& world) {
            stand_in::nccl::set_async_error(world.native_handle(), ncclRemoteError, said);
            world.check();
        });
        const std::optional<error> failure = outcomes[0].failure();
        REQUIRE(failure);
        CHECK(contains(failure->what(), "socket closed") == (said == std::string("socket closed")));
        CHECK_FALSE(contains(failure->what(), "ncclSimInfo_t"));
    }
}

#endif

} // namespace collprobe::testing::nccl_errors_stand_in_test
