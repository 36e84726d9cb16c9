// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>

#include "tests/race_lab/watch.hpp"
#include "tests/support/checks.hpp"

/// The race laboratory: README.md. A `Lab` says where a failure mode is tried: its `device`, its `communicator`, its
/// `gate`, and how its ranks are run.
namespace collprobe::race_lab {

using testing::require;
using testing::soon_ms;
using word = std::uint32_t;
constexpr std::uint64_t slot = 64; ///< elements of a shard
constexpr int poison = 0; ///< the generation that everything has at first
constexpr int generations = 4;

/// Element `index` of a rank's shard in a generation: who reads it knows what it is.
constexpr word pattern(int generation, int rank, std::uint64_t index)
{
    return static_cast<word>(generation) << 24 | static_cast<word>(rank) << 16 | static_cast<word>(index);
}

/// One rank's streams and buffers. Nothing here orders one stream behind another.
template <class Lab>
class bench {
public:
    using device = typename Lab::device;
    using stream_ref = typename device::stream_ref;
    using communicator = typename Lab::communicator;

    explicit bench(communicator& of)
        : comm(of),
          count_(slot * static_cast<std::uint64_t>(of.size())),
          images_(generations * count_),
          seen_(count_),
          shard_(slot),
          second_(slot),
          full_(count_),
          spare_(count_)
    {
        for (int generation = 0; generation < generations; ++generation) {
            for (std::uint64_t i = 0; i < count_; ++i) {
                images_.data()[static_cast<std::uint64_t>(generation) * count_ + i] = expected(generation, i);
            }
        }
        write(on, poison, shard());
        write(on, poison, second());
        device::copy(on, image(poison), full());
        device::copy(on, image(poison), spare());
        on.synchronize(soon_ms);
    }
    ~bench()
    {
        try {
            settle();
        } catch (...) { // a test that has failed already
        }
    }
    bench(const bench&) = delete;
    bench& operator=(const bench&) = delete;

    int rank() const { return comm.rank(); }
    view<word> shard() const { return view<word>(shard_.data(), slot); }
    view<word> second() const { return view<word>(second_.data(), slot); } ///< another shard
    view<word> full() const { return view<word>(full_.data(), count_); }
    view<word> spare() const { return view<word>(spare_.data(), count_); } ///< another destination
    /// This rank's shard of a generation, in memory of the host.
    view<const word> master(int generation) const
    {
        return image(generation).part(static_cast<std::uint64_t>(rank()) * slot, slot);
    }

    /// Work that brings this rank's shard, of a generation, to `to`.
    void write(stream_ref stream, int generation, view<word> to, call_site where = call_site::current()) const
    {
        device::copy(stream, master(generation), to, where);
    }
    /// A gather that nothing orders.
    void gather(view<word> from, view<word> to, stream_ref stream, call_site where = call_site::current()) const
    {
        comm.template all_gather<word>(view<const word>(from), to, stream, where);
    }
    /// Work that reads what was gathered.
    void read(stream_ref stream, call_site where = call_site::current()) const
    {
        device::copy(stream, view<const word>(full()), seen(), where);
    }

    /// What was read last is what all ranks had in a generation.
    bool saw(int generation) const
    {
        for (std::uint64_t i = 0; i < count_; ++i) {
            if (seen_.data()[i] != expected(generation, i)) return false;
        }
        return true;
    }
    /// Element `index` of what was read last.
    word seen_at(std::uint64_t index) const { return seen_.data()[index]; }

    /// `stream` comes to its end, whatever gate is closed, and the gathered is of that generation.
    void completes(stream_ref stream, int generation, call_site where = call_site::current()) const
    {
        read(stream, where);
        stream.synchronize(soon_ms, where);
        require(saw(generation), "it completed with other data", where);
    }
    /// `stream` does not come to its end before the gate is opened; then the gathered is of that generation.
    void waits(stream_ref stream, typename Lab::gate& closed, int generation,
        call_site where = call_site::current()) const
    {
        read(stream, where);
        require(!stream.query(), "it did not wait for the gate", where);
        closed.open();
        stream.synchronize(soon_ms, where);
        require(saw(generation), "it waited, and has other data", where);
    }
    /// The library's call waits for the gate, which is closed on one of the producers.
    void gathers_behind(std::initializer_list<stream_ref> producers, typename Lab::gate& closed, call_site where) const
    {
        copy_then_all_gather(shard(), full(), comm, on, producers, {consumer}, {}, where);
        waits(consumer, closed, 1, where);
    }
    /// Work of the producer that writes the shard anew is, if `guarded`, behind the gather that the gate holds up; else
    /// the gather sends what that work has written.
    void next_owner_is_behind(typename Lab::gate& closed, bool guarded, int generation) const
    {
        if (guarded) require(!producer.query(), "the next owner did not wait for the gather");
        else producer.synchronize(soon_ms);
        closed.open();
        producer.synchronize(soon_ms);
        completes(on, guarded ? 1 : generation);
    }
    void settle() const
    {
        for (const auto* each : {&producer, &on, &consumer, &other}) each->synchronize(soon_ms);
    }

private:
    view<const word> image(int generation) const
    {
        return view<const word>(images_.data() + static_cast<std::uint64_t>(generation) * count_, count_);
    }
    view<word> seen() const { return view<word>(seen_.data(), count_); }
    static word expected(int generation, std::uint64_t index)
    {
        return pattern(generation, static_cast<int>(index / slot), index % slot);
    }
    template <class T>
    using host_buffer = typename device::template host_buffer<T>;
    template <class T>
    using buffer = typename device::template buffer<T>;

public:
    communicator& comm;

private:
    std::uint64_t count_;
    host_buffer<word> images_;
    host_buffer<word> seen_;
    buffer<word> shard_;
    buffer<word> second_;
    buffer<word> full_;
    buffer<word> spare_;

public:
    typename device::stream producer, on, consumer, other;
};

/// Runs `body(bench, guarded)` on every rank: the failure, then its cure. The checker must report the first, naming
/// what `hazards` names and nothing else, and be silent on the second.
template <class Lab, class Body>
void provoke(const std::vector<expected_hazard>& hazards, Body body, int ranks = Lab::ranks)
{
    for (const bool guarded_call : {false, true}) {
        CAPTURE(guarded_call);
        const watch over;
        CHECK_NOTHROW(Lab::run(ranks, [&](typename Lab::communicator& comm) {
            bench<Lab> at(comm);
            body(at, guarded_call);
            at.settle();
        }));
        over.check(guarded_call ? std::vector<expected_hazard>{} : hazards);
    }
}

} // namespace collprobe::race_lab
