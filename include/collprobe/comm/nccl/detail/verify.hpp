// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nccl.h>

#include <collprobe/comm/detail/call.hpp>
#include <collprobe/comm/nccl/detail/handle.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/device/cuda/device.hpp>

/// `options::verify_calls`: compares the arguments that NCCL does not compare.
namespace collprobe::inline COLLPROBE_ABI::nccl::detail {

inline void handle::verify(const call_description& what, bool bad, cuda::stream_ref on, call_site where)
{
    const char* const call = collprobe::name(what.call);
    if (open_group::here().depth > 0) {
        throw error(status::unsupported, "verify_calls cannot compare calls within a group", origin(call, where));
    }
    if (on.capturing(where)) {
        throw error(status::unsupported, "verify_calls waits on the host, which a capture does not allow",
            origin(call, where));
    }
    verifier& own = *verifier_;
    own.host_send[0] = {own.sequence++, what.count, what.root, static_cast<std::uint8_t>(what.call),
        static_cast<std::uint8_t>(what.type), static_cast<std::uint8_t>(what.operation),
        static_cast<std::uint8_t>(bad), what.whole.bits};
    const view<unsigned char> send(own.send);
    const view<unsigned char> received(own.received);
    cuda::device::copy(own.stream,
        view<const unsigned char>(reinterpret_cast<const unsigned char*>(own.host_send.data()), send.count()), send,
        where);
    enqueue("ncclAllGather (of verify_calls)", call, where, [&](ncclComm_t comm) {
        return ncclAllGather(
            send.data(), received.data(), send.size(), ncclUint8, comm, own.stream.get());
    });
    cuda::device::copy(own.stream, view<const unsigned char>(received),
        view<unsigned char>(reinterpret_cast<unsigned char*>(own.host_received.data()), received.count()), where);
    const auto finally_fail = [&](failure cause) {
        fail(cause);
        throw error(cause.code, cause.message, origin(call, where), cause.culprits);
    };
    // The time-out is final, because the comparison stays under way.
    wait(own.stream, settings_.timeout_ms, call, true, where, [&, this] {
        return "not all ranks came to call " + std::to_string(own.sequence - 1) + " of the communicator ("
            + collprobe::detail::describe(what) + ") within " + std::to_string(settings_.timeout_ms) + " ms";
    });

    // A rank receives its own message too, unless NCCL has postponed the all-gather.
    if (own.host_received[static_cast<std::uint64_t>(rank_)].sequence != own.sequence - 1) {
        throw error(status::unsupported,
            "verify_calls cannot compare calls within a group, and ncclGroupStart has opened one on this thread",
            origin(call, where));
    }

    std::vector<int> culprits;
    for (int rank = 0; rank < size_; ++rank) {
        if (own.host_received[static_cast<std::uint64_t>(rank)].bad != 0) culprits.push_back(rank);
    }
    if (!culprits.empty()) {
        const std::string who = collprobe::detail::list_ranks(culprits);
        finally_fail({status::peer_failure, who + " gave a bad argument, which its own error names", culprits});
    }
    const auto called = [&](int rank) {
        const verified_call& of = own.host_received[static_cast<std::uint64_t>(rank)];
        return call_description{static_cast<collective>(of.call), static_cast<element_type>(of.type),
            static_cast<reduction>(of.operation), of.root, of.count,
            collprobe::detail::whole_call(of.whole)};
    };
    collprobe::detail::disagreement found = collprobe::detail::compare_calls(size_, called);
    if (!found.culprits.empty()) {
        finally_fail({status::mismatch,
            "the ranks disagree in call " + std::to_string(own.sequence - 1)
                + " of the communicator: " + found.message,
            std::move(found.culprits)});
    }
    for (int rank = 0; rank < size_; ++rank) {
        if (own.host_received[static_cast<std::uint64_t>(rank)].sequence == own.sequence - 1) continue;
        finally_fail({status::mismatch,
            "the ranks have made different numbers of calls: " + collprobe::detail::list_ranks({rank}) + " "
                + std::to_string(own.host_received[static_cast<std::uint64_t>(rank)].sequence) + ", "
                + collprobe::detail::list_ranks({rank_}) + " " + std::to_string(own.sequence - 1),
            {}});
    }
}

} // namespace collprobe::nccl::detail
