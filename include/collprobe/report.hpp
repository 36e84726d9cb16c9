// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Records as tables and JSON lines.

#include <collprobe/report/alarm.hpp>
#include <collprobe/report/inspection.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/summary.hpp>
#include <collprobe/report/table.hpp>
