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

namespace collprobe::testing::json_lines_test {
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

std::string write()
{
    const testing::temporary_folder folder;
    const std::string path = folder.path("run.jsonl");
    report::sinks out(run_of_two(), report::json_lines(path), report::json_lines(""));
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
    const std::vector<std::string> lines = lines_of(write());
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

} // namespace collprobe::testing::json_lines_test
