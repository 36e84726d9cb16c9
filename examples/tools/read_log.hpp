// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>

#include "json_fields.hpp"

/// Reads the JSON lines of include/collprobe/report, in both dialects, back into records.
namespace tools {

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
    collprobe::finding alarm;
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
        const json line = parsed(text);
        try {
            return read_object(line);
        } catch (const json::exception& problem) {
            throw bad_line(printable(problem.what()));
        }
    }

    /// The members of an alarm.
    collprobe::finding alarm_of(const json& of)
    {
        (void)member(of, "step");
        collprobe::finding found = finding_of(of);
        found.step = count_of(of, "step");
        return found;
    }

    /// The members of a finding.
    collprobe::finding finding_of(const json& of)
    {
        collprobe::finding found;
        found.call = index_of(of, "bucket");
        found.site = site_of(of);
        found.what = named<collprobe::finding_kind>(of, "check");
        found.where = named<collprobe::damage>(of, "damage");
        for (const json& rank : member(of, "ranks")) {
            if (rank.get<int>() < 0) throw bad_line("names a rank that is none");
            found.add(rank.get<int>());
        }
        found.other_rank = index_of(of, "other_rank");
        found.exact = !of.contains("exact") || of["exact"].get<bool>();
        if (const auto index = of.find("index"); index != of.end() && !index->is_null())
            found.index = index->get<std::uint64_t>();
        found.statistic = number_of(of, "statistic");
        found.threshold = number_of(of, "threshold");
        found.false_alarms_per_step = number_of(of, "false_alarms_per_step");
        found.action = named<collprobe::advice>(of, "advice");
        found.source = index_of(of, "source");
        if (const auto evidence = of.find("evidence"); evidence != of.end()) found.evidence = evidence_of(*evidence);
        found.by_length = of.contains("by_length");
        collprobe::unusual_number& number = found.number;
        number.is_new_level = of.contains("new_level");
        if (of.contains("since")) number.since = count_of(of, "since");
        if (of.contains("value")) {
            number.value = number_of(of, "value");
            number.expected = number_of(of, "expected");
        }
        if (of.contains("window")) {
            number.steps = static_cast<std::uint32_t>(count_of(of, "window"));
            number.usual_difference = number_of(of, "usual_difference");
        }
        if (of.contains("steps_before")) number.steps = static_cast<std::uint32_t>(count_of(of, "steps_before"));
        if (const auto other = of.find("other_call"); other != of.end()) {
            found.other.call = named<collprobe::collective>(*other, "call");
            found.other.type = named<collprobe::element_type>(*other, "type");
            found.other.count = count_of(*other, "count");
            found.other.site = site_of(*other);
        }
        return found;
    }

private:
    collprobe::rank_evidence evidence_of(const json& of)
    {
        collprobe::rank_evidence evidence;
        evidence.metric = named<collprobe::finding_kind>(of, "metric");
        evidence.call = index_of(of, "bucket");
        evidence.side = named<collprobe::rank_side>(of, "side");
        evidence.odds = number_of(of, "odds");
        evidence.recurrence = number_of(of, "recurrence");
        evidence.since = count_of(of, "since");
        evidence.extreme = static_cast<std::uint32_t>(count_of(of, "extreme"));
        evidence.among = static_cast<std::uint32_t>(count_of(of, "among"));
        return evidence;
    }

    collprobe::call_site site_of(const json& of)
    {
        collprobe::call_site site;
        site.name = texts_.kept(text_of(of, "name"));
        const std::string line = text_of(of, "line");
        const std::size_t colon = line.rfind(':');
        if (colon == line.npos) return site;
        site.file = texts_.kept(line.substr(0, colon));
        std::from_chars(line.data() + colon + 1, line.data() + line.size(), site.line);
        return site;
    }

    collprobe::call_record call_of(const json& of)
    {
        collprobe::call_record call;
        call.call = named<collprobe::collective>(of, "call");
        call.type = named<collprobe::element_type>(of, "type");
        call.site = site_of(of);
        call.count = elements_of(of, "input_sizes");
        call.result_count = elements_of(of, "output_sizes");
        call.has_result_digest = of.contains("digest");
        if (call.has_result_digest) call.result_digest = bits_of(of, "digest");
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
        step.loss_weighted.mean = number_of(loss, "mean_of_tokens");
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
        step.silent_evidence = static_cast<int>(count_of(of, "silent_evidence"));
        if (const auto evidence = of.find("evidence"); evidence != of.end()) {
            step.evidence_by_rank.resize(static_cast<std::size_t>(step.ranks < 0 ? 0 : step.ranks));
            for (const json& each : *evidence) {
                const int rank = index_of(each, "rank");
                if (rank < 0 || rank >= step.ranks) throw bad_line("has evidence of a rank that is none");
                collprobe::rank_evidence& to = step.evidence_by_rank[static_cast<std::size_t>(rank)];
                to = evidence_of(each);
                to.unlike = member(each, "unlike").get<bool>();
            }
        }
        if (!member(of, "findings").is_array()) throw bad_line("has no list as 'findings'");
        for (const json& each : member(of, "findings")) step.findings.push_back(finding_of(each));
        if (const auto calls = of.find("calls"); calls != of.end()) read_calls(*calls, step);
        return step;
    }

    log_line read_object(const json& line)
    {
        require_schema(line);
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

    text_pool texts_;
    std::map<std::tuple<std::string, std::string, int>, std::string> ids_; ///< of the communicators
    std::map<std::tuple<std::string, std::string, int>, collprobe::step_record> pending_;
};

} // namespace tools
