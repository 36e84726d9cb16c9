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
#include <collprobe/step/detail/step_resources.hpp>
#include <collprobe/step/part.hpp>

/// The parts of a probe: their memory, and their judges.
namespace collprobe::inline COLLPROBE_ABI::detail {

/// The memory of a part for a step's calls.
template <class Device, class P>
auto memory_of([[maybe_unused]] const P& part, [[maybe_unused]] int ranks)
{
    if constexpr (requires { typename P::template memory<Device>; })
        return typename P::template memory<Device>(part, ranks);
    else return std::tuple<>();
}

/// What adds to the record of a step what its parts find.
struct part_judges {
    virtual void judge(const gathered_step& step, std::uint64_t due, view<const probed_call> calls,
        view<const series_place> series, step_record& out) = 0;
    virtual void judge_summary(const std::uint64_t* first_words, std::uint64_t due, step_record& out) = 0;

protected:
    ~part_judges() = default;
};

/// The parts of a probe. Part i has bit 1 + i of those that are due in a step (bit 0 has the statistics), a place among
/// the entries of a call, words in a summary of it, and one memory in each `memory`: they are found here alone.
template <class... Parts>
class step_parts final : public part_judges {
public:
    static constexpr bool is_empty = sizeof...(Parts) == 0;
    static constexpr std::uint64_t entry_bytes = (sizeof(typename Parts::entry) + ... + 0);
    static constexpr std::uint64_t words = (summary_words<Parts>() + ... + 0); ///< of all summaries of a call
    static constexpr bool has_summaries = (has_summary<Parts> && ...);

    /// What the parts have in the resources of a step.
    template <class Device>
    struct memory final : part_memories {
        memory(const step_parts& of, int ranks)
            : of_parts(std::apply(
                [&](const auto&... each) { return tuple(memory_of<Device>(each, ranks)...); }, of.parts_)) {}
        void clear() noexcept override
        {
            each([](auto& one) { if constexpr (requires { one.clear(); }) one.clear(); });
        }
        void forget(std::uint64_t first) noexcept override
        {
            each([first](auto& one) { if constexpr (requires { one.forget(first); }) one.forget(first); });
        }
        void each(const auto& use) { std::apply([&](auto&... one) { (use(one), ...); }, of_parts); }

        using tuple = std::tuple<decltype(memory_of<Device>(std::declval<const Parts&>(), 0))...>;
        tuple of_parts;
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
    /// `surviving`: the input, if the result can be compared with it.
    template <bool is_result, element T, communicator Comm>
    void read(const seen_call<Comm>& call, const step_block<typename Comm::device>& step, part_memories& with,
        view<const T> data, [[maybe_unused]] const T* surviving = nullptr)
    {
        using device = typename Comm::device;
        const auto place = step.at(call.index);
        [[maybe_unused]] wanted_sketches wanted;
        for_each(*this, step.due, [&]<std::size_t I>(auto& part) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            auto* const entry = reinterpret_cast<typename part_type::entry*>(
                step.layout.parts_of(place.message, place.index) + offset<I>);
            const part_call seen(call, std::get<I>(static_cast<memory<device>&>(with).of_parts));
            const auto look = [&] {
                if constexpr (is_result) return part.template after<T>(seen, data, entry);
                else return part.template before<T>(seen, data, entry);
            };
            if constexpr (detail::has_sketches<part_type>) wanted.add(look());
            else look();
        });
        if constexpr (floating_element<T>) {
            call_entry& entry = step.layout.entry(place.message, place.index);
            std::uint64_t first = 0; // of the data, among the call's elements
            if constexpr (is_result) {
                if (call.what.call == collective::reduce_scatter)
                    first = data.count() * static_cast<std::uint64_t>(call.ranks.rank());
                take(call, data, result_reducer<T>(data, surviving), call.what.has_result ? &entry.result : nullptr,
                    step.times_of_read(place, true), wanted);
            } else {
                take(call, data, statistics_reducer<T>(data), call.what.has_input ? &entry.input : nullptr,
                    step.times_of_read(place, false), wanted);
            }
            if (is_result ? !call.what.has_result : !call.what.has_input) return;
            // Other calls than gradients are not sampled, but every word of the message must be initialised.
            const std::uint64_t samples = step.layout.samples;
            std::uint64_t* const to = step.layout.input_sample(place.message, place.index);
            device::for_each(call.stream, samples, take_sample<T>{data, first,
                call.what.is_gradient() ? call.what.count : 0, samples, is_result ? to + samples : to});
        }
    }

    /// Behind all calls of a step: what parts enqueue then.
    template <class Comm>
    void end_step(Comm& ranks, const auto& step, part_memories& with, stream_ref_of<Comm> stream, call_site where)
    {
        for_each(*this, step.due, [&]<std::size_t I>(auto& part) {
            using entry = typename std::remove_cvref_t<decltype(part)>::entry;
            auto& own = std::get<I>(static_cast<memory<typename Comm::device>&>(with).of_parts);
            part_step<Comm, entry, std::remove_reference_t<decltype(own)>> ended(
                ranks, stream, where, step, offset<I>, own);
            if constexpr (requires { part.end_step(ended); }) part.end_step(ended);
        });
    }
    /// Puts the summaries of the parts into the words of the calls, from `first` on.
    template <class Device>
    void pack(const step_block<Device>& step, std::uint64_t* first, typename Device::stream_ref stream) const
    {
        for_each(*this, ~std::uint64_t{0}, [&]<std::size_t I>(auto& part) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            if constexpr (has_summary<part_type>)
                Device::for_each(stream, step.call_count, pack_part<part_type>{step.message(), step.layout, offset<I>,
                    first + words_before<I>, words});
        });
    }

    /// Adds to the record what the parts that were due find.
    void judge(const gathered_step& step, std::uint64_t due, view<const probed_call> calls,
        view<const series_place> series, step_record& out) override
    {
        for_each(*this, due, [&]<std::size_t I>(auto& part) {
            using entry = typename std::remove_cvref_t<decltype(part)>::entry;
            part.judge(part_entries<entry>(step, calls, series, offset<I>), out);
        });
    }
    void judge_summary(const std::uint64_t* first, std::uint64_t due, step_record& out) override
    {
        for_each(*this, due, [&]<std::size_t I>(auto& part) {
            using part_type = std::remove_cvref_t<decltype(part)>;
            if constexpr (has_summary<part_type>)
                part.judge_summary(part_summaries<typename part_type::summary>(first + words_before<I>, words), out);
        });
    }

private:
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
        void add(const sketch_target& one) { if (!one.empty()) of[count++] = one; }
        sketch_target of[sizeof...(Parts) + 1];
        std::size_t count = 0;
    };
    template <class Comm, class T>
    static void take(const seen_call<Comm>& call, view<const T> data, const auto& reducer, auto* to,
        reduction_times times, const wanted_sketches& sketches)
    {
        using device = typename Comm::device;
        if constexpr ((detail::has_sketches<Parts> || ...)) {
            read_once<device>(call.stream, reducer, data, to, sketches.of[0], call.workspace, times);
            for (std::size_t i = 1; i < sketches.count; ++i)
                make_sketch<device, T>(call.stream, data, sketches.of[0], sketches.of[i]);
        } else if (to != nullptr) {
            device::reduce(call.stream, reducer, data.count(), to, call.workspace, times);
        }
    }

    int every_;
    std::uint64_t requested_ = 0;
    std::tuple<Parts...> parts_;
};

} // namespace collprobe::detail
