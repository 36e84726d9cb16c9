// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <collprobe/device/cuda/device.hpp>
#include <collprobe/scan/digest.hpp>

#include "examples/preload/engine/engine.hpp"
#include "tests/support/run_ranks.hpp"

/// The engine in the test's own process, and calls of the NCCL stand-in around which its hooks are called, as
/// the first stage calls them. Ranks are threads.
namespace collprobe::testing {

/// The engine of this process, opened with every step probed, and its file.
class engine_process {
public:
    static engine_process& instance()
    {
        static engine_process* const only = new engine_process;
        return *only;
    }

    const collprobe_hooks& hooks() const { return *hooks_; }
    const collprobe_nccl* nccl() const { return &nccl_; }

    /// The lines of the file that have all of these texts.
    std::vector<std::string> lines_with(const std::vector<std::string>& texts) const
    {
        std::vector<std::string> found;
        for (const auto& each : std::filesystem::directory_iterator(folder_)) {
            std::ifstream file(each.path());
            for (std::string line; std::getline(file, line);) {
                bool has_all = true;
                for (const std::string& text : texts) has_all = has_all && line.find(text) != line.npos;
                if (has_all) found.push_back(line);
            }
        }
        return found;
    }
    /// Waits until there are so many such lines, for up to 60 s. How many there are.
    std::size_t await_lines(const std::vector<std::string>& texts, std::size_t count) const
    {
        for (int i = 0; i < 6000 && lines_with(texts).size() < count; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return lines_with(texts).size();
    }

    /// The key, as the lines have it, of the communicator with this name; waits for its line.
    std::string key_of(const std::string& name) const
    {
        const std::string text = "\"name\":\"" + name + "\"";
        if (await_lines({"\"kind\":\"comm\"", text}, 1) == 0) return "none";
        const std::string line = lines_with({"\"kind\":\"comm\"", text}).front();
        const std::size_t begin = line.find("\"comm\":\"") + 8;
        return line.substr(begin - 8, line.find('"', begin + 1) - begin + 9);
    }
    /// The lines of a kind about the communicator with this name, by one of its ranks.
    std::vector<std::string> lines_of(const std::string& name, const std::string& kind, int rank) const
    {
        return lines_with({"\"kind\":\"" + kind + "\"", key_of(name), "\"writer\":" + std::to_string(rank) + ","});
    }

private:
    engine_process()
    {
        folder_ = std::filesystem::temp_directory_path() / ("engine_test." + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        if (std::getenv("KEEP") == nullptr) std::atexit([] { std::filesystem::remove_all(instance().folder_); });
        ::setenv("COLLPROBE_DIR", folder_.c_str(), 1);
        ::setenv("COLLPROBE_EVERY", "1", 1);
        ::setenv("COLLPROBE_MIN_BYTES", "1", 1);
        ::setenv("COLLPROBE_OPS", "all_reduce,reduce_scatter,all_gather,broadcast", 1);
        hooks_ = collprobe_engine_open(COLLPROBE_PRELOAD_ABI);
        if (hooks_ == nullptr) throw std::runtime_error("the engine cannot be opened");
        nccl_.path = "stand-in";
        nccl_.all_gather = [](const void* send, void* receive, std::size_t count, int type, void* comm, void* stream) {
            return static_cast<int>(ncclAllGather(send, receive, count, static_cast<ncclDataType_t>(type),
                static_cast<ncclComm_t>(comm), static_cast<cudaStream_t>(stream)));
        };
        nccl_.comm_count = [](void* comm, int* count) {
            return static_cast<int>(ncclCommCount(static_cast<ncclComm_t>(comm), count));
        };
        nccl_.comm_user_rank = [](void* comm, int* rank) {
            return static_cast<int>(ncclCommUserRank(static_cast<ncclComm_t>(comm), rank));
        };
    }

    std::filesystem::path folder_;
    const collprobe_hooks* hooks_ = nullptr;
    collprobe_nccl nccl_{};
};

/// Open groups of the thread, as the first stage counts them.
inline thread_local unsigned open_groups = 0;

/// Memory of the device with random numbers.
inline cuda::buffer<float> random_buffer(std::size_t count, unsigned seed)
{
    cuda::buffer<float> made(count);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float* each = made.data(); each != made.data() + count; ++each) *each = normal(random);
    return made;
}
inline std::uint64_t digest_now(const cuda::buffer<float>& of) { return digest(view<const float>(of.data(), of.size())); }

/// A split, shrink or grow as the first stage tells it.
inline collprobe_made made_by(collprobe_origin origin, int color = 0, const int* excluded = nullptr)
{
    collprobe_made made{};
    made.origin = origin;
    made.color = color;
    made.excluded = excluded;
    made.excluded_count = excluded != nullptr ? 1 : 0;
    return made;
}

/// One rank of a communicator, with calls as a program under the preload makes them.
class preloaded_rank {
public:
    preloaded_rank(const ncclUniqueId& id, int rank, int ranks, const char* name, bool blocking = true)
        : all_(engine_process::instance())
    {
        collprobe_made made{};
        made.id = &id;
        made.id_bytes = sizeof id;
        made.ranks = ranks;
        made.rank = rank;
        make(id, rank, ranks, name, blocking, made);
    }
    /// What a split, shrink or grow makes of the parent, as `how` tells it.
    preloaded_rank(
        const preloaded_rank& parent, collprobe_made how, const ncclUniqueId& id, int rank, int ranks, const char* name)
        : all_(parent.all_)
    {
        how.parent = parent.comm_;
        how.ranks = how.rank = -1;
        make(id, rank, ranks, name, true, how);
    }
    preloaded_rank(const preloaded_rank&) = delete;

