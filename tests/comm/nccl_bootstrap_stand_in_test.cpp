// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// How ranks get NCCL's id. NCCL_COMM_ID is set and unset only while no other thread runs.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <collprobe/comm/nccl/bootstrap.hpp>

#include "support/bootstrap_ranks.hpp"
#include "tests/support/stand_in/stand_in.hpp"

using namespace collprobe;
using namespace collprobe::testing;

namespace {

bool same(const ncclUniqueId& a, const ncclUniqueId& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

struct comm_id_variable {
    explicit comm_id_variable(const char* address) { setenv("NCCL_COMM_ID", address, 1); }
    ~comm_id_variable() { unsetenv("NCCL_COMM_ID"); }
};

/// The ids that the ranks of a job get; then they make a communicator of it.
std::vector<ncclUniqueId> ids_of(int size, const std::string& path)
{
    std::vector<ncclUniqueId> ids(static_cast<std::size_t>(size));
    const auto outcomes = run_as_threads(ranks_below(size), [&](int rank) {
        ncclUniqueId& id = ids[static_cast<std::size_t>(rank)];
        id = nccl::unique_id(job_of(rank, size, path), {.timeout_ms = 60'000});
        auto world = nccl::communicator::create(id, rank, size, 0);
        if (world.rank() != rank || world.size() != size) throw std::runtime_error("not the communicator of this job");
    });
    for (const ended& each : outcomes) CHECK(each.message() == "");
    return ids;
}

} // namespace

TEST_CASE("rank 0's id reaches all ranks through files")
{
    std::string root = (std::filesystem::temp_directory_path() / "collprobe-XXXXXX").string();
    REQUIRE(mkdtemp(root.data()) != nullptr);
    const std::vector<ncclUniqueId> first = ids_of(3, root + "/exchange");
    const std::vector<ncclUniqueId> second = ids_of(3, root + "/exchange");
    CHECK(same(first[1], first[0]));
    CHECK(same(first[2], first[0]));
    CHECK(!same(second[0], first[0])); // a new one for each communicator
    CHECK(std::filesystem::is_empty(root));
    std::filesystem::remove(root);
}

TEST_CASE("with NCCL_COMM_ID every rank makes the id itself, and no directory is needed")
{
    const comm_id_variable set("node0:29501");
    const std::vector<ncclUniqueId> ids = ids_of(3, "");
    CHECK(same(ids[1], ids[0]));
    CHECK(same(ids[2], ids[0]));
}

TEST_CASE("an NCCL_COMM_ID that is no address is an error of every rank")
{
    const comm_id_variable set("node0");
    const auto outcomes = run_as_threads({0, 1}, [](int rank) { (void)nccl::unique_id(job_of(rank, 2, "")); });
    for (const ended& each : outcomes) {
        CAPTURE(each.message());
        CHECK(each.failure().value().code() == status::invalid_argument);
        CHECK(contains(each.message(), "ncclGetUniqueId failed"));
    }
}

TEST_CASE("one rank needs neither")
{
    const ncclUniqueId one = nccl::unique_id(bootstrap::job{});
    const ncclUniqueId other = nccl::unique_id(bootstrap::job{});
    CHECK(!same(one, other));
}
