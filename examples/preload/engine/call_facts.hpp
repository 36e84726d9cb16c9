// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>

#include "call_period.hpp"

namespace collprobe_preload {

/// What the host knows of a probed call.
struct call_facts {
    std::uint64_t sequence = 0; ///< on its communicator
    call_place place;
    std::uint64_t count = 0; ///< elements that the rank sends
    std::uint64_t result_count = 0;
    std::uint64_t unix_us = 0; ///< when it was made
    double scale = 1; ///< of a pre-multiplied sum; NaN: not known
    collprobe::collective call = collprobe::collective::all_reduce;
    collprobe::element_type type = collprobe::element_type::float32;
    collprobe::reduction operation = collprobe::reduction::sum;
    bool in_place = false;
    bool has_input = false;
    bool has_result = false;
    bool has_sketch = false;

    bool reduces() const noexcept
    {
        return call == collprobe::collective::all_reduce || call == collprobe::collective::reduce_scatter;
    }
};

/// "all_reduce#3 1024 bfloat16": the call's place in its step, and what it is about.
std::string name_of(const call_facts& facts);

} // namespace collprobe_preload
