// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether replicas agree, and what to do if not: locate, repair, average.

#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/disagreement.hpp>
#include <collprobe/replica/majority_repair.hpp>
#include <collprobe/replica/receipt.hpp>
#include <collprobe/replica/replica.hpp>
#include <collprobe/replica/replica_averaging.hpp>
