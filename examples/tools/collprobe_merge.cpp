// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Puts together what the ranks of a preloaded program wrote, each into a file of its own, and judges it: which rank,
// which call, which step, and what to do. Or judges the JSON lines of a run again.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <collprobe/report/json.hpp>
#include <collprobe/report/json_lines.hpp>
#include <collprobe/report/prometheus.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>
#include <collprobe/step/judge_again.hpp>

#include "../report_files.hpp"
#include "../support/command_line.hpp"
#include "log_files.hpp"
#include "merged_log.hpp"

namespace {

using namespace collprobe;
using report::detail::counted;
using tools::bad_input;
using tools::merged_communicator;
using tools::writing_rank;

struct options {
    std::vector<std::string> paths;
    report_files files;
    probe_options settings{.lateness_floor_ns = detail::usual_lateness_floor_ns}; ///< by which steps are judged
    std::string communicator; ///< key or name; empty: all
    bool again = false;
    bool follow = false;
    double timeout = 0; ///< seconds without a new line; 0: none
};

/// The files that one communicator's records go to.
class outputs {
public:
    outputs(const report_files& files, run_record run)
        : run_(std::move(run)), views_(files.jsonl, files.html, files.trace)
    {
        const auto add = [this](const std::string& path, auto make) {
            if (!path.empty()) sinks_.push_back(make(path));
        };
        add(views_.jsonl(), [](const std::string& path) { return std::make_unique<report::json_lines>(path); });
        add(files.prometheus, [](const std::string& path) {
            return std::make_unique<report::prometheus>(path, report::prometheus_options{.all_ranks = true});
        });
        call([&](report::sink& each) { each.open(run_); });
    }

    void put(const step_record& record, std::uint64_t unix_us)
    {
        unix_ns_ = std::max(unix_ns_, 1000 * unix_us);
        call([&](report::sink& each) { each.on_step(record, context()); });
        if (++steps_ % 1024 == 0) flush();
    }
    void put(const finding& raised, std::uint64_t unix_us)
    {
        unix_ns_ = std::max(unix_ns_, 1000 * unix_us);
        call([&](report::sink& each) { each.on_alarm(raised, context()); });
    }
    void flush()
    {
        call([&](report::sink& each) { each.flush(context()); });
    }
    void close()
    {
        call([&](report::sink& each) { each.close(context()); });
        sinks_.clear();
        views_.make(run_.name);
    }
    /// Records that the ranks lost before they could write them.
    std::uint64_t dropped = 0;

private:
    record_context context() const { return {run_, unix_ns_, dropped}; }
    /// A file that cannot be written ends the program: it was asked for.
    template <class Call>
    void call(const Call& with)
    {
        for (const std::unique_ptr<report::sink>& each : sinks_) with(*each);
    }

    run_record run_;
    run_views views_;
    std::vector<std::unique_ptr<report::sink>> sinks_;
    std::uint64_t unix_ns_ = 0;
    std::uint64_t steps_ = 0;
};

/// The alarms; or, if there is none, the findings.
template <class InWords>
std::string found_lines(const report::run_findings& found, const InWords& in_words)
{
    constexpr std::size_t most = 20;
    std::string text;
    const std::vector<report::repeated_finding>& alarms = found.alarms;
    for (std::size_t i = 0; i < alarms.size() && i < most; ++i) {
        text += "  alarm: " + in_words(alarms[i].first);
        if (alarms[i].steps > 1)
            text += "; in " + counted(alarms[i].steps, "step") + ", the last " + std::to_string(alarms[i].last_step);
        text += '\n';
    }
    if (alarms.size() > most) text += "  ... and " + std::to_string(alarms.size() - most) + " more\n";
    if (!alarms.empty()) return text;
    const std::vector<report::repeated_finding>& findings = found.findings;
    for (std::size_t i = 0; i < findings.size() && i < most; ++i) {
        text += "  no alarm yet: step " + std::to_string(findings[i].first_step) + ": "
            + report::describe(findings[i].first) + '\n';
    }
    return text;
}

/// Whether a line, which is not parsed, has a member whose value begins so; a text of this name has no colon behind it.
bool has_member(std::string_view line, std::string_view name, std::string_view value)
{
    for (std::size_t at = line.find(name); at != line.npos; at = line.find(name, at + 1)) {
        std::size_t next = line.find_first_not_of(" \t", at + name.size());
        if (next == line.npos || line[next] != ':') continue;
        next = line.find_first_not_of(" \t", next + 1);
        if (next != line.npos && line.substr(next).starts_with(value)) return true;
    }
    return false;
}

/// The JSON lines of a run, whose steps are judged again. Where a run was started again, so is the judge.
class run_again {
public:
    explicit run_again(const options& with) : with_(with), path_(with.paths.front())
    {
        if (with.paths.size() != 1 || with.follow || !with.communicator.empty())
            throw bad_input("--again takes one file of JSON lines, and neither --follow nor --comm");
        std::error_code unknown;
        report_files files = with.files;
        files.for_each([&](const char*, const char*, const std::string& to) {
            if (!to.empty() && std::filesystem::equivalent(to, path_, unknown))
                throw bad_input("'" + to + "' is an input");
        });
        // By this floor a machine whose processors are too few stays one: the record says so.
        if (with_.settings.lateness_floor_ns == detail::usual_lateness_floor_ns) with_.settings.lateness_floor_ns = 0;
        each_line([this](const std::string& text) {
            if (has_member(text, "\"kind\"", "\"run\"")) has_times_.push_back(false);
            has_times_.back() = has_times_.back() || has_member(text, "\"lateness\"", "{");
        });
    }

