// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What stands in a record: that of its step alone, whatever the object held before; and the same in both modes.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include <collprobe/audit.hpp>
#include <collprobe/collprobe.hpp>
#include <collprobe/fault.hpp>
#include <collprobe/quant.hpp>

#include "support/checks.hpp"

using namespace collprobe;
using testing::check_error;
using testing::error_of;

namespace {

constexpr unsigned char mark = 0x2a;

/// Calls `use` for each member, of any depth. The numbers of members stand here, so a new member must be added here.
template <class T, class Use>
void each_member(T& of, const Use& use)
{
    if constexpr (std::is_same_v<T, step_record>) {
        auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = of;
        each_member(x, use);
        (each_member(a, use), each_member(b, use), each_member(c, use), each_member(d, use), each_member(e, use));
        (each_member(f, use), each_member(g, use), each_member(h, use), each_member(i, use), each_member(j, use));
        (each_member(k, use), each_member(l, use), each_member(m, use), each_member(n, use), each_member(o, use));
        (each_member(p, use), each_member(q, use), each_member(r, use), each_member(s, use), each_member(t, use));
        (each_member(u, use), each_member(v, use), each_member(w, use));
    } else if constexpr (std::is_same_v<T, call_record>) {
        auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, zz] = of;
        (each_member(z, use), each_member(zz, use));
        (each_member(a, use), each_member(b, use), each_member(c, use), each_member(d, use), each_member(e, use));
        (each_member(f, use), each_member(g, use), each_member(h, use), each_member(i, use), each_member(j, use));
        (each_member(k, use), each_member(l, use), each_member(m, use), each_member(n, use), each_member(o, use));
        (each_member(p, use), each_member(q, use), each_member(r, use), each_member(s, use), each_member(t, use));
        (each_member(u, use), each_member(v, use), each_member(w, use), each_member(x, use), each_member(y, use));
    } else if constexpr (std::is_same_v<T, call_audit>) {
        auto& [a, b, c, d, e, f, g, h, i] = of;
        (each_member(a, use), each_member(b, use), each_member(c, use), each_member(d, use), each_member(e, use));
        (each_member(f, use), each_member(g, use), each_member(h, use), each_member(i, use));
    } else if constexpr (std::is_same_v<T, call_weights>) {
        auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = of;
        (each_member(a, use), each_member(b, use), each_member(c, use), each_member(d, use), each_member(e, use));
        (each_member(f, use), each_member(g, use), each_member(h, use), each_member(i, use), each_member(j, use));
        (each_member(k, use), each_member(l, use), each_member(m, use), each_member(n, use));
    } else if constexpr (std::is_same_v<T, expectation_record>) {
        auto& [a, b, c, d, e, f] = of;
        (each_member(a, use), each_member(b, use), each_member(c, use), each_member(d, use), each_member(e, use));
        each_member(f, use);
    } else if constexpr (std::is_same_v<T, direction>) {
        auto& [a, b, c, d, e] = of;
        (each_member(a, use), each_member(b, use), each_member(c, use), each_member(d, use), each_member(e, use));
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

/// Ranks whose gradients have half of their mean in common.
template <class Comm, class Seen>
void run_steps(Comm& probe, int rank, std::uint64_t steps, double spike, const Seen& seen)
{
    host::stream stream;
    std::mt19937_64 common(1), own(100 + static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> normal;
    std::vector<float> mean(4096), send(4096), receive(4096);
    for (float& x : mean) x = normal(common);
    step_record record;
    for (std::uint64_t step = 0; step < steps; ++step) {
        const float scale = step == 50 ? static_cast<float>(spike) : 1;
        for (std::size_t i = 0; i < send.size(); ++i) send[i] = scale * (0.5f * mean[i] + normal(own));
        probe.all_reduce(send, view(receive), reduction::average, stream);
        probe.end_step(step, stream);
        while (probe.wait(record)) seen(record);
    }
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

TEST_CASE("a call without codes has no verdict on codes, though the same record had one before")
{
    local::run(4, [](local::communicator& world) {
        host::stream stream;
        const quantisation how{.format = code_format::int8};
        probed probe{quantised(world, how, {.least_bytes = 4096}), {.unread_steps = 1}, quantisation_probe()};
        std::vector<float> send(1 << 14), receive(1 << 14);
        for (std::size_t i = 0; i < send.size(); ++i)
            send[i] = static_cast<float>((i * 7919 + static_cast<std::size_t>(world.rank())) % 101) - 50;
        step_record record;
        for (std::uint64_t step = 0; step < 4; ++step) {
            if (step % 2 == 0) probe.all_reduce(send, view(receive), reduction::average, stream);
            else probe.broadcast(send, view(receive), 0, stream);
            probe.end_step(step, stream);
            REQUIRE(probe.wait(record));
            CHECK(record.calls[0].quantisation.seen == (step % 2 == 0));
        }
    });
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

TEST_CASE("neither a damaged sum nor a healthy spike spoils the predicted cosine")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        for (const bool damaged : {true, false}) {
            CAPTURE(name(mode));
            CAPTURE(damaged);
            local::run(4, [&](local::communicator& world) {
                std::vector<fault> faults;
                if (damaged)
                    faults.push_back({.kind = fault_kind::scale, .phase = fault_phase::during, .rank = 2, .call = 50,
                        .magnitude = 1e6});
                probed probe{faulty{world, faults}, {.mode = mode}, audit()};
                double before = 0;
                run_steps(probe, world.rank(), 120, damaged ? 1 : 100, [&](const step_record& record) {
                    if (record.step == 49) before = record.cosine.predicted_cosine;
                    if (record.step < 49) return;
                    CHECK(record.cosine.predicted_cosine == doctest::Approx(before).epsilon(0.1));
                    CHECK(record.cosine.predicted_cosine > 0.15);
                });
            });
        }
    }
}

TEST_CASE("the same data in each step are no fault, a rank that alone repeats its gradient is one")
{
    for (const bool all : {true, false}) {
        local::run(4, [&](local::communicator& world) {
            host::stream stream;
            probed probe{world};
            std::vector<float> send(4096), receive(4096);
            step_record record;
            for (std::uint64_t step = 0; step < 5; ++step) {
                const std::uint64_t data = all || world.rank() == 2 ? 0 : step;
                for (std::size_t i = 0; i < send.size(); ++i)
                    send[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(world.rank()) * 11 + data * 3) % 1009);
                probe.all_reduce(send, view(receive), reduction::average, stream);
                probe.end_step(step, stream);
                REQUIRE(probe.wait(record));
                CHECK(record.calls[0].repeating_ranks == (step == 0 ? 0 : all ? 4 : 1));
                CHECK(record.findings.size() == (step == 0 || all ? 0 : 1));
                for (const finding& each : record.findings) {
                    CHECK(each.what == finding_kind::stale);
                    CHECK(each.rank() == 2);
                }
            }
        });
    }
}

TEST_CASE("a rank without a weight above 0 has no part in the weighted loss, in either mode")
{
    for (const double weight : {0.0, std::numeric_limits<double>::infinity(), -1.0, std::nan("")}) {
        for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
            CAPTURE(weight);
            CAPTURE(name(mode));
            local::run(4, [&](local::communicator& world) {
                host::stream stream;
                probed probe{world, {.mode = mode}};
                const double loss = 1.0 + world.rank();
                const double told = world.rank() == 3 ? weight : 10;
                probe.end_step(0, step_observation{.loss = &loss, .weight = &told}, stream);
                step_record record;
                REQUIRE(probe.wait(record));
                CHECK(record.loss_weighted.mean == doctest::Approx(2));
                CHECK(record.loss_weighted.std == doctest::Approx(std::sqrt(2.0 / 3)));
                CHECK(record.loss.mean == doctest::Approx(2.5));
            });
        }
    }
}

TEST_CASE("each number that a rank tells is a value or an address, whatever the others are")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        local::run(2, [&](local::communicator& world) {
            host::stream stream;
            probed probe{world, {.mode = mode}};
            step_record record;
            const float single = 3.0f;
            const double twice = 6.0;
            const auto mean_of = [&](const step_observation& seen) {
                probe.end_step(0, seen, stream);
                REQUIRE(probe.wait(record));
                return record.loss_weighted.mean;
            };
            CHECK(mean_of({.loss = 0}) == 0);
            CHECK(mean_of({.loss = 3}) == 3);
            CHECK(mean_of({.loss = &single, .weight = 1 + world.rank()}) == 3);
            CHECK(mean_of({.loss = &twice, .weight = 2u, .loss_is_sum = true}) == 3);
            CHECK(mean_of({.loss = 6.0f, .weight = &single, .loss_is_sum = true, .loss_scale = 2}) == 1);
            CHECK(is_nan(mean_of({.weight = &single})));
            check_error(error_of([&] { probe.end_step(1, {.weight = -1}, stream); }), status::invalid_argument,
                {"the weight", "negative"});
            const float* const none = nullptr;
            check_error(error_of([&] { probe.end_step(1, {.loss = none}, stream); }), status::invalid_argument,
                {"address", "null"});
        });
    }
}

