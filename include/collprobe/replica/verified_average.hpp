// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>
#include <collprobe/replica/periodic_averaging.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// An average that is not taken on trust: averages now, then checks that all ranks received the same bits. What few
/// ranks received otherwise is replaced by what most did, and checked again, `options.max_rounds` times at most.
///
/// It finds what changes the average on its way to some ranks. What all ranks received alike is not seen here: a rank
/// that was wrong before is in the average, and so is what the sum itself got wrong (`conservation_check`). If more
/// than half of the ranks were hit, as by noise on every rank, there is no majority: `majority` is false, nothing is
/// changed, and another average brings the ranks together no better than this one did.
/// The same for `dynamic_averaging`: `majority_repair` between `before_update` and the optimiser, in the steps in
/// which `begin_step` returned true.
///
/// Blocks the host. Collective. Errors: those of both parts. Cost: an average and that of `majority_repair`.
template <communicator Comm, communicator Checked>
repair_result verified_average(periodic_averaging<Comm>& repair, agreement<Checked>& check, stream_ref_of<Comm> stream,
    repair_options options = {}, call_site where = call_site::current())
{
    repair.average(stream, where);
    return majority_repair(check, repair.buffers(), stream, options, where);
}

} // namespace collprobe
