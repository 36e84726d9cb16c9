// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/core/error.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>

/// The accesses to a buffer by work on streams.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// A run of bytes of a buffer, counted from its beginning.
struct byte_range {
    std::uint64_t first = 0;
    std::uint64_t end = 0;

    bool meets(const byte_range& other) const noexcept { return first < other.end && other.first < end; }
    bool covers(const byte_range& other) const noexcept { return first <= other.first && other.end <= end; }
};

enum class access_mode : std::uint8_t { read, write };

/// The number of the capture under way on a stream; 0 for none.
template <class StreamRef>
unsigned long long capture_under_way([[maybe_unused]] StreamRef on, [[maybe_unused]] call_site where)
{
    if constexpr (can_capture<StreamRef>) return on.capture_number(where);
    else return 0;
}

/// The accesses of a buffer that later accesses must wait for, each with an event at its end.
template <class Device>
class access_history {
public:
    using stream_ref = typename Device::stream_ref;
    using event = typename Device::event;

    access_history() { uses_.reserve(16); }

    /// Lets `on` wait for every access that conflicts with one of `range` (two reads do not conflict). No host
    /// synchronisation. To wait for an access of an open capture makes `on` part of that capture, as always in CUDA.
    /// Accesses of a capture that has ended are not waited for: a graph runs when it is launched.
    /// \throws error `invalid_argument` in a capture, if work outside of it still makes such an access.
    void wait_for_conflicts(stream_ref on, byte_range range, access_mode mode, const char* call, call_site where)
    {
        if constexpr (can_capture<stream_ref>) join_captures(on, range, mode, where);
        const unsigned long long capture = capture_under_way(on, where);
        const stream_id id = on.id(where);
        for (const use& earlier : uses_) {
            if (!earlier.conflicts_with(range, mode)) continue;
            if (earlier.capture == capture) {
                if (earlier.stream != id) on.wait(earlier.done, where);
            } else if (earlier.capture == 0 && !earlier.done.query(where)) {
                throw error(status::invalid_argument,
                    "the stream is capturing, and work outside the capture still uses the buffer: synchronise before "
                    "the capture begins",
                    {.call = call, .where = where});
            }
        }
    }

    /// Adds an access that has waited; it ends where `done` was recorded on `on`.
    void add(stream_ref on, byte_range range, access_mode mode, const event& done, call_site where)
    {
        const unsigned long long capture = capture_under_way(on, where);
        const stream_id id = on.id(where);
        const bool drops_captured = uses_.size() >= too_many;
        std::erase_if(uses_, [&](const use& earlier) {
            // Work that waits for this access waits for those too. Accesses of other captures stay: they may be open.
            const bool implied = earlier.capture == capture && range.covers(earlier.range)
                && (mode == access_mode::write || (earlier.mode == access_mode::read && earlier.stream == id));
            return implied || (drops_captured && earlier.capture != capture && earlier.capture != 0);
        });
        if (capture == 0 && uses_.size() >= many) forget_finished();
        if (range.first < range.end) uses_.push_back({id, range, mode, capture, done});
    }

    /// Waits for all accesses, except captured ones; returns false if some are not done at the deadline.
    bool finished_by(deadline until) const noexcept
    {
        for (const use& each : uses_) {
            if (each.capture == 0 && !detail::finished_by(until, each.done)) return false;
        }
        return true;
    }
    std::size_t size() const noexcept { return uses_.size(); }

private:
    using stream_id = std::remove_cvref_t<decltype(std::declval<stream_ref>().id(call_site()))>;
    struct use {
        stream_id stream{};
        byte_range range;
        access_mode mode = access_mode::read;
        unsigned long long capture = 0;
        event done;

        bool conflicts_with(byte_range other, access_mode how) const noexcept
        {
            return range.meets(other) && (how == access_mode::write || mode == access_mode::write);
        }
    };
    /// From this number of accesses on, finished ones are dropped: there may be ever new streams or parts.
    static constexpr std::size_t many = 16;
    /// From this number on, accesses of other captures are dropped: those captures have ended long ago.
    static constexpr std::size_t too_many = 256;

    void join_captures(stream_ref on, byte_range range, access_mode mode, call_site where)
    {
        if (capture_under_way(on, where) != 0) return;
        std::erase_if(uses_, [&](const use& earlier) {
            if (earlier.capture == 0 || !earlier.conflicts_with(range, mode)) return false;
            try {
                on.wait(earlier.done, where);
                return false;
            } catch (const error& refused) {
                if (refused.code() != status::invalid_argument) throw;
                return true; // the capture has ended
            }
        });
    }
    void forget_finished()
    {
        std::erase_if(uses_, [](const use& earlier) { return earlier.capture == 0 && is_finished(earlier.done); });
    }
    static bool is_finished(const event& done) noexcept
    {
        try {
            return done.query();
        } catch (...) {
            return false; // a call that waits for it will get the error
        }
    }

    std::vector<use> uses_;
};

} // namespace collprobe::detail