    /// Returns the exit status.
    int judge()
    {
        each_line([this](const std::string& text) {
            try {
                add(tools::parsed(text));
            } catch (const tools::json::exception& wrong) { // a member of another kind
                throw tools::bad_line(detail::printable(wrong.what()));
            }
        });
        if (!out_ && tools::was_interrupted != 0) return 0;
        if (!out_) throw bad_input("'" + path_ + "' has no line of a step: is it a file of JSON lines of a run?");
        out_->close();
        const std::string text = "run '" + run_.name + "', communicator '" + run_.communicator + "': "
            + counted(static_cast<std::uint64_t>(found_.ranks), "rank") + ", " + counted(found_.steps, "step")
            + " judged again\n" + found_lines(found_, report::describe_alarm) + '\n' + found_.verdict() + '\n';
        std::fputs(text.c_str(), stdout);
        return found_.alarms.empty() ? 0 : 1;
    }

private:
    template <class Use>
    void each_line(const Use& use)
    {
        tools::growing_file file(path_);
        bool any = false;
        const auto read = [&](const std::string& text, std::uint64_t number) {
            any = true;
            try {
                use(text);
            } catch (const tools::bad_line& wrong) {
                throw bad_input(path_ + ":" + std::to_string(number) + ": this line " + wrong.what());
            } catch (const std::out_of_range&) {
                throw bad_input(path_ + ":" + std::to_string(number) + ": this line names a rank or call that is not there");
            }
        };
        while (file.read([] {}, read) && tools::was_interrupted == 0) continue;
        if (tools::was_interrupted != 0) return;
        if (file.has_partial_line()) throw bad_input("'" + path_ + "' ends within a line, or its last line has no newline");
        if (!any) throw bad_input("'" + path_ + "' has no lines");
    }
    void add(const tools::json& line)
    {
        tools::require_schema(line);
        const std::string kind = tools::text_of(line, "kind");
        if (kind == "run") {
            judge_.reset();
            alarms_.reset();
            ++runs_;
            if (!out_) describe_run(line);
        }
        if (kind != "step") return;
        reader_.step_of(line, record_);
        try {
            // Without losses, as of more than 16,384 ranks in a summary, nothing is judged again.
            if (!record_.losses.empty() && record_.losses.size() != static_cast<std::size_t>(record_.ranks))
                throw tools::bad_line("has not a loss for each rank");
            if (!alarms_) alarms_.emplace(record_.ranks);
            with_.settings.times = runs_ < has_times_.size() && has_times_[runs_];
            if (!judge_ && !record_.losses.empty()) judge_.emplace(record_.ranks, with_.settings);
            if (judge_) judge_->judge(record_);
        } catch (const error& wrong) {
            throw tools::bad_line("cannot be judged: " + std::string(wrong.what()));
        }
        if (!out_) out_.emplace(with_.files, run_);
        out_->dropped = tools::count_of(line, "records_dropped");
        const std::uint64_t unix_us = tools::count_of(line, "time_us");
        found_.add(record_);
        out_->put(record_, unix_us);
        tools::for_each_alarm(*alarms_, record_, [&, this](const finding& each) {
            found_.add(each);
            out_->put(each, unix_us);
        });
    }
    void describe_run(const tools::json& line)
    {
        run_.name = tools::text_of(line, "run");
        run_.job = tools::text_of(line, "job");
        run_.communicator = tools::text_of(line, "comm");
        run_.communicator_id = tools::text_of(line, "comm_id");
        run_.host = tools::text_of(line, "host");
        run_.device = tools::text_of(line, "device");
        run_.rank = tools::index_of(line, "writer");
        run_.global_rank = tools::index_of(line, "global_rank");
        run_.ranks = tools::index_of(line, "ranks");
        run_.nodes = static_cast<int>(tools::count_of(line, "nodes"));
        run_.process = static_cast<std::int64_t>(tools::count_of(line, "pid"));
        run_.started_ns = 1000 * tools::count_of(line, "started_us");
        run_.library = tools::text_of(line, "version");
        const auto settings = line.find("settings");
        if (settings == line.end()) return;
        for (auto each = settings->begin(); each != settings->end(); ++each)
            run_.settings.emplace_back(detail::printable(each.key()), tools::text_of(*settings, each.key().c_str()));
    }

