// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>

#include "support/element_types.hpp"

/// What every communicator must do, written once. A provider has `communicator`, `size()` and
/// `run(fn)`, which calls `fn(communicator&)` once per rank, with a deadline, and rethrows what a rank
/// throws; ranks may be threads, processes or wrapped communicators. A rank can compute every rank's
/// input by itself, so the suite needs nothing but the communicator under test. A check that fails
/// throws `conformance_failure` in the rank.
namespace collprobe::conformance {

struct conformance_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool condition, const std::string& what)
{
    if (!condition) throw conformance_failure(what);
}

enum class data {
    random, ///< integers: all bits; floating point: in [-1, 1)
    near_one, ///< for products: 1 +- 1/(2n)
    exact, ///< small integers: every partial sum is representable
    exact_product, ///< powers of two whose partial products are representable
};

inline std::uint64_t bits_at(std::uint64_t seed, int rank, std::uint64_t index)
{
    return detail::mix64(detail::mix64(seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank)) + index);
}

inline constexpr double largest_input = 2; ///< of what is added

/// Element `index` of the input of `rank`: computable by every rank.
template <element T>
T input(data kind, std::uint64_t seed, int rank, std::uint64_t index, int ranks)
{
    const std::uint64_t bits = bits_at(seed, rank, index);
    if constexpr (!floating_element<T>) {
        return static_cast<T>(bits);
    } else {
        const double unit = static_cast<double>(bits >> 11) * 0x1p-53; // [0, 1)
        switch (kind) {
        case data::random: return T(2 * unit - 1);
        case data::near_one: return T(1 + (unit - 0.5) / ranks);
        case data::exact: {
            // bfloat16 holds integers up to 256, e5m2 up to 8: there two ranks bring what is not zero.
            const std::uint64_t place = (index + static_cast<std::uint64_t>(rank)) % static_cast<std::uint64_t>(ranks);
            if (element_traits<T>::digits < 8 && place > 1) return T(0.0);
            const std::uint64_t most = ranks <= 128 ? 2 : 1;
            return T(static_cast<double>(static_cast<std::int64_t>(bits % (2 * most + 1)))
                - static_cast<double>(most));
        }
        case data::exact_product: {
            const auto n = static_cast<std::uint64_t>(ranks);
            const auto r = static_cast<std::uint64_t>(rank);
            const double magnitude = r == index % n ? 2.0 : r == (index + 1) % n ? 0.5 : 1.0;
            return T((bits & 1) != 0 ? magnitude : -magnitude);
        }
        }
        return T(0.0);
    }
}

/// Whether `result` is the reduction of the `ranks` values `value(rank)`. Integers, minima and maxima
/// exactly; `exact` demands it of sums and products too. Otherwise a floating-point result may be off
/// by what n roundings to the element type can do, in whatever order.
template <element T, class Value>
bool is_reduction(T result, reduction operation, int ranks, bool exact, Value value)
{
    if constexpr (!floating_element<T>) {
        using wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        std::uint64_t sum = 0;
        std::uint64_t product = 1;
        T least = value(0);
        T most = value(0);
        for (int rank = 0; rank < ranks; ++rank) {
            const T x = value(rank);
            sum += static_cast<std::uint64_t>(x);
            product *= static_cast<std::uint64_t>(x);
            if (x < least) least = x;
            if (x > most) most = x;
        }
        switch (operation) {
        case reduction::sum: return result == static_cast<T>(sum);
        case reduction::average:
            return result == static_cast<T>(static_cast<wide>(static_cast<T>(sum)) / static_cast<wide>(ranks));
        case reduction::min: return result == least;
        case reduction::max: return result == most;
        case reduction::product: return result == static_cast<T>(product);
        }
        return false;
    } else {
        if (!is_finite(result)) return false;
        long double sum = 0;
        long double absolute = 0;
        long double product = 1;
        long double least = static_cast<double>(value(0));
        long double most = least;
        for (int rank = 0; rank < ranks; ++rank) {
            const long double x = static_cast<double>(value(rank));
            sum += x;
            absolute += x < 0 ? -x : x;
            product *= x;
            if (x < least) least = x;
            if (x > most) most = x;
        }
        const long double n = ranks;
        const long double unit_roundoff = detail::power_of_two(-element_traits<T>::digits);
        // Each value meets at most n - 1 additions and, in an average, two more roundings.
        const long double errors = (n + 2) * unit_roundoff;
        const long double gamma = errors < 0.5L ? errors / (1 - errors) : n;
        const long double found = static_cast<double>(result);
        const auto within = [found](long double wanted, long double bound) {
            const long double off = found < wanted ? wanted - found : found - wanted;
            return off <= bound;
        };
        // Half a unit of the subnormal numbers for each product of an average.
        constexpr int least_exponent = element_traits<T>::min_exponent - element_traits<T>::digits + 1;
        const long double tiny
            = least_exponent < -1022 ? 0.0L : static_cast<long double>(detail::power_of_two(least_exponent));
        switch (operation) {
        case reduction::sum: return within(sum, exact ? 0 : gamma * absolute);
        case reduction::average: {
            const bool power_of_two = (ranks & (ranks - 1)) == 0;
            return within(sum / n, exact && power_of_two ? 0 : gamma * absolute / n + n * tiny);
        }
        case reduction::min: return within(least, 0);
        case reduction::max: return within(most, 0);
        case reduction::product: return within(product, exact ? 0 : gamma * (product < 0 ? -product : product));
        }
        return false;
    }
}

