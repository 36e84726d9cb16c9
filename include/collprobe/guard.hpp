// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Copies followed by all-gathers, ordered by events alone.

#include <collprobe/guard/copy_then_all_gather.hpp>
#include <collprobe/guard/gather_options.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/guard/stream_list.hpp>
