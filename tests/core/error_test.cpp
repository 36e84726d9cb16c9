// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <collprobe/core/error.hpp>

namespace collprobe::testing::error_test {
namespace {

call_site line_of_caller(call_site where = call_site::current()) { return where; }

} // namespace

TEST_CASE("a call site is the line of the call")
{
    const call_site here = line_of_caller();
    CHECK(here.line == __LINE__ - 1);
    CHECK(std::string(here.file).find("error_test.cpp") != std::string::npos);
}

TEST_CASE("an error names call, status, rank, communicator and line")
{
    const call_site here = line_of_caller();
    const error failure(status::mismatch, "rank 3 passed 7 elements",
        {.call = "all_reduce", .rank = 1, .size = 8, .communicator = "world", .where = here}, {3});
    const std::string text = failure.what();
    for (const char* part : {"collprobe", "all_reduce", "mismatch", "rank 3 passed 7 elements", "rank 1 of 8",
             "'world'", "error_test.cpp"}) {
        CAPTURE(part);
        CHECK(text.find(part) != std::string::npos);
    }
    CHECK(text.find(std::to_string(here.line)) != std::string::npos);
    CHECK(failure.code() == status::mismatch);
    CHECK(failure.rank() == 1);
    CHECK(failure.communicator() == "world");
    CHECK(failure.culprits() == std::vector<int>{3});
}

TEST_CASE("an error without a communicator does not speak of ranks")
{
    const error failure(status::timeout, "late", {.call = "synchronize", .communicator = {}});
    CHECK(std::string(failure.what()).find("rank") == std::string::npos);
    CHECK(failure.rank() == -1);
    CHECK(failure.culprits().empty());
    CHECK(std::string(error(status::timeout, "late", {.where = {}}).what()) == "collprobe: timeout: late");
    CHECK(std::string(error(status::timeout, "late", {.where = call_site::named("w")}).what()).find("['w']") != std::string::npos);
    CHECK(std::string(name(static_cast<status>(99))) == "unknown");
}

} // namespace collprobe::testing::error_test
