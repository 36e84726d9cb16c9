// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <malloc.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/report/table.hpp>

#include "support/element_types.hpp"
#include "support/errors.hpp"
#include "support/held_clock.hpp"
#include "support/hot_path.hpp"
#include "support/run_ranks.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::probed_test {
namespace {

/// What each rank's gradient is made of, bucket by bucket.
template <class T>
using buckets = std::vector<std::vector<T>>;

template <class T>
buckets<T> random_gradient(int rank, const std::vector<std::size_t>& sizes, std::uint64_t seed)
{
    std::mt19937_64 common(seed);
    std::mt19937_64 own(seed * 1000 + static_cast<std::uint64_t>(rank) + 1);
    // Two distributions: one keeps the second half of each pair that it draws.
    std::normal_distribution<double> signal;
    std::normal_distribution<double> noise;
    buckets<T> result;
    for (const std::size_t size : sizes) {
        auto& bucket = result.emplace_back(size);
        for (T& x : bucket) {
            const double mean = signal(common);
            x = T(static_cast<float>(mean + noise(own)));
        }
    }
    return result;
}

/// The records of an all-reduce of each bucket, on two streams in turn.
template <class T, class Make>
std::vector<step_record> run_steps(int ranks, const probe_options& options, int steps, const Make& gradient_of,
    reduction operation = reduction::average, bool in_place = false)
{
    return records_of({ranks, steps, options}, [&](auto& comm, host::stream& stream, int step, step_observation& seen) {
        static thread_local const host::stream other;
        static thread_local buckets<T> send, receive;
        send = gradient_of(comm.rank(), step);
        receive = send;
        for (std::size_t b = 0; b < send.size(); ++b) {
            comm.all_reduce(view<const T>(in_place ? receive[b] : send[b]), view<T>(receive[b]), operation,
                b % 2 == 0 ? stream : other);
        }
        seen.loss = 1.0 + 0.125 * comm.rank();
    });
}

/// The alignment of gradients by their products in long double.
template <class T>
direction alignment_of(const std::vector<buckets<T>>& gradients, std::vector<long double>& norms)
{
    const auto product = [](const buckets<T>& x, const buckets<T>& y) {
        long double sum = 0;
        for (std::size_t b = 0; b < x.size(); ++b)
            for (std::size_t i = 0; i < x[b].size(); ++i)
                sum += static_cast<long double>(static_cast<double>(x[b][i])) * static_cast<double>(y[b][i]);
        return sum;
    };
    std::vector<double> gram;
    for (const buckets<T>& each : gradients) {
        norms.push_back(std::sqrt(product(each, each)));
        for (const buckets<T>& other : gradients) gram.push_back(static_cast<double>(product(each, other)));
    }
    direction found;
    detail::align_from_gram(gram, static_cast<int>(gradients.size()), found);
    return found;
}

void check_close(double measured, long double expected, double tolerance)
{
    CAPTURE(measured);
    CAPTURE(static_cast<double>(expected));
    CHECK(std::abs(static_cast<long double>(measured) - expected) <= tolerance * std::abs(expected));
}

float noise(std::uint64_t key) { return static_cast<float>(detail::mix64(key) >> 40) * 0x1p-24f - 0.5f; }

/// The records of steps; rank 5's part of the sum of step 40 is multiplied on its way. In step 41 it points elsewhere.
template <element T>
std::vector<step_record> steps_with_a_damaged_reduction(
    float factor, reduction operation, float signal, float scale, int steps = 42, report_mode mode = report_mode::gather)
{
    std::vector<fault> faults;
    if (factor != 1)
        faults = {{.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 5, .call = 40, .magnitude = factor}};
    const auto damaged = [&](local::communicator& world) { return faulty(world, faults); };
    // Without times: a busy machine makes a rank late.
    return testing::records_over({8, steps, {.mode = mode, .times = false}}, damaged, [&](auto& comm, auto& stream, int s, auto& seen) {
        static thread_local std::vector<T> gradient(4096), sum(4096);
        const auto step = static_cast<std::uint64_t>(s), rank = static_cast<std::uint64_t>(comm.rank());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            const bool elsewhere = step == 41 && rank == 5;
            gradient[i] = static_cast<T>(scale
                * (signal * noise(elsewhere ? i + (std::uint64_t{1} << 60) : i) + noise(((step + 1) << 32) + (rank << 24) + i)));
        }
        comm.all_reduce(gradient, view(sum), operation, stream);
        seen.loss = 1;
    });
}

