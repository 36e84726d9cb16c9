// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nccl.h>
#include <nvtx3/nvToolsExt.h>

#include <collprobe/core/element.hpp>
#include <collprobe/detail/hexadecimal.hpp>

#include "examples/preload/engine/communicator.hpp"
#include "tests/preload/engine_process.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"

namespace collprobe::testing::engine_stand_in_test {

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables);

namespace {

ncclUniqueId new_id()
{
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    return id;
}

std::string digest_text(std::uint64_t of) { return "\"digest\":\"" + detail::hexadecimal(of) + "\""; }
bool contains(const std::string& line, const std::string& text) { return line.find(text) != line.npos; }
engine_process& engine() { return engine_process::instance(); }

/// How often a reason to skip a call is in the last coverage of a rank.
std::string last_coverage(const std::string& name, int rank)
{
    const auto lines = engine().lines_of(name, "coverage", rank);
    return lines.empty() ? std::string() : lines.back();
}

} // namespace

TEST_CASE("a call's line has what the rank sent and got, in place and not")
{
    constexpr int ranks = 3;
    const ncclUniqueId id = new_id();
    std::vector<std::uint64_t> results(ranks);
    const auto real_calls = [] { return std::pair(stand_in::calls("ncclAllReduce"), stand_in::calls("ncclAllGather")); };
    const auto before = real_calls();
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, "plain");
        const cuda::stream own;
        const cudaStream_t stream = own.get();
        const auto send = random_buffer(3000, static_cast<unsigned>(rank));
        const auto receive = random_buffer(3000, 7);
        REQUIRE(comm.all_reduce(send.data(), receive.data(), 3000, ncclFloat32, ncclSum, stream) == ncclSuccess);
        own.synchronize();
        results[static_cast<std::size_t>(rank)] = digest_now(receive);
        REQUIRE(comm.all_reduce(receive.data(), receive.data(), 3000, ncclFloat32, ncclAvg, stream) == ncclSuccess);
        const auto parts = random_buffer(3000, 8);
        REQUIRE(comm.reduce_scatter(send.data(), parts.data(), 1000, ncclFloat32, ncclSum, stream) == ncclSuccess);
        REQUIRE(comm.all_gather(parts.data(), receive.data(), 1000, ncclFloat32, stream) == ncclSuccess);
        REQUIRE(comm.broadcast(receive.data(), 3000, ncclInt32, stream) == ncclSuccess);
        own.synchronize();
        comm.destroy();
    });
    // The engine makes none of its own.
    CHECK(real_calls() == std::pair(before.first + 2 * ranks, before.second + ranks));
    for (int rank = 0; rank < ranks; ++rank) {
        const auto calls = engine().lines_of("plain", "call", rank);
        REQUIRE(calls.size() == 5);
        CHECK(contains(calls[0], digest_text(results[static_cast<std::size_t>(rank)])));
        CHECK(contains(calls[0], "\"collective_seq_id\":0,"));
        CHECK(contains(calls[0], "\"call\":\"all_reduce\",\"type\":\"float\",\"reduction\":\"sum\""));
        CHECK(contains(calls[0], "\"in_place\":false"));
        CHECK(contains(calls[1], "\"reduction\":\"average\""));
        CHECK(contains(calls[1], "\"in_place\":true"));
        CHECK(contains(calls[2], "\"input_sizes\":[[3000]],\"output_sizes\":[[1000]]"));
        CHECK(contains(calls[2], "\"sketch\":\""));
        CHECK(contains(calls[3], "\"input_sizes\":[[1000]],\"output_sizes\":[[3000]]"));
        CHECK_FALSE(contains(calls[3], "\"sketch\":\""));
        CHECK(contains(calls[4], "\"has_input\":false,\"has_result\":true"));
        CHECK(contains(last_coverage("plain", rank), "\"calls\":5,\"probed\":5,\"skipped\":{}"));
        CHECK(engine().lines_of("plain", "comm_end", rank).size() == 1);
    }
}

