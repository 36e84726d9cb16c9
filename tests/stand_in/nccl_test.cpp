// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What the tests without a GPU take for granted of NCCL: checked over the stand-in, and over NCCL itself where there
// are GPUs. Ranks are threads with a device each. Nothing here may use what only a stand-in has.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <latch>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "stand_in/runtime_objects.hpp"
#include "support/upload.hpp"

namespace collprobe::testing::nccl_test {
namespace {

/// One float of a rank on its device.
struct device_float {
    float* value = nullptr;

    explicit device_float(float begin)
    {
        REQUIRE(cudaMalloc(reinterpret_cast<void**>(&value), sizeof(float)) == cudaSuccess);
        upload(value, &begin, 1);
    }
    device_float(const device_float&) = delete;
    ~device_float() { (void)cudaFree(value); }
    float get() const
    {
        float seen = -1;
        CHECK(cudaMemcpy(&seen, value, sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
        return seen;
    }
};

/// Runs `body(rank, comm)` on each rank, which ends the communicator, or says so where there are too few devices.
template <class Body>
void run(int ranks, Body body)
{
    if (device_count() < ranks) {
        MESSAGE("SKIPPED: needs ", ranks, " devices");
        return;
    }
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            CHECK(cudaSetDevice(rank) == cudaSuccess);
            ncclComm_t comm = nullptr;
            REQUIRE(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);
            body(rank, comm);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

ncclResult_t sum(const device_float& of, ncclComm_t comm, cudaStream_t on)
{
    return ncclAllReduce(of.value, of.value, 1, ncclFloat32, ncclSum, comm, on);
}

} // namespace

TEST_CASE("a collective runs on its stream, in the order of the stream, when all ranks have come to it")
{
    std::latch first_called{1};
    run(2, [&](int rank, ncclComm_t comm) {
        const runtime_stream stream;
        const device_float value(static_cast<float>(rank + 1));
        if (rank == 1) first_called.wait();
        CHECK(sum(value, comm, stream.handle) == ncclSuccess);
        if (rank == 0) {
            a_while();
            CHECK(cudaStreamQuery(stream.handle) == cudaErrorNotReady); // the call itself has returned
            first_called.count_down();
        }
        CHECK(sum(value, comm, stream.handle) == ncclSuccess);
        CHECK(stream.synchronize());
        CHECK(value.get() == 6);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    });
}

TEST_CASE("in a group nothing is enqueued before its end")
{
    run(2, [](int rank, ncclComm_t comm) {
        const runtime_stream stream;
        const device_float value(static_cast<float>(rank + 1));
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(sum(value, comm, stream.handle) == ncclSuccess);
        a_while();
        CHECK(cudaStreamQuery(stream.handle) == cudaSuccess);
        CHECK(value.get() == static_cast<float>(rank + 1));
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(stream.synchronize());
        CHECK(value.get() == 3);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    });
}

TEST_CASE("a communicator of one rank enqueues at once, in a group too")
{
    run(1, [](int, ncclComm_t comm) {
        const runtime_stream stream;
        const device_float from(5);
        const device_float to(0);
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(ncclAllReduce(from.value, to.value, 1, ncclFloat32, ncclSum, comm, stream.handle) == ncclSuccess);
        CHECK(stream.synchronize());
        CHECK(to.get() == 5);
        CHECK(ncclGroupEnd() == ncclSuccess);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    });
}

TEST_CASE("an abort ends what waits for a peer, without an error of the stream")
{
    run(2, [](int rank, ncclComm_t comm) {
        const runtime_stream stream;
        const device_float value(1);
        if (rank == 0) {
            CHECK(sum(value, comm, stream.handle) == ncclSuccess);
            a_while();
            CHECK(cudaStreamQuery(stream.handle) == cudaErrorNotReady);
        }
        CHECK(ncclCommAbort(comm) == ncclSuccess);
        CHECK(stream.synchronize());
    });
}

TEST_CASE("ranks of one color become a communicator, ordered by key")
{
    run(2, [](int rank, ncclComm_t comm) {
        ncclComm_t together = nullptr;
        ncclComm_t alone = nullptr;
        ncclComm_t none = comm;
        CHECK(ncclCommSplit(comm, 0, -rank, &together, nullptr) == ncclSuccess);
        CHECK(ncclCommSplit(comm, rank, 0, &alone, nullptr) == ncclSuccess);
        CHECK(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, nullptr) == ncclSuccess);
        int size = 0;
        int own = -1;
        CHECK(ncclCommCount(together, &size) == ncclSuccess);
        CHECK(size == 2);
        CHECK(ncclCommUserRank(together, &own) == ncclSuccess);
        CHECK(own == 1 - rank);
        CHECK(ncclCommCount(alone, &size) == ncclSuccess);
        CHECK(size == 1);
        CHECK((none == nullptr) == (rank == 0));
        for (const ncclComm_t part : {together, alone, none}) {
            if (part != nullptr) CHECK(ncclCommDestroy(part) == ncclSuccess);
        }
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    });
}

TEST_CASE("a non-blocking communicator is made in the background")
{
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    CHECK((begun == ncclSuccess || begun == ncclInProgress));
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) REQUIRE(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    CHECK(state == ncclSuccess);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("the end of a group that was not begun is refused")
{
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
}

} // namespace collprobe::testing::nccl_test
