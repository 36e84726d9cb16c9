// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/comm/bootstrap_job.hpp>
#include <collprobe/comm/detail/bootstrap_file.hpp>
#include <collprobe/comm/detail/bootstrap_tcp.hpp>
#include <collprobe/comm/detail/bootstrap_value.hpp>
#include <collprobe/core/error.hpp>

/// How ranks that are processes of their own agree on a small value that rank 0 makes, before they have
/// a communicator; in practice on the `ncclUniqueId` by which they get one:
///
///     const auto job = bootstrap::job::from_environment();
///     ncclUniqueId id{};
///     if (job.rank == 0) ncclGetUniqueId(&id);
///     bootstrap::exchange(job, id);
///
/// Needs Linux or another system with its socket calls. Not in an umbrella header: only the file that
/// starts a rank needs it.
namespace collprobe::inline COLLPROBE_ABI::bootstrap {

struct options {
    /// How long a rank waits for all others; negative: for ever. The shortest wait of any rank ends the
    /// exchange for all, a little before its end, so that all are told who is missing.
    std::int64_t timeout_ms = 300'000;
    /// How long a connection may take to say who it is.
    std::int64_t handshake_ms = 5'000;
};

/// Gives every rank rank 0's `value`, over TCP.
///
/// Shapes: `value` is any trivially copyable object but a pointer, or a `view` of such elements; it has the
/// same size on all ranks, at most 64 KiB; a rank other than 0 may pass anything and gets it only if all
/// ranks do. With one rank nothing happens. Collective: all ranks of `job` call, with the same token. One
/// exchange at a time uses a port; another may follow it at once.
///
/// Rank 0 listens on `job.port` at `job.master_address` if that is a number (IPv4, IPv6) or "localhost",
/// on all addresses of its machine if it is a name; the others try until it is there. Each side proves to
/// the other that it knows the token, by HMAC-SHA-256 over fresh random numbers of both: the token is
/// not sent, and a recorded proof is worth nothing. Then each rank confirms, and all go on together.
/// A connection that does not prove itself is turned away, and delays nobody while it does not. The value
/// itself is not encrypted: who can listen on the network can read it.
///
/// Blocks; no stream is involved. Does not bound how long the system looks up a host name.
/// \throws error on every rank, within its time-out:
///   `invalid_argument`: address or port missing, or the port taken (rank 0); value too large;
///   `timeout`: ranks are missing, in `culprits()`; on the others also: rank 0 is not reached;
///   `mismatch`: ranks differ in size of job or value, two are the same rank, or (on the others) what
///   listens there has another token;
///   `peer_failure`: a rank left in between; `unsupported`: too many ranks for the open-file limit, which
///   rank 0 raises as far as it may for the time of the call; `device_failure`: the system refuses.
/// Cost: per rank one connection and 5 messages of 40 bytes to the value's size; at rank 0 one thread.
template <detail::exchangeable T>
void exchange_tcp(
    const job& of, T&& value, const options& settings = {}, call_site where = call_site::current())
{
    detail::exchange_tcp({of, detail::memory_of(value), "bootstrap::exchange_tcp", where},
        settings.timeout_ms, settings.handshake_ms);
}

/// The same through files in `directory`, which all ranks see, for machines that cannot connect to each
/// other. It is made if it is missing (its parent must be there), and removed at the end if nothing else
/// is in it. One job at a time uses a directory.
///
/// Files appear under their name when they are complete (written beside it, then renamed), no locks
/// are used: NFS will do, though it may take its time to show a new file. A run is not misled by what
/// an earlier one left: each rank's file has a fresh random number, and rank 0's answer counts only for
/// those whose number it repeats. All files carry proofs by the token and are readable to their owner only.
///
/// Shapes, cost and errors as for `exchange_tcp`, except: a rank that dies is noticed only at the
/// time-out; `device_failure` where a file cannot be written or read, with its path; two processes that
/// are the same rank: `mismatch` on the one that finds its file replaced, perhaps a time-out on others.
template <detail::exchangeable T>
void exchange_file(const job& of, T&& value, const std::string& directory, const options& settings = {},
    call_site where = call_site::current())
{
    detail::exchange_file(
        {of, detail::memory_of(value), "bootstrap::exchange_file", where}, directory, settings.timeout_ms);
}

/// `exchange_file` in `job.path` if there is one, else `exchange_tcp`: COLLPROBE_PATH decides.
template <detail::exchangeable T>
void exchange(const job& of, T&& value, const options& settings = {}, call_site where = call_site::current())
{
    if (of.path.empty()) {
        exchange_tcp(of, value, settings, where);
    } else {
        exchange_file(of, value, of.path, settings, where);
    }
}

} // namespace collprobe::bootstrap
