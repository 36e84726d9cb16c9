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

#include <collprobe/comm/intercepting_adaptor.hpp>

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
class with_rank_clocks : public detail::intercepting_adaptor<with_rank_clocks<Comm>, Comm> {
    using base_type = detail::intercepting_adaptor<with_rank_clocks, Comm>;
    friend base_type;

public:
    using typename base_type::stream_ref;
    using enqueue_type = std::function<void(stream_ref, std::function<void()>)>;

    /// The ranks share `all`.
    with_rank_clocks(Comm comm, std::shared_ptr<arrivals> all, enqueue_type enqueue)
        : base_type(std::move(comm)), all_(std::move(all)), enqueue_(std::move(enqueue))
    {
    }

private:
    template <element T>
    void around(const detail::collective_arguments&, view<const T> send, view<T>, stream_ref stream, call_site,
        detail::forward_call<T> forward)
    {
        // Another rank may come to the next call while one still reads the arrivals at this one.
        enqueue_(stream, [all = all_, rank = static_cast<std::size_t>(this->rank()), call = call_] {
            all->of(++*call)[rank] = held_clock::ahead_ns();
        });
        forward(send);
        enqueue_(stream, [all = all_, call = call_] {
            held_clock::set_ahead_ns(std::ranges::max(all->of(*call)) + 300'000);
        });
    }

    std::shared_ptr<arrivals> all_;
    enqueue_type enqueue_;
    std::shared_ptr<int> call_ = std::make_shared<int>(0); ///< the number of the last one, for work on the stream
};

} // namespace collprobe::testing
