// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

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
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"

using namespace collprobe;
using nccl::abort_policy;
using nccl::blocking_mode;
using testing::check_error;
using testing::clean_stand_in;
using testing::contains;
using testing::device_values;
using testing::error_of;
using testing::held_clock;
using testing::rank_outcome;
using testing::refusal;
using testing::run_each_nccl;

namespace {

constexpr blocking_mode modes[] = {blocking_mode::blocking, blocking_mode::non_blocking};
constexpr int deadline_s = 60;

std::int64_t ms_since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
}

struct bad_call {
    const char* call;
    const char* message;
    std::function<void(nccl::communicator&, cuda::stream_ref, device_values<float>&)> bad;
};

// The values are 64 floats of the communicator's device.
const std::vector<bad_call>& bad_calls()
{
    using comm_t = nccl::communicator;
    using on_t = cuda::stream_ref;
    using mem_t = device_values<float>;
    static const std::vector<bad_call> calls{
        {"all_reduce", "send is null with count 4",
            [](comm_t& c, on_t on, mem_t& m) {
                c.all_reduce(view<const float>(nullptr, 4), m.out().part(0, 4), reduction::sum, on);
            }},
        {"all_reduce", "receive is null with count 4",
            [](comm_t& c, on_t on, mem_t& m) {
                c.all_reduce(m.in().part(0, 4), view<float>(nullptr, 4), reduction::sum, on);
            }},
        {"all_reduce", "receive is not aligned to 4 bytes",
            [](comm_t& c, on_t on, mem_t& m) {
                auto* const odd = reinterpret_cast<float*>(reinterpret_cast<char*>(m.data()) + 42);
                c.all_reduce(m.in().part(0, 4), view<float>(odd, 4), reduction::sum, on);
            }},
        {"all_reduce", "send.count() is 4, receive.count() is 5",
            [](comm_t& c, on_t on, mem_t& m) {
                c.all_reduce(m.in().part(0, 4), m.out().part(10, 5), reduction::sum, on);
            }},
        {"all_reduce", "overlap",
            [](comm_t& c, on_t on, mem_t& m) {
                c.all_reduce(m.in().part(1, 8), m.out().part(0, 8), reduction::sum, on);
            }},
        {"all_reduce", "operation 9 is no reduction",
            [](comm_t& c, on_t on, mem_t& m) { c.all_reduce(m.in(), m.out(), static_cast<reduction>(9), on); }},
        {"all_reduce", "impossible count",
            [](comm_t& c, on_t on, mem_t& m) {
                c.all_reduce(view<const float>(m.data(), ~std::uint64_t{0} / 4),
                    view<float>(m.data(), ~std::uint64_t{0} / 4), reduction::sum, on);
            }},
        {"all_reduce", "send is host memory that the device cannot read",
            [](comm_t& c, on_t on, mem_t& m) {
                static std::vector<float> pageable(4);
                c.all_reduce(view<const float>(pageable), m.out().part(0, 4), reduction::sum, on);
            }},
        {"all_reduce", "receive is on device 7, the communicator on device",
            [](comm_t& c, on_t on, mem_t& m) {
                const cuda::device_guard elsewhere(7);
                const device_values<float> theirs(4, 0.0f);
                c.all_reduce(m.in().part(0, 4), theirs.out(), reduction::sum, on);
            }},
        {"all_reduce", "stream is on device 7, the communicator on device",
            [](comm_t& c, on_t, mem_t& m) {
                const cuda::device_guard elsewhere(7);
                const cuda::stream theirs;
                c.all_reduce(m.in(), m.out(), reduction::sum, theirs);
            }},
        {"reduce_scatter", "size() times as many to send",
            [](comm_t& c, on_t on, mem_t& m) {
                c.reduce_scatter(m.in().part(0, 7), m.out().part(10, 1), reduction::sum, on);
            }},
        {"reduce_scatter", "overlap",
            [](comm_t& c, on_t on, mem_t& m) {
                // The next rank's part of the send buffer.
                const auto next = static_cast<std::uint64_t>((c.rank() + 1) % c.size());
                c.reduce_scatter(m.in().part(0, 4u * static_cast<unsigned>(c.size())), m.out().part(4 * next, 4),
                    reduction::sum, on);
            }},
        {"all_gather", "size() times as many to receive",
            [](comm_t& c, on_t on, mem_t& m) { c.all_gather(m.in().part(0, 4), m.out().part(10, 4), on); }},
        {"all_gather", "overlap",
            [](comm_t& c, on_t on, mem_t& m) {
                const auto next = static_cast<std::uint64_t>((c.rank() + 1) % c.size());
                c.all_gather(
                    m.in().part(4 * next, 4), m.out().part(0, 4u * static_cast<unsigned>(c.size())), on);
            }},
        {"all_to_all", "multiple of size()",
            [](comm_t& c, on_t on, mem_t& m) {
                const auto count = static_cast<std::uint64_t>(c.size() + 1);
                c.all_to_all(m.in().part(0, count), m.out().part(20, count), on);
            }},
        {"all_to_all", "overlap",
            [](comm_t& c, on_t on, mem_t& m) {
                const auto count = static_cast<std::uint64_t>(c.size());
                c.all_to_all(m.in().part(0, count), m.out().part(0, count), on);
            }},
        {"broadcast", "root -1 is not a rank",
            [](comm_t& c, on_t on, mem_t& m) { c.broadcast(m.in(), m.out(), -1, on); }},
        {"broadcast", "is not a rank",
            [](comm_t& c, on_t on, mem_t& m) { c.broadcast(m.in(), m.out(), c.size(), on); }},
        {"broadcast", "send is null",
            [](comm_t& c, on_t on, mem_t& m) { c.broadcast(view<const float>(nullptr, 64), m.out(), c.rank(), on); }},
        {"split", "color -2 is below no_color", [](comm_t& c, on_t, mem_t&) { (void)c.split(-2, 0); }},
    };
    return calls;
}

