// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/json.hpp>

/// Alarms as text for people and as JSON lines.
namespace collprobe::inline COLLPROBE_ABI::report {

/// An alarm as one line of text, without a newline at its end: "step 17, bucket 1: rank 3 held other bits of a result
/// than the other ranks (result_differs); damage: on the result's way to the ranks, or in their memory; what to do:
/// resync from rank 0". A statistical alarm has its number and rate too.
std::string describe(const alarm_record& raised);

/// An alarm as a JSON line. `kind` is "alarm"; the members are those of the struct, with `check`, `damage` and `advice`
/// by name. `ranks` is an array, empty if no rank is named; `bucket` and `source` are null if there is none.
std::string json_line(const line_head& head, const alarm_record& raised);

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/alarm.ipp>
#endif
