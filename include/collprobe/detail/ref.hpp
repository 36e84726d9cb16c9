// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Base of an object that is shared by `ref`s and deleted with the last of them. If it has a function `recycle`, that
/// is called instead.
class ref_counted {
public:
    ref_counted() = default;
    ref_counted(const ref_counted&) = delete;
    ref_counted& operator=(const ref_counted&) = delete;

private:
    template <class T>
    friend class ref;
    std::atomic<std::uint32_t> references_{0};
};

/// A shared owner like `std::shared_ptr`, with one difference that matters here: dropping a reference that is not the
/// last one acquires nothing. So handles that travel between streams do not order those streams by accident (see
/// detail/wait.hpp).
template <class T>
class ref {
public:
    ref() = default;
    explicit ref(T* object) noexcept : object_(object) { retain(); }
    ref(const ref& other) noexcept : object_(other.object_) { retain(); }
    ref(ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    // The parameter is not taken by value, because clang++ 14 forgets to destroy it in templates in `x = {}`.
    ref& operator=(const ref& other) noexcept
    {
        ref copy(other);
        std::swap(object_, copy.object_);
        return *this;
    }
    ref& operator=(ref&& other) noexcept
    {
        ref taken(std::move(other));
        std::swap(object_, taken.object_);
        return *this;
    }
    ~ref()
    {
        if (object_ == nullptr) return;
        std::atomic<std::uint32_t>& count = static_cast<ref_counted*>(object_)->references_;
        if (count.fetch_sub(1, std::memory_order_release) == 1) {
            (void)count.load(std::memory_order_acquire);
            if constexpr (requires { object_->recycle(); }) object_->recycle();
            else delete object_;
        }
    }

    T* get() const noexcept { return object_; }
    T& operator*() const noexcept { return *object_; }
    T* operator->() const noexcept { return object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }
    /// Whether there is an object, and no other `ref` to it.
    bool is_sole() const noexcept
    {
        return object_ != nullptr
            && static_cast<const ref_counted*>(object_)->references_.load(std::memory_order_acquire) == 1;
    }

private:
    void retain() const noexcept
    {
        if (object_ != nullptr)
            static_cast<ref_counted*>(object_)->references_.fetch_add(1, std::memory_order_relaxed);
    }
    T* object_ = nullptr;
};

template <class T, class... Arguments>
ref<T> make_ref(Arguments&&... arguments)
{
    return ref<T>(new T(std::forward<Arguments>(arguments)...));
}

} // namespace collprobe::detail
