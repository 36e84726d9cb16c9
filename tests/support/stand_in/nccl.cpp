// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/core/element.hpp>

#include "tests/support/stand_in/stand_in.hpp"
#include "tests/support/stand_in/stand_in_nccl.hpp"

namespace {

using collprobe::bfloat16;
using collprobe::float16;

enum class kind { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, transfers };

/// One side of a send or a receive within a group.
struct transfer {
    bool is_send;
    const void* from;
    void* to;
    std::size_t bytes;
    int peer;
};

/// What one rank brings to a collective. `count` is elements per part where there are parts.
struct operation {
    kind what;
    const void* send;
    void* receive;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t reduction;
    int root;
    std::shared_ptr<const std::vector<transfer>> transfers;

    bool matches(const operation& other) const
    {
        return what == other.what && count == other.count && type == other.type && reduction == other.reduction
            && root == other.root;
    }
};

template <class Visit>
void with_type(ncclDataType_t type, Visit visit)
{
    switch (type) {
    case ncclInt8: return visit(std::int8_t{});
    case ncclUint8: return visit(std::uint8_t{});
    case ncclInt32: return visit(std::int32_t{});
    case ncclUint32: return visit(std::uint32_t{});
    case ncclInt64: return visit(std::int64_t{});
    case ncclUint64: return visit(std::uint64_t{});
    case ncclFloat16: return visit(float16{});
    case ncclBfloat16: return visit(bfloat16{});
    case ncclFloat32: return visit(float{});
    case ncclFloat64: return visit(double{});
#if NCCL_VERSION_CODE >= 22400
    case ncclFloat8e4m3: return visit(collprobe::float8_e4m3{});
    case ncclFloat8e5m2: return visit(collprobe::float8_e5m2{});
#endif
    default: std::abort();
    }
}

std::size_t bytes_of(ncclDataType_t type)
{
    std::size_t bytes = 0;
    with_type(type, [&bytes](auto value) { bytes = sizeof(value); });
    return bytes;
}

/// The reduction of `value(rank)`, rounded once.
template <class T, class Value>
T reduce(ncclRedOp_t what, int ranks, Value value)
{
    if constexpr (collprobe::floating_element<T>) {
        using wide = std::conditional_t<std::is_same_v<T, double>, long double, double>;
        const auto at = [&](int rank) { return static_cast<wide>(static_cast<double>(value(rank))); };
        wide result = at(0);
        for (int rank = 1; rank < ranks; ++rank) {
            const wide x = at(rank);
            switch (what) {
            case ncclProd: result *= x; break;
            case ncclMax: result = x > result ? x : result; break;
            case ncclMin: result = x < result ? x : result; break;
            default: result += x;
            }
        }
        if (what == ncclAvg) result /= static_cast<wide>(ranks);
        return T(static_cast<std::conditional_t<std::is_same_v<T, float>, float, double>>(result));
    } else {
        std::uint64_t bits = static_cast<std::uint64_t>(value(0));
        T best = value(0);
        for (int rank = 1; rank < ranks; ++rank) {
            const T x = value(rank);
            if (what == ncclProd) bits *= static_cast<std::uint64_t>(x);
            else bits += static_cast<std::uint64_t>(x);
            if (what == ncclMax ? x > best : x < best) best = x;
        }
        if (what == ncclMax || what == ncclMin) return best;
        if (what != ncclAvg) return static_cast<T>(bits);
        using wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
        return static_cast<T>(static_cast<wide>(static_cast<T>(bits)) / static_cast<wide>(ranks));
    }
}

/// The ranks of a communicator, where they meet.
class world {
public:
    explicit world(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

    int size() const { return static_cast<int>(ranks_.size()); }

    /// The number of the collective that `rank` enqueues now.
    std::uint64_t issue(int rank)
    {
        const std::lock_guard lock(guard_);
        return at(rank).issued++;
    }

    /// Runs on the stream of `rank`.
    void run(int rank, std::uint64_t number, const operation& own)
    {
        std::unique_lock lock(guard_);
        member& self = at(rank);
        changed_.wait(lock, [&] { return self.done == number || self.aborted; });
        if (!self.aborted) {
            self.posted = &own;
            const std::uint64_t round = rounds_;
            if (++arrived_ == size() && agree()) {
                arrived_ = 0;
                ++rounds_;
                changed_.notify_all();
            }
            changed_.wait(lock, [&] { return rounds_ != round || self.aborted; });
            if (rounds_ != round) {
                lock.unlock();
                move(rank, own, round);
                lock.lock();
            } else {
                --arrived_;
            }
        }
        // Aborted calls may come out of order.
        if (self.done <= number) self.done = number + 1;
        changed_.notify_all();
    }

    void abort(int rank)
    {
        const std::lock_guard lock(guard_);
        at(rank).aborted = true;
        changed_.notify_all();
    }
    /// Waits for all that `rank` has enqueued. False if it was aborted.
    bool drain(int rank)
    {
        std::unique_lock lock(guard_);
        member& self = at(rank);
        changed_.wait(lock, [&] { return self.done == self.issued || self.aborted; });
        return !self.aborted;
    }
    /// Waits until all ranks have come. False if `rank` was aborted before.
    bool join(int rank)
    {
        std::unique_lock lock(guard_);
        ++joined_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return joined_ == size() || at(rank).aborted; });
        return joined_ == size();
    }

