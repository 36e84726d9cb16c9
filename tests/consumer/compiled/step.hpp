// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/collprobe.hpp>

/// What a step of three ranks tells, one of which has a NaN. In a namespace without a name, so that each file
/// has its own.
namespace {

template <class T>
std::string tell_of(collprobe::local::communicator& world)
{
    using namespace collprobe;
    const std::uint64_t count = 100;
    std::vector<T> gradient(count);
    std::vector<T> sum(count);
    for (std::uint64_t i = 0; i < count; ++i) gradient[i] = T(static_cast<float>(i % 7 + 1) * 0.125f);
    if (world.rank() == 1) gradient[17] = T(__builtin_nanf(""));
    host::stream stream;
    probed comm{world};
    comm.all_reduce(gradient, view<T>(sum.data(), count), reduction::average, stream);
    comm.end_step(7, {.loss = 0.5}, stream);
    stream.synchronize();
    step_record record;
    std::string text;
    while (comm.poll(record)) text += report::step_table(record);
    return text + std::to_string(static_cast<double>(sum[3]));
}

std::string tell()
{
    std::string text;
    collprobe::local::run(3, [&](collprobe::local::communicator& world) {
        const std::string own = tell_of<float>(world) + tell_of<collprobe::bfloat16>(world);
        if (world.rank() == 0) text = own;
    });
    return text;
}

} // namespace
