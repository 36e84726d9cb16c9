// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// An all-reduce by 4-bit codes, two nodes of four ranks, and what it costs: the error against the gradient's own noise.
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/quant.hpp>

#include "report_files.hpp"

using namespace collprobe;

namespace {

/// A rank's own random number in -1 to 1.
float noise(unsigned rank, unsigned index)
{
    unsigned mixed = index * 8 + rank;
    for (const unsigned factor : {0x7feb352du, 0x846ca68bu}) mixed = (mixed ^ mixed >> 15) * factor;
    return float(mixed >> 8) / float(1 << 23) - 1;
}

} // namespace

int main(int argc, char** argv)
{
    run_reports reports(argc, argv); // --html PATH, --jsonl PATH, --trace PATH, --prometheus PATH
    reports.begin("quantised", 8);
    local::run(8, [&](local::communicator& world) {
        node_groups nodes(world, 4);
        const quantisation within{.format = code_format::int8}, across{.format = code_format::int4};
        quantised codes(world, nodes, within, across, {.least_bytes = 4096});
        probed comm{std::move(codes), {}, quantisation_probe()}; // wrappers stack

        const auto rank = unsigned(world.rank());
        std::vector<float> embedding(1 << 16), weights(1 << 16), biases(64);
        for (unsigned i = 0; i < embedding.size(); ++i) {
            weights[i] = noise(rank, i);
            embedding[i] = std::pow(weights[i], 21.0f); // a few large ones among many that are nearly 0
        }
        host::stream stream;
        const auto average = [&](std::vector<float>& gradient, const char* name) {
            comm.all_reduce(gradient, view(gradient), reduction::average, stream, call_site::named(name));
        };
        average(embedding, "embedding");
        average(weights, "weights");
        average(biases, "biases"); // small: goes as it is, and the table says so
        comm.end_step(0, stream);
        stream.synchronize();
        for (step_record record; comm.poll(record);) {
            if (world.rank() != 0) continue;
            std::printf("%s", report::step_table(record).c_str());
            reports.put(record);
        }
    });
    reports.end();
}
