// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <collprobe/collprobe.hpp>

/// What a step of three ranks tells, one of which has a NaN. In a namespace without a name, so that each file
/// has its own.
namespace {

std::string tell()
{
    using namespace collprobe;
    std::string text;
    local::run(3, [&](local::communicator& world) {
        std::vector<float> gradient(100, 0.125f), sum(100);
        if (world.rank() == 1) gradient[17] = __builtin_nanf("");
        host::stream stream;
        probed comm{world};
        comm.all_reduce(gradient, view(sum), reduction::average, stream);
        comm.end_step(7, {.loss = 0.5}, stream);
        stream.synchronize();
        step_record record;
        while (comm.poll(record)) {
            if (world.rank() == 0) text += report::step_table(record);
        }
    });
    return text;
}

} // namespace
