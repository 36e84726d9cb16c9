// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that are processes of their own, started as a launcher starts them: with variables set. This
// program has no threads, so that it may fork.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

#include "support/bootstrap_ranks.hpp"
#include "support/held_clock.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using bootstrap::job;

namespace {

struct id {
    std::uint8_t bytes[128];
};

/// A child that runs `body` and writes what that returns, or the error, to its parent.
class child {
public:
    explicit child(const std::function<std::string()>& body)
    {
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        std::fflush(nullptr);
        number_ = fork();
        REQUIRE(number_ >= 0);
        if (number_ != 0) {
            close(ends[1]);
            output_ = ends[0];
            return;
        }
        alarm(100); // a child that hangs must not outlive the test
        std::string text;
        try {
            text = body();
        } catch (const error& failure) {
            text = failure.what();
        } catch (...) {
            text = "not a collprobe::error";
        }
        const ssize_t gone = ::write(ends[1], text.data(), text.size());
        _exit(gone == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }

    /// Waits for its end.
    std::string said()
    {
        std::string text;
        char part[4096];
        for (ssize_t come; (come = ::read(output_, part, sizeof part)) > 0;) {
            text.append(part, static_cast<std::size_t>(come));
        }
        close(output_);
        int how = 0;
        waitpid(number_, &how, 0);
        return text;
    }
    void kill_it() const { kill(number_, SIGKILL); }

private:
    pid_t number_ = -1;
    int output_ = -1;
};

void set(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }

/// A directory of its own for each case; that of the exchange in it is made and removed by the ranks.
struct scratch {
    std::string root = (std::filesystem::temp_directory_path() / "collprobe-XXXXXX").string();

