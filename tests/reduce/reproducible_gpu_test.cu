// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Reductions under a contract on a GPU have the bits of those on the host.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
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

/// What all ranks get of sums and averages of `count` elements with `leaves`, one behind the other.
template <class Contract, element T, class Provider>
std::vector<T> contracted_bits(
    const Provider& provider, std::uint64_t count, std::uint64_t leaves, const reproducible_options& options)
{
    const auto ranks = static_cast<std::uint64_t>(provider.size());
    const std::uint64_t part = count / ranks;
    const std::uint64_t per_rank = 2 * (count + part);
    const bool scatters = options.algorithm != reduction_algorithm::fixed_point;
    std::vector<T> all(ranks * per_rank);
    provider.run([&](auto& world) {
        using comm_type = std::remove_reference_t<decltype(world)>;
        using device = typename comm_type::device;
        const auto guard = detail::enter_device(world);
        const auto rank = static_cast<std::uint64_t>(world.rank());
        typename device::template host_buffer<T> staging(leaves * count);
        typename device::template host_buffer<T> result(per_rank);
        typename device::template buffer<T> send(leaves * count);
        typename device::template buffer<T> receive(per_rank);
        const typename device::stream stream;
        reproducible<comm_type, Contract> comm(world, {}, options);
        for (std::uint64_t i = 0; i < staging.size(); ++i) staging[i] = testing::wild_value<T>(world.rank(), i);
        device::template fill<unsigned char>(stream,
            view<unsigned char>(reinterpret_cast<unsigned char*>(receive.data()), per_rank * sizeof(T)), 0);
        device::template copy<T>(stream, view<const T>(staging), view<T>(send));
        const reduction_extras extras{leaves, {}};
        std::uint64_t at = 0;
        for (const reduction operation : {reduction::sum, reduction::average}) {
            comm.all_reduce(view<const T>(send), view<T>(receive).part(at, count), operation, stream, extras);
            at += count;
            if (scatters) {
                comm.reduce_scatter(view<const T>(send).part(0, leaves * ranks * part),
                    view<T>(receive).part(at, part), operation, stream, extras);
            }
            at += part;
        }
        device::template copy<T>(stream, view<const T>(receive), view<T>(result));
        stream.synchronize(60'000);
        std::memcpy(static_cast<void*>(all.data() + rank * per_rank), result.data(), per_rank * sizeof(T));
    });
    return all;
}

template <class Contract, element T>
void check_contract(reduction_algorithm how)
{
    for (const int ranks : {1, 2, 3, 8}) {
        for (const std::uint64_t leaves : {1u, 3u}) {
            for (const std::uint64_t scratch : {std::uint64_t{1} << 14, std::uint64_t{4} << 20}) {
                CAPTURE(ranks);
                CAPTURE(leaves);
                CAPTURE(scratch);
                CAPTURE(std::string(element_traits<T>::name));
                CAPTURE(std::string(name(how)));
                const reproducible_options options{scratch, how, std::uint64_t{64} << 10};
                const std::uint64_t count = COLLPROBE_TEST_UNLESS_BRIEF(20'011, 10'007);
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
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    using enum reproducibility;
    for (const auto how : {reduction_algorithm::exchange, reduction_algorithm::one_shot}) {
        check_contract<contract<correctly_rounded>, T>(how);
        check_contract<contract<size_invariant>, T>(how);
        check_contract<contract<size_invariant, accumulation::native>, T>(how);
    }
    check_contract<contract<size_invariant, accumulation::compensated>, T>(reduction_algorithm::exchange);
    if constexpr (sizeof(T) < 8) {
        check_contract<contract<size_invariant, accumulation::float32>, T>(reduction_algorithm::exchange);
    }
    check_contract<contract<order_invariant>, T>(reduction_algorithm::fixed_point);
}