/// What the ranks of a mismatch call.
using call_t = std::function<void(nccl::communicator&, cuda::stream_ref, device_values<float>&)>;

const call_t sum_8 = [](auto& c, auto on, auto& m) {
    c.all_reduce(m.in().part(0, 8), m.out().part(0, 8), reduction::sum, on);
};

} // namespace

TEST_CASE("a bad argument is refused before anything is enqueued, and can be corrected")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        for (const bad_call& each : bad_calls()) {
            CAPTURE(std::string(each.call));
            CAPTURE(std::string(each.message));
            std::optional<error> refusal;
            const auto outcomes = run_each_nccl(3, {.name = "dp", .mode = mode}, [&](nccl::communicator& comm) {
                const cuda::stream stream;
                device_values<float> memory(64, 3.0f);
                if (comm.rank() == 2) {
                    refusal = error_of([&] { each.bad(comm, stream, memory); });
                    comm.synchronize(stream);
                    if (!memory.all(3.0f)) throw std::runtime_error("something was written");
                }
                comm.all_reduce(memory.in(), memory.out(), reduction::sum, stream);
                comm.synchronize(stream);
                if (!memory.all(9.0f)) throw std::runtime_error("the right call did not work");
            }, deadline_s);
            for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
            check_error(refusal, status::invalid_argument, {each.message, "rank 2 of 3 of communicator 'dp'"});
            CHECK(std::string(refusal->call()) == each.call);
            CHECK(refusal->culprits() == std::vector<int>{2});
        }
    }
}

TEST_CASE("with check_buffers off nobody is asked where a buffer is")
{
    const clean_stand_in clean;
    const std::uint64_t before = stand_in::calls("cudaPointerGetAttributes");
    const auto outcomes = run_each_nccl(2, {.check_buffers = false}, [](nccl::communicator& comm) {
        const cuda::stream stream;
        std::vector<float> pageable(4, 1.0f); // memory of a device that can read all memory
        comm.all_reduce(view<const float>(pageable), view<float>(pageable), reduction::sum, stream);
        comm.synchronize(stream);
        if (pageable[3] != 2.0f) throw std::runtime_error("wrong sum");
    }, deadline_s);
    for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    CHECK(stand_in::calls("cudaPointerGetAttributes") == before);
}

TEST_CASE("streams on which the data would be wrong are refused")
{
    const clean_stand_in clean;
    const auto refusal = [](blocking_mode mode, cudaStream_t on) {
        std::optional<error> result;
        run_each_nccl(1, {}, [&](nccl::communicator& owner) {
            nccl::communicator_ref comm(owner.native_handle(), {.mode = mode});
            device_values<float> values(4, 1.0f);
            result = error_of([&] { comm.all_reduce(values.in(), values.out(), reduction::sum, on); });
            cuda::stream_ref(on).synchronize();
        }, deadline_s);
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
        run_each_nccl(1, {}, [&](nccl::communicator& owner) {
            nccl::communicator_ref comm(owner.native_handle());
            refused = error_of([&] { comm.barrier(cudaStreamPerThread); }).has_value();
        }, deadline_s);
        return refused;
    };
    CHECK(per_thread_is_refused());
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    CHECK_FALSE(per_thread_is_refused());
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    CHECK(per_thread_is_refused());
    unsetenv("NCCL_COMM_BLOCKING");
}

