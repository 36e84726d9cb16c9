// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/report/prometheus.hpp>
#include <collprobe/report/words.hpp>

#include "sample_run.hpp"
#include "temporary_folder.hpp"

namespace collprobe::testing::prometheus_test {
namespace {

using report::prometheus_metrics;
using report::prometheus_options;

constexpr double nan = detail::not_a_number();

std::string text_of(const prometheus_metrics& metrics, const run_record& run, std::uint64_t dropped = 0)
{
    return metrics.text({run, 1'700'000'000'250'000'000, dropped});
}

/// The samples of a text by name and labels, without the labels that all series have. Fails for a line that is none
/// of the format, for a sample whose family has no HELP and TYPE before it, and for a series that is there twice.
std::map<std::string, std::string> samples_of(const std::string& text, const std::string& common)
{
    std::map<std::string, std::string> samples;
    std::string family;
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = text.find('\n', at);
        REQUIRE(end != text.npos);
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        if (line.rfind("# HELP ", 0) == 0) {
            family = line.substr(7, line.find(' ', 7) - 7);
            const std::size_t next = text.find('\n', at);
            REQUIRE(text.substr(at, next - at).rfind("# TYPE " + family + ' ', 0) == 0);
            at = next + 1;
            continue;
        }
        const std::size_t value = line.rfind("} ");
        REQUIRE(line.substr(0, line.find('{')) == family);
        const std::size_t place = line.find(common);
        REQUIRE(place != line.npos);
        std::string rest = line.substr(place + common.size(), value - place - common.size());
        if (!rest.empty()) rest = '{' + rest.substr(1) + '}';
        const bool is_new = samples.emplace(family.substr(10) + rest, line.substr(value + 2)).second;
        REQUIRE(is_new);
    }
    return samples;
}

std::size_t count_of_series(const std::string& text)
{
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) count += text[at] == '#' ? 0 : 1;
    return count;
}

run_record plain_run()
{
    run_record run;
    run.name = "a";
    run.host = "h";
    run.library = "1.2.3";
    return run;
}
const std::string plain_labels = "job=\"a\",comm=\"world\",rank=\"0\",node=\"h\"";

std::map<std::string, std::string> plain_samples(const prometheus_metrics& metrics)
{
    const run_record run = plain_run();
    return samples_of(text_of(metrics, run), plain_labels);
}

} // namespace

TEST_CASE("the text before the first step has counters of 0 and no gauge of a step")
{
    run_record run = plain_run();
    run.job = "4711";
    run.communicator = "dp";
    run.communicator_id = "c0ffee";
    run.device = "GPU-1";
    run.rank = 1;
    run.global_rank = 9;
    run.ranks = 8;
    const std::string labels = "{job=\"4711\",comm=\"dp\",rank=\"9\",node=\"h\",UUID=\"GPU-1\"";
    const std::string text = text_of(prometheus_metrics(run), run, 5);
    const std::string head = "# HELP collprobe_build_info Version of collprobe, as a label.\n"
                             "# TYPE collprobe_build_info gauge\n"
                             "collprobe_build_info"
        + labels + ",version=\"1.2.3\"} 1\n"
        + "# HELP collprobe_run_info Name of the run, number of ranks and id of the communicator, as labels.\n"
          "# TYPE collprobe_run_info gauge\n"
          "collprobe_run_info"
        + labels + ",run=\"a\",ranks=\"8\",comm_id=\"c0ffee\"} 1\n"
        + "# HELP collprobe_run_ended 1 once the run has ended in order, else 0.\n"
          "# TYPE collprobe_run_ended gauge\n"
          "collprobe_run_ended"
        + labels + "} 0\n"
        + "# HELP collprobe_last_write_timestamp_seconds Time at which these numbers were written, in seconds since "
          "1970.\n"
          "# TYPE collprobe_last_write_timestamp_seconds gauge\n"
          "collprobe_last_write_timestamp_seconds"
        + labels + "} 1700000000.25\n"
        + "# HELP collprobe_records_dropped_total Records of the run that were dropped because too many waited.\n"
          "# TYPE collprobe_records_dropped_total counter\n"
          "collprobe_records_dropped_total"
        + labels + "} 5\n";
    CHECK(text.substr(0, head.size()) == head);
    const std::map<std::string, std::string> rest = samples_of(text.substr(head.size()), labels.substr(1));
    CHECK(rest
        == std::map<std::string, std::string>{{"steps_total", "0"}, {"suspicious_steps_total", "0"},
            {"calls_total", "0"}, {"skipped_calls_total{reason=\"full\"}", "0"},
            {"skipped_calls_total{reason=\"unread\"}", "0"}, {"all_ranks_nonfinite_elements_total", "0"},
            {"result_mismatch_total", "0"}, {"sum_mismatch_total", "0"}, {"alarms_total", "0"},
            {"alarms_naming_rank_total", "0"}});
}