    scratch() { REQUIRE(mkdtemp(root.data()) != nullptr); }
    ~scratch()
    {
        std::error_code ignored;
        std::filesystem::remove_all(root, ignored);
    }
    std::string path() const { return root + "/exchange"; }
    /// Waits until there are so many files whose names end so.
    void await_files(const std::string& end, int count = 1) const
    {
        for (int found = -1; found != count; sleep_ms(1)) {
            found = 0;
            std::error_code ignored;
            for (const auto& each : std::filesystem::directory_iterator(path(), ignored))
                found += each.path().filename().string().ends_with(end) ? 1 : 0;
        }
    }
};

/// What torchrun sets; its run id is "none" in every run that has no other.
void as_torchrun(int rank, int size, const std::string& path)
{
    set("RANK", rank);
    set("WORLD_SIZE", size);
    set("LOCAL_RANK", rank);
    set("LOCAL_WORLD_SIZE", size);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
    setenv("COLLPROBE_PATH", path.c_str(), 1);
}

std::string exchange_as_told(std::int64_t timeout_ms = 60'000)
{
    const job of = job::from_environment();
    id value{};
    if (of.rank == 0) std::memset(value.bytes, 77, sizeof value.bytes);
    bootstrap::exchange(of, value, {.timeout_ms = timeout_ms});
    for (const std::uint8_t byte : value.bytes) {
        if (byte != 77) return "wrong value";
    }
    return "rank " + std::to_string(of.rank) + " has it";
}

} // namespace

TEST_CASE("processes with torchrun's variables")
{
    const scratch where;
    std::vector<child> ranks;
    ranks.reserve(8);
    for (int rank = 7; rank >= 0; --rank) {
        ranks.emplace_back([&] {
            as_torchrun(rank, 8, where.path());
            return exchange_as_told();
        });
    }
    for (int i = 0; i < 8; ++i)
        CHECK(ranks[std::size_t(i)].said() == "rank " + std::to_string(7 - i) + " has it");
    CHECK(std::filesystem::is_empty(where.root));
}

TEST_CASE("processes with mpirun's and with srun's variables")
{
    for (const bool slurm : {false, true}) {
        const scratch where;
        std::vector<child> ranks;
        ranks.reserve(4);
        for (int rank = 0; rank < 4; ++rank) {
            ranks.emplace_back([&] {
                set(slurm ? "SLURM_PROCID" : "OMPI_COMM_WORLD_RANK", rank);
                set(slurm ? "SLURM_STEP_NUM_TASKS" : "OMPI_COMM_WORLD_SIZE", 4);
                setenv("COLLPROBE_PATH", where.path().c_str(), 1);
                return exchange_as_told();
            });
        }
        for (int rank = 0; rank < 4; ++rank) {
            CHECK(ranks[std::size_t(rank)].said() == "rank " + std::to_string(rank) + " has it");
        }
        CHECK(std::filesystem::is_empty(where.root));
    }
}

TEST_CASE("two jobs in one directory do not mix")
{
    const scratch where;
    const auto start = [&](int rank, const char* key) {
        return child([&where, rank, key] {
            as_torchrun(rank, 2, where.path());
            setenv("COLLPROBE_JOB_KEY", key, 1);
            return exchange_as_told(key == std::string("one") ? 60'000 : 1'500);
        });
    };
    child first_0 = start(0, "one");
    child other_1 = start(1, "two");
    where.await_files("rank-0");
    child first_1 = start(1, "one");
    CHECK(first_0.said() == "rank 0 has it");
    CHECK(first_1.said() == "rank 1 has it");
    const std::string message = other_1.said();
    CAPTURE(message);
    CHECK(contains(message, "rank 0 did not answer"));
}

TEST_CASE("a rank that is killed while it waits is named to the others")
{
    const scratch where;
    const held_clock clock;
    std::vector<child> ranks;
    ranks.reserve(4);
    const auto start = [&](int rank) {
        ranks.emplace_back([&, rank] {
            clock.i_am(rank);
            as_torchrun(rank, 4, where.path());
            return exchange_as_told(2'500);
        });
    };
    for (int rank = 0; rank < 3; ++rank) start(rank);
    for (const char* each : {"rank-0", "rank-1", "rank-2"}) where.await_files(each);
    ranks[2].kill_it();
    ranks[2].said();
    clock.advance_ms(2'000, {0, 1}); // rank 0 will be the first that gives up
    start(3); // the last: now all seem to be there
    where.await_files("root");
    for (const char* each : {"rank-1", "rank-3"}) where.await_files(each, 0); // they have the value
    clock.advance_ms(500);
    for (const std::size_t rank : {1u, 3u, 0u}) {
        if (rank == 0) {
            clock.await_questions(0, 2); // now it waits a little for rank 2 to read the message
            clock.advance_ms(500);
        }
        const std::string message = ranks[rank].said();
        CAPTURE(message);
        CHECK(contains(message, "timeout"));
        CHECK(contains(message, "rank 2 did not take the value"));
    }
}

TEST_CASE("a run that was killed does not mislead the next one with the same key")
{
    const scratch where;
    std::vector<child> ranks;
    ranks.reserve(3);
    for (int rank = 0; rank < 3; ++rank) { // of 4
        ranks.emplace_back([&where, rank] {
            as_torchrun(rank, 4, where.path());
            return exchange_as_told();
        });
    }
    for (const char* each : {"rank-0", "rank-1", "rank-2"}) where.await_files(each);
    for (child& each : ranks) {
        each.kill_it();
        each.said();
    }
    CHECK(!std::filesystem::is_empty(where.path()));
    std::vector<child> again;
    again.reserve(3);
    for (int rank = 2; rank >= 0; --rank) {
        again.emplace_back([&where, rank] {
            if (rank == 0) sleep_ms(200); // the others find the old files first
            as_torchrun(rank, 3, where.path());
            return exchange_as_told();
        });
    }
    for (int i = 0; i < 3; ++i)
        CHECK(again[std::size_t(i)].said() == "rank " + std::to_string(2 - i) + " has it");
    CHECK(std::filesystem::is_empty(where.root));
}
