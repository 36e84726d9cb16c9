// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/ptx/engine.hpp"

namespace collprobe::testing {

/// What the kernels did that ended since the last call. The first call begins to count bytes and sectors.
ptx::counts take_counts();

} // namespace collprobe::testing
