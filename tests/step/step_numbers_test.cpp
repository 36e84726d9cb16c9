// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
// What a step says of the numbers of its ranks: loss, norm, largest magnitude.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <collprobe/collprobe.hpp>

namespace {

using namespace collprobe;

/// What a rank does in a step.
struct rank_step {
    double loss = 2;
    std::vector<float> gradient;
};

/// The gradient of healthy training: each rank's own, of a width that all share and 2 % of its own.
rank_step healthy(int rank, int step, std::size_t count = 500)
{
    std::mt19937_64 shared(1000 + std::uint64_t(step));
    std::mt19937_64 own(std::uint64_t(1 + rank) * 1'000'003 + std::uint64_t(step));
    std::normal_distribution<double> normal;
    const double level = std::exp(0.1 * normal(shared));
    rank_step made;
    made.loss = level * 2 * std::exp(0.02 * normal(own));
    const double width = level * std::exp(0.02 * normal(own));
    for (std::size_t i = 0; i < count; ++i) made.gradient.push_back(static_cast<float>(width * normal(own)));
    return made;
}

/// The records of `steps` steps.
template <class T = float>
std::vector<step_record> run(int ranks, int steps, const std::function<rank_step(int, int)>& made, int first = 0,
    std::vector<std::uint64_t>* state = nullptr)
{
    std::vector<step_record> records;
    local::run(ranks, [&](local::communicator& world) {
        host::stream stream;
        probed comm{world, {.times = false}};
        if (state != nullptr && !state->empty()) comm.restore_evidence({state->data(), state->size()});
        std::vector<T> gradient;
        std::vector<T> result;
        step_record record;
        for (int step = first; step < first + steps; ++step) {
            const rank_step now = made(world.rank(), step);
            gradient.clear();
            for (const float x : now.gradient) gradient.push_back(T(x));
            result.resize(gradient.size());
            comm.all_reduce(view<const T>(gradient), view(result), reduction::average, stream);
            comm.end_step(std::uint64_t(step), {.loss = now.loss}, stream);
            comm.wait(record);
            if (world.rank() == 0) records.push_back(record);
        }
        world.barrier(stream);
        stream.synchronize();
        if (world.rank() == 0 && state != nullptr) *state = comm.evidence_state();
    });
    return records;
}

int count(const step_record& record, finding_kind what, int rank)
{
    int found = 0;
    for (const finding& each : record.findings)
        found += each.what == what && (rank < 0 ? !each.is_named() : each.names(rank)) ? 1 : 0;
    return found;
}

TEST_CASE("an exponent bit that doubles the energy of a bfloat16 gradient is named in its step by its magnitude")
{
    int named = 0;
    for (int trial = 0; trial < 6; ++trial) {
        const int who = trial % 4;
        const auto records = run<bfloat16>(4, 61, [&](int rank, int step) {
            rank_step made = healthy(rank, step, 65536 / 16);
            if (rank == who && step == 60) made.gradient[std::size_t(100 + trial)] = made.gradient[50] * 0 + 60;
            return made;
        });
        for (const step_record& record : records) {
            if (record.step == 60) {
                named += count(record, finding_kind::largest_magnitude, who);
                for (const finding& each : record.findings) CHECK(each.rank() == who);
            } else {
                CHECK(record.findings.empty());
            }
        }
    }
    CHECK(named == 6);
}

TEST_CASE("a loss that jumps by two fifths is named though ranks differ by a tenth in habit")
{
    int wrong = 0;
    int named = 0;
    for (int trial = 0; trial < 10; ++trial) {
        const auto records = run(8, 121, [&](int rank, int step) {
            rank_step made = healthy(rank, 1000 * trial + step, 100);
            made.loss *= 1 + 0.1 * std::sin(double(rank));
            if (rank == 5 && step == 120) made.loss *= 1.4;
            return made;
        });
        for (const step_record& record : records)
            if (record.step != 120) wrong += record.findings.empty() ? 0 : 1;
        for (const finding& each : records.back().findings) {
            if (each.what != finding_kind::loss) continue;
            CHECK(each.rank() == 5);
            ++named;
            CHECK(each.number.value == doctest::Approx(records.back().losses[5]).epsilon(1e-6));
            CHECK(each.number.expected == doctest::Approx(each.number.value / 1.4).epsilon(0.1));
            CHECK(each.number.usual_difference < 0.5 * (each.number.value - each.number.expected));
            CHECK(each.number.steps == 104); // but for the 16 of the habit
        }
    }
    CHECK(named >= 9);
    CHECK(wrong <= 1);
}

TEST_CASE("losses near zero, of one squared number a rank, are healthy however small, and one far above all is named")
{
    int wrong = 0;
    int named = 0;
    for (int trial = 0; trial < 6; ++trial) {
        const auto records = run(8, 401, [&](int rank, int step) {
            std::mt19937_64 own(std::uint64_t(1 + rank) * 1'000'003 + std::uint64_t(1000 * trial + step));
            const double error = std::normal_distribution<double>()(own);
            return rank_step{rank == 5 && step == 400 ? 1e5 : error * error, {}};
        });
        for (const step_record& record : records)
            if (record.step != 400) wrong += record.findings.empty() ? 0 : 1;
        named += count(records[400], finding_kind::loss, 5);
    }
    CHECK(wrong == 0);
    CHECK(named == 6);
}

TEST_CASE("losses of any sign are compared as they are, from the first negative one on")
{
    const auto records = run(8, 200, [](int rank, int step) {
        rank_step made = healthy(rank, step, 100);
        if (step >= 60) made.loss -= 2.2; // most are negative, some are not
        if (rank == 3 && step == 190) made.loss += 2;
        return made;
    });
    int wrong = 0;
    for (const step_record& record : records)
        if (record.step != 190) wrong += record.findings.empty() ? 0 : 1;
    CHECK(wrong <= 1);
    REQUIRE(count(records[190], finding_kind::loss, 3) == 1);
    CHECK(records[190].findings[0].number.value == records[190].losses[3]);
}

TEST_CASE("of three ranks two are copied, and the third is no outlier for it")
{
    const auto records = run(3, 100, [](int rank, int step) { return healthy(step >= 50 && rank == 1 ? 0 : rank, step); });
    for (const step_record& record : records) {
        CAPTURE(record.step);
        for (const int rank : {0, 1}) CHECK(count(record, finding_kind::duplicate, rank) == (record.step >= 50 ? 1 : 0));
        CHECK(record.findings.size() == (record.step >= 50 ? 1 : 0));
    }
}

TEST_CASE("of eight ranks with copies the copies count once, and a real outlier is named")
{
    const auto records = run(8, 100, [](int rank, int step) {
        rank_step made = healthy(rank < 4 ? 0 : rank, step);
        if (rank == 6 && step == 90) made.loss *= 2;
        return made;
    });
    for (const step_record& record : records) {
        for (const finding& each : record.findings) {
            if (each.what == finding_kind::duplicate) continue;
            CHECK(record.step == 90);
            CHECK(each.what == finding_kind::loss);
            CHECK(each.rank() == 6);
        }
    }
    CHECK(count(records[90], finding_kind::loss, 6) == 1);
}

TEST_CASE("of a rank whose data another one copies neither is unlike the others")
{
    const auto records = run(6, 400, [](int rank, int step) { return healthy(step >= 100 && rank == 4 ? 1 : rank, step); });
    for (const step_record& record : records) {
        CAPTURE(record.step);
        CHECK(count(record, finding_kind::duplicate, 1) == (record.step >= 100 ? 1 : 0));
        CHECK(record.findings.size() == (record.step >= 100 ? 1 : 0)); // of both ranks
    }
}

TEST_CASE("NaN that has reached the weights is told once for all ranks, and one rank's NaN as before")
{
    const auto records = run(4, 30, [](int rank, int step) {
        rank_step made = healthy(rank, step);
        const float nan = std::numeric_limits<float>::quiet_NaN();
        if ((step == 5 && rank == 2) || (step >= 10 && step < 20)) {
            for (float& x : made.gradient) x = nan;
            made.loss = nan;
        }
        return made;
    });
    for (const step_record& record : records) {
        CAPTURE(record.step);
        if (record.step == 5) {
            CHECK(count(record, finding_kind::non_finite, 2) == 2); // loss and gradient
            CHECK(record.findings.size() == 2);
        } else if (record.step == 10) {
            CHECK(record.findings.size() == 2); // loss and gradient, of all ranks
        } else if (record.step > 10 && record.step < 20) {
            REQUIRE(count(record, finding_kind::non_finite, -1) == 1);
            CHECK(record.findings[0].statistic == 4);
            CHECK(record.findings[0].number.is_new_level);
            CHECK(record.findings[0].number.since == 10);
            CHECK(count(record, finding_kind::non_finite, 0) == 0);
            CHECK(report::describe(record.findings[0])
                == "whole step: most ranks sent NaN or infinity (non_finite): 4 ranks; most have done so since step 10, so the weights "
                   "have it");
        } else {
            CHECK(count(record, finding_kind::non_finite, -1) == 0);
        }
    }
}

TEST_CASE("a lasting factor is named in eight steps, then told as a new level, and is then the evidence's")
{
    const auto records = run(8, 200, [](int rank, int step) {
        rank_step made = healthy(rank, step);
        if (rank == 4 && step >= 100) made.loss *= 1.5;
        return made;
    });
    int unlike = 0;
    for (const step_record& record : records) {
        CAPTURE(record.step);
        const bool is_told = record.step >= 100 && record.step < 108;
        CHECK(count(record, finding_kind::loss, 4) == (is_told ? 1 : 0));
        unlike += count(record, finding_kind::unlike, 4);
        for (const finding& each : record.findings) {
            if (each.what != finding_kind::loss) continue;
            CHECK(each.number.is_new_level == (record.step == 107));
            if (each.number.is_new_level) CHECK(each.number.since == 100);
        }
    }
    CHECK(unlike == 1);
}

TEST_CASE("a restored state knows what is usual at once")
{
    std::vector<std::uint64_t> state;
    const auto faulty = [](int rank, int step) {
        rank_step made = healthy(rank, step);
        if (rank == 1 && step == 101) made.loss *= 2;
        return made;
    };
    run(4, 100, faulty, 0, &state);
    CHECK(count(run(4, 5, faulty, 100, &state)[1], finding_kind::loss, 1) == 1);
    CHECK(count(run(4, 5, faulty, 100)[1], finding_kind::loss, 1) == 0); // knows nothing yet
}

} // namespace
