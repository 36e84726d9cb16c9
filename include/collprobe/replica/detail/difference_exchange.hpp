// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/digest_index.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/replica/detail/difference_kernels.hpp>
#include <collprobe/replica/detail/difference_search.hpp>
#include <collprobe/replica/replica.hpp>

/// The messages of a comparison, of a search for differences and of a repair. All of it blocks the host.
namespace collprobe::inline COLLPROBE_ABI::detail {

static_assert(sizeof(difference) == 48 && sizeof(held_buffer) == 24);

template <class Device>
struct difference_memory {
    template <class T>
    using buffer = typename Device::template buffer<T>;
    template <class T>
    using host_buffer = typename Device::template host_buffer<T>;

    difference_memory(std::uint64_t ranks, std::uint64_t room)
        : held(room), keys(2 * room + 2), host_keys(2 * room + 2), gathered(told.size() * ranks),
          host_gathered(told.size() * ranks)
    {
    }
    bool finished_by(deadline until) const noexcept { return detail::finished_by(until, done); }

    host_buffer<held_buffer> held; ///< this rank's list; the device writes the digests
    buffer<std::uint64_t> keys; ///< pairs of the list's digests, and of the comparison's number
    host_buffer<std::uint64_t> host_keys; ///< their maxima over the ranks
    host_buffer<std::uint64_t> host_firsts{block_search::most_blocks}; ///< the first element of each block
    buffer<std::uint64_t> firsts{block_search::most_blocks};
    buffer<std::uint64_t> pairs{2 * block_search::most_blocks}; ///< of the digests of the blocks
    host_buffer<std::uint64_t> host_pairs{2 * block_search::most_blocks}; ///< their maxima over the ranks
    buffer<unsigned char> scratch{1 << 20}; ///< what is sent of the blocks at a time
    host_buffer<difference> found{1}; ///< of one chunk
    buffer<std::uint64_t> told{sizeof(difference) / 8};
    buffer<std::uint64_t> gathered;
    host_buffer<std::uint64_t> host_gathered;
    typename Device::workspace workspace;
    typename Device::event done; ///< the last use of all these members
};

/// The pairs of a list's digests; the last one is of the comparison's number.
struct write_keys {
    const held_buffer* held;
    std::uint64_t room; ///< number of buffers that the message has pairs for
    std::uint64_t number;
    std::uint64_t* pairs;

    COLLPROBE_HD void operator()(std::uint64_t index) const noexcept
    {
        write_pair(pairs, index, index < room ? held[index].key() : number);
    }
};

/// The search for differences in one buffer, and their repair. Every rank computes the same from the same reports.
/// `Comm`: the caller's communicator. Messages of the search bypass its adaptors, data of a repair do not.
template <communicator Comm>
class difference_exchange {
public:
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

    /// About buffer number `index` of this rank's list, which may be shorter.
    difference_exchange(Comm& comm, difference_memory<device>& memory, view<const replica> list, std::uint64_t index,
        stream_ref on, call_site where)
        : comm_(comm), memory_(memory), mine_(index < list.count() ? &list[index] : nullptr), on_(on), where_(where)
    {
    }

