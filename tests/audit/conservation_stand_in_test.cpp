// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The check of conservation over NCCL and on CUDA streams: the kernels' schedule, groups, captures.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <collprobe/audit/audited.hpp>
#include <collprobe/audit/detail/conservation_check.hpp>

#include "step/nccl_steps.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

constexpr std::size_t count = 20'003;

} // namespace

TEST_CASE("over NCCL a changed element is seen with its bin, in place, on a device that is not the current one")
{
    for (const bool harmed : {false, true}) {
        CHECK_NOTHROW(run_nccl(3, [&](nccl::communicator& world) {
            detail::conservation_check check(world, {.sketch = {.bins = 256}});
            const cuda::device_guard here(world.device_ordinal());
            device_vector<float> data(count);
            cuda::pinned_buffer<detail::conservation_result> out(1);
            const cuda::stream stream;
            data.set(gradient(world.rank(), 1, count), stream);
            const cuda::device_guard elsewhere((world.device_ordinal() + 1) % 8);
            check.before<float>(data, stream);
            world.all_reduce(view<const float>(data), view<float>(data), reduction::sum, stream);
            stream.synchronize(soon_ms);
            if (harmed && world.rank() == 1) data.data()[10'000] += 1;
            check.after<float>(data, reduction::sum, out.data(), stream);
            stream.synchronize(soon_ms);
            require(out[0].checked, "not checked");
            require(out[0].conserved == !(harmed && world.rank() == 1), "wrong verdict");
            require(out[0].conserved || out[0].bin == 10'000 % 256, "wrong bin");
        }));
    }
}

TEST_CASE("inside a group a check is refused")
{
    CHECK_NOTHROW(run_nccl(2, [](nccl::communicator& world) {
        const cuda::device_guard here(world.device_ordinal());
        detail::conservation_check check(world);
        device_vector<float> data(count);
        const cuda::stream stream;
        nccl::group together;
        bool refused = false;
        try {
            check.before<float>(data, stream);
        } catch (const error& failure) {
            refused = failure.code() == status::unsupported;
        }
        require(refused, "a check in a group was accepted");
        together.end();
    }));
}

TEST_CASE("a captured check judges the data of each replay")
{
    CHECK_NOTHROW(run_nccl(2, [](nccl::communicator& world) {
        const cuda::device_guard here(world.device_ordinal());
        detail::conservation_check check(world, {.sketch = {.bins = 64}});
        device_vector<float> send(count), receive(count), harm(1);
        cuda::pinned_buffer<detail::conservation_result> out(1);
        const cuda::stream stream;
        captured_graph graph(stream, cudaStreamCaptureModeThreadLocal);
        check.before<float>(send, stream);
        world.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
        cuda::device::copy(stream, view<const float>(harm), view<float>(receive.data() + 77, 1));
        check.after<float>(receive, reduction::sum, out.data(), stream);
        cuda::check(graph.end(), "end");
        for (const std::uint64_t step : {1u, 2u, 3u}) {
            float sum = 0;
            for (int rank = 0; rank < 2; ++rank) sum += gradient(rank, step, count)[77];
            send.set(gradient(world.rank(), step, count), stream);
            harm.set({step == 2 ? sum + 1 : sum}, stream);
            graph.launch(stream);
            stream.synchronize(soon_ms);
            require(out[0].checked && out[0].conserved == (step != 2), "wrong verdict");
            require(step != 2 || out[0].bin == 77 % 64, "wrong bin");
        }
    }));
}

TEST_CASE("an audited step that an abort cut off has no verdict, also if an older one had its number")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const int steps_before : {0, 4}) {
            CAPTURE(name(mode));
            CAPTURE(steps_before);
            stand_in::reset();
            const auto outcomes = run_each_nccl(
                2, {.abort_on_failure = nccl::abort_policy::never}, [&](nccl::communicator& world) {
                    const cuda::device_guard here(world.device_ordinal());
                    const cuda::stream stream;
                    audited<nccl::communicator_ref> comm(world, {.mode = mode, .steps_in_flight = 2});
                    step_audit audit;
                    for (int i = 0; i < steps_before; ++i) {
                        comm.end_step(0, stream);
                        stream.synchronize(soon_ms);
                        REQUIRE(comm.poll(audit));
                    }
                    if (world.rank() == 1) return; // and never ends the step
                    comm.end_step(0, stream);
                    world.abort("the peer has gone");
                    stream.synchronize(soon_ms);
                    check_refused([&] { comm.poll(audit); }, "step 0 never arrived", status::device_failure);
                }, 30);
            for (const rank_outcome& outcome : outcomes) {
                if (outcome.thrown) std::rethrow_exception(outcome.thrown);
            }
        }
    }
}