TEST_CASE("a peer that is late gives a time-out, and an owned communicator ends with it")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const held_clock clock;
        std::latch waited(1);
        std::int64_t took_ms = 0;
        std::optional<error> later;
        const auto outcomes = run_each_nccl(2, {.timeout_ms = 150, .mode = mode}, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            if (comm.rank() == 1) {
                clock.advance_ms(149, {0});
                clock.await_questions(0, 2); // it looks again, and waits on
                clock.advance_ms(1);
                waited.wait(); // late
                return;
            }
            comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
            const auto start = std::chrono::steady_clock::now();
            clock.i_am(0);
            const auto late = error_of([&] { comm.synchronize(stream); });
            took_ms = ms_since(start);
            waited.count_down();
            // What hung is gone, so that nothing behind it hangs.
            stream.synchronize();
            later = error_of([&] { comm.barrier(stream); });
            throw late.value();
        }, deadline_s);
        check_error(outcomes[0], 0, status::timeout, {},
            {"synchronize", "did not finish within 150 ms", "a peer is late, dead"});
        CHECK(took_ms == 150);
        check_error(later, status::timeout, {"barrier", "did not finish within 150 ms"});
        CHECK_FALSE(outcomes[1].thrown);
    }
}

TEST_CASE("a time-out leaves a borrowed communicator as it is, unless told otherwise")
{
    const clean_stand_in clean;
    for (const abort_policy policy : {abort_policy::if_owned, abort_policy::never, abort_policy::always}) {
        const held_clock clock;
        std::latch waited(1);
        const auto outcomes = run_each_nccl(2, {}, [&](nccl::communicator& owner) {
            nccl::communicator_ref comm(owner.native_handle(), {.timeout_ms = 100, .abort_on_failure = policy});
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            if (comm.rank() == 1) {
                clock.advance_ms(100, {0});
                waited.wait();
            } else {
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                clock.i_am(0);
                const auto late = error_of([&] { comm.synchronize(stream); });
                waited.count_down();
                if (!late || late->code() != status::timeout) throw std::runtime_error("no time-out");
            }
            if (policy == abort_policy::always) {
                // Whoever lent it must not end it again.
                if (comm.rank() == 0) (void)owner.release();
                return;
            }
            if (comm.rank() == 1) comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
            comm.synchronize(stream, 60'000);
            if (!values.all(2.0f)) throw std::runtime_error("wrong sum");
        }, deadline_s);
        for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    }
}

TEST_CASE("a peer that dies leaves nobody hanging")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const held_clock clock;
        const auto outcomes = run_each_nccl(4, {.timeout_ms = 150, .mode = mode}, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            if (comm.rank() == 3) clock.advance_ms(150, {0, 1, 2});
            if (comm.rank() == 3) throw std::runtime_error("the loss is not a number");
            for (int call = 0; call < 3; ++call) {
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
            }
            clock.i_am(comm.rank());
            comm.synchronize(stream);
        }, deadline_s);
        for (int rank = 0; rank < 3; ++rank) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {}, {"150 ms"});
        }
        CHECK_THROWS_WITH(std::rethrow_exception(outcomes[3].thrown), "the loss is not a number");
    }
}

TEST_CASE("a call of a non-blocking communicator that is never enqueued times out")
{
    const clean_stand_in clean;
    const held_clock clock;
    std::latch created(2);
    std::jthread time([&] { clock.advance_ms(100, {0, 1}); });
    const auto outcomes
        = run_each_nccl(2, {.timeout_ms = 100, .mode = blocking_mode::non_blocking}, [&](nccl::communicator& comm) {
              created.arrive_and_wait();
              stand_in::nccl::set_launch_delay_ms(-1);
              const cuda::stream stream;
              device_values<float> values(4, 1.0f);
              clock.i_am(comm.rank());
              comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
          }, deadline_s);
    for (int rank = 0; rank < 2; ++rank) {
        check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {},
            {"all_reduce", "ncclAllReduce is still in progress after 100 ms", "a peer is late or dead"});
    }
}

TEST_CASE("an asynchronous error surfaces at the next call, in check and in a wait")
{
    const clean_stand_in clean;
    const std::vector<std::function<void(nccl::communicator&, cuda::stream_ref, device_values<float>&)>> ways{
        [](auto& comm, auto, auto&) { comm.check(); },
        [](auto& comm, auto on, auto&) { comm.barrier(on); },
        [](auto& comm, auto on, auto& values) { comm.all_reduce(values.in(), values.out(), reduction::sum, on); },
        [](auto& comm, auto on, auto&) { comm.synchronize(on); },
        [](auto& comm, auto, auto&) { (void)comm.split(0, 0); },
    };
    for (const blocking_mode mode : modes) {
        for (const auto& way : ways) {
            std::optional<error> later;
            const auto outcomes = run_each_nccl(2, {.mode = mode}, [&](nccl::communicator& comm) {
                const cuda::stream stream;
                device_values<float> values(4, 1.0f);
                if (comm.rank() == 1) return; // dead
                comm.all_reduce(values.in(), values.out(), reduction::sum, stream);
                stand_in::nccl::set_async_error(comm.native_handle(), ncclRemoteError, "socket closed by peer");
                const auto first = error_of([&] { way(comm, stream, values); });
                stream.synchronize(); // the collective that could not end was ended
                later = error_of([&] { comm.check(); });
                throw first.value();
            }, deadline_s);
            check_error(outcomes[0], 0, status::peer_failure, {},
                {"failed asynchronously: ncclRemoteError", "socket closed by peer"});
            check_error(later, status::peer_failure, {"check", "socket closed by peer"});
        }
    }
    // Anything else is the device's, or the system's.
    const auto outcomes = run_each_nccl(1, {}, [](nccl::communicator& comm) {
        stand_in::nccl::set_async_error(comm.native_handle(), ncclUnhandledCudaError, "an illegal memory access");
        comm.check();
    }, deadline_s);
    check_error(outcomes[0], 0, status::device_failure, {}, {"ncclUnhandledCudaError", "illegal memory access"});
}

