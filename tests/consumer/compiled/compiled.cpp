// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "step.hpp"

#if !defined(COLLPROBE_COMPILED)
#error "collprobe::compiled must leave the instances to its library"
#endif

std::string tell_compiled() { return tell(); }
