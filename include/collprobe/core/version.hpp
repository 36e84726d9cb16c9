// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The library's version, `major * 10000 + minor * 100 + patch`. CMakeLists.txt reads these lines.
#define COLLPROBE_VERSION_MAJOR 0
#define COLLPROBE_VERSION_MINOR 2
#define COLLPROBE_VERSION_PATCH 0
#define COLLPROBE_VERSION \
    (COLLPROBE_VERSION_MAJOR * 10000 + COLLPROBE_VERSION_MINOR * 100 + COLLPROBE_VERSION_PATCH)
