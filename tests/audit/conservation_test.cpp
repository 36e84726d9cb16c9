// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "audit/lone_checks.hpp"
#include "conservation_cases.hpp"
#include "support/element_types.hpp"
#include "support/run_ranks.hpp"

using namespace collprobe;

namespace {

/// Normal values of rank `rank`.
template <element T>
std::vector<T> values_of(int rank, std::size_t count, double scale = 0.05)
{
    std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 11);
    std::normal_distribution<double> normal;
    std::vector<T> values(count);
    for (T& x : values) x = T(scale * normal(random));
    return values;
}

/// Reduces on `n` threads, lets `harm(rank, result)` at the result, and returns each rank's verdict.
template <element T, class Harm>
std::vector<detail::conservation_result> check_ranks(int n, std::size_t count, reduction operation,
    const conservation_options& options, Harm harm, local::reduction_order order = local::reduction_order::ring)
{
    std::vector<detail::conservation_result> verdicts(static_cast<std::size_t>(n));
    const testing::watchdog guard("check_ranks", 60);
    local::run(n, {.timeout_ms = 20'000, .order = order}, [&](local::communicator& comm) {
        std::vector<T> data = values_of<T>(comm.rank(), count);
        host::buffer<detail::conservation_result> out(1);
        host::stream stream;
        testing::conservation_check<local::communicator> check(comm, options);
        for (int again = 0; again < 2; ++again) { // in place, twice with the same memory
            if (again == 1) data = values_of<T>(comm.rank(), count);
            check.before<T>(data, stream, operation);
            comm.all_reduce(view<const T>(data), view<T>(data), operation, stream);
            stream.synchronize(20'000);
            if (again == 1) harm(comm.rank(), data);
            check.after<T>(data, out.data(), stream);
            stream.synchronize(20'000);
            if (again == 0) {
                CHECK(out[0].checked);
                CHECK(out[0].conserved);
            }
        }
        verdicts[static_cast<std::size_t>(comm.rank())] = out[0];
    });
    return verdicts;
}

} // namespace

TEST_CASE_TEMPLATE("a clean reduction is conserved, in place, for every count, size and order", T,
    bfloat16, float, double)
{
    for (const int n : {1, 2, 3, 8}) {
        for (const std::size_t count : {0u, 1u, 7u, 64u, 1001u, 20'000u}) {
            for (const auto order : {local::reduction_order::ring, local::reduction_order::tree}) {
                for (const reduction operation : {reduction::sum, reduction::average}) {
                    CAPTURE(n);
                    CAPTURE(count);
                    const auto verdicts = check_ranks<T>(n, count, operation,
                        {.sketch = {.bins = 256},
                            .order = order == local::reduction_order::tree ? rounding_order::tree : rounding_order::linear},
                        [](int, std::vector<T>&) {}, order);
                    for (const detail::conservation_result& verdict : verdicts) {
                        CHECK(verdict.checked);
                        CHECK(verdict.conserved);
                        CHECK(verdict.residual <= detail::conservation_limit);
                    }
                }
            }
        }
    }
}

TEST_CASE_TEMPLATE("one changed element is seen by the rank that holds it, and its bin is named", T,
    bfloat16, float, double)
{
    for (const int n : {2, 3, 8}) {
        for (const std::size_t place : {0u, 257u, 19'999u}) {
            CAPTURE(n);
            CAPTURE(place);
            const auto verdicts = check_ranks<T>(n, 20'000, reduction::sum, {.sketch = {.bins = 256}},
                [&](int rank, std::vector<T>& result) {
                    if (rank != n - 1) return;
                    result[place] = T(static_cast<double>(result[place]) + 0.3); // about as much as the elements
                });
            for (int rank = 0; rank < n; ++rank) {
                const detail::conservation_result& verdict = verdicts[static_cast<std::size_t>(rank)];
                CHECK(verdict.checked);
                CHECK(verdict.conserved == (rank != n - 1));
                if (rank == n - 1) CHECK(verdict.bin == place % 256);
            }
        }
    }
}

TEST_CASE_TEMPLATE("a reduce-scatter is judged alike by all ranks, whoever holds the changed element", T,
    bfloat16, float, double)
{
    for (const int n : {1, 2, 3, 8}) {
        for (const int harmed : {-1, 0, n - 1}) {
            CAPTURE(n);
            CAPTURE(harmed);
            local::run(n, {.timeout_ms = 20'000, .order = local::reduction_order::ring}, [&](local::communicator& comm) {
                constexpr std::size_t part = 3001; // begins anywhere in a row
                const std::vector<T> data = values_of<T>(comm.rank(), part * static_cast<std::size_t>(n));
                std::vector<T> received(part);
                host::buffer<detail::conservation_result> out(1);
                host::stream stream;
                testing::conservation_check check(comm, {.sketch = {.bins = 256}});
                for (const bool again : {false, true}) {
                    check.template before<T>(data, stream, reduction::sum, true);
                    comm.reduce_scatter(view<const T>(data), view<T>(received), reduction::sum, stream);
                    stream.synchronize(20'000);
                    if (again && comm.rank() == harmed) received[7] = T(static_cast<double>(received[7]) + 0.3);
                    check.template after<T>(received, out.data(), stream);
                    stream.synchronize(20'000);
                    CHECK(out[0].checked);
                    CHECK(out[0].conserved == !(again && harmed >= 0));
                    if (!out[0].conserved)
                        CHECK(out[0].bin == (part * static_cast<std::size_t>(harmed) + 7) % 256);
                }
            });
        }
    }
}

TEST_CASE("swapped elements, a lost tail and a stale result are seen")
{
    using floats = std::vector<float>;
    const auto is_seen = [](auto harm) {
        for (const auto& verdict : check_ranks<float>(4, 20'000, reduction::sum, {}, harm)) {
            if (verdict.conserved) return false;
        }
        return true;
    };
    CHECK(is_seen([](int, floats& result) { std::swap(result[3], result[19'000]); }));
    CHECK(is_seen([](int, floats& result) { std::swap(result[3], result[3 + 4096]); })); // in one bin
    CHECK(is_seen([](int rank, floats& result) {
        const floats own = values_of<float>(rank, result.size());
        for (std::size_t i = result.size() - 8; i < result.size(); ++i) result[i] = own[i];
    }));
    CHECK(is_seen([](int rank, floats& result) { result = values_of<float>(rank, result.size()); }));
    CHECK_FALSE(is_seen([](int, floats&) {}));
}

TEST_CASE("sums of integers are not checked")
{
    local::run(2, [](local::communicator& comm) {
        std::vector<std::int32_t> data(1000, 3);
        host::buffer<detail::conservation_result> out(1);
        host::stream stream;
        testing::conservation_check<local::communicator> check(comm);
        check.before<std::int32_t>(data, stream);
        comm.all_reduce(view<const std::int32_t>(data), view<std::int32_t>(data), reduction::sum, stream);
        check.after<std::int32_t>(data, out.data(), stream);
        stream.synchronize(20'000);
        CHECK_FALSE(out[0].checked);
    });
}

TEST_CASE("min, max and product are not checked, and the next sum is")
{
    local::run(3, [](local::communicator& comm) {
        std::vector<float> data = values_of<float>(comm.rank(), 1000), result(1000);
        host::buffer<detail::conservation_result> out(1);
        host::stream stream;
        testing::conservation_check<local::communicator> check(comm);
        for (const reduction operation : {reduction::min, reduction::max, reduction::product, reduction::sum}) {
            check.before<float>(data, stream, operation);
            comm.all_reduce(view<const float>(data), view<float>(result), operation, stream);
            check.after<float>(result, out.data(), stream);
            stream.synchronize(20'000);
            CHECK(out[0].checked == (operation == reduction::sum));
            CHECK(out[0].conserved);
        }
    });
}

TEST_CASE_TEMPLATE("inputs that are not finite, and sums that overflow, are not judged",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    const auto verdict_of = [](auto change) {
        std::vector<std::vector<T>> inputs;
        for (int rank = 0; rank < 3; ++rank) inputs.push_back(values_of<T>(rank, 500));
        change(inputs);
        const auto result = testing::reduce_simulated(inputs, testing::simulated_order::ring, reduction::sum);
        return testing::judged_reduction<T>(inputs, result, reduction::sum, rounding_order::linear, {.bins = 64}).verdict();
    };
    using all = std::vector<std::vector<T>>;
    const T infinite = detail::bit_cast<T>(element_traits<T>::smallest_nonfinite);
    const T nan = detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(element_traits<T>::smallest_nonfinite | 1));
    const T largest = detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(element_traits<T>::smallest_nonfinite - 1));
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[1][44] = infinite; }).checked);
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[1][44] = nan; }).checked);
    CHECK_FALSE(verdict_of([&](all& inputs) { inputs[0][44] = inputs[1][44] = largest; }).checked);
    CHECK(verdict_of([&](all& inputs) { inputs[0][44] = inputs[1][44] = largest; }).conserved);
    CHECK(verdict_of([](all&) {}).checked);
}

TEST_CASE_TEMPLATE("a result that is not finite where no sum can overflow is a violation",
    T, COLLPROBE_TEST_FLOATING_TYPES)
{
    for (const bool is_nan : {false, true}) {
        for (const reduction operation : {reduction::sum, reduction::average}) {
            const auto verdicts = check_ranks<T>(3, 1000, operation, {.sketch = {.bins = 64}},
                [&](int rank, std::vector<T>& result) {
                    using bits = typename element_traits<T>::bits_type;
                    if (rank == 1)
                        result[130] = detail::bit_cast<T>(
                            static_cast<bits>(element_traits<T>::smallest_nonfinite | static_cast<bits>(is_nan ? 1 : 0)));
                });
            for (int rank = 0; rank < 3; ++rank) {
                CHECK(verdicts[static_cast<std::size_t>(rank)].checked);
                CHECK(verdicts[static_cast<std::size_t>(rank)].conserved == (rank != 1));
            }
            CHECK(verdicts[1].bin == 130 % 64);
        }
    }
}

TEST_CASE("exact sums rounded once are judged more sharply")
{
    const int n = 8;
    std::vector<detail::conservation_result> linear(n), single(n);
    local::run(n, [&](local::communicator& comm) {
        reproducible exact{comm, contract<reproducibility::correctly_rounded>{}};
        std::vector<float> data = values_of<float>(comm.rank(), 20'000);
        host::buffer<detail::conservation_result> out(2);
        host::stream stream;
        testing::conservation_check check_linear(exact, {.sketch = {}, .order = rounding_order::linear});
        testing::conservation_check check_single(exact, {.sketch = {}, .order = rounding_order::single});
        for (const reduction operation : {reduction::sum, reduction::average}) {
            std::vector<float> result(data.size());
            check_linear.template before<float>(data, stream, operation);
            check_single.template before<float>(data, stream, operation);
            exact.all_reduce(view<const float>(data), view<float>(result), operation, stream);
            check_linear.template after<float>(result, &out[0], stream);
            check_single.template after<float>(result, &out[1], stream);
            stream.synchronize(20'000);
            CHECK(out[0].checked);
            CHECK(out[0].conserved);
            CHECK(out[1].conserved);
            CHECK(out[0].residual < out[1].residual);
        }
    });
}

TEST_CASE("doubles near the limits of their squares, and subnormal gradients, raise no alarm")
{
    for (const double scale : {1e-320, 1e-300, 1e-170, 1e-150, 1e140, 1e152, 1e160}) {
        CAPTURE(scale);
        for (const reduction operation : {reduction::sum, reduction::average}) {
            std::vector<std::vector<double>> inputs;
            for (int rank = 0; rank < 3; ++rank) inputs.push_back(values_of<double>(rank, 5000, scale));
            auto result = testing::reduce_simulated(inputs, testing::simulated_order::ring, operation);
            const auto verdict = [&] {
                return testing::judged_reduction<double>(inputs, result, operation, rounding_order::linear, {.bins = 64})
                    .verdict();
            };
            CHECK(verdict().conserved);
            if (scale > 1e-160 && scale < 1e150) {
                CHECK(verdict().checked);
                result[1000] += scale;
                CHECK_FALSE(verdict().conserved);
            }
        }
    }
}

TEST_CASE_TEMPLATE("clean reductions of all kinds raise no alarm, of all orders", T, COLLPROBE_TEST_FLOATING_TYPES)
{
    testing::gradient_pool<T> pool(5);
    for (int kind = 0; kind < static_cast<int>(testing::gradients::count); ++kind) {
        for (int order = 0; order < static_cast<int>(testing::simulated_order::count); ++order) {
            for (const int n : {2, 3, 16, 32}) {
                const auto how = static_cast<testing::simulated_order>(order);
                CAPTURE(std::string(name(how)));
                CAPTURE(std::string(name(static_cast<testing::gradients>(kind))));
                const auto inputs = pool.make(static_cast<testing::gradients>(kind), n, 5000);
                const reduction operation = n == 3 ? reduction::average : reduction::sum;
                const auto result = testing::reduce_simulated(inputs, how, operation);
                const auto verdict = testing::judged_reduction<T>(
                    inputs, result, operation, testing::rounding_of(how), {.bins = 256}).verdict();
                CHECK(verdict.checked);
                CHECK(verdict.conserved);
            }
        }
    }
}

TEST_CASE_TEMPLATE("the sensitivity is what theory gives - n = 8, 256 elements a bin", T, bfloat16, float)
{
    // At 8 standard deviations: half of the sum's root mean square for bfloat16, 7e-6 of it for float.
    const double threshold = sizeof(T) == 2 ? 0.5 : 7.5e-6;
    testing::gradient_pool<T> pool(9);
    const auto inputs = pool.make(testing::gradients::gaussian, 8, 16384);
    const auto clean = testing::reduce_simulated(inputs, testing::simulated_order::ring, reduction::sum);
    double squares = 0;
    for (const T x : clean) squares += static_cast<double>(x) * static_cast<double>(x);
    const double rms = std::sqrt(squares / static_cast<double>(clean.size()));
    int seen_above = 0, seen_below = 0;
    for (std::size_t place = 0; place < 200; ++place) {
        const auto is_seen = [&](double size) {
            auto result = clean;
            const std::size_t i = place * 80 + 3;
            result[i] = T(static_cast<double>(result[i]) + (static_cast<double>(result[i]) > 0 ? -size : size) * threshold * rms);
            return !testing::judged_reduction<T>(inputs, result, reduction::sum, rounding_order::linear, {.bins = 64})
                        .verdict()
                        .conserved;
        };
        seen_above += is_seen(1.6); // 8 standard deviations and the noise of the bin
        seen_below += is_seen(0.4);
    }
    CHECK(seen_above >= 198);
    CHECK(seen_below <= 2);
}

TEST_CASE("options out of range are refused by name")
{
    local::run(1, [](local::communicator& comm) {
        const auto message = [&](const conservation_options& options) -> std::string {
            try {
                probed made{local::communicator(comm), {}, audit({.conservation = options})};
            } catch (const error& refused) {
                CHECK(refused.code() == status::invalid_argument);
                return refused.what();
            }
            return "";
        };
        CHECK(message({.sketch = {.bins = 100}}).find("bins is 100") != std::string::npos);
    });
}

TEST_CASE("the judge of all bins, which passes over most, finds what the judge of each finds")
{
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    constexpr std::uint32_t bins = 1024;
    for (int trial = 0; trial < 300; ++trial) {
        const int ranks = 1 + trial % 17;
        const auto order = static_cast<rounding_order>(trial % 3);
        const auto operation = trial % 2 == 0 ? reduction::sum : reduction::average;
        std::vector<double> input(2 * bins), result(2 * bins);
        const double alike = trial % 5 == 0 ? ranks : 1; // energy of the result where ranks have the same numbers
        for (std::uint32_t b = 0; b < bins; ++b) {
            const double scale = operation == reduction::sum ? 1 : 1.0 / ranks;
            const double sum = 4 * normal(random) * ranks;
            input[b] = sum;
            result[b] = scale * sum * (1 + 1e-8 * normal(random));
            input[bins + b] = 16.0 * ranks * (1 + 0.1 * normal(random));
            result[bins + b] = scale * scale * input[bins + b] * alike * (1 + 0.1 * normal(random));
        }
        const auto any = [&] { return static_cast<std::size_t>(random() % bins); };
        if (trial % 7 == 1) input[bins + any()] = detail::not_a_number();
        if (trial % 7 == 2) result[bins + any()] = detail::infinity();
        if (trial % 7 == 3) result[any()] *= 1.001;
        if (trial % 7 == 4) input[any()] = input[bins + any()] = 0;
        if (trial % 7 == 5) {
            const std::size_t empty = any();
            input[empty] = result[empty] = input[bins + empty] = result[bins + empty] = 0;
        }
        const detail::conservation_judge judge{input.data(), result.data(), bins,
            detail::conservation_bound::of<float>(operation, order, ranks, 16, detail::terms_of(order, ranks))};
        auto all = judge.identity();
        judge.run(all, 0, bins);
        auto each = judge.identity();
        for (std::uint64_t b = 0; b < bins; ++b) judge.add(each, b);
        CHECK(to_bits(all.worst) == to_bits(each.worst));
        CHECK(all.bin == each.bin);
        CHECK(all.unmeasured == each.unmeasured);
    }
}
