// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <initializer_list>
#include <string>

#include <doctest/doctest.h>

#include <collprobe/simd/dispatch.hpp>

namespace collprobe::testing::dispatch_test {

using namespace collprobe::detail;

TEST_CASE("the newest path is the one whose instruction sets the system lists")
{
#if COLLPROBE_VECTORS && defined(__x86_64__)
    isa expected = isa::portable;
    std::ifstream file("/proc/cpuinfo");
    std::string line;
    while (std::getline(file, line) && line.rfind("flags", 0) != 0) {}
    REQUIRE_MESSAGE(file, "/proc/cpuinfo has no flags");
    line += ' ';
    const auto has_all = [&](std::initializer_list<const char*> sets) {
        for (const char* const each : sets) {
            if (line.find(std::string(" ") + each + ' ') == line.npos) return false;
        }
        return true;
    };
    if (has_all({"avx2", "fma", "f16c"})) expected = isa::vectors;
#else
    const isa expected = COLLPROBE_VECTORS != 0 ? isa::vectors : isa::portable;
#endif
    CHECK(best_isa() == expected);
    for (const isa each : {isa::portable, isa::vectors}) CHECK(supports(each) == (each <= expected));
}

} // namespace collprobe::testing::dispatch_test
