// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <nccl.h>

/// NCCL without a GPU, for tests: functions of `nccl.h` (`nccl.cpp`), linked in place of libnccl next to the CUDA
/// stand-in. Ranks are threads of one process (`nccl_threads.cpp`); as a library for foreign programs they are
/// processes (tests/preload/stand_in).
///
/// As in NCCL:
/// - A collective runs on the stream, when all ranks' streams have come to it; the collectives of a
///   communicator run in call order, over streams. Nothing times out.
/// - Nothing compares counts, types, operations or roots: ranks that differ hang until they abort.
/// - `ncclCommAbort` ends what its rank has on streams, without a CUDA error; the peers go on waiting.
/// - In a group nothing is enqueued before its end. A communicator of one rank enqueues at once,
///   a non-blocking one too.
/// - The end of a group touches each communicator with a call in it, and an end of a communicator that
///   was asked for within a group comes first, or never if the group fails. Who is freed before is told
///   on stderr and counted in `dead_handle_calls`.
/// - A group that fails enqueues nothing. It leaves another device current, as does the end of a communicator.
/// - A non-blocking communicator that has refused a call stays failed.
/// - ncclGroupSimulateEnd refuses what is no info, which counts as a call of "warning", but not in a group.
/// - A non-blocking communicator returns ncclInProgress, and a thread of its own enqueues later.
/// - A captured collective is issued anew at each launch of the graph.
/// Not as in NCCL: several ranks may share a device; streams of one group do not wait for each other; sends and
/// receives work in groups only, in which, between threads, all ranks take part.
///
/// Calls are counted, and failures scripted, by `stand_in::calls` and `stand_in::fail_next`.
namespace collprobe::stand_in::nccl {

/// Gives a communicator an asynchronous error, with the text of `ncclGetLastError`.
void set_async_error(ncclComm_t comm, ncclResult_t code, const char* text);

/// How long non-blocking communicators take to enqueue a call, from now on; a negative number of
/// milliseconds is until they are aborted. 1 unless set.
void set_launch_delay_ms(int milliseconds);

/// Communicators that were neither destroyed nor aborted.
std::size_t live_communicators();

/// Calls with a handle that was destroyed or aborted, which would crash in NCCL, since the start.
std::uint64_t dead_handle_calls();

} // namespace collprobe::stand_in::nccl
