// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A probe of quantised sums and an audit beside each other.
#include <cstdint>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/audit.hpp>

#include "quant/probed_steps.hpp"

namespace collprobe::testing::quantisation_audit_test {
namespace {

constexpr quantisation int8{.format = code_format::int8};

} // namespace

TEST_CASE("an audit takes gathered codes for no damage, and damaged ones for some")
{
    for (const bool damaged : {false, true}) {
        local::run(3, {.timeout_ms = soon_ms}, [&](local::communicator& bare) {
            flips_of_rank mine{{{damaged ? 1 : -1, collective::all_gather, 0, 5, 1}}, bare.rank()};
            quantised comm(flipping<local::communicator>(bare, mine), int8, tiny);
            host::stream stream;
            probed probe(std::move(comm), {}, audit());
            const std::vector<float> shard = gradient(probe.rank(), 512, 0, 1);
            std::vector<float> all(3 * 512);
            probe.all_gather(view<const float>(shard), view<float>(all), stream);
            const step_record record = end_step(probe, 1, stream);
            require(record.calls.at(0).results_agree != damaged, "agreement");
            const std::vector<finding> named = suspects_of(record, finding_kind::result_differs);
            require(named.size() == (damaged ? 1 : 0) && (!damaged || named[0].rank() == 1), "who");
            require(suspects_of(record, finding_kind::shard_differs).empty(), "shards");
        });
    }
}

TEST_CASE("an audit checks sums of calls without codes, and shares out the sketches of a step with a probe of the others")
{
    const auto look = [](auto first, auto second, auto& comm, bool measured) {
        host::stream stream;
        probed probe(std::move(comm), {}, std::move(first), std::move(second));
        const std::vector<float> small = gradient(probe.rank(), 1024, 0, 1), large = gradient(probe.rank(), 4096, 0, 1);
        std::vector<float> result(4096);
        for (std::uint64_t step = 0; step < 2; ++step) {
            probe.all_reduce(view<const float>(small), view<float>(result).part(0, 1024), reduction::sum, stream);
            probe.all_reduce(view<const float>(large), view<float>(result), reduction::sum, stream);
            const step_record record = end_step(probe, step, stream);
            require(record.calls.at(0).audit.sum_checked && !record.calls.at(1).audit.sum_checked, "audit");
            require(record.calls.at(1).audit.checked && record.calls.at(1).results_agree, "agreement");
            require(suspects_of(record, finding_kind::sum_differs).empty(), "sum_differs");
            const call_quantisation& call = record.calls.at(1).quantisation;
            require(call.seen && (call.bins == 256) == measured, "bins");
            require(record.calls.at(0).quantisation.bins == 0, "bins of a call without codes");
            require(!measured || (call.aggregate_sqnr_db > 35 && call.aggregate_sqnr_db < 45), "error");
        }
    };
    const quantised_options options{.least_bytes = 1 << 13};
    on_ranks({0, 3}, int8, int8, options, [&](auto& comm) { look(audit(), quantisation_probe(), comm, true); });
    on_ranks({0, 3}, int8, int8, options, [&](auto& comm) { look(quantisation_probe(), audit(), comm, true); });
    on_ranks({0, 3}, int8, int8, options, [&](auto& comm) {
        look(quantisation_probe({}, {.aggregate = false}), audit(), comm, false); // it has no sketches
    });
}

} // namespace collprobe::testing::quantisation_audit_test
