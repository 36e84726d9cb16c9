// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>

#include "tests/support/held_clock.hpp"

namespace collprobe::testing {

/// When each rank entered the last two collectives, by its clock.
class arrivals {
public:
    explicit arrivals(int ranks) : of_{std::vector<std::int64_t>(static_cast<std::size_t>(ranks)), of_[0]} {}
    std::vector<std::int64_t>& of(int call) { return of_[call % 2]; }

private:
    std::vector<std::int64_t> of_[2];
};

/// Gives each rank a clock of its own while a clock is held: that of the thread which does its stream's work. By all
/// clocks, all ranks leave a collective 0.3 ms after the last has entered, and nothing else takes time. So a rank is as
/// late as the test makes it, by `held_clock::set_ahead_ns` in work on its stream. One stream a rank.
template <communicator Comm>
class with_rank_clocks : public adaptor<with_rank_clocks<Comm>, Comm> {
    using base_type = adaptor<with_rank_clocks, Comm>;

public:
    using typename base_type::stream_ref;
    using enqueue_type = std::function<void(stream_ref, std::function<void()>)>;

    /// The ranks share `all`.
    with_rank_clocks(Comm comm, std::shared_ptr<arrivals> all, enqueue_type enqueue)
        : base_type(std::move(comm)), all_(std::move(all)), enqueue_(std::move(enqueue))
    {
    }

    template <element T>
    void make(const collective_call& made, stream_ref stream)
    {
        if (made.what == collective::barrier) return base_type::template make<T>(made, stream);
        // Another rank may come to the next call while one still reads the arrivals at this one.
        enqueue_(stream, [all = all_, rank = static_cast<std::size_t>(this->rank()), call = call_] {
            all->of(++*call)[rank] = held_clock::ahead_ns();
        });
        base_type::template make<T>(made, stream);
        enqueue_(stream, [all = all_, call = call_] {
            held_clock::set_ahead_ns(std::ranges::max(all->of(*call)) + 300'000);
        });
    }

private:
    std::shared_ptr<arrivals> all_;
    enqueue_type enqueue_;
    std::shared_ptr<int> call_ = std::make_shared<int>(0); ///< the number of the last one, for work on the stream
};

} // namespace collprobe::testing