TEST_CASE("what NCCL refuses is named; wrong use of a blocking communicator can be corrected, the rest is final")
{
    const clean_stand_in clean;
    std::optional<error> misuse;
    std::optional<error> broken;
    std::optional<error> later;
    run_each_nccl(1, {.name = "dp", .mode = blocking_mode::blocking}, [&](nccl::communicator& comm) {
        const cuda::stream stream;
        device_values<float> values(4, 1.0f);
        const auto call = [&] { comm.all_reduce(values.in(), values.out(), reduction::sum, stream); };
        stand_in::fail_next("ncclAllReduce", ncclInvalidUsage);
        misuse = error_of(call);
        CHECK_FALSE(error_of(call));
        stand_in::fail_next("ncclAllReduce", ncclSystemError);
        broken = error_of(call);
        later = error_of(call);
        stream.synchronize();
    }, deadline_s);
    check_error(misuse, status::invalid_argument, {"all_reduce", "ncclAllReduce failed: ncclInvalidUsage", "'dp'"});
    CHECK_FALSE(contains(misuse->what(), "cannot be used any more"));
    check_error(broken, status::device_failure, {"ncclAllReduce failed: ncclSystemError"});
    check_error(later, status::device_failure, {"ncclSystemError"});
}

TEST_CASE("a non-blocking communicator that NCCL keeps failed after a refusal fails at once")
{
    for (const bool in_group : {false, true}) {
        const clean_stand_in clean;
        CAPTURE(in_group);
        std::optional<error> misuse;
        std::optional<error> later;
        std::size_t left = 1;
        run_each_nccl(2, {.name = "dp", .mode = blocking_mode::non_blocking}, [&](nccl::communicator& comm) {
            if (comm.rank() == 1) return;
            const cuda::stream stream;
            device_values<float> values(4, 1.0f);
            const auto call = [&] { comm.all_reduce(values.in(), values.out(), reduction::sum, stream); };
            if (in_group) {
                misuse = error_of([&] {
                    nccl::group together;
                    call();
                    stand_in::fail_next("ncclGroupEnd", ncclInvalidUsage);
                    together.end();
                });
            } else {
                stand_in::fail_next("ncclAllReduce", ncclInvalidArgument);
                misuse = error_of(call);
            }
            later = error_of(call);
            left = error_of([&] { (void)comm.release(); }) ? 0 : 1; // it has been ended
            stream.synchronize();
        }, deadline_s);
        CHECK(left == 0);
        if (in_group) check_error(misuse, status::invalid_argument, {"ncclGroupEnd failed: ncclInvalidUsage"});
        else check_error(misuse, status::invalid_argument, {"ncclAllReduce failed", "cannot be used any more"});
        check_error(later, status::device_failure, {"cannot be used any more"});
        CHECK_FALSE(contains(later->what(), "asynchronously"));
    }
}