    struct split_part {
        std::shared_ptr<world> of;
        int rank = -1;
    };
    /// Waits until all ranks split. False if `rank` was aborted before.
    bool split(int rank, int color, int key, split_part& result)
    {
        std::unique_lock lock(guard_);
        member& self = at(rank);
        self.color = color;
        self.key = key;
        const std::uint64_t round = splits_;
        if (++splitting_ == size()) {
            make_parts();
            splitting_ = 0;
            ++splits_;
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return splits_ != round || self.aborted; });
        if (splits_ == round) {
            --splitting_;
            return false;
        }
        result = std::move(self.made);
        return true;
    }

private:
    struct member {
        std::uint64_t issued = 0;
        std::uint64_t done = 0;
        bool aborted = false;
        const operation* posted = nullptr;
        int color = 0;
        int key = 0;
        split_part made;
    };
    member& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    /// Ranks that call different things never get through, as in NCCL at its kindest.
    bool agree()
    {
        for (int rank = 1; rank < size(); ++rank) {
            if (!at(rank).posted->matches(*at(0).posted)) return false;
        }
        return true;
    }

    /// All ranks are here, and none goes before all have read.
    void move(int rank, const operation& own, std::uint64_t round)
    {
        const std::size_t element = bytes_of(own.type);
        const auto n = static_cast<std::size_t>(size());
        const auto mine = static_cast<std::size_t>(rank);
        const std::size_t part = own.count * element;
        const bool whole = own.what == kind::all_gather || own.what == kind::all_to_all;
        const std::size_t bytes = whole ? n * part : part;
        // Not from `new`: tests count that. Ranks may be in place, so the result is written at the end.
        auto* const result = static_cast<unsigned char*>(std::malloc(bytes + 1));
        const auto send_of = [this](std::size_t peer) {
            return static_cast<const unsigned char*>(ranks_[peer].posted->send);
        };
        switch (own.what) {
        case kind::all_reduce:
        case kind::reduce_scatter:
            with_type(own.type, [&](auto zero) {
                using T = decltype(zero);
                const std::size_t first = own.what == kind::reduce_scatter ? mine * own.count : 0;
                for (std::size_t i = 0; i < own.count; ++i) {
                    const T value = reduce<T>(own.reduction, size(), [&](int peer) {
                        T x;
                        std::memcpy(&x, send_of(static_cast<std::size_t>(peer)) + (first + i) * sizeof(T), sizeof(T));
                        return x;
                    });
                    std::memcpy(result + i * sizeof(T), &value, sizeof(T));
                }
            });
            break;
        case kind::all_gather:
            for (std::size_t peer = 0; peer < n; ++peer) std::memcpy(result + peer * part, send_of(peer), part);
            break;
        case kind::all_to_all:
            for (std::size_t peer = 0; peer < n; ++peer) {
                std::memcpy(result + peer * part, send_of(peer) + mine * part, part);
            }
            break;
        case kind::broadcast:
            std::memcpy(result, send_of(static_cast<std::size_t>(own.root)), part);
            break;
        case kind::transfers: receive_all(rank, own); break;
        }
        {
            std::unique_lock lock(guard_);
            if (++read_ == size()) {
                read_ = 0;
                read_rounds_ = round + 1;
                changed_.notify_all();
            }
            changed_.wait(lock, [&] { return read_rounds_ > round; });
        }
        if (own.what != kind::transfers) std::memcpy(own.receive, result, bytes);
        std::free(result);
    }

    /// The k-th receive from a peer takes its k-th send to this rank.
    void receive_all(int rank, const operation& own)
    {
        std::map<int, std::size_t> taken;
        for (const transfer& wanted : *own.transfers) {
            if (wanted.is_send) continue;
            std::size_t skip = taken[wanted.peer]++;
            for (const transfer& offered : *at(wanted.peer).posted->transfers) {
                if (!offered.is_send || offered.peer != rank || skip-- != 0) continue;
                std::memcpy(wanted.to, offered.from, wanted.bytes);
                break;
            }
        }
    }

    void make_parts()
    {
        std::map<int, std::vector<std::pair<int, int>>> by_color; // keys and ranks
        for (int rank = 0; rank < size(); ++rank) {
            if (at(rank).color != NCCL_SPLIT_NOCOLOR) by_color[at(rank).color].push_back({at(rank).key, rank});
        }
        for (auto& [color, members] : by_color) {
            // Few and almost sorted.
            for (std::size_t i = 1; i < members.size(); ++i) {
                for (std::size_t j = i; j > 0 && members[j] < members[j - 1]; --j) std::swap(members[j], members[j - 1]);
            }
            const auto made = std::make_shared<world>(static_cast<int>(members.size()));
            for (std::size_t i = 0; i < members.size(); ++i) {
                at(members[i].second).made = {made, static_cast<int>(i)};
            }
        }
    }

    std::mutex guard_;
    std::condition_variable changed_;
    std::vector<member> ranks_;
    int arrived_ = 0;
    std::uint64_t rounds_ = 0;
    int read_ = 0;
    std::uint64_t read_rounds_ = 0;
    int joined_ = 0;
    int splitting_ = 0;
    std::uint64_t splits_ = 0;
};

} // namespace

