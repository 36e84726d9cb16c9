// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A step's report as a GPU packs it is that of the host, in both modes, and so is what an audit says.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.cuh>
#include <collprobe/fault.hpp>
#include <collprobe/report.hpp>

#include "examples/support/device_ranks.hpp"
#include "support/needs_gpu.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

/// The records of rank 0 as lines. Sums are exact in any order: elements are powers of two, or infinite (a NaN has other bits on a GPU).
template <class Device, class Stream, class Buffer>
std::vector<std::string> lines_of_steps(report_mode mode)
{
    std::vector<std::string> lines;
    local::run_on<Device>(3, {}, [&](local::device_communicator<Device>& world) {
        const Stream stream;
        Buffer send(1 << 12), receive(1 << 12);
        // Of five calls a step the last one is an all-gather.
        const std::vector<fault> faults{{.rank = 2, .call = 9}, {.phase = fault_phase::during, .rank = 1, .call = 19}};
        probed comm(faulty(world, faults), {.mode = mode, .times = false}, audit());
        for (int step = 0; step < 6; ++step) {
            for (int call = 0; call < 4; ++call) {
                float value = static_cast<float>(1 << (world.rank() + call));
                if (step == 2 && call == 1 && world.rank() == 1) value = std::numeric_limits<float>::infinity();
                if (step == 4 && world.rank() == 2) value = static_cast<float>(1 << call); // as rank 0
                const std::uint64_t count = 1000u * static_cast<unsigned>(call) + 7;
                Device::fill(stream, view<float>(send.data(), count), value);
                comm.all_reduce(view<const float>(send.data(), count), view<float>(receive.data(), count), reduction::sum, stream,
                    call_site::named("abcd" + call));
                stream.synchronize();
            }
            Device::fill(stream, view<float>(send.data(), 1001), static_cast<float>(1 << (world.rank() + step)));
            comm.all_gather(view<const float>(send.data(), 1001), view<float>(receive.data(), 3003), stream, call_site::named("gather"));
            stream.synchronize();
            comm.end_step(static_cast<std::uint64_t>(step), {.loss = 0.5 * (world.rank() + 1), .weight = 8}, stream);
            step_record record;
            comm.wait(record);
            if (comm.rank() == 0) lines.push_back(report::json_line("", record));
        }
    });
    return lines;
}

} // namespace

TEST_CASE("a step's report as a GPU packs it is that of the host")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        const auto of_gpu = lines_of_steps<cu::device, cu::stream, cu::buffer<float>>(mode);
        const auto of_host = lines_of_steps<host::device, host::stream, host::buffer<float>>(mode);
        REQUIRE(of_gpu.size() == 6);
        for (std::size_t step = 0; step < of_gpu.size(); ++step) CHECK(of_gpu[step] == of_host[step]);
        const char* const differs = mode == report_mode::gather ? "\"shard_differs\"" : "\"result_differs\"";
        CHECK(of_gpu[1].find(differs) != std::string::npos);
        CHECK(of_gpu[2].find("\"non_finite\"") != std::string::npos);
        CHECK(of_gpu[3].find("\"shard_differs\"") != std::string::npos);
        CHECK(of_gpu[4].find("\"duplicate\"") != std::string::npos);
        CHECK(of_gpu[5].find("\"findings\":[]") != std::string::npos);
    }
}
