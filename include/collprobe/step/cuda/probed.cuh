// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kernels of `probed`: for the reducers that read an input and a result.
#include <collprobe/scan/cuda/one_read.cuh>
#include <collprobe/step/detail/message.hpp>
