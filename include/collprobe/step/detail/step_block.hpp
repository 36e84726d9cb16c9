// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <collprobe/step/detail/step_report.hpp>
#include <collprobe/step/detail/write_message.hpp>

/// The calls of one step with their memory, which the device fills.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// Memory of the device with the bytes 0. Waits for them.
template <class Device, class T = unsigned char>
auto zeroed(std::uint64_t count, call_site where)
{
    typename Device::template buffer<T> memory(count);
    const typename Device::stream fresh;
    Device::zero(fresh, view<T>(memory), where);
    fresh.synchronize(where);
    return memory;
}

/// The calls of one step, and the memory that they write: call i has entry i. Entries are in pieces that stay where
/// they are while the step is open; when it ends they are brought together in one, which the next step begins with.
template <class Device>
struct step_block {
    using stream_ref = typename Device::stream_ref;
    using bytes = typename Device::template buffer<unsigned char>;

    /// A message (message.hpp) of the calls from `first` on. Entries of parts are zero at the begin of a step.
    struct piece {
        bytes message;
        std::uint64_t first = 0;
        std::uint64_t room = 0;
    };
    struct entry_place {
        unsigned char* message;
        std::uint64_t index; ///< in it
    };

    step_block(const step_report::shape& form, std::uint64_t room, call_site where)
        : layout(form.layout), expected(form.room_for_values), values(form.room_for_values),
          read_values(form.room_for_values), gram(form.room_for_gram ? form.ranks * form.ranks : 0)
    {
        add_piece(room, form.with_values(form.room_for_values).layout.bytes(room), where);
    }

    void clear() noexcept
    {
        call_count = 0;
        value_count = 0;
        unprobed_calls = 0;
        has_gram = false;
        is_refused = false;
    }
    std::uint64_t room() const noexcept { return calls.size(); }
    /// Makes room for as many calls again, at most for `most`.
    void grow(std::uint64_t most, call_site where)
    {
        const std::uint64_t more = lesser(room(), most - room());
        add_piece(more, layout.bytes(more), where);
    }
    /// Brings all entries together, behind the step's work. What they leave, and work still reads, goes to `left`.
    void join_pieces(const step_report::shape& form, stream_ref stream, std::vector<bytes>& left, call_site where)
    {
        if (pieces.size() == 1) return;
        left.reserve(left.size() + pieces.size());
        left.push_back(bytes(form.with_values(form.room_for_values).layout.bytes(room())));
        const view<unsigned char> whole(left.back());
        if (layout.part_bytes != 0) Device::zero(stream, whole, where);
        for (const piece& each : pieces) {
            if (each.first >= call_count) break;
            const std::uint64_t begin = layout.bytes(0);
            const std::uint64_t count = layout.bytes(lesser(call_count - each.first, each.room)) - begin;
            Device::copy(stream, view<const unsigned char>(each.message.data() + begin, count),
                whole.part(layout.bytes(each.first), count), where);
        }
        std::swap(pieces[0].message, left.back());
        pieces[0].room = room();
        for (; pieces.size() > 1; pieces.pop_back()) left.push_back(std::move(pieces.back().message));
    }
    /// Counts a call whose entry is being written.
    void add(const probed_call& call) noexcept
    {
        std::uint64_t& word = flags[call_count / 16];
        const std::uint64_t shift = call_count % 16 * 4;
        word = (word & ~(~std::uint64_t{0} << shift)) | call.flags() << shift; // none behind it
        calls[call_count] = call;
        places[call_count] = calls[call_count].place = place_of(call.site);
        ++call_count;
    }
    void tell(const expected_value& of, write_values::source value) noexcept
    {
        value.value.place = of.place();
        expected[value_count] = of;
        values[value_count] = value;
        ++value_count;
    }
    /// Where the entry of a call is while the step is open.
    entry_place at(std::uint64_t call_index) const noexcept
    {
        const piece* of = &pieces.back();
        while (call_index < of->first) --of;
        return {of->message.data(), call_index - of->first};
    }
    call_entry& entry(std::uint64_t call_index) const noexcept
    {
        const entry_place here = at(call_index);
        return layout.entry(here.message, here.index);
    }
    /// What the read of a call's input, or of its result, notes.
    reduction_times times_of_read(const entry_place& of, bool is_result) const noexcept
    {
        if (!layout.times) return {};
        call_times& to = layout.times_of(of.message, of.index);
        return is_result ? reduction_times{&to.left, nullptr} : reduction_times{nullptr, &to.entered};
    }
    /// Makes the entry as it was before any call.
    void zero_entry(std::uint64_t call_index, stream_ref stream, call_site where)
    {
        const entry_place here = at(call_index);
        const std::uint64_t first = layout.bytes(here.index);
        Device::zero(stream, view<unsigned char>(here.message + first, layout.bytes(here.index + 1) - first), where);
    }
    unsigned char* message() const noexcept { return pieces.front().message.data(); }
    /// The message of so many calls, with the step's values. Precondition: one piece.
    view<unsigned char> message_of(std::uint64_t calls_of_it) const noexcept
    {
        message_layout with_values = layout;
        with_values.told = value_count;
        return {message(), with_values.bytes(calls_of_it)};
    }

private:
    void add_piece(std::uint64_t more, std::uint64_t size, call_site where)
    {
        piece next{layout.part_bytes != 0 ? zeroed<Device>(size, where) : bytes(size), room(), more};
        pieces.reserve(pieces.size() + 1); // no device reads the following before the step ends
        enlarge(flags, (room() + more + 15) / 16);
        enlarge(places, room() + more);
        calls.resize(room() + more);
        pieces.push_back(std::move(next));
    }
    static void enlarge(typename Device::template host_buffer<std::uint64_t>& words, std::uint64_t count)
    {
        typename Device::template host_buffer<std::uint64_t> larger(count);
        if (words.size() != 0) std::memcpy(larger.data(), words.data(), words.size() * sizeof(std::uint64_t));
        words = std::move(larger);
    }

public:
    message_layout layout;
    std::uint64_t call_count = 0;
    std::uint64_t value_count = 0;
    std::uint64_t unprobed_calls = 0;
    std::uint64_t unread_calls = 0; ///< set when the step ends
    std::uint64_t reports = 0; ///< under way
    bool has_gram = false;
    bool is_refused = false; ///< a call beyond the largest step has thrown
    std::uint64_t due = 0; ///< `part_list::due`
    std::vector<probed_call> calls; ///< as many as there is room for
    std::vector<expected_value> expected;
    typename Device::template host_buffer<write_values::source> values; ///< the device reads them
    typename Device::template buffer<statistics> read_values;
    typename Device::template buffer<double> gram; ///< of this rank's share of the gradients, for exact direction
    typename Device::template host_buffer<std::uint64_t> flags; ///< four bits for each call; the device reads them
    typename Device::template host_buffer<std::uint64_t> places; ///< of the calls; the device reads them
    std::vector<piece> pieces;
};

} // namespace collprobe::detail
