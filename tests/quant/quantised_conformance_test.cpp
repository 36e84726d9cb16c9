// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What every communicator must do: exactly where nothing is quantised, within the roundings to codes where sums are.
#include <doctest/doctest.h>

#include <cstdint>

#include <collprobe/quant/quantised.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::quantised_conformance_test {
namespace {

/// Quantises all sums of floats of `least_bytes` or more: reductions of this suite are checked within the error of int8.
struct coded_communicator : quantised<local::communicator> {
    using quantised::quantised;
};
template <class Communicator>
struct provider_of {
    using communicator = Communicator;
    testing::local_provider inner;
    std::uint64_t least_bytes;

    int size() const { return inner.size(); }
    template <class Body>
    void run(Body body) const
    {
        inner.run([&](local::communicator& world) {
            communicator comm(world, {.format = code_format::int8, .block = 64}, {.least_bytes = least_bytes});
            body(comm);
        });
    }
};

} // namespace
} // namespace collprobe::testing::quantised_conformance_test

/// Half a scale for the input and half for the result: the largest magnitude over 127, rounded up to bfloat16.
template <>
inline constexpr double
    collprobe::conformance::code_error<collprobe::testing::quantised_conformance_test::coded_communicator> = (1 + 0x1p-7) * 1.02 / 127;

namespace collprobe::testing::quantised_conformance_test {

TEST_CASE("a quantised communicator that quantises nothing conforms as the one it wraps does")
{
    for (const int ranks : {1, 2, 3}) {
        CAPTURE(ranks);
        const provider_of<quantised<local::communicator>> provider{{ranks}, std::uint64_t{1} << 40};
        CHECK_NOTHROW(conformance::check_type<float>(provider, 67));
        CHECK_NOTHROW(conformance::check_calls(provider, 30));
        CHECK_NOTHROW(conformance::check_barrier(provider));
    }
}

TEST_CASE("quantised sums conform within the roundings to codes, and other calls exactly")
{
    for (const int ranks : {1, 2, 3, 5}) {
        CAPTURE(ranks);
        const provider_of<coded_communicator> provider{{ranks}, 1};
        const auto check_reductions = [&]<class T>(T) {
            provider.run([&](coded_communicator& comm) {
                conformance::stream_set<host::device> streams;
                for (const bool scatters : {false, true}) conformance::check_reductions<T>(comm, streams, 1009, scatters);
                CHECK((comm.size() == 1 || comm.counts(unquantised_reason::none) > 0));
            });
        };
        CHECK_NOTHROW(check_reductions(float{}));
        CHECK_NOTHROW(check_reductions(bfloat16{}));
        CHECK_NOTHROW(check_reductions(float16{}));
        CHECK_NOTHROW(conformance::check_calls(provider, 30));
        CHECK_NOTHROW(conformance::check_barrier(provider));
        CHECK_NOTHROW(conformance::check_type<std::int32_t>(provider, 67));
    }
}

} // namespace collprobe::testing::quantised_conformance_test
