// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Compiled in both forms of the library, as the function TELL.
#include <string>
#include <vector>

#include <collprobe/collprobe.hpp>

#if defined(COLLPROBE_COMPILED) != IS_COMPILED
#error "collprobe::compiled must leave the instances to its library, and collprobe::collprobe have none elsewhere"
#endif

/// What a step of three ranks tells, one of which has a NaN.
std::string TELL();

std::string TELL()
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
