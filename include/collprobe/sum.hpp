// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Sums of floating-point numbers: exact, or in a stated order and width.

#include <collprobe/core/ulp.hpp>
#include <collprobe/sum/accumulation.hpp>
#include <collprobe/sum/combine.hpp>
#include <collprobe/sum/dot.hpp>
#include <collprobe/sum/exact_sum.hpp>
#include <collprobe/sum/order.hpp>
#include <collprobe/sum/round_scaled.hpp>
#include <collprobe/sum/sum_in_order.hpp>
#include <collprobe/sum/sum_rows.hpp>
