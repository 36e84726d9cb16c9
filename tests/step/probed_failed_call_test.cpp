// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// A probed call that throws leaves nothing in its step, and late halves of calls find their place.
#include <doctest/doctest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/audit/audit.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "support/checks.hpp"
#include "support/host_gate.hpp"

namespace collprobe::testing::probed_failed_call_test {
namespace {

/// Refuses calls while `*refuses`.
template <communicator Comm>
class refusing : public adaptor<refusing<Comm>, Comm> {
    using base_type = adaptor<refusing, Comm>;

public:
    using typename base_type::stream_ref;
    refusing(Comm comm, const bool* refuses) : base_type(std::move(comm)), refuses_(refuses) {}

    template <element T>
    void make(const collective_call& call, stream_ref stream)
    {
        if (*refuses_) throw error(status::invalid_argument, "refused", {.where = call.where});
        base_type::template make<T>(call, stream);
    }

private:
    const bool* refuses_;
};

/// A part that writes the first element of the input, and of the result.
class first_elements {
public:
    struct entry {
        double input;
        double result;
    };
    template <element T, class Call>
    void before(Call& call, view<const T> input, entry* to) const
    {
        write(call, input.data(), &to->input);
    }
    template <element T, class Call>
    void after(Call& call, view<const T> result, entry* to) const
    {
        write(call, result.data(), &to->result);
    }
    void judge(const part_entries<entry>& entries, step_record&)
    {
        found.clear();
        for (int c = 0; c < entries.calls(); ++c) found.push_back(entries(c, 0));
    }
    std::vector<entry> found;

private:
    template <class Call, class T>
    static void write(Call& call, const T* from, double* to)
    {
        Call::device::for_each(call.stream(), 1, [from, to](std::uint64_t) { *to = static_cast<double>(*from); });
    }
};

/// What a stream does while another one is held up. It may itself wait for the other.
void run_for_a_while(host::stream_ref stream)
{
    try {
        stream.synchronize(100);
    } catch (const error& late) {
        CHECK(late.code() == status::timeout);
    }
}

std::vector<float> ramp(int rank, std::size_t count, std::uint64_t step = 0)
{
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(1 + (i * (7 + step + static_cast<std::size_t>(rank))) % 97);
    return values;
}

} // namespace

TEST_CASE("one rank may repeat a call that was refused, or make one of another kind: the audit's messages stay those of the others")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        bool refuses = false;
        host::stream stream;
        probed comm(refusing(world, &refuses), {}, audit());
        std::vector<float> sum(100'000), gathered(6000);
        for (std::uint64_t step = 0; step < 3; ++step) {
            const std::vector<float> large = ramp(world.rank(), 100'000, step), small = ramp(world.rank(), 3000, step);
            refuses = world.rank() == 1;
            if (refuses) {
                CHECK_THROWS_AS(comm.all_reduce(large, view(sum), reduction::sum, stream), error);
                CHECK_THROWS_AS(comm.all_gather(small, view(gathered), stream), error);
                CHECK_THROWS_AS(comm.all_reduce(large, view(sum), reduction::sum, stream), error);
            }
            refuses = false;
            for (int call = 0; call < 5; ++call) comm.all_reduce(large, view(sum), reduction::sum, stream);
            refuses = world.rank() == 1;
            if (refuses) CHECK_THROWS_AS(comm.all_reduce(large, view(sum), reduction::sum, stream), error);
            refuses = false;
            comm.all_gather(small, view(gathered), stream);
            comm.end_step(step, stream);
            stream.synchronize(20'000);
            step_record record;
            REQUIRE(comm.wait(record));
            CHECK(record.findings.empty());
            REQUIRE(record.calls.size() == 6);
            for (const call_record& call : record.calls) CHECK(call.audit.checked);
            for (std::size_t c = 0; c < 5; ++c) CHECK(record.calls[c].audit.sum_checked);
        }
    });
}

TEST_CASE("a refused call writes nothing into the call that takes its place on another stream")
{
    local::run(1, {.timeout_ms = 20'000}, [](local::communicator& world) {
        bool refuses = true;
        host::stream slow, fast;
        probed comm(refusing(world, &refuses), {}, first_elements());
        const std::vector<float> refused(100, 5.0f), made(100, 3.0f);
        std::vector<float> sum(100);
        const host_gate gate;
        gate.close(slow);
        CHECK_THROWS_AS(comm.all_reduce(refused, view(sum), reduction::sum, slow), error);
        refuses = false;
        comm.all_reduce(made, view(sum), reduction::sum, fast);
        run_for_a_while(fast);
        gate.open();
        comm.end_step(0, fast);
        step_record record;
        REQUIRE(comm.wait(record));
        REQUIRE(record.calls.size() == 1);
        CHECK(record.calls[0].gradient_norm.mean == 30);
        const auto& found = comm.part<first_elements>().found;
        REQUIRE(found.size() == 1);
        CHECK(found[0].input == 3);
        CHECK(found[0].result == 3);
    });
}

TEST_CASE("a result that is observed behind the growth of its step stays in the record")
{
    local::run(1, {.timeout_ms = 20'000}, [](local::communicator& world) {
        host::stream slow, fast;
        probed comm(world, {.calls = 1}, first_elements());
        std::vector<float> first(100, 5.0f), second(100, 3.0f);
        const host_gate gate;
        const auto token = comm.observe(view<const float>(first), fast, collective::all_reduce, reduction::sum);
        gate.close(slow);
        comm.all_reduce(second, view(second), reduction::sum, slow); // the step grows, on this stream
        token.result(view<const float>(first), fast);
        run_for_a_while(fast);
        gate.open();
        comm.end_step(0, fast);
        step_record record;
        REQUIRE(comm.wait(record));
        const auto& found = comm.part<first_elements>().found;
        REQUIRE(found.size() == 2);
        CHECK(found[0].input == 5);
        CHECK(found[0].result == 5);
        CHECK(found[1].input == 3);
        CHECK(found[1].result == 3);
    });
}

TEST_CASE("a call that is refused on one rank changes nothing in the record")
{
    for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
        CAPTURE(name(mode));
        local::run(3, [&](local::communicator& world) {
            host::stream stream;
            bool refuses = false;
            probed probe{refusing(world, &refuses), {.mode = mode, .calls = 2, .largest_step = 2}};
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
                refuses = world.rank() == 1; // by what is wrapped, of a call that has no room
                if (refuses) CHECK(error_of([&] { probe.all_reduce(view(values), reduction::average, stream); }).has_value());
                refuses = false;
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

} // namespace collprobe::testing::probed_failed_call_test
