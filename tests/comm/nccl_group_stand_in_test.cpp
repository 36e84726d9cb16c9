// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <functional>
#include <latch>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/nccl/communicator.hpp>

#include "support/checks.hpp"
#include "tests/support/fail_allocation.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using nccl::blocking_mode;
using testing::check_all;
using testing::clean_stand_in;
using testing::contains;
using testing::device_values;
using testing::error_of;
using testing::rank_outcome;
using testing::require;
using testing::run_each_nccl;

namespace {

constexpr blocking_mode modes[] = {blocking_mode::blocking, blocking_mode::non_blocking};
constexpr int deadline_s = 20;

bool has(const std::optional<error>& failure, status code, const std::string& part)
{
    return failure && failure->code() == code && contains(failure->what(), part);
}

/// A communicator fails while a group has calls of it.
struct way_to_fail {
    const char* name;
    status code;
    const char* message;
    std::function<void(nccl::communicator&, cuda::stream_ref)> fail;
};
const std::vector<way_to_fail> ways{
    {"abort by the group's thread", status::peer_failure, "aborted: enough",
        [](auto& comm, auto) { comm.abort("enough"); }},
    {"abort by another thread", status::peer_failure, "aborted: from afar",
        [](auto& comm, auto) {
            std::thread([lent = nccl::communicator_ref(comm)] { lent.abort("from afar"); }).join();
        }},
    {"an asynchronous error", status::peer_failure, "socket closed",
        [](auto& comm, auto) {
            stand_in::nccl::set_async_error(comm.native_handle(), ncclRemoteError, "socket closed");
            require(error_of([&] { comm.check(); }).has_value(), "check must see it");
        }},
    {"a time-out", status::timeout, "did not finish within 20 ms",
        [](auto& comm, auto on) {
            testing::gate hung(on);
            require(error_of([&] { comm.synchronize(on, 20); }).has_value(), "a time-out");
        }},
};

} // namespace

TEST_CASE("the stand-in notices who frees a communicator before its group ends")
{
    for (const bool elsewhere : {false, true}) {
        const std::uint64_t before = stand_in::nccl::dead_handle_calls();
        run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl::communicator& owner) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            if (owner.rank() == 1) return;
            const ncclComm_t raw = owner.release();
            ncclGroupStart();
            ncclAllReduce(values.data(), values.data(), 4, ncclFloat32, ncclSum, raw, stream.get());
            if (elsewhere) std::thread([raw] { ncclCommAbort(raw); }).join();
            else ncclCommAbort(raw);
            ncclGroupEnd();
            stream.synchronize();
        }, deadline_s);
        CHECK(stand_in::nccl::dead_handle_calls() == before + 1);
        CHECK(stand_in::nccl::live_communicators() == 0);
    }
    stand_in::reset();
}

TEST_CASE("a communicator that fails within a group is ended by the group's end, which enqueues nothing")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        for (const way_to_fail& way : ways) {
            for (const bool explicitly : {true, false}) {
                CAPTURE(std::string(way.name));
                CAPTURE(explicitly);
                check_all(run_each_nccl(2, {.name = "dp", .mode = mode}, [&](nccl::communicator& comm) {
                    const cuda::stream stream;
                    device_values<float> values(4, 1.0f);
                    device_values<float> others(4, 1.0f);
                    const cuda::stream watched;
                    auto healthy = comm.split(0, comm.rank());
                    {
                        nccl::group together;
                        comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                        {
                            nccl::group inner;
                            healthy->all_reduce(others.in(), others.out(), reduction::sum, stream);
                            way.fail(comm, watched);
                        }
                        require(has(error_of([&] { comm.barrier(stream); }), way.code, way.message),
                            "the failure is known at once");
                        if (explicitly) {
                            const auto thrown = error_of([&] { together.end(); });
                            require(has(thrown, way.code, way.message), "the end throws the failure");
                            require(contains(thrown->what(), "'dp'"), "and names the communicator");
                        }
                    }
                    stream.synchronize();
                    require(values.all(1.0f) && others.all(1.0f), "nothing may be enqueued");
                    require(has(error_of([&] { comm.check(); }), way.code, way.message), "the failure stays");
                    const auto later = error_of([&] {
                        healthy->all_reduce(others.in(), others.out(), reduction::sum, stream);
                        healthy->synchronize(stream);
                    });
                    if (!explicitly) require(has(later, status::invalid_argument, "'dp' in it has failed"), "told");
                    else if (mode == blocking_mode::non_blocking) require(later.has_value(), "NCCL ended it");
                    else require(!later && others.all(2.0f), "the other one is usable");
                }, deadline_s));
            }
        }
    }
}