TEST_CASE("verified calls name who calls something else, and write nothing")
{
    const clean_stand_in clean;
    struct mismatch {
        const char* majority;
        const char* minority;
        call_t good;
        call_t bad;
    };
    const std::vector<mismatch> cases{
        {"all_reduce of float, count 8, sum", "count 7", sum_8,
            [](auto& c, auto on, auto& m) {
                c.all_reduce(m.in().part(0, 7), m.out().part(0, 7), reduction::sum, on);
            }},
        {"all_reduce of float, count 8, sum", "max", sum_8,
            [](auto& c, auto on, auto& m) {
                c.all_reduce(m.in().part(0, 8), m.out().part(0, 8), reduction::max, on);
            }},
        {"all_reduce of float, count 8, sum", "int32", sum_8,
            [](auto& c, auto on, auto& m) {
                auto* const data = reinterpret_cast<std::int32_t*>(m.data());
                c.all_reduce(view<const std::int32_t>(data, 8), view<std::int32_t>(data, 8), reduction::sum, on);
            }},
        {"all_reduce of float, count 8, sum", "barrier", sum_8, [](auto& c, auto on, auto&) { c.barrier(on); }},
        {"all_reduce of float, count 8, sum", "split", sum_8, [](auto& c, auto, auto&) { (void)c.split(0, 0); }},
        {"broadcast of float, count 8, root 0", "root 1",
            [](auto& c, auto on, auto& m) { c.broadcast(m.in().part(0, 8), m.out().part(0, 8), 0, on); },
            [](auto& c, auto on, auto& m) { c.broadcast(m.in().part(0, 8), m.out().part(0, 8), 1, on); }},
        {"barrier", "all_reduce of float, count 0, sum", [](auto& c, auto on, auto&) { c.barrier(on); },
            [](auto& c, auto on, auto& m) {
                c.all_reduce(m.in().part(0, 0), m.out().part(0, 0), reduction::sum, on);
            }},
    };
    for (const blocking_mode mode : modes) {
        for (const int n : {2, 3, 5}) {
            for (const mismatch& each : cases) {
                const int odd_one = n / 2;
                const auto outcomes = run_each_nccl(
                    n, {.timeout_ms = 60'000, .name = "dp", .mode = mode, .verify_calls = true},
                    [&](nccl::communicator& comm) {
                        const cuda::stream stream;
                        device_values<float> values(64, 3.0f);
                        std::optional<error> thrown
                            = error_of([&] { (comm.rank() == odd_one ? each.bad : each.good)(comm, stream, values); });
                        stream.synchronize();
                        if (!values.all(3.0f)) throw std::runtime_error("something was written");
                        const auto later = error_of([&] { comm.barrier(stream); });
                        if (!later || later->code() != status::mismatch) throw std::runtime_error("not final");
                        throw thrown.value();
                    }, deadline_s);
                // With two ranks nobody can say who is right.
                const std::vector<int> culprits = n == 2 ? std::vector<int>{0, 1} : std::vector<int>{odd_one};
                for (int rank = 0; rank < n; ++rank) {
                    check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::mismatch, culprits,
                        {each.majority, "rank " + std::to_string(odd_one) + ": " + each.minority, "'dp'"});
                }
            }
        }
    }
}

TEST_CASE("without verified calls a mismatch hangs until the time-out")
{
    const clean_stand_in clean;
    const held_clock clock;
    std::jthread time([&] { clock.advance_ms(100, {0, 1}); });
    const auto outcomes = run_each_nccl(2, {.timeout_ms = 100}, [&](nccl::communicator& comm) {
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        const auto count = static_cast<std::uint64_t>(8 - comm.rank());
        comm.all_reduce(values.in().part(0, count), values.out().part(0, count), reduction::sum, stream);
        clock.i_am(comm.rank());
        comm.synchronize(stream);
    }, deadline_s);
    for (int rank = 0; rank < 2; ++rank) {
        check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {}, {"made another call"});
    }
}

TEST_CASE("verified calls: a rank that does not come is a time-out, one with a bad argument is named")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const nccl::options settings{.timeout_ms = 150, .mode = mode, .verify_calls = true};
        std::optional<held_clock> clock(std::in_place);
        std::latch created(3);
        std::latch waited(2);
        ncclComm_t handles[3];
        auto outcomes = run_each_nccl(3, settings, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(8, 1.0f);
            handles[comm.rank()] = comm.native_handle();
            const std::uint64_t before = stand_in::calls("ncclAllGather");
            created.arrive_and_wait();
            if (comm.rank() == 2) {
                // First a rank waits for its call to be enqueued, then for its peers, by another deadline.
                while (stand_in::calls("ncclAllGather") < before + 2) std::this_thread::yield();
                for (const int rank : {0, 1}) {
                    for (ncclResult_t state = ncclInProgress; state == ncclInProgress; std::this_thread::yield())
                        ncclCommGetAsyncError(handles[rank], &state);
                    clock->await_questions(rank, 2);
                }
                clock->advance_ms(150);
                waited.wait();
                return;
            }
            clock->i_am(comm.rank());
            const auto late = error_of([&] { sum_8(comm, stream, values); });
            waited.count_down();
            throw late.value();
        }, deadline_s);
        for (int rank = 0; rank < 2; ++rank) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {},
                {"not all ranks came to call 0 of the communicator (all_reduce of float, count 8, sum) within 150 ms"});
        }

        clock.reset();
        nccl::options patient = settings;
        patient.timeout_ms = 60'000;
        outcomes = run_each_nccl(3, patient, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(8, 1.0f);
            if (comm.rank() == 1) comm.broadcast(values.in(), values.out(), 5, stream);
            else sum_8(comm, stream, values);
        }, deadline_s);
        check_error(outcomes[1], 1, status::invalid_argument, {1}, {"root 5 is not a rank"});
        for (const int rank : {0, 2}) {
            check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::peer_failure, {1},
                {"rank 1 gave a bad argument"});
        }
    }
}

