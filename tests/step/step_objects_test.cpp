// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The objects that a probe is made of, each without the others: the open step, the ring of reports, captured steps,
// parts, and the exchange.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/step/detail/captured_steps.hpp>
#include <collprobe/step/detail/open_step.hpp>
#include <collprobe/step/detail/report_exchange.hpp>
#include <collprobe/step/detail/report_ring.hpp>
#include <collprobe/step/detail/step_parts.hpp>

#include "tests/support/errors.hpp"

using namespace collprobe;
using namespace collprobe::detail;
using collprobe::testing::error_of;
using collprobe::testing::mentions;

namespace {

/// Throws what a communicator's caller throws.
struct lone_caller {
    [[noreturn]] void fail(status code, const std::string& message) const { throw error(code, message, {}); }
    void require(bool condition, const char* message) const
    {
        if (!condition) fail(status::invalid_argument, message);
    }
};
const lone_caller who;

/// A host device whose streams could be captured, and never are.
struct capturable : host::device {
    struct stream_ref : host::stream_ref {
        stream_ref(host::stream_ref of) : host::stream_ref(of) {}
        bool capturing(call_site) const { return false; }
    };
};

struct noted : part_memories {
    void clear() noexcept override { forgotten.clear(); }
    void forget(std::uint64_t first) noexcept override { forgotten.push_back(first); }
    std::vector<std::uint64_t> forgotten;
};

/// Entries of a call have 8 bytes of parts, without statistics.
const step_report::shape form{.layout = {.part_bytes = 8, .statistics = false}, .room_for_values = 2};
std::uint64_t& entry_of(const step_block<capturable>& block, std::uint64_t call)
{
    const auto at = block.at(call);
    return *reinterpret_cast<std::uint64_t*>(block.layout.parts_of(at.message, at.index));
}
const probed_call gradient{.count = 4, .has_input = true};

struct open_one {
    step_block<capturable> block{form, 2, {}};
    ref<noted> parts = make_ref<noted>();
    step_tools<capturable> tools{form, {.streams = 1}, ref<part_memories>(parts.get()), {}};
    open_step<capturable> step;
    host::stream stream;

    open_one() { step.open(block, tools, 2); }
    begun_call<capturable> begin()
    {
        const std::uint64_t index = step.next(100, {});
        const int lane = tools.lanes.enter(stream, true, {}, [] {});
        const begun_call<capturable> call{index, lane, stream};
        step.await_rewritten(call, true, {});
        return call;
    }
    begun_call<capturable> make(const probed_call& what = gradient)
    {
        const auto call = begin();
        stream.synchronize();
        entry_of(block, call.index) = 100 + call.index;
        step->add(what);
        return call;
    }
};

} // namespace

TEST_CASE("an open step gives the index of a call that was not made to the next one, with an empty entry")
{
    open_one of;
    of.make();
    const auto lost = of.begin();
    CHECK(lost.index == 1);
    entry_of(of.block, 1) = 7; // and then the call threw
    const auto next = of.begin();
    of.stream.synchronize();
    CHECK(next.index == 1);
    CHECK(entry_of(of.block, 1) == 0);
    CHECK(of.parts->forgotten == std::vector<std::uint64_t>{1});
    of.step->add(gradient);
    CHECK(entry_of(of.block, 0) == 100);

    of.begin();
    entry_of(of.block, 2) = 9; // not made: what the step has written is more than its calls
    of.step.complete();
    CHECK(of.block.call_count == 2);
    CHECK(of.parts->forgotten == std::vector<std::uint64_t>{1, 2});
    CHECK(of.step.written().count() == of.block.message_of(of.block.room()).count());
}

TEST_CASE("entries of an open step stay where they are when it grows, and are together at its end")
{
    open_one of;
    of.make();
    const std::uint64_t* const first = &entry_of(of.block, 0);
    for (int c = 1; c < 9; ++c) of.make();
    CHECK(&entry_of(of.block, 0) == first);
    std::vector<host::buffer<unsigned char>> left;
    of.step.complete();
    of.block.join_pieces(form, of.stream, left, {});
    of.stream.synchronize();
    CHECK(left.size() == 4);
    for (std::uint64_t c = 0; c < 9; ++c) CHECK(entry_of(of.block, c) == 100 + c);
}