    options with_;
    std::string path_;
    std::vector<bool> has_times_ = {false}; ///< of the lines before the first run, then by run
    std::size_t runs_ = 0; ///< that have begun
    run_record run_;
    tools::record_reader reader_;
    std::optional<judge_again> judge_;
    std::optional<alarms> alarms_;
    std::optional<outputs> out_;
    report::run_findings found_;
    step_record record_;
};

/// A file of a process.
struct rank_file {
    rank_file(std::string path, tools::text_pool& texts) : file(std::move(path)), reader(texts) {}

    tools::growing_file file;
    tools::rank_line_reader reader;
    std::optional<tools::rank_process> process;
    std::vector<std::uint64_t> communicators; ///< keys, in the order of their lines
    std::set<std::pair<std::uint64_t, int>> ranks; ///< key and rank
    std::uint64_t last_us = 0;
    bool is_of_rank = false; ///< a process of the job writes it
    bool at_end = false;
};

class merger {
public:
    explicit merger(options with) : with_(std::move(with)) { find_files(); }

    /// Reads all files and judges what they have.
    void read_all()
    {
        for (const std::unique_ptr<rank_file>& each : files_) find_communicators(*each);
        for (auto& [key, each] : communicators_) {
            for (const int rank : each->of.missing_ranks()) each->of.complete(rank);
        }
        while (tools::was_interrupted == 0) {
            // The file whose lines are the oldest: then few steps wait for their other ranks.
            rank_file* next = nullptr;
            for (const std::unique_ptr<rank_file>& each : files_) {
                if (!each->at_end && (next == nullptr || each->last_us < next->last_us)) next = each.get();
            }
            if (next == nullptr) break;
            if (!read(*next)) end(*next);
            for (auto& [key, each] : communicators_) each->of.judge_ended();
        }
        finish();
    }

    /// Reads files while they grow, until their ranks have ended or nothing comes any more.
    void follow()
    {
        double last_news = now();
        double last_turn = 0;
        while (tools::was_interrupted == 0) {
            bool any = false;
            for (const std::unique_ptr<rank_file>& each : files_) {
                if (each->at_end) continue;
                has_news_ = false;
                read(*each);
                any = any || has_news_;
            }
            if (any) last_news = now();
            for (auto& [key, each] : communicators_) each->of.judge_ended(now());
            if (now() - last_turn >= 1) {
                for (auto& [key, each] : communicators_) {
                    if (each->out) each->out->flush();
                }
                find_files();
                last_turn = now();
            }
            if (have_ended() && now() - last_news >= 1) break;
            if (with_.timeout > 0 && now() - last_news >= with_.timeout) break;
            if (!any) tools::pause(0.1);
        }
        finish();
    }

    /// What was found, for people. Returns the exit status.
    int report() const
    {
        std::string text = runs();
        if (!text.empty()) text += '\n';
        for (const communicator* each : wanted()) text += describe(*each) + '\n';
        std::string notes;
        for (const std::string& note : notes_) notes += "! " + note + '\n';
        text += notes + (notes.empty() ? "" : "\n") + coverage();
        bool found = false;
        const std::string words = verdict(found);
        text += words + '\n';
        std::fputs(text.c_str(), stdout);
        return found ? 1 : 0;
    }
    /// Whether there is anything of a rank.
    bool empty() const { return communicators_.empty(); }
    bool lacks_wanted() const
    {
        return wanted().empty();
    }
    std::string known_communicators() const
    {
        std::string text;
        for (const auto& [key, each] : communicators_) text += (text.empty() ? "" : ", ") + title(each->of, true);
        return text;
    }

private:
    struct communicator {
        communicator(std::uint64_t key, tools::text_pool& texts, const probe_options& settings,
            merged_communicator::listener to)
            : of(key, texts, settings, std::move(to))
        {
        }
        merged_communicator of;
        std::optional<outputs> out;
    };

    static double now() { return tools::seconds(CLOCK_MONOTONIC); }

    void find_files()
    {
        for (const std::string& path : with_.paths) {
            std::vector<std::string> found;
            try {
                found = tools::files_of(path);
            } catch (const bad_input&) {
                if (!with_.follow) throw; // files are still to come
            }
            for (const std::string& each : found) {
                const bool is_output = each == with_.files.jsonl || outputs_.count(each) != 0;
                if (is_output || !known_files_.insert(each).second) continue;
                files_.push_back(std::make_unique<rank_file>(each, texts_));
            }
        }
    }

    /// Looks for the beginnings of communicators, so that their ranks are known before the first step is judged. Files
    /// of others are read no more.
    void find_communicators(rank_file& of)
    {
        rank_file each(of.file.path(), texts_);
        const auto began = [] {};
        const auto use = [&](const std::string& text, std::uint64_t number) {
            const std::string_view head = std::string_view(text).substr(0, 64); // tells the kind of a line
            if (number != 1 && !has_member(head, "\"kind\"", "\"comm\"") && !has_member(head, "\"kind\"", "\"process\""))
                return;
            try {
                tools::rank_line line = each.reader.read(text);
                const bool begins
                    = line.as<tools::rank_process>() != nullptr || line.as<tools::rank_begin>() != nullptr;
                if (begins || number == 1) add(each, line);
            } catch (const tools::bad_line& wrong) {
                fail(each, number, wrong);
            }
        };
        while (each.file.read(began, use)) continue;
        of.is_of_rank = each.is_of_rank;
        of.at_end = !of.is_of_rank;
    }

