// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "conformance/communicator_conformance.hpp"
#include "support/run_ranks.hpp"

namespace collprobe::testing::reproducible_conformance_test {
namespace {

using enum reproducibility;

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

// The accumulator is the one a contract names, or what its level needs.
static_assert(contract<size_invariant>::accumulator<float> == accumulation::float64);
static_assert(contract<size_invariant>::accumulator<double> == accumulation::float64);
static_assert(contract<order_invariant>::accumulator<bfloat16> == accumulation::exact);
static_assert(contract<correctly_rounded, accumulation::float64>::accumulator<float16> == accumulation::float64);
static_assert(contract<run_to_run, accumulation::native>::accumulator<float16> == accumulation::native);

/// Products of floating-point numbers have no contract: they are the wrapped communicator's.
template <class Comm, class Contract>
class with_products : public adaptor<with_products<Comm, Contract>, reproducible<Comm, Contract>> {
    using base_type = adaptor<with_products, reproducible<Comm, Contract>>;

public:
    with_products(Comm comm, Contract of, const reproducible_options& options)
        : base_type(reproducible<Comm, Contract>(std::move(comm), of, options))
    {
    }

    template <element T>
    reduction_outcome make(const collective_call& call, typename base_type::stream_ref stream)
    {
        if (!call.reduces() || call.operation != reduction::product) return base_type::template make<T>(call, stream);
        this->base().base().template make<T>(call, stream);
        return {};
    }
};

template <class Contract>
auto provider_of(int ranks, const reproducible_options& options)
{
    return wrapped_provider{local_provider{ranks}, [options](local::communicator& world) {
        return with_products<local::communicator, Contract>(world, {}, options);
    }};
}

} // namespace

TEST_CASE("a reproducible communicator conforms as the one it wraps does")
{
    for (const int ranks : {1, 2, 3, 8}) {
        CAPTURE(ranks);
        const auto exact = provider_of<contract<correctly_rounded>>(ranks, {.scratch_bytes = 1 << 12});
        CHECK_NOTHROW(conformance::check_type<std::int32_t>(exact, 67));
        CHECK_NOTHROW(conformance::check_type<bfloat16>(exact, 67));
        CHECK_NOTHROW(conformance::check_calls(exact, 50));
        CHECK_NOTHROW(conformance::check_barrier(exact));
    }
}

TEST_CASE("with an accumulator and an algorithm of choice, too")
{
    const auto narrow = provider_of<contract<size_invariant, accumulation::float32>>(
        3, {.scratch_bytes = 1 << 12, .algorithm = reduction_algorithm::exchange});
    CHECK_NOTHROW(conformance::check_type<float>(narrow, 2051));
    CHECK_NOTHROW(conformance::check_type<bfloat16>(narrow, 2051));
    const auto at_once = provider_of<contract<run_to_run>>(
        3, {.scratch_bytes = 1 << 12, .algorithm = reduction_algorithm::one_shot});
    CHECK_NOTHROW(conformance::check_type<float>(at_once, 2051));
}

TEST_CASE("a probe's own messages are under no contract: one that gives no sums of doubles does")
{
    using narrow = contract<size_invariant, accumulation::float32>;
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CHECK_NOTHROW(testing::local_provider{3}.run([&](local::communicator& world) {
            const host::stream stream;
            std::vector<float> send(1000, 0.25f + static_cast<float>(world.rank())), receive(1000);
            probed comm{reproducible(world, narrow{}), {.mode = mode, .direction = direction_mode::exact, .calls = 8}};
            static_assert(decltype(comm)::reduces<float> && !decltype(comm)::reduces<double>);
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            comm.end_step(1, {.loss = 1.0}, stream);
            stream.synchronize(20'000);
            step_record record;
            conformance::require(comm.poll(record), "no record");
            conformance::require(record.calls[0].results_agree, "wrong record");
            conformance::require(is_finite(record.cosine.mean_pairwise), "no Gram matrix");
        }));
    }
}

TEST_CASE("leaves go through a probe, which tells what is not finite in any leaf")
{
    CHECK_NOTHROW(testing::local_provider{2}.run([&](local::communicator& world) {
        const host::stream stream;
        std::vector<float> leaves(200, 1.0f + static_cast<float>(world.rank())), sum(100), part(50);
        probed comm{reproducible(world), {.calls = 8}};
        const auto send = view<const float>(leaves);
        const reduction_outcome outcome
            = comm.all_reduce(send, view<float>(sum), reduction::sum, stream, {.leaves = 2});
        comm.reduce_scatter(send, view<float>(part), reduction::sum, stream, {.leaves = 2});
        comm.all_reduce(send.part(0, 100), view<float>(sum), reduction::sum, stream);
        comm.end_step(0, {}, stream);
        stream.synchronize(20'000);
        conformance::require(outcome.terms == 4 && part[49] == 6.0f && sum[99] == 3.0f, "wrong sums");
        if (world.rank() == 1) leaves[150] = std::numeric_limits<float>::infinity();
        comm.all_reduce(send, view<float>(sum), reduction::sum, stream, {.leaves = 2});
        comm.end_step(1, {}, stream);
        stream.synchronize(20'000);
        step_record record;
        conformance::require(comm.poll(record), "no record");
        conformance::require(record.findings.empty(), "a clean step is suspect");
        conformance::require(record.calls.size() == 3 && record.calls[0].results_agree, "wrong buckets");
        // Only the last call is of one gradient a rank.
        conformance::require(record.gradient_norms == std::vector<double>{10.0, 20.0}, "wrong norms");
        conformance::require(comm.poll(record), "no record");
        conformance::require(record.findings.size() == 1 && record.findings[0].rank() == 1
                && record.findings[0].what == finding_kind::non_finite && record.findings[0].index == 150,
            "the infinity is not named");
    }));
}

} // namespace collprobe::testing::reproducible_conformance_test