    /// Finds which ranks differ from the reference (`disagreement`), and where; `own` is what this rank holds. A rank
    /// whose count or type differs from the reference finds no difference.
    located_difference locate(const held_buffer& own, int reference_rank)
    {
        const std::vector<held_buffer> held = gather(own);
        located_difference found;
        collprobe::disagreement& report = found.report;
        report.reference_rank = reference_rank;
        const int ranks = comm_.size();
        const auto key = [&](int rank) { return held[static_cast<std::size_t>(rank)].key(); };
        digest_index groups(ranks);
        for (int r = 0; r < ranks; ++r) groups.add(key(r), r);
        report.groups = groups.distinct();
        const digest_index::group* const most = groups.majority();
        report.majority = most != nullptr;
        const bool is_by_majority = reference_rank < 0 && report.majority;
        const std::uint64_t chosen = is_by_majority ? most->digest : key(reference_rank < 0 ? 0 : reference_rank);
        for (int r = 0; r < ranks; ++r) (key(r) == chosen ? report.holders : report.others).push_back(r);
        if (report.others.empty()) return found;
        const int reference = report.holders.front(); // of equal contents, whoever was told
        wanted_ = found.wanted = held[static_cast<std::size_t>(reference)];
        report.count = wanted_.count;
        if (wanted_.type == held_buffer::no_type) {
            for (const int r : report.others) report.differences.push_back({.rank = r, .same_shape = false});
            return found;
        }
        const auto element_bytes = static_cast<std::uint64_t>(bytes_of(static_cast<element_type>(wanted_.type)));
        found.search = block_search(wanted_.count, element_bytes);
        while (wanted_.count != 0 && found.search.narrow(mark(found.search))) {}
        report.ranges = found.search.ranges();
        const std::vector<difference> each = compare(found.search, reference);
        for (const int r : report.others) {
            difference what = each[static_cast<std::size_t>(r)];
            what.rank = r;
            const held_buffer& has = held[static_cast<std::size_t>(r)];
            what.same_shape = has.count == wanted_.count && has.type == wanted_.type;
            report.differences.push_back(what);
        }
        return found;
    }
    /// Overwrites the blocks that differ by those of rank `source` on ranks with `take`. Ranks that hold the right bits
    /// do not take, so that a fault in transit cannot damage them. Returns the number of bytes sent.
    std::uint64_t restore(const located_difference& found, int source, bool take)
    {
        wanted_ = found.wanted;
        std::uint64_t bytes = 0;
        in_chunks(found.search, [&]<class Word>(Word, std::uint64_t from, std::uint64_t count) {
            enqueue([&] {
                send(comm_, Word{}, found.search, from, count, source);
                if (take && is_comparable())
                    device::for_each(on_, count,
                        scatter_blocks<Word>{memory_.scratch.data(), list(found.search), from, mine_->data});
            });
            bytes += count * sizeof(Word);
        });
        return bytes;
    }

private:
    /// Sends this rank's report to all ranks, and reads theirs.
    template <class Report>
    std::vector<Report> gather(const Report& own)
    {
        std::vector<Report> reports(static_cast<std::size_t>(comm_.size()));
        constexpr std::uint64_t words = sizeof(Report) / 8;
        std::uint64_t* const host = memory_.host_gathered.data();
        const view<std::uint64_t> told(memory_.told.data(), words);
        const view<std::uint64_t> all(memory_.gathered.data(), words * reports.size());
        std::memcpy(host, static_cast<const void*>(&own), sizeof own);
        enqueue([&, this] {
            device::copy(on_, view<const std::uint64_t>(host, words), told, where_);
            comm_.innermost().all_gather(view<const std::uint64_t>(told), all, on_, where_);
            device::copy(on_, view<const std::uint64_t>(all), view<std::uint64_t>(host, all.count()), where_);
        });
        std::memcpy(static_cast<void*>(reports.data()), host, static_cast<std::size_t>(all.size_bytes()));
        return reports;
    }
    /// For each block, as bytes, whether the ranks' blocks differ.
    std::vector<std::uint8_t> mark(const block_search& search)
    {
        const std::uint64_t blocks = search.firsts().count();
        const view<std::uint64_t> pairs(memory_.pairs.data(), 2 * blocks);
        enqueue([&, this] {
            load(search);
            if (is_comparable()) {
                with_word(mine_->type, [&]<class Word>(Word) {
                    device::for_each(
                        on_, blocks, digest_blocks<Word>{mine_->data, mine_->count, list(search), pairs.data()});
                });
            } else {
                device::zero(on_, pairs, where_);
            }
            comm_.innermost().all_reduce(view<const std::uint64_t>(pairs), pairs, reduction::max, on_, where_);
            device::copy(on_, view<const std::uint64_t>(pairs),
                view<std::uint64_t>(memory_.host_pairs.data(), pairs.count()), where_);
        });
        std::vector<std::uint8_t> differs(static_cast<std::size_t>(blocks));
        for (std::uint64_t b = 0; b < blocks; ++b) differs[b] = is_equal_pair(memory_.host_pairs.data(), b) ? 0 : 1;
        return differs;
    }

    /// The difference of each rank's elements in the blocks from those of rank `reference`.
    std::vector<difference> compare(const block_search& search, int reference)
    {
        difference all;
        in_chunks(search, [&]<class Word>(Word, std::uint64_t from, std::uint64_t count) {
            enqueue([&] {
                send(comm_.innermost(), Word{}, search, from, count, reference);
                if (is_comparable())
                    device::reduce(on_, compare_blocks<Word>{mine_->data, list(search), from, memory_.scratch.data()},
                        count, memory_.found.data(), memory_.workspace);
            });
            if (is_comparable()) merge(all, memory_.found[0]);
        });
        return gather(all);
    }

    bool is_comparable() const noexcept
    {
        return mine_ != nullptr && static_cast<std::uint64_t>(mine_->type) == wanted_.type
            && mine_->count == wanted_.count;
    }
    block_list list(const block_search& search) const noexcept { return {memory_.firsts.data(), search.length()}; }

    /// Calls `use` for the elements of the blocks, as many at a time as the scratch memory holds.
    template <class Use>
    void in_chunks(const block_search& search, const Use& use)
    {
        if (search.elements() == 0) return;
        enqueue([&, this] { load(search); });
        with_word(static_cast<element_type>(wanted_.type), [&]<class Word>(Word) {
            const std::uint64_t room = memory_.scratch.size() / sizeof(Word);
            for (std::uint64_t from = 0; from < search.elements(); from += room) {
                const std::uint64_t left = search.elements() - from;
                use(Word{}, from, left < room ? left : room);
            }
        });
    }

    void load(const block_search& search)
    {
        const view<const std::uint64_t> firsts = search.firsts();
        for (std::uint64_t i = 0; i < firsts.count(); ++i) memory_.host_firsts[i] = firsts[i];
        device::copy(on_, view<const std::uint64_t>(memory_.host_firsts.data(), firsts.count()),
            view<std::uint64_t>(memory_.firsts.data(), firsts.count()), where_);
    }

    /// Broadcasts elements of the blocks of rank `source` to every rank's scratch memory.
    template <class Sender, class Word>
    void send(Sender& by, Word, const block_search& search, std::uint64_t from, std::uint64_t count, int source)
    {
        unsigned char* const packed = memory_.scratch.data();
        if (comm_.rank() == source)
            device::for_each(on_, count, gather_blocks<Word>{mine_->data, list(search), from, packed});
        const view<std::uint8_t> bytes(packed, count * sizeof(Word));
        by.broadcast(view<const std::uint8_t>(bytes), bytes, source, on_, where_);
    }

    /// And waits, with the communicator's deadline if it has one.
    template <class Work>
    void enqueue(const Work& work)
    {
        enqueue_marked(memory_.done, on_, work);
        comm_.synchronize(on_, where_);
    }

    Comm& comm_;
    difference_memory<device>& memory_;
    const replica* mine_;
    stream_ref on_;
    call_site where_;
    held_buffer wanted_; ///< the reference's; other buffers cannot be compared with it
};

} // namespace collprobe::detail