TEST_CASE("each number of a run arrives, as rank 3 has it")
{
    const run_record run = sample_run::describe(3);
    prometheus_metrics metrics(run);
    for (int step = 0; step < sample_run::steps; ++step) metrics.add(sample_run::step(step));
    for (int i = 0; i < 2; ++i) metrics.add(sample_run::alarm(finding_kind::stale, 4));
    finding other = sample_run::alarm(finding_kind::non_finite, 5);
    other.ranks = {1, 5};
    other.call = 0;
    metrics.add(other);
    other.ranks.clear();
    other.call = -1;
    metrics.add(other);
    metrics.end();
    const std::map<std::string, std::string> found = samples_of(text_of(metrics, run),
        "job=\"4711\",comm=\"data parallel\",rank=\"19\",node=\"node0\",UUID=\"GPU-3\"");
    const std::map<std::string, std::string> expected{{"build_info{version=\"1.2.3\"}", "1"},
        {"run_info{run=\"pretraining\",ranks=\"8\",comm_id=\"c0ffee\"}", "1"}, {"run_ended", "1"},
        {"last_write_timestamp_seconds", "1700000000.25"}, {"records_dropped_total", "0"}, {"step", "9"},
        {"steps_total", "10"}, {"suspicious_steps_total", "10"}, {"calls_total", "60"},
        {"skipped_calls_total{reason=\"full\"}", "10"}, {"skipped_calls_total{reason=\"unread\"}", "20"},
        {"all_ranks_nonfinite_elements_total", "30"}, {"nonfinite_elements_total{kind=\"nan\"}", "10"},
        {"nonfinite_elements_total{kind=\"inf\"}", "20"}, {"result_mismatch_total", "10"}, {"sum_mismatch_total", "0"},
        {"conservation_residual_ratio", "0.375"}, {"alarms_total", "4"}, {"alarms_naming_rank_total", "2"},
        {"alarms_by_check_total{kind=\"stale\"}", "2"}, {"alarms_by_check_total{kind=\"non_finite\"}", "2"},
        {"worst_call_index", "1"}, {"loss", "1.46875"}, {"loss_mean", "1.375"}, {"gradient_norm", "1.75"},
        {"gradient_norm_mean", "1.75"}, {"gradient_norm_spread_ratio", "0.25"}, {"cosine_leave_one_out", "0.3125"},
        {"cosine_mean", "0.5"}, {"cosine_pooled", "0.625"}, {"cosine_predicted", "0.25"}, {"noise_scale", "3"},
        {"behind_seconds", "0.002"}, {"evidence_odds", "345000"}};
    CHECK(found == expected);
}

TEST_CASE("no run gives a rank more series than the limit")
{
    const run_record run = sample_run::describe(3);
    prometheus_metrics metrics(run);
    for (int number = 0; number < 100; ++number) {
        step_record record = sample_run::step(number);
        while (record.calls.size() < 64) record.calls.push_back(record.calls[1]);
        for (std::size_t c = 0; c < record.calls.size(); ++c) {
            record.calls[c].call = static_cast<collective>(c % 7);
            record.calls[c].type = static_cast<element_type>(c % 8);
            record.calls[c].site.line = static_cast<unsigned>(c);
        }
        for (const finding_kind what : sample_run::all_findings()) {
            for (int rank = -1; rank < sample_run::ranks; ++rank) {
                record.findings.push_back({.ranks = {rank}, .other_rank = 7 - rank, .call = number % 64, .what = what});
            }
        }
        metrics.add(record);
        for (const finding_kind what : sample_run::all_findings()) {
            for (int rank = -1; rank < sample_run::ranks; ++rank) {
                for (const damage where : {damage::input, damage::reduce, damage::unknown}) {
                    finding raised = sample_run::alarm(what, number);
                    raised.call = (number + rank) % 64 - 1;
                    raised.where = where;
                    raised.action = static_cast<advice>((number + rank + 1) % 5);
                    raised.ranks.clear();
                    if (rank >= 0) raised.ranks.push_back(rank);
                    metrics.add(raised);
                }
            }
        }
    }
    const std::string text = text_of(metrics, run);
    CHECK(count_of_series(text) == prometheus_metrics::most_series);
    // The alarms by check are those of the run: none was lost in the series for the last checks.
    const auto samples = samples_of(text, "node=\"node0\",UUID=\"GPU-3\"");
    std::uint64_t sum = 0;
    for (const auto& [name, value] : samples) {
        if (name.rfind("alarms_by_check_total", 0) == 0) sum += std::stoull(value);
    }
    CHECK(sum == 100 * sample_run::all_findings().size() * 9 * 3);
    CHECK(samples.at("alarms_total") == std::to_string(sum));
    CHECK(samples.at("alarms_naming_rank_total") == std::to_string(sum / 9));
}

