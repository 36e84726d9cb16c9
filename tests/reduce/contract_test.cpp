// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

using namespace collprobe;
using enum reproducibility;

namespace {

// What can be had is known when it is compiled.
static_assert(contract<correctly_rounded>::possible<float16> && contract<correctly_rounded>::possible<double>);
static_assert(contract<size_invariant, accumulation::float32>::possible<bfloat16>);
static_assert(!contract<size_invariant, accumulation::float32>::possible<double>); // narrower than the terms
static_assert(!contract<order_invariant, accumulation::float64>::possible<float>); // rounds, so the order matters
static_assert(contract<correctly_rounded, accumulation::float64>::possible<float16>); // exact, for few enough terms
static_assert(!contract<correctly_rounded, accumulation::float64>::possible<double>);

template <class Contract, class T>
constexpr bool reduces = probed<reproducible<local::communicator, Contract>>::template reduces<T>;
static_assert(reduces<contract<correctly_rounded>, float> && reduces<contract<correctly_rounded>, int>);
static_assert(!reduces<contract<order_invariant, accumulation::float32>, float>);
static_assert(reduces<contract<order_invariant, accumulation::float32>, int>); // integers are exact anyway

} // namespace

TEST_CASE("the accumulator of a contract is the one it names, or what its level needs")
{
    CHECK(contract<size_invariant>::accumulator<float> == accumulation::float64);
    CHECK(contract<size_invariant>::accumulator<double> == accumulation::float64);
    CHECK(contract<order_invariant>::accumulator<bfloat16> == accumulation::exact);
    CHECK(contract<correctly_rounded, accumulation::float64>::accumulator<float16> == accumulation::float64);
    CHECK(contract<run_to_run, accumulation::native>::accumulator<float16> == accumulation::native);
}

TEST_CASE("algorithms have names")
{
    CHECK(std::string(name(reduction_algorithm::automatic)) == "automatic");
    CHECK(std::string(name(reduction_algorithm::native)) == "native");
    CHECK(std::string(name(reduction_algorithm::exchange)) == "exchange");
    CHECK(std::string(name(reduction_algorithm::one_shot)) == "one_shot");
    CHECK(std::string(name(reduction_algorithm::fixed_point)) == "fixed_point");
    CHECK(std::string(name(static_cast<reduction_algorithm>(9))) == "unknown");
}
