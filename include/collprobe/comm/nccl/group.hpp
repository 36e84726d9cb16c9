// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/ref.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl {

/// Several collectives as one, of one or more communicators: `ncclGroupStart` and, at the end, `ncclGroupEnd`. Groups
/// nest; the outermost one counts. A group belongs to the thread that opened it and is closed on that thread.
///
/// Preconditions: no collective of the group needs another's result, because NCCL may run them at the same time or in
/// another order. Blocking and non-blocking communicators do not share a group.
/// Stream behaviour: a collective checks its arguments and returns *without being enqueued*; the end enqueues it (a
/// communicator of one rank enqueues at once). So enqueue an event record or a copy of the result after the end, and
/// do not change a send buffer before it; the checker of stream order cannot see such errors. If the collectives are
/// on several streams, all start after the earlier work on all these streams, and later work on each of them waits
/// for all (NCCL user guide, streams and groups).
/// Errors: an error of NCCL at the end is final for the communicators with calls in the group, except a wrong argument,
/// which leaves blocking ones usable. Do not end an `ncclComm_t` while a group has calls of it: NCCL would crash.
/// Cost: NCCL's, one launch for all collectives.
class [[nodiscard]] group {
public:
    /// \throws error what `ncclGroupStart` says.
    explicit group(call_site where = call_site::current()) : open_(&detail::open_group::here())
    {
        require(ncclGroupStart(), "ncclGroupStart", where);
        depth_ = ++open_->depth;
        order_hooks::group_begin();
    }
    group(const group&) = delete;
    group& operator=(const group&) = delete;
    /// Ends the group if `end` was not called, also when an exception passes: else NCCL would collect calls for ever.
    /// An error becomes the failure of the communicators in the group, whose next call throws it.
    ~group()
    {
        if (depth_ == 0) return;
        following tell(*open_);
        try {
            finish(call_site{}, true);
            tell.enqueued = true;
            order_hooks::group_end(true);
        } catch (...) { // the communicators keep the error
        }
    }

    /// Whether the calling thread has a group open, apart from groups that a program opens by `ncclGroupStart` itself.
    static bool is_open() noexcept { return detail::open_group::here().depth > 0; }

    /// If the group is the outermost, enqueues its calls and waits until they are enqueued (for non-blocking
    /// communicators; it never waits for the work itself).
    /// \throws error `invalid_argument` if it was ended before, another thread opened it or a group within it is
    ///   still open; otherwise NCCL's errors, or a communicator's failure or time-out.
    void end(call_site where = call_site::current())
    {
        collprobe::detail::require(depth_ != 0, call, "the group was ended before", where);
        collprobe::detail::require(
            open_ == &detail::open_group::here(), call, "another thread opened the group", where);
        collprobe::detail::require(depth_ == open_->depth, call, "a group within it is still open", where);
        following tell(*open_);
        finish(where, false);
        tell.enqueued = true;
        order_hooks::group_end(true);
    }

private:
    /// Tells the followers of an outermost group that it has ended, and the checker of stream order that it has failed.
    struct following {
        explicit following(detail::open_group& open) : group(open.depth == 1 ? &open : nullptr) {}
        following(const following&) = delete;
        ~following()
        {
            if (!enqueued) order_hooks::group_end(false);
            if (group != nullptr) group->followers.tell(enqueued);
        }
        detail::open_group* group;
        bool enqueued = false;
    };

    static constexpr const char* call = "nccl::group";

    static void require(ncclResult_t result, const char* function, call_site where)
    {
        if (result == ncclSuccess) return;
        throw error(detail::status_of(result),
            std::string(function) + " failed: " + detail::name(result) + ", " + ncclGetErrorString(result)
                + detail::last_error(nullptr),
            {.call = call, .where = where});
    }

    void finish(call_site where, bool final)
    {
        depth_ = 0;
        if (--open_->depth > 0) {
            require(ncclGroupEnd(), "ncclGroupEnd", where);
            return;
        }
        // Taken out, because code that reports an error may open another group; put back so that its memory is used
        // again.
        struct taken_out {
            explicit taken_out(detail::open_group& from) : open(from), members(std::move(from.members))
            {
                open.members.clear();
            }
            taken_out(const taken_out&) = delete;
            ~taken_out()
            {
                members.clear();
                open.members = std::move(members);
            }
            detail::open_group& open;
            std::vector<detail::ref<detail::handle>> members;
        } const all(*open_);

        const cuda::device_guard current(std::nothrow); // NCCL makes its own device current when a group fails
        const ncclResult_t result = ncclGroupEnd();
        if (result == ncclInProgress) {
            for (const auto& member : all.members) member->await("the group", call, where);
            return;
        }
        if (result == ncclSuccess) return;
        // The caller of `end` can correct a wrong argument; after the destructor no caller can.
        const bool stays = final || detail::status_of(result) != status::invalid_argument;
        const std::string why = "a group with calls of the communicator failed";
        for (const auto& member : all.members) {
            if (!stays) (void)member->stays_failed(why);
            else {
                member->fail({detail::status_of(result),
                    why + ": ncclGroupEnd gave " + detail::name(result) + ", " + ncclGetErrorString(result), {}});
            }
        }
        require(result, "ncclGroupEnd", where);
    }

    detail::open_group* open_;
    int depth_ = 0;
};

} // namespace collprobe::nccl
