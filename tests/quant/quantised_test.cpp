// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "quant/quantised_ranks.hpp"

namespace collprobe::testing::quantised_test {

using std::uint64_t;

// The oracle computes in double, from the inputs and the definition of the error of a code; exact cases use
// integers that are codes.
namespace {

/// The largest scale that blocks of a buffer can have: their largest magnitude over the largest code, rounded
/// up.
double largest_scale(double magnitude, code_format format)
{
    return magnitude / double{largest_code(format)} * (1 + 0x1p-7);
}

template <class T>
double unit_of(double magnitude)
{
    return std::ldexp(std::abs(magnitude), -(element_traits<T>::digits - 1));
}

} // namespace

TEST_CASE_TEMPLATE(
    "all_reduce: the same bits on all ranks, within the bounds of the roundings", T, float, bfloat16, float16)
{
    for (const shape of : {shape{0, 2}, shape{0, 3}, shape{0, 5}, shape{2, 2}, shape{2, 4}, shape{4, 2},
             shape{1, 3}, shape{3, 1}}) {
        for (const uint64_t count : {uint64_t{1}, uint64_t{127}, uint64_t{1000}, uint64_t{40'001}}) {
            for (const bool average : {false, true}) {
                if (average && count == 1000) continue;
                CAPTURE(of.nodes);
                CAPTURE(of.per_node);
                CAPTURE(count);
                const int n = of.ranks();
                std::vector<std::vector<T>> inputs;
                for (int r = 0; r < n; ++r)
                    inputs.push_back(random_elements<T>(count, static_cast<unsigned>(r) + 1));
                std::vector<std::vector<T>> results(static_cast<std::size_t>(n));
                on_ranks(
                    of, {.format = code_format::int8}, {.format = code_format::int4}, tiny, [&](auto& comm) {
                        host::stream stream;
                        const auto me = static_cast<std::size_t>(comm.rank());
                        std::vector<T> buffer(inputs[me]); // in place
                        const quantised_outcome did = comm.all_reduce(view<const T>(buffer), view<T>(buffer),
                            average ? reduction::average : reduction::sum, stream);
                        stream.synchronize(soon_ms);
                        require(did.quantised(), "the call was not quantised");
                        results[me] = buffer;
                    });
                double most = 0;
                for (const auto& x : inputs)
                    for (const T v : x) most = std::max(most, std::abs(static_cast<double>(v)));
                const bool two = of.nodes > 1 && of.per_node > 1;
                const code_format first = of.nodes > 1 && of.per_node == 1 ? code_format::int4 : code_format::int8;
                const code_format last = of.nodes == 0 ? code_format::int8 : code_format::int4;
                double worst = 0;
                for (uint64_t i = 0; i < count; ++i) {
                    double sum = 0;
                    for (const auto& x : inputs) sum += static_cast<double>(x[i]);
                    if (average) sum /= n;
                    const double got = static_cast<double>(results[0][i]);
                    double bound = n * largest_scale(most, first) / 2;
                    if (two) bound += of.nodes * largest_scale(of.per_node * most, last) / 2;
                    if (average) bound /= n;
                    bound += largest_scale(average ? most : n * most, last) / 2;
                    bound = bound * 1.01 + unit_of<T>(got);
                    CHECK(std::abs(got - sum) <= bound);
                    worst = std::max(worst, std::abs(got - sum));
                }
                if (count > 100) CHECK(worst > 0);
                for (const auto& other : results)
                    CHECK(std::memcmp(other.data(), results[0].data(), count * sizeof(T)) == 0);
            }
        }
    }
}

TEST_CASE("slice r arrives at rank r: integers that are codes are exact")
{
    for (const shape of : {shape{0, 3}, shape{2, 2}, shape{2, 4}, shape{4, 2}}) {
        for (const uint64_t part : {uint64_t{1}, uint64_t{200}, uint64_t{5000}}) {
            on_ranks(of, {.block = 64}, {.block = 64}, tiny, [&](auto& comm) {
                host::stream stream;
                const auto me = static_cast<uint64_t>(comm.rank()), n = static_cast<uint64_t>(comm.size());
                // Each block has the largest code, so that scales are 1, and sums are codes of scale n.
                const auto sent = [](uint64_t r, uint64_t i) {
                    return i % 64 == 0 ? 127.0f : static_cast<float>((r * 31 + i) % 127);
                };
                std::vector<float> send(part * n), mine(part);
                for (uint64_t i = 0; i < send.size(); ++i) send[i] = sent(i / part, i % part);
                view<float> receive(mine);
                if (me % 2 == 1) receive = view<float>(send).part(me * part, part); // in place
                comm.reduce_scatter(view<const float>(send), receive, reduction::sum, stream);
                stream.synchronize(soon_ms);
                for (uint64_t i = 0; i < part; ++i)
                    require(receive[i] == sent(me, i) * static_cast<float>(n), "element " + std::to_string(i));
            });
        }
    }
}

TEST_CASE("messages between nodes have the format across, also where each rank is a node")
{
    const quantisation within{.format = code_format::int8, .block = 64};
    const quantisation across{.format = code_format::int4, .block = 64};
    struct outcome_and_result {
        quantised_outcome did;
        std::vector<float> result;
    };
    const auto reduce = [&](shape of, const quantisation& in, const quantisation& out, bool scatters) {
        outcome_and_result found;
        on_ranks(of, in, out, tiny, [&](auto& comm) {
            host::stream stream;
            const std::vector<float> send = random_elements<float>(4000, static_cast<unsigned>(comm.rank()));
            std::vector<float> result(scatters ? 1000 : 4000);
            const quantised_outcome did = scatters
                ? comm.reduce_scatter(view<const float>(send), view<float>(result), reduction::sum, stream)
                : comm.all_reduce(view<const float>(send), view<float>(result), reduction::sum, stream);
            stream.synchronize(soon_ms);
            if (comm.rank() == 0) found = {did, result};
        });
        return found;
    };
    for (const bool scatters : {false, true}) {
        CAPTURE(scatters);
        // The bits and the bytes of one level with the format `across`.
        const outcome_and_result expected = reduce({0, 4}, across, across, scatters);
        const outcome_and_result found = reduce({4, 1}, within, across, scatters);
        CHECK(found.result == expected.result);
        CHECK(found.did.bytes_sent == expected.did.bytes_sent);
        CHECK(found.did.bytes_across == expected.did.bytes_sent);
        CHECK(found.did.within == code_format::int4);
        CHECK(found.did.across == code_format::int4);
        CHECK(found.did.levels == 1);
        // One node: what is exchanged in it has the format `within`.
        const outcome_and_result one_node = reduce({1, 4}, within, across, scatters);
        CHECK(one_node.did.within == code_format::int8);
        CHECK(one_node.did.bytes_across == 0);
        if (scatters) CHECK(one_node.result == reduce({0, 4}, within, within, true).result);
        CHECK(one_node.result != expected.result);
    }
    // No message at all: one rank.
    CHECK(reduce({1, 1}, within, across, false).did.bytes_sent == 0);
}

TEST_CASE("all_gather: all ranks have the decoded shards, the sender too")
{
    for (const uint64_t count : {uint64_t{1}, uint64_t{333}, uint64_t{20'000}}) {
        std::vector<std::vector<float>> results(4);
        on_ranks({0, 4}, {.format = code_format::int8}, {}, tiny, [&](auto& comm) {
            host::stream stream;
            const auto me = static_cast<uint64_t>(comm.rank());
            std::vector<float> all(4 * count);
            const std::vector<float> shard = random_elements<float>(count, static_cast<unsigned>(me));
            std::copy(shard.begin(), shard.end(), all.begin() + static_cast<std::ptrdiff_t>(me * count));
            view<float> whole(all);
            comm.all_gather(view<const float>(whole.part(me * count, count)), whole, stream);
            stream.synchronize(soon_ms);
            results[me] = all;
        });
        for (int r = 0; r < 4; ++r) {
            const std::vector<float> shard = random_elements<float>(count, static_cast<unsigned>(r));
            float most = 0;
            for (const float v : shard) most = std::max(most, std::abs(v));
            bool changed = false;
            for (uint64_t i = 0; i < count; ++i) {
                const float got = results[0][static_cast<uint64_t>(r) * count + i];
                CHECK(std::abs(double{got} - double{shard[i]})
                    <= largest_scale(most, code_format::int8) * 0.501);
                changed = changed || got != shard[i];
            }
            if (count > 1) CHECK(changed);
            CHECK(
                std::memcmp(results[0].data(), results[static_cast<std::size_t>(r)].data(), 16 * count) == 0);
        }
    }
}

TEST_CASE("codes depend neither on pieces nor on the number of ranks")
{
    // Equal inputs of powers of two many ranks: the sum of decoded elements is exact, so the bits show the
    // codes.
    const std::vector<float> input = random_elements<float>(30'000, 8);
    std::vector<float> first;
    for (const int n : {2, 4, 8}) {
        for (const uint64_t scratch : {uint64_t{64} << 10, uint64_t{1} << 20}) {
            on_ranks({0, n}, {.format = code_format::int8}, {}, {.least_bytes = 1, .scratch_bytes = scratch},
                [&](auto& comm) {
                    host::stream stream;
                    std::vector<float> result(input.size());
                    comm.all_reduce(
                        view<const float>(input), view<float>(result), reduction::average, stream);
                    stream.synchronize(soon_ms);
                    if (comm.rank() != 0) return;
                    if (first.empty()) first = result;
                    require(std::memcmp(first.data(), result.data(), 4 * result.size()) == 0, "other bits");
                });
        }
    }
}

TEST_CASE("the bytes sent are those of the formulas")
{
    const auto message = [](uint64_t elements, int bits) {
        const uint64_t blocks = (elements + 127) / 128;
        return blocks * 128 * static_cast<uint64_t>(bits) / 8 + (2 * blocks + 15) / 16 * 16;
    };
    const uint64_t count = 8 * 8 * 1024;
    const std::vector<float> input(count, 1.0f);
    on_ranks({0, 8}, {.format = code_format::int8}, {}, {.least_bytes = 1}, [&](auto& comm) {
        host::stream stream;
        std::vector<float> result(count);
        const quantised_outcome all
            = comm.all_reduce(view<const float>(input), view<float>(result), reduction::sum, stream);
        const quantised_outcome scattered = comm.reduce_scatter(
            view<const float>(input), view<float>(result).part(0, count / 8), reduction::sum, stream);
        stream.synchronize(soon_ms);
        require(all.bytes_sent == 2 * 7 * message(count / 8, 8), "all_reduce");
        require(scattered.bytes_sent == 7 * message(count / 8, 8), "reduce_scatter");
        require(all.collectives == 2 && scattered.collectives == 1, "collectives");
        require(all.roundings_per_element == 2 && scattered.roundings_per_element == 1, "roundings");
        require(all.bytes_plain == 2 * 7 * count / 8 * 4, "plain");
    });
    on_ranks({2, 4}, {.format = code_format::int8}, {.format = code_format::int4}, {.least_bytes = 1},
        [&](auto& comm) {
            host::stream stream;
            std::vector<float> result(count);
            const quantised_outcome scattered = comm.reduce_scatter(
                view<const float>(input), view<float>(result).part(0, count / 8), reduction::sum, stream);
            stream.synchronize(soon_ms);
            require(scattered.bytes_sent == 3 * message(count / 4, 8) + message(count / 8, 4), "two levels");
            require(scattered.bytes_across == message(count / 8, 4), "across");
            require(scattered.levels == 2 && scattered.roundings_per_element == 2, "levels");
        });
}

TEST_CASE("what is not quantised is forwarded, and counted with its reason")
{
    on_ranks({0, 2}, {}, {}, {.least_bytes = 4096}, [&](auto& comm) {
        host::stream stream;
        std::vector<float> small(16, 1.0f);
        std::vector<double> wide(4096, 1.0);
        std::vector<std::int32_t> integers(4096, 1);
        std::vector<float> large(4096, 1.0f);
        const auto in_place = [&]<class T>(std::vector<T>& data, reduction operation) {
            return comm.all_reduce(view<const T>(data), view<T>(data), operation, stream).why_not;
        };
        require(in_place(small, reduction::sum) == unquantised_reason::small, "small");
        require(in_place(wide, reduction::sum) == unquantised_reason::type, "double");
        require(in_place(integers, reduction::sum) == unquantised_reason::type, "integers");
        require(in_place(large, reduction::max) == unquantised_reason::operation, "max");
        require(in_place(large, reduction::sum) == unquantised_reason::none, "large");
        stream.synchronize(soon_ms);
        require(small[3] == 2 && wide[5] == 2 && integers[7] == 2, "forwarded results");
        require(comm.counts(unquantised_reason::none) == 1 && comm.counts(unquantised_reason::type) == 2
                && comm.counts(unquantised_reason::small) == 1
                && comm.counts(unquantised_reason::operation) == 1,
            "counts");
    });
}

TEST_CASE("one NaN of one rank is one NaN of all ranks")
{
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        for (const float bad :
            {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            on_ranks(of, {.format = code_format::int8}, {.format = code_format::int4}, tiny, [&](auto& comm) {
                host::stream stream;
                std::vector<float> buffer = random_elements<float>(4096, 4);
                if (comm.rank() == 2) buffer[1234] = bad;
                comm.all_reduce(view<const float>(buffer), view<float>(buffer), reduction::average, stream);
                stream.synchronize(soon_ms);
                for (std::size_t i = 0; i < buffer.size(); ++i)
                    require(is_finite(buffer[i]) == (i != 1234), "not finite at another place");
            });
        }
    }
}

TEST_CASE("bad arguments are named")
{
    const auto refused = [](const quantisation& how) {
        return refusal([&] { require_valid(how, "quantised", call_site::current()); });
    };
    CHECK(contains(refused({.block = 48}), "block is 48"));
    CHECK(contains(refused({.block = 2048}), "block is 2048"));
    CHECK(contains(refused({.rounding = code_rounding::stochastic, .feedback = error_feedback::all}), "stochastic"));
    local::run(2, {.timeout_ms = soon_ms}, [](local::communicator& world) {
        const std::string small = refusal([&] { quantised comm(world, {}, {.scratch_bytes = 100}); });
        require(contains(small, "scratch_bytes is 100"), small);
        quantised comm(world, {}, tiny);
        host::stream stream;
        std::vector<float> a(100), b(99);
        const std::string counts = refusal([&] { comm.all_reduce(a, view(b), reduction::sum, stream); });
        require(contains(counts, "all_reduce"), counts);
    });
}

TEST_CASE("stochastic rounding differs between ranks and steps, and not between pieces")
{
    const std::vector<float> input = random_elements<float>(20'000, 9);
    std::vector<std::vector<float>> by_scratch;
    for (const uint64_t scratch : {uint64_t{64} << 10, uint64_t{1} << 20}) {
        const quantisation how{.format = code_format::int4, .rounding = code_rounding::stochastic};
        std::vector<float> steps[2];
        on_ranks({0, 2}, how, how, {.least_bytes = 1, .scratch_bytes = scratch}, [&](auto& comm) {
            host::stream stream;
            std::vector<float> all(2 * input.size());
            for (auto& step : steps) {
                comm.all_gather(view<const float>(input), view<float>(all), stream);
                comm.next_step(stream);
                stream.synchronize(soon_ms);
                if (comm.rank() == 0) step = all;
            }
        });
        const std::size_t half = input.size();
        CHECK(std::memcmp(steps[0].data(), steps[0].data() + half, 4 * half) != 0);
        CHECK(std::memcmp(steps[0].data(), steps[1].data(), 4 * half) != 0);
        by_scratch.push_back(steps[0]);
    }
    CHECK(by_scratch[0] == by_scratch[1]);
}

TEST_CASE("a rotation leaves the mean, and helps heavy tails")
{
    // Gaussian elements with a few that are 50 times as large.
    std::vector<float> input = random_elements<float>(1 << 16, 12);
    for (std::size_t i = 0; i < input.size(); i += 1000) input[i] *= 50;
    double noise[2] = {};
    for (const bool rotate : {false, true}) {
        const quantisation how{.format = code_format::int4, .rotate = rotate};
        on_ranks({2, 2}, how, how, tiny, [&](auto& comm) {
            host::stream stream;
            std::vector<float> result(input);
            comm.all_reduce(view<const float>(result), view<float>(result), reduction::average, stream);
            stream.synchronize(soon_ms);
            if (comm.rank() != 0) return;
            for (std::size_t i = 0; i < input.size(); ++i)
                noise[rotate] += std::pow(double{result[i]} - double{input[i]}, 2);
        });
    }
    CHECK(noise[1] < noise[0] / 2);
}

TEST_CASE("the errors of a call are those of its numbers")
{
    const uint64_t count = 1 << 15;
    for (const shape of : {shape{0, 4}, shape{2, 2}}) {
        std::vector<quantised_errors> errors(4);
        const quantisation how{.format = code_format::int8};
        on_ranks(of, how, how, tiny, [&](auto& comm) {
            host::stream stream;
            const std::vector<float> input
                = random_elements<float>(count, static_cast<unsigned>(comm.rank()) + 40);
            std::vector<float> result(count);
            quantised_errors& mine = errors[static_cast<std::size_t>(comm.rank())];
            comm.quantisation_calls()->errors_to = &mine;
            comm.all_reduce(view<const float>(input), view<float>(result), reduction::average, stream);
            stream.synchronize(soon_ms);
        });
        for (int r = 0; r < 4; ++r) {
            const quantised_errors& mine = errors[static_cast<std::size_t>(r)];
            const std::vector<float> input = random_elements<float>(count, static_cast<unsigned>(r) + 40);
            double squares = 0;
            for (const float v : input) squares += double{v} * double{v};
            CHECK(mine.input.count == count);
            CHECK(mine.input.squares == doctest::Approx(squares).epsilon(1e-6));
            CHECK(10 * std::log10(mine.input.squares / mine.input.error_squares)
                == doctest::Approx(43.73).epsilon(0.005));
            CHECK(mine.owned.errors.count == count / 4);
            CHECK(mine.nonfinite_results == 0);
            CHECK(mine.node.errors.count == (of.nodes == 0 ? 0 : count / 2));
            // The terms are independent: the squares of their sums are the sums of their squares, but for
            // chance.
            CHECK(mine.owned.sum_squares == doctest::Approx(mine.owned.term_squares).epsilon(0.05));
        }
    }
}

} // namespace collprobe::testing::quantised_test
