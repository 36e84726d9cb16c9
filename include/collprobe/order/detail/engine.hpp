// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/order/detail/allocations.hpp>
#include <collprobe/order/detail/domain.hpp>
#include <collprobe/order/detail/explain.hpp>
#include <collprobe/order/detail/hazard_list.hpp>
#include <collprobe/order/detail/table.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The rules of `stream_order`, for one thread at a time; that class documents the calls.
class order_engine {
public:
    order_engine(std::uint64_t serial, std::size_t most_reports, std::size_t most_released)
        : serial_(serial), most_released_(most_released), reports_(most_reports)
    {
    }
    order_engine(const order_engine&) = delete;
    order_engine& operator=(const order_engine&) = delete;

    hazard_list& reports() noexcept { return reports_; }
    const hazard_list& reports() const noexcept { return reports_; }
    void name(const order_stream& stream, std::string text)
    {
        order_domain& in = domain_of(stream);
        in.actor(in.actor_of(stream, {}, now_)).identities.back().name = std::move(text);
    }

    void launch(
        const order_stream& on, const memory_ranges& reads, const memory_ranges& writes, order_site what,
        std::uint64_t thread)
    {
        operate(on, reads, writes, site(what), thread);
    }
    void touch_host(memory_range range, memory_access mode, order_site what, std::uint64_t thread)
    {
        const std::uint32_t own = host_actor(thread);
        const order_access access = step_host(own, what);
        check_bounds(main_, access, range, mode);
        check(main_, access, main_.actor(own).clock, range, mode);
    }
    void collective(const order_stream& on, const memory_ranges& reads, const memory_ranges& writes, order_site what,
        std::uint64_t thread, bool deferrable)
    {
        group* const open = deferrable ? groups_.find({thread}) : nullptr;
        if (open == nullptr || open->depth == 0) return operate(on, reads, writes, site(what), thread);
        if (open->used == open->members.size()) open->members.emplace_back();
        member& added = open->members[open->used++];
        added.on = on;
        added.site = site(what);
        added.reads.assign(reads.begin(), reads.end());
        added.writes.assign(writes.begin(), writes.end());
        added.versions.clear();
        for (const memory_range range : reads) remember(domain_of(on), range, added.versions);
    }
    void group_begin(std::uint64_t thread) { ++groups_[{thread}].depth; }
    void group_end(bool enqueued, std::uint64_t thread)
    {
        group* const open = groups_.find({thread});
        if (open == nullptr || open->depth == 0 || --open->depth > 0) return;
        const std::size_t used = std::exchange(open->used, 0);
        if (!enqueued) return;
        for (std::size_t at = 0; at < used; ++at) compare_versions(open->members[at]);
        for (std::size_t at = 0; at < used; ++at) {
            // The members of one capture, or of no capture, form one operation.
            bool first = true;
            for (std::size_t before = 0; before < at; ++before) {
                first = first && open->members[before].on.capture != open->members[at].on.capture;
            }
            if (first) operate_together(*open, used, open->members[at].on.capture, thread);
        }
    }

