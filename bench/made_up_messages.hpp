// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <collprobe/step/detail/judge.hpp>

namespace collprobe::bench {

/// The messages of a step, as an all-gather leaves them, made up: gradients whose norms scatter by 1 %, times, results
/// that agree.
class made_up_messages {
public:
    made_up_messages(int ranks, std::size_t calls, bool times = true)
        : ranks_(ranks), calls_(calls), layout_{.times = times}, words_(static_cast<std::size_t>(ranks) * layout_.bytes(calls) / 8)
    {
    }
    detail::gathered_step next()
    {
        for (int r = 0; r < ranks_; ++r) {
            unsigned char* const own = bytes() + static_cast<std::size_t>(r) * layout_.bytes(calls_);
            const detail::step_header header{steps_, 2 + 0.02 * uniform(), 1, detail::not_given(), 0, 0, static_cast<std::uint32_t>(steps_ + 1)};
            std::memcpy(own, &header, sizeof(header));
            for (std::size_t c = 0; c < calls_; ++c) {
                detail::call_entry entry{};
                entry.input.count = 1 << 20;
                entry.input.digest = random_();
                entry.input.sum_of_squares = 100 * (1 + 0.02 * uniform());
                entry.result.digest = 17 + c + 1000 * steps_;
                entry.result.sum_of_squares = 30;
                entry.result.dot = 30 * (1 + 0.001 * uniform()) / ranks_;
                layout_.entry(own, c) = entry;
                if (!layout_.times) continue;
                const auto entered = static_cast<std::uint32_t>(1000 * steps_ + 10 * c);
                layout_.times_of(own, c) = {entered + static_cast<std::uint32_t>(random_() % 4), entered + 6};
            }
        }
        ++steps_;
        return {bytes(), ranks_, calls_, layout_};
    }
    std::vector<detail::probed_call> calls() const
    {
        return std::vector<detail::probed_call>(
            calls_, {.count = 1 << 20, .has_input = true, .has_result = true, .result_count = 1 << 20});
    }

private:
    unsigned char* bytes() { return reinterpret_cast<unsigned char*>(words_.data()); }
    double uniform() { return std::uniform_real_distribution<double>(-1, 1)(random_); }

    int ranks_;
    std::size_t calls_;
    detail::message_layout layout_;
    std::vector<std::uint64_t> words_;
    std::mt19937_64 random_{1};
    std::uint64_t steps_ = 0;
};

} // namespace collprobe::bench
