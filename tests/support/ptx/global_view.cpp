// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptx/global_view.hpp"

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

template <class T>
u64 read_as(u64 at)
{
    return *reinterpret_cast<const volatile T*>(at);
}
template <class T>
void write_as(u64 at, u64 value)
{
    *reinterpret_cast<volatile T*>(at) = static_cast<T>(value);
}

} // namespace

u64 read_memory(u64 at, unsigned bytes)
{
    switch (bytes) {
    case 1: return read_as<u8>(at);
    case 2: return read_as<u16>(at);
    case 4: return read_as<u32>(at);
    default: return read_as<u64>(at);
    }
}

void write_memory(u64 at, u64 value, unsigned bytes)
{
    switch (bytes) {
    case 1: return write_as<u8>(at, value);
    case 2: return write_as<u16>(at, value);
    case 4: return write_as<u32>(at, value);
    default: return write_as<u64>(at, value);
    }
}

void global_view::write(const pending& one)
{
    write_memory(one.at, one.value, one.bytes);
    const auto found = cache_.find(one.at / sector);
    if (found != cache_.end()) std::memcpy(found->second.data() + one.at % sector, &one.value, one.bytes);
}

void global_view::commit(std::size_t k)
{
    // Older stores to the same word go first, in their order. (A store never reaches beyond a word of 8
    // bytes.)
    for (std::size_t older = 0; older < k; ++older) {
        if (stores_[older].at / 8 == stores_[k].at / 8) {
            write(stores_[older]);
            stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(older));
            --older;
            --k;
        }
    }
    write(stores_[k]);
    stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(k));
    if (stores_.empty()) {
        lowest_ = ~u64{0};
        highest_ = 0;
    }
}

void global_view::store(u64 at, u64 value, unsigned bytes, stamp who)
{
    stores_.push_back({at, value, bytes, who});
    lowest_ = std::min(lowest_, at);
    highest_ = std::max(highest_, at + bytes);
    while (stores_.size() > most_stores) commit(random_.below(stores_.size()));
}

/// The sector's bytes as the first-level cache has them.
const u8* global_view::cached(u64 at)
{
    const u64 first = at / sector * sector;
    const auto [found, is_new] = cache_.try_emplace(at / sector);
    if (is_new || random_.one_in(4)) {
        for (u64 k = 0; k < sector; k += 8) {
            const u64 word = read_memory(first + k, 8);
            std::memcpy(found->second.data() + k, &word, 8);
        }
    }
    return found->second.data() + at % sector;
}

u64 global_view::load(u64 at, unsigned bytes, order how)
{
    u64 value = 0;
    if (how == order::cached || how == order::read_only) {
        if (cache_.size() > most_sectors) cache_.clear();
        std::memcpy(&value, cached(at), bytes);
    } else {
        value = read_memory(at, bytes);
    }
    // The block's own stores, over what memory holds.
    if (at < highest_ && at + bytes > lowest_) {
        for (const pending& own : stores_) {
            if (!own.overlaps(at, bytes)) continue;
            const u64 begin = std::max(at, own.at);
            const u64 end = std::min(at + bytes, own.at + own.bytes);
            std::memcpy(reinterpret_cast<u8*>(&value) + (begin - at),
                reinterpret_cast<const u8*>(&own.value) + (begin - own.at), end - begin);
        }
    }
    return value;
}

void global_view::settle(u64 at, unsigned bytes)
{
    if (at < highest_ && at + bytes > lowest_) {
        for (std::size_t k = 0; k < stores_.size();) {
            if (stores_[k].at / 8 == at / 8) {
                write(stores_[k]);
                stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(k));
            } else {
                ++k;
            }
        }
    }
    cache_.erase(at / sector);
}

void global_view::release_all()
{
    for (const pending& one : stores_) write(one);
    stores_.clear();
    lowest_ = ~u64{0};
    highest_ = 0;
}

void global_view::hand_over(global_view& later)
{
    for (const pending& one : stores_) later.store(one.at, one.value, one.bytes, one.who);
    stores_.clear();
    lowest_ = ~u64{0};
    highest_ = 0;
    cache_.clear();
}

void global_view::pass_time()
{
    if (!stores_.empty() && random_.one_in(8)) commit(random_.below(stores_.size()));
}

} // namespace ptx
