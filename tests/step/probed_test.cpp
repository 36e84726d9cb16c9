// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <malloc.h>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/step/probed.hpp>

#include "support/count_allocations.hpp"
#include "support/element_types.hpp"
#include "support/errors.hpp"
#include "support/held_clock.hpp"

using namespace collprobe;

namespace {

#if COLLPROBE_TEST_BRIEF
constexpr int clean_steps = COLLPROBE_TEST_UNLESS_SANITIZED(2'000, 200);
#else
constexpr int clean_steps = 20'000;
#endif

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

void require_same_bits(const spread& a, const spread& b)
{
    for (const auto field : {&spread::mean, &spread::std, &spread::std_sample, &spread::range, &spread::cv,
             &spread::minimum, &spread::maximum}) {
        REQUIRE(to_bits(a.*field) == to_bits(b.*field));
    }
    REQUIRE(a.minimum_rank == b.minimum_rank);
    REQUIRE(a.maximum_rank == b.maximum_rank);
    REQUIRE(a.finite == b.finite);
}

/// Runs one step on every rank, waits for its record and hands it over; all ranks must agree on it.
template <class T, class Make>
std::vector<step_record> run_steps(int ranks, const probe_options& options, int steps, const Make& gradient_of,
    reduction operation = reduction::average, bool in_place = false)
{
    std::vector<std::vector<step_record>> seen(static_cast<std::size_t>(ranks));
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, options);
        for (int step = 0; step < steps; ++step) {
            buckets<T> send = gradient_of(comm.rank(), step);
            buckets<T> receive = send;
            for (std::size_t b = 0; b < send.size(); ++b) {
                comm.all_reduce(in_place ? view<const T>(receive[b]) : view<const T>(send[b]),
                    view<T>(receive[b]), operation, stream);
            }
            comm.end_step(static_cast<std::uint64_t>(step), {.loss = 1.0 + 0.125 * comm.rank()}, stream);
            stream.synchronize(20'000);
            step_record record;
            while (comm.poll(record)) seen[static_cast<std::size_t>(comm.rank())].push_back(record);
        }
    });
    for (const auto& own : seen) {
        REQUIRE(own.size() == static_cast<std::size_t>(steps));
        for (std::size_t s = 0; s < own.size(); ++s) {
            const step_record& a = own[s];
            const step_record& b = seen[0][s];
            REQUIRE(a.step == s);
            require_same_bits(a.loss, b.loss);
            require_same_bits(a.gradient_norm, b.gradient_norm);
            REQUIRE(to_bits(a.cosine.mean_pairwise) == to_bits(b.cosine.mean_pairwise));
            REQUIRE(to_bits(a.cosine.pooled) == to_bits(b.cosine.pooled));
            REQUIRE(a.findings.size() == b.findings.size());
            for (std::size_t i = 0; i < a.findings.size(); ++i) {
                REQUIRE(a.findings[i].rank() == b.findings[i].rank());
                REQUIRE(a.findings[i].what == b.findings[i].what);
                REQUIRE(a.findings[i].call == b.findings[i].call);
            }
        }
    }
    return seen[0];
}

/// Every metric from its definition, in long double.
struct brute_force {
    std::vector<long double> norms;
    long double mean_pairwise = 0, pooled = 0;
    std::vector<long double> leave_one_out;

    template <class T>
    explicit brute_force(const std::vector<buckets<T>>& gradients)
    {
        const std::size_t n = gradients.size();
        std::vector<std::vector<long double>> flat(n);
        for (std::size_t r = 0; r < n; ++r) {
            for (const auto& bucket : gradients[r]) {
                for (const T x : bucket) flat[r].push_back(static_cast<double>(x));
            }
        }
        const auto dot = [](const std::vector<long double>& x, const std::vector<long double>& y) {
            long double sum = 0;
            for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
            return sum;
        };
        std::vector<long double> sum(flat[0].size(), 0);
        for (const auto& g : flat) {
            for (std::size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
            norms.push_back(std::sqrt(dot(g, g)));
        }
        long double numerator = 0, denominator = 0;
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t j = i + 1; j < n; ++j) {
                const long double product = dot(flat[i], flat[j]);
                mean_pairwise += product / (norms[i] * norms[j]);
                numerator += product;
                denominator += norms[i] * norms[j];
            }
            std::vector<long double> others(sum.size());
            for (std::size_t k = 0; k < sum.size(); ++k) others[k] = sum[k] - flat[i][k];
            leave_one_out.push_back(dot(flat[i], others) / (norms[i] * std::sqrt(dot(others, others))));
        }
        mean_pairwise /= static_cast<long double>(n * (n - 1) / 2);
        pooled = numerator / denominator;
    }
};

void check_close(double measured, long double expected, double tolerance)
{
    CAPTURE(measured);
    CAPTURE(static_cast<double>(expected));
    CHECK(std::abs(static_cast<long double>(measured) - expected) <= tolerance * std::abs(expected));
}

/// In one call a rank receives a result with an element that is far off.
template <communicator Comm>
class damaging : public adaptor<damaging<Comm>, Comm> {
    using base_type = adaptor<damaging, Comm>;

public:
    using typename base_type::stream_ref;
    damaging(Comm comm, int call, int rank) : base_type(std::move(comm)), left_(call), rank_(rank) {}

    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        base_type::template make<T>(call, on);
        if (call.what != collective::all_reduce || left_-- != 0 || this->rank() != rank_) return;
        on.enqueue([receive = call.received<T>()] { receive[7] = static_cast<T>(1e4f); });
    }

private:
    int left_;
    int rank_;
};

/// In one call the reduction takes a rank's contribution times a factor: all ranks receive the same wrong sum.
template <communicator Comm>
class damaged_reduction : public adaptor<damaged_reduction<Comm>, Comm> {
    using base_type = adaptor<damaged_reduction, Comm>;

public:
    using typename base_type::stream_ref;
    damaged_reduction(Comm comm, int call, int rank, float factor)
        : base_type(std::move(comm)), left_(call), rank_(rank), factor_(factor)
    {
    }

