// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Collectives of codes of 4 or 8 bits, and what the codes did to the numbers.

#include <collprobe/quant/format.hpp>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>
#include <collprobe/quant/slice_codec.hpp>
