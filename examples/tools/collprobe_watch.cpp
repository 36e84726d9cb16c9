// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Shows runs while they are written: the newest step by rank, and the last alarms.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/ioctl.h>
#include <unistd.h>

#include <collprobe/report/alarm.hpp>
#include <collprobe/report/table.hpp>
#include <collprobe/report/words.hpp>

#include "../support/command_line.hpp"
#include "log_files.hpp"
#include "read_log.hpp"

namespace {

using namespace collprobe;
using tools::growing_file;
using tools::seconds;
using tools::was_interrupted;

/// A rank that writes about a communicator.
struct writer_state {
    int rank = -1;
    bool has_begun = false; ///< it wrote the beginning of the run, or a step
    std::uint64_t last_step = 0;
    bool has_step = false;
    std::uint64_t alarms = 0;
    std::uint64_t dropped = 0;
    bool has_ended = false;
};

/// A communicator of a run, from the lines of all its writers.
class watched_run {
public:
    watched_run(std::string name, std::string communicator, std::string id)
        : name_(std::move(name)), communicator_(std::move(communicator)), id_(std::move(id))
    {
    }

    bool is(const tools::log_line& line) const
    {
        return line.run == name_ && line.communicator == communicator_ && line.communicator_id == id_;
    }

    void add(const tools::log_line& line)
    {
        using kind = tools::log_line::kind;
        if (starts_again(writer(line.writer), line)) *this = watched_run(name_, communicator_, id_);
        writer_state& by = writer(line.writer);
        by.has_begun = true;
        by.dropped = std::max(by.dropped, line.dropped);
        last_us_ = std::max(last_us_, line.time_us);
        ranks_ = std::max(ranks_, line.ranks);
        if (line.what == kind::step) {
            by.has_step = true;
            by.last_step = line.step.step;
            add(line.step);
        } else if (line.what == kind::alarm) {
            ++by.alarms;
            add(report::describe_alarm(line.alarm));
        } else if (line.what == kind::end) {
            by.has_ended = true;
            verdict_ = line.verdict;
        }
    }

    bool has_ended() const
    {
        return std::all_of(writers_.begin(), writers_.end(), [](const writer_state& by) { return by.has_ended; });
    }

    /// One line: "native 8x2/world: step 12, alarms 0, loss 0.5, ..."
    std::string line() const
    {
        // A terminal may cut the line: what matters most comes first.
        return title() + ": step " + (has_step_ ? std::to_string(step_.step) : std::string("-")) + ", alarms "
            + std::to_string(alarms()) + ", loss " + report::short_number(step_.loss.mean) + ", grad norm "
            + report::short_number(step_.gradient_norm.mean) + " (std / mean "
            + report::short_number(step_.gradient_norm.cv) + "), cosine " + report::short_number(cosine())
            + ", records dropped " + std::to_string(dropped()) + '\n';
    }

