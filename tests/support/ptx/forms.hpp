// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <type_traits>

#include "tests/support/ptx/warp.hpp"

/// The table of instructions: each file adds the forms that it executes.
namespace ptx {

using table = std::map<std::string, handler>;

void add_arithmetic_forms(table&);
void add_conversion_forms(table&);
void add_memory_forms(table&);
void add_warp_forms(table&);

/// The low part of a register of `width` bytes.
template <class T>
T read_as(const warp& w, slot at, unsigned width, int lane)
{
    T value;
    std::memcpy(&value, w.registers + at + static_cast<unsigned>(lane) * width, sizeof value);
    return value;
}
/// A register wider than the type takes the value's sign, or zeros.
template <class T>
void write_as(warp& w, slot at, unsigned width, int lane, T value)
{
    u64 wide = 0;
    if constexpr (std::is_integral_v<T>) wide = static_cast<u64>(static_cast<s64>(value));
    else std::memcpy(&wide, &value, sizeof value);
    std::memcpy(w.registers + at + static_cast<unsigned>(lane) * width, &wide, width);
}

} // namespace ptx
