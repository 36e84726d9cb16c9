// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Faults of public bug reports, each told in the first step that can show it; their healthy twins are silent.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "bench/kinds.hpp"
#include "support/element_types.hpp"

namespace collprobe::testing::kinds_test {

TEST_CASE("each kind of fault is told in its first step, with its rank, and its healthy twin is silent")
{
#if COLLPROBE_TEST_BRIEF
    constexpr std::uint64_t steps = COLLPROBE_TEST_UNLESS_SANITIZED(150, 40);
#else
    constexpr std::uint64_t steps = 1'000; // bench/confusion_table: 10,000
#endif
    for (const kinds::kind& each : kinds::all()) {
        const std::string report = each.report;
        CAPTURE(report);
        const kinds::outcome wrong = kinds::run(each, true, 40);
        CAPTURE(wrong.text);
        CHECK(wrong.first == each.first);
        CHECK(wrong.alarms > 0);
        const kinds::outcome healthy = kinds::run(each, false, steps);
        CAPTURE(healthy.text);
        CHECK(healthy.exact == 0);
        // 1e-4 of the steps may have a number that stands out, and 1e-2 of the runs a rank that is unlike the others.
        CHECK(healthy.statistical <= 1 + steps / 2000);
    }
}

} // namespace collprobe::testing::kinds_test
