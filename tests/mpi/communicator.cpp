// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The conformance suite over MPI, and what is MPI's own. Run with 1 to 4 ranks; with the argument `brief`
// it makes fewer calls.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/mpi/communicator.hpp>

#include "conformance/communicator_conformance.hpp"
#include "mpi/mpi_checks.hpp"

using namespace collprobe;

namespace {

/// Gives the suite this process's rank.
template <class Communicator>
struct provider {
    Communicator& comm;
    int size() const { return comm.size(); }
    template <class Fn>
    void run(Fn fn) const
    {
        fn(comm);
    }
};

/// Pieces cover each element once, in order, and none is larger than asked.
void check_pieces()
{
    for (const std::uint64_t count : {0u, 1u, 6u, 7u, 8u, 14u, 50u}) {
        std::uint64_t next = 0;
        mpi::detail::by_pieces(
            count,
            [&](std::uint64_t first, int some) {
                CHECK(first == next && some >= 1 && some <= 7);
                next += static_cast<std::uint64_t>(some);
            },
            7);
        CHECK(next == count);
    }
}

/// As `check_barrier` of the suite, over memory that the processes share.
void check_barrier(mpi::communicator_ref& world)
{
    const auto own = static_cast<std::size_t>(world.rank());
    std::atomic<int>* notes = nullptr;
    MPI_Win window = MPI_WIN_NULL;
    MPI_Win_allocate_shared(world.rank() == 0 ? static_cast<MPI_Aint>(sizeof(*notes)) * world.size() : 0, 1,
        MPI_INFO_NULL, world.native_handle(), &notes, &window);
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_shared_query(window, 0, &bytes, &unit, &notes);
    new (notes + own) std::atomic<int>(-1);
    conformance::check_barrier_of(world, notes, 20);
    MPI_Win_free(&window);
}

/// The bits that `local` promises, where any order gives the same.
void check_arithmetic(mpi::communicator_ref& world)
{
    const int n = world.size();
    const bool first = world.rank() == 0;
    // By their bits, in memory: a fast-math build has neither NaN nor -0.
    constexpr std::uint32_t minus_zero = 0x80000000u;
    constexpr std::uint32_t subnormal = 0x00011111u;
    constexpr std::uint32_t nan = 0x7fc00000u;
    constexpr std::uint32_t two = 0x40000000u;
    const host::stream stream;
    const std::vector<std::uint32_t> patterns{first ? nan : two, first ? minus_zero : 0, nan, subnormal};
    std::vector<float> values(4);
    std::memcpy(values.data(), patterns.data(), sizeof(float) * 4);
    std::vector<float> least(4), most(4), sum(4);
    world.all_reduce(values, view(least), reduction::min, stream);
    world.all_reduce(values, view(most), reduction::max, stream);
    world.all_reduce(values, view(sum), reduction::sum, stream);
    // Rounded to bfloat16 at each hop: 256 + 1 is 256 there.
    std::vector<bfloat16> wire{bfloat16(first ? 256.0f : 1.0f)};
    world.all_reduce(wire, view(wire), reduction::sum, stream);
    std::vector<float8_e4m3> narrow_wire{float8_e4m3(first ? 16.0f : 1.0f), float8_e4m3(first ? 448.0f : 32.0f)};
    world.all_reduce(narrow_wire, view(narrow_wire), reduction::sum, stream);
    std::vector<std::int8_t> small{127, -128};
    world.all_reduce(small, view(small), reduction::average, stream);
    stream.synchronize();
    const auto bits = [](float value) { return to_bits(value); };
    if (n > 1) CHECK(bits(least[0]) == two && bits(most[0]) == two);
    CHECK(bits(least[1]) == minus_zero);
    CHECK(bits(most[1]) == (n > 1 ? 0 : minus_zero));
    CHECK(is_nan(least[2]) && is_nan(most[2]));
    CHECK(bits(sum[3]) == static_cast<std::uint32_t>(n) * subnormal); // these add as integers
    if (n == 2) CHECK(static_cast<float>(wire[0]) == 256.0f);
    if (n == 2) CHECK(static_cast<float>(narrow_wire[0]) == 16.0f);
    if (n == 2) CHECK(is_nan(narrow_wire[1])); // an overflow shows
    CHECK(small[0] == static_cast<std::int8_t>(static_cast<std::int8_t>(127 * n) / n));
    CHECK(small[1] == static_cast<std::int8_t>(static_cast<std::int8_t>(-128 * n) / n));
}

/// Two communicators on two streams, enqueued in another order on odd ranks: neither waits for the other.
void check_independence(mpi::communicator_ref& world)
{
    mpi::communicator_ref other(testing::made_of(world.native_handle(), 0, world.rank()));
    const host::stream stream[2];
    std::vector<int> sums[2] = {{1}, {1}};
    for (int at = 0; at < 50; ++at) {
        const int first = world.rank() % 2;
        for (const int which : {first, 1 - first}) {
            mpi::communicator_ref& comm = which == 0 ? world : other;
            comm.all_reduce(sums[which], view(sums[which]), reduction::max, stream[which]);
        }
    }
    for (const host::stream& each : stream) each.synchronize(30'000);
    CHECK(sums[0][0] == 1 && sums[1][0] == 1);
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(240);
    const mpi_session session(&argc, &argv);
    mpi::communicator_ref world = mpi::communicator_ref(testing::made_of(), {.name = "world"});
    int rank = -1;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(world.rank() == rank && world.size() == size && world.name() == "world");
    int same = MPI_UNEQUAL;
    MPI_Comm_compare(world.native_handle(), MPI_COMM_WORLD, &same);
    CHECK(same == MPI_CONGRUENT);
    try {
        const bool brief = argc > 1 && std::strcmp(argv[1], "brief") == 0;
        if (brief) conformance::check_type<std::uint32_t>(provider<mpi::communicator_ref>{world}, 331);
        else conformance::check_all_types(provider<mpi::communicator_ref>{world}, 1031);
        conformance::check_calls(provider<mpi::communicator_ref>{world}, brief ? 5 : 50);
        if (world.size() > 1) conformance::check_refusals(provider<mpi::communicator_ref>{world});
        check_barrier(world);
        check_arithmetic(world);
        check_pieces();
        check_independence(world);
        if (brief) return 0;

        // MPI_COMM_WORLD itself, and with compared calls.
        mpi::communicator_ref whole(MPI_COMM_WORLD);
        conformance::check_type<float>(provider<mpi::communicator_ref>{whole}, 331);
        agreed compared(whole);
        conformance::check_type<float16>(provider<agreed<mpi::communicator_ref>>{compared}, 331);
        conformance::check_calls(provider<agreed<mpi::communicator_ref>>{compared}, 10);
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
