// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Observed results in any order, reads on the calling thread, and communicators that have only an all-gather.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/step/probed.hpp>

#include "tests/support/errors.hpp"

using namespace collprobe;
using collprobe::testing::error_of;
using collprobe::testing::mentions;
using collprobe::testing::require;

namespace {

std::vector<float> numbers_of(int rank, int call)
{
    std::vector<float> numbers(static_cast<std::size_t>(10 + call));
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<float>((i * 31 + static_cast<unsigned>(rank * 17 + call * 7)) % 97) - 48;
    return numbers;
}

/// One rank whose one collective is an all-gather.
struct gather_only : collectives<gather_only, host::device> {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    static constexpr bool has_collective(collective what) { return what == collective::all_gather; }
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        on.enqueue([=] { std::memcpy(call.receive, call.send, static_cast<std::size_t>(call.send_count * sizeof(T))); });
    }
};

} // namespace

TEST_CASE("a result goes to its input, whatever the order")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        probed comm(world);
        const host::stream stream;
        std::vector<probed<local::communicator>::observed_call> tokens;
        std::vector<std::vector<float>> inputs, sums;
        for (int b = 0; b < 4; ++b) {
            inputs.push_back(numbers_of(world.rank(), b));
            sums.push_back(numbers_of(0, b));
            for (std::size_t i = 0; i < sums.back().size(); ++i) sums.back()[i] += numbers_of(1, b)[i];
        }
        if (world.rank() == 1) sums[2][5] += 1;
        for (const auto& input : inputs)
            tokens.push_back(comm.observe(view<const float>(input), stream));
        const auto show = [&](std::size_t b) { tokens[b].result(view<const float>(sums[b]), stream); };
        // Ranks need not have the same order.
        for (const std::size_t b : world.rank() == 0 ? std::vector{3u, 0u, 2u, 1u} : std::vector{1u, 2u, 0u, 3u}) show(b);
        const auto twice = error_of([&] { show(2); });
        require(twice && twice->code() == status::invalid_argument, "a result twice");
        comm.end_step(0, stream);
        step_record record;
        require(comm.wait(record), "a record");
        for (std::size_t b = 0; b < 4; ++b)
            require(record.calls[b].results_agree == (b != 2), std::to_string(b));

        const auto open = comm.observe(view<const float>(inputs[0]), stream);
        const auto failure = error_of([&] { show(0); });
        require(mentions(failure, "result") && mentions(failure, "step"), "a token of another step");
        const auto other_count = error_of([&] { open.result(view<const float>(sums[1]), stream); });
        require(mentions(other_count, "count"), "a result of another count");
        open.no_result(stream);
        comm.end_step(1, stream);
        stream.synchronize();
    });
}

TEST_CASE("a token finds its probe where it was moved to")
{
    using probe = probed<gather_only>;
    const host::stream stream;
    std::vector<float> data{3, 4};
    std::vector<probe> probes;
    probes.emplace_back(gather_only());
    const auto token = probes[0].observe(view<const float>(data), stream);
    probe moved(std::move(probes[0]));
    probes[0] = std::move(moved);
    moved = probe(gather_only());
    probes.reserve(100); // moves it
    token.result(view<const float>(data), stream);
    probes[0].end_step(0, stream);
    step_record record;
    REQUIRE(probes[0].wait(record));
    CHECK(record.calls.at(0).has_result_digest);
}

TEST_CASE("on a stream at once the caller reads, before the call returns")
{
    probed comm{gather_only()};
    const host::stream reads = host::stream::at_once();
    const host::stream messages;
    step_record record;
    for (std::uint64_t step = 0; step < 10; ++step) {
        std::vector<float> data{3, 4};
        const auto token = comm.observe(view<const float>(data), reads);
        data = {30, 40}; // in place
        token.result(view<const float>(data), reads);
        data = {-1, -1};
        comm.end_step(step, messages);
        REQUIRE(comm.wait(record));
        CHECK(record.gradient_norms[0] == doctest::Approx(5));
        CHECK(record.result_norm == doctest::Approx(50));
    }
    CHECK(reads.synchronizations() == 0);
}

TEST_CASE("a stream at once: work, errors, events and waits")
{
    host::stream at_once = host::stream::at_once();
    const auto self = std::this_thread::get_id();
    std::thread::id ran;
    at_once.enqueue([&] { ran = std::this_thread::get_id(); });
    CHECK(ran == self);
    CHECK(at_once.query());
    at_once.synchronize();
    CHECK_THROWS_AS(at_once.enqueue([] { throw 7; }), int);
    at_once.synchronize(); // the error was the caller's

    host::event done;
    done.record(at_once);
    CHECK(done.recorded());
    CHECK(done.query());
    done.synchronize();
    // Another stream waits for it, and it for another stream.
    const host::stream other;
    int value = 0;
    other.wait(done);
    other.enqueue([&] { value = 1; });
    done.record(other);
    at_once.wait(done);
    CHECK(value == 1);
    const host::stream moved = std::move(at_once);
    moved.enqueue([&] { value = 2; });
    CHECK(value == 2);
}

TEST_CASE("what needs an all-reduce is refused at construction, where there is none")
{
    const auto failure_of
        = [](probe_options options) { return error_of([&] { probed comm(gather_only(), options); }); };
    CHECK(!failure_of({}));
    const auto summary = failure_of({.mode = report_mode::summary});
    CHECK(summary->code() == status::unsupported);
    CHECK(mentions(summary, "the mode summary needs a communicator with all_reduce"));
    const auto exact = failure_of({.direction = direction_mode::exact});
    CHECK(exact->code() == status::unsupported);
    CHECK(mentions(exact, "exact direction needs a communicator with all_reduce and all_to_all"));
}