    /// Reads a part of a file. Returns whether there may be more.
    bool read(rank_file& from)
    {
        constexpr std::uint64_t part = 1 << 18;
        const auto began = [&from] {
            from.process.reset();
            from.communicators.clear();
        };
        return from.file.read(began, [&](const std::string& text, std::uint64_t number) {
            has_news_ = true;
            try {
                tools::rank_line line = from.reader.read(text);
                from.last_us = std::max(from.last_us, line.time_us);
                add(from, line);
            } catch (const tools::bad_line& wrong) {
                if (!with_.follow) fail(from, number, wrong);
                note(from.file.path() + ":" + std::to_string(number) + ": this line " + wrong.what());
            }
        }, part);
    }
    [[noreturn]] static void fail(const rank_file& from, std::uint64_t number, const tools::bad_line& wrong)
    {
        throw bad_input(from.file.path() + ":" + std::to_string(number) + ": this line " + wrong.what());
    }
    void note(const std::string& text)
    {
        if (notes_.size() < 100 && std::find(notes_.begin(), notes_.end(), text) == notes_.end())
            notes_.push_back(text);
    }
    void end(rank_file& of)
    {
        of.at_end = true;
        if (of.file.has_partial_line()) note("'" + of.file.path() + "': the last line is cut off");
        for (const auto& [key, rank] : of.ranks) communicators_.at(key)->of.complete(rank);
    }

    void add(rank_file& from, tools::rank_line& line)
    {
        if (auto* const process = line.as<tools::rank_process>()) {
            from.process = std::move(*process);
            from.is_of_rank = true;
            return;
        }
        if (!line.comm_name.empty()) line.comm = key_of(from, line);
        if (line.comm == 0 || !from.process) return; // of another program
        communicator& to = communicator_of(line.comm);
        if (const auto* const begin = line.as<tools::rank_begin>()) {
            const auto known = std::find(from.communicators.begin(), from.communicators.end(), line.comm);
            const auto ordinal = static_cast<int>(known - from.communicators.begin());
            if (known == from.communicators.end()) from.communicators.push_back(line.comm);
            to.of.begin(line.writer, *begin, *from.process, ordinal);
            from.ranks.emplace(line.comm, line.writer);
            return;
        }
        if (from.ranks.count({line.comm, line.writer}) == 0) {
            throw tools::bad_line("is of a communicator that has no line 'comm' before");
        }
        to.of.add(line, now());
    }
    /// The communicator that a line names; 0: none of the file.
    std::uint64_t key_of(const rank_file& from, const tools::rank_line& line) const
    {
        for (const auto& [key, rank] : from.ranks) {
            if (rank != line.writer) continue;
            const merged_communicator& of = communicators_.at(key)->of;
            if (of.ranks()[static_cast<std::size_t>(rank)].begin.name == line.comm_name) return key;
        }
        return 0;
    }
    communicator& communicator_of(std::uint64_t key)
    {
        std::unique_ptr<communicator>& found = communicators_[key];
        if (!found) {
            found = std::make_unique<communicator>(key, texts_, with_.settings, merged_communicator::listener{
                [this, key](const step_record& record, std::uint64_t us) { put(*communicators_.at(key), record, us); },
                [this, key](const finding& raised, std::uint64_t us) {
                    communicator& of = *communicators_.at(key);
                    put(of, raised, us);
                    if (with_.follow && is_wanted(of.of)) say(title(of.of) + ": alarm: " + in_words(of.of, raised));
                },
                [this, key](const tools::call_mismatch& seen) {
                    communicator& of = *communicators_.at(key);
                    if (with_.follow && is_wanted(of.of)) say(title(of.of) + ": mismatch: " + in_words(seen));
                }});
        }
        return *found;
    }

