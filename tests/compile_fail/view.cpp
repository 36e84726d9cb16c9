// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <collprobe/core/view.hpp>

// compile_fail other_element: conversion
// compile_fail drops_const: conversion
// compile_fail pointer_to_void: no matching

int main()
{
    std::vector<float> floats(4);
    const std::vector<float> constant(4);
    collprobe::view<float> control = floats;
    collprobe::view<const float> control_of_const = constant;
#if defined(SECTION_other_element)
    std::vector<double> doubles(4);
    collprobe::view<float> wrong = doubles;
#endif
#if defined(SECTION_drops_const)
    collprobe::view<float> wrong = constant;
#endif
#if defined(SECTION_pointer_to_void)
    collprobe::view<float> wrong(static_cast<void*>(floats.data()), floats.size() * sizeof(float));
#endif
    return static_cast<int>(control.count() - control_of_const.count());
}
