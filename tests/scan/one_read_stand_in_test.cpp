// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One read on CUDA streams, by the reducer that stands for the kernel: it leaves parts for the launch that joins them.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/scan/sketched_read.hpp>

#include "adversarial.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::one_read_stand_in_test {
namespace {

/// Whether sketches differ by rounding alone: a GPU adds up by parts, the host row by row.
bool is_near(const std::vector<double>& found, const std::vector<double>& expected, std::size_t count)
{
    const std::size_t bins = expected.size() / 2;
    for (std::size_t i = 0; i < bins; ++i) {
        const double energy = expected[bins + i];
        if (!(std::fabs(found[bins + i] - energy) <= 1e-13 * energy)) return false;
        const double size = std::sqrt(energy * static_cast<double>(count)); // at least the sum of magnitudes
        if (!(std::fabs(found[i] - expected[i]) <= 1e-13 * size)) return false;
    }
    return true;
}

} // namespace

TEST_CASE("on CUDA streams one read gives statistics, record and sketch of the host")
{
    for (const std::uint32_t bins : {64u, 4096u}) {
        const sketch_options options{.bins = bins};
        const std::size_t numbers = sketch_numbers(options);
        for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{300'001}}) {
            const std::vector<float> data = adversarial::random_elements<float>(count, 0.2, 1, 21);
            const view<const float> input(data);
            const cuda::stream stream;
            cuda::workspace scratch;
            cuda::buffer<double> parts(detail::sketch_scratch_numbers<cuda::device>(bins));
            std::vector<double> found(numbers), expected(numbers);
            const detail::sketch_target target{64, bins, options.seed, found.data(), parts.data()};
            statistics values;
            detail::result_record record{};
            sketch<float>(input, view<double>(expected), options, 64);
            detail::read_input<cuda::device, float>(stream, input, &values, target, scratch);
            stream.synchronize();
            CHECK(is_near(found, expected, count));
            const statistics on_host = compute_statistics<float>(input);
            CHECK(std::memcmp(&values, &on_host, sizeof values) == 0);
            found.assign(numbers, 0);
            detail::read_result<cuda::device, float>(stream, input, data.data(), &record, target, scratch);
            stream.synchronize();
            CHECK(is_near(found, expected, count));
            CHECK(record.digest == on_host.digest);
        }
    }
}

} // namespace collprobe::testing::one_read_stand_in_test
