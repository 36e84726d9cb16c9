// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/checks.hpp"
#include "support/held_clock.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using nccl::blocking_mode;
using testing::check_error;
using testing::clean_stand_in;
using testing::device_values;
using testing::error_of;
using testing::rank_outcome;
using testing::run_each_nccl;

namespace {

constexpr blocking_mode modes[] = {blocking_mode::blocking, blocking_mode::non_blocking};
constexpr int deadline_s = 60;

using nccl_agreed = agreed<nccl::communicator_ref>;

template <class Comm>
void sum(Comm& comm, cuda::stream_ref on, const device_values<float>& values, std::uint64_t count = 8)
{
    comm.all_reduce(values.in().part(0, count), values.out().part(0, count), reduction::sum, on);
}

struct agreed_provider {
    testing::nccl_provider base;
    int size() const { return base.size(); }
    template <class Fn>
    void run(Fn fn) const
    {
        base.run([&](testing::nccl_owner& owner) {
            nccl_agreed comm{nccl::communicator_ref(owner)};
            fn(comm);
        });
    }
};

} // namespace

TEST_CASE("an agreed NCCL communicator conforms")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        const agreed_provider provider{{3, {.mode = mode}}};
        CHECK_NOTHROW(conformance::check_type<std::int32_t>(provider, 331));
        CHECK_NOTHROW(conformance::check_calls(provider, 20));
    }
}

TEST_CASE("NCCL's ranks are told who calls something else, and nothing is written")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        for (const int n : {2, 3, 5}) {
            const int odd_one = n / 2;
            const auto outcomes = run_each_nccl(n, {.timeout_ms = 60'000, .name = "dp", .mode = mode},
                [&](testing::nccl_owner& owner) {
                    nccl_agreed comm{nccl::communicator_ref(owner)};
                    const cuda::stream stream;
                    const device_values<float> values(64, 3.0f);
                    const auto thrown = error_of([&] { sum(comm, stream, values, comm.rank() == odd_one ? 7 : 8); });
                    stream.synchronize();
                    if (!values.all(3.0f)) throw std::runtime_error("something was written");
                    const auto later = error_of([&] { comm.barrier(stream); });
                    if (!later || later->code() != status::mismatch) throw std::runtime_error("not final");
                    // Not of what it wraps.
                    owner.barrier(stream);
                    owner.synchronize(stream);
                    throw thrown.value();
                }, deadline_s);
            const std::vector<int> culprits = n == 2 ? std::vector<int>{0, 1} : std::vector<int>{odd_one};
            for (int rank = 0; rank < n; ++rank) {
                check_error(outcomes[static_cast<std::size_t>(rank)], rank, status::mismatch, culprits,
                    {"the ranks disagree in call 0 of the communicator", "all_reduce of float, count 8, sum",
                        "rank " + std::to_string(odd_one) + ": count 7", "'dp'"});
            }
        }
    }
}

TEST_CASE("a rank of NCCL that does not come is a time-out, and its peers' memory outlives them")
{
    const clean_stand_in clean;
    const testing::held_clock clock;
    std::latch gone(1);
    std::optional<error> late;
    const auto outcomes = run_each_nccl(2, {.timeout_ms = 150, .mode = blocking_mode::blocking}, [&](testing::nccl_owner& owner) {
        const cuda::stream stream;
        const device_values<float> values(8, 1.0f);
        nccl::options settings{.timeout_ms = owner.rank() == 0 ? 150 : 60'000, .mode = blocking_mode::blocking};
        std::optional<nccl_agreed> comm(std::in_place, nccl::communicator_ref(owner.native_handle(), settings));
        owner.barrier(stream);
        owner.synchronize(stream, 60'000);
        if (owner.rank() == 0) {
            clock.i_am(0);
            late = error_of([&] { sum(*comm, stream, values); });
            comm.reset();
            gone.count_down();
            return;
        }
        clock.advance_ms(150, {0});
        gone.wait();
        // Comes to the comparison, which writes on both ranks. Then it waits for a call that rank 0 never makes.
        sum(*comm, stream, values);
        owner.abort("its peer is gone");
        stream.synchronize();
    }, deadline_s);
    testing::check_all(outcomes);
    check_error(late, status::timeout,
        {"not all ranks came to call 0 of the communicator within 150 ms (all_reduce of float, count 8, sum)"});
    CHECK(late->culprits().empty());
}

TEST_CASE("calls are refused where the host must not wait, and the next ones agree")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : modes) {
        std::optional<error> captured, grouped, raw_grouped[2];
        testing::check_all(run_each_nccl(2, {.mode = mode}, [&](testing::nccl_owner& owner) {
            nccl_agreed comm{nccl::communicator_ref(owner)};
            const cuda::stream stream;
            const device_values<float> values(8, 1.0f);
            const bool told = comm.rank() == 1;
            const auto call = [&] { sum(comm, stream, values); };
            std::optional<error> refused[4];
            testing::captured_graph capture(stream);
            refused[0] = error_of(call);
            CHECK(capture.end() == cudaSuccess);
            nccl::group together;
            refused[1] = error_of(call);
            together.end();
            for (const int again : {2, 3}) { // the first call, and one that could read an older answer
                ncclGroupStart();
                refused[again] = error_of(call);
                ncclResult_t state = ncclGroupEnd();
                while (state == ncclInProgress) ncclCommGetAsyncError(owner.native_handle(), &state);
                call();
                comm.synchronize(stream);
            }
            if (!values.all(4.0f)) throw std::runtime_error("the calls outside");
            if (!told) return;
            captured = refused[0];
            grouped = refused[1];
            raw_grouped[0] = refused[2];
            raw_grouped[1] = refused[3];
        }, deadline_s));
        check_error(captured, status::unsupported, {"all_reduce", "captured"});
        check_error(grouped, status::unsupported, {"all_reduce", "group"});
        for (const auto& each : raw_grouped) check_error(each, status::unsupported, {"all_reduce", "ncclGroupStart"});
    }
}

TEST_CASE("around a reproducible sum over NCCL the caller's counts are compared")
{
    const clean_stand_in clean;
    using exact = reproducible<nccl::communicator_ref, contract<reproducibility::correctly_rounded>>;
    const auto run = [](bool compared) {
        return run_each_nccl(3, {.timeout_ms = 60'000}, [&](testing::nccl_owner& owner) {
            const device_values<float> send(64, 1.0f), receive(64, 0.0f);
            const cuda::stream stream;
            const auto work = [&](auto comm) {
                const std::uint64_t count = comm.rank() == 1 ? 11 : 10; // padded to pieces of the same size
                comm.all_reduce(send.in().part(0, count), receive.out().part(0, count), reduction::sum, stream);
                owner.synchronize(stream);
            };
            exact sums(owner, {}, {.algorithm = reduction_algorithm::exchange});
            if (compared) work(agreed(std::move(sums)));
            else work(std::move(sums));
        }, deadline_s);
    };
    testing::check_all(run(false));
    for (const rank_outcome& outcome : run(true)) check_error(outcome, status::mismatch, {1}, {"rank 1: count 11"});
}
