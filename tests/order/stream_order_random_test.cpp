// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/detail/math.hpp>
#include <collprobe/order/stream_order.hpp>

#include "order/calling_thread.hpp"

namespace collprobe::testing::stream_order_random_test {

// Random schedules against an explicit graph: every call is a node with edges to what it comes behind, reachability
// is kept as sets of nodes, and every byte has the list of all its accesses and its allocation. No clocks, no intervals.

namespace {

constexpr std::size_t most_nodes = 448;
constexpr int bytes = 24;
using node_set = std::bitset<most_nodes>;

struct random_numbers {
    std::uint64_t state;
    std::uint64_t next() { return detail::mix64(state += 0x9e3779b97f4a7c15u); }
    int below(int limit) { return static_cast<int>(next() % static_cast<std::uint64_t>(limit)); }
    bool chance(int percent) { return below(100) < percent; }
};

struct span {
    int first = 0;
    int count = 0;
};

struct pair_found {
    hazard_kind kind;
    int earlier;
    int later;
};

/// What a capture holds: its own order, and the effect on each byte.
struct capture {
    enum class effect : unsigned char { none, read, write };

    std::uint64_t number = 0;
    int begun = 0; ///< `oracle::now`
    int ended = -1; ///< -1: it is open
    int last_launch = -1; ///< node of the launch as an executable graph
    std::array<int, 2> last{-1, -1}; ///< node, by stream
    order_point event;
    int event_node = -1;
    std::array<std::vector<std::pair<int, bool>>, bytes> history; ///< node, write
    std::array<effect, bytes> effects{};
};

/// The bounds of allocations by brute force: each byte has the number of its outermost allocation.
class byte_owners {
public:
    void allocate(std::size_t first, std::size_t count)
    {
        told_[first] = count;
        if (is_within_one(first, count)) return;
        forget_overlapped(first, count);
        ++last_;
        for (std::size_t i = first; i < first + count; ++i) owner_[i] = last_;
    }
    void release(std::size_t first, std::size_t count, bool stays_unused)
    {
        const bool is_inner = told_.contains(first) && told_[first] == count && is_within_one(first, count)
            && size_of_owner(first) != count;
        told_.erase(first);
        if (is_inner) return;
        if (!stays_unused) return forget_overlapped(first, count);
        // What is left behind the part is another allocation than what is left before it.
        const std::size_t end = first + count;
        const int behind = end < bytes ? owner_[end] : 0;
        const bool splits = behind != 0 && behind == owner_[end - 1];
        ++last_;
        for (std::size_t i = end; splits && i < bytes && owner_[i] == behind; ++i) owner_[i] = last_;
        for (std::size_t i = first; i < end; ++i) owner_[i] = 0;
    }
    /// How many of the bytes are behind the end of the allocation in which they begin.
    std::size_t beyond(std::size_t first, std::size_t count) const
    {
        if (owner_[first] == 0) return 0;
        std::size_t held = 0;
        while (held < count && owner_[first + held] == owner_[first]) ++held;
        return count - held;
    }
    /// The bytes of the last allocation that began there, and was not released since, or of what is left of it.
    std::size_t told_at(std::size_t first) const
    {
        const auto told = told_.find(first);
        const bool begins = owner_[first] != 0 && (first == 0 || owner_[first - 1] != owner_[first]);
        const std::size_t outer = begins ? size_of_owner(first) : 0;
        if (told == told_.end()) return outer;
        return outer != 0 ? std::min(outer, told->second) : told->second;
    }
    std::size_t size_of_owner(std::size_t byte) const
    {
        std::size_t size = 0;
        for (const int each : owner_) size += each == owner_[byte] ? 1 : 0;
        return size;
    }

private:
    bool is_within_one(std::size_t first, std::size_t count) const
    {
        return owner_[first] != 0 && beyond(first, count) == 0;
    }
    void forget_overlapped(std::size_t first, std::size_t count)
    {
        for (std::size_t i = first; i < first + count; ++i) {
            const int ended = owner_[i];
            for (int& each : owner_) {
                if (each == ended) each = 0;
            }
        }
    }

