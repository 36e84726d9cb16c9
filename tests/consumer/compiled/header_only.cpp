// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "step.hpp"

#if !COLLPROBE_DEFINITIONS
#error "collprobe::collprobe must have the definitions in its headers"
#endif

std::string tell_header_only() { return tell(); }
