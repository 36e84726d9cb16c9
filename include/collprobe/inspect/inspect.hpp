// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/inspect/detail/call.hpp>
#include <collprobe/inspect/detail/inspector.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Finds out how a communicator's all-reduce adds `count` elements of type T: order and partial
/// sums; whether the bits are stable; error, and speed. It makes sums of chosen values only, so the answer holds for
/// this size, type and buffers, at this time.
///
///     puts(report::inspection_table({inspect<bfloat16>(comm, stream, 1 << 20)}).c_str());
///
/// Shapes: any communicator, also an adaptor; T of 16 bits or more; count >= 1, equal on all ranks as the options are.
/// Collective: all ranks call, and all get the same answer.
/// Stream behaviour: a diagnostic. It allocates, enqueues its calls on `stream`, and the host waits for each.
/// \throws error `invalid_argument` for a count of 0 or options that allow no measurement; `unsupported` inside
///   an NCCL group or a capture; the communicator's errors.
/// Cost for n ranks: all-reduces for the order O(n log n) on average if additions have two terms (README.md has
/// numbers), n (n - 1) / 2 at most, never more than `most_order_calls`, and n all-gathers of n bytes; for the bits of
/// partial sums up to 7 (n - 2), at most 33 * 7; about 40 others, 95 for small messages.
/// Memory: 8 times the message on the host, 4 times on the device. Source of the search: FPRev, arXiv 2411.00442.
template <detail::inspectable T, communicator Comm>
inspection inspect(Comm& comm, stream_ref_of<Comm> stream, std::uint64_t count, const inspect_options& options = {},
    call_site where = call_site::current())
{
    const detail::caller<Comm> who(comm, "inspect", where);
    who.require(count != 0, "count is 0: there is nothing to add");
    who.require(options.repeats >= 2, "repeats is below 2: no two calls to compare");
    who.require(options.samples != 0, "samples is 0: nothing to compare with the exact sum");
    who.require(options.timed >= 1 && options.warm_ups >= 0 && options.permutations >= 0,
        "timed is below 1, or warm_ups or permutations below 0");
    who.require_immediate();
    const auto scope = comm.device_scope();
    if constexpr (detail::can_capture<stream_ref_of<Comm>>) {
        if (stream.capturing(where)) who.fail(status::unsupported, "the host cannot wait inside a capture");
    }
    detail::calls_over<T, Comm> calls(comm, stream, 2 * count, where);
    return detail::inspector<T>(comm.rank(), comm.size(), comm.name(), count, options, calls, calls).run();
}

} // namespace collprobe