/// The streams of a rank. Every collective goes to another one, and not to the same on all ranks.
template <class Device>
class stream_set {
public:
    typename Device::stream_ref main() const { return streams_[0]; }
    /// A stream that runs after what is on the main one, for the `number`-th piece of work.
    typename Device::stream_ref fork(int rank, std::size_t number)
    {
        const std::size_t at = (number + static_cast<std::size_t>(rank)) % streams_.size();
        if (at != 0) {
            events_[0].record(streams_[0]);
            streams_[at].wait(events_[0]);
        }
        return streams_[at];
    }
    /// Lets the main stream wait for all others.
    void join()
    {
        for (std::size_t at = 1; at < streams_.size(); ++at) {
            events_[at].record(streams_[at]);
            streams_[0].wait(events_[at]);
        }
    }
    void synchronize()
    {
        join();
        streams_[0].synchronize();
    }
    /// For unwinding: nothing that is queued may use memory that is about to go.
    void drain() noexcept
    {
        for (auto& stream : streams_) {
            try {
                stream.synchronize();
            } catch (...) { // the error that unwinds is the one to show
            }
        }
    }

private:
    std::array<typename Device::stream, 3> streams_;
    std::array<typename Device::event, 3> events_;
};

/// Memory of a rank on its device, cut into regions with canaries around each. Every byte that is not
/// announced as the result of a collective must stay what it was, send buffers included.
template <class Device, element T>
class arena {
public:
    explicit arena(stream_set<Device>& streams) : streams_(streams), image_(guard, canary(0)) {}
    ~arena() { streams_.drain(); }
    arena(const arena&) = delete;

    /// A region of `count` elements; `initial(i)` fills it. Returns its number.
    template <class Initial>
    std::size_t add(std::uint64_t count, Initial initial)
    {
        regions_.push_back({image_.size(), count});
        for (std::uint64_t i = 0; i < count; ++i) image_.push_back(initial(i));
        for (std::size_t i = 0; i < guard; ++i) image_.push_back(canary(image_.size()));
        return regions_.size() - 1;
    }
    std::size_t add(std::uint64_t count)
    {
        return add(count, [](std::uint64_t i) { return canary(i + 77); });
    }

    /// Puts all regions on the device, in the main stream.
    void upload()
    {
        staging_ = typename Device::template host_buffer<T>(image_.size());
        memory_ = typename Device::template buffer<T>(image_.size());
        std::memcpy(staging_.data(), image_.data(), image_.size() * sizeof(T));
        Device::template copy<T>(streams_.main(), view<const T>(staging_.data(), image_.size()),
            view<T>(memory_.data(), image_.size()));
    }
    view<T> at(std::size_t region) const
    {
        return view<T>(memory_.data() + regions_[region].first, regions_[region].count);
    }
    view<const T> in(std::size_t region) const { return at(region); }
    /// Where a collective may write.
    view<T> out(std::size_t region, std::uint64_t first, std::uint64_t count)
    {
        results_.push_back({regions_[region].first + first, count});
        return view<T>(memory_.data() + regions_[region].first + first, count);
    }
    view<T> out(std::size_t region) { return out(region, 0, regions_[region].count); }

