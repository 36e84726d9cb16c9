// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/record.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// How gradient directions are compared.
enum class direction_mode : std::uint8_t {
    pooled, ///< from norms alone, and leave-one-out where inputs outlive their all-reduce: no message
    exact, ///< from the Gram matrix of the gradients: one more gradient-sized message a step
};

/// What `probed` looks at, and how many steps it holds. Equal on all ranks.
struct probe_options {
    report_mode mode = report_mode::gather;
    direction_mode direction = direction_mode::pooled;
    int exact_every = 1; ///< with `exact`: every so many steps, `pooled` in between. A captured step is exact if it is 1
    int max_calls = 64; ///< probed calls a step; further ones are forwarded and counted
    /// Elements of each sum or average of which all ranks' terms travel with the step's message, to measure how
    /// much the reduction depends on its order (`call_record::order`); 0 for none. `gather` and `results` only.
    /// Costs two launches a call, 16 bytes an element and rank in the message, and on the host, where a step is judged
    /// (in `poll`, or in a call that waits for the oldest step), what `order_meter` says: with 8 ranks some 0.3 to 1 us
    /// an element, with 256 10 to 30.
    int order_sample = 0;
    int orders = 8; ///< tried on each sampled element: linear, pairwise, the others random
    bool results = true; ///< read results too: agreement, pooled and leave-one-out cosine need it
    int steps_in_flight = 4; ///< steps whose records may be under way
    int unread_steps = 64; ///< finished steps kept for `poll`; then the oldest is dropped
    int streams = 4; ///< on which a step's calls may be without an allocation; in a capture no more
    int captured_steps = 1; ///< held at a time; no cost on a device without graphs
    double false_alarms_per_step = 1e-4; ///< of all statistical checks of a step together
    std::uint64_t scratch_bytes = std::uint64_t{4} << 20; ///< for `exact`, in device memory
};

} // namespace collprobe
