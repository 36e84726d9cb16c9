// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/report/detail/axis.hpp>
#include <collprobe/report/html.hpp>
#include <collprobe/report/summary.hpp>
#include <collprobe/report/words.hpp>

#include "html_sample.hpp"
#include "temporary_folder.hpp"

using namespace collprobe;
using namespace collprobe::report;

namespace {

namespace parts = collprobe::report::detail;

const double nan_value = collprobe::detail::not_a_number();
const double infinite = collprobe::detail::infinity();

std::size_t count_of(const std::string& text, const std::string& part)
{
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
}

std::string between(const std::string& text, const std::string& begin, const std::string& end)
{
    const std::size_t from = text.find(begin);
    REQUIRE(from != text.npos);
    const std::size_t to = text.find(end, from + begin.size());
    REQUIRE(to != text.npos);
    return text.substr(from + begin.size(), to - from - begin.size());
}

void replace_all(std::string& text, const std::string& old, const std::string& by)
{
    for (std::size_t at = text.find(old); at != text.npos; at = text.find(old, at + by.size())) {
        text.replace(at, old.size(), by);
    }
}

std::string unescaped(std::string text)
{
    replace_all(text, "&lt;", "<");
    replace_all(text, "&gt;", ">");
    replace_all(text, "&quot;", "\"");
    replace_all(text, "&#39;", "'");
    replace_all(text, "&amp;", "&");
    return text;
}

/// Every tag is closed in its order, and no attribute has a quote or an angle in it.
bool is_nested(const std::string& page)
{
    std::vector<std::string> open;
    for (std::size_t at = page.find('<'); at != page.npos; at = page.find('<', at + 1)) {
        const std::size_t end = page.find('>', at);
        if (end == page.npos) return false;
        const std::string tag = page.substr(at + 1, end - at - 1);
        if (tag[0] == '!') continue;
        if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != tag.npos) return false;
        if (tag[0] == '/') {
            if (open.empty() || open.back() != tag.substr(1)) return false;
            open.pop_back();
            continue;
        }
        if (tag.back() == '/' || tag.substr(0, 4) == "meta") continue;
        open.push_back(tag.substr(0, tag.find(' ')));
        if (open.back() == "style" || open.back() == "script") at = page.find("</", at) - 1;
    }
    return open.empty();
}

/// An independent reader of UTF-8, by code points.
bool is_utf8(const std::string& text)
{
    for (std::size_t i = 0; i < text.size();) {
        const auto first = static_cast<unsigned char>(text[i++]);
        const int more = first < 0x80 ? 0 : first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : first >> 3 == 30 ? 3 : -1;
        if (more < 0 || i + static_cast<std::size_t>(more) > text.size()) return false;
        unsigned code = more == 0 ? first : first & (0x3fu >> more);
        for (int k = 0; k < more; ++k) {
            const auto next = static_cast<unsigned char>(text[i++]);
            if (next >> 6 != 2) return false;
            code = code << 6 | (next & 0x3fu);
        }
        const unsigned least[] = {0, 0x80, 0x800, 0x10000};
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    }
    return true;
}

struct point {
    long x = 0;
    long y = 0;
};

/// The corners of a path of relative commands: m (pairs behind the first are lines), h, v and z.
std::vector<point> corners(const std::string& path)
{
    std::vector<point> found;
    point at;
    point start;
    char command = 0;
    bool begins = false;
    for (const char* next = path.c_str(); *next != '\0';) {
        if (std::isalpha(static_cast<unsigned char>(*next)) != 0) {
            command = *next++;
            begins = command == 'm';
            if (command == 'z') at = start;
            continue;
        }
        const auto number = [&next] {
            char* end = nullptr;
            const long value = std::strtol(next, &end, 10);
            REQUIRE(end != next);
            next = end;
            return value;
        };
        REQUIRE((command == 'm' || command == 'h' || command == 'v'));
        if (command != 'v') at.x += number();
        if (command != 'h') at.y += number();
        if (begins) start = at;
        begins = false;
        found.push_back(at);
    }
    return found;
}