    std::string table() const
    {
        std::string text = line();
        if (has_step_ && step_.ranks <= 32 && (!step_.losses.empty() || !step_.gradient_norms.empty())) {
            report::text_table rows;
            rows.row("rank").cell("loss").cell("grad norm").cell("cosine").cell("steps named");
            const auto cell = [](const std::vector<double>& values, std::size_t rank) {
                return rank < values.size() ? report::short_number(values[rank]) : std::string("-");
            };
            for (std::size_t rank = 0; rank < static_cast<std::size_t>(step_.ranks); ++rank) {
                rows.row(std::to_string(rank)).cell(cell(step_.losses, rank)).cell(cell(step_.gradient_norms, rank));
                rows.cell(cell(step_.cosine.leave_one_out, rank));
                rows.cell(std::to_string(rank < named_.size() ? named_[rank] : 0));
            }
            text += rows.text();
        }
        constexpr std::size_t shown = 5;
        for (std::size_t i = recent_.size() > shown ? recent_.size() - shown : 0; i < recent_.size(); ++i) {
            text += "alarm: " + recent_[i] + '\n';
        }
        if (has_ended()) return text + "ended: " + verdict_ + '\n';
        if (last_us_ == 0) return text;
        const double age = seconds(CLOCK_REALTIME) - 1e-6 * static_cast<double>(last_us_);
        return text + "last line " + report::short_number(age < 0.05 ? 0 : 0.1 * static_cast<int>(10 * age))
            + " s ago\n";
    }

private:
    static bool starts_again(const writer_state& by, const tools::log_line& line)
    {
        if (line.what == tools::log_line::kind::run) return by.has_begun;
        return line.what == tools::log_line::kind::step && by.has_step && line.step.step <= by.last_step;
    }
    /// With the name of the communicator, unless it is the usual one.
    std::string title() const
    {
        return name_ + (communicator_.empty() || communicator_ == "world" ? "" : "/" + communicator_) + " ("
            + report::detail::counted(static_cast<std::uint64_t>(ranks_ < 0 ? 0 : ranks_), "rank") + ")";
    }
    double cosine() const
    {
        return is_nan(step_.cosine.mean_pairwise) ? step_.cosine.pooled : step_.cosine.mean_pairwise;
    }
    writer_state& writer(int rank)
    {
        for (writer_state& each : writers_) {
            if (each.rank == rank) return each;
        }
        writers_.push_back({.rank = rank});
        return writers_.back();
    }
    void add(const collprobe::step_record& step)
    {
        if (has_step_ && step.step <= step_.step) return; // every rank writes the same steps
        has_step_ = true;
        step_ = step;
        step_.calls.clear();
        std::vector<int> ranks;
        for (const finding& each : step.findings)
            ranks.insert(ranks.end(), each.ranks.begin(), each.ranks.end());
        std::sort(ranks.begin(), ranks.end());
        ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
        for (const int each : ranks) {
            const auto rank = static_cast<std::size_t>(each);
            if (named_.size() <= rank) named_.resize(rank + 1);
            ++named_[rank];
        }
    }
    /// Keeps the last 64, to know those that another rank writes too.
    void add(std::string alarm)
    {
        if (std::find(recent_.begin(), recent_.end(), alarm) != recent_.end()) return;
        recent_.push_back(std::move(alarm));
        if (recent_.size() > 64) recent_.pop_front();
    }
    std::uint64_t alarms() const
    {
        std::uint64_t most = 0;
        for (const writer_state& by : writers_) most = std::max(most, by.alarms);
        return most;
    }
    std::uint64_t dropped() const
    {
        std::uint64_t sum = 0;
        for (const writer_state& by : writers_) sum += by.dropped;
        return sum;
    }

    std::string name_;
    std::string communicator_;
    std::string id_;
    int ranks_ = 0;
    bool has_step_ = false;
    collprobe::step_record step_; ///< the newest, without calls
    std::vector<std::uint64_t> named_; ///< by rank: steps in which a check named it
    std::deque<std::string> recent_; ///< alarms in words
    std::vector<writer_state> writers_;
    std::uint64_t last_us_ = 0;
    std::string verdict_;
};

/// A file and what its lines say.
struct watched_file {
    growing_file file;
    tools::line_reader reader;
    bool has_lines = false;
    std::string problem; ///< with the last line that could not be read
};

class watcher {
public:
    explicit watcher(const std::vector<std::string>& paths)
    {
        for (const std::string& path : paths) files_.push_back({growing_file(path), {}, false, {}});
    }

    /// Reads what is new. Returns whether there was anything.
    bool read()
    {
        bool any = false;
        for (watched_file& each : files_) {
            const auto began = [&] {
                each.has_lines = false;
                each.problem.clear();
                each.reader = {};
            };
            each.file.read(began, [&](const std::string& text, std::uint64_t number) {
                any = each.has_lines = true;
                try {
                    add(each.reader.read(text));
                } catch (const tools::bad_line& wrong) {
                    each.problem = each.file.path() + ":" + std::to_string(number) + ": this line " + wrong.what();
                }
            });
        }
        return any;
    }

    bool empty() const noexcept { return runs_.empty(); }
    /// Whether every file has lines, and every run an end.
    bool has_ended() const
    {
        return !runs_.empty()
            && std::all_of(files_.begin(), files_.end(), [](const watched_file& each) { return each.has_lines; })
            && std::all_of(runs_.begin(), runs_.end(), [](const watched_run& each) { return each.has_ended(); });
    }

    std::string table() const
    {
        std::string text;
        for (const watched_run& each : runs_) text += (text.empty() ? "" : "\n") + each.table();
        return text + problems();
    }
    std::string lines() const
    {
        std::string text;
        for (const watched_run& each : runs_) text += each.line();
        return text;
    }

private:
    void add(const tools::log_line& line)
    {
        if (line.what == tools::log_line::kind::other) return;
        for (watched_run& each : runs_) {
            if (each.is(line)) return each.add(line);
        }
        runs_.emplace_back(line.run, line.communicator, line.communicator_id);
        runs_.back().add(line);
    }
    std::string problems() const
    {
        std::string text;
        for (const watched_file& each : files_) {
            if (!each.has_lines) text += "waiting for '" + each.file.path() + "'\n";
            if (!each.problem.empty()) text += "not read: " + each.problem + '\n';
        }
        return text;
    }

