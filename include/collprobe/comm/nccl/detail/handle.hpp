// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/comm/nccl/detail/raw_group.hpp>
#include <collprobe/comm/nccl/detail/pending_splits.hpp>
#include <collprobe/comm/nccl/detail/verifier.hpp>
#include <collprobe/comm/nccl/detail/zero_bytes.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/detail/thread.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/in_flight.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl {

namespace detail {

using collprobe::detail::back_off;
using collprobe::detail::call_description;
using collprobe::detail::deadline;
using collprobe::detail::ref;

/// Why a communicator can no longer be used.
struct failure {
    status code = status::peer_failure;
    std::string message;
    std::vector<int> culprits;
};

/// Keeps the current device: NCCL makes its own device current when a group fails or a communicator ends. As with
/// `cuda::device_guard`, no context is created.
class device_keeper {
public:
    device_keeper() noexcept { note(cudaGetDevice(&before_), before_); }
    device_keeper(const device_keeper&) = delete;
    ~device_keeper()
    {
        int now = -1;
        note(cudaGetDevice(&now), now);
        if (before_ < 0 || now == before_ || !cuda::detail::has_context(before_)) return;
        if (const cudaError_t code = cudaSetDevice(before_); code != cudaSuccess) cuda::detail::forget(code);
    }

private:
    static void note(cudaError_t code, int& device) noexcept
    {
        if (code == cudaSuccess) return;
        cuda::detail::forget(code);
        device = -1;
    }
    int before_ = -1;
};

class handle;

/// The group that the calling thread has open (`nccl::group`). NCCL's groups belong to threads.
struct open_group {
    int depth = 0;
    std::vector<ref<handle>> members;
    group_followers followers;

