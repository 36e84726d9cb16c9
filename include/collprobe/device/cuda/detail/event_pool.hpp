// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <utility>

#include <collprobe/detail/ref.hpp>
#include <collprobe/device/cuda/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::cuda::detail {

/// A CUDA event that goes back to the pool with the last `ref` to it.
struct event_node : collprobe::detail::ref_counted {
    event_node(cudaEvent_t event, int ordinal) noexcept : handle(event), device(ordinal) {}
    void recycle() noexcept;

    const cudaEvent_t handle;
    const int device;
    event_node* next = nullptr; ///< in the pool
};

/// The process's CUDA events that are not in use. Creating an event can stall for milliseconds, so events are used
/// again. The events have no timing. The pool never destroys them: a destructor that runs when the program ends would
/// call a CUDA runtime that may be gone by then.
class event_pool {
public:
    /// A free event of `device`, or a new one. Creating is legal during a capture, but slow.
    static collprobe::detail::ref<event_node> take(int device, call_site where)
    {
        event_node* const found = instance().pop(device);
        return collprobe::detail::ref<event_node>(found != nullptr ? found : create(device, where));
    }
    static void give_back(event_node* node) noexcept
    {
        event_pool& pool = instance();
        const std::lock_guard lock(pool.guard_);
        node->next = std::exchange(pool.first_, node);
    }

private:
    static event_pool& instance() noexcept
    {
        static event_pool* const pool = new event_pool;
        return *pool;
    }

    event_node* pop(int device) noexcept
    {
        const std::lock_guard lock(guard_);
        for (event_node** link = &first_; *link != nullptr; link = &(*link)->next) {
            if ((*link)->device == device) return std::exchange(*link, (*link)->next);
        }
        return nullptr;
    }

    static event_node* create(int device, call_site where)
    {
        const device_guard current(device, where);
        const relaxed_capture_mode relaxed;
        cudaEvent_t handle = nullptr;
        check(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming), "cudaEventCreateWithFlags", device,
            where);
        return new event_node(handle, device);
    }

    std::mutex guard_;
    event_node* first_ = nullptr;
};

inline void event_node::recycle() noexcept
{
    event_pool::give_back(this);
}

} // namespace collprobe::cuda::detail
