// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/comm/collective_arguments.hpp>
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

COLLPROBE_INLINE std::string flaw_of_arguments(const collective_arguments& with, int rank, int size)
{
    const std::uint64_t bytes = with.element_bytes();
    if (with.operation > reduction::product) {
        return "operation " + std::to_string(static_cast<int>(with.operation)) + " is no reduction";
    }
    if (with.call == collective::broadcast && (with.root < 0 || with.root >= size)) {
        return "root " + std::to_string(with.root) + " is not a rank: there are " + std::to_string(size);
    }
    const bool sends = with.sends(rank);
    if (sends) {
        const std::string flaw = flaw_of_buffer(with.send, with.send_count, bytes);
        if (!flaw.empty()) return "send" + flaw;
    }
    const std::string flaw = flaw_of_buffer(with.receive, with.receive_count, bytes);
    if (!flaw.empty()) return "receive" + flaw;
    if (!sends) return {};

    const collective_shape shape = shape_of(with.call);
    const auto ranks = static_cast<std::uint64_t>(size);
    const std::uint64_t send_parts = shape.send_has_parts ? ranks : 1;
    const std::uint64_t receive_parts = shape.receive_has_parts ? ranks : 1;
    if (with.send_count % send_parts != 0 || with.receive_count % receive_parts != 0
        || with.send_count / send_parts != with.receive_count / receive_parts) {
        return std::string("not ") + shape.rule + ": send.count() is " + std::to_string(with.send_count)
            + ", receive.count() is " + std::to_string(with.receive_count) + ", size() is " + std::to_string(size);
    }
    // In place: this rank's part of the one buffer is the other.
    const std::uint64_t own_part = with.send_count / send_parts * static_cast<std::uint64_t>(rank);
    const auto* const send = static_cast<const unsigned char*>(with.send);
    const auto* const receive = static_cast<const unsigned char*>(with.receive);
    const bool in_place = with.call != collective::all_to_all
        && send + (shape.send_has_parts ? own_part * bytes : 0)
            == receive + (shape.receive_has_parts ? own_part * bytes : 0);
    if (in_place || !overlap(send, with.send_count * bytes, receive, with.receive_count * bytes)) return {};
    if (with.call == collective::all_to_all) return "send and receive overlap, and all_to_all has no form in place";
    if (shape.send_has_parts) return flaw_of_place("receive", receive, "send", send, own_part, bytes);
    return flaw_of_place("send", send, "receive", receive, shape.receive_has_parts ? own_part : 0, bytes);
}

} // namespace collprobe::inline COLLPROBE_ABI::detail
