// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Checks of what collectives did: sums conserved, results alike, shards undamaged; and the weights of averages.

#include <collprobe/audit/audit.hpp>
#include <collprobe/audit/conservation_bound.hpp>
#include <collprobe/audit/merge_ranks.hpp>
#include <collprobe/audit/weight_probe.hpp>
