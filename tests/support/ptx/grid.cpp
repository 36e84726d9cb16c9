// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "tests/support/ptx/block.hpp"

/// Blocks, their barriers, and the order in which they run.
namespace ptx {
namespace {

constexpr u8 poison = 0xA5;
constexpr std::size_t line = 256; ///< alignment of shared memory

template <class T>
T* aligned(std::vector<T>& memory, std::size_t to)
{
    return memory.data() + (to - reinterpret_cast<u64>(memory.data()) % to) % to;
}

u64 value_of(const block& b, const kernel::special_register& s, u32 warp_number, u32 lane)
{
    const u32 thread = warp_number * 32 + lane;
    switch (s.what) {
    case special::tid: return thread % b.threads.x;
    case special::ntid: return b.threads.x;
    case special::ctaid: return b.index % b.grid.x;
    case special::nctaid: return b.grid.x;
    case special::parameter_address: return reinterpret_cast<u64>(b.parameters) + s.value;
    }
    return 0;
}

void fill_registers(block& b, warp& w)
{
    for (const kernel::special_register& s : b.of->specials) {
        for (u32 lane = 0; lane < 32; ++lane) {
            const u64 value = value_of(b, s, w.number, lane);
            if (s.what == special::parameter_address) values<u64>(w, s.at)[lane] = value;
            else values<u32>(w, s.at)[lane] = static_cast<u32>(value);
        }
    }
}

} // namespace

counts& counts::operator+=(const counts& next)
{
    constexpr std::uint64_t counts::*added[] = {&counts::warp_instructions, &counts::thread_instructions,
        &counts::bytes_loaded, &counts::bytes_stored, &counts::load_sectors, &counts::store_sectors,
        &counts::least_load_sectors, &counts::least_store_sectors, &counts::narrow_accesses, &counts::narrow_bytes,
        &counts::shared_passes, &counts::least_shared_passes, &counts::local_accesses};
    static_assert(sizeof(counts) == (std::size(added) + 1) * sizeof(std::uint64_t), "a number is not in the table");
    for (std::uint64_t counts::*const each : added) this->*each += next.*each;
    worst_bank_conflict = std::max(worst_bank_conflict, next.worst_bank_conflict);
    return *this;
}

void set_up(block& b, const kernel& k, dims grid, dims threads, std::size_t dynamic_shared,
    const u8* parameters, const schedule& how)
{
    const bool is_ready
        = b.of == &k && b.threads.count() == threads.count() && b.dynamic_bytes == dynamic_shared;
    b.of = &k;
    b.how = &how;
    b.grid = grid;
    b.threads = threads;
    b.parameters = parameters;
    b.dynamic_bytes = dynamic_shared;
    b.sum = {};
    if (is_ready) return; // it ran before
    const u32 warps = (static_cast<u32>(threads.count()) + 31) / 32;
    const std::size_t of_warp = (k.register_bytes + 63) / 64 * 64;
    b.register_memory.assign(of_warp * warps + 64, poison);
    b.local_memory.assign(std::size_t{k.local_bytes} * 32 * warps + 64, poison);
    b.shared_size = k.has_dynamic ? dynamic_at + static_cast<u32>(dynamic_shared) : k.shared_bytes;
    b.shared_memory.assign(b.shared_size + line, poison);
    b.shared = aligned(b.shared_memory, line);
    b.warps.resize(warps);
    u8* const registers = aligned(b.register_memory, 64);
    u8* const local = aligned(b.local_memory, 16);
    for (u32 number = 0; number < warps; ++number) {
        warp& w = b.warps[number];
        w.in = &b;
        w.number = number;
        w.registers = registers + of_warp * number;
        w.local_bytes = k.local_bytes;
        w.local = reinterpret_cast<u64>(local) + u64{k.local_bytes} * 32 * number;
        for (const kernel::constant& c : k.constants)
            for (unsigned lane = 0; lane < 32; ++lane)
                std::memcpy(w.registers + c.at + lane * c.width, &c.value, c.width);
    }
}

void begin(block& b, u64 index)
{
    b.index = index;
    ++b.epoch;
    b.yields = false;
    b.rests = 0;
    b.random = random_numbers(b.how->seed ^ (index + 1) * 0x2545f4914f6cdd1du);
    b.view = global_view(b.random());
    const auto count = static_cast<u32>(b.threads.count());
    b.unfinished = count;
    std::memset(b.shared, poison, b.shared_size);
    std::fill(b.local_memory.begin(), b.local_memory.end(), poison);
    if (b.how->check) b.shared_bytes.resize(b.shared_size);
    for (warp& w : b.warps) {
        const u32 lanes = std::min(32u, count - w.number * 32);
        w.live = lanes == 32 ? ~u32{0} : (u32{1} << lanes) - 1;
        w.known = {};
        w.groups.assign(1, {0, w.live, false});
        w.at_barrier.clear();
        w.syncs = 0;
        fill_registers(b, w);
    }
}

bool pass_barriers(block& b)
{
    u32 arrived = 0;
    for (const warp& w : b.warps)
        for (const warp::group& group : w.at_barrier) arrived += static_cast<u32>(std::popcount(group.mask));
    if (arrived == 0 || arrived < b.unfinished) return false;
    ++b.epoch;
    for (warp& w : b.warps) {
        if (w.at_barrier.empty()) continue;
        warp::group joined = w.at_barrier.front();
        for (const warp::group& group : w.at_barrier) {
            if (group.pc != joined.pc)
                fail(w, b.of->code[group.pc - 1], std::countr_zero(group.mask),
                    "lanes of a warp are at different barriers");
            joined.mask |= group.mask;
        }
        w.at_barrier.clear();
        w.groups.push_back(joined);
    }
    return true;
}

void fail_stuck(const block& b)
{
    for (const warp& w : b.warps) {
        if (!w.groups.empty())
            fail(w, b.of->code[w.groups[0].pc], std::countr_zero(w.groups[0].mask),
                "deadlock: waits for lanes that never come");
    }
    for (const warp& w : b.warps) {
        if (!w.at_barrier.empty())
            fail(w, b.of->code[w.at_barrier[0].pc - 1], std::countr_zero(w.at_barrier[0].mask),
                "deadlock: waits for threads that never come");
    }
    throw fault("deadlock in " + b.of->name);
}

struct block_pool {
    static constexpr std::size_t most = 16;
    std::mutex guard;
    std::vector<std::unique_ptr<block>> blocks;
};

std::shared_ptr<block_pool> make_block_pool() { return std::make_shared<block_pool>(); }

namespace {

/// A launch under way: the blocks that take turns, and those to come.
class grid_run {
public:
    grid_run(const kernel& k, dims grid, dims threads, std::size_t dynamic_shared, const u8* parameters,
        const schedule& how)
        : kernel_(k),
          grid_(grid),
          threads_(threads),
          dynamic_shared_(dynamic_shared),
          parameters_(parameters),
          how_(how),
          random_(how.seed),
          ended_(how.seed)
    {
    }

