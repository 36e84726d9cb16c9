// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/order/stream_hazard.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Writes the missing edge and the cure into a report.
inline void explain(stream_hazard& report)
{
    const stream_hazard::side& earlier = report.earlier;
    const stream_hazard::side& later = report.later;
    const auto edge = [&] {
        report.missing = "nothing orders " + later.place() + " on " + later.actor() + " behind " + earlier.place()
            + " on " + earlier.actor();
        if (earlier.on_host && later.on_host) {
            report.cure = "hand the bytes over from " + earlier.actor() + " to " + later.actor() + " after "
                + earlier.place() + " (join, or handoff_release and handoff_acquire where they lock)";
        } else if (earlier.on_host) {
            report.cure = "let the thread that enqueues " + later.place() + " learn of " + earlier.place() + " on "
                + earlier.actor() + " (join, or handoff_release and handoff_acquire where they lock)";
        } else if (later.on_host) {
            report.cure = "record an event on " + earlier.actor() + " after " + earlier.place() + " and synchronise "
                + later.actor() + " with it before " + later.place();
        } else {
            report.cure = "record an event on " + earlier.actor() + " after " + earlier.place() + " and let "
                + later.actor() + " wait for it before " + later.place();
        }
    };
    switch (report.kind) {
    case hazard_kind::read_after_write:
    case hazard_kind::write_after_read:
    case hazard_kind::write_after_write:
        edge();
        return;
    case hazard_kind::released_in_use:
        edge();
        if (std::string(later.operation).starts_with("cudaFree")) { // by cuda/ordered.hpp
            report.cure += " (" + std::string(later.operation) + " may wait for the device, but CUDA does not promise "
                + "it; options::free_synchronizes takes it that it does)";
        }
        return;
    case hazard_kind::unrecorded_event:
        report.missing = "the event that " + later.actor() + " waits for at " + later.place() + " was never recorded";
        report.cure = "record the event before " + later.place();
        return;
    case hazard_kind::use_after_release:
        report.missing = "the bytes have no owner since " + earlier.place() + " on " + earlier.actor();
        report.cure
            = "release them after " + later.place() + ", on a stream that waits for it or behind a synchronisation";
        return;
    case hazard_kind::overwritten_in_group:
        report.missing = earlier.place() + " reads when its group ends, and " + later.place() + " on "
            + later.actor() + " overwrites the bytes before that";
        report.cure = "end the group before " + later.place() + ", or give it another buffer";
        return;
    case hazard_kind::beyond_allocation:
        report.missing = "the last " + std::to_string(later.bytes.end() - earlier.bytes.end())
            + " of these bytes, because the allocation of " + std::to_string(earlier.bytes.bytes) + " bytes from "
            + hexadecimal(earlier.bytes.first) + " ends before them";
        report.cure = "give " + later.place() + " the count of its elements, not of bytes or of another buffer, or "
            + "allocate " + std::to_string(later.bytes.end() - earlier.bytes.first) + " bytes";
        return;
    case hazard_kind::half_captured:
        edge();
        report.missing += "; it was enqueued while the graph was captured, but not captured with it";
        report.cure = "capture both or neither, or " + report.cure;
        return;
    }
}

} // namespace collprobe::detail
