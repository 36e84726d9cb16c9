// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>

/// The element types for TEST_CASE_TEMPLATE: all of them, or one of each kind in builds that take long enough with
/// those (COLLPROBE_TEST_BRIEF).
#if COLLPROBE_TEST_BRIEF
#define COLLPROBE_TEST_ELEMENT_TYPES std::int8_t, std::uint64_t, collprobe::bfloat16, float
#else
#define COLLPROBE_TEST_ELEMENT_TYPES \
    std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, collprobe::float16, \
        collprobe::bfloat16, float, double
#endif

namespace collprobe::testing {

/// Calls `use` with a zero of each.
template <class Use>
void for_each_element_type(Use&& use)
{
    [&]<class... T>(void (*)(T...)) { (use(T{}), ...); }(static_cast<void (*)(COLLPROBE_TEST_ELEMENT_TYPES)>(nullptr));
}

} // namespace collprobe::testing