bool has_direction(const step_record& record)
{
    for (const double cosine : record.cosine.leave_one_out) {
        if (!is_finite(cosine)) return false;
    }
    return record.cosine.leave_one_out.size() == 8;
}
bool names_a_direction(const step_record& record)
{
    return !testing::findings_of(record, finding_kind::cosine).empty();
}

} // namespace

TEST_CASE_TEMPLATE("exact alignment equals brute force on the same gradients", T,
    COLLPROBE_TEST_WIDER_FLOATING_TYPES)
{
    constexpr double of_norm = sizeof(T) < 4 ? 4e-6 : 1e-12; // as `statistics_reducer` promises
    for (const int n : {2, 3, 8}) {
        CAPTURE(n);
        // Counts that do not divide by n, and one that needs several scratch chunks.
        const std::vector<std::size_t> sizes{1, 1237, 64, 5000};
        std::vector<buckets<T>> gradients;
        for (int r = 0; r < n; ++r) gradients.push_back(random_gradient<T>(r, sizes, 17));
        std::vector<long double> norms;
        const direction expected = alignment_of(gradients, norms);
        const auto second_of = [&](bool in_place) {
            return run_steps<T>(n, {.direction = direction_mode::exact, .scratch_bytes = 4096}, 2,
                [&](int rank, int) { return gradients[static_cast<std::size_t>(rank)]; }, reduction::average, in_place)[1];
        };
        const step_record record = second_of(false);
        CHECK(second_of(true).cosine.leave_one_out == record.cosine.leave_one_out);
        CHECK(record.ranks == n);
        REQUIRE(record.calls.size() == sizes.size());
        check_close(record.cosine.mean_pairwise, expected.mean_pairwise, 1e-12);
        check_close(record.cosine.pooled, expected.pooled, 1e-12);
        // Over steps with equal gradients the noise scale is that of each.
        check_close(record.cosine.predicted_cosine, 1 / (1 + record.cosine.noise_scale), 1e-12);
        long double mean = 0, squares = 0;
        for (int r = 0; r < n; ++r) {
            const auto i = static_cast<std::size_t>(r);
            check_close(record.cosine.leave_one_out[i], expected.leave_one_out[i], 1e-12);
            check_close(record.gradient_norms[i], norms[i], of_norm);
            mean += norms[i] / n;
        }
        for (const long double norm : norms) squares += (norm - mean) * (norm - mean);
        check_close(record.gradient_norm.mean, mean, of_norm);
        // The spread of numbers that agree to k digits has k fewer good ones.
        check_close(record.gradient_norm.std, std::sqrt(squares / n),
            of_norm * static_cast<double>(mean * mean * n / squares) + 1e-12);
        check_close(record.loss.mean, 1 + 0.125L * static_cast<long double>(n - 1) / 2, 1e-15);
    }
}

TEST_CASE("pooled mode needs no gradient-sized message and keeps the same numbers to the wire's rounding")
{
    const std::vector<std::size_t> sizes{3000, 777};
    std::vector<buckets<float>> gradients;
    for (int r = 0; r < 4; ++r) gradients.push_back(random_gradient<float>(r, sizes, 5));
    std::vector<long double> norms;
    const direction expected = alignment_of(gradients, norms);
    const auto of = [&](int rank, int) { return gradients[static_cast<std::size_t>(rank)]; };
    for (const reduction operation : {reduction::sum, reduction::average}) {
        const step_record out = run_steps<float>(4, {}, 1, of, operation)[0];
        check_close(out.cosine.pooled, expected.pooled, 1e-5);
        CHECK(is_nan(out.cosine.mean_pairwise));
        REQUIRE(out.cosine.leave_one_out.size() == 4);
        for (std::size_t r = 0; r < 4; ++r) check_close(out.cosine.leave_one_out[r], expected.leave_one_out[r], 1e-4);

        // In place the inputs are gone when the result is there: no leave-one-out, all else as before.
        const step_record in = run_steps<float>(4, {}, 1, of, operation, true)[0];
        CHECK(in.cosine.leave_one_out.empty());
        CHECK(to_bits(in.cosine.pooled) == to_bits(out.cosine.pooled));
        CHECK(to_bits(in.gradient_norm.std) == to_bits(out.gradient_norm.std));
        CHECK(in.calls[1].inputs[2].digest == out.calls[1].inputs[2].digest);
    }
}

