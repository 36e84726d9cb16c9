// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/collprobe.cuh> // and once more

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

// In the other translation unit, which includes everything as well.
statistics statistics_on_gpu(const float* data, std::uint64_t count);

namespace testing {

/// Every half, widened on the device and on the host.
struct widen_half {
    float* to;
    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        to[index] = static_cast<float>(collprobe::float16::from_bits(static_cast<std::uint16_t>(index)));
    }
};

} // namespace testing

/// The least that must work with any flags: this is also compiled with --use_fast_math and -rdc=true.
/// Exit status 77 (skip) without a device: then it is proved only that all of it compiles and links.
int main()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("no CUDA device: skipped");
        return 77;
    }
    constexpr std::uint64_t count = 65536;
    cu::buffer<float> memory(count);
    cu::pinned_buffer<float> result(count);
    const cu::stream stream;
    cu::device::for_each(stream.get(), count, testing::widen_half{memory.data()});
    cu::device::copy(stream.get(), view<const float>(memory.data(), count), view<float>(result));
    stream.synchronize();
    for (std::uint64_t i = 0; i < count; ++i) {
        const float expected = static_cast<float>(collprobe::float16::from_bits(static_cast<std::uint16_t>(i)));
        if (to_bits(expected) != to_bits(result[i])) {
            std::printf("half 0x%04x differs on the device\n", static_cast<unsigned>(i));
            return 1;
        }
    }

    // Subnormal numbers, which -ftz=true would flush, NaN and infinities, which -ffast-math assumes away.
    std::vector<float> data(100'003);
    for (std::uint64_t i = 0; i < data.size(); ++i) {
        const auto bits = static_cast<std::uint32_t>(collprobe::detail::mix64(i));
        data[i] = collprobe::detail::bit_cast<float>(bits & (i % 5 == 0 ? 0x80ffffffu : 0x807fffffu));
    }
    data[70'000] = collprobe::detail::bit_cast<float>(0x7f800001u);
    data[80'001] = collprobe::detail::bit_cast<float>(0xff800000u);
    cu::buffer<float> copy(data.size());
    if (cudaMemcpy(copy.data(), data.data(), data.size() * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess) return 1;
    if (cudaStreamSynchronize(nullptr) != cudaSuccess) return 1; // before that, other streams may not find the copy
    const statistics found = statistics_on_gpu(copy.data(), data.size());
    const statistics expected = compute_statistics(view<const float>(data));
    const bool same = found.count == expected.count && found.nan == expected.nan
        && found.negative_infinity == expected.negative_infinity && found.zero == expected.zero
        && found.first_nonfinite == expected.first_nonfinite && found.digest == expected.digest
        && to_bits(found.absolute_maximum) == to_bits(expected.absolute_maximum)
        && collprobe::detail::absolute(found.sum - expected.sum) <= 2e-12 * expected.l2() * 317 // root of the count
        && collprobe::detail::absolute(found.sum_of_squares - expected.sum_of_squares)
            <= 2e-12 * expected.sum_of_squares;
    if (!same) std::puts("statistics differ on the device");
    return same ? 0 : 1;
}
