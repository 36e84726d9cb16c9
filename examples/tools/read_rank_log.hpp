// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/step/rank_call.hpp>

#include "../preload/engine/call_period.hpp"
#include "base64.hpp"
#include "json_fields.hpp"
#include "read_record.hpp"

/// Reads the lines that each process of a preloaded program writes for itself.
namespace tools {

/// The process that writes the file.
struct rank_process {
    std::string run;
    std::string job;
    std::string host;
    std::uint64_t pid = 0;
    int global_rank = -1; ///< -1: unknown
    std::uint64_t started_us = 0;
    std::string version;
    std::vector<std::pair<std::string, std::string>> settings;
};

/// A rank of a communicator begins to write.
struct rank_begin {
    std::string name; ///< may be empty
    int ranks = 0;
    int global_rank = -1;
    std::string device; ///< empty: no GPU
    std::uint64_t sketch_seed = 0;
};

/// What all ranks of a communicator do alike when they make a call. Equal texts of one pool have one address.
struct call_form {
    const char* call = ""; ///< a name of `collective`, or another
    const char* type = ""; ///< a name of `element_type`, or another
    const char* reduction = ""; ///< a name of `reduction`, or another; empty: none
    std::uint64_t count = 0; ///< elements that each rank sends
    std::uint64_t result_count = 0;
    std::uint64_t bucket = 0; ///< index of the call in its step

    friend bool operator==(const call_form&, const call_form&) = default;
};

/// What one rank measured of a call.
struct rank_call {
    std::uint64_t sequence = 0; ///< on its communicator
    std::uint64_t step = 0;
    call_form form;
    bool repeats = true; ///< false: the step is none of the program, but a number of calls
    bool is_found = false; ///< the step was found by the period of calls
    bool has_input = false;
    bool has_result = false;
    double scale = 1; ///< factor of a pre-multiplied sum; NaN: not known
    std::uint64_t bins = 0;
    std::vector<std::uint64_t> block; ///< as `rank_call_layout{bins}` describes; empty if the line has none
    std::uint64_t time_us = 0;
};

/// What a rank has looked at so far.
struct rank_coverage {
    std::uint64_t calls = 0;
    std::uint64_t probed = 0;
    std::vector<std::pair<std::string, std::uint64_t>> skipped; ///< by reason
    std::uint64_t step = 0;
    std::uint64_t every = 0;
    double share_predicted = 0;
    double share_measured = 0;
};

/// A rank writes no more about the communicator.
struct rank_end {
    std::string how;
};

/// A line of a rank's file.
struct rank_line {
    std::uint64_t comm = 0; ///< the key of the communicator; 0: the line is about none, or tells only its name
    std::string comm_name; ///< of an alarm that has no key
    int writer = -1; ///< the rank in it
    std::uint64_t time_us = 0; ///< since 1970; 0: unknown
    std::uint64_t dropped = 0; ///< records that the process has lost so far
    std::variant<std::monostate, rank_process, rank_begin, rank_call, rank_coverage, rank_end, collprobe::finding>
        what;

    template <class What>
    What* as() noexcept
    {
        return std::get_if<What>(&what);
    }
};

/// The lines of one file. The texts in them stay valid as long as the pool and this object.
class rank_line_reader {
public:
    explicit rank_line_reader(text_pool& texts) : texts_(&texts) {}

    /// \throws bad_line for what is no line of collprobe's. Kinds of lines that other programs write are skipped.
    rank_line read(std::string_view text)
    {
        // Most of a line is in two values. A parser would go through them character by character.
        const std::string_view message = value_of(text, "\"message\":\"");
        const std::string_view sketch = value_of(text, "\"sketch\":\"");
        rest_.clear();
        const char* at = text.data();
        for (const std::string_view each :
            {std::min(message, sketch, is_before), std::max(message, sketch, is_before)}) {
            if (each.empty()) continue;
            rest_.append(at, each.data());
            at = each.data() + each.size();
        }
        rest_.append(at, text.data() + text.size());
        const json line = parsed(rest_);
        try {
            return read_object(line, message, sketch);
        } catch (const json::exception& problem) {
            throw bad_line(printable(problem.what()));
        }
    }

private:
    /// The text of a member that has no escapes. Its beginning cannot be in another text, where quotes are escaped.
    static std::string_view value_of(std::string_view text, std::string_view member)
    {
        const std::size_t begin = text.find(member);
        const std::size_t end = begin == text.npos ? text.npos : text.find('"', begin + member.size());
        if (end == text.npos) return {};
        return text.substr(begin + member.size(), end - begin - member.size());
    }
    static bool is_before(std::string_view a, std::string_view b) noexcept
    {
        return std::less<const char*>()(a.data(), b.data());
    }