namespace {

/// Refuses the calls of a name.
template <communicator Comm>
class refusing : public adaptor<refusing<Comm>, Comm> {
public:
    using adaptor<refusing, Comm>::adaptor;
    template <element T>
    outcome_of<Comm, T> make(const collective_call& call, stream_ref_of<Comm> on)
    {
        const detail::caller who(*this, call.what, call.where);
        if (std::strcmp(call.where.name, "refused") == 0) who.refuse("by its name");
        return this->comm_.template make<T>(call, on);
    }
};

} // namespace

TEST_CASE("a call that is refused on one rank changes nothing in the record")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        local::run(3, [&](local::communicator& world) {
            host::stream stream;
            probed probe{refusing<local::communicator>(world), {.mode = mode, .calls = 2, .largest_step = 2}};
            std::vector<float> values(8, 1.0f + static_cast<float>(world.rank()));
            std::vector<int> counts(8);
            const auto refused = [&](auto& of) {
                if (world.rank() != 1) return;
                const view all(of);
                check_error(error_of([&] { probe.all_reduce(all, all.part(0, 7), reduction::sum, stream); }),
                    status::invalid_argument, {"7"});
            };
            step_record record;
            for (std::uint64_t step = 0; step < 2; ++step) {
                refused(counts);
                for (int call = 0; call < 2; ++call) probe.all_reduce(view(values), reduction::average, stream);
                refused(values); // where the next right call would be one too many
                probe.all_reduce(view(counts), reduction::sum, stream);
                CHECK(error_of([&] { probe.all_reduce(view(values), reduction::average, stream); }).has_value());
                refused(values);
                if (world.rank() == 1) { // by what is wrapped, of a call that has no room
                    check_error(error_of([&] {
                        probe.all_reduce(view(values), reduction::average, stream, call_site::named("refused"));
                    }), status::invalid_argument, {"by its name"});
                }
                probe.all_reduce(view(values), reduction::average, stream);
                probe.end_step(step, stream);
                REQUIRE(probe.wait(record));
                CHECK(record.unread_calls == 1);
                CHECK(record.unprobed_calls == 1);
                CHECK(record.first_call == 4 * step);
            }
        });
    }
}

