// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <collprobe/report/sinks.hpp>
#include <collprobe/report/trace.hpp>

#include "report/trace_records.hpp"

namespace {

using namespace collprobe;
using testing::step_of;
using testing::timed_call;
using testing::trace_begin;
using testing::traced_run;

constexpr std::uint64_t ms = 1'000'000;
constexpr std::uint64_t s = 1'000 * ms;

/// A trace in memory, and its events as lines.
struct traced {
    run_record run;
    report::detail::trace_text text;
    std::string all;

    explicit traced(run_record of, report::trace_options options = {}) : run(std::move(of)), text(options)
    {
        text.begin(all, run);
    }
    template <class Record>
    void add(const Record& record, std::uint64_t after_begin)
    {
        text.add(all, record, {run, trace_begin + after_begin, 0});
    }
    /// The events that have `part`, one a line.
    std::vector<std::string> with(const std::string& part) const
    {
        std::istringstream in(all);
        std::vector<std::string> found;
        for (std::string line; std::getline(in, line);) {
            if (line.find(part) != line.npos) found.push_back(line);
        }
        return found;
    }
};

/// The number behind `"name":`, in thousandths.
std::int64_t thousandths(const std::string& event, const std::string& name)
{
    const std::size_t at = event.find("\"" + name + "\":");
    REQUIRE(at != event.npos);
    std::string digits = event.substr(at + name.size() + 3, 40);
    const std::size_t point = digits.find_first_not_of("0123456789");
    std::int64_t value = std::stoll(digits.substr(0, point)) * 1000;
    if (point != digits.npos && digits[point] == '.') value += std::stoll(digits.substr(point + 1, 3));
    return value;
}
std::int64_t begin_of(const std::string& event) { return thousandths(event, "ts"); }
std::int64_t end_of(const std::string& event) { return begin_of(event) + thousandths(event, "dur"); }

std::string process(int rank) { return "\"pid\":" + std::to_string(10'000'000 + rank) + ","; }

const std::string slice = "\"ph\":\"X\"";

/// One call of each rank that ends at `left` on every clock and takes `ticks[rank]`.
call_record call_that_ends(std::uint32_t left, const std::vector<std::uint32_t>& ticks)
{
    std::vector<call_interval> intervals;
    for (const std::uint32_t each : ticks) intervals.push_back({left - each, left});
    return timed_call(std::move(intervals));
}

std::string scratch_file()
{
    const char* const folder = std::getenv("TMPDIR");
    const std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/collprobe_trace_test."
        + std::to_string(::getpid());
    std::remove(path.c_str());
    return path;
}
std::string text_of(const std::string& path)
{
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

} // namespace

TEST_CASE("one step of two ranks is this text")
{
    traced out(traced_run(2));
    call_record call = timed_call({{1000, 1010}, {0xfffffffc, 4}}); // the second clock wraps around within the call
    call.site = {"/src/train.cpp", "main", 88, "wte"};
    call.has_result_digest = true;
    call.result_digest = 0xff00ff00ff00ff00;
    call.pooled_cosine = 0.5;
    call.inputs[0].sum_of_squares = 16;
    call.inputs[1].sum_of_squares = 4;
    call.inputs[1].nan = 3;
    step_record record = step_of(7, 2, {call});
    record.loss.mean = 0.25;
    record.gradient_norm.mean = 3;
    out.add(record, 2 * s);
    report::detail::trace_text::end(out.all);

    const std::string common
        = "\"cat\":\"collprobe\",\"dur\":%,\"args\":{\"Collective name\":\"allreduce\",\"In msg nelems\":512,"
          "\"Out msg nelems\":512,\"Group size\":2,\"dtype\":\"Float\",\"Process Group Name\":\"world\","
          "\"Process Group Ranks\":\"[0, 1]\",\"Seq\":7,\"step\":7,\"bucket\":0,\"name\":\"wte\","
          "\"line\":\"train.cpp:88\",\"agree\":true,\"digest\":\"0xff00ff00ff00ff00\",\"cosine\":0.5,";
    const std::size_t hole = common.find('%');
    const auto lasting = [&](const char* length) {
        return common.substr(0, hole) + length + common.substr(hole + 1);
    };
    CHECK(out.all
        == "{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":1790857026000000000,\"otherData\":{\"schema\":1,"
           "\"kind\":\"trace\",\"run\":\"golden\",\"job\":\"\",\"communicator\":\"world\",\"communicator_id\":\"\","
           "\"host\":\"node7\",\"device\":\"GPU-1234\",\"rank\":0,\"ranks\":2,\"process\":\"0\","
           "\"started_ns\":\"1790857027000000000\",\"library\":\"1.2.3\",\"settings\":{}},\"traceEvents\":[\n"
           "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":10000000,\"tid\":5378301,"
           "\"args\":{\"name\":\"rank 0 (node7, GPU-1234)\"}},\n"
           "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":10000000,\"tid\":5378301,"
           "\"args\":{\"sort_index\":0}},\n"
           "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":10000000,\"tid\":5378301,\"args\":{\"name\":\"world\"}},\n"
           "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":10000001,\"tid\":5378301,\"args\":{\"name\":\"rank 1\"}},\n"
           "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":10000001,\"tid\":5378301,"
           "\"args\":{\"sort_index\":1}},\n"
           "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":10000001,\"tid\":5378301,\"args\":{\"name\":\"world\"}},\n"
           "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":10000000,\"tid\":5378302,"
           "\"args\":{\"name\":\"world, steps\"}},\n"
           "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":10000000,\"tid\":5378303,"
           "\"args\":{\"name\":\"world, alarms\"}},\n"
           "{\"name\":\"nccl:all_reduce\",\"ph\":\"X\",\"pid\":10000000,\"tid\":5378301,\"ts\":1999997.440,"
            + lasting("2.560")
            + "\"Rank\":0,\"norm\":4,\"nonfinite\":0,\"lateness_ns\":0}},\n"
              "{\"name\":\"nccl:all_reduce\",\"ph\":\"X\",\"pid\":10000001,\"tid\":5378301,\"ts\":1999997.952,"
            + lasting("2.048")
            + "\"Rank\":1,\"norm\":2,\"nonfinite\":3,\"lateness_ns\":512}},\n"
              "{\"name\":\"loss\",\"ph\":\"C\",\"pid\":10000000,\"tid\":5378301,\"ts\":2000000.000,"
              "\"args\":{\"value\":0.25}},\n"
              "{\"name\":\"gradient norm\",\"ph\":\"C\",\"pid\":10000000,\"tid\":5378301,\"ts\":2000000.000,"
              "\"args\":{\"value\":3}}\n]}\n");
}

TEST_CASE("the names and counts of each collective are those of PyTorch")
{
    const struct {
        collective call;
        const char* title;
        const char* name;
        std::uint64_t received;
    } all[] = {{collective::all_reduce, "nccl:all_reduce", "allreduce", 12},
        {collective::reduce_scatter, "nccl:_reduce_scatter_base", "_reduce_scatter_base", 4},
        {collective::all_gather, "nccl:_all_gather_base", "_allgather_base", 36},
        {collective::all_to_all, "nccl:all_to_all", "all_to_all", 12},
        {collective::broadcast, "nccl:broadcast", "broadcast", 12}};
    for (const auto& each : all) {
        traced out(traced_run(3));
        call_record call = call_that_ends(100, {4, 4, 4});
        call.call = each.call;
        call.count = 12;
        call.result_count = each.received;
        call.type = element_type::bfloat16;
        out.add(step_of(0, 3, {call}), 2 * s);
        const auto found = out.with(std::string("\"name\":\"") + each.title + "\"");
        REQUIRE(found.size() == 3);
        for (const std::string& event : found) {
            CHECK(event.find(std::string("\"Collective name\":\"") + each.name + "\"") != event.npos);
            CHECK(event.find("\"In msg nelems\":12,\"Out msg nelems\":" + std::to_string(each.received) + ",")
                != event.npos);
            CHECK(event.find("\"dtype\":\"BFloat16\"") != event.npos);
            CHECK((event.find("lateness_ns") == event.npos) == (each.call == collective::broadcast));
        }
    }
}

TEST_CASE("all ranks leave the first common call at the same time, whatever their clocks show")
{
    std::mt19937 random(1);
    traced out(traced_run(3));
    std::vector<std::uint32_t> clock(3);
    for (std::uint64_t step = 0; step < 20; ++step) {
        // A clock may show anything in another step, but for that of rank 0.
        for (std::uint32_t& each : clock) each = static_cast<std::uint32_t>(random());
        clock[0] = static_cast<std::uint32_t>(step * (s / 256));
        std::vector<call_interval> first, second;
        for (std::uint32_t r = 0; r < 3; ++r) {
            first.push_back({clock[r] - 10 - r, clock[r]});
            second.push_back({clock[r] + 100 + r, clock[r] + 200 + 10 * r});
        }
        call_record early = timed_call(first);
        early.call = collective::broadcast; // whose ends say nothing
        for (call_interval& each : early.intervals) {
            each = {each.entered - 1000, each.entered - 500 - static_cast<std::uint32_t>(random() % 100)};
        }
        const std::size_t before = out.with(slice).size();
        out.add(step_of(step, 3, {early, timed_call(first), timed_call(second)}), (2 + step) * s);
        const auto found = out.with(slice);
        REQUIRE(found.size() == before + 9);
        for (std::size_t r = 0; r < 3; ++r) {
            CHECK(end_of(found[before + 3 + r]) == end_of(found[before + 3]));
            const auto ticks = static_cast<std::int64_t>(r);
            CHECK(end_of(found[before + 6 + r]) - end_of(found[before + 3]) == 256 * (200 + 10 * ticks));
            CHECK(begin_of(found[before + 6 + r]) - end_of(found[before + 3]) == 256 * (100 + ticks));
        }
    }
}

TEST_CASE("rank 0's clock runs on over its turns, and over gaps of several turns")
{
    traced out(traced_run(2));
    std::uint64_t ticks = 0xfffff000; // close to the end of a turn
    std::uint64_t now = 2 * s;
    std::vector<std::uint64_t> ends;
    for (const std::uint64_t pause : {1 * s, 500 * s, 700 * s, 1099 * s, 1500 * s, 5000 * s, 1 * s, 12'345 * s}) {
        const auto at = static_cast<std::uint32_t>(ticks);
        out.add(step_of(ends.size(), 2, {call_that_ends(at, {100, 50})}), now + 300 * ms * (ends.size() % 2));
        ends.push_back(now);
        ticks += pause / 256;
        now += pause / 256 * 256;
    }
    const auto found = out.with(process(0));
    std::vector<std::int64_t> seen;
    for (const std::string& event : found) {
        if (event.find(slice) != event.npos) seen.push_back(end_of(event));
    }
    REQUIRE(seen.size() == ends.size());
    for (std::size_t i = 0; i < ends.size(); ++i) CHECK(seen[i] == static_cast<std::int64_t>(ends[i]));
}

TEST_CASE("a clock that is wrong by more than a second is set anew, and no track runs backwards")
{
    // Rank 0's clock: right, too fast, too slow by a thousandth; the first record comes a minute late.
    for (const double rate : {1.0, 1.001, 0.999}) {
        for (const std::uint64_t late : {0 * s, 60 * s}) {
            CAPTURE(rate);
            CAPTURE(late);
            traced out(traced_run(2));
            std::int64_t worst = 0;
            std::int64_t before[2] = {};
            for (std::uint64_t step = 0; step < 4000; ++step) {
                const std::uint64_t now = (100 + step) * s;
                const auto ticks = static_cast<std::uint32_t>(
                    static_cast<std::uint64_t>(static_cast<double>(now) * rate) / 256);
                out.all.clear();
                const std::uint64_t arrived = now + 20 * ms + (step == 0 ? late : 0);
                out.add(step_of(step, 2, {call_that_ends(ticks, {1000, 2000})}), arrived);
                const auto found = out.with(slice);
                REQUIRE(found.size() == 2);
                for (std::size_t r = 0; r < 2; ++r) {
                    CHECK(begin_of(found[r]) >= before[r]);
                    before[r] = end_of(found[r]);
                }
                std::int64_t wrong = end_of(found[0]) - static_cast<std::int64_t>(now);
                if (wrong < 0) wrong = -wrong;
                if (step > 200 && wrong > worst) worst = wrong;
            }
            CHECK(worst < static_cast<std::int64_t>(1'100 * ms));
            if (rate == 1.0 && late == 0) CHECK(worst == static_cast<std::int64_t>(20 * ms));
        }
    }
}

TEST_CASE("a rank whose step seems to begin too early moves as a whole, and alone")
{
    traced out(traced_run(2));
    out.add(step_of(0, 2, {call_that_ends(10'000, {100, 100})}), 2 * s);
    // Rank 1 claims to have entered the next step before it left the previous one.
    out.add(step_of(1, 2, {call_that_ends(11'000, {100, 5'000})}), 3 * s);
    const auto found = out.with(slice);
    REQUIRE(found.size() == 4);
    CHECK(begin_of(found[3]) == end_of(found[1]));
    CHECK(end_of(found[3]) - begin_of(found[3]) == 256 * 5'000);
    CHECK(end_of(found[2]) == end_of(found[0]) + 256 * 1'000);
}

TEST_CASE("a call that begins before another one ended is asynchronous")
{
    traced out(traced_run(1));
    // 0: a slice. 1: begins inside. 2: begins at the same tick as 0 ended. 3: inside 2. 4: no length.
    out.add(step_of(0, 1, {timed_call({{100, 200}}), timed_call({{150, 300}}), timed_call({{200, 400}}),
                              timed_call({{250, 260}}), timed_call({{400, 400}}), timed_call({{400, 410}})}),
        2 * s);
    const auto slices = out.with(slice);
    const auto begins = out.with("\"ph\":\"b\"");
    const auto ends = out.with("\"ph\":\"e\"");
    REQUIRE(slices.size() == 4);
    REQUIRE(begins.size() == 2);
    REQUIRE(ends.size() == 2);
    CHECK(slices[0].find("\"bucket\":0") != std::string::npos);
    CHECK(begins[0].find("\"bucket\":1") != std::string::npos);
    CHECK(slices[1].find("\"bucket\":2") != std::string::npos);
    CHECK(begins[1].find("\"bucket\":3") != std::string::npos);
    CHECK(slices[2].find("\"bucket\":4") != std::string::npos);
    CHECK(end_of(slices[2]) - begin_of(slices[2]) == 1);
    CHECK(slices[3].find("\"bucket\":5") != std::string::npos);
    CHECK(begin_of(slices[3]) == end_of(slices[2]));
    for (std::size_t i = 0; i < 2; ++i) {
        const std::size_t at = begins[i].find("\"id\":\"0x");
        REQUIRE(at != std::string::npos);
        CHECK(ends[i].find(begins[i].substr(at, 24)) != std::string::npos);
        CHECK(ends[1 - i].find(begins[i].substr(at, 24)) == std::string::npos);
    }
    CHECK(begin_of(ends[0]) - begin_of(begins[0]) == 256 * 150);
}

TEST_CASE("undefined numbers are left out")
{
    traced out(traced_run(1));
    call_record call = call_that_ends(100, {10});
    call.inputs[0].sum_of_squares = std::numeric_limits<double>::infinity();
    step_record record = step_of(0, 1, {call});
    record.loss.mean = -std::numeric_limits<double>::infinity();
    out.add(record, 2 * s);
    CHECK(out.with("\"ph\":\"C\"").empty());
    CHECK(out.with("norm\"").empty());
    CHECK(out.with("cosine").empty());
    for (const char* word : {"nan", "NaN", "inf\"", "Infinity"}) {
        CAPTURE(word);
        CHECK(out.all.find(word) == std::string::npos);
    }
}

TEST_CASE("calls without times are in a slice from record to record")
{
    traced out(traced_run(2));
    step_record record = step_of(3, 2, std::vector<call_record>(40));
    record.mode = report_mode::summary;
    for (call_record& each : record.calls) each.count = 16;
    out.add(record, 2 * s);
    record.step = 4;
    record.calls.resize(2);
    record.calls[1] = call_that_ends(1000, {10, 20}); // has times
    out.add(record, 5 * s);
    record.calls.clear();
    out.add(record, 6 * s);
    const auto found = out.with("\"name\":\"step ");
    REQUIRE(found.size() == 3);
    CHECK(end_of(found[0]) == static_cast<std::int64_t>(2 * s));
    CHECK(end_of(found[0]) - begin_of(found[0]) == 1000);
    CHECK(found[0].find("bucket 31: all_reduce of 16 Float\"],\"calls_left_out\":8}") != std::string::npos);
    CHECK(begin_of(found[1]) == end_of(found[0]));
    CHECK(end_of(found[1]) == static_cast<std::int64_t>(5 * s));
    CHECK(found[1].find("\"calls\":[\"bucket 0: all_reduce of 16 Float\"]}") != std::string::npos);
    CHECK(end_of(found[2]) == static_cast<std::int64_t>(6 * s));
    CHECK(out.with("\"name\":\"nccl:").size() == 2);
}

TEST_CASE("times of calls whose inputs were not read do not count")
{
    traced out(traced_run(1));
    call_record call = call_that_ends(100, {10});
    call.inputs.clear();
    call_record empty = call_that_ends(100, {10});
    empty.count = 0;
    call_record of_others = call_that_ends(100, {10, 10});
    out.add(step_of(0, 1, {call, empty, of_others}), 2 * s);
    CHECK(out.with("nccl:").empty());
    CHECK(out.with("bucket 0:").size() == 1);
}

TEST_CASE("an alarm is a slice, an instant and an arrow from the call of the first rank that it names")
{
    traced out(traced_run(4));
    for (std::uint64_t step = 0; step < 3; ++step) {
        const auto left = static_cast<std::uint32_t>(10'000 * (step + 1));
        out.add(step_of(step, 4,
                    {call_that_ends(left, {10, 10, 10, 10}), call_that_ends(left + 100, {90, 90, 90, 90})}),
            2 * s + step * 2'560'000);
    }
    finding raised;
    raised.step = 1;
    raised.call = 0;
    raised.what = finding_kind::result_differs;
    raised.ranks = {2, 3};
    raised.action = advice::resync;
    raised.source = 0;
    out.add(raised, 2 * s + 1);
    raised.call = -1;
    raised.ranks.clear();
    out.add(raised, 2 * s + 2);
    raised.step = 99; // unknown
    out.add(raised, 3 * s);

    const auto begins = out.with("\"ph\":\"s\"");
    const auto ends = out.with("\"ph\":\"f\"");
    REQUIRE(begins.size() == 2);
    REQUIRE(ends.size() == 2);
    const auto alarms = out.with("\"cat\":\"alarm\",\"dur\"");
    REQUIRE(alarms.size() == 3);
    REQUIRE(out.with("\"s\":\"g\"").size() == 3);
    CHECK(alarms[0].find("\"text\":\"step 1, bucket 0: ranks 2 and 3 held other bits of a result than the other ranks (result_differs)") != std::string::npos);
    CHECK(alarms[0].find("\"advice\":\"resync from rank 0\",\"record\":{\"schema\":1,\"kind\":\"alarm\"")
        != std::string::npos);
    CHECK(begins[0].find(process(2)) != std::string::npos);
    CHECK(begins[1].find(process(0)) != std::string::npos);
    const auto slices = out.with("nccl:");
    // Step 1 has slices 8 to 15: bucket 0 of ranks 0 to 3, then bucket 1.
    CHECK(begin_of(begins[0]) > begin_of(slices[10]));
    CHECK(begin_of(begins[0]) < end_of(slices[10]));
    CHECK(begin_of(begins[1]) > begin_of(slices[12])); // the last call of the step
    CHECK(begin_of(begins[1]) < end_of(slices[12]));
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(begin_of(ends[i]) > begin_of(alarms[i]));
        CHECK(begin_of(ends[i]) < end_of(alarms[i]));
        CHECK(begin_of(ends[i]) >= begin_of(begins[i]));
        CHECK(begin_of(alarms[i + 1]) >= end_of(alarms[i]));
    }
}

TEST_CASE("alarms after eight further steps have no arrow, and memory does not grow")
{
    traced out(traced_run(1));
    finding raised;
    raised.ranks = {0};
    for (std::uint64_t step = 0; step < 10; ++step) {
        const auto left = static_cast<std::uint32_t>(1000 * (step + 1));
        out.add(step_of(step, 1, {call_that_ends(left, {10})}), (2 + step) * s);
    }
    for (raised.step = 0; raised.step < 10; ++raised.step) out.add(raised, 20 * s);
    CHECK(out.with("\"ph\":\"s\"").size() == 8);
    CHECK(out.with("\"s\":\"g\"").size() == 10);
}

TEST_CASE("an alarm about a call without times points from its step")
{
    traced out(traced_run(2));
    out.add(step_of(0, 2, {call_record()}), 2 * s);
    finding raised;
    raised.call = 0;
    raised.ranks = {1};
    out.add(raised, 2 * s);
    const auto begins = out.with("\"ph\":\"s\"");
    const auto steps = out.with("\"name\":\"step 0\"");
    REQUIRE(begins.size() == 1);
    REQUIRE(steps.size() == 1);
    CHECK(begin_of(begins[0]) > begin_of(steps[0]));
    CHECK(begin_of(begins[0]) < end_of(steps[0]));
}

TEST_CASE("one file per rank has each thing once")
{
    std::string together;
    for (int rank = 0; rank < 3; ++rank) {
        run_record run = traced_run(3);
        run.rank = rank;
        traced out(run, {.all_ranks = false});
        out.add(step_of(0, 3, {call_that_ends(100, {10, 20, 30})}), 2 * s);
        step_record counted = step_of(1, 3, {call_that_ends(5000, {10, 20, 30})});
        counted.loss.mean = 2;
        out.add(counted, 2 * s + 5 * ms);
        finding raised;
        raised.call = 0;
        raised.ranks = {2};
        out.add(raised, 2 * s + 6 * ms);
        CHECK(out.with("nccl:").size() == 2);
        CHECK(out.with("nccl:")[0].find(process(rank)) != std::string::npos);
        CHECK(out.with("nccl:")[0].find("\"Rank\":" + std::to_string(rank)) != std::string::npos);
        CHECK(out.with("process_name").size() == 1);
        CHECK(out.with("\"ph\":\"C\"").size() == (rank == 0 ? 1 : 0));
        CHECK(out.with("\"ph\":\"i\"").size() == (rank == 0 ? 1 : 0));
        CHECK(out.with("\"ph\":\"f\"").size() == (rank == 0 ? 1 : 0));
        CHECK(end_of(out.with(slice)[0]) == static_cast<std::int64_t>(2 * s));
    }
}

TEST_CASE("communicators of one process share its number and have threads and ids of their own")
{
    run_record run = traced_run(2);
    run.global_rank = 5;
    run.rank = 1;
    run.communicator = "tp";
    traced one(run);
    run.communicator_id = "0x77";
    traced other(run);
    CHECK(one.with("\"name\":\"rank 5 (node7, GPU-1234)\"").size() == 1);
    CHECK(one.with("\"name\":\"rank 0 of tp\"").size() == 1);
    CHECK(one.with("rank 0 of tp")[0].find("\"pid\":20000000,") != std::string::npos);
    CHECK(one.with("\"name\":\"tp, rank 1\"").size() == 1);
    const auto thread = [](const traced& of) { return thousandths(of.with("rank 5")[0], "tid"); };
    CHECK(thread(one) != thread(other));
    CHECK(other.with("rank 5")[0].find(process(5)) != std::string::npos);
}

TEST_CASE("foreign texts cannot break a line, end a string or leave their member")
{
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
        std::string nasty = "a\"b\\c\nd\re\tf</script>\x01\x7f}],{\"ph\":\"X\"";
        if (round > 0) { // any bytes, but for zero, which ends the name of a call
            for (char& each : nasty) each = static_cast<char>(1 + random() % 255);
        }
        run_record run = traced_run(1);
        run.name = run.host = run.device = run.communicator = run.communicator_id = run.job = run.library = nasty;
        run.settings = {{nasty, nasty}};
        traced out(run);
        call_record call = call_that_ends(100, {10});
        call.site = {nasty.c_str(), "f", 1, nasty.c_str()};
        out.add(step_of(0, 1, {call, call_record()}), 2 * s);
        finding raised;
        raised.call = 0;
        raised.site = call.site;
        out.add(raised, 2 * s);
        inspection found;
        found.communicator = nasty;
        out.add(found, 2 * s);
        for (const char each : out.all) {
            const bool is_control = static_cast<unsigned char>(each) < 0x20 && each != '\n';
            CHECK_FALSE(is_control);
        }
        // The head, five names, the call, its step, four events of the alarm, the inspection.
        CHECK(std::count(out.all.begin(), out.all.end(), '\n') == 5 + 2 + 4 + 1);
        // Strings end where their line does not, and brackets are balanced on every line but the head's.
        std::istringstream in(out.all);
        for (std::string line; std::getline(in, line);) {
            int depth = 0;
            bool inside = false;
            for (std::size_t i = 0; i < line.size(); ++i) {
                if (inside && line[i] == '\\') ++i;
                else if (line[i] == '"') inside = !inside;
                else if (!inside) depth += (line[i] == '{') - (line[i] == '}');
            }
            CHECK(!inside);
            const bool is_head = line.starts_with("{\"displayTimeUnit");
            CHECK(depth == (is_head ? 1 : 0));
        }
    }
}

TEST_CASE("an alarm and a step with absurd numbers do not stop the trace")
{
    run_record run = traced_run(0);
    run.rank = -3;
    run.started_ns = ~std::uint64_t{0};
    traced out(run);
    step_record record = step_of(0, 0, {call_record()});
    out.add(record, 0);
    record.ranks = -1;
    out.add(record, 0);
    record = step_of(1, 2, {timed_call({{0, 0xffffffff}, {0x80000000, 0}}), timed_call({{7, 0x80000007}, {1, 2}})});
    out.text.add(out.all, record, {run, 0, 0});
    out.text.add(out.all, record, {run, ~std::uint64_t{0}, 0});
    out.text.add(out.all, record, {run, 5, 0});
    finding raised;
    raised.step = 1;
    raised.call = 1000;
    raised.ranks = {1000};
    out.text.add(out.all, raised, {run, 5, 0});
    raised.ranks = {-1};
    raised.call = 1;
    out.text.add(out.all, raised, {run, 5, 0});
    for (const std::string& each : out.with("\"ph\":")) {
        CHECK(each.find("\"ts\":-") == each.npos);
        CHECK(each.find("\"dur\":-") == each.npos);
    }
}

TEST_CASE("a sink writes the file, stops at its size and ends it; an empty path writes nothing")
{
    const std::string path = scratch_file();
    const run_record run = traced_run(2);
    report::trace out(path, {.most_bytes = 1500});
    report::trace none("");
    for (report::trace* each : {&out, &none}) {
        each->open(run);
        for (std::uint64_t step = 0; step < 5; ++step) {
            const auto left = static_cast<std::uint32_t>(1000 * (step + 1));
            each->on_step(step_of(step, 2, {call_that_ends(left, {10, 10})}), {run, trace_begin + (2 + step) * s, 0});
            if (each == &out) CHECK(text_of(path).ends_with("}}")); // at any time whole events, only the end is missing
        }
        finding raised;
        each->on_alarm(raised, {run, trace_begin + 9 * s, 0});
        each->close({run, trace_begin + 9 * s, 0});
    }
    const std::string text = text_of(path);
    CHECK(text.ends_with("}\n]}\n"));
    CHECK(text.find("\"left_out_from_step\":1,") != text.npos);
    CHECK(text.find("\"step\":0,") != text.npos);
    CHECK(text.find("\"step\":1,") == text.npos);
    CHECK(text.find("\"s\":\"g\"") != text.npos);
    CHECK(out.target() == path);
    std::remove(path.c_str());

    report::trace unwritable("/proc/none/trace.json");
    CHECK_THROWS_AS(unwritable.open(run), error);
}

TEST_CASE("records that several threads put reach the file, and it is complete")
{
    const std::string path = scratch_file();
    {
        report::sinks out(traced_run(1), report::trace(path), report::trace(""));
        std::thread other([&] {
            for (int i = 0; i < 20; ++i) out.put(inspection());
        });
        for (std::uint64_t step = 0; step < 20; ++step) {
            out.put(step_of(step, 1, {call_that_ends(static_cast<std::uint32_t>(1000 * step), {10})}));
            finding raised;
            raised.step = step;
            out.put(raised);
        }
        other.join();
        CHECK(out.failures().empty());
    }
    const std::string text = text_of(path);
    CHECK(text.ends_with("\n]}\n"));
    std::size_t lines = 0;
    for (const char each : text) lines += each == '\n' ? 1 : 0;
    // Before each event: five names, a slice for each step, two events and an arrow for each alarm, the inspections.
    CHECK(lines == 5 + 20 + 4 * 20 + 20 + 2);
    std::remove(path.c_str());
}

TEST_CASE("ten thousand steps of eight ranks: bytes and time")
{
    traced out(traced_run(8));
    step_record record
        = step_of(0, 8, std::vector<call_record>(4, call_that_ends(0, std::vector<std::uint32_t>(8, 100))));
    record.loss.mean = 1;
    std::uint64_t bytes = 0;
    const auto begun = std::chrono::steady_clock::now();
    const std::uint64_t steps = 1000; // a tenth
    for (record.step = 0; record.step < steps; ++record.step) {
        std::uint32_t left = static_cast<std::uint32_t>(record.step * 100'000);
        for (call_record& call : record.calls) {
            left += 200;
            for (call_interval& each : call.intervals) each = {left - 100, left};
        }
        out.all.clear();
        out.add(record, 2 * s + record.step * 25'600'000);
        bytes += out.all.size();
    }
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    MESSAGE(std::to_string(bytes / 100000) << " MB, " << 10 * spent << " s for 10,000 steps of 8 ranks and 4 calls: "
                                   << 1e6 * spent / static_cast<double>(steps * 32) << " us an event");
    CHECK(bytes / (steps * 32) < 700);
}
