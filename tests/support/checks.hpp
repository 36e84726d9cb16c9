// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/error.hpp>

#include "errors.hpp"

/// What tests check with.
namespace collprobe::testing {

/// A failure has this status and these parts in its message, and names a line of the calling test.
inline void check_error(const std::optional<error>& failure, status code, const std::vector<std::string>& parts,
    call_site where = call_site::current())
{
    REQUIRE(failure);
    const std::string what = failure->what();
    CAPTURE(what);
    CHECK(std::string(name(failure->code())) == name(code));
    const std::string test = where.file;
    CHECK(failure->where().file == test);
    CHECK(contains(what, test.substr(test.rfind('/') + 1) + ":"));
    for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(contains(what, part));
    }
}

/// The same of what a rank ended with (`rank_outcome`); the error has these culprits.
template <class Outcome>
void check_error(const Outcome& outcome, status code, const std::vector<int>& culprits,
    const std::vector<std::string>& parts, call_site where = call_site::current())
{
    const std::optional<error> failure = outcome.failure();
    check_error(failure, code, parts, where);
    CHECK(failure->culprits() == culprits);
}

/// And the message names the rank and its communicator.
template <class Outcome>
void check_error(const Outcome& outcome, int rank, status code, const std::vector<int>& culprits,
    const std::vector<std::string>& parts, call_site where = call_site::current())
{
    CAPTURE(rank);
    check_error(outcome, code, culprits, parts, where);
    const std::optional<error> failure = outcome.failure();
    CHECK(failure->rank() == rank);
    CHECK(contains(failure->what(), "rank " + std::to_string(rank) + " of "));
    CHECK(contains(failure->what(), "'" + failure->communicator() + "'"));
}

/// No rank has thrown.
template <class Outcome>
void check_all(const std::vector<Outcome>& outcomes)
{
    for (const Outcome& outcome : outcomes) {
        if (outcome.thrown) CHECK_NOTHROW(std::rethrow_exception(outcome.thrown));
    }
}

} // namespace collprobe::testing