    template <element T>
    void make(const collective_call& call, stream_ref on)
    {
        if (call.what != collective::all_reduce || left_-- != 0 || this->rank() != rank_) {
            base_type::template make<T>(call, on);
            return;
        }
        const view<const T> send = call.sent<T>();
        std::vector<T> taken(send.begin(), send.end());
        for (T& x : taken) x = static_cast<T>(static_cast<float>(x) * factor_);
        collective_call damaged = call;
        damaged.send = taken.data();
        base_type::template make<T>(damaged, on);
        on.synchronize(60'000);
    }

private:
    int left_;
    int rank_;
    float factor_;
};

/// The records of 42 steps of 8 ranks, the reduction of step 40 being damaged by `factor`; in step 41 rank 5 points elsewhere.
template <element T>
std::vector<step_record> steps_with_a_damaged_reduction(float factor, reduction operation, float signal, float scale)
{
    std::vector<step_record> records;
    local::run(8, [&](local::communicator& world) {
        probed comm(damaged_reduction(world, 40, 5, factor), {.times = false}); // a busy machine makes a rank late
        host::stream stream;
        std::vector<T> gradient(4096), sum(4096);
        step_record own;
        for (std::uint64_t step = 0; step < 42; ++step) {
            for (std::size_t i = 0; i < gradient.size(); ++i) {
                const auto noise = [&](std::uint64_t key) {
                    return static_cast<float>(detail::mix64(key) >> 40) * 0x1p-24f - 0.5f;
                };
                const bool elsewhere = step == 41 && world.rank() == 5;
                gradient[i] = static_cast<T>(scale
                    * (signal * noise(elsewhere ? i + (std::uint64_t{1} << 60) : i)
                        + noise(((step + 1) << 32) + (static_cast<std::uint64_t>(world.rank()) << 24) + i)));
            }
            comm.all_reduce(gradient, view(sum), operation, stream);
            comm.end_step(step, {.loss = 1}, stream);
            stream.synchronize(60'000);
            REQUIRE(comm.poll(own));
            if (world.rank() == 3) records.push_back(own);
        }
    });
    return records;
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
    for (const finding& found : record.findings) {
        if (found.what == finding_kind::cosine) return true;
    }
    return false;
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
        const brute_force expected(gradients);
        const auto records = run_steps<T>(n,
            {.direction = direction_mode::exact, .scratch_bytes = 4096}, 2,
            [&](int rank, int) { return gradients[static_cast<std::size_t>(rank)]; });
        const step_record& record = records[1];
        CHECK(record.ranks == n);
        REQUIRE(record.calls.size() == sizes.size());
        check_close(record.cosine.mean_pairwise, expected.mean_pairwise, 1e-12);
        check_close(record.cosine.pooled, expected.pooled, 1e-12);
        long double mean = 0, squares = 0;
        for (int r = 0; r < n; ++r) {
            const auto i = static_cast<std::size_t>(r);
            check_close(record.cosine.leave_one_out[i], expected.leave_one_out[i], 1e-12);
            check_close(record.gradient_norms[i], expected.norms[i], of_norm);
            mean += expected.norms[i] / n;
        }
        for (const long double norm : expected.norms) squares += (norm - mean) * (norm - mean);
        check_close(record.gradient_norm.mean, mean, of_norm);
        // The spread of numbers that agree to k digits has k fewer good ones.
        check_close(record.gradient_norm.std, std::sqrt(squares / n),
            of_norm * static_cast<double>(mean * mean * n / squares) + 1e-12);
        check_close(record.loss.mean, 1 + 0.125L * static_cast<long double>(n - 1) / 2, 1e-15);
    }
}

TEST_CASE("one rank of eight at a hundred times the norm and random: exact 0.374, pooled 0.021")
{
    const std::size_t size = 200'000;
    const auto gradient = [&](int rank, int) {
        std::mt19937_64 common(3);
        std::mt19937_64 own(static_cast<std::uint64_t>(rank) + 100);
        std::normal_distribution<double> shared;
        std::normal_distribution<double> private_noise;
        buckets<float> result{std::vector<float>(size)};
        for (float& x : result[0]) {
            const double signal = shared(common);
            const double noise = private_noise(own);
            x = static_cast<float>(rank == 5 ? 100 * noise * std::sqrt(2.0) : signal + noise);
        }
        return result;
    };
    const auto records = run_steps<float>(8, {.direction = direction_mode::exact}, 1, gradient);
    CHECK(records[0].cosine.mean_pairwise == doctest::Approx(0.374).epsilon(0.01));
    CHECK(records[0].cosine.pooled == doctest::Approx(0.021).epsilon(0.25));
    CHECK(std::abs(records[0].cosine.leave_one_out[5]) < 0.02);
    CHECK(records[0].cosine.leave_one_out[4] < records[0].cosine.mean_pairwise);
}

TEST_CASE("pooled mode needs no gradient-sized message and keeps the same numbers to the wire's rounding")
{
    const std::vector<std::size_t> sizes{3000, 777};
    std::vector<buckets<float>> gradients;
    for (int r = 0; r < 4; ++r) gradients.push_back(random_gradient<float>(r, sizes, 5));
    const brute_force expected(gradients);
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

TEST_CASE("summary mode tells the same spread, extrema and agreement as the table of all ranks")
{
    const std::vector<std::size_t> sizes{900, 64};
    for (const int n : {1, 2, 3, 8}) {
        CAPTURE(n);
        const auto of = [&](int rank, int step) {
            return random_gradient<float>(rank, sizes, 50 + static_cast<std::uint64_t>(step));
        };
        const auto full = run_steps<float>(n, {.mode = report_mode::gather}, 3, of);
        const auto summary = run_steps<float>(n, {.mode = report_mode::summary}, 3, of);
        for (std::size_t s = 0; s < full.size(); ++s) {
            const step_record& a = full[s];
            const step_record& b = summary[s];
            CHECK(b.mode == report_mode::summary);
            CHECK(b.losses == a.losses);
            CHECK(b.gradient_norms == a.gradient_norms);
            CHECK((n == 1 || b.cosine.leave_one_out == a.cosine.leave_one_out));
            const auto same = [](const spread& x, const spread& y) {
                CHECK(x.finite == y.finite);
                CHECK(y.mean == doctest::Approx(x.mean).epsilon(1e-12));
                CHECK(y.std == doctest::Approx(x.std).epsilon(1e-9));
                CHECK(is_nan(x.std_sample) == is_nan(y.std_sample));
                CHECK(y.minimum == doctest::Approx(x.minimum).epsilon(0x1p-32));
                CHECK(y.maximum == doctest::Approx(x.maximum).epsilon(0x1p-32));
                CHECK(x.minimum_rank == y.minimum_rank);
                CHECK(x.maximum_rank == y.maximum_rank);
            };
            same(a.loss, b.loss);
            same(a.loss_weighted, b.loss_weighted);
            same(a.gradient_norm, b.gradient_norm);
            REQUIRE(b.calls.size() == a.calls.size());
            for (std::size_t k = 0; k < a.calls.size(); ++k) {
                same(a.calls[k].gradient_norm, b.calls[k].gradient_norm);
                CHECK(b.calls[k].count == a.calls[k].count);
                CHECK(b.calls[k].results_agree);
                CHECK(b.calls[k].inputs.empty());
                CHECK(is_nan(a.calls[k].pooled_cosine) == is_nan(b.calls[k].pooled_cosine));
                if (n > 1) CHECK(b.calls[k].pooled_cosine == doctest::Approx(a.calls[k].pooled_cosine).epsilon(1e-9));
            }
            if (n > 1) {
                CHECK(b.cosine.pooled == doctest::Approx(a.cosine.pooled).epsilon(1e-9));
                CHECK(b.cosine.noise_scale == doctest::Approx(a.cosine.noise_scale).epsilon(1e-9));
                CHECK(b.cosine.predicted_cosine == doctest::Approx(a.cosine.predicted_cosine).epsilon(1e-9));
            }
            CHECK(b.findings.empty());
        }
    }
}

TEST_CASE("both modes take the step's norm of the gradients among many buckets, and of nothing else")
{
    constexpr std::size_t calls = 150;
    const auto norm_in = [](report_mode mode) {
        std::vector<double> norms;
        local::run(2, [&](local::communicator& world) {
            host::stream stream;
            probed<local::communicator> comm(world, {.mode = mode, .calls = 2 * calls});
            std::vector<float> send(calls), receive(calls);
            step_record record;
            // The second step has fewer calls, and others of them are gradients.
            for (std::size_t step = 0; step < 2; ++step) {
                for (std::size_t i = 0; i < calls - 20 * step; ++i) {
                    send[i] = static_cast<float>(1 + i);
                    const bool gradient = i % 3 == step;
                    comm.all_reduce(view<const float>(&send[i], 1), view<float>(&receive[i], 1),
                        gradient ? reduction::sum : reduction::max, stream);
                }
                comm.end_step(step, {.loss = 1}, stream);
                stream.synchronize(60'000);
                REQUIRE(comm.poll(record));
                if (world.rank() == 0) norms.push_back(record.gradient_norm.mean);
            }
        });
        return norms;
    };
    const auto summary = norm_in(report_mode::summary);
    const auto gather = norm_in(report_mode::gather);
    for (std::size_t step = 0; step < 2; ++step) {
        double squares = 0;
        for (std::size_t i = 0; i < calls - 20 * step; ++i) {
            if (i % 3 == step) squares += static_cast<double>((1 + i) * (1 + i));
        }
        CHECK(summary[step] == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
        CHECK(gather[step] == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
    }
}

TEST_CASE("a NaN is named by rank, bucket and index in both modes, and the norms of the others stay")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        const auto records = run_steps<float>(4, {.mode = mode}, 2, [&](int rank, int step) {
            auto gradient = random_gradient<float>(rank, {100, 5000}, 9 + static_cast<std::uint64_t>(step));
            if (rank == 2 && step == 1) gradient[1][4321] = std::bit_cast<float>(0x7fc00000u);
            return gradient;
        });
        CHECK(records[0].findings.empty());
        REQUIRE(records[1].findings.size() >= 1);
        const finding& found = records[1].findings[0];
        CHECK(found.what == finding_kind::non_finite);
        CHECK(found.rank() == 2);
        CHECK(found.call == 1);
        CHECK(found.statistic == 1);
        if (mode == report_mode::gather) CHECK(found.index == 4321);
        CHECK(records[1].calls[1].nonfinite == 1);
        CHECK(records[1].calls[1].gradient_norm.finite == 4);
    }
}

TEST_CASE("a loss that is no number is named")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        std::vector<step_record> records;
        local::run(3, [&](local::communicator& world) {
            host::stream stream;
            probed<local::communicator> comm(world, {.mode = mode});
            comm.end_step(7, {.loss = comm.rank() == 1 ? detail::infinity() : 2.0}, stream);
            stream.synchronize(60'000);
            step_record record;
            REQUIRE(comm.poll(record));
            if (comm.rank() == 0) records.push_back(record);
        });
        REQUIRE(records[0].findings.size() == 1);
        CHECK(records[0].findings[0].what == finding_kind::non_finite);
        CHECK(records[0].findings[0].rank() == 1);
        CHECK(records[0].findings[0].call == -1);
        CHECK(records[0].loss.finite == 2);
        CHECK(records[0].loss.mean == doctest::Approx(2.0));
    }
}

TEST_CASE("equal bits of two ranks and of two steps are named, zeros are not")
{
    const auto records = run_steps<float>(4, {}, 3, [&](int rank, int step) {
        const int as = rank == 3 && step == 1 ? 1 : rank; // rank 3 holds rank 1's gradient in step 1
        const int at = rank == 0 && step == 2 ? 1 : step; // rank 0 repeats step 1 in step 2
        auto gradient = random_gradient<float>(as, {64, 300}, 70 + static_cast<std::uint64_t>(at));
        gradient.emplace_back(500, 0.0f); // a frozen layer: equal everywhere and always
        return gradient;
    });
    CHECK(records[0].findings.empty());
    REQUIRE(records[1].findings.size() == 2); // both ranks: the bits do not tell whose they are
    for (std::size_t i = 0; i < 2; ++i) {
        const finding& found = records[1].findings[i];
        CHECK(found.what == finding_kind::duplicate);
        CHECK(found.ranks == std::vector<int>{1, 3});
        CHECK(found.call == static_cast<int>(i));
    }
    REQUIRE(records[2].findings.size() == 2);
    for (const finding& found : records[2].findings) {
        CHECK(found.what == finding_kind::stale);
        CHECK(found.rank() == 0);
    }
}

TEST_CASE("where several ranks hold the same, they are named together")
{
    // Ranks 1, 2 and 4 are alike, then all of them.
    const auto records = run_steps<float>(5, {}, 2, [&](int rank, int step) {
        const bool alike = step == 1 || rank == 1 || rank == 2 || rank == 4;
        return random_gradient<float>(alike ? 1 : rank, {300}, 40 + static_cast<std::uint64_t>(step));
    });
    const auto named = [](const step_record& record) {
        std::vector<std::vector<int>> groups;
        for (const finding& found : record.findings) {
            if (found.what != finding_kind::duplicate) continue;
            groups.push_back(found.ranks);
            CHECK(found.other_rank == found.ranks[0]);
        }
        return groups;
    };
    CHECK(named(records[0]) == std::vector<std::vector<int>>{{1, 2, 4}});
    CHECK(named(records[1]) == std::vector<std::vector<int>>{{0, 1, 2, 3, 4}});
}

namespace {

/// Hands one rank a result with one bit flipped, as damage in the broadcast phase would.
class corrupting : public adaptor<corrupting, local::communicator> {
public:
    corrupting(local::communicator comm, int victim) : adaptor(comm), victim_(victim) {}
    template <element T>
    void make(const collective_call& call, stream_ref stream)
    {
        comm_.make<T>(call, stream);
        if constexpr (std::is_same_v<T, float>) {
            if (call.what != collective::all_reduce || comm_.rank() != victim_) return;
            stream.enqueue([receive = call.received<T>()] {
                receive[receive.count() / 2] = std::bit_cast<float>(to_bits(receive[receive.count() / 2]) ^ 1u);
            });
        }
    }

private:
    int victim_;
};

} // namespace

TEST_CASE("a result that differs on one rank is named by majority, and only detected without one")
{
    for (const auto& [n, mode] : {std::pair{5, report_mode::gather}, {2, report_mode::gather}, {5, report_mode::summary}}) {
        step_record record;
        local::run(n, [&, n = n, mode = mode](local::communicator& world) {
            host::stream stream;
            probed<corrupting> comm(corrupting(world, 1), {.mode = mode});
            std::vector<float> send(1000), receive(1000);
            for (std::size_t i = 0; i < send.size(); ++i) send[i] = static_cast<float>(i + 1) * static_cast<float>(world.rank() + n);
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
            comm.end_step(0, {.loss = 1}, stream);
            stream.synchronize(60'000);
            step_record own;
            REQUIRE(comm.poll(own));
            if (world.rank() == 0) record = own;
        });
        CHECK_FALSE(record.calls[0].results_agree);
        REQUIRE(record.findings.size() == 1);
        CHECK(record.findings[0].what == finding_kind::result_differs);
        CHECK(record.findings[0].call == 0);
        CHECK(record.findings[0].rank() == (n == 5 && mode == report_mode::gather ? 1 : -1));
    }
}

TEST_CASE("a rank that received a damaged result is named for that, not for its gradient's direction")
{
    for (const int bad : {0, 3}) {
        std::vector<finding_kind> found;
        std::vector<double> cosines;
        local::run(4, [&](local::communicator& world) {
            probed comm(damaging(world, 40, bad), {.times = false});
            host::stream stream;
            step_record own;
            for (std::uint64_t step = 0; step < 42; ++step) {
                std::vector<float> gradient(4096), sum(4096);
                for (std::size_t i = 0; i < gradient.size(); ++i) {
                    const auto noise = [&](std::uint64_t key) {
                        return static_cast<float>(detail::mix64(key) >> 40) * 0x1p-24f - 0.5f;
                    };
                    gradient[i] = noise(i) + noise((step << 32) + (static_cast<std::uint64_t>(world.rank()) << 24) + i);
                }
                comm.all_reduce(gradient, view(sum), reduction::sum, stream);
                comm.end_step(step, {.loss = 1}, stream);
                stream.synchronize(60'000);
                REQUIRE(comm.poll(own));
                if (world.rank() != 0 || step != 40) continue;
                for (const finding& each : own.findings) found.push_back(each.what);
                cosines = own.cosine.leave_one_out;
                CHECK(own.findings.at(0).rank() == bad);
            }
        });
        CHECK(found == std::vector<finding_kind>{finding_kind::result_differs});
        REQUIRE(cosines.size() == 4);
        for (int r = 0; r < 4; ++r) CHECK(is_finite(cosines[static_cast<std::size_t>(r)]) == (r != bad));
    }
}

TEST_CASE_TEMPLATE("a sum that is wrong on all ranks blames no rank for its direction", T, float, bfloat16)
{
    for (const reduction operation : {reduction::sum, reduction::average}) {
        for (const float factor : {2.0f, 100.0f, 0.0f}) {
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
}

namespace {

/// The alarms of the last of `steps` audited steps of what `wrap` makes of a communicator. Each step has a sum of
/// integers and one of floats.
template <class Wrap>
std::vector<finding> alarms_of_audited_steps(int ranks, std::uint64_t steps, const Wrap& wrap)
{
    std::vector<finding> last;
    local::run(ranks, [&](local::communicator& world) {
        probed comm{wrap(world), {.times = false}, audit()};
        host::stream stream;
        alarms watch(ranks);
        std::vector<std::int32_t> numbers(4096, 1), counts(4096);
        std::vector<float> gradient(4096), sum(4096);
        step_record record;
        for (std::uint64_t step = 0; step < steps; ++step) {
            std::mt19937_64 random(step * 64 + static_cast<std::uint64_t>(world.rank()));
            std::normal_distribution<float> normal(1);
            for (float& x : gradient) x = normal(random);
            comm.all_reduce(numbers, view(counts), reduction::sum, stream);
            comm.all_reduce(gradient, view(sum), reduction::sum, stream);
            comm.end_step(step, {.loss = 1}, stream);
            stream.synchronize(60'000);
            REQUIRE(comm.poll(record));
            const view<const finding> raised = watch.judge(record);
            if (step + 1 < steps) CHECK(raised.empty());
            else if (world.rank() == 0) last.assign(raised.begin(), raised.end());
        }
    });
    return last;
}

} // namespace

TEST_CASE("what statistics and audit find of one fault is one alarm")
{
    // Of two ranks: the probe alone cannot name the one that received other bits.
    const auto hit = alarms_of_audited_steps(2, 21, [](auto& world) { return damaging(world, 41, 1); });
    REQUIRE(hit.size() == 1);
    CHECK(hit[0].what == finding_kind::result_differs);
    CHECK(hit[0].call == 1);
    CHECK(hit[0].ranks == std::vector<int>{1});
    CHECK(hit[0].action == advice::resync);
    CHECK(hit[0].source == 0);

    const auto wrong = alarms_of_audited_steps(8, 41, [](auto& world) { return damaged_reduction(world, 81, 5, 100); });
    REQUIRE(wrong.size() == 1);
    CHECK(wrong[0].what == finding_kind::sum_differs);
    CHECK(wrong[0].call == 1);
    CHECK(wrong[0].where == damage::reduce);
    CHECK(wrong[0].action == advice::skip); // so far off that no rounding explains it
    CHECK(wrong[0].ranks.empty());
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
                for (const step_record& record : steps_with_a_damaged_reduction<T>(1, operation, signal, scale))
                    CHECK(has_direction(record));
            }
        }
    }
}

TEST_CASE("numbers that only the device knows are read at the end of the step, and count as those of the host")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        local::run(3, [&](local::communicator& world) {
            std::atomic<bool> computed{false};
            float loss = -1;
            double weight = -1;
            double norm = -1;
            std::vector<float> send(10, 1.0f + static_cast<float>(world.rank())), receive(10);
            host::stream stream;
            probed<local::communicator> comm(world, {.mode = mode});
            const auto reduce = [&] { comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream); };
            const float own_loss = 1.5f + static_cast<float>(world.rank());
            const double own_weight = 32 + world.rank();
            const double own_norm = world.rank() == 2 ? 7 : 6 * std::sqrt(10.0);

            stream.enqueue([&] {
                while (!computed.load()) std::this_thread::yield();
                loss = own_loss;
                weight = own_weight;
                norm = own_norm;
            });
            reduce();
            comm.end_step(0, {.loss = &loss, .weight = &weight, .gradient_norm = &norm}, stream);
            computed = true;
            reduce();
            comm.end_step(1, {.loss = own_loss, .weight = own_weight, .gradient_norm = own_norm}, stream);
            reduce();
            comm.end_step(2, {.loss = &loss}, stream);
            reduce();
            comm.end_step(3, {.loss = own_loss}, stream);
            reduce();
            comm.end_step(4, step_observation{}, stream);
            reduce();
            comm.end_step(5, {}, stream); // the host's numbers, as is what else both could mean
            reduce();
            comm.end_step(6, {.loss = 0}, stream);
            stream.synchronize(60'000);

            std::vector<step_record> records(7);
            for (step_record& record : records) REQUIRE(comm.poll(record));
            for (std::size_t i = 0; i < 6; i += 2) {
                CAPTURE(i);
                CHECK(records[i].step == i);
                require_same_bits(records[i].loss, records[i + 1].loss);
                require_same_bits(records[i].loss_weighted, records[i + 1].loss_weighted);
                CHECK(std::equal(records[i].losses.begin(), records[i].losses.end(), records[i + 1].losses.begin(),
                    records[i + 1].losses.end(), [](double a, double b) { return to_bits(a) == to_bits(b); }));
            }
            CHECK(records[0].loss.mean == 2.5);
            CHECK(records[0].loss_weighted.mean != records[2].loss_weighted.mean);
            // A loss that was not given is none: not 0, and no loss that became NaN either.
            CHECK(is_nan(records[4].loss.mean));
            CHECK(records[4].loss.finite == 0);
            CHECK(records[4].losses.size() == records[6].losses.size());
            for (const double none : records[4].losses) CHECK(is_nan(none));
            for (const finding& found : records[4].findings) CHECK(found.what != finding_kind::non_finite);
            CHECK(records[6].loss.mean == 0);
            CHECK(records[6].loss.finite == 3);
            for (const step_record& record : records) {
                CAPTURE(record.step);
                CHECK(record.result_norm == doctest::Approx(6 * std::sqrt(10.0)));
                std::vector<int> other_norms;
                for (const finding& found : record.findings)
                    if (found.what == finding_kind::norm_differs) other_norms.push_back(found.rank());
                CHECK(other_norms == (record.step < 2 ? std::vector<int>{2} : std::vector<int>()));
            }
        });
    }
}

TEST_CASE("a scaled gradient is named in its step and bucket, once it is known what is usual")
{
    const auto records = run_steps<float>(8, {}, 60, [&](int rank, int step) {
        auto gradient = random_gradient<float>(rank, {400, 400}, 500 + static_cast<std::uint64_t>(step));
        if (rank == 6 && (step == 0 || step == 50)) {
            for (float& x : gradient[1]) x *= 100;
        }
        return gradient;
    });
    for (const step_record& record : records) {
        CAPTURE(record.step);
        int norms = 0;
        int magnitudes = 0;
        for (const finding& found : record.findings) {
            CHECK(found.rank() == 6);
            CHECK(is_of_number(found.what));
            CHECK_FALSE(found.exact);
            CHECK(found.statistic > found.threshold);
            CHECK(found.false_alarms_per_step <= 1e-4);
            CHECK(found.number.steps >= 16);
            norms += found.what == finding_kind::gradient_norm && found.call == 1 ? 1 : 0;
            magnitudes += found.what == finding_kind::largest_magnitude && found.call == 1 ? 1 : 0;
            if (found.what != finding_kind::gradient_norm || found.call != 1) continue;
            CHECK(found.number.value == doctest::Approx(record.calls[1].inputs[6].l2()).epsilon(1e-6));
            CHECK(found.number.expected == doctest::Approx(found.number.value / 100).epsilon(0.2));
            CHECK(found.number.usual_difference < found.number.expected);
        }
        CHECK(norms == (record.step == 50 ? 1 : 0)); // nothing is usual in step 0
        CHECK(magnitudes == norms);
    }
}

TEST_CASE("a record says that two ranks do not fit though neither can be named")
{
    const auto records = run_steps<float>(2, {.times = false}, 60, [&](int rank, int step) {
        auto gradient = random_gradient<float>(rank, {400, 400}, 500 + static_cast<std::uint64_t>(step));
        if (rank == 1 && step == 50) {
            for (float& x : gradient[1]) x *= 100;
        }
        return gradient;
    });
    for (const step_record& record : records) {
        if (record.step == 50) continue;
        CHECK(record.findings.empty());
    }
    int norms = 0;
    for (const finding& found : records[50].findings) {
        CHECK(is_of_number(found.what));
        CHECK(found.rank() == -1);
        CHECK(found.statistic > found.threshold);
        CHECK(found.threshold > 0);
        norms += found.what == finding_kind::gradient_norm && found.call == 1 ? 1 : 0;
    }
    CHECK(norms == 1);
}

TEST_CASE("clean steps alarm no more often than stated")
{
    // The stated rate is a bound: 1e-3 a step here, so that enough alarms could show.
    const double rate = 1e-3;
    std::atomic<int> alarms{0};
    local::run(8, [&](local::communicator& world) {
        host::stream stream;
        // Without times: with fewer cores than ranks, a rank that the scheduler leaves behind is late.
        probed<local::communicator> comm(world, {.times = false, .false_alarms_per_step = rate});
        std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()) + 77);
        std::mt19937_64 common(5);
        std::normal_distribution<float> normal;
        std::normal_distribution<float> shared_normal;
        std::vector<float> send(64), receive(64);
        step_record record;
        int own_alarms = 0;
        for (int step = 0; step < clean_steps; ++step) {
            for (float& x : send) x = shared_normal(common) + normal(random);
            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::average, stream);
            comm.end_step(static_cast<std::uint64_t>(step), {.loss = 2 + 0.1 * static_cast<double>(normal(random))}, stream);
            stream.synchronize(20'000);
            while (comm.poll(record)) own_alarms += record.findings.empty() ? 0 : 1;
        }
        if (world.rank() == 3) alarms = own_alarms;
    });
    MESSAGE("alarms in ", clean_steps, " clean steps: ", alarms.load(), ", bound ", rate * clean_steps);
    const double expected = rate * clean_steps;
    CHECK(alarms.load() <= expected + 4 * std::sqrt(expected) + 1);
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

TEST_CASE("a step that fails costs no record of another: those before it come first")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        local::run(2, [&](local::communicator& world) {
            host::stream stream;
            probed<local::communicator> comm(world, {.mode = mode, .steps_in_flight = 8, .unread_steps = 2});
            // The ranks differ about the number of the third step.
            for (const int step : {0, 1, 2 + 5 * world.rank(), 3, 4, 5}) {
                comm.end_step(static_cast<std::uint64_t>(step), {.loss = 1}, stream);
            }
            stream.synchronize(60'000);
            step_record record;
            for (const std::uint64_t step : {0u, 1u}) {
                REQUIRE(comm.poll(record));
                CHECK(record.step == step);
            }
            CHECK(comm.dropped_steps() == 0);
            CHECK_THROWS_AS(comm.poll(record), error);
            for (const std::uint64_t step : {4u, 5u}) {
                REQUIRE(comm.poll(record));
                CHECK(record.step == step);
            }
            CHECK_FALSE(comm.poll(record));
            CHECK(comm.dropped_steps() == 1); // the fourth was judged after the error, with the last two
        });
    }
}

