// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kernels of `probed`: for the reducers that read an input and a result.
#include <collprobe/scan/cuda/result_reducer.cuh>
#include <collprobe/scan/cuda/statistics.cuh>
#include <collprobe/step/detail/message.hpp>