TEST_CASE("with all_ranks each rank has its own numbers")
{
    run_record run = sample_run::describe(2);
    run.ranks = 1; // nobody has told
    prometheus_metrics metrics(run, {.all_ranks = true});
    metrics.add(sample_run::step(0));
    metrics.add(sample_run::alarm(finding_kind::late, 0));
    const std::string text = text_of(metrics, run);
    CHECK(text.find("UUID") == text.npos);
    const std::string front = "{job=\"4711\",comm=\"data parallel\",rank=\"";
    const std::string back = "\",node=\"node0\"";
    for (int rank = 0; rank < sample_run::ranks; ++rank) {
        const std::string labels = front + std::to_string(rank) + back;
        const auto has = [&](const std::string& name, const std::string& more, const std::string& value) {
            return text.find("collprobe_" + name + labels + more + "} " + value + '\n') != text.npos;
        };
        const char* const norms[] = {"1", "1.25", "1.5", "1.75", "2", "2.25", "2.5", "2.75"};
        CHECK(has("gradient_norm", "", norms[rank]));
        CHECK(has("nonfinite_elements_total", ",kind=\"inf\"", rank == 3 ? "2" : "0"));
        CHECK(has("alarms_naming_rank_total", "", rank == 3 ? "1" : "0"));
        CHECK(has("step", "", "0") == (rank == 2)); // the writer's
    }
    CHECK(count_of_series(text) == 24 + 2 + 8 * 8 - 1); // the writer's, and its alarms by check
}

TEST_CASE("of very many ranks those have all numbers that an alarm names, up to a limit, and the others their alarms")
{
    constexpr int many = 16384, most = prometheus_metrics::most_ranks;
    for (const int ranks : {most, many}) {
        run_record run = plain_run();
        run.ranks = ranks;
        prometheus_metrics metrics(run, {.all_ranks = true});
        step_record record = sample_run::step(0);
        record.ranks = ranks;
        record.losses.assign(std::size_t(ranks), 2);
        record.gradient_norms = record.cosine.leave_one_out = record.losses;
        record.lateness_by_rank.assign(std::size_t(ranks), {.behind = 1});
        record.evidence_by_rank.resize(std::size_t(ranks));
        metrics.add(record);
        const std::size_t before = count_of_series(text_of(metrics, run));
        const auto has = [&](const std::string& name, int rank) {
            return text_of(metrics, run).find("collprobe_" + name + "{job=\"a\",comm=\"world\",rank=\""
                + std::to_string(rank) + '"') != std::string::npos;
        };
        const bool has_all = ranks == most;
        CHECK(before / std::size_t(ranks) == (has_all ? 8 : 1));
        CHECK(has("loss", ranks - 7) == has_all);
        CHECK(has("alarms_naming_rank_total", ranks - 7)); // from 0 on, or the rule on its increase misses the first
        metrics.add({.ranks = {ranks - 7}, .what = finding_kind::late});
        CHECK(has("loss", ranks - 7));
        CHECK(has("nonfinite_elements_total", ranks - 7));
        CHECK(count_of_series(text_of(metrics, run)) - before == (has_all ? 1 : 8)); // and the check's
        finding of_all{.what = finding_kind::late};
        for (int rank = 0; rank < ranks; ++rank) of_all.ranks.push_back(rank);
        metrics.add(of_all);
        CHECK(count_of_series(text_of(metrics, run)) == before + 1 + std::size_t(has_all ? 0 : 7 * most));
    }
}