TEST_CASE("both modes take the step's norm of the gradients among many buckets, and of nothing else")
{
    constexpr std::size_t calls = 150;
    for (const report_mode mode : both_modes) {
        // The second step has fewer calls, and others of them are gradients.
        const auto records = records_of({2, 2, {.mode = mode, .calls = 2 * calls}}, [](auto& comm, auto& stream, int s, auto&) {
            static thread_local std::vector<float> send(calls), receive(calls);
            const auto step = static_cast<std::size_t>(s);
            for (std::size_t i = 0; i < calls - 20 * step; ++i) {
                send[i] = static_cast<float>(1 + i);
                comm.all_reduce(view<const float>(&send[i], 1), view<float>(&receive[i], 1),
                    i % 3 == step ? reduction::sum : reduction::max, stream);
            }
        });
        for (std::size_t step = 0; step < 2; ++step) {
            double squares = 0;
            for (std::size_t i = step; i < calls - 20 * step; i += 3) squares += static_cast<double>((1 + i) * (1 + i));
            CHECK(records[step].gradient_norm.mean == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
        }
    }
}

TEST_CASE("where several ranks hold the same, they are named together")
{
    // Ranks 1, 2 and 4 are alike, then all of them.
    const auto records = run_steps<float>(5, {}, 2, [&](int rank, int step) {
        const bool alike = step == 1 || rank == 1 || rank == 2 || rank == 4;
        return random_gradient<float>(alike ? 1 : rank, {300}, 40 + static_cast<std::uint64_t>(step));
    });
    CHECK(told(records[0]) == "duplicate 1,2,4 in 0");
    CHECK(told(records[1]) == "duplicate 0,1,2,3,4 in 0");
    CHECK(records[0].findings[0].other_rank == 1);
}

TEST_CASE("a result that differs on one rank is named by majority, and only detected without one")
{
    struct way {
        int ranks, bad;
        report_mode mode;
    };
    for (const way& of : {way{5, 1, report_mode::gather}, {4, 0, report_mode::gather}, {4, 3, report_mode::gather},
             {2, 1, report_mode::gather}, {5, 1, report_mode::summary}}) {
        const auto damaged = [&](local::communicator& world) {
            return faulty(world, {{.rank = of.bad, .call = 40, .first = 7, .mask = 1u << 30}});
        };
        const auto records = testing::records_over({of.ranks, 41, {.mode = of.mode, .times = false}}, damaged,
            [&](auto& comm, auto& stream, int step, auto&) {
                static thread_local std::vector<float> gradient(4096), sum(4096);
                for (std::uint64_t i = 0; i < gradient.size(); ++i)
                    gradient[i] = noise(i) + noise((static_cast<std::uint64_t>(64 * step + comm.rank()) << 24) + i);
                comm.all_reduce(gradient, view(sum), reduction::sum, stream);
            });
        const step_record& hit = records[40];
        CHECK_FALSE(hit.calls[0].results_agree);
        const bool is_named = of.ranks > 2 && of.mode == report_mode::gather;
        CHECK(told(hit) == "result_differs" + (is_named ? " " + std::to_string(of.bad) : "") + " in 0"); // and no direction
        for (int r = 0; r < of.ranks && is_named; ++r)
            CHECK(is_finite(hit.cosine.leave_one_out.at(static_cast<std::size_t>(r))) == (r != of.bad));
    }
}

TEST_CASE_TEMPLATE("a sum that is wrong on all ranks blames no rank for its direction", T, float, bfloat16)
{
    for (const reduction operation : {reduction::sum, reduction::average}) {
        for (const float factor : {2.0f, 100.0f, 0.0f}) {
            if (COLLPROBE_TEST_UNLESS_BRIEF(false, (operation == reduction::sum) == (factor == 100))) continue;
            CAPTURE(factor);
            const std::vector<step_record> records = steps_with_a_damaged_reduction<T>(factor, operation, 1, 1);
            REQUIRE(records.size() == 42);
            for (std::size_t s = 0; s < 40; ++s) {
                CHECK(has_direction(records[s]));
                CHECK(records[s].findings.empty());
            }
            CHECK(records[40].calls[0].results_agree);
            CHECK_FALSE(names_a_direction(records[40]));
            REQUIRE(records[40].cosine.leave_one_out.size() == 8);
            for (const double cosine : records[40].cosine.leave_one_out) CHECK(is_nan(cosine));
            // The control: the direction of an input is judged in the next step, and is no certainty.
            REQUIRE(names_a_direction(records[41]));
            CHECK(has_direction(records[41]));
            CHECK(records[41].findings[0].rank() == 5);
            CHECK_FALSE(records[41].findings[0].exact);
        }
    }
    const step_record summed = steps_with_a_damaged_reduction<T>(1, reduction::average, 1, 1, 42, report_mode::summary)[41];
    REQUIRE(names_a_direction(summed));
    CHECK(summed.findings[0].rank() == 5);
}

TEST_CASE_TEMPLATE("rounding, cancellation and underflow do not hide the direction", T, float, float16, bfloat16,
    COLLPROBE_TEST_FLOAT8_TYPES)
{
    // Few units of the smallest number, if that is not tiny.
    constexpr int exponent = element_traits<T>::min_subnormal_exponent > -24 ? element_traits<T>::min_subnormal_exponent + 2 : -22;
    for (const reduction operation : {reduction::sum, reduction::average}) {
        for (const float signal : {0.0f, 1.0f, 100.0f}) { // 0: what is left of the sum is what did not cancel
            for (const float scale : {1.0f, static_cast<float>(detail::power_of_two(exponent))}) {
                CAPTURE(signal);
                CAPTURE(scale);
                for (const step_record& record : steps_with_a_damaged_reduction<T>(1, operation, signal, scale, 4))
                    CHECK(has_direction(record));
            }
        }
    }
}

TEST_CASE("numbers that only the device knows are read at the end of the step, and count as those of the host")
{
    for (const report_mode mode : both_modes) {
        local::run(3, [&](local::communicator& world) {
            std::atomic<bool> computed{false};
            float loss = -1;
            double weight = -1, norm = -1;
            std::vector<float> send(10, 1.0f + static_cast<float>(world.rank())), receive(10);
            host::stream stream;
            probed comm(world, {.mode = mode});
            const float own_loss = 1.5f + static_cast<float>(world.rank());
            const double own_weight = 32 + world.rank();
            const double own_norm = world.rank() == 2 ? 7 : 6 * std::sqrt(10.0);
            stream.enqueue([&] {
                while (!computed.load()) std::this_thread::yield();
                loss = own_loss;
                weight = own_weight;
                norm = own_norm;
            });
            std::uint64_t step = 0;
            for (const step_observation& seen : {step_observation{.loss = &loss, .weight = &weight, .gradient_norm = &norm},
                     {.loss = own_loss, .weight = own_weight, .gradient_norm = own_norm}, {}, {.loss = 0}}) {
                comm.all_reduce(send, view(receive), reduction::sum, stream);
                comm.end_step(step++, seen, stream);
                computed = true;
            }
            std::vector<step_record> records(4);
            for (step_record& record : records) {
                REQUIRE(comm.wait(record));
                CHECK(record.result_norm == doctest::Approx(6 * std::sqrt(10.0)));
                const auto other_norms = testing::findings_of(record, finding_kind::norm_differs);
                REQUIRE(other_norms.size() == (record.step < 2 ? 1 : 0));
                if (record.step < 2) CHECK(other_norms[0].rank() == 2);
            }
            records[1].step = 0;
            records[1].first_call = 0;
            CHECK(records[0].loss.mean == 2.5);
            CHECK(records[0].losses == records[1].losses);
            for (const auto spread_of : {&step_record::loss, &step_record::loss_weighted}) {
                CHECK(to_bits((records[0].*spread_of).mean) == to_bits((records[1].*spread_of).mean));
                CHECK(to_bits((records[0].*spread_of).std) == to_bits((records[1].*spread_of).std));
            }
            CHECK(records[0].loss_weighted.mean != records[0].loss.mean);
            // A loss that was not given is none: not 0, and no loss that became NaN either.
            CHECK(records[2].loss.finite == 0);
            CHECK(records[2].losses.size() == records[3].losses.size());
            for (const double none : records[2].losses) CHECK(is_nan(none));
            CHECK(testing::findings_of(records[2], finding_kind::non_finite).empty());
            CHECK(records[3].loss.mean == 0);
            CHECK(records[3].loss.finite == 3);
        });
    }
}

TEST_CASE("a scaled gradient is named in its step and bucket, once it is known what is usual; of two ranks none is")
{
    for (const int ranks : {8, 2}) {
        const int bad = ranks - 2;
        const auto records = run_steps<float>(ranks, {.times = false}, 60, [&](int rank, int step) {
            auto gradient = random_gradient<float>(rank, {400, 400}, 500 + static_cast<std::uint64_t>(step));
            if (rank == bad && (step == 50 || (step == 0 && ranks == 8))) // nothing is usual in step 0
                for (float& x : gradient[1]) x *= 100;
            return gradient;
        });
        for (const step_record& record : records) {
            CAPTURE(record.step);
            int norms = 0, magnitudes = 0;
            for (const finding& found : record.findings) {
                CHECK(found.rank() == (ranks == 8 ? bad : -1));
                CHECK(is_of_number(found.what));
                CHECK_FALSE(found.exact);
                CHECK(found.statistic > found.threshold);
                CHECK(found.threshold > 0);
                CHECK(found.false_alarms_per_step <= 1e-4);
                CHECK(found.number.steps >= 16);
                magnitudes += found.what == finding_kind::largest_magnitude && found.call == 1 ? 1 : 0;
                if (found.what != finding_kind::gradient_norm || found.call != 1) continue;
                ++norms;
                if (ranks == 2) continue;
                CHECK(found.number.value == doctest::Approx(record.calls[1].inputs[6].l2()).epsilon(1e-6));
                CHECK(found.number.expected == doctest::Approx(found.number.value / 100).epsilon(0.2));
                CHECK(found.number.usual_difference < found.number.expected);
            }
            CHECK(norms == (record.step == 50 ? 1 : 0));
            CHECK(magnitudes == norms);
            if (norms == 0) CHECK(record.findings.empty());
        }
    }
}

TEST_CASE("poll never blocks and steps come in order")
{
    local::run(2, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, {.steps_in_flight = 8});
        std::atomic<bool> gate{false};
        stream.enqueue([&] {
            while (!gate.load()) std::this_thread::yield();
        });
        std::vector<float> send(10, 1.0f + static_cast<float>(world.rank())), receive(10);
        for (std::uint64_t step = 10; step < 15; ++step) {
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            comm.end_step(step, {.loss = 1}, stream);
        }
        step_record record;
        for (int i = 0; i < 100; ++i) CHECK_FALSE(comm.poll(record));
        CHECK(comm.pending_steps() == 5);
        CHECK(stream.synchronizations() == 0);
        gate = true;
        stream.synchronize(60'000);
        for (std::uint64_t step = 10; step < 15; ++step) {
            REQUIRE(comm.poll(record));
            CHECK(record.step == step);
        }
        CHECK_FALSE(comm.poll(record));
        CHECK(comm.pending_steps() == 0);
    });
}