TEST_CASE("a call's tag is its step, a factor of its reduction is in its line, and a captured call is counted alone")
{
    constexpr int ranks = 2;
    const ncclUniqueId id = new_id();
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, "special");
        const cuda::stream own;
        const cudaStream_t stream = own.get();
        const auto buffer = random_buffer(1000, 1u);
        comm.tag = 41;
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 1000, ncclFloat32, ncclSum, stream) == ncclSuccess);
        comm.tag.reset();
        const ncclRedOp_t half = comm.make_sum_of_products(0.5f);
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 1000, ncclFloat32, half, stream) == ncclSuccess);
        own.synchronize();
        cudaGraph_t graph = nullptr;
        REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 1000, ncclFloat32, ncclSum, stream) == ncclSuccess);
        REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
        comm.destroy();
    });
    for (int rank = 0; rank < ranks; ++rank) {
        const auto calls = engine().lines_of("special", "call", rank);
        REQUIRE(calls.size() == 2);
        CHECK(contains(calls[0], "\"step\":41,\"bucket\":0,\"step_source\":\"tag\""));
        CHECK_FALSE(contains(calls[1], "\"tag\""));
        CHECK(contains(calls[1], "\"scale\":0.5,"));
        CHECK(contains(last_coverage("special", rank), "\"calls\":3,\"probed\":2,\"skipped\":{\"capture\":1}"));
    }
}

TEST_CASE("a5: calls of a group that fails or is simulated have no result, and the next ones have")
{
    constexpr int ranks = 2;
    const ncclUniqueId id = new_id();
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, "failing group");
        const cuda::stream own;
        const cudaStream_t stream = own.get();
        const auto buffer = random_buffer(1000, 1u);
        group_start();
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 1000, ncclFloat32, ncclSum, stream) == ncclSuccess);
        REQUIRE(comm.all_reduce(nullptr, nullptr, 1000, ncclFloat32, ncclSum, stream) == ncclInvalidArgument);
        REQUIRE(group_end() == ncclInvalidArgument);
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 1000, ncclFloat32, ncclSum, stream) == ncclSuccess);
        own.synchronize();
        comm.destroy();
    });
    for (int rank = 0; rank < ranks; ++rank) {
        const auto calls = engine().lines_of("failing group", "call", rank);
        REQUIRE(calls.size() == 1);
        CHECK(contains(calls[0], "\"collective_seq_id\":2,"));
        CHECK(contains(last_coverage("failing group", rank), "\"calls\":3,\"probed\":1,"));
        CHECK(contains(last_coverage("failing group", rank), "\"skipped\":{\"group\":1,\"type\":1}"));
    }
}

TEST_CASE("a6: results of a non-blocking communicator are read when NCCL says that it has enqueued them")
{
    constexpr int ranks = 2;
    const ncclUniqueId id = new_id();
    std::vector<std::uint64_t> results(ranks);
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, "non-blocking", false);
        REQUIRE(comm.settle() == ncclSuccess);
        const cuda::stream own;
        const cudaStream_t stream = own.get();
        const auto buffer = random_buffer(5000, static_cast<unsigned>(rank));
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 5000, ncclFloat32, ncclSum, stream) == ncclInProgress);
        REQUIRE(comm.settle() == ncclSuccess);
        own.synchronize();
        results[static_cast<std::size_t>(rank)] = digest_now(buffer);
        // What the program does behind its poll comes behind the read of the result.
        REQUIRE(cudaMemsetAsync(buffer.data(), 0, 5000 * sizeof(float), stream) == cudaSuccess);
        own.synchronize();
        REQUIRE(ncclCommFinalize(comm.comm()) == ncclInProgress);
        REQUIRE(comm.settle() == ncclSuccess);
        comm.destroy();
    });
    for (int rank = 0; rank < ranks; ++rank) {
        const auto calls = engine().lines_of("non-blocking", "call", rank);
        REQUIRE(calls.size() == 1);
        CHECK(contains(calls[0], digest_text(results[static_cast<std::size_t>(rank)])));
    }
}

