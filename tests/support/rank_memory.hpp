// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <collprobe/core/view.hpp>

namespace collprobe::testing {

/// A rank's buffers, which a failed collective must leave as they are.
struct rank_memory {
    std::vector<float> send;
    std::vector<float> receive;
    explicit rank_memory(std::size_t send_count, std::size_t receive_count = 0)
        : send(send_count, 3.0f), receive(receive_count == 0 ? send_count : receive_count, 7.0f)
    {
    }
    view<const float> in() const { return view<const float>(send); }
    view<float> out() { return view<float>(receive); }
    bool untouched() const
    {
        for (const float x : send) {
            if (x != 3.0f) return false;
        }
        for (const float x : receive) {
            if (x != 7.0f) return false;
        }
        return true;
    }
};

} // namespace collprobe::testing