TEST_CASE("a host that runs ahead waits for the oldest step, and unread steps drop the oldest")
{
    local::run(2, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, {.steps_in_flight = 2, .unread_steps = 3});
        for (std::uint64_t step = 0; step < 50; ++step) comm.end_step(step, {.loss = 1}, stream);
        stream.synchronize(60'000);
        step_record record;
        std::vector<std::uint64_t> steps;
        while (comm.poll(record)) steps.push_back(record.step);
        CHECK(steps == std::vector<std::uint64_t>{47, 48, 49});
        CHECK(comm.dropped_steps() == 47);
    });
}

TEST_CASE("ranks that fall out of step get an error that says so, and no record of another step: those before come first")
{
    for (const report_mode mode : both_modes) {
        local::run(3, {.name = "replicas"}, [&](local::communicator& world) {
            host::stream stream;
            probed<local::communicator> comm(world, {.mode = mode, .steps_in_flight = 8, .unread_steps = 2});
            for (const int step : {0, 1, world.rank() == 2 ? 12 : 2, 3, 4, 5}) {
                comm.end_step(static_cast<std::uint64_t>(step), {.loss = 1}, stream);
            }
            stream.synchronize(60'000);
            step_record record;
            for (const std::uint64_t step : {0u, 1u}) {
                REQUIRE(comm.poll(record));
                CHECK(record.step == step);
            }
            CHECK(comm.dropped_steps() == 0);
            const auto failure = error_of([&] { comm.poll(record); });
            REQUIRE(testing::mentions(failure, "rank 2 step 12"));
            CHECK(failure->code() == status::mismatch);
            CHECK(failure->communicator() == "replicas");
            CHECK(failure->rank() == world.rank());
            CHECK(failure->culprits() == std::vector<int>{2});
            for (const std::uint64_t step : {4u, 5u}) {
                REQUIRE(comm.poll(record));
                CHECK(record.step == step);
            }
            CHECK_FALSE(comm.poll(record));
            CHECK(comm.dropped_steps() == 1); // the fourth was judged after the error, with the last two
        });
    }
}

TEST_CASE("an error that nobody polls for surfaces where a step waits for its place")
{
    local::run(2, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, {.steps_in_flight = 2});
        comm.end_step(static_cast<std::uint64_t>(world.rank()), {.loss = 1}, stream);
        for (const std::uint64_t step : {2u, 3u}) comm.end_step(step, {.loss = 1}, stream);
        CHECK_THROWS_AS(comm.end_step(4, {.loss = 1}, stream), error);
        comm.end_step(4, {.loss = 1}, stream);
        step_record record;
        for (const std::uint64_t step : {2u, 3u, 4u}) {
            REQUIRE(comm.wait(record));
            CHECK(record.step == step);
        }
    });
}

