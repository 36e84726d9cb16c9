// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/step/probed.hpp>

#include "tests/support/difference.hpp"
#include "tests/support/errors.hpp"
#include "tests/support/stand_in/kernels.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"

/// What the tests of `probed` over NCCL share: ranks, buffers on their devices, records compared.
namespace collprobe::testing {

/// Runs `body(testing::nccl_owner&)` for every rank, each a thread with a device of its own, which is
/// not the current one. Rethrows what a rank threw.
template <class Body>
void run_nccl(int ranks, Body body)
{
    stand_in::reset();
    nccl_provider{ranks}.run([&](testing::nccl_owner& comm) {
        const cuda::device_guard elsewhere((comm.device_ordinal() + 1) % 8);
        body(comm);
    });
}

/// Numbers in the memory of the current device.
template <class T>
class device_vector {
public:
    explicit device_vector(std::size_t count) : pinned_(count), memory_(count) {}

    /// Copies numbers there, in the order of the stream. Not again before the stream is done with it.
    void set(const std::vector<T>& values, cuda::stream_ref on)
    {
        std::memcpy(pinned_.data(), values.data(), values.size() * sizeof(T));
        cuda::device::copy(on, view<const T>(pinned_.data(), pinned_.size()), view<T>(memory_));
    }
    T* data() const noexcept { return memory_.data(); }
    std::size_t size() const noexcept { return memory_.size(); }

private:
    cuda::pinned_buffer<T> pinned_;
    cuda::buffer<T> memory_;
};

/// One rank whose collectives are copies, so that nothing orders streams behind the caller's back as
/// NCCL does.
struct alone : collectives<alone, cuda::device> {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    template <class T>
    void make(const collective_call& call, stream_ref on)
    {
        device::copy(on, call.sent<T>(), call.received<T>(), call.where);
    }
};

/// A rank's gradients of a step: something that all ranks share and something of its own. Integers, so
/// that sums over ranks have the same bits in whatever order a communicator takes them.
inline std::vector<float> gradient(int rank, std::uint64_t step, std::size_t count)
{
    std::mt19937_64 common(step + 1);
    std::mt19937_64 own(1000 * (step + 1) + static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> signal;
    std::normal_distribution<float> noise;
    std::vector<float> values(count);
    for (float& x : values) {
        const float shared = signal(common);
        x = static_cast<float>(static_cast<int>(16 * (shared + noise(own))));
    }
    return values;
}

/// The next record, which is on its way.
template <class Comm>
step_record next_record(Comm& comm)
{
    step_record record;
    const auto until = detail::deadline::in_ms(60'000);
    while (!comm.poll(record)) {
        if (until.passed()) FAIL("no record in 60 s");
        std::this_thread::yield();
    }
    return record;
}

/// `call` must throw an error of that kind which says `word`.
template <class Call>
void check_refused(Call call, const char* word, status expected = status::invalid_argument)
{
    const auto refused = error_of(call);
    REQUIRE(refused);
    CHECK(refused->code() == expected);
    CAPTURE(refused->what());
    CHECK(mentions(refused, word));
}

/// Bit for bit the same report of a step, but for its times, the lines of its calls, and what codes did over the steps.
inline void check_same(step_record a, step_record b)
{
    for (step_record* const each : {&a, &b}) {
        each->lateness = {};
        each->lateness_by_rank.clear();
        each->evidence_by_rank.clear();
        for (expectation_record& value : each->expectations) value.site = {};
        for (call_record& call : each->calls) {
            call.lateness = {};
            call.intervals.clear();
            call.site = {};
            call.quantisation = {};
        }
    }
    CHECK(difference(a, b) == "");
}

/// A rank that makes steps of three buckets and a loss on its device.
struct trainer {
    static constexpr std::size_t sizes[3] = {1000, 33, 4097};

    cuda::device_guard device;
    std::array<cuda::stream, 3> streams;
    const cuda::stream& stream = streams[0];
    std::vector<device_vector<float>> send, receive;
    device_vector<float> loss{1};
    device_vector<double> weight{1};
    device_vector<std::uint64_t> told{1};
    int rank;

    explicit trainer(const testing::nccl_owner& world) : device(world.device_ordinal()), rank(world.rank())
    {
        for (const std::size_t size : sizes) {
            send.emplace_back(size);
            receive.emplace_back(size);
        }
    }
    static step_observation seen_by(int rank, std::uint64_t step)
    {
        return {2.0 + 0.25 * rank + static_cast<double>(step), 1.0 + rank};
    }
    step_observation seen(std::uint64_t step) const { return seen_by(rank, step); }
    step_observation seen_on_device() const { return {loss.data(), weight.data()}; }
    /// New data. The last step must be done with the old.
    void prepare(std::uint64_t step)
    {
        stream.synchronize(soon_ms);
        for (auto& bucket : send) bucket.set(gradient(rank, step + bucket.size(), bucket.size()), stream);
        loss.set({2.0f + 0.25f * static_cast<float>(rank) + static_cast<float>(step)}, stream);
        weight.set({1.0 + rank}, stream);
        told.set({step}, stream);
        stream.synchronize(soon_ms);
    }
    template <class Comm>
    void reduce(Comm& comm, std::size_t bucket, cuda::stream_ref on)
    {
        comm.all_reduce(view<const float>(send[bucket]), view<float>(receive[bucket]), reduction::sum, on);
    }
    template <class Comm>
    void reduce(Comm& comm)
    {
        for (std::size_t b = 0; b < send.size(); ++b) reduce(comm, b, stream);
    }
};

/// `body(world, rank)` of ranks that are trainers, with data.
template <class Body>
void run_trainers(int ranks, Body body)
{
    run_nccl(ranks, [&](testing::nccl_owner& world) {
        trainer rank(world);
        rank.prepare(0);
        body(world, rank);
        for (const cuda::stream& stream : rank.streams) stream.synchronize(soon_ms);
    });
}

} // namespace collprobe::testing
