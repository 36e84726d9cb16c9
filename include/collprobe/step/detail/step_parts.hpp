// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <collprobe/core/view.hpp>
#include <collprobe/scan/sketched_read.hpp>
#include <collprobe/scan/statistics.hpp>
#include <collprobe/step/detail/measure_orders.hpp>
#include <collprobe/step/detail/step_block.hpp>
#include <collprobe/step/part.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// The parts of a probe. Part i has bit 1 + i of those that are due in a step (bit 0 has the statistics), a place among
/// the entries of a call, words in a summary of it, and one memory in each `memory`: they are found here alone.
template <class... Parts>
class step_parts {
public:
    static constexpr bool is_empty = sizeof...(Parts) == 0;
    static constexpr std::uint64_t entry_bytes = (sizeof(typename Parts::entry) + ... + 0);
    static constexpr std::uint64_t words = (summary_words<Parts>() + ... + 0); ///< of all summaries of a call
    static constexpr bool has_summaries = (has_summary<Parts> && ...);

    /// What the parts have in the tools of a step.
    template <class Device>
    struct memory {
        memory(const step_parts& of, int ranks) : memory(of, ranks, std::index_sequence_for<Parts...>()) {}
        void clear() noexcept { std::apply([](auto&... each) { (clear_one(each), ...); }, of_parts); }
        /// Calls of the step from this index on were not made in the end.
        void forget(std::uint64_t first) noexcept
        {
            std::apply([first](auto&... each) { (forget_one(each, first), ...); }, of_parts);
        }
        std::tuple<typename part_memory<Parts, Device>::type...> of_parts;

    private:
        template <std::size_t... I>
        memory([[maybe_unused]] const step_parts& of, [[maybe_unused]] int ranks, std::index_sequence<I...>)
            : of_parts(typename part_memory<Parts, Device>::type(std::get<I>(of.parts_), ranks)...) {}
        static void clear_one(auto& one) noexcept { if constexpr (requires { one.clear(); }) one.clear(); }
        static void forget_one(auto& one, std::uint64_t first) noexcept
        {
            if constexpr (requires { one.forget(first); }) one.forget(first);
        }
    };

    /// `every`: of the statistics; below 0: there are none.
    explicit step_parts(int every, Parts... parts) : every_(every), parts_(std::move(parts)...) {}

    template <class P>
    P& get() noexcept { return std::get<P>(parts_); }
    template <class P>
    static constexpr std::uint64_t bit_of() noexcept
    {
        std::uint64_t bit = 2;
        std::uint64_t found = 0;
        ((found = (std::is_same_v<P, Parts> ? bit : found), bit <<= 1), ...);
        return found;
    }
    void request(std::uint64_t bit) noexcept { requested_ |= bit; }
    /// The bits of what looks at a step, behind `steps` others. Takes back what was requested, unless it is captured.
    std::uint64_t due(std::uint64_t steps, bool captured)
    {
        const auto is_due = [&, this](int every, std::uint64_t bit) {
            if (every == 1) return bit;
            if (captured) return std::uint64_t{0};
            const bool is_its_turn = every > 0 && steps % static_cast<std::uint64_t>(every) == 0;
            return (requested_ & bit) != 0 || is_its_turn ? bit : 0;
        };
        std::uint64_t bits = every_ >= 0 ? is_due(every_, 1) : 0;
        for_each(*this, ~std::uint64_t{0}, [&]<std::size_t I>(auto& part) {
            if constexpr (requires { part.every(); }) bits |= is_due(part.every(), bit_at(I));
            else bits |= bit_at(I);
        });
        if (!captured) requested_ = 0;
        return bits;
    }
    /// Whether a part reads such results, so that the step need not.
    bool reads_result(std::uint64_t due, collective what, report_mode mode) const
    {
        bool found = false;
        for_each(*this, due, [&]<std::size_t I>(auto& part) {
            if constexpr (requires { part.reads_result(what, mode); }) found = found || part.reads_result(what, mode);
        });
        return found;
    }

    /// Reads a call's input, or its result, once for the step's statistics and all sketches that parts want.
    template <element T, communicator Comm, class Block, class Memory>
    void read_input(const seen_call<Comm>& call, const Block& step, Memory& with, view<const T> input)
    {
        [[maybe_unused]] const auto sketches = look(call, step, with,
            [&](auto& part, const auto& seen, auto* entry) { return part.template before<T>(seen, input, entry); });
        if constexpr (floating_element<T>) {
            const auto at = step.at(call.index);
            statistics* const to = call.what.has_input ? &step.layout.entry(at.message, at.index).input : nullptr;
            read(call, input, statistics_reducer<T>(input), to, step.input_times(call.index), sketches);
            if (to != nullptr) sample(call, input, 0, step.layout, step.layout.input_sample(at.message, at.index));
        }
    }
    template <element T, communicator Comm, class Block, class Memory>
    void read_result(
        const seen_call<Comm>& call, const Block& step, Memory& with, view<const T> result, const T* surviving_input)
    {
        [[maybe_unused]] const auto sketches = look(call, step, with,
            [&](auto& part, const auto& seen, auto* entry) { return part.template after<T>(seen, result, entry); });
        if constexpr (floating_element<T>) {
            const auto at = step.at(call.index);
            result_record* const to = call.what.has_result ? &step.layout.entry(at.message, at.index).result : nullptr;
            read(call, result, result_reducer<T>(result, surviving_input), to, step.result_times(call.index), sketches);
            const std::uint64_t first = call.what.call != collective::reduce_scatter
                ? 0 : result.count() * static_cast<std::uint64_t>(call.ranks.rank());
            if (to != nullptr)
                sample(call, result, first, step.layout, step.layout.result_sample(at.message, at.index));
        }
    }

