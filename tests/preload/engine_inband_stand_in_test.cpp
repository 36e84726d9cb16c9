// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nccl.h>

#include "tests/preload/engine_process.hpp"

using namespace collprobe;
using namespace collprobe::testing;

std::vector<std::pair<const char*, const char*>> collprobe::testing::engine_variables()
{
    return {{"COLLPROBE_CHANNEL", "inband"}, {"COLLPROBE_RUN", "inband"},
        {"COLLPROBE_SINKS", "jsonl,prometheus"}};
}

namespace {

constexpr int buckets = 4;
constexpr std::size_t sizes[buckets] = {3000, 500, 1200, 64};

engine_process& engine() { return engine_process::instance(); }

/// Waits until the step is judged. Those before step 5 may not be: the period of the calls is not known yet.
void await_step(const std::string& comm, int step)
{
    engine().await_lines({"\"kind\":\"step\"", "\"run\":\"inband\"", "\"comm\":\"" + comm + "\"",
                             "\"step\":" + std::to_string(step) + ","},
        1);
}

/// Steps of four all-reduces. `spoil(rank, step, bucket, data)` is called before each.
template <class Spoil>
void train(const char* name, int ranks, int steps, bool in_groups, const Spoil& spoil)
{
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, name);
        const own_stream streams[2];
        for (int step = 0; step < steps; ++step) {
            if (in_groups) group_start();
            std::vector<std::unique_ptr<random_buffer>> data;
            for (int b = 0; b < buckets; ++b) {
                data.push_back(std::make_unique<random_buffer>(
                    sizes[b], static_cast<unsigned>(1000 * step + 10 * rank + b)));
                spoil(rank, step, b, data.back()->data());
                const cudaStream_t on = streams[b % 2];
                REQUIRE(comm.all_reduce(
                            data.back()->data(), data.back()->data(), sizes[b], ncclFloat32, ncclSum, on)
                    == ncclSuccess);
            }
            if (in_groups) REQUIRE(group_end() == ncclSuccess);
            for (const own_stream& each : streams) each.synchronize();
            if (rank == 0 && step >= 7) await_step(name, step - 2); // the judge drops steps that it cannot keep up with
        }
        comm.destroy();
    });
}

std::vector<std::string> live_lines(const std::string& comm, const std::string& kind)
{
    return engine().lines_with(
        {"\"schema\":1,\"kind\":\"" + kind + "\"", "\"run\":\"inband\"", "\"comm\":\"" + comm + "\""});
}

} // namespace

TEST_CASE("the ranks' steps are judged while the program runs, in groups and not")
{
    for (const bool in_groups : {false, true}) {
        const std::string name = in_groups ? "live groups" : "live";
        train(name.c_str(), 3, 20, in_groups, [](int rank, int step, int bucket, float* data) {
            if (rank == 2 && step >= 12 && bucket == 1) data[33] = std::numeric_limits<float>::quiet_NaN();
        });
        const auto steps = live_lines(name, "step");
        CHECK(steps.size() >= 10);
        std::size_t named = 0;
        for (const std::string& each : steps) {
            CHECK(each.find("\"ranks\":3") != each.npos);
            if (each.find("\"ranks\":[2]") != each.npos && each.find("non_finite") != each.npos) ++named;
            CHECK(each.find("\"ranks\":[0") == each.npos);
        }
        CHECK(named >= 1);
        CHECK(!live_lines(name, "alarm").empty());
    }
}
