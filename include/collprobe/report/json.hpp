// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <collprobe/core/element.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/report/metric.hpp>
#include <collprobe/report/summary.hpp>

/// Records as JSON lines: one object per line, ended by a newline, so that a file can be cut anywhere
/// and two files joined. `schema` changes when the meaning of a name does.
namespace collprobe::inline COLLPROBE_ABI::report {

inline constexpr int json_schema = 1;

/// A number of the caller's own that joins a summary, the accuracy of the trained model, say.
struct named_value {
    std::string_view name;
    double value = 0;
};

namespace detail {

/// Appends JSON text. Commas are put in front of whatever follows an earlier sibling.
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
    /// A member's name, or nothing but the comma for an element of an array.
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

    json_writer& number(double value)
    {
        // JSON has neither NaN nor infinity, and null for both would not tell them apart.
        if (!is_finite(value)) {
            out_ += is_nan(value) ? "\"nan\"" : to_bits(value) >> 63 != 0 ? "\"-inf\"" : "\"inf\"";
            return *this;
        }
        char text[40];
        std::snprintf(text, sizeof text, "%.17g", value);
        for (char* at = text; *at != '\0'; ++at) {
            if (*at == ',') *at = '.'; // a program may have set a locale with a decimal comma
        }
        out_ += text;
        return *this;
    }
    json_writer& integer(std::uint64_t value)
    {
        out_ += std::to_string(value);
        return *this;
    }
    /// An index or a rank: null where it is negative, which in a record means "none".
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
    json_writer& numbers(const std::vector<double>& values)
    {
        open('[');
        for (const double value : values) element().number(value);
        return close(']');
    }

private:
    void separate()
    {
        if (!fresh_) out_ += ',';
        fresh_ = false;
    }
    void quoted(std::string_view value)
    {
        out_ += '"';
        for (const char character : value) {
            const auto code = static_cast<unsigned char>(character);
            if (character == '"' || character == '\\') {
                out_ += '\\';
                out_ += character;
            } else if (code < 0x20) {
                char escape[8];
                std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(code));
                out_ += escape;
            } else {
                out_ += character;
            }
        }
        out_ += '"';
    }

    std::string& out_;
    bool fresh_ = true;
};

inline void write_head(json_writer& json, std::string_view kind, std::string_view run)
{
    json.open('{').key("schema").integer(json_schema).key("kind").text(kind).key("run").text(run);
}

/// The members that a step and a summary have in common; `value` maps a metric to its number.
template <class Value>
void write_metrics(json_writer& json, const Value& value, const std::vector<double>& leave_one_out)
{
    json.key("loss").open('{');
    json.key("mean").number(value(metric::loss_mean));
    json.key("std").number(value(metric::loss_std));
    json.key("std_sample").number(value(metric::loss_std_sample));
    json.key("range").number(value(metric::loss_range)).close('}');
    json.key("grad_norm").open('{');
    json.key("mean").number(value(metric::norm_mean));
    json.key("std").number(value(metric::norm_std));
    json.key("cv").number(value(metric::norm_cv)).close('}');
    json.key("cosine").open('{');
    json.key("mean_pairwise").number(value(metric::cosine_mean_pairwise));
    json.key("pooled").number(value(metric::cosine_pooled));
    json.key("predicted").number(value(metric::cosine_predicted));
    json.key("leave_one_out").numbers(leave_one_out).close('}');
    json.key("noise_scale").number(value(metric::noise_scale));
}

/// A suspect's members, without the braces.
inline void write_suspect(json_writer& json, const suspect& named)
{
    json.key("rank").index(named.rank).key("other_rank").index(named.other_rank);
    json.key("bucket").index(named.bucket).key("check").text(name(named.what));
    json.key("statistic").number(named.statistic).key("threshold").number(named.threshold);
    json.key("index");
    if (named.index == no_index) json.index(-1);
    else json.integer(named.index);
}

} // namespace detail

/// One step as a line: an object with the members `schema`, `kind` ("step"), `run`, `step`, `ranks`,
/// `loss` {mean, std, std_sample, range}, `grad_norm` {mean, std, cv}, `cosine` {mean_pairwise, pooled,
/// predicted, leave_one_out (a number per rank)}, `noise_scale` and `suspects` (an array of {rank,
/// other_rank, bucket, check, statistic, threshold, index}). Where `probe_options::order_sample` asked for it also
/// `order` {elements, nonfinite, orders, changed, max_ulp_spread, rms_ulp_error, max_ulp_error}.
///
/// Numbers have 17 digits, enough to get the same double back. JSON has no others than finite ones: what
/// is undefined is the string "nan", infinities are "inf" and "-inf" (Python's `float` takes all three).
/// A bucket, rank or index that there is none of is null. `run` is UTF-8; quotes and control characters
/// are escaped.
/// Cost: one string of about 400 bytes and 24 per rank.
inline std::string json_line(std::string_view run, const step_record& record)
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "step", run);
    json.key("step").integer(record.step).key("ranks").index(record.ranks);
    detail::write_metrics(
        json, [&](metric which) { return value_of(which, record); }, record.cosine.leave_one_out);
    if (const order_sensitivity order = record.order(); order.elements != 0 || order.nonfinite != 0) {
        json.key("order").open('{');
        json.key("elements").integer(order.elements).key("nonfinite").integer(order.nonfinite);
        json.key("orders").integer(order.orders).key("changed").integer(order.changed);
        json.key("max_ulp_spread").integer(order.max_ulp_spread);
        json.key("rms_ulp_error").number(order.rms_ulp_error);
        json.key("max_ulp_error").number(order.max_ulp_error).close('}');
    }
    json.key("suspects").open('[');
    for (const suspect& named : record.suspects) {
        json.element().open('{');
        detail::write_suspect(json, named);
        json.close('}');
    }
    json.close(']').close('}');
    line += '\n';
    return line;
}

/// A run as a line: `kind` is "summary", `steps` counts them, the metrics are medians over the steps
/// under the names that a step has. `suspects` has an object per finding, as in a step and with
/// `first_step`, `last_step` and `steps`. `extra` joins at the top level.
inline std::string json_line(const run_summary& summary, const std::vector<named_value>& extra = {})
{
    std::string line;
    detail::json_writer json(line);
    detail::write_head(json, "summary", summary.run);
    json.key("steps").integer(summary.steps).key("ranks").index(summary.ranks);
    detail::write_metrics(
        json, [&](metric which) { return summary[which]; }, summary.leave_one_out);
    json.key("suspects").open('[');
    for (const finding& found : summary.findings) {
        json.element().open('{');
        detail::write_suspect(json, found.first);
        json.key("first_step").integer(found.first_step).key("last_step").integer(found.last_step);
        json.key("steps").integer(found.steps).close('}');
    }
    json.close(']').key("suspicious_steps").integer(summary.suspicious_steps);
    for (const named_value& own : extra) json.key(own.name).number(own.value);
    json.close('}');
    line += '\n';
    return line;
}

} // namespace collprobe::report
