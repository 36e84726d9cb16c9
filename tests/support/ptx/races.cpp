// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/support/ptx/block.hpp"

namespace ptx {

namespace {

/// Whether all earlier readers of the byte are this thread, or ordered before it.
bool ordered_after_readers(const warp& w, const shared_byte& byte, int lane)
{
    if (byte.reader == shared_byte::nobody) return true;
    if (byte.reader != static_cast<s16>(w.number)) return false;
    return (byte.reader_lanes & ~(u32{1} << lane)) == 0 || w.syncs > byte.read_at;
}

bool ordered_after_writer(const warp& w, const shared_byte& byte, int lane)
{
    if (byte.writer == shared_byte::nobody) return true;
    if (byte.writer != static_cast<s16>(w.number)) return false;
    return byte.writer_lane == lane || w.syncs > byte.written_at;
}

void note_read(const warp& w, shared_byte& byte, int lane)
{
    const auto own = static_cast<s16>(w.number);
    if (byte.reader != shared_byte::nobody && byte.reader != own) {
        byte.reader = shared_byte::several;
        return;
    }
    // Reads from before a common sync need not be kept: what comes is ordered after them.
    if (byte.reader == own && byte.read_at < w.syncs) byte.reader_lanes = 0;
    byte.reader = own;
    byte.reader_lanes |= u32{1} << lane;
    byte.read_at = w.syncs;
}

} // namespace

void check_race(warp& w, const instruction& i, u32 at, unsigned bytes, access how, int lane)
{
    block& in = *w.in;
    for (u32 k = at; k < at + bytes; ++k) {
        shared_byte& byte = in.shared_bytes[k];
        if (byte.epoch != in.epoch) {
            byte = {};
            byte.epoch = in.epoch;
        }
        const bool both_atomic = how == access::atomic && byte.atomic;
        if (!both_atomic && !ordered_after_writer(w, byte, lane)) {
            fail(w, i, lane,
                std::string("race: ") + (how == access::read ? "reads" : "writes") + " shared memory (byte "
                    + std::to_string(k) + ") that another thread wrote, with no barrier between");
        }
        if (how == access::read) {
            note_read(w, byte, lane);
            continue;
        }
        if (!ordered_after_readers(w, byte, lane)) {
            fail(w, i, lane,
                "race: writes shared memory (byte " + std::to_string(k)
                    + ") that another thread read, with no barrier between");
        }
        if (how == access::atomic && byte.atomic && byte.writer != static_cast<s16>(w.number)) {
            byte.writer = shared_byte::several;
        } else {
            byte.writer = static_cast<s16>(w.number);
        }
        byte.atomic = how == access::atomic;
        byte.writer_lane = static_cast<u8>(lane);
        byte.written_at = w.syncs;
    }
}

} // namespace ptx