    static open_group& here() noexcept
    {
        static thread_local open_group open;
        return open;
    }
};

/// The state that the copies of a communicator share: the `ncclComm_t`, its properties and its failure. One host
/// thread at a time makes calls; `fail` and `abort` may come from any thread.
class handle : public collprobe::detail::ref_counted {
public:
    handle(ncclComm_t comm, options settings, bool owned)
        : comm_(comm), settings_(std::move(settings)), owned_(owned)
    {
        if (const char* const set = std::getenv("NCCL_COMM_BLOCKING")) {
            if (set[0] == '0' && set[1] == '\0') settings_.mode = blocking_mode::non_blocking;
            if (set[0] == '1' && set[1] == '\0') settings_.mode = blocking_mode::blocking;
        }
    }
    /// Waits until the `ncclComm_t` is initialised and reads its properties. The first call, made once.
    /// \throws error as `communicator_ref`'s constructor.
    void open(call_site where)
    {
        constexpr const char* call = "nccl::communicator";
        const error_origin unknown{.call = call, .communicator = settings_.name, .where = where};
        if (comm_ == nullptr) throw error(status::invalid_argument, "the ncclComm_t is null", unknown);
        if (settings_.timeout_ms == 0) {
            throw error(status::invalid_argument, "timeout_ms is 0: nothing could be waited for", unknown);
        }
        const in_call here(*this);
        settle("its initialisation", call, where);
        require(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank", call, where);
        require(ncclCommCount(comm_, &size_), "ncclCommCount", call, where);
        require(ncclCommCuDevice(comm_, &device_), "ncclCommCuDevice", call, where);
        if (size_ < 1) {
            throw error(status::invalid_argument,
                "the ncclComm_t is not initialised: is the group that creates it still open?", unknown);
        }
        const cuda::device_guard current(device_, where);
        if (size_ > 1) zero_ = zero_bytes(device_, where);
        if (settings_.verify_calls) verifier_ = collprobe::detail::in_flight<verifier>(1000, size_);
    }
    handle(const handle&) = delete;
    ~handle()
    {
        // Queued work still uses the verifier's memory. Freeing it waits for the device, and so for work that hangs
        // there.
        if (hangs_.load()) verifier_.leak_now();
        delete failure_.load(std::memory_order_acquire);
    }

    ncclComm_t comm() const noexcept { return comm_; }
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    int device() const noexcept { return device_; }
    const options& settings() const noexcept { return settings_; }
    bool verifies() const noexcept { return static_cast<bool>(verifier_); }
    unsigned char* zero() const noexcept { return zero_.data(); }

    error_origin origin(const char* call, call_site where) const
    {
        return {.call = call, .rank = rank_, .size = size_, .communicator = settings_.name, .where = where};
    }

    /// \throws error the failure, if there is one.
    void require_usable(const char* call, call_site where) const
    {
        if (failure_.load(std::memory_order_seq_cst) != nullptr) throw_failure(call, where);
    }

    /// Stores the first failure, which is final.
    void fail(failure cause)
    {
        auto* const record = new failure(std::move(cause));
        failure* none = nullptr;
        if (!failure_.compare_exchange_strong(none, record, std::memory_order_seq_cst)) delete record;
    }
    bool failed() const noexcept { return failure_.load(std::memory_order_acquire) != nullptr; }

    /// Ends the `ncclComm_t`: its work on the device stops. Call `fail` first. `own_calls` is the number of calls of
    /// this object that the calling thread is in. If a group has collected calls of it, the abort happens when the
    /// group ends.
    void abort(int own_calls) noexcept
    {
        if (!alive_.exchange(false)) return;
        // A healthy call of another thread sees the failure and returns at once. A call that hangs inside NCCL needs
        // the abort.
        const deadline until = deadline::in_ms(100);
        for (unsigned round = 0; calls_.load() > own_calls && !until.passed(); ++round) back_off(round);
        if (!left_to_group(deferred_end::abort)) abort_now();
    }
    /// Gives up the `ncclComm_t`: it now has another owner, or it is gone. Later calls throw with the reason `why`.
    bool give_up(const char* why)
    {
        fail({status::invalid_argument, why, {}});
        return alive_.exchange(false);
    }

    /// Ends an owned `ncclComm_t` by `ncclCommFinalize` and `ncclCommDestroy`. Waits for the communicator's work as
    /// long as it takes, because the caller wants the result. If the communicator has failed or `hurry` is set, ends
    /// it at once by `ncclCommAbort`. If a group has collected calls of it, all this happens when the group ends.
    void end(bool hurry) noexcept
    {
        try {
            if (hurry || failed()) {
                fail({status::invalid_argument, "the communicator was destroyed", {}});
                abort(0);
            } else if (alive_.load()) {
                if (left_to_group(deferred_end::end)) return;
                if (!outside_group([this] { finalize_and_destroy(); })) abort(0);
            }
            fail({status::invalid_argument, "the communicator was destroyed", {}});
        } catch (...) { // no memory for a message that is rarely read
            abort(0);
        }
    }

    /// Says that a group that has calls of the communicator begins to end. Returns true if the group must not enqueue
    /// any of them, because the communicator has failed.
    bool enter_group_end() noexcept
    {
        enter();
        const std::lock_guard lock(group_guard_);
        group_ = membership::ending;
        return failed();
    }
    /// Says that the group has ended, and does the end or abort that waited for it.
    void leave_group_end() noexcept
    {
        leave();
        deferred_end due = deferred_end::none;
        {
            const std::lock_guard lock(group_guard_);
            group_ = membership::none;
            due = std::exchange(due_, deferred_end::none);
        }
        if (due == deferred_end::abort) abort_now();
        if (due == deferred_end::end) end(false);
    }
    /// Whether the calling thread is seen in a group that `ncclGroupStart` has opened (`options::watch_groups`).
    bool sees_raw_group() noexcept { return settings_.watch_groups && watch_.sees_group(); }
    /// Whether an open group has collected calls of the communicator.
    bool in_open_group() noexcept
    {
        const std::lock_guard lock(group_guard_);
        return group_ == membership::collected;
    }

    /// Splits the `ncclComm_t` with all ranks: see `communicator_ref::split`.
    /// Precondition: the device is current.
    std::pair<ncclComm_t, options> split(int color, int key, call_site where)
    {
        constexpr const char* call = "split";
        if (verifies()) {
            // On the verifier's own stream, because a split has none.
            verify({.call = collective::split}, false, verifier_->stream, where);
        }
        const std::uint64_t number = splits_++;
        std::pair<ncclComm_t, options> made(nullptr, settings_);
        made.second.name += "/split" + std::to_string(number) + ".color" + std::to_string(color);
        auto* const part = new split_result;
        try {
            enqueue("ncclCommSplit", call, where, [&](ncclComm_t comm) {
                const ncclResult_t result
                    = ncclCommSplit(comm, color == no_color ? NCCL_SPLIT_NOCOLOR : color, key, &part->comm, nullptr);
                // NCCL's code promises the state ncclInProgress only to a caller that asks for it. So a success here
                // counts as in progress.
                return result == ncclSuccess ? ncclInProgress : result;
            });
        } catch (...) {
            // NCCL may still be making the new `ncclComm_t` on a thread of its own, until an abort has ended that.
            pending_splits_.keep(part);
            if (aborted_.load()) pending_splits_.abort();
            throw;
        }
        made.first = part->comm;
        if (made.first != nullptr) delete part;
        // In a group of `ncclGroupStart` itself NCCL writes to `part` at the end of the group, whatever the color.
        else if (color == no_color) collprobe::detail::leak(*part);
        else {
            pending_splits_.keep(part);
            throw error(status::unsupported,
                "NCCL has made nothing: ncclGroupStart has opened a group on this thread. End the group first",
                origin(call, where));
        }
        return made;
    }

    /// Makes `call(ncclComm_t)`, which returns an `ncclResult_t`. Returns when the work of the call is enqueued, or,
    /// in a group, when NCCL has noted the call. `function` is the call's name, for messages.
    /// \throws error the communicator's failure, an asynchronous error, a time-out, or NCCL's error.
    template <class Call>
    void enqueue(const char* function, const char* api_call, call_site where, Call call)
    {
        const in_call here(*this);
        require_usable(api_call, where);
        settle(function, api_call, where);
        open_group& group = open_group::here();
        if (group.depth > 0) join(group, api_call, where);
        const ncclResult_t result = call(comm_);
        if (result == ncclSuccess || (result == ncclInProgress && group.depth > 0)) return;
        if (result == ncclInProgress) await(function, api_call, where);
        else refuse(result, function, api_call, where);
    }

    /// \throws error if the communicator has failed, now or before.
    /// Cost: two loads and an NCCL call that reads two words.
    void check(const char* call, call_site where)
    {
        const in_call here(*this);
        require_usable(call, where);
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) state = asked;
        if (state != ncclSuccess && state != ncclInProgress) fail_asynchronously(state, call, where);
    }

