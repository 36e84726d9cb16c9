// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <collprobe/detail/mutex.hpp>
#include <collprobe/device/cuda/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// A CUDA event that goes back to the pool with the last `pooled_event` that refers to it.
struct event_node {
    cudaEvent_t handle = nullptr;
    int device = -1;
    std::atomic<std::uint32_t> references{0};
    event_node* next = nullptr;
};

/// The process's CUDA events, a list for each device. Creating an event can stall for milliseconds, so events are
/// used again. The events have no timing. The pool never destroys them: a destructor that runs when the program ends
/// would call a CUDA runtime that may be gone by then.
class event_pool {
public:
    /// Creates events until at least `count` of `device` are free, so that later records create none. Any thread may
    /// call it, at set-up.
    /// \throws error `device_failure` if CUDA cannot create one.
    static void reserve(int device, unsigned count, call_site where = call_site::current())
    {
        for (unsigned present = of(device).count_free(device); present < count; ++present) {
            give_back(create(device, where));
        }
    }
    /// The number of free events of `device`; a diagnostic.
    static unsigned free_events(int device) noexcept { return of(device).count_free(device); }

    /// A free event of `device`, or a new one. Creating is legal during a capture, but slow.
    static event_node* take(int device, call_site where)
    {
        if (event_node* const found = of(device).pop(device)) return found;
        return create(device, where);
    }
    static void give_back(event_node* node) noexcept { of(node->device).push(node); }

private:
    // Two devices may share a list, so that the number of devices has no limit.
    static constexpr unsigned lists = 64;

    struct free_list {
        unsigned count_free(int device) noexcept
        {
            const collprobe::detail::lock_guard lock(guard);
            unsigned found = 0;
            for (const event_node* node = first; node != nullptr; node = node->next) {
                if (node->device == device) ++found;
            }
            return found;
        }
        event_node* pop(int device) noexcept
        {
            const collprobe::detail::lock_guard lock(guard);
            for (event_node** link = &first; *link != nullptr; link = &(*link)->next) {
                if ((*link)->device == device) return std::exchange(*link, (*link)->next);
            }
            return nullptr;
        }
        void push(event_node* node) noexcept
        {
            const collprobe::detail::lock_guard lock(guard);
            node->next = std::exchange(first, node);
        }

        collprobe::detail::mutex guard;
        event_node* first = nullptr;
    };

    static free_list& of(int device) noexcept
    {
        static free_list* const all = new free_list[lists];
        return all[static_cast<unsigned>(device) % lists];
    }

    static event_node* create(int device, call_site where)
    {
        const device_guard current(device, where);
        const relaxed_capture_mode relaxed;
        cudaEvent_t handle = nullptr;
        check(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming), "cudaEventCreateWithFlags", device,
            where);
        event_node* const made = new event_node;
        made->handle = handle;
        made->device = device;
        return made;
    }
};

/// A share in an event of the pool; empty by default.
class pooled_event {
public:
    pooled_event() noexcept = default;
    pooled_event(int device, call_site where) : node_(event_pool::take(device, where)) { retain(); }
    pooled_event(const pooled_event& other) noexcept : node_(other.node_) { retain(); }
    pooled_event(pooled_event&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
    pooled_event& operator=(pooled_event other) noexcept
    {
        std::swap(node_, other.node_);
        return *this;
    }
    ~pooled_event()
    {
        if (node_ == nullptr || node_->references.fetch_sub(1, std::memory_order_release) != 1) return;
        (void)node_->references.load(std::memory_order_acquire);
        event_pool::give_back(node_);
    }

    explicit operator bool() const noexcept { return node_ != nullptr; }
    /// Null if empty.
    cudaEvent_t handle() const noexcept { return node_ == nullptr ? nullptr : node_->handle; }
    /// -1 if empty.
    int device() const noexcept { return node_ == nullptr ? -1 : node_->device; }
    /// Whether no other `pooled_event` refers to the event, so that a new record changes no other snapshot.
    bool is_sole() const noexcept
    {
        return node_ != nullptr && node_->references.load(std::memory_order_acquire) == 1;
    }

private:
    void retain() const noexcept
    {
        if (node_ != nullptr) node_->references.fetch_add(1, std::memory_order_relaxed);
    }
    event_node* node_ = nullptr;
};

} // namespace collprobe::cuda::detail
