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

namespace collprobe::testing::alarms_test {
namespace {

using raised_alarm = finding; // POSIX has a function of this name
using found = std::vector<finding>;

constexpr finding_kind numbers[]
    = {finding_kind::loss, finding_kind::gradient_norm, finding_kind::largest_magnitude, finding_kind::cosine, finding_kind::late};
constexpr finding_kind blames[] = {finding_kind::non_finite, finding_kind::stale, finding_kind::result_differs, finding_kind::shard_differs,
    finding_kind::codes_differ};

std::vector<int> list_of(int rank) { return rank < 0 ? std::vector<int>{} : std::vector<int>{rank}; }
/// As a probe leaves it.
step_record settled(step_record record)
{
    record.settle_findings();
    return record;
}
step_record record_of(std::uint64_t step, int ranks, found suspects = {})
{
    step_record record;
    record.step = step;
    record.ranks = ranks;
    record.findings = std::move(suspects);
    return record;
}
step_record with(step_record record, std::vector<call_record> calls)
{
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
finding exact(finding_kind what, int rank, int call = 0)
{
    return {.ranks = list_of(rank), .call = call, .what = what, .statistic = 1};
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
std::vector<raised_alarm> copy(view<const raised_alarm> raised) { return {raised.begin(), raised.end()}; }
raised_alarm only(view<const raised_alarm> raised)
{
    REQUIRE(raised.size() == 1);
    return raised[0];
}

bool same(const raised_alarm& a, const raised_alarm& b)
{
    return a.step == b.step && a.call == b.call && a.what == b.what && a.where == b.where && a.ranks == b.ranks
        && to_bits(a.statistic) == to_bits(b.statistic) && to_bits(a.threshold) == to_bits(b.threshold)
        && to_bits(a.false_alarms_per_step) == to_bits(b.false_alarms_per_step)
        && to_bits(a.number.value) == to_bits(b.number.value) && a.action == b.action && a.source == b.source;
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

} // namespace

TEST_CASE("a healthy step raises no alarm")
{
    alarms watch(8);
    for (std::uint64_t step = 0; step < 100; ++step) {
        CHECK(watch.judge(settled(record_of(step, 8))).empty());
        CHECK(watch.judge(settled(with_evidence(record_of(step, 8), 3))).empty()); // it was told when it began
        CHECK(watch.judge(settled(with(record_of(step, 8), {audited(collective::all_reduce, damage::none)}))).empty());
    }
}

TEST_CASE("calls that no check has looked at are counted")
{
    alarms watch(8);
    step_record record = record_of(1, 8);
    record.unprobed_calls = 2;
    record.unread_calls = 3;
    watch.judge(settled(record));
    CHECK(watch.unseen_calls() == 5);
    watch.judge(settled(record_of(2, 8)));
    CHECK(watch.unseen_calls() == 0);
}

TEST_CASE("each exact check alarms at once and advises what fits it")
{
    struct expectation {
        finding_kind what;
        int rank;
        damage where;
        advice action;
        int source;
        int other_rank = -1;
    };
    const expectation cases[] = {
        {finding_kind::non_finite, 3, damage::input, advice::skip, -1},
        {finding_kind::stale, 3, damage::input, advice::skip, -1},
        {finding_kind::duplicate, 3, damage::duplicated_data, advice::recheck, -1},
        {finding_kind::result_differs, 3, damage::broadcast, advice::resync, 0},
        {finding_kind::result_differs, 0, damage::broadcast, advice::resync, 1},
        {finding_kind::result_differs, -1, damage::unknown, advice::skip, -1}, // no majority
        {finding_kind::shard_differs, 0, damage::broadcast, advice::resync, 1},
        {finding_kind::shard_differs, -1, damage::unknown, advice::skip, -1},
        {finding_kind::value_differs, 0, damage::unknown, advice::resync, 1},
        {finding_kind::value_differs, -1, damage::unknown, advice::resync, -1}, // restore from elsewhere
        {finding_kind::sum_differs, -1, damage::unknown, advice::skip, -1},
        {finding_kind::codes_differ, -1, damage::reduce, advice::skip, -1},
        {finding_kind::codes_differ, 3, damage::unknown, advice::skip, -1, 2}, // a message of rank 2
        {finding_kind::quantisation, 3, damage::reduce, advice::none, -1},
        {finding_kind::weights, 3, damage::reduce, advice::recheck, -1},
        {finding_kind::overflow, -1, damage::reduce, advice::skip, -1},
        {finding_kind::zeros, 3, damage::input, advice::recheck, -1},
        {finding_kind::call_missing, -1, damage::none, advice::recheck, -1},
        {finding_kind::other_call, 3, damage::input, advice::skip, -1},
        {finding_kind::value_repeats, 3, damage::duplicated_data, advice::recheck, -1},
        {finding_kind::value_repeats, -1, damage::none, advice::recheck, -1}, // samples that are not drawn
        {finding_kind::norm_differs, -1, damage::none, advice::recheck, -1},
        {finding_kind::unexplained, -1, damage::reduce, advice::recheck, -1},
    };
    for (const expectation& each : cases) {
        CAPTURE(name(each.what));
        CAPTURE(each.rank);
        for (const bool is_audited : {false, true}) {
            alarms watch(8);
            step_record record = record_of(7, 8, {exact(each.what, each.rank, 5)});
            record.findings[0].other_rank = each.other_rank;
            record.findings[0].by_length = is_audited;
            record.findings[0].site.name = "wte";
            if (is_audited) record.calls.resize(6, audited(collective::all_reduce, damage::none));
            const raised_alarm one = only(watch.judge(settled(record)));
            CHECK(one.step == 7);
            CHECK(one.call == 5);
            CHECK(std::string(one.site.name) == "wte");
            CHECK(one.what == each.what);
            CHECK(one.where == each.where);
            CHECK(one.action == each.action);
            CHECK(one.source == each.source);
            CHECK(one.statistic == 1);
            CHECK(one.by_length == is_audited);
            CHECK(one.false_alarms_per_step == 0);
            CHECK(one.ranks == list_of(each.rank));
        }
    }
}

TEST_CASE("NaN that most ranks have is told without a rank, and since when")
{
    alarms watch(8);
    for (std::uint64_t step = 41; step < 71; ++step) {
        finding spread{.what = finding_kind::non_finite, .statistic = 6};
        spread.number = {.is_new_level = true, .since = 40};
        const raised_alarm one = only(watch.judge(settled(record_of(step, 8, {spread}))));
        CHECK(one.ranks.empty());
        CHECK(one.call == -1);
        CHECK(one.statistic == 6);
        CHECK(one.number.is_new_level);
        CHECK(one.number.since == 40);
        CHECK(one.action == advice::resync); // the weights have it, and no rank is known to hold others
        CHECK(one.source == -1);
        CHECK(one.where == damage::unknown);
        CHECK(one.false_alarms_per_step == 0);
    }
}

TEST_CASE("evidence over the run alarms at once, with its odds, its rank and its metric")
{
    for (const finding_kind metric : {finding_kind::gradient_norm, finding_kind::non_finite, finding_kind::late}) {
        step_record record = with_evidence(record_of(7, 8, {unlike_over_run(3, metric)}), 3);
        const raised_alarm one = only(alarms(8).judge(settled(record)));
        CHECK(one.what == finding_kind::unlike);
        CHECK(one.ranks == list_of(3));
        CHECK(one.where == (metric == finding_kind::late ? damage::none : damage::input));
        CHECK(one.action == advice::recheck); // alone it takes no rank out
        CHECK(one.false_alarms_per_step == 0.01); // of the run
        CHECK(one.evidence.metric == metric);
        CHECK(one.evidence.odds == 4000);
        CHECK(one.evidence.since == 5);
        record.findings[0].ranks.clear();
        const raised_alarm groups = only(alarms(8).judge(settled(record)));
        CHECK(groups.ranks.empty());
        CHECK(groups.where == (metric == finding_kind::late ? damage::none : damage::unknown));
    }
}

TEST_CASE("an alarm of ranks with different others tells of none")
{
    finding first = exact(finding_kind::shard_differs, 2, 1), second = exact(finding_kind::shard_differs, 5, 1);
    first.other_rank = 1;
    second.other_rank = 3;
    std::vector<call_record> calls(2);
    CHECK(only(alarms(8).judge(settled(with(record_of(1, 8, {first}), calls)))).other_rank == 1);
    const raised_alarm both = only(alarms(8).judge(settled(with(record_of(1, 8, {first, second}), calls))));
    CHECK(both.ranks == std::vector<int>{2, 5});
    CHECK(both.other_rank == -1);
}

TEST_CASE("the audit's attribution is the alarm's damage")
{
    for (const damage where : {damage::input, damage::reduce, damage::broadcast, damage::unknown}) {
        const std::vector<call_record> calls{{}, audited(collective::all_reduce, where)};
        alarms watch(4);
        const raised_alarm sum = only(watch.judge(settled(with(record_of(1, 4, {exact(finding_kind::sum_differs, -1, 1)}), calls))));
        CHECK(sum.where == where);
        CHECK(sum.action == advice::skip);
        for (const finding_kind what : {finding_kind::result_differs, finding_kind::shard_differs}) {
            const raised_alarm one = only(watch.judge(settled(with(record_of(2, 4, {exact(what, 2, 1)}), calls))));
            CHECK(one.where == where);
            CHECK(one.ranks == list_of(2));
            // The controls: a call that was not audited, and one that the record has not.
            for (const int call : {0, 2, -1})
                CHECK(only(watch.judge(settled(with(record_of(3, 4, {exact(what, 2, call)}), calls)))).where
                    == damage::broadcast);
        }
    }
    // Damage of the input is known from the input itself, whatever the audit of its call says.
    const std::vector<call_record> calls{audited(collective::all_reduce, damage::unknown)};
    CHECK(only(alarms(4).judge(settled(with(record_of(1, 4, {exact(finding_kind::non_finite, 2)}), calls)))).where == damage::input);
}

TEST_CASE("the check of sums has the rate that it states, and only what is certain drops the step")
{
    alarms watch(4);
    finding residual{.call = 0, .what = finding_kind::sum_differs, .statistic = 40, .threshold = 8, .exact = false};
    residual.false_alarms_per_step = 3e-5; // more than a number may have
    const raised_alarm likely = only(watch.judge(settled(record_of(0, 4, {residual}))));
    CHECK(likely.statistic == 40);
    CHECK(likely.threshold == 8);
    CHECK(likely.false_alarms_per_step == 3e-5);
    CHECK(likely.action == advice::recheck);
    const finding integers{.call = 0, .what = finding_kind::sum_differs, .statistic = 5};
    const raised_alarm certain = only(watch.judge(settled(record_of(2, 4, {integers}))));
    CHECK(certain.false_alarms_per_step == 0);
    CHECK(certain.action == advice::skip);
}

TEST_CASE("of a shard that its owner sent wrong no rank holds the right bits")
{
    finding owner = exact(finding_kind::shard_differs, 2);
    owner.other_rank = 2;
    finding receiver = exact(finding_kind::shard_differs, 3);
    receiver.other_rank = 1;
    const std::vector<raised_alarm> raised = copy(alarms(8).judge(settled(record_of(1, 8, {owner, receiver}))));
    REQUIRE(raised.size() == 2);
    CHECK(raised[0].ranks == list_of(2));
    CHECK(raised[0].action == advice::skip);
    CHECK(raised[0].source == -1);
    CHECK(raised[1].ranks == list_of(3)); // the control: this one can be restored
    CHECK(raised[1].action == advice::resync);
    CHECK(raised[1].source == 0);
    // Too many to be taken out: still there is no rank to restore them from.
    finding other = owner;
    other.ranks = {3};
    other.other_rank = 3;
    alarms watch(4);
    for (std::uint64_t step = 0; step < 10; ++step) {
        const raised_alarm both = only(watch.judge(settled(record_of(step, 4, {owner, other}))));
        CHECK(both.ranks == std::vector<int>{2, 3});
        CHECK(both.action == advice::skip);
    }
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
        const std::vector<raised_alarm> raised
            = copy(alarms(8).judge(settled(with(record_of(1, 8, both), {whole, each.call}))));
        REQUIRE(raised.size() == (each.is_judged ? 2u : 1u));
        CHECK((raised[0].what == finding_kind::cosine) == each.is_judged);
        CHECK(raised.back().what == finding_kind::loss);
    }
}

TEST_CASE("a number alarms if its rate is at most that of the options")
{
    const double stated = alarm_options().false_alarms_per_step;
    CHECK(stated == 1e-7);
    for (const finding_kind what : numbers) {
        CAPTURE(name(what));
        for (const double rate : {stated, std::nextafter(stated, 0.0), 1e-30}) {
            const raised_alarm one = only(alarms(8).judge(settled(record_of(1, 8, {number(what, 5, rate)}))));
            CHECK(one.false_alarms_per_step == rate);
            CHECK(one.ranks == list_of(5));
            CHECK(one.where == (what == finding_kind::late ? damage::none : damage::input));
            CHECK(one.action == (what == finding_kind::late ? advice::none : advice::recheck));
            CHECK(one.number.value == 3.5);
            CHECK(one.number.steps == 384);
        }
        for (const double rate : {std::nextafter(stated, 1.0), 1e-4, 1e-3}) {
            CHECK(alarms(8).judge(settled(record_of(1, 8, {number(what, 5, rate)}))).empty());
            alarms mild(8, {.false_alarms_per_step = 1e-4});
            CHECK(mild.judge(settled(record_of(1, 8, {number(what, 5, rate)}))).empty() == (rate > 1e-4));
        }
        CHECK(alarms(8, {.false_alarms_per_step = 1e-12}).judge(settled(record_of(1, 8, {number(what, 5, 1e-11)}))).empty());
    }
    CHECK(alarms(8, {.false_alarms_per_step = 1e-3}).options().false_alarms_per_step == 1e-3);
}

TEST_CASE("the options hold for numbers only")
{
    for (const finding_kind what : {finding_kind::sum_differs, finding_kind::codes_differ, finding_kind::quantisation, finding_kind::weights,
             finding_kind::unlike}) {
        CAPTURE(name(what));
        const raised_alarm one
            = only(alarms(8, {.false_alarms_per_step = 1e-12}).judge(settled(record_of(1, 8, {number(what, 5, 0.5)}))));
        CHECK(one.what == what);
        CHECK(one.false_alarms_per_step == 0.5);
    }
}

TEST_CASE("numbers of several calls make one alarm with the strongest evidence and its number")
{
    const finding_kind what = finding_kind::gradient_norm;
    const found suspects{number(what, 5, 1e-8, 1.1, 0), number(what, 5, 1e-11, 2.5, 3), number(what, 2, 1e-9, 1.2, 1),
        number(finding_kind::largest_magnitude, 5, 1e-10, 4, 3)};
    const std::vector<raised_alarm> raised = copy(alarms(8).judge(settled(record_of(1, 8, suspects))));
    REQUIRE(raised.size() == 2);
    CHECK(raised[0].what == what);
    CHECK(raised[0].ranks == std::vector<int>{2, 5});
    CHECK(raised[0].call == 3);
    CHECK(raised[0].statistic == 25);
    CHECK(raised[0].threshold == 10);
    CHECK(raised[0].number.value == 4.5);
    CHECK(raised[0].false_alarms_per_step == 1e-8); // what holds for each rank that it names
    CHECK(raised[1].what == finding_kind::largest_magnitude); // another number is another alarm
    CHECK(raised[1].ranks == list_of(5));

    // How far a number is off is told by its own limit.
    finding wide = number(what, 5, 1e-9, 1.5, 1);
    wide.statistic = 100;
    wide.threshold = 90;
    CHECK(only(alarms(8).judge(settled(record_of(1, 8, {wide, number(what, 5, 1e-9, 1.2, 2)})))).call == 2);
    CHECK(only(alarms(8).judge(settled(record_of(1, 8, {number(what, 5, 1e-9, 1.2, 2), wide})))).call == 2);

    // Exact findings of several calls are several alarms; so are those with and without a rank, and those of one call
    // about different damage.
    const found several[] = {{exact(finding_kind::result_differs, 5, 0), exact(finding_kind::result_differs, 5, 3)},
        {number(finding_kind::late, 5), number(finding_kind::late, -1)},
        {exact(finding_kind::weights, -1), exact(finding_kind::weights, 5)},
        {unlike_over_run(5), unlike_over_run(5, finding_kind::late)}};
    for (const found& two : several) {
        const std::vector<raised_alarm> both = copy(alarms(8).judge(settled(record_of(1, 8, two))));
        REQUIRE(both.size() == 2);
        for (std::size_t i = 0; i < 2; ++i) {
            CHECK(both[i].what == two[i].what); // in the order of the suspects
            CHECK(both[i].call == two[i].call);
            CHECK(both[i].ranks == two[i].ranks);
        }
    }
}

TEST_CASE("numbers name a quarter of the ranks and at most ten")
{
    const struct {
        int ranks;
        int limit;
    } cases[] = {{3, 1}, {4, 1}, {7, 1}, {8, 2}, {16, 4}, {40, 10}, {1024, 10}};
    for (const auto& each : cases) {
        CAPTURE(each.ranks);
        for (const int named : {each.limit, each.limit + 1}) {
            found suspects;
            for (int rank = named - 1; rank >= 0; --rank)
                suspects.push_back(number(finding_kind::loss, rank, 1e-9, 1.5, rank));
            const raised_alarm one = only(alarms(each.ranks).judge(settled(record_of(1, each.ranks, suspects))));
            if (named == each.limit) {
                CHECK(one.ranks.size() == static_cast<std::size_t>(named));
                CHECK(one.ranks.front() == 0);
                CHECK(one.ranks.back() == named - 1);
                CHECK(one.where == damage::input);
            } else {
                CHECK(one.ranks.empty());
                CHECK(one.where == damage::unknown);
            }
            CHECK(one.action == advice::recheck);
        }
    }
}

TEST_CASE("numbers of two ranks are detected and neither is named")
{
    alarms watch(2);
    CHECK(watch.judge(settled(record_of(1, 2, {number(finding_kind::loss, -1, 1e-4)}))).empty());
    // Also where somebody else's detector named one.
    for (const int rank : {-1, 0, 1}) {
        const raised_alarm one = only(watch.judge(settled(record_of(2, 2, {number(finding_kind::loss, rank)}))));
        CHECK(one.ranks.empty());
        CHECK(one.where == damage::unknown);
        CHECK(one.action == advice::recheck);
        CHECK(one.number.value == 3.5);
    }
    CHECK(only(watch.judge(settled(with_evidence(record_of(3, 2, {number(finding_kind::cosine, 1)}), 1)))).action
        == advice::recheck);
    // What a rank itself shows needs no comparison.
    CHECK(only(watch.judge(settled(record_of(5, 2, {exact(finding_kind::non_finite, 1)})))).ranks == list_of(1));
}

TEST_CASE("one rank alone can be told of its NaN")
{
    alarms watch(1);
    CHECK(watch.judge(settled(record_of(0, 1))).empty());
    CHECK(only(watch.judge(settled(record_of(1, 1, {exact(finding_kind::non_finite, 0)})))).action == advice::skip);
    // All ranks are named: none is left to restore from.
    CHECK(only(watch.judge(settled(record_of(2, 1, {exact(finding_kind::shard_differs, 0)})))).action == advice::skip);
}

TEST_CASE("an alarm of lateness advises nothing, whatever lasts")
{
    alarms watch(8);
    for (std::uint64_t step = 0; step < 30; ++step) {
        const step_record record = with_evidence(record_of(step, 8, {number(finding_kind::late, 6)}), 6);
        const raised_alarm one = only(watch.judge(settled(record)));
        CHECK(one.ranks == list_of(6));
        CHECK(one.action == advice::none);
        CHECK(one.where == damage::none);
    }
    // More late ranks than are named: still no damage.
    const found many{number(finding_kind::late, 1), number(finding_kind::late, 2), number(finding_kind::late, 6)};
    const raised_alarm all = only(watch.judge(settled(record_of(30, 8, many))));
    CHECK(all.ranks.empty());
    CHECK(all.action == advice::none);
    CHECK(all.where == damage::none);
}

TEST_CASE("a rank with exact findings in four of the last twenty steps is to be taken out")
{
    for (const finding_kind what : blames) {
        CAPTURE(name(what));
        for (const std::uint64_t last : {3u, 19u, 20u, 40u}) {
            CAPTURE(last);
            alarms watch(8);
            advice before = advice::none;
            for (std::uint64_t step = 0; step <= last; ++step) {
                if (step > 2 && step < last) {
                    watch.judge(settled(record_of(100 + step, 8)));
                    continue;
                }
                // Two findings of a step count once.
                const found both{exact(what, 6, 0), exact(what, 6, 1)};
                const std::vector<raised_alarm> raised = copy(watch.judge(settled(record_of(100 + step, 8, both))));
                REQUIRE(raised.size() == 2);
                for (const raised_alarm& each : raised) {
                    CHECK(each.ranks == list_of(6));
                    CHECK((each.action == advice::quarantine) == (step == last && last < 20));
                    if (step == 0) before = each.action;
                    else if (each.action != advice::quarantine) CHECK(each.action == before);
                }
            }
        }
    }
}

TEST_CASE("findings of different checks that may blame a rank add up")
{
    alarms watch(8);
    for (const finding_kind what : {finding_kind::non_finite, finding_kind::stale, finding_kind::shard_differs})
        CHECK(only(watch.judge(settled(record_of(static_cast<std::uint64_t>(what), 8, {exact(what, 6)})))).action
            != advice::quarantine);
    const found two_ranks{exact(finding_kind::result_differs, 6), exact(finding_kind::result_differs, 2)};
    const std::vector<raised_alarm> raised = copy(watch.judge(settled(record_of(50, 8, two_ranks))));
    REQUIRE(raised.size() == 2);
    CHECK(raised[0].ranks == list_of(6));
    CHECK(raised[0].action == advice::quarantine);
    CHECK(raised[1].ranks == list_of(2)); // its first
    CHECK(raised[1].action == advice::resync);
    CHECK(raised[1].source == 0);
}

TEST_CASE("what tells of no fault of the rank takes it out in no number of steps")
{
    found suspects;
    for (const finding_kind what : {finding_kind::duplicate, finding_kind::sum_differs, finding_kind::quantisation, finding_kind::weights})
        suspects.push_back(exact(what, 6));
    for (const finding_kind what : numbers) suspects.push_back(number(what, 6));
    suspects.push_back(number(finding_kind::codes_differ, 6)); // may be chance
    suspects.push_back(unlike_over_run(6));
    for (const finding& each : suspects) {
        CAPTURE(name(each.what));
        alarms watch(8);
        for (std::uint64_t step = 0; step < 30; ++step)
            CHECK(only(watch.judge(settled(record_of(step, 8, {each})))).action != advice::quarantine);
    }
}

TEST_CASE("a step counts once, and steps are forgotten where the record or the caller says so")
{
    const auto action_of = [](alarms& watch, std::uint64_t step, bool has_forgotten = false) {
        step_record record = record_of(step, 8, {exact(finding_kind::stale, 6)});
        record.forgot = has_forgotten;
        return only(watch.judge(settled(record))).action;
    };
    const auto watch_three = [&] {
        alarms watch(8);
        for (std::uint64_t step = 0; step < 3; ++step) CHECK(action_of(watch, step) == advice::skip);
        return watch;
    };
    alarms watch = watch_three();
    for (int i = 0; i < 30; ++i) CHECK(action_of(watch, 2) == advice::skip); // the same step
    CHECK(action_of(watch, 1000) == advice::quarantine); // steps that are missing do not count
    watch.reset();
    for (std::uint64_t step = 0; step < 4; ++step)
        CHECK(action_of(watch, step) == (step < 3 ? advice::skip : advice::quarantine));

    watch = watch_three();
    CHECK(action_of(watch, 3, true) == advice::skip);
    for (std::uint64_t step = 4; step < 7; ++step)
        CHECK(action_of(watch, step) == (step < 6 ? advice::skip : advice::quarantine));
}

TEST_CASE("evidence that lasts takes out the rank that an alarm names")
{
    found suspects;
    for (const finding_kind what : blames) suspects.push_back(exact(what, 6));
    for (const finding_kind what : numbers) suspects.push_back(number(what, 6));
    for (const finding& each : suspects) {
        CAPTURE(name(each.what));
        alarms watch(8);
        const advice first = only(watch.judge(settled(record_of(1, 8, {each})))).action;
        CHECK(first != advice::quarantine);
        const raised_alarm lasting = only(watch.judge(settled(with_evidence(record_of(2, 8, {each}), 6))));
        CHECK(lasting.action == (each.what == finding_kind::late ? advice::none : advice::quarantine));
        CHECK(lasting.ranks == list_of(6));
        // The controls: another rank's evidence, and evidence that is no more.
        CHECK(only(alarms(8).judge(settled(with_evidence(record_of(3, 8, {each}), 5)))).action == first);
        step_record ended = with_evidence(record_of(4, 8, {each}), 6);
        ended.evidence_by_rank[6].unlike = false;
        ended.evidence_by_rank[6].odds = 1e9;
        CHECK(only(alarms(8).judge(settled(ended))).action == first);
    }
    // A number that does not alarm takes no rank out, nor do equal data, nor the evidence itself.
    CHECK(alarms(8).judge(settled(with_evidence(record_of(1, 8, {number(finding_kind::loss, 6, 1e-5)}), 6))).empty());
    for (const finding& each : {exact(finding_kind::duplicate, 6), exact(finding_kind::weights, 6), unlike_over_run(6)})
        CHECK(only(alarms(8).judge(settled(with_evidence(record_of(1, 8, {each}), 6)))).action == advice::recheck);
    // But if the rank had an alarm of a number in the 32 steps before, it does; its arrival is no such number.
    for (const finding_kind what : {finding_kind::loss, finding_kind::late}) {
        for (const std::uint64_t later : {1u, 31u, 32u}) {
            alarms watch(8);
            watch.judge(settled(record_of(0, 8, {number(what, 6)})));
            for (std::uint64_t step = 1; step < later; ++step) watch.judge(settled(record_of(step, 8)));
            const raised_alarm told = only(watch.judge(settled(with_evidence(record_of(later, 8, {unlike_over_run(6)}), 6))));
            const bool takes_out = what == finding_kind::loss && later < 32;
            CHECK(told.action == (takes_out ? advice::quarantine : advice::recheck));
        }
    }
    // A rank that is late for long is not taken out for a number.
    step_record late = with_evidence(record_of(1, 8, {number(finding_kind::loss, 6)}), 6);
    late.evidence_by_rank[6].metric = finding_kind::late;
    CHECK(only(alarms(8).judge(settled(late))).action == advice::recheck);
    // Nor does it take out a rank that is not named.
    CHECK(only(alarms(8).judge(settled(with_evidence(record_of(1, 8, {number(finding_kind::loss, -1)}), 6)))).action
        == advice::recheck);
}

TEST_CASE("a rank to take out is told beside others with the same number")
{
    const found both{number(finding_kind::loss, 2), number(finding_kind::loss, 6)};
    const std::vector<raised_alarm> raised = copy(alarms(8).judge(settled(with_evidence(record_of(1, 8, both), 6))));
    REQUIRE(raised.size() == 2);
    CHECK(raised[0].ranks == list_of(2));
    CHECK(raised[0].action == advice::recheck);
    CHECK(raised[1].ranks == list_of(6));
    CHECK(raised[1].action == advice::quarantine);
}

TEST_CASE("ranks are restored from one that has no damage itself")
{
    alarms watch(8);
    for (std::uint64_t step = 0; step < 3; ++step)
        watch.judge(settled(record_of(step, 8, {exact(finding_kind::result_differs, 0)})));
    const found suspects{exact(finding_kind::result_differs, 0), exact(finding_kind::result_differs, 2)};
    const std::vector<raised_alarm> raised = copy(watch.judge(settled(record_of(3, 8, suspects))));
    REQUIRE(raised.size() == 2);
    CHECK(raised[0].action == advice::quarantine);
    CHECK(raised[0].ranks == list_of(0));
    CHECK(raised[0].source == -1);
    CHECK(raised[1].action == advice::resync);
    CHECK(raised[1].ranks == list_of(2));
    CHECK(raised[1].source == 1); // rank 0 holds other bits, too
    // A rank that has the majority's bits here, but other ones elsewhere, is the last choice.
    const found split{exact(finding_kind::value_differs, 0, 0), exact(finding_kind::value_differs, 1, 1)};
    const std::vector<raised_alarm> two = copy(alarms(8).judge(settled(record_of(50, 8, split))));
    REQUIRE(two.size() == 2);
    for (const raised_alarm& each : two) CHECK(each.source == 2);
    found all;
    for (int rank = 0; rank < 4; ++rank) all.push_back(exact(finding_kind::value_differs, rank, rank));
    const std::vector<raised_alarm> four = copy(alarms(4).judge(settled(record_of(50, 4, all))));
    REQUIRE(four.size() == 4);
    for (const raised_alarm& each : four) CHECK(each.source == (each.ranks[0] == 0 ? 1 : 0));
    // An unusual number does not tell that a rank holds wrong weights.
    const found slow{exact(finding_kind::value_differs, 3), number(finding_kind::late, 0)};
    CHECK(copy(alarms(8).judge(settled(record_of(50, 8, slow))))[0].source == 0);
}

TEST_CASE("many ranks with exact evidence are named and none is to be taken out")
{
    for (const bool are_many : {false, true}) {
        alarms watch(8);
        found suspects{exact(finding_kind::result_differs, 6), exact(finding_kind::result_differs, 2)};
        if (are_many) suspects.push_back(exact(finding_kind::result_differs, 3));
        for (std::uint64_t step = 0; step < 10; ++step) {
            const raised_alarm one = only(watch.judge(settled(record_of(step, 8, suspects))));
            CHECK(one.ranks == (are_many ? std::vector<int>{2, 3, 6} : std::vector<int>{2, 6}));
            const bool is_out = !are_many && step >= 3;
            CHECK(one.action == (is_out ? advice::quarantine : advice::resync));
            CHECK(one.source == (is_out ? -1 : 0));
        }
    }
}

TEST_CASE("two that are fed the same agree and a step costs no allocation")
{
    std::mt19937_64 random(7);
    const auto below = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<step_record> records;
    for (std::uint64_t step = 0; step < 500; ++step) {
        found suspects;
        for (int i = below(4); i > 0; --i) {
            const auto what = static_cast<finding_kind>(below(static_cast<int>(finding_kind::largest_magnitude) + 1));
            const int rank = below(17) - 1;
            const double rate = random() % 2 == 0 ? 1e-6 : 1e-8;
            suspects.push_back(is_of_number(what) ? number(what, rank, rate, 1 + below(3), below(3))
                                                  : exact(what, rank, below(3)));
        }
        records.push_back(record_of(step, 16, suspects));
        if (random() % 2 == 0) records.back().calls.resize(3, audited(collective::all_reduce, damage::broadcast));
        if (random() % 2 == 0) records.back() = with_evidence(records.back(), below(16));
        records.back().forgot = random() % 50 == 0;
        records.back().settle_findings();
    }
    alarms one(16);
    alarms two(16);
    int raised[5] = {};
    for (const step_record& record : records) {
        const std::vector<raised_alarm> a = copy(one.judge(settled(record)));
        const std::vector<raised_alarm> b = copy(two.judge(settled(record)));
        REQUIRE(a.size() == b.size());
        for (std::size_t k = 0; k < a.size(); ++k) REQUIRE(same(a[k], b[k]));
        for (const raised_alarm& each : a) ++raised[static_cast<int>(each.action)];
    }
    for (const int count : raised) CHECK(count > 10); // of each advice
    one.reset();
    for (const step_record& record : records) one.judge(record); // its memory is there
    one.reset();
    const long before = allocations;
    for (const step_record& record : records) one.judge(record);
    CHECK(allocations == before);
}

TEST_CASE("what cannot be is refused, and changes nothing")
{
    const auto is_refused = [](int ranks, double rate) {
        try {
            alarms watch(ranks, {.false_alarms_per_step = rate});
        } catch (const error& caught) {
            return caught.code() == status::invalid_argument;
        }
        return false;
    };
    CHECK(is_refused(0, 1e-7));
    CHECK(is_refused(-1, 1e-7));
    for (const double rate : {0.0, -1e-7, 1.0, 2.0, detail::not_a_number(), detail::infinity()})
        CHECK(is_refused(4, rate));
    for (const double rate : {1e-300, 1e-7, std::nextafter(1.0, 0.0)}) CHECK(!is_refused(4, rate));

    alarms watch(4);
    const finding one = exact(finding_kind::stale, 3);
    for (std::uint64_t step = 0; step < 3; ++step) watch.judge(settled(record_of(step, 4, {one})));
    for (std::uint64_t step = 10; step < 40; ++step) {
        for (const step_record& bad : {record_of(step, 5), record_of(step, 4, {one, exact(finding_kind::stale, 4)}),
                 record_of(step, 4, {finding{.ranks = {-2}, .what = finding_kind::stale}})}) {
            bool is_thrown = false;
            try {
                watch.judge(settled(bad));
            } catch (const error& caught) {
                is_thrown = caught.code() == status::invalid_argument
                    && std::string(caught.what()).find("alarms::judge") != std::string::npos;
            }
            CHECK(is_thrown);
        }
    }
    CHECK(only(watch.judge(settled(record_of(50, 4, {one})))).action == advice::quarantine);
}

} // namespace collprobe::testing::alarms_test