TEST_CASE("a communicator of which an open group has no calls is ended at once")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        for (const way_to_fail& way : ways) {
            CAPTURE(std::string(way.name));
            std::latch ready(2);
            std::latch failed(2);
            std::latch seen(2);
            check_all(run_each_nccl(2, {.mode = mode}, [&](nccl::communicator& comm) {
                const cuda::stream stream;
                device_values<float> values(4, 1.0f);
                auto other = comm.split(0, comm.rank());
                ready.arrive_and_wait();
                nccl::group together;
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                way.fail(*other, stream);
                failed.arrive_and_wait();
                require(stand_in::nccl::live_communicators() == 2, "the failed ones are gone");
                seen.arrive_and_wait();
                together.end();
                comm.synchronize(stream);
                require(values.all(2.0f), "the group is as good as ever");
            }, deadline_s));
        }
    }
}

TEST_CASE("an owner that ends within a group leaves its calls to the group")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        for (const bool member : {true, false}) {
            check_all(run_each_nccl(2, {.mode = mode}, [&](nccl::communicator& comm) {
                const cuda::stream stream;
                device_values<float> values(4, 1.0f);
                device_values<float> others(4, 1.0f);
                auto other = comm.split(0, comm.rank());
                nccl::group together;
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                if (member) other->all_reduce(others.in(), others.out(), reduction::sum, stream);
                other.reset();
                together.end();
                comm.synchronize(stream);
                require(values.all(2.0f) && others.all(member ? 2.0f : 1.0f), "the group's calls");
            }, deadline_s));
        }
    }
}

TEST_CASE("an exception that passes a group and an owner within it ends both")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const auto outcomes = run_each_nccl(2, {.mode = mode}, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            auto other = comm.split(0, comm.rank());
            const nccl::group together;
            auto owner = std::move(other);
            owner->all_reduce(values.in(), values.out(), reduction::sum, stream);
            throw std::runtime_error("out of memory");
        }, deadline_s);
        for (const rank_outcome& outcome : outcomes) {
            CHECK_THROWS_WITH(std::rethrow_exception(outcome.thrown), "out of memory");
        }
    }
}

TEST_CASE("an owner is not released while a group has calls of it")
{
    const clean_stand_in clean;
    check_all(run_each_nccl(2, {}, [&](nccl::communicator& comm) {
        const cuda::stream stream;
        device_values<float> values(4, 1.0f);
        nccl::group together;
        comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
        require(has(error_of([&] { (void)comm.release(); }), status::invalid_argument, "end the group first"),
            "release must be refused");
        together.end();
        comm.synchronize(stream);
        require(values.all(2.0f), "all_reduce");
        nccl::communicator again = nccl::communicator::adopt(comm.release());
    }, deadline_s));
}

TEST_CASE("a group that fails leaves the current device as it was")
{
    const clean_stand_in clean;
    for (const bool explicitly : {true, false}) {
        stand_in::fail_next("ncclGroupEnd", ncclSystemError);
        stand_in::fail_next("ncclGroupEnd", ncclSystemError);
        check_all(run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            const cuda::device_guard elsewhere(5);
            {
                nccl::group together;
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                if (explicitly) {
                    require(has(error_of([&] { together.end(); }), status::device_failure, "ncclSystemError"), "fails");
                }
            }
            int device = -1;
            require(cudaGetDevice(&device) == cudaSuccess && device == 5, "the current device has changed");
        }, deadline_s));
    }
}

