// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reduce/reduction_cases.hpp"

namespace collprobe::testing::reproducible_test {

using std::uint64_t;

TEST_CASE("bytes sent are those of a ring where the count divides, and are counted right where not")
{
    for (const int ranks : {1, 2, 3, 4, 8}) {
        local_provider{ranks}.run([&](local::communicator& world) {
            const auto n = static_cast<uint64_t>(ranks);
            host::stream stream;
            const auto send_and_count = [&](uint64_t count, uint64_t leaves, bool scatter, reproducible_options options) {
                uint64_t bytes = 0, calls = 0;
                reproducible comm(counted(world, bytes, calls), contract<reproducibility::order_invariant>{}, options);
                std::vector<float> send(count * leaves, 1.0f), receive(scatter ? count / n : count);
                const reduction_outcome outcome = scatter
                    ? comm.reduce_scatter(view<const float>(send), view<float>(receive), reduction::sum, stream,
                          {.leaves = leaves})
                    : comm.all_reduce(
                          view<const float>(send), view<float>(receive), reduction::sum, stream, {.leaves = leaves});
                stream.synchronize(soon_ms);
                require(outcome.collectives == calls, "the outcome has other calls than were made");
                // The bytes of a native reduction are rounded down to whole ones, call by call.
                const uint64_t fractions = outcome.algorithm == reduction_algorithm::fixed_point ? calls : 0;
                require(outcome.bytes_sent >= bytes && outcome.bytes_sent <= bytes + fractions,
                    "the outcome has other bytes than were sent");
                return outcome.bytes_sent;
            };
            using enum reduction_algorithm;
            const uint64_t count = 4096 * n;
            for (const uint64_t scratch : {uint64_t{1} << 12, uint64_t{1} << 20}) {
                const uint64_t lower_bound = 2 * count * 4 * (n - 1) / n;
                require(send_and_count(count, 1, false, {.scratch_bytes = scratch, .algorithm = exchange})
                        == lower_bound, "all_reduce by exchange");
                require(send_and_count(count, 3, false, {.scratch_bytes = scratch, .algorithm = exchange})
                        == 2 * lower_bound, "all_reduce by exchange of leaves");
                require(send_and_count(count, 1, true, {.scratch_bytes = scratch}) == lower_bound / 2, "reduce_scatter");
                require(send_and_count(count, 2, false, {.scratch_bytes = scratch, .algorithm = one_shot})
                        == 2 * count * 4 * (n - 1), "all_reduce at once");
                require(send_and_count(count, 2, false, {.scratch_bytes = scratch, .algorithm = fixed_point})
                        == 2 * count * 9 * (n - 1) / n, "fixed point");
                for (const uint64_t odd : {0u, 1u, 5u, 1003u, 4099u}) {
                    for (const auto how : {exchange, one_shot, automatic}) {
                        send_and_count(odd, 2, false, {.scratch_bytes = scratch, .algorithm = how});
                    }
                }
            }
        });
    }
}

TEST_CASE("one object serves two streams in turn")
{
    const term_table<float> table(3, 2000, 9);
    std::vector<float> expected;
    for (uint64_t i = 0; i < table.count(); ++i) expected.push_back(table.exact(i));
    CHECK_NOTHROW(local_provider{3}.run([&](local::communicator& world) {
        host::stream streams[2];
        reproducible comm(world, contract<reproducibility::correctly_rounded>{}, {.scratch_bytes = 4096});
        const std::vector<float> send = table.sent(world.rank(), 1, 0, 2000);
        std::vector<std::vector<float>> receive(20, std::vector<float>(2000));
        for (std::size_t call = 0; call < receive.size(); ++call) {
            comm.all_reduce(view<const float>(send), view<float>(receive[call]), reduction::sum,
                streams[(call + static_cast<std::size_t>(world.rank())) % 2]);
        }
        for (host::stream& stream : streams) stream.synchronize(soon_ms);
        for (const auto& result : receive) require(same_numbers(result, expected), "two streams got in each other's way");
    }));
}

TEST_CASE("integers, extrema and data movement are the communicator's own")
{
    CHECK_NOTHROW(local_provider{3}.run([](local::communicator& world) {
        host::stream stream;
        uint64_t bytes = 0, calls = 0;
        reproducible comm(counted(world, bytes, calls), contract<reproducibility::correctly_rounded>{});
        std::vector<std::int32_t> numbers(6, 7);
        const reduction_outcome sum
            = comm.all_reduce(view<const std::int32_t>(numbers), view<std::int32_t>(numbers), reduction::sum, stream);
        std::vector<float> values(6, static_cast<float>(world.rank()));
        const reduction_outcome most
            = comm.all_reduce(view<const float>(values), view<float>(values), reduction::max, stream);
        stream.synchronize(soon_ms);
        require(numbers[5] == 21 && values[0] == 2.0f, "wrong result");
        require(calls == 2 && sum.algorithm == reduction_algorithm::native, "not forwarded");
        require(sum.level == reproducibility::correctly_rounded && most.level == reproducibility::correctly_rounded,
            "integers and extrema are exact");
        // Without a contract everything is.
        reproducible plain(world, contract<reproducibility::unspecified>{});
        const reduction_outcome native
            = plain.all_reduce(view<const float>(values), view<float>(values), reduction::product, stream);
        stream.synchronize(soon_ms);
        require(native.level == reproducibility::unspecified && native.roundings_per_element == 2, "wrong outcome");
        // Each value times 1/n is one more.
        const reduction_outcome average
            = plain.all_reduce(view<const float>(values), view<float>(values), reduction::average, stream);
        stream.synchronize(soon_ms);
        require(average.roundings_per_element == 5, "wrong roundings of an average");
    }));
}

namespace {

using exact_local = reproducible<local::communicator, contract<reproducibility::correctly_rounded>>;

/// What a call on all ranks ends with; `call(comm, stream)` runs and the stream is waited for.
template <class Call>
std::vector<rank_outcome> outcomes_of(int ranks, Call call, reproducible_options options = {})
{
    return run_each(local::group(ranks, {.timeout_ms = 60'000}), [&](local::communicator& world) {
        host::stream stream;
        exact_local comm(world, {}, options);
        call(comm, stream);
        stream.synchronize(soon_ms);
    });
}

bool has(const std::optional<error>& failure, const char* part)
{
    return failure && std::string(failure->what()).find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a bad argument is named on its rank, nothing is written, and the right call works")
{
    struct bad_call {
        const char* message;
        view<const float> send;
        view<float> receive;
        uint64_t leaves = 1;
        bool scatters = false;
    };
    constexpr uint64_t beyond = uint64_t{1} << 62; // times 4 it is 0 in 64 bits
    const auto bad_calls = [](float* at) {
        const auto* odd = reinterpret_cast<const float*>(reinterpret_cast<std::uintptr_t>(at) + 2);
        return std::vector<bad_call>{
            {"send is null", {nullptr, 8}, {at, 8}},
            {"receive is null", {at, 8}, {nullptr, 8}},
            {"is not aligned", {odd, 8}, {at + 16, 8}},
            {"overlap: in place receive is send + 0 elements, 0x", {at, 8}, {at + 4, 8}},
            {"send has 9 elements", {at, 9}, {at + 16, 8}},
            {"send has 8 elements, 2 leaves", {at, 8}, {at + 16, 8}, 2},
            {"leaves must be at least 1", {at, 8}, {at + 16, 8}, 0},
            {"leaves is 9223372036854775808", {at, 8}, {at + 16, 8}, uint64_t{1} << 63},
            {"leaves is 1431655766: with 3 ranks", {at, 0}, {at + 16, 0}, 1431655766, true}, // 2^32 terms and 2
            {"receive has the impossible count 4611686018427387904", {at, 0}, {at, beyond}, 4},
            {"scratch_bytes is 448: 3 ranks with 16 leaves need", {at, 16}, {at + 20, 1}, 16},
            {"send has 8 elements", {at, 8}, {at + 16, 8}, 1, true},
        };
    };
    float anywhere[40];
    for (std::size_t i = 0; i < bad_calls(anywhere).size(); ++i) {
        const char* const message = bad_calls(anywhere)[i].message;
        CAPTURE(message);
        std::vector<std::vector<float>> memory(3, std::vector<float>(40, 7.0f));
        std::optional<error> refused;
        const auto outcomes = outcomes_of(3, [&](exact_local& comm, host::stream& stream) {
            std::vector<float>& own = memory[static_cast<std::size_t>(comm.rank())];
            if (comm.rank() == 1) {
                const bad_call call = bad_calls(own.data())[i];
                refused = error_of([&] {
                    if (call.scatters) comm.reduce_scatter(call.send, call.receive, reduction::sum, stream, {.leaves = call.leaves});
                    else comm.all_reduce(call.send, call.receive, reduction::sum, stream, {.leaves = call.leaves});
                });
            }
            require(own == std::vector<float>(40, 7.0f), "something was written");
            comm.all_reduce(view<const float>(own).part(0, 8), view<float>(own).part(16, 8), reduction::sum, stream);
        }, {.scratch_bytes = 448});
        for (const auto& outcome : outcomes) CHECK_FALSE(outcome.thrown);
        CHECK(has(refused, message));
        CHECK(refused->code() == status::invalid_argument);
        CHECK(refused->rank() == 1);
        for (const auto& rank : memory) CHECK((rank[15] == 7.0f && rank[16] == 21.0f && rank[24] == 7.0f));
    }
}

TEST_CASE("what no contract covers is unsupported, and the communicator goes on")
{
    CHECK_NOTHROW(local_provider{2}.run([](local::communicator& world) {
        host::stream stream;
        exact_local comm(world);
        std::vector<float> memory(8, 2.0f);
        const view<const float> in(memory);
        const view<float> out(memory);
        const auto unsupported = [&](auto call) {
            const auto failure = error_of(call);
            return failure && failure->code() == status::unsupported;
        };
        require(unsupported([&] { comm.all_reduce(in, out, reduction::product, stream); }), "a product");
        require(unsupported([&] { comm.all_reduce(in, out, reduction::max, stream, {.leaves = 2}); }), "max of leaves");
        exact_local fixed(world, {}, {.algorithm = reduction_algorithm::fixed_point});
        require(unsupported([&] { fixed.all_reduce(in, out, reduction::sum, stream); }), "fixed point, correctly rounded");
        reproducible any_order(world, contract<reproducibility::order_invariant>{},
            {.scratch_bytes = 256 << 20, .algorithm = reduction_algorithm::fixed_point});
        std::vector<float> leaves(1 << 20), sum(1);
        require(unsupported([&] {
            any_order.all_reduce(view<const float>(leaves), view<float>(sum), reduction::sum, stream, {.leaves = 1 << 20});
        }), "fixed point of 2^21 terms");
        require(unsupported([&] {
            any_order.reduce_scatter(
                in, out.part(4 * static_cast<uint64_t>(world.rank()), 4), reduction::sum, stream);
        }), "fixed point, reduce_scatter");
        require(unsupported([&] { exact_local(world, {}, {.algorithm = reduction_algorithm::native}); }),
            "a contract on the communicator's own sums");
        reproducible<local::communicator, contract<reproducibility::unspecified>>(
            world, {}, {.algorithm = reduction_algorithm::native});
        // A sum of halves in fp64 is exact up to 8192 terms.
        reproducible halves(world, contract<reproducibility::correctly_rounded, accumulation::float64>{},
            {.scratch_bytes = 1 << 20});
        std::vector<float16> many(8194, float16(1.0f)), one(1);
        require(unsupported([&] {
            halves.all_reduce(view<const float16>(many).part(0, 4097), view<float16>(one), reduction::sum, stream, {.leaves = 4097});
        }), "8194 halves in fp64");
        halves.all_reduce(view<const float16>(many).part(0, 4096), view<float16>(one), reduction::sum, stream, {.leaves = 4096});
        comm.all_reduce(in, out, reduction::sum, stream);
        stream.synchronize(soon_ms);
        require(memory[7] == 4.0f && static_cast<float>(one[0]) == 8192.0f, "the control");
    }));
}

namespace {

/// A communicator of floats that has no reduce-scatter and does not add integers.
struct few_calls : adaptor<few_calls, local::communicator> {
    using adaptor::adaptor;
    static constexpr bool has_collective(collective what) noexcept { return what != collective::reduce_scatter; }
    few_calls& innermost() noexcept { return *this; }
    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        if (!std::is_same_v<T, float> && call.reduces()) {
            throw error(status::unsupported, "it adds floats alone", {.call = collprobe::name(call.what), .where = call.where});
        }
        comm_.make<T>(call, on);
    }
};

} // namespace

TEST_CASE("a communicator of few calls keeps a contract with those it has, and is asked for no others")
{
    CHECK_NOTHROW(local_provider{2}.run([](local::communicator& world) {
        using any_order = contract<reproducibility::order_invariant>;
        host::stream stream;
        std::vector<float> values(5000, 1.5f);
        reproducible comm{few_calls(world), any_order{}, {.scratch_bytes = 4096}};
        static_assert(!decltype(comm)::has_collective(collective::reduce_scatter));
        comm.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
        stream.synchronize(soon_ms);
        require(values[4999] == 3.0f, "wrong sum");
        reproducible fixed{few_calls(world), any_order{}, {.algorithm = reduction_algorithm::fixed_point}};
        const auto no_integers = error_of(
            [&] { fixed.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream); });
        require(has(no_integers, "it adds floats alone") && no_integers->code() == status::unsupported, "fixed point");
        const auto no_scatter = error_of(
            [&] { comm.reduce_scatter(values, view<float>(values).part(0, 2500), reduction::sum, stream); });
        require(has(no_scatter, "does not have this collective") && no_scatter->code() == status::unsupported, "reduce-scatter");
    }));
}

TEST_CASE("automatic adds in every rank only what is small, leaves included")
{
    for (const int ranks : {1, 2, 4}) {
        CHECK_NOTHROW(local_provider{ranks}.run([&](local::communicator& world) {
            host::stream stream;
            reproducible comm{world, contract<reproducibility::size_invariant>{}, {.one_shot_bytes = 16384}};
            std::vector<float> send(40'000, 1.0f), receive(40'000);
            const auto chosen = [&](uint64_t count, uint64_t leaves) {
                const reduction_outcome outcome = comm.all_reduce(view<const float>(send).part(0, count * leaves),
                    view<float>(receive).part(0, count), reduction::sum, stream, {.leaves = leaves});
                stream.synchronize(soon_ms);
                return outcome.algorithm;
            };
            const uint64_t most = 16384 / 4 / static_cast<uint64_t>(ranks);
            const reduction_algorithm large
                = ranks == 1 ? reduction_algorithm::one_shot : reduction_algorithm::exchange;
            require(chosen(most, 1) == reduction_algorithm::one_shot, "small");
            require(chosen(most / 2, 2) == reduction_algorithm::one_shot, "small leaves");
            require(chosen(most + 1, 1) == large, "large");
            require(chosen(most / 2 + 1, 2) == large, "large leaves");
        }));
    }
}

TEST_CASE("scratch memory is 16 MiB for few ranks where the caller does not say how much")
{
    CHECK_NOTHROW(local_provider{24}.run([](local::communicator& world) {
        host::stream stream;
        std::vector<float> values(600'000, 1.0f); // 2.4 MB: half of 4 MiB holds less
        const auto calls = [&](reproducible_options options) {
            reproducible comm{world, contract<reproducibility::size_invariant>{}, options};
            const reduction_outcome sum
                = comm.all_reduce(view<const float>(values), view<float>(values), reduction::average, stream);
            stream.synchronize(soon_ms);
            return sum.collectives;
        };
        require(calls({}) == calls({.scratch_bytes = 16 << 20}), "other pieces than with 16 MiB");
        require(calls({}) < calls({.scratch_bytes = 4 << 20}), "as many pieces as with 4 MiB");
    }));
}

TEST_CASE("too little scratch memory for any call is refused at once, on the rank alone")
{
    CHECK_NOTHROW(local_provider{2}.run([](local::communicator& world) {
        const auto refused = error_of([&] { exact_local(world, {}, {.scratch_bytes = least_scratch(2, 1) - 1}); });
        require(refused && refused->code() == status::invalid_argument, "too little scratch memory is accepted");
        const exact_local control(world, {}, {.scratch_bytes = least_scratch(2, 1)});
        host::stream stream;
        world.barrier(stream);
        stream.synchronize(soon_ms);
    }));
}

} // namespace collprobe::testing::reproducible_test
