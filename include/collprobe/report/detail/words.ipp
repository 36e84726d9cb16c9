// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>

#include <collprobe/core/element.hpp>
#include <collprobe/report/words.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

COLLPROBE_COLD_INLINE std::string short_number(double value)
{
    if (is_nan(value)) return "-";
    // snprintf is not used here: under -ffast-math only the bits show reliably whether a number is infinite.
    if (!is_finite(value)) return (to_bits(value) >> 63) != 0 ? "-inf" : "inf";
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

COLLPROBE_COLD_INLINE std::string milliseconds(double nanoseconds)
{
    return short_number(nanoseconds / 1e6) + " ms";
}

COLLPROBE_COLD_INLINE std::string describe_call(int call, const call_site& site)
{
    const std::string text = "bucket " + std::to_string(call);
    if (site.name[0] != '\0') return text + " '" + site.name + "'";
    if (site.line == 0) return text;
    const std::string file = site.file;
    return text + " (" + file.substr(file.find_last_of("/\\") + 1) + ":" + std::to_string(site.line) + ")";
}

COLLPROBE_COLD_INLINE const char* phrase(finding what) noexcept
{
    switch (what) {
    case finding::non_finite: return "sent NaN or infinity";
    case finding::duplicate: return "sent the data of another rank";
    case finding::stale: return "sent the data of the step before";
    case finding::result_differs: return "received other bits than the other ranks";
    case finding::shard_differs: return "received other bits of a shard than its owner sent";
    case finding::replica_differs: return "held other weights or another optimizer state than the other ranks";
    case finding::sum_differs: return "received a result that is not the sum of the inputs";
    case finding::loss: return "had a loss that stands out";
    case finding::gradient_norm: return "had a gradient norm that stands out";
    case finding::cosine: return "had a gradient in a direction that stands out";
    case finding::late: return "came late to the calls";
    case finding::quantisation: return "lost too much by quantisation";
    case finding::codes_differ: return "received other codes than were sent";
    }
    return "was named";
}

namespace detail {

COLLPROBE_COLD_INLINE std::string counted(std::uint64_t number, const char* thing)
{
    return std::to_string(number) + ' ' + thing + (number == 1 ? "" : "s");
}

COLLPROBE_COLD_INLINE std::string list_named(const alarm_record& raised)
{
    constexpr std::size_t most = 10;
    const std::size_t count = raised.ranks.size();
    if (count == 0) return "nobody is named";
    std::string text = count == 1 ? "rank " : "ranks ";
    const std::size_t shown = count < most ? count : most;
    for (std::size_t i = 0; i < shown; ++i) {
        if (i > 0) text += i + 1 == count ? " and " : ", ";
        text += std::to_string(raised.ranks[i]);
    }
    if (count > most) text += " and " + std::to_string(count - most) + " others";
    return text;
}

COLLPROBE_COLD_INLINE std::string advise(const alarm_record& raised)
{
    switch (raised.action) {
    case advice::none: return "note it";
    case advice::recheck: return "look closer, or repeat the step";
    case advice::skip: return "drop the step's update";
    case advice::resync:
        if (raised.source < 0) return "resync from elsewhere: no rank is known to hold what is right";
        return "resync from rank " + std::to_string(raised.source);
    case advice::quarantine: return "take out of the job";
    }
    return "unknown";
}

} // namespace detail

} // namespace collprobe::inline COLLPROBE_ABI::report
