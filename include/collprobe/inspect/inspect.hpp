// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record/inspection.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/inspect/detail/inspector.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// Finds out what a communicator's all-reduce does to `count` elements of type T: in which order it adds the
/// ranks' values, what its partial sums keep, whether its bits are stable, how far they are from the exact sum,
/// and how fast it is. It calls nothing but sums, with values that show the order: so it sees what the
/// communicator does now, for this size, type and buffers, not what it may do elsewhere.
///
///     const inspection found = inspect<bfloat16>(comm, stream, 1 << 20);
///     puts(report::inspection_table({found}).c_str());
///
/// Shapes: any communicator, adaptors too; count >= 1, equal on all ranks, as the options are.
/// Collective: all ranks call, and all get the same answer.
/// Stream behaviour: a diagnostic. It allocates, its calls are enqueued on `stream`, and the host waits for each.
/// \throws error `invalid_argument` for a count of 0 or options that allow no measurement; `unsupported` inside
///   an NCCL group or a capture; the communicator's errors.
/// Cost: with n ranks n (n - 1) / 2 all-reduces for the order (for more than 32 ranks n + 256), up to 7 (n - 2)
/// for the bits of partial sums, 32 * 7 at most, and some 40; of small messages, where more sums must be
/// compared, some hundred. Memory: 8 times the message on the host, 4 times on the device.
/// Source: the order by FPRev's basic method (P. Xie et al., arXiv 2411.00442), at all positions at once.
template <floating_element T, communicator Comm>
    requires(has_all_reduce<Comm, T> && has_all_gather<Comm, std::uint8_t>)
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
    const auto scope = detail::enter_device(comm);
    if constexpr (detail::can_capture<stream_ref_of<Comm>>) {
        if (stream.capturing(where)) who.fail(status::unsupported, "the host cannot wait inside a capture");
    }
    return detail::inspector<T, Comm>(comm, stream, count, options, where).run();
}

} // namespace collprobe
