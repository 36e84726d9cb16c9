// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <clocale>
#include <string>

#include <doctest/doctest.h>

#include <collprobe/report/json.hpp>

#include "sample.hpp"
#include "support/checks.hpp"

namespace collprobe::testing::json_test {
namespace {

step_record step_with_findings()
{
    step_record record = sample_step(3);
    record.findings = {{.ranks = {2}, .call = 1, .what = finding_kind::non_finite, .statistic = 3, .index = 41},
        {.ranks = {0, 2}, .other_rank = 0, .what = finding_kind::duplicate, .statistic = detail::infinity()}};
    record.settle_findings();
    return record;
}

} // namespace

TEST_CASE("a step is one line with the members of the schema in their order")
{
    CHECK(report::json_line("strict", step_with_findings())
        == "{\"schema\":1,\"kind\":\"step\",\"run\":\"strict\",\"step\":3,\"ranks\":3,\"false_alarms_per_step\":1e-04,"
           "\"loss\":{\"mean\":0.1,\"std\":0.3333333333333333,\"std_sample\":0.5,\"range\":"
           "2.25,\"cv\":\"nan\",\"by_rank\":[0.25,0.5,1]},"
           "\"grad_norm\":{\"mean\":1e-300,\"std\":12345.678901234567,\"std_sample\":\"nan\",\"range\":\"nan\",\"cv\":0.125,\"by_rank\":[1,2,3]},"
           "\"cosine\":{\"mean_pairwise\":-0.25,\"pooled\":0.75,\"predicted\":\"nan\","
           "\"leave_one_out\":[0.5,\"nan\",-0.5]},\"noise_scale\":\"nan\",\"findings\":["
           "{\"check\":\"non_finite\",\"ranks\":[2],\"other_rank\":null,\"bucket\":1,\"exact\":true,\"statistic\":3,"
           "\"threshold\":0,\"index\":41,\"false_alarms_per_step\":0,\"damage\":\"input\",\"advice\":\"skip\",\"source\":null,"
           "\"text\":\"in 3 elements, the first at index 41\"},"
           "{\"check\":\"duplicate\",\"ranks\":[0,2],\"other_rank\":0,\"bucket\":null,\"exact\":true,\"statistic\":\"inf\","
           "\"threshold\":0,\"index\":null,\"false_alarms_per_step\":0,\"damage\":\"duplicated_data\",\"advice\":\"recheck\",\"source\":null,"
           "\"text\":\"the same bits as each other\"}]}\n");
}

TEST_CASE("what a part measured has its call, or null for the whole step, and its numbers by rank or one")
{
    step_record record;
    record.begin(3, 2, report_mode::gather, 1);
    const call_site here{"own.cpp", "", 7, "share"};
    record.add_number(here, 0, 1, 0.25);
    record.add_number(here, -1, -1, 4);
    CHECK(contains(report::json_line("run", record),
        R"("numbers":[{"name":"share","line":"own.cpp:7","bucket":0,"by_rank":["nan",0.25]},)"
        R"({"name":"share","line":"own.cpp:7","bucket":null,"by_rank":[4]}])"));
}

TEST_CASE("a step tells of its audit, and a finding of its call")
{
    step_record record = step_with_findings();
    record.calls.resize(3);
    CHECK_FALSE(contains(report::json_line("strict", record), "audit"));
    record.calls[0].audit.checked = record.calls[2].audit.checked = record.calls[2].audit.sum_checked = true;
    CHECK(contains(report::json_line("strict", record), ",\"audit\":{\"calls\":2,\"sums\":1},\"findings\":["));
    record.findings[0].site = {"b/train.cpp", "", 88, "w\"te"};
    CHECK(contains(report::json_line("strict", record), "\"bucket\":1,\"name\":\"w\\\"te\",\"line\":\"train.cpp:88\",\"exact\":true,"));
}

TEST_CASE("a call has what each rank sent; counts that are zero everywhere are left out")
{
    step_record record = sample_step(3);
    record.calls.resize(1);
    call_record& call = record.calls[0];
    CHECK_FALSE(contains(report::json_line("strict", record), "inputs"));
    call.inputs.resize(2);
    call.inputs[0] = {.count = 4, .zero = 1, .digest = 31, .absolute_maximum = 3, .sum = 2, .sum_of_squares = 14};
    call.inputs[1] = {.count = 4, .first_nonfinite = 2, .digest = 255, .absolute_maximum = 1, .sum = -1,
        .sum_of_squares = 1, .nan = 1};
    CHECK(contains(report::json_line("strict", record),
        "\"inputs\":{\"count\":[4,4],\"sum\":[2,-1],\"sum_of_squares\":[14,1],\"absolute_maximum\":[3,1],\"zero\":[1,0],"
        "\"nan\":[0,1],\"first_nonfinite\":[null,2],\"digest\":[\"0x1f\",\"0xff\"]}"));
}

TEST_CASE("what is no finite number is a string that tells infinity, its sign and NaN apart")
{
    const auto text_of = [](double value) {
        std::string line;
        report::detail::json_writer(line).number(value);
        return line;
    };
    CHECK(text_of(detail::infinity()) == "\"inf\"");
    CHECK(text_of(-detail::infinity()) == "\"-inf\"");
    CHECK(text_of(detail::not_a_number()) == "\"nan\"");
    CHECK(text_of(detail::bit_cast<double>(~std::uint64_t{0})) == "\"nan\""); // negative, with a payload
    CHECK(text_of(-1.7976931348623157e308) == "-1.7976931348623157e+308");
}

TEST_CASE("a decimal comma in the locale does not reach the file")
{
    bool changed = false;
    for (const char* locale : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"}) {
        changed = changed || std::setlocale(LC_NUMERIC, locale) != nullptr;
    }
    const std::string line = report::json_line("strict", sample_step(0));
    std::setlocale(LC_NUMERIC, "C");
    if (!changed) MESSAGE("no such locale here: only the C locale was tried");
    CHECK(contains(line, "\"std_sample\":0.5,"));
}

} // namespace collprobe::testing::json_test
