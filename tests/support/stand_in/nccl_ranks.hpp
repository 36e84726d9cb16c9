// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>

#include "tests/support/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"

/// Ranks of the NCCL stand-in, with a device each.
namespace collprobe::testing {

/// The 8 devices that ranks have here, unless a test sets another number before.
[[maybe_unused]] inline const bool stand_in_has_8_devices = (stand_in::set_device_count(8), true);

inline constexpr nccl::blocking_mode nccl_modes[] = {nccl::blocking_mode::blocking, nccl::blocking_mode::non_blocking};

template <class Fn>
std::vector<rank_outcome> run_each_nccl(int ranks, const nccl::options& settings, Fn fn, int deadline_s = 60)
{
    return run_each_nccl(ranks, 8, settings, fn, deadline_s);
}

/// Nothing of a test may stay behind, and nothing may have called what is gone.
class clean_stand_in {
public:
    clean_stand_in() { stand_in::nccl::set_launch_delay_ms(0); }
    clean_stand_in(const clean_stand_in&) = delete;
    ~clean_stand_in()
    {
        CHECK(stand_in::nccl::live_communicators() == 0);
        CHECK(stand_in::nccl::dead_handle_calls() == before_);
        stand_in::nccl::set_launch_delay_ms(0);
        stand_in::reset();
    }

private:
    std::uint64_t before_ = stand_in::nccl::dead_handle_calls();
};

/// `count` elements of a rank's device memory, and how to look into it: it is host memory here.
template <class T>
class device_values {
public:
    device_values(std::size_t count, T value) : memory_(count)
    {
        for (std::size_t i = 0; i < count; ++i) memory_.data()[i] = value;
    }
    view<const T> in() const { return view<const T>(memory_.data(), memory_.size()); }
    view<T> out() const { return view<T>(memory_.data(), memory_.size()); }
    T* data() const { return memory_.data(); }
    T& operator[](std::size_t index) const { return memory_.data()[index]; }
    bool all(T value) const
    {
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            if (memory_.data()[i] != value) return false;
        }
        return true;
    }

private:
    cuda::buffer<T> memory_;
};

} // namespace collprobe::testing