    /// Brings everything back and checks what must not have changed. Waits.
    void download(const std::string& what)
    {
        streams_.join();
        Device::template copy<T>(streams_.main(), view<const T>(memory_.data(), image_.size()),
            view<T>(staging_.data(), image_.size()));
        streams_.synchronize();
        std::vector<bool> written(image_.size(), false);
        for (const extent& result : results_) {
            for (std::uint64_t i = 0; i < result.count; ++i) written[result.first + i] = true;
        }
        for (std::size_t i = 0; i < image_.size(); ++i) {
            if (!written[i] && to_bits(staging_[i]) != to_bits(image_[i])) {
                require(false, what + ": element " + std::to_string(i) + " of the memory was overwritten");
            }
        }
    }
    const T* result(std::size_t region) const { return staging_.data() + regions_[region].first; }

private:
    // Odd, so that regions start at addresses that are aligned to an element and no more.
    static constexpr std::size_t guard = 5;
    static T canary(std::uint64_t i)
    {
        return detail::bit_cast<T>(
            static_cast<typename element_traits<T>::bits_type>(0x5aa55aa55aa55aa5u + 3 * i));
    }
    struct extent {
        std::size_t first;
        std::uint64_t count;
    };

    stream_set<Device>& streams_;
    std::vector<T> image_;
    std::vector<extent> regions_;
    std::vector<extent> results_;
    typename Device::template host_buffer<T> staging_;
    typename Device::template buffer<T> memory_;
};

/// Throws unless `mine` is the same on all ranks: bit-for-bit agreement of what was hashed into it.
template <class Comm>
void require_agreement(Comm& comm, stream_set<typename Comm::device>& streams, std::uint64_t mine,
    const std::string& what)
{
    arena<typename Comm::device, std::uint64_t> memory(streams);
    const std::size_t own = memory.add(1, [&](std::uint64_t) { return mine; });
    const std::size_t all = memory.add(static_cast<std::uint64_t>(comm.size()));
    memory.upload();
    comm.all_gather(memory.in(own), memory.out(all), streams.main());
    memory.download(what);
    for (int rank = 0; rank < comm.size(); ++rank) {
        require(memory.result(all)[rank] == mine, what + ": rank " + std::to_string(rank) + " and rank "
                + std::to_string(comm.rank()) + " have different bits");
    }
}

template <element T>
std::uint64_t hash(std::uint64_t so_far, const T* values, std::uint64_t count)
{
    for (std::uint64_t i = 0; i < count; ++i) so_far = detail::mix64(so_far + to_bits(values[i]));
    return so_far;
}

/// The counts that a collective is tried with: none, one, odd, no multiple of n, a multiple, larger.
inline std::vector<std::uint64_t> counts(int ranks, std::uint64_t larger)
{
    const auto n = static_cast<std::uint64_t>(ranks);
    return {0, 1, 2 * n + 1, 16 * n, larger};
}

struct reduction_case {
    reduction operation;
    data kind;
    bool exact;
};
inline constexpr std::array<reduction_case, 7> reduction_cases{{
    {reduction::sum, data::random, false},
    {reduction::sum, data::exact, true},
    {reduction::average, data::random, false},
    {reduction::average, data::exact, true},
    {reduction::min, data::random, true},
    {reduction::max, data::random, true},
    {reduction::product, data::exact_product, true},
}};
inline constexpr reduction_case near_one_product{reduction::product, data::near_one, false};

