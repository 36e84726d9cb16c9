// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include <collprobe/detail/function_ref.hpp>
#include <collprobe/detail/wait.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// One queued callable in place. A task runs, or is cancelled because earlier work failed; either way it is destroyed
/// right after. On a cancel the queue calls `cancel(const std::exception_ptr&) noexcept` of a callable that has it.
class task {
public:
    static constexpr std::size_t inline_bytes = 240;

    template <class Body>
    void emplace(Body&& body)
    {
        using stored = std::decay_t<Body>;
        constexpr bool is_here = sizeof(stored) <= inline_bytes && alignof(stored) <= alignof(std::max_align_t);
        void* const here = storage_;
        if constexpr (is_here) ::new (here) stored(std::forward<Body>(body));
        else ::new (here) stored*(new stored(std::forward<Body>(body)));
        invoke_ = [](void* storage, const std::exception_ptr* cause) {
            struct destroyer {
                stored* own;
                ~destroyer()
                {
                    if constexpr (is_here) own->~stored();
                    else delete own;
                }
            };
            if constexpr (is_here) call(*destroyer{static_cast<stored*>(storage)}.own, cause);
            else call(*destroyer{*static_cast<stored**>(storage)}.own, cause);
        };
    }
    void make_stop() noexcept { invoke_ = nullptr; }
    bool is_stop() const noexcept { return invoke_ == nullptr; }
    void run() { invoke_(storage_, nullptr); }
    void cancel(const std::exception_ptr& cause) noexcept { invoke_(storage_, &cause); }

private:
    template <class Body>
    static void call(Body& body, const std::exception_ptr* cause)
    {
        if (cause == nullptr) {
            body();
        } else if constexpr (requires { body.cancel(*cause); }) {
            body.cancel(*cause);
        }
    }

    alignas(std::max_align_t) std::byte storage_[inline_bytes];
    void (*invoke_)(void*, const std::exception_ptr*) = nullptr;
};

/// An unbounded FIFO from any number of producers to one consumer thread.
///
/// The consumer acquires the effects of a producer before its push. A push does not order the producer after tasks
/// that already ran; only recycled memory (every `tasks_per_chunk` tasks) must do so. The queue allocates nothing
/// once it has reached its largest length.
class task_queue {
public:
    task_queue() : first_(new chunk), last_(first_) {}
    task_queue(const task_queue&) = delete;
    task_queue& operator=(const task_queue&) = delete;
    ~task_queue()
    {
        free_list(first_);
        free_list(spare_);
        free_list(returned_.load(std::memory_order_acquire));
    }

    /// Appends one task and returns its number, counted from 1.
    std::uint64_t push(function_ref<void(task&)> fill)
    {
        const std::lock_guard lock(producers_);
        if (write_index_ == tasks_per_chunk) {
            chunk* const next = take_chunk();
            last_->next = next;
            last_ = next;
            write_index_ = 0;
        }
        fill(last_->tasks[write_index_]);
        ++write_index_;
        const std::uint64_t number = pushed_.load(std::memory_order_relaxed) + 1;
        pushed_.store(number, std::memory_order_relaxed);
        if ((signal_.fetch_add(2, std::memory_order_release) & sleeping) != 0) wake_all(signal_);
        return number;
    }

    /// Tasks pushed so far.
    std::uint64_t pushed() const noexcept { return pushed_.load(std::memory_order_relaxed); }

    /// Returns the next task, and waits for one. It stays valid until `pop`. Only the consumer may call this.
    task& front() noexcept
    {
        std::uint32_t seen = signal_.load(std::memory_order_acquire);
        while ((seen & ~sleeping) == popped_) {
            seen = signal_.fetch_or(sleeping, std::memory_order_acquire) | sleeping;
            if ((seen & ~sleeping) != popped_) break;
            wait_while(signal_, seen, deadline::never());
            seen = signal_.load(std::memory_order_acquire);
        }
        if ((seen & sleeping) != 0) signal_.fetch_and(~sleeping, std::memory_order_acquire);
        if (read_index_ == tasks_per_chunk) {
            chunk* const used = first_;
            first_ = used->next;
            read_index_ = 0;
            give_back(used);
        }
        return first_->tasks[read_index_];
    }

    void pop() noexcept
    {
        ++read_index_;
        popped_ += 2;
    }

private:
    static constexpr std::size_t tasks_per_chunk = 64;
    static constexpr std::uint32_t sleeping = 1;

    struct chunk {
        task tasks[tasks_per_chunk];
        chunk* next = nullptr;
    };

    chunk* take_chunk()
    {
        if (spare_ == nullptr) spare_ = returned_.exchange(nullptr, std::memory_order_acquire);
        if (spare_ == nullptr) return new chunk;
        chunk* const taken = std::exchange(spare_, spare_->next);
        taken->next = nullptr;
        return taken;
    }
    void give_back(chunk* used) noexcept
    {
        used->next = returned_.load(std::memory_order_relaxed);
        while (!returned_.compare_exchange_weak(
            used->next, used, std::memory_order_release, std::memory_order_relaxed)) {
        }
    }
    static void free_list(chunk* list) noexcept
    {
        while (list != nullptr) delete std::exchange(list, list->next);
    }

    // Only the consumer uses these.
    chunk* first_;
    std::size_t read_index_ = 0;
    std::uint32_t popped_ = 0; // twice the number of popped tasks, modulo 2^32, like signal_

    // Shared: twice the number of pushed tasks, and a bit that says that the consumer may be asleep.
    alignas(64) std::atomic<std::uint32_t> signal_{0};
    std::atomic<std::uint64_t> pushed_{0};
    std::atomic<chunk*> returned_{nullptr};

    // Only the producers use these.
    alignas(64) std::mutex producers_;
    chunk* last_;
    std::size_t write_index_ = 0;
    chunk* spare_ = nullptr;
};

} // namespace collprobe::detail
