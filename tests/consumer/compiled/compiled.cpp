// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "step.hpp"

#if COLLPROBE_DEFINITIONS
#error "collprobe::compiled must leave the definitions to its library"
#endif

std::string tell_compiled() { return tell(); }