TEST_CASE("a number of samples that is negative or not finite is refused by its rank, and of the device left out")
{
    local::run(2, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world);
        for (const double weight : {-1.0, detail::not_a_number(), detail::infinity()}) {
            try {
                comm.end_step(0, {.loss = 1, .weight = weight}, stream);
                FAIL("accepted");
            } catch (const error& problem) {
                CHECK(problem.code() == status::invalid_argument);
                CHECK(problem.rank() == world.rank());
            }
        }
        const double weight = world.rank() == 1 ? -2 : 3;
        const double loss = 1 + world.rank();
        comm.end_step(0, {.loss = &loss, .weight = &weight}, stream);
        comm.end_step(1, {.loss = loss, .weight = 0}, stream);
        stream.synchronize(60'000);
        step_record record;
        REQUIRE(comm.poll(record));
        CHECK(record.loss_weighted.mean == 1);
        REQUIRE(comm.poll(record));
        CHECK(record.step == 1);
    });
}

TEST_CASE("an error that nobody polls for surfaces where a step waits for its place")
{
    local::run(2, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, {.steps_in_flight = 2});
        comm.end_step(static_cast<std::uint64_t>(world.rank()), {.loss = 1}, stream);
        comm.end_step(2, {.loss = 1}, stream);
        comm.end_step(3, {.loss = 1}, stream);
        CHECK_THROWS_AS(comm.end_step(4, {.loss = 1}, stream), error);
        comm.end_step(4, {.loss = 1}, stream);
        stream.synchronize(60'000);
        step_record record;
        for (const std::uint64_t step : {2u, 3u, 4u}) {
            REQUIRE(comm.poll(record));
            CHECK(record.step == step);
        }
    });
}