TEST_CASE("a trainer's norm that is not finite is none of finite results")
{
    local::run(2, [&](local::communicator& world) {
        host::stream stream;
        probed probe{world};
        std::vector<float> values(8, 1.0f + static_cast<float>(world.rank()));
        probe.all_reduce(view(values), reduction::average, stream);
        probe.end_step(0, {.gradient_norm = world.rank() == 1 ? HUGE_VAL : std::sqrt(8 * 2.25)}, stream);
        step_record record;
        REQUIRE(probe.wait(record));
        REQUIRE(record.findings.size() == 1);
        CHECK(record.findings[0].what == finding_kind::norm_differs);
        CHECK(record.findings[0].rank() == 1);
    });
}

TEST_CASE("the evidence of a run states the chance that a healthy run has it")
{
    local::run(4, [](local::communicator& world) {
        host::stream stream;
        probed probe{world};
        step_record record;
        int named = 0;
        for (std::uint64_t step = 0; step < 60; ++step) {
            const auto noise = static_cast<double>((step * 7919 + static_cast<std::uint64_t>(world.rank()) * 104'729) % 101);
            probe.end_step(step, {.loss = 1 + 1e-4 * noise + (world.rank() == 2 ? 0.02 : 0)}, stream);
            REQUIRE(probe.wait(record));
            for (const finding& each : record.findings) {
                if (each.what != finding_kind::unlike) continue;
                ++named;
                CHECK(each.rank() == 2);
                CHECK(each.false_alarms_per_step > 0);
                CHECK(each.false_alarms_per_step <= 0.01);
            }
        }
        CHECK(named == 1);
    });
}
