// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/nccl/communicator.hpp>
#include <collprobe/step/probed.hpp>

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

inline void check_same(const spread& a, const spread& b)
{
    for (const auto field : {&spread::mean, &spread::std, &spread::std_sample, &spread::range, &spread::cv,
             &spread::minimum, &spread::maximum}) {
        CHECK(to_bits(a.*field) == to_bits(b.*field));
    }
    CHECK(a.minimum_rank == b.minimum_rank);
    CHECK(a.maximum_rank == b.maximum_rank);
    CHECK(a.finite == b.finite);
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
    try {
        call();
        FAIL_CHECK("accepted: ", word);
    } catch (const error& refused) {
        CHECK(refused.code() == expected);
        CAPTURE(refused.what());
        CHECK(std::string(refused.what()).find(word) != std::string::npos);
    }
}

/// Bit for bit the same report of a step.
inline void check_same(const step_record& a, const step_record& b)
{
    CHECK(a.step == b.step);
    CHECK(a.ranks == b.ranks);
    CHECK(a.mode == b.mode);
    CHECK(a.unprobed_calls == b.unprobed_calls);
    CHECK(a.losses == b.losses);
    CHECK(a.gradient_norms == b.gradient_norms);
    check_same(a.loss, b.loss);
    check_same(a.loss_weighted, b.loss_weighted);
    check_same(a.gradient_norm, b.gradient_norm);
    CHECK(to_bits(a.cosine.mean_pairwise) == to_bits(b.cosine.mean_pairwise));
    CHECK(to_bits(a.cosine.pooled) == to_bits(b.cosine.pooled));
    CHECK(to_bits(a.cosine.noise_scale) == to_bits(b.cosine.noise_scale));
    CHECK(a.cosine.leave_one_out.size() == b.cosine.leave_one_out.size());
    for (std::size_t i = 0; i < a.cosine.leave_one_out.size() && i < b.cosine.leave_one_out.size(); ++i) {
        CHECK(to_bits(a.cosine.leave_one_out[i]) == to_bits(b.cosine.leave_one_out[i]));
    }
    REQUIRE(a.findings.size() == b.findings.size());
    for (std::size_t i = 0; i < a.findings.size(); ++i) {
        CHECK(a.findings[i].what == b.findings[i].what);
        CHECK(a.findings[i].rank() == b.findings[i].rank());
        CHECK(a.findings[i].call == b.findings[i].call);
    }
    REQUIRE(a.calls.size() == b.calls.size());
    for (std::size_t i = 0; i < a.calls.size(); ++i) {
        CHECK(a.calls[i].call == b.calls[i].call);
        CHECK(a.calls[i].count == b.calls[i].count);
        CHECK(a.calls[i].results_agree == b.calls[i].results_agree);
        check_same(a.calls[i].gradient_norm, b.calls[i].gradient_norm);
        CHECK(a.calls[i].audit.checked == b.calls[i].audit.checked);
        CHECK(a.calls[i].audit.sum_checked == b.calls[i].audit.sum_checked);
        CHECK(a.calls[i].audit.where == b.calls[i].audit.where);
        CHECK(a.calls[i].audit.culprits == b.calls[i].audit.culprits);
        CHECK(to_bits(a.calls[i].audit.residual) == to_bits(b.calls[i].audit.residual));
        REQUIRE(a.calls[i].inputs.size() == b.calls[i].inputs.size());
        for (std::size_t r = 0; r < a.calls[i].inputs.size(); ++r) {
            CHECK(a.calls[i].inputs[r].digest == b.calls[i].inputs[r].digest);
        }
    }
}

} // namespace collprobe::testing
