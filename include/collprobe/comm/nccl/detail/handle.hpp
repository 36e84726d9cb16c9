// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/comm/detail/failure.hpp>
#include <collprobe/comm/group_follower.hpp>
#include <collprobe/comm/nccl/options.hpp>
#include <collprobe/comm/nccl/types.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/device/in_flight.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

/// Whether the calling thread is in a group that `ncclGroupStart` has opened. False with an NCCL before 2.27, which
/// cannot be asked.
///
/// NCCL does not tell the depth of its groups. But the end of an inner group returns before it looks at its argument,
/// and the end of an outermost group first refuses an argument without its magic number. So this function opens and
/// ends a group. In either case nothing is launched, no error is kept, and the calls that an open group has collected
/// stay there. (src/group.cc, ncclGroupEndInternal, 2.27 to 2.30. In 2.22 to 2.26 the refusal would clear the work in
/// progress of a non-blocking group of the same thread.)
/// Cost: NCCL's warning if no group is open. `last_error` leaves the warning out of messages, and `group_watch` asks
/// rarely.
inline bool raw_group_is_open() noexcept
{
#if NCCL_VERSION_CODE >= 22700
    static const bool can_be_asked = [] {
        int version = 0; // the library's version, which may differ from the header's
        return ncclGetVersion(&version) == ncclSuccess && version >= 22700;
    }();
    if (!can_be_asked || ncclGroupStart() != ncclSuccess) return false;
    ncclSimInfo_t none = NCCL_SIM_INFO_INITIALIZER;
    none.magic = 0;
    return ncclGroupSimulateEnd(&none) == ncclSuccess;
#else
    return false;
#endif
}

/// Looks for such a group at the 1st, 2nd, 4th, 8th ... of a communicator's calls. Once it finds a group, it looks at
/// each call until a call is in none. The count is the same on all ranks, so all ranks come to the same answer.
class group_watch {
public:
    bool sees_group() noexcept
    {
        if (++calls_ < next_) return false;
        if (raw_group_is_open()) return true;
        next_ = 2 * calls_;
        return false;
    }

private:
    std::uint64_t calls_ = 0;
    std::uint64_t next_ = 1;
};

using collprobe::detail::deadline;
using collprobe::detail::failure;
using collprobe::detail::ref;

/// Bytes that are zero, for barriers, which must not allocate because they may be captured. No work ever writes
/// anything but zeros to them.
struct barrier_memory : collprobe::detail::leakable {
    /// Precondition: `device` is current.
    barrier_memory(int device, call_site where) : memory(64, where)
    {
        const cuda::stream stream(where);
        cuda::check(cudaMemsetAsync(memory.data(), 0, memory.size(), stream.get()), "cudaMemsetAsync", device,
            stream.get(), where);
        stream.synchronize(where);
    }
    cuda::buffer<unsigned char> memory;
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
/// thread at a time makes calls; `fail` may come from any thread.
class handle : public collprobe::detail::ref_counted {
public:
    /// Waits until the `ncclComm_t` is initialised and reads its properties.
    /// \throws error as `communicator_ref`'s constructor.
    handle(ncclComm_t comm, options settings, call_site where) : comm_(comm), settings_(std::move(settings))
    {
        if (const char* const set = std::getenv("NCCL_COMM_BLOCKING")) {
            if (set[0] == '0' && set[1] == '\0') settings_.mode = blocking_mode::non_blocking;
            if (set[0] == '1' && set[1] == '\0') settings_.mode = blocking_mode::blocking;
        }
        constexpr const char* call = "nccl::communicator_ref";
        const error_origin unknown{.call = call, .communicator = settings_.name, .where = where};
        if (comm_ == nullptr) throw error(status::invalid_argument, "the ncclComm_t is null", unknown);
        if (settings_.timeout_ms == 0) {
            throw error(status::invalid_argument, "timeout_ms is 0: nothing could be waited for", unknown);
        }
        await("its initialisation", call, where);
        require(ncclCommUserRank(comm_, &rank_), "ncclCommUserRank", call, where);
        require(ncclCommCount(comm_, &size_), "ncclCommCount", call, where);
        require(ncclCommCuDevice(comm_, &device_), "ncclCommCuDevice", call, where);
        if (size_ < 1) {
            throw error(status::invalid_argument,
                "the ncclComm_t is not initialised: is the group that creates it still open?", unknown);
        }
        const cuda::device_guard current(device_, where);
        if (size_ > 1) zero_ = new barrier_memory(device_, where);
    }
    handle(const handle&) = delete;
    ~handle()
    {
        // To free memory waits for the device, for ever if a collective hangs there.
        if (zero_ != nullptr && (failure_ || hangs_)) collprobe::detail::leak(*zero_);
        else delete zero_;
    }

    ncclComm_t comm() const noexcept { return comm_; }
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    int device() const noexcept { return device_; }
    const options& settings() const noexcept { return settings_; }
    unsigned char* zero() const noexcept { return zero_->memory.data(); }
    /// Whether the calling thread is seen in a group that `ncclGroupStart` has opened.
    bool sees_raw_group() noexcept { return watch_.sees_group(); }

    error_origin origin(const char* call, call_site where) const
    {
        return {.call = call, .rank = rank_, .size = size_, .communicator = settings_.name, .where = where};
    }
    /// \throws error the failure, if there is one.
    void require_usable(const char* call, call_site where) const
    {
        failure_.require_none([&, this] { return origin(call, where); });
    }
    void fail(failure cause) { failure_.set(std::move(cause)); }

