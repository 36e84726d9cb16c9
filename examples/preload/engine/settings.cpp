// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include "settings.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/printable.hpp>

extern char** environ;

namespace collprobe_preload {

namespace {

constexpr std::string_view prefix = "COLLPROBE_";

/// Names that this object, the first stage, the layer of MPI and the Python package read.
constexpr std::string_view known_names[] = {"ENABLE", "DIR", "SINKS", "EVERY", "BUDGET", "OPS", "MIN_BYTES",
    "COMMS", "AUDIT", "CHANNEL", "STEP", "STEP_RANGE", "FALSE_ALARMS", "NCCL_PATH", "CONTROL_FILE", "LOG",
    "ENGINE", "CHAIN", "RUN", "STEP_CALLS", "WAIT", "LIBRARY", "BACKEND"};

constexpr std::string_view kind_names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
    "reduce", "all_to_all", "gather", "scatter", "send", "recv", "put_signal", "signal", "wait_signal"};
static_assert(std::size(kind_names) == collprobe_kinds);

std::vector<std::string> items_of(std::string_view list)
{
    std::vector<std::string> items;
    while (!list.empty()) {
        const std::size_t end = std::min(list.find(','), list.size());
        std::string_view item = list.substr(0, end);
        while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
        while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
        if (!item.empty()) items.emplace_back(item);
        list.remove_prefix(std::min(end + 1, list.size()));
    }
    return items;
}

class reader {
public:
    explicit reader(settings& into) : into_(into) {}

    /// The value of COLLPROBE_`name`; null if it is not set or empty.
    const char* text(std::string_view name)
    {
        const std::string whole = std::string(prefix) + std::string(name);
        const char* const value = std::getenv(whole.c_str());
        if (value == nullptr || *value == '\0') return nullptr;
        into_.given.emplace_back(whole, value);
        return value;
    }
    void warn(std::string_view name, const char* value, const std::string& why)
    {
        into_.warnings.push_back(
            std::string(prefix) + std::string(name) + "=" + value + " is not used: " + why);
    }
    /// A number from `least` to `most`.
    void number(std::string_view name, double& to, double least, double most)
    {
        const char* const value = text(name);
        if (value == nullptr) return;
        char* end = nullptr;
        const double read = std::strtod(value, &end);
        if (end == value || *end != '\0' || !(read >= least && read <= most)) {
            return warn(name, value, "expected a number from " + shown(least) + " to " + shown(most));
        }
        to = read;
    }
    void whole_number(std::string_view name, std::uint64_t& to, double most)
    {
        double read = static_cast<double>(to);
        number(name, read, 0, most);
        to = static_cast<std::uint64_t>(read);
    }
    void choice(std::string_view name, std::vector<std::string_view> names, const auto& take)
    {
        const char* const value = text(name);
        if (value == nullptr) return;
        for (std::size_t i = 0; i < names.size(); ++i) {
            if (names[i] == value) return take(i);
        }
        std::string all;
        for (const std::string_view each : names) all += (all.empty() ? "" : ", ") + std::string(each);
        warn(name, value, "expected one of " + all);
    }
    void flag(std::string_view name, bool& to)
    {
        choice(name, {"0", "1"}, [&to](std::size_t i) { to = i == 1; });
    }

private:
    static std::string shown(double value)
    {
        std::string digits = std::to_string(value);
        digits.erase(digits.find_last_not_of('0') + 1);
        if (digits.back() == '.') digits.pop_back();
        return digits;
    }
    settings& into_;
};

/// `%h` is the host, `%p` the process, `%r` the rank of the job.
std::string expanded(std::string_view pattern, int global_rank)
{
    std::string result;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] != '%' || i + 1 == pattern.size()) {
            result += pattern[i];
            continue;
        }
        const char what = pattern[++i];
        char host[256] = "";
        if (what == 'h' && ::gethostname(host, sizeof host - 1) == 0) result += host;
        else if (what == 'p') result += std::to_string(::getpid());
        else if (what == 'r') result += global_rank < 0 ? "unknown" : std::to_string(global_rank);
        else (result += '%') += what;
    }
    return result;
}

/// A whole number from the first of the variables that has one; -1 if none has.
int first_number(std::initializer_list<const char*> names)
{
    for (const char* const name : names) {
        const char* const value = std::getenv(name);
        if (value == nullptr || *value == '\0') continue;
        char* end = nullptr;
        const long read = std::strtol(value, &end, 10);
        if (*end == '\0' && read >= 0 && read < 1 << 30) return static_cast<int>(read);
    }
    return -1;
}

std::string name_of_job()
{
    for (const char* const name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID"}) {
        const char* const value = std::getenv(name);
        if (value != nullptr && *value != '\0') return value;
    }
    return "unknown";
}

/// The least number of changes of a letter that make one word of the other, up to 3.
std::size_t distance(std::string_view a, std::string_view b)
{
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t before = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t changed = before + (a[i - 1] == b[j - 1] ? 0 : 1);
            before = row[j];
            row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row[b.size()];
}