/// all_reduce, or `scatters`, reduce_scatter: all operations, counts, in and out of place, on changing streams. Of an
/// all-reduce each rank compares its share of the elements with the oracle; that all ranks agree bit for bit covers the
/// rest.
template <element T, class Comm>
void check_reductions(Comm& comm, stream_set<typename Comm::device>& streams, std::uint64_t larger, bool scatters)
{
    const int n = comm.size();
    const auto parts = static_cast<std::uint64_t>(n);
    const auto own = static_cast<std::uint64_t>(comm.rank());
    const char* const call = scatters ? "reduce_scatter" : "all_reduce";
    const std::vector<std::uint64_t> of_parts{0, 1, 7, larger / parts + 1};
    std::uint64_t seed = scatters ? 20'000 : 100;
    std::uint64_t agreed = 0;
    for (const std::uint64_t count : scatters ? of_parts : counts(n, larger)) {
        arena<typename Comm::device, T> memory(streams);
        struct entry {
            reduction_case what;
            bool in_place;
            std::uint64_t seed;
            std::size_t send;
            std::size_t receive;
            std::uint64_t first; ///< of the result in `receive`
        };
        std::vector<entry> entries;
        const auto plan = [&](const reduction_case& what) {
            for (const bool in_place : {false, true}) {
                const std::uint64_t own_seed = ++seed;
                const std::size_t send = memory.add(scatters ? count * parts : count,
                    [&](std::uint64_t i) { return input<T>(what.kind, own_seed, comm.rank(), i, n); });
                entries.push_back({what, in_place, own_seed, send, in_place ? send : memory.add(count),
                    in_place && scatters ? own * count : 0});
            }
        };
        for (const reduction_case& what : reduction_cases) plan(what);
        if constexpr (floating_element<T>) plan(near_one_product);
        memory.upload();
        for (std::size_t at = 0; at < entries.size(); ++at) {
            const entry& each = entries[at];
            const view<T> receive = memory.out(each.receive, each.first, count);
            const auto on = streams.fork(comm.rank(), at);
            if (scatters) comm.reduce_scatter(memory.in(each.send), receive, each.what.operation, on);
            else comm.all_reduce(memory.in(each.send), receive, each.what.operation, on);
        }
        memory.download(call);
        const std::uint64_t share = scatters || n < 4 ? 1 : parts;
        for (const entry& each : entries) {
            const T* const result = memory.result(each.receive) + each.first;
            if (!scatters) agreed = hash(agreed, result, count);
            for (std::uint64_t i = own % share; i < count; i += share) {
                const std::uint64_t sent = scatters ? own * count + i : i;
                const bool right = is_reduction(result[i], each.what.operation, n, each.what.exact,
                    [&](int rank) { return input<T>(each.what.kind, each.seed, rank, sent, n); });
                if (!right) {
                    require(false, std::string(call) + " " + name(each.what.operation) + " of " + element_traits<T>::name
                            + ", count " + std::to_string(count) + (each.in_place ? ", in place" : ", out of place")
                            + ": wrong element " + std::to_string(i));
                }
            }
        }
    }
    if (!scatters) require_agreement(comm, streams, agreed, std::string("all_reduce of ") + element_traits<T>::name);
}

