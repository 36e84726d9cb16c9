// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Ranks on CUDA devices that are none: the calls of CUDA are made, the kernels are loops of the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <latch>
#include <optional>
#include <string>
#include <vector>

#include <collprobe/device/cuda/device.hpp>

#include "conformance/communicator_conformance.hpp"
#include "examples/support/device_ranks.hpp"
#include "support/run_ranks.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::local_device_stand_in_test {
namespace {

using provider = testing::device_provider<cuda::device>;
using comm_t = local::device_communicator<cuda::device>;
using group_t = local::device_group<cuda::device>;

/// A rank's device memory, filled in its stream.
struct rank_buffers {
    cuda::buffer<float> send{64};
    cuda::buffer<float> receive{64};
    explicit rank_buffers(cuda::stream_ref on)
    {
        cuda::device::fill(on, view<float>(send), 3.0f);
        cuda::device::fill(on, view<float>(receive), 7.0f);
    }
    view<const float> in() const { return view<const float>(view<float>(send)); }
    view<float> out() const { return view<float>(receive); }
    bool untouched(cuda::stream_ref on) const
    {
        cuda::pinned_buffer<float> now(64);
        cuda::device::copy(on, view<const float>(out()), view<float>(now));
        on.synchronize();
        for (const float x : now) {
            if (x != 7.0f) return false;
        }
        return true;
    }
};

} // namespace

TEST_CASE("ranks share the device of the thread that starts them, and ranks on two devices are refused")
{
    // Other tests of the program may have asked for more.
    struct two_devices {
        int before = 0;
        two_devices()
        {
            cuda::check(cudaGetDeviceCount(&before), "cudaGetDeviceCount");
            stand_in::set_device_count(2);
        }
        ~two_devices() { stand_in::set_device_count(before); }
    } const in_this_test;
    const cuda::device_guard second(1);
    CHECK_NOTHROW(provider{3}.run([](comm_t& comm) {
        int current = -1;
        cuda::check(cudaGetDevice(&current), "cudaGetDevice");
        conformance::require(current == 1, "wrong device");
        const cuda::stream stream;
        rank_buffers m(stream);
        comm.all_reduce(m.in(), m.out(), reduction::sum, stream);
        // A part stays where its ranks are, whatever is current.
        auto part = comm.split(0, -comm.rank());
        const cuda::device_guard elsewhere(0);
        part->all_reduce(m.in(), m.out(), reduction::max, stream);
        stream.synchronize();
        const auto inside = part->device_scope();
        cuda::check(cudaGetDevice(&current), "cudaGetDevice");
        conformance::require(current == 1, "device_scope enters the wrong device");
    }));

    const group_t group(2);
    const auto outcomes = run_each(local::group(2), [&](local::communicator& place) {
        const cuda::device_guard own(place.rank());
        comm_t comm = group.communicator(place.rank());
        const cuda::stream stream;
        rank_buffers m(stream);
        const auto failure
            = testing::error_of([&] { comm.all_reduce(m.in(), m.out(), reduction::sum, stream); });
        conformance::require(m.untouched(stream), "it was done");
        if (failure) throw *failure;
    });
    for (const auto& outcome : outcomes) {
        const auto failure = outcome.failure();
        REQUIRE(failure);
        CHECK(contains(failure->what(), "ranks share one device here"));
    }
}

TEST_CASE("a capturing stream is refused as unsupported, and its capture stays valid")
{
    std::optional<error> refused;
    const auto outcomes = run_each(group_t(3), [&](comm_t& comm) {
        const cuda::stream stream;
        rank_buffers m(stream);
        stream.synchronize();
        const auto call = [&] { comm.all_reduce(m.in(), m.out(), reduction::sum, stream); };
        if (comm.rank() == 1) {
            testing::captured_graph capture(stream, cudaStreamCaptureModeRelaxed);
            refused = testing::error_of(call);
            conformance::require(capture.end() == cudaSuccess, "the capture is broken");
            conformance::require(m.untouched(stream), "written");
        }
        call();
        stream.synchronize();
    }, 20);
    for (const auto& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    REQUIRE(refused);
    CHECK(refused->code() == status::unsupported);
    CHECK(refused->culprits() == std::vector<int>{1});
    CHECK(contains(refused->what(), "is being captured"));
}

TEST_CASE("a stream of another device is refused")
{
    std::optional<error> refused;
    const auto outcomes = run_each(group_t(2), [&](comm_t& comm) { // both handles are made with device 0 current
        const cuda::stream stream;
        rank_buffers m(stream);
        if (comm.rank() == 1) {
            const cuda::device_guard there(1);
            const cuda::stream other;
            refused = testing::error_of([&] { comm.all_reduce(m.in(), m.out(), reduction::sum, other); });
        }
        comm.all_reduce(m.in(), m.out(), reduction::sum, stream);
        stream.synchronize();
    }, 20);
    for (const auto& outcome : outcomes) CHECK_FALSE(outcome.thrown);
    REQUIRE(refused);
    CHECK(refused->code() == status::invalid_argument);
    CHECK(contains(refused->what(), "the stream is of device 1, the rank is on device 0"));
}

TEST_CASE("a call of CUDA that fails is the failure of its rank and leaves nobody waiting")
{
    const char* const functions[] = {"cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent",
        "cudaStreamGetDevice", "cudaStreamIsCapturing"};
    for (const std::string function : functions) {
        // At different moments of the call, on whichever rank comes to it.
        for (unsigned skip = 0; skip < 4; ++skip) {
            stand_in::reset();
            CAPTURE(function);
            CAPTURE(skip);
            std::latch ready(3);
            std::latch scripted(1);
            std::latch finished(3);
            const auto outcomes = run_each(group_t(3), [&](comm_t& comm) {
                const cuda::stream owned;
                const cuda::stream_ref stream(owned.get()); // a trainer's own: its device must be asked for
                rank_buffers m(stream);
                comm.all_reduce(m.in(), m.out(), reduction::sum, stream);
                stream.synchronize();
                if (comm.rank() == 0) {
                    ready.arrive_and_wait();
                    stand_in::fail_next(function.c_str(), cudaErrorLaunchFailure, skip);
                    scripted.count_down();
                } else {
                    ready.count_down();
                    scripted.wait();
                }
                std::optional<error> failure;
                for (int call = 0; call < 8 && !failure; ++call) {
                    failure = testing::error_of([&] { comm.all_reduce(m.in(), m.out(), reduction::sum, stream); });
                }
                stand_in::reset();
                stream.synchronize();
                finished.arrive_and_wait(); // a rank that could not wait for its peers must not free what they read
                if (failure) throw *failure;
            }, 30);
            int failed = 0;
            int refused = 0;
            std::vector<int> culprit; // as its peers say
            for (const auto& outcome : outcomes) {
                const auto failure = outcome.failure();
                if (!failure) continue;
                ++failed;
                refused += failure->code() == status::device_failure ? 1 : 0;
                if (failure->code() != status::device_failure) {
                    CHECK(failure->code() == status::peer_failure);
                    CHECK((culprit.empty() || culprit == failure->culprits()));
                    culprit = failure->culprits();
                }
            }
            CHECK(failed == 3);
            CHECK(refused == 1);
            REQUIRE(culprit.size() == 1);
            CHECK(outcomes[static_cast<std::size_t>(culprit[0])].failure()->code() == status::device_failure);
        }
    }
    stand_in::reset();
}

} // namespace collprobe::testing::local_device_stand_in_test