void warn_of_unknown_names(settings& into)
{
    for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
        const std::string_view entry = *each;
        if (!entry.starts_with(prefix)) continue;
        const std::string_view name = entry.substr(prefix.size(), entry.find('=') - prefix.size());
        if (std::find(std::begin(known_names), std::end(known_names), name) != std::end(known_names))
            continue;
        std::string warning = "there is no variable COLLPROBE_" + std::string(name);
        for (const std::string_view known : known_names) {
            if (distance(name, known) <= 2) {
                warning += ": is COLLPROBE_" + std::string(known) + " meant?";
                break;
            }
        }
        into.warnings.push_back(warning);
    }
}

} // namespace

settings settings::from_environment()
{
    settings result;
    reader from(result);
    result.global_rank = first_number({"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"});
    const std::string job = name_of_job();
    const char* const run = from.text("RUN");
    const char* const directory = from.text("DIR");
    result.directory = expanded(directory != nullptr ? directory : "collprobe-" + job, result.global_rank);
    while (result.directory.size() > 1 && result.directory.back() == '/') result.directory.pop_back();
    result.run = run != nullptr ? run
        : job != "unknown"      ? job
                                : result.directory.substr(result.directory.rfind('/') + 1);

    if (const char* const sinks = from.text("SINKS")) {
        result.jsonl = false;
        for (const std::string& each : items_of(sinks)) {
            if (each == "jsonl") result.jsonl = true;
            else if (each == "prometheus") result.prometheus = true;
            else if (each == "nvtx") result.nvtx = true;
            else if (each == "html" || each == "trace" || each == "inspector") {
                result.jsonl = true;
                from.warn("SINKS", sinks, "`collprobe " + (each == "html" ? "page" : each)
                        + "` makes it of JSON lines, which are written");
            } else if (each != "none") from.warn("SINKS", sinks, "there is no sink '" + each + "'");
        }
    }
    if (const char* const every = from.text("EVERY"); every != nullptr && std::strcmp(every, "auto") != 0) {
        result.given.pop_back();
        from.whole_number("EVERY", result.every, 1e9);
    }
    from.number("BUDGET", result.budget, 0, 1);
    const char* const kinds = from.text("OPS");
    for (const std::string& each :
        items_of(kinds != nullptr ? kinds : "all_reduce,reduce_scatter,all_gather")) {
        const auto* const found = std::find(std::begin(kind_names), std::end(kind_names), each);
        const std::ptrdiff_t kind = found - std::begin(kind_names);
        if (kind <= collprobe_broadcast || kind == collprobe_all_to_all) {
            result.probed_kinds[kind] = true;
        } else {
            from.warn("OPS", kinds,
                "'" + each + "' is none of all_reduce, reduce_scatter, all_gather, broadcast, all_to_all");
        }
    }
    from.whole_number("MIN_BYTES", result.least_bytes, 1e18);
    if (const char* const names = from.text("COMMS"); names != nullptr && std::strcmp(names, "all") != 0) {
        result.communicators = items_of(names);
    }
    from.flag("AUDIT", result.audit);
    from.choice("CHANNEL", {"files", "inband"},
        [&](std::size_t i) { result.channel = i == 0 ? channel_kind::files : channel_kind::inband; });
    from.choice("STEP", {"auto", "calls"},
        [&](std::size_t i) { result.step = i == 0 ? step_kind::automatic : step_kind::calls; });
    if (const char* const range = from.text("STEP_RANGE")) result.step_range = range;
    from.number("FALSE_ALARMS", result.false_alarms_per_step, 1e-12, 0.5);
    if (const char* const file = from.text("CONTROL_FILE")) result.control_file = file;
    from.choice("LOG", {"off", "warn", "info"}, [&](std::size_t i) {
        result.log = i == 0 ? log_kind::off : i == 1 ? log_kind::warn : log_kind::info;
    });
    if (result.channel == channel_kind::files && result.prometheus) {
        result.warnings.push_back("COLLPROBE_SINKS: prometheus is written with COLLPROBE_CHANNEL=inband, or by "
                                  "collprobe_merge");
    }
    warn_of_unknown_names(result);
    return result;
}

bool settings::wants(const char* name, std::uint64_t key) const
{
    if (communicators.empty()) return true;
    const std::string of_key = collprobe::detail::hexadecimal(key);
    return std::any_of(communicators.begin(), communicators.end(),
        [&](const std::string& each) { return (name != nullptr && each == name) || each == of_key; });
}

std::optional<std::uint64_t> operators_order(std::string_view text) noexcept
{
    if (text == "off") return probe_never;
    if (text == "every=auto") return 0;
    if (!text.starts_with("every=")) return {};
    std::uint64_t every = 0;
    const auto [end, problem] = std::from_chars(text.data() + 6, text.data() + text.size(), every);
    const bool is_used = problem == std::errc{} && end == text.data() + text.size() && every >= 1 && every <= 1'000'000'000;
    return is_used ? std::optional(every) : std::nullopt;
}

void say(const std::string& line) noexcept
{
    const int saved = errno;
    try {
        const std::string whole = "collprobe: " + collprobe::detail::printable(line) + "\n";
        // One call, so that lines of several ranks do not mix. What cannot be told cannot be told.
        [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, whole.data(), whole.size());
    } catch (...) {
    }
    errno = saved;
}

} // namespace collprobe_preload