    template <class Record>
    void put(communicator& of, const Record& record, std::uint64_t unix_us)
    {
        if (!is_wanted(of.of)) return;
        if (!of.out) open(of);
        of.out->dropped = 0;
        for (const writing_rank& each : of.of.ranks()) of.out->dropped += each.dropped;
        of.out->put(record, unix_us);
    }
    void open(communicator& of)
    {
        const bool is_alone = wanted().size() <= 1;
        const run_record run = of.of.facts();
        report_files files = with_.files;
        std::string name = of.of.name();
        if (!is_only_name(of.of)) {
            name += "." + (run.global_rank >= 0 ? std::to_string(run.global_rank) : detail::hexadecimal(of.of.key()));
        }
        files.for_each([&](const char*, const char*, std::string& path) {
            if (!is_alone) path = path_with(path, name);
            if (!path.empty()) outputs_.insert(path);
            std::error_code unknown;
            for (const std::unique_ptr<rank_file>& each : files_) {
                if (path.empty() || !std::filesystem::equivalent(path, each->file.path(), unknown)) continue;
                if (each->is_of_rank) throw bad_input("'" + path + "' is an input");
                each->at_end = true; // of an earlier merge
            }
        });
        of.out.emplace(files, run);
    }
    void finish()
    {
        for (auto& [key, each] : communicators_) {
            each->of.judge_rest();
            if (!each->out && is_wanted(each->of)) open(*each); // a file that was asked for is there, if only to say so
            if (each->out) each->out->close();
        }
    }

    bool have_ended() const
    {
        return !communicators_.empty()
            && std::all_of(communicators_.begin(), communicators_.end(),
                [](const auto& each) { return each.second->of.has_ended(); });
    }
    bool is_wanted(const merged_communicator& of) const
    {
        return with_.communicator.empty() || with_.communicator == of.name()
            || with_.communicator == detail::hexadecimal(of.key());
    }

    static void say(const std::string& line)
    {
        std::puts(line.c_str());
        std::fflush(stdout);
    }
    /// Those that are wanted, in the order of the job's ranks and of their making.
    std::vector<const communicator*> wanted() const
    {
        std::vector<const communicator*> all;
        for (const auto& [key, each] : communicators_) {
            if (!is_wanted(each->of)) continue;
            const auto at = std::upper_bound(all.begin(), all.end(), each.get(),
                [](const communicator* a, const communicator* b) { return a->of.place() < b->of.place(); });
            all.insert(at, each.get());
        }
        return all;
    }
    bool is_only_name(const merged_communicator& of) const
    {
        return std::count_if(communicators_.begin(), communicators_.end(),
                   [&of](const auto& each) { return each.second->of.name() == of.name(); }) == 1;
    }
    /// With the key where several have that name, or where it is asked for.
    std::string title(const merged_communicator& of, bool with_key = false) const
    {
        const bool has_key = with_key || !is_only_name(of);
        return "communicator '" + of.name() + "'"
            + (has_key ? " (" + detail::hexadecimal(of.key()) + ")" : std::string());
    }

    /// An alarm with the places of its ranks.
    static std::string in_words(const merged_communicator& of, const finding& raised)
    {
        std::string text = report::describe_alarm(raised);
        for (std::size_t i = 0; i < raised.ranks.size() && i < 10; ++i) {
            text += (i == 0 ? "; " : ", ") + of.who(raised.ranks[i]);
        }
        return text;
    }
    static std::string in_words(const tools::call_mismatch& seen)
    {
        return "call " + std::to_string(seen.sequence) + " (step " + std::to_string(seen.step)
            + "): the ranks did not make the same call: " + seen.text;
    }
    static std::string in_words(const merged_communicator& of, const tools::stopped_rank& seen)
    {
        return of.who(seen.rank)
            + (seen.wrote_any ? " wrote nothing after call " + std::to_string(seen.last_call) : " wrote no call")
            + ", the others reached " + std::to_string(seen.others);
    }

    std::string runs() const
    {
        std::string text;
        std::vector<std::string> told;
        for (const std::unique_ptr<rank_file>& file : files_) {
            if (!file->process || file->communicators.empty()) continue;
            const std::string& run = file->process->run;
            if (std::find(told.begin(), told.end(), run) != told.end()) continue;
            told.push_back(run);
            std::set<std::string> hosts;
            std::uint64_t processes = 0;
            for (const std::unique_ptr<rank_file>& each : files_) {
                if (!each->process || each->process->run != run || each->communicators.empty()) continue;
                ++processes;
                hosts.insert(each->process->host);
            }
            text += "run '" + run + "'" + (file->process->job.empty() ? "" : " (job " + file->process->job + ")") + ": "
                + (processes == 1 ? std::string("1 process") : std::to_string(processes) + " processes") + " on "
                + counted(hosts.size(), "host") + '\n';
        }
        return text;
    }

