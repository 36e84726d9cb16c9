// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Runs the pieces of a call: for each, `send` on the call's stream, `add` on the stream `memory.sums`, then
/// `finish` on the call's stream. While one piece is added the next one is sent, so a piece uses memory slot
/// 0 or 1 in turn. A call of one piece uses no other stream. `plan.next(piece)` is the piece after another
/// one, of `count` 0 behind the last.
template <class Memory, class StreamRef, class Plan, class Send, class Add, class Finish>
class overlapped_pieces {
    using piece_type = decltype(std::declval<const Plan&>().next({}));

public:
    static void run(Memory& memory, StreamRef on, call_site where, const Plan& plan, const Send& send,
        const Add& add, const Finish& finish)
    {
        const piece_type piece = plan.next({});
        if (piece.count == 0) return;
        if (plan.next(piece).count == 0) {
            send(piece, 0);
            add(piece, 0, on);
            finish(piece, 0);
            return;
        }
        const StreamRef sums = memory.sums;
        memory.begun.record(on);
        sums.wait(memory.begun, where);
        try {
            overlap(memory, on, where, plan, piece, send, add, finish);
        } catch (...) {
            try { // work that waits for the call's stream must also wait for the sums
                memory.summed[0].record(sums);
                on.wait(memory.summed[0], where);
            } catch (...) { // the first error is the informative one
            }
            throw;
        }
    }

private:
    static void overlap(Memory& memory, StreamRef on, call_site where, const Plan& plan, piece_type piece,
        const Send& send, const Add& add, const Finish& finish)
    {
        const StreamRef sums = memory.sums;
        piece_type before{};
        int slot = 0;
        for (; piece.count != 0; piece = plan.next(piece)) {
            send(piece, slot);
            memory.arrived[slot].record(on);
            sums.wait(memory.arrived[slot], where);
            add(piece, slot, sums);
            memory.summed[slot].record(sums);
            if (before.count != 0) {
                on.wait(memory.summed[1 - slot], where);
                finish(before, 1 - slot);
            }
            before = piece;
            slot = 1 - slot;
        }
        on.wait(memory.summed[1 - slot], where);
        finish(before, 1 - slot);
    }
};

template <class Memory, class StreamRef, class Plan, class Send, class Add, class Finish>
void run_overlapped(Memory& memory, StreamRef on, call_site where, const Plan& plan, const Send& send,
    const Add& add, const Finish& finish)
{
    overlapped_pieces<Memory, StreamRef, Plan, Send, Add, Finish>::run(
        memory, on, where, plan, send, add, finish);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
