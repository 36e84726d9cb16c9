// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include <nccl.h>

#include <collprobe/device/in_flight.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

/// The place where NCCL writes the result of a split, at once or later.
struct split_result : collprobe::detail::leakable {
    ncclComm_t comm = nullptr;
    split_result* kept_before = nullptr;
};

/// Splits that have failed while NCCL may still be making their communicator: on a thread of its own, or at the end
/// of a group. Any thread may add a split or end them.
class pending_splits {
public:
    pending_splits() = default;
    pending_splits(const pending_splits&) = delete;
    /// The memory outlives this object, because NCCL may write there as long as a group is open.
    ~pending_splits() { take_each([](split_result* each) { collprobe::detail::leak(*each); }); }

    void keep(split_result* part) noexcept
    {
        part->kept_before = last_.load();
        while (!last_.compare_exchange_weak(part->kept_before, part)) {
        }
    }
    /// Aborts the communicators that NCCL has made by now, and leaks the others.
    void abort() noexcept
    {
        take_each([](split_result* each) {
            if (each->comm == nullptr) return collprobe::detail::leak(*each);
            (void)ncclCommAbort(each->comm);
            delete each;
        });
    }

private:
    template <class End>
    void take_each(End end) noexcept
    {
        for (split_result* each = last_.exchange(nullptr); each != nullptr;) {
            split_result* const before = each->kept_before;
            end(each);
            each = before;
        }
    }
    std::atomic<split_result*> last_{nullptr};
};

} // namespace collprobe::nccl::detail
