// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <collprobe/core/record.hpp>
#include <collprobe/report/json.hpp>

/// Reads the JSON lines of include/collprobe/report, in both dialects, back into records.
namespace tools {

using json = nlohmann::json;

/// What is wrong with a line.
struct bad_line : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Foreign text as a terminal may show it: a control character (also of C1, and those that turn the direction of the
/// text) becomes "?". Otherwise a name could move the cursor, or look like another line of the report.
/// Precondition: valid UTF-8.
inline std::string printable(std::string_view text)
{
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
        const unsigned char first = byte(i);
        const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        const bool is_c1 = first == 0xc2 && byte(i + 1) < 0xa0;
        const bool turns = (first == 0xd8 && byte(i + 1) == 0x9c)
            || (first == 0xe2 && byte(i + 1) == 0x80
                && (byte(i + 2) == 0x8e || byte(i + 2) == 0x8f || (byte(i + 2) >= 0xa8 && byte(i + 2) <= 0xae)))
            || (first == 0xe2 && byte(i + 1) == 0x81 && byte(i + 2) >= 0xa6 && byte(i + 2) <= 0xa9);
        if (first < 0x20 || first == 0x7f || is_c1 || turns) out += '?';
        else out += text.substr(i, length);
        i += length;
    }
    return out;
}

/// A line of a log as the records that it tells of.
struct log_line {
    enum class kind {
        run, ///< the beginning
        step,
        alarm,
        end,
        other, ///< of no interest here
    };
    kind what = kind::other;
    std::string run;
    std::string communicator;
    std::string communicator_id; ///< empty if it is not known
    int writer = -1; ///< -1: unknown
    int global_rank = -1;
    int ranks = 0;
    std::uint64_t time_us = 0; ///< since 1970; 0: unknown
    std::uint64_t dropped = 0;
    collprobe::step_record step;
    collprobe::alarm_record alarm;
    std::string verdict; ///< of the end
};

/// The lines of one file, in their order. The names in the records stay valid as long as this object.
class line_reader {
public:
    /// Steps of runs that this refuses are skipped: their lines are `other`.
    std::string only_run;

    /// \throws bad_line for what is no line of a log
    log_line read(std::string_view text)
    {
        json line;
        try {
            line = json::parse(text);
        } catch (const json::parse_error& problem) {
            throw bad_line("is not JSON (column " + std::to_string(problem.byte) + ")");
        }
        try {
            return read_object(line);
        } catch (const json::exception& problem) {
            throw bad_line(printable(problem.what()));
        }
    }

private:
    static const json& member(const json& of, const char* name)
    {
        const auto found = of.find(name);
        if (found == of.end()) throw bad_line(std::string("has no member '") + name + "'");
        return *found;
    }
    static double number(const json& value)
    {
        if (value.is_number()) return value.get<double>();
        const std::string text = value.is_string() ? value.get<std::string>() : std::string();
        if (text == "nan") return collprobe::detail::not_a_number();
        if (text == "inf") return collprobe::detail::infinity();
        if (text == "-inf") return -collprobe::detail::infinity();
        throw bad_line("has '" + printable(value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40))
            + "' in the place of a number");
    }
    static double number_of(const json& of, const char* name)
    {
        const auto found = of.find(name);
        return found == of.end() ? collprobe::detail::not_a_number() : number(*found);
    }
    static std::vector<double> numbers_of(const json& of, const char* name)
    {
        std::vector<double> all;
        if (const auto found = of.find(name); found != of.end()) {
            for (const json& each : *found) all.push_back(number(each));
        }
        return all;
    }
    static std::uint64_t count_of(const json& of, const char* name)
    {
        const auto found = of.find(name);
        if (found == of.end() || found->is_null()) return 0;
        if (!found->is_number_unsigned()) throw bad_line(std::string("has no count as '") + name + "'");
        return found->get<std::uint64_t>();
    }
    /// -1 for null, and where there is none.
    static int index_of(const json& of, const char* name)
    {
        const std::uint64_t value = count_of(of, name);
        const auto found = of.find(name);
        if (value > std::numeric_limits<int>::max()) throw bad_line(std::string("has no index as '") + name + "'");
        return found == of.end() || found->is_null() ? -1 : static_cast<int>(value);
    }
    static std::string text_of(const json& of, const char* name)
    {
        const auto found = of.find(name);
        return found == of.end() || found->is_null() ? std::string() : printable(found->get<std::string>());
    }
    /// The value of an enumeration by its name, as `name` tells it.
    template <class Value>
    static Value named(const json& of, const char* member_name)
    {
        const std::string text = text_of(of, member_name);
        for (int i = 0; i < 256; ++i) {
            if (text != "unknown" && text == name(static_cast<Value>(i))) return static_cast<Value>(i);
        }
        if constexpr (std::is_same_v<Value, collprobe::damage>) {
            return collprobe::damage::unknown;
        } else {
            throw bad_line(std::string("has '") + text + "' as '" + member_name + "', which is unknown");
        }
    }

