// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/guard/nccl/copy_then_all_gather.hpp>
#include <collprobe/replica/replica.hpp>
#include <collprobe/step/probed.hpp>

#include "tests/support/errors.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"

namespace collprobe::testing::nccl_types_stand_in_test {
namespace {

constexpr int ranks = 3;
constexpr std::uint64_t count = 40;

/// Sums of 1, 2 and 3, whatever way the trainer hands its buffer over.
template <class Comm>
void reduce_every_way(Comm& comm)
{
    using foreign = __nv_fp8_e4m3;
    const cuda::stream stream;
    const device_values<foreign> send(count, foreign(static_cast<float>(comm.rank() + 1)));
    const auto check = [&](const char* how, const auto& call) {
        device_values<foreign> receive(count, foreign(0.0f));
        call(receive.data());
        stream.synchronize();
        require(static_cast<float>(receive.data()[count - 1]) == 6, how);
    };
    const foreign* const from = send.data();
    check("views of raw pointers", [&](foreign* to) {
        comm.all_reduce(view(from, count), view(to, count), reduction::sum, stream);
    });
    check("pointers and counts", [&](foreign* to) {
        comm.template all_reduce<float8_e4m3>({from, count}, {to, count}, reduction::sum, stream);
    });
    check("NCCL's order and reduction", [&](foreign* to) { comm.all_reduce(from, to, count, ncclSum, stream); });
}

} // namespace

TEST_CASE("half stays CUDA's behind using namespace collprobe")
{
    const half value = __float2half(1.5f);
    static_assert(std::is_same_v<decltype(value), const __half>);
    CHECK(static_cast<float>(float16::from_bits(__half_as_ushort(value))) == 1.5f);
}

TEST_CASE("memory of CUDA's narrow types is seen as the element types of their layout")
{
    static_assert(std::is_same_v<detail::element_for<const __nv_fp8_e4m3>, const float8_e4m3>);
    static_assert(std::is_same_v<detail::element_for<__nv_fp8_e5m2>, float8_e5m2>);
    static_assert(std::is_same_v<detail::element_for<const __nv_bfloat16>, const bfloat16>);
    static_assert(std::is_same_v<detail::element_for<float>, float> && std::is_same_v<detail::element_for<short>, short>);
    static_assert(std::is_same_v<detail::element_for<const __half>, const float16>);
    std::vector<__nv_bfloat16> values(3, __float2bfloat16(2));
    const view all(values);
    static_assert(std::is_same_v<decltype(all), const view<bfloat16>>);
    CHECK(static_cast<float>(all[2]) == 2);
    const view<const bfloat16> constant(values.data(), 2);
    CHECK((constant.data() == all.data() && constant.count() == 2));
    static_assert(!std::is_constructible_v<view<float16>, std::vector<__nv_bfloat16>&>);
    static_assert(!std::is_constructible_v<view<bfloat16>, const __nv_bfloat16*, std::uint64_t>);
    const replica weights = view(values);
    CHECK(weights.type == element_type::bfloat16);
}

TEST_CASE_TEMPLATE("8-bit floating point converts as CUDA's without saturation", T, float8_e4m3, float8_e5m2)
{
    constexpr auto format = std::is_same_v<T, float8_e4m3> ? __NV_E4M3 : __NV_E5M2;
    // Every sign and exponent with the upper bits of the fraction, then ties and what is beside them.
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
        for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
            const auto value = detail::bit_cast<float>(upper << 16 | lower);
            const auto of_cuda = __nv_cvt_float_to_fp8(value, __NV_NOSAT, format);
            // Of a float, CUDA makes one NaN.
            if (is_nan(value)) REQUIRE((is_nan(T(value)) && is_nan(T::from_bits(of_cuda))));
            else REQUIRE(T(value).bits == of_cuda);
            const auto wide = detail::bit_cast<double>(std::uint64_t{upper << 16 | lower} << 32 | (lower & 1));
            REQUIRE(T(wide).bits == __nv_cvt_double_to_fp8(wide, __NV_NOSAT, format));
        }
    }
    for (std::uint32_t pattern = 0; pattern < 0x100; ++pattern) {
        const T element = T::from_bits(static_cast<std::uint8_t>(pattern));
        const float value = __half2float(__half(__nv_cvt_fp8_to_halfraw(element.bits, format)));
        if (is_nan(element)) CHECK(is_nan(value));
        else CHECK(to_bits(static_cast<float>(element)) == to_bits(value));
    }
}

TEST_CASE("a trainer's narrow gradients are reduced, under a wrapper that reads them too")
{
    nccl_provider{ranks}.run([](nccl_owner& comm) {
        reduce_every_way(comm);
        probed audited{nccl::communicator_ref(comm.native_handle()), {}, audit()};
        reduce_every_way(audited);
    });
}

TEST_CASE("a guarded all-gather takes a trainer's own pointers")
{
    nccl_provider{ranks}.run([](nccl_owner& comm) {
        const cuda::stream stream;
        const device_values<__nv_bfloat16> shard(count, __float2bfloat16(static_cast<float>(comm.rank() + 1)));
        device_values<__nv_bfloat16> all(ranks * count, __float2bfloat16(0));
        copy_then_all_gather(shard.data(), count, all.data(), count, comm.native_handle(), stream.get(),
            {stream}, {stream});
        stream.synchronize();
        for (int rank = 0; rank < ranks; ++rank)
            require(__bfloat162float(all.data()[static_cast<std::uint64_t>(rank) * count]) == static_cast<float>(rank + 1),
                "each rank's shard has arrived");
    });
}

TEST_CASE("NCCL's reductions are those that it is called with, and one of the program's own is refused")
{
    for (const reduction each :
        {reduction::sum, reduction::average, reduction::min, reduction::max, reduction::product}) {
        CHECK(foreign_reduction<ncclRedOp_t>::of(nccl::detail::operation(each)) == each);
    }
    run_each_nccl(1, {}, [](nccl_owner& comm) {
        const cuda::stream stream;
        const device_values<float> values(4, 1.0f);
        for (const int own : {int{ncclNumOps}, int{ncclNumOps} + 1000}) {
            const auto refused = error_of([&] {
                comm.all_reduce(values.data(), values.data(), 4, static_cast<ncclRedOp_t>(own), stream);
            });
            CHECK(refused.has_value());
            CHECK((refused && std::string(refused->what()).find("is no reduction") != std::string::npos));
        }
    });
}

} // namespace collprobe::testing::nccl_types_stand_in_test
