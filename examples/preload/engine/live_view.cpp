// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include "live_view.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <collprobe/detail/math.hpp>

namespace collprobe_preload {

namespace report = collprobe::report;

namespace {

/// The path of a sink's file, which is there and this user's own; empty if it is not wanted or cannot be had.
std::string path_of(
    const settings& options, const collprobe::run_record& run, bool wanted, const char* ending)
{
    if (!wanted) return {};
    std::string name = run.communicator;
    for (char& each : name) {
        if (each == '/' || static_cast<unsigned char>(each) < ' ') each = '_';
    }
    const std::string path = options.directory + "/" + options.run + "." + name + ending;
    try {
        report::line_file::own(path).close();
    } catch (const std::exception& problem) {
        say(std::string("without a file of the live view: ") + problem.what());
        return {};
    }
    return path;
}

} // namespace

live_view::live_view(const settings& options, const collprobe::run_record& run, int ranks)
    : options_(options),
      run_(run),
      ranks_(ranks),
      merge_(ranks, {.false_alarms_per_step = options.false_alarms_per_step}, {.sums = options.audit}),
      alarms_(ranks),
      sinks_(run, report::json_lines(path_of(options, run, true, ".live.jsonl")),
          report::prometheus(path_of(options, run, options.prometheus, ".prom"), {.all_ranks = true}))
{
}

void live_view::judge(const unsigned char* messages, std::uint64_t stride,
    const collprobe::rank_call_layout& layout, const live_header& own, const std::vector<call_facts>& calls,
    std::uint64_t unread)
{
    const auto header_of = [&](int rank) {
        live_header result;
        std::memcpy(&result, messages + static_cast<std::uint64_t>(rank) * stride, sizeof result);
        return result;
    };
    std::string others;
    for (int r = 0; r < ranks_; ++r) {
        const live_header theirs = header_of(r);
        if (theirs.magic == own.magic && theirs.step == own.step && theirs.calls == own.calls
            && theirs.first_call == own.first_call && theirs.signature == own.signature) {
            continue;
        }
        others += (others.empty() ? " " : ", ") + std::to_string(r);
    }
    if (!others.empty()) {
        if (!std::exchange(told_mismatch_, true)) {
            say("communicator " + run_.communicator + ", step " + std::to_string(own.step)
                + ": these ranks made other calls than rank 0:" + others);
        }
        return;
    }
    calls_.clear();
    blocks_.clear();
    for (std::size_t c = 0; c < calls.size(); ++c) {
        const call_facts& facts = calls[c];
        collprobe::merged_call call{.call = facts.call,
            .type = facts.type,
            .operation = facts.operation,
            .count = facts.count,
            .result_count = facts.result_count,
            .bucket = facts.place.bucket,
            .bins = facts.has_sketch ? layout.bins : 0};
        call.site.name = kept(name_of(facts));
        calls_.push_back(call);
        for (int r = 0; r < ranks_; ++r) {
            const live_header theirs = header_of(r);
            const bool present = (theirs.present[c / 64] >> c % 64 & 1) != 0;
            const unsigned char* const block = messages + static_cast<std::uint64_t>(r) * stride
                + sizeof(live_header) + c * layout.bytes();
            blocks_.push_back({.bytes = present ? block : nullptr,
                .has_input = facts.has_input,
                .has_result = facts.has_result,
                .scale = facts.scale});
        }
    }
    const std::uint64_t first = own.first_call;
    const std::uint64_t unseen = (first > next_call_ ? first - next_call_ : 0) + unread;
    // Where the sequence of calls changes, a step has calls that it had not, and may lack its last ones.
    const bool has_extra
        = std::any_of(calls.begin(), calls.end(), [](const call_facts& each) { return each.place.extra; });
    const bool follows = next_call_ != 0 && first == next_call_;
    merge_.judge({.step = own.step,
                     .first_call = next_call_,
                     .unread_calls = unseen,
                     .unseen_calls = has_extra ? collprobe::no_index
                                               : calls.back().sequence + 1 - calls.front().sequence - calls.size(),
                     .calls = {calls_.data(), calls_.size()},
                     .blocks = {blocks_.data(), blocks_.size()},
                     .repeats = calls.front().place.source != step_source::calls,
                     .follows = follows},
        record_);
    next_call_ = calls.back().sequence + 1;
    sinks_.put(record_);
    const auto raised = alarms_.judge(record_);
    sinks_.put(raised);
    if (options_.log == settings::log_kind::off) return;
    for (const collprobe::finding& each : raised) {
        say("communicator " + run_.communicator + ", " + report::describe_alarm(each));
    }
}

void live_view::leave_out(std::uint64_t steps)
{
    if (std::exchange(left_out_, steps) == 0 && steps > 0 && options_.log != settings::log_kind::off) {
        say("communicator " + run_.communicator
            + ": steps come faster than they are judged; those left out of the live view are in the files");
    }
}

void live_view::close()
{
    sinks_.close();
    if (left_out_ > 0 && options_.log != settings::log_kind::off) {
        say("communicator " + run_.communicator + ": " + report::detail::counted(left_out_, "step")
            + " left out of the live view; the files have them");
    }
}

} // namespace collprobe_preload
