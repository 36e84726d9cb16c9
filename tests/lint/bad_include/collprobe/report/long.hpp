// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <collprobe/core/config.hpp>
/// A line of 121 columns. xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.
/// Line 2.
/// Line 3.
/// Line 4.
/// Line 5.
/// Line 6.
/// Line 7.
/// Line 8.
/// Line 9.
/// Line 10.
/// Line 11.
/// Line 12.
/// Line 13.
/// Line 14.
/// Line 15.
/// Line 16.
