// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <collprobe/device/host.hpp>
#include <collprobe/probe/digest.hpp>
#include <collprobe/probe/digest_reducer.hpp>

#include "adversarial.hpp"

using namespace collprobe;

TEST_CASE("the reducer gives the digest of the buffer - every type, sizes around every boundary, by elements and bytes")
{
    const host::stream stream;
    host::device::workspace scratch;
    adversarial::for_each_type([&](auto sample) {
        using T = decltype(sample);
        constexpr std::uint64_t block = digest_reducer<T>::block;
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3}, block - 1, block,
                 block + 1, 3 * block + 5}) {
            const auto data = adversarial::random_elements<T>(static_cast<std::size_t>(count), 0.5, 3.0, 7);
            std::uint64_t found = 0, of_bytes = 0;
            const view<const std::uint8_t> bytes(
                reinterpret_cast<const std::uint8_t*>(data.data()), count * sizeof(T));
            host::device::reduce(stream, digest_reducer<T>{view<const T>(data)}, count, &found, scratch);
            host::device::reduce(stream, digest_reducer<std::uint8_t>{bytes}, bytes.count(), &of_bytes, scratch);
            stream.synchronize();
            CHECK(found == digest(view<const T>(data)));
            CHECK(of_bytes == found);
        }
    });
}
