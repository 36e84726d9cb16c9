// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include <collprobe/order/stream_order.hpp>

namespace collprobe::testing {

/// Tells the checker something as another thread: `calling_thread(checker, 7)->launch(...)`.
class calling_thread {
public:
    calling_thread(stream_order& checker, std::uint64_t number)
        : checker_(checker), own_(std::exchange(detail::number_of_thread(), number))
    {
    }
    ~calling_thread() { detail::number_of_thread() = own_; }
    calling_thread(const calling_thread&) = delete;
    calling_thread& operator=(const calling_thread&) = delete;

    stream_order* operator->() { return &checker_; }

private:
    stream_order& checker_;
    std::uint64_t own_;
};

} // namespace collprobe::testing
