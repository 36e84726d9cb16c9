// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <collprobe/core/config.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/order/stream.hpp>

/// What the checker of stream order (order/stream_order.hpp) reports.
namespace collprobe::inline COLLPROBE_ABI {

/// What an operation does to bytes.
enum class memory_access : std::uint8_t { read, write };

/// What is wrong with the order of two operations.
enum class hazard_kind : std::uint8_t {
    read_after_write, ///< a read that nothing orders behind a write of the same bytes
    write_after_read,
    write_after_write,
    unrecorded_event, ///< a wait for an event that was never recorded: CUDA does not wait then
    use_after_release, ///< an access to bytes that were released and not allocated since
    released_in_use, ///< a release that nothing orders behind an access
    overwritten_in_group, ///< a group's collective reads at the group's end what has changed since its call
    stale_generation, ///< bytes of an older generation than asked for: no race, but the same symptom
    half_captured, ///< one of two accesses is in a capture that is still open, the other is not
    weakly_ordered, ///< two accesses that only the order within a communicator keeps apart
    redundant_wait, ///< no hazard: a wait for what the stream is behind of anyway
};

constexpr const char* name(hazard_kind kind) noexcept
{
    switch (kind) {
    case hazard_kind::read_after_write: return "read after write";
    case hazard_kind::write_after_read: return "write after read";
    case hazard_kind::write_after_write: return "write after write";
    case hazard_kind::unrecorded_event: return "wait for an unrecorded event";
    case hazard_kind::use_after_release: return "use after release";
    case hazard_kind::released_in_use: return "released in use";
    case hazard_kind::overwritten_in_group: return "overwritten within a group";
    case hazard_kind::stale_generation: return "stale generation";
    case hazard_kind::half_captured: return "half-captured pair";
    case hazard_kind::weakly_ordered: return "ordered only by the communicator's internal serialisation";
    case hazard_kind::redundant_wait: return "redundant wait";
    }
    return "unknown";
}

/// One side of a hazard. A side that is no access (a wait) has no bytes; one that does not exist, no operation.
struct stream_access {
    const char* operation = ""; ///< "all_gather"
    memory_access mode = memory_access::read;
    bool on_host = false; ///< whether a host thread did it, not a stream
    std::uint64_t number = 0; ///< of the stream or the host thread
    std::string stream_name; ///< by `stream_order::name`; may be empty
    memory_range bytes; ///< those in question
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

/// Two accesses that no documented order keeps apart, or what else the kind says.
struct stream_hazard {
    hazard_kind kind = hazard_kind::read_after_write;
    stream_access earlier; ///< the one that was enqueued first
    stream_access later;
    std::string missing; ///< the edge that is not there, in words
    std::string cure; ///< one line to add
    std::uint64_t count = 1; ///< how often the same two places met so

    /// One paragraph for a person.
    std::string message() const
    {
        std::string text = std::string("stream order: ") + collprobe::name(kind) + ": " + describe(later);
        if (earlier.operation[0] != '\0') text += "; before it " + describe(earlier);
        const memory_range bytes = later.bytes.bytes != 0 ? later.bytes : earlier.bytes;
        if (bytes.bytes != 0) text += "; " + describe(bytes);
        text += ". Missing: " + missing + ". Cure: " + cure + ".";
        if (count > 1) text += " Seen " + std::to_string(count) + " times.";
        return text;
    }

private:
    static std::string describe(const stream_access& side)
    {
        const bool touches = side.bytes.bytes != 0;
        const char* const verb = !touches ? "" : side.mode == memory_access::write ? " writes" : " reads";
        return side.place() + verb + " on " + side.actor();
    }
    static std::string describe(memory_range bytes)
    {
        return std::to_string(bytes.bytes) + " bytes from " + detail::hexadecimal(bytes.first);
    }
};

} // namespace collprobe
