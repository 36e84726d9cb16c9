// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/core/element.hpp>

/// The element types for TEST_CASE_TEMPLATE: one of each kind, for what treats all of a kind alike.
#define COLLPROBE_TEST_ELEMENT_TYPES std::int8_t, std::uint64_t, collprobe::bfloat16, float
/// All of them, for what is written for each type: the reductions of ranks in one process and of MPI, the statistics.
/// Brief builds (COLLPROBE_TEST_BRIEF) make do with the above.
#if COLLPROBE_TEST_BRIEF
#define COLLPROBE_TEST_ALL_ELEMENT_TYPES COLLPROBE_TEST_ELEMENT_TYPES
#else
#define COLLPROBE_TEST_ALL_ELEMENT_TYPES \
    std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, collprobe::float16, \
        collprobe::bfloat16, float, double
#endif

namespace collprobe::testing {

/// Calls `use` with a zero of each type of the list.
template <class... T, class Use>
void for_each_type_of(void (*)(T...), Use&& use)
{
    (use(T{}), ...);
}
/// Of COLLPROBE_TEST_ELEMENT_TYPES.
template <class Use>
void for_each_element_type(Use&& use)
{
    for_each_type_of(static_cast<void (*)(COLLPROBE_TEST_ELEMENT_TYPES)>(nullptr), use);
}
/// Of COLLPROBE_TEST_ALL_ELEMENT_TYPES.
template <class Use>
void for_all_element_types(Use&& use)
{
    for_each_type_of(static_cast<void (*)(COLLPROBE_TEST_ALL_ELEMENT_TYPES)>(nullptr), use);
}

} // namespace collprobe::testing
