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

/// An actor is a stream or a host thread: its operations run in the order in which they were given.
struct order_actor {
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
    std::vector<identity> identities; ///< an actor is reused once every user is ordered behind its past

    const identity& who(std::uint64_t epoch) const noexcept
    {
        std::size_t at = identities.size() - 1;
        while (at > 0 && identities[at].since > epoch) --at;
        return identities[at];
    }
};

/// Streams, host threads and the bytes that they access: those that run directly, or those of one capture.
class order_domain {
public:
    order_shadow shadow;

    order_actor& actor(std::uint32_t number) noexcept { return actors_[number]; }

    /// The actor of a stream; adds one if there is none. `base` is the knowledge with which it begins.
    std::uint32_t actor_of(const order_stream& stream, const order_clock& base, std::uint64_t now)
    {
        if (const std::uint32_t* const found = numbers_.find(key_of(stream))) return *found;
        has_legacy_ = has_legacy_ || stream.kind == stream_kind::legacy;
        return numbers_[key_of(stream)] = add({now, false, stream, {}}, base);
    }
    std::uint32_t host_actor(std::uint64_t thread, const order_clock& base, std::uint64_t now)
    {
        if (const std::uint32_t* const found = numbers_.find(key_of_host(thread))) return *found;
        return numbers_[key_of_host(thread)] = add({now, true, {.number = thread}, {}}, base);
    }
    /// Ends a stream: its number, and its actor, may be reused by another stream. What it was behind stays known: the
    /// device, and streams that wait for all streams of a kind, still wait for it.
    void end(const order_stream& stream)
    {
        const std::uint32_t* const found = numbers_.find(key_of(stream));
        if (found == nullptr) return;
        const order_actor& actor = actors_[*found];
        const stream_kind kind = actor.identities.back().stream.kind;
        ended_work* of = nullptr;
        for (ended_work& each : ended_work_) {
            if (each.space == stream.space && each.kind == kind) of = &each;
        }
        if (of == nullptr) of = &ended_work_.emplace_back(ended_work{stream.space, kind, {}});
        of->clock.join(actor.clock);
        end(key_of(stream));
    }
    void end_host(std::uint64_t thread) { end(key_of_host(thread)); }

    /// CUDA's legacy default stream and the blocking streams are ordered in both directions. Adds their earlier work to
    /// the clock of the actor `own`.
    void join_default_streams(std::uint32_t own)
    {
        if (has_legacy_) join_peers(actors_[own].identities.back().stream, actors_[own].clock);
    }
    /// Adds the work that is on the stream now to a clock.
    void look(const order_stream& stream, order_clock& into) const
    {
        if (const std::uint32_t* const found = numbers_.find(key_of(stream))) into.join(actors_[*found].clock);
        join_peers(stream, into);
    }
    /// Adds the work that is on all streams of a space now, also on those that have ended.
    void look(stream_space space, order_clock& into) const
    {
        for (const stream_kind kind : {stream_kind::independent, stream_kind::blocking, stream_kind::legacy})
            join_all(space, kind, into);
    }

    /// Checks an access of `own` with the knowledge `seen` against earlier accesses, and adds it. Calls
    /// `report(kind, earlier, mode of that, bytes)` for each earlier access that is not ordered before it.
    template <class Report>
    void access(const order_access& own, const order_clock& seen, memory_range range, memory_access mode, Report report)
    {
        if (range.bytes == 0) return;
        const auto judge = [&](hazard_kind kind, const order_access& earlier, memory_access earlier_mode,
                               memory_range bytes) {
            if (earlier.epoch == 0 || earlier.epoch == own.epoch) return;
            if (!seen.knows(earlier.actor, earlier.epoch)) report(kind, earlier, earlier_mode, bytes);
        };
        if (mode == memory_access::write) {
            order_segment& state = shadow.replace(range, [&](memory_range bytes, const order_segment& before) {
                if (before.released) {
                    report(hazard_kind::use_after_release, before.write, memory_access::write, bytes);
                    return;
                }
                judge(hazard_kind::write_after_write, before.write, memory_access::write, bytes);
                for (const order_access& read : before.reads)
                    judge(hazard_kind::write_after_read, read, memory_access::read, bytes);
            });
            state.write = own;
            state.reads.clear();
            state.released = false;
            return;
        }
        shadow.visit(range, [&](memory_range bytes, order_segment& state) {
            if (state.released) {
                report(hazard_kind::use_after_release, state.write, memory_access::write, bytes);
                return;
            }
            judge(hazard_kind::read_after_write, state.write, memory_access::write, bytes);
            // Drops earlier reads that this read is ordered behind: an access behind this one is behind them too.
            std::size_t kept = 0;
            for (const order_access& read : state.reads) {
                if (!seen.knows(read.actor, read.epoch) && read.epoch != own.epoch) state.reads[kept++] = read;
            }
            state.reads.resize(kept);
            state.reads.push_back(own);
        });
    }

private:
    /// The clocks of streams that have ended.
    struct ended_work {
        stream_space space;
        stream_kind kind;
        order_clock clock;
    };

    static order_key key_of(const order_stream& stream) noexcept
    {
        return {stream.number, stream.thread << 32 | stream.space.number};
    }
    static order_key key_of_host(std::uint64_t thread) noexcept { return {thread, UINT64_MAX}; }

    void join_peers(const order_stream& stream, order_clock& into) const
    {
        if (stream.kind == stream_kind::independent) return;
        const bool legacy = stream.kind == stream_kind::legacy;
        join_all(stream.space, legacy ? stream_kind::blocking : stream_kind::legacy, into);
    }
    void join_all(stream_space space, stream_kind kind, order_clock& into) const
    {
        for (const order_actor& each : actors_) {
            const order_actor::identity& who = each.identities.back();
            const bool is_one = !each.ended && !who.host && who.stream.kind == kind && who.stream.space == space;
            if (is_one) into.join(each.clock);
        }
        for (const ended_work& each : ended_work_) {
            if (each.space == space && each.kind == kind) into.join(each.clock);
        }
    }

    std::uint32_t add(order_actor::identity who, const order_clock& base)
    {
        // An ended actor can be reused by a stream or thread that is ordered behind all its work.
        for (std::size_t at = 0; at < ended_.size(); ++at) {
            const std::uint32_t number = ended_[at];
            order_actor& old = actors_[number];
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
        order_actor made;
        made.clock = base; // assigned before the push: `base` may be the clock of an actor in `actors_`
        made.identities.push_back(std::move(who));
        actors_.push_back(std::move(made));
        return static_cast<std::uint32_t>(actors_.size() - 1);
    }
    void end(order_key key)
    {
        const std::uint32_t* const found = numbers_.find(key);
        if (found == nullptr) return;
        actors_[*found].ended = true;
        ended_.push_back(*found);
        numbers_.erase(key);
    }

    static constexpr std::size_t most_identities = 16;

    std::vector<order_actor> actors_;
    order_table<std::uint32_t> numbers_; ///< of the actors that have not ended
    std::vector<std::uint32_t> ended_;
    std::vector<ended_work> ended_work_; ///< one for each space and kind
    bool has_legacy_ = false;
};

} // namespace collprobe::detail