TEST_CASE("verified calls are refused where the host must not wait")
{
    const clean_stand_in clean;
    std::optional<error> captured;
    std::optional<error> grouped;
    run_each_nccl(1, {.verify_calls = true}, [&](nccl::communicator& comm) {
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        cudaGraph_t graph = nullptr;
        CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
        captured = error_of([&] { sum_8(comm, stream, values); });
        CHECK(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
        cudaGraphDestroy(graph);
        nccl::group together;
        grouped = error_of([&] { sum_8(comm, stream, values); });
        together.end();
        CHECK_FALSE(error_of([&] { sum_8(comm, stream, values); }));
        stream.synchronize();
    }, deadline_s);
    check_error(captured, status::unsupported, {"all_reduce", "verify_calls", "capture"});
    check_error(grouped, status::unsupported, {"all_reduce", "verify_calls", "group"});
}

TEST_CASE("verified calls notice a group that was opened by ncclGroupStart")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const auto outcomes = run_each_nccl(2, {.mode = mode, .verify_calls = true}, [](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(8, 1.0f);
            const auto verified = [&] {
                sum_8(comm, stream, values);
                comm.synchronize(stream);
            };
            std::optional<error> refused[2];
            for (auto& each : refused) { // the first call, and one that could read an older answer
                ncclGroupStart();
                each = error_of([&] { sum_8(comm, stream, values); });
                ncclResult_t state = ncclGroupEnd();
                while (state == ncclInProgress) ncclCommGetAsyncError(comm.native_handle(), &state);
                comm.synchronize(stream);
                if (!each) throw std::runtime_error("not refused");
                verified();
            }
            if (!values.all(4.0f)) throw std::runtime_error("the calls outside of groups");
            if (std::string(refused[0]->what()) != refused[1]->what()) throw refused[1].value();
            throw refused[0].value();
        }, deadline_s);
        for (int rank = 0; rank < 2; ++rank) {
            const std::optional<error> failure = outcomes[static_cast<std::size_t>(rank)].failure();
            check_error(failure, status::unsupported, {"all_reduce", "verify_calls", "ncclGroupStart"});
        }
    }
}

TEST_CASE("waiting for a stream that is being captured is refused, and the capture stays valid")
{
    const clean_stand_in clean;
    std::optional<error> refused;
    run_each_nccl(1, {}, [&](nccl::communicator& comm) {
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
    }, deadline_s);
    check_error(refused, status::invalid_argument, {"synchronize", "being captured"});
}

TEST_CASE("a thread that watches a communicator does not invalidate the capture of another")
{
    const clean_stand_in clean;
    const auto outcomes = run_each_nccl(2, {}, [&](nccl::communicator& comm) {
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
    }, deadline_s);
    for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
}

TEST_CASE("abort ends what waits, from any thread, and says why")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const auto outcomes = run_each_nccl(2, {.name = "dp", .mode = mode}, [&](nccl::communicator& comm) {
            if (comm.rank() == 1) return; // never calls
            const cuda::stream stream;
            device_values<float> values(8, 1.0f);
            sum_8(comm, stream, values);
            const auto watchdog = std::async(std::launch::async, [lent = nccl::communicator_ref(comm)] {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                lent.abort("no progress");
                lent.abort("a second reason is ignored");
            });
            comm.synchronize(stream);
        }, deadline_s);
        check_error(outcomes[0], 0, status::peer_failure, {0}, {"synchronize", "rank 0 aborted: no progress", "'dp'"});
    }
}

TEST_CASE("abort reaches a call that is blocked inside NCCL")
{
    const clean_stand_in clean;
    std::latch split_failed(1);
    const auto outcomes = run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl::communicator& comm) {
        if (comm.rank() == 1) {
            split_failed.wait();
            return;
        }
        const auto watchdog = std::async(std::launch::async, [lent = nccl::communicator_ref(comm)] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            lent.abort("a peer does not split");
        });
        const auto failed = error_of([&] { (void)comm.split(0, 0); });
        watchdog.wait();
        split_failed.count_down();
        CHECK(failed);
        comm.check();
    }, deadline_s);
    check_error(outcomes[0], 0, status::peer_failure, {0}, {"check", "a peer does not split"});
}

TEST_CASE("after an abort every call throws the reason")
{
    const clean_stand_in clean;
    run_each_nccl(1, {}, [](nccl::communicator& comm) {
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        nccl::communicator_ref lent = comm;
        lent.abort("enough");
        const std::vector<std::function<void()>> calls{
            [&] { comm.all_reduce(values.in(), values.out(), reduction::sum, stream); },
            [&] { comm.reduce_scatter(values.in(), values.out(), reduction::sum, stream); },
            [&] { comm.all_gather(values.in(), values.out(), stream); },
            [&] { comm.all_to_all(values.in(), values.out(), stream); },
            [&] { comm.broadcast(values.in(), values.out(), 0, stream); },
            [&] { comm.barrier(stream); },
            [&] { comm.check(); },
            [&] { (void)comm.split(0, 0); },
            [&] { (void)comm.release(); },
        };
        for (const auto& call : calls) check_error(error_of(call), status::peer_failure, {"rank 0 aborted: enough"});
        CHECK(values.all(1.0f));
    }, deadline_s);
}

