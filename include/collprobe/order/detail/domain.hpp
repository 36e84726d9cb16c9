// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/order/detail/shadow.hpp>
#include <collprobe/order/detail/table.hpp>
#include <collprobe/order/stream_hazard.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A line is a stream or a host thread: its operations run in the order in which they were given.
struct order_line {
    struct identity {
        std::uint64_t since = 0; ///< epoch
        bool host = false;
        order_stream stream;
        std::string name;
    };

    order_clock clock;
    std::uint64_t version = 1; ///< of the clock, for a host thread
    std::uint64_t last = 0; ///< epoch of its last operation
    std::uint32_t joined_host = UINT32_MAX; ///< the host thread whose clock was joined last, with its version
    std::uint64_t joined_version = 0;
    bool ended = false;
    std::vector<identity> identities; ///< a line is reused once every user is ordered behind its past

    const identity& who(std::uint64_t epoch) const noexcept
    {
        std::size_t at = identities.size() - 1;
        while (at > 0 && identities[at].since > epoch) --at;
        return identities[at];
    }
    const order_stream& stream() const noexcept { return identities.back().stream; }
};

/// The order of a communicator's own calls.
struct order_serial {
    order_clock clock;
    std::uint32_t last_line = UINT32_MAX;
};

/// Streams, host threads and the bytes that they access: those that run directly, or those of one capture.
class order_domain {
public:
    order_shadow shadow;
    order_table<order_serial> serials; ///< by communicator

    order_line& line(std::uint32_t number) noexcept { return lines_[number]; }
    std::size_t lines() const noexcept { return lines_.size(); }

    /// The line of a stream; adds one if there is none. `base` is the knowledge with which it begins.
    std::uint32_t line_of(const order_stream& stream, const order_clock& base, std::uint64_t now)
    {
        const order_key key{stream.number, stream.thread << 32 | stream.space};
        if (const std::uint32_t* const found = streams_.find(key)) return *found - 1;
        const std::uint32_t made = add({now, false, stream, {}}, base);
        streams_[key] = made + 1;
        if (stream.kind == stream_kind::legacy) ++legacy_;
        return made;
    }
    std::uint32_t host_line(std::uint64_t thread, const order_clock& base, std::uint64_t now)
    {
        if (const std::uint32_t* const found = hosts_.find({thread})) return *found - 1;
        order_line::identity who{now, true, {}, {}};
        who.stream.number = thread;
        const std::uint32_t made = add(std::move(who), base);
        hosts_[{thread}] = made + 1;
        return made;
    }
    /// Ends a stream: its number, and its line, may be reused by another stream.
    void end(const order_stream& stream)
    {
        end_of(streams_, {stream.number, stream.thread << 32 | stream.space});
    }
    void end_host(std::uint64_t thread) { end_of(hosts_, {thread}); }

    /// CUDA's legacy default stream and the blocking streams are ordered in both directions. Adds their earlier work to
    /// the clock of the line `own`.
    void join_default_streams(std::uint32_t own)
    {
        if (legacy_ == 0) return;
        const order_stream stream = lines_[own].stream();
        if (stream.kind == stream_kind::independent) return;
        const stream_kind peers
            = stream.kind == stream_kind::legacy ? stream_kind::blocking : stream_kind::legacy;
        for (const order_line& each : lines_) {
            const order_line::identity& who = each.identities.back();
            if (who.host || who.stream.kind != peers || who.stream.space != stream.space) continue;
            lines_[own].clock.join(each.clock);
        }
    }