    std::array<int, bytes> owner_{}; ///< 0: none
    int last_ = 0;
    std::map<std::size_t, std::size_t> told_; ///< by first byte, the bytes of the last allocation there
};

/// What happened before what.
class oracle {
public:
    std::vector<pair_found> found;

    /// A node behind `those`; -1 is none.
    int node(const std::vector<int>& those)
    {
        const int made = count_++;
        node_set& known = known_[index(made)];
        known.reset();
        for (const int before : those) {
            if (before < 0) continue;
            known |= known_[index(before)];
            known.set(index(before));
        }
        return made;
    }
    /// Puts a node that was made with no edge behind another.
    void put(int own, int behind)
    {
        known_[index(own)] = known_[index(behind)];
        known_[index(own)].set(index(behind));
    }
    bool room() const { return static_cast<std::size_t>(count_) + 64 < most_nodes; }
    /// How many accesses there have been.
    int now() const { return accesses_made_; }

    /// An access of the program. (An allocation and a release are accesses, too, but have no bounds.)
    void access_within(int own, span where, bool write)
    {
        if (owners_.beyond(index(where.first), index(where.count)) != 0) {
            add({hazard_kind::beyond_allocation, -1, own});
        }
        access(own, where, write);
    }
    void access(int own, span where, bool write, const hazard_kind* always = nullptr, span while_captured = {})
    {
        const int time = ++accesses_made_;
        for (int byte = where.first; byte < where.first + where.count; ++byte) {
            byte_state& state = bytes_[index(byte)];
            if (state.released_by >= 0) add({hazard_kind::use_after_release, state.released_by, own});
            for (const past& each : state.history) {
                if (each.node == own || (!write && !each.write)) continue;
                if (known_[index(own)].test(index(each.node))) continue;
                hazard_kind kind = !write ? hazard_kind::read_after_write
                    : each.write          ? hazard_kind::write_after_write
                                          : hazard_kind::write_after_read;
                const bool half = each.time > while_captured.first
                    && each.time <= while_captured.first + while_captured.count;
                if (half) kind = hazard_kind::half_captured;
                add({always != nullptr ? *always : kind, each.node, own});
            }
            state.history.push_back({own, write, time});
            if (write) state.last_write = own;
        }
    }
    /// An access of a capture, which is judged against the rest of the capture.
    void captured_access(int own, span where, bool write, capture& in)
    {
        if (owners_.beyond(index(where.first), index(where.count)) != 0) {
            add({hazard_kind::beyond_allocation, -1, own});
        }
        for (int byte = where.first; byte < where.first + where.count; ++byte) {
            capture::effect& effect = in.effects[index(byte)];
            if (write || effect == capture::effect::none) effect = write ? capture::effect::write : capture::effect::read;
            for (const auto& [node, wrote] : in.history[index(byte)]) {
                if ((!write && !wrote) || known_[index(own)].test(index(node))) continue;
                add({!write      ? hazard_kind::read_after_write
                        : wrote ? hazard_kind::write_after_write
                                : hazard_kind::write_after_read,
                    node, own});
            }
            in.history[index(byte)].emplace_back(own, write);
        }
    }
    void release(int own, span where, bool watch)
    {
        const hazard_kind kind = hazard_kind::released_in_use;
        access(own, where, true, &kind);
        forget(where);
        owners_.release(index(where.first), index(where.count), watch);
        for (int byte = where.first; watch && byte < where.first + where.count; ++byte) {
            bytes_[index(byte)].released_by = own;
            bytes_[index(byte)].last_write = own;
        }
    }
    void allocate(span where)
    {
        forget(where);
        owners_.allocate(index(where.first), index(where.count));
    }
    void forget(span where)
    {
        for (int byte = where.first; byte < where.first + where.count; ++byte) bytes_[index(byte)] = {};
    }
    std::size_t allocated_bytes(int first) const { return owners_.told_at(index(first)); }
    int last_write(int byte) const { return bytes_[index(byte)].last_write; }
    void add(pair_found pair) { found.push_back(pair); }
    bool has(const stream_hazard& report) const
    {
        for (const pair_found& each : found) {
            const int later = each.later;
            if (each.kind == report.kind && each.earlier == static_cast<int>(report.earlier.where.line) - 1
                && later == static_cast<int>(report.later.where.line) - 1) {
                return true;
            }
        }
        return false;
    }

private:
    struct past {
        int node;
        bool write;
        int time;
    };
    struct byte_state {
        std::vector<past> history;
        int last_write = -1;
        int released_by = -1;
    };
    static std::size_t index(int number) { return static_cast<std::size_t>(number); }

