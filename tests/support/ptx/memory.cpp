// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <functional>
#include <type_traits>

#include "tests/support/ptx/block.hpp"
#include "tests/support/ptx/forms.hpp"

/// Loads, stores, atomic operations and fences.
namespace ptx {
namespace {

/// Where the lanes' accesses are on this machine, and what they are.
struct places {
    u64 at[32];
    u32 shared = 0; ///< lanes that access shared memory
    u32 local = 0;
    u32 global = 0;
};

bool within(u64 at, unsigned bytes, const void* begin, std::size_t size)
{
    const auto first = reinterpret_cast<u64>(begin);
    return at >= first && at - first + bytes <= size;
}

bool within(u64 at, unsigned bytes, const memory_range& range)
{
    return at >= range.begin && at < range.end && bytes <= range.end - at;
}

/// Between static and dynamic shared memory there is nothing.
bool is_shared_memory(const block& in, u64 at, unsigned bytes)
{
    if (at > in.shared_size || bytes > in.shared_size - at) return false;
    return at >= dynamic_at || at + bytes <= in.of->shared_bytes;
}

/// Sorts a generic address, or one of global memory, by what it points to.
void find_place(warp& w, const instruction& i, unsigned bytes, int lane, places& where)
{
    block& in = *w.in;
    const u64 at = where.at[lane];
    if (within(at, bytes, w.known)) {
        where.global |= u32{1} << lane;
        return;
    }
    if (within(at, bytes, in.shared, in.shared_size)) {
        if (!is_shared_memory(in, at - reinterpret_cast<u64>(in.shared), bytes))
            fail(w, i, lane, "beyond the shared memory");
        where.shared |= u32{1} << lane;
        return;
    }
    if (within(at, bytes, in.local_memory.data(), in.local_memory.size())) {
        const u64 own = w.local + static_cast<u64>(lane) * w.local_bytes;
        if (!within(at, bytes, {own, own + w.local_bytes})) fail(w, i, lane, "beyond the local memory");
        where.local |= u32{1} << lane;
        return;
    }
    if (within(at, bytes, in.parameters, in.of->parameter_bytes)) return;
    where.global |= u32{1} << lane;
    if (in.how->find_range == nullptr) return;
    const memory_range found = in.how->find_range(at);
    if (!within(at, bytes, found)) {
        char text[32];
        std::snprintf(text, sizeof text, "%#llx", static_cast<unsigned long long>(at));
        fail(w, i, lane, std::string("no live memory of the device at ") + text);
    }
    w.known = found;
}

/// Adds up what an access of global memory moves.
void count_global(warp& w, const instruction& i, const places& where, bool is_load)
{
    counts& sum = w.in->sum;
    const unsigned bytes = unsigned{i.bytes} * i.elements;
    const auto lanes = static_cast<unsigned>(std::popcount(where.global));
    u64 sectors[64];
    std::size_t count = 0;
    for (u32 left = where.global; left != 0; left &= left - 1) {
        const u64 at = where.at[std::countr_zero(left)];
        if (count == 0 || sectors[count - 1] != at / 32) sectors[count++] = at / 32;
        if ((at + bytes - 1) / 32 != at / 32) sectors[count++] = (at + bytes - 1) / 32;
    }
    std::sort(sectors, sectors + count);
    const auto touched = static_cast<u64>(std::unique(sectors, sectors + count) - sectors);
    const u64 least = (u64{lanes} * bytes + 31) / 32;
    (is_load ? sum.bytes_loaded : sum.bytes_stored) += u64{lanes} * bytes;
    (is_load ? sum.load_sectors : sum.store_sectors) += touched;
    (is_load ? sum.least_load_sectors : sum.least_store_sectors) += std::min(least, touched);
    if (bytes < 16) {
        sum.narrow_accesses += lanes;
        sum.narrow_bytes += u64{lanes} * bytes;
    }
}

/// Shared memory has 32 banks of 4 bytes. An access of 8 or 16 bytes a lane is done by half or quarter warps.
void count_shared(warp& w, const instruction& i, const places& where)
{
    const unsigned bytes = unsigned{i.bytes} * i.elements;
    const unsigned parts = bytes <= 4 ? 1 : bytes / 4;
    const auto base = reinterpret_cast<u64>(w.in->shared);
    u64 passes = 0;
    for (unsigned part = 0; part < parts; ++part) {
        const unsigned lanes = 32 / parts;
        const u32 mask = where.shared & (lanes == 32 ? ~u32{0} : ((u32{1} << lanes) - 1) << (part * lanes));
        u64 words[32][32];
        unsigned of_bank[32] = {};
        unsigned most = 0;
        for (u32 left = mask; left != 0; left &= left - 1) {
            const u64 first = (where.at[std::countr_zero(left)] - base) / 4;
            for (u64 word = first; word < first + (bytes + 3) / 4; ++word) {
                const auto bank = static_cast<unsigned>(word % 32);
                u64* const known = words[bank];
                if (std::find(known, known + of_bank[bank], word) != known + of_bank[bank]) continue;
                known[of_bank[bank]++] = word;
                most = std::max(most, of_bank[bank]);
            }
        }
        if (most == 0) continue;
        passes += most;
        ++w.in->sum.least_shared_passes;
        w.in->sum.worst_bank_conflict = std::max(w.in->sum.worst_bank_conflict, most);
    }
    w.in->sum.shared_passes += passes;
}

/// Finds the places of the lanes' accesses, and checks them.
void find_places(warp& w, const instruction& i, u32 mask, access how, places& where)
{
    const auto offset = static_cast<u64>(i.offset);
    if (i.address_bytes == 8) {
        const u64* const from = values<u64>(w, i.a);
        each_lane(mask, [&](int l) { where.at[l] = from[l] + offset; });
    } else if (i.address_bytes == 4) {
        const u32* const from = values<u32>(w, i.a);
        each_lane(mask, [&](int l) { where.at[l] = from[l] + static_cast<u32>(offset); }); // wraps
    } else {
        each_lane(mask, [&](int l) { where.at[l] = offset; });
    }
    block& in = *w.in;
    const unsigned bytes = unsigned{i.bytes} * i.elements;
    switch (i.in) {
    case space::param:
        if (i.address_bytes == 0) each_lane(mask, [&](int l) { where.at[l] += reinterpret_cast<u64>(in.parameters); });
        return;
    case space::shared:
        for (u32 left = mask; left != 0; left &= left - 1) {
            const int l = std::countr_zero(left);
            if (!is_shared_memory(in, where.at[l], bytes)) fail(w, i, l, "beyond the shared memory");
            where.at[l] += reinterpret_cast<u64>(in.shared);
        }
        where.shared = mask;
        break;
    case space::local:
        for (u32 left = mask; left != 0; left &= left - 1) {
            const int l = std::countr_zero(left);
            if (where.at[l] + bytes > w.local_bytes || where.at[l] + bytes < where.at[l])
                fail(w, i, l, "beyond the local memory");
            where.at[l] += w.local + static_cast<u64>(l) * w.local_bytes;
        }
        where.local = mask;
        break;
    default:
        for (u32 left = mask; left != 0; left &= left - 1) find_place(w, i, bytes, std::countr_zero(left), where);
    }
    for (u32 left = mask; left != 0; left &= left - 1)
        if ((where.at[std::countr_zero(left)] & (bytes - 1)) != 0) fail(w, i, std::countr_zero(left), "misaligned");
    if (where.shared != 0) {
        if (in.how->count) count_shared(w, i, where);
        if (in.how->check) {
            const auto base = reinterpret_cast<u64>(in.shared);
            for (u32 left = where.shared; left != 0; left &= left - 1) {
                const int l = std::countr_zero(left);
                check_race(w, i, static_cast<u32>(where.at[l] - base), bytes, how, l);
            }
        }
    }
    if (!in.how->count) return;
    if (where.global != 0 && how != access::atomic) count_global(w, i, where, how == access::read);
    if (where.local != 0) ++in.sum.local_accesses;
}

template <class T>
void load(warp& w, const instruction& i, u32 mask)
{
    places where;
    find_places(w, i, mask, access::read, where);
    const bool from_view = w.in->is_random() && where.global != 0;
    for (unsigned k = 0; k < i.elements; ++k) {
        if (i.d[k] == none) continue;
        const u64 offset = k * sizeof(T);
        if (from_view) {
            for (u32 left = mask; left != 0; left &= left - 1) {
                const int l = std::countr_zero(left);
                const u64 at = where.at[l] + offset;
                const bool global = (where.global >> l & 1) != 0;
                const u64 bits = global ? w.in->view.load(at, sizeof(T), i.how) : read_memory(at, sizeof(T));
                write_as<T>(w, i.d[k], i.widths[0], l, static_cast<T>(bits));
            }
        } else if (i.widths[0] == sizeof(T)) {
            T* const to = values<T>(w, i.d[k]);
            for (u32 left = mask; left != 0; left &= left - 1) {
                const int l = std::countr_zero(left);
                to[l] = *reinterpret_cast<const volatile T*>(where.at[l] + offset);
            }
        } else {
            for (u32 left = mask; left != 0; left &= left - 1) {
                const int l = std::countr_zero(left);
                write_as<T>(w, i.d[k], i.widths[0], l, *reinterpret_cast<const volatile T*>(where.at[l] + offset));
            }
        }
    }
}

global_view::stamp stamp_of(const warp& w, int lane)
{
    return {w.number * 32 + static_cast<u32>(lane), w.syncs, w.in->epoch};
}

/// Lets the stores through that happened before an operation of these lanes.
void release_stores(warp& w, u32 mask)
{
    w.in->view.release([&](const global_view::stamp& store) {
        if (store.epoch < w.in->epoch) return true; // the barrier was between them
        if (store.thread / 32 != w.number) return false;
        return (mask >> store.thread % 32 & 1) != 0 || w.syncs > store.warp_syncs;
    });
}

template <class T>
void store(warp& w, const instruction& i, u32 mask)
{
    places where;
    find_places(w, i, mask, access::write, where);
    block& in = *w.in;
    const bool to_view = in.is_random() && where.global != 0;
    for (unsigned k = 0; k < i.elements; ++k) {
        const u64 offset = k * sizeof(T);
        for (u32 left = mask; left != 0; left &= left - 1) {
            const int l = std::countr_zero(left);
            const T value = read_as<T>(w, i.d[k], i.widths[0], l);
            const u64 at = where.at[l] + offset;
            if (to_view && (where.global >> l & 1) != 0) {
                in.view.store(
                    at, static_cast<u64>(value) & (~u64{0} >> (64 - 8 * sizeof(T))), sizeof(T), stamp_of(w, l));
                if (i.how != order::cached) in.view.settle(at, sizeof(T));
            } else {
                *reinterpret_cast<volatile T*>(at) = value;
            }
        }
    }
}

struct increment {
    template <class T>
    static T of(T old, T limit)
    {
        return old >= limit ? T{0} : static_cast<T>(old + 1);
    }
};
/// `d[0]`: the old value, or none.
template <class T, class Operation>
void atomic(warp& w, const instruction& i, u32 mask)
{
    using bits = std::conditional_t<sizeof(T) == 8, u64, u32>;
    places where;
    find_places(w, i, mask, access::atomic, where);
    block& in = *w.in;
    for (u32 left = mask; left != 0; left &= left - 1) {
        const int l = std::countr_zero(left);
        if (in.is_random() && (where.global >> l & 1) != 0) in.view.settle(where.at[l], sizeof(T));
        auto* const to = reinterpret_cast<bits*>(where.at[l]);
        const T operand = values<T>(w, i.b)[l];
        bits old = __atomic_load_n(to, __ATOMIC_RELAXED);
        for (;;) {
            const T next = Operation::of(std::bit_cast<T>(old), operand);
            if (__atomic_compare_exchange_n(
                    to, &old, std::bit_cast<bits>(next), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
                break;
        }
        if (i.d[0] != none) values<T>(w, i.d[0])[l] = std::bit_cast<T>(old);
    }
    // What other blocks see just now may be of interest: sometimes this block rests.
    if (in.is_random() && where.global != 0) {
        in.yields = true;
        if (in.random.one_in(4)) in.rests = in.random.below(2000);
    }
}

void fence(warp& w, const instruction&, u32 mask)
{
    if (w.in->is_random()) {
        release_stores(w, mask);
        w.in->view.empty_cache();
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/// Adds `times` the address of local or shared memory: to a generic address, or back.
template <int times>
void move_local(warp& w, const instruction& i, u32 mask)
{
    each_lane(mask, [&](int l) {
        const u64 base = w.local + static_cast<u64>(l) * w.local_bytes;
        values<u64>(w, i.d[0])[l] = values<u64>(w, i.a)[l] + static_cast<u64>(times) * base;
    });
}
template <class T>
void add_moves(table& forms, const std::string& type)
{
    forms["ld." + type] = &load<T>;
    forms["st." + type] = &store<T>;
}
template <class T>
void add_atomics(table& forms, const std::string& type)
{
    forms["atom.add." + type] = &atomic<T, addition>;
    forms["atom.min." + type] = &atomic<T, minimum>;
    forms["atom.inc." + type] = &atomic<T, increment>;
}

} // namespace

void add_memory_forms(table& forms)
{
    add_moves<u8>(forms, "u8");
    add_moves<s8>(forms, "s8");
    add_moves<u8>(forms, "b8");
    add_moves<u16>(forms, "u16");
    add_moves<s16>(forms, "s16");
    add_moves<u16>(forms, "b16");
    add_moves<u32>(forms, "u32");
    add_moves<s32>(forms, "s32");
    for (const char* const type : {"b32", "f32"}) add_moves<u32>(forms, type);
    add_moves<u64>(forms, "u64");
    add_moves<s64>(forms, "s64");
    for (const char* const type : {"b64", "f64"}) add_moves<u64>(forms, type);
    add_atomics<u32>(forms, "u32");
    add_atomics<u64>(forms, "u64");
    forms["atom.add.f32"] = &atomic<f32, addition>;
    forms["membar.gl"] = &fence;
    forms["cvta.local"] = &move_local<1>;
    forms["cvta.to.local"] = &move_local<-1>;
}

} // namespace ptx