TEST_CASE("a6: a call of a communicator that is aborted before it is enqueued is dropped and counted")
{
    constexpr int ranks = 2;
    const ncclUniqueId id = new_id();
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, "aborted early", false);
        REQUIRE(comm.settle() == ncclSuccess);
        stand_in::nccl::set_launch_delay_ms(-1);
        const cuda::stream own;
        const cudaStream_t stream = own.get();
        const auto buffer = random_buffer(500, 1u);
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 500, ncclFloat32, ncclSum, stream) == ncclInProgress);
        CHECK(comm.poll() == ncclInProgress);
        comm.abort();
        own.synchronize();
    });
    stand_in::nccl::set_launch_delay_ms(1);
    for (int rank = 0; rank < ranks; ++rank) {
        engine().await_lines(
            {"\"kind\":\"comm_end\"", engine().key_of("aborted early"), "\"writer\":" + std::to_string(rank) + ","}, 1);
        CHECK(engine().lines_of("aborted early", "call", rank).empty());
        CHECK(contains(last_coverage("aborted early", rank), "\"calls\":1,\"probed\":0"));
    }
}

TEST_CASE("a7: an abort by a second thread frees the first one, and nothing of the communicator is used any more")
{
    constexpr int ranks = 2;
    const ncclUniqueId id = new_id();
    run_threads(ranks, [&](int rank) {
        preloaded_rank comm(id, rank, ranks, "aborted");
        const cuda::stream own;
        const cudaStream_t stream = own.get();
        const auto buffer = random_buffer(500, 1u);
        REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 500, ncclFloat32, ncclSum, stream) == ncclSuccess);
        own.synchronize();
        if (rank == 0) { // the peer never comes
            REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 500, ncclFloat32, ncclSum, stream) == ncclSuccess);
            std::thread watchdog([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                comm.abort();
            });
            own.synchronize();
            watchdog.join();
        } else {
            comm.abort();
        }
    });
    engine().await_lines({"\"kind\":\"comm_end\"", engine().key_of("aborted"), "\"abort\""}, 2);
    CHECK(engine().lines_of("aborted", "call", 1).size() <= 1);
    CHECK(engine().lines_with({"\"kind\":\"comm_end\"", engine().key_of("aborted"), "\"abort\""}).size() == 2);
}

TEST_CASE("what is made of a communicator has one key on all its ranks, and others have others; revoked, it is read no more")
{
    constexpr int ranks = 4;
    const ncclUniqueId id = new_id();
    const ncclUniqueId ids[] = {new_id(), new_id(), new_id(), new_id()};
    const int excluded = 3;
    run_threads(ranks, [&](int rank) {
        preloaded_rank whole(id, rank, ranks, "whole");
        const bool is_odd = rank % 2 == 1;
        preloaded_rank half(whole, made_by(collprobe_split, rank % 2), ids[is_odd ? 1 : 0], rank / 2, 2,
            is_odd ? "odd half" : "even half");
        preloaded_rank grown(whole, made_by(collprobe_grow), ids[2], rank, ranks, "grown");
        whole.revoke();
        if (rank != 3) { // ranks that are left out make no call
            preloaded_rank less(whole, made_by(collprobe_shrink, 0, &excluded), ids[3], rank, 3, "less");
            less.destroy();
        }
        const cuda::stream own;
        const auto buffer = random_buffer(500, 1u);
        for (preloaded_rank* const each : {&whole, &half, &grown})
            REQUIRE(each->all_reduce(buffer.data(), buffer.data(), 500, ncclFloat32, ncclSum, own.get()) == ncclSuccess);
        own.synchronize();
        for (preloaded_rank* const each : {&half, &grown, &whole}) each->destroy();
    });
    const std::string parent = engine().key_of("whole");
    std::set<std::string> keys{parent};
    const std::pair<const char*, std::size_t> made[] = {{"even half", 2}, {"odd half", 2}, {"grown", 4}, {"less", 3}};
    for (const auto& each : made) {
        const char* const name = each.first;
        CAPTURE(name);
        const std::string key = engine().key_of(name);
        CHECK(keys.insert(key).second);
        const std::string of = "\"parent\":" + parent.substr(parent.find(':') + 1);
        CHECK(engine().lines_with({"\"kind\":\"comm\"", key, of, std::string("\"name\":\"") + name + '"'}).size() == each.second);
    }
    CHECK(engine().lines_of("even half", "call", 1).size() == 1);
    CHECK(engine().lines_of("whole", "call", 0).empty());
}

