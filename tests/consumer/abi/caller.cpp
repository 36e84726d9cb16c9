// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The program calls a function of another object file with a type of collprobe.
#include <collprobe/core/view.hpp>

float first_of(collprobe::view<const float> data);

int main()
{
    const float data[] = {0, 1};
    return first_of(collprobe::view<const float>(data, 2)) == 0 ? 0 : 1;
}
