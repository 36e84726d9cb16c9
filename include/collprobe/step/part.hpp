// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/collective.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/step/detail/message.hpp>

/// What a check of one's own is made of: the concept of a part, and what it sees of a call, a step and all entries.
namespace collprobe::inline COLLPROBE_ABI {

template <class Summary>
class part_summaries;

namespace detail {

template <class T>
concept is_words = std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0 && alignof(T) <= 8;
template <class P>
concept has_summary = requires { typename P::summary; };
/// Whether what makes the summary of a part, and reads it, is there.
template <class P>
concept summarises = is_words<typename P::summary>
    && requires(P part, const typename P::entry& of, const part_summaries<typename P::summary>& all, step_record& to) {
           { P::summarize(of) } -> std::same_as<typename P::summary>;
           part.judge_summary(all, to);
       };

} // namespace detail

/// Something that looks at the calls of a step and adds to the step's record: `probed comm(world, options, part)`.
/// A part P has
///   `P::entry`: what it notes of one call on one rank. It travels to all ranks with the step's message. Trivially
///     copyable, whole 8-byte words, aligned to at most 8 bytes, zero where the part writes nothing.
///   `before<T>(call, input, entry*)`: enqueues on `call.stream()` what reads the input, before the collective. The
///     entry is in memory of the device: `call.reduce` writes there, host code must not. T: any element type.
///   `after<T>(call, result, entry*)`: the same behind the collective.
///   `judge(entries, record)`: on the host, once for each finished step. `entries(call, rank)` is an entry; `record` is
///     complete but for the parts. Every rank runs it on the same numbers. What it finds it adds to the record as a
///     `finding` of the kind `of_part`.
/// README.md has what a part may have beyond that: memory, work at the end of a step, a summary, rare steps.
template <class P>
concept step_part = detail::is_words<typename P::entry> && (!detail::has_summary<P> || detail::summarises<P>);

namespace detail {

/// Base of a part that needs sketches: its `before` and `after` return a `sketch_target`, empty for none, which the
/// step's own read of the buffer fills.
struct wants_sketches {};
template <class P>
concept has_sketches = std::derived_from<std::remove_cvref_t<P>, wants_sketches>;

template <class P>
constexpr std::uint64_t summary_words() noexcept
{
    if constexpr (has_summary<P>) return sizeof(typename P::summary) / sizeof(std::uint64_t);
    else return 0;
}

/// Writes what a part has to say of each call in a summary.
template <class P>
struct pack_part {
    const unsigned char* message;
    message_layout layout;
    std::uint64_t offset; ///< of the part's entry, in the entries of the parts
    std::uint64_t* words; ///< of the first call
    std::uint64_t words_per_call;

    COLLPROBE_HD void operator()(std::uint64_t call_index) const noexcept
    {
        *reinterpret_cast<typename P::summary*>(words + call_index * words_per_call) = P::summarize(
            *reinterpret_cast<const typename P::entry*>(layout.parts_of(message, call_index) + offset));
    }
};

/// `by`: what the communicator tells about quantisation; null if it does not quantise.
inline bool travels_as_codes(const quantised_calls* by, const probed_call& call) noexcept
{
    if (by == nullptr) return false;
    const int copies = call.call == collective::all_gather ? by->ranks : 1;
    const auto bytes = call.count * static_cast<std::uint64_t>(bytes_of(call.type) * copies);
    return by->reason(call.call, call.type, call.operation, bytes) == unquantised_reason::none;
}

/// A call whose input, or result, is read.
template <communicator Comm>
struct seen_call {
    Comm& ranks; ///< the innermost communicator
    stream_ref_of<Comm> stream;
    std::uint64_t index; ///< in its step
    int lane;
    const probed_call& what;
    report_mode mode;
    quantised_calls* quantised; ///< null if the communicator does not quantise
    typename Comm::device::workspace& workspace;
};
template <class Device>
struct step_block;

} // namespace detail

/// A call, as a part sees it when the call is made. `Comm`: the innermost communicator, for messages of the part.
template <communicator Comm, class Memory>
class part_call {
public:
    using device = typename Comm::device;