/// all_gather, all_to_all, broadcast: every bit of what arrives.
template <element T, class Comm>
void check_movement(Comm& comm, stream_set<typename Comm::device>& streams, std::uint64_t larger)
{
    const int n = comm.size();
    const auto parts = static_cast<std::uint64_t>(n);
    const auto own = static_cast<std::uint64_t>(comm.rank());
    const std::string type = element_traits<T>::name;
    // All bit patterns, NaN payloads included: moving data must not touch them.
    const auto raw = [](std::uint64_t seed, int rank, std::uint64_t i) {
        return detail::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(bits_at(seed, rank, i)));
    };
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5}, larger / parts + 1}) {
        arena<typename Comm::device, T> memory(streams);
        const auto mine = [&](std::uint64_t seed) {
            return [&, seed](std::uint64_t i) { return raw(seed, comm.rank(), i); };
        };
        const std::size_t gather_send = memory.add(count, mine(1));
        const std::size_t gather_out = memory.add(count * parts);
        const std::size_t gather_in_place = memory.add(count * parts, [&](std::uint64_t i) {
            return count != 0 && i / count == own ? raw(2, comm.rank(), i % count) : T{};
        });
        const std::size_t exchange_send = memory.add(count * parts, mine(3));
        const std::size_t exchange_out = memory.add(count * parts);
        const int root = static_cast<int>(count % parts);
        const int last = n - 1;
        const std::size_t broadcast_send = memory.add(count, mine(4));
        const std::size_t broadcast_out = memory.add(count);
        const std::size_t broadcast_in_place = memory.add(count, mine(5));
        const std::size_t broadcast_alone = memory.add(count);
        memory.upload();

        comm.all_gather(memory.in(gather_send), memory.out(gather_out), streams.fork(comm.rank(), 0));
        comm.all_gather(memory.in(gather_in_place).part(own * count, count), memory.out(gather_in_place),
            streams.fork(comm.rank(), 1));
        comm.all_to_all(memory.in(exchange_send), memory.out(exchange_out), streams.fork(comm.rank(), 2));
        comm.broadcast(memory.in(broadcast_send), memory.out(broadcast_out), root, streams.fork(comm.rank(), 3));
        comm.broadcast(memory.in(broadcast_in_place), memory.out(broadcast_in_place), last,
            streams.fork(comm.rank(), 4));
        // Who is not the root need not have anything to send.
        comm.broadcast(comm.rank() == root ? memory.in(broadcast_send) : view<const T>(),
            memory.out(broadcast_alone), root, streams.fork(comm.rank(), 5));
        memory.download("data movement of " + type);

        const auto same = [&](const char* call, std::size_t region, std::uint64_t i, T wanted) {
            if (to_bits(memory.result(region)[i]) == to_bits(wanted)) return;
            require(false, std::string(call) + " of " + type + ", count " + std::to_string(count)
                    + ": wrong element " + std::to_string(i));
        };
        for (int from = 0; from < n; ++from) {
            const std::uint64_t first = static_cast<std::uint64_t>(from) * count;
            for (std::uint64_t i = 0; i < count; ++i) {
                same("all_gather", gather_out, first + i, raw(1, from, i));
                same("all_gather in place", gather_in_place, first + i, raw(2, from, i));
                same("all_to_all", exchange_out, first + i, raw(3, from, own * count + i));
            }
        }
        for (std::uint64_t i = 0; i < count; ++i) {
            same("broadcast", broadcast_out, i, raw(4, root, i));
            same("broadcast in place", broadcast_in_place, i, raw(5, last, i));
            same("broadcast without send buffers", broadcast_alone, i, raw(4, root, i));
        }
    }
}

inline constexpr auto enqueue_task = [](const auto& on, auto task) { on.enqueue(task); };

/// Work behind a barrier sees the work that every rank had before it: each notes the round in `notes`, which all see.
template <class Comm, class Note, class Enqueue = decltype(enqueue_task)>
void check_barrier_of(Comm& comm, Note* notes, int rounds, Enqueue enqueue = enqueue_task)
{
    stream_set<typename Comm::device> streams;
    bool behind = true;
    for (int round = 0; round < rounds; ++round) {
        auto stream = streams.fork(comm.rank(), static_cast<std::size_t>(round));
        enqueue(stream, [own = notes + comm.rank(), round] { *own = round; });
        comm.barrier(stream);
        enqueue(stream, [notes, &behind, round, n = comm.size()] {
            for (int rank = 0; rank < n; ++rank) behind = behind && notes[rank] == round;
        });
        comm.barrier(stream);
        streams.join();
    }
    streams.synchronize();
    require(behind, "work behind a barrier ran before the work in front of it");
}

/// The same of ranks that share memory; `enqueue` gives their streams callables.
template <class Provider, class Enqueue = decltype(enqueue_task)>
void check_barrier(const Provider& provider, int rounds = 20, Enqueue enqueue = enqueue_task)
{
    std::vector<int> notes(static_cast<std::size_t>(provider.size()), -1);
    provider.run([&](auto& comm) { check_barrier_of(comm, notes.data(), rounds, enqueue); });
}

