// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Reductions under a contract on a GPU have the bits of those on the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/reduce.hpp>

#include "support/device_bits.hpp"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

/// What all ranks get of sums and averages.
template <class Contract, element T, class Provider>
std::vector<T> contracted_bits(
    const Provider& provider, std::uint64_t count, std::uint64_t leaves, const reproducible_options& options)
{
    std::vector<testing::reduction_call> calls;
    for (const reduction operation : {reduction::sum, reduction::average}) {
        calls.push_back({collective::all_reduce, operation});
        if (options.algorithm != reduction_algorithm::fixed_point)
            calls.push_back({collective::reduce_scatter, operation});
    }
    return testing::reduction_bits<T>(provider, calls, count, leaves, [&](auto& world, const auto& use) {
        reproducible<std::remove_reference_t<decltype(world)>, Contract> comm(world, {}, options);
        use(comm);
    });
}

template <class Contract, element T>
void check_contract(reduction_algorithm how)
{
    for (const int ranks : {1, 2, 3, 8}) {
        if (testing::few_cases() && ranks != 3) continue;
        for (const std::uint64_t leaves : {1u, 3u}) {
            for (const std::uint64_t scratch : {std::uint64_t{1} << 14, std::uint64_t{4} << 20}) {
                CAPTURE(ranks);
                CAPTURE(leaves);
                CAPTURE(scratch);
                CAPTURE(std::string(element_traits<T>::name));
                CAPTURE(std::string(name(how)));
                const reproducible_options options{scratch, how, std::uint64_t{64} << 10};
                const std::uint64_t count = testing::few_cases() ? 1'507 : COLLPROBE_TEST_UNLESS_BRIEF(20'011, 10'007);
                CHECK(testing::differences<T>(
                          contracted_bits<Contract, T>(testing::local_provider{ranks}, count, leaves, options),
                          contracted_bits<Contract, T>(testing::device_provider<gpu>{ranks}, count, leaves, options))
                    == 0);
            }
        }
    }
}

} // namespace

TEST_CASE_TEMPLATE("a GPU gives the bits of the CPU under every contract and algorithm",
    T, bfloat16, float, double, float8_e4m3)
{
    using enum reproducibility;
    for (const auto how : {reduction_algorithm::exchange, reduction_algorithm::one_shot}) {
        check_contract<contract<correctly_rounded>, T>(how);
        check_contract<contract<size_invariant, accumulation::native>, T>(how);
    }
    // Wide sums of narrow types differ by a conversion alone, which those above have.
    if constexpr (sizeof(T) >= 4 || std::is_same_v<T, bfloat16>) {
        check_contract<contract<size_invariant>, T>(reduction_algorithm::exchange);
        check_contract<contract<size_invariant>, T>(reduction_algorithm::one_shot);
    }
    if constexpr (sizeof(T) == 4 || std::is_same_v<T, bfloat16>) {
        check_contract<contract<size_invariant, accumulation::float32>, T>(reduction_algorithm::exchange);
    }
    check_contract<contract<order_invariant>, T>(reduction_algorithm::fixed_point);
}
