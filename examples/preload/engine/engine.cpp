// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The hooks that the first stage calls, and what they keep for the whole process. Nothing here is ever
// destroyed: other threads may still make calls while the process ends.

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>
#include <unistd.h>

#include <collprobe/detail/math.hpp>
#include <collprobe/device/cuda/error.hpp>

#include "communicator.hpp"
#include "engine.hpp"
#include "live_channel.hpp"
#include "nccl_calls.hpp"
#include "registry.hpp"
#include "writer.hpp"

namespace collprobe_preload {

namespace {

class group_calls;

class engine {
public:
    engine() : options(settings::from_environment()), writing(options) {}

    const settings options;
    registry<communicator> communicators;
    writer writing;

    std::mutex guard; ///< of what follows; never held in a call of NCCL
    std::vector<communicator*> unused;
    std::vector<probe_memory*> unused_memory;
    std::vector<group_calls*> unused_groups;

    void comm_made(const collprobe_made& made);
    void comm_ends(void* comm, int how) noexcept;

private:
    std::uint64_t key_of(const collprobe_made& made, communicator* parent);
    probe_memory* memory_for(const collprobe_made& made);
    void open_channel(communicator& of, void* comm);
    communicator* register_made(const collprobe_made& made);
    void take_back();
};

engine* the_engine = nullptr;
std::atomic<bool> in_child{false};

std::uint64_t hash_of(const void* bytes, std::size_t count) noexcept
{
    std::uint64_t hash = 0x636f6c6c70726f62u + count;
    for (std::size_t i = 0; i < count; i += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, static_cast<const char*>(bytes) + i, count - i < 8 ? count - i : 8);
        hash = collprobe::detail::mix64(hash ^ word) + 0x9e3779b97f4a7c15u;
    }
    return collprobe::detail::mix64(hash);
}

/// The calls of a thread's open group whose results are read when the group has ended.
class group_calls {
public:
    static constexpr std::size_t room = 2048;

    /// Those of threads that have ended are used again.
    static group_calls& of_this_thread()
    {
        static thread_local struct borrowed {
            group_calls* own = nullptr;
            ~borrowed() { give_back(std::exchange(own, nullptr)); }
        } mine;
        if (mine.own == nullptr) mine.own = take();
        return *mine.own;
    }
    bool add(communicator* of, slot* taken, const collprobe_call& call)
    {
        if (calls_.size() == room) return false;
        calls_.push_back({of, taken, of->generation(), call.stream, call.receive});
        return true;
    }
    void ended(int result, bool simulated) noexcept
    {
        for (const entry& each : calls_) {
            if (each.generation != each.of->generation()) continue;
            if (simulated) each.of->drop(*each.taken, each.stream, skip_reason::group);
            else if (result == nccl_success) each.of->enqueue_result(*each.taken, each.stream, each.receive);
            else if (result == nccl_in_progress)
                each.of->keep_until_polled(*each.taken, each.stream, each.receive);
            else each.of->drop(*each.taken, each.stream, skip_reason::group);
        }
        if (!simulated && result == nccl_success) {
            for (communicator* const each : due_) each->group_ended();
        }
        calls_.clear();
        due_.clear();
    }
    /// A message of the communicator is due behind the group.
    void add_due(communicator* of)
    {
        for (const communicator* const each : due_) {
            if (each == of) return;
        }
        if (due_.size() < due_.capacity()) due_.push_back(of);
    }

private:
    group_calls()
    {
        calls_.reserve(room);
        due_.reserve(64);
    }

    static group_calls* take();
    static void give_back(group_calls* unused) noexcept;