TEST_CASE("steady state allocates nothing and never waits on the host")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const direction_mode direction : {direction_mode::pooled, direction_mode::exact}) {
            std::atomic<long> before{0}, after{0};
            std::atomic<std::uint64_t> waits{0};
            std::atomic<int> arrived{0}, left{0};
            constexpr int n = 3;
            local::run(n, [&](local::communicator& world) {
                host::stream stream;
                probed<local::communicator> comm(
                    world, {.mode = mode, .direction = direction, .lateness_floor_ns = 1e12, .steps_in_flight = 8, .unread_steps = 4});
                std::vector<float> send(1000), receive(1000);
                std::mt19937 random(static_cast<unsigned>(world.rank()));
                step_record record;
                const auto step = [&](std::uint64_t number) {
                    for (float& x : send) x = static_cast<float>(random() % 1000);
                    for (int b = 0; b < 3; ++b) {
                        comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
                    }
                    comm.end_step(number, {.loss = 1}, stream);
                    while (!comm.poll(record)) std::this_thread::yield();
                };
                for (std::uint64_t i = 0; i < 40; ++i) step(i);
                ++arrived;
                while (arrived.load() < n) std::this_thread::yield();
                if (world.rank() == 0) before = allocations.load();
                const std::uint64_t waited = stream.synchronizations();
                for (std::uint64_t i = 40; i < 140; ++i) step(i);
                waits += stream.synchronizations() - waited;
                ++left;
                while (left.load() < n) std::this_thread::yield();
                if (world.rank() == 0) after = allocations.load();
                ++arrived;
                while (arrived.load() < 2 * n) std::this_thread::yield();
            });
            CHECK(after.load() - before.load() == 0);
            CHECK(waits.load() == 0);
        }
    }
}