    /// Polls until an earlier call is enqueued.
    /// Precondition: within a call of `in_call`, or before other threads know the object.
    void await(const char* function, const char* call, call_site where)
    {
        const deadline until = deadline::in_ms(settings_.timeout_ms);
        for (unsigned round = 0;; ++round) {
            require_usable(call, where);
            ncclResult_t state = ncclSuccess;
            const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
            if (asked != ncclSuccess) state = asked;
            if (state == ncclSuccess) return;
            if (state != ncclInProgress) fail_asynchronously(state, call, where);
            if (until.passed()) {
                time_out(std::string(function) + " is still in progress after " + std::to_string(settings_.timeout_ms)
                        + " ms: a peer is late or dead",
                    call, where, 1);
            }
            back_off(round);
        }
    }

    /// Blocks the caller until the work on `on` is done, the communicator fails, or the time is over. Then `late()`
    /// gives the message of the time-out, which ends the communicator if `final`.
    template <class Message>
    void wait(cuda::stream_ref on, std::int64_t timeout_ms, const char* call, bool final, call_site where,
        Message late)
    {
        const cuda::device_guard current(device_, where);
        if (on.capturing(where)) {
            throw error(status::invalid_argument, "the stream is being captured: there is nothing to wait for",
                origin(call, where));
        }
        const deadline until = deadline::in_ms(timeout_ms);
        for (unsigned round = 0;; ++round) {
            cudaError_t state = cudaSuccess;
            {
                const cuda::detail::relaxed_capture_mode relaxed;
                state = cudaStreamQuery(on.get());
            }
            if (state == cudaSuccess) {
                // Work that an abort has ended leaves the stream without an error.
                check(call, where);
                return;
            }
            if (state != cudaErrorNotReady) cuda::check(state, "cudaStreamQuery", device_, on.get(), where);
            cuda::detail::forget(state);
            check(call, where);
            if (until.passed()) time_out(late(), call, where, 0, final);
            back_off(round);
        }
    }

