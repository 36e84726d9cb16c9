// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The threads of a GPU, run on the host: their counts and digest are those of the definition, their sums as near.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/scan/by_element.hpp>
#include <collprobe/scan/statistics.hpp>

#include "above.hpp"
#include "adversarial.hpp"
#include "cuda_schedule.hpp"
#include "sketch_definition.hpp"

using namespace collprobe;
using adversarial::random_elements;

namespace {

template <class T>
void check_schedule(const std::vector<T>& data, std::size_t offset = 0, unsigned slots = detail::read_slots)
{
    CAPTURE(std::string(element_traits<T>::name));
    CAPTURE(data.size());
    CAPTURE(offset);
    const view<const T> input = view<const T>(data).part(offset, data.size() - offset);
    const std::vector<T> other = random_elements<T>(data.size(), 0.1, 3, 22);
    const adversarial::oracle expected(input, other.data());
    const detail::gradual_underflow as_on_a_gpu;
    expected.check(cuda_schedule::result_of(statistics_reducer<T>(input), slots));
    expected.check(cuda_schedule::result_of(detail::result_reducer<T>(input, other.data()), slots), true);
    expected.check(cuda_schedule::result_of(detail::result_reducer<T>(input), slots), false);
    CHECK(cuda_schedule::result_of(detail::digest_reducer<T>(input), slots) == expected.exact.digest);
}

} // namespace

TEST_CASE("the kernels' schedule gives what the definitions say - sizes around every boundary, any alignment")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        const std::size_t run = 4096 / sizeof(T), chunk = 4 * run;
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{15}, std::size_t{17},
                 run - 1, run, run + 1, 2 * run + 3, chunk - 1, chunk, chunk + 1, 7 * run + 11, 5 * chunk + 77})
            for (const std::size_t offset : {0u, 1u, 3u})
                check_schedule(random_elements<T>(count + offset, 0.1, 2.0, static_cast<unsigned>(count) + 1), offset);
        for (std::size_t offset = 0; offset < 16 / sizeof(T); ++offset)
            check_schedule(random_elements<T>(chunk + run + 5, 3, 0.01, 9), offset);
    });
}

TEST_CASE("the kernels' schedule gives what the definitions say - more chunks in a slot than are prepared together")
{
    check_schedule(random_elements<float>(137 * 4096 + 777, 0, 1, 3), 0, 2);
    check_schedule(random_elements<bfloat16>(67 * 8192 + 77, 0, 1, 3), 1, 1);
    check_schedule(random_elements<float8_e5m2>(34 * 16384 + 77, 0, 1, 3), 0, 1);
    check_schedule(random_elements<float>(600 * 4096 + 9, 0, 1, 3)); // more slots than threads
}

TEST_CASE("the kernels' schedule gives what the definitions say - NaN, infinities, zeros, subnormals, extremes")
{
    adversarial::for_each_input([](const auto& data) { check_schedule(data); });
}

TEST_CASE("the kernels' schedule counts by an accumulator that only adds elements")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        using above = detail::by_element<T, testing::above<T>>;
        const std::vector<T> data = random_elements<T>(70'003, 0, 1, 5);
        const detail::one_read<T, detail::both<above, detail::both<detail::norm<T>, above>>> reader(
            view<const T>(data), {{{0.5}}, {{}, {{2.0}}}});
        const auto all = cuda_schedule::partial_of(reader, 3);
        const auto expected = [&](double limit) {
            return std::count_if(
                data.begin(), data.end(), [limit](T x) { return std::fabs(static_cast<double>(x)) > limit; });
        };
        CHECK(all.first.count == static_cast<std::uint64_t>(expected(0.5)));
        CHECK(all.second.second.count == static_cast<std::uint64_t>(expected(2.0)));
    });
}

TEST_CASE_TEMPLATE("the sketch beside a read on a GPU is what its definition says, and the read has its own bits", T,
    COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    for (const std::uint32_t bins : {std::uint32_t{64}, static_cast<std::uint32_t>(4096 / sizeof(T))}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{65}, std::size_t{4099}, std::size_t{70'003}}) {
            for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 40) + 61}) {
                for (const std::size_t offset : {0u, 1u}) {
                    CAPTURE(bins);
                    CAPTURE(count);
                    CAPTURE(first);
                    const std::vector<T> data = random_elements<T>(count + offset, 0.2, 1, 21);
                    const view<const T> input(data.data() + offset, count);
                    const detail::sketch_source<T> from{input, first, bins, 9};
                    REQUIRE(detail::sketched<T>::fits(from));
                    statistics found{};
                    const auto sketch = cuda_schedule::sketch_beside(statistics_reducer<T>(input), from, found);
                    testing::sketch_definition(input, {.bins = bins, .seed = 9}, first).check(sketch, 1e-13);
                    adversarial::oracle(input).check(found);
                }
            }
        }
    }
    CHECK_FALSE(detail::sketched<float>::fits({{}, 0, 2048, 0}));
}

TEST_CASE_TEMPLATE("a sketch alone on a GPU is what its definition says", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const std::size_t count : {0u, 1u, 130u, 4095u, 8192u, 70'003u, 1'000'001u}) {
        for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 40) + 64}) {
            CAPTURE(count);
            CAPTURE(first);
            const sketch_options options{.bins = count > 100'000 ? 64u : 1024u};
            const std::vector<T> data = random_elements<T>(count + 1, 0.2, 1, 21);
            for (const std::size_t shift : {0u, 1u}) { // of the alignment
                const view<const T> part(data.data() + shift, count);
                const auto found = cuda_schedule::sketch_alone<T>({part, first, options.bins, options.seed});
                testing::sketch_definition(part, options, first).check(found, 1e-13);
            }
        }
    }
}
