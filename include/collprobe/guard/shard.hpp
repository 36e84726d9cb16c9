// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <collprobe/comm/caller.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/guard/copy_then_all_gather.hpp>
#include <collprobe/guard/gather_options.hpp>
#include <collprobe/guard/guarded.hpp>
#include <collprobe/guard/shard_layout.hpp>
#include <collprobe/guard/stream_list.hpp>

namespace collprobe::inline COLLPROBE_ABI {

/// A parameter in three forms (hpZ of ZeRO++). Each rank owns a *primary* slice. Each node keeps the whole parameter,
/// as the *secondary* shards of its ranks. Each rank gathers the whole from its own node. So the parameter crosses the
/// slow network once per update, however often it is gathered. Use:
///
///     secondary_shard<nccl::communicator, bfloat16> weights(nodes, count);       // node_groups nodes(world, 8)
///     weights.write_primary(compute, [&](view<bfloat16> slice) { adamw(slice, weights.primary_range(), compute); });
///     weights.regenerate(communication, {}, {});                        // once for each update, across the nodes
///     weights.gather(parameter, communication, {compute}, {compute});   // forward, backward: within the node
/// Shapes: `count` is equal on all ranks; a gather's destination has `padded_count()` elements, zeros behind `count`.
/// Preconditions: all ranks make the same calls in the same order; one thread at a time. `write_primary` makes the
/// secondary shard stale until `regenerate`; a stale, invalidated or missing shard is not gathered. In a capture the
/// calls count, not the launches of the graph.
/// Stream behaviour: ordered by events on any streams, as with `guarded`; the host never waits.
/// Cost: memory for `layout().secondary_count()` elements; no copy between the two gathers (`shard_layout`).
/// Source: Wang et al., ZeRO++, arXiv 2306.10209, section 3.2; its race: arXiv 2407.01614.
template <communicator Comm, element T>
class secondary_shard {
public:
    using groups_type = node_groups<Comm>;
    using device = typename groups_type::device;
    using stream_ref = typename device::stream_ref;
    using streams = stream_list<stream_ref>;
    using value_type = T;

    /// For a parameter of `count` elements (0 too). Allocates the secondary shard on the communicator's device.
    /// `groups` must outlive this object. The destructor waits at most `timeout_ms` for work that uses it, as `guarded`
    /// does.
    /// \throws error `invalid_argument` for a count whose bytes exceed 64 bits; any error of the allocation.
    secondary_shard(groups_type& groups, std::uint64_t count, std::int64_t timeout_ms = 30'000,
        call_site where = call_site::current())
        : groups_(&groups), layout_(layout_of(groups, count, where)), secondary_(allocate(timeout_ms))
    {
    }

    const shard_layout& layout() const noexcept { return layout_; }
    std::uint64_t count() const noexcept { return layout_.count; }
    /// The number of elements of the destination of `gather`.
    std::uint64_t padded_count() const noexcept { return layout_.padded_count(); }
    /// The elements of the parameter that this rank owns: those of the slice in `write_primary`.
    shard_layout::range primary_range() const noexcept { return layout_.primary(); }
    /// Generation of the primary slice; 0 if it was never written.
    std::uint64_t primary_generation() const noexcept { return primary_generation_; }
    /// Generation of the secondary shard; 0 if it cannot be gathered.
    std::uint64_t generation() const noexcept { return secondary_.generation(); }
    /// The secondary shard, `layout().secondary()` of the parameter and padding: to read it, to order a release or to
    /// wait for its work. Write it through `write_primary`, or by a gather across the nodes.
    guarded<device, T>& secondary() noexcept { return secondary_; }

    /// Calls `enqueue(slice)`, which enqueues on `on` work that writes the primary slice and may read it. Every rank
    /// calls it, even if its slice is empty. The secondary shard is stale from then on. If `enqueue` throws, it is
    /// stale too, and the slice must be written again before `regenerate`.
    /// \throws error as `guarded::write`; any exception of `enqueue`.
    template <class Enqueue>
    void write_primary(stream_ref on, Enqueue&& enqueue, call_site where = call_site::current())
    {
        ++primary_generation_;
        primary_is_whole_ = false;
        secondary_.set_generation(0);
        secondary_.write(place_of_slice(), primary_range().count, on, std::forward<Enqueue>(enqueue), where);
        secondary_.set_generation(0); // only the slice was written, not the whole secondary shard
        primary_is_whole_ = true;
    }

