// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/device/clock.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/sample_set.hpp>

/// A rank's message of a step, and the places in it: one header, then one entry per call, with samples if
/// `order_sample` asks for them, then the values that the rank told. The message is sent as bytes.
namespace collprobe::inline COLLPROBE_ABI::detail {

struct step_header {
    std::uint64_t step = 0;
    double loss = not_given(); ///< `not_given()` if the rank has none
    double weight = 1;
    double gradient_norm = not_given(); ///< as the trainer computed it; `not_given()` if it told none
    std::uint16_t lost_ago = 0; ///< steps since the last one that this rank could not judge; 0: none of the last 255
    std::uint16_t is_crowded = 0; ///< 1: more ranks than CPUs of this rank's machine, and no floor of lateness is given
    std::uint32_t serial = 0; ///< 1 for the first step that the rank ended, and so on: older reports have other numbers

    COLLPROBE_HD bool loss_is_bad() const noexcept
    {
        return !is_finite(loss) && to_bits(loss) != to_bits(not_given());
    }
    /// The serial number of the last step that this rank could not judge; 0: not known.
    COLLPROBE_HD std::uint32_t last_lost() const noexcept { return lost_ago != 0 ? serial - lost_ago : 0; }
};

struct call_entry {
    statistics input;
    result_record result;
};

/// When the rank entered a collective and when the collective ended there, by the clock of the rank's device.
struct call_times {
    clock_stamp entered; ///< the read of the input was done
    clock_stamp left; ///< the read of the result began
};

/// A value that a rank told: `probed::expect_equal`.
struct told_value {
    std::uint64_t place; ///< `place_of` its name
    std::uint64_t digest; ///< of the value; of a buffer with its type and count
    double value; ///< the number; of a buffer its L2 norm
};

static_assert(std::is_trivially_copyable_v<step_header> && std::is_trivially_copyable_v<call_entry>);
static_assert(sizeof(step_header) % 8 == 0 && sizeof(call_entry) % 8 == 0);

/// In memory that the caller may write, or not, what is there can be written, or not.
template <class T, class Memory>
COLLPROBE_HD auto* object_at(Memory* at) noexcept
{
    return reinterpret_cast<std::conditional_t<std::is_const_v<Memory>, const T, T>*>(at);
}

/// The places in a message: a header, then for each call its place in the program (`place_of`), a `call_entry`, the
/// samples, the `call_times` and the entries of the parts; then the `told_value`s.
struct message_layout {
    std::uint64_t samples = 0; ///< elements sampled from each call's input, and as many from its result
    std::uint64_t part_bytes = 0; ///< of the entries of all parts about one call
    bool statistics = true; ///< there is a `call_entry`
    bool times = false; ///< there are `call_times`
    std::uint64_t told = 0; ///< values behind the calls

