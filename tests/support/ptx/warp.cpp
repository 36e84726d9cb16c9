// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <x86intrin.h>

#include "tests/support/ptx/block.hpp"
#include "tests/support/ptx/forms.hpp"

/// How a warp advances, and the instructions that its lanes execute together.
namespace ptx {

void fail(const warp& w, const instruction& i, int lane, const std::string& why)
{
    const kernel& k = *w.in->of;
    throw fault(why + ": block " + std::to_string(w.in->index) + ", warp " + std::to_string(w.number)
        + ", lane " + std::to_string(lane) + ", at line " + std::to_string(i.line) + " `" + k.texts[i.text]
        + "` of " + k.name);
}

namespace {

// --- Instructions of all members ---

enum shuffle_mode : u8 { shuffle_down, shuffle_butterfly };

/// The lane that `lane` reads from, and whether that is inside its segment.
struct shuffle_source {
    int lane;
    bool inside;
};
template <shuffle_mode mode>
[[gnu::always_inline]] inline shuffle_source source_of(int lane, u32 distance_bits, u32 control)
{
    const auto distance = static_cast<int>(distance_bits & 31);
    const auto segment = static_cast<int>(control >> 8 & 31);
    const auto clamp = static_cast<int>(control & 31);
    const int last = (lane & segment) | (clamp & ~segment);
    const int source = mode == shuffle_down ? lane + distance : lane ^ distance;
    return {source <= last ? source : lane, source <= last};
}

template <shuffle_mode mode>
void shuffle(warp& w, const instruction& i, u32 mask)
{
    u32 from[32];
    std::memcpy(from, values<u32>(w, i.a), sizeof from);
    const u32* const distances = values<u32>(w, i.b);
    const u32* const controls = values<u32>(w, i.c);
    u32* const to = values<u32>(w, i.d[0]);
    u32 sources[32];
    u32 inside[32];
    for (int lane = 0; lane < 32; ++lane) {
        const shuffle_source source = source_of<mode>(lane, distances[lane], controls[lane]);
        sources[lane] = static_cast<u32>(source.lane & 31);
        inside[lane] = source.inside;
    }
    if (mask == ~u32{0}) { // the common case, for speed
        for (int lane = 0; lane < 32; ++lane) to[lane] = from[sources[lane]];
        if (i.d[1] != none)
            for (int lane = 0; lane < 32; ++lane) values<u8>(w, i.d[1])[lane] = static_cast<u8>(inside[lane]);
        return;
    }
    for (u32 left = mask; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        if ((mask >> sources[lane] & 1) == 0) fail(w, i, lane, "shuffles from a lane that does not take part");
        to[lane] = from[sources[lane]];
    }
    if (i.d[1] != none) each_lane(mask, [&](int lane) { values<u8>(w, i.d[1])[lane] = static_cast<u8>(inside[lane]); });
}

void shuffle_any(warp& w, const instruction& i, u32 mask)
{
    if (i.mode == shuffle_down) shuffle<shuffle_down>(w, i, mask);
    else shuffle<shuffle_butterfly>(w, i, mask);
}

enum vote_mode : u8 { vote_any, vote_ballot };

void vote(warp& w, const instruction& i, u32 mask)
{
    const u32 yes = (lanes_of(w, i.a) ^ (i.widths[1] != 0 ? ~u32{0} : 0)) & mask;
    each_lane(mask, [&](int lane) {
        if (i.mode == vote_ballot) values<u32>(w, i.d[0])[lane] = yes;
        else values<u8>(w, i.d[0])[lane] = yes != 0;
    });
}

void clock(warp& w, const instruction& i, u32 mask)
{
    const u64 now = __rdtsc();
    each_lane(mask, [&](int lane) { values<u64>(w, i.d[0])[lane] = now; });
}

/// In nanoseconds.
void global_timer(warp& w, const instruction& i, u32 mask)
{
    const auto now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    each_lane(mask, [&](int lane) { values<u64>(w, i.d[0])[lane] = static_cast<u64>(now); });
}

void sync_warp(warp& w, const instruction& i, u32 mask)
{
    if (mask != w.live) fail(w, i, std::countr_zero(mask), "unsupported: a sync of some lanes of the warp alone");
    ++w.syncs;
}

// --- Advancing ---

/// The run of one group of lanes, until it ends, waits, or meets a branch that divides it.
class group_run {
public:
    group_run(warp& w, warp::group from, u64& left) : w_(w), pc_(from.pc), mask_(from.mask), left_(left)
    {
        look_ahead();
    }

    /// False: the warp pauses, because its instructions are used up or other blocks shall have a turn.
    bool run()
    {
        const instruction* const code = w_.in->of->code.data();
        for (;;) {
            if (pc_ == meeting_) join();
            if (left_ == 0) {
                put_back(pc_, mask_);
                return false;
            }
            --left_;
            const instruction& i = code[pc_];
            const u32 active = active_lanes(i);
            ++w_.in->sum.warp_instructions;
            w_.in->sum.thread_instructions += static_cast<unsigned>(std::popcount(active));
            if (i.what == kind::plain) [[likely]] {
                if (active != 0) i.run(w_, i, active);
                ++pc_;
                if (i.bytes != 0 && w_.in->yields) {
                    w_.in->yields = false;
                    put_back(pc_, mask_);
                    return false;
                }
            } else if (!control(i, active)) {
                return true;
            }
        }
    }

private:
    /// The nearest instruction at which other lanes wait to be joined.
    void look_ahead()
    {
        meeting_ = none;
        if (w_.in->is_random()) return;
        for (const warp::group& other : w_.groups)
            if (other.pc >= pc_ && other.pc < meeting_) meeting_ = other.pc;
    }
    /// Takes in the groups that are at the same instruction.
    void join()
    {
        for (std::size_t k = 0; k < w_.groups.size();) {
            if (w_.groups[k].pc != pc_) {
                ++k;
                continue;
            }
            mask_ |= w_.groups[k].mask;
            w_.groups[k] = w_.groups.back();
            w_.groups.pop_back();
        }
        look_ahead();
    }
    /// The lanes for which the predicate holds.
    u32 active_lanes(const instruction& i) const
    {
        if (i.predicate == none) return mask_;
        const u32 yes = lanes_of(w_, i.predicate);
        return mask_ & (i.negated ? ~yes : yes);
    }
    void put_back(u32 pc, u32 mask, bool waits = false)
    {
        if (mask != 0) w_.groups.push_back({pc, mask, waits});
    }

