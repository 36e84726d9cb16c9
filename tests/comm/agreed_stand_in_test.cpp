// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <optional>
#include <stdexcept>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "support/held_clock.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::agreed_stand_in_test {

using nccl::blocking_mode;

namespace {

using nccl_agreed = agreed<nccl::communicator_ref>;

template <class Comm>
void sum(Comm& comm, cuda::stream_ref on, const device_values<float>& values, std::uint64_t count = 8)
{
    comm.all_reduce(values.in().part(0, count), values.out().part(0, count), reduction::sum, on);
}

} // namespace

TEST_CASE("a rank of NCCL that does not come is a time-out, and its peers' memory outlives them")
{
    const clean_stand_in clean;
    const held_clock clock;
    std::latch gone(1);
    std::optional<error> late;
    const auto outcomes = run_each_nccl(2, {.timeout_ms = 150, .mode = blocking_mode::blocking}, [&](nccl_owner& owner) {
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
    });
    check_all(outcomes);
    check_error(late, status::timeout,
        {"not all ranks came to call 0 of the communicator within 150 ms (all_reduce of float, count 8, sum)"});
    CHECK(late->culprits().empty());
}

TEST_CASE("calls are refused where the host must not wait, and the next ones agree")
{
    const clean_stand_in clean;
    for (const blocking_mode mode : nccl_modes) {
        std::optional<error> captured, grouped, raw_grouped[2];
        check_all(run_each_nccl(2, {.mode = mode}, [&](nccl_owner& owner) {
            nccl_agreed comm{nccl::communicator_ref(owner)};
            const cuda::stream stream;
            const device_values<float> values(8, 1.0f);
            const bool told = comm.rank() == 1;
            const auto call = [&] { sum(comm, stream, values); };
            std::optional<error> refused[4];
            captured_graph capture(stream);
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
        }));
        check_error(captured, status::unsupported, {"all_reduce", "captured"});
        check_error(grouped, status::unsupported, {"all_reduce", "group"});
        for (const auto& each : raw_grouped) check_error(each, status::unsupported, {"all_reduce", "ncclGroupStart"});
    }
}

} // namespace collprobe::testing::agreed_stand_in_test
