// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/core/record.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/summary.hpp>

/// Records as JSON lines: one object per line, ended by a newline, so that a file can be cut at any line and two files
/// can be joined. `schema` changes when the meaning of a name changes.
namespace collprobe::inline COLLPROBE_ABI::report {

inline constexpr int json_schema = 1;

namespace detail {

/// Appends JSON text. Writes a comma before an item that follows an earlier sibling.
class json_writer {
public:
    explicit json_writer(std::string& out) noexcept : out_(out) {}

    json_writer& open(char bracket)
    {
        out_ += bracket;
        fresh_ = true;
        return *this;
    }
    json_writer& close(char bracket)
    {
        out_ += bracket;
        fresh_ = false;
        return *this;
    }
    /// Writes a member's name; for an element of an array, only the comma.
    json_writer& key(std::string_view name)
    {
        separate();
        quoted(name);
        out_ += ':';
        return *this;
    }
    json_writer& element()
    {
        separate();
        return *this;
    }

    json_writer& number(double value);
    json_writer& integer(std::uint64_t value)
    {
        out_ += std::to_string(value);
        return *this;
    }
    /// Writes an index or a rank; null if it is negative, which in a record means "none".
    json_writer& index(int value)
    {
        out_ += value < 0 ? std::string("null") : std::to_string(value);
        return *this;
    }
    json_writer& text(std::string_view value)
    {
        quoted(value);
        return *this;
    }
    json_writer& boolean(bool value)
    {
        out_ += value ? "true" : "false";
        return *this;
    }
    json_writer& numbers(const std::vector<double>& values);

private:
    void separate()
    {
        if (!fresh_) out_ += ',';
        fresh_ = false;
    }
    void quoted(std::string_view value);

    std::string& out_;
    bool fresh_ = true;
};

void write_head(json_writer& json, std::string_view kind, std::string_view run);

/// The members `name` and `line` ("train.cpp:88") of a call, those that are known.
void write_site(json_writer& json, const call_site& site);

/// A suspect's members, without the braces.
void write_suspect(json_writer& json, const suspect& named);

} // namespace detail

/// One step as a JSON line: an object with the members `schema`, `kind` ("step"), `run`, `step`, `ranks`, `loss` {mean,
/// std, std_sample, range}, `grad_norm` {mean, std, cv}, `cosine` {mean_pairwise, pooled, predicted, leave_one_out (a
/// number per rank)}, `noise_scale` and `suspects` (an array of {rank, other_rank, bucket, check, statistic, threshold,
/// index}, with `name` and `line` of the call where known). Where there is one: with `probe_options::order_sample`
/// `order` {elements, nonfinite, orders, changed, max_ulp_spread, rms_ulp_error, max_ulp_error}; with the part `audit`
/// `audit` {calls, sums}, the calls and sums that it checked; with times `lateness` {calls, last, behind,
/// behind_before, noise, stands_out, late (an array of {rank, behind, behind_before, share_last})}, in nanoseconds;
/// `unprobed_calls`; `unread_calls`; with the part `quantisation_probe` `quantisation`, an object per call with the
/// members of `call_quantisation`.
///
/// Numbers have 17 digits, enough to read the same double again. JSON has only finite numbers, so an undefined number
/// is the string "nan", infinities are "inf" and "-inf" (Python's `float` takes all three). A bucket, rank or index
/// that does not exist is null. `run` is UTF-8; quotes and control characters are escaped. Cost: one string of about
/// 400 bytes and 24 per rank.
std::string json_line(std::string_view run, const step_record& record);

/// A run as a JSON line. `kind` is "summary", `steps` is the number of steps, and the metrics are medians over the
/// steps, under the names that a step has. `suspects` has an object per finding, as in a step, with `first_step`,
/// `last_step` and `steps`. `extra`: the caller's own numbers by name, which become members of the object.
std::string json_line(const run_summary& summary, const std::vector<std::pair<std::string_view, double>>& extra = {});

} // namespace collprobe::report

#if COLLPROBE_DEFINITIONS
#include <collprobe/report/detail/json.ipp>
#endif
