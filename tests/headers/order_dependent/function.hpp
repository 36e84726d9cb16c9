// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

inline double opaque(double value) noexcept
{
    asm("" : "+m"(value));
    return value;
}
