// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The engine's kernels as host loops on the stand-in's streams.
#include "tests/support/stand_in/kernels.hpp"

#include "examples/preload/engine/reads.ipp"