TEST_CASE("calls of a group are read when it has ended; if it failed they were not made, and leave no gradient")
{
    open_one of;
    const auto before = of.make({.call = collective::broadcast, .count = 4, .has_input = true});
    for (int c = 0; c < 2; ++c) of.step.keep_for_group(of.make());
    CHECK(mentions(error_of([&] { of.step.require_no_group(who); }), "another thread has a group open"));
    std::vector<std::uint64_t> read;
    const auto note = [&](const auto& call) { read.push_back(call.index); };
    of.step.end_group(false, note);
    CHECK(read.empty());
    CHECK(of.block.call_count == before.index + 1);
    const auto next = of.make({.call = collective::broadcast, .count = 4, .has_input = true});
    CHECK(next.index == 1);
    CHECK((of.block.flags[0] & 0x77) == 0x22);

    of.step.keep_for_group(of.make());
    of.step.end_group(true, note);
    CHECK(read == std::vector<std::uint64_t>{2});
    CHECK((of.block.flags[0] & 0x777) == 0x122);
    of.step.keep_for_group(of.make());
    of.step.end_group(true, [](const auto&) { throw std::runtime_error("late"); });
    CHECK_THROWS_AS(of.step.require_no_group(who), std::runtime_error);
    of.step.require_no_group(who); // told once
}

TEST_CASE("an observed call has one result, in any order, and a step waits for all")
{
    open_one of;
    const std::uint64_t first = of.step.observe(of.make(), gradient);
    const std::uint64_t second = of.step.observe(of.make(), {.count = 9});
    const auto index_of = [&](std::uint64_t number) {
        std::uint64_t index = 99;
        of.step.end_observed(number, who, [&](const auto& found) { index = found.at.index; });
        return index;
    };
    CHECK(mentions(error_of([&] { of.step.require_observed(who); }), "2 observed calls have no result yet"));
    CHECK_THROWS_AS(of.step.end_observed(second, who, [](const auto&) { throw std::runtime_error("no"); }),
        std::runtime_error); // it can be tried again
    CHECK(index_of(second) == 1);
    CHECK(mentions(error_of([&] { index_of(second); }), "has a result"));
    CHECK(index_of(first) == 0);
    of.step.require_observed(who);
    const std::uint64_t lost = of.step.observe(of.make(), gradient);
    of.step.abandon();
    CHECK_FALSE(of.step.is_open());
    CHECK(mentions(error_of([&] { index_of(lost); }), "abandoned"));
}

TEST_CASE("a ring finishes its steps once and in order, and tells a failure once")
{
    report_ring<host::device> ring(2, form, 1, {});
    host::stream first, second;
    step_block<host::device> captured(form, 1, {});
    const auto push = [&](std::uint64_t number, const host::stream& on, step_block<host::device>* calls = nullptr) {
        ring.next().done.record(on);
        ring.push(number, calls != nullptr ? *calls : ring.next().own, {});
    };
    std::vector<std::uint64_t> judged;
    bool fails = false;
    const auto finish = [&] {
        ring.finish([&](const auto& of, std::uint32_t serial) {
            judged.push_back(of.step * 10 + serial);
            if (fails) throw std::runtime_error("lost");
        });
    };
    push(7, first, &captured);
    push(8, second);
    CHECK(ring.is_full());
    CHECK(captured.reports == 1);
    first.synchronize();
    second.synchronize();
    finish();
    CHECK(judged == std::vector<std::uint64_t>{71, 82});
    CHECK(captured.reports == 0);
    CHECK(ring.under_way() == 0);
    CHECK(ring.next_ticket(9, false, nullptr).lost_ago == 0);

    push(9, first);
    push(10, first);
    first.synchronize();
    fails = true;
    finish();
    CHECK(judged.back() == 93); // the next one waits until the failure was told
    CHECK(ring.under_way() == 1);
    fails = false;
    finish();
    CHECK(judged.back() == 93);
    CHECK_THROWS_AS(ring.throw_failure(), std::runtime_error);
    ring.throw_failure();
    finish();
    CHECK(judged.back() == 104);
    CHECK(ring.next_ticket(11, true, nullptr).serial == 5);
    CHECK(ring.next_ticket(11, true, nullptr).is_crowded == 1);
    CHECK(ring.next_ticket(11, true, nullptr).lost_ago == 2);
    ring.forget_losses();
    CHECK(ring.next_ticket(11, true, nullptr).lost_ago == 0);
}