TEST_CASE("a gauge stays while steps do not measure it and goes when it is undefined")
{
    prometheus_metrics metrics(plain_run());
    metrics.add(sample_run::step(3));
    const auto measured = plain_samples(metrics);
    step_record bare; // a step without statistics, loss, audit and times
    bare.step = 4;
    bare.ranks = sample_run::ranks;
    bare.losses.assign(sample_run::ranks, nan);
    metrics.add(bare);
    auto later = plain_samples(metrics);
    CHECK(later.at("step") == "4");
    for (const char* each : {"loss", "loss_mean", "gradient_norm", "gradient_norm_mean", "gradient_norm_spread_ratio",
             "cosine_leave_one_out", "cosine_mean", "cosine_pooled", "cosine_predicted", "noise_scale",
             "behind_seconds", "conservation_residual_ratio"}) {
        CHECK_MESSAGE(later.at(each) == measured.at(each), each);
    }
    // Measured, but undefined: every loss is NaN, and no gradient has a direction.
    bare.findings.push_back({.ranks = {0}, .what = finding_kind::non_finite, .statistic = 1});
    bare.gradient_norms.assign(sample_run::ranks, 0);
    bare.gradient_norm.finite = sample_run::ranks;
    bare.gradient_norm.mean = 0;
    bare.lateness_by_rank.resize(sample_run::ranks);
    metrics.add(bare);
    later = plain_samples(metrics);
    CHECK(later.at("gradient_norm") == "0");
    CHECK(later.at("gradient_norm_mean") == "0");
    for (const char* each : {"loss", "loss_mean", "gradient_norm_spread_ratio", "cosine_leave_one_out", "cosine_mean",
             "cosine_pooled", "cosine_predicted", "noise_scale", "behind_seconds"}) {
        CHECK_MESSAGE(later.count(each) == 0, each);
    }
}

TEST_CASE("a summary has the numbers of all ranks and none of one rank")
{
    prometheus_metrics metrics(plain_run());
    step_record record = sample_run::step(3);
    record.mode = report_mode::summary;
    record.losses.clear();
    record.gradient_norms.clear();
    record.cosine.leave_one_out.clear();
    record.lateness_by_rank.clear();
    for (call_record& call : record.calls) call.inputs.clear();
    metrics.add(record);
    const auto found = plain_samples(metrics);
    CHECK(found.at("all_ranks_nonfinite_elements_total") == "3");
    CHECK(found.at("gradient_norm_mean") == "1.75");
    CHECK(found.at("loss_mean") == "2.125");
    for (const char* each : {"loss", "gradient_norm", "cosine_leave_one_out", "behind_seconds",
             "nonfinite_elements_total{kind=\"nan\"}", "nonfinite_elements_total{kind=\"inf\"}"}) {
        CHECK_MESSAGE(found.count(each) == 0, each);
    }
}

TEST_CASE("numbers that are not finite")
{
    prometheus_metrics metrics(plain_run());
    step_record record = sample_run::step(0);
    record.losses[0] = detail::infinity();
    record.loss.mean = -detail::infinity();
    record.gradient_norms[0] = 1e-300;
    record.gradient_norm.mean = 1.0 / 3;
    record.gradient_norm.cv = nan;
    record.cosine.pooled = -0.0;
    record.cosine.noise_scale = 1.7976931348623157e308;
    metrics.add(record);
    auto found = plain_samples(metrics);
    CHECK(found.at("loss") == "+Inf");
    CHECK(found.at("loss_mean") == "-Inf");
    CHECK(found.at("gradient_norm") == "1e-300");
    CHECK(found.at("gradient_norm_mean") == "0.3333333333333333");
    CHECK(found.count("gradient_norm_spread_ratio") == 0);
    CHECK(found.at("cosine_pooled") == "-0");
    CHECK(found.at("noise_scale") == "1.7976931348623157e+308");
}

TEST_CASE("the residual is that of the worst checked sum of the last audited step")
{
    const auto ratio_of = [](std::vector<std::pair<double, double>> sums) {
        prometheus_metrics metrics(plain_run());
        step_record record;
        for (const auto& [residual, limit] : sums) {
            call_record call;
            call.audit.checked = call.audit.sum_checked = true;
            call.audit.conserved = is_nan(residual) || !(residual > limit);
            call.audit.residual = residual;
            call.audit.residual_limit = limit;
            record.calls.push_back(call);
        }
        record.calls.emplace_back().audit.checked = true; // its sum was not
        record.calls.back().audit.residual = 100;
        metrics.add(record);
        const auto found = plain_samples(metrics);
        const auto at = found.find("conservation_residual_ratio");
        return (at == found.end() ? "none" : at->second) + ' ' + found.at("sum_mismatch_total");
    };
    CHECK(ratio_of({}) == "none 0");
    CHECK(ratio_of({{0, 8}}) == "0 0");
    CHECK(ratio_of({{-0.0, 8}, {2, 8}}) == "0.25 0");
    CHECK(ratio_of({{4, 8}, {2, 8}}) == "0.5 0");
    CHECK(ratio_of({{2, 8}, {16, 8}}) == "2 1");
    CHECK(ratio_of({{0, 0}}) == "0 0"); // integers
    CHECK(ratio_of({{1, 0}, {16, 8}}) == "+Inf 2");
    CHECK(ratio_of({{nan, 8}}) == "none 0");
}

