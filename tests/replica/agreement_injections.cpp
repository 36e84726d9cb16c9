// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// agreement_injections [injections] [seed = 1] [over a communicator = injections / 10]: random damage of every kind to the
// buffers of 3 to 64 ranks, judged by the code of `agreement` over the memory of one process, then by `agreement`
// itself over local ranks, and repaired there. Everything it says is compared with a look at every element. Exit status 1 if a single
// thing is wrong.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/replica/agreement.hpp>
#include <collprobe/replica/majority_repair.hpp>

#include "replica/damage.hpp"

using namespace collprobe;
using testing::damage_kind;
using testing::raw_buffer;

namespace {

/// Ranks whose buffers are all here: what `difference_exchange` does with messages.
class ranks_in_memory {
public:
    explicit ranks_in_memory(std::vector<raw_buffer*> buffers) : buffers_(std::move(buffers)) {}

    std::vector<detail::held_buffer> hold() const
    {
        std::vector<detail::held_buffer> held;
        for (raw_buffer* mine : buffers_) {
            const view<const std::uint8_t> bytes = mine->as_replica().bytes();
            const collprobe::detail::digest_reducer<std::uint8_t> reducer{bytes};
            held.push_back({reducer.finish(detail::reduce_blocks(reducer, bytes.count())), mine->count,
                static_cast<std::uint64_t>(mine->type)});
        }
        return held;
    }
    void compare_with(const detail::held_buffer&) const {}

    std::vector<std::uint8_t> mark(const detail::block_search& search)
    {
        const std::uint64_t blocks = search.firsts().count();
        std::vector<std::uint64_t> maxima(2 * blocks), mine(2 * blocks);
        for (raw_buffer* buffer : buffers_) {
            digest(search, *buffer, mine);
            for (std::uint64_t i = 0; i < 2 * blocks; ++i) maxima[i] = maxima[i] > mine[i] ? maxima[i] : mine[i];
        }
        std::vector<std::uint8_t> differs(blocks);
        for (std::uint64_t b = 0; b < blocks; ++b) differs[b] = detail::is_equal_pair(maxima.data(), b) ? 0 : 1;
        return differs;
    }

    std::vector<difference> compare(const detail::block_search& search, int reference)
    {
        const raw_buffer& source = *buffers_[static_cast<std::size_t>(reference)];
        std::vector<difference> each(buffers_.size());
        detail::with_word(source.type, [&]<class Word>(Word) {
            std::vector<Word> expected(search.elements());
            const detail::block_list list{search.firsts().data(), search.length()};
            for (std::uint64_t i = 0; i < expected.size(); ++i)
                detail::gather_blocks<Word>{source.data(), list, 0, expected.data()}(i);
            for (std::size_t r = 0; r < buffers_.size(); ++r) {
                const detail::compare_blocks<Word> reducer{buffers_[r]->data(), list, 0, expected.data()};
                each[r] = reducer.finish(detail::reduce_blocks(reducer, expected.size()));
            }
        });
        return each;
    }

private:
    static void digest(const detail::block_search& search, raw_buffer& buffer, std::vector<std::uint64_t>& to)
    {
        detail::with_word(buffer.type, [&]<class Word>(Word) {
            for (std::uint64_t b = 0; b < to.size() / 2; ++b)
                detail::digest_blocks<Word>{
                    buffer.data(), buffer.count, {search.firsts().data(), search.length()}, to.data()}(b);
        });
    }

    std::vector<raw_buffer*> buffers_;
};

/// One case: the ranks of `bad` have damage of their own.
struct injection {
    raw_buffer clean;
    std::vector<int> bad;
    std::vector<raw_buffer> damaged; ///< one for each of `bad`
    damage_kind kind = damage_kind::bit;

    injection(int ranks, std::uint64_t count, testing::random_numbers& random)
        : clean(count, static_cast<element_type>(random.below(10))),
          kind(static_cast<damage_kind>(random.below(static_cast<std::uint64_t>(damage_kind::count))))
    {
        clean.randomise(random);
        const std::uint64_t minority = static_cast<std::uint64_t>(ranks - 1) / 2;
        const std::uint64_t wanted = random.below(4) != 0 ? 1 : random.between(1, minority);
        std::vector<std::uint8_t> is_bad(static_cast<std::size_t>(ranks));
        for (std::uint64_t k = 0; k < wanted; ++k) is_bad[random.below(static_cast<std::uint64_t>(ranks))] = 1;
        for (int r = 0; r < ranks; ++r) {
            if (is_bad[static_cast<std::size_t>(r)] == 0) continue;
            bad.push_back(r);
            damaged.push_back(clean);
            testing::damage_once(damaged.back(), kind, random);
            // A swap of equal elements is no damage, nor two flips of the same bit.
            while (testing::differences_of(clean, damaged.back(), r).elements == 0)
                testing::damage_once(damaged.back(), damage_kind::bit, random);
        }
    }

