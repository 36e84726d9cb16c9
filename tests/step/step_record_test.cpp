// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What stands in a record: that of its step alone, and the same in both modes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/checks.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::step_record_test {
TEST_CASE("a rank without a weight above 0 has no part in the weighted loss, in either mode")
{
    static thread_local double loss, told;
    for (const double weight : {0.0, std::numeric_limits<double>::infinity(), -1.0, std::nan("")}) {
        for (const report_mode mode : testing::both_modes) {
            CAPTURE(weight);
            const step_record record = testing::records_of({4, 1, {.mode = mode}}, [&](auto& comm, auto&, int, auto& seen) {
                loss = 1.0 + comm.rank();
                told = comm.rank() == 3 ? weight : 10;
                seen = {.loss = &loss, .weight = &told};
            })[0];
            CHECK(record.loss_weighted.mean == doctest::Approx(2));
            CHECK(record.loss_weighted.std == doctest::Approx(std::sqrt(2.0 / 3)));
            CHECK(record.loss.mean == doctest::Approx(2.5));
        }
    }
}

TEST_CASE("numbers that are none are refused by the rank that tells them")
{
    local::run(2, [](local::communicator& world) {
        host::stream stream;
        probed probe{world};
        const float* const none = nullptr;
        check_error(error_of([&] { probe.end_step(1, {.loss = none}, stream); }), status::invalid_argument, {"address", "null"});
        for (const double weight : {-1.0, detail::not_a_number(), detail::infinity()}) {
            const auto refused = error_of([&] { probe.end_step(0, {.loss = 1, .weight = weight}, stream); });
            check_error(refused, status::invalid_argument, {"the weight"});
            CHECK(refused->rank() == world.rank());
        }
    });
}

TEST_CASE("by default a step of 313 ranks is a summary, with totals up to 16384 ranks and a floor of 50 us")
{
    const auto mode = [](int ranks) { return detail::checked({}, {.size = ranks}, true, true, true).mode; };
    CHECK(mode(312) == report_mode::gather);
    CHECK(mode(313) == report_mode::summary);
    CHECK(detail::most_total_ranks == 16'384);
    CHECK(detail::lateness_floor_of({}) == 50'000);
}

TEST_CASE("ranks whose numbers have heavy tails are unlike the others in one of a hundred runs")
{
    std::size_t found = 0;
    for (unsigned run = 0; run < 20; ++run)
        for (const step_record& each : records_of({5, 100, {.times = false}}, [run](auto& comm, auto& stream, int step, auto& seen) {
                 static thread_local std::vector<float> values(31);
                 std::mt19937_64 random(1000 * (100 * run + static_cast<unsigned>(step)) + static_cast<unsigned>(comm.rank()));
                 std::student_t_distribution<double> tail(3);
                 for (float& value : values) value = static_cast<float>(tail(random));
                 seen.loss = 5 + tail(random);
                 comm.all_reduce(view(values), reduction::average, stream);
             })) found += findings_of(each, finding_kind::unlike).size();
    CHECK(found <= 2);
}

TEST_CASE("a call that is missing after two steps is a note, and 256 steps and 8 kinds of them are remembered")
{
    using steps_of = std::vector<std::vector<std::string>>; // the names of each step's calls
    const auto last = [](const steps_of& steps, std::size_t findings, std::size_t notes) {
        const step_record of = records_of({1, static_cast<int>(steps.size())}, [&](auto& comm, auto& stream, int step, auto&) {
            static float value = 1;
            for (const std::string& name : steps[static_cast<std::size_t>(step)])
                comm.all_reduce(view(&value, 1), reduction::average, stream, call_site::named(name.c_str()));
        }).back();
        return findings_of(of, finding_kind::call_missing).size() == findings && of.missing_calls.size() == notes;
    };
    const std::vector<std::string> part{"a", "b", "c", "d"}, whole{"a", "b", "c", "d", "e"};
    CHECK(last({whole, whole, part}, 0, 1));
    CHECK(last({whole, whole, whole, part}, 1, 0));
    steps_of others{part}, kinds(3, whole);
    for (int s = 0; s < 256; ++s) others.push_back({"a", "b", "c", "d", "e", std::to_string(s)});
    for (const char* const kind : {"1", "2", "3", "4", "5", "6", "7", "8"}) kinds.insert(kinds.end(), 4, {kind});
    for (const bool are_fewer : {false, true}) {
        others.push_back(part);
        kinds.push_back(part);
        CHECK(last(others, 0, 0) == are_fewer);
        CHECK(last(kinds, 1, 0) == are_fewer);
        others.erase(others.end() - 2, others.end());
        kinds.erase(kinds.end() - 5, kinds.end());
    }
}

TEST_CASE("a trainer's norm that is not finite is none of finite results")
{
    const step_record record = testing::records_of({2}, [](auto& comm, auto& stream, int, auto& seen) {
        std::vector<float> values(8, 1.0f + static_cast<float>(comm.rank()));
        comm.all_reduce(view(values), reduction::average, stream);
        stream.synchronize();
        seen.gradient_norm = comm.rank() == 1 ? HUGE_VAL : std::sqrt(8 * 2.25);
    })[0];
    CHECK(testing::told(record) == "norm_differs 1");
}

} // namespace collprobe::testing::step_record_test
