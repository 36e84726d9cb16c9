// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/error.hpp>
#include <collprobe/device/last_use.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The order of calls that use the same memory, on whatever streams they are.
template <class Device>
struct ordered_use {
    typename Device::event done; ///< the last call: nothing uses the memory beyond it
    typename Device::event done_in_capture; ///< the last one of `capture`, a point of its graph
    unsigned long long capture = 0;

    /// The memory is the last call's until that is done: `stream` waits for it. Returns what is to mark the end of this
    /// one: the points of a capture mean nothing outside of it, nor what is outside to it.
    template <class StreamRef>
    typename Device::event& wait_for_last(StreamRef stream, call_site where)
    {
        if constexpr (can_capture<StreamRef>) {
            if (stream.capturing(where)) {
                const unsigned long long number = stream.capture_number(where);
                if (number != capture) done_in_capture = {};
                capture = number;
                if (done_in_capture.recorded()) stream.wait(done_in_capture, where);
                return done_in_capture;
            }
        }
        if (done.recorded()) stream.wait(done, where);
        return done;
    }
};

} // namespace collprobe::detail
