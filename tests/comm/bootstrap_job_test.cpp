// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

using namespace collprobe;
using bootstrap::job;

namespace {

constexpr const char* all_variables[]
    = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID",
        "SLURM_JOB_ID", "SLURM_STEP_ID", "COLLPROBE_PATH", "COLLPROBE_JOB_KEY"};

using variables = std::vector<std::pair<const char*, const char*>>;

/// An environment with these variables and none of the others.
job in(const variables& set)
{
    for (const char* name : all_variables) unsetenv(name);
    for (const auto& [name, value] : set) setenv(name, value, 1);
    struct cleaner {
        ~cleaner()
        {
            for (const char* name : all_variables) unsetenv(name);
        }
    } const clean;
    return job::from_environment();
}

/// The environment is refused with a message that has all these parts, at this line.
void check_refused(const variables& set, const std::vector<std::string>& parts)
{
    std::optional<error> refusal;
    try {
        in(set);
    } catch (const error& thrown) {
        refusal = thrown;
    }
    std::string all;
    for (const auto& [name, value] : set) all += std::string(name) + "=" + value + " ";
    CAPTURE(all);
    REQUIRE(refusal.has_value());
    const std::string message = refusal->what();
    CAPTURE(message);
    CHECK(refusal->code() == status::invalid_argument);
    CHECK(std::string(refusal->where().file).find("bootstrap_job_test.cpp") != std::string::npos);
    for (const std::string& part : parts) CHECK(message.find(part) != std::string::npos);
}

} // namespace

TEST_CASE("an empty environment is a job of one rank")
{
    const job alone = in({});
    CHECK(alone.rank == 0);
    CHECK(alone.size == 1);
    CHECK(alone.local_rank == 0);
    CHECK(alone.local_size == 1);
    CHECK(alone.path.empty());
    CHECK(alone.key.empty());
}

TEST_CASE("torchrun")
{
    const job got = in({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
        {"TORCHELASTIC_RUN_ID", "abc"}});
    CHECK(got.rank == 5);
    CHECK(got.size == 8);
    CHECK(got.local_rank == 1);
    CHECK(got.local_size == 4);
    CHECK(got.key == "TORCHELASTIC_RUN_ID=abc");
}

TEST_CASE("the library's own variables have precedence")
{
    const job got = in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"COLLPROBE_PATH", "/shared/x"},
        {"COLLPROBE_JOB_KEY", "mine"}, {"TORCHELASTIC_RUN_ID", "abc"}});
    CHECK(got.path == "/shared/x");
    CHECK(got.key == "mine");
    CHECK(got.local_rank == -1); // nobody said
    CHECK(got.local_size == -1);
}

TEST_CASE("mpirun of Open MPI and of MPICH")
{
    const job open_mpi = in({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "77"}});
    CHECK(open_mpi.rank == 3);
    CHECK(open_mpi.size == 4);
    CHECK(open_mpi.local_rank == 1);
    CHECK(open_mpi.local_size == 2);
    CHECK(open_mpi.key == "PMIX_NAMESPACE=77");
    const job mpich
        = in({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
    CHECK(mpich.rank == 3);
    CHECK(mpich.size == 4);
    CHECK(mpich.local_rank == 1);
    CHECK(mpich.local_size == 2);
}

TEST_CASE("srun, whose step may be smaller than the allocation")
{
    const job step = in({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "16"}, {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}});
    CHECK(step.rank == 1);
    CHECK(step.size == 4);
    CHECK(step.local_rank == 1);
    CHECK(step.local_size == -1);
    CHECK(step.key == "SLURM_JOB_ID=12, SLURM_STEP_ID=0");
    CHECK(in({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "16"}}).size == 16);
    // The shell of an allocation is no task of it.
    CHECK(in({{"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "12"}}).size == 1);
}

TEST_CASE("launchers inside launchers, the inner one counts")
{
    const job torch_in_slurm = in({{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"TORCHELASTIC_RUN_ID", "none"},
        {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}});
    CHECK(torch_in_slurm.rank == 9);
    CHECK(torch_in_slurm.size == 16);
    const job mpi_in_slurm = in({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"},
        {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
    CHECK(mpi_in_slurm.rank == 3);
    // Two that say the same are no contradiction.
    CHECK(in({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).rank == 1);
}

TEST_CASE("launchers that disagree are named with their values")
{
    // By hand, perhaps left over in the shell: every process would be rank 0.
    check_refused(
        {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
        {"RANK=0, WORLD_SIZE=1 (torchrun)", "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2 (Open MPI)",
            "disagree"});
    check_refused({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
        {"RANK=0, WORLD_SIZE=1", "SLURM_PROCID=1, SLURM_NTASKS=2 (Slurm)"});
    check_refused(
        {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
        {"OMPI_COMM_WORLD_RANK=1", "PMI_RANK=0"});
}

TEST_CASE("what is missing is named")
{
    check_refused({{"RANK", "0"}}, {"RANK=0 is set, but WORLD_SIZE is not"});
    check_refused({{"WORLD_SIZE", "2"}}, {"WORLD_SIZE=2 is set, but RANK is not"});
    check_refused({{"LOCAL_RANK", "1"}}, {"LOCAL_RANK=1 is set, but RANK is not"});
    check_refused({{"OMPI_COMM_WORLD_SIZE", "2"}}, {"OMPI_COMM_WORLD_RANK is not"});
    check_refused({{"PMI_RANK", "2"}}, {"PMI_SIZE is not"});
    check_refused({{"SLURM_PROCID", "2"}}, {"SLURM_STEP_NUM_TASKS is not"});
}

TEST_CASE("what makes no sense is named with what is expected")
{
    check_refused({{"RANK", "8"}, {"WORLD_SIZE", "8"}}, {"RANK=8, WORLD_SIZE=8", "a rank below the size"});
    for (const char* bad : {"two", "1x", "-1", " 1", "0x1", "1.0", "99999999999999999999"}) {
        check_refused({{"RANK", bad}, {"WORLD_SIZE", "8"}},
            {"RANK=" + std::string(bad) + ":", "expected a number from 0"});
    }
    check_refused({{"RANK", ""}, {"WORLD_SIZE", "8"}}, {"RANK is set but empty"});
    check_refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0", "expected a number from 1"});
    check_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}},
        {"LOCAL_RANK=1, LOCAL_WORLD_SIZE=1"});
    check_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}},
        {"LOCAL_WORLD_SIZE=4, WORLD_SIZE=2"});
    check_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}, {"LOCAL_RANK=2, WORLD_SIZE=2"});
    check_refused({{"COLLPROBE_PATH", ""}}, {"COLLPROBE_PATH is set but empty"});
    check_refused({{"COLLPROBE_JOB_KEY", ""}}, {"COLLPROBE_JOB_KEY is set but empty"});
}
