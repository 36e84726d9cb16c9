// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The checker of stream order. Compile all of the program with COLLPROBE_STREAM_ORDER=1.

#include <collprobe/order/hooks.hpp>
#include <collprobe/order/ordered.hpp>
#include <collprobe/order/stream.hpp>
#include <collprobe/order/stream_hazard.hpp>
#include <collprobe/order/stream_order.hpp>