/// All corners of the page's paths lie within their drawing.
void check_paths(const std::string& page)
{
    bool all_within = true;
    for (std::size_t at = page.find(" d=\""); at != page.npos; at = page.find(" d=\"", at + 1)) {
        for (const point& each : corners(page.substr(at + 4, page.find('"', at + 4) - at - 4))) {
            all_within = all_within && each.x >= -60 && each.x <= 3800 && each.y >= -160 && each.y <= 6500;
        }
    }
    CHECK(all_within);
}

std::string page_of(const html_page& page, const run_record& run = describe_made_up({}))
{
    const std::string text = page.text({run, run.started_ns + 5'000'000'000, 0});
    CHECK(is_nested(text));
    CHECK(is_utf8(text));
    CHECK(text.find("<h1>") != text.npos);
    CHECK(count_of(text, "<script") == 1);
    CHECK(count_of(text, "</script") == 1);
    CHECK(text.find("src=") == text.npos);
    CHECK(text.find("href=") == text.npos);
    const std::string data = between(text, "id=\"collprobe-data\">", "</script>");
    CHECK(data.find('<') == data.npos);
    CHECK(unescaped(between(text, "<p id=\"verdict\">", "</p>")) == parts::utf8_text(page.found().verdict()));
    CHECK(data.find(":nan") == data.npos);
    CHECK(data.find(":inf") == data.npos);
    check_paths(text);
    return text;
}

html_page made_up_page(const made_up_run& of)
{
    html_page page;
    for (std::uint64_t step = 0; step < of.steps; ++step) {
        const step_record record = made_up_step(of, step);
        page.add(record);
        for (const finding& raised : made_up_alarms(record)) page.add(raised);
    }
    return page;
}

step_record plain_step(std::uint64_t step, double loss)
{
    step_record record;
    record.step = step;
    record.ranks = 1;
    record.loss = {.mean = loss, .minimum = loss, .maximum = loss, .finite = 1};
    return record;
}

} // namespace

TEST_CASE("the page has the verdict of the findings in the text and in the data")
{
    for (const bool faults : {false, true}) {
        html_page page = made_up_page({.ranks = 8, .steps = 120, .faults = faults});
        run_findings expected;
        for (std::uint64_t step = 0; step < 120; ++step) {
            const step_record record = made_up_step({.ranks = 8, .steps = 120, .faults = faults}, step);
            expected.add(record);
            for (const finding& raised : made_up_alarms(record)) expected.add(raised);
        }
        const std::string text = page_of(page);
        CHECK(unescaped(between(text, "<p id=\"verdict\">", "</p>")) == expected.verdict());
        CHECK(between(text, "\"verdict\":\"", "\",\"level\"") == expected.verdict());
        CHECK(between(text, "\"level\":\"", "\"") == (faults ? "act" : "fine"));
        CHECK(between(text, "<section class=\"verdict ", "\"") == (faults ? "act" : "fine"));
    }
}

TEST_CASE("the page says where the mean loss over ranks is not that over tokens")
{
    for (const double weighted : {6.0, 9.2}) {
        html_page page;
        step_record record = plain_step(17, 6);
        record.loss_weighted.mean = weighted;
        page.add(record);
        const bool is_told = page_of(page).find(
            "In step 17 the mean loss over ranks is 6, over tokens 9.2: the ranks have unequal tokens.") != std::string::npos;
        CHECK(is_told == (weighted == 9.2));
    }
}

TEST_CASE("the mark beside the verdict is look for statistics and act for exact findings or alarms that ask to act")
{
    const auto level = [](const html_page& page) { return between(page_of(page), "\"level\":\"", "\""); };
    html_page page;
    CHECK(level(page) == "none");
    step_record record = plain_step(0, 1);
    page.add(record);
    CHECK(level(page) == "fine");

    finding named;
    named.ranks = {0};
    named.what = finding_kind::loss;
    named.exact = false;
    record.findings = {named};
    html_page with_statistics = page;
    with_statistics.add(record);
    CHECK(level(with_statistics) == "look");
    record.findings[0].exact = true;
    html_page with_exact = page;
    with_exact.add(record);
    CHECK(level(with_exact) == "act");
    finding raised;
    raised.action = advice::recheck;
    with_exact.add(raised); // judged: the advice counts
    CHECK(level(with_exact) == "look");
    raised.action = advice::skip;
    with_exact.add(raised);
    CHECK(level(with_exact) == "act");

    html_page blind;
    record.findings.clear();
    record.unread_calls = 3;
    blind.add(record);
    CHECK(level(blind) == "look");
}

TEST_CASE("a page of 10000 steps of 64 ranks with alarms everywhere has less than 2 MB")
{
    html_page page;
    step_record record;
    record.ranks = 64;
    record.losses.resize(64);
    record.gradient_norms.resize(64);
    record.calls.resize(2);
    std::uint64_t state = 1;
    const auto next = [&state] { // about 0 to 1, and no two neighbours alike
        state = collprobe::detail::mix64(state + 0x9e3779b97f4a7c15u);
        return static_cast<double>(state >> 11) * 0x1p-53;
    };
    for (std::uint64_t step = 0; step < 10000; ++step) {
        record.step = 1'000'000'000 + step;
        for (std::size_t rank = 0; rank < 64; ++rank) {
            record.losses[rank] = step % 50 == 0 ? 100 * next() : record.losses[rank];
            record.gradient_norms[rank] = record.losses[rank] * 3;
        }
        record.loss = {.mean = next(), .minimum = -next(), .maximum = 1 + next(), .finite = 64};
        record.gradient_norm = {.mean = next(), .cv = next(), .minimum = -next(), .maximum = 1 + next()};
        record.cosine.mean_pairwise = next();
        record.cosine.predicted_cosine = next();
        record.cosine.noise_scale = next();
        record.lateness.behind = 1e6 * next();
        record.calls[0].results_agree = step % 2 == 0;
        record.calls[1].nonfinite = step % 3;
        record.findings.clear();
        finding raised;
        raised.step = record.step;
        raised.ranks = {static_cast<int>(step % 64)};
        finding named;
        named.ranks = {raised.ranks[0]};
        record.findings.push_back(named);
        page.add(record);
        page.add(raised);
    }
    const std::string text = page_of(page);
    CHECK(text.size() < 2'000'000);
}

TEST_CASE("a spike of one step stays visible in a series of any length")
{
    for (const std::uint64_t steps : {1u, 2u, 3u, 1999u, 2000u, 2001u, 4000u, 4001u, 9973u}) {
        CAPTURE(steps);
        const std::uint64_t spike = steps * 2 / 3;
        parts::step_series series;
        double sum = 0;
        for (std::uint64_t step = 0; step < steps; ++step) {
            const double loss = step == spike ? 100 : 1 + 0.5 * made_up_noise(step, 0, 0);
            sum += loss;
            series.add(plain_step(5 + 3 * step, loss));
        }
        const parts::step_bins& bins = series.bins();
        CHECK(bins.size() <= 2000);
        CHECK(bins.size() >= std::min<std::uint64_t>(steps, 1000));
        const parts::track_point all = series.merged(parts::track::loss, 0, bins.size());
        CHECK(all.high == 100);
        CHECK(all.count == steps);
        CHECK(all.mean() == doctest::Approx(sum / static_cast<double>(steps)));
        const std::size_t bin = bins.find(5 + 3 * spike);
        REQUIRE(bin < bins.size());
        CHECK(series.at(parts::track::loss, bin).high == 100);
        std::uint64_t records = 0;
        for (std::size_t i = 0; i < bins.size(); ++i) {
            records += bins[i].steps;
            CHECK(bins[i].steps <= bins.width());
            if (i > 0) CHECK(bins[i - 1].last < bins[i].first);
            CHECK((i == bin) == (series.at(parts::track::loss, i).high == 100));
        }
        CHECK(records == steps);
        CHECK(bins.place(0) <= bins.place(bins.last()));

        // In the drawing: the highest point of the first chart is that step's.
        html_page page;
        for (std::uint64_t step = 0; step < steps; ++step) page.add(plain_step(step, step == spike ? 100 : 1));
        const std::string text = page_of(page);
        if (steps < 3) continue;
        const std::string path = between(text, "<path class=\"band c1\" d=\"", "\""); // from the least to the largest
        const std::vector<point> found = corners(path);
        const point highest = *std::min_element(
            found.begin(), found.end(), [](const point& a, const point& b) { return a.y < b.y; });
        CHECK(highest.y < 100); // tenths of a unit, of 1340
        // The plot begins behind labels of 3 letters.
        CHECK(static_cast<double>(highest.x) / 3320
            == doctest::Approx(static_cast<double>(spike) / static_cast<double>(steps - 1)).epsilon(0.02));
    }
}

TEST_CASE("marks stay at their steps while bins are merged")
{
    parts::step_series series;
    for (std::uint64_t step = 0; step < 7000; ++step) {
        series.add(plain_step(step, 1));
        if (step == 1234) series.mark(1234, parts::step_mark::alarm_to_act);
    }
    series.mark(6000, parts::step_mark::alarm);
    series.mark(99999, parts::step_mark::alarm); // no such step
    for (std::size_t i = 0; i < series.bins().size(); ++i) {
        const parts::step_bins::bin& bin = series.bins()[i];
        const auto holds = [&bin](std::uint64_t step) { return bin.first <= step && step <= bin.last; };
        CHECK((series.mark_at(i) == parts::step_mark::alarm_to_act) == holds(1234));
        CHECK((series.mark_at(i) == parts::step_mark::alarm) == holds(6000));
    }
}

TEST_CASE("a rank apart from the others is shown at its distance and one that a check names as named")
{
    parts::rank_steps ranks;
    for (std::uint64_t step = 0; step < 1000; ++step) {
        step_record record;
        record.step = step;
        record.ranks = 9;
        for (int rank = 0; rank < 9; ++rank) record.losses.push_back(10 + 0.1 * (rank - 4)); // deviation: 0.297
        if (step == 500) record.losses[7] = 10 + 6 * 0.2966;
        if (step == 600) record.losses[0] = 10 - 20 * 0.2966;
        if (step == 650) record.losses[8] = 10 + 10 * 0.2966;
        if (step == 700) record.losses[2] = infinite;
        if (step == 800) {
            finding named;
            named.ranks = {4};
            record.findings = {named, named};
        }
        ranks.add(record);
    }
    REQUIRE(ranks.bins().size() <= 200);
    const std::vector<const parts::rank_row*> rows = ranks.shown();
    REQUIRE(rows.size() == 9);
    for (int rank = 0; rank < 9; ++rank) {
        const parts::rank_row& row = *rows[static_cast<std::size_t>(rank)];
        CHECK(row.rank == rank);
        CHECK(row.named_steps == (rank == 4 ? 1 : 0));
        for (std::size_t bin = 0; bin < ranks.bins().size(); ++bin) {
            parts::rank_state expected = parts::rank_state::usual;
            const auto holds = [&](std::uint64_t step) { return ranks.bins().find(step) == bin; };
            if (rank == 7 && holds(500)) expected = parts::rank_state::apart_4;
            if (rank == 0 && holds(600)) expected = parts::rank_state::apart_16;
            if (rank == 8 && holds(650)) expected = parts::rank_state::apart_8;
            if (rank == 2 && holds(700)) expected = parts::rank_state::apart_16;
            if (rank == 4 && holds(800)) expected = parts::rank_state::named;
            CHECK(row.at(bin) == expected);
        }
    }
}

TEST_CASE("of many ranks the worst are shown and named ranks among them")
{
    parts::rank_steps ranks;
    step_record record;
    record.ranks = 300;
    for (int rank = 0; rank < 300; ++rank) record.losses.push_back(rank % 7);
    record.losses[123] = 1e6;
    finding named;
    named.ranks = {251};
    record.findings = {named};
    ranks.add(record);
    const std::vector<const parts::rank_row*> rows = ranks.shown();
    CHECK(rows.size() == 64);
    const auto has = [&](int rank) {
        return std::any_of(rows.begin(), rows.end(), [&](const parts::rank_row* row) { return row->rank == rank; });
    };
    CHECK(has(251));
    CHECK(has(123));
    CHECK(std::is_sorted(rows.begin(), rows.end(),
        [](const parts::rank_row* a, const parts::rank_row* b) { return a->rank < b->rank; }));
}

TEST_CASE("thinned values keep the median of a run of any length")
{
    for (const int count : {1, 127, 128, 129, 1000, 5000}) {
        parts::thinned_values values;
        for (int i = 0; i < count; ++i) {
            values.add(i);
            values.add(nan_value);
        }
        CHECK(values.values().size() <= 128);
        CHECK(values.values().size() >= static_cast<std::size_t>(std::min(count, 64)));
        CHECK(median(values.values()) == doctest::Approx((count - 1) / 2.0).epsilon(0.03));
    }
}

TEST_CASE("foreign text stays text")
{
    const std::string evil[] = {"</script><b>bold</b>", "\"><img src=x onerror=alert(1)>", "a\xff\xc3(\xe2\x82 z",
        std::string("nul\0 bell\a", 10), "&lt; ' \" <!-- ]]>", "\xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf"};
    for (const std::string& text : evil) {
        run_record run = describe_made_up({});
        run.name = run.job = run.host = run.communicator = run.communicator_id = run.device = run.library = text;
        run.settings = {{text, text}};
        html_page page;
        step_record record = plain_step(3, 1);
        record.calls.resize(1);
        record.calls[0].site = call_site::named(text.c_str(), text.c_str());
        record.calls[0].audit.checked = record.calls[0].audit.sum_checked = true;
        record.calls[0].audit.residual_limit = 1;
        record.calls[0].quantisation.seen = true;
        finding named;
        named.ranks = {0};
        named.call = 0;
        named.site = record.calls[0].site;
        record.findings = {named};
        page.add(record);
        inspection inspected;
        inspected.communicator = text;
        page.add(inspected);
        for (const bool alarmed : {false, true}) {
            if (alarmed) {
                finding raised;
                raised.step = 3;
                raised.call = 0;
                raised.ranks = {0};
                raised.site = named.site;
                page.add(raised);
            }
            const std::string html = page.text({run, 7, 0});
            CHECK(is_nested(html));
            CHECK(is_utf8(html));
            CHECK(count_of(html, "</script") == 1);
            CHECK(html.find("<img") == html.npos);
            CHECK(html.find("<b>bold") == html.npos);
            CHECK(html.find("<!--") == html.npos);
            CHECK(std::none_of(html.begin(), html.end(), [](char c) { return c >= 0 && c < ' ' && c != '\n'; }));
        }
    }
}

TEST_CASE("odd runs make a page")
{
    SUBCASE("no step")
    {
        const std::string text = page_of({});
        CHECK(text.find("No step was recorded.") != text.npos);
        CHECK(text.find("<svg") == text.npos);
    }
    SUBCASE("one step one rank nothing in it")
    {
        html_page page;
        page.add(step_record());
        const std::string text = page_of(page);
        CHECK(text.find("Not recorded in this run: Loss; Gradient norm;") != text.npos);
    }
    SUBCASE("one rank")
    {
        CHECK(page_of(made_up_page({.ranks = 1, .steps = 30})).find("id=\"loss-title\"") != std::string::npos);
    }
    SUBCASE("summary mode")
    {
        const std::string text = page_of(
            made_up_page({.ranks = 5000, .steps = 10, .faults = true, .mode = report_mode::summary}));
        CHECK(text.find("In summary mode") != text.npos);
        CHECK(text.find("all ranks, pooled") != text.npos);
    }
    SUBCASE("undefined infinite huge and tiny numbers")
    {
        const double values[] = {nan_value, infinite, -infinite, 1.7e308, -1.7e308, 5e-324, -0.0, 1e-300, 1e300, 1};
        for (const double first : values) {
            for (const double second : values) {
                html_page page;
                for (std::uint64_t step = 0; step < 4; ++step) {
                    const double value = step % 2 == 0 ? first : second;
                    step_record record = plain_step(step, value);
                    record.ranks = 3;
                    record.losses = {value, first, 1};
                    record.gradient_norms = {value, value, second};
                    record.gradient_norm = {.mean = value, .cv = value, .minimum = first, .maximum = second};
                    record.cosine.mean_pairwise = value;
                    record.cosine.noise_scale = value;
                    record.lateness.behind = value;
                    record.lateness_by_rank.resize(3);
                    record.lateness_by_rank[1].latest = value;
                    finding named;
                    named.ranks = {1};
                    named.statistic = value;
                    named.threshold = second;
                    record.findings = {named};
                    page.add(record);
                }
                page_of(page);
            }
        }
    }
    SUBCASE("steps that go back and the largest number of a step")
    {
        html_page page;
        for (std::uint64_t step = 100; step < 200; ++step) page.add(plain_step(step, 1));
        for (std::uint64_t step = 150; step < 170; ++step) page.add(plain_step(step, 2));
        page.add(plain_step(~std::uint64_t{0}, 2));
        page.add(plain_step(0, 2));
        CHECK(page_of(page).find("went back") != std::string::npos);
        html_page far;
        far.add(plain_step(~std::uint64_t{0} - 1, 1));
        far.add(plain_step(~std::uint64_t{0}, 2));
        page_of(far);
    }
    SUBCASE("1000 different alarms the table is limited and counts the rest")
    {
        html_page page;
        page.add(plain_step(0, 1));
        for (int rank = 0; rank < 1000; ++rank) {
            finding raised;
            raised.ranks = {rank};
            page.add(raised);
        }
        const std::string text = page_of(page);
        CHECK(text.find("The table has 50 of 1000 rows.") != text.npos);
        CHECK(count_of(between(text, "aria-label=\"Findings\"", "</table>"), "<tr>") == 51);
    }
    SUBCASE("numbers only every tenth step are still a line")
    {
        html_page page;
        for (std::uint64_t step = 0; step < 300; ++step) page.add(plain_step(step, step % 10 == 0 ? 1 : nan_value));
        const std::string text = page_of(page);
        CHECK(text.find("in 30 of 300 steps") != text.npos);
        CHECK(count_of(between(text, "<path class=\"line c1\" d=\"", "\""), "m") == 1);
    }
}

TEST_CASE("alarms come first in the table of findings and a finding that an alarm tells is not told again")
{
    html_page page;
    step_record record = plain_step(0, 1);
    record.ranks = 8;
    finding named;
    named.ranks = {3};
    named.call = 1;
    named.what = finding_kind::result_differs;
    finding other;
    other.ranks = {5};
    other.what = finding_kind::loss;
    other.exact = false;
    other.statistic = 9.5;
    other.threshold = 7;
    record.findings = {other, named};
    page.add(record);
    finding raised;
    raised.call = 1;
    raised.what = finding_kind::result_differs;
    raised.ranks = {3};
    raised.action = advice::resync;
    raised.source = 0;
    page.add(raised);
    run_record run = describe_made_up({});
    run.nodes = 0;
    run.rank = 5;
    const std::string table = between(page_of(page, run), "aria-label=\"Findings\"", "</table>");
    CHECK(count_of(table, "<tr>") == 3); // with the heading
    CHECK(table.find("rank 3") < table.find("rank 5"));
    CHECK(table.find("resync from rank 0") != table.npos);
    CHECK(table.find("none: exact") != table.npos);
    CHECK(table.find("expected from the other ranks") != table.npos);
    CHECK(count_of(table, "gpu-a12") == 1); // only the writer's own host is known
}

TEST_CASE("the sink writes at the end and meanwhile not more often than asked for")
{
    const collprobe::testing::temporary_folder folder;
    const std::string path = folder.path("run.html");
    const auto read = [](const std::string& name) { return collprobe::testing::read_file(name); };
    const run_record run = describe_made_up({});
    html sink(path, {.interval_ms = 1000});
    CHECK(sink.target() == path);
    sink.open(run);
    const std::string empty = read(path);
    CHECK(empty.find("No step was recorded.") != empty.npos);
    record_context at{run, run.started_ns, 0};
    sink.on_step(plain_step(0, 1), at);
    at.unix_ns += 999'000'000;
    sink.flush(at);
    CHECK(read(path) == empty);
    at.unix_ns += 1'000'000;
    sink.flush(at);
    const std::string first = read(path);
    CHECK(first != empty);
    CHECK(first.find("still going on") != first.npos);
    sink.on_step(plain_step(1, 1), at);
    at.unix_ns += 500'000'000;
    sink.flush(at);
    CHECK(read(path) == first);
    at.unix_ns += 500'000'000;
    sink.flush(at);
    CHECK(read(path) != first);
    at.dropped = 17;
    sink.close(at);
    const std::string last = read(path);
    CHECK(last.find("still going on") == last.npos);
    CHECK(last.find("\"finished\":true") != last.npos);
    CHECK(last.find("records dropped</th><td class=\"n\">17") != last.npos);
    CHECK(folder.files() == 1);

    html off("");
    off.open(run);
    off.on_step(plain_step(0, 1), at);
    off.flush(at);
    off.close(at);
    html nowhere(folder.path("no such folder/page.html"));
    CHECK_THROWS_AS(nowhere.open(run), error);
}

TEST_CASE("numbers on axes are short and exact")
{
    CHECK(parts::tick_text(0, 5) == "0");
    CHECK(parts::tick_text(0.1 + 0.2, 5) == "0.3");
    CHECK(parts::tick_text(1e6, 5) == "1e6");
    CHECK(parts::tick_text(1e-10, 5) == "1e-10");
    CHECK(parts::tick_text(-2.5e-7, 5) == "-2.5e-7");
    CHECK(parts::tick_text(123456, 7) == "123456");
    for (const double low : {0.0, -3.0, 99999.0, 1e-200, -1e250}) {
        for (const double length : {1.0, 0.07, 12345.0, 1e-3}) {
            parts::axis on;
            on.low = low;
            on.high = low + length * std::max(1.0, std::abs(low) * 1e-5);
            parts::set_ticks(on, 4);
            CAPTURE(low);
            CAPTURE(length);
            CHECK(on.ticks.size() >= 2);
            CHECK(on.ticks.size() <= 10);
            for (std::size_t i = 0; i < on.ticks.size(); ++i) {
                CHECK(on.place(on.ticks[i]) >= 0);
                CHECK(on.place(on.ticks[i]) <= 1);
                if (i > 0) {
                    CHECK(parts::tick_text(on.ticks[i], on.digits) != parts::tick_text(on.ticks[i - 1], on.digits));
                }
            }
        }
    }
}
