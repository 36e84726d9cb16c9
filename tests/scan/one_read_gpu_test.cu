// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Sketches on a GPU, alone and in one read with statistics or a record, against their definitions.
#include <doctest/doctest.h>

#include <cstdint>
#include <type_traits>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/scan/sketched_read.hpp>

#include "adversarial.hpp"
#include "sketch_definition.hpp"
#include "support/device_copy.cuh"
#include "support/needs_gpu.hpp"

using namespace collprobe;
using gpu = collprobe::cuda::device;
using adversarial::random_elements;
using collprobe::testing::device_copy;

namespace {

struct bench {
    explicit bench(std::uint32_t bins)
        : options{.bins = bins}, sums(sketch_numbers(options)), parts(detail::sketch_scratch_numbers<gpu>(bins))
    {
    }
    sketch_options options;
    collprobe::cuda::stream stream;
    gpu::workspace scratch;
    collprobe::cuda::pinned_buffer<statistics> input{1};
    collprobe::cuda::pinned_buffer<detail::result_record> result{1};
    collprobe::cuda::buffer<double> sums, parts;

    /// `defined`: all values are finite, and their squares fit in a double.
    template <floating_element T>
    void check(const std::vector<T>& data, std::uint64_t first, std::size_t offset, bool defined = true)
    {
        CAPTURE(options.bins);
        CAPTURE(data.size());
        CAPTURE(first);
        CAPTURE(offset);
        const std::vector<T> other = random_elements<T>(data.size(), 1, 1, 9);
        const device_copy<T> on_gpu(data, offset), other_on_gpu(other, sizeof(T));
        const detail::sketch_target target{first, options.bins, options.seed, sums.data(), parts.data()};
        const adversarial::oracle expected(view<const T>(data), other.data());
        const testing::sketch_definition definition(view<const T>(data), options, first);
        const auto check_sketch = [&] {
            const std::vector<double> found = take();
            if (defined) definition.check(found, 1e-13L);
            return found;
        };

        detail::enqueue_sketch<gpu>(stream.get(), on_gpu.elements(), target);
        check_sketch();
        detail::read_input<gpu, T>(stream.get(), on_gpu.elements(), input.data(), target, scratch);
        const std::vector<double> beside = check_sketch();
        expected.check(input[0]);
        for (const bool survives : {false, true}) {
            detail::read_result<gpu, T>(stream.get(), on_gpu.elements(), survives ? other_on_gpu.data() : nullptr,
                result.data(), target, scratch);
            const std::vector<double> again = check_sketch();
            // A NaN has the sign of whichever operand the compiler put first.
            std::size_t other_bits = 0;
            for (std::size_t i = 0; i < beside.size(); ++i)
                if (to_bits(again[i]) != to_bits(beside[i]) && !(is_nan(again[i]) && is_nan(beside[i]))) ++other_bits;
            CHECK(other_bits == 0);
            expected.check(result[0], survives);
        }
    }

private:
    std::vector<double> take()
    {
        stream.synchronize();
        std::vector<double> found(sketch_numbers(options));
        REQUIRE(cudaMemcpy(found.data(), sums.data(), found.size() * sizeof(double), cudaMemcpyDefault) == cudaSuccess);
        const std::vector<double> harmed(found.size(), 77);
        testing::upload(sums.data(), harmed.data(), harmed.size());
        return found;
    }
};

} // namespace

TEST_CASE_TEMPLATE("a GPU gives sketches by their definition, and reads with them, for every count, part and alignment",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const std::uint32_t bins : {64u, 1024u, 4096u}) {
        bench on(bins);
        for (const std::size_t count : {0u, 1u, 5u, 4096u, 20'480u, 100'003u, 700'001u}) {
            if (testing::few_cases() && count > 5'000) break;
            const std::vector<T> data = random_elements<T>(count, 0.2, 1, 21);
            for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{16}, std::uint64_t{4096 + 1037},
                     (std::uint64_t{1} << 40) + 2048}) {
                if (count < 50'000 || first == 4096 + 1037) on.check(data, first, 0);
            }
            if (count < 500'000) on.check(data, 0, sizeof(T)); // not aligned to 16 bytes
        }
    }
}

TEST_CASE("one read on a GPU, whatever the values")
{
    bench on(1024);
    adversarial::for_each_input([&](const auto& data) {
        using T = typename std::remove_cvref_t<decltype(data)>::value_type;
        long double squares = 0;
        for (const T x : data) squares += adversarial::exactly(x) * adversarial::exactly(x);
        on.check(data, 32, 0, squares < 1e300L && squares > 1e-290L); // not if a NaN is among them
    });
}
