// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What arithmetic a communicator's all-reduce does.

#include <collprobe/inspect/inspect.hpp>
