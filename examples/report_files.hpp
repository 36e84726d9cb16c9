// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <collprobe/report/file.hpp>
#include <collprobe/report/json_lines.hpp>
#include <collprobe/report/prometheus.hpp>
#include <collprobe/report/sinks.hpp>

/// The files that every example and study writes when it is asked to: `--jsonl PATH` for programs, `--html PATH` for
/// people, `--trace PATH` for Perfetto, `--prometheus PATH` for node_exporter. Empty: not asked for. Page and trace are made
/// of the JSON lines by the program `collprobe`, which needs Python.
struct report_files {
    std::string jsonl;
    std::string html;
    std::string trace;
    std::string prometheus;

    /// Reads a command line that has nothing else. Anything else ends the program with status 2.
    static report_files from(int argc, char** argv)
    {
        report_files files;
        for (int i = 1; i < argc; i += 2) {
            const std::string option = argv[i];
            std::string* path = nullptr;
            files.for_each([&](const char* name, const char*, std::string& of) {
                if (option == name) path = &of;
            });
            if (path == nullptr || i + 1 == argc) {
                std::fprintf(stderr, "%s: the options are [--jsonl|--html|--trace|--prometheus PATH]...\n", argv[0]);
                std::exit(2);
            }
            *path = argv[i + 1];
        }
        return files;
    }
    /// Calls `use(option, help, path)` for each file.
    template <class Use>
    void for_each(const Use& use)
    {
        use("--jsonl", "write each step, alarm and run as a line of JSON", jsonl);
        use("--html", "write a report to open in a browser", html);
        use("--trace", "write a trace to open in ui.perfetto.dev", trace);
        use("--prometheus", "write metrics for node_exporter's textfile collector", prometheus);
    }
};

/// A path with a name before its ending: "report.strict.html". An empty path stays empty.
inline std::string path_with(const std::string& path, const std::string& name)
{
    if (path.empty()) return path;
    std::string part = "." + name;
    for (char& each : part) {
        if (std::isalnum(static_cast<unsigned char>(each)) == 0 && each != '.') each = '_';
    }
    const std::size_t dot = path.rfind('.');
    const bool has_end = dot != path.npos && path.find('/', dot) == path.npos;
    return has_end ? path.substr(0, dot) + part + path.substr(dot) : path + part;
}

/// The page and the trace of a run, and the JSON lines that the program `collprobe` makes them of.
class run_views {
public:
    run_views() = default;
    /// An empty path is not asked for. \throws std::runtime_error if a page or a trace cannot be written
    run_views(std::string jsonl, std::string html, std::string trace)
        : jsonl_(std::move(jsonl)), html_(std::move(html)), trace_(std::move(trace))
    {
        for (const std::string& path : {html_, trace_}) {
            if (path.empty()) continue;
            collprobe::report::line_file(path).close(); // one that cannot be written is told before the run
            if (jsonl_.empty()) jsonl_ = own_ = path + ".jsonl";
        }
    }
    /// Where the run's JSON lines belong; may be empty.
    const std::string& jsonl() const noexcept { return jsonl_; }

    /// Makes them, after the lines of the run's end. What cannot be made is told, and the lines stay.
    void make(const std::string& run) const
    {
        bool all = true;
        if (!html_.empty()) all = view("page", run, html_) && all;
        if (!trace_.empty()) all = view("trace", run, trace_) && all;
        if (all && !own_.empty()) ::unlink(own_.c_str());
    }

private:
    bool view(const char* what, const std::string& run, const std::string& path) const
    {
#ifdef COLLPROBE_EXAMPLE_VIEWER
        std::vector<std::string> words{"python3", "-B", COLLPROBE_EXAMPLE_VIEWER};
#else
        std::vector<std::string> words{"collprobe"};
#endif
        for (const std::string& word : {std::string(what), jsonl_, "--run=" + run, std::string("-o"), path}) words.push_back(word);
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        posix_spawn_file_actions_t quiet;
        ::posix_spawn_file_actions_init(&quiet);
        ::posix_spawn_file_actions_adddup2(&quiet, STDERR_FILENO, STDOUT_FILENO);
        pid_t process = 0;
        int status = 0;
        const int failed = ::posix_spawnp(&process, arguments[0], &quiet, nullptr, arguments.data(), environ);
        ::posix_spawn_file_actions_destroy(&quiet);
        if (failed == 0 && ::waitpid(process, &status, 0) == process && status == 0) return true;
        std::fprintf(stderr, "'%s' was not made%s%s: `collprobe %s %s -o %s` makes it, with Python 3.9 or newer\n", path.c_str(),
            failed == 0 ? "" : ", because Python does not run: ", failed == 0 ? "" : std::strerror(failed), what,
            jsonl_.c_str(), path.c_str());
        std::error_code unknown;
        if (std::filesystem::is_regular_file(path, unknown)) std::filesystem::remove(path, unknown); // it is empty
        return false;
    }