    std::vector<watched_file> files_;
    std::vector<watched_run> runs_;
};

/// The terminal while a table is redrawn in it; restored at the end.
class screen {
public:
    explicit screen(bool is_terminal) : is_terminal_(is_terminal)
    {
        if (is_terminal_) put("\033[?25l\033[2J"); // no cursor, empty
    }
    screen(const screen&) = delete;
    screen& operator=(const screen&) = delete;
    ~screen()
    {
        if (is_terminal_) put("\033[?25h");
    }

    /// From the upper left corner, cut to the size of the terminal.
    void draw(const std::string& text) const
    {
        winsize size{};
        if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 2 || size.ws_col < 2) size = {24, 80, 0, 0};
        std::string out = "\033[H";
        std::string_view rest = text;
        for (int row = 1; row < size.ws_row && !rest.empty(); ++row) {
            const std::size_t end = rest.find('\n');
            out.append(cut(rest.substr(0, end), size.ws_col)).append("\033[K\r\n"); // clears the rest of the line
            rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
        }
        put(out + "\033[J"); // and what is below
    }

private:
    /// The first characters of UTF-8 text.
    static std::string_view cut(std::string_view line, std::size_t columns)
    {
        std::size_t at = 0;
        for (std::size_t column = 0; at < line.size() && column < columns; ++column) {
            do ++at;
            while (at < line.size() && (static_cast<unsigned char>(line[at]) & 0xc0) == 0x80);
        }
        return line.substr(0, at);
    }
    static void put(std::string_view text)
    {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
    }

    bool is_terminal_;
};

int watch(const std::vector<std::string>& paths, bool once, double timeout)
{
    watcher runs(paths);
    if (once) {
        while (runs.read()) continue;
        std::fputs(runs.table().c_str(), stdout);
        return runs.empty() ? 2 : 0;
    }
    const bool is_terminal = ::isatty(STDOUT_FILENO) != 0;
    int result = 0;
    {
        const screen shown(is_terminal);
        double last_news = seconds(CLOCK_MONOTONIC);
        double last_shown = 0;
        bool has_news = false;
        while (was_interrupted == 0) {
            const double now = seconds(CLOCK_MONOTONIC);
            if (runs.read()) {
                last_news = now;
                has_news = true;
            }
            // A run may follow another in the same file.
            if (runs.has_ended() && now - last_news >= 1) break;
            if (timeout > 0 && now - last_news >= timeout) {
                result = 1;
                break;
            }
            if (now - last_shown >= 1 && (is_terminal || has_news)) {
                if (is_terminal) shown.draw(runs.table());
                else std::fputs(runs.lines().c_str(), stdout), std::fflush(stdout);
                last_shown = now;
                has_news = false;
            }
            tools::pause(0.1);
        }
        if (was_interrupted != 0) result = 128 + static_cast<int>(was_interrupted);
        if (is_terminal) shown.draw(runs.table());
    }
    if (!is_terminal) std::fputs(runs.table().c_str(), stdout);
    if (result == 1) std::fprintf(stderr, "collprobe_watch: nothing was written for %g seconds\n", timeout);
    return result;
}

} // namespace

int main(int argc, char** argv)
{
    std::vector<std::string> paths;
    bool once = false;
    double timeout = 0;
    support::command_line line(
        "Shows runs while their JSON lines (report::json_lines) are written: the newest step, and alarms.\n"
        "Where the output is no terminal, it is a line for each update, and the table at the end.",
        "0 every run has ended;\n1 timeout; 2 bad input, or --once and nothing there; 130 Ctrl-C.");
    line.positions("FILE", paths, "files of one run or of several, of one rank or of several; waits for them", true);
    line.flag("--once", once, "shows what is there, and ends");
    line.number("--timeout", timeout, 0, 1e9, "ends, with status 1, if nothing is written for so long (0: never)", "SECONDS");
    try {
        line.parse({argv + 1, argv + argc});
        tools::end_by_signals();
        return watch(paths, once, timeout);
    } catch (const std::exception& problem) {
        return support::explain("collprobe_watch", problem, 2);
    }
}