    /// Records the present knowledge of the stream and of the host thread that enqueues the record.
    void record(order_point& point, const order_stream& on, std::uint64_t thread)
    {
        order_domain& in = domain_of(on);
        const std::uint32_t own = enter(in, on, thread);
        point.record(serial_, on.capture, in.actor(own).clock);
    }
    /// Sets the point to the work that a host waits for if it synchronises with the stream now. The stream learns
    /// nothing.
    void look(order_point& point, const order_stream& on)
    {
        order_clock seen;
        if (on.capture == 0) main_.look(on, seen);
        point.record(serial_, on.capture, seen);
    }
    void record_host(order_point& point, std::uint64_t thread)
    {
        point.record(serial_, 0, main_.actor(host_actor(thread)).clock);
    }
    void wait(const order_stream& on, const order_point& point, std::uint64_t thread)
    {
        if (!point.is_of(serial_) || point.capture() != on.capture) return;
        order_domain& in = domain_of(on);
        in.actor(enter(in, on, thread)).clock.join(point.clock());
    }
    void wait_unrecorded(const order_stream& on, order_site what)
    {
        order_domain& in = domain_of(on);
        const order_access access{++now_, enter(in, on), site(what)};
        add(hazard_kind::unrecorded_event, in, {}, {}, access, {}, {});
    }
    /// Adds the point's knowledge to the host thread.
    void reached(const order_point& point, std::uint64_t thread)
    {
        if (point.is_of(serial_) && point.capture() == 0) learn(thread, point.clock());
    }
    /// Records the present knowledge of all streams of a space.
    void record_space(order_point& point, stream_space space)
    {
        order_clock all;
        main_.look(space, all);
        point.record(serial_, 0, all);
    }
    void stream_began(const order_stream& stream, std::uint64_t thread)
    {
        main_.end(stream); // an earlier one, of whose end nothing was told
        (void)enter(main_, stream, thread);
    }
    void stream_ended(const order_stream& stream) { main_.end(stream); }

    order_point& event(order_key key) { return events_[key]; }
    /// Null for an event of which nothing was told.
    const order_point* find_event(order_key key) { return events_.find(key); }
    void event_created(order_key key) { events_[key] = {}; }
    void forget_event(order_key key) { events_.erase(key); }

    void handoff_release(order_key tag, std::uint64_t thread)
    {
        handoffs_[tag].join(main_.actor(host_actor(thread)).clock);
    }
    void handoff_acquire(order_key tag, std::uint64_t thread)
    {
        if (const order_clock* const found = handoffs_.find(tag)) learn(thread, *found);
    }
    /// Begins a thread behind `parent`.
    void thread_began(const order_point& parent, std::uint64_t thread)
    {
        if (!parent.is_of(serial_)) return;
        (void)main_.host_actor(thread, parent.clock(), now_);
        learn(thread, parent.clock());
    }
    void thread_ended(order_point& last, std::uint64_t thread)
    {
        record_host(last, thread);
        main_.end_host(thread);
    }

    void allocate(memory_range range)
    {
        main_.shadow.forget(range);
        allocations_.add(range);
    }
    void bound(memory_range range) { allocations_.add(range); }
    std::uint64_t allocated_bytes(const void* memory) const
    {
        return allocations_.bytes_at(reinterpret_cast<std::uintptr_t>(memory));
    }
    void allocate_on(const order_stream& on, memory_range range, order_site what, std::uint64_t thread)
    {
        domain_of(on).shadow.forget(range);
        allocations_.add(range);
        operate(on, {}, {&range, 1}, site(what), thread);
    }
    void release(memory_range range, bool stays_unused, order_site what, std::uint64_t thread)
    {
        allocations_.remove(range, stays_unused);
        const std::uint32_t own = host_actor(thread);
        const order_access access = step_host(own, what);
        check(main_, access, main_.actor(own).clock, range, memory_access::write, true);
        if (stays_unused) mark_released(main_, range);
        else main_.shadow.forget(range);
    }
    void release_on(const order_stream& on, memory_range range, order_site what, std::uint64_t thread)
    {
        allocations_.remove(range, true);
        operate(on, {}, {&range, 1}, site(what), thread, true);
        mark_released(domain_of(on), range);
    }