    std::string jsonl_;
    std::string html_;
    std::string trace_;
    std::string own_; ///< JSON lines that nobody asked for
};

/// Writes the records of one run after another. With several runs each has its files but for the JSON lines, with the
/// run's name in them: "report.strict.html".
class run_reports {
public:
    /// \throws std::runtime_error if the JSON lines cannot be written.
    explicit run_reports(report_files files, bool has_several_runs = false)
        : files_(std::move(files)), has_several_runs_(has_several_runs)
    {
        if (files_.jsonl.empty()) return;
        collprobe::report::line_file(files_.jsonl).close(); // empties it
        has_jsonl_ = true;
    }

    /// For a program without options of its own: a file that cannot be written ends it with status 1.
    run_reports(int argc, char** argv) : files_(report_files::from(argc, argv)), program_(argv[0]) {}

    /// A run of that name, between so many ranks of this process; settings are for people to read.
    void begin(const std::string& name, int ranks, std::vector<std::pair<std::string, std::string>> settings = {})
    {
        using namespace collprobe::report;
        collprobe::run_record run = describe_process(name);
        run.ranks = ranks;
        run.settings = std::move(settings);
        try {
            views_ = {files_.jsonl, path_of_run(files_.html, name), path_of_run(files_.trace, name)};
        } catch (const std::runtime_error& problem) {
            fail(problem.what());
        }
        name_ = name;
        now_.emplace(std::move(run), sinks_options{.room = 4096, .tell = false},
            json_lines(views_.jsonl(), {.keep = has_jsonl_}),
            prometheus(path_of_run(files_.prometheus, name), {.all_ranks = true}));
        has_jsonl_ = !files_.jsonl.empty();
        now_->flush(); // a file that cannot be written is told before the run
        check();
    }
    /// A record of the run. \throws std::runtime_error if a file cannot be written.
    template <class Record>
    void put(const Record& record)
    {
        if (++put_ % 1024 == 0) now_->flush(); // a trainer would not wait: it counts what is dropped
        now_->put(record);
        check();
    }
    /// \throws std::runtime_error if a file could not be written.
    void end()
    {
        now_->close();
        check();
        now_.reset();
        views_.make(name_);
    }
    /// A line of the caller's own, between two runs.
    void line(const std::string& text)
    {
        if (!files_.jsonl.empty()) collprobe::report::line_file(files_.jsonl, true).append(text);
    }

private:
    void check() const
    {
        for (const std::string& failure : now_->failures()) fail(failure);
    }
    [[noreturn]] void fail(const std::string& why) const
    {
        if (program_ == nullptr) throw std::runtime_error(why);
        std::fprintf(stderr, "%s: %s\n", program_, why.c_str());
        std::exit(1);
    }
    std::string path_of_run(const std::string& path, const std::string& run) const
    {
        return has_several_runs_ ? path_with(path, run) : path;
    }

    report_files files_;
    bool has_several_runs_ = false;
    bool has_jsonl_ = false; ///< it was emptied
    const char* program_ = nullptr; ///< that ends on an error
    std::uint64_t put_ = 0;
    std::string name_; ///< of the run that goes on
    run_views views_;
    std::optional<collprobe::report::sinks<collprobe::report::json_lines, collprobe::report::prometheus>> now_;
};
