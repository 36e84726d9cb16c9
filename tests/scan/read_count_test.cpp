// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// How often a buffer is read from memory, counted by page faults. Of kernels, cuda.kernel_traffic counts it.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/sketched_read.hpp>

#include "support/counted_memory.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::read_count_test {
namespace {

template <floating_element T>
struct reads {
    static constexpr std::size_t count = (std::size_t{8} << 20) / sizeof(T);
    testing::counted_memory<T> memory{count};
    view<const T> data{memory.data(), count};
    std::vector<double> sums = std::vector<double>(std::size_t{1} << 21), scratch = sums;
    host::stream stream;
    host::device::workspace workspace;

    reads()
    {
        for (std::size_t i = 0; i < count; ++i) memory.data()[i] = T(static_cast<float>(i % 600) - 300.5f);
    }
    template <class Read>
    double passes(Read read)
    {
        return memory.passes([&] {
            read();
            stream.synchronize();
        });
    }
    detail::sketch_target target(std::uint64_t bins, std::uint64_t first)
    {
        return {first, bins, 1, sums.data(), scratch.data()};
    }
};

} // namespace

TEST_CASE_TEMPLATE("statistics and sketch read a buffer once, and record and sketch a result", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    reads<T> on;
    const std::vector<T> other(on.count, T(1.0f));
    statistics input;
    detail::result_record result{};
    for (const std::uint64_t bins : {std::uint64_t{64}, std::uint64_t{4096}, std::uint64_t{8192}}) {
        for (const std::uint64_t first : {0u, 1000u}) {
            if (COLLPROBE_TEST_UNLESS_SANITIZED(false, bins == 4096 || first == 0)) continue;
            CAPTURE(bins);
            CAPTURE(first);
            const auto target = on.target(bins, first);
            CHECK(on.passes([&] { detail::read_input<host::device, T>(on.stream, on.data, &input, target, on.workspace); })
                == 1);
            CHECK(on.passes([&] {
                detail::read_result<host::device, T>(on.stream, on.data, other.data(), &result, target, on.workspace);
            }) == 1);
            // The input that survives is read once, too.
            CHECK(on.passes([&] {
                detail::read_result<host::device, T>(
                    on.stream, view<const T>(other), on.data.data(), &result, target, on.workspace);
            }) == 1);
            CHECK(on.passes([&] {
                detail::read_input<host::device, T>(on.stream, on.data, nullptr, target, on.workspace);
            }) == 1);
        }
    }
    CHECK(input.nan == 0);
}

TEST_CASE("the counter sees two reads, and rows that no cache holds are read twice")
{
    reads<float> on;
    statistics input;
    const auto target = on.target(4096, 0);
    CHECK(on.passes([&] {
        detail::read_input<host::device, float>(on.stream, on.data, &input, {}, on.workspace);
        detail::enqueue_sketch<host::device>(on.stream, on.data, target);
    }) == 2);
    CHECK(on.passes([&] {
        detail::read_input<host::device, float>(on.stream, on.data, &input, on.target(1 << 20, 0), on.workspace);
    }) == 2);
}

} // namespace collprobe::testing::read_count_test