    /// Compares the ranks' calls. A rank with `bad` arguments takes part too, so that no rank waits.
    /// \throws error `mismatch`, `peer_failure` or `timeout`, which are final; `unsupported` if the host may not
    ///   wait: in a capture and in a group. Defined in comm/nccl/detail/verify.hpp.
    void verify(const call_description& what, bool bad, cuda::stream_ref on, call_site where);
    /// If calls are verified, tells the peers that this rank does not make `call`. This rank throws its own error,
    /// whatever comes of this.
    void tell_refusal(collective call, cuda::stream_ref on, call_site where) noexcept
    {
        if (!verifies()) return;
        try {
            verify({.call = call}, true, on, where);
        } catch (...) { // this rank's error is the one to show
        }
    }
    /// The same for a call without a stream.
    void tell_refusal(collective call, call_site where) noexcept
    {
        if (verifies()) tell_refusal(call, verifier_->stream, where);
    }

    /// Counts the calling thread as inside a call on the `ncclComm_t`, for `abort`.
    void enter() noexcept { calls_.fetch_add(1); }
    void leave() noexcept { calls_.fetch_sub(1); }
    class in_call {
    public:
        explicit in_call(handle& entered) noexcept : entered_(entered) { entered_.enter(); }
        in_call(const in_call&) = delete;
        ~in_call() { entered_.leave(); }

    private:
        handle& entered_;
    };

    /// Throws the error of a failed NCCL call. Wrong arguments can be corrected, unless NCCL keeps the communicator
    /// failed, as it does with non-blocking ones. All other errors are final.
    /// Precondition: within a call of `in_call`.
    /// \throws error always.
    [[noreturn]] void refuse(ncclResult_t result, const char* function, const char* call, call_site where)
    {
        failure cause{status_of(result), describe(function, result), {}};
        const bool correctable = cause.code == status::invalid_argument;
        if (correctable && stays_failed(cause.message)) cause.message += failure_stays;
        const error thrown(cause.code, cause.message, origin(call, where));
        if (!correctable) fail(std::move(cause));
        throw thrown;
    }
    /// Whether NCCL refuses all further calls after a refused one. Then the communicator has failed, with the text
    /// `why`.
    /// Precondition: within a call of `in_call`.
    bool stays_failed(const std::string& why)
    {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) state = asked;
        if (state == ncclSuccess || state == ncclInProgress) return false;
        // Not `invalid_argument`: the arguments of later calls are not at fault.
        fail({status::device_failure, why + failure_stays, {}});
        end_after_failure();
        return true;
    }
    void require(ncclResult_t result, const char* function, const char* call, call_site where)
    {
        if (result != ncclSuccess) refuse(result, function, call, where);
    }

    /// Throws a time-out. Ends the communicator first if its policy says so. The time-out becomes the communicator's
    /// failure then, and also if it is `final`.
    [[noreturn]] void time_out(
        const std::string& message, const char* call, call_site where, int own_calls, bool final = false)
    {
        const bool ends = aborts_on_failure();
        if (ends || final) fail({status::timeout, message, {}});
        if (ends) abort(own_calls);
        else hangs_ = true;
        throw error(status::timeout, message, origin(call, where));
    }

private:
    static constexpr const char* failure_stays
        = "; NCCL keeps a non-blocking communicator failed after that: it cannot be used any more";

    bool aborts_on_failure() const noexcept
    {
        return settings_.abort_on_failure == abort_policy::always
            || (settings_.abort_on_failure == abort_policy::if_owned && owned_);
    }

    /// Precondition: `fail` was called; within a call of `in_call`.
    void end_after_failure() noexcept
    {
        if (aborts_on_failure()) abort(1);
        else hangs_ = true;
    }

    /// Looks for asynchronous errors of earlier calls. Waits for a call that is under way, as NCCL demands.
    void settle(const char* function, const char* call, call_site where)
    {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        if (asked != ncclSuccess) state = asked;
        if (state == ncclSuccess) return;
        if (state == ncclInProgress) await(function, call, where);
        else fail_asynchronously(state, call, where);
    }

    /// Notes that the group has a call of this communicator.
    void join(open_group& group, const char* call, call_site where)
    {
        for (const ref<handle>& member : group.members) {
            if (member.get() == this) return;
            const blocking_mode other = member->settings_.mode;
            if (other != settings_.mode && other != blocking_mode::unknown
                && settings_.mode != blocking_mode::unknown) {
                throw error(status::unsupported,
                    "a group must not have blocking and non-blocking communicators ('" + member->settings_.name
                        + "' is the other kind)",
                    origin(call, where));
            }
        }
        group.members.push_back(ref<handle>(this));
        const std::lock_guard lock(group_guard_);
        if (alive_.load()) {
            group_ = membership::collected;
            return;
        }
        // Another thread is aborting the communicator now.
        group.members.pop_back();
        throw_failure(call, where);
    }