TEST_CASE("a reference that outlives its owner says so")
{
    const clean_stand_in clean;
    run_each_nccl(1, {}, [](nccl::communicator& comm) {
        const cuda::stream stream;
        std::optional<nccl::communicator_ref> lent;
        {
            auto part = comm.split(0, 0);
            lent = *part;
        }
        check_error(error_of([&] { lent->barrier(stream); }), status::invalid_argument, {"was destroyed"});
    }, deadline_s);
}

TEST_CASE("an owner that an exception passes aborts: it does not wait for peers")
{
    const clean_stand_in clean;
    const std::uint64_t before = stand_in::calls("ncclCommAbort");
    const std::uint64_t finalized = stand_in::calls("ncclCommFinalize");
    const auto outcomes = run_each_nccl(2, {}, [](nccl::communicator& comm) {
        const cuda::stream stream;
        device_values<float> values(8, 1.0f);
        if (comm.rank() == 0) {
            sum_8(comm, stream, values); // never finished: rank 1 does not come
            throw std::runtime_error("out of memory");
        }
        throw std::runtime_error("me too");
    }, deadline_s);
    CHECK_THROWS_WITH(std::rethrow_exception(outcomes[0].thrown), "out of memory");
    CHECK(stand_in::calls("ncclCommAbort") == before + 2);
    CHECK(stand_in::calls("ncclCommFinalize") == finalized);
}

TEST_CASE("misuse of a group is refused, and the group can still be ended")
{
    const clean_stand_in clean;
    run_each_nccl(1, {}, [](nccl::communicator& comm) {
        {
            nccl::group outer;
            std::optional<nccl::group> inner;
            inner.emplace();
            check_error(error_of([&] { outer.end(); }), status::invalid_argument,
                {"nccl::group", "a group within it is still open"});
            std::thread([&] {
                check_error(error_of([&] { outer.end(); }), status::invalid_argument, {"another thread opened"});
            }).join();
            check_error(error_of([&] { (void)comm.split(0, 0); }), status::invalid_argument,
                {"split", "cannot be part of a group"});
            inner->end();
            check_error(error_of([&] { inner->end(); }), status::invalid_argument, {"ended before"});
            outer.end();
            check_error(error_of([&] { outer.end(); }), status::invalid_argument, {"ended before"});
        }
        CHECK_FALSE(nccl::group::is_open());
    }, deadline_s);
}

