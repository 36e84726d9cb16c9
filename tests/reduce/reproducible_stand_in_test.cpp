// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Reductions under a contract over NCCL and on CUDA streams: devices, groups, captures, kernel loading.
#include <doctest/doctest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "examples/support/device_ranks.hpp"
#include "step/nccl_steps.hpp"
#include "tests/support/stand_in/stand_in_test_tools.hpp"

namespace collprobe::testing::reproducible_stand_in_test {
namespace {

template <reproducibility level>
using reproducible_nccl = reproducible<nccl::communicator_ref, contract<level>>;
using exact_nccl = reproducible_nccl<reproducibility::correctly_rounded>;

constexpr std::size_t count = 5003;

/// A term of a rank; sums of these are not exact in float.
float term(int rank, std::uint64_t step, std::size_t i)
{
    const std::uint64_t bits = detail::mix64(detail::mix64(i + 1000 * step) + static_cast<std::uint64_t>(rank));
    return static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-40 - 4096.0);
}
/// The exact sum of few of those fits a double.
float sum_of(int ranks, std::uint64_t step, std::size_t i)
{
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += static_cast<double>(term(rank, step, i));
    return static_cast<float>(sum);
}
std::vector<float> terms(int rank, std::uint64_t step)
{
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = term(rank, step, i);
    return values;
}
void require_sums(const device_vector<float>& found, int ranks, std::uint64_t step)
{
    for (std::size_t i = 0; i < count; ++i) {
        if (to_bits(found.data()[i]) != to_bits(sum_of(ranks, step, i))) throw std::runtime_error("wrong sum");
    }
}

} // namespace

TEST_CASE("sums over NCCL are correctly rounded, by each algorithm, on devices that are not the current one")
{
    for (const int ranks : {1, 2, 3}) {
        for (const auto how : {reduction_algorithm::automatic, reduction_algorithm::exchange,
                 reduction_algorithm::one_shot, reduction_algorithm::fixed_point}) {
            CAPTURE(ranks);
            CAPTURE(static_cast<int>(how));
            CHECK_NOTHROW(run_nccl(ranks, [&](testing::nccl_owner& world) {
                reproducible_nccl<reproducibility::order_invariant> comm(
                    world, {}, {.scratch_bytes = 1 << 13, .algorithm = how});
                const cuda::device_guard here(world.device_ordinal());
                device_vector<float> send(count), receive(count);
                const cuda::stream stream;
                send.set(terms(world.rank(), 1), stream);
                const cuda::device_guard elsewhere((world.device_ordinal() + 1) % 8);
                for (int call = 0; call < 2; ++call) {
                    comm.all_reduce(view<const float>(send), view<float>(receive), reduction::sum, stream);
                }
                stream.synchronize(soon_ms);
                require_sums(receive, ranks, 1);
            }));
        }
    }
}

TEST_CASE("inside a group a sum is refused, and what NCCL does itself is not")
{
    CHECK_NOTHROW(run_nccl(2, [](testing::nccl_owner& world) {
        const cuda::device_guard here(world.device_ordinal());
        device_vector<float> values(count);
        const cuda::stream stream;
        exact_nccl comm(world);
        values.set(terms(world.rank(), 1), stream);
        {
            nccl::group together;
            bool refused = false;
            try {
                comm.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
            } catch (const error& failure) {
                refused = failure.code() == status::unsupported && contains(failure.what(), "end the group first");
            }
            if (!refused) throw std::runtime_error("a sum in a group was accepted");
            comm.all_reduce(view<const float>(values), view<float>(values), reduction::max, stream);
            together.end();
        }
        comm.all_reduce(view<const float>(values), view<float>(values), reduction::sum, stream);
        stream.synchronize(soon_ms);
    }));
}

TEST_CASE("a captured sum is right at each replay, with fresh data, between calls that are not captured")
{
    for (const auto how : {reduction_algorithm::exchange, reduction_algorithm::one_shot,
             reduction_algorithm::fixed_point}) {
        CAPTURE(static_cast<int>(how));
        CHECK_NOTHROW(run_nccl(3, [&](testing::nccl_owner& world) {
            reproducible_nccl<reproducibility::order_invariant> comm(
                world, {}, {.scratch_bytes = 1 << 13, .algorithm = how});
            const cuda::device_guard here(world.device_ordinal());
            device_vector<float> send(count), receive(count), again(count);
            const cuda::stream stream, other;
            const auto reduce = [&](device_vector<float>& to, cuda::stream_ref on) {
                comm.all_reduce(view<const float>(send), view<float>(to), reduction::sum, on);
            };
            const auto step = [&](std::uint64_t number, auto run) {
                send.set(terms(world.rank(), number), stream);
                run();
                stream.synchronize(soon_ms);
                require_sums(receive, 3, number);
                require_sums(again, 3, number);
            };
            const auto plainly = [&] {
                reduce(receive, stream);
                reduce(again, stream);
            };
            step(1, plainly);
            captured_graph first(stream, cudaStreamCaptureModeThreadLocal);
            plainly(); // the second waits for the first, within the capture
            cuda::check(first.end(), "end");
            captured_graph second(stream, cudaStreamCaptureModeThreadLocal);
            plainly();
            cuda::check(second.end(), "end");
            step(2, [&] { first.launch(stream); });
            step(3, [&] { second.launch(stream); });
            step(4, plainly);
            step(5, [&] { first.launch(stream); });
            // A call of before a capture is still waited for on another stream.
            send.set(terms(world.rank(), 6), stream);
            reduce(receive, stream);
            captured_graph third(stream, cudaStreamCaptureModeThreadLocal);
            plainly();
            cuda::check(third.end(), "end");
            reduce(again, other);
            other.synchronize(soon_ms);
            stream.synchronize(soon_ms);
            require_sums(receive, 3, 6);
            require_sums(again, 3, 6);
        }));
    }
}

TEST_CASE("kernels are loaded at construction, so that none waits for a running collective")
{
    stand_in::reset();
    const cuda::device_guard here(6);
    const cuda::stream stream;
    cuda::buffer<float> values(count);
    reproducible comm(local::device_group<cuda::device>(1).communicator(0),
        contract<reproducibility::correctly_rounded>{}, {.scratch_bytes = 1 << 12, .algorithm = reduction_algorithm::exchange});
    const std::uint64_t launches = stand_in::calls("cudaLaunchKernel");
    gate running(stream); // as a collective that waits for another rank
    comm.all_reduce(view<const float>(values.data(), count), view(values), reduction::sum, stream);
    CHECK(stand_in::calls("cudaLaunchKernel") > launches);
    CHECK(stand_in::loads_behind_work() == 0);
    running.open();
    stream.synchronize(soon_ms);
}

} // namespace collprobe::testing::reproducible_stand_in_test
