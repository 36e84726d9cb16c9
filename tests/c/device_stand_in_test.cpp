// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The C entry around NCCL, and around anything with buffers on a GPU, over the stand-ins for both.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <nccl.h>

#include <collprobe/device/cuda/device.hpp>

#include "c_ranks.hpp"
#include "tests/support/stand_in/nccl_ranks.hpp"

namespace collprobe::testing::device_stand_in_test {
namespace {

constexpr std::size_t count = 240;

/// What a trainer has: memory of its GPU, which the host fills and reads here.
template <class T>
struct gpu_vector {
    explicit gpu_vector(std::size_t elements) : memory(elements) {}
    explicit gpu_vector(const std::vector<T>& values) : memory(values.size()) { set(values); }
    void set(const std::vector<T>& values) { std::copy(values.begin(), values.end(), memory.data()); }
    std::vector<T> get(cudaStream_t on) const
    {
        require(cudaStreamSynchronize(on) == cudaSuccess, "cudaStreamSynchronize");
        return {memory.data(), memory.data() + memory.size()};
    }
    T* data() const { return memory.data(); }
    cuda::buffer<T> memory;
};

/// A rank of NCCL with a probe.
struct nccl_rank {
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    collprobeProbe_t probe;
};
template <class Body>
void run_nccl_probes(int ranks, Body body)
{
    const clean_stand_in clean;
    nccl_provider{ranks}.run([&](testing::nccl_owner& comm) {
        const cuda::stream stream;
        nccl_rank own{comm.rank(), comm.size(), comm.native_handle(), stream.get(), nullptr};
        ok(collprobeCreateNccl(&own.probe, own.comm, nullptr));
        body(own);
        ok(collprobeDestroy(own.probe));
    });
}
void finish_step(const nccl_rank& own, std::uint64_t step, const collprobeStep_t* seen = nullptr)
{
    ok(collprobeEndStep(own.probe, step, seen, own.stream));
    ok(collprobePoll(own.probe, 1));
}

} // namespace

static_assert(std::is_same_v<collprobeNcclResult_t, ncclResult_t>);
static_assert(int(collprobeFloat32) == ncclFloat32 && int(collprobeBfloat16) == ncclBfloat16
    && int(collprobeAvg) == ncclAvg && int(collprobeMax) == ncclMax && int(collprobeInt8) == ncclInt8
    && int(collprobeUint64) == ncclUint64);

TEST_CASE("calls in place of NCCL's: right sums, and what the step says of them")
{
    constexpr int ranks = 3;
    run_nccl_probes(ranks, [&](nccl_rank& own) {
        gpu_vector<float> send(count), sum(count), part(count / ranks), all(count * ranks);
        for (std::uint64_t step = 0; step < 4; ++step) {
            send.set(numbers_of(own.rank, step, count));
            ok(collprobeAllReduce(
                send.data(), sum.data(), count, ncclFloat32, ncclSum, own.probe, own.stream));
            ok(collprobeReduceScatter(
                send.data(), part.data(), count / ranks, ncclFloat32, ncclSum, own.probe, own.stream));
            ok(collprobeAllGather(send.data(), all.data(), count, ncclFloat32, own.probe, own.stream));
            finish_step(own, step);
            const std::vector<float> wanted = sum_of(ranks, step, count);
            require(sum.get(own.stream) == wanted, "the sum");
            const auto begin = wanted.begin() + own.rank * static_cast<int>(count / ranks);
            require(part.get(own.stream) == std::vector<float>(begin, begin + count / ranks), "the part");
            const std::vector<float> gathered = all.get(own.stream);
            require(std::vector<float>(gathered.begin() + count, gathered.begin() + 2 * count)
                    == numbers_of(1, step, count),
                "the gathered shards");
            require_silence(own.probe);
            require(value_of(own.probe, "calls") == 3, "calls");
            double squares = 0;
            for (const float value : numbers_of(1, step, count)) squares += double(value) * value;
            const double norm = value_of(own.probe, "gradient_norm", 1); // twice in the step
            require(std::abs(norm - std::sqrt(2 * squares)) < 1e-5 * norm, std::to_string(norm));
        }
    });
}

TEST_CASE("a NaN in a group of calls is named by rank and place")
{
    run_nccl_probes(2, [&](nccl_rank& own) {
        std::vector<float> values = numbers_of(own.rank, 0, count);
        gpu_vector<float> first(values), second(count);
        if (own.rank == 1) values[7] = std::numeric_limits<float>::quiet_NaN();
        second.set(values);
        ok(collprobeGroupStart());
        ok(collprobeGroupStart());
        ok(collprobeAllReduce(
            first.data(), first.data(), count, ncclFloat32, ncclAvg, own.probe, own.stream));
        ok(collprobeGroupEnd());
        ok(collprobeAllReduce(
            second.data(), second.data(), count, ncclFloat32, ncclAvg, own.probe, own.stream));
        ok(collprobeGroupEnd());
        finish_step(own, 0);
        const auto found = findings_of(own.probe);
        require(found.size() == 1 && found[0].rank == 1 && found[0].call == "all_reduce#1"
                && found[0].element == 7,
            found.empty() ? "none" : found[0].text);
    });
}

TEST_CASE("the guarded gather: rows of a producer's stream come to a consumer's")
{
    constexpr int ranks = 2;
    run_nccl_probes(ranks, [&](nccl_rank& own) {
        const cuda::stream producer, consumer;
        gpu_vector<float> shard(count), all(ranks * (count + 16)), copy(ranks * (count + 16));
        // Late work of the producer, which nothing but the events orders.
        const std::vector<float> values = numbers_of(own.rank, 5, count);
        cuda::pinned_buffer<float> late(count);
        std::copy(values.begin(), values.end(), late.begin());
        cuda::device::copy(producer, view<const float>(late.data(), count), view<float>(shard.memory));
        const collprobeStream_t before[] = {producer.get()};
        const collprobeStream_t behind[] = {consumer.get()};
        ok(collprobeCopyThenAllGather(shard.data(), count, all.data(), count + 16, ncclFloat32, own.probe,
            own.stream, before, 1, behind, 1));
        cuda::device::copy(consumer, view<const float>(view<float>(all.memory)), view<float>(copy.memory));
        const std::vector<float> gathered = copy.get(behind[0]);
        for (std::size_t r = 0; r < ranks; ++r) {
            const std::vector<float> wanted = numbers_of(static_cast<int>(r), 5, count);
            const auto begin = gathered.begin() + static_cast<std::ptrdiff_t>(r * (count + 16));
            require(std::vector<float>(begin, begin + count) == wanted, "a shard");
            require(
                std::vector<float>(begin + count, begin + count + 16) == std::vector<float>(16), "its zeros");
        }
        finish_step(own, 5);
        require(value_of(own.probe, "calls") == 1, "the gather is a call of the step");
        require_silence(own.probe);
    });
}

TEST_CASE("every type and operation of NCCL is passed on")
{
    run_nccl_probes(2, [&](nccl_rank& own) {
        const int types[] = {ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16,
            ncclFloat32, ncclFloat64, ncclBfloat16};
        gpu_vector<double> send{std::vector<double>(64)}, receive{std::vector<double>(64)};
        for (const int type : types) {
            for (int op = ncclSum; op <= ncclAvg; ++op) {
                ok(collprobeAllReduce(send.data(), receive.data(), 32, type, op, own.probe, own.stream));
                ok(collprobeReduceScatter(send.data(), receive.data(), 16, type, op, own.probe, own.stream));
            }
            ok(collprobeAllGather(send.data(), receive.data(), 16, type, own.probe, own.stream));
        }
        finish_step(own, 0);
        require(value_of(own.probe, "calls") == 4 * 11, "floating-point calls");
        require(value_of(own.probe, "calls_not_read") == 6 * 11, "integer calls");

        // Operands and their sum, by type.
        gpu_vector<std::int32_t> whole(std::vector<std::int32_t>{own.rank + 1, 10 - own.rank});
        ok(collprobeAllReduce(whole.data(), whole.data(), 2, ncclInt32, ncclProd, own.probe, own.stream));
        require(whole.get(own.stream) == std::vector<std::int32_t>{2, 90}, "the product");
    });
}

TEST_CASE("the loss is read from the GPU's memory, where it may change behind the call")
{
    run_nccl_probes(2, [&](nccl_rank& own) {
        gpu_vector<float> loss(std::vector<float>{1.5f + static_cast<float>(own.rank)});
        collprobeStep_t seen = COLLPROBE_STEP_INIT;
        seen.deviceLoss = loss.data();
        seen.weight = own.rank + 1.0;
        for (std::uint64_t step = 0; step < 12; ++step) {
            ok(collprobeEndStep(own.probe, step, &seen, own.stream));
            ok(collprobePoll(own.probe, 1));
            require(value_of(own.probe, "loss", 1) == 2.5, "the loss");
            require(value_of(own.probe, "loss.weighted_mean") == (1.5 + 2 * 2.5) / 3, "the weights");
        }
    });
}

TEST_CASE("mistakes around NCCL are ncclResult_t, with a sentence")
{
    collprobeProbe_t none = nullptr;
    invalid(collprobeCreateNccl(&none, nullptr, nullptr), "collprobeCreateNccl", "comm is null");
    run_nccl_probes(2, [&](nccl_rank& own) {
        gpu_vector<float> data{std::vector<float>(count)};
        const auto reduce = [&](const void* from, void* to, int type, int op, const char* words) {
            const ncclResult_t result = collprobeAllReduce(from, to, count, type, op, own.probe, own.stream);
            refused(result, ncclInvalidArgument, "collprobeAllReduce", words);
        };
        reduce(data.data(), data.data(), 12, 0, "datatype");
        reduce(data.data(), data.data(), 7, 5, "op ");
        reduce(nullptr, data.data(), 7, 0, "null");
        reduce(data.data(), nullptr, 7, 0, "null");
        reduce(COLLPROBE_NO_BUFFER, data.data(), 7, 0, "sendbuff");
        reduce(reinterpret_cast<char*>(data.data()) + 2, data.data(), 7, 0, "align");
        const auto gather = [&](std::size_t elements, std::size_t slot, const collprobeStream_t* streams,
                                int number, const char* words) {
            refused(collprobeCopyThenAllGather(data.data(), elements, data.data() + 50, slot, 7, own.probe,
                        own.stream, streams, number, nullptr, 0),
                ncclInvalidArgument, "collprobeCopyThenAllGather", words);
        };
        gather(4, 3, nullptr, 0, "slotCount is below count");
        gather(4, SIZE_MAX / 2, nullptr, 0, "slotCount is impossibly large");
        gather(4, 4, nullptr, 1, "producers is null");
        gather(4, 4, nullptr, -1, "producers is null");
        refused(collprobeGroupEnd(), ncclInvalidArgument, "collprobeGroupEnd", "no collprobeGroupStart");
        // The end of NCCL's own group is told by nothing.
        require(ncclGroupStart() == ncclSuccess, "ncclGroupStart");
        refused(collprobeAllReduce(data.data(), data.data(), count, 7, 0, own.probe, own.stream),
            ncclInvalidUsage, "collprobeAllReduce", "ncclGroupStart");
        require(ncclGroupEnd() == ncclSuccess, "ncclGroupEnd");
        // And the communicator works on.
        ok(collprobeAllReduce(data.data(), data.data(), count, 7, 0, own.probe, own.stream));
        finish_step(own, 0);
        require_silence(own.probe);
    });
}

TEST_CASE(
    "buffers of a GPU around any library: reads on the caller's stream, messages by the caller's function")
{
    constexpr int ranks = 3;
    const clean_stand_in clean;
    run_c_ranks(ranks, [&](c_rank& own) {
        const cuda::device_guard current(own.rank);
        const cuda::stream made;
        const cudaStream_t stream = made.get();
        collprobeOptions_t options = own.options();
        options.device = collprobeCuda;
        ok(collprobeCreate(&own.probe, own.rank, ranks, &options));
        gpu_vector<float> data(count), loss(1);
        cuda::pinned_buffer<float> pinned(count), result(count), number(1);
        const cuda::device_guard elsewhere(7); // calls do not ask for the current device
        for (std::uint64_t step = 0; step < 9; ++step) {
            const std::vector<float> input = numbers_of(own.rank, step, count);
            std::vector<float> sum = sum_of(ranks, step, count);
            std::copy(input.begin(), input.end(), pinned.begin());
            if (own.rank == 1 && step == 6) pinned[11] = std::numeric_limits<float>::infinity();
            if (step == 6) sum[11] = std::numeric_limits<float>::infinity();
            std::copy(sum.begin(), sum.end(), result.begin());
            // All in the order of the stream, and in place: input, read, result, read.
            cuda::device::copy(made, view<const float>(pinned.data(), count), view<float>(data.memory));
            std::uint64_t token = 0;
            ok(collprobeObserveInput(own.probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum,
                data.data(), count, "wte", stream, &token));
            cuda::device::copy(made, view<const float>(result.data(), count), view<float>(data.memory));
            ok(collprobeObserveResult(own.probe, token, data.data(), count, stream));
            number[0] = 0.5f + static_cast<float>(step);
            cuda::device::copy(made, view<const float>(number.data(), 1), view<float>(loss.memory));
            ok(collprobeExpectBuffer(
                own.probe, collprobeEqual, "result", collprobeFloat32, data.data(), count, stream));
            collprobeStep_t seen = COLLPROBE_STEP_INIT;
            seen.deviceLoss = loss.data();
            ok(collprobeEndStep(own.probe, step, &seen, stream));
            cuda::device::zero(made, view<float>(loss.memory)); // the step has the loss from before
            ok(collprobePoll(own.probe, 1));
            require(value_of(own.probe, "loss", 2) == 0.5 + static_cast<double>(step), "the loss");
            const auto found = findings_of(own.probe);
            if (step == 6) {
                require(found.size() == 1 && found[0].rank == 1 && found[0].call == "wte"
                        && found[0].element == 11,
                    found.empty() ? "none" : found[0].text);
            } else {
                require(found.empty(), found.empty() ? "" : found[0].text);
                double squares = 0;
                for (const float value : numbers_of(2, step, count)) squares += double(value) * value;
                require(std::abs(value_of(own.probe, "gradient_norm", 2) - std::sqrt(squares)) < 1e-4,
                    "the norm");
            }
        }
        require(cudaStreamSynchronize(stream) == cudaSuccess, "cudaStreamSynchronize"); // it writes the loss
        ok(collprobeDestroy(own.probe));
    });
}

TEST_CASE("no stream waits for the caller's function: the device is synchronised while a peer is away")
{
    const clean_stand_in clean;
    struct held {
        std::atomic<bool> is_let_go{false};
        static int all_gather(void* context, const void* send, void* receive, std::size_t bytes)
        {
            auto& of = *static_cast<held*>(context);
            for (int ms = 0; !of.is_let_go && ms < soon_ms; ++ms)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            std::memcpy(receive, send, bytes);
            return of.is_let_go ? 0 : 1;
        }
    } of;
    collprobeOptions_t options = COLLPROBE_OPTIONS_INIT;
    options.device = collprobeCuda;
    options.allGather = &held::all_gather;
    options.context = &of;
    collprobeProbe_t probe = nullptr;
    ok(collprobeCreate(&probe, 0, 1, &options));
    const cuda::stream made;
    const gpu_vector<float> data(std::vector<float>(count, 1.0f));
    std::uint64_t token = 0;
    for (std::uint64_t step = 0; step < 3; ++step) {
        ok(collprobeObserveInput(probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum, data.data(),
            count, nullptr, made.get(), &token));
        ok(collprobeObserveResult(probe, token, data.data(), count, made.get()));
        ok(collprobeEndStep(probe, step, nullptr, made.get()));
        CHECK(collprobePoll(probe, 0) == collprobeNotReady);
        CHECK(cudaDeviceSynchronize() == cudaSuccess);
    }
    of.is_let_go = true;
    for (int step = 0; step < 3; ++step) ok(collprobePoll(probe, 1));
    CHECK(value_of(probe, "gradient_norm", 0) == doctest::Approx(std::sqrt(240.0)));
    ok(collprobeDestroy(probe));
}

TEST_CASE("a call on a stream that is captured is refused, because a graph would repeat the reads alone")
{
    const clean_stand_in clean;
    run_c_ranks(1, [&](c_rank& own) {
        const cuda::stream made;
        collprobeOptions_t options = own.options();
        options.device = collprobeCuda;
        ok(collprobeCreate(&own.probe, 0, 1, &options));
        const gpu_vector<float> data(numbers_of(own.rank, 0, count));
        require(cudaStreamBeginCapture(made.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess, "capture");
        std::uint64_t token = 0;
        refused(collprobeObserveInput(own.probe, collprobeAllReduceCall, collprobeFloat32, collprobeSum,
                    data.data(), count, "a", made.get(), &token),
            collprobeUnsupported, "collprobeObserveInput", "capturing");
        cudaGraph_t graph = nullptr;
        require(cudaStreamEndCapture(made.get(), &graph) == cudaSuccess, "the capture goes on");
        if (graph != nullptr) (void)cudaGraphDestroy(graph);
        ok(collprobeDestroy(own.probe));
    });
}

} // namespace collprobe::testing::device_stand_in_test