    bool is_found(const disagreement& report, int ranks) const
    {
        if (!report.majority || report.others != bad) return false;
        if (report.holders.size() + bad.size() != static_cast<std::size_t>(ranks)) return false;
        if (report.differences.size() != bad.size()) return false;
        std::vector<const raw_buffer*> all;
        for (std::size_t k = 0; k < bad.size(); ++k) {
            if (!testing::same(report.differences[k], testing::differences_of(clean, damaged[k], bad[k]))) return false;
            all.push_back(&damaged[k]);
        }
        return testing::ranges_fit(report, clean, all);
    }
};

struct tally {
    std::uint64_t injections = 0;
    std::uint64_t damaged_ranks = 0;
    std::uint64_t misses = 0; ///< or anything said wrong
    std::uint64_t clean = 0;
    std::uint64_t false_positives = 0;
};

std::uint64_t random_count(testing::random_numbers& random, std::uint64_t case_number)
{
    if (case_number % 200 == 0) return random.between(40'000, 600'000); // more than a round narrows
    return random.below(3) == 0 ? random.between(1, 40) : random.between(41, 4000);
}

void in_memory(std::uint64_t injections, std::uint64_t seed, tally (&of)[static_cast<int>(damage_kind::count)])
{
    testing::random_numbers random{seed};
    for (std::uint64_t k = 0; k < injections; ++k) {
        const std::uint64_t count = random_count(random, k);
        const int ranks = static_cast<int>(random.between(3, count > 4000 ? 8 : 64));
        injection what(ranks, count, random);
        tally& counts = of[static_cast<int>(what.kind)];
        // Without damage, every rank has a copy of its own.
        std::vector<raw_buffer> copies(static_cast<std::size_t>(ranks), what.clean);
        std::vector<raw_buffer*> buffers;
        for (raw_buffer& copy : copies) buffers.push_back(&copy);
        disagreement nothing;
        ++counts.clean;
        if (detail::group_ranks(ranks_in_memory(buffers).hold(), nothing)) ++counts.false_positives;

        for (std::size_t i = 0; i < what.bad.size(); ++i) buffers[static_cast<std::size_t>(what.bad[i])] = &what.damaged[i];
        ranks_in_memory all(buffers);
        const detail::located_difference found = detail::locate_difference(all.hold(), -1, all);
        ++counts.injections;
        counts.damaged_ranks += what.bad.size();
        if (!what.is_found(found.report, ranks)) ++counts.misses;
    }
}

void over_communicator(std::uint64_t injections, std::uint64_t seed, tally& counts)
{
    for (const int ranks : {3, 4, 8, 16}) {
        testing::random_numbers random{seed + static_cast<std::uint64_t>(ranks)};
        std::vector<injection> all;
        for (std::uint64_t k = 0; k < injections / 4; ++k) all.emplace_back(ranks, random_count(random, k + 1), random);
        std::vector<std::uint64_t> misses(static_cast<std::size_t>(ranks)), positives(misses.size());
        local::run(ranks, {.timeout_ms = 60'000}, [&](local::communicator& comm) {
            const auto me = static_cast<std::size_t>(comm.rank());
            agreement check(comm, {.max_buffers = 1});
            for (const injection& what : all) {
                raw_buffer mine = what.clean;
                const host::stream stream;
                positives[me] += check.agreed(std::vector{mine.as_replica()}, stream) ? 0 : 1;
                for (std::size_t i = 0; i < what.bad.size(); ++i) {
                    if (what.bad[i] == comm.rank()) mine = what.damaged[i];
                }
                const std::vector<disagreement> found = check.locate(std::vector{mine.as_replica()}, stream);
                misses[me] += found.size() == 1 && what.is_found(found[0], ranks) ? 0 : 1;
                (void)majority_repair(check, std::vector{mine.as_replica()}, stream);
                misses[me] += testing::differences_of(what.clean, mine, 0).elements == 0 ? 0 : 1;
            }
        });
        for (std::size_t r = 0; r < misses.size(); ++r) { // every rank has its own opinion to be right about
            counts.misses += misses[r];
            counts.false_positives += positives[r];
        }
        counts.injections += all.size();
        counts.clean += all.size();
        for (const injection& what : all) counts.damaged_ranks += what.bad.size();
    }
}

bool print(const char* what, const tally& counts)
{
    std::printf("%-18s %9" PRIu64 " injections on %9" PRIu64 " ranks, %" PRIu64 " missed or misnamed; %9" PRIu64
                " clean, %" PRIu64 " false positives\n",
        what, counts.injections, counts.damaged_ranks, counts.misses, counts.clean, counts.false_positives);
    return counts.misses == 0 && counts.false_positives == 0 && counts.injections > 0;
}

} // namespace

int main(int argc, char** argv)
{
    const auto argument = [&](int k, std::uint64_t otherwise) {
        return argc > k ? std::strtoull(argv[k], nullptr, 10) : otherwise;
    };
#if COLLPROBE_TEST_BRIEF
    const std::uint64_t injections = argument(1, 1000);
#else
    const std::uint64_t injections = argument(1, 4000);
#endif
    const std::uint64_t seed = argument(2, 1);
    tally counts[static_cast<int>(damage_kind::count)];
    in_memory(injections, seed, counts);
    tally local;
    over_communicator(argument(3, injections / 10), seed, local);
    bool right = print("local ranks", local);
    for (int kind = 0; kind < static_cast<int>(damage_kind::count); ++kind)
        right = print(testing::name(static_cast<damage_kind>(kind)), counts[kind]) && right;
    return right ? 0 : 1;
}
