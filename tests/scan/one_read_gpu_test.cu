// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// One read on a GPU: counts, extrema, digest and sketch have the bits of the host; moments are as near as promised.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/scan/sketched_read.hpp>

#include "adversarial.hpp"
#include "device_copy.cuh"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"

using namespace collprobe;
using gpu = collprobe::cuda::device;
using collprobe::testing::device_copy;

namespace {

template <element T>
struct bench {
    explicit bench(std::uint32_t bins)
        : options{.bins = bins}, numbers(sketch_numbers<T>(options)), sums(numbers),
          parts(detail::sketch_scratch_numbers<gpu>(bins))
    {
    }
    sketch_options options;
    std::size_t numbers;
    collprobe::cuda::stream stream;
    gpu::workspace scratch;
    collprobe::cuda::pinned_buffer<statistics> input{1};
    collprobe::cuda::pinned_buffer<detail::result_record> result{1};
    collprobe::cuda::buffer<double> sums;
    collprobe::cuda::buffer<double> parts;

    void check(const std::vector<T>& data, std::uint64_t first, std::size_t offset = 0)
    {
        CAPTURE(options.bins);
        CAPTURE(data.size());
        CAPTURE(first);
        CAPTURE(offset);
        const std::vector<T> other = adversarial::random_elements<T>(data.size(), 1, 1, 9);
        const device_copy<T> on_gpu(data, offset), other_on_gpu(other, sizeof(T));
        const detail::sketch_target<T> target{first, options.bins, options.seed, sums.data(), parts.data()};
        std::vector<double> expected(numbers);
        sketch<T>(data, view<double>(expected), options, first);

        detail::read_input<gpu, T>(stream.get(), on_gpu.elements(), input.data(), target, scratch);
        check_sketch(expected);
        adversarial::check_same_statistics(input[0], compute_statistics<T>(data));
        for (const bool survives : {false, true}) {
            gpu::zero(stream.get(), view<double>(sums.data(), numbers));
            detail::read_result<gpu, T>(stream.get(), on_gpu.elements(), survives ? other_on_gpu.data() : nullptr,
                result.data(), target, scratch);
            check_sketch(expected);
            const detail::result_reducer<T> on_host{view<const T>(data), survives ? other.data() : nullptr};
            const auto record = on_host.finish(detail::reduce_blocks(on_host, std::uint64_t{data.size()}));
            CHECK(result[0].digest == record.digest);
            CHECK(result[0].scale == record.scale);
            CHECK(result[0].nonfinite == record.nonfinite);
            CHECK(result[0].first_nonfinite == record.first_nonfinite);
            CHECK(result[0].sum_of_squares == doctest::Approx(record.sum_of_squares).epsilon(1e-12));
            CHECK(is_nan(result[0].dot) == is_nan(record.dot));
            if (is_finite(record.dot)) CHECK(result[0].dot == doctest::Approx(record.dot).epsilon(1e-9));
        }
    }

private:
    /// NaN have one pattern on a GPU.
    void check_sketch(const std::vector<double>& expected)
    {
        stream.synchronize();
        std::vector<double> found(numbers);
        REQUIRE(cudaMemcpy(found.data(), sums.data(), numbers * sizeof(double), cudaMemcpyDefault) == cudaSuccess);
        std::size_t different = 0;
        for (std::size_t i = 0; i < numbers; ++i)
            different += to_bits(found[i]) != to_bits(expected[i]) && !(is_nan(found[i]) && is_nan(expected[i])) ? 1 : 0;
        CHECK(different == 0);
    }
};

} // namespace

TEST_CASE_TEMPLATE("one read on a GPU gives statistics and the bits of the sketch, whatever the count and the part", T,
    COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const std::uint32_t bins : {64u, 4096u, 8192u}) {
        bench<T> on(bins);
        for (const std::size_t count : {0u, 1u, 5u, 4096u, 20'480u, 100'003u, 700'001u}) {
            if (testing::few_cases() && count > 5'000) break;
            const std::vector<T> data = adversarial::random_elements<T>(count, 0.2, 1, 21);
            for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{16}, std::uint64_t{4080},
                     (std::uint64_t{1} << 40) + 2048, std::uint64_t{4096 + 1037}}) {
                if (count < 50'000 || first == (std::uint64_t{1} << 40) + 2048) on.check(data, first);
            }
            if (count < 500'000) on.check(data, 0, sizeof(T)); // not aligned to 16 bytes
        }
    }
}

TEST_CASE("one read on a GPU, whatever the values")
{
    adversarial::for_each_input([](const auto& data) {
        using T = typename std::remove_cvref_t<decltype(data)>::value_type;
        if constexpr (floating_element<T>) {
            static bench<T> on(4096);
            on.check(data, 32);
        }
    });
}
