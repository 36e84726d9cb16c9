// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Why a communicator can no longer be used.
struct failure {
    status code = status::peer_failure;
    std::string message;
    std::vector<int> culprits;
};

/// The first failure of a communicator, which is final. Any thread may set it and look at it.
class first_failure {
public:
    first_failure() = default;
    first_failure(const first_failure&) = delete;
    ~first_failure() { delete first_.load(std::memory_order_acquire); }

    /// Returns false if there was one before.
    bool set(failure cause)
    {
        auto* const record = new failure(std::move(cause));
        failure* none = nullptr;
        if (first_.compare_exchange_strong(none, record, std::memory_order_acq_rel)) return true;
        delete record;
        return false;
    }
    /// Null if there is none. It lives as long as this object.
    const failure* get() const noexcept { return first_.load(std::memory_order_acquire); }
    explicit operator bool() const noexcept { return get() != nullptr; }
    /// \throws error the failure, if there is one. `origin()` gives the place that reports it.
    template <class Origin>
    void require_none(const Origin& origin) const
    {
        if (const failure* const cause = get()) throw error(cause->code, cause->message, origin(), cause->culprits);
    }

private:
    std::atomic<failure*> first_{nullptr};
};

} // namespace collprobe::detail