    /// Checks an access of `own` with the knowledge `seen` against earlier accesses, and adds it. Calls
    /// `report(kind, earlier, mode of that, first, end)` for each earlier access that is not ordered before it.
    template <class Report>
    void access(const order_access& own, const order_clock& seen, memory_range range, memory_access mode, Report report)
    {
        if (range.bytes == 0) return;
        const auto judge = [&](const order_access& earlier, memory_access earlier_mode, hazard_kind kind,
                               std::uintptr_t first, std::uintptr_t end) {
            if (earlier.epoch == 0 || earlier.epoch == own.epoch) return;
            if (seen.knows(earlier.line, earlier.epoch)) return;
            const bool weakly = seen.knows_weakly(earlier.line, earlier.epoch);
            report(weakly ? hazard_kind::weakly_ordered : kind, earlier, earlier_mode, first, end);
        };
        if (mode == memory_access::write) {
            order_segment& state = shadow.replace(
                range, [&](std::uintptr_t first, std::uintptr_t end, const order_segment& before) {
                    if (before.released) {
                        report(hazard_kind::use_after_release, before.write, memory_access::write, first, end);
                        return;
                    }
                    judge(before.write, memory_access::write, hazard_kind::write_after_write, first, end);
                    for (const order_access& read : before.reads) {
                        judge(read, memory_access::read, hazard_kind::write_after_read, first, end);
                    }
                });
            state.write = own;
            state.reads.clear();
            state.generation = 0;
            state.released = false;
            return;
        }
        shadow.visit(range, [&](std::uintptr_t first, std::uintptr_t end, order_segment& state) {
            if (state.released) {
                report(hazard_kind::use_after_release, state.write, memory_access::write, first, end);
                return;
            }
            judge(state.write, memory_access::write, hazard_kind::read_after_write, first, end);
            // Drops earlier reads that this read is ordered behind: an access behind this one is behind them too.
            std::size_t kept = 0;
            for (const order_access& read : state.reads) {
                if (!seen.knows(read.line, read.epoch) && read.epoch != own.epoch) state.reads[kept++] = read;
            }
            state.reads.resize(kept);
            state.reads.push_back(own);
        });
    }

    /// Calls `found(access, its mode, first, end)` for each access that conflicts with a later access of `mode`.
    template <class Found>
    void conflicts(memory_range range, memory_access mode, Found found)
    {
        shadow.look(range, [&](std::uintptr_t first, std::uintptr_t end, const order_segment& state) {
            if (state.write.epoch != 0) found(state.write, memory_access::write, first, end);
            if (mode == memory_access::read) return;
            for (const order_access& read : state.reads) found(read, memory_access::read, first, end);
        });
    }

private:
    std::uint32_t add(order_line::identity who, const order_clock& base)
    {
        // An ended line can be reused by a stream or thread that is ordered behind all its work.
        for (std::size_t at = 0; at < ended_.size(); ++at) {
            const std::uint32_t number = ended_[at];
            order_line& old = lines_[number];
            if (!base.knows(number, old.last)) continue;
            ended_[at] = ended_.back();
            ended_.pop_back();
            old.clock = base;
            ++old.version;
            old.joined_host = UINT32_MAX;
            old.ended = false;
            if (old.identities.size() == most_identities) old.identities.erase(old.identities.begin());
            old.identities.push_back(std::move(who));
            return number;
        }
        order_line made;
        made.clock = base; // assigned before the push: `base` may be the clock of a line in `lines_`
        made.identities.push_back(std::move(who));
        lines_.push_back(std::move(made));
        return static_cast<std::uint32_t>(lines_.size() - 1);
    }
    void end_of(order_table<std::uint32_t>& of, order_key key)
    {
        const std::uint32_t* const found = of.find(key);
        if (found == nullptr) return;
        const std::uint32_t number = *found - 1;
        of.erase(key);
        lines_[number].ended = true;
        ended_.push_back(number);
    }

    static constexpr std::size_t most_identities = 16;

    std::vector<order_line> lines_;
    order_table<std::uint32_t> streams_; ///< 1 + number of the line
    order_table<std::uint32_t> hosts_;
    std::vector<std::uint32_t> ended_;
    std::uint32_t legacy_ = 0;
};

} // namespace collprobe::detail
