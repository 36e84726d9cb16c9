// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The quantised gather with CUDA's kernels has the bits of the definition, over ranks of this process.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/guard/quantised_all_gather.hpp>

#include "guard/quantised_weights.hpp"
#include "support/errors.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

template <class T, class Source>
void check_gather(const quantisation& how)
{
    constexpr std::uint64_t count = 1001;
    device_provider<cu::device>{3}.run([&](auto& comm) {
        using comm_type = std::remove_reference_t<decltype(comm)>;
        const auto guard = detail::enter_device(comm);
        quantised_all_gather<comm_type, T> weights(comm, count, how);
        const std::uint64_t own = weights.shard_range().count;
        cu::pinned_buffer<Source> staging(own);
        cu::pinned_buffer<T> result(count);
        cu::buffer<Source> shard(own);
        cu::buffer<T> full(count);
        const cu::stream compute, on;
        for (const std::uint64_t generation : {std::uint64_t{1}, std::uint64_t{2}}) {
            const auto values = weights_of<Source>(weights.shard_range().first, own, generation);
            std::memcpy(staging.data(), values.data(), own * sizeof(Source));
            cu::device::copy(compute, view<const Source>(staging), view<Source>(shard));
            weights.encode(shard, generation, compute, {}, {});
            for (int repeat = 0; repeat < 2; ++repeat) {
                weights.gather(full, generation, on, {}, {});
                cu::device::copy(on, view<const T>(full), view<T>(result));
                on.synchronize(soon_ms);
                const std::vector<T> got(result.data(), result.data() + count);
                require(same_bits(got, coded_weights<T, Source>(count, 3, generation, how)), "other weights");
            }
        }
    });
}

} // namespace

TEST_CASE("float shards become bfloat16 weights of int8 codes, with the bits of the definition")
{
    check_gather<bfloat16, float>({});
}

TEST_CASE("float16 shards become float weights of int4 codes, with the bits of the definition")
{
    check_gather<float, float16>({.format = code_format::int4, .block = 64});
}