TEST_CASE("a13: communicators that come and go use the same memory")
{
    constexpr int ranks = 2;
    const auto round = [&](const char* name) {
        const ncclUniqueId id = new_id();
        run_threads(ranks, [&](int rank) {
            preloaded_rank comm(id, rank, ranks, name);
            const cuda::stream own;
        const cudaStream_t stream = own.get();
            const auto buffer = random_buffer(800, 1u);
            REQUIRE(comm.all_reduce(buffer.data(), buffer.data(), 800, ncclFloat32, ncclSum, stream) == ncclSuccess);
            own.synchronize();
            comm.destroy();
        });
    };
    round("first");
    round("second");
    const std::size_t live = stand_in::live_allocations();
    for (int i = 0; i < 20; ++i) round("again");
    CHECK(stand_in::live_allocations() <= live);
    const auto lines = engine().lines_with({"\"kind\":\"comm\"", "\"name\":\"first\""});
    REQUIRE(lines.size() == 2);
    const std::size_t at = lines[0].find("\"device_bytes\":") + 15;
    const unsigned long long bytes = std::stoull(lines[0].substr(at));
    CHECK(bytes > 0);
    CHECK(bytes <= 8u << 20);
}

namespace {

// NVTX as it asks an injection for its functions.
int (*nvtx_push)(const char*) = nullptr;
int (*nvtx_push_ex)(const nvtxEventAttributes_t*) = nullptr;
NvtxFunctionPointer* core_functions[NVTX_CBID_CORE_SIZE] = {};

int give_functions(NvtxCallbackModule module, NvtxFunctionTable* table, unsigned int* size)
{
    if (module != NVTX_CB_MODULE_CORE) return 0;
    core_functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer*>(&nvtx_push);
    core_functions[NVTX_CBID_CORE_RangePushEx] = reinterpret_cast<NvtxFunctionPointer*>(&nvtx_push_ex);
    *table = core_functions;
    *size = NVTX_CBID_CORE_SIZE;
    return 1;
}

const void* give_tables(std::uint32_t which)
{
    static const NvtxExportTableCallbacks callbacks{sizeof(NvtxExportTableCallbacks), give_functions};
    return which == NVTX_ETID_CALLBACKS ? &callbacks : nullptr;
}

} // namespace

TEST_CASE("ranges of NVTX with the name of a step tell it, others do not")
{
    const auto& told = collprobe_preload::told_step::only;
    REQUIRE(InitializeInjectionNvtx2(give_tables) == 1);
    REQUIRE((nvtx_push != nullptr));
    REQUIRE((nvtx_push_ex != nullptr));
    nvtx_push("training_step_41");
    CHECK(told.step == 41);
    CHECK(static_cast<collprobe_preload::step_source>(told.source.load()) == collprobe_preload::step_source::nvtx);
    const std::uint64_t serial = told.serial;
    for (const char* const other : {"forward", "training_step_", "training_ste"}) nvtx_push(other);
    CHECK(told.serial == serial);
    nvtxEventAttributes_t range{};
    range.messageType = NVTX_MESSAGE_TYPE_ASCII;
    range.message.ascii = "training_step_42 of 100";
    nvtx_push_ex(&range);
    CHECK(told.step == 42);
}

} // namespace collprobe::testing::engine_stand_in_test