    /// Makes `call(ncclComm_t)`, which returns an `ncclResult_t`. Returns when the work of the call is enqueued, or,
    /// in a group, when NCCL has noted the call. `function` is the call's name, for messages.
    /// \throws error the communicator's failure, an asynchronous error, a time-out, or NCCL's error.
    template <class Call>
    void enqueue(const char* function, const char* api_call, call_site where, Call call)
    {
        await(function, api_call, where);
        open_group& group = open_group::here();
        if (group.depth > 0) join(group, api_call, where);
        const ncclResult_t result = call(comm_);
        if (result == ncclSuccess || (result == ncclInProgress && group.depth > 0)) return;
        require_usable(api_call, where); // who lent the communicator may have ended it meanwhile
        if (result == ncclInProgress) await(function, api_call, where);
        else refuse(result, function, api_call, where);
    }

    /// Returns whether no call is under way.
    /// \throws error if the communicator has failed, now or before.
    /// Cost: two loads and an NCCL call that reads two words.
    bool check(const char* call, call_site where)
    {
        require_usable(call, where);
        const ncclResult_t state = state_of_calls();
        if (state == ncclSuccess || state == ncclInProgress) return state == ncclSuccess;
        // Whatever the code, the arguments of this call are not at fault.
        fail({state == ncclRemoteError ? status::peer_failure : status::device_failure,
            std::string("an earlier call failed asynchronously: ") + name(state) + ", " + ncclGetErrorString(state)
                + last_error(comm_),
            {}});
        require_usable(call, where);
        return true;
    }

    /// Waits until no earlier call is under way, as NCCL demands before the next one.
    void await(const char* function, const char* call, call_site where)
    {
        if (check(call, where)) return;
        const deadline until = deadline::in_ms(settings_.timeout_ms);
        for (unsigned round = 0; !check(call, where); ++round) {
            if (until.passed()) {
                time_out(std::string(function) + " is still in progress after " + std::to_string(settings_.timeout_ms)
                        + " ms: a peer is late or dead",
                    call, where);
            }
            collprobe::detail::back_off(round);
        }
    }

    /// Blocks the caller until the work on `on` is done, the communicator fails, or the time is over.
    void wait(cuda::stream_ref on, std::int64_t timeout_ms, const char* call, call_site where)
    {
        const cuda::device_guard current(device_, where);
        if (on.capturing(where)) {
            throw error(status::invalid_argument, "the stream is being captured: there is nothing to wait for",
                origin(call, where));
        }
        const deadline until = deadline::in_ms(timeout_ms);
        for (unsigned round = 0;; ++round) {
            require_usable(call, where);
            cudaError_t state = cudaSuccess;
            {
                const cuda::detail::relaxed_capture_mode relaxed;
                state = cudaStreamQuery(on.get());
            }
            if (state == cudaSuccess) {
                // Work that an abort has ended leaves the stream without an error.
                (void)check(call, where);
                return;
            }
            if (state != cudaErrorNotReady) cuda::check(state, "cudaStreamQuery", device_, on.get(), where);
            cuda::detail::forget(state);
            (void)check(call, where);
            if (until.passed()) {
                time_out("work on the stream did not finish within " + std::to_string(timeout_ms)
                        + " ms: a peer is late, dead or made another call (agreed tells which)",
                    call, where);
            }
            collprobe::detail::back_off(round);
        }
    }

    /// Whether NCCL refuses all further calls after a refused one. Then the communicator has failed, with the text
    /// `why`.
    bool stays_failed(const std::string& why)
    {
        const ncclResult_t state = state_of_calls();
        if (state == ncclSuccess || state == ncclInProgress) return false;
        // Not `invalid_argument`: the arguments of later calls are not at fault.
        fail({status::device_failure, why + failure_stays, {}});
        return true;
    }

private:
    static constexpr const char* failure_stays
        = "; NCCL keeps a non-blocking communicator failed after that: it cannot be used any more";

    ncclResult_t state_of_calls() const noexcept
    {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
        return asked == ncclSuccess ? state : asked;
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
    }

    /// Throws the error of a failed NCCL call. Wrong arguments can be corrected, unless NCCL keeps the communicator
    /// failed, as it does with non-blocking ones. All other errors are final.
    [[noreturn]] void refuse(ncclResult_t result, const char* function, const char* call, call_site where)
    {
        failure cause{status_of(result),
            std::string(function) + " failed: " + name(result) + ", " + ncclGetErrorString(result) + last_error(comm_),
            {}};
        const bool correctable = cause.code == status::invalid_argument;
        if (correctable && stays_failed(cause.message)) cause.message += failure_stays;
        const error thrown(cause.code, cause.message, origin(call, where));
        if (!correctable) fail(std::move(cause));
        throw thrown;
    }
    void require(ncclResult_t result, const char* function, const char* call, call_site where)
    {
        if (result != ncclSuccess) refuse(result, function, call, where);
    }

    [[noreturn]] void time_out(const std::string& message, const char* call, call_site where)
    {
        hangs_ = true;
        throw error(status::timeout, message, origin(call, where));
    }

    ncclComm_t comm_;
    options settings_;
    int rank_ = -1;
    int size_ = 0;
    int device_ = -1; // until it is read
    bool hangs_ = false; // whether a wait has ended in vain
    barrier_memory* zero_ = nullptr;
    collprobe::detail::first_failure failure_;
    group_watch watch_;
};

} // namespace collprobe::nccl::detail
