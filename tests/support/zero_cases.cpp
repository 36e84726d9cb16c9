// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

TEST_CASE("one case") { CHECK(true); }