/// split: who is in which part and in which order; parts work, alone and together with the parent.
template <class Comm>
void check_split(Comm& comm, stream_set<typename Comm::device>& streams)
{
    const int n = comm.size();
    // The last rank of every five joins no part; the others go to three colors, in reverse order.
    const auto color_of = [](int rank) { return rank % 5 == 4 ? no_color : rank % 3; };
    auto part = comm.split(color_of(comm.rank()), -comm.rank());
    require(part.has_value() == (color_of(comm.rank()) != no_color), "split: no_color must give no part");
    std::vector<std::int64_t> members;
    for (int rank = n - 1; rank >= 0; --rank) {
        if (color_of(rank) == color_of(comm.rank())) members.push_back(rank);
    }
    if (part) {
        require(part->size() == static_cast<int>(members.size()), "split: wrong size");
        require(members[static_cast<std::size_t>(part->rank())] == comm.rank(), "split: not ordered by key");
        arena<typename Comm::device, std::int64_t> memory(streams);
        const std::size_t own = memory.add(1, [&](std::uint64_t) { return std::int64_t{comm.rank()}; });
        const std::size_t all = memory.add(members.size());
        memory.upload();
        part->all_gather(memory.in(own), memory.out(all), streams.main());
        memory.download("split");
        for (std::size_t i = 0; i < members.size(); ++i) {
            require(memory.result(all)[i] == members[i], "split: the wrong ranks are in a part");
        }
    }
    // Equal keys keep the old order; parts can be split; the parent still works.
    auto copy = comm.split(0, 7);
    require(copy && copy->size() == n && copy->rank() == comm.rank(), "split: equal keys must keep the order");
    auto alone = copy->split(comm.rank(), 0);
    require(alone && alone->size() == 1 && alone->rank() == 0, "split: a part of one rank");
    arena<typename Comm::device, std::int64_t> memory(streams);
    const std::size_t one = memory.add(1, [](std::uint64_t) { return std::int64_t{1}; });
    const std::size_t two = memory.add(1, [](std::uint64_t) { return std::int64_t{1}; });
    const std::size_t three = memory.add(1, [](std::uint64_t) { return std::int64_t{1}; });
    memory.upload();
    alone->all_reduce(memory.in(one), memory.out(one), reduction::sum, streams.main());
    comm.all_reduce(memory.in(two), memory.out(two), reduction::sum, streams.main());
    copy->all_reduce(memory.in(three), memory.out(three), reduction::sum, streams.main());
    memory.download("split");
    require(memory.result(one)[0] == 1 && memory.result(two)[0] == n && memory.result(three)[0] == n,
        "split: parent and parts must work side by side");
    require(!comm.split(no_color, 0), "split: all ranks may have no color");
}

/// A long random sequence of collectives, each reading what the one before wrote, on streams that
/// differ between ranks and calls; against a model that every rank computes by itself.
template <class Comm>
void check_sequence(Comm& comm, stream_set<typename Comm::device>& streams, int steps)
{
    using word = std::uint32_t;
    const int n = comm.size();
    const auto parts = static_cast<std::size_t>(n);
    const std::size_t part = 2;
    const std::size_t count = part * parts;
    std::vector<std::vector<word>> model(parts);
    for (std::size_t rank = 0; rank < parts; ++rank) {
        for (std::size_t i = 0; i < count; ++i) {
            model[rank].push_back(input<word>(data::random, 9, static_cast<int>(rank), i, n));
        }
    }
    arena<typename Comm::device, word> memory(streams);
    const auto own = static_cast<std::size_t>(comm.rank());
    std::size_t now = memory.add(count, [&](std::uint64_t i) { return model[own][i]; });
    std::size_t other = memory.add(count, [&](std::uint64_t i) { return model[own][i]; });
    memory.upload();
    (void)memory.out(now);
    (void)memory.out(other);
    for (int step = 0; step < steps; ++step) {
        const std::uint64_t dice = bits_at(77, 0, static_cast<std::uint64_t>(step));
        const auto on = streams.fork(comm.rank(), static_cast<std::size_t>(dice >> 40));
        const view<word> from = memory.at(now);
        const view<word> to = memory.at(other);
        std::vector<std::vector<word>> next = model;
        switch (dice % 5) {
        case 0: {
            comm.all_reduce(view<const word>(from), from, reduction::sum, on);
            for (std::size_t i = 0; i < count; ++i) {
                word sum = 0;
                for (const auto& rank : model) sum += rank[i];
                for (auto& rank : next) rank[i] = sum;
            }
            break;
        }
        case 1: {
            comm.all_to_all(view<const word>(from), to, on);
            for (std::size_t to_rank = 0; to_rank < parts; ++to_rank) {
                for (std::size_t i = 0; i < count; ++i) {
                    next[to_rank][i] = model[i / part][to_rank * part + i % part];
                }
            }
            std::swap(now, other);
            break;
        }
        case 2: {
            const int root = static_cast<int>((dice >> 8) % parts);
            comm.broadcast(view<const word>(from), to, root, on);
            for (auto& rank : next) rank = model[static_cast<std::size_t>(root)];
            std::swap(now, other);
            break;
        }
        case 3: {
            // In place: only the own part changes.
            comm.reduce_scatter(view<const word>(from), from.part(own * part, part), reduction::max, on);
            for (std::size_t i = 0; i < count; ++i) {
                word most = 0;
                for (const auto& rank : model) most = rank[i] > most ? rank[i] : most;
                next[i / part][i] = most;
            }
            break;
        }
        case 4: {
            comm.all_gather(view<const word>(from).part(own * part, part), from, on);
            for (auto& rank : next) {
                for (std::size_t i = 0; i < count; ++i) rank[i] = model[i / part][i];
            }
            break;
        }
        }
        streams.join();
        model = std::move(next);
    }
    memory.download("sequence");
    for (std::size_t i = 0; i < count; ++i) {
        require(memory.result(now)[i] == model[own][i], "sequence: wrong element " + std::to_string(i));
    }
}

