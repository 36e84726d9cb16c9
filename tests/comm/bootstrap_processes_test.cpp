// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that are processes of their own, started as a launcher starts them: with variables set. This
// program has no threads, so that it may fork.
#include <doctest/doctest.h>

#include <sys/resource.h>
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

using namespace collprobe;
using namespace collprobe::testing;
using bootstrap::job;
namespace wire = collprobe::bootstrap::detail;

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
            output_ = wire::descriptor(ends[0]);
            return;
        }
        alarm(20); // a child that hangs must not outlive the test
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
    child(child&&) = default;

    /// Waits for its end.
    std::string said()
    {
        std::string text;
        char part[4096];
        for (ssize_t come; (come = ::read(output_.get(), part, sizeof part)) > 0;) {
            text.append(part, static_cast<std::size_t>(come));
        }
        int how = 0;
        waitpid(number_, &how, 0);
        return text;
    }
    void kill_it() const { kill(number_, SIGKILL); }

private:
    pid_t number_ = -1;
    wire::descriptor output_;
};

void set(const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); }

/// What torchrun sets. Its own store listens on MASTER_PORT.
void as_torchrun(int rank, int size, int port)
{
    set("RANK", rank);
    set("WORLD_SIZE", size);
    set("LOCAL_RANK", rank);
    set("LOCAL_WORLD_SIZE", size);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set("MASTER_PORT", port - 1);
    setenv("TORCHELASTIC_RUN_ID", "none", 1);
}

std::string exchange_as_told(std::int64_t timeout_ms = 10'000)
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
    const int port = free_port();
    std::vector<child> ranks;
    for (int rank = 7; rank >= 0; --rank) {
        ranks.emplace_back([&] {
            as_torchrun(rank, 8, port);
            return exchange_as_told();
        });
    }
    for (int i = 0; i < 8; ++i)
        CHECK(ranks[std::size_t(i)].said() == "rank " + std::to_string(7 - i) + " has it");
}

TEST_CASE("processes with mpirun's variables and a directory")
{
    std::string path = (std::filesystem::temp_directory_path() / "collprobe-XXXXXX").string();
    REQUIRE(mkdtemp(path.data()) != nullptr);
    std::vector<child> ranks;
    for (int rank = 0; rank < 4; ++rank) {
        ranks.emplace_back([&] {
            set("OMPI_COMM_WORLD_RANK", rank);
            set("OMPI_COMM_WORLD_SIZE", 4);
            setenv("COLLPROBE_PATH", (path + "/exchange").c_str(), 1);
            return exchange_as_told();
        });
    }
    for (int rank = 0; rank < 4; ++rank) {
        CHECK(ranks[std::size_t(rank)].said() == "rank " + std::to_string(rank) + " has it");
    }
    CHECK(std::filesystem::is_empty(path));
    std::filesystem::remove(path);
}