    counts run()
    {
        if (how_.seed == 0) run_in_order();
        else run_at_random();
        ended_.release_all();
        return sum_;
    }

private:
    std::unique_ptr<block> make_block()
    {
        auto made = std::make_unique<block>();
        {
            const std::lock_guard lock(kernel_.idle->guard);
            if (!kernel_.idle->blocks.empty()) {
                made = std::move(kernel_.idle->blocks.back());
                kernel_.idle->blocks.pop_back();
            }
        }
        set_up(*made, kernel_, grid_, threads_, dynamic_shared_, parameters_, how_);
        return made;
    }
    void put_back(std::unique_ptr<block> done)
    {
        const std::lock_guard lock(kernel_.idle->guard);
        if (kernel_.idle->blocks.size() < block_pool::most) kernel_.idle->blocks.push_back(std::move(done));
    }
    u64 blocks() const { return grid_.count(); }

    void run_in_order()
    {
        std::unique_ptr<block> current = make_block();
        for (u64 next = 0; next < blocks(); ++next) {
            begin(*current, next);
            while (current->unfinished != 0) {
                for (warp& w : current->warps)
                    if (advance(w, how_.endless) == progress::paused)
                        fail(w, kernel_.code[w.groups[0].pc], std::countr_zero(w.groups[0].mask),
                            "does not end: only in a random schedule may it wait for other blocks or lanes");
                if (current->unfinished != 0 && !pass_barriers(*current)) fail_stuck(*current);
            }
            collect(*current);
        }
        put_back(std::move(current));
    }

    void run_at_random()
    {
        std::vector<std::unique_ptr<block>> resident;
        u64 next = 0;
        for (; next < std::max(1u, how_.resident_blocks) && next < blocks(); ++next) {
            resident.push_back(make_block());
            begin(*resident.back(), next);
        }
        while (!resident.empty()) {
            const std::size_t chosen = random_.below(resident.size());
            block& b = *resident[chosen];
            if (b.rests != 0) {
                --b.rests;
                continue;
            }
            const bool moved = advance_some_warp(b);
            b.view.pass_time();
            ended_.pass_time();
            if (b.unfinished != 0) {
                if (!pass_barriers(b) && !moved) fail_stuck(b);
                continue;
            }
            b.view.hand_over(ended_);
            collect(b);
            if (next < blocks()) {
                begin(b, next++);
                continue;
            }
            put_back(std::move(resident[chosen]));
            resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(chosen));
        }
    }

    bool advance_some_warp(block& b)
    {
        const std::size_t count = b.warps.size();
        const std::size_t from = b.random.below(count);
        for (std::size_t k = 0; k < count; ++k) {
            warp& w = b.warps[(from + k) % count];
            if (std::all_of(
                    w.groups.begin(), w.groups.end(), [](const warp::group& group) { return group.waits; }))
                continue;
            advance(w, 1 + b.random.below(200));
            return true;
        }
        return false;
    }

    void collect(block& b)
    {
        sum_ += b.sum;
        b.sum = {};
    }

    const kernel& kernel_;
    dims grid_, threads_;
    std::size_t dynamic_shared_;
    const u8* parameters_;
    const schedule& how_;
    random_numbers random_;
    global_view ended_; ///< stores of blocks that have ended
    counts sum_;
};

} // namespace

counts run(const kernel& k, dims grid, dims threads, std::size_t dynamic_shared,
    std::span<const unsigned char> arguments, const schedule& how)
{
    if (threads.count() > k.most_threads || threads.count() == 0)
        throw fault("a block of " + std::to_string(threads.count()) + " threads; at most "
            + std::to_string(k.most_threads) + " are possible: " + k.name);
    return grid_run(k, grid, threads, dynamic_shared, arguments.data(), how).run();
}

} // namespace ptx