    std::optional<std::uint64_t> tag; ///< of the next calls: their step
    ncclComm_t comm() const { return comm_; }
    /// The sum of products by the factor.
    ncclRedOp_t make_sum_of_products(float factor)
    {
        ncclRedOp_t made = ncclSum;
        if (ncclRedOpCreatePreMulSum(&made, &factor, ncclFloat32, ncclScalarHostImmediate, comm_) == ncclSuccess)
            all_.hooks().operation_made(comm_, made, &factor, ncclFloat32);
        return made;
    }

    ncclResult_t all_reduce(
        const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t what, cudaStream_t on)
    {
        return around(collprobe_all_reduce, send, receive, count, type, what, on,
            [&] { return ncclAllReduce(send, receive, count, type, what, comm_, on); });
    }
    ncclResult_t all_gather(const void* send, void* receive, std::size_t count, ncclDataType_t type, cudaStream_t on)
    {
        return around(collprobe_all_gather, send, receive, count, type, ncclSum, on,
            [&] { return ncclAllGather(send, receive, count, type, comm_, on); });
    }
    ncclResult_t reduce_scatter(
        const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t what, cudaStream_t on)
    {
        return around(collprobe_reduce_scatter, send, receive, count, type, what, on,
            [&] { return ncclReduceScatter(send, receive, count, type, what, comm_, on); });
    }
    ncclResult_t broadcast(void* buffer, std::size_t count, ncclDataType_t type, cudaStream_t on)
    {
        return around(collprobe_broadcast, buffer, buffer, count, type, ncclSum, on,
            [&] { return ncclBroadcast(buffer, buffer, count, type, 0, comm_, on); });
    }
    ncclResult_t poll()
    {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
        all_.hooks().comm_polled(comm_, result, state);
        return result == ncclSuccess ? state : result;
    }
    /// Polls until the communicator is no longer in progress.
    ncclResult_t settle()
    {
        for (;;) {
            const ncclResult_t now = poll();
            if (now != ncclInProgress) return now;
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    }
    void revoke() { all_.hooks().comm_ends(comm_, collprobe_revoke); }
    void abort()
    {
        all_.hooks().comm_ends(comm_, collprobe_abort);
        ncclCommAbort(comm_);
    }
    void destroy()
    {
        all_.hooks().comm_ends(comm_, collprobe_destroy);
        ncclCommDestroy(comm_);
    }

private:
    void make(const ncclUniqueId& id, int rank, int ranks, const char* name, bool blocking, collprobe_made made)
    {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking ? 1 : 0;
        made.result = ncclCommInitRankConfig(&comm_, ranks, id, rank, &config);
        made.nccl = all_.nccl();
        made.comm = comm_;
        made.name = name;
        made.device = -1;
        made.blocking = blocking ? 1 : 0;
        made.depth = open_groups;
        all_.hooks().comm_made(&made);
    }

    template <class Real>
    ncclResult_t around(int kind, const void* send, void* receive, std::size_t count, ncclDataType_t type,
        ncclRedOp_t what, cudaStream_t on, const Real& real)
    {
        collprobe_call call{};
        call.nccl = all_.nccl();
        call.comm = comm_;
        call.stream = on;
        call.send = send;
        call.receive = receive;
        call.count = count;
        call.kind = kind;
        call.type = type;
        call.operation = what;
        call.tag = tag.value_or(0);
        call.has_tag = tag.has_value();
        call.depth = open_groups;
        all_.hooks().before(&call);
        const ncclResult_t result = real();
        all_.hooks().after(&call, result);
        return result;
    }

    engine_process& all_;
    ncclComm_t comm_ = nullptr;
};

inline void group_start()
{
    if (ncclGroupStart() == ncclSuccess) ++open_groups;
}
inline ncclResult_t group_end()
{
    const ncclResult_t result = ncclGroupEnd();
    if (--open_groups == 0) engine_process::instance().hooks().group_ended(result, 0);
    return result;
}

} // namespace collprobe::testing
