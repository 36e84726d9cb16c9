// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/scan/digest.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "naive_digest.hpp"

namespace collprobe::testing::digest_test {
namespace {

using bytes = std::vector<unsigned char>;
constexpr std::array every_path{detail::isa::portable, detail::isa::vectors};

bytes random_bytes(std::size_t count, unsigned seed = 1)
{
    std::mt19937 random(seed);
    bytes result(count);
    for (auto& byte : result) byte = static_cast<unsigned char>(random());
    return result;
}

template <class T>
void check_type()
{
    CAPTURE(std::string(element_traits<T>::name));
    for (const std::size_t count : {0u, 1u, 2u, 3u, 7u, 8u, 31u, 1023u, 1024u, 1025u, 2049u, 5000u}) {
        const bytes raw = random_bytes(count * sizeof(T), static_cast<unsigned>(count));
        std::vector<T> data(count);
        if (count != 0) std::memcpy(static_cast<void*>(data.data()), raw.data(), raw.size());
        const view<const T> all(data.data(), count);
        CHECK(digest(all) == naive_digest(raw));

        collprobe::detail::digest_state by_element;
        for (std::size_t i = count; i-- > 0;) by_element.add(i * sizeof(T), data[i]);
        CHECK(by_element.finish() == naive_digest(raw));
    }
}

} // namespace

TEST_CASE("digest - equals a naive implementation for every element type and by element")
{
    check_type<std::int8_t>();
    check_type<std::uint8_t>();
    check_type<std::int32_t>();
    check_type<std::uint32_t>();
    check_type<std::int64_t>();
    check_type<std::uint64_t>();
    check_type<float16>();
    check_type<bfloat16>();
    check_type<float>();
    check_type<double>();
}

TEST_CASE("digest - is the same on every path, for every length, offset and base alignment")
{
    const bytes data = random_bytes(3 * detail::digest_period_bytes);
    for (const auto path : every_path) {
        if (!detail::supports(path)) {
            MESSAGE("skipped, not supported by this machine: " << std::string(detail::name(path)));
            continue;
        }
        CAPTURE(std::string(detail::name(path)));
        for (std::size_t length = 0; length < 300; ++length) {
            for (std::uint64_t first : {0u, 1u, 2u, 3u, 4u, 12u, 28u, 30u, 60u, 64u, 4092u, 8000u, 8191u}) {
                const auto* const base = data.data() + length % 37;
                collprobe::detail::digest_state expected;
                for (std::size_t i = 0; i < length; ++i) expected.add(first + i, base[i]);
                const collprobe::detail::digest_state state = detail::digest_bytes(path, base, length, first);
                if (state.first != expected.first || state.second != expected.second || state.bytes != length)
                    FAIL("length " << length << " first byte " << first);
            }
        }
        const collprobe::detail::digest_state whole = detail::digest_bytes(path, data.data(), data.size(), 0);
        CHECK(whole.finish() == naive_digest(data));
    }
}

TEST_CASE("digest - the keys have the properties on which its guarantees rest")
{
    std::set<std::uint32_t> keys;
    std::vector<std::uint64_t> weights;
    for (std::uint32_t j = 0; j < detail::digest_period; ++j) {
        CHECK(detail::digest_key(j) % 2 == 1);
        CHECK(detail::digest_keys.key[j] == detail::digest_key(j));
        keys.insert(detail::digest_key(j));
        weights.push_back(detail::digest_weight(j));
        CHECK(weights.back() % 2 == 1);
    }
    CHECK(keys.size() == detail::digest_period);

    // How often 2 divides the difference of two weights. It must divide none 33 times.
    int most = 0;
    int most_of_a_place = 0; // in two lines whose distance is no multiple of 64 lines
    for (std::uint32_t i = 0; i < detail::digest_period; ++i) {
        for (std::uint32_t j = 0; j < i; ++j) {
            const int factors = std::countr_zero(weights[i] - weights[j]);
            most = std::max(most, factors);
            if ((i - j) % 16 == 0 && (i - j) % 1024 != 0) most_of_a_place = std::max(most_of_a_place, factors);
        }
    }
    CHECK(most == 19);
    CHECK(most_of_a_place == 6);
    // Of three words, two have weights whose difference 2^16 does not divide.
    std::map<std::uint64_t, int> alike;
    for (const std::uint64_t weight : weights) CHECK(++alike[weight % (1u << 16)] <= 2);
}

TEST_CASE("digest - a null view is an error that names the call, an empty one is not")
{
    CHECK(digest(view<const float>()) == naive_digest({}));
    try {
        digest(view<const float>(nullptr, 3));
        FAIL("no error");
    } catch (const error& caught) {
        CHECK(caught.code() == status::invalid_argument);
        CHECK(std::string(caught.call()) == "digest");
        CHECK(std::string(caught.what()).find("count of 3") != std::string::npos);
    }
}

} // namespace collprobe::testing::digest_test
