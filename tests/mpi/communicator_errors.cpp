// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What goes wrong over MPI, and how each rank hears of it. Run with 2 ranks or more; or, with an argument, for what ends
// MPI or the job (`funneled`, `throws`).
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/mpi/communicator.hpp>

#include "mpi/mpi_checks.hpp"
#include "support/rank_memory.hpp"

using namespace collprobe;
using testing::says;
using testing::error_of;

namespace {

void sleep_ms(long ms)
{
    const timespec nap{ms / 1000, ms % 1000 * 1'000'000};
    nanosleep(&nap, nullptr);
}

/// Memory of a rank that no failed collective may write.
struct memory : testing::rank_memory {
    memory() : rank_memory(64) {}
    view<const float> in(std::uint64_t count = 64) const { return rank_memory::in().part(0, count); }
    view<float> out(std::uint64_t count = 64) { return rank_memory::out().part(0, count); }
};

mpi::communicator_ref make(std::int64_t timeout_ms)
{
    return mpi::communicator_ref(testing::made_of(), {.timeout_ms = timeout_ms, .name = "world"});
}

void check_construction()
{
    CHECK(says(error_of([] { mpi::communicator_ref(MPI_COMM_NULL); }), status::invalid_argument, "MPI_COMM_NULL"));
    CHECK(says(error_of([] { mpi::communicator_ref(MPI_COMM_WORLD, {.timeout_ms = 0}); }), status::invalid_argument,
        "timeout_ms is 0"));
}

/// More than MPI takes: nothing is enqueued, and the communicator works on.
void check_large_counts()
{
    mpi::communicator_ref comm = make(-1);
    const int n = comm.size();
    const auto parts = static_cast<std::uint64_t>(n);
    memory own;
    const host::stream on;
    // Places that no call reads: 2^31 elements in all, or more.
    const std::uint64_t part = (std::uint64_t{1} << 31) / parts + 1;
    const view<const float> far_part(reinterpret_cast<const float*>(std::uintptr_t{1} << 40), part);
    const view<const float> far_in(far_part.data(), part * parts);
    const view<float> far_out(reinterpret_cast<float*>(std::uintptr_t{1} << 44), part * parts);
    const view<float> far_part_out(far_out.data(), part);
    const std::string too_many = std::to_string(part * parts) + " elements: MPI takes at most 2147483647 in a call";
    const auto beyond = [&](const std::string& what, auto call) {
        CHECK(says(error_of(call), status::unsupported, what + " has " + too_many));
    };
    beyond("receive", [&] { comm.all_gather(far_part, far_out, on); });
    beyond("send", [&] { comm.all_to_all(far_in, far_out, on); });
    beyond("send", [&] { comm.reduce_scatter(far_in, far_part_out, reduction::sum, on); });
    on.synchronize();
    CHECK(own.untouched());
    comm.all_reduce(own.in(), own.out(), reduction::sum, on);
    on.synchronize();
    CHECK(own.receive[0] == static_cast<float>(3 * n));
    comm.check();
}

/// A rank that has failed makes no call that has not begun, and says why.
void check_failed_rank()
{
    auto comm = make(10'000);
    memory own;
    const host::stream on;
    comm.barrier(on);
    on.synchronize(20'000);
    comm.fail("no progress");
    const std::string told = "rank " + std::to_string(comm.rank()) + " gave up: no progress";
    CHECK(says(error_of([&] { comm.all_reduce(own.in(), own.out(), reduction::sum, on); }), status::peer_failure, told));
    CHECK(says(error_of([&] { comm.check(); }), status::peer_failure, told));
    CHECK(own.untouched());
}

/// Work that fails in front of a collective fails the communicator on its rank: MPI tells the peers nothing.
void check_failed_stream()
{
    auto comm = make(10'000);
    const host::stream on;
    on.enqueue([] { throw std::runtime_error("the kernel failed"); });
    comm.barrier(on);
    try {
        on.synchronize(20'000);
        CHECK(false);
    } catch (const std::runtime_error&) {
    }
    CHECK(says(error_of([&] { comm.check(); }), status::peer_failure,
        "could not take part in barrier, because earlier work on its stream failed: the kernel failed"));
}

/// Ranks that wait for a late one have an error in time. It comes at last, and is told that they were to make another call.
void check_late_rank()
{
    auto comm = make(400);
    const bool late = comm.rank() == comm.size() - 1;
    memory own;
    const host::stream on;
    agreed compared(comm);
    compared.barrier(on);
    on.synchronize();
    if (late) sleep_ms(1500);
    const auto thrown = error_of([&] {
        if (late) compared.barrier(on);
        else compared.all_reduce(own.in(), own.out(), reduction::sum, on);
    });
    if (late) CHECK(says(thrown, status::mismatch, "all_reduce of float, count 64, sum"));
    else {
        CHECK(says(thrown, status::timeout,
            "not all ranks came to call 1 of the communicator within 400 ms (all_reduce of float, count 64, sum)"));
        CHECK(says(error_of([&] { compared.barrier(on); }), status::timeout, "call 1"));
    }
    CHECK(own.untouched());
    // The comparison is over when this is: MPI must not end while a thread is in it.
    comm.barrier(on);
    on.synchronize(20'000);
}

/// What MPI itself finds reaches the stream as an error, not as the end of the job.
void check_error_of_mpi()
{
    auto comm = make(-1);
    memory own;
    const host::stream on;
    // The root sends more than the last rank expects.
    const bool last = comm.rank() == comm.size() - 1;
    comm.broadcast(own.in(), own.out(last ? 3 : 64), 0, on);
    const auto thrown = error_of([&] { on.synchronize(20'000); });
    if (last) {
        CHECK(says(thrown, status::mismatch, "MPI_Bcast failed: "));
        CHECK(error_of([&] { comm.barrier(on); }));
    }
}

/// The session ends the job where an exception leaves it: the peers wait in MPI.
void throw_in_one_rank(int& argc, char**& argv)
{
    const mpi_session session(&argc, &argv);
    mpi::communicator_ref world = make(-1);
    if (world.rank() == world.size() - 1) throw std::runtime_error("thrown by one rank");
    const host::stream on;
    world.barrier(on);
    on.synchronize();
}

void check_thread_level(int& argc, char**& argv)
{
    int provided = -1;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (provided < MPI_THREAD_MULTIPLE) { // an MPI may give more than it is asked for
        CHECK(says(error_of([] { mpi::communicator_ref(MPI_COMM_WORLD); }), status::unsupported,
            "MPI was initialized for calls from one thread at a time"));
    }
    MPI_Finalize();
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(100);
    const std::string mode = argc > 1 ? argv[1] : "";
    CHECK(says(error_of([] { mpi::communicator_ref(MPI_COMM_WORLD); }), status::invalid_argument,
        "MPI is not initialized: call MPI_Init_thread first"));
    if (mode == "funneled") {
        check_thread_level(argc, argv);
    } else if (mode == "throws") {
        try {
            throw_in_one_rank(argc, argv);
        } catch (const std::exception&) {
        }
    } else {
        const mpi_session session(&argc, &argv);
        check_construction();
        check_large_counts();
        check_failed_rank();
        check_failed_stream();
        check_late_rank();
        check_error_of_mpi();
    }
    if (mode != "throws") {
        CHECK(says(error_of([] { mpi::communicator_ref(MPI_COMM_WORLD); }), status::invalid_argument, "finalized"));
    }
}