    part_call(const detail::seen_call<Comm>& call, Memory& memory) noexcept : call_(call), memory_(memory) {}
    /// The communicator beneath all adaptors. A collective of a part must be made on all ranks.
    Comm& ranks() const noexcept { return call_.ranks; }
    stream_ref_of<Comm> stream() const noexcept { return call_.stream; }
    call_site where() const noexcept { return call_.what.site; }
    /// Of the call in its step. A call that throws, or whose group fails, leaves its index to the next one.
    std::uint64_t index() const noexcept { return call_.index; }
    /// A small number for each stream of a step: calls with the same number run one after the other.
    int lane() const noexcept { return call_.lane; }
    collective what() const noexcept { return call_.what.call; }
    reduction operation() const noexcept { return call_.what.operation; }
    element_type type() const noexcept { return call_.what.type; }
    std::uint64_t count() const noexcept { return call_.what.count; } ///< elements that each rank sends
    /// Whether it is the sum or average, by an all-reduce or reduce-scatter, of one gradient of each rank.
    bool is_sum() const noexcept { return call_.what.is_sum(); }
    bool is_observed() const noexcept { return call_.what.is_observed; } ///< ranks may have no input, or no result
    report_mode mode() const noexcept { return call_.mode; }
    /// Whether the step itself reads the input, and so has its digest (`part_step::input_digest`).
    bool has_input_digest() const noexcept { return call_.what.has_input; }
    /// Whether the step itself reads the result, and so has its digest (`part_entries::result_digest`).
    bool has_result_digest() const noexcept { return call_.what.has_result; }
    Memory& memory() const noexcept { return memory_; }
    /// What the communicator that is called tells about quantisation; null if it does not quantise.
    quantised_calls* quantised() const noexcept { return call_.quantised; }
    /// Whether the elements of the call travel as codes.
    bool is_quantised() const noexcept { return detail::travels_as_codes(call_.quantised, call_.what); }

    typename device::workspace& workspace() const noexcept { return call_.workspace; } ///< of reductions on the stream
    /// Enqueues a reduction over `count` elements, whose result goes to `*to`, in the step's scratch memory.
    void reduce(const auto& reducer, std::uint64_t count, auto* to) const
    {
        device::reduce(call_.stream, reducer, count, to, call_.workspace);
    }

private:
    const detail::seen_call<Comm>& call_;
    Memory& memory_;
};

/// A step, as a part sees it when it ends.
template <communicator Comm, class Entry, class Memory>
class part_step {
public:
    using block = detail::step_block<typename Comm::device>;
    using stream_ref = stream_ref_of<Comm>;

    part_step(Comm& ranks, stream_ref stream, call_site where, const block& step, std::uint64_t offset,
        Memory& memory) noexcept
        : ranks_(ranks), stream_(stream), where_(where), step_(step), offset_(offset), memory_(memory) {}
    Comm& ranks() const noexcept { return ranks_; }
    stream_ref stream() const noexcept { return stream_; }
    call_site where() const noexcept { return where_; }
    std::uint64_t calls() const noexcept { return step_.call_count; }
    Entry* entry(std::uint64_t call) const noexcept
    {
        return reinterpret_cast<Entry*>(step_.layout.parts_of(step_.message(), call) + offset_);
    }
    /// The digest of this rank's input in device memory, if the step has read it.
    const std::uint64_t* input_digest(std::uint64_t call) const noexcept { return &step_.entry(call).input.digest; }
    Memory& memory() const noexcept { return memory_; }

private:
    Comm& ranks_;
    stream_ref stream_;
    call_site where_;
    const block& step_;
    std::uint64_t offset_;
    Memory& memory_;
};

/// The entries of a part in a finished step.
template <class Entry>
class part_entries {
public:
    part_entries(const detail::gathered_step& step, view<const detail::probed_call> calls,
        view<const detail::series_place> series, std::uint64_t offset) noexcept
        : step_(step), calls_(calls), series_(series), offset_(offset) {}
    int ranks() const noexcept { return step_.ranks(); }
    int calls() const noexcept { return static_cast<int>(calls_.count()); }
    const Entry& operator()(int call, int rank) const noexcept
    {
        return *reinterpret_cast<const Entry*>(
            step_.layout().parts_of(step_.message(rank), static_cast<std::uint64_t>(call)) + offset_);
    }
    /// For what the part remembers of a call: `slot` is its place in a table that stays small; memory with another
    /// `number` is of another call, or of steps that are to be forgotten. The same call of the program has the same
    /// ones in each step, also where steps have other calls before it.
    const detail::series_place& series(int call) const noexcept { return series_[static_cast<std::uint64_t>(call)]; }
    /// What the rank told as `step_observation::weight`.
    double weight(int rank) const noexcept { return step_.header(rank).weight; }
    /// Whether the step has the digests of the call's results: `part_call::has_result_digest`.
    bool has_result_digest(int call) const noexcept { return calls_[static_cast<std::uint64_t>(call)].has_result; }
    std::uint64_t result_digest(int call, int rank) const noexcept
    {
        return step_.entry(rank, static_cast<std::uint64_t>(call)).result.digest;
    }

private:
    const detail::gathered_step& step_;
    view<const detail::probed_call> calls_;
    view<const detail::series_place> series_;
    std::uint64_t offset_;
};

/// The summaries of a part in a finished step, by call.
template <class Summary>
class part_summaries {
public:
    part_summaries(const std::uint64_t* first, std::uint64_t words) noexcept : first_(first), words_per_call_(words) {}
    const Summary& operator[](int call) const noexcept
    {
        return *reinterpret_cast<const Summary*>(first_ + static_cast<std::uint64_t>(call) * words_per_call_);
    }

private:
    const std::uint64_t* first_;
    std::uint64_t words_per_call_;
};

} // namespace collprobe