    void capture_begin(std::uint64_t number) { (void)domain_of({.capture = number}); }
    void capture_end(std::uint64_t number)
    {
        capture* const found = find_capture(number);
        if (found != nullptr && found->ended == capture::open) found->ended = now_;
    }
    void capture_forget(std::uint64_t number) { captures_.erase(number); }
    std::uint64_t capture_of(order_key graph)
    {
        const std::uint64_t* const found = graphs_.find(graph);
        return found == nullptr ? 0 : *found;
    }
    /// A capture whose last graph goes is forgotten.
    void set_capture_of(order_key graph, std::uint64_t number)
    {
        const std::uint64_t last = capture_of(graph);
        if (last == number) return;
        if (capture* const now = find_capture(number)) ++now->graphs;
        if (number != 0) graphs_[graph] = number;
        else graphs_.erase(graph);
        capture* const before = find_capture(last);
        if (before != nullptr && --before->graphs == 0) capture_forget(last);
    }
    void launch_graph(std::uint64_t number, const order_stream& on, order_site what, std::uint64_t thread)
    {
        capture_end(number);
        capture* const graph = find_capture(number);
        if (graph == nullptr) return;
        reads_.clear();
        writes_.clear();
        graph->domain.shadow.look({nullptr, UINTPTR_MAX}, [&](memory_range bytes, const order_segment& state) {
            std::vector<memory_range>& list = state.write.epoch != 0 ? writes_ : reads_;
            if (!list.empty() && list.back().end() == bytes.first) list.back().bytes += bytes.bytes;
            else list.push_back(bytes);
        });
        launched_ = graph;
        operate(on, reads_, writes_, site(what), thread);
        launched_ = nullptr;
    }

private:
    struct capture {
        static constexpr std::uint64_t open = UINT64_MAX;
        std::uint64_t begun = 0; ///< epoch
        std::uint64_t ended = open; ///< epoch, or `open`
        std::size_t graphs = 0; ///< how many graphs' handles stand for it
        order_domain domain;
    };
    struct release_of {
        memory_range range;
        std::uint64_t epoch;
    };
    struct version {
        memory_range bytes;
        std::uint64_t epoch;
    };
    struct member {
        order_stream on;
        std::uint32_t site = 0;
        std::vector<memory_range> reads;
        std::vector<memory_range> writes;
        std::vector<version> versions;
        order_access access;
    };
    struct group {
        int depth = 0;
        std::size_t used = 0;
        std::vector<member> members; ///< not cleared, to reuse their memory
    };

    std::uint32_t site(order_site what) { return reports_.site_number(what.operation, what.where); }
    std::uint32_t host_actor(std::uint64_t thread) { return main_.host_actor(thread, {}, now_); }
    order_access step_host(std::uint32_t own, order_site what)
    {
        order_actor& actor = main_.actor(own);
        const order_access access{++now_, own, site(what)};
        actor.clock.advance(own, access.epoch);
        actor.last = access.epoch;
        ++actor.version;
        return access;
    }
    void learn(std::uint64_t thread, const order_clock& news_of)
    {
        order_actor& actor = main_.actor(host_actor(thread));
        actor.clock.join(news_of);
        ++actor.version;
    }

    capture* find_capture(std::uint64_t number) noexcept
    {
        const auto found = captures_.find(number);
        return found == captures_.end() ? nullptr : &found->second;
    }
    order_domain& domain_of(const order_stream& stream)
    {
        if (stream.capture == 0) return main_;
        const auto [found, is_new] = captures_.try_emplace(stream.capture);
        if (is_new) found->second.begun = now_;
        return found->second.domain;
    }

    std::uint32_t enter(order_domain& in, const order_stream& on)
    {
        const std::uint32_t own = in.actor_of(on, {}, now_);
        in.join_default_streams(own);
        return own;
    }
    /// As above, and adds the knowledge of the enqueuing host thread, because a capture runs after all of that.
    std::uint32_t enter(order_domain& in, const order_stream& on, std::uint64_t thread)
    {
        if (&in != &main_) return enter(in, on);
        const std::uint32_t host = host_actor(thread);
        const std::uint32_t own = in.actor_of(on, in.actor(host).clock, now_);
        const order_actor& from = in.actor(host);
        order_actor& actor = in.actor(own);
        if (actor.joined_host != host || actor.joined_version != from.version) {
            actor.clock.join(from.clock);
            actor.joined_host = host;
            actor.joined_version = from.version;
        }
        in.join_default_streams(own);
        return own;
    }