TEST_CASE("buckets on several streams are all in the record, whichever stream ends the step")
{
    std::vector<step_record> records;
    local::run(3, [&](local::communicator& world) {
        host::stream a, b, c;
        probed<local::communicator> comm(world, {.direction = direction_mode::exact});
        for (std::uint64_t step = 0; step < 20; ++step) {
            auto send = random_gradient<float>(world.rank(), {3000, 20'000, 10}, step + 1);
            auto receive = send;
            comm.all_reduce(view<const float>(send[0]), view<float>(receive[0]), reduction::sum, a);
            comm.all_reduce(view<const float>(send[1]), view<float>(receive[1]), reduction::sum, b);
            comm.all_reduce(view<const float>(send[2]), view<float>(receive[2]), reduction::sum, a);
            comm.end_step(step, {.loss = 1}, c);
            c.synchronize(60'000);
            step_record record;
            REQUIRE(comm.poll(record));
            if (world.rank() == 0) records.push_back(record);
        }
    });
    REQUIRE(records.size() == 20);
    for (const step_record& record : records) {
        std::vector<buckets<float>> gradients;
        for (int r = 0; r < 3; ++r) gradients.push_back(random_gradient<float>(r, {3000, 20'000, 10}, record.step + 1));
        const brute_force expected(gradients);
        check_close(record.cosine.mean_pairwise, expected.mean_pairwise, 1e-11);
        for (std::size_t r = 0; r < 3; ++r) check_close(record.gradient_norms[r], expected.norms[r], 1e-12);
    }
}

TEST_CASE("other collectives are probed too, integers are forwarded")
{
    step_record record;
    local::run(4, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world, {.calls = 5});
        std::vector<float> small(8, 1.5f + static_cast<float>(world.rank()));
        std::vector<float> large(32, 0.5f + static_cast<float>(world.rank()));
        std::vector<float> out_small(8), out_large(32), out_other(32);
        std::vector<std::int32_t> numbers(8, 3), sums(8);
        comm.all_gather(view<const float>(small), view<float>(out_large), stream);
        comm.reduce_scatter(view<const float>(large), view<float>(out_small), reduction::sum, stream);
        comm.all_to_all(view<const float>(large), view<float>(out_other), stream);
        comm.broadcast(view<const float>(small), view<float>(small), 2, stream);
        comm.all_reduce(view<const std::int32_t>(numbers), view<std::int32_t>(sums), reduction::sum, stream);
        comm.all_reduce(view<const float>(large), view<float>(large), reduction::max, stream);
        comm.barrier(stream);
        comm.end_step(0, {.loss = 1}, stream);
        stream.synchronize(60'000);
        CHECK(sums[7] == 12);
        CHECK(small[0] == 3.5f);
        CHECK(large[0] == 3.5f);
        step_record own;
        REQUIRE(comm.poll(own));
        if (world.rank() == 1) record = own;
    });
    REQUIRE(record.calls.size() == 5);
    CHECK(record.unprobed_calls == 0);
    const collective expected[] = {collective::all_gather, collective::reduce_scatter, collective::all_to_all,
        collective::broadcast, collective::all_reduce};
    for (std::size_t b = 0; b < 5; ++b) {
        CHECK(record.calls[b].call == expected[b]);
        CHECK(record.calls[b].results_agree);
    }
    // Only the reduce-scatter is a sum of gradients: it alone makes up the whole gradient's norm.
    CHECK(record.gradient_norms[1] == doctest::Approx(std::sqrt(32 * 1.5 * 1.5)));
    check_close(record.cosine.pooled, 1.0L, 1e-6);
}

namespace {

/// The JSON lines of three steps of `calls` all-reduces, on two streams in turn, with room for `room` calls at first.
std::vector<std::string> lines_of_steps(const probe_options& options, int room, int calls)
{
    std::vector<std::string> lines;
    local::run(3, [&](local::communicator& world) {
        host::stream streams[2];
        probe_options own = options;
        own.calls = room;
        probed comm{local::communicator(world), own, audit({.conservation = {.sketch = {.bins = 64}}})};
        std::vector<std::vector<float>> send(static_cast<std::size_t>(calls)), receive(send.size());
        step_record record;
        for (std::uint64_t step = 0; step < 3; ++step) {
            std::mt19937_64 random(step * 8 + static_cast<std::uint64_t>(world.rank()));
            std::normal_distribution<float> normal;
            // The second step has fewer calls than the first.
            const std::size_t of_step = step == 1 ? send.size() / 2 : send.size();
            for (std::size_t b = 0; b < of_step; ++b) {
                send[b].resize(100 + b);
                receive[b].resize(send[b].size());
                for (float& x : send[b]) x = normal(random);
                comm.all_reduce(send[b], view(receive[b]), reduction::average, streams[b % 2]);
            }
            comm.end_step(step, {.loss = normal(random)}, streams[0]);
            REQUIRE(comm.wait(record));
            CHECK(record.calls.size() == of_step);
            CHECK(record.unprobed_calls == 0);
            if (world.rank() != 0) continue;
            CHECK(record.lateness.calls == static_cast<int>(of_step));
            record.lateness = {}; // differs from run to run
            record.lateness_by_rank.clear();
            record.evidence_by_rank.clear();
            for (call_record& call : record.calls) {
                call.lateness = {};
                call.intervals.clear();
            }
            lines.push_back(report::json_line("", record));
            for (const call_record& call : record.calls) {
                CHECK(call.audit.sum_checked);
                lines.back() += report::short_number(call.gradient_norm.mean) + report::short_number(call.audit.residual);
            }
        }
    });
    return lines;
}

} // namespace

TEST_CASE("a step with more calls than there is room for grows, and its record is that of a step with room")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const direction_mode direction : {direction_mode::pooled, direction_mode::exact}) {
            CAPTURE(name(mode));
            const probe_options options{.mode = mode, .direction = direction, .scratch_bytes = 1 << 12};
            const std::vector<std::string> roomy = lines_of_steps(options, 100, 70);
            CHECK(lines_of_steps(options, 1, 70) == roomy);
            CHECK(lines_of_steps(options, 35, 70) == roomy);
        }
    }
}

TEST_CASE("a step that never ends is refused once, by the call that is one too many, and holds what it sends and little more")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        local::run(2, [&](local::communicator& world) {
            host::stream stream;
            probed comm{local::communicator(world), {.mode = mode, .calls = 3, .largest_step = 40}};
            std::vector<float> values(16, 1.0f);
            step_record record;
            for (const std::uint64_t step : {0u, 1u}) {
                for (int i = 0; i < 40; ++i) comm.all_reduce(view(values), reduction::average, stream);
                std::string refused;
                try {
                    comm.all_reduce(view(values), reduction::average, stream, call_site::named("one too many"));
                } catch (const error& failure) {
                    CHECK(failure.code() == status::invalid_argument);
                    refused = failure.what();
                }
                CHECK(testing::contains(refused, "call 41 of one step"));
                CHECK(testing::contains(refused, step == 0 ? "no step has ended yet" : "no step has ended since"));
                CHECK(testing::contains(refused, "one too many"));
                CHECK(testing::contains(refused, "Call end_step"));
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
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
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
                    status told = status::mismatch;
                    try {
                        const bool invented = comm.poll(record);
                        CHECK_FALSE(invented);
                    } catch (const error& failure) {
                        told = failure.code();
                        CHECK(std::string(failure.what()).find("step 0 never arrived") != std::string::npos);
                    }
                    CHECK(told == status::device_failure);
                });
        }
    }
}