TEST_CASE("steady steps, with values that are checked, allocate nothing and never wait on the host")
{
    for (const report_mode mode : both_modes) {
        for (const direction_mode direction : {direction_mode::pooled, direction_mode::exact}) {
            testing::hot_path steady(3);
            testing::local_provider{3}.run([&](local::communicator& world) {
                const host::stream stream;
                probed comm(world, {.mode = mode, .direction = direction, .order_sample = mode == report_mode::gather ? 16 : 0,
                                       .lateness_floor_ns = 1e12, .steps_in_flight = 8, .unread_steps = 8});
                std::vector<float> send = random_gradient<float>(world.rank(), {1000}, 3)[0], receive(1000), weights(5003, 1.5f);
                std::uint64_t number = 0;
                step_record record;
                const auto steps = [&](int count) {
                    for (; count > 0; --count) {
                        for (int b = 0; b < 3; ++b) comm.all_reduce(send, view(receive), reduction::sum, stream);
                        comm.expect_equal("weights", view<const float>(weights), stream);
                        comm.expect_equal("step", number);
                        comm.end_step(number++, {.loss = 1}, stream);
                    }
                };
                const auto read = [&] {
                    while (comm.poll(record)) testing::require(record.expectations.at(0).holds && record.expectations.at(1).holds, "values");
                };
                for (int i = 0; i < 40; ++i) { // each record of the queue gets its memory
                    steps(1);
                    stream.synchronize(60'000);
                    read();
                }
                steady.measure(world.rank(), stream, [&] { steps(6); }, [&] { steps(3); }, read);
            });
            CHECK(steady.allocations() == 0);
            CHECK(steady.waits() == 0);
        }
    }
}

TEST_CASE("a step with more calls than there is room for grows, and its record is that of a step with room")
{
    const auto records = [](probe_options options, int room) {
        static constexpr std::size_t calls = 70;
        options.calls = room;
        options.times = false; // which differ from run to run
        return records_of({3, 4, options}, [](auto& comm, auto& stream, int step, auto& seen) {
            static thread_local const host::stream other;
            static thread_local std::vector<std::vector<float>> send(calls), receive(calls);
            std::mt19937_64 random(static_cast<std::uint64_t>(step * 8 + comm.rank()));
            std::normal_distribution<float> normal;
            for (std::size_t b = 0; b < (step % 2 == 0 ? calls / 2 : calls); ++b) {
                send[b].resize(100 + b);
                receive[b].resize(send[b].size());
                for (float& x : send[b]) x = normal(random);
                comm.all_reduce(send[b], view(receive[b]), reduction::average, b % 2 == 0 ? stream : other);
            }
            seen.loss = normal(random);
        }, audit({.conservation = {.sketch = {.bins = 64}}}));
    };
    for (const report_mode mode : both_modes) {
        for (const direction_mode direction : {direction_mode::pooled, direction_mode::exact}) {
            CAPTURE(name(mode));
            const probe_options options{.mode = mode, .direction = direction, .scratch_bytes = 1 << 12};
            const auto roomy = records(options, 100);
            for (const int room : {1, 35}) {
                const auto grown = records(options, room);
                for (std::size_t step = 0; step < 4; ++step) { // with room for 35 the second one grows, which has a past
                    CHECK(testing::difference(grown[step], roomy[step]) == "");
                    CHECK(grown[step].calls.size() == (step % 2 == 0 ? 35 : 70));
                    CHECK(grown[step].calls.back().audit.sum_checked);
                }
            }
        }
    }
}

TEST_CASE("a step that never ends is refused once, by the call that is one too many, and holds what it sends and little more")
{
    for (const report_mode mode : both_modes) {
        CAPTURE(name(mode));
        local::run(2, [&](local::communicator& world) {
            host::stream stream;
            probed comm{local::communicator(world), {.mode = mode, .calls = 3, .largest_step = 40}};
            std::vector<float> values(16, 1.0f);
            step_record record;
            for (const std::uint64_t step : {0u, 1u}) {
                for (int i = 0; i < 40; ++i) comm.all_reduce(view(values), reduction::average, stream);
                const std::string refused = refusal(
                    [&] { comm.all_reduce(view(values), reduction::average, stream, call_site::named("one too many")); });
                for (const char* const part : {"call 41 of one step", "one too many", "Call end_step",
                         step == 0 ? "no step has ended yet" : "no step has ended since"})
                    CHECK(contains(refused, part));
                for (int i = 0; i < 5; ++i) comm.all_reduce(view(values), reduction::average, stream);
                comm.end_step(step, stream);
                REQUIRE(comm.wait(record));
                CHECK(record.calls.size() == 40);
                CHECK(record.unprobed_calls == 5);
            }
        });
    }
}

#if !defined(COLLPROBE_TEST_SANITIZED) // a sanitizer has an allocator of its own, of which mallinfo2 knows nothing
TEST_CASE("the memory of a step that never ends is bounded by what it sends")
{
    const auto in_use = [] {
        const struct mallinfo2 now = mallinfo2();
        return static_cast<double>(now.uordblks + now.hblkhd);
    };
    constexpr int calls = 16'000;
    constexpr int ranks = 4;
    double bytes = 0;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed comm{local::communicator(world)};
        std::vector<float> values(16, 1.0f);
        const auto meet = [&] {
            world.barrier(stream);
            stream.synchronize();
        };
        meet();
        const double before = in_use();
        meet();
        for (int i = 0; i < calls; ++i) {
            comm.all_reduce(view(values), reduction::average, stream);
            if (i % 100 == 0) stream.synchronize(); // the stream's own queue stays small
        }
        meet();
        if (world.rank() == 0) bytes = (in_use() - before) / calls / ranks;
        meet();
    });
    MESSAGE("bytes a call and rank in a step that does not end: ", bytes);
    CHECK(bytes <= 2 * (sizeof(detail::call_entry) + sizeof(detail::call_times) + 8 + sizeof(detail::probed_call)) + 64);
}
#endif