    rank_line read_object(const json& line, std::string_view message, std::string_view sketch)
    {
        require_schema(line);
        rank_line out;
        out.dropped = count_of(line, "records_dropped");
        out.time_us = count_of(line, "time_us");
        const std::string kind = text_of(line, "kind");
        if (kind == "process") {
            out.what = process_of(line);
            return out;
        }
        const bool is_ours
            = kind == "comm" || kind == "call" || kind == "coverage" || kind == "comm_end" || kind == "alarm";
        if (!is_ours) return out; // of a merged run
        if (kind == "alarm" && !text_of(line, "comm").starts_with("0x")) out.comm_name = text_of(line, "comm");
        else out.comm = bits_of(line, "comm");
        out.writer = index_of(line, "writer");
        if (out.writer < 0) throw bad_line("has no 'writer'");
        if (kind == "comm") {
            out.what = begin_of(line);
        } else if (kind == "call") {
            out.what = call_of(line, message, sketch);
        } else if (kind == "coverage") {
            out.what = coverage_of(line);
        } else if (kind == "comm_end") {
            out.what = rank_end{text_of(line, "how")};
        } else {
            out.what = records_.alarm_of(line);
        }
        if (auto* const call = out.as<rank_call>()) call->time_us = out.time_us;
        return out;
    }

    static rank_process process_of(const json& line)
    {
        rank_process out;
        out.run = text_of(line, "run");
        out.job = text_of(line, "job");
        out.host = text_of(line, "host");
        out.pid = count_of(line, "pid");
        out.global_rank = index_of(line, "global_rank");
        out.started_us = count_of(line, "started_us");
        out.version = text_of(line, "version");
        if (const auto settings = line.find("settings"); settings != line.end()) {
            for (const auto& [name, value] : settings->items()) {
                out.settings.emplace_back(printable(name), printable(value.get<std::string>()));
            }
        }
        return out;
    }
    static rank_begin begin_of(const json& line)
    {
        rank_begin out;
        out.name = text_of(line, "name");
        out.ranks = index_of(line, "ranks");
        if (out.ranks < 1) throw bad_line("has no 'ranks'");
        out.global_rank = index_of(line, "global_rank");
        out.device = text_of(line, "device");
        if (line.contains("sketch_seed")) out.sketch_seed = bits_of(line, "sketch_seed");
        return out;
    }
    static rank_coverage coverage_of(const json& line)
    {
        rank_coverage out;
        out.calls = count_of(line, "calls");
        out.probed = count_of(line, "probed");
        if (const auto skipped = line.find("skipped"); skipped != line.end()) {
            for (const auto& [reason, count] : skipped->items()) {
                out.skipped.emplace_back(printable(reason), count.get<std::uint64_t>());
            }
        }
        out.step = count_of(line, "step");
        out.every = count_of(line, "every");
        out.share_predicted = number_of(line, "share_predicted");
        out.share_measured = number_of(line, "share_measured");
        return out;
    }
    rank_call call_of(const json& line, std::string_view message, std::string_view sketch)
    {
        rank_call out;
        (void)member(line, "collective_seq_id");
        out.sequence = count_of(line, "collective_seq_id");
        out.form.call = texts_->kept(text_of(line, "call"));
        out.form.type = texts_->kept(text_of(line, "type"));
        out.form.reduction = texts_->kept(text_of(line, "reduction"));
        out.form.count = elements_of(line, "input_sizes");
        out.form.result_count = elements_of(line, "output_sizes");
        out.step = count_of(line, "step");
        out.form.bucket = count_of(line, "bucket");
        const std::string source = text_of(line, "step_source");
        out.repeats = source != collprobe_preload::name(collprobe_preload::step_source::calls);
        out.is_found = source == collprobe_preload::name(collprobe_preload::step_source::period);
        if (const auto scale = line.find("scale"); scale != line.end()) {
            out.scale = scale->is_null() ? collprobe::detail::not_a_number() : number(*scale);
        }
        const auto flag = [&line](const char* name) {
            const auto found = line.find(name);
            return found != line.end() && found->get<bool>();
        };
        out.has_input = flag("has_input");
        out.has_result = flag("has_result");
        if (message.empty()) return out;
        constexpr std::size_t measured = sizeof(collprobe::rank_measurement);
        const std::size_t sketched = bytes_of_base64(sketch);
        if (bytes_of_base64(message) != measured) throw bad_line("has a 'message' of another length");
        if (sketched % (4 * sizeof(double)) != 0) throw bad_line("has a 'sketch' of a wrong length");
        out.bins = sketched / (4 * sizeof(double));
        out.block.resize((measured + sketched) / sizeof(std::uint64_t));
        auto* const bytes = reinterpret_cast<unsigned char*>(out.block.data());
        if (!decode_base64(message, bytes) || !decode_base64(sketch, bytes + measured)) {
            throw bad_line("has a 'message' or a 'sketch' that is no base64");
        }
        return out;
    }

    text_pool* texts_;
    record_reader records_;
    std::string rest_;
};

} // namespace tools
