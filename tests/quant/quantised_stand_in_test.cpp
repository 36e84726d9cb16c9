// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Quantised collectives in CUDA graphs over NCCL: replays have the bits of the same calls uncaptured.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>

#include "step/nccl_steps.hpp"
#include "support/checks.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::quantised_stand_in_test {
namespace {

constexpr std::uint64_t count = 1536;
constexpr int ranks = 3;
using quantised_nccl = quantised<nccl::communicator_ref>;
constexpr quantised_options small{.least_bytes = 1, .scratch_bytes = 64 << 10};

std::vector<float> gradient_of(int rank, std::uint64_t step)
{
    return gradient(rank, step, count);
}

/// The buffers of a rank, and its calls of a step: a sum, the parts of a mean and a gather.
struct buffers {
    cuda::stream stream;
    device_vector<float> send{count}, sum{count}, part{count / ranks}, whole{count};

    void prepare(int rank, std::uint64_t step)
    {
        stream.synchronize(soon_ms);
        send.set(gradient_of(rank, step), stream);
    }
    template <class Comm>
    void call(Comm& comm)
    {
        const view<const float> input(send.data(), count);
        const view<float> mine(part.data(), count / ranks);
        comm.all_reduce(input, view<float>(sum), reduction::sum, stream);
        comm.reduce_scatter(input, mine, reduction::average, stream);
        comm.all_gather(view<const float>(mine), view<float>(whole), stream);
    }
    std::vector<float> results()
    {
        stream.synchronize(soon_ms);
        std::vector<float> all;
        for (const auto* each : {&sum, &part, &whole}) all.insert(all.end(), each->data(), each->data() + each->size());
        return all;
    }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

} // namespace

TEST_CASE("replays of quantised calls have the bits of the same calls uncaptured, and fresh random bits")
{
    const quantisation hows[] = {{.format = code_format::int8}, {.format = code_format::e4m3, .rotate = true},
        {.format = code_format::int4, .rounding = code_rounding::stochastic},
        {.format = code_format::int4, .feedback = error_feedback::all}};
    for (const quantisation& how : hows) {
        CAPTURE(name(how.format));
        CHECK_NOTHROW(run_nccl(ranks, [&](testing::nccl_owner& world) {
            const cuda::device_guard here(world.device_ordinal());
            quantised_nccl plain(nccl::communicator_ref(world), how, small);
            quantised_nccl comm(nccl::communicator_ref(world), how, small);
            buffers of;
            const auto step = [&](quantised_nccl& with) {
                of.call(with);
                with.next_step(of.stream);
            };
            const auto expected = [&](std::uint64_t number) {
                of.prepare(world.rank(), number);
                step(plain);
                return of.results();
            };
            // Feedback needs the errors of a step before the capture.
            const std::vector<float> first = expected(1);
            of.prepare(world.rank(), 1);
            step(comm);
            require(same_bits(of.results(), first), "first step");
            captured_graph graph(of.stream, cudaStreamCaptureModeThreadLocal);
            step(comm);
            cuda::check(graph.end(), "end");
            std::vector<float> last;
            for (std::uint64_t number = 2; number < 6; ++number) {
                const std::uint64_t data = number < 4 ? number : 4; // twice the same
                const std::vector<float> wanted = expected(data);
                of.prepare(world.rank(), data);
                graph.launch(of.stream);
                const std::vector<float> got = of.results();
                require(same_bits(got, wanted), "replay " + std::to_string(number));
                if (number == 5) {
                    const bool repeats = how.rounding == code_rounding::nearest && how.feedback == error_feedback::none;
                    require(same_bits(got, last) == repeats, "equal data, step after step");
                }
                last = got;
            }
        }));
    }
}

TEST_CASE("captured calls with feedback that no step has made before are refused, and say what to do")
{
    CHECK_NOTHROW(run_nccl(ranks, [](testing::nccl_owner& world) {
        const cuda::device_guard here(world.device_ordinal());
        quantised_nccl comm(
            nccl::communicator_ref(world), {.format = code_format::int4, .feedback = error_feedback::all}, small);
        buffers of;
        of.prepare(world.rank(), 1);
        of.stream.synchronize(soon_ms);
        captured_graph graph(of.stream, cudaStreamCaptureModeThreadLocal);
        const auto refused = error_of([&] { of.call(comm); });
        require(mentions(refused, "make the step once") && refused->code() == status::unsupported, "not refused");
    }));
}

TEST_CASE("the probe of a captured step says of each replay what it says of the same step uncaptured")
{
    for (const code_rounding rounding : {code_rounding::nearest, code_rounding::stochastic}) {
        const quantisation how{.format = code_format::int4, .block = 64, .rounding = rounding};
        CHECK_NOTHROW(run_nccl(ranks, [&](testing::nccl_owner& world) {
            const cuda::device_guard here(world.device_ordinal());
            const quantisation_checks checks{.aggregate = true, .messages = true};
            probed plain(quantised_nccl(nccl::communicator_ref(world), how, small), {}, quantisation_probe({}, checks));
            probed comm(quantised_nccl(nccl::communicator_ref(world), how, small), {}, quantisation_probe({}, checks));
            buffers of;
            device_vector<float> loss(1);
            loss.set({0.5f}, of.stream);
            of.stream.synchronize(soon_ms);
            captured_step captured;
            captured_graph graph(of.stream, cudaStreamCaptureModeThreadLocal);
            of.call(comm);
            captured = comm.end_captured_step(step_observation{loss.data()}, of.stream);
            cuda::check(graph.end(), "end");
            for (std::uint64_t number = 1; number < 5; ++number) {
                of.prepare(world.rank(), number);
                of.call(plain);
                plain.end_step(number, {.loss = 0.5f}, of.stream);
                const std::vector<float> wanted = of.results();
                const step_record expected = next_record(plain);
                of.prepare(world.rank(), number);
                comm.replay(captured, number, of.stream, [&] { graph.launch(of.stream); });
                const step_record record = next_record(comm);
                require(same_bits(of.results(), wanted), "other bits");
                check_same(record, expected);
                REQUIRE(record.calls.size() == 3);
                for (std::size_t call = 0; call < 3; ++call) {
                    const call_quantisation& a = record.calls[call].quantisation;
                    const call_quantisation& b = expected.calls[call].quantisation;
                    CHECK(a.verdict == b.verdict);
                    for (const auto field : {&call_quantisation::sqnr_db, &call_quantisation::noise_ratio,
                             &call_quantisation::coherence, &call_quantisation::aggregate_sqnr_db,
                             &call_quantisation::bias, &call_quantisation::zeroed, &call_quantisation::crest})
                        CHECK(to_bits(a.*field) == to_bits(b.*field));
                    CHECK(is_nan(a.drift));
                }
            }
            of.stream.synchronize(soon_ms);
        }));
    }
}

TEST_CASE("a call with checked messages launches as many kernels whatever the number of ranks is")
{
    std::vector<std::uint64_t> launches;
    for (const int n : {2, 3, 8}) {
        stand_in::reset();
        CHECK_NOTHROW(run_nccl(n, [&](testing::nccl_owner& world) {
            const cuda::device_guard here(world.device_ordinal());
            constexpr std::uint64_t elements = 64 * 8;
            quantised_nccl comm(nccl::communicator_ref(world), {.block = 32}, small);
            const cuda::stream stream;
            device_vector<float> send(elements), sum(elements);
            device_vector<std::uint64_t> digests(4 * static_cast<std::size_t>(n));
            comm.quantisation_calls()->digests_to = digests.data();
            comm.all_reduce(view<const float>(send), view<float>(sum), reduction::sum, stream);
            stream.synchronize(soon_ms);
        }));
        launches.push_back(stand_in::calls("cudaLaunchKernel") / static_cast<std::uint64_t>(n));
    }
    CHECK(launches[0] > 0);
    CHECK(launches[1] == launches[0]);
    CHECK(launches[2] == launches[0]);
}

} // namespace collprobe::testing::quantised_stand_in_test
