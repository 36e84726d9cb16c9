// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The failure modes that host streams and ranks of one process can have. README.md lists them all.
#include <doctest/doctest.h>

#include "tests/race_lab/host_lab.hpp"
#include "tests/race_lab/modes.hpp"

namespace collprobe::race_lab::host_test {

#define ON_HOST(name, mode) \
    TEST_CASE(name) { mode<host_lab>(); }
COLLPROBE_RACE_LAB_MODES(ON_HOST)

} // namespace collprobe::race_lab::host_test
