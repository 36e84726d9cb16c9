// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/digest.hpp>
#include <collprobe/scan/statistics.hpp>

#include "adversarial.hpp"
#include "cuda_schedule.hpp"
#include "support/element_types.hpp"

using namespace collprobe;

TEST_CASE("the reducer gives the digest of the buffer - every type, sizes around every boundary, by elements and bytes")
{
    const host::stream stream;
    host::device::workspace scratch;
    testing::for_each_element_type([&](auto sample) {
        using T = decltype(sample);
        constexpr std::uint64_t block = collprobe::detail::digest_reducer<T>::block;
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, block - 1, block,
                 block + 1, 3 * block + 5}) {
            const auto data = adversarial::random_elements<T>(static_cast<std::size_t>(count), 0.5, 3.0, 7);
            std::uint64_t found = 0, of_bytes = 0;
            const view<const std::uint8_t> bytes(
                reinterpret_cast<const std::uint8_t*>(data.data()), count * sizeof(T));
            host::device::reduce(stream, collprobe::detail::digest_reducer<T>{view<const T>(data)}, count, &found, scratch);
            host::device::reduce(stream, collprobe::detail::digest_reducer<std::uint8_t>{bytes}, bytes.count(), &of_bytes, scratch);
            stream.synchronize();
            CHECK(found == digest(view<const T>(data)));
            CHECK(of_bytes == found);
        }
    });
}

TEST_CASE("a GPU's threads, slot by slot, come to the digest of the host, whatever the alignment")
{
    constexpr detail::scan_features digest_only{false, true, false, false, true};
    testing::for_each_element_type([&](auto sample) {
        using T = decltype(sample);
        constexpr std::uint64_t round = detail::round_bytes / sizeof(T);
        for (const std::uint64_t count : {std::uint64_t{1}, round - 1, round, 2 * round + 3, 7 * round, 300 * round + 5}) {
            const auto data = adversarial::random_elements<T>(static_cast<std::size_t>(count) + 16, 0.5, 3.0, 8);
            for (const std::uint64_t shift : {std::uint64_t{0}, std::uint64_t{1}}) {
                const view<const T> part(data.data() + shift, count);
                const detail::scan_input<T> input{
                    {reinterpret_cast<const unsigned char*>(part.data()), part.size_bytes()}, {}, nullptr};
                const detail::slot_plan plan = detail::plan_slots(count, sizeof(T));
                collprobe::detail::digest_state all;
                for (std::uint64_t slot = 0; slot < plan.slots; ++slot) {
                    const std::uint64_t left = count - slot * plan.length;
                    all.merge(cuda_schedule::reduce_slot<T, digest_only>(input, slot * plan.length,
                        static_cast<std::uint32_t>(left < plan.length ? left : plan.length)).digest);
                }
                CHECK(all.finish() == digest(part));
            }
        }
    });
}