TEST_CASE("a step whose report never came has no record, even where an older one is left in its memory")
{
    for (const report_mode mode : both_modes) {
        for (const int steps_before : {0, 4}) {
            const testing::held_clock clock;
            local::run(3, {.timeout_ms = 200},
                [&](local::communicator& world) {
                    host::stream stream;
                    probed<local::communicator> comm(world, {.mode = mode, .steps_in_flight = 2});
                    step_record record;
                    for (int i = 0; i < steps_before; ++i) {
                        comm.end_step(0, {.loss = 100}, stream);
                        stream.synchronize(60'000);
                        REQUIRE(comm.poll(record));
                    }
                    if (world.rank() == 1) return clock.advance_ms(200, {0, 2}); // and never ends the step
                    stream.enqueue([&, rank = world.rank()] { clock.i_am(rank); });
                    comm.end_step(0, {.loss = 2.5}, stream);
                    CHECK_THROWS_AS(stream.synchronize(60'000), error);
                    const auto told = error_of([&] { if (comm.poll(record)) FAIL_CHECK("a record was invented"); });
                    CHECK(testing::mentions(told, "step 0 never arrived"));
                    CHECK(told->code() == status::device_failure);
                });
        }
    }
}

TEST_CASE("bad options are refused by name")
{
    local::run(1, [](local::communicator& world) {
        const auto refused = [&](const probe_options& options, const char* word) {
            CHECK(contains(refusal([&] { const probed comm(world, options); }), word));
        };
        refused({.calls = 0}, "calls is 0, but must be at least 1");
        refused({.calls = 1 << 21}, "calls is 2097152, but must be at most 65536");
        for (const double wrong : {-1.0, 0x1p53, detail::infinity(), detail::not_a_number()})
            refused({.lateness_floor_ns = wrong}, "lateness_floor_ns");
        refused({.steps_in_flight = 1}, "steps_in_flight");
        refused({.unread_steps = 0}, "unread_steps");
        refused({.false_alarms_per_step = 0}, "false_alarms_per_step");
        refused({.false_alarms_per_step = 2}, "false_alarms_per_step");
        refused({.false_alarms_per_run = 1}, "false_alarms_per_run");
        refused({.expectations = -1}, "expectations");
        refused({.groups = {1, 2}}, "groups");
        refused({.tolerance = -0.5}, "tolerance");
    });
}

TEST_CASE("one rank alone gets a record with what is defined for it")
{
    const auto records = run_steps<float>(1, {.direction = direction_mode::exact}, 1,
        [](int rank, int) { return random_gradient<float>(rank, {100}, 1); });
    CHECK(records[0].loss.std == 0);
    CHECK(is_nan(records[0].loss.std_sample));
    CHECK(is_nan(records[0].cosine.mean_pairwise));
    CHECK(records[0].findings.empty());
}

TEST_CASE("gradients of a few elements raise no alarms about direction")
{
    for (const std::size_t count : {1u, 2u, 4u}) {
        const auto records = run_steps<float>(4, {.direction = direction_mode::exact}, 100,
            [&](int rank, int step) { return random_gradient<float>(rank, {count}, 900 + static_cast<std::uint64_t>(step)); });
        for (const step_record& record : records) {
            for (const finding& found : record.findings) CHECK(found.what != finding_kind::cosine);
        }
    }
}

TEST_CASE("the record is the same on all ranks if only one of them calls in place")
{
    CHECK(records_of({}, [](auto& comm, auto& stream, int, auto&) {
        auto send = random_gradient<float>(comm.rank(), {500}, 3);
        std::vector<float> receive(500);
        comm.all_reduce(send[0], view(comm.rank() == 1 ? send[0] : receive), reduction::sum, stream);
        stream.synchronize(60'000);
    })[0].cosine.leave_one_out.empty());
}

static_assert(communicator<probed<local::communicator>>);

TEST_CASE("a loss may be a sum, and carry a scale; a rank whose batch was empty has no mean loss, and is no suspect")
{
    local::run(3, {.timeout_ms = 20'000}, [](local::communicator& world) {
        host::stream stream;
        probed comm(world);
        const double tokens = world.rank() == 2 ? 0 : world.rank() == 0 ? 10 : 30;
        const double sum = world.rank() == 2 ? 0 : world.rank() == 0 ? 20 : 90;
        const double scaled = 8 * sum;
        const std::pair<step_observation, bool> all[] = {{{.loss = sum, .weight = tokens, .loss_is_sum = true}, true},
            {{.loss = &scaled, .weight = &tokens, .loss_is_sum = true, .loss_scale = 8}, true},
            {{.loss = tokens > 0 ? 1024 * sum / tokens : detail::not_given(), .weight = tokens, .loss_scale = 1024}, true},
            {{.weight = tokens, .loss_is_sum = true}, false}};
        step_record record;
        std::uint64_t step = 0;
        for (const auto& [seen, has_loss] : all) {
            comm.end_step(step++, seen, stream);
            REQUIRE(comm.wait(record));
            CHECK(record.findings.empty());
            CHECK(is_nan(record.loss.mean) != has_loss);
            if (!has_loss) continue;
            CHECK(record.loss.mean == 2.5);
            CHECK(record.loss.finite == 2);
            CHECK(record.loss_weighted.mean == doctest::Approx(110.0 / 40));
        }
        // A sum of nothing that is not zero is no number.
        comm.end_step(step, {.loss = 1.0, .weight = tokens, .loss_is_sum = true}, stream);
        REQUIRE(comm.wait(record));
        CHECK(record.findings.size() == 1);
    });
}

TEST_CASE("calls that nothing reads are counted and told, with the reason")
{
    alarms watch(2);
    for (const step_record& record : records_of({2, 2, {.every = 2}}, [](auto& comm, auto& stream, int, auto&) {
             static thread_local std::vector<float> gradient(100);
             static thread_local std::vector<int> tokens(3, 1);
             gradient.assign(100, static_cast<float>(1 + comm.rank()));
             comm.all_reduce(tokens, view(tokens), reduction::max, stream);
             comm.all_reduce(gradient, view(gradient), reduction::sum, stream);
         })) {
        const std::uint64_t unread = record.step == 0 ? 1 : 2;
        CHECK(record.unread_calls == unread);
        (void)watch.judge(record);
        CHECK(watch.unseen_calls() == unread);
        const std::string told = std::to_string(unread);
        CHECK(contains(report::step_table(record), "not looked at: " + told + " of 2 calls, because"));
        CHECK(contains(report::json_line("run", record), "\"unread_calls\":" + told));
    }
}

} // namespace collprobe::testing::probed_test
