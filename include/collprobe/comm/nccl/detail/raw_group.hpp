// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <nccl.h>

#include <collprobe/comm/nccl/types.hpp>

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

} // namespace collprobe::nccl::detail