    COLLPROBE_HD constexpr std::uint64_t bytes(std::uint64_t call_count) const noexcept
    {
        return sizeof(step_header) + call_count * stride() + told * sizeof(told_value);
    }
    COLLPROBE_HD auto& place(auto* message, std::uint64_t call_index) const noexcept
    {
        return *object_at<std::uint64_t>(message + sizeof(step_header) + call_index * stride());
    }
    COLLPROBE_HD auto& entry(auto* message, std::uint64_t call_index) const noexcept
    {
        return *object_at<call_entry>(&place(message, call_index) + 1);
    }
    /// One word for each sampled element of the rank's input, and of its result.
    COLLPROBE_HD auto* input_sample(auto* message, std::uint64_t call_index) const noexcept
    {
        return object_at<std::uint64_t>(&entry(message, call_index) + 1);
    }
    COLLPROBE_HD auto* result_sample(auto* message, std::uint64_t call_index) const noexcept
    {
        return input_sample(message, call_index) + samples;
    }
    /// Precondition: `times`.
    COLLPROBE_HD auto& times_of(auto* message, std::uint64_t call_index) const noexcept
    {
        return *object_at<call_times>(parts_of(message, call_index) - sizeof(call_times));
    }
    /// The entries of the parts about a call.
    COLLPROBE_HD auto* parts_of(auto* message, std::uint64_t call_index) const noexcept
    {
        return message + sizeof(step_header) + (call_index + 1) * stride() - part_bytes;
    }
    /// The values that the rank told in a step of so many calls.
    COLLPROBE_HD auto* values(auto* message, std::uint64_t call_count) const noexcept
    {
        return object_at<told_value>(message + sizeof(step_header) + call_count * stride());
    }

private:
    COLLPROBE_HD constexpr std::uint64_t stride() const noexcept
    {
        return sizeof(std::uint64_t) + (statistics ? sizeof(call_entry) : 0) + 2 * samples * sizeof(std::uint64_t)
            + (times ? sizeof(call_times) : 0) + part_bytes;
    }
};

/// That of a rank's totals.
COLLPROBE_HD constexpr message_layout totals_layout(const message_layout& of) noexcept { return {.times = of.times}; }

/// A number for a place in the program: of the name, or of file and line if there is none. Equal in other processes.
/// Odd if there is a name.
inline std::uint64_t place_of(const call_site& site) noexcept
{
    const bool has_name = site.name[0] != '\0';
    std::uint64_t place = has_name ? 1 : 2 + std::uint64_t{site.line};
    std::uint64_t word = 0;
    int bytes = 0;
    for (const char* at = has_name ? site.name : site.file; *at != '\0'; ++at) {
        word = word << 8 | static_cast<unsigned char>(*at);
        if (++bytes % 8 == 0) place = mix64(place ^ word);
    }
    return (mix64(place ^ word) & ~std::uint64_t{1}) | (has_name ? 1u : 0u);
}
COLLPROBE_HD inline bool is_named(std::uint64_t place) noexcept { return (place & 1) != 0; }

/// The series of calls, of several steps, that a call belongs to.
struct series_place {
    std::uint64_t number = 0; ///< of no other series
    std::uint32_t slot = 0; ///< small; of no other series that is known at the same time
};

/// Whether all ranks must receive the same bits.
constexpr bool is_replicated(collective call) noexcept
{
    return call == collective::all_reduce || call == collective::all_gather || call == collective::broadcast;
}

/// The facts about a probed call that every rank has without a message.
struct probed_call {
    collective call = collective::all_reduce;
    element_type type = element_type::float32;
    reduction operation = reduction::sum;
    std::uint64_t count = 0;
    bool has_input = false; ///< the input's statistics were taken
    bool has_result = false; ///< the result was read
    bool has_leaves = false; ///< the input holds several gradients of the rank, one after the other
    call_site site = {}; ///< of this rank's call
    std::uint64_t result_count = 0; ///< elements that each rank gets
    bool has_codes = false; ///< its elements travel as codes
    bool is_observed = false; ///< the caller makes it itself, and may scale its result
    bool has_unknown_scale = false; ///< the sum is one of the inputs times factors that nobody knows
    std::uint64_t place = 0; ///< `place_of` its site, or another number for the place of the call in the program

    /// Equal for calls that may be the same one in several steps. Without places they tell nothing.
    std::uint64_t identity(bool has_places) const noexcept
    {
        return mix64(mix64((has_places ? place : 0) + form_of(call, type, operation)) + count);
    }
    /// A number for kind, type and operation.
    static constexpr std::uint64_t form_of(collective call, element_type type, reduction operation) noexcept
    {
        return static_cast<std::uint64_t>(call) << 16 | static_cast<std::uint64_t>(type) << 8
            | static_cast<std::uint64_t>(operation);
    }

    bool is_sum() const noexcept
    {
        return !has_leaves && (call == collective::all_reduce || call == collective::reduce_scatter)
            && (operation == reduction::sum || operation == reduction::average);
    }
    /// Whether the call sums one gradient of each rank, as far as the library can tell.
    bool is_gradient() const noexcept { return has_input && !has_unknown_scale && is_sum(); }
    /// Whether the times of the call, where they are measured, tell who came late to it.
    bool tells_lateness() const noexcept { return has_input && has_result && count != 0 && waits_for_all(call); }
    /// What the device needs to know when it adds up the step.
    static constexpr std::uint64_t adds_gradient = 1, averages = 2, scatters = 4, is_timed = 8, has_input_only = 2;
    std::uint64_t flags() const noexcept
    {
        const std::uint64_t timed = tells_lateness() ? is_timed : 0;
        if (!is_gradient()) return timed | (has_input ? has_input_only : 0);
        return timed | adds_gradient | (operation == reduction::average ? averages : 0)
            | (call == collective::reduce_scatter ? scatters : 0);
    }
    /// Whether the results hold the elements of the inputs, each of an input as often.
    bool is_move() const noexcept
    {
        return call == collective::all_gather || call == collective::all_to_all || call == collective::broadcast;
    }
    bool is_replicated() const noexcept { return detail::is_replicated(call); }
};

/// The gradients that a step sums, as one call; it has no input if there are none. Its results are sums: those of
/// averages count times the number of ranks.
COLLPROBE_COLD_INLINE probed_call whole_gradient(view<const probed_call> step) noexcept
{
    probed_call whole{.has_result = true};
    for (const probed_call& each : step) {
        if (!each.is_gradient()) continue;
        if (!whole.has_input || bytes_of(each.type) < bytes_of(whole.type)) whole.type = each.type;
        if (each.call == collective::reduce_scatter) whole.call = each.call;
        whole.count += each.count;
        whole.has_result = whole.has_result && each.has_result;
        whole.has_input = true;
    }
    return whole;
}

/// What all ranks know of a value that they tell, without a message.
struct expected_value {
    call_site site = {}; ///< its name
    expectation what = expectation::equal;
    sample_set whole = {}; ///< of a partition

