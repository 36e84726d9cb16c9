// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/collective.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/overlap.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

COLLPROBE_INLINE std::string flaw_of_buffer(const void* data, std::uint64_t count, std::uint64_t element_bytes)
{
    if (count == 0) return {};
    if (data == nullptr) return " is null with count " + std::to_string(count);
    if (reinterpret_cast<std::uintptr_t>(data) % element_bytes != 0) {
        return " is not aligned to " + std::to_string(element_bytes) + " bytes";
    }
    if (count > static_cast<std::uint64_t>(INT64_MAX) / element_bytes) {
        return " has the impossible count " + std::to_string(count);
    }
    return {};
}

COLLPROBE_COLD_INLINE std::string flaw_of_place(const char* part_name, const void* part, const char* whole_name,
    const void* whole, std::uint64_t elements, std::uint64_t element_bytes)
{
    const auto is = reinterpret_cast<std::uintptr_t>(part);
    const auto begin = reinterpret_cast<std::uintptr_t>(whole);
    const auto offset = [&](bool behind, std::uint64_t count) {
        return std::string(whole_name) + (behind ? " + " : " - ") + std::to_string(count) + " elements";
    };
    return std::string("send and receive overlap: in place ") + part_name + " is " + offset(true, elements) + ", "
        + hexadecimal(begin + elements * element_bytes) + ", and it is " + hexadecimal(is) + ", "
        + offset(is >= begin, (is >= begin ? is - begin : begin - is) / element_bytes);
}

COLLPROBE_INLINE std::string flaw_of_arguments(const collective_call& call, int rank, int size)
{
    const std::uint64_t bytes = call.element_bytes();
    if (call.operation > reduction::product) {
        return "operation " + std::to_string(static_cast<int>(call.operation)) + " is no reduction";
    }
    if (call.what == collective::broadcast && (call.root < 0 || call.root >= size)) {
        return "root " + std::to_string(call.root) + " is not a rank: there are " + std::to_string(size);
    }
    const bool sends = call.sends(rank);
    if (sends) {
        const std::string flaw = flaw_of_buffer(call.send, call.send_count, bytes);
        if (!flaw.empty()) return "send" + flaw;
    }
    const std::string flaw = flaw_of_buffer(call.receive, call.receive_count, bytes);
    if (!flaw.empty()) return "receive" + flaw;
    if (!sends) return {};
    if (call.leaves != 1) {
        return "leaves is " + std::to_string(call.leaves) + ", and the communicator takes one of each rank";
    }

    const collective_shape shape = shape_of(call.what);
    const auto ranks = static_cast<std::uint64_t>(size);
    const std::uint64_t send_parts = shape.send_has_parts ? ranks : 1;
    const std::uint64_t receive_parts = shape.receive_has_parts ? ranks : 1;
    if (call.send_count % send_parts != 0 || call.receive_count % receive_parts != 0
        || call.send_count / send_parts != call.receive_count / receive_parts) {
        return std::string("not ") + shape.rule + ": send.count() is " + std::to_string(call.send_count)
            + ", receive.count() is " + std::to_string(call.receive_count) + ", size() is " + std::to_string(size);
    }
    // In place: this rank's part of the one buffer is the other.
    const std::uint64_t own_part = call.send_count / send_parts * static_cast<std::uint64_t>(rank);
    const auto* const send = static_cast<const unsigned char*>(call.send);
    const auto* const receive = static_cast<const unsigned char*>(call.receive);
    const bool in_place = call.what != collective::all_to_all
        && send + (shape.send_has_parts ? own_part * bytes : 0)
            == receive + (shape.receive_has_parts ? own_part * bytes : 0);
    if (in_place || !overlap(send, call.send_count * bytes, receive, call.receive_count * bytes)) return {};
    if (call.what == collective::all_to_all) return "send and receive overlap, and all_to_all has no form in place";
    if (shape.send_has_parts) return flaw_of_place("receive", receive, "send", send, own_part, bytes);
    return flaw_of_place("send", send, "receive", receive, shape.receive_has_parts ? own_part : 0, bytes);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