TEST_CASE("labels are escaped and can be read back")
{
    const std::string plain = text_of(prometheus_metrics(plain_run()), plain_run());
    for (const std::string& raw : sample_run::hard_texts()) {
        run_record run = plain_run();
        run.job = raw;
        run.communicator = raw;
        run.host = raw;
        run.device = raw;
        const std::string text = text_of(prometheus_metrics(run), run);
        CHECK(std::count(text.begin(), text.end(), '\n') == std::count(plain.begin(), plain.end(), '\n'));
        const std::string front = "collprobe_run_ended{";
        std::size_t at = text.find('\n' + front) + 1 + front.size();
        for (const char* label : {"job=\"", "comm=\"", "rank=\"", "node=\"", "UUID=\""}) {
            if (raw.empty() && label[0] == 'U') break;
            REQUIRE(text.compare(at, std::string(label).size(), label) == 0);
            at += std::string(label).size();
            std::string value;
            for (; text[at] != '"'; ++at) {
                if (text[at] != '\\') {
                    value += text[at];
                    continue;
                }
                ++at;
                REQUIRE((text[at] == 'n' || text[at] == '\\' || text[at] == '"'));
                value += text[at] == 'n' ? '\n' : text[at];
            }
            at += 2;
            if (label[0] == 'r') CHECK(value == "0");
            else if (label[0] == 'j' && raw.empty()) CHECK(value == "a"); // the run's name
            else CHECK(value == report::detail::utf8_text(raw));
        }
    }
}

TEST_CASE("the sink writes when its interval is over and at the end")
{
    const testing::temporary_folder scratch;
    const std::string path = scratch.path("rank0.prom");
    const run_record run = plain_run();
    const auto steps_in_file = [&] {
        const auto found = samples_of(testing::read_file(path), plain_labels);
        const auto at = found.find("steps_total");
        return (at == found.end() ? "" : at->second) + (found.at("run_ended") == "1" ? " ended" : "");
    };
    constexpr std::uint64_t second = 1'000'000'000;
    report::prometheus out(path);
    CHECK(out.target() == path);
    out.open(run);
    CHECK_FALSE(std::filesystem::exists(path));
    out.flush({run, 100 * second, 0});
    CHECK(steps_in_file() == "0");
    out.on_step(sample_run::step(0), {run, 101 * second, 0});
    out.flush({run, 105 * second - 1, 0});
    CHECK(steps_in_file() == "0");
    out.flush({run, 105 * second, 0});
    CHECK(steps_in_file() == "1");
    out.on_step(sample_run::step(1), {run, 106 * second, 0});
    out.flush({run, 50 * second, 0}); // the clock was set back
    CHECK(steps_in_file() == "2");
    out.on_step(sample_run::step(2), {run, 51 * second, 0});
    out.close({run, 51 * second, 0});
    CHECK(steps_in_file() == "3 ended");

    report::prometheus each_time(path, {.interval_ms = 0});
    each_time.open(run);
    for (int step = 0; step < 3; ++step) {
        each_time.on_step(sample_run::step(step), {run, 100 * second, 0});
        each_time.flush({run, 100 * second, 0});
        CHECK(steps_in_file() == std::to_string(step + 1));
    }
}

TEST_CASE("a sink without a path writes nothing and one that cannot write throws")
{
    const run_record run = plain_run();
    report::prometheus off("");
    off.open(run);
    off.on_step(sample_run::step(0), {run, 1, 0});
    off.flush({run, 1, 0});
    off.close({run, 2, 0});
    report::prometheus nowhere("/nonexistent/folder/rank0.prom");
    nowhere.open(run);
    CHECK_THROWS_AS(nowhere.flush({run, 1, 0}), error);
}

} // namespace collprobe::testing::prometheus_test
