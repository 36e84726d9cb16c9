// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <collprobe/core/record/inspection.hpp>
#include <collprobe/report/json.hpp>

/// Inspections of all-reduces as a table and as JSON lines.
namespace collprobe::inline COLLPROBE_ABI::report {

namespace detail {

/// "24 (float)", ">=121", "-"
std::string partial_sum_precision(const inspection& found);

} // namespace detail

/// A row per inspection, as in nccl-tests: size, count and type first, bandwidths last. The letters of `stable` tell
/// what the bits do not depend on (`-` for a missing letter): r: the run; s: the size of the message and the place in
/// it; p: which rank has which value. A "!" after them: the ranks got different bits.
std::string inspection_table(const std::vector<inspection>& found);

/// The orders of one inspection, one per line: first element, number of elements, the ranks that see it if not all do,
/// and the order in brackets.
std::string order_list(const inspection& found);

/// An inspection as a JSON line. `kind` is "inspection"; the members are those of the struct. Bits and roundings are
/// null if undefined or unknown; `reproduced` is "nan" if there is nothing to compare with.
std::string json_line(const line_head& head, const inspection& found);

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/inspection.ipp>
#endif
