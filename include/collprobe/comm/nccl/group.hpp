// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include <nccl.h>

#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/core/error.hpp>
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
/// Errors: if a communicator fails or is aborted while a group has calls of it, the end enqueues no call of any
/// communicator, ends the failed one and throws its failure. NCCL would crash if it were ended before; so its hanging
/// work hangs until then. The other communicators stay usable if they are blocking; NCCL ends non-blocking ones.
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

    /// Whether the calling thread has a group open. For groups that a program opens by
    /// `ncclGroupStart` itself see `options::watch_groups`.
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
        // Taken out, because code that reports an error may open another group; put back so that its memory is used
        // again.
        auto members = std::move(open_->members);
        open_->members.clear();
        if (--open_->depth > 0) {
            open_->members = std::move(members);
            require(ncclGroupEnd(), "ncclGroupEnd", where);
            return;
        }
        struct put_back {
            detail::open_group& open;
            std::vector<detail::ref<detail::handle>>& members;
            ~put_back()
            {
                members.clear();
                open.members = std::move(members);
            }
        } const at_exit{*open_, members};
        // `handle::abort` must know that calls of these communicators are under way in `ncclGroupEnd`.
        const detail::handle* failed = nullptr;
        for (const auto& member : members) {
            if (member->enter_group_end() && failed == nullptr) failed = member.get();
        }
        struct leave {
            const std::vector<detail::ref<detail::handle>>& members;
            ~leave()
            {
                for (const auto& member : members) member->leave_group_end();
            }
        } const leave_at_exit{members};

        if (failed != nullptr) spoil();
        const detail::device_keeper current;
        const ncclResult_t result = ncclGroupEnd();
        if (result == ncclInProgress) {
            for (const auto& member : members) member->await("the group", call, where);
            return;
        }
        if (result == ncclSuccess) return;
        // The caller of `end` can correct a wrong argument; after the destructor no caller can.
        if (final || detail::status_of(result) != status::invalid_argument) {
            const std::string why = failed != nullptr
                ? "communicator '" + failed->settings().name + "' in it has failed"
                : std::string("ncclGroupEnd gave ") + detail::name(result) + ", " + ncclGetErrorString(result);
            for (const auto& member : members) {
                member->fail(
                    {detail::status_of(result), "a group with calls of the communicator failed: " + why, {}});
            }
        }
        else {
            for (const auto& member : members) {
                if (member.get() != failed) (void)member->stays_failed("a group with calls of the communicator failed");
            }
        }
        if (failed != nullptr) failed->require_usable(call, where);
        require(result, "ncclGroupEnd", where);
    }

    /// Remembers the error of this call: the open group fails at its end, and enqueues nothing.
    static void spoil() noexcept
    {
        const ncclComm_t none = nullptr;
        (void)ncclAllReduce(nullptr, nullptr, 0, ncclUint8, ncclSum, none, nullptr);
    }

    detail::open_group* open_;
    int depth_ = 0;
};

} // namespace collprobe::nccl
