// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace collprobe_preload {

/// Communicators by their handle. `find` takes no lock; a handle that has ended may come back for another
/// communicator.
template <class State>
class registry {
public:
    static constexpr std::size_t room = 4096; ///< communicators at a time; a power of two

    State* find(const void* handle) const noexcept
    {
        for (std::size_t i = place_of(handle), tried = 0; tried < room; i = (i + 1) % room, ++tried) {
            const void* const found = entries_[i].handle.load(std::memory_order_acquire);
            if (found == handle) {
                State* const state = entries_[i].state.load(std::memory_order_acquire);
                if (state != nullptr) return state;
            }
            if (found == nullptr) return nullptr;
        }
        return nullptr;
    }
    /// False if there is no room. Precondition: no other thread asks for the handle yet.
    bool add(const void* handle, State* state) noexcept
    {
        const std::lock_guard lock(guard_);
        for (std::size_t i = place_of(handle), tried = 0; tried < room; i = (i + 1) % room, ++tried) {
            if (entries_[i].state.load(std::memory_order_relaxed) != nullptr
                && entries_[i].handle.load(std::memory_order_relaxed) != handle) {
                continue;
            }
            entries_[i].handle.store(handle, std::memory_order_release);
            entries_[i].state.store(state, std::memory_order_release);
            return true;
        }
        return false;
    }
    /// The state that the handle had; null if it was not known. The place stays, so that others are still
    /// found.
    State* remove(const void* handle) noexcept
    {
        const std::lock_guard lock(guard_);
        for (std::size_t i = place_of(handle), tried = 0; tried < room; i = (i + 1) % room, ++tried) {
            const void* const found = entries_[i].handle.load(std::memory_order_relaxed);
            if (found == nullptr) return nullptr;
            if (found != handle) continue;
            if (State* const state = entries_[i].state.exchange(nullptr, std::memory_order_acq_rel))
                return state;
        }
        return nullptr;
    }

private:
    struct entry {
        std::atomic<const void*> handle{nullptr};
        std::atomic<State*> state{nullptr};
    };
    static_assert(room == 1u << (64 - 52));
    static std::size_t place_of(const void* handle) noexcept
    {
        return static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(handle) * 0x9e3779b97f4a7c15u >> 52);
    }

    entry entries_[room];
    std::mutex guard_;
};

} // namespace collprobe_preload
