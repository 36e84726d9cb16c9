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
#include <collprobe/guard/nccl/copy_then_all_gather.hpp>

#include "tests/race_lab/watch.hpp"
#include "tests/support/checks.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

/// The race laboratory: README.md.
namespace collprobe::race_lab {

using testing::gate;
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
class bench {
public:
    using device = cuda::device;
    using stream_ref = cuda::stream_ref;
    using communicator = testing::nccl_owner;

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
        comm.all_gather<word>(view<const word>(from), to, stream, where);
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
    void waits(stream_ref stream, gate& closed, int generation,
        call_site where = call_site::current()) const
    {
        read(stream, where);
        require(!stream.query(), "it did not wait for the gate", where);
        closed.open();
        stream.synchronize(soon_ms, where);
        require(saw(generation), "it waited, and has other data", where);
    }
    /// The library's call waits for the gate, which is closed on one of the producers.
    void gathers_behind(std::initializer_list<stream_ref> producers, gate& closed, call_site where) const
    {
        copy_then_all_gather(shard(), full(), comm, on, producers, {consumer}, {}, where);
        waits(consumer, closed, 1, where);
    }
    /// Work of the producer that writes the shard anew is, if `guarded`, behind the gather that the gate holds up; else
    /// the gather sends what that work has written.
    void next_owner_is_behind(gate& closed, bool guarded, int generation) const
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
public:
    communicator& comm;

private:
    std::uint64_t count_;
    cuda::pinned_buffer<word> images_;
    cuda::pinned_buffer<word> seen_;
    cuda::buffer<word> shard_;
    cuda::buffer<word> second_;
    cuda::buffer<word> full_;
    cuda::buffer<word> spare_;

public:
    cuda::stream producer, on, consumer, other;
};

/// Runs `body(communicator)` on every rank of NCCL's stand-in, with a device each. As NCCL's default is not, the
/// communicators are non-blocking.
template <class Body>
void run_ranks(int count, Body body)
{
    // The stand-in's streams are the library's, and tell the checker of themselves until they are gone.
    struct drained {
        ~drained() { stand_in::drain_destroyed_streams(); }
    };
    const testing::watchdog guard("a failure mode", 120);
    const drained at_exit;
    const testing::clean_stand_in clean;
    testing::nccl_provider{count}.run(body);
}

/// Runs `body(bench, guarded)` on every rank: the failure, then its cure. The checker must report the first, naming
/// what `hazards` names and nothing else, and be silent on the second.
template <class Body>
void provoke(const std::vector<expected_hazard>& hazards, Body body)
{
    for (const bool guarded_call : {false, true}) {
        CAPTURE(guarded_call);
        const watch over;
        CHECK_NOTHROW(run_ranks(2, [&](testing::nccl_owner& comm) {
            bench at(comm);
            body(at, guarded_call);
            at.settle();
        }));
        over.check(guarded_call ? std::vector<expected_hazard>{} : hazards);
    }
}

/// A capture that the checker is told of.
class captured_graph {
public:
    explicit captured_graph(cuda::stream_ref on, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
        : graph_(on, mode), number_(on.capture_number())
    {
        watch::checker().capture_begin(number_);
    }
    cudaError_t end()
    {
        watch::checker().capture_end(number_);
        return graph_.end();
    }
    /// Behind its last launch, on whatever stream that was: a graph does not overlap itself.
    void launch(cuda::stream_ref on, call_site where = call_site::current())
    {
        const order_stream told = order_hooks::stream_of(on);
        if (last_.recorded()) watch::checker().wait(told, last_, where);
        watch::checker().launch_graph(number_, told, where);
        watch::checker().record(last_, told);
        graph_.launch(on);
    }

private:
    testing::captured_graph graph_;
    unsigned long long number_;
    order_point last_;
};

} // namespace collprobe::race_lab