    void operate(const order_stream& on, const memory_ranges& reads, const memory_ranges& writes, std::uint32_t what,
        std::uint64_t thread, bool is_release = false)
    {
        order_domain& in = domain_of(on);
        const std::uint32_t own = enter(in, on, thread);
        order_actor& actor = in.actor(own);
        const order_access access{++now_, own, what};
        actor.clock.advance(own, access.epoch);
        actor.last = access.epoch;
        if (launched_ == nullptr) { // of a graph, each access was checked when it was captured
            check_bounds(in, access, reads, memory_access::read);
            check_bounds(in, access, writes, memory_access::write);
        }
        for (const memory_range range : reads) check(in, access, actor.clock, range, memory_access::read);
        for (const memory_range range : writes)
            check(in, access, actor.clock, range, memory_access::write, is_release);
    }

    /// Runs the members of a group as one operation. All start when all their streams are ready, and later work of each
    /// stream waits for all. Among themselves the members are not ordered.
    void operate_together(group& open, std::size_t used, std::uint64_t of_capture, std::uint64_t thread)
    {
        order_domain& in = domain_of({.capture = of_capture});
        order_clock& all = together_;
        all.clear();
        const auto each_member = [&](auto body) {
            for (std::size_t at = 0; at < used; ++at) {
                if (open.members[at].on.capture == of_capture) body(open.members[at]);
            }
        };
        each_member([&](member& one) {
            one.access = {++now_, enter(in, one.on, thread), one.site};
            all.join(in.actor(one.access.actor).clock);
        });
        each_member([&, this](member& one) {
            check_bounds(in, one.access, one.reads, memory_access::read);
            check_bounds(in, one.access, one.writes, memory_access::write);
            for (const memory_range range : one.reads) check(in, one.access, all, range, memory_access::read);
            for (const memory_range range : one.writes) check(in, one.access, all, range, memory_access::write);
        });
        each_member([&](member& one) { all.advance(one.access.actor, one.access.epoch); });
        each_member([&](member& one) {
            order_actor& actor = in.actor(one.access.actor);
            actor.clock = all;
            actor.last = one.access.epoch;
        });
    }

    static void remember(order_domain& in, memory_range range, std::vector<version>& versions)
    {
        std::uintptr_t known_to = range.first;
        const auto add_unknown = [&](std::uintptr_t end) {
            if (known_to < end) versions.push_back({memory_range::between(known_to, end), 0});
        };
        in.shadow.look(range, [&](memory_range bytes, const order_segment& state) {
            add_unknown(bytes.first);
            versions.push_back({bytes, state.write.epoch});
            known_to = bytes.end();
        });
        add_unknown(range.end());
    }
    void compare_versions(const member& one)
    {
        order_domain& in = domain_of(one.on);
        const std::uint32_t own = enter(in, one.on);
        for (const version& then : one.versions) {
            in.shadow.look(then.bytes, [&, this](memory_range bytes, const order_segment& state) {
                if (state.write.epoch == then.epoch || state.write.epoch == 0) return;
                add(hazard_kind::overwritten_in_group, in, {now_, own, one.site}, memory_access::read, state.write,
                    memory_access::write, bytes);
            });
        }
    }

    void check(order_domain& in, const order_access& own, const order_clock& seen, memory_range range,
        memory_access mode, bool is_release = false)
    {
        in.access(own, seen, range, mode,
            [&, this](hazard_kind kind, const order_access& earlier, memory_access earlier_mode, memory_range bytes) {
                if (kind != hazard_kind::use_after_release) {
                    if (is_release) kind = hazard_kind::released_in_use;
                    else if (was_during_capture(earlier)) kind = hazard_kind::half_captured;
                }
                add(kind, in, earlier, earlier_mode, own, mode, bytes);
            });
    }

    /// Whether a graph is launched now that was captured when the access was enqueued.
    bool was_during_capture(const order_access& access) const noexcept
    {
        return launched_ != nullptr && access.epoch > launched_->begun && access.epoch <= launched_->ended;
    }

