// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Models that must and must not satisfy the concepts.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/device/host/device.hpp>

using namespace collprobe;

namespace {

struct minimal {
    using device = host::device;
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
};

struct may_throw {
    using device = host::device;
    int rank() const { return 0; }
    int size() const { return 1; }
};

struct without_device {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
};

struct floats_only : minimal {
    void all_reduce(view<const float>, view<float>, reduction, host::stream_ref, call_site) {}
};

struct takes_bytes : minimal { // counts in bytes are what the concept is there to refuse
    void all_reduce(const void*, void*, std::uint64_t, reduction, host::stream_ref, call_site) {}
};

struct splits_into_itself : minimal {
    std::optional<minimal> split(int, int, call_site) { return minimal{}; }
};

struct splits_into_a_number : minimal {
    std::optional<int> split(int, int, call_site) { return 1; }
};

} // namespace

TEST_CASE("a communicator has a device, and observers that do not throw")
{
    CHECK(communicator<minimal>);
    CHECK_FALSE(communicator<may_throw>);
    CHECK_FALSE(communicator<without_device>);
    CHECK_FALSE(communicator<int>);
}

TEST_CASE("capabilities are asked for one by one and by element type")
{
    CHECK(has_all_reduce<floats_only, float>);
    CHECK_FALSE(has_all_reduce<floats_only, double>);
    CHECK_FALSE(has_all_reduce<minimal, float>);
    CHECK_FALSE(has_all_reduce<takes_bytes, float>);
    CHECK_FALSE(has_all_gather<floats_only, float>);
    CHECK_FALSE(full_communicator<floats_only, float>);
}

TEST_CASE("a split must give communicators")
{
    CHECK(has_split<splits_into_itself>);
    CHECK_FALSE(has_split<splits_into_a_number>);
    CHECK_FALSE(has_split<minimal>);
}

TEST_CASE("every reduction has a name")
{
    for (int i = 0; i <= static_cast<int>(reduction::product); ++i) {
        CHECK(std::strcmp(name(static_cast<reduction>(i)), "unknown") != 0);
    }
}