TEST_CASE("blocking and non-blocking communicators do not share a group")
{
    const clean_stand_in clean;
    std::optional<error> refused;
    const auto outcomes = run_each_nccl(2, {.mode = blocking_mode::blocking}, [&](nccl::communicator& comm) {
        const auto id = [&] {
            static ncclUniqueId shared;
            if (comm.rank() == 0) shared = nccl::unique_id();
            const cuda::stream stream;
            comm.barrier(stream);
            comm.synchronize(stream);
            return shared;
        }();
        auto other = nccl::communicator::create(
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
    }, deadline_s);
    for (const rank_outcome& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    check_error(refused, status::unsupported, {"barrier", "blocking and non-blocking", "'other'"});
}

TEST_CASE("an error at the end of a group reaches its caller, or the communicator's next call")
{
    const clean_stand_in clean;
    std::optional<error> thrown;
    std::optional<error> later;
    const auto work = [&](bool explicitly, ncclResult_t code) {
        run_each_nccl(1, {}, [&](nccl::communicator& comm) {
            const cuda::stream stream;
            device_values<float> values(8, 1.0f);
            thrown.reset();
            {
                nccl::group together;
                sum_8(comm, stream, values);
                stand_in::fail_next("ncclGroupEnd", code);
                if (explicitly) thrown = error_of([&] { together.end(); });
            }
            CHECK_FALSE(nccl::group::is_open());
            later = error_of([&] { sum_8(comm, stream, values); });
            stream.synchronize();
        }, deadline_s);
    };
    work(true, ncclInvalidUsage);
    check_error(thrown, status::invalid_argument, {"nccl::group", "ncclGroupEnd failed: ncclInvalidUsage"});
    CHECK_FALSE(later);
    work(true, ncclSystemError);
    check_error(thrown, status::device_failure, {"ncclGroupEnd failed: ncclSystemError"});
    check_error(later, status::device_failure, {"all_reduce", "ncclGroupEnd gave ncclSystemError"});
    work(false, ncclInvalidUsage);
    CHECK_FALSE(thrown);
    check_error(later, status::invalid_argument, {"all_reduce", "ncclGroupEnd gave ncclInvalidUsage"});
}

TEST_CASE("a group of a non-blocking communicator that is never enqueued times out")
{
    const clean_stand_in clean;
    const held_clock clock;
    std::latch created(2);
    std::jthread time([&] { clock.advance_ms(100, {0, 1}); });
    const auto outcomes
        = run_each_nccl(2, {.timeout_ms = 100, .mode = blocking_mode::non_blocking}, [&](nccl::communicator& comm) {
              const cuda::stream stream;
              device_values<float> values(8, 1.0f);
              comm.barrier(stream);
              comm.synchronize(stream);
              created.arrive_and_wait();
              clock.i_am(comm.rank());
              stand_in::nccl::set_launch_delay_ms(-1);
              nccl::group together;
              sum_8(comm, stream, values);
              together.end();
          }, deadline_s);
    for (int rank = 0; rank < 2; ++rank) {
        check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {},
            {"the group is still in progress after 100 ms"});
    }
}

TEST_CASE("what cannot be a communicator is refused")
{
    const clean_stand_in clean;
    stand_in::set_device_count(8);
    const cuda::device_guard current(0);
    const ncclComm_t none = nullptr;
    check_error(error_of([&] { nccl::communicator_ref{none}; }), status::invalid_argument,
        {"nccl::communicator", "the ncclComm_t is null"});
    check_error(error_of([&] { (void)nccl::communicator::adopt(none); }), status::invalid_argument, {"null"});
    const auto id = nccl::unique_id();
    check_error(error_of([&] { (void)nccl::communicator::create(id, 2, 2, 0); }), status::invalid_argument,
        {"rank 2 of 2 ranks"});
    check_error(error_of([&] { (void)nccl::communicator::create(id, -1, 2, 0); }), status::invalid_argument,
        {"rank -1 of 2 ranks"});
    check_error(error_of([&] { (void)nccl::communicator::create(id, 0, 1, 99); }), status::device_failure,
        {"cudaSetDevice"});
    check_error(error_of([&] { (void)nccl::communicator::create(id, 0, 1, 0, {.timeout_ms = 0}); }),
        status::invalid_argument, {"timeout_ms is 0"});
    {
        const nccl::group open;
        check_error(error_of([&] { (void)nccl::communicator::create(nccl::unique_id(), 0, 1, 0); }),
            status::unsupported, {"end the group first"});
    }
    stand_in::fail_next("ncclCommInitRankConfig", ncclSystemError);
    check_error(error_of([&] { (void)nccl::communicator::create(nccl::unique_id(), 0, 1, 0); }),
        status::device_failure, {"ncclCommInitRankConfig failed: ncclSystemError"});
    stand_in::fail_next("ncclGetUniqueId", ncclSystemError);
    check_error(error_of([&] { (void)nccl::unique_id(); }), status::device_failure, {"ncclGetUniqueId failed"});
}

TEST_CASE("a peer that does not come to the start is a time-out of a non-blocking communicator")
{
    const clean_stand_in clean;
    stand_in::set_device_count(8);
    const testing::watchdog guard("create", deadline_s);
    for (const blocking_mode mode : {blocking_mode::non_blocking, blocking_mode::unknown}) {
        const auto start = std::chrono::steady_clock::now();
        const auto late = error_of([mode] {
            (void)nccl::communicator::create(nccl::unique_id(), 0, 2, 0, {.timeout_ms = 100, .mode = mode});
        });
        check_error(late, status::timeout, {"its initialisation is still in progress after 100 ms"});
        CHECK(ms_since(start) >= 100);
    }
}

TEST_CASE("an owner is created blocking where it is told so, or has no deadline to keep")
{
    const clean_stand_in clean;
    const auto may_use_the_legacy_stream = [](const nccl::options& settings) {
        bool may = false;
        run_each_nccl(1, settings, [&](nccl::communicator& comm) {
            may = !error_of([&] { comm.barrier(cudaStreamLegacy); });
        }, deadline_s);
        return may;
    };
    CHECK(may_use_the_legacy_stream({.mode = blocking_mode::blocking}));
    CHECK(may_use_the_legacy_stream({.timeout_ms = -1}));
    CHECK_FALSE(may_use_the_legacy_stream({.timeout_ms = -1, .mode = blocking_mode::non_blocking}));
    CHECK_FALSE(may_use_the_legacy_stream({}));
}

TEST_CASE("split times out where a peer does not come")
{
    const clean_stand_in clean;
    const held_clock clock;
    std::latch failed(2);
    const auto outcomes
        = run_each_nccl(3, {.timeout_ms = 100, .mode = blocking_mode::non_blocking}, [&](nccl::communicator& comm) {
              clock.i_am(comm.rank());
              if (comm.rank() == 1) {
                  clock.advance_ms(100, {0, 2});
                  failed.wait();
                  return;
              }
              const auto late = error_of([&] { (void)comm.split(0, 0); });
              failed.count_down();
              throw late.value();
          }, deadline_s);
    for (const int rank : {0, 2}) {
        check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::timeout, {},
            {"split", "ncclCommSplit is still in progress after 100 ms"});
    }
}