    /// As `write_primary`, for work that reads the slice (for a checkpoint, a norm). Nothing becomes stale.
    /// \throws error `invalid_argument` if it was never written, or the last write failed; any exception of `enqueue`.
    template <class Enqueue>
    void read_primary(stream_ref on, Enqueue&& enqueue, call_site where = call_site::current())
    {
        if (primary_generation_ == 0 || !primary_is_whole_) {
            detail::caller(groups_->across_nodes(), "read_primary", where)
                .fail(status::invalid_argument, "the primary slice was never written, or its last write failed");
        }
        struct keep_generation {
            guarded<device, T>& of;
            std::uint64_t generation = of.generation();
            ~keep_generation() { of.set_generation(generation); }
        } const at_exit{secondary_};
        secondary_.set_generation(primary_generation_); // true of the slice only; reset after the call
        secondary_.read(place_of_slice(), primary_range().count, on, std::forward<Enqueue>(enqueue), where);
    }

    /// Makes the secondary shard from the primary slices, by an in-place all-gather across the nodes on `on`. It gets
    /// the generation of the primary slice. `producers`, `consumers`, handle, errors: as for `copy_then_all_gather`.
    /// \throws error `invalid_argument` if the primary slice was never written.
    /// Cost: `regenerate_bytes()`; on ranks with a short slice a kernel that zeroes the rest.
    gather_handle<device> regenerate(
        stream_ref on, streams producers, streams consumers, call_site where = call_site::current())
    {
        if (primary_generation_ == 0) {
            regenerating(where).refuse(collective::all_gather, on, "the primary slice was never written");
        }
        if (!primary_is_whole_) {
            regenerating(where).refuse(collective::all_gather, on,
                "the last write of the primary slice failed, and may have left half of it");
        }
        return regenerate_from(slice(), primary_generation_, on, producers, consumers, where);
    }
    /// As above, from a primary slice in other memory, with as many elements as `primary_range()`. The all-gather sends
    /// it from there. A slice that is short, or of another floating-point type (master weights), is first written into
    /// the shard. The generation is that of a `guarded` source; for another source it grows by one.
    template <class Source>
    gather_handle<device> regenerate(Source&& source, stream_ref on, streams producers, streams consumers,
        call_site where = call_site::current())
    {
        const detail::gather_buffer<device, const detail::buffer_element<Source>> from(source);
        if (from.memory().count() != primary_range().count) {
            regenerating(where).refuse(collective::all_gather, on,
                "source.count() is " + std::to_string(from.memory().count())
                    + ", and the primary slice of this rank has "
                    + std::to_string(primary_range().count) + " elements");
        }
        const auto* const history = from.history();
        const std::uint64_t next = history != nullptr ? history->generation() : primary_generation_ + 1;
        return regenerate_from(from, next, on, producers, consumers, where);
    }

    /// Forbids gathers of the secondary shard until it is made again, for instance after a checkpoint was loaded.
    void invalidate() noexcept
    {
        secondary_.set_generation(0);
        made_of_ = 0;
    }

    /// Gathers the parameter into `destination` on `on`, from the secondary shards of this node. `destination`: a view,
    /// a container or a `guarded` buffer of `padded_count()` elements. `at_least`: the least generation of the
    /// secondary shard. `producers`, `consumers`, handle, errors: as for `copy_then_all_gather`.
    /// \throws error `invalid_argument` if the secondary shard is older, stale, invalidated or was never made, or if
    ///   the destination has another count.
    /// Cost: `gather_bytes()`; no copy.
    template <class Destination>
        requires std::is_same_v<detail::buffer_element<Destination>, T>
    gather_handle<device> gather(Destination&& destination, stream_ref on, streams producers, streams consumers,
        std::uint64_t at_least = 0, call_site where = call_site::current())
    {
        const detail::gather_buffer<device, T> to(destination);
        check_gather(to.memory(), on, at_least, where);
        auto done = copy_then_all_gather(secondary_, to, groups_->within_node(), on, producers, consumers, {}, where);
        ++gathers_;
        return done;
    }

