// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/disagreement.hpp>
#include <collprobe/replica/replica.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// The result of a repair. Equal on every rank.
struct repair_result {
    bool repaired = false; ///< all ranks hold the same bits now; this was verified
    /// False: of a buffer no bits are held by more than half of the ranks, and no rank was named as the reference. So
    /// nothing was changed.
    bool majority = true;
    int rounds = 0; ///< 0 if there was nothing to repair
    std::uint64_t bytes = 0; ///< bytes of elements sent to every rank
    std::vector<disagreement> found; ///< as `locate` found it before the first round
};

/// Gives all ranks the bits that most of them hold, in buffers that should be equal (weights, optimizer state, ...);
/// or, with `agreement_options::reference_rank`, those of that rank. Most ranks may be wrong alike, and then a repair
/// without a reference spreads what is wrong: name the rank that holds what is right, where there is one.
/// Each buffer is judged by itself. If any buffer has no majority, none is changed; averaging repairs remain for that
/// case. Only blocks that differ are sent, from a rank of the majority and through all adaptors, and only the other
/// ranks are written to. Then everything is checked again. If the repair was damaged it is repeated, up to 4 rounds,
/// from another rank of the majority if there is one.
/// Shapes, preconditions: those of `agreement`. Collective, and the host blocks: all ranks must decide for it in the
/// same step, as by a record of `probed::wait` (README.md). Steps under way during a repair report the old difference
/// once more; the next repair then finds nothing.
/// Errors: `mismatch`, on all ranks, which names a rank with another count or type; those of `agreement`.
/// Cost: while all agree, 16 bytes a buffer and one read. Otherwise the cost of `agreement::locate`, another check, and
/// a broadcast of the differences (with up to some 64 bytes around each).
template <communicator Comm>
repair_result majority_repair(agreement<Comm>& check, view<const replica> buffers, stream_ref_of<Comm> stream,
    call_site where = call_site::current())
{
    constexpr int most_rounds = 4;
    repair_result result;
    for (;;) {
        const std::vector<detail::located_difference> found = check.find(buffers, stream, "majority_repair", where);
        if (result.rounds == 0) {
            for (const detail::located_difference& each : found) result.found.push_back(each.report);
        }
        result.repaired = found.empty();
        if (result.repaired) return result;
        for (const detail::located_difference& each : found)
            result.majority = result.majority && each.report.has_reference();
        if (!result.majority || result.rounds == most_rounds) return result;
        for (const detail::located_difference& each : found) {
            for (const difference& other : each.report.differences) {
                if (other.same_shape) continue;
                detail::caller(check.communicator(), "majority_repair", where)
                    .fail(status::mismatch,
                        "buffer " + std::to_string(each.report.buffer) + " of rank " + std::to_string(other.rank)
                            + " has another count or type than that of rank "
                            + std::to_string(each.report.holders.front()),
                        {other.rank});
            }
        }
        for (const detail::located_difference& each : found)
            result.bytes += check.restore(each, result.rounds, buffers, stream, where);
        ++result.rounds;
    }
}

} // namespace collprobe
