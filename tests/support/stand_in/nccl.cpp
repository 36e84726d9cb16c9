// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tests/support/stand_in/nccl_world.hpp"
#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"

using namespace collprobe::stand_in::nccl;

/// Never freed, only moved to the dead, so that a call after the end is seen and not a crash.
struct ncclComm {
    std::shared_ptr<world> of;
    std::string name; // of the world
    int rank = 0;
    int device = 0;
    bool blocking = true;
    std::atomic<ncclResult_t> state{ncclSuccess};
    std::atomic<int> polls_left{0}; // that are told ncclInProgress though it is over
    std::atomic<bool> aborted{false};
    std::atomic<unsigned> splits{0};
    std::mutex guard; // of what follows
    char last_error[256] = "";
    std::vector<premultiplier> operations; // pre-multiplied sums, by their number; unused: destroyed
    void* scratch = nullptr;
    std::thread launcher;

    void join()
    {
        if (launcher.joinable()) launcher.join();
    }
};

namespace {

struct everything {
    std::mutex guard;
    std::set<ncclComm_t> live;
    std::vector<std::unique_ptr<ncclComm>> all;
    std::uint64_t dead_calls = 0;
    const manners own = first_manners();
    std::atomic<int> launch_delay_ms{own.launch_delay_ms};
};
everything& registry()
{
    static everything* const only = new everything;
    return *only;
}

bool is_live(ncclComm_t comm)
{
    if (comm == nullptr) return false; // which NCCL notices
    everything& all = registry();
    const std::lock_guard lock(all.guard);
    if (all.live.count(comm) != 0) return true;
    ++all.dead_calls;
    return false;
}

ncclComm_t make_comm(std::shared_ptr<world> of, std::string name, int rank, int device, bool blocking)
{
    everything& all = registry();
    const std::lock_guard lock(all.guard);
    all.all.push_back(std::make_unique<ncclComm>());
    const ncclComm_t comm = all.all.back().get();
    comm->of = std::move(of);
    comm->name = std::move(name);
    comm->rank = rank;
    comm->device = device;
    comm->blocking = blocking;
    all.live.insert(comm);
    return comm;
}

void bury(ncclComm_t comm)
{
    everything& all = registry();
    const std::lock_guard lock(all.guard);
    all.live.erase(comm);
}

/// Whether this thread is in a call that NCCL makes of its own public functions.
thread_local bool is_inside = false;
struct inside {
    bool before = std::exchange(is_inside, true);
    inside() = default;
    inside(const inside&) = delete;
    ~inside() { is_inside = before; }
};

/// Counts the calls of a function, and gives out its scripted failures.
using entry = collprobe::stand_in::scripted;

#define COLLPROBE_STAND_IN_ENTER() \
    static entry& own_entry = entry::named(__func__); \
    if (const int scripted_code = own_entry.enter(); scripted_code != 0) return static_cast<ncclResult_t>(scripted_code)

#define COLLPROBE_STAND_IN_ENTER_READY(comm) \
    COLLPROBE_STAND_IN_ENTER(); \
    if (const ncclResult_t not_ready = ensure_ready(comm); not_ready != ncclSuccess) return not_ready

/// A call that a group has collected.
struct collected {
    ncclComm_t comm;
    operation what;
    cudaStream_t on;
};
/// The end of a communicator, which NCCL leaves to the end of the group as well.
struct deferred_end {
    ncclComm_t comm;
    ncclResult_t (*end)(ncclComm_t comm);
};
struct thread_group {
    int depth = 0;
    std::vector<collected> calls;
    std::vector<deferred_end> deferred_ends;
    std::vector<std::function<ncclResult_t()>> forming; // communicators
    ncclResult_t error = ncclSuccess;
};
thread_local thread_group group;

/// The end of a group touches every communicator that has a call in it.
void touch(ncclComm_t comm, const char* why)
{
    if (is_live(comm)) return;
    std::fprintf(stderr, "NCCL stand-in: use after free: ncclGroupEnd %s of a communicator that has been freed\n", why);
}

/// As after any failure: what was collected is dropped, and an abort among it never happens.
ncclResult_t drop_group(ncclResult_t error)
{
    for (const collected& call : group.calls) {
        touch(call.comm, "drops a call");
        if (!call.comm->blocking) call.comm->state = error;
    }
    group.calls.clear();
    group.deferred_ends.clear();
    group.forming.clear();
    group.error = ncclSuccess;
    return error;
}

/// Ends a communicator now, or with the group. Whatever hangs ends at once if it is an abort.
ncclResult_t end_comm(ncclComm_t comm, ncclResult_t (*end)(ncclComm_t comm))
{
    if (group.depth == 0) {
        (void)cudaSetDevice(comm->device); // and leaves it so
        return end(comm);
    }
    for (const deferred_end& other : group.deferred_ends) {
        if (other.comm != comm) continue;
        std::fprintf(stderr, "NCCL stand-in: a group ends a communicator twice, at the same time\n");
        const std::lock_guard lock(registry().guard);
        ++registry().dead_calls;
    }
    group.deferred_ends.push_back({comm, end});
    return ncclSuccess;
}

/// Puts a collective on its stream.
ncclResult_t enqueue_now(ncclComm_t comm, const operation& what, cudaStream_t on)
{
    const auto issue = [of = comm->of, rank = comm->rank, what](collprobe::host::stream_ref stream) {
        stream.enqueue([of, rank, number = of->issue(rank), what] { of->run(rank, number, what); });
    };
    // A default stream is that of the communicator's device.
    const bool is_default = on == nullptr || on == cudaStreamLegacy || on == cudaStreamPerThread;
    int device = comm->device;
    if (is_default && (cudaGetDevice(&device) != cudaSuccess || cudaSetDevice(comm->device) != cudaSuccess)) {
        return ncclUnhandledCudaError;
    }
    collprobe::stand_in::detail::target to;
    cudaError_t code = collprobe::stand_in::detail::resolve(on, to);
    if (code == cudaSuccess) {
        if (to.stream) issue(*to.stream);
        else code = collprobe::stand_in::detail::append(on, issue);
    }
    if (is_default) (void)cudaSetDevice(device);
    return collprobe::stand_in::detail::finish(code) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/// False if a communicator was aborted meanwhile.
bool sleep_before_launch(const std::vector<ncclComm_t>& comms)
{
    const auto aborted = [&comms] {
        return std::any_of(comms.begin(), comms.end(), [](ncclComm_t comm) { return comm->aborted.load(); });
    };
    const int delay_ms = registry().launch_delay_ms;
    for (int slept_ms = 0; delay_ms < 0 || slept_ms < delay_ms; ++slept_ms) {
        if (aborted()) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return !aborted();
}

/// Does `work()` for non-blocking communicators, on the thread of the first: one thread, or ranks could
/// enqueue on a stream in different orders.
template <class Work>
ncclResult_t launch(std::vector<ncclComm_t> comms, Work work)
{
    for (const ncclComm_t comm : comms) {
        comm->state = ncclInProgress;
        comm->polls_left = registry().own.polls - 1;
        comm->join();
    }
    const ncclComm_t first = comms.front();
    first->launcher = std::thread([comms = std::move(comms), work = std::move(work)]() mutable {
        const ncclResult_t result = sleep_before_launch(comms) ? work() : ncclInternalError;
        for (const ncclComm_t comm : comms) comm->state = result;
    });
    return ncclInProgress;
}

/// Does `work()` now, or on another thread later. All `comms` are blocking, or none.
template <class Work>
ncclResult_t run_or_launch(const std::vector<ncclComm_t>& comms, Work work)
{
    if (comms.empty() || comms.front()->blocking) return work();
    return launch(comms, std::move(work));
}
template <class Work>
ncclResult_t run_or_launch(ncclComm_t comm, Work work)
{
    if (comm->blocking) return work();
    return launch({comm}, std::move(work));
}

/// Whether a communicator can be used, as NCCL finds out.
ncclResult_t ensure_ready(ncclComm_t comm)
{
    if (!is_live(comm)) return ncclInvalidArgument;
    if (registry().own.calls_itself) {
        const inside call;
        ncclResult_t state = ncclSuccess;
        (void)ncclCommGetAsyncError(comm, &state);
    }
    return comm->state == ncclInProgress ? ncclInvalidArgument : ncclSuccess;
}

/// Replaces the number of a pre-multiplied sum by what it stands for.
ncclResult_t find_operation(ncclComm_t comm, operation& what)
{
    if (what.reduction < ncclNumOps) return ncclSuccess;
    const auto number = static_cast<std::size_t>(what.reduction - ncclNumOps);
    const std::lock_guard lock(comm->guard);
    if (number >= comm->operations.size() || !comm->operations[number].is_used) return ncclInvalidArgument;
    what.scale = comm->operations[number];
    what.reduction = ncclSum;
    return ncclSuccess;
}

ncclResult_t collect(entry& own, ncclComm_t comm, operation what, cudaStream_t on)
{
    const auto fail = [comm](ncclResult_t code) {
        if (group.depth > 0) group.error = code;
        if (comm != nullptr && !comm->blocking) comm->state = code;
        return code;
    };
    if (const int code = own.enter(); code != 0) return fail(static_cast<ncclResult_t>(code));
    if (const ncclResult_t code = ensure_ready(comm); code != ncclSuccess) return fail(code);
    if (const ncclResult_t state = comm->state; state != ncclSuccess) return fail(state);
    if (const ncclResult_t failure = comm->of->failure(); failure != ncclSuccess) return fail(failure);
    if (what.type >= ncclNumTypes || (what.receives(comm->rank) && what.receive == nullptr)) {
        return fail(ncclInvalidArgument);
    }
    if (const ncclResult_t code = find_operation(comm, what); code != ncclSuccess) return fail(code);
    if (group.depth > 0 && comm->of->size() > 1) {
        group.calls.push_back({comm, std::move(what), on});
        return ncclSuccess;
    }
    if (what.what == kind::transfers) return ncclInvalidUsage;
    if (comm->of->size() == 1) return enqueue_now(comm, what, on);
    return run_or_launch(comm, [comm, what = std::move(what), on] { return enqueue_now(comm, what, on); });
}

/// Makes communicators, each on a thread of its own: ranks of one thread wait for each other.
ncclResult_t form_all(const std::vector<std::function<ncclResult_t()>>& forming)
{
    if (forming.size() == 1) return forming.front()();
    std::vector<ncclResult_t> results(forming.size(), ncclSuccess);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < forming.size(); ++i) threads.emplace_back([&, i] { results[i] = forming[i](); });
    for (std::thread& thread : threads) thread.join();
    for (const ncclResult_t result : results) {
        if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
}

/// Does the rest of making a communicator, now or at the end of the group. `launcher` is the one that is in progress
/// meanwhile if it does not block.
template <class Work>
ncclResult_t form(ncclComm_t launcher, Work work)
{
    if (group.depth == 0) return run_or_launch(launcher, std::move(work));
    group.forming.push_back([launcher, work] { return run_or_launch(launcher, work); });
    return ncclSuccess;
}

/// Waits for the other ranks of a new communicator.
ncclResult_t join_ranks(ncclComm_t comm)
{
    if (!comm->of->join(comm->rank)) {
        const ncclResult_t failure = comm->of->failure();
        return failure == ncclSuccess ? ncclInternalError : failure;
    }
    if (!registry().own.calls_itself) return ncclSuccess;
    int device = 0;
    (void)cudaGetDevice(&device);
    (void)cudaSetDevice(comm->device);
    constexpr std::size_t scratch_bytes = 4096;
    const inside call;
    const ncclResult_t result = ncclMemAlloc(&comm->scratch, scratch_bytes);
    (void)cudaSetDevice(device);
    return result;
}

void free_scratch(ncclComm_t comm)
{
    const inside call;
    if (comm->scratch != nullptr) (void)ncclMemFree(std::exchange(comm->scratch, nullptr));
}

bool blocks(const ncclConfig_t* config, bool otherwise)
{
    return config == nullptr ? otherwise : config->blocking != 0;
}

ncclResult_t init_rank(ncclComm_t* comm, const std::string& name, int ranks, int rank, bool blocking)
{
    if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
    const std::shared_ptr<world> of = meet(name, ranks);
    if (!of) return ncclInvalidArgument;
    *comm = make_comm(of, name, rank, device, blocking);
    return form(*comm, [made = *comm] { return join_ranks(made); });
}

/// A communicator of some ranks of another.
ncclResult_t make_child(
    ncclComm_t parent, ncclComm_t* child, const std::string& name, int ranks, int rank, bool blocking)
{
    const std::shared_ptr<world> of = meet(name, ranks);
    if (!of) return ncclInvalidArgument;
    *child = make_comm(of, name, rank, parent->device, blocking);
    return join_ranks(*child);
}

/// What a rank tells in a split, and its place.
struct split_place {
    int color;
    int key;
    int rank;
};

ncclResult_t split_now(ncclComm_t comm, int color, int key, ncclComm_t* part, bool blocking)
{
    const std::string name = comm->name + "/" + std::to_string(comm->splits.fetch_add(1)) + "." + std::to_string(color);
    const split_place mine{color, key, comm->rank};
    note told{};
    std::memcpy(told.data(), &mine, sizeof(mine));
    std::vector<note> all;
    if (!comm->of->exchange(comm->rank, told, all)) return ncclInternalError;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    int ranks = 0;
    int rank = 0;
    for (const note& each : all) {
        split_place other{};
        std::memcpy(&other, each.data(), sizeof(other));
        if (other.color != color) continue;
        ++ranks;
        if (other.key < key || (other.key == key && other.rank < comm->rank)) ++rank;
    }
    return make_child(comm, part, name, ranks, rank, blocking);
}

std::string name_in(const ncclUniqueId& id)
{
    return std::string(id.internal, strnlen(id.internal, sizeof(id.internal)));
}

ncclResult_t write_id(ncclUniqueId* id, const std::string& name)
{
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id->internal, name.data(), std::min(name.size(), sizeof(id->internal) - 1));
    return ncclSuccess;
}

ncclResult_t end_group()
{
    if (group.error != ncclSuccess) return drop_group(group.error);
    for (const deferred_end& last : std::exchange(group.deferred_ends, {})) (void)last.end(last.comm);
    const auto forming = std::exchange(group.forming, {});
    const ncclResult_t made = forming.empty() ? ncclSuccess : form_all(forming);
    if (group.calls.empty()) return made;
    std::vector<collected> calls = std::move(group.calls);
    group.calls.clear();
    for (const collected& call : calls) touch(call.comm, "makes a call");
    std::vector<ncclComm_t> comms; // in the order of their first calls, which is the same on all ranks
    bool blocking = false;
    bool non_blocking = false;
    for (const collected& call : calls) {
        if (std::find(comms.begin(), comms.end(), call.comm) == comms.end()) comms.push_back(call.comm);
        (call.comm->blocking ? blocking : non_blocking) = true;
    }
    if (blocking && non_blocking) return ncclInvalidUsage;
    // The sends and receives of a communicator become one operation, on the stream of the first.
    std::vector<collected> all;
    for (const ncclComm_t comm : comms) {
        auto transfers = std::make_shared<std::vector<transfer>>();
        cudaStream_t transfers_on = nullptr;
        for (collected& call : calls) {
            if (call.comm != comm) continue;
            if (call.what.what != kind::transfers) {
                all.push_back(std::move(call));
                continue;
            }
            if (transfers->empty()) transfers_on = call.on;
            transfers->push_back(call.what.transfers->front());
        }
        if (!transfers->empty()) {
            all.push_back(
                {comm, {kind::transfers, nullptr, nullptr, 0, ncclUint8, ncclSum, 0, transfers}, transfers_on});
        }
    }
    return run_or_launch(comms, [all = std::move(all)] {
        for (const collected& call : all) {
            if (const ncclResult_t failed = enqueue_now(call.comm, call.what, call.on); failed != ncclSuccess) {
                return failed;
            }
        }
        return ncclSuccess;
    });
}

} // namespace

namespace collprobe::stand_in::nccl {

void set_async_error(ncclComm_t comm, ncclResult_t code, const char* text)
{
    {
        const std::lock_guard lock(comm->guard);
        std::strncpy(comm->last_error, text, sizeof(comm->last_error) - 1);
    }
    comm->state = code;
}

void set_launch_delay_ms(int milliseconds) { registry().launch_delay_ms = milliseconds; }

std::size_t live_communicators()
{
    const std::lock_guard lock(registry().guard);
    return registry().live.size();
}

std::uint64_t dead_handle_calls()
{
    const std::lock_guard lock(registry().guard);
    return registry().dead_calls;
}

} // namespace collprobe::stand_in::nccl

extern "C" {

// Without communicators.

ncclResult_t ncclGetVersion(int* version)
{
    COLLPROBE_STAND_IN_ENTER();
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code)
{
    static entry& own_entry = entry::named(__func__);
    (void)own_entry.enter();
    switch (code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "a remote process exited";
    case ncclInProgress: return "operation in progress";
    default: return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t comm)
{
    static entry& own_entry = entry::named(__func__);
    (void)own_entry.enter();
    // As in NCCL the text is a buffer; here one for each thread, so that it can be read in peace.
    static thread_local char text[256];
    text[0] = '\0';
    if (comm != nullptr) {
        const std::lock_guard lock(comm->guard);
        std::memcpy(text, comm->last_error, sizeof(text));
    }
    return text;
}

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes)
{
    COLLPROBE_STAND_IN_ENTER();
    return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* memory)
{
    COLLPROBE_STAND_IN_ENTER();
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// How communicators begin.

ncclResult_t ncclGetUniqueId(ncclUniqueId* id)
{
    COLLPROBE_STAND_IN_ENTER();
    if (const char* const address = std::getenv("NCCL_COMM_ID")) { // as NCCL: of that address, alike in all processes
        if (std::strchr(address, ':') == nullptr) return ncclInvalidArgument;
        return write_id(id, std::string("at ") + address);
    }
    return write_id(id, new_name());
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config)
{
    COLLPROBE_STAND_IN_ENTER();
    return init_rank(comm, name_in(id), ranks, rank, blocks(config, true));
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank)
{
    COLLPROBE_STAND_IN_ENTER();
    return init_rank(comm, name_in(id), ranks, rank, true);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list)
{
    COLLPROBE_STAND_IN_ENTER();
    ncclUniqueId id;
    {
        const inside call;
        if (const ncclResult_t code = ncclGetUniqueId(&id); code != ncclSuccess) return code;
    }
    int before = 0;
    if (devices < 1 || cudaGetDevice(&before) != cudaSuccess) return ncclInvalidArgument;
    std::vector<std::function<ncclResult_t()>> forming;
    for (int rank = 0; rank < devices; ++rank) {
        forming.push_back([&, rank] {
            if (cudaSetDevice(list == nullptr ? rank : list[rank]) != cudaSuccess) return ncclUnhandledCudaError;
            return init_rank(&comms[rank], name_in(id), devices, rank, true);
        });
    }
    const ncclResult_t made = form_all(forming);
    (void)cudaSetDevice(before);
    return made;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    *part = nullptr;
    return form(comm, [comm, color, key, part, blocking = blocks(config, comm->blocking)] {
        return split_now(comm, color, key, part, blocking);
    });
}

// How communicators end.

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    return end_comm(comm, [](ncclComm_t last) {
        return run_or_launch(last, [last] { return last->of->drain(last->rank) ? ncclSuccess : ncclInternalError; });
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    return end_comm(comm, [](ncclComm_t last) {
        last->join();
        last->of->drain(last->rank);
        free_scratch(last);
        bury(last);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER();
    if (!is_live(comm)) return ncclInvalidArgument;
    comm->aborted = true;
    comm->of->abort(comm->rank);
    return end_comm(comm, [](ncclComm_t last) {
        bury(last);
        last->join();
        free_scratch(last);
        return ncclSuccess;
    });
}

// What communicators tell.

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state)
{
    COLLPROBE_STAND_IN_ENTER();
    if (!is_live(comm)) return ncclInvalidArgument;
    *state = comm->state;
    if (*state == ncclSuccess) *state = comm->of->failure();
    if (is_inside || comm->polls_left <= 0) return ncclSuccess;
    --comm->polls_left;
    if (*state == ncclSuccess) *state = ncclInProgress;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    *count = comm->of->size();
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    *rank = comm->rank;
    return ncclSuccess;
}

// What communicators keep.

ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t* what, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    if (scalar == nullptr || type >= ncclNumTypes) return ncclInvalidArgument;
    premultiplier made;
    made.is_used = true;
    if (residence == ncclScalarDevice) made.in_memory = scalar;
    else made.value = factor_at(scalar, type);
    const std::lock_guard lock(comm->guard);
    *what = static_cast<ncclRedOp_t>(static_cast<std::size_t>(ncclNumOps) + comm->operations.size());
    comm->operations.push_back(made);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t what, ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER_READY(comm);
    operation with{};
    with.reduction = what;
    if (what < ncclNumOps || find_operation(comm, with) != ncclSuccess) return ncclInvalidArgument;
    const std::lock_guard lock(comm->guard);
    comm->operations[static_cast<std::size_t>(what - ncclNumOps)].is_used = false;
    return ncclSuccess;
}

// Groups.

ncclResult_t ncclGroupStart()
{
    COLLPROBE_STAND_IN_ENTER();
    ++group.depth;
    return ncclSuccess;
}

#if NCCL_VERSION_CODE >= 22200
/// Of groups without calls only: nothing is simulated.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info)
{
    COLLPROBE_STAND_IN_ENTER();
    if (group.depth == 0) return ncclInvalidUsage;
    if (--group.depth > 0) return ncclSuccess;
    if (info->magic == ncclSimInfo_t(NCCL_SIM_INFO_INITIALIZER).magic) return end_group();
    collprobe::stand_in::scripted::named("warning").enter();
    return drop_group(ncclInvalidArgument);
}
#endif

ncclResult_t ncclGroupEnd()
{
    if (group.depth == 0) return ncclInvalidUsage;
    --group.depth;
    static entry& own_entry = entry::named(__func__);
    if (const auto code = static_cast<ncclResult_t>(own_entry.enter()); code != ncclSuccess) {
        if (group.depth > 0) return code;
        // A launch that fails leaves its device current.
        if (!group.calls.empty()) (void)cudaSetDevice(group.calls.back().comm->device);
        return drop_group(code);
    }
    return group.depth > 0 ? ncclSuccess : end_group();
}

// Collectives.

#define STAND_IN_COLLECTIVE(name, parameters, ...) \
    ncclResult_t nccl##name(STAND_IN_PLAIN STAND_IN_##parameters ncclComm_t comm, cudaStream_t on) \
    { \
        static entry& own = entry::named(__func__); \
        return collect(own, comm, {__VA_ARGS__, {}}, on); \
    }
#define STAND_IN_PLAIN const void *send, void *receive, std::size_t count, ncclDataType_t type,
#define STAND_IN_MOVED
#define STAND_IN_ROOTED int root,
#define STAND_IN_REDUCED ncclRedOp_t what,
#define STAND_IN_REDUCED_TO ncclRedOp_t what, int root,

STAND_IN_COLLECTIVE(AllReduce, REDUCED, kind::all_reduce, send, receive, count, type, what, 0)
STAND_IN_COLLECTIVE(ReduceScatter, REDUCED, kind::reduce_scatter, send, receive, count, type, what, 0)
STAND_IN_COLLECTIVE(AllGather, MOVED, kind::all_gather, send, receive, count, type, ncclSum, 0)
STAND_IN_COLLECTIVE(Broadcast, ROOTED, kind::broadcast, send, receive, count, type, ncclSum, root)
STAND_IN_COLLECTIVE(Reduce, REDUCED_TO, kind::reduce, send, receive, count, type, what, root)
#if NCCL_VERSION_CODE >= 22800
STAND_IN_COLLECTIVE(AlltoAll, MOVED, kind::all_to_all, send, receive, count, type, ncclSum, 0)
#endif

ncclResult_t ncclBcast(void* memory, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t on)
{
    COLLPROBE_STAND_IN_ENTER();
    const inside call;
    return ncclBroadcast(memory, memory, count, type, root, comm, on);
}

static ncclResult_t collect_transfer(entry& own, const transfer& one, ncclDataType_t type, ncclComm_t comm, cudaStream_t on)
{
    const auto all = std::make_shared<std::vector<transfer>>(1, one);
    return collect(own, comm, {kind::transfers, nullptr, nullptr, 0, type, ncclSum, 0, all}, on);
}
ncclResult_t ncclSend(
    const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t on)
{
    static entry& own = entry::named(__func__);
    return collect_transfer(own, {true, send, nullptr, count * bytes_of(type), peer}, type, comm, on);
}
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t on)
{
    static entry& own = entry::named(__func__);
    return collect_transfer(own, {false, nullptr, receive, count * bytes_of(type), peer}, type, comm, on);
}

} // extern "C"
