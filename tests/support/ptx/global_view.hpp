// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tests/support/ptx/program.hpp"

namespace ptx {

/// SplitMix64: the same numbers for the same seed.
class random_numbers {
public:
    explicit random_numbers(std::uint64_t seed = 0) : state_(seed) {}

    std::uint64_t operator()()
    {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    /// One of 0 to n - 1.
    std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
    bool one_in(std::uint64_t n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};

/// Global memory as the threads of one block see it in a random schedule. Their stores wait here, and reach
/// memory in any order; those to the same address keep theirs. The block's first-level cache keeps old values
/// of what other blocks write. A fence lets the stores through that happened before it, and empties the
/// cache.
class global_view {
public:
    /// The thread of a store, and when it stored.
    struct stamp {
        u32 thread;
        u32 warp_syncs; ///< of its warp until then
        u32 epoch; ///< barriers of the block until then
    };
    explicit global_view(std::uint64_t seed = 0) : random_(seed) {}

    void store(u64 at, u64 value, unsigned bytes, stamp who);
    u64 load(u64 at, unsigned bytes, order how);
    /// Lets all stores to these bytes through, and drops them from the cache: before an atomic operation.
    void settle(u64 at, unsigned bytes);
    /// Lets the stores through for which `before(stamp)` is true, and stores to the same addresses before
    /// them.
    template <class Before>
    void release(Before before)
    {
        for (std::size_t k = 0; k < stores_.size();) {
            if (before(stores_[k].who)) commit(k);
            else ++k;
        }
    }
    void release_all();
    /// Hands the stores over to `later`: the block has ended.
    void hand_over(global_view& later);
    void empty_cache() { cache_.clear(); }
    /// Lets some store through, from time to time.
    void pass_time();

private:
    struct pending {
        u64 at;
        u64 value;
        u32 bytes;
        stamp who;
        bool overlaps(u64 from, unsigned count) const { return at < from + count && from < at + bytes; }
    };
    static constexpr u64 sector = 32;
    static constexpr std::size_t most_stores = 64;
    static constexpr std::size_t most_sectors = 256;

    /// Lets store `k` through, and older ones to the same word before it.
    void commit(std::size_t k);
    void write(const pending&);
    const u8* cached(u64 at);

    std::vector<pending> stores_; ///< oldest first
    u64 lowest_ = ~u64{0}, highest_ = 0; ///< bounds of their addresses
    std::unordered_map<u64, std::array<u8, sector>> cache_;
    random_numbers random_;
};

/// Bytes of memory that other threads may use at the same time.
u64 read_memory(u64 at, unsigned bytes);
void write_memory(u64 at, u64 value, unsigned bytes);

} // namespace ptx
