// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Are two runs the same, bit for bit? If not: the first step and call in which they part, how the difference grows, the
// metrics that moved beyond their noise, and the alarms that only one of them has.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <collprobe/report/compare.hpp>
#include <collprobe/report/comparison_page.hpp>
#include <collprobe/report/file.hpp>
#include <collprobe/report/words.hpp>

#include "../support/command_line.hpp"
#include "log_files.hpp"
#include "read_log.hpp"

namespace {

using namespace collprobe;
using tools::bad_input;

struct source {
    std::string path; ///< a file, or a folder with files
    std::string run; ///< empty: the only one
};

/// What the files say of one communicator of a run.
struct communicator_log {
    std::string id;
    int lowest_rank = -1; ///< of the job, of those that wrote
    report::run_log log;
};

/// What the files say of a run.
struct run_files {
    std::string name;
    std::vector<communicator_log> communicators;
    std::vector<std::string> runs; ///< that are in the files
    std::vector<std::string> notes; ///< what is wrong with the files
    bool has_beginning = false; ///< lines of a beginning, so a run that was not killed has an end
};

communicator_log& log_of(run_files& into, const tools::log_line& line)
{
    for (communicator_log& each : into.communicators) {
        if (each.id == line.communicator_id && each.log.communicator() == line.communicator) return each;
    }
    into.communicators.push_back({line.communicator_id, -1, report::run_log(line.run, line.communicator)});
    return into.communicators.back();
}

void add(run_files& into, const tools::log_line& line)
{
    using kind = tools::log_line::kind;
    if (line.what == kind::other) return;
    communicator_log& to = log_of(into, line);
    to.log.add_dropped(line.dropped, line.writer);
    if (line.global_rank >= 0 && (to.lowest_rank < 0 || line.global_rank < to.lowest_rank)) {
        to.lowest_rank = line.global_rank;
    }
    if (line.what == kind::step) to.log.add(line.step, line.writer);
    else if (line.what == kind::alarm) to.log.add(line.alarm, line.writer);
    else if (line.what == kind::end) to.log.add_end(line.writer);
}

void read_file(const std::string& path, const std::string& run, run_files& into)
{
    std::error_code problem;
    if (std::filesystem::is_directory(path, problem)) throw bad_input("cannot read '" + path + "': Is a directory");
    std::ifstream file(path, std::ios::binary);
    if (!file) throw bad_input("cannot read '" + path + "': " + std::generic_category().message(errno));
    tools::line_reader reader;
    reader.only_run = run;
    std::string text;
    for (std::uint64_t number = 1; std::getline(file, text); ++number) {
        try {
            const tools::log_line line = reader.read(text);
            if (!line.run.empty() && std::find(into.runs.begin(), into.runs.end(), line.run) == into.runs.end()) {
                into.runs.push_back(line.run);
            }
            if (line.what == tools::log_line::kind::run) into.has_beginning = true;
            add(into, line);
        } catch (const tools::bad_line& wrong) {
            if (file.eof()) { // no newline: its writer was killed, or is still writing
                into.notes.push_back("'" + path + "': the last line is cut off");
                return;
            }
            throw bad_input(path + ":" + std::to_string(number) + ": this line " + wrong.what());
        }
    }
    if (file.bad()) throw bad_input("cannot read '" + path + "'");
}

run_files read_run(const source& from, const char* option)
{
    run_files all;
    for (const std::string& path : tools::files_of(from.path)) read_file(path, from.run, all);
    std::string known;
    for (const std::string& each : all.runs) known += (known.empty() ? "'" : ", '") + each + "'";
    if (from.run.empty() && all.runs.size() > 1) {
        throw bad_input("'" + from.path + "' has several runs: choose one with " + option + ": " + known);
    }
    const auto has_steps = [](const communicator_log& each) { return !each.log.steps().empty(); };
    if (std::none_of(all.communicators.begin(), all.communicators.end(), has_steps)) {
        if (!from.run.empty() && std::find(all.runs.begin(), all.runs.end(), from.run) == all.runs.end()) {
            throw bad_input("'" + from.path + "' has no run '" + from.run + "'"
                + (known.empty() ? std::string() : ", only " + known));
        }
        throw bad_input("'" + from.path + "' has no steps");
    }
    all.name = from.run.empty() && !all.runs.empty() ? all.runs.front() : from.run;
    // Communicators of one name are told apart by their ranks; their ids are of one run only.
    std::vector<communicator_log> sorted;
    for (communicator_log& each : all.communicators) {
        const auto at = std::upper_bound(sorted.begin(), sorted.end(), each,
            [](const communicator_log& a, const communicator_log& b) {
                if (a.log.communicator() != b.log.communicator()) return a.log.communicator() < b.log.communicator();
                return a.lowest_rank < b.lowest_rank;
            });
        sorted.insert(at, std::move(each));
    }
    all.communicators = std::move(sorted);
    return all;
}

/// Whether lines are known to be lost.
bool lacks_lines(const run_files& run)
{
    const auto of_log = [](const communicator_log& each) {
        const auto dropped = [](const report::log_writer& by) { return by.dropped != 0; };
        return !each.log.missing_steps().empty()
            || std::any_of(each.log.writers().begin(), each.log.writers().end(), dropped);
    };
    return !run.notes.empty() || std::any_of(run.communicators.begin(), run.communicators.end(), of_log);
}

/// "ranks 0, 1 and 2", at most ten of them.
std::string writers_in_words(const report::run_log& log)
{
    std::vector<int> ranks;
    for (const report::log_writer& each : log.writers()) {
        if (each.rank >= 0) ranks.push_back(each.rank);
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks.empty() ? "a rank" : report::detail::list_ranks(ranks);
}

/// One line about the run, one about each thing that its files lack.
std::string describe(char letter, const source& from, const run_files& run)
{
    std::string text = std::string(1, letter) + ": run '" + run.name + "' of '" + from.path + "'\n";
    for (const communicator_log& each : run.communicators) {
        const report::run_log& log = each.log;
        const std::string who = "   communicator '" + log.communicator() + "'";
        if (log.steps().empty()) {
            text += who + ": no steps\n";
            continue;
        }
        text += who + ": " + report::detail::counted(static_cast<std::uint64_t>(log.ranks()), "rank") + ", "
            + report::detail::counted(log.steps().size(), "step") + " (" + std::to_string(log.steps().front().step)
            + " to " + std::to_string(log.steps().back().step) + "), written by " + writers_in_words(log) + '\n';
        const std::string warn = "   !";
        for (const auto& [first, last] : log.missing_steps()) {
            text += warn + " steps " + std::to_string(first) + " to " + std::to_string(last) + " are missing\n";
        }
        for (const report::log_writer& by : log.writers()) {
            const std::string rank = by.rank < 0 ? "a rank" : "rank " + std::to_string(by.rank);
            if (by.dropped != 0) {
                text += warn + ' ' + rank + " dropped " + report::detail::counted(by.dropped, "record") + '\n';
            }
            if (run.has_beginning && !by.has_ended) {
                text += warn + " the log of " + rank + " has no end: the run was killed, or goes on\n";
            }
        }
        for (const std::uint64_t step : log.restarts()) {
            text += warn + " it was started again at step " + std::to_string(step) + '\n';
        }
        for (const report::log_disagreement& each_one : log.disagreements()) {
            text += warn + " rank " + std::to_string(each_one.writer) + " tells other things of step "
                + std::to_string(each_one.step) + " than rank " + std::to_string(each_one.other) + '\n';
        }
    }
    for (const std::string& note : run.notes) text += "   ! " + note + '\n';
    return text;
}

int compare_files(const source& a, const source& b, const std::string& jsonl, const std::string& html)
{
    for (const std::string& out : {jsonl, html}) {
        std::error_code unknown;
        for (const std::string& in : {a.path, b.path}) {
            if (!out.empty() && std::filesystem::equivalent(out, in, unknown)) throw bad_input("'" + out + "' is an input");
        }
    }
    const run_files in_a = read_run(a, "--run-a");
    const run_files in_b = read_run(b, "--run-b");
    const bool incomplete = lacks_lines(in_a) || lacks_lines(in_b);
    std::string text = describe('A', a, in_a) + describe('B', b, in_b);
    std::string lines;
    std::vector<report::run_comparison> comparisons;
    bool differ = false;
    bool unknown = false;
    auto of_a = in_a.communicators.begin();
    auto of_b = in_b.communicators.begin();
    while (of_a != in_a.communicators.end() || of_b != in_b.communicators.end()) {
        const bool only_a = of_b == in_b.communicators.end()
            || (of_a != in_a.communicators.end() && of_a->log.communicator() < of_b->log.communicator());
        const bool only_b = !only_a
            && (of_a == in_a.communicators.end() || of_b->log.communicator() < of_a->log.communicator());
        if (only_a || only_b) {
            differ = true;
            text += "\nthe runs differ: only " + std::string(only_a ? "A" : "B") + " has a communicator '"
                + (only_a ? of_a++ : of_b++)->log.communicator() + "'\n";
            continue;
        }
        const report::run_comparison found = report::compare((of_a++)->log, (of_b++)->log);
        differ = differ || found.outcome == report::comparison_outcome::differ;
        unknown = unknown || found.outcome == report::comparison_outcome::nothing_to_compare;
        const bool several = in_a.communicators.size() + in_b.communicators.size() > 2;
        std::string words = report::describe(found);
        if (incomplete && found.outcome == report::comparison_outcome::identical) {
            unknown = true;
            words.replace(0, words.find(':'), "no difference, but lines are missing");
        }
        text += '\n' + (several ? "communicator '" + found.communicator + "': " : std::string()) + words;
        lines += report::json_line(found);
        comparisons.push_back(found);
    }
    if (!jsonl.empty()) report::line_file(jsonl).append(lines);
    if (!html.empty()) report::replace_file(html, report::comparison_page(comparisons));
    std::fputs(text.c_str(), stdout);
    return differ ? 1 : unknown ? 2 : 0;
}

} // namespace

int main(int argc, char** argv)
{
    source a;
    source b;
    std::string jsonl;
    std::string html;
    support::command_line line("Compares two runs by their JSON lines (report::json_lines), bit for bit.",
        "0 identical; 1 something differs;\n2 the input cannot be read, lacks lines, or holds nothing to compare.");
    line.position("A", a.path, "the first run: a file, or a folder of *.jsonl, of one rank or of several");
    line.position("B", b.path, "the second run");
    line.text("--run-a", "NAME", a.run, "its name, where the files of A have several runs");
    line.text("--run-b", "NAME", b.run, "its name, where the files of B have several runs");
    line.text("--jsonl", "PATH", jsonl, "writes the comparison there, a JSON line for each communicator");
    line.text("--html", "PATH", html, "writes the comparison there, a page to open in a browser");
    try {
        line.parse({argv + 1, argv + argc});
        return compare_files(a, b, jsonl, html);
    } catch (const std::exception& problem) {
        return support::explain("collprobe_compare", problem, 2);
    }
}