    std::string describe(const communicator& each) const
    {
        const merged_communicator& of = each.of;
        const tools::merge_counts& counts = of.counts();
        std::string text = title(of, true) + ": " + counted(static_cast<std::uint64_t>(of.size()), "rank");
        if (counts.steps == 0) {
            text += ", no step was judged\n";
        } else {
            text += ", " + counted(counts.steps, "step") + " judged (" + std::to_string(counts.first_step)
                + (counts.steps == 1 ? std::string() : " to " + std::to_string(counts.last_step)) + "), "
                + std::to_string(counts.calls) + " of the calls " + std::to_string(counts.first_call) + " to "
                + std::to_string(counts.last_call) + '\n';
            text += "  " + agreement(counts) + '\n';
        }
        text += warnings(each);
        for (const std::string& note : of.notes()) text += "  note: " + note + '\n';
        for (const tools::call_mismatch& seen : of.mismatches()) text += "  mismatch: " + in_words(seen) + '\n';
        if (counts.mismatches > of.mismatches().size()) {
            text += "  ... and " + counted(counts.mismatches - of.mismatches().size(), "other call") + '\n';
        }
        return text + found_lines(of.found(), [&of](const finding& raised) { return in_words(of, raised); });
    }
    static std::string agreement(const tools::merge_counts& counts)
    {
        std::string text;
        if (counts.compared == 0) text = "no result was compared";
        else if (counts.differing == 0) text = "all ranks got the same result in " + counted(counts.compared, "call");
        else
            text = "the ranks got different results in " + std::to_string(counts.differing) + " of "
                + counted(counts.compared, "call");
        const std::uint64_t unchecked = counts.unchecked_sums();
        if (counts.sums == 0) return unchecked == 0 ? text : text + "; " + unchecked_sums(counts);
        const std::uint64_t told = counts.wrong_sums == 0 ? counts.sums : counts.wrong_sums;
        text += "; ";
        if (told != counts.sums + unchecked) text += std::to_string(told) + " of ";
        text += counted(counts.sums + unchecked, "sum") + (counts.sums + unchecked == 1 ? " is" : " are")
            + (counts.wrong_sums == 0 ? " right" : " wrong");
        return unchecked == 0 ? text : text + ", " + unchecked_sums(counts);
    }
    /// "30 were not checked: their results have NaN or infinity"
    static std::string unchecked_sums(const tools::merge_counts& counts)
    {
        const bool is_one = counts.unchecked_sums() == 1;
        std::string text = std::to_string(counts.unchecked_sums()) + (is_one ? " was" : " were") + " not checked: ";
        const bool has_both = counts.nonfinite_sums != 0 && counts.multiplied_sums != 0;
        if (counts.nonfinite_sums != 0) {
            text += is_one ? "its result has NaN or infinity" : "their results have NaN or infinity";
            if (has_both) text += " (" + std::to_string(counts.nonfinite_sums) + "), or ";
        }
        if (counts.multiplied_sums != 0) text += std::string(is_one ? "its" : "their") + " inputs are multiplied first";
        if (has_both) text += " (" + std::to_string(counts.multiplied_sums) + ")";
        return text;
    }
    /// What the files lack.
    static std::string warnings(const communicator& each)
    {
        const merged_communicator& of = each.of;
        const tools::merge_counts& counts = of.counts();
        std::string text;
        const auto warn = [&text](const std::string& what) { text += "  ! " + what + '\n'; };
        if (const std::vector<int> missing = of.missing_ranks(); !missing.empty()) {
            warn(report::detail::list_ranks(missing) + " wrote nothing: calls that need all ranks are not judged");
        }
        const std::vector<tools::stopped_rank> stopped = of.stopped_ranks();
        for (std::size_t i = 0; i < stopped.size() && i < 10; ++i) warn(in_words(of, stopped[i]));
        if (stopped.size() > 10) warn("... and " + std::to_string(stopped.size() - 10) + " more ranks");
        if (counts.other_steps + counts.other_calls != 0) {
            warn("the ranks wrote different calls: " + std::to_string(counts.steps) + " of "
                + counted(counts.steps + counts.other_steps, "step") + " and " + std::to_string(counts.calls) + " of "
                + counted(counts.calls + counts.other_calls, "call") + " are there of all ranks");
        }
        if (counts.cut_steps != 0) {
            const std::string first = std::to_string(counts.first_cut);
            text += (counts.cut_steps == 1 ? "  step " + first + " was"
                                           : "  " + std::to_string(counts.cut_steps) + " of the steps " + first + " to "
                            + std::to_string(counts.last_cut) + " were")
                + " told apart by the calls of other steps; the ranks' own lines may have other numbers there\n";
        }
        if (counts.uncut_steps != 0) {
            warn(std::to_string(counts.uncut_calls) + " of the calls " + std::to_string(counts.first_uncut) + " to "
                + std::to_string(counts.last_uncut) + " count as " + counted(counts.uncut_steps, "step")
                + ", because they have no period by which steps are known: the program can mark its steps "
                  "(collprobe_mark_step)");
        }
        if (counts.unknown_calls != 0) warn(counted(counts.unknown_calls, "call") + " of kinds that are not judged");
        if (counts.late_lines != 0) warn(counted(counts.late_lines, "line") + " came after their step was judged");
        std::vector<int> aborted;
        for (int rank = 0; rank < of.size(); ++rank) {
            const writing_rank& by = of.ranks()[static_cast<std::size_t>(rank)];
            if (by.dropped != 0) warn(of.who(rank) + " dropped " + counted(by.dropped, "record"));
            if (by.end == "abort") aborted.push_back(rank);
        }
        if (!aborted.empty()) warn(report::detail::list_ranks(aborted) + " aborted the communicator");
        return text;
    }

