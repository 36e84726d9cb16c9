// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report/json_lines.hpp>
#include <collprobe/report/sinks.hpp>

#include "sample.hpp"
#include "support/checks.hpp"
#include "temporary_folder.hpp"

using namespace collprobe;
using testing::contains;
using testing::read_file;

namespace {

run_record run_of_two()
{
    run_record run;
    run.name = "a \"run\"";
    run.communicator = "dp<0>";
    run.communicator_id = "0xabc";
    run.host = "node\n1";
    run.rank = 1;
    run.ranks = 2;
    run.process = 42;
    run.library = "1.2.3";
    run.settings = {{"lr", "0.1"}};
    return run;
}

step_record step_with_call(collective what, std::uint64_t count, std::uint32_t ticks)
{
    step_record record = sample_step(4);
    record.first_call = 10;
    record.ranks = 2;
    record.calls.resize(1);
    call_record& call = record.calls[0];
    call.call = what;
    call.type = element_type::bfloat16;
    call.count = call.result_count = count;
    if (what == collective::reduce_scatter) call.result_count = count / 2;
    if (what == collective::all_gather) call.result_count = count * 2;
    call.site.name = "wte";
    call.has_result_digest = true;
    call.result_digest = 0xfedcba9876543210u;
    call.result_norm = 2.5;
    call.intervals = {{0, 1}, {0xfffffff0u, 0xfffffff0u + ticks}}; // over the end of the clock
    return record;
}

std::vector<std::string> lines_of(const std::string& text)
{
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at);
        lines.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

std::string write(const report::json_lines_options& options)
{
    const testing::temporary_folder folder;
    const std::string path = folder.path("run.jsonl");
    report::sinks out(run_of_two(), report::json_lines(path, options), report::json_lines(""));
    out.put(step_with_call(collective::all_reduce, 1000, 3906)); // 1 ms
    finding raised;
    raised.step = 4;
    raised.ranks = {1};
    out.put(raised);
    out.put(inspection());
    out.close();
    CHECK(out.failures().empty());
    CHECK(folder.files() == 1);
    return read_file(path);
}

} // namespace

TEST_CASE("a file has the run, its records and its end, each in a line that says who wrote it")
{
    const std::vector<std::string> lines = lines_of(write({}));
    REQUIRE(lines.size() == 5);
    CHECK(lines[0]
        == R"({"schema":1,"kind":"run","run":"a \"run\"","job":"","comm":"dp\u003c0>","comm_id":"0xabc",)"
           R"("host":"node\u000a1","device":"","writer":1,"global_rank":1,"ranks":2,"nodes":null,"pid":42,)"
           R"("started_us":0,"version":"1.2.3","settings":{"lr":"0.1"}})");
    CHECK(contains(lines[1], R"({"schema":1,"kind":"step","run":"a \"run\"","comm":"dp\u003c0>","writer":1,"time_us":)"));
    CHECK(contains(lines[1],
        R"("calls":[{"bucket":0,"name":"wte","call":"all_reduce","type":"bfloat16","collective_seq_id":10,)"
        R"("input_sizes":[[1000]],"output_sizes":[[1000]],"digest":"0xfedcba9876543210","result_norm":2.5,)"));
    CHECK(contains(lines[2], R"("kind":"alarm")"));
    CHECK(contains(lines[3], R"("kind":"inspection")"));
    CHECK(contains(lines[4], R"("kind":"end")"));
    CHECK(contains(lines[4], R"("records_dropped":0,"steps":1,"suspicious_steps":0,"alarms":1,"verdict":"Rank 1 )"));
}

TEST_CASE("in the dialect of Inspector each call has a line with the keys of Inspector's code")
{
    const std::vector<std::string> lines = lines_of(write({.dialect = report::json_dialect::inspector}));
    REQUIRE(lines.size() == 4);
    for (const std::string& line : lines) {
        CHECK(contains(line, R"({"header":{"id":"0xabc","comm_name":"dp\u003c0>","rank":1,"n_ranks":2,"nnodes":1},)"
                             R"("metadata":{"inspector_output_format_version":"v4.0","git_rev":"1.2.3",)"
                             R"("rec_mechanism":"collprobe","dump_timestamp_us":)"));
        CHECK(contains(line, R"("hostname":"node\u000a1","pid":42},"schema":1,)"));
    }
    CHECK(contains(lines[0], R"("coll_perf":{"coll":"AllReduce","coll_sn":10,"coll_msg_size_bytes":2000,)"
                             R"("coll_exec_time_us":1000,"coll_timing_source":"collective_cpu","coll_algobw_gbs":0.0020)"));
    CHECK(contains(lines[0], R"("coll_values":{"step":4,"bucket":0,"name":"wte",)"));
    CHECK(contains(lines[1], R"("step":{"schema":1,"kind":"step",)"));
    CHECK_FALSE(contains(lines[1], R"("calls":[)"));
    CHECK(contains(lines[2], R"("alarm":{"schema":1,)"));
    CHECK(contains(lines[3], R"("inspection":{"schema":1,)"));
}

TEST_CASE("bytes and bandwidths are those of nccl-tests")
{
    struct {
        collective what;
        const char* name;
        std::uint64_t bytes; ///< of 1000 elements of 2 bytes, sent by each of 2 ranks
        double algorithm; ///< bytes over time, in 1e9 bytes a second, for 256 ns
        double bus;
    } const expected[] = {
        {collective::all_reduce, "AllReduce", 2000, 2000 / 256., 2000 / 256.},
        {collective::all_gather, "AllGather", 2000, 4000 / 256., 2000 / 256.},
        {collective::reduce_scatter, "ReduceScatter", 1000, 2000 / 256., 1000 / 256.},
        {collective::all_to_all, "AlltoAll", 2000, 2000 / 256., 1000 / 256.},
        {collective::broadcast, "Broadcast", 2000, 2000 / 256., 2000 / 256.},
    };
    const run_record run = run_of_two();
    const record_context context{run, 0, 0};
    for (const auto& each : expected) {
        const std::string line = report::detail::inspector_lines(context, step_with_call(each.what, 1000, 1));
        std::string wanted;
        report::detail::json_writer json(wanted);
        json.key("coll").text(each.name).key("coll_sn").integer(10).key("coll_msg_size_bytes").integer(each.bytes);
        CHECK(contains(line, wanted));
        wanted.clear();
        report::detail::json_writer(wanted).key("coll_algobw_gbs").number(each.algorithm).key("coll_busbw_gbs").number(each.bus);
        CHECK(contains(line, wanted));
    }
    step_record record = step_with_call(collective::all_reduce, 1000, 1);
    record.calls[0].intervals.clear(); // not measured
    CHECK_FALSE(contains(report::detail::inspector_lines(context, record), "coll_perf"));
}

TEST_CASE("a file that cannot be written stops its sink, and is told")
{
    report::sinks out(run_record(), {.tell = false}, report::json_lines("/nonexistent/run.jsonl"));
    out.put(sample_step(0));
    out.close();
    REQUIRE(out.failures().size() == 1);
    CHECK(contains(out.failures()[0], "'/nonexistent/run.jsonl' is not written any more: "));
    CHECK(contains(out.failures()[0], "No such file or directory"));
}
