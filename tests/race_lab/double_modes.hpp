// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/race_lab/bench.hpp"

/// Whether what stands in for a communicator can be wrong as the communicator can: one that is not ordered by its
/// streams lets every race of the laboratory end well.
namespace collprobe::race_lab {

/// Whether a gather reads when its stream comes to it, and writes then: neither when it is called.
template <class Lab>
bool runs_in_its_stream(const bench<Lab>& at)
{
    typename Lab::gate closed(at.on);
    at.gather(at.shard(), at.full(), at.on);
    at.read(at.consumer);
    at.consumer.synchronize(soon_ms);
    const bool wrote_early = !at.saw(poison);
    at.write(at.producer, 1, at.shard());
    at.producer.synchronize(soon_ms);
    closed.open();
    at.read(at.on);
    at.on.synchronize(soon_ms);
    return !wrote_early && at.saw(1);
}

/// A double as it must not be: the gather is done by the caller, at the call.
template <class Lab>
struct eager : collectives<eager<Lab>, typename Lab::device> {
    using device = typename Lab::device;
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    template <class T>
    void make(const collective_call& call, typename device::stream_ref)
    {
        const typename device::stream at_once;
        device::copy(at_once, call.sent<T>(), call.received<T>(), call.where);
        at_once.synchronize(soon_ms);
    }
};

template <class Lab>
struct eager_lab : Lab {
    using communicator = eager<Lab>;
};

template <class Lab>
void f28_double_runs_in_its_stream()
{
    CHECK_NOTHROW(Lab::run(Lab::ranks, [](typename Lab::communicator& comm) {
        const bench<Lab> at(comm);
        require(runs_in_its_stream(at), "the double does not keep the order of its stream");
    }));
}
/// The control: this is seen.
template <class Lab>
void f28_eager_double_is_seen()
{
    CHECK_NOTHROW(Lab::run(1, [](typename Lab::communicator&) {
        eager<Lab> comm;
        const bench<eager_lab<Lab>> at(comm);
        require(!runs_in_its_stream(at), "an eager double passes");
    }));
}

} // namespace collprobe::race_lab
