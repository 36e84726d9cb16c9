// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What goes wrong over MPI, and how each rank hears of it. Run with 2 ranks or more; or, with an argument, for
// ranks that are late only (`late`), and for what ends MPI or the job (`funneled`, `finalized`, `throws`).
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <collprobe/comm/mpi/communicator.hpp>

#include "mpi/mpi_checks.hpp"

using namespace collprobe;
using testing::says;
using testing::thrown_by;

namespace {

void sleep_ms(long ms)
{
    const timespec nap{ms / 1000, ms % 1000 * 1'000'000};
    nanosleep(&nap, nullptr);
}

/// Memory of a rank that no failed collective may write.
struct memory {
    std::vector<float> send = std::vector<float>(64, 1.0f);
    std::vector<float> receive = std::vector<float>(64, -1.0f);

    view<const float> in(std::uint64_t count = 64) const { return {send.data(), count}; }
    view<float> out(std::uint64_t count = 64) { return {receive.data(), count}; }
    bool untouched() const { return send == std::vector<float>(64, 1.0f) && receive == std::vector<float>(64, -1.0f); }
};

/// Calls are compared by default.
mpi::communicator make(std::int64_t timeout_ms)
{
    return mpi::communicator::duplicate(MPI_COMM_WORLD, {.timeout_ms = timeout_ms, .name = "world"});
}
mpi::communicator make_unverified(std::int64_t timeout_ms)
{
    return mpi::communicator::duplicate(
        MPI_COMM_WORLD, {.timeout_ms = timeout_ms, .name = "world", .verify_calls = false});
}

/// What `call(comm, stream, memory)` throws, at the call or from the stream. Afterwards the communicator
/// must refuse all calls, and nothing may have been written.
template <class Call>
std::optional<error> failure_of(mpi::communicator& comm, Call call)
{
    memory own;
    std::optional<error> result;
    {
        const host::stream stream;
        result = thrown_by([&] {
            call(comm, stream, own);
            stream.synchronize(20'000);
        });
        (void)thrown_by([&] { stream.synchronize(20'000); });
        CHECK(thrown_by([&] { comm.all_reduce(own.in(), own.out(), reduction::sum, stream); }));
        CHECK(thrown_by([&] { comm.check(); }));
    }
    CHECK(own.untouched());
    return result;
}

void check_construction()
{
    CHECK(says(thrown_by([] { mpi::communicator_ref(MPI_COMM_NULL); }), status::invalid_argument, "MPI_COMM_NULL"));
    CHECK(says(thrown_by([] { mpi::communicator_ref(MPI_COMM_WORLD, {.timeout_ms = 0}); }), status::invalid_argument,
        "timeout_ms is 0"));
    CHECK(says(thrown_by([] { mpi::communicator::duplicate(MPI_COMM_NULL); }), status::invalid_argument,
        "MPI_COMM_NULL"));
}

/// Nothing is enqueued, and the communicator works on.
void check_bad_arguments()
{
    mpi::communicator comm = make_unverified(-1);
    const int n = comm.size();
    const auto parts = static_cast<std::uint64_t>(n);
    memory own;
    const host::stream on;
    const auto refused = [&](const char* part, auto call) {
        const auto thrown = thrown_by(call);
        CHECK(says(thrown, status::invalid_argument, part));
        CHECK(thrown->rank() == comm.rank() && thrown->communicator() == "world");
        CHECK(thrown->culprits() == std::vector<int>{comm.rank()});
    };
    const view<const float> null_in(nullptr, 8);
    const view<float> null_out(nullptr, 8);
    refused("all_reduce: invalid argument: send is null with count 8",
        [&] { comm.all_reduce(null_in, own.out(8), reduction::sum, on); });
    refused("receive is null", [&] { comm.all_reduce(own.in(8), null_out, reduction::sum, on); });
    refused("not equal counts", [&] { comm.all_reduce(own.in(8), own.out(7), reduction::sum, on); });
    refused("is no reduction", [&] { comm.all_reduce(own.in(8), own.out(8), static_cast<reduction>(77), on); });
    refused("overlap", [&] {
        comm.all_reduce(view<const float>(own.receive.data() + 1, 8), own.out(8), reduction::sum, on);
    });
    refused("size() times as many to send",
        [&] { comm.reduce_scatter(own.in(parts + 1), own.out(1), reduction::sum, on); });
    refused("size() times as many to receive", [&] { comm.all_gather(own.in(1), own.out(parts + 1), on); });
    refused("a multiple of size()", [&] { comm.all_to_all(own.in(2 * parts + 1), own.out(2 * parts + 1), on); });
    refused("send and receive overlap",
        [&] { comm.all_to_all(view<const float>(own.receive.data(), parts), own.out(parts), on); });
    refused("is not a rank", [&] { comm.broadcast(own.in(), own.out(), n, on); });
    refused("is not aligned", [&] {
        const auto odd = reinterpret_cast<const float*>(reinterpret_cast<const char*>(own.send.data()) + 1);
        comm.all_reduce(view<const float>(odd, 8), own.out(8), reduction::sum, on);
    });
    // Places that no call reads: 2^31 elements in all, or more.
    const std::uint64_t part = (std::uint64_t{1} << 31) / parts + 1;
    const view<const float> far_part(reinterpret_cast<const float*>(std::uintptr_t{1} << 40), part);
    const view<const float> far_in(far_part.data(), part * parts);
    const view<float> far_out(reinterpret_cast<float*>(std::uintptr_t{1} << 44), part * parts);
    const view<float> far_part_out(far_out.data(), part);
    const std::string too_many = std::to_string(part * parts) + " elements: MPI takes at most 2147483647 in a call";
    const auto beyond = [&](const std::string& what, auto call) {
        CHECK(says(thrown_by(call), status::unsupported, what + " has " + too_many));
    };
    beyond("receive", [&] { comm.all_gather(far_part, far_out, on); });
    beyond("send", [&] { comm.all_to_all(far_in, far_out, on); });
    beyond("send", [&] { comm.reduce_scatter(far_in, far_part_out, reduction::sum, on); });
    refused("color -2 is below no_color", [&] { comm.split(-2, 0); });
    on.synchronize();
    CHECK(own.untouched());
    comm.all_reduce(own.in(), own.out(), reduction::sum, on);
    on.synchronize();
    CHECK(own.receive[0] == static_cast<float>(n));
    comm.check();
}

/// All ranks hear of one that goes wrong, by its rank.
void check_verified_calls()
{
    mpi::communicator world = make(10'000);
    const int n = world.size();
    const int me = world.rank();
    const int last = n - 1;
    std::vector<int> all;
    for (int rank = 0; rank < n; ++rank) all.push_back(rank);
    const std::vector<int> odd_one = n == 2 ? all : std::vector<int>{last};
    const std::string last_name = "rank " + std::to_string(last);

    {
        auto comm = make(10'000);
        const auto thrown = failure_of(comm, [&](auto& on, auto& stream, memory& own) {
            on.all_reduce(me == last ? view<const float>(nullptr, 64) : own.in(), own.out(), reduction::sum, stream);
        });
        CHECK(me == last ? says(thrown, status::invalid_argument, "send is null with count 64")
                         : says(thrown, status::peer_failure, last_name + " gave a bad argument"));
        CHECK(thrown->culprits() == std::vector<int>{last});
    }
    const auto mismatch = [&](const std::string& part, auto call) {
        auto comm = make(10'000);
        const auto thrown = failure_of(comm, call);
        CHECK(says(thrown, status::mismatch, part));
        CHECK(says(thrown, status::mismatch, "the ranks disagree in call 0 of the communicator"));
        CHECK(thrown->culprits() == odd_one);
        CHECK(thrown->rank() == me && thrown->communicator() == "world");
    };
    mismatch("count 63", [&](auto& on, auto& stream, memory& own) {
        const std::uint64_t count = me == last ? 63 : 64;
        on.all_reduce(own.in(count), own.out(count), reduction::sum, stream);
    });
    mismatch("max", [&](auto& on, auto& stream, memory& own) {
        on.all_reduce(own.in(), own.out(), me == last ? reduction::max : reduction::sum, stream);
    });
    mismatch("root 1", [&](auto& on, auto& stream, memory& own) {
        on.broadcast(own.in(), own.out(), me == last ? 1 : 0, stream);
    });
    mismatch("broadcast of float", [&](auto& on, auto& stream, memory& own) {
        if (me == last) on.broadcast(own.in(), own.out(), 0, stream);
        else on.all_reduce(own.in(), own.out(), reduction::sum, stream);
    });
    mismatch("count 64, sum; " + last_name + ": double", [&](auto& on, auto& stream, memory& own) {
        static std::vector<double> other(64);
        if (me == last) on.all_reduce(view<const double>(other), view(other), reduction::sum, stream);
        else on.all_reduce(own.in(), own.out(), reduction::sum, stream);
    });
    mismatch("split", [&](auto& on, auto& stream, memory&) {
        if (me == last) on.barrier(stream);
        else (void)on.split(0, 0);
    });
    {
        // The rank's stream has failed before: the others learn why it does not come.
        auto comm = make(10'000);
        const auto thrown = failure_of(comm, [&](auto& on, auto& stream, memory& own) {
            if (me == last) stream.enqueue([] { throw error(status::device_failure, "spoilt", {}); });
            on.all_reduce(own.in(), own.out(), reduction::sum, stream);
        });
        CHECK(me == last
                ? says(thrown, status::device_failure, "spoilt")
                : says(thrown, status::peer_failure, last_name + " could not take part in all_reduce"));
    }
    {
        // And one whose color no split can have.
        auto comm = make(10'000);
        const auto thrown = thrown_by([&] { (void)comm.split(me == last ? -7 : 0, 0); });
        CHECK(me == last ? says(thrown, status::invalid_argument, "color -7")
                         : says(thrown, status::peer_failure, last_name + " gave a bad argument"));
        CHECK(thrown_by([&] { (void)comm.split(0, 0); }));
    }
    // Calls that agree go on, on the first communicator.
    memory own;
    const host::stream on;
    world.all_reduce(own.in(), own.out(), reduction::sum, on);
    on.synchronize();
    CHECK(own.receive[63] == static_cast<float>(n));
}

void check_late_rank()
{
    mpi::communicator world = make_unverified(10'000);
    const int last = world.size() - 1;
    // Of four ranks two are late, and not by the same time: still all name both.
    const int late_ones = world.size() > 3 ? 2 : 1;
    const bool late = world.rank() > last - late_ones;
    std::vector<int> late_ranks;
    for (int rank = last - late_ones + 1; rank <= last; ++rank) late_ranks.push_back(rank);
    const std::string name = late_ones == 1 ? "rank " + std::to_string(last)
                                            : "ranks " + std::to_string(last - 1) + "-" + std::to_string(last);
    const auto together = [&] {
        const host::stream on;
        world.barrier(on);
        on.synchronize();
    };
    for (const bool in_split : {false, true}) {
        auto comm = make(300);
        together();
        if (late) sleep_ms(world.rank() == last ? 1500 : 1200);
        const auto thrown = failure_of(comm, [&](auto& on, auto& stream, memory& own) {
            if (in_split) (void)on.split(0, 0);
            else on.all_reduce(own.in(), own.out(), reduction::sum, stream);
        });
        // Also the late rank hears it, and does not wait for those who have gone.
        CHECK(says(thrown, status::timeout, name + " did not arrive at " + (in_split ? "split" : "all_reduce")
                + " (call 0 of the communicator) within 300 ms"));
        CHECK(thrown->culprits() == late_ranks);
    }
    {
        // Late, but not too late.
        auto comm = make(30'000);
        together();
        if (late) sleep_ms(200);
        memory own;
        const host::stream on;
        comm.all_reduce(own.in(), own.out(), reduction::sum, on);
        comm.synchronize(on);
        CHECK(own.receive[0] == static_cast<float>(comm.size()));
    }
    {
        // Without verified calls the host can give up, and the work comes when the peer does.
        auto comm = make_unverified(200);
        together();
        if (late) sleep_ms(1500);
        memory own;
        const host::stream on;
        comm.all_reduce(own.in(), own.out(), reduction::sum, on);
        if (!late) {
            const auto thrown = thrown_by([&] { comm.synchronize(on); });
            CHECK(says(thrown, status::timeout, "synchronize: timeout: work on the stream did not finish within 200 ms"));
            CHECK(thrown->communicator() == "world" && thrown->rank() == comm.rank());
        }
        on.synchronize(20'000);
        CHECK(own.receive[0] == static_cast<float>(comm.size()));
    }
}

/// A rank that makes the calls in another order, and one that makes fewer of them, by the communicator's own wait.
void check_other_order_and_missing_call()
{
    {
        auto comm = make(20'000);
        const int last = comm.size() - 1;
        const bool is_last = comm.rank() == last;
        memory own;
        const host::stream on;
        comm.barrier(on);
        const auto thrown = thrown_by([&] {
            // The root of a small broadcast does not wait in MPI, and would go on with the wrong call.
            if (is_last) comm.all_reduce(own.in(), own.out(), reduction::sum, on);
            comm.broadcast(own.in(), own.out(), 0, on);
            if (!is_last) comm.all_reduce(own.in(), own.out(), reduction::sum, on);
            comm.synchronize(on);
        });
        CHECK(says(thrown, status::mismatch, "the ranks disagree in call 1 of the communicator: "));
        CHECK(says(thrown, status::mismatch, "broadcast of float, count 64, root 0"));
        CHECK(says(thrown, status::mismatch, "rank " + std::to_string(last) + ": all_reduce of float, count 64, sum"));
        CHECK(own.untouched());
    }
    {
        auto comm = make(400);
        const int last = comm.size() - 1;
        memory own;
        const host::stream on;
        comm.barrier(on);
        const auto thrown = thrown_by([&] {
            if (comm.rank() != last) comm.all_reduce(own.in(), own.out(), reduction::sum, on);
            comm.synchronize(on);
        });
        if (comm.rank() == last) CHECK(!thrown);
        else {
            CHECK(says(thrown, status::timeout,
                "rank " + std::to_string(last) + " did not arrive at all_reduce (call 1 of the communicator) within 400 ms"));
            CHECK(thrown->culprits() == std::vector<int>{last});
        }
        CHECK(own.untouched());
    }
    {
        // A borrowed one compares, too.
        mpi::communicator_ref borrowed(MPI_COMM_WORLD, {.timeout_ms = 20'000});
        memory own;
        const host::stream on;
        const std::uint64_t count = borrowed.rank() == 0 ? 63 : 64;
        const auto thrown = thrown_by([&] {
            borrowed.all_gather(own.in(1), view<float>(own.receive.data(), static_cast<std::uint64_t>(borrowed.size())), on);
            borrowed.all_reduce(own.in(count), own.out(count), reduction::sum, on);
            borrowed.synchronize(on);
        });
        CHECK(says(thrown, status::mismatch, "the ranks disagree in call 1 of the communicator: "));
    }
}

/// The last rank ends its MPI while the others still call.
void check_finalized_rank(int& argc, char**& argv)
{
    const mpi::environment environment(&argc, &argv);
    auto comm = make(500);
    const int last = comm.size() - 1;
    if (comm.rank() == last) return;
    const auto thrown = failure_of(comm, [&](auto& on, auto& stream, memory& own) {
        on.all_reduce(own.in(), own.out(), reduction::sum, stream);
    });
    CHECK(says(thrown, status::timeout, "rank " + std::to_string(last) + " did not arrive at all_reduce"));
    std::printf("the others go on\n");
}

/// What MPI itself finds reaches the stream as an error, not as the end of the job.
void check_error_of_mpi()
{
    auto comm = make_unverified(-1);
    memory own;
    const host::stream on;
    // The root sends more than the last rank expects.
    const bool last = comm.rank() == comm.size() - 1;
    comm.broadcast(own.in(), own.out(last ? 3 : 64), 0, on);
    const auto thrown = thrown_by([&] { on.synchronize(20'000); });
    if (last) {
        CHECK(says(thrown, status::mismatch, "MPI_Bcast failed: "));
        CHECK(thrown_by([&] { comm.barrier(on); }));
    }
}

/// The environment ends the job where an exception leaves it: the peers wait in MPI.
void throw_in_one_rank(int& argc, char**& argv)
{
    const mpi::environment environment(&argc, &argv);
    mpi::communicator world = make_unverified(-1);
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
        CHECK(says(thrown_by([] { mpi::communicator_ref(MPI_COMM_WORLD); }), status::unsupported,
            "MPI was initialized for calls from one thread at a time"));
        CHECK(says(thrown_by([] { mpi::environment(); }), status::unsupported, "ask MPI_Init_thread for MPI_THREAD_MULTIPLE"));
    }
    MPI_Finalize();
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(100);
    const std::string mode = argc > 1 ? argv[1] : "";
    CHECK(says(thrown_by([] { mpi::communicator_ref(MPI_COMM_WORLD); }), status::invalid_argument,
        "MPI is not initialized"));
    if (mode == "funneled") {
        check_thread_level(argc, argv);
    } else if (mode == "throws") {
        try {
            throw_in_one_rank(argc, argv);
        } catch (const std::exception&) {
        }
    } else if (mode == "finalized") {
        check_finalized_rank(argc, argv);
    } else if (mode == "late") {
        const mpi::environment environment(&argc, &argv);
        check_late_rank();
    } else {
        const mpi::environment environment(&argc, &argv);
        const mpi::environment another; // does nothing: there is one
        check_construction();
        check_bad_arguments();
        check_verified_calls();
        check_late_rank();
        check_other_order_and_missing_call();
        check_error_of_mpi();
    }
    if (mode != "throws") {
        CHECK(says(thrown_by([] { mpi::communicator_ref(MPI_COMM_WORLD); }), status::invalid_argument, "finalized"));
        CHECK(says(thrown_by([] { mpi::environment(); }), status::invalid_argument, "finalized"));
    }
}