    std::array<node_set, most_nodes> known_;
    std::array<byte_state, bytes> bytes_;
    byte_owners owners_;
    int count_ = 0;
    int accesses_made_ = 0;
};

/// One schedule, told to both.
class schedule {
public:
    explicit schedule(std::uint64_t seed) : random_{seed}
    {
        streams_.resize(static_cast<std::size_t>(2 + random_.below(4)));
        hosts_.resize(static_cast<std::size_t>(1 + random_.below(3)));
        default_streams_ = random_.chance(50);
        for (line& each : streams_) each = new_stream(next_stream_++);
        for (line& each : hosts_) each.number = next_thread_++;
        for (std::size_t which = 0; which < events_.size(); ++which) {
            if (keyed(which)) checker_.event_created(order_object(which));
        }
        order_percent_ = 25 * random_.below(5);
        length_ = 5 + random_.below(40);
    }

    /// Empty if both agree after each step, and where the first hazard was (none: clean to the end).
    std::string run()
    {
        for (int at = 0; at < length_ && graph_.room(); ++at) {
            step();
            for (int byte = 0; byte < bytes; ++byte) {
                if (checker_.allocated_bytes(reinterpret_cast<const void*>(range_of({byte, 1}).first)) != graph_.allocated_bytes(byte))
                    return "step " + std::to_string(at) + ": the allocation at byte " + std::to_string(byte);
            }
            const bool reported = checker_.hazard_count() != 0;
            if (reported != !graph_.found.empty()) {
                return "step " + std::to_string(at) + ": the checker " + (reported ? "reports" : "is silent")
                    + ", the oracle has " + std::to_string(graph_.found.size()) + " pairs"
                    + (reported ? ": " + checker_.hazards().front().message()
                                : std::string(": ") + name(graph_.found.front().kind) + " of "
                            + std::to_string(graph_.found.front().earlier) + " and "
                            + std::to_string(graph_.found.front().later));
            }
            if (!reported) continue;
            // All that this step reported, as long as nothing came between: the first at least.
            found = checker_.hazards().front();
            if (!graph_.has(*found)) return "not a pair of the oracle's: " + found->message();
            return {};
        }
        return {};
    }

    std::optional<stream_hazard> found;

private:
    struct line {
        std::uint64_t number = 0;
        int last = -1; ///< node
        stream_space space{};
        stream_kind kind = stream_kind::independent;
    };
    struct event {
        order_point point;
        int node = -1;
        bool recorded = false;
    };
    struct deferred {
        std::size_t stream;
        span read;
        span write;
        std::vector<int> versions;
        int node = -1;
    };
    struct group {
        bool open = false;
        std::vector<deferred> members;
    };

    static call_site site_of(int node) { return {"schedule", "", static_cast<unsigned>(node) + 1}; }
    static memory_range range_of(span where)
    {
        memory_range range;
        range.first = 0x1000 + static_cast<std::uintptr_t>(where.first);
        range.bytes = static_cast<std::uint64_t>(where.count);
        return range;
    }
    order_stream key(std::size_t stream, std::uint64_t capture = 0) const
    {
        const line& own = streams_[stream];
        return {.number = own.number, .space = own.space, .capture = capture, .kind = own.kind};
    }
    line new_stream(std::uint64_t number)
    {
        line made{.number = number};
        if (!default_streams_) return made;
        made.space = stream_space::of_cuda(random_.below(2));
        made.kind = static_cast<stream_kind>(random_.below(3));
        return made;
    }
    /// What the next operation of a stream, or a host that waits for the stream, comes behind.
    std::vector<int> before(std::size_t stream) const
    {
        const line& own = streams_[stream];
        std::vector<int> nodes{own.last};
        if (own.kind == stream_kind::independent) return nodes;
        const stream_kind peers
            = own.kind == stream_kind::legacy ? stream_kind::blocking : stream_kind::legacy;
        for (const auto* list : {&streams_, &ended_}) {
            for (const line& each : *list) {
                if (each.kind == peers && each.space == own.space) nodes.push_back(each.last);
            }
        }
        return nodes;
    }
    /// The node of an operation that a host enqueues.
    int next(std::size_t stream, std::size_t host, std::vector<int> also = {})
    {
        for (const int node : before(stream)) also.push_back(node);
        also.push_back(hosts_[host].last);
        return graph_.node(also);
    }
    testing::calling_thread as(std::size_t host) { return {checker_, hosts_[host].number}; }
    std::size_t any_stream() { return static_cast<std::size_t>(random_.below(static_cast<int>(streams_.size()))); }
    std::size_t any_host() { return static_cast<std::size_t>(random_.below(static_cast<int>(hosts_.size()))); }
    std::size_t any_event() { return static_cast<std::size_t>(random_.below(static_cast<int>(events_.size()))); }
    span any_span()
    {
        const int first = random_.below(bytes - 1);
        const int room = bytes - first;
        return {first, 1 + random_.below(room < 8 ? room : 8)};
    }

