// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/core/widen.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/detail/overlap.hpp>
#include <collprobe/guard/gather_options.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/order/hooks.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// A body for `for_each` over the elements of `destination`. Rounds the elements that `source` has once, to nearest,
/// ties to even, and zeroes the rest.
template <floating_element From, floating_element To>
struct convert_body {
    view<const From> source;
    view<To> destination;

    COLLPROBE_HD void operator()(std::uint64_t index) const
    {
        destination[index] = index < source.count() ? static_cast<To>(widen(source[index])) : To{};
    }
};

/// The steps of an all-gather of one tensor, computed from its arguments. A plan holds no resources and may be made
/// again from the same arguments.
template <communicator Comm, element T, element Source>
class gather_plan {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;
    using event = typename device::event;
    using item = gather_item<device, T, Source>;

    static constexpr bool converts = !std::is_same_v<T, Source>;
    static_assert(!converts || (floating_element<T> && floating_element<Source>),
        "only floating-point elements are converted on their way into an all-gather");

    /// `is_checked`: a plan of the same arguments was made before in the same call, so they are not checked again.
    gather_plan(const Comm& comm, const item& what, stream_ref on, call_site where, bool is_checked = false)
        : comm_(comm), what_(what), on_(on), where_(where), source_(what.source.memory()),
          destination_(what.destination.memory())
    {
        const auto ranks = static_cast<std::uint64_t>(comm.size());
        if (!is_checked) check_buffers(ranks);
        const std::uint64_t count = destination_.count() / ranks;
        slot_ = destination_.part(static_cast<std::uint64_t>(comm.rank()) * count, count);
        if (!is_checked) {
            check_generation();
            check_places();
            // The copy writes it before the all-gather, which would refuse it, too.
            comm_.check_buffer(destination_, "destination", collective::all_gather, on_, where_);
        }
        choose();
    }

    gather_path path() const noexcept { return path_; }
    /// Calls `use(buffer, bytes, mode)` for each `guarded` buffer that the gather reads or writes.
    template <class Use>
    void for_each_access(const Use& use) const
    {
        if (auto* const from = what_.source.history()) {
            use(*from, from->range_of(0, source_.count()), access_mode::read);
        }
        if (auto* const to = what_.destination.history()) use(*to, to->range_of(0, to->count()), access_mode::write);
        if (auto* const kept = shard()) use(*kept, kept->range_of(0, kept->count()), mode_of_shard());
    }
    bool has_history() const
    {
        bool found = false;
        for_each_access([&](const auto&, byte_range, access_mode) { found = true; });
        return found;
    }

    /// Whether both may be in one group: neither may touch memory that the other writes.
    bool independent_of(const gather_plan& other) const noexcept
    {
        return !writes_into(other) && !other.writes_into(*this);
    }

    /// Lets `on` wait for work that still uses the memory.
    void order(stream_ref on) const
    {
        for_each_access([&, this](auto& buffer, byte_range range, access_mode mode) {
            buffer.history(call, where_).wait_for_conflicts(on, range, mode, call, where_);
        });
    }

    /// Writes this rank's part to the memory that it is sent from.
    void prepare(stream_ref on) const
    {
        const view<T> to = send_;
        if constexpr (converts) {
            order_hooks::access(on, "convert", source_, to, where_);
            device::for_each(on, to.count(), convert_body<Source, T>{source_, to});
        } else {
            if (path_ == gather_path::copy && !source_.empty())
                device::copy(on, source_, to.part(0, source_.count()), where_);
            if (pads()) device::zero(on, to.part(source_.count(), to.count() - source_.count()), where_);
        }
    }

    void gather(Comm& comm, stream_ref on) const
    {
        comm.all_gather(view<const T>(send_), destination_, on, where_);
    }

    /// Adds the accesses to the histories; they end where `done` was recorded on `on`.
    void note(stream_ref on, const event& done) const
    {
        for_each_access([&, this](auto& buffer, byte_range range, access_mode mode) {
            buffer.history(call, where_).add(on, range, mode, done, where_);
        });
    }
    /// Gives the written buffers the generation of the source.
    void pass_generation() const
    {
        const auto* const from = what_.source.history();
        const auto next = [&](std::uint64_t present) { return from != nullptr ? from->generation() : present + 1; };
        if (auto* const to = what_.destination.history()) to->set_generation(next(to->generation()));
        if (auto* const kept = shard(); kept != nullptr && static_cast<const void*>(kept) != from) {
            kept->set_generation(next(kept->generation()));
        }
    }
    /// Sets the generation of the written buffers to 0, because their content is unknown.
    void invalidate() const
    {
        for_each_access([](auto& buffer, byte_range, access_mode mode) {
            if (mode == access_mode::write) buffer.set_generation(0);
        });
    }

private:
    static constexpr const char* call = "copy_then_all_gather";

