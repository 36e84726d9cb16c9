// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Records as text for people and for tools, and the sinks that write it to files.

#include <collprobe/report/file.hpp>
#include <collprobe/report/findings.hpp>
#include <collprobe/report/inspection.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/json_lines.hpp>
#include <collprobe/report/prometheus.hpp>
#include <collprobe/report/sink.hpp>
#include <collprobe/report/sinks.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>