    void step()
    {
        const int kind = random_.below(100);
        if (kind < 36) launch();
        else if (kind < 42) touch_host();
        else if (kind < 52) record(any_event(), any_stream());
        else if (kind < 62) wait(any_stream(), any_event());
        else if (kind < 65) copy_event();
        else if (kind < 69) synchronize_event();
        else if (kind < 71) synchronize_stream(any_host(), any_stream());
        else if (kind < 73) poll();
        else if (kind < 76) hand_over();
        else if (kind < 81) capture_step();
        else if (kind < 82) synchronize_device();
        else if (kind < 88) collective();
        else if (kind < 93) group_step();
        else if (kind < 94) release();
        else if (kind < 97) allocate();
        else if (kind < 99) replace_stream();
        else replace_thread();
    }

    /// Often enough that schedules get long: behind everything else.
    void order(std::size_t stream)
    {
        if (!random_.chance(order_percent_)) return;
        for (std::size_t other = 0; other < streams_.size(); ++other) {
            if (other == stream) continue;
            record(0, other);
            wait(stream, 0);
        }
    }
    void order_host(std::size_t host)
    {
        if (!random_.chance(order_percent_)) return;
        for (std::size_t stream = 0; stream < streams_.size(); ++stream) synchronize_stream(host, stream);
    }

