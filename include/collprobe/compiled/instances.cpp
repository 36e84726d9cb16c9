// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// The library `collprobe::compiled`, host part: the common instances of templates.
#if !defined(COLLPROBE_COMPILED)
#define COLLPROBE_COMPILED 1
#endif

#include <collprobe/step/probed.hpp>

#define COLLPROBE_INSTANCE template
#include <collprobe/compiled/host_instances.hpp>
