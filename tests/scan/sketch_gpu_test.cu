// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Sketches and their judgement on a GPU against the host, bit for bit. What a thread computes is tested without a GPU
// too (sketch_test.cpp, conservation_stand_in_test.cpp); that no kernel spills is part of cuda.kernel_resources.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/comm/local/device.hpp>

#include "audit/lone_checks.hpp"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"
#include "support/upload.hpp"

using namespace collprobe;
using gpu = collprobe::cuda::device;

namespace {

template <element T>
std::vector<T> random_elements(std::size_t count)
{
    std::mt19937_64 random(count + 1);
    std::vector<T> values(count);
    for (T& x : values) {
        const std::uint64_t bits = random();
        if constexpr (floating_element<T>) x = T(static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-66);
        else x = static_cast<T>(bits);
    }
    return values;
}

template <class T>
void download(T* to, const T* from, std::size_t count)
{
    REQUIRE(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
}

} // namespace

TEST_CASE_TEMPLATE("a GPU gives the bits of the host's sketch, for every count, part and alignment", T,
    COLLPROBE_TEST_ELEMENT_TYPES)
{
    const collprobe::cuda::stream stream;
    for (const std::uint32_t bins : {64u, 4096u}) {
        const sketch_options options{.bins = bins};
        const std::size_t numbers = sketch_numbers<T>(options);
        collprobe::cuda::buffer<double> scratch(detail::sketch_scratch_numbers<gpu>(bins));
        collprobe::cuda::buffer<sketch_sum<T>> sums(numbers);
        for (const std::size_t count : {0u, 1u, 63u, 4097u, 100'003u, 5'000'011u}) {
            const std::vector<T> values = random_elements<T>(count);
            collprobe::cuda::buffer<T> data(count + 16);
            for (const std::size_t offset : {0u, 1u}) {
                for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{16}, std::uint64_t{12'345}}) {
                    CAPTURE(bins);
                    CAPTURE(count);
                    CAPTURE(offset);
                    CAPTURE(first);
                    testing::upload(data.data() + offset, values.data(), count);
                    detail::enqueue_sketch<gpu>(stream.get(),
                        detail::sketch_source<T>{view<const T>(data.data() + offset, count), first, bins, options.seed},
                        sums.data(), reinterpret_cast<sketch_sum<T>*>(scratch.data()));
                    stream.synchronize();
                    std::vector<sketch_sum<T>> found(numbers), expected(numbers);
                    download(found.data(), sums.data(), numbers);
                    sketch<T>(values, view<sketch_sum<T>>(expected), options, first);
                    CHECK(std::memcmp(found.data(), expected.data(), numbers * sizeof(sketch_sum<T>)) == 0);
                }
            }
        }
    }
}

TEST_CASE("ranks on GPUs find a changed element and its bin, and nothing on clean results")
{
    for (const bool harmed : {false, true}) {
        local::run_on<gpu>(3, {}, [&](local::device_communicator<gpu>& comm) {
            constexpr std::size_t count = 100'003;
            std::vector<float> own = random_elements<float>(count + static_cast<std::size_t>(comm.rank()));
            own.resize(count);
            const collprobe::cuda::stream stream;
            collprobe::cuda::buffer<float> data(count);
            collprobe::cuda::pinned_buffer<detail::conservation_result> out(1);
            testing::upload(data.data(), own.data(), count);
            testing::conservation_check<local::device_communicator<gpu>> check(comm);
            const view<float> all(data.data(), count);
            check.before<float>(view<const float>(all), stream.get());
            comm.all_reduce(view<const float>(all), all, reduction::sum, stream.get());
            stream.synchronize();
            if (harmed) {
                const float wrong = 1;
                testing::upload(data.data() + 70'001, &wrong, 1);
            }
            check.after<float>(view<const float>(all), out.data(), stream.get());
            stream.synchronize();
            CHECK(out[0].checked);
            CHECK(out[0].conserved == !harmed);
            if (harmed) CHECK(out[0].bin == 70'001 % 4096);
        });
    }
}