    void launch()
    {
        const std::size_t stream = any_stream();
        const std::size_t host = any_host();
        order(stream);
        const int own = next(stream, host);
        const span read = any_span();
        const span write = any_span();
        const int shape = random_.below(3);
        if (shape == 0) {
            as(host)->launch(key(stream), {range_of(read)}, {}, "read", site_of(own));
            graph_.access_within(own, read, false);
        } else if (shape == 1) {
            as(host)->launch(key(stream), {}, {range_of(write)}, "write", site_of(own));
            graph_.access_within(own, write, true);
        } else {
            as(host)->launch(key(stream), {range_of(read)}, {range_of(write)}, "both", site_of(own));
            graph_.access_within(own, read, false);
            graph_.access_within(own, write, true);
        }
        streams_[stream].last = own;
    }
    void touch_host()
    {
        const std::size_t host = any_host();
        order_host(host);
        const int own = graph_.node({hosts_[host].last});
        const span where = any_span();
        const bool write = random_.chance(50);
        as(host)->touch_host(
            range_of(where), write ? memory_access::write : memory_access::read, "host", site_of(own));
        graph_.access_within(own, where, write);
        hosts_[host].last = own;
    }
    void record(std::size_t which, std::size_t stream)
    {
        event& target = events_[which];
        const std::size_t host = any_host();
        target.node = next(stream, host);
        target.recorded = true;
        streams_[stream].last = target.node;
        if (keyed(which)) as(host)->record(order_object(which), key(stream));
        else as(host)->record(target.point, key(stream));
    }
    void wait(std::size_t stream, std::size_t which)
    {
        const event& awaited = events_[which];
        if (!awaited.recorded && random_.chance(90)) return;
        const std::size_t host = any_host();
        // A wait for nothing is none, also not behind what the host knows.
        const int known = awaited.recorded ? next(stream, host) : graph_.node(before(stream));
        const int own = graph_.node({known, awaited.recorded ? awaited.node : -1});
        if (!awaited.recorded) graph_.add({hazard_kind::unrecorded_event, -1, own});
        if (keyed(which)) as(host)->wait(key(stream), order_object(which), site_of(own));
        else as(host)->wait(key(stream), awaited.point, site_of(own));
        streams_[stream].last = own;
    }
    /// Half of the events are values, half are known by a handle.
    static bool keyed(std::size_t which) { return which % 2 == 1; }
    void copy_event()
    {
        const std::size_t from = 2 * static_cast<std::size_t>(random_.below(2));
        const std::size_t to = 2 - from;
        events_[to] = events_[from];
    }
    void synchronize_event()
    {
        const std::size_t which = any_event();
        if (!events_[which].recorded) return;
        const std::size_t host = any_host();
        if (keyed(which)) as(host)->reached(order_object(which));
        else as(host)->reached(events_[which].point);
        hosts_[host].last = graph_.node({hosts_[host].last, events_[which].node});
    }
    void synchronize_stream(std::size_t host, std::size_t stream)
    {
        as(host)->synchronize(key(stream));
        learn(host, before(stream));
    }
    void synchronize_device()
    {
        const std::size_t host = any_host();
        const stream_space space = streams_[any_stream()].space;
        std::vector<int> nodes;
        for (const auto* list : {&streams_, &ended_}) {
            for (const line& each : *list) {
                if (each.space == space) nodes.push_back(each.last);
            }
        }
        order_point now;
        as(host)->record_space(now, space);
        as(host)->reached(now);
        learn(host, nodes);
    }
    /// A host begins a query, or hears of its success.
    void poll()
    {
        const std::size_t host = any_host();
        if (!asked_.recorded() || random_.chance(50)) {
            const std::size_t stream = any_stream();
            as(host)->look(asked_, key(stream));
            asked_before_ = before(stream);
        } else {
            as(host)->reached(asked_);
            learn(host, asked_before_);
        }
    }
    void learn(std::size_t host, std::vector<int> nodes)
    {
        nodes.push_back(hosts_[host].last);
        hosts_[host].last = graph_.node(nodes);
    }