TEST_CASE("ranks that fall out of step get an error that says so")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        std::atomic<int> mismatches{0};
        local::run(3, {.name = "replicas"}, [&](local::communicator& world) {
            host::stream stream;
            probed<local::communicator> comm(world, {.mode = mode});
            const std::uint64_t own = world.rank() == 2 ? 6 : 5;
            comm.end_step(own, {.loss = 1}, stream);
            stream.synchronize(60'000);
            step_record record;
            try {
                comm.poll(record);
            } catch (const error& failure) {
                CHECK(failure.code() == status::mismatch);
                CHECK(failure.communicator() == "replicas");
                CHECK(failure.rank() == world.rank());
                CHECK(failure.culprits() == std::vector<int>{2});
                CHECK(std::string(failure.what()).find("rank 2 step 6") != std::string::npos);
                ++mismatches;
            }
        });
        CHECK(mismatches.load() == 3);
    }
}

TEST_CASE("a mismatching count surfaces as the communicator's error and hangs nobody")
{
    std::atomic<int> errors{0};
    CHECK_THROWS_AS(local::run(3,
                        [&](local::communicator& world) {
                            host::stream stream;
                            probed<local::communicator> comm(world);
                            std::vector<float> send(world.rank() == 1 ? 9 : 10, 1.0f), receive(send.size());
                            comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
                            try {
                                comm.end_step(0, {.loss = 1}, stream);
                                stream.synchronize(60'000);
                            } catch (const error& failure) {
                                ++errors;
                                CHECK(failure.culprits() == std::vector<int>{1});
                                throw;
                            }
                        }),
        error);
    CHECK(errors.load() == 3);
}

TEST_CASE("bad options and null buffers are refused by name")
{
    local::run(1, [](local::communicator& world) {
        const auto refused = [&](probe_options options, const char* word) {
            try {
                const probed<local::communicator> comm(world, options);
                FAIL_CHECK("accepted ", word);
            } catch (const error& failure) {
                CHECK(failure.code() == status::invalid_argument);
                CHECK(std::string(failure.what()).find(word) != std::string::npos);
            }
        };
        refused({.calls = 0}, "calls is 0, but must be at least 1");
        refused({.calls = 1 << 21}, "calls is 2097152, but must be at most 65536");
        refused({.steps_in_flight = 1}, "steps_in_flight");
        refused({.unread_steps = 0}, "unread_steps");
        refused({.false_alarms_per_step = 0}, "false_alarms_per_step");
        refused({.false_alarms_per_step = 2}, "false_alarms_per_step");
    });
    try {
        local::run(2, [](local::communicator& world) {
            host::stream stream;
            probed<local::communicator> comm(world);
            std::vector<float> receive(4);
            comm.all_reduce(view<const float>(nullptr, 4), view<float>(receive), reduction::sum, stream);
        });
        FAIL_CHECK("accepted a null buffer");
    } catch (const error& failure) {
        CHECK(failure.code() == status::invalid_argument);
    }
}

namespace {

/// Takes whatever it is given and moves nothing, as a communicator does that checks no pointers.
class unchecking : public collectives<unchecking, host::device> {
public:
    explicit unchecking(int& calls) : calls_(&calls) {}
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    template <element T>
    void make(const collective_call&, stream_ref)
    {
        ++*calls_;
    }

private:
    int* calls_;
};

} // namespace

TEST_CASE("misaligned buffers are refused by name, also where the wrapped communicator refuses none")
{
    std::vector<float> send(8, 1.0f), receive(8, 1.0f);
    const auto odd = [](std::vector<float>& memory) {
        return reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(memory.data()) + 2);
    };
    const auto refusal = [](auto&& body) {
        try {
            body();
        } catch (const error& failure) {
            CHECK(failure.code() == status::invalid_argument);
            return std::string(failure.what());
        }
        return std::string("accepted");
    };
    const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };

    int calls = 0;
    host::stream stream;
    probed<unchecking> comm(unchecking{calls}, {.results = false});
    const auto unchecked = [&](view<const float> from, view<float> to) {
        return refusal([&] { comm.all_reduce(from, to, reduction::sum, stream); });
    };
    CHECK(has(unchecked({odd(send), 4}, {receive.data(), 4}), "send is not aligned to 4 bytes"));
    CHECK(has(unchecked({send.data(), 4}, {odd(receive), 4}), "receive is not aligned to 4 bytes"));
    CHECK(has(unchecked({nullptr, 4}, {receive.data(), 4}), "send is null with count 4"));
    CHECK(unchecked({send.data(), 4}, {receive.data(), 4}) == "accepted");
    CHECK(unchecked({odd(send), 0}, {odd(receive), 0}) == "accepted");
    CHECK(calls == 2); // the wrapped communicator gets none of the wrong calls
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