    /// Reports an access that begins in an allocation and ends behind it.
    void check_bounds(order_domain& in, const order_access& own, memory_range range, memory_access mode)
    {
        const memory_range allocation = allocations_.holding(range.first);
        if (allocation.bytes == 0 || range.bytes <= allocation.end() - range.first) return;
        // A read and a write of one call site are two reports.
        const std::uint32_t earlier = mode == memory_access::write ? 1 : 0;
        reports_.add(hazard_kind::beyond_allocation, earlier, own.what, own.epoch, {}, [&, this] {
            stream_hazard report;
            report.kind = hazard_kind::beyond_allocation;
            report.earlier.bytes = allocation;
            report.later = side(in, own, mode, range);
            explain(report);
            return report;
        });
    }
    void check_bounds(order_domain& in, const order_access& own, const memory_ranges& list, memory_access mode)
    {
        if (list.whole().bytes != 0) return check_bounds(in, own, list.whole(), mode);
        for (const memory_range range : list) check_bounds(in, own, range, mode);
    }

    void mark_released(order_domain& in, memory_range range)
    {
        if (range.bytes == 0) return;
        in.shadow.visit(range, [](memory_range, order_segment& state) { state.released = true; });
        if (&in != &main_ || most_released_ == 0) return;
        // A range that is allocated and released again and again has one entry. The newest one decides.
        if (const std::size_t* const known = released_at_.find({range.first, range.bytes})) {
            released_[*known].epoch = now_;
            return;
        }
        std::size_t at = released_.size();
        if (at < most_released_) {
            released_.push_back({range, now_});
        } else { // forgets the oldest one
            at = next_released_;
            next_released_ = (next_released_ + 1) % released_.size();
            forget_release(released_[at]);
            released_at_.erase({released_[at].range.first, released_[at].range.bytes});
            released_[at] = {range, now_};
        }
        released_at_[{range.first, range.bytes}] = at;
    }
    /// Forgets a release whose bytes are all still unused.
    void forget_release(const release_of& old)
    {
        bool unused = true;
        main_.shadow.look(old.range, [&](memory_range, const order_segment& state) {
            unused = unused && state.released && state.write.epoch == old.epoch;
        });
        if (unused) main_.shadow.forget(old.range);
    }

    void add(hazard_kind kind, order_domain& in, const order_access& earlier, memory_access earlier_mode,
        const order_access& later, memory_access later_mode, memory_range bytes)
    {
        reports_.add(kind, earlier.what, later.what, later.epoch, bytes, [&, this] {
            stream_hazard report;
            report.kind = kind;
            if (earlier.epoch != 0) report.earlier = side(in, earlier, earlier_mode, bytes);
            report.later = side(in, later, later_mode, bytes);
            explain(report);
            return report;
        });
    }
    stream_hazard::side side(order_domain& in, const order_access& access, memory_access mode, memory_range bytes)
    {
        const order_actor::identity& who = in.actor(access.actor).who(access.epoch);
        const order_site& at = reports_.site(access.what);
        return {at.operation, mode, who.host, who.stream.number, who.name, bytes, at.where};
    }

    std::uint64_t serial_;
    std::size_t most_released_;
    std::uint64_t now_ = 0; ///< the epoch of the last operation
    order_domain main_;
    std::map<std::uint64_t, capture> captures_; ///< by number
    const capture* launched_ = nullptr; ///< the graph that is being launched
    order_table<order_point> events_;
    order_table<order_clock> handoffs_;
    order_allocations allocations_;
    order_table<std::uint64_t> graphs_; ///< numbers of captures, by graph
    order_table<group> groups_; ///< by thread
    std::vector<release_of> released_;
    order_table<std::size_t> released_at_; ///< index in that list, by first byte and number of bytes
    std::size_t next_released_ = 0;
    order_clock together_;
    std::vector<memory_range> reads_;
    std::vector<memory_range> writes_;
    hazard_list reports_;
};

} // namespace collprobe::detail
