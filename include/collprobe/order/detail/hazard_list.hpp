// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/order/detail/table.hpp>
#include <collprobe/order/stream_hazard.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The name and the call site of an operation.
struct order_site {
    const char* operation = "";
    call_site where{};
};

/// The hazards found, with one entry per pair of call sites.
class hazard_list {
public:
    explicit hazard_list(std::size_t most) : most_(most), sites_(1) {}
    /// From now on new hazards are kept for `take_news`, too.
    void keep_news() noexcept { keeps_news_ = true; }

    std::uint32_t site_number(const char* operation, call_site where)
    {
        // Pointers have 48 bits, so all three numbers fit.
        const std::uint64_t line = where.line;
        std::uint32_t& number = numbers_[{reinterpret_cast<std::uintptr_t>(operation) ^ (line & 0xffff) << 48,
            reinterpret_cast<std::uintptr_t>(where.file) ^ (line >> 16) << 48}];
        if (number == 0) {
            number = static_cast<std::uint32_t>(sites_.size());
            sites_.push_back({operation, where});
        }
        return number;
    }
    const order_site& site(std::uint32_t number) const noexcept { return sites_[number]; }

    /// Counts a hazard of two call sites; with `epoch`, the epoch of the later operation, once per operation. All races
    /// between the two are one report. `write` makes it if the pair is new and there is room.
    template <class Write>
    void add(hazard_kind kind, std::uint32_t earlier, std::uint32_t later, std::uint64_t epoch,
        memory_range bytes, Write write)
    {
        const auto key = static_cast<std::uint64_t>(is_race(kind) ? hazard_kind::read_after_write : kind);
        known& pair = pairs_[{std::uint64_t{earlier} << 8 | key, later}];
        if (pair.last_epoch != epoch) {
            ++hazard_count_;
            if (pair.report != 0) ++hazards_[pair.report - 1].count;
        } else if (pair.report != 0) {
            extend(hazards_[pair.report - 1], kind, bytes);
        }
        pair.last_epoch = epoch;
        if (pair.seen) return;
        pair.seen = true;
        if (hazards_.size() < most_) {
            hazards_.push_back(write());
            pair.report = hazards_.size();
        } else if (keeps_news_) news_.push_back(write());
    }

    bool has_news() const noexcept { return keeps_news_ && (taken_ < hazards_.size() || !news_.empty()); }
    /// The hazards that are new since the last call, as they are now.
    std::vector<stream_hazard> take_news()
    {
        std::vector<stream_hazard> news = std::exchange(news_, {});
        for (; taken_ < hazards_.size(); ++taken_) news.push_back(hazards_[taken_]);
        return news;
    }

    const std::vector<stream_hazard>& hazards() const noexcept { return hazards_; }
    std::uint64_t hazard_count() const noexcept { return hazard_count_; }
    void clear()
    {
        pairs_.clear();
        hazards_.clear();
        taken_ = 0;
        news_.clear();
        hazard_count_ = 0;
    }

private:
    struct known {
        bool seen = false;
        std::size_t report = 0; ///< 1 + index in the list; 0 if there was no room
        std::uint64_t last_epoch = 0;
    };

    static bool is_race(hazard_kind kind) noexcept
    {
        return kind == hazard_kind::read_after_write || kind == hazard_kind::write_after_read
            || kind == hazard_kind::write_after_write;
    }
    /// Adds a further run of bytes to a report. An operation meets the runs of an earlier one in ascending order.
    static void extend(stream_hazard& report, hazard_kind kind, memory_range bytes)
    {
        bool continues = false;
        for (memory_range* const each : {&report.earlier.bytes, &report.later.bytes}) {
            if (kind != report.kind || each->bytes == 0 || each->end() != bytes.first) continue;
            each->bytes += bytes.bytes;
            continues = true;
        }
        if (!continues && bytes.bytes != 0 && report.count == 1) ++report.further_runs;
    }

    std::size_t most_;
    std::vector<order_site> sites_;
    order_table<std::uint32_t> numbers_;
    order_table<known> pairs_;
    std::vector<stream_hazard> hazards_;
    bool keeps_news_ = false;
    std::size_t taken_ = 0; ///< how many of them `take_news` has given
    std::vector<stream_hazard> news_; ///< those for which the list had no room
    std::uint64_t hazard_count_ = 0;
};

} // namespace collprobe::detail
