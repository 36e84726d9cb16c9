// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include <doctest/doctest.h>

#include <collprobe/report/json.hpp>
#include <collprobe/report/table.hpp>

#include "sample.hpp"
#include "support/checks.hpp"

namespace collprobe::testing::table_test {
namespace {

std::string line_with(const std::string& text, const std::string& part)
{
    const std::size_t at = text.find(part);
    if (at == std::string::npos) return "";
    const std::size_t first = text.rfind('\n', at) + 1; // npos + 1 is 0: the first line
    return text.substr(first, text.find('\n', at) - first);
}

} // namespace

TEST_CASE("columns line up and the first is to the left")
{
    report::text_table table;
    table.row("a").cell("bb");
    table.row("long").cell("1");
    table.row("x").cell("12345");
    CHECK(table.text() == "a        bb\n-----------\nlong      1\nx     12345\n");
}

TEST_CASE("short numbers show undefined and infinite values as such")
{
    CHECK(report::short_number(0.0251234) == "0.02512");
    CHECK(report::short_number(1e-300) == "1e-300");
    CHECK(report::short_number(detail::not_a_number()) == "-");
    CHECK(report::short_number(detail::infinity()) == "inf");
    CHECK(report::short_number(-detail::infinity()) == "-inf");
}

TEST_CASE("large numbers that are not huge have no exponent")
{
    CHECK(report::short_number(264200) == "264200");
    CHECK(report::short_number(-12345.678) == "-12346");
    CHECK(report::short_number(9999.4) == "9999");
    CHECK(report::short_number(9999.6) == "10000");
    CHECK(report::short_number(1.5e7) == "1.5e+07");
}

TEST_CASE("ranks with unequal tokens: the mean over ranks and the one over tokens are both told")
{
    // (loss sum, tokens) of (2, 1) and (90, 9): the losses are 2 and 10, their mean is 6, the one over tokens 92 / 10.
    step_record record = sample_step(3);
    record.losses = {2, 10};
    record.ranks = 2;
    record.loss.mean = 6;
    record.loss_weighted.mean = 9.2;
    const std::string told = "the mean loss over ranks is 6, over tokens 9.2: the ranks have unequal tokens\n";
    CHECK(contains(report::step_table(record), told));
    CHECK(contains(report::json_line("strict", record), "\"mean_of_tokens\":9.2,"));
    record.loss_weighted.mean = 6 * (1 + 1e-6);
    CHECK(!contains(report::step_table(record), "tokens"));
    CHECK(!contains(report::json_line("strict", record), "mean_of_tokens"));
}

TEST_CASE("a step shows every rank and says what the checks found")
{
    step_record record = sample_step(17);
    record.findings = {{.ranks = {2}, .call = 1, .what = finding_kind::non_finite, .statistic = 3, .index = 41},
        {.ranks = {1, 2}, .other_rank = 1, .call = 0, .what = finding_kind::duplicate, .statistic = 1},
        {.ranks = {0}, .call = 0, .what = finding_kind::gradient_norm,
            .number = {.value = 3.1, .expected = 2, .usual_difference = 0.2, .steps = 384}}};
    const std::string text = report::step_table(record);
    CHECK(contains(text, "step 17\n"));
    CHECK(contains(line_with(text, "0.25"), "0     0.25"));
    CHECK(contains(text, "\nfinding: bucket 1: rank 2 sent NaN or infinity (non_finite): in 3 elements, the first at index 41\n"));
    CHECK(contains(text, "\nfinding: bucket 0: ranks 1 and 2 sent the data of another rank (duplicate): the same bits as each other\n"));
    CHECK(contains(text, "\nfinding: bucket 0: rank 0 had a gradient norm that stands out (gradient_norm): the norm of its gradient, 3.1, is 1.1 above the 2 expected"));

    CHECK_FALSE(contains(text, "not looked at"));
    record.calls.resize(2);
    record.unprobed_calls = 3;
    CHECK(contains(report::step_table(record), "\nnot looked at: 3 of 5 calls, because there was no room: raise probe_options::calls of a captured step, or largest_step\n"));

    step_record summary_mode = record;
    summary_mode.losses.clear();
    summary_mode.gradient_norms.clear();
    const std::string short_text = report::step_table(summary_mode);
    CHECK_FALSE(contains(short_text, "gradient norm  "));
    CHECK(contains(short_text, "bucket 1: rank 2"));
    CHECK(contains(short_text, "not looked at: 3 of 5 calls"));
}

TEST_CASE("what parts measured has a row for each name and call, with the least and the largest rank")
{
    step_record record;
    record.begin(3, 3, report_mode::gather, 2);
    record.calls[1].site = call_site::named("wte");
    for (int rank = 0; rank < 3; ++rank) record.add_number(call_site::named("clipped"), 1, rank, 4 - rank);
    record.add_number(call_site::named("level"), -1, 1, -detail::infinity());
    record.add_number(call_site::named("all"), 0, -1, 2.5);
    record.add_number(call_site::named("none"), 0, 0, detail::not_a_number());
    for (int rank = 1; rank < 3; ++rank) record.add_number(call_site::named("huge"), 0, rank, 1.7e308);
    const std::string text = report::step_table(record);
    CHECK(contains(text, "measured by a part         mean, or of all     least  rank   largest  rank\n"));
    CHECK(contains(text, "\n'clipped', bucket 1 'wte'                3         2     2         4     0\n"));
    CHECK(contains(text, "\n'level'                               -inf      -inf     1      -inf     1\n"));
    CHECK(contains(text, "\n'all', bucket 0                        2.5\n"));
    CHECK(contains(text, "\n'none', bucket 0\n"));
    CHECK(contains(text, "\n'huge', bucket 0                  1.7e+308  1.7e+308     1  1.7e+308     1\n"));
    const std::string names(40, 'x');
    for (std::size_t i = 0; i < 40; ++i) record.add_number(call_site::named(names.c_str() + i), 0, 0, 1);
    CHECK(contains(report::step_table(record), "\nand 13 more numbers\n"));
}

TEST_CASE("of many ranks the extremes have rows, and those of a finding unless it names more than 32")
{
    step_record record;
    record.ranks = 16384;
    record.losses.assign(16384, 2);
    record.loss.minimum_rank = 7;
    record.loss.maximum_rank = 11;
    record.findings = {{.ranks = {500}, .what = finding_kind::loss}, {.what = finding_kind::non_finite}};
    for (int rank = 1000; rank < 1033; ++rank) record.findings[1].ranks.push_back(rank);
    const auto has_row = [&record](int rank) {
        return contains(report::step_table(record), '\n' + std::to_string(rank) + "  ");
    };
    CHECK((has_row(7) && has_row(11) && has_row(500)));
    CHECK((!has_row(0) && !has_row(1000) && !has_row(1032)));
    CHECK(contains(report::step_table(record), "and 23 others"));
    record.findings[1].ranks.pop_back();
    CHECK((has_row(1000) && has_row(1031) && !has_row(1032)));
}

TEST_CASE("the pooled cosine is shown where no rank has its own")
{
    step_record record = sample_step(17);
    CHECK_FALSE(contains(report::step_table(record), "pooled cosine"));
    record.cosine.leave_one_out.clear();
    record.cosine.pooled = 0.625;
    CHECK(contains(report::step_table(record), "\npooled cosine of all ranks: 0.625\n"));
}

TEST_CASE("every check is described with rank and bucket, and in a sentence of its own")
{
    std::set<std::string> sentences;
    for (int kind = 0; kind <= static_cast<int>(finding_kind::of_part); ++kind) {
        const auto what = static_cast<finding_kind>(kind);
        const std::string text = report::describe({.ranks = {5}, .call = 3, .what = what});
        CHECK(contains(text, "bucket 3: rank 5 "));
        CHECK(contains(text, name(what)));
        CHECK(sentences.insert(facts_of(what).sentence.named).second);
        CHECK_FALSE(contains(text, "{")); // all is filled in
        CHECK_FALSE(contains(report::describe({.call = 3, .what = what}), "{"));
    }
}

TEST_CASE("a call that some ranks have no part in is told where a check names it")
{
    step_record record = sample_step(1);
    call_record call;
    call.without_input = 1;
    call.without_result = 2;
    record.calls = {call_record(), call};
    CHECK(!contains(report::step_table(record), "got no result"));
    record.findings = {{.ranks = {1}, .call = 1, .what = finding_kind::result_differs}};
    CHECK(contains(report::step_table(record), "\nnote: bucket 1: 1 rank sent nothing, 2 ranks got no result\n"));
}

TEST_CASE("a table names results that overflow if they are less than four times as large")
{
    step_record record = sample_step(1);
    record.calls.resize(2);
    record.calls[0].headroom = 3.9;
    record.calls[1].headroom = 4;
    CHECK(contains(report::step_table(record), "note: bucket 0: its result may be 3.9 times larger before float overflows"));
    CHECK(!contains(report::step_table(record), "note: bucket 1"));
}

TEST_CASE("what a part finds is told in its own words")
{
    finding found{.ranks = {2}, .call = 0, .what = finding_kind::of_part, .statistic = 2, .threshold = 1,
        .other = {.site = call_site::named("elements that the clip changes:")}};
    const std::string told = "bucket 0: rank 2 did not pass a check of the program's own (of_part): ";
    CHECK(report::describe(found) == told + "elements that the clip changes: 2, limit 1");
    found.other = {};
    found.threshold = 0;
    CHECK(report::describe(found) == told + "2");
}

TEST_CASE("a weight is told as a fraction where it may be that, and with the rank whose result shows it")
{
    CHECK(report::detail::weight_text(0.1251, 0.001) == "1/8");
    CHECK(report::detail::weight_text(-2.999, 0.01) == "-3");
    CHECK(report::detail::weight_text(0.1437, 0.0001) == "0.1437");
    CHECK(report::detail::weight_text(0.001, 0.01) == "0");
    CHECK(contains(report::describe({.ranks = {1}, .other_rank = 0, .call = 0, .what = finding_kind::weights,
                       .statistic = 0.5, .threshold = 0.01}),
        "(weights): in the result of rank 0, 1/2 times that of a mean"));
}

TEST_CASE("the advice of a verdict on quantisation depends on what was wrong")
{
    using enum quantisation_verdict;
    CHECK(report::quantisation_advice({.outcome = {}, .verdict = harmful, .nonfinite_results = 1})
        == "sums overflow: scale the gradients down");
    CHECK(report::quantisation_advice({.outcome = {}, .verdict = harmful, .crest = 3, .nonfinite = 1, .nonfinite_results = 1})
        == "heavy tails: rotate, or halve the block");
    CHECK(report::quantisation_advice({.outcome = {}, .verdict = harmful, .crest = 2.8}) == "a format with more bits for this call");
    CHECK(report::quantisation_advice({.outcome = {}, .verdict = biased, .coherence = 2})
        == "the ranks' errors are alike: round stochastically");
    CHECK(report::quantisation_advice({.outcome = {}, .verdict = biased, .coherence = 1})
        == "round stochastically, or feed the errors back");
    CHECK(report::quantisation_advice({.outcome = {}, .verdict = visible, .noise_ratio = 1e-4}).empty());
}

TEST_CASE("of values that are digests no number is told")
{
    finding found{.ranks = {7}, .other_rank = 0, .what = finding_kind::value_repeats, .site = call_site::named("samples"),
        .number = {.value = 4.5e18, .expected = 4.5e18, .since = 4}};
    CHECK(report::describe(found)
        == "'samples': rank 7 held the value of another rank, where each must have its own (value_repeats): since step 4");
    found.what = finding_kind::value_differs;
    CHECK(report::describe(found)
        == "'samples': rank 7 held another value than the other ranks, where all must have the same (value_differs): since step 4");
    found.number = {.value = 2, .expected = 3, .since = 4}; // the control
    CHECK(contains(report::describe(found), " (value_differs): 2, most ranks have 3, since step 4"));
    found.number.expected = 2.00001;
    CHECK(contains(report::describe(found), " (value_differs): other bits of 2, since step 4"));
}

TEST_CASE("a finding without a rank says so")
{
    CHECK(report::describe({.call = 3, .what = finding_kind::result_differs}) 
        == "bucket 3: some rank held other bits of a result than the other ranks (result_differs): which bits are right is not known");
    const unusual_number number{.value = 8, .expected = 7, .usual_difference = 0.5, .steps = 384};
    CHECK(report::describe({.what = finding_kind::loss, .number = number})
        == "whole step: some rank had a loss that stands out (loss): a loss, 8, is 1 above the 7 expected from the other ranks; the largest such difference "
           "in the last 384 steps was 0.5");
}

TEST_CASE("an unusual number is told with what was expected, and with the largest difference of late")
{
    const auto text_of = [](finding_kind what, int call, const unusual_number& number) {
        return report::describe({.ranks = {5}, .call = call, .what = what, .number = number});
    };
    const std::string rest = " expected from the other ranks; the largest such difference in the last 384 steps was ";
    unusual_number number{.value = 3.1, .expected = 2, .usual_difference = 0.2, .steps = 384};
    CHECK(text_of(finding_kind::loss, -1, number) == "whole step: rank 5 had a loss that stands out (loss): its loss, 3.1, is 1.1 above the 2" + rest + "0.2");
    CHECK(text_of(finding_kind::gradient_norm, 3, number)
        == "bucket 3: rank 5 had a gradient norm that stands out (gradient_norm): the norm of its gradient, 3.1, is 1.1 above the 2" + rest + "0.2");
    CHECK(contains(text_of(finding_kind::gradient_norm, -1, number), "whole gradient, 3.1, is 1.1 above the 2" + rest));
    CHECK(text_of(finding_kind::largest_magnitude, 3, number)
        == "bucket 3: rank 5 had a gradient element whose size stands out (largest_magnitude): the largest element of its gradient, 3.1, is 1.1 above the 2" + rest + "0.2");
    const unusual_number lateness{.value = 12e6, .expected = -2e6, .usual_difference = 25000, .steps = 384};
    CHECK(contains(text_of(finding_kind::late, -1, lateness), "12 ms, is 14 ms above the -2 ms" + rest + "0.025 ms"));
    number.value = -0.25;
    CHECK(text_of(finding_kind::cosine, -1, number)
        == "whole step: rank 5 had a gradient in a direction that stands out (cosine): the cosine of its gradient with the others', -0.25, is 2.25 below the 2" + rest + "0.2");
    CHECK_FALSE(contains(text_of(finding_kind::cosine, -1, number), "since step"));
    number.is_new_level = true;
    number.since = 1204;
    CHECK(contains(text_of(finding_kind::cosine, -1, number), "was 0.2; so since step 1,204, and not told again while"));
}

TEST_CASE("NaN that most ranks have is told with its first step")
{
    finding spread{.what = finding_kind::non_finite, .statistic = 6};
    spread.number = {.is_new_level = true, .since = 1204};
    CHECK(report::describe(spread)
        == "whole step: most ranks sent NaN or infinity (non_finite): 6 ranks; most have done so since step 1,204, so the weights have it");
    spread.ranks = {2}; // the control: a loss, and elements
    spread.number = {};
    CHECK(report::describe(spread) == "whole step: rank 2 sent NaN or infinity (non_finite): in its loss");
    spread.call = 0;
    CHECK(report::describe(spread) == "bucket 0: rank 2 sent NaN or infinity (non_finite): in 6 elements");
}

TEST_CASE("a duplicate is described with the other rank")
{
    CHECK(report::describe({.ranks = {6}, .other_rank = 5, .call = 3, .what = finding_kind::duplicate})
        == "bucket 3: rank 6 sent the data of another rank (duplicate): the same bits as rank 5");
    CHECK(report::describe({.ranks = {5}, .other_rank = 5, .call = 3, .what = finding_kind::duplicate})
        == "bucket 3: rank 5 sent the data of another rank (duplicate): the same bits as another rank");
}

TEST_CASE("damaged codes are described with their sender, and damaged results with the coherence")
{
    CHECK(report::describe({.ranks = {1}, .other_rank = 3, .call = 2, .what = finding_kind::codes_differ, .statistic = 1})
        == "bucket 2: rank 1 received other codes than were sent (codes_differ): those of rank 3");
    CHECK(report::describe({.call = 2, .what = finding_kind::codes_differ, .statistic = 500, .threshold = 8})
        == "bucket 2: some rank received other codes than were sent (codes_differ): the result is off by more than codes can be, coherence 500, limit 8");
}

TEST_CASE("evidence over the run is told as odds")
{
    rank_evidence of{.metric = finding_kind::gradient_norm, .call = 3, .odds = 345678.9, .recurrence = 1e9, .since = 1204, .extreme = 37};
    CHECK(report::describe(of)
        == "the norm of its gradient was the largest in 37 steps since step 1,204; 1 : 340,000 against chance");
    CHECK(report::describe({.ranks = {5}, .call = 3, .what = finding_kind::unlike, .evidence = of})
        == "bucket 3: rank 5 was unlike the other ranks over many steps (unlike): " + report::describe(of));
    of.call = -1;
    of.side = rank_side::farthest;
    of.odds = 12.7;
    of.among = 8;
    of.extreme = 1;
    CHECK(report::describe(of)
        == "the norm of its whole gradient was among the 8 farthest from the others' in 1 step since step 1,204; "
           "1 : 12 against chance, and chance does so once in 1,000,000,000 steps");
    of.odds = 0.5;
    of.metric = finding_kind::late;
    of.side = rank_side::largest;
    of.recurrence = 3e20;
    CHECK(report::describe(of)
        == "its delay at the calls was among the 8 largest in 1 step since step 1,204; chance does so once in 3.0e+20 steps");
    CHECK(report::detail::round_count(0) == "0");
    CHECK(report::detail::round_count(99.9) == "99");
    CHECK(report::detail::round_count(101) == "100");
    CHECK(report::detail::round_count(1e15) == "1.0e+15");
    CHECK(report::detail::round_count(detail::infinity()) == "inf");
    CHECK(report::detail::with_commas(1234567) == "1,234,567");
    CHECK(report::detail::with_commas(123) == "123");

    step_record record = sample_step(17);
    record.evidence_by_rank.resize(8);
    CHECK_FALSE(contains(report::step_table(record), "unlike"));
    record.silent_evidence = 1;
    CHECK(contains(report::step_table(record), "\nno evidence over the run from 1 number (losses, norms): ranks keep their places in them from step to step, "
                                                 "as if they differed on purpose\n"));
    record.evidence_by_rank[6] = of;
    record.evidence_by_rank[6].unlike = true;
    CHECK(contains(report::step_table(record), "\nunlike the others: rank 6, " + report::describe(of) + "\n"));
}

TEST_CASE("ranks that hold the same bits have one line for a group of ranks and a kind of call")
{
    step_record record;
    record.begin(3, 8, report_mode::gather, 4);
    record.calls[2].call = collective::reduce_scatter;
    const auto add = [&](int call, const std::vector<int>& ranks) {
        for (const int rank : ranks)
            record.add({.ranks = {rank}, .other_rank = ranks[0], .call = call, .what = finding_kind::duplicate, .statistic = 1});
    };
    const auto findings = [&] {
        const std::string table = report::step_table(record);
        return table.substr(table.find("finding: "));
    };
    for (const int call : {0, 1, 2}) add(call, {0, 1, 2, 3, 4, 5, 6, 7});
    const std::string copies = " sent the data of another rank (duplicate): the same bits as each other";
    CHECK(findings() == "finding: bucket 0: ranks 0, 1, 2, 3, 4, 5, 6 and 7" + copies + "; and in 1 more all_reduce\n"
        "finding: bucket 2: ranks 0, 1, 2, 3, 4, 5, 6 and 7" + copies + '\n');
    record.findings.clear();
    record.findings.push_back({.ranks = {1}, .call = 0, .what = finding_kind::non_finite, .statistic = 1});
    add(0, {1, 6});
    add(0, {2, 4});
    add(1, {2, 4});
    add(3, {1, 4});
    record.findings.push_back({.ranks = {7}, .call = 3, .what = finding_kind::stale, .statistic = 1});
    CHECK(findings() == "finding: bucket 0: rank 1 sent NaN or infinity (non_finite): in 1 element\n"
        "finding: bucket 0: ranks 1 and 6" + copies + "\n"
        "finding: bucket 0: ranks 2 and 4" + copies + "; and in 1 more all_reduce\n"
        "finding: bucket 3: ranks 1 and 4" + copies + "\n"
        "finding: bucket 3: rank 7 sent the same data as in the last such call (stale)\n");
    CHECK(record.findings.size() == 6);
}

TEST_CASE("a rank that is unlike by its lateness is told with its median, and no other rank is")
{
    step_record record = sample_step(17);
    record.lateness.last = 6;
    record.lateness_by_rank.resize(8);
    record.lateness_by_rank[6] = {
        .steps = 90, .latest = 5e6, .behind = 2e6, .behind_before = 1.5e6, .share_last = 0.75, .gain = 1.25e6, .gain_before = 1e6};
    record.evidence_by_rank.resize(8);
    const auto text = [&] { return report::step_table(record) + report::json_line("", record); };
    CHECK_FALSE(contains(text(), "\nlate: "));
    CHECK(contains(text(), "\"late\":[]"));
    record.evidence_by_rank[6] = {.metric = finding_kind::loss, .odds = 1000, .unlike = true};
    CHECK_FALSE(contains(text(), "\nlate: "));
    CHECK(contains(text(), "\"late\":[]"));
    record.evidence_by_rank[6].metric = finding_kind::late;
    CHECK(contains(text(), "\nlate: rank 6, by 2 ms in the median of 90 steps, 1.5 ms of it between the calls; last in 75 % of them; "
                           "a step would be 1.25 ms shorter if rank 6 came with the next\n"));
    CHECK(contains(text(), "\"late\":[{\"rank\":6,\"behind\":2"));
    record.evidence_by_rank[6].unlike = false;
    CHECK_FALSE(contains(text(), "\nlate: "));
    record.evidence_by_rank.clear(); // nothing is gathered
    CHECK(contains(text(), "\"late\":[]"));
}

TEST_CASE("table and JSON say how much shorter a step would be if its last rank came with the next")
{
    step_record record = sample_step(17);
    record.lateness = {.calls = 3, .present = 8, .last = 6, .behind = 2e6, .behind_before = 1e6, .stands_out = true};
    record.lateness_by_rank.resize(8);
    record.lateness_by_rank[6].gain = 12e6;
    record.lateness_by_rank[6].gain_before = 9e6;
    const std::string sentence = "last to the calls: rank 6 came 2 ms after the median of the other ranks; they waited for it; "
                                 "a step would be 12 ms shorter if rank 6 came with the next";
    CHECK(contains(report::step_table(record), '\n' + sentence + '\n'));
    CHECK(contains(report::json_line("", record), "\"stands_out\":true,\"gain\":1.2e+07,\"gain_before\":9e+06,\"latest\":["));
    for (const double none : {detail::not_a_number(), 0.0}) { // the control
        record.lateness_by_rank[6].gain = none;
        CHECK(contains(report::step_table(record), "they waited for it\n"));
    }
}

} // namespace collprobe::testing::table_test