    guarded<device, T>* shard() const noexcept { return what_.options.shard; }
    bool pads() const noexcept { return source_.count() < slot_.count(); }
    access_mode mode_of_shard() const noexcept
    {
        return path_ == gather_path::copy || converts || pads() ? access_mode::write : access_mode::read;
    }
    bool is_source(view<T> memory) const noexcept
    {
        return !converts && static_cast<const void*>(memory.data()) == static_cast<const void*>(source_.data());
    }
    bool writes_into(const gather_plan& other) const noexcept
    {
        const auto touches = [&](view<T> written) {
            return overlap(written, other.source_) || overlap(written, other.destination_)
                || overlap(written, other.send_);
        };
        return touches(destination_) || (mode_of_shard() == access_mode::write && touches(send_));
    }

    void check_buffers(std::uint64_t ranks) const
    {
        check(source_, "source");
        check(destination_, "destination");
        if (destination_.count() % ranks != 0) {
            refuse("destination.count() is " + std::to_string(destination_.count()) + ", no multiple of size(), "
                + std::to_string(ranks));
        }
        const std::uint64_t count = destination_.count() / ranks;
        if (source_.count() > count) {
            refuse("source.count() is " + std::to_string(source_.count())
                + ", and a rank's slot of the destination has "
                + std::to_string(count) + " elements");
        }
    }

    void check_generation() const
    {
        const auto* const from = what_.source.history();
        if (from == nullptr) {
            if (what_.options.at_least != 0) refuse("at_least asks for a generation, which a plain view does not have");
            return;
        }
        if (from->generation() == 0) refuse("nothing was written to the source yet, or it was invalidated");
        if (from->generation() < what_.options.at_least) {
            refuse("the source is stale: it holds generation " + std::to_string(from->generation()) + ", and "
                + std::to_string(what_.options.at_least) + " is asked for");
        }
    }

    /// Checks that the source is its slot, or shares no byte with the destination; likewise a retained shard.
    void check_places() const
    {
        if (!(is_source(slot_) || !overlap(source_, destination_))) {
            refuse("source " + bytes_of(source_) + " overlaps destination " + bytes_of(destination_)
                + ", and does not begin at this rank's slot " + bytes_of(slot_));
        }
        const void* const destination = what_.destination.history();
        const auto other_history = [&](const void* of) {
            return destination != nullptr && of != nullptr && of != destination;
        };
        if (other_history(what_.source.history()) && overlap(source_, destination_)) {
            refuse("source and destination are two guarded buffers over the same memory, which know nothing of each "
                   "other: write the slot by destination.write(first, count, ...), and give a view of it as the "
                   "source");
        }
        if (shard() == nullptr) return;
        if (other_history(shard()) && overlap(shard()->memory(), destination_)) {
            refuse(
                "shard and destination are two guarded buffers over the same memory, which know nothing of each other");
        }
        const view<T> kept = shard()->memory();
        if (kept.count() != slot_.count()) {
            refuse("the shard has " + std::to_string(kept.count()) + " elements, a rank's slot of the destination "
                + std::to_string(slot_.count()));
        }
        if (kept.data() != slot_.data() && overlap(kept, destination_)) {
            refuse("shard " + bytes_of(kept) + " overlaps destination " + bytes_of(destination_)
                + ", and is not this rank's slot " + bytes_of(slot_));
        }
        if (!is_source(kept) && overlap(kept, source_)) {
            refuse("shard " + bytes_of(kept) + " overlaps source " + bytes_of(source_));
        }
    }

    void choose()
    {
        const bool keeps = shard() != nullptr;
        send_ = keeps ? shard()->memory() : slot_;
        const bool is_there = is_source(send_);
        const bool can_send = is_there || (!keeps && !converts && !pads() && !is_source(slot_));
        if (converts) path_ = gather_path::convert;
        else if (is_there && send_.data() == slot_.data()) path_ = gather_path::in_place;
        else if (can_send) path_ = gather_path::send_source;
        else path_ = gather_path::copy;
        if constexpr (!converts) {
            if (path_ == gather_path::send_source && !is_there) {
                // The all-gather does not write to its send buffer.
                send_ = view<T>(const_cast<T*>(source_.data()), source_.count());
            }
        }
    }

    template <class Element>
    void check(view<Element> buffer, const char* argument) const
    {
        if (const std::string flaw = flaw_of_buffer(buffer); !flaw.empty()) refuse(argument + flaw);
    }

    template <class Element>
    static std::string bytes_of(view<Element> memory)
    {
        const auto first = reinterpret_cast<std::uintptr_t>(memory.data());
        return "[" + hexadecimal(first) + ", " + hexadecimal(first + memory.size_bytes()) + ")";
    }

    [[noreturn]] void refuse(const std::string& message) const
    {
        caller(comm_, call, where_).fail(status::invalid_argument, message);
    }

    const Comm& comm_;
    const item& what_;
    stream_ref on_;
    call_site where_;
    view<const Source> source_;
    view<T> destination_;
    view<T> slot_; ///< this rank's slot of the destination
    view<T> send_; ///< the send buffer of the all-gather
    gather_path path_ = gather_path::in_place;
};

} // namespace collprobe::detail