    void capture_step()
    {
        if (!capture_) {
            if (random_.chance(50)) return;
            capture_.emplace();
            capture_->number = ++captures_;
            capture_->begun = graph_.now();
            checker_.capture_begin(capture_->number);
            return captured_launch();
        }
        if (capture_->ended < 0) {
            const int kind = random_.below(10);
            if (kind < 5) return captured_launch();
            if (kind < 7) return captured_edge();
            checker_.capture_end(capture_->number);
            capture_->ended = graph_.now();
            if (kind < 8) return;
        }
        launch_graph();
        if (random_.chance(70)) return;
        checker_.capture_forget(capture_->number);
        capture_.reset();
    }
    /// On the first two streams, which may end meanwhile: their numbers are those of the capture.
    static order_stream captured_key(const capture& in, std::size_t stream)
    {
        return {.number = 500 + stream, .capture = in.number};
    }
    void captured_launch()
    {
        capture& in = *capture_;
        const std::size_t stream = static_cast<std::size_t>(random_.below(2));
        const int own = graph_.node({in.last[stream]});
        const span where = any_span();
        const bool write = random_.chance(50);
        const auto host = any_host();
        if (write) as(host)->launch(captured_key(in, stream), {}, {range_of(where)}, "captured", site_of(own));
        else as(host)->launch(captured_key(in, stream), {range_of(where)}, {}, "captured", site_of(own));
        graph_.captured_access(own, where, write, in);
        in.last[stream] = own;
    }
    void captured_edge()
    {
        capture& in = *capture_;
        const std::size_t from = static_cast<std::size_t>(random_.below(2));
        const auto host = any_host();
        as(host)->record(in.event, captured_key(in, from));
        in.event_node = in.last[from];
        as(host)->wait(captured_key(in, 1 - from), in.event);
        in.last[1 - from] = graph_.node({in.last[1 - from], in.event_node});
    }
    void launch_graph()
    {
        capture& in = *capture_;
        const std::size_t stream = any_stream();
        const std::size_t host = any_host();
        order(stream);
        const bool as_executable = random_.chance(50);
        const int own = next(stream, host, {as_executable ? in.last_launch : -1});
        if (as_executable) {
            checker_.set_capture_of(order_object(900 + in.number), in.number);
            as(host)->launch_graph(order_object(900 + in.number), key(stream), site_of(own));
            in.last_launch = own;
        } else {
            as(host)->launch_graph(in.number, key(stream), site_of(own));
        }
        const span open{in.begun, in.ended - in.begun};
        for (const auto what : {capture::effect::read, capture::effect::write}) {
            for (int byte = 0; byte < bytes; ++byte) {
                if (in.effects[static_cast<std::size_t>(byte)] != what) continue;
                graph_.access(own, {byte, 1}, what == capture::effect::write, nullptr, open);
            }
        }
        streams_[stream].last = own;
    }
    void hand_over()
    {
        const std::size_t host = any_host();
        if (random_.chance(50)) {
            as(host)->handoff_release(&tag_);
            tag_node_ = graph_.node({tag_node_, hosts_[host].last});
        } else {
            as(host)->handoff_acquire(&tag_);
            hosts_[host].last = graph_.node({hosts_[host].last, tag_node_});
        }
    }
    deferred any_call()
    {
        deferred call;
        call.stream = any_stream();
        call.read = any_span();
        call.write = any_span();
        return call;
    }
    void collective()
    {
        const std::size_t host = any_host();
        if (groups_[host].open && random_.chance(70)) return add_to_group(host);
        const deferred call = any_call();
        order(call.stream);
        const int own = next(call.stream, host);
        as(host)->collective(key(call.stream), {range_of(call.read)}, {range_of(call.write)}, "collective", false,
            site_of(own));
        graph_.access_within(own, call.read, false);
        graph_.access_within(own, call.write, true);
        streams_[call.stream].last = own;
    }
    void group_step()
    {
        const std::size_t host = any_host();
        group& own = groups_[host];
        if (!own.open) {
            own.open = true;
            as(host)->group_begin();
            add_to_group(host);
        } else if (own.members.size() < 3 && random_.chance(50)) {
            add_to_group(host);
        } else {
            end_group(host);
        }
    }
    void add_to_group(std::size_t host)
    {
        deferred call = any_call();
        order(call.stream);
        // The node is made at the end of the group, but its number is given out here, for the call site.
        call.node = graph_.node({});
        as(host)->collective(key(call.stream), {range_of(call.read)}, {range_of(call.write)}, "grouped", true,
            site_of(call.node));
        for (int byte = call.read.first; byte < call.read.first + call.read.count; ++byte) {
            call.versions.push_back(graph_.last_write(byte));
        }
        groups_[host].members.push_back(call);
    }
    void end_group(std::size_t host)
    {
        group& own = groups_[host];
        if (random_.chance(10)) { // NCCL has enqueued nothing
            as(host)->group_end(false);
            own = {};
            return;
        }
        for (const deferred& call : own.members) {
            for (int at = 0; at < call.read.count; ++at) {
                const int now = graph_.last_write(call.read.first + at);
                if (now >= 0 && now != call.versions[static_cast<std::size_t>(at)]) {
                    graph_.add({hazard_kind::overwritten_in_group, call.node, now});
                }
            }
        }
        std::vector<int> earlier{hosts_[host].last};
        for (const deferred& call : own.members) {
            for (const int node : before(call.stream)) earlier.push_back(node);
        }
        const int begin = graph_.node(earlier);
        std::vector<int> members;
        for (const deferred& call : own.members) {
            graph_.put(call.node, begin);
            members.push_back(call.node);
        }
        for (const deferred& call : own.members) {
            graph_.access_within(call.node, call.read, false);
            graph_.access_within(call.node, call.write, true);
        }
        const int end = graph_.node(members);
        for (const deferred& call : own.members) streams_[call.stream].last = end;
        as(host)->group_end(true);
        own = {};
    }
    void release()
    {
        const std::size_t host = any_host();
        const bool as_allocated = !allocated_.empty() && random_.chance(50);
        const span where = as_allocated ? allocated_[random_.next() % allocated_.size()] : any_span();
        if (random_.chance(25)) {
            const std::size_t stream = any_stream();
            order(stream);
            const int own = next(stream, host);
            as(host)->release(range_of(where), key(stream), site_of(own));
            graph_.release(own, where, true);
            streams_[stream].last = own;
            return;
        }
        order_host(host);
        const int own = graph_.node({hosts_[host].last});
        const bool watch = random_.chance(25);
        as(host)->release(range_of(where), watch, site_of(own));
        graph_.release(own, where, watch);
        hosts_[host].last = own;
    }
    void allocate()
    {
        const span where = any_span();
        allocated_.push_back(where);
        if (random_.chance(50)) {
            checker_.allocate(range_of(where));
            graph_.allocate(where);
            return;
        }
        const std::size_t host = any_host();
        const std::size_t stream = any_stream();
        const int own = next(stream, host);
        as(host)->allocate(range_of(where), key(stream), site_of(own));
        graph_.allocate(where);
        graph_.access(own, where, true);
        streams_[stream].last = own;
    }
    /// Nobody in a group may use it.
    void replace_stream()
    {
        const std::size_t stream = any_stream();
        for (const group& each : groups_) {
            if (each.open) return;
        }
        if (streams_[stream].kind == stream_kind::legacy) return;
        if (random_.chance(50)) synchronize_stream(any_host(), stream);
        checker_.stream_ended(key(stream));
        ended_.push_back(streams_[stream]);
        // The same number as often as not: handles are used again.
        streams_[stream] = new_stream(random_.chance(50) ? streams_[stream].number : next_stream_++);
    }
    void replace_thread()
    {
        const std::size_t host = any_host();
        if (hosts_.size() < 2 || groups_[host].open) return;
        const std::size_t parent = (host + 1) % hosts_.size();
        order_point last;
        as(host)->thread_ended(last);
        if (random_.chance(70)) {
            as(parent)->reached(last);
            hosts_[parent].last = graph_.node({hosts_[parent].last, hosts_[host].last});
        }
        order_point begin;
        as(parent)->record_thread(begin);
        hosts_[host] = {.number = next_thread_++, .last = hosts_[parent].last};
        as(host)->thread_began(begin);
    }

