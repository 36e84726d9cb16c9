// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/core/view.hpp>

float first_of(collprobe::view<const float> data);

float first_of(collprobe::view<const float> data) { return data[0]; }
