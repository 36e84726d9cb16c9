// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/report/metric.hpp>

/// What the records of a run said, kept for a comparison: of one communicator, by one or several of its ranks.
namespace collprobe::inline COLLPROBE_ABI::report {

/// One call of a step.
struct logged_call {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    bool has_digest = false;
    std::uint32_t name = 0; ///< `run_log::text` of it; empty if the call has none
    std::uint32_t line = 0; ///< "train.cpp:88", or empty
    std::uint64_t count = 0; ///< elements that each rank got; of a reduce-scatter those that it sent
    std::uint64_t digest = 0;
    double norm = collprobe::detail::not_a_number(); ///< of the result
    std::size_t first_sample = 0;
    std::size_t samples = 0;
};

struct logged_step {
    std::uint64_t step = 0;
    std::uint64_t first_call = 0; ///< sequence number of its first call; unknown if it has no calls
    std::uint64_t unseen_calls = 0; ///< that no probe looked at
    /// A hash of what else a step tells: numbers by rank, norms, non-finite elements, agreement, findings but `late`.
    std::uint64_t facts = 0;
    int ranks = 0;
    int writer = -1; ///< the rank whose record this is
    int attempt = 0; ///< how often the run had been started again
    std::array<double, detail::metric_count> metrics{}; ///< by `metric`
    std::size_t first_entry = 0;
    std::size_t calls = 0;
};

/// An alarm with its steps. Alarms of the same check, call and ranks are one.
struct logged_alarm {
    finding what = finding::non_finite;
    damage where = damage::unknown;
    int call = -1;
    std::string name; ///< of the call or the value; of `call_missing` that of the missing call
    std::string line;
    std::vector<int> ranks;
    std::vector<std::uint64_t> steps; ///< ascending
};

namespace detail {

/// Whether both tell the same. Without a call they do so of a value, or of a missing call, by its name.
inline bool is_same_alarm(const logged_alarm& a, const logged_alarm& b)
{
    return a.what == b.what && a.call == b.call && (a.call >= 0 || a.name == b.name) && a.ranks == b.ranks;
}

/// "bucket 1 'wte'"; without a call the name of the value, of the missing call, or "whole step"
std::string describe_place(const logged_alarm& raised);

} // namespace detail

/// A rank whose records are in the log.
struct log_writer {
    int rank = -1; ///< -1: unknown
    std::uint64_t steps = 0;
    std::uint64_t last_step = 0;
    std::uint64_t dropped = 0; ///< records that it lost before it could write them
    bool has_ended = false; ///< it wrote the end of the run
    int attempt = 0;
};

/// Two ranks that tell different things of one step. Records are equal on all ranks, so one of the logs is damaged.
struct log_disagreement {
    std::uint64_t step = 0;
    int writer = -1;
    int other = -1; ///< whose record was there before
};

/// Collects the records of a run, from a probe or from files, of one rank or of several: the ranks' records are equal,
/// so one rank's suffice, and those that one rank lost come from another.
/// A rank that writes a step at or before its last one has started again, from a checkpoint for instance. From that
/// step on only the new records count.
/// Cost: memory of about 200 bytes a step, 80 a call and 8 a sampled element; adding a step again compares it.
class run_log {
public:
    static constexpr std::size_t most = 4096; ///< different alarms that are kept; the others are counted

    explicit run_log(std::string run = "run", std::string communicator = "world")
        : run_(std::move(run)), communicator_(std::move(communicator)), texts_(1)
    {
    }

    /// A rank's steps in the order in which it wrote them.
    void add(const step_record& record, int writer = -1);
    void add(const alarm_record& raised, int writer = -1);
    /// `records_dropped` of a line: so many since the run began.
    void add_dropped(std::uint64_t records, int writer = -1);
    void add_end(int writer = -1) { writer_of(writer).has_ended = true; }

    const std::string& run() const noexcept { return run_; }
    const std::string& communicator() const noexcept { return communicator_; }
    int ranks() const noexcept { return steps_.empty() ? 0 : steps_.back().ranks; }
    const std::vector<logged_step>& steps() const noexcept { return steps_; } ///< ascending
    view<const logged_call> calls(const logged_step& of) const noexcept
    {
        return {calls_.data() + of.first_entry, of.calls};
    }
    view<const double> sample(const logged_call& of) const noexcept
    {
        return {samples_.data() + of.first_sample, of.samples};
    }
    const std::string& text(std::uint32_t index) const noexcept { return texts_[index]; }
    const std::vector<logged_alarm>& alarms() const noexcept { return alarms_; } ///< in the order of the records
    std::uint64_t alarms_left_out() const noexcept { return alarms_left_out_; }
    const std::vector<log_writer>& writers() const noexcept { return writers_; }
    /// At most 16; `disagreement_count` has the number of all.
    const std::vector<log_disagreement>& disagreements() const noexcept { return disagreements_; }
    std::uint64_t disagreement_count() const noexcept { return disagreement_count_; }
    /// The steps at which the run was started again.
    const std::vector<std::uint64_t>& restarts() const noexcept { return restarts_; }

    /// Ranges of steps that are missing between others: the sequence numbers of the calls show it or, where calls are
    /// missing, the numbers of the steps.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> missing_steps() const;

private:
    log_writer& writer_of(int rank);
    std::uint32_t index_of(std::string_view text);
    bool agrees(const logged_step& known, const step_record& record) const;
    void store(logged_step& place, const step_record& record);

    std::string run_;
    std::string communicator_;
    std::vector<logged_step> steps_;
    std::vector<logged_call> calls_;
    std::vector<double> samples_;
    std::vector<std::string> texts_; ///< the first is empty
    std::vector<logged_alarm> alarms_;
    std::uint64_t alarms_left_out_ = 0;
    std::vector<log_writer> writers_;
    std::size_t last_writer_ = 0;
    std::vector<log_disagreement> disagreements_;
    std::uint64_t disagreement_count_ = 0;
    std::vector<std::uint64_t> restarts_; ///< by attempt, from 1
};

namespace detail {

/// Whether two numbers are the same to a reader: the same bits, or both undefined.
bool same_number(double a, double b) noexcept;
/// The elements that a call is about, whatever the number of ranks and of gradients that each of them adds.
std::uint64_t elements_of(const call_record& call) noexcept;
std::uint64_t facts_of(const step_record& record) noexcept;

} // namespace detail
} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/run_log.ipp>
#endif
