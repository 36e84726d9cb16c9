// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What stands in a record: that of its step alone, whatever the object held before; and the same in both modes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/checks.hpp"
#include "support/steps.hpp"

namespace collprobe::testing::step_record_test {
namespace {

constexpr unsigned char mark = 0x2a;

/// Calls `use` for each member, of any depth. The numbers of members stand here, so a new member must be added here.
template <class T, class Use>
void each_member(T& of, const Use& use)
{
    const auto all = [&](auto&... members) { (each_member(members, use), ...); };
    if constexpr (std::is_same_v<T, step_record>) {
        auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb] = of;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb);
    } else if constexpr (std::is_same_v<T, call_record>) {
        auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc] = of;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, aa, bb, cc);
    } else if constexpr (std::is_same_v<T, call_audit>) {
        auto& [a, b, c, d, e, f, g, h, i] = of;
        all(a, b, c, d, e, f, g, h, i);
    } else if constexpr (std::is_same_v<T, call_weights>) {
        auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = of;
        all(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
    } else if constexpr (std::is_same_v<T, expectation_record>) {
        auto& [a, b, c, d, e, f] = of;
        all(a, b, c, d, e, f);
    } else if constexpr (std::is_same_v<T, direction>) {
        auto& [a, b, c, d, e, f] = of;
        all(a, b, c, d, e, f);
    } else {
        use(of);
    }
}

struct write_marks {
    template <class T>
    void operator()(T& of) const
    {
        static_assert(std::is_trivially_copyable_v<T>);
        std::memset(static_cast<void*>(&of), mark, sizeof of);
    }
    template <class T>
    void operator()(std::vector<T>& of) const
    {
        of.resize(3);
        if constexpr (std::is_trivially_copyable_v<T>) std::memset(static_cast<void*>(of.data()), mark, 3 * sizeof(T));
        else if constexpr (!std::is_same_v<T, call_weights> && !std::is_same_v<T, finding>) // which have such a list themselves
            for (T& each : of) each_member(each, *this);
    }
};

struct count_marks {
    std::size_t& members;

    template <class T>
    void operator()(T& of) const
    {
        unsigned char marked[sizeof of];
        std::memset(marked, mark, sizeof marked);
        members += std::memcmp(&of, marked, sizeof marked) == 0 ? 1 : 0;
    }
    template <class T>
    void operator()(std::vector<T>& of) const
    {
        if constexpr (!std::is_same_v<T, call_record>) members += of.empty() ? 0 : 1;
        else for (T& each : of) each_member(each, *this);
    }
};

std::size_t marks_in(step_record& record)
{
    std::size_t members = 0;
    each_member(record, count_marks{members});
    return members;
}

} // namespace

TEST_CASE("a record that begins has nothing of what it held, but the memory of its lists")
{
    step_record record;
    each_member(record, write_marks());
    const std::size_t marked = marks_in(record);
    CHECK(marked > 60);
    const double* const memory = record.losses.data();
    record.begin(7, 2, report_mode::summary, 2);
    CHECK(marks_in(record) == 0);
    CHECK(record.step == 7);
    CHECK(record.ranks == 2);
    CHECK(record.mode == report_mode::summary);
    CHECK(record.calls.size() == 2);
    CHECK(record.calls[1].results_agree);
    record.losses.resize(3);
    CHECK(record.losses.data() == memory);
}

TEST_CASE("one record for two probes shows of each its own")
{
    local::run(4, [](local::communicator& world) {
        host::stream stream;
        probed gathered{world, {.unread_steps = 1}};
        probed summed{world, {.mode = report_mode::summary, .unread_steps = 1, .false_alarms_per_run = 0}};
        step_record record;
        for (std::uint64_t step = 0; step < 6; ++step) {
            gathered.end_step(step, {.loss = 1.0 + world.rank() * 0.001 * static_cast<double>(step)}, stream);
            summed.end_step(step, {.loss = 1.0 + world.rank()}, stream);
            REQUIRE(gathered.wait(record));
            CHECK(record.evidence_by_rank.size() == 4);
            REQUIRE(summed.wait(record));
            CHECK(record.evidence_by_rank.empty());
            CHECK(record.losses == std::vector<double>{1, 2, 3, 4});
        }
    });
}

TEST_CASE("the same data in each step are no fault, a rank that alone repeats its gradient is one")
{
    for (const bool all : {true, false}) {
        for (const step_record& record : testing::records_of({4, 5}, [&](auto& comm, auto& stream, int step, auto&) {
                 std::vector<float> send(4096), receive(4096);
                 const int data = all || comm.rank() == 2 ? 0 : step;
                 for (int i = 0; i < 4096; ++i)
                     send[static_cast<std::size_t>(i)] = static_cast<float>((i * 37 + comm.rank() * 11 + data * 3) % 1009);
                 comm.all_reduce(send, view(receive), reduction::average, stream);
                 stream.synchronize();
             })) {
            CHECK(record.calls[0].repeating_ranks == (record.step == 0 ? 0 : all ? 4 : 1));
            CHECK(testing::told(record) == (record.step == 0 || all ? "" : "stale 2 in 0"));
        }
    }
}

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