    /// Bytes that one `regenerate` moves across the nodes.
    shard_volume regenerate_bytes() const noexcept { return sizeof(T) * layout_.regenerate_volume(); }
    /// Bytes that one `gather` moves within the node.
    shard_volume gather_bytes() const noexcept { return sizeof(T) * layout_.gather_volume(); }
    /// For comparison: bytes that one all-gather of the primary slices over the world moves.
    shard_volume flat_bytes() const noexcept { return sizeof(T) * layout_.flat_volume(); }
    /// Bytes that all calls so far have moved.
    shard_volume total_bytes() const noexcept
    {
        return regenerations_ * regenerate_bytes() + gathers_ * gather_bytes();
    }

private:
    static shard_layout layout_of(groups_type& groups, std::uint64_t count, call_site where)
    {
        const auto number = [](int small) { return static_cast<std::uint64_t>(small); };
        const shard_layout layout{count, number(groups.nodes()), number(groups.ranks_per_node()), number(groups.node()),
            number(groups.local_rank())};
        if (layout.slot() <= UINT64_MAX / sizeof(T) / layout.ranks()) return layout;
        detail::caller(groups.across_nodes(), "secondary_shard", where)
            .fail(status::invalid_argument, "count " + std::to_string(count) + " is impossibly large");
    }
    guarded<device, T> allocate(std::int64_t timeout_ms) const
    {
        const auto scope = groups_->across_nodes().device_scope();
        return guarded<device, T>(layout_.secondary_count(), timeout_ms);
    }
    std::uint64_t place_of_slice() const noexcept { return layout_.node * layout_.slot(); }
    view<const T> slice() const noexcept
    {
        return {secondary_.memory().data() + place_of_slice(), primary_range().count};
    }

    template <class Source>
    gather_handle<device> regenerate_from(Source source, std::uint64_t generation, stream_ref on, streams producers,
        streams consumers, call_site where)
    {
        invalidate(); // in case of a failure half-way
        auto done = copy_then_all_gather(
            source, secondary_, groups_->across_nodes(), on, producers, consumers, {}, where);
        primary_generation_ = generation;
        primary_is_whole_ = true;
        made_of_ = generation;
        secondary_.set_generation(generation);
        ++regenerations_;
        return done;
    }

    void check_gather(view<T> destination, stream_ref on, std::uint64_t at_least, call_site where) const
    {
        const auto refused = [&](const std::string& message) {
            detail::caller(groups_->within_node(), "gather", where).refuse(collective::all_gather, on, message);
        };
        if (destination.count() != padded_count()) {
            refused("destination.count() is " + std::to_string(destination.count()) + ", and padded_count() "
                + std::to_string(padded_count()));
        }
        if (generation() == 0 && made_of_ == 0) {
            refused("the secondary shard was never made, could not be made or was invalidated: regenerate it");
        }
        if (generation() == 0) {
            refused("the secondary shard is stale: it was made of generation " + std::to_string(made_of_)
                + " of the primary slice, which now has " + std::to_string(primary_generation_) + ": regenerate it");
        }
        if (generation() < at_least) {
            refused("the secondary shard is stale: it has generation " + std::to_string(generation()) + ", and "
                + std::to_string(at_least) + " is asked for");
        }
    }
    detail::caller<typename groups_type::part> regenerating(call_site where) const
    {
        return {groups_->across_nodes(), "regenerate", where};
    }

    groups_type* groups_;
    shard_layout layout_;
    guarded<device, T> secondary_;
    std::uint64_t primary_generation_ = 0;
    bool primary_is_whole_ = true; ///< false after a failed write
    std::uint64_t made_of_ = 0; ///< the generation that the secondary shard was last made of
    std::uint64_t regenerations_ = 0;
    std::uint64_t gathers_ = 0;
};

} // namespace collprobe
