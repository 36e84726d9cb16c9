// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <nccl.h>

#include <collprobe/comm/nccl/communicator.hpp>

/// What a trainer does by NCCL's own calls, for tests and benches.
namespace collprobe::testing {

inline void require_nccl(ncclResult_t result, const char* function)
{
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw std::runtime_error(std::string(function) + " failed: " + ncclGetErrorString(result));
}

inline ncclUniqueId new_nccl_id()
{
    ncclUniqueId id{};
    require_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    return id;
}

/// A communicator with its `ncclComm_t`, which is non-blocking unless `settings` say otherwise. The destructor destroys
/// it when this rank's work is done; it aborts it if it has failed or an exception passes.
class nccl_owner : public nccl::communicator_ref {
public:
    static nccl_owner create(const ncclUniqueId& id, int rank, int size, int device, nccl::options settings = {})
    {
        if (settings.mode == nccl::blocking_mode::unknown) settings.mode = nccl::blocking_mode::non_blocking;
        const cuda::device_guard current(device);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = settings.mode == nccl::blocking_mode::blocking ? 1 : 0;
        ncclComm_t made = nullptr;
        require_nccl(ncclCommInitRankConfig(&made, size, id, rank, &config), "ncclCommInitRankConfig");
        return nccl_owner(made, std::move(settings));
    }
    nccl_owner(ncclComm_t owned, nccl::options settings)
        : communicator_ref(borrow(owned, settings)), owned_(owned), settings_(std::move(settings))
    {
    }
    nccl_owner(nccl_owner&& other) noexcept
        : communicator_ref(other), owned_(std::exchange(other.owned_, nullptr)), settings_(other.settings_)
    {
    }
    ~nccl_owner()
    {
        if (owned_ == nullptr) return;
        const cuda::device_guard current(device_ordinal(), std::nothrow);
        bool healthy = std::uncaught_exceptions() == exceptions_;
        try {
            check();
        } catch (const error&) {
            healthy = false;
        }
        if (healthy && state_of(owned_) == ncclSuccess) (void)ncclCommFinalize(owned_);
        if (healthy && state_of(owned_) == ncclSuccess) (void)ncclCommDestroy(owned_);
        else (void)ncclCommAbort(owned_);
    }

    /// The ranks of the same color, by key; empty for `no_color`.
    std::optional<nccl_owner> split(int color, int key) const
    {
        const cuda::device_guard current(device_ordinal());
        ncclComm_t part = nullptr;
        require_nccl(ncclCommSplit(owned_, color == no_color ? NCCL_SPLIT_NOCOLOR : color, key, &part, nullptr),
            "ncclCommSplit");
        require_nccl(state_of(owned_), "ncclCommSplit");
        if (part == nullptr) return std::nullopt;
        nccl::options settings = settings_;
        settings.name += "/part" + std::to_string(color);
        return nccl_owner(part, std::move(settings));
    }
    void abort(const std::string& reason)
    {
        fail(reason);
        const cuda::device_guard current(device_ordinal());
        if (owned_ != nullptr) (void)ncclCommAbort(std::exchange(owned_, nullptr));
    }

private:
    static communicator_ref borrow(ncclComm_t owned, const nccl::options& settings)
    {
        try {
            return communicator_ref(owned, settings);
        } catch (...) {
            (void)ncclCommAbort(owned);
            throw;
        }
    }
    /// When no call is under way.
    static ncclResult_t state_of(ncclComm_t comm)
    {
        for (;;) {
            ncclResult_t state = ncclSuccess;
            const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
            if (asked != ncclSuccess || state != ncclInProgress) return asked != ncclSuccess ? asked : state;
            std::this_thread::yield();
        }
    }

    ncclComm_t owned_;
    nccl::options settings_;
    int exceptions_ = std::uncaught_exceptions();
};

} // namespace collprobe::testing