TEST_CASE("a report goes to the block of a launch's ticket; a launch without one, or that threw, reports nothing")
{
    captured_steps<capturable> steps(form, {.calls = 1}, [] { return ref<part_memories>(new noted); }, call_site());
    host::stream stream;
    auto& work = steps.begin(5, who);
    CHECK(mentions(error_of([&] { steps.begin(6, who); }), "all captured steps are in use"));
    CHECK(mentions(error_of([&] { steps.find(work.serial, who); }), "no such captured step")); // it has not ended
    const view<unsigned char> report(const_cast<unsigned char*>(work.tools.exchange.block()) + 8, 16);
    *reinterpret_cast<std::uint64_t*>(report.data()) = 42;
    // The graph: it takes the ticket, and publishes.
    const auto replayed = [&] {
        work.tickets.data()->current = work.tickets.data()->next;
        work.tickets.data()->next = {};
        for (std::uint64_t w = 0; w < 2; ++w)
            publish_report{work.tickets.data(), work.tools.exchange.block(), 8}(w);
    };
    const std::uint64_t serial = steps.end(report, host::stream_ref(stream));
    stream.synchronize();
    CHECK(&steps.find(serial, who) == &work);
    CHECK_THROWS_AS(steps.find(0, who), error);

    std::uint64_t host_block[4] = {};
    const replay_ticket ticket{.step = 3, .serial = 1, .lost_ago = 0, .is_crowded = 0, .host_block = reinterpret_cast<unsigned char*>(host_block)};
    CHECK_THROWS_AS(steps.launch(work, ticket, host::stream_ref(stream), [] { throw std::runtime_error("refused"); }),
        std::runtime_error);
    stream.synchronize();
    replayed();
    CHECK(host_block[1] == 0);
    steps.launch(work, ticket, host::stream_ref(stream), [&] {
        stream.synchronize();
        CHECK(mentions(error_of([&] { steps.require_no_launch(who); }), "must not make calls"));
        replayed();
    });
    steps.require_no_launch(who);
    CHECK(host_block[1] == 42);
    host_block[1] = 0;
    replayed(); // launched directly
    CHECK(host_block[1] == 0);
    work.serial = 0;
    CHECK_THROWS_AS(steps.find(serial, who), error);
    steps.begin(6, who);
    steps.abandon();
    CHECK(steps.open() == nullptr);
}

namespace {

/// A part with an entry of `words`, a summary of as many, and a name.
template <int words, int turn>
struct counting_part {
    struct entry {
        std::uint64_t word[words];
    };
    using summary = entry;
    COLLPROBE_HD static summary summarize(const entry& of) noexcept { return of; }
    int every() const { return turn; }
    bool reads_result(collective what, report_mode) const { return turn == 2 && what == collective::all_gather; }
    void judge(const part_entries<entry>& entries, step_record&) { seen = entries(0, 0).word[0]; }
    void judge_summary(const part_summaries<summary>& summaries, step_record&) { seen = summaries[1].word[0]; }
    template <class Device>
    struct memory {
        memory(const counting_part&, int ranks) : of_ranks(ranks) {}
        void forget(std::uint64_t first) noexcept { forgotten = first; }
        int of_ranks;
        std::uint64_t forgotten = 0;
    };
    std::uint64_t seen = 0;
};
using always = counting_part<1, 1>;
using each_second = counting_part<3, 2>;
using asked = counting_part<2, 0>;
using three = step_parts<always, each_second, asked>;

} // namespace

