// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Sums in two levels on a GPU have the bits of those on the host, whatever form the partial sums take.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <collprobe/collprobe.cuh>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/reduce.hpp>

#include "reduce/reduction_bits.hpp"
#include "support/device_bits.hpp"
#include "support/element_types.hpp"
#include "support/needs_gpu.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too

namespace {

using gpu = cu::device;

/// What all ranks, two to a node, get.
template <class Contract, element T, class Provider>
std::vector<T> two_level_bits(
    const Provider& provider, std::uint64_t count, std::uint64_t leaves, std::uint64_t scratch)
{
    return testing::reduction_bits<T>(provider,
        {{collective::all_reduce, reduction::average}, {collective::reduce_scatter, reduction::sum}}, count, leaves,
        [&](auto& world, const auto& use) {
            using comm_type = std::remove_reference_t<decltype(world)>;
            node_groups<comm_type> nodes(world, 2);
            reproducible<comm_type, Contract, node_groups<comm_type>> comm(
                world, {}, nodes, {.scratch_bytes = scratch, .algorithm = reduction_algorithm::two_level});
            use(comm);
        });
}

template <class Contract, element T>
void check_contract(std::uint64_t leaves)
{
    for (const std::uint64_t scratch : {std::uint64_t{1} << 14, std::uint64_t{4} << 20}) {
        CAPTURE(leaves);
        CAPTURE(scratch);
        CAPTURE(std::string(element_traits<T>::name));
        const std::uint64_t count = COLLPROBE_TEST_UNLESS_BRIEF(5'011, 2'007);
        CHECK(testing::differences<T>(two_level_bits<Contract, T>(testing::local_provider{4}, count, leaves, scratch),
                  two_level_bits<Contract, T>(testing::device_provider<gpu>{4}, count, leaves, scratch))
            == 0);
    }
}

} // namespace

TEST_CASE_TEMPLATE("in two levels a GPU gives the bits of the CPU under every contract",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using enum reproducibility;
    check_contract<contract<correctly_rounded>, T>(1);
    check_contract<contract<correctly_rounded>, T>(sizeof(T) < 8 ? 12 : 3);
    check_contract<contract<size_invariant>, T>(1);
    check_contract<contract<size_invariant, accumulation::native>, T>(1);
    check_contract<contract<size_invariant, accumulation::compensated>, T>(3);
    if constexpr (sizeof(T) < 8) check_contract<contract<size_invariant, accumulation::float32>, T>(1);
}