    /// False: the group cannot go on at once.
    bool control(const instruction& i, u32 active)
    {
        switch (i.what) {
        case kind::branch: return branch(i, active);
        case kind::warp_sync: return synchronize(i, active);
        case kind::barrier:
            if (active != 0) w_.at_barrier.push_back({pc_ + 1, active, false});
            put_back(pc_ + 1, mask_ & ~active);
            return false;
        default: // leave
            w_.live &= ~active;
            w_.in->unfinished -= static_cast<u32>(std::popcount(active));
            put_back(pc_ + 1, mask_ & ~active);
            // Those that wait for the lanes that left look again.
            for (warp::group& other : w_.groups) other.waits = false;
            return false;
        }
    }

    bool branch(const instruction& i, u32 active)
    {
        if (active == 0) {
            ++pc_;
            return true;
        }
        if (active == mask_) {
            pc_ = i.target;
            if (w_.groups.empty()) return true;
            put_back(pc_, mask_); // others may be behind now
            return false;
        }
        put_back(pc_ + 1, mask_ & ~active);
        put_back(i.target, active);
        return false;
    }

    bool synchronize(const instruction& i, u32 active)
    {
        if (active == 0) {
            ++pc_;
            return true;
        }
        if (w_.in->is_random()) {
            join();
            active = active_lanes(i);
        }
        if (active != mask_) fail(w_, i, std::countr_zero(active), "members that the predicate leaves out");
        const u32* const members = values<u32>(w_, i.e);
        const u32 wanted = members[std::countr_zero(active)];
        if (is_complete(i, active, wanted) && same_members(members, active, wanted) == active) {
            i.run(w_, i, active);
            ++pc_;
            return true;
        }
        // Lanes may name different members, such as each half of a warp itself.
        for (u32 left = active; left != 0;) {
            const u32 named = members[std::countr_zero(left)];
            const u32 together = same_members(members, left, named);
            left &= ~together;
            const bool goes_on = is_complete(i, together, named);
            if (goes_on) i.run(w_, i, together);
            put_back(goes_on ? pc_ + 1 : pc_, together, !goes_on);
        }
        return false;
    }
    static u32 same_members(const u32* members, u32 lanes, u32 wanted)
    {
        u32 same = 0;
        for (u32 left = lanes; left != 0; left &= left - 1)
            if (members[std::countr_zero(left)] == wanted) same |= left & (~left + 1);
        return same;
    }
    bool is_complete(const instruction& i, u32 lanes, u32 wanted) const
    {
        if (const u32 others = lanes & ~wanted;
            others != 0 && same_members(values<u32>(w_, i.e), others, wanted) != 0)
            fail(w_, i, std::countr_zero(others), "a lane that is no member");
        return (wanted & w_.live & ~lanes) == 0;
    }

    warp& w_;
    u32 pc_;
    u32 mask_;
    u32 meeting_ = none;
    u64& left_;
};

/// The group that is behind, so that branches meet again; in a random schedule any.
std::size_t choose(warp& w)
{
    const std::size_t count = w.groups.size();
    std::size_t chosen = count;
    if (w.in->is_random() && count > 1) {
        const std::size_t from = w.in->random.below(count);
        for (std::size_t k = 0; k < count && chosen == count; ++k)
            if (!w.groups[(from + k) % count].waits) chosen = (from + k) % count;
        return chosen;
    }
    for (std::size_t k = 0; k < count; ++k)
        if (!w.groups[k].waits && (chosen == count || w.groups[k].pc < w.groups[chosen].pc)) chosen = k;
    return chosen;
}

/// Lanes at the same instruction may go on together, or not.
void join_some(warp& w)
{
    for (std::size_t one = 0; one < w.groups.size(); ++one) {
        for (std::size_t other = one + 1; other < w.groups.size();) {
            warp::group& into = w.groups[one];
            const warp::group& from = w.groups[other];
            if (into.pc != from.pc || into.waits || from.waits || w.in->random.one_in(4)) {
                ++other;
                continue;
            }
            into.mask |= from.mask;
            w.groups[other] = w.groups.back();
            w.groups.pop_back();
        }
    }
}

} // namespace

progress advance(warp& w, u64 most)
{
    for (u64 left = most;;) {
        if (w.in->is_random() && w.groups.size() > 1) join_some(w);
        const std::size_t chosen = choose(w);
        if (chosen == w.groups.size()) return progress::blocked;
        const warp::group from = w.groups[chosen];
        w.groups[chosen] = w.groups.back();
        w.groups.pop_back();
        if (!group_run(w, from, left).run()) return progress::paused;
    }
}

void add_warp_forms(table& forms)
{
    forms["shfl"] = &shuffle_any;
    forms["vote"] = &vote;
    forms["%globaltimer"] = &global_timer;
    forms["%clock64"] = &clock;
    forms["bar.warp.sync"] = &sync_warp;
}

} // namespace ptx
