// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/names.hpp>
#include <collprobe/order/stream.hpp>

/// The reports of the checker of stream order (order/stream_order.hpp).
namespace collprobe::inline COLLPROBE_ABI {

/// The effect of an operation on bytes.
enum class memory_access : std::uint8_t { read, write };

/// The error in the order of two operations.
enum class hazard_kind : std::uint8_t {
    read_after_write, ///< a read that is not ordered behind a write of the same bytes
    write_after_read,
    write_after_write,
    unrecorded_event, ///< a wait for an event that was never recorded: CUDA does not wait then
    use_after_release, ///< an access to bytes that were released and not allocated since
    released_in_use, ///< a release that is not ordered behind an access
    overwritten_in_group, ///< bytes changed between a group's collective and the group's end, when it reads them
    half_captured, ///< a graph's launch that is not ordered behind an access made while the graph was captured
    beyond_allocation, ///< an access that begins in an allocation and ends behind it: a wrong count, not a wrong order
};

template <>
inline constexpr auto names_of<hazard_kind> = name_list<hazard_kind::beyond_allocation>{"read after write",
    "write after read", "write after write", "wait for an unrecorded event", "use after release",
    "released in use", "overwritten within a group", "half-captured pair", "beyond its allocation"};

/// Two accesses without a documented order, or another error of the given kind.
struct stream_hazard {
    /// One side of a hazard. A wait is not an access and has no bytes; a missing side has no operation. For
    /// `beyond_allocation` the later side has all bytes of the access, and the earlier side those of the allocation.
    struct side {
        const char* operation = ""; ///< "all_gather"
        memory_access mode = memory_access::read;
        bool on_host = false; ///< true for a host thread, false for a stream
        std::uint64_t number = 0; ///< of the stream or the host thread
        std::string stream_name; ///< by `stream_order::name`; may be empty
        memory_range bytes; ///< the bytes of the hazard
        call_site where{};

        /// "stream 3 (compute)", "host thread 1"
        std::string actor() const
        {
            std::string text = (on_host ? "host thread " : "stream ") + std::to_string(number);
            if (!stream_name.empty()) text += " (" + stream_name + ")";
            return text;
        }
        /// "copy [train.cpp:12]"
        std::string place() const
        {
            return std::string(operation) + " [" + where.file + ":" + std::to_string(where.line) + "]";
        }
    };

    hazard_kind kind = hazard_kind::read_after_write;
    side earlier; ///< the one that was enqueued first
    side later;
    std::string missing; ///< the missing edge, in words
    std::string cure; ///< one line to add
    std::uint64_t count = 1; ///< how often the same two call sites had this hazard
    std::uint64_t further_runs = 0; ///< of bytes that the two had in common the first time, maybe of another kind

    /// The hazard as one paragraph of text.
    std::string message() const
    {
        std::string text = std::string("stream order: ") + collprobe::name(kind) + ": " + describe(later);
        if (earlier.operation[0] != '\0') text += "; before it " + describe(earlier);
        const memory_range bytes = later.bytes.bytes != 0 ? later.bytes : earlier.bytes;
        if (bytes.bytes != 0) text += "; " + describe(bytes);
        if (further_runs != 0) text += " and " + std::to_string(further_runs) + " more runs of bytes";
        text += ". Missing: " + missing + ". Cure: " + cure + ".";
        if (count > 1) text += " Seen " + std::to_string(count) + " times.";
        return text;
    }

private:
    static std::string describe(const side& one)
    {
        const bool touches = one.bytes.bytes != 0;
        const char* const verb = !touches ? "" : one.mode == memory_access::write ? " writes" : " reads";
        return one.place() + verb + " on " + one.actor();
    }
    static std::string describe(memory_range bytes)
    {
        return std::to_string(bytes.bytes) + " bytes from " + detail::hexadecimal(bytes.first);
    }
};

} // namespace collprobe
