// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The checks of an audit over NCCL and on CUDA streams.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/step/probed.hpp>

#include "audit/lone_checks.hpp"
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
        CHECK_NOTHROW(run_nccl(3, [&](testing::nccl_owner& world) {
            testing::conservation_check check(world, {.sketch = {.bins = 256}});
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
            check.after<float>(data, out.data(), stream);
            stream.synchronize(soon_ms);
            require(out[0].checked, "not checked");
            require(out[0].conserved == !(harmed && world.rank() == 1), "wrong verdict");
            require(out[0].conserved || out[0].bin == 10'000 % 256, "wrong bin");
        }));
    }
}

TEST_CASE("the check of an all-gather launches as many kernels whatever the number of ranks is")
{
    std::vector<std::uint64_t> launches;
    for (const int n : {2, 3, 8}) {
        CHECK_NOTHROW(run_nccl(n, [&](testing::nccl_owner& world) {
            const cuda::device_guard here(world.device_ordinal());
            testing::gather_check check(world);
            device_vector<float> shard(count), whole(count * static_cast<std::size_t>(n));
            const cuda::stream stream;
            shard.set(gradient(world.rank(), 1, count), stream);
            check.before<float>(shard, stream);
            world.all_gather(view<const float>(shard), view<float>(whole), stream);
            check.after<float>(whole, stream);
            stream.synchronize(soon_ms);
            require(check.verdict().intact(), "the verdict");
        }));
        launches.push_back(stand_in::calls("cudaLaunchKernel"));
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(launches[i] == 3 * (i == 2 ? 8 : 2 + i)); // shard, whole, comparison
}

TEST_CASE("an audited step that an abort cut off has no verdict, also if an older one had its number")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const int steps_before : {0, 4}) {
            CAPTURE(name(mode));
            CAPTURE(steps_before);
            stand_in::reset();
            const auto outcomes = run_each_nccl(
                2, {}, [&](testing::nccl_owner& world) {
                    const cuda::device_guard here(world.device_ordinal());
                    const cuda::stream stream;
                    probed comm{nccl::communicator_ref(world),
                        {.mode = mode, .statistics = false, .steps_in_flight = 2}, audit()};
                    step_record record;
                    for (int i = 0; i < steps_before; ++i) {
                        comm.end_step(0, stream);
                        stream.synchronize(soon_ms);
                        REQUIRE(comm.poll(record));
                    }
                    if (world.rank() == 1) return; // and never ends the step
                    comm.end_step(0, stream);
                    world.abort("the peer has gone");
                    stream.synchronize(soon_ms);
                    check_refused([&] { comm.poll(record); }, "of step 0 never arrived", status::device_failure);
                }, 30);
            for (const rank_outcome& outcome : outcomes) {
                if (outcome.thrown) std::rethrow_exception(outcome.thrown);
            }
        }
    }
}