    /// `place_of` its name; another one for other expectations, and other wholes.
    std::uint64_t place() const noexcept
    {
        const std::uint64_t form = whole.digest + whole.count + static_cast<std::uint64_t>(what);
        return what == expectation::equal ? place_of(site) : place_of(site) ^ mix64(form) << 1;
    }
};

/// Whether a rank that sent this takes no part in the sending of an observed call: nothing was read, of a call that has
/// elements.
inline bool has_no_input(const probed_call& call, const statistics& input) noexcept
{
    return call.is_observed && call.has_input && call.count != 0 && input.count == 0;
}
/// The digest of a result without elements.
inline constexpr std::uint64_t digest_of_nothing = digest_state().finish();
inline bool has_no_result(const probed_call& call, const result_record& result) noexcept
{
    return call.is_observed && call.result_count != 0 && result.digest == digest_of_nothing;
}

/// The messages of all ranks for one step, one after the other.
class gathered_step {
public:
    gathered_step(
        const unsigned char* bytes, int ranks, std::uint64_t call_count, const message_layout& layout = {}) noexcept
        : bytes_(bytes), stride_(layout.bytes(call_count)), ranks_(ranks), calls_(call_count), layout_(layout)
    {
        static constexpr call_entry none{};
        if (!layout.statistics) {
            first_entry_ = reinterpret_cast<const unsigned char*>(&none);
            return;
        }
        first_entry_ = reinterpret_cast<const unsigned char*>(&layout.entry(bytes, 0));
        entry_stride_ = stride_;
        call_stride_ = layout.bytes(1) - layout.bytes(0);
    }
    int ranks() const noexcept { return ranks_; }
    const message_layout& layout() const noexcept { return layout_; }
    const unsigned char* message(int rank) const noexcept
    {
        return bytes_ + static_cast<std::uint64_t>(rank) * stride_;
    }
    const step_header& header(int rank) const noexcept
    {
        return *reinterpret_cast<const step_header*>(message(rank));
    }
    /// Whether these are the messages of the step with this serial number: not of an earlier one, also in part.
    bool has_arrived(std::uint32_t serial) const noexcept
    {
        bool all = true;
        for (int r = 0; r < ranks_; ++r) all = all && header(r).serial == serial;
        return all;
    }
    /// Whether all ranks make the calls at the same places of the program.
    bool has_places() const noexcept
    {
        bool all = true;
        for (int r = 1; r < ranks_; ++r)
            for (std::uint64_t b = 0; b < calls_; ++b) all = all && place(r, b) == place(0, b);
        return all;
    }
    std::uint64_t place(int rank, std::uint64_t call_index) const noexcept
    {
        return layout_.place(message(rank), call_index);
    }
    /// The values that the rank told.
    view<const told_value> values(int rank) const noexcept
    {
        return {layout_.values(message(rank), calls_), layout_.told};
    }
    /// The serial number of the last step that any rank could not judge; 0: not known.
    std::uint32_t last_lost() const noexcept
    {
        std::uint32_t last = 0;
        for (int r = 0; r < ranks_; ++r) last = header(r).last_lost() > last ? header(r).last_lost() : last;
        return last;
    }
    /// Precondition: `layout().times`.
    const call_times& times(int rank, std::uint64_t call_index) const noexcept
    {
        return layout_.times_of(message(rank), call_index);
    }
    /// All zero if no statistics were taken.
    const call_entry& entry(int rank, std::uint64_t call_index) const noexcept
    {
        return *reinterpret_cast<const call_entry*>(
            first_entry_ + static_cast<std::uint64_t>(rank) * entry_stride_ + call_index * call_stride_);
    }

private:
    const unsigned char* bytes_;
    std::uint64_t stride_;
    int ranks_;
    std::uint64_t calls_;
    message_layout layout_;
    const unsigned char* first_entry_;
    std::uint64_t entry_stride_ = 0; ///< from rank to rank; 0: all have the same
    std::uint64_t call_stride_ = 0;
};

} // namespace collprobe::detail
