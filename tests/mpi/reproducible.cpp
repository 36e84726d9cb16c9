// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// An adaptor that makes several calls of one, over MPI: its pieces may be alike where the ranks' calls are not, which
// `agreed` around it finds.
// Run with 2 ranks or more.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/agreed.hpp>
#include <collprobe/comm/mpi/communicator.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

#include "mpi/mpi_checks.hpp"

using namespace collprobe;
using testing::says;
using testing::thrown_by;

namespace {

using sums = reproducible<mpi::communicator_ref, contract<reproducibility::correctly_rounded>>;

// What the communicator says of itself is not hidden by what wraps it.
template <class C>
concept says_all = requires(C& comm, host::stream_ref stream) {
    comm.check();
    comm.synchronize(stream);
    comm.name();
    comm.timeout_ms();
    comm.fail("why");
};
static_assert(says_all<mpi::communicator_ref> && says_all<sums> && says_all<probed<sums>>);

/// A communicator of its own, and sums over it by so little memory that large buffers go in pieces.
struct setting {
    mpi::communicator_ref world;
    sums comm;
    host::stream stream;

    explicit setting(reduction_algorithm algorithm = reduction_algorithm::exchange)
        : world(testing::made_of(), {.timeout_ms = 30'000, .name = "world"}),
          comm(world, {}, {.scratch_bytes = 1 << 12, .algorithm = algorithm})
    {
    }
    bool is_last() const { return world.rank() == world.size() - 1; }

    /// What `call()` throws, or leaves to the stream.
    template <class Call>
    std::optional<error> failure_of(Call call)
    {
        auto thrown = thrown_by([&] {
            call();
            stream.synchronize(60'000);
        });
        (void)thrown_by([&] { stream.synchronize(60'000); });
        return thrown;
    }
    /// That equal counts have the right sum.
    void check_sum(std::size_t count)
    {
        std::vector<float> values(count);
        for (std::size_t at = 0; at < count; ++at) values[at] = static_cast<float>(at % 100 + 1);
        comm.all_reduce(values, view(values), reduction::sum, stream);
        stream.synchronize(60'000);
        for (std::size_t at = 0; at < count; ++at) {
            CHECK(values[at] == static_cast<float>(static_cast<std::size_t>(world.size()) * (at % 100 + 1)));
        }
    }
};

void check_unequal_counts(reduction_algorithm algorithm)
{
    setting own(algorithm);
    const int n = own.world.size();
    own.check_sum(63);
    own.check_sum(5000);
    std::vector<int> culprits{n - 1};
    if (n == 2) culprits = {0, 1}; // nobody can say which is right
    // An exchange fills both up to the same pieces.
    const std::size_t count = own.is_last() ? 61 : 63;
    const std::vector<float> values(count, 1.0f);
    std::vector<float> result(count, -1.0f);
    agreed compared(std::move(own.comm));
    const auto thrown = own.failure_of([&] { compared.all_reduce(values, view(result), reduction::sum, own.stream); });
    CHECK(says(thrown, status::mismatch, "rank " + std::to_string(n - 1) + ": "));
    CHECK(says(thrown, status::mismatch, "61"));
    CHECK(thrown->culprits() == culprits);
    CHECK(result == std::vector<float>(count, -1.0f));
    CHECK(thrown_by([&] { compared.barrier(own.stream); }));
}

/// The refusal is the rank's alone: the peers wait until it makes the call right.
template <class Call>
void check_refused(const char* message, Call call)
{
    setting own;
    std::vector<float> result(64, -1.0f);
    const std::vector<float> values(64, 1.0f);
    own.comm.all_reduce(values, view(result), reduction::sum, own.stream);
    if (own.is_last()) CHECK(says(thrown_by([&] { call(own, result); }), status::invalid_argument, message));
    own.check_sum(64);
    CHECK(result == std::vector<float>(64, static_cast<float>(own.world.size())));
    own.world.check();
}

void check_bad_arguments()
{
    check_refused("leaves must be at least 1", [](setting& own, std::vector<float>& result) {
        own.comm.all_reduce(result, view(result), reduction::sum, own.stream, {.leaves = 0});
    });
    check_refused("send has 64 elements", [](setting& own, std::vector<float>& result) {
        own.comm.all_reduce(result, view(result).part(0, 63), reduction::sum, own.stream);
    });
    check_refused("send is null with count 64", [](setting& own, std::vector<float>& result) {
        own.comm.all_reduce(view<const float>(nullptr, 64), view(result), reduction::sum, own.stream);
    });
}

} // namespace

int main(int argc, char** argv)
{
    testing::end_after(100);
    const mpi_session session(&argc, &argv);
    for (const std::size_t count : {std::size_t{63}, std::size_t{5000}}) setting().check_sum(count);
    check_unequal_counts(reduction_algorithm::exchange);
    check_unequal_counts(reduction_algorithm::one_shot);
    check_bad_arguments();
}