    /// A row for ranks that looked at the same calls.
    std::string coverage() const
    {
        std::set<std::string> reasons;
        for (const communicator* each : wanted()) {
            for (const writing_rank& by : each->of.ranks()) {
                if (!by.coverage) continue;
                for (const auto& [reason, count] : by.coverage->skipped) reasons.insert(reason);
            }
        }
        report::text_table table;
        table.row("coverage").cell("ranks").cell("calls").cell("probed").cell("every").cell("GPU time, at most");
        for (const std::string& each : reasons) table.cell("skipped: " + each);
        bool any = false;
        for (const communicator* each : wanted()) {
            const std::vector<writing_rank>& ranks = each->of.ranks();
            struct row {
                std::vector<std::string> cells;
                std::vector<int> ranks;
                double share;
                std::vector<std::string> skipped;
            };
            std::vector<row> rows;
            for (std::size_t r = 0; r < ranks.size(); ++r) {
                if (!ranks[r].coverage) continue;
                const tools::rank_coverage& by = *ranks[r].coverage;
                row of{{std::to_string(by.calls), std::to_string(by.probed), std::to_string(by.every)}, {},
                    detail::not_a_number(), {}};
                for (const std::string& reason : reasons) {
                    std::uint64_t count = 0;
                    for (const auto& [known, number] : by.skipped) count += known == reason ? number : 0;
                    of.skipped.push_back(std::to_string(count));
                }
                const auto same = std::find_if(rows.begin(), rows.end(),
                    [&of](const row& other) { return other.cells == of.cells && other.skipped == of.skipped; });
                row& to = same == rows.end() ? rows.emplace_back(std::move(of)) : *same;
                to.ranks.push_back(static_cast<int>(r));
                to.share = to.share > by.share_measured ? to.share : by.share_measured;
            }
            for (const row& of : rows) {
                any = true;
                table.row(title(each->of).substr(std::string_view("communicator ").size())).cell(ranges(of.ranks));
                for (const std::string& cell : of.cells) table.cell(cell);
                table.cell(is_nan(of.share) ? std::string("-") : report::short_number(100 * of.share) + " %");
                for (const std::string& cell : of.skipped) table.cell(cell);
            }
        }
        if (!any) return "";
        return table.text() + "calls: made; probed: their data was read, of one call in every so many; skipped: not read, by reason\n\n";
    }
    /// "0-3,5"
    static std::string ranges(const std::vector<int>& ranks)
    {
        std::string text;
        for (std::size_t i = 0; i < ranks.size();) {
            std::size_t last = i;
            while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
            if (!text.empty()) text += ',';
            text += std::to_string(ranks[i]);
            if (last > i) text += '-';
            if (last > i) text += std::to_string(ranks[last]);
            i = last + 1;
        }
        return text;
    }

    /// One sentence about all communicators: the gravest that was found.
    std::string verdict(bool& found) const
    {
        const communicator* gravest = nullptr;
        const auto grave = [](const communicator& each) {
            int most = -1;
            for (const report::repeated_finding& of : each.of.found().alarms)
                most = std::max(most, static_cast<int>(of.first.action));
            return most;
        };
        std::string other; // what is no alarm
        std::uint64_t alarms = 0;
        std::uint64_t steps = 0;
        std::uint64_t calls = 0;
        std::uint64_t unseen = 0;
        std::uint64_t findings = 0;
        tools::merge_counts sums; // of all communicators together
        const std::vector<const communicator*> all = wanted();
        for (const communicator* each : all) {
            const tools::merge_counts& counts = each->of.counts();
            sums.sums += counts.sums;
            sums.nonfinite_sums += counts.nonfinite_sums;
            sums.multiplied_sums += counts.multiplied_sums;
            findings += each->of.found().findings.size();
            const report::run_findings& of = each->of.found();
            steps += of.steps;
            calls += of.calls;
            unseen += of.unprobed_calls + of.unread_calls;
            alarms += of.alarms.size();
            if (!of.alarms.empty() && (gravest == nullptr || grave(*each) > grave(*gravest))) gravest = each;
            const std::string where = all.size() == 1 ? "" : " (" + title(each->of) + ")";
            if (!other.empty()) continue;
            if (!each->of.mismatches().empty()) {
                const tools::call_mismatch& seen = each->of.mismatches().front();
                other = (seen.ranks.empty() ? "The ranks" : capital(report::detail::list_ranks(seen.ranks)))
                    + " did not make the same call as the others, first call " + std::to_string(seen.sequence)
                    + " in step " + std::to_string(seen.step) + where;
            } else if (const auto missing = each->of.missing_ranks(); !missing.empty()) {
                other = capital(report::detail::list_ranks(missing)) + " wrote nothing" + where;
            } else if (const auto stopped = each->of.stopped_ranks(); !stopped.empty()) {
                other = capital(in_words(each->of, stopped.front())) + where;
            }
        }
        found = gravest != nullptr || !other.empty();
        std::string unchecked;
        if (sums.unchecked_sums() != 0)
            unchecked = "of " + counted(sums.sums + sums.unchecked_sums(), "sum") + ' ' + unchecked_sums(sums);
        if (gravest != nullptr) {
            std::string text = gravest->of.found().steps == 0
                ? capital(report::detail::list_ranks(gravest->of.found().alarms.front().first.ranks)) + ' '
                    + facts_of(gravest->of.found().alarms.front().first.what).sentence.named + ", step "
                    + std::to_string(gravest->of.found().alarms.front().first_step) + '.'
                : gravest->of.found().verdict();
            if (all.size() > 1) text = capital(title(gravest->of)) + ": " + text;
            if (const std::uint64_t more = alarms - gravest->of.found().alarms.size(); more != 0) {
                text += " " + counted(more, "alarm") + " of other communicators.";
            }
            if (!unchecked.empty()) text += ' ' + capital(unchecked) + '.';
            return other.empty() ? text : text + " " + other + ".";
        }
        if (!unchecked.empty()) unchecked = "; " + unchecked;
        if (!other.empty()) return other + unchecked + ".";
        if (steps == 0) return "No step was judged: no call is there of all ranks.";
        std::string text = std::string(findings == 0 ? "Nothing was found" : "No alarm was raised") + " in "
            + counted(steps, "step") + " of " + counted(all.size(), "communicator");
        if (findings != 0) text += "; what stood out did not recur";
        if (unseen != 0)
            text += "; " + std::to_string(unseen) + " of " + counted(calls, "call") + " were not looked at";
        return text + unchecked + '.';
    }
    static std::string capital(std::string text)
    {
        if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
        return text;
    }