TEST_CASE("a job that was started twice does not mix, and says so")
{
    const int port = free_port();
    const auto start = [&](int rank, const char* token) {
        return child([=] {
            as_torchrun(rank, 2, port);
            setenv("COLLPROBE_JOB_TOKEN", token, 1);
            return exchange_as_told(1'500);
        });
    };
    child first_0 = start(0, "one");
    child other_1 = start(1, "two");
    sleep_ms(300);
    child first_1 = start(1, "one");
    CHECK(first_0.said() == "rank 0 has it");
    CHECK(first_1.said() == "rank 1 has it");
    const std::string message = other_1.said();
    CAPTURE(message);
    CHECK(contains(message, "did not accept this rank's proof"));
}

TEST_CASE("a rank that is killed while it waits is named to the others")
{
    const int port = free_port();
    std::vector<child> ranks;
    for (int rank = 0; rank < 3; ++rank) { // of 4
        ranks.emplace_back([&] {
            as_torchrun(rank, 4, port);
            return exchange_as_told();
        });
    }
    sleep_ms(700);
    ranks[2].kill_it();
    for (const std::size_t rank : {0u, 1u}) {
        const std::string message = ranks[rank].said();
        CAPTURE(message);
        CHECK(contains(message, "peer failure"));
        CHECK(contains(message, "rank 2 left before all ranks had joined (rank 3 had not)"));
    }
    ranks[2].said();
}

TEST_CASE("too few open files are named with the limit")
{
    const int port = free_port();
    constexpr int size = 60;
    child root([&] {
        // UndefinedBehaviorSanitizer opens files when it meets an object's type for the first time.
        std::uint8_t value = 1;
        try {
            bootstrap::exchange_tcp(job_of(0, size, 0), value);
        } catch (const error&) {
        }
        const rlimit small{30, 30}; // the hard limit too: the exchange raises the other
        if (setrlimit(RLIMIT_NOFILE, &small) != 0) return std::string("no limit");
        bootstrap::exchange_tcp(job_of(0, size, port), value, {.timeout_ms = 10'000});
        return std::string("no error");
    });
    // Every peer from here: each proves itself, confirms and stays.
    const wire::prover prove(job_of(1, size, port));
    const wire::address where = wire::resolve("127.0.0.1", port).addresses.at(0);
    std::vector<wire::descriptor> peers;
    for (int rank = 1; rank < size; ++rank) {
        wire::descriptor socket;
        const auto until = wire::deadline::in_ms(5'000);
        do {
            socket = wire::descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (connect(socket.get(), where.get(), where.length) == 0) break;
            sleep_ms(5);
        } while (!until.passed() && rank == 1);
        wire::bytes greeting(wire::greeting_bytes);
        if (wire::receive_all(socket.get(), greeting.data(), greeting.size(), until) != wire::transfer::done)
            break;
        wire::hash root_nonce;
        std::memcpy(root_nonce.data(), greeting.data() + wire::magic_bytes, root_nonce.size());
        wire::hello says;
        says.rank = static_cast<std::uint64_t>(rank);
        says.size = size;
        says.value_bytes = 1;
        says.patience_ms = wire::hello::forever;
        wire::bytes message = wire::write_hello(says, root_nonce, prove);
        wire::put(message, prove("consent", root_nonce, says.nonce));
        wire::send_all(socket.get(), message.data(), message.size(), until);
        peers.push_back(std::move(socket));
    }
    const std::string message = root.said();
    CAPTURE(message);
    CHECK(contains(
        message, "unsupported: rank 0 cannot hold a connection to each of 59 peers: too many open files"));
    CHECK(contains(message, "may open 30, ulimit -n"));
}

TEST_CASE("as many open files as there are connections are enough")
{
    const int port = free_port();
    constexpr int size = 12;
    std::vector<child> ranks;
    for (int rank = 0; rank < size; ++rank) {
        ranks.emplace_back([&] {
            if (rank == 0) {
                const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                    std::filesystem::directory_iterator{});
                // One of those was the list's own; one is for the listening socket.
                const auto enough = static_cast<rlim_t>(open - 1 + 1 + size - 1);
                const rlimit exact{enough, enough};
                if (setrlimit(RLIMIT_NOFILE, &exact) != 0) return std::string("no limit");
            }
            std::uint8_t value = rank == 0 ? 77 : 0;
            bootstrap::exchange_tcp(job_of(rank, size, port), value, {.timeout_ms = 10'000});
            return std::to_string(value);
        });
    }
    for (child& each : ranks) CHECK(each.said() == "77");
}

TEST_CASE("a low limit of open files is raised as far as it may, for the time of the exchange")
{
    child both([] {
        rlimit all{};
        getrlimit(RLIMIT_NOFILE, &all);
        if (all.rlim_max < 400) return std::string("raised and restored"); // nothing to raise
        const rlimit small{12, all.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &small) != 0) return std::string("no limit");
        rlimit raised{};
        {
            const wire::open_file_limit during(300);
            getrlimit(RLIMIT_NOFILE, &raised);
        }
        rlimit after{};
        getrlimit(RLIMIT_NOFILE, &after);
        return raised.rlim_cur == 300 && after.rlim_cur == 12 ? std::string("raised and restored")
                                                              : std::string("raised to ")
                + std::to_string(raised.rlim_cur) + ", then " + std::to_string(after.rlim_cur);
    });
    CHECK(both.said() == "raised and restored");
}
