// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/alarm/alarms.hpp>
#include <collprobe/detail/math.hpp>

#include "support/count_allocations.hpp"
#include "support/errors.hpp"

namespace collprobe::testing::alarms_test {
namespace {

using found = std::vector<finding>;

constexpr finding_kind numbers[]
    = {finding_kind::loss, finding_kind::gradient_norm, finding_kind::largest_magnitude, finding_kind::cosine, finding_kind::late};
constexpr finding_kind blames[] = {finding_kind::non_finite, finding_kind::stale, finding_kind::result_differs, finding_kind::shard_differs,
    finding_kind::codes_differ};

std::vector<int> list_of(int rank) { return rank < 0 ? std::vector<int>{} : std::vector<int>{rank}; }
step_record record_of(std::uint64_t step, int ranks, found findings = {}, std::vector<call_record> calls = {})
{
    step_record record;
    record.step = step;
    record.ranks = ranks;
    record.findings = std::move(findings);
    record.calls = std::move(calls);
    return record;
}
/// The evidence over the run lasts for that rank.
step_record with_evidence(step_record record, int rank)
{
    record.evidence_by_rank.resize(static_cast<std::size_t>(record.ranks));
    record.evidence_by_rank[static_cast<std::size_t>(rank)].unlike = true;
    return record;
}
finding exact(finding_kind what, int rank, int call = 0, int other_rank = -1)
{
    return {.ranks = list_of(rank), .other_rank = other_rank, .call = call, .what = what, .statistic = 1};
}
/// A number that is `excess` times its limit off, which healthy steps have at `rate`.
finding number(finding_kind what, int rank, double rate = 1e-9, double excess = 1.5, int call = 0)
{
    finding one{.ranks = list_of(rank), .call = call, .what = what, .statistic = 10 * excess, .threshold = 10, .exact = false};
    one.false_alarms_per_step = rate;
    one.number = {.value = 2 + excess, .expected = 2, .usual_difference = 0.5, .steps = 384};
    return one;
}
/// The evidence over the run, when it is told.
finding unlike_over_run(int rank, finding_kind metric = finding_kind::gradient_norm)
{
    finding one{.ranks = list_of(rank), .call = 2, .what = finding_kind::unlike, .statistic = 4000, .threshold = 100, .exact = false};
    one.false_alarms_per_step = 0.01;
    one.evidence = {.metric = metric, .call = 2, .odds = 4000, .since = 5};
    return one;
}
/// A call that was audited, with what the audit found.
call_record audited(collective call, damage where)
{
    call_record bad;
    bad.call = call;
    bad.results_agree = where == damage::reduce || where == damage::none;
    bad.audit.checked = true;
    bad.audit.where = where;
    bad.audit.conserved = where != damage::reduce;
    return bad;
}

/// The alarms of a record, as a probe leaves it.
found judged(alarms& watch, step_record record)
{
    record.settle_findings();
    const view<const finding> raised = watch.judge(record);
    return {raised.begin(), raised.end()};
}
/// In short, as "stale 3 input skip; shard_differs 1,2 broadcast resync from 0": kind, ranks, damage, advice, source.
std::string in_words(const found& raised)
{
    std::string text;
    for (const finding& each : raised) {
        text += (text.empty() ? "" : "; ") + std::string(name(each.what));
        for (const int rank : each.ranks) text += (rank == each.ranks[0] ? " " : ",") + std::to_string(rank);
        text += std::string(" ") + name(each.where) + " " + name(each.action);
        if (each.source >= 0) text += " from " + std::to_string(each.source);
    }
    return text;
}
std::string told(alarms& watch, const step_record& record) { return in_words(judged(watch, record)); }
/// By one that has seen nothing before.
std::string told(const step_record& record, const alarm_options& options = {})
{
    alarms watch(record.ranks, options);
    return told(watch, record);
}
std::string told(int ranks, const found& findings) { return told(record_of(1, ranks, findings)); }
bool is_out(const std::string& text) { return contains(text, "quarantine"); }

} // namespace

TEST_CASE("a healthy step raises no alarm, and the calls that no check has looked at are counted")
{
    alarms watch(8);
    for (std::uint64_t step = 0; step < 100; ++step) {
        CHECK(told(watch, record_of(step, 8)) == "");
        CHECK(told(watch, with_evidence(record_of(step, 8), 3)) == ""); // it was told when it began
        CHECK(told(watch, record_of(step, 8, {}, {audited(collective::all_reduce, damage::none)})) == "");
        CHECK(watch.unseen_calls() == 0);
    }
    step_record record = record_of(100, 8);
    record.unprobed_calls = 2;
    record.unread_calls = 3;
    CHECK(told(watch, record) == "");
    CHECK(watch.unseen_calls() == 5);
}

TEST_CASE("each exact check alarms at once, with what it found, and advises what fits it")
{
    using kind = finding_kind;
    const struct {
        finding one;
        const char* alarm;
    } cases[] = {
        {exact(kind::non_finite, 3), "non_finite 3 input skip"},
        {exact(kind::stale, 3), "stale 3 input skip"},
        {exact(kind::duplicate, 3), "duplicate 3 duplicated_data recheck"},
        {exact(kind::result_differs, 3), "result_differs 3 broadcast resync from 0"},
        {exact(kind::result_differs, 0), "result_differs 0 broadcast resync from 1"},
        {exact(kind::result_differs, -1), "result_differs unknown skip"}, // no majority
        {exact(kind::shard_differs, 0), "shard_differs 0 broadcast resync from 1"},
        {exact(kind::shard_differs, -1), "shard_differs unknown skip"},
        {exact(kind::value_differs, 0), "value_differs 0 unknown resync from 1"},
        {exact(kind::value_differs, -1), "value_differs unknown resync"}, // restore from elsewhere
        {exact(kind::sum_differs, -1), "sum_differs unknown skip"},
        {exact(kind::codes_differ, -1), "codes_differ reduce skip"},
        {exact(kind::codes_differ, 3, 0, 2), "codes_differ 3 unknown skip"}, // a message of rank 2
        {exact(kind::quantisation, 3), "quantisation 3 reduce none"},
        {exact(kind::weights, 3), "weights 3 reduce recheck"},
        {exact(kind::overflow, -1), "overflow reduce skip"},
        {exact(kind::zeros, 3), "zeros 3 input recheck"},
        {exact(kind::call_missing, -1), "call_missing none recheck"},
        {exact(kind::other_call, 3), "other_call 3 input skip"},
        {exact(kind::value_repeats, 3), "value_repeats 3 duplicated_data recheck"},
        {exact(kind::value_repeats, -1), "value_repeats none recheck"}, // samples that are not drawn
        {exact(kind::norm_differs, -1), "norm_differs none recheck"},
        {exact(kind::unexplained, -1), "unexplained reduce recheck"},
    };
    for (const auto& each : cases) {
        CHECK(told(8, {each.one}) == each.alarm);
        CHECK(told(record_of(7, 8, {each.one}, {audited(collective::all_reduce, damage::none)})) == each.alarm);
    }
    finding one = exact(kind::sum_differs, -1, 5);
    one.by_length = true;
    one.site.name = "wte";
    alarms watch(8);
    const found raised = judged(watch, record_of(7, 8, {one}));
    REQUIRE(raised.size() == 1);
    CHECK(raised[0].step == 7);
    CHECK(raised[0].call == 5);
    CHECK(std::string(raised[0].site.name) == "wte");
    CHECK(raised[0].statistic == 1);
    CHECK(raised[0].by_length);
    CHECK(raised[0].false_alarms_per_step == 0);
}

TEST_CASE("NaN that most ranks have is told without a rank, and since when")
{
    alarms watch(8);
    for (std::uint64_t step = 41; step < 71; ++step) {
        finding spread{.what = finding_kind::non_finite, .statistic = 6};
        spread.number = {.is_new_level = true, .since = 40};
        const found raised = judged(watch, record_of(step, 8, {spread}));
        CHECK(in_words(raised) == "non_finite unknown resync"); // the weights have it, and no rank is known to hold others
        CHECK(raised.at(0).statistic == 6);
        CHECK(raised[0].number.is_new_level);
        CHECK(raised[0].number.since == 40);
    }
}

TEST_CASE("evidence over the run alarms at once, with its odds, its rank and its metric")
{
    for (const finding_kind metric : {finding_kind::gradient_norm, finding_kind::non_finite, finding_kind::late}) {
        const bool is_late = metric == finding_kind::late;
        alarms watch(8);
        const found raised = judged(watch, with_evidence(record_of(7, 8, {unlike_over_run(3, metric)}), 3));
        CHECK(in_words(raised) == (is_late ? "unlike 3 none recheck" : "unlike 3 input recheck")); // alone it takes no rank out
        CHECK(raised.at(0).false_alarms_per_step == 0.01); // of the run
        CHECK(raised[0].evidence.metric == metric);
        CHECK(raised[0].evidence.odds == 4000);
        CHECK(raised[0].evidence.since == 5);
        CHECK(told(8, {unlike_over_run(-1, metric)}) == (is_late ? "unlike none recheck" : "unlike unknown recheck")); // groups
    }
}

TEST_CASE("an alarm of ranks with different others tells of none")
{
    const auto other_of = [](const found& findings) {
        alarms watch(8);
        return judged(watch, record_of(1, 8, findings)).at(0).other_rank;
    };
    const finding first = exact(finding_kind::shard_differs, 2, 1, 1), second = exact(finding_kind::shard_differs, 5, 1, 3);
    CHECK(other_of({first}) == 1);
    CHECK(other_of({first, second}) == -1);
    CHECK(told(8, {first, second}) == "shard_differs 2,5 broadcast resync from 0");
}

TEST_CASE("the audit's attribution is the alarm's damage")
{
    for (const damage where : {damage::input, damage::reduce, damage::broadcast, damage::unknown}) {
        const std::vector<call_record> calls{{}, audited(collective::all_reduce, where)};
        const std::string place = name(where);
        CHECK(told(record_of(1, 4, {exact(finding_kind::sum_differs, -1, 1)}, calls)) == "sum_differs " + place + " skip");
        for (const finding_kind what : {finding_kind::result_differs, finding_kind::shard_differs}) {
            const std::string rank = std::string(name(what)) + " 2 ";
            CHECK(told(record_of(2, 4, {exact(what, 2, 1)}, calls)) == rank + place + " resync from 0");
            // The controls: a call that was not audited, and one that the record has not.
            for (const int call : {0, 2, -1})
                CHECK(told(record_of(3, 4, {exact(what, 2, call)}, calls)) == rank + "broadcast resync from 0");
        }
    }
    // Damage of the input is known from the input itself, whatever the audit of its call says.
    CHECK(told(record_of(1, 4, {exact(finding_kind::non_finite, 2)}, {audited(collective::all_reduce, damage::unknown)}))
        == "non_finite 2 input skip");
}

TEST_CASE("of a shard that its owner sent wrong no rank holds the right bits")
{
    const finding owner = exact(finding_kind::shard_differs, 2, 0, 2), receiver = exact(finding_kind::shard_differs, 3, 0, 1);
    CHECK(told(8, {owner, receiver}) == "shard_differs 2 broadcast skip; shard_differs 3 broadcast resync from 0");
    // Too many to be taken out: still there is no rank to restore them from.
    alarms watch(4);
    for (std::uint64_t step = 0; step < 10; ++step)
        CHECK(told(watch, record_of(step, 4, {owner, exact(finding_kind::shard_differs, 3, 0, 3)})) == "shard_differs 2,3 broadcast skip");
}

TEST_CASE("no direction is judged where the audit finds a reduction wrong")
{
    const call_record whole = audited(collective::all_reduce, damage::none);
    call_record unaudited = audited(collective::all_reduce, damage::broadcast);
    unaudited.audit = {};
    const struct {
        call_record call;
        bool is_judged;
    } cases[] = {{whole, true}, {unaudited, true}, {audited(collective::all_reduce, damage::reduce), false},
        {audited(collective::all_reduce, damage::broadcast), false},
        {audited(collective::reduce_scatter, damage::reduce), false},
        {audited(collective::all_gather, damage::broadcast), true}};
    for (const auto& each : cases) {
        const found both{number(finding_kind::cosine, 5), number(finding_kind::loss, 5)};
        CHECK(told(record_of(1, 8, both, {whole, each.call}))
            == (each.is_judged ? "cosine 5 input recheck; loss 5 input recheck" : "loss 5 input recheck"));
    }
}

TEST_CASE("a number alarms if its rate is at most that of the options, other findings whatever it is")
{
    const double stated = alarm_options().false_alarms_per_step;
    CHECK(stated == 1e-7);
    for (const finding_kind what : numbers) {
        const std::string alarm = std::string(name(what)) + (what == finding_kind::late ? " 5 none none" : " 5 input recheck");
        const auto at_rate = [&](double rate, double most) { return told(record_of(1, 8, {number(what, 5, rate)}), {most}); };
        for (const double rate : {stated, std::nextafter(stated, 0.0), 1e-30}) CHECK(at_rate(rate, stated) == alarm);
        for (const double rate : {std::nextafter(stated, 1.0), 1e-4, 1e-3}) {
            CHECK(at_rate(rate, stated) == "");
            CHECK(at_rate(rate, 1e-4) == (rate > 1e-4 ? "" : alarm));
        }
    }
    for (const finding_kind what : {finding_kind::sum_differs, finding_kind::codes_differ, finding_kind::quantisation,
             finding_kind::weights, finding_kind::unlike}) {
        CAPTURE(name(what));
        alarms watch(8, {.false_alarms_per_step = 1e-12});
        const found raised = judged(watch, record_of(1, 8, {number(what, 5, 0.5)}));
        REQUIRE(raised.size() == 1);
        CHECK(raised[0].action <= advice::recheck); // what is not certain drops no step
        CHECK(raised[0].false_alarms_per_step == 0.5);
        CHECK(raised[0].threshold == 10);
    }
}

TEST_CASE("numbers of several calls make one alarm with the strongest evidence and its number")
{
    const finding_kind what = finding_kind::gradient_norm;
    const auto raised_of = [](const found& findings) {
        alarms watch(8);
        return judged(watch, record_of(1, 8, findings));
    };
    const found raised = raised_of({number(what, 5, 1e-8, 1.1, 0), number(what, 5, 1e-11, 2.5, 3), number(what, 2, 1e-9, 1.2, 1),
        number(finding_kind::largest_magnitude, 5, 1e-10, 4, 3)}); // another number is another alarm
    CHECK(in_words(raised) == "gradient_norm 2,5 input recheck; largest_magnitude 5 input recheck");
    CHECK(raised.at(0).call == 3);
    CHECK(raised[0].statistic == 25);
    CHECK(raised[0].threshold == 10);
    CHECK(raised[0].number.value == 4.5);
    CHECK(raised[0].number.steps == 384);
    CHECK(raised[0].false_alarms_per_step == 1e-8); // what holds for each rank that it names

    // How far a number is off is told by its own limit.
    finding wide = number(what, 5, 1e-9, 1.5, 1);
    wide.statistic = 100;
    wide.threshold = 90;
    CHECK(raised_of({wide, number(what, 5, 1e-9, 1.2, 2)}).at(0).call == 2);
    CHECK(raised_of({number(what, 5, 1e-9, 1.2, 2), wide}).at(0).call == 2);

    // Exact findings of several calls are several alarms; so are those with and without a rank, and those of one call
    // about different damage.
    const found several[] = {{exact(finding_kind::result_differs, 5, 0), exact(finding_kind::result_differs, 5, 3)},
        {number(finding_kind::late, 5), number(finding_kind::late, -1)},
        {exact(finding_kind::weights, -1), exact(finding_kind::weights, 5)},
        {unlike_over_run(5), unlike_over_run(5, finding_kind::late)}};
    for (const found& two : several) {
        const found both = raised_of(two);
        REQUIRE(both.size() == 2);
        for (std::size_t i = 0; i < 2; ++i) {
            CHECK(both[i].what == two[i].what); // in the order of the findings
            CHECK(both[i].call == two[i].call);
            CHECK(both[i].ranks == two[i].ranks);
        }
    }
}

TEST_CASE("numbers name a quarter of the ranks and at most ten, and neither of two")
{
    const struct {
        int ranks;
        int limit;
    } cases[] = {{2, 0}, {3, 1}, {4, 1}, {7, 1}, {8, 2}, {16, 4}, {40, 10}, {1024, 10}};
    for (const auto& each : cases) {
        CAPTURE(each.ranks);
        found few, many;
        for (int rank = each.limit; rank >= 0; --rank) {
            many.push_back(number(finding_kind::loss, rank, 1e-9, 1.5, rank));
            if (rank < each.limit) few.push_back(many.back());
        }
        CHECK(told(each.ranks, many) == "loss unknown recheck");
        if (each.limit == 0) continue;
        std::string names = "0";
        for (int rank = 1; rank < each.limit; ++rank) names += "," + std::to_string(rank);
        CHECK(told(each.ranks, few) == "loss " + names + " input recheck");
    }
    CHECK(told(2, {number(finding_kind::loss, -1)}) == "loss unknown recheck");
    CHECK(told(with_evidence(record_of(3, 2, {number(finding_kind::cosine, 1)}), 1)) == "cosine unknown recheck");
    // What a rank itself shows needs no comparison. Of one rank, none is left to restore from.
    CHECK(told(2, {exact(finding_kind::non_finite, 1)}) == "non_finite 1 input skip");
    CHECK(told(1, {exact(finding_kind::non_finite, 0)}) == "non_finite 0 input skip");
    CHECK(told(1, {exact(finding_kind::shard_differs, 0)}) == "shard_differs 0 broadcast skip");
}

TEST_CASE("an alarm of lateness advises nothing, whatever lasts, and of more ranks than are named tells no damage")
{
    alarms watch(8);
    for (std::uint64_t step = 0; step < 30; ++step)
        CHECK(told(watch, with_evidence(record_of(step, 8, {number(finding_kind::late, 6)}), 6)) == "late 6 none none");
    CHECK(told(8, {number(finding_kind::late, 1), number(finding_kind::late, 2), number(finding_kind::late, 6)}) == "late none none");
}

TEST_CASE("a rank with exact findings in four of the last twenty steps is to be taken out")
{
    for (const finding_kind what : blames) {
        CAPTURE(name(what));
        for (const std::uint64_t last : {3u, 19u, 20u, 40u}) {
            CAPTURE(last);
            alarms watch(8);
            // Two findings of a step count once.
            const found both{exact(what, 6, 0), exact(what, 6, 1)};
            const std::string before = told(8, both);
            CHECK_FALSE(is_out(before));
            for (std::uint64_t step = 0; step < last; ++step)
                CHECK(told(watch, record_of(100 + step, 8, step < 3 ? both : found())) == (step < 3 ? before : ""));
            const std::string then = told(watch, record_of(100 + last, 8, both));
            if (last < 20) CHECK(is_out(then));
            else CHECK(then == before);
        }
    }
}

TEST_CASE("findings of different checks that may blame a rank add up")
{
    alarms watch(8);
    for (const finding_kind what : {finding_kind::non_finite, finding_kind::stale, finding_kind::shard_differs})
        CHECK_FALSE(is_out(told(watch, record_of(static_cast<std::uint64_t>(what), 8, {exact(what, 6)}))));
    CHECK(told(watch, record_of(50, 8, {exact(finding_kind::result_differs, 6), exact(finding_kind::result_differs, 2)}))
        == "result_differs 6 broadcast quarantine; result_differs 2 broadcast resync from 0"); // the first of rank 2
}

TEST_CASE("what tells of no fault of the rank takes it out in no number of steps")
{
    found findings{number(finding_kind::codes_differ, 6), unlike_over_run(6)}; // codes that may be chance
    for (const finding_kind what : {finding_kind::duplicate, finding_kind::sum_differs, finding_kind::quantisation, finding_kind::weights})
        findings.push_back(exact(what, 6));
    for (const finding_kind what : numbers) findings.push_back(number(what, 6));
    for (const finding& each : findings) {
        CAPTURE(name(each.what));
        alarms watch(8);
        for (std::uint64_t step = 0; step < 30; ++step) {
            const std::string text = told(watch, record_of(step, 8, {each}));
            CHECK((text != "" && !is_out(text)));
        }
    }
}

TEST_CASE("a step counts once, and steps are forgotten where the record or the caller says so")
{
    const auto takes_out = [](alarms& watch, std::uint64_t step, bool has_forgotten = false) {
        step_record record = record_of(step, 8, {exact(finding_kind::stale, 6)});
        record.forgot = has_forgotten;
        return is_out(told(watch, record));
    };
    alarms watch(8);
    for (std::uint64_t step = 0; step < 3; ++step) CHECK_FALSE(takes_out(watch, step));
    for (int i = 0; i < 30; ++i) CHECK_FALSE(takes_out(watch, 2)); // the same step
    CHECK(takes_out(watch, 1000)); // steps that are missing do not count
    watch.reset();
    for (std::uint64_t step = 0; step < 4; ++step) CHECK(takes_out(watch, step) == (step == 3));
    for (std::uint64_t step = 4; step < 8; ++step) CHECK(takes_out(watch, step, step == 4) == (step == 7));
}

TEST_CASE("evidence that lasts takes out the rank that an alarm names")
{
    const auto lasting = [](const finding& one, int rank = 6) { return with_evidence(record_of(1, 8, {one}), rank); };
    found findings;
    for (const finding_kind what : blames) findings.push_back(exact(what, 6));
    for (const finding_kind what : numbers) findings.push_back(number(what, 6));
    for (const finding& each : findings) {
        CAPTURE(name(each.what));
        const std::string first = told(8, {each});
        CHECK_FALSE(is_out(first));
        CHECK(is_out(told(lasting(each))) == (each.what != finding_kind::late));
        // The controls: another rank's evidence, and evidence that is no more.
        CHECK(told(lasting(each, 5)) == first);
        step_record ended = lasting(each);
        ended.evidence_by_rank[6].unlike = false;
        ended.evidence_by_rank[6].odds = 1e9;
        CHECK(told(ended) == first);
    }
    // A number that does not alarm takes no rank out, nor do equal data, nor the evidence itself.
    CHECK(told(lasting(number(finding_kind::loss, 6, 1e-5))) == "");
    for (const finding& each : {exact(finding_kind::duplicate, 6), exact(finding_kind::weights, 6), unlike_over_run(6)})
        CHECK_FALSE(is_out(told(lasting(each))));
    // But if the rank had an alarm of a number in the 32 steps before, it does; its arrival is no such number.
    for (const finding_kind what : {finding_kind::loss, finding_kind::late}) {
        for (const std::uint64_t later : {1u, 31u, 32u}) {
            alarms watch(8);
            for (std::uint64_t step = 0; step < later; ++step)
                told(watch, record_of(step, 8, step == 0 ? found{number(what, 6)} : found()));
            CHECK(is_out(told(watch, with_evidence(record_of(later, 8, {unlike_over_run(6)}), 6)))
                == (what == finding_kind::loss && later < 32));
        }
    }
    // A rank that is late for long is not taken out for a number.
    step_record late = lasting(number(finding_kind::loss, 6));
    late.evidence_by_rank[6].metric = finding_kind::late;
    CHECK(told(late) == "loss 6 input recheck");
    // Nor does it take out a rank that is not named. A rank to take out is told beside others with the same number.
    CHECK(told(lasting(number(finding_kind::loss, -1))) == "loss unknown recheck");
    CHECK(told(with_evidence(record_of(1, 8, {number(finding_kind::loss, 2), number(finding_kind::loss, 6)}), 6))
        == "loss 2 input recheck; loss 6 input quarantine");
}

TEST_CASE("ranks are restored from one that has no damage itself")
{
    alarms watch(8);
    for (std::uint64_t step = 0; step < 3; ++step) told(watch, record_of(step, 8, {exact(finding_kind::result_differs, 0)}));
    CHECK(told(watch, record_of(3, 8, {exact(finding_kind::result_differs, 0), exact(finding_kind::result_differs, 2)}))
        == "result_differs 0 broadcast quarantine; result_differs 2 broadcast resync from 1"); // rank 0 holds other bits, too
    // A rank that has the majority's bits here, but other ones elsewhere, is the last choice.
    found differing;
    for (int rank = 0; rank < 4; ++rank) differing.push_back(exact(finding_kind::value_differs, rank, rank));
    CHECK(told(8, {differing[0], differing[1]}) == "value_differs 0 unknown resync from 2; value_differs 1 unknown resync from 2");
    CHECK(told(4, differing)
        == "value_differs 0 unknown resync from 1; value_differs 1 unknown resync from 0; value_differs 2 unknown resync from 0; "
           "value_differs 3 unknown resync from 0");
    // An unusual number does not tell that a rank holds wrong weights.
    CHECK(told(8, {differing[3], number(finding_kind::late, 0)}) == "value_differs 3 unknown resync from 0; late 0 none none");
}

TEST_CASE("many ranks with exact evidence are named and none is to be taken out")
{
    const finding_kind what = finding_kind::result_differs;
    alarms of_two(8), of_three(8);
    for (std::uint64_t step = 0; step < 10; ++step) {
        CHECK(told(of_two, record_of(step, 8, {exact(what, 6), exact(what, 2)}))
            == (step < 3 ? "result_differs 2,6 broadcast resync from 0" : "result_differs 2,6 broadcast quarantine"));
        CHECK(told(of_three, record_of(step, 8, {exact(what, 6), exact(what, 2), exact(what, 3)}))
            == "result_differs 2,3,6 broadcast resync from 0");
    }
}

TEST_CASE("the steps of a run cost no allocation when it comes again, and raise the same alarms on another rank")
{
    std::mt19937_64 random(7);
    const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<step_record> records;
    for (std::uint64_t step = 0; step < 500; ++step) {
        found findings;
        for (int i = below(4); i > 0; --i) {
            const auto what = static_cast<finding_kind>(below(static_cast<int>(finding_kind::largest_magnitude) + 1));
            const int rank = below(17) - 1;
            const double rate = random() % 2 == 0 ? 1e-6 : 1e-8;
            findings.push_back(is_of_number(what) ? number(what, rank, rate, 1 + below(3), below(3)) : exact(what, rank, below(3)));
        }
        records.push_back(record_of(step, 16, findings));
        if (random() % 2 == 0) records.back().calls.resize(3, audited(collective::all_reduce, damage::broadcast));
        if (random() % 2 == 0) records.back() = with_evidence(records.back(), below(16));
        records.back().forgot = random() % 50 == 0;
        records.back().settle_findings();
    }
    alarms watch(16), elsewhere(16);
    int raised[5] = {};
    for (const step_record& record : records) {
        const found own = judged(watch, record); // its memory is there
        for (const finding& each : own) ++raised[static_cast<int>(each.action)];
        REQUIRE(told(elsewhere, record) == in_words(own));
    }
    for (const int count : raised) CHECK(count > 10); // of each advice
    watch.reset();
    const long before = allocations;
    for (const step_record& record : records) watch.judge(record);
    CHECK(allocations == before);
}

TEST_CASE("what cannot be is refused, and changes nothing")
{
    for (const int ranks : {0, -1}) CHECK(contains(refusal([&] { alarms watch(ranks); }), "cannot watch"));
    for (const double rate : {0.0, -1e-7, 1.0, 2.0, detail::not_a_number(), detail::infinity()})
        CHECK(contains(refusal([&] { alarms watch(4, {.false_alarms_per_step = rate}); }), "false_alarms_per_step"));
    for (const double rate : {1e-300, 1e-7, std::nextafter(1.0, 0.0)}) CHECK_NOTHROW(alarms(4, {.false_alarms_per_step = rate}));

    alarms watch(4);
    const finding one = exact(finding_kind::stale, 3);
    for (std::uint64_t step = 0; step < 3; ++step) told(watch, record_of(step, 4, {one}));
    for (std::uint64_t step = 10; step < 40; ++step) {
        for (const step_record& bad : {record_of(step, 5), record_of(step, 4, {one, exact(finding_kind::stale, 4)}),
                 record_of(step, 4, {exact(finding_kind::stale, -1), finding{.ranks = {-2}, .what = finding_kind::stale}})})
            CHECK(contains(refusal([&] { watch.judge(bad); }), "alarms::judge"));
    }
    CHECK(is_out(told(watch, record_of(50, 4, {one}))));
}

} // namespace collprobe::testing::alarms_test