    options with_;
    tools::text_pool texts_;
    std::vector<std::unique_ptr<rank_file>> files_;
    std::set<std::string> known_files_;
    std::set<std::string> outputs_; ///< paths of our own
    std::map<std::uint64_t, std::unique_ptr<communicator>> communicators_; ///< by key
    std::vector<std::string> notes_;
    bool has_news_ = false;
};

int merge(const options& with)
{
    const auto ended = [](int status) {
        return tools::was_interrupted != 0 ? 128 + static_cast<int>(tools::was_interrupted) : status;
    };
    if (with.again) return ended(run_again(with).judge());
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) { // each rank's file is open
        files.rlim_cur = files.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &files);
    }
    merger all(with);
    if (with.follow) all.follow();
    else all.read_all();
    if (all.empty()) throw bad_input("no file has a line of a rank: is this the folder of COLLPROBE_DIR?");
    if (all.lacks_wanted()) {
        throw bad_input("there is no communicator '" + with.communicator + "', only: " + all.known_communicators());
    }
    const int status = all.report();
    return with.follow ? status : ended(status);
}

} // namespace

int main(int argc, char** argv)
{
    options with;
    support::command_line line(
        "Puts together what the ranks of a preloaded program wrote (COLLPROBE_DIR), and judges it. Or, with --again,\n"
        "judges the JSON lines of a run by other rates, tolerance, groups or floor: what these decide is judged again.",
        "0 nothing was found;\n1 an alarm, ranks that made different calls, or that stopped or are missing;\n"
        "2 the input cannot be read, or a file cannot be written.");
    line.positions("FILE", with.paths, "folders of *.jsonl, or files, of all processes", true);
    with.files.for_each([&line](const char* option, const char* help, std::string& path) {
        line.text(option, "PATH", path, std::string(help) + "; with several communicators one file for each");
    });
    line.text("--comm", "KEY|NAME", with.communicator, "only this communicator: its key, or its name");
    line.flag("--again", with.again, "FILE has the JSON lines of a run, with its steps: they are judged again");
    line.flag("--follow", with.follow, "goes on while the files grow, and tells alarms at once");
    line.number("--timeout", with.timeout, 0, 1e9, "with --follow: ends if nothing is written for so long (0: never)",
        "SECONDS");
    line.number("--false-alarms", with.settings.false_alarms_per_step, 1e-12, 0.5,
        "probability that a healthy step has a statistical finding", "RATE");
    line.number("--false-alarms-per-run", with.settings.false_alarms_per_run, 0, 0.5,
        "probability that the evidence over a healthy run ever names a rank (0: none is gathered)", "RATE");
    line.number("--tolerance", with.settings.tolerance, 0, 1e6,
        "differences between ranks that are no evidence, in robust standard deviations over the ranks", "DEVIATIONS");
    line.numbers("--groups", with.settings.groups, 0, 1'000'000,
        "a number for each rank of the job (with --again, of the communicator): by the evidence, ranks with the same "
        "number should be alike");
    line.number("--lateness-floor", with.settings.lateness_floor_ns, 1, 1e12, "nanoseconds by which a rank may come late",
        "NS");
    try {
        line.parse({argv + 1, argv + argc});
        tools::end_by_signals();
        return merge(with);
    } catch (const std::exception& problem) {
        return support::explain("collprobe_merge", problem, 2);
    }
}
