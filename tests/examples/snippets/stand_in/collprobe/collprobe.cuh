// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In place of the header of that name where no nvcc is: the same, with the stand-in's kernels.
#include <collprobe/collprobe.hpp>
#include <collprobe/nccl.hpp>

#include "tests/support/stand_in/kernels.hpp"