TEST_CASE("buffers outlive the work on them when ending a step throws")
{
    for (int round = 0; round < 3; ++round) {
        std::atomic<int> called{0};
        std::atomic<bool> aborted{false};
        CHECK_THROWS_AS(local::run(2,
                            [&](local::communicator& world) {
                                std::atomic<bool> gate{false};
                                std::vector<float> send(1000, 1.0f), receive(1000);
                                host::stream stream;
                                probed<local::communicator> comm(world);
                                stream.enqueue([&] {
                                    while (!gate.load()) std::this_thread::yield();
                                });
                                comm.all_reduce(send, view(receive), reduction::sum, stream);
                                ++called;
                                if (world.rank() == 1) {
                                    // Not before the other rank has called, or its call would throw.
                                    while (called.load() < 2) std::this_thread::yield();
                                    world.fail("gone");
                                    aborted = true;
                                }
                                while (!aborted.load()) std::this_thread::yield();
                                try {
                                    comm.end_step(0, {.loss = 1}, stream);
                                } catch (...) {
                                    gate = true;
                                    throw;
                                }
                            }),
            error);
    }
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
    std::atomic<int> without{0};
    local::run(4, [&](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world);
        auto send = random_gradient<float>(world.rank(), {500}, 3);
        std::vector<float> receive(500);
        if (world.rank() == 1) comm.all_reduce(send[0], view(send[0]), reduction::sum, stream);
        else comm.all_reduce(send[0], view(receive), reduction::sum, stream);
        comm.end_step(0, {.loss = 1}, stream);
        stream.synchronize(60'000);
        step_record record;
        REQUIRE(comm.poll(record));
        without += record.cosine.leave_one_out.empty() ? 1 : 0;
    });
    CHECK(without.load() == 4);
}