    struct entry {
        communicator* of;
        slot* taken;
        std::uint64_t generation;
        void* stream;
        const void* receive;
    };
    std::vector<entry> calls_;
    std::vector<communicator*> due_;
};

group_calls* group_calls::take()
{
    const std::lock_guard lock(the_engine->guard);
    if (the_engine->unused_groups.empty()) return new group_calls;
    group_calls* const found = the_engine->unused_groups.back();
    the_engine->unused_groups.pop_back();
    return found;
}

void group_calls::give_back(group_calls* unused) noexcept
{
    if (unused == nullptr || in_child.load(std::memory_order_relaxed)) return;
    unused->calls_.clear();
    unused->due_.clear();
    try {
        const std::lock_guard lock(the_engine->guard);
        the_engine->unused_groups.push_back(unused);
    } catch (...) {
    }
}

/// The same on all ranks of a communicator, and on no other communicator of the job.
std::uint64_t engine::key_of(const collprobe_made& made, communicator* parent)
{
    if (made.id != nullptr) return hash_of(made.id, made.id_bytes);
    if (parent == nullptr) { // ncclCommInitAll, or a parent that was not seen: of this process alone
        const std::uint64_t facts[] = {static_cast<std::uint64_t>(::getpid()), writing.started_ns(),
            reinterpret_cast<std::uintptr_t>(made.parent)};
        return hash_of(facts, sizeof facts);
    }
    const std::uint64_t facts[]
        = {parent->key(), parent->next_child(), static_cast<std::uint64_t>(made.origin),
            made.origin == collprobe_split ? static_cast<std::uint64_t>(made.color) : 0,
            made.origin == collprobe_shrink
                ? hash_of(made.excluded, static_cast<std::size_t>(made.excluded_count) * sizeof(int))
                : 0};
    return hash_of(facts, sizeof facts);
}

/// Takes memory of communicators that have ended and whose records are written.
void engine::take_back()
{
    for (communicator* each = writing.first(); each != nullptr; each = each->next) {
        if (each->state.load(std::memory_order_acquire) != communicator::phase::written) continue;
        // A thread may still be in a call that was aborted.
        if (each->how_ended() == collprobe_abort) continue;
        if (each->memory() != nullptr && each->memory_is_idle()) unused_memory.push_back(each->memory());
        each->state.store(communicator::phase::unused, std::memory_order_relaxed);
        unused.push_back(each);
    }
}

/// A communicator that is complete when it is made is so on all ranks: they are all in this call. No lock is
/// held.
void engine::open_channel(communicator& of, void* comm)
{
    if (options.channel != settings::channel_kind::inband || of.ranks() < 2
        || of.nccl()->all_gather == nullptr)
        return;
    std::unique_ptr<live_channel> made;
    const collprobe::cuda::device_guard current(of.device());
    try {
        if (of.memory() != nullptr) {
            made = std::make_unique<live_channel>(options, of.memory()->layout, of.ranks(), of.rank(),
                writing.run_of(of, uuid_of(of.device())));
        }
    } catch (const std::exception& failure) {
        say(std::string("no live verdicts: ") + failure.what());
    }
    const std::string problem
        = live_channel::agree(*of.nccl(), comm, of.ranks(), made ? live_channel::fingerprint(options) : 0);
    if (!problem.empty()) {
        if (of.rank() == 0) say("no live verdicts, only files: " + problem);
        return;
    }
    of.live = std::move(made);
    of.live_for_writer.store(of.live.get(), std::memory_order_release);
}

probe_memory* engine::memory_for(const collprobe_made& made)
{
    if (made.ranks >= 0 && made.ranks < 2) return nullptr;
    int device = -1;
    collprobe::cuda::check(cudaGetDevice(&device), "cudaGetDevice");
    for (std::size_t i = 0; i < unused_memory.size(); ++i) {
        if (unused_memory[i]->device != device) continue;
        probe_memory* const found = unused_memory[i];
        unused_memory.erase(unused_memory.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
    }
    auto* const made_now = new probe_memory(options.audit);
    if (options.log == settings::log_kind::info) {
        say(std::to_string(made_now->device_bytes()) + " bytes on device " + std::to_string(device)
            + " for a communicator");
    }
    return made_now;
}

void engine::comm_made(const collprobe_made& made)
{
    communicator* const state = register_made(made);
    if (state == nullptr || made.result != nccl_success || made.depth != 0) return;
    // The communicators of ncclCommInitAll are told one after the other by one thread, which must not wait
    // for the next.
    if (made.device >= 0) return;
    if (state->complete()) open_channel(*state, made.comm);
}

/// Its state, in the list; null where this rank is in no communicator.
communicator* engine::register_made(const collprobe_made& made)
{
    const std::lock_guard lock(guard);
    take_back();
    communicator* const parent = made.parent != nullptr ? communicators.find(made.parent) : nullptr;
    const std::uint64_t key = key_of(made, parent);
    if (made.comm == nullptr) return nullptr; // a split that this rank is in no part of
    probe_memory* memory = nullptr;
    try {
        const collprobe::cuda::device_guard current(made.device >= 0 ? made.device
                : parent != nullptr                                  ? parent->device()
                                                                     : -1);
        memory = memory_for(made);
    } catch (const std::exception& failure) {
        say(std::string("a communicator is not probed: ") + failure.what());
    }
    communicator* state = nullptr;
    if (!unused.empty()) {
        state = unused.back();
        unused.pop_back();
    } else {
        state = new communicator(options);
        writing.add(state);
    }
    state->open(made, key, parent != nullptr ? parent->key() : 0, memory);
    state->state.store(communicator::phase::open, std::memory_order_release);
    if (communicators.add(made.comm, state)) return state;
    say("more than 4096 communicators at a time: one is not probed");
    state->end(collprobe_abort);
    return nullptr;
}

void engine::comm_ends(void* comm, int how) noexcept
{
    if (how == collprobe_suspend) return;
    communicator* const found = communicators.find(comm);
    if (found == nullptr) return;
    if (how == collprobe_revoke) return found->silence(); // it may still be the parent of another
    found->end(how);
    communicators.remove(comm);
    if (how != collprobe_abort) writing.wait_for(*found);
}

/// Calls `use` with the engine. Nothing leaves it: neither an exception nor an error of CUDA's.
template <class Use>
void guarded(const Use& use) noexcept
{
    if (in_child.load(std::memory_order_relaxed)) return;
    try {
        use(*the_engine);
    } catch (const std::exception& failure) {
        say(std::string("an error in a hook: ") + failure.what());
    } catch (...) {
        say("an error in a hook");
    }
}

void before(collprobe_call* call)
{
    guarded([call](engine& all) {
        communicator* const found = all.communicators.find(call->comm);
        if (found == nullptr) return;
        found->before(*call);
        if (call->depth > 0 && found->live && found->live->is_due())
            group_calls::of_this_thread().add_due(found);
    });
}

void after(collprobe_call* call, int result)
{
    if (call->engine[1] == 0) return;
    guarded([=](engine&) {
        auto* const of = reinterpret_cast<communicator*>(call->engine[0]);
        auto* const taken = reinterpret_cast<slot*>(call->engine[1]);
        if (call->depth > 0 && result == nccl_success && call->engine[2] == of->generation()) {
            if (!group_calls::of_this_thread().add(of, taken, *call)) {
                of->drop(*taken, call->stream, skip_reason::group);
            }
            return;
        }
        of->after(*call, result);
    });
}

void group_ended(int result, int simulated)
{
    guarded([=](engine&) { group_calls::of_this_thread().ended(result, simulated != 0); });
}

void comm_made(const collprobe_made* made)
{
    guarded([made](engine& all) { all.comm_made(*made); });
}

void comm_ends(void* comm, int how)
{
    guarded([=](engine& all) { all.comm_ends(comm, how); });
}

void comm_polled(void* comm, int result, int state)
{
    if (result != nccl_success) return;
    guarded([=](engine& all) {
        communicator* const found = all.communicators.find(comm);
        if (found != nullptr) found->polled(state);
    });
}

void operation_made(void* comm, int operation, const void* scalar, int type)
{
    guarded([=](engine& all) {
        communicator* const found = all.communicators.find(comm);
        if (found != nullptr) found->operation_made(operation, scalar, type);
    });
}

void operation_ended(void* comm, int operation)
{
    guarded([=](engine& all) {
        communicator* const found = all.communicators.find(comm);
        if (found != nullptr) found->operation_ended(operation);
    });
}

void window_made(void* comm, std::size_t)
{
    guarded([=](engine& all) {
        communicator* const found = all.communicators.find(comm);
        if (found != nullptr) found->windows.add();
    });
}

void mark_step(std::uint64_t step)
{
    guarded([=](engine&) { told_step::only.set(step, step_source::marked); });
}

constexpr collprobe_hooks hooks{COLLPROBE_PRELOAD_ABI, before, after, group_ended, comm_made, comm_ends,
    comm_polled, operation_made, operation_ended, window_made, mark_step};

/// Why CUDA cannot be used here; empty if it can. Creates no context.
std::string reason_against_cuda()
{
    int driver = 0;
    int devices = 0;
    cudaError_t code = cudaDriverGetVersion(&driver);
    if (code == cudaSuccess && driver == 0) return "there is no CUDA driver";
    if (code == cudaSuccess) code = cudaGetDeviceCount(&devices);
    if (code == cudaSuccess && devices == 0) return "there is no GPU";
    if (code == cudaSuccess) return {};
    collprobe::cuda::detail::forget(code);
    return collprobe::cuda::detail::describe(code);
}

} // namespace

} // namespace collprobe_preload

extern "C" __attribute__((visibility("default"))) const collprobe_hooks* collprobe_engine_open(unsigned abi)
{
    using namespace collprobe_preload;
    static std::mutex opening;
    const std::lock_guard lock(opening);
    if (the_engine != nullptr) return &hooks;
    try {
        if (abi != COLLPROBE_PRELOAD_ABI) {
            say("nothing is probed: the engine and the preload are of different versions");
            return nullptr;
        }
        if (const std::string reason = reason_against_cuda(); !reason.empty()) {
            say("nothing is probed: " + reason);
            return nullptr;
        }
        auto* const made = new engine;
        if (!made->writing.start()) {
            say("nothing is probed: " + made->writing.failure());
            return nullptr;
        }
        ::pthread_atfork(nullptr, nullptr, [] { in_child.store(true, std::memory_order_relaxed); });
        for (const std::string& each : made->options.warnings) say(each);
        the_engine = made;
        return &hooks;
    } catch (const std::exception& failure) {
        say(std::string("nothing is probed: ") + failure.what());
    } catch (...) {
        say("nothing is probed");
    }
    return nullptr;
}