    /// Behind all calls of a step: what parts enqueue then.
    template <class Comm>
    void end_step(Comm& ranks, const auto& step, auto& with, stream_ref_of<Comm> stream, call_site where)
    {
        for_each(*this, step.due, [&]<std::size_t I>(auto& part) {
            using entry = typename std::remove_cvref_t<decltype(part)>::entry;
            part_step<Comm, entry, std::tuple_element_t<I, decltype(with.of_parts)>> ended(
                ranks, stream, where, step, offset<I>, std::get<I>(with.of_parts));
            if constexpr (requires { part.end_step(ended); }) part.end_step(ended);
        });
    }
    /// Calls `use(body)` with a body, over the calls, for each part that puts a summary into the words of the calls.
    void pack(const auto& step, std::uint64_t* first, const auto& use) const
    {
        for_each(*this, ~std::uint64_t{0}, [&]<std::size_t I>(auto& part) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            if constexpr (has_summary<part_type>)
                use(pack_part<part_type>{step.message(), step.layout, offset<I>, first + words_before<I>, words});
        });
    }

    /// Adds to the record what the parts that were due find.
    void judge(const gathered_step& step, std::uint64_t due, view<const probed_call> calls,
        view<const series_place> series, step_record& out)
    {
        for_each(*this, due, [&]<std::size_t I>(auto& part) {
            using entry = typename std::remove_cvref_t<decltype(part)>::entry;
            part.judge(part_entries<entry>(step, calls, series, offset<I>), out);
        });
    }
    void judge_summary(const std::uint64_t* first, std::uint64_t due, step_record& out)
    {
        for_each(*this, due, [&]<std::size_t I>(auto& part) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            if constexpr (has_summary<part_type>)
                part.judge_summary(part_summaries<typename part_type::summary>(first + words_before<I>, words), out);
        });
    }

private:
    static constexpr bool has_sketches = (detail::has_sketches<Parts> || ...);

    static constexpr std::uint64_t bit_at(std::size_t i) noexcept { return std::uint64_t{2} << i; }
    /// The sum of the first sizes.
    static constexpr std::uint64_t first_of(std::size_t count, const std::uint64_t (&sizes)[sizeof...(Parts) + 1])
    {
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < count; ++i) sum += sizes[i];
        return sum;
    }
    template <std::size_t I>
    static constexpr std::uint64_t offset = first_of(I, {sizeof(typename Parts::entry)..., 0});
    template <std::size_t I>
    static constexpr std::uint64_t words_before = first_of(I, {summary_words<Parts>()..., 0});
    /// Calls `use<I>(part)` for each part that is due.
    static void for_each(auto& self, std::uint64_t due, const auto& use)
    {
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (((due & bit_at(I)) != 0 ? use.template operator()<I>(std::get<I>(self.parts_)) : void()), ...);
        }(std::index_sequence_for<Parts...>());
    }

    /// The sketches that parts want of a buffer. The step's read makes the first.
    struct wanted_sketches {
        sketch_target first;
        sketch_target others[sizeof...(Parts) + 1];
        std::size_t other_count = 0;
    };
    /// Calls `look_at(part, call, entry)` for each part that is due, and returns the sketches that they want.
    template <class Comm>
    wanted_sketches look(const seen_call<Comm>& call, const auto& step, auto& with, const auto& look_at)
    {
        wanted_sketches wanted;
        for_each(*this, step.due, [&]<std::size_t I>(auto& part) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            const auto place = step.at(call.index);
            auto* const entry = reinterpret_cast<typename part_type::entry*>(
                step.layout.parts_of(place.message, place.index) + offset<I>);
            const part_call seen(call, std::get<I>(with.of_parts));
            if constexpr (detail::has_sketches<part_type>) {
                const sketch_target one = look_at(part, seen, entry);
                if (one.empty()) return;
                if (wanted.first.empty()) wanted.first = one;
                else wanted.others[wanted.other_count++] = one;
            } else {
                look_at(part, seen, entry);
            }
        });
        return wanted;
    }
    template <class Comm, class T>
    static void read(const seen_call<Comm>& call, view<const T> data, const auto& reducer, auto* to,
        reduction_times times, const wanted_sketches& sketches)
    {
        using device = typename Comm::device;
        if constexpr (has_sketches) {
            read_once<device>(call.stream, reducer, data, to, sketches.first, call.workspace, times);
            for (std::size_t i = 0; i < sketches.other_count; ++i)
                make_sketch<device, T>(call.stream, data, sketches.first, sketches.others[i]);
        } else if (to != nullptr) {
            device::reduce(call.stream, reducer, data.count(), to, call.workspace, times);
        }
    }
    /// Other calls than gradients are not sampled, but every word of the message must be initialised.
    template <communicator Comm, class T>
    static void sample(const seen_call<Comm>& call, view<const T> here, std::uint64_t first,
        const message_layout& layout, std::uint64_t* to)
    {
        const std::uint64_t whole = call.what.is_gradient() ? call.what.count : 0;
        Comm::device::for_each(
            call.stream, layout.samples, take_sample<T>{here, first, whole, layout.samples, to});
    }

    int every_;
    std::uint64_t requested_ = 0;
    std::tuple<Parts...> parts_;
};

} // namespace collprobe::detail