    const char* kept(const std::string& text) { return texts_.insert(text).first->c_str(); }
    collprobe::call_site site_of(const json& of)
    {
        collprobe::call_site site;
        site.name = kept(text_of(of, "name"));
        const std::string line = text_of(of, "line");
        const std::size_t colon = line.rfind(':');
        if (colon == line.npos) return site;
        site.file = kept(line.substr(0, colon));
        std::from_chars(line.data() + colon + 1, line.data() + line.size(), site.line);
        return site;
    }

    static std::uint64_t elements_of(const json& of, const char* name)
    {
        const json& sizes = member(of, name);
        if (!sizes.is_array() || sizes.empty() || !sizes[0].is_array() || sizes[0].empty()) {
            throw bad_line(std::string("has no '") + name + "'");
        }
        if (!sizes[0][0].is_number_unsigned()) throw bad_line(std::string("has no count as '") + name + "'");
        return sizes[0][0].get<std::uint64_t>();
    }
    collprobe::call_record call_of(const json& of)
    {
        collprobe::call_record call;
        call.call = named<collprobe::collective>(of, "call");
        call.type = named<collprobe::element_type>(of, "type");
        call.site = site_of(of);
        call.count = elements_of(of, "input_sizes");
        call.result_count = elements_of(of, "output_sizes");
        if (const auto digest = of.find("digest"); digest != of.end()) {
            const std::string digits = digest->get<std::string>();
            const char* const end = digits.data() + digits.size();
            if (digits.size() < 3 || digits[0] != '0' || digits[1] != 'x'
                || std::from_chars(digits.data() + 2, end, call.result_digest, 16).ptr != end) {
                throw bad_line("has '" + printable(digits) + "' as a digest");
            }
            call.has_result_digest = true;
        }
        call.result_norm = number_of(of, "result_norm");
        call.pooled_cosine = number_of(of, "cosine");
        call.nonfinite = count_of(of, "nonfinite");
        call.results_agree = member(of, "results_agree").get<bool>();
        call.result_sample = numbers_of(of, "result_sample");
        if (const auto audit = of.find("audit"); audit != of.end()) {
            call.audit.checked = true;
            call.audit.where = named<collprobe::damage>(*audit, "damage");
        }
        return call;
    }

    void read_calls(const json& calls, collprobe::step_record& step)
    {
        step.calls.reserve(calls.size());
        for (const json& each : calls) add_call(each, step);
    }
    void add_call(const json& of, collprobe::step_record& step)
    {
        const std::uint64_t sequence = count_of(of, "collective_seq_id");
        if (step.calls.empty()) step.first_call = sequence;
        if (count_of(of, "bucket") != step.calls.size() || sequence != step.first_call + step.calls.size()) {
            throw bad_line("has its calls in another order than they were made, or some are missing");
        }
        step.calls.push_back(call_of(of));
    }

    collprobe::step_record step_of(const json& of)
    {
        collprobe::step_record step;
        (void)member(of, "step");
        step.step = count_of(of, "step");
        step.ranks = index_of(of, "ranks");
        const json& loss = member(of, "loss");
        step.loss.mean = number_of(loss, "mean");
        step.loss.std = number_of(loss, "std");
        step.loss.std_sample = number_of(loss, "std_sample");
        step.loss.range = number_of(loss, "range");
        step.losses = numbers_of(loss, "by_rank");
        const json& norm = member(of, "grad_norm");
        step.gradient_norm.mean = number_of(norm, "mean");
        step.gradient_norm.std = number_of(norm, "std");
        step.gradient_norm.cv = number_of(norm, "cv");
        step.gradient_norms = numbers_of(norm, "by_rank");
        const json& cosine = member(of, "cosine");
        step.cosine.mean_pairwise = number_of(cosine, "mean_pairwise");
        step.cosine.pooled = number_of(cosine, "pooled");
        step.cosine.predicted_cosine = number_of(cosine, "predicted");
        step.cosine.leave_one_out = numbers_of(cosine, "leave_one_out");
        step.cosine.noise_scale = number_of(of, "noise_scale");
        step.unprobed_calls = count_of(of, "unprobed_calls");
        step.unread_calls = count_of(of, "unread_calls");
        if (!member(of, "suspects").is_array()) throw bad_line("has no list as 'suspects'");
        for (const json& each : member(of, "suspects")) {
            collprobe::suspect named_rank;
            named_rank.rank = index_of(each, "rank");
            named_rank.other_rank = index_of(each, "other_rank");
            named_rank.call = index_of(each, "bucket");
            named_rank.what = named<collprobe::finding>(each, "check");
            step.suspects.push_back(named_rank);
        }
        if (const auto calls = of.find("calls"); calls != of.end()) read_calls(*calls, step);
        return step;
    }

