// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/adaptor.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/inspect/inspect.hpp>
#include <collprobe/quant/quantised.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/report/inspection.hpp>

#include "support/run_ranks.hpp"

using namespace collprobe;

namespace {

constexpr inspect_options brief{.repeats = 2, .permutations = 1, .timed = 1};
constexpr quantised_options all_sizes{.least_bytes = 1};
constexpr quantised_options large_sizes{.least_bytes = 1 << 20};

/// What rank 0 finds over the communicator that `use` is called with.
template <class T, class Wrap>
inspection inspect_over(int ranks, std::uint64_t count, const Wrap& wrap, local::reduction_order order = {})
{
    inspection found;
    local::run(ranks, {.order = order}, [&](local::communicator& world) {
        wrap(world, [&](auto& comm) {
            host::stream stream;
            const inspection mine = inspect<T>(comm, stream, count, brief);
            if (world.rank() == 0) found = mine;
        });
    });
    return found;
}

/// The same over a quantised one; without nodes if there is one.
template <class T>
inspection inspect_quantised(
    int nodes, int per_node, const quantisation& within, const quantisation& across, std::uint64_t count)
{
    return inspect_over<T>(nodes * per_node, count, [&](local::communicator& world, const auto& use) {
        if (nodes == 1) {
            quantised comm(world, within, all_sizes);
            use(comm);
        } else {
            node_groups groups(world, per_node);
            quantised comm(world, groups, within, across, all_sizes);
            use(comm);
        }
    });
}

/// A ring that rounds the sum to int8 codes at every hop. With `keeps_own`, rank 0 has a result without the last of them,
/// as owners that do not decode their own codes.
struct coded_ring : adaptor<local::communicator> {
    std::uint64_t block;
    bool keeps_own;
    std::vector<float> all = {};

    coded_ring(local::communicator comm, std::uint64_t in_block, bool keeps)
        : adaptor(comm), block(in_block), keeps_own(keeps)
    {
    }

