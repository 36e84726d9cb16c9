// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

#include <collprobe/comm/bootstrap.hpp>
#include <collprobe/comm/nccl/communicator.hpp>

namespace collprobe::inline COLLPROBE_ABI::nccl {

/// The id by which the ranks of `of` make one communicator. It is rank 0's `unique_id()`, which `bootstrap::exchange`
/// gives to all. If NCCL_COMM_ID is set, it is every rank's own `unique_id()`, which NCCL makes of that address. Then
/// the ranks exchange nothing, and can make one communicator at a time in this way (`split` makes more of it).
///
///     const auto job = bootstrap::job::from_environment();
///     auto world = nccl::communicator::create(nccl::unique_id(job), job.rank, job.size, gpu);
///
/// Collective over the job. Blocks.
/// \throws error as `bootstrap::exchange`; `invalid_argument` if NCCL_COMM_ID is no address; `device_failure`:
///   NCCL's.
inline ncclUniqueId unique_id(
    const bootstrap::job& of, const bootstrap::options& settings = {}, call_site where = call_site::current())
{
    const bool by_address = std::getenv("NCCL_COMM_ID") != nullptr;
    ncclUniqueId id{};
    if (by_address || of.rank == 0) id = unique_id(where);
    if (!by_address) bootstrap::exchange(of, id, settings, where);
    return id;
}

} // namespace collprobe::nccl