TEST_CASE("each part has its own bit, entry, words and memory")
{
    static_assert(three::entry_bytes == 48 && three::words == 6 && !three::is_empty && step_parts<>::is_empty);
    three parts(4, {}, {}, {}); // the statistics: each fourth step
    CHECK(parts.due(0, false) == 0b0111);
    CHECK(parts.due(1, false) == 0b0010);
    CHECK(parts.due(2, false) == 0b0110);
    CHECK(parts.due(4, true) == 0b0010); // a captured step has what each step has
    parts.request(three::bit_of<asked>());
    parts.request(1);
    CHECK(parts.due(1, true) == 0b0010); // it does not take what was asked for
    CHECK(parts.due(1, false) == 0b1011);
    CHECK(parts.due(1, false) == 0b0010);
    CHECK(step_parts<>(-1).due(0, false) == 0); // without statistics
    CHECK(parts.reads_result(0b0100, collective::all_gather, report_mode::gather));
    CHECK_FALSE(parts.reads_result(0b1011, collective::all_gather, report_mode::gather));

    three::memory<host::device> memory(parts, 5);
    memory.forget(3);
    CHECK(std::get<2>(memory.of_parts).of_ranks == 5);
    CHECK(std::get<1>(memory.of_parts).forgotten == 3);

    std::vector<std::uint64_t> message((sizeof(step_header) + 3 * 56) / 8);
    for (std::size_t i = 0; i < message.size(); ++i) message[i] = i;
    const message_layout layout{.part_bytes = 48, .statistics = false};
    auto* const bytes = reinterpret_cast<unsigned char*>(message.data());
    const probed_call calls[1] = {};
    step_record record;
    parts.judge(gathered_step(bytes, 1, 1, layout), 0b1010, {calls, 1}, {}, record);
    const std::uint64_t first = sizeof(step_header) / 8 + 1; // behind the call's place
    CHECK(parts.get<always>().seen == first);
    CHECK(parts.get<each_second>().seen == 0); // it was not due
    CHECK(parts.get<asked>().seen == first + 4);
    parts.judge_summary(message.data(), 0b0100, record);
    CHECK(parts.get<each_second>().seen == 6 + 1); // the second call's, behind those of the first part
}

TEST_CASE("an exchange brings the messages of all ranks, and a summary's means outlive its growth")
{
    local::run(2, {.timeout_ms = 20'000}, [](local::communicator& world) {
        host::stream stream;
        for (const report_mode mode : {report_mode::gather, report_mode::summary}) {
            const step_report::shape shape{.mode = mode, .ranks = 2};
            report_exchange<host::device> exchange(shape, 1, {});
            std::vector<host::buffer<unsigned char>> left;
            for (std::uint64_t step = 0; step < 3; ++step) {
                const std::uint64_t calls = 1 + step * step;
                step_block<host::device> block(shape, calls, {});
                for (std::uint64_t c = 0; c < calls; ++c) {
                    block.add(gradient);
                    block.entry(c) = {};
                    block.entry(c).input.sum_of_squares = static_cast<double>((c + 3) * (c + 3));
                }
                exchange.make_room(calls, left, stream, {});
                exchange.run(world, block,
                    {block.message(), block.layout, block.places.data(), false, {.loss = 1.0 + world.rank()},
                        {40 + step, static_cast<std::uint32_t>(step + 1), 0, 0, nullptr}, nullptr},
                    [](std::uint64_t*) {}, stream, {});
                stream.synchronize();
                const step_report report = exchange.report(block);
                if (mode == report_mode::gather) {
                    const gathered_step all(report.messages, 2, calls, block.layout);
                    REQUIRE(all.has_arrived(static_cast<std::uint32_t>(step + 1)));
                    REQUIRE(all.header(1).step == 40 + step);
                    REQUIRE(all.header(1).loss == 2);
                    REQUIRE(all.entry(0, calls - 1).input.sum_of_squares == static_cast<double>((calls + 2) * (calls + 2)));
                } else {
                    REQUIRE(report.summary.keys->step == 40 + step);
                    REQUIRE(report.summary.sums_of(of_first_call).number.count == 2);
                    // The reference is the mean of the step before: 3 is 3 away from none, and then is the mean.
                    REQUIRE(report.summary.reference[of_first_call] == (step == 0 ? 0 : 3));
                    REQUIRE(report.summary.sums_of(of_first_call).number.distance == (step == 0 ? 6 : 0));
                }
            }
            REQUIRE(left.size() == (mode == report_mode::gather ? 2 : 4));
        }
    });
}