/// Many small collectives, back to back, with nothing but the communicator's own order between them.
template <class Comm>
void check_stress(Comm& comm, stream_set<typename Comm::device>& streams, int rounds)
{
    arena<typename Comm::device, std::uint64_t> memory(streams);
    const std::size_t cell
        = memory.add(3, [&](std::uint64_t i) { return i + static_cast<std::uint64_t>(comm.rank()); });
    memory.upload();
    streams.synchronize();
    const auto n = static_cast<std::uint64_t>(comm.size());
    std::uint64_t first = n * (n - 1) / 2;
    for (int round = 0; round < rounds; ++round) {
        const auto on = streams.fork(comm.rank(), static_cast<std::size_t>(round));
        comm.all_reduce(memory.in(cell), memory.out(cell), reduction::sum, on);
        if (round > 0) first *= n;
    }
    memory.download("stress");
    require(memory.result(cell)[0] == first, "many small collectives in a row: wrong result");
}

inline void require_refusal(int rank, const std::string& call, const std::string& message,
    const std::function<void()>& make)
{
    std::string said = "it was taken";
    try {
        make();
    } catch (const error& failure) {
        said = failure.what();
        const bool right = failure.code() == status::invalid_argument && said.find(message) != said.npos
            && failure.call() == call && failure.culprits() == std::vector<int>{rank}
            && std::string(failure.where().file) == __FILE__ && failure.where().line > 0;
        if (right) return;
    }
    require(false, call + ", \"" + message + "\": " + said);
}

