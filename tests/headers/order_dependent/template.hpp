// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

template <class Float>
inline Float opaque(Float value) noexcept
{
    asm volatile("" : "+m"(value));
    return value;
}

/// Calls the function of the other header where that comes first.
inline double quotient(double a, double b) noexcept { return a / opaque(b); }
