// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "step.hpp"

#if defined(COLLPROBE_COMPILED)
#error "collprobe::collprobe must have no instances elsewhere"
#endif

std::string tell_header_only() { return tell(); }
