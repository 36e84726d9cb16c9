// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include <collprobe/scan/copy_statistics.hpp>

#include "adversarial.hpp"

using namespace collprobe;

namespace {

template <class T>
statistics copied(view<const T> source, view<T> destination)
{
    host::stream stream;
    host::device::workspace scratch;
    statistics result;
    copy_with_statistics<host::device>(stream, source, destination, &result, scratch);
    stream.synchronize(20'000);
    return result;
}

} // namespace

TEST_CASE("a copy with statistics copies every byte and nothing else, and has the bits of statistics")
{
    testing::for_each_floating_type([](auto sample) {
        using T = decltype(sample);
        for (const std::size_t count : {0u, 1u, 16383u, 16384u, 50001u}) {
            const std::vector<T> source = adversarial::random_elements<T>(count, 1, 2, 7);
            std::vector<T> destination(count + 2, T{});
            const statistics found = copied(view<const T>(source), view<T>(destination.data() + 1, count));
            const statistics expected = compute_statistics(view<const T>(source));
            CHECK(std::memcmp(&found, &expected, sizeof found) == 0);
            CHECK((count == 0 || std::memcmp(destination.data() + 1, source.data(), count * sizeof(T)) == 0));
            CHECK(to_bits(destination.front()) == 0);
            CHECK(to_bits(destination.back()) == 0);
        }
    });
}

TEST_CASE("bytes that are NaN are copied as they are")
{
    std::vector<float> source(5000, detail::bit_cast<float>(0x7f800123u));
    std::vector<float> destination(5000);
    const statistics found = copied(view<const float>(source), view<float>(destination));
    CHECK(found.nan == 5000);
    CHECK(std::memcmp(source.data(), destination.data(), 5000 * sizeof(float)) == 0);
}

TEST_CASE("buffers that do not fit each other are refused by name")
{
    std::vector<float> a(8), b(8);
    host::stream stream;
    host::device::workspace scratch;
    statistics result;
    const auto refused = [&](view<const float> from, view<float> to, statistics* into, const char* word) {
        try {
            copy_with_statistics<host::device>(stream, from, to, into, scratch);
            FAIL_CHECK("accepted");
        } catch (const error& failure) {
            CHECK(failure.code() == status::invalid_argument);
            CHECK(std::string(failure.what()).find(word) != std::string::npos);
            CHECK(std::string(failure.what()).find("copy_with_statistics") != std::string::npos);
        }
    };
    refused({a.data(), 8}, {b.data(), 7}, &result, "count");
    refused({a.data(), 4}, {a.data() + 3, 4}, &result, "overlap");
    refused({nullptr, 4}, {b.data(), 4}, &result, "null");
    refused({a.data(), 4}, {nullptr, 4}, &result, "null");
    refused({a.data(), 4}, {b.data(), 4}, nullptr, "result");
    CHECK_NOTHROW(copy_with_statistics<host::device>(stream, view<const float>(), view<float>(), &result, scratch));
    stream.synchronize(20'000);
    CHECK(result.count == 0);
}