    /// An open group of NCCL's points to the communicators whose calls it has collected, and its end follows these
    /// pointers. NCCL crashes if such a communicator is ended before, on any thread.
    enum class membership : std::uint8_t { none, collected, ending };
    enum class deferred_end : std::uint8_t { none, end, abort };

    /// Leaves the end of the communicator to the group that has collected calls of it, if there is one. (If the group
    /// is ending, its remaining work hangs inside NCCL, and only an abort can free it.)
    bool left_to_group(deferred_end wanted) noexcept
    {
        const std::lock_guard lock(group_guard_);
        if (group_ != membership::collected) return false;
        if (due_ < wanted) due_ = wanted;
        return true;
    }

    /// Runs `body()`, which must not throw, on a thread without an open group. In a group NCCL would postpone the end
    /// of a communicator to the group's end, and forget it if the group fails. Returns false if that was not
    /// possible.
    template <class Body>
    static bool outside_group(Body body) noexcept
    {
        if (open_group::here().depth == 0) {
            body();
            return true;
        }
        try {
            const collprobe::detail::thread elsewhere(body);
            return true;
        } catch (...) { // no more threads, or no memory
            return false;
        }
    }

    void abort_now() noexcept
    {
        const auto abort = [this] {
            const device_keeper before;
            const cuda::device_guard current(device_, std::nothrow);
            (void)ncclCommAbort(comm_);
            aborted_ = true;
            pending_splits_.abort();
        };
        if (!outside_group(abort)) abort();
    }

    void finalize_and_destroy() noexcept
    {
        const device_keeper before;
        const cuda::device_guard current(device_, std::nothrow);
        // NCCL takes it as a usage error to finalise while a call is under way, so all calls must be enqueued before.
        await_quietly();
        pending_splits_.abort();
        ncclResult_t state = ncclCommFinalize(comm_);
        if (state == ncclInProgress) state = await_quietly();
        if (alive_.exchange(false)) (void)(state == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
    }

    /// Waits until no call is under way, as long as it takes, and returns the state.
    ncclResult_t await_quietly() noexcept
    {
        for (unsigned round = 0;; ++round) {
            ncclResult_t state = ncclSuccess;
            const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
            if (asked != ncclSuccess) return asked;
            if (state != ncclInProgress) return state;
            back_off(round);
        }
    }

    std::string describe(const char* function, ncclResult_t result) const
    {
        return std::string(function) + " failed: " + name(result) + ", " + ncclGetErrorString(result)
            + last_error(comm_);
    }

    /// Precondition: within a call of `in_call`.
    [[noreturn]] void fail_asynchronously(ncclResult_t state, const char* call, call_site where)
    {
        std::string text = std::string("an earlier call failed asynchronously: ") + name(state) + ", "
            + ncclGetErrorString(state) + last_error(comm_);
        // Whatever the code, the arguments of this call are not at fault.
        const status code = state == ncclRemoteError ? status::peer_failure : status::device_failure;
        fail({code, std::move(text), {}});
        end_after_failure();
        throw_failure(call, where);
    }

    [[noreturn]] void throw_failure(const char* call, call_site where) const
    {
        const failure* const cause = failure_.load(std::memory_order_seq_cst);
        if (cause == nullptr) { // yet
            throw error(status::invalid_argument, "the communicator is being destroyed", origin(call, where));
        }
        throw error(cause->code, cause->message, origin(call, where), cause->culprits);
    }

    ncclComm_t comm_;
    options settings_;
    bool owned_;
    int rank_ = -1;
    int size_ = 0;
    int device_ = -1; // until `open`
    zero_bytes zero_;
    collprobe::detail::in_flight<verifier> verifier_;
    std::uint64_t splits_ = 0;
    std::atomic<failure*> failure_{nullptr};
    std::atomic<int> calls_{0};
    std::atomic<bool> alive_{true};
    std::atomic<bool> aborted_{false};
    std::atomic<bool> hangs_{false}; // set if work may hang on the device
    pending_splits pending_splits_;
    group_watch watch_;
    std::mutex group_guard_; // guards the two members below
    membership group_ = membership::none;
    deferred_end due_ = deferred_end::none;
};

} // namespace detail
} // namespace collprobe::nccl
