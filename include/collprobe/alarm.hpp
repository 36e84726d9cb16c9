// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// From the records of steps to alarms with advice, at a stated rate of false alarms.

#include <collprobe/alarm/alarms.hpp>