    random_numbers random_;
    stream_order checker_;
    oracle graph_;
    std::vector<line> streams_;
    std::vector<line> ended_; ///< streams
    std::vector<line> hosts_;
    std::optional<capture> capture_;
    std::uint64_t captures_ = 0;
    order_point asked_; ///< by a query of a stream
    std::vector<int> asked_before_;
    std::array<event, 3> events_;
    std::array<group, 3> groups_;
    std::vector<span> allocated_;
    std::uint64_t next_stream_ = 1;
    std::uint64_t next_thread_ = 1001;
    int tag_ = 0;
    int tag_node_ = -1;
    int order_percent_ = 0;
    int length_ = 0;
    bool default_streams_ = false;
};

#if defined(COLLPROBE_TEST_BRIEF) || defined(COLLPROBE_TEST_SANITIZED)
constexpr std::uint64_t schedules = 20'000;
#else
constexpr std::uint64_t schedules = 150'000;
#endif

} // namespace

TEST_CASE("random schedules are judged as by an explicit graph of what comes before what")
{
    std::uint64_t clean = 0;
    std::array<std::uint64_t, 16> of_kind{};
    for (std::uint64_t seed = 0; seed < schedules; ++seed) {
        schedule one(seed);
        const std::string disagreement = one.run();
        CAPTURE(seed);
        REQUIRE(disagreement == "");
        if (one.found) ++of_kind[static_cast<std::size_t>(one.found->kind)];
        else ++clean;
    }
    // That it means something: many of each.
    CHECK(clean > schedules / 50);
    for (const hazard_kind kind : {hazard_kind::read_after_write, hazard_kind::write_after_read,
             hazard_kind::write_after_write, hazard_kind::unrecorded_event, hazard_kind::use_after_release,
             hazard_kind::released_in_use, hazard_kind::overwritten_in_group,
             hazard_kind::beyond_allocation, hazard_kind::half_captured}) {
        CAPTURE(std::string(name(kind)));
        CHECK(of_kind[static_cast<std::size_t>(kind)] > schedules / 2000);
    }
}

} // namespace collprobe::testing::stream_order_random_test