    collprobe::alarm_record alarm_of(const json& of)
    {
        collprobe::alarm_record raised;
        (void)member(of, "step");
        raised.step = count_of(of, "step");
        raised.call = index_of(of, "bucket");
        raised.site = site_of(of);
        raised.what = named<collprobe::finding>(of, "check");
        raised.where = named<collprobe::damage>(of, "damage");
        for (const json& rank : member(of, "ranks")) raised.ranks.push_back(rank.get<int>());
        raised.statistic = number_of(of, "statistic");
        raised.threshold = number_of(of, "threshold");
        raised.false_alarms_per_step = number_of(of, "false_alarms_per_step");
        raised.strikes = index_of(of, "strikes");
        raised.action = named<collprobe::advice>(of, "advice");
        raised.source = index_of(of, "source");
        return raised;
    }

    log_line read_object(const json& line)
    {
        if (!line.is_object()) throw bad_line("is no JSON object");
        const auto schema = line.find("schema");
        if (schema == line.end()) throw bad_line("has no member 'schema': it is no line of collprobe's");
        if (*schema != collprobe::report::json_schema) {
            throw bad_line("has schema " + printable(schema->dump(-1, ' ', true).substr(0, 20)) + "; this program reads "
                + std::to_string(collprobe::report::json_schema));
        }
        log_line out;
        out.run = text_of(line, "run");
        out.dropped = count_of(line, "records_dropped");
        if (!only_run.empty() && out.run != only_run) return out;
        if (line.contains("header")) return read_inspector(line, out);
        out.communicator = text_of(line, "comm");
        out.writer = index_of(line, "writer");
        out.time_us = count_of(line, "time_us");
        if (const auto ranks = line.find("ranks"); ranks != line.end() && ranks->is_number()) { // an alarm has a list
            out.ranks = index_of(line, "ranks");
        }
        const auto key = std::tuple(out.run, out.communicator, out.writer);
        if (const auto id = ids_.find(key); id != ids_.end()) out.communicator_id = id->second;
        read_kind(member(line, "kind").get<std::string>(), line, out);
        if (out.what == log_line::kind::run) {
            out.communicator_id = text_of(line, "comm_id");
            out.global_rank = index_of(line, "global_rank");
            out.time_us = count_of(line, "started_us");
            ids_[key] = out.communicator_id;
        }
        return out;
    }
    void read_kind(const std::string& kind, const json& line, log_line& out)
    {
        if (kind == "step") {
            out.step = step_of(line);
            out.what = log_line::kind::step;
        } else if (kind == "alarm") {
            out.alarm = alarm_of(line);
            out.what = log_line::kind::alarm;
        } else if (kind == "run") {
            out.what = log_line::kind::run;
        } else if (kind == "end") {
            out.verdict = text_of(line, "verdict");
            out.what = log_line::kind::end;
        }
    }

    /// In Inspector's dialect each call has a line, before that of its step.
    log_line read_inspector(const json& line, log_line& out)
    {
        const json& header = line.at("header");
        out.communicator = text_of(header, "comm_name");
        out.communicator_id = text_of(header, "id");
        out.writer = index_of(header, "rank");
        out.global_rank = out.writer;
        out.ranks = index_of(header, "n_ranks");
        if (const auto data = line.find("metadata"); data != line.end()) {
            out.time_us = count_of(*data, "dump_timestamp_us");
        }
        collprobe::step_record& pending = pending_[std::tuple(out.run, out.communicator_id, out.writer)];
        if (const auto call = line.find("coll_values"); call != line.end()) {
            (void)member(*call, "step");
            const std::uint64_t step = count_of(*call, "step");
            if (pending.step != step) pending = {};
            pending.step = step;
            add_call(*call, pending);
        } else if (const auto step = line.find("step"); step != line.end()) {
            read_kind("step", *step, out);
            if (pending.step == out.step.step && !pending.calls.empty()) {
                out.step.first_call = pending.first_call;
                out.step.calls = std::move(pending.calls);
            }
            pending = {};
        } else if (const auto alarm = line.find("alarm"); alarm != line.end()) {
            read_kind("alarm", *alarm, out);
        }
        return out;
    }

    std::unordered_set<std::string> texts_;
    std::map<std::tuple<std::string, std::string, int>, std::string> ids_; ///< of the communicators
    std::map<std::tuple<std::string, std::string, int>, collprobe::step_record> pending_;
};

} // namespace tools
