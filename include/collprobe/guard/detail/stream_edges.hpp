// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/guard/stream_list.hpp>

/// The edges from producers to a call, and from the call to its consumers.
namespace collprobe::inline COLLPROBE_ABI::detail {

template <class StreamRef>
bool is_new_stream(const stream_list<StreamRef>& list, const StreamRef* which, StreamRef on)
{
    if (*which == on) return false;
    for (const StreamRef* earlier = list.begin(); earlier != which; ++earlier) {
        if (*earlier == *which) return false;
    }
    return true;
}

template <class Event, class StreamRef>
void record_at(Event& event, StreamRef on, call_site where)
{
    if constexpr (requires { event.record(on, where); }) event.record(on, where);
    else event.record(on);
}

/// Lets `on` wait for the work enqueued so far on the producers: one record and one wait for each other stream.
/// In a capture all of them must be in the same capture; `on` joins it.
template <communicator Comm>
void await_producers(
    const caller<Comm>& who, stream_ref_of<Comm> on, const stream_list<stream_ref_of<Comm>>& producers)
{
    using stream_ref = stream_ref_of<Comm>;
    const call_site where = who.where();
    if constexpr (can_capture<stream_ref>) {
        unsigned long long capture = on.capture_number(where);
        for (const stream_ref& producer : producers) {
            if (capture == 0) capture = producer.capture_number(where);
        }
        for (const stream_ref& producer : producers) {
            if (capture == 0 || producer == on || producer.capture_number(where) == capture) continue;
            who.fail(status::invalid_argument,
                "half of it would be captured: the stream of the all-gather or a producer is capturing, and another "
                "producer is not in that capture");
        }
    }
    for (const stream_ref* producer = producers.begin(); producer != producers.end(); ++producer) {
        if (!is_new_stream(producers, producer, on)) continue;
        typename Comm::device::event ready;
        record_at(ready, *producer, where);
        on.wait(ready, where);
    }
}

/// Lets later work on the consumers wait for `done`, which was recorded on `on`.
template <class StreamRef, class Event>
void hold_consumers(const stream_list<StreamRef>& consumers, StreamRef on, const Event& done, call_site where)
{
    for (const StreamRef* consumer = consumers.begin(); consumer != consumers.end(); ++consumer) {
        if (is_new_stream(consumers, consumer, on)) consumer->wait(done, where);
    }
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