TEST_CASE("shards of different norms are no suspects")
{
    local::run(8, [](local::communicator& world) {
        host::stream stream;
        probed<local::communicator> comm(world);
        step_record record;
        for (std::uint64_t step = 0; step < 5; ++step) {
            auto shard = random_gradient<float>(world.rank(), {64}, step + 1);
            if (world.rank() == 5) {
                for (float& x : shard[0]) x *= 1000;
            }
            std::vector<float> all(512);
            comm.all_gather(shard[0], view(all), stream);
            comm.end_step(step, {.loss = 1 + 0.01 * world.rank()}, stream);
            stream.synchronize(60'000);
            REQUIRE(comm.poll(record));
            CHECK(record.findings.empty());
        }
    });
}

static_assert(communicator<probed<local::communicator>>);

TEST_CASE("a shard that did not change is stale, unless most of the shards did not")
{
    for (const int unchanged : {0, 1, 2, 3, 4}) {
        local::run(4, {.timeout_ms = 20'000}, [&](local::communicator& world) {
            host::stream stream;
            probed comm(world);
            std::mt19937_64 random(static_cast<std::uint64_t>(world.rank()));
            std::normal_distribution<float> normal;
            std::vector<float> shard(64), whole(256);
            for (std::uint64_t step = 0; step < 2; ++step) {
                if (step == 0 || world.rank() >= unchanged) {
                    for (float& x : shard) x = normal(random);
                }
                comm.all_gather(shard, view(whole), stream);
                comm.end_step(step, stream);
                stream.synchronize(20'000);
            }
            step_record record;
            REQUIRE(comm.wait(record));
            CHECK(record.findings.empty());
            REQUIRE(comm.wait(record));
            const std::size_t named = unchanged <= 2 ? static_cast<std::size_t>(unchanged) : 0;
            REQUIRE(record.findings.size() == (named != 0 ? 1 : 0));
            if (named == 0) return;
            CHECK(record.findings[0].what == finding_kind::stale);
            CHECK(record.findings[0].ranks.size() == named);
            CHECK(record.findings[0].ranks.back() == unchanged - 1);
        });
    }
}

TEST_CASE("a loss may be a sum, and carry a scale")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        host::stream stream;
        probed comm(world);
        const double tokens = world.rank() == 0 ? 10 : 30;
        const double sum = world.rank() == 0 ? 20 : 90;
        comm.end_step(0, {.loss = sum, .weight = tokens, .loss_is_sum = true}, stream);
        comm.end_step(1, {.loss = 1024 * sum / tokens, .weight = tokens, .loss_scale = 1024}, stream);
        const double scaled = 8 * sum;
        comm.end_step(2, {.loss = &scaled, .weight = &tokens, .loss_is_sum = true, .loss_scale = 8}, stream);
        comm.end_step(3, {.weight = tokens, .loss_is_sum = true}, stream);
        for (int step = 0; step < 4; ++step) {
            step_record record;
            REQUIRE(comm.wait(record));
            if (step == 3) {
                CHECK(is_nan(record.loss.mean));
                continue;
            }
            CHECK(record.losses == std::vector<double>{2, 3});
            CHECK(record.loss_weighted.mean == doctest::Approx(110.0 / 40));
        }
    });
}

TEST_CASE("calls that nothing reads are counted and told, with the reason")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        host::stream stream;
        probed comm(world, {.every = 2});
        alarms watch(2);
        std::vector<float> gradient(100, static_cast<float>(1 + world.rank()));
        std::vector<int> tokens(3, 1);
        for (std::uint64_t step = 0; step < 2; ++step) {
            comm.all_reduce(tokens, view(tokens), reduction::max, stream);
            comm.all_reduce(gradient, view(gradient), reduction::sum, stream);
            comm.end_step(step, stream);
            step_record record;
            REQUIRE(comm.wait(record));
            const std::uint64_t unread = step == 0 ? 1 : 2;
            CHECK(record.unread_calls == unread);
            (void)watch.judge(record);
            CHECK(watch.unseen_calls() == unread);
            const std::string told = "not looked at: " + std::to_string(unread) + " of 2 calls, because";
            CHECK(report::step_table(record).find(told) != std::string::npos);
            CHECK(report::json_line("run", record).find("\"unread_calls\":" + std::to_string(unread))
                != std::string::npos);
        }
    });
}
