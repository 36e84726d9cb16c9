// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <type_traits>

#include <collprobe/core/element.hpp>

/// The element types for TEST_CASE_TEMPLATE: one of each kind, for what treats all of a kind alike.
#define COLLPROBE_TEST_ELEMENT_TYPES std::int8_t, std::uint64_t, collprobe::bfloat16, float
/// Those of 16 bits and more: for what 8 bits have not enough range or digits for, and what they would not test anew.
#define COLLPROBE_TEST_WIDER_FLOATING_TYPES collprobe::float16, collprobe::bfloat16, float, double
#define COLLPROBE_TEST_FLOAT8_TYPES collprobe::float8_e4m3, collprobe::float8_e5m2
/// Every one, in every build.
#define COLLPROBE_TEST_LISTED_TYPES \
    std::int8_t, std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, \
        COLLPROBE_TEST_WIDER_FLOATING_TYPES, COLLPROBE_TEST_FLOAT8_TYPES
/// All of them, for what is written for each type: the reductions of ranks in one process and of MPI, the statistics.
/// Brief builds (COLLPROBE_TEST_BRIEF) make do with one of each kind, and with less data.
/// A test that is compiled in parts has one floating type in each, or asks which part it is.
#if defined(COLLPROBE_TEST_PART)
#define COLLPROBE_TEST_HAS_PART(part) (COLLPROBE_TEST_PART == (part))
#else
#define COLLPROBE_TEST_HAS_PART(part) 1
#endif
#if defined(COLLPROBE_TEST_PART)
#define COLLPROBE_TEST_FLOATING_TYPES collprobe::testing::floating_type_of_part<COLLPROBE_TEST_PART>
#define COLLPROBE_TEST_ALL_ELEMENT_TYPES COLLPROBE_TEST_LISTED_TYPES
#define COLLPROBE_TEST_UNLESS_BRIEF(full, brief) full
#elif COLLPROBE_TEST_BRIEF
#define COLLPROBE_TEST_ALL_ELEMENT_TYPES COLLPROBE_TEST_ELEMENT_TYPES, collprobe::float8_e4m3
#define COLLPROBE_TEST_FLOATING_TYPES COLLPROBE_TEST_WIDER_FLOATING_TYPES, collprobe::float8_e4m3
#define COLLPROBE_TEST_UNLESS_BRIEF(full, brief) brief
#else
#define COLLPROBE_TEST_ALL_ELEMENT_TYPES COLLPROBE_TEST_LISTED_TYPES
#define COLLPROBE_TEST_FLOATING_TYPES COLLPROBE_TEST_WIDER_FLOATING_TYPES, COLLPROBE_TEST_FLOAT8_TYPES
#define COLLPROBE_TEST_UNLESS_BRIEF(full, brief) full
#endif
/// Sanitizers make a run tens of times longer: what is looked at there is memory, threads and undefined behaviour, and
/// long runs, whose statistics are the point, are whole in the preset host.
#if COLLPROBE_TEST_SANITIZED
#define COLLPROBE_TEST_UNLESS_SANITIZED(whole, part) part
#else
#define COLLPROBE_TEST_UNLESS_SANITIZED(whole, part) whole
#endif

namespace collprobe::testing {

/// Whether the environment asks for small inputs and few cases (COLLPROBE_TEST_FEW), as under compute-sanitizer.
inline bool few_cases() { return std::getenv("COLLPROBE_TEST_FEW") != nullptr; }

/// The parts are 1 to 6.
template <int part>
using floating_type_of_part
    = std::tuple_element_t<part - 1, std::tuple<COLLPROBE_TEST_WIDER_FLOATING_TYPES, COLLPROBE_TEST_FLOAT8_TYPES>>;

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
/// Of COLLPROBE_TEST_FLOATING_TYPES.
template <class Use>
void for_each_floating_type(Use&& use)
{
    for_each_type_of(static_cast<void (*)(COLLPROBE_TEST_FLOATING_TYPES)>(nullptr), use);
}
/// Of COLLPROBE_TEST_ALL_ELEMENT_TYPES.
template <class Use>
void for_all_element_types(Use&& use)
{
    for_each_type_of(static_cast<void (*)(COLLPROBE_TEST_ALL_ELEMENT_TYPES)>(nullptr), use);
}

template <class... Listed>
constexpr bool has_every_element_type(void (*)(Listed...))
{
    bool all = true;
    detail::for_each_type([&]<class T>(T) { all = all && (std::is_same_v<T, Listed> || ...); });
    return all;
}
static_assert(has_every_element_type(static_cast<void (*)(COLLPROBE_TEST_LISTED_TYPES)>(nullptr)),
    "an element type is missing in COLLPROBE_TEST_LISTED_TYPES");

} // namespace collprobe::testing