    template <element T>
    void all_reduce(std::type_identity_t<view<const T>> send, view<T> receive, reduction operation,
        stream_ref stream, call_site where = call_site::current())
    {
        if constexpr (std::is_same_v<T, float>) {
            const auto n = static_cast<std::uint64_t>(size());
            all.resize(n * send.count());
            all_gather(send, view<float>(all), stream, where);
            stream.enqueue([this, receive, n] { sum(receive, n); });
        } else {
            adaptor::all_reduce(send, receive, operation, stream, where);
        }
    }
    void sum(view<float> receive, std::uint64_t n) const
    {
        const std::uint64_t count = receive.count();
        std::vector<float> sum(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
        for (std::uint64_t rank = 1; rank < n; ++rank) {
            if (!(keeps_own && this->rank() == 0 && rank + 1 == n)) to_codes(sum);
            for (std::uint64_t i = 0; i < count; ++i) sum[i] += all[rank * count + i];
        }
        std::copy(sum.begin(), sum.end(), receive.begin());
    }
    void to_codes(std::vector<float>& x) const
    {
        for (std::size_t first = 0; first < x.size(); first += block) {
            const std::size_t end = std::min<std::size_t>(first + block, x.size());
            float largest = 0;
            for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
            const float scale = largest / 127;
            for (std::size_t i = first; i < end; ++i) x[i] = largest > 0 ? std::nearbyint(x[i] / scale) * scale : 0;
        }
    }
};

} // namespace

TEST_CASE("codes, blocks and roundings of quantised reductions are found")
{
    for (const code_format format : {code_format::int8, code_format::int4, code_format::e4m3, code_format::e5m2}) {
        for (const code_rounding rounding : {code_rounding::nearest, code_rounding::stochastic}) {
            CAPTURE(std::string(name(format)));
            CAPTURE(std::string(name(rounding)));
            const quantisation small{.format = format, .block = 32, .rounding = rounding};
            const quantisation large{.format = format, .block = 512, .rounding = rounding};
            const inspection one = inspect_quantised<float>(1, 3, small, small, 1000);
            const inspection two = inspect_quantised<float>(2, 2, large, large, 2100);
            CHECK(one.order == order_class::codes);
            CHECK(one.codes == name(format));
            CHECK(one.code_block == 32);
            CHECK(one.roundings_per_element == 2);
            CHECK(two.codes == name(format));
            CHECK(two.code_block == 512);
            CHECK(two.roundings_per_element == 3);
            CHECK(one.run_stable == (rounding == code_rounding::nearest));
            CHECK((one.ranks_agree && two.ranks_agree));
        }
    }
}

TEST_CASE("the same of 16-bit elements and of other scales")
{
    for (const scaling rule : {scaling::signed_maximum, scaling::asymmetric}) {
        for (const code_format format : {code_format::int8, code_format::int4}) {
            CAPTURE(std::string(name(rule)));
            const quantisation how{.format = format, .block = 64, .rule = rule};
            const inspection found = inspect_quantised<bfloat16>(3, 2, how, how, 900);
            CHECK(found.codes == name(format));
            CHECK(found.code_block == 64);
            CHECK(found.roundings_per_element == 3);
        }
    }
    const quantisation e5m2{.format = code_format::e5m2, .block = 64};
    CHECK(inspect_quantised<float16>(1, 2, e5m2, e5m2, 900).roundings_per_element == 2);
    // Codes across the nodes hide the finer ones within.
    const quantisation within{.format = code_format::int8}, across{.format = code_format::int4};
    const inspection mixed = inspect_quantised<float>(2, 2, within, across, 900);
    CHECK(mixed.codes == "int4");
    CHECK(mixed.roundings_per_element == 3);
    // A rotation hides its codes, not its blocks.
    const quantisation rotated{.format = code_format::int4, .block = 256, .rotate = true};
    const inspection hidden = inspect_quantised<float>(1, 2, rotated, rotated, 900);
    CHECK(hidden.codes == "unknown");
    CHECK(hidden.code_block == 256);
    CHECK(hidden.roundings_per_element == -1);
    // As much of a block as the message has.
    const quantisation wide{.block = 4096};
    CHECK(inspect_quantised<float>(1, 2, wide, wide, 900).code_block == 900);

    const std::string table = report::inspection_table({mixed});
    CHECK(table.find("int4 in 128") != std::string::npos);
    CHECK(report::json_line("x", mixed).find("\"codes\":\"int4\",\"code_block\":128") != std::string::npos);
}

TEST_CASE("a ring that rounds at every hop rounds n - 1 times, and an owner with other bits is noticed")
{
    for (const int ranks : {2, 4, 5}) {
        const auto over = [&](bool keeps_own) {
            return inspect_over<float>(ranks, 1000, [&](local::communicator& world, const auto& use) {
                coded_ring ring(world, 100, keeps_own);
                use(ring);
            });
        };
        const inspection found = over(false);
        CHECK(found.codes == "int8");
        CHECK(found.code_block == 100);
        CHECK(found.roundings_per_element == ranks - 1);
        CHECK(found.ranks_agree);
        CHECK_FALSE(over(true).ranks_agree);
    }
}

TEST_CASE("what rounds each element for itself has no codes")
{
    using enum local::reduction_order;
    const auto as_it_is = [](local::communicator& world, const auto& use) { use(world); };
    for (const local::reduction_order order : {ring, tree, linear}) {
        const inspection wide = inspect_over<float>(5, 1000, as_it_is, order);
        const inspection narrow = inspect_over<bfloat16>(5, 1000, as_it_is, order);
        CHECK(wide.codes.empty());
        CHECK(narrow.codes.empty());
        CHECK(wide.order != order_class::codes);
        CHECK(report::json_line("x", wide).find("codes") == std::string::npos);
    }
    const auto under = [](auto contract, reduction_algorithm algorithm) {
        return inspect_over<float>(3, 1000, [&](local::communicator& world, const auto& use) {
            reproducible comm(world, contract, {.algorithm = algorithm});
            use(comm);
        });
    };
    CHECK(under(contract<reproducibility::order_invariant>{}, reduction_algorithm::fixed_point).codes.empty());
    CHECK(under(contract<reproducibility::correctly_rounded>{}, reduction_algorithm::exchange).codes.empty());
    // Small messages and doubles travel as they are.
    const inspection small = inspect_over<float>(3, 1000, [](local::communicator& world, const auto& use) {
        quantised comm(world, quantisation(), large_sizes);
        use(comm);
    });
    CHECK(small.codes.empty());
    CHECK(inspect_quantised<double>(1, 3, {}, {}, 1000).codes.empty());
}