TEST_CASE("the end of a communicator leaves the current device as it was")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        for (const char* const way : {"destroy", "abort", "refused"}) {
            check_all(run_each_nccl(2, {.mode = mode}, [&](nccl::communicator& comm) {
                auto other = comm.split(0, comm.rank());
                const cuda::device_guard elsewhere(5);
                if (way == std::string("abort")) other->abort("enough");
                if (way == std::string("refused")) {
                    const ncclComm_t raw = other->release();
                    require(error_of([&] { (void)nccl::communicator::adopt(raw, {.timeout_ms = 0}); }).has_value(),
                        "adopt must throw");
                }
                other.reset();
                int device = -1;
                require(cudaGetDevice(&device) == cudaSuccess && device == 5, "the current device has changed");
            }, deadline_s));
        }
    }
}

TEST_CASE("whichever allocation fails, an adopted communicator is aborted")
{
    const clean_stand_in clean;
    const cuda::device_guard current(0);
    bool adopted = false;
    long refused = 0;
    while (!adopted && refused < 100) {
        ncclComm_t raw = nullptr;
        const ncclUniqueId id = nccl::unique_id();
        REQUIRE(ncclCommInitRank(&raw, 1, id, 0) == ncclSuccess);
        try {
            // A name that does not fit into a string itself.
            nccl::options settings{.name = "the communicator of the data-parallel ranks"};
            failing_allocation = refused + 1;
            auto comm = nccl::communicator::adopt(raw, std::move(settings));
            failing_allocation = 0;
            adopted = true;
        } catch (const std::bad_alloc&) {
            ++refused;
        }
        CHECK(stand_in::nccl::live_communicators() == 0);
    }
    CHECK(adopted);
    CHECK(refused > 0);
}

TEST_CASE("whichever allocation fails, a split leaks no communicator")
{
    const clean_stand_in clean;
    bool split = false;
    long refused = 0;
    const nccl::options settings{
        .name = "a name that does not fit into a string itself", .mode = blocking_mode::blocking};
    while (!split && refused < 100) {
        check_all(run_each_nccl(1, settings, [&](nccl::communicator& comm) {
            try {
                failing_allocation = refused + 1;
                auto part = comm.split(0, 0);
                split = std::exchange(failing_allocation, 0) != 0;
                if (!split) ++refused; // a failure that was got over
            } catch (const std::bad_alloc&) {
                ++refused;
            }
        }, deadline_s));
        CHECK(stand_in::nccl::live_communicators() == 0);
    }
    CHECK(split);
    CHECK(refused > 0);
}

TEST_CASE("what a failed split has made is aborted with its parent")
{
    const clean_stand_in clean;
    for (const bool aborts : {true, false}) {
        const nccl::options settings{.mode = blocking_mode::blocking,
            .abort_on_failure = aborts ? nccl::abort_policy::if_owned : nccl::abort_policy::never};
        check_all(run_each_nccl(1, settings, [](nccl::communicator& comm) {
            stand_in::fail_next("ncclCommGetAsyncError", ncclSystemError, 1); // when it asks for the result
            require(has(error_of([&] { (void)comm.split(0, 0); }), status::device_failure, "ncclSystemError"),
                "the split must fail");
        }, deadline_s));
        CHECK(stand_in::nccl::live_communicators() == 0);
    }
}

TEST_CASE("whichever allocation fails, the destructor of a group that fails throws nothing")
{
    const clean_stand_in clean;
    long failed = 0;
    for (bool reached = true; reached && failed < 100; ++failed) {
        const auto outcomes = run_each_nccl(1, {.name = "a name that does not fit into a string itself"},
            [&](nccl::communicator& comm) {
                const cuda::stream stream;
                device_values<float> values(4, 1.0f);
                std::optional<nccl::group> together(std::in_place);
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                stand_in::fail_next("ncclGroupEnd", ncclSystemError);
                failing_allocation = failed + 1;
                together.reset();
                reached = std::exchange(failing_allocation, 0) == 0;
                require(!nccl::group::is_open(), "the group has ended");
                stream.synchronize();
            }, deadline_s);
        check_all(outcomes);
    }
    CHECK(failed > 1);
}
