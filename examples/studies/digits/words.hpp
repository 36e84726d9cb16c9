// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <collprobe/core/element.hpp>

#include "../../support/command_line.hpp"

/// What the studies share.
namespace trainer {

using namespace support;

/// What gradients travel as.
enum class wire_element { float32, bfloat16, float16 };

inline std::vector<word<wire_element>> wire_elements()
{
    return {{"float", wire_element::float32}, {"bfloat16", wire_element::bfloat16}, {"half", wire_element::float16}};
}

constexpr const char* name(wire_element element)
{
    return element == wire_element::bfloat16 ? "bfloat16" : element == wire_element::float16 ? "half" : "float";
}

/// Calls `fn` with a value of the type that gradients travel as.
template <class Fn>
auto with_wire_type(wire_element element, Fn fn)
{
    switch (element) {
    case wire_element::bfloat16: return fn(collprobe::bfloat16{});
    case wire_element::float16: return fn(collprobe::float16{});
    case wire_element::float32: break;
    }
    return fn(float{});
}

} // namespace trainer