/// Never freed, only moved to the dead, so that a call after the end is seen and not a crash.
struct ncclComm {
    std::shared_ptr<world> of;
    int rank = 0;
    int device = 0;
    bool blocking = true;
    std::atomic<ncclResult_t> state{ncclSuccess};
    std::atomic<bool> aborted{false};
    std::mutex guard; // of `last_error`
    char last_error[256] = "";
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
    std::map<std::uint64_t, std::pair<std::shared_ptr<world>, int>> forming; // by id, with the ranks that came
    std::uint64_t next_id = 1;
    std::uint64_t dead_calls = 0;
    std::atomic<int> launch_delay_ms{1};
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

ncclComm_t make_comm(std::shared_ptr<world> of, int rank, int device, bool blocking)
{
    everything& all = registry();
    const std::lock_guard lock(all.guard);
    all.all.push_back(std::make_unique<ncclComm>());
    const ncclComm_t comm = all.all.back().get();
    comm->of = std::move(of);
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

#define COLLPROBE_STAND_IN_ENTER(function)                                                                     \
    static auto& script = collprobe::stand_in::scripted::named(function);                                      \
    if (const int scripted_code = script.enter(); scripted_code != 0) return static_cast<ncclResult_t>(scripted_code)

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
    std::vector<std::function<ncclResult_t()>> splits;
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
    group.splits.clear();
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
    collprobe::stand_in::detail::target to;
    cudaError_t code = collprobe::stand_in::detail::resolve(on, to);
    if (code == cudaSuccess) {
        if (to.stream) issue(*to.stream);
        else code = collprobe::stand_in::detail::append(on, issue);
    }
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

ncclResult_t collect(collprobe::stand_in::scripted& script, ncclComm_t comm, operation what, cudaStream_t on)
{
    const auto fail = [comm](ncclResult_t code) {
        if (group.depth > 0) group.error = code;
        if (comm != nullptr && !comm->blocking) comm->state = code;
        return code;
    };
    if (const int code = script.enter(); code != 0) {
        return fail(static_cast<ncclResult_t>(code));
    }
    if (!is_live(comm)) return fail(ncclInvalidArgument);
    if (comm->state == ncclInProgress) return fail(ncclInvalidArgument);
    if (const ncclResult_t state = comm->state; state != ncclSuccess) return fail(state);
    if (what.what != kind::transfers && (what.receive == nullptr || what.type >= ncclNumTypes)) {
        return fail(ncclInvalidArgument);
    }
    if (group.depth > 0 && comm->of->size() > 1) {
        group.calls.push_back({comm, std::move(what), on});
        return ncclSuccess;
    }
    if (what.what == kind::transfers) return ncclInvalidUsage;
    if (comm->of->size() == 1) return enqueue_now(comm, what, on);
    return run_or_launch(comm, [comm, what = std::move(what), on] { return enqueue_now(comm, what, on); });
}

ncclResult_t end_group()
{
    if (group.error != ncclSuccess) return drop_group(group.error);
    for (const deferred_end& last : std::exchange(group.deferred_ends, {})) (void)last.end(last.comm);
    ncclResult_t made = ncclSuccess;
    for (const auto& split : std::exchange(group.splits, {})) made = split();
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
            all.push_back({comm, {kind::transfers, nullptr, nullptr, 0, ncclUint8, ncclSum, 0, transfers}, transfers_on});
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

ncclResult_t ncclGetVersion(int* version)
{
    COLLPROBE_STAND_IN_ENTER("ncclGetVersion");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t code)
{
    return code == ncclSuccess ? "no error" : code == ncclRemoteError ? "a remote process exited" : "some error";
}

const char* ncclGetLastError(ncclComm_t comm)
{
    // As in NCCL the text is a buffer; here one for each thread, so that it can be read in peace.
    static thread_local char text[256];
    text[0] = '\0';
    if (comm != nullptr) {
        const std::lock_guard lock(comm->guard);
        std::memcpy(text, comm->last_error, sizeof(text));
    }
    return text;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id)
{
    COLLPROBE_STAND_IN_ENTER("ncclGetUniqueId");
    everything& all = registry();
    const std::lock_guard lock(all.guard);
    std::memset(id, 0, sizeof(*id));
    if (const char* const address = std::getenv("NCCL_COMM_ID")) { // as NCCL: of that address, alike in all processes
        if (std::strchr(address, ':') == nullptr) return ncclInvalidArgument;
        const std::uint64_t of_address = std::hash<std::string>{}(address) | std::uint64_t{1} << 63;
        std::memcpy(id->internal, &of_address, sizeof(of_address));
        return ncclSuccess;
    }
    std::memcpy(id->internal, &all.next_id, sizeof(all.next_id));
    ++all.next_id;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommInitRankConfig");
    if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
    int device = -1;
    if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
    std::uint64_t number = 0;
    std::memcpy(&number, id.internal, sizeof(number));
    std::shared_ptr<world> of;
    {
        everything& all = registry();
        const std::lock_guard lock(all.guard);
        auto& [forming, came] = all.forming[number];
        if (!forming) forming = std::make_shared<world>(ranks);
        of = forming;
        if (of->size() != ranks) return ncclInvalidArgument;
        if (++came == ranks) all.forming.erase(number);
    }
    const bool blocking = config == nullptr || config->blocking != 0;
    *comm = make_comm(of, rank, device, blocking);
    return run_or_launch(*comm, [of, rank] { return of->join(rank) ? ncclSuccess : ncclInternalError; });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommFinalize");
    if (!is_live(comm) || comm->state == ncclInProgress) return ncclInvalidArgument;
    return end_comm(comm, [](ncclComm_t last) {
        return run_or_launch(
            last, [last] { return last->of->drain(last->rank) ? ncclSuccess : ncclInternalError; });
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommDestroy");
    if (!is_live(comm) || comm->state == ncclInProgress) return ncclInvalidArgument;
    return end_comm(comm, [](ncclComm_t last) {
        last->join();
        last->of->drain(last->rank);
        bury(last);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommAbort");
    if (!is_live(comm)) return ncclInvalidArgument;
    comm->aborted = true;
    comm->of->abort(comm->rank);
    return end_comm(comm, [](ncclComm_t last) {
        bury(last);
        last->join();
        return ncclSuccess;
    });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* config)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommSplit");
    if (!is_live(comm) || comm->state == ncclInProgress) return ncclInvalidArgument;
    *part = nullptr;
    const bool blocking = config == nullptr ? comm->blocking : config->blocking != 0;
    auto split = [comm, color, key, part, blocking] {
        world::split_part made;
        if (!comm->of->split(comm->rank, color, key, made)) return ncclInternalError;
        *part = made.of ? make_comm(made.of, made.rank, comm->device, blocking) : nullptr;
        return ncclSuccess;
    };
    if (group.depth == 0) return run_or_launch(comm, std::move(split));
    group.splits.push_back([comm, split] { return run_or_launch(comm, split); });
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommGetAsyncError");
    if (!is_live(comm)) return ncclInvalidArgument;
    *state = comm->state;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommCount");
    if (!is_live(comm) || comm->state == ncclInProgress) return ncclInvalidArgument;
    *count = comm->of->size();
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommCuDevice");
    if (!is_live(comm) || comm->state == ncclInProgress) return ncclInvalidArgument;
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank)
{
    COLLPROBE_STAND_IN_ENTER("ncclCommUserRank");
    if (!is_live(comm) || comm->state == ncclInProgress) return ncclInvalidArgument;
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart()
{
    COLLPROBE_STAND_IN_ENTER("ncclGroupStart");
    ++group.depth;
    return ncclSuccess;
}

#if NCCL_VERSION_CODE >= 22200
/// Of groups without calls only: nothing is simulated.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info)
{
    COLLPROBE_STAND_IN_ENTER("ncclGroupSimulateEnd");
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
    static auto& script = collprobe::stand_in::scripted::named("ncclGroupEnd");
    if (const int code = script.enter(); code != 0) {
        if (group.depth > 0) return static_cast<ncclResult_t>(code);
        // A launch that fails leaves its device current.
        if (!group.calls.empty()) (void)cudaSetDevice(group.calls.back().comm->device);
        return drop_group(static_cast<ncclResult_t>(code));
    }
    return group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t what,
    ncclComm_t comm, cudaStream_t on)
{
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::all_reduce, send, receive, count, type, what, 0, {}}, on);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
    ncclRedOp_t what, ncclComm_t comm, cudaStream_t on)
{
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::reduce_scatter, send, receive, count, type, what, 0, {}}, on);
}

ncclResult_t ncclAllGather(
    const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t on)
{
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::all_gather, send, receive, count, type, ncclSum, 0, {}}, on);
}

#if NCCL_VERSION_CODE >= 22800
ncclResult_t ncclAlltoAll(
    const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t on)
{
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::all_to_all, send, receive, count, type, ncclSum, 0, {}}, on);
}
#endif

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
    ncclComm_t comm, cudaStream_t on)
{
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::broadcast, send, receive, count, type, ncclSum, root, {}}, on);
}

ncclResult_t ncclSend(
    const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t on)
{
    const auto one = std::make_shared<std::vector<transfer>>(
        std::vector<transfer>{{true, send, nullptr, count * bytes_of(type), peer}});
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::transfers, nullptr, nullptr, 0, type, ncclSum, 0, one}, on);
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t on)
{
    const auto one = std::make_shared<std::vector<transfer>>(
        std::vector<transfer>{{false, nullptr, receive, count * bytes_of(type), peer}});
    static auto& script = collprobe::stand_in::scripted::named(__func__);
    return collect(script, comm, {kind::transfers, nullptr, nullptr, 0, type, ncclSum, 0, one}, on);
}

} // extern "C"