/// Calls that no communicator takes, each made by the last of two ranks or more: it hears what is wrong, and nothing is
/// written; the peers wait for the right call.
template <class Provider>
void check_refusals(const Provider& provider)
{
    provider.run([&](auto& comm) {
        stream_set<typename std::remove_reference_t<decltype(comm)>::device> streams;
        arena<typename std::remove_reference_t<decltype(comm)>::device, float> memory(streams);
        const auto n = static_cast<std::uint64_t>(comm.size());
        const int own = comm.size() - 1;
        const std::size_t sent = memory.add(9 * n, [](std::uint64_t) { return 1.0f; });
        const std::size_t received = memory.add(9 * n);
        memory.upload();
        const auto on = streams.main();
        const auto in = [&](std::uint64_t count) { return memory.in(sent).part(0, count); };
        const auto out = [&](std::uint64_t count) { return memory.at(received).part(0, count); };
        const auto own_in = [&](std::uint64_t count) { return view<const float>(out(count)); }; // what is received, too
        const auto odd = [&](std::size_t region) {
            return reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(memory.at(region).data()) + 1);
        };
        const auto refused = [&](const char* call, const char* message, const std::function<void()>& make) {
            if (comm.rank() == own) require_refusal(own, call, message, make);
        };
        const auto sum = [&](view<const float> from, view<float> to, reduction operation = reduction::sum) {
            comm.all_reduce(from, to, operation, on);
        };
        constexpr std::uint64_t endless = ~std::uint64_t{0} / 4;
        refused("all_reduce", "send is null with count 4", [&] { sum({nullptr, 4}, out(4)); });
        refused("all_reduce", "receive is null with count 4", [&] { sum(in(4), {nullptr, 4}); });
        refused("all_reduce", "send is not aligned to 4 bytes", [&] { sum({odd(sent), 4}, out(4)); });
        refused("all_reduce", "receive is not aligned to 4 bytes", [&] { sum(in(4), {odd(received), 4}); });
        refused("all_reduce", "send is not aligned to 8 bytes", [&] {
            const auto wide = [&](std::size_t region) { // at an odd multiple of 4 bytes
                float* const first = memory.at(region).data();
                return reinterpret_cast<double*>(first + (reinterpret_cast<std::uintptr_t>(first) % 8 == 0 ? 1 : 0));
            };
            comm.all_reduce(view<const double>(wide(sent), 4), view<double>(wide(received), 4), reduction::sum, on);
        });
        refused("broadcast", "receive is not aligned to 4 bytes",
            [&] { comm.broadcast(in(4), view<float>(odd(received), 4), 0, on); });
        refused("all_reduce", "send.count() is 4, receive.count() is 5", [&] { sum(in(4), out(5)); });
        refused("all_reduce", "overlap", [&] { sum(own_in(9).part(1, 8), out(8)); });
        refused("all_reduce", "operation 9 is no reduction", [&] { sum(in(4), out(4), static_cast<reduction>(9)); });
        refused("all_reduce", "impossible count", [&] { sum({in(1).data(), endless}, {out(1).data(), endless}); });
        refused("reduce_scatter", "size() times as many to send",
            [&] { comm.reduce_scatter(in(2 * n + 1), out(2), reduction::sum, on); });
        // The first rank's part, which is not the last one's.
        refused("reduce_scatter", "overlap: in place receive is send + ",
            [&] { comm.reduce_scatter(own_in(4 * n), out(4), reduction::sum, on); });
        refused("all_gather", "size() times as many to receive", [&] { comm.all_gather(in(4), out(4), on); });
        refused("all_gather", "overlap: in place send is receive + ",
            [&] { comm.all_gather(own_in(4), out(4 * n), on); });
        refused("all_to_all", "multiple of size()", [&] { comm.all_to_all(in(n + 1), out(n + 1), on); });
        refused("all_to_all", "overlap", [&] { comm.all_to_all(own_in(n), out(n), on); });
        refused("broadcast", "root -1 is not a rank", [&] { comm.broadcast(in(4), out(4), -1, on); });
        refused("broadcast", "is not a rank", [&] { comm.broadcast(in(4), out(4), comm.size(), on); });
        refused("broadcast", "send is null", [&] { comm.broadcast(view<const float>(nullptr, 4), out(4), own, on); });
        memory.download("calls that are refused");
        sum(in(9 * n), memory.out(received));
        memory.download("the right call behind them");
        require(memory.result(received)[9 * n - 1] == static_cast<float>(n), "the right call behind refused ones");
    });
}

template <element T, class Provider>
void check_type(const Provider& provider, std::uint64_t larger)
{
    provider.run([&](auto& comm) {
        stream_set<typename std::remove_reference_t<decltype(comm)>::device> streams;
        check_reductions<T>(comm, streams, larger, false);
        check_reductions<T>(comm, streams, larger, true);
        check_movement<T>(comm, streams, larger);
    });
}

/// Everything with data, for one element type of each kind.
template <class Provider>
void check_types(const Provider& provider, std::uint64_t larger)
{
    testing::for_each_element_type([&]<class T>(T) { check_type<T>(provider, larger); });
}

/// The same for all element types.
template <class Provider>
void check_all_types(const Provider& provider, std::uint64_t larger)
{
    testing::for_all_element_types([&]<class T>(T) { check_type<T>(provider, larger); });
}

/// Splits (where the communicator has them), sequences of calls and stress.
template <class Provider>
void check_calls(const Provider& provider, int steps)
{
    provider.run([&](auto& comm) {
        stream_set<typename std::remove_reference_t<decltype(comm)>::device> streams;
        if constexpr (requires { comm.split(0, 0); }) check_split(comm, streams);
        check_sequence(comm, streams, steps);
        check_stress(comm, streams, 4 * steps);
    });
}

} // namespace collprobe::conformance
