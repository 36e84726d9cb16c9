// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The exchange by files: ranks are threads that share nothing but a directory.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

#include "support/bootstrap_ranks.hpp"
#include "support/checks.hpp"
#include "support/held_clock.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using bootstrap::job;
namespace files = std::filesystem;

namespace {

using id = std::array<std::uint8_t, 128>;

id made_by(int rank, int seed = 0)
{
    id result{};
    for (std::size_t i = 0; i < result.size(); ++i) {
        result[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(100 * rank + seed));
    }
    return result;
}

/// A directory of its own for each case, with room for the exchange's inside.
struct scratch {
    files::path root;
    std::string path; ///< for the exchange; not there yet

    scratch()
    {
        std::string name = (files::temp_directory_path() / "collprobe-XXXXXX").string();
        REQUIRE(mkdtemp(name.data()) != nullptr);
        root = name;
        path = name + "/exchange";
    }
    ~scratch()
    {
        std::error_code ignored;
        files::remove_all(root, ignored);
    }
    bool left_nothing() const { return files::is_empty(root); }
};

/// The ranks listed exchange by files, and get rank 0's value if nobody fails.
std::vector<ended> exchange(
    const scratch& where, const std::vector<int>& ranks, int size, std::int64_t timeout_ms = 60'000,
    const std::function<void(int)>& before = [](int) {})
{
    std::atomic<int> wrong{0};
    auto outcomes = run_as_threads(ranks, [&](int rank) {
        before(rank);
        id value = made_by(rank);
        bootstrap::exchange(job_of(rank, size, where.path), value, {.timeout_ms = timeout_ms});
        if (value != made_by(0)) ++wrong;
    });
    CHECK(wrong == 0);
    return outcomes;
}

void check_all_well(const std::vector<ended>& outcomes)
{
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        CAPTURE(i);
        CHECK(outcomes[i].message() == "");
    }
}

void write(const std::string& path, const std::string& content)
{
    std::ofstream(path, std::ios::binary) << content;
}
/// Waits until there are, or are no longer, files with such an end.
std::string await_file(const scratch& where, const std::string& end, bool is_there = true)
{
    for (;; sleep_ms(1)) {
        std::string found;
        std::error_code ignored;
        for (const auto& entry : files::directory_iterator(where.path, ignored)) {
            const std::string name = entry.path().filename().string();
            if (name.ends_with(end)) found = name;
        }
        if (found.empty() != is_there) return found;
    }
}
struct at_exit {
    explicit at_exit(std::function<void()> what) : run(std::move(what)) {}
    at_exit(const at_exit&) = delete;
    ~at_exit() { run(); }
    std::function<void()> run;
};
/// How the names of the job's files begin: found by a rank that finds nobody.
std::string prefix_of_files(const scratch& where)
{
    const held_clock clock;
    std::string name;
    run_as_threads({1, -1}, [&](int rank) {
        id value{};
        if (rank == 1) return bootstrap::exchange(job_of(1, 2, where.path), value, {.timeout_ms = 200});
        name = await_file(where, "rank-1");
        clock.advance_ms(200);
    });
    files::remove(where.path);
    return name.substr(0, name.find("rank-1"));
}

} // namespace

TEST_CASE("every rank gets rank 0's value, and nothing is left behind")
{
    for (const int size : {2, 3, 8}) {
        CAPTURE(size);
        const scratch where;
        check_all_well(exchange(where, ranks_below(size), size));
        CHECK(where.left_nothing());
    }
}

TEST_CASE("64 ranks")
{
    const scratch where;
    check_all_well(exchange(where, ranks_below(64), 64));
    CHECK(where.left_nothing());
}

TEST_CASE("one rank needs no directory")
{
    id value = made_by(0);
    bootstrap::exchange(job_of(0, 1, "/nowhere/at/all"), value);
    bootstrap::exchange(job{}, value);
    CHECK(value == made_by(0));
}

TEST_CASE("numbers, views and arrays of any size")
{
    const scratch where;
    std::atomic<int> wrong{0};
    const auto outcomes = run_as_threads(ranks_below(3), [&](int rank) {
        const job of = job_of(rank, 3, where.path);
        std::uint16_t number = rank == 0 ? 12345 : 0;
        bootstrap::exchange(of, number, {.timeout_ms = 60'000});
        std::vector<double> many(8192, rank == 0 ? 0.5 : 0); // 64 KiB
        bootstrap::exchange(of, view(many), {.timeout_ms = 60'000});
        bootstrap::exchange(of, view<double>(nullptr, 0), {.timeout_ms = 60'000});
        double pair[2] = {rank == 0 ? 1.0 : 0, rank == 0 ? 2.0 : 0};
        bootstrap::exchange(of, pair, {.timeout_ms = 60'000});
        if (number != 12345 || many != std::vector<double>(8192, 0.5) || pair[0] != 1 || pair[1] != 2) ++wrong;
    });
    check_all_well(outcomes);
    CHECK(wrong == 0);
}

TEST_CASE("arguments that no exchange can have")
{
    id value{};
    const auto refused = [](const job& of, auto&& with, const std::string& part) {
        const auto outcomes = run_as_threads({0}, [&](int) { bootstrap::exchange(of, with); });
        check_error(outcomes[0], status::invalid_argument, {}, {part});
    };
    refused(job_of(2, 2, "/tmp"), value, "a job of rank 2 of 2: expected 0 <= rank < size");
    refused(job_of(-1, 2, "/tmp"), value, "a job of rank -1 of 2");
    refused(job_of(0, 0, "/tmp"), value, "a job of rank 0 of 0");
    refused(job_of(0, 2, "/tmp"), view<double>(nullptr, 1), "value is null");
    std::vector<double> large(8193);
    refused(job_of(0, 2, "/tmp"), view(large), "a value of 65544 bytes: expected at most 65536");
    refused(job_of(0, 2, ""), value, "COLLPROBE_PATH");
}

TEST_CASE("exchanges follow each other in the same directory")
{
    const scratch where;
    std::atomic<int> wrong{0};
    const auto outcomes = run_as_threads(ranks_below(4), [&](int rank) {
        for (int i = 0; i < 10; ++i) {
            id value = made_by(rank, i);
            bootstrap::exchange(job_of(rank, 4, where.path), value, {.timeout_ms = 60'000});
            if (value != made_by(0, i)) ++wrong;
        }
    });
    check_all_well(outcomes);
    CHECK(wrong == 0);
    CHECK(where.left_nothing());
}

TEST_CASE("any rank may come last")
{
    for (const int last : {0, 1}) {
        const scratch where;
        check_all_well(exchange(where, ranks_below(3), 3, 60'000, [last](int rank) {
            if (rank == last) sleep_ms(300);
        }));
    }
}

TEST_CASE("a directory that was there stays, with what else is in it")
{
    const scratch where;
    files::create_directory(where.path);
    write(where.path + "/notes.txt", "mine");
    write(where.path + "/rank-1", "mine");
    check_all_well(exchange(where, ranks_below(3), 3));
    CHECK(files::exists(where.path + "/notes.txt"));
    CHECK(files::exists(where.path + "/rank-1"));
    CHECK(std::distance(files::directory_iterator(where.path), files::directory_iterator{}) == 2);
}

TEST_CASE("what an earlier run of the same job left does not mislead")
{
    // Notes and an answer of a run of three ranks that did not end: of this very job, but with other numbers.
    const auto words = [](std::initializer_list<std::uint64_t> all) {
        return std::string(reinterpret_cast<const char*>(all.begin()), all.size() * sizeof(std::uint64_t));
    };
    for (const int last : {0, 1, 2}) { // who finds the old files first
        for (const std::uint64_t size : {2u, 3u, 5u}) {
            CAPTURE(last);
            const scratch where;
            const std::string begin = where.path + "/" + prefix_of_files(where);
            files::create_directory(where.path);
            write(begin + "rank-1", words({1, size, sizeof(id), 77}));
            write(begin + "rank-7", "noise");
            write(begin + "new-200", "half");
            write(begin + "root", words({3, 0, 0, sizeof(id), 0, 77, 77, 77}) + std::string(sizeof(id), 'x'));
            check_all_well(exchange(where, ranks_below(3), 3, 60'000, [last](int rank) {
                if (rank == last) sleep_ms(150);
            }));
            CHECK(where.left_nothing());
        }
    }
}

TEST_CASE("a missing rank is named on every rank, within the time-out")
{
    for (const int delayed : {0, 4}) {
        CAPTURE(delayed);
        const scratch where;
        const held_clock clock;
        const int others = delayed == 0 ? 4 : 0;
        std::jthread time([&] {
            for (const char* each : {"rank-0", "rank-1", "rank-4"}) await_file(where, each);
            for (const int each : {0, 1, 4}) clock.await_questions(each, 3);
            clock.advance_ms(1'600);
        });
        const auto outcomes = exchange(where, {0, 1, 4}, 5, 1'600, [&](int rank) {
            if (rank == delayed) await_file(where, "rank-" + std::to_string(others));
            clock.i_am(rank);
        });
        for (const auto& each : outcomes)
            check_error(each, status::timeout, {2, 3}, {"ranks 2-3 of 5 did not join in " + where.path});
        CHECK(where.left_nothing());
    }
}

TEST_CASE("a peer without rank 0 says where it waited, and takes its file away")
{
    const scratch where;
    const auto outcomes = exchange(where, {1}, 2, 200);
    check_error(
        outcomes[0], status::timeout, {0}, {"rank 0 did not answer in " + where.path + "/collprobe-", "root within 200 ms"});
    CHECK(files::is_empty(where.path));
}

TEST_CASE("a rank of a job with another key gets nothing")
{
    const scratch where;
    id value = made_by(1);
    const auto outcomes = run_as_threads({0, 1}, [&](int rank) {
        id unused{};
        bootstrap::exchange(job_of(rank, 2, where.path, rank == 0 ? "this" : "that"), rank == 0 ? unused : value,
            {.timeout_ms = 600});
    });
    check_error(
        outcomes[0], status::timeout, {1}, {"rank 1 of 2 did not join"});
    check_error(outcomes[1], status::timeout, {0}, {"rank 0 did not answer"});
    CHECK(value == made_by(1));
}

TEST_CASE("files that are no files of an exchange do not disturb")
{
    const scratch where;
    const std::string begin = where.path + "/" + prefix_of_files(where);
    files::create_directory(where.path);
    check_all_well(exchange(where, ranks_below(3), 3, 60'000, [&](int rank) {
        if (rank != 2) return;
        await_file(where, "rank-0"); // rank 0 has cleared by now and looks at what there is
        write(begin + "rank-2", std::string(1'000'000, 'x'));
        write(begin + "rank-99", "short");
        write(begin + "rank-2x", "");
        mkfifo((begin + "rank-98").c_str(), 0600);
        sleep_ms(50);
    }));
}

TEST_CASE("a directory that cannot be used is an error of each rank at once")
{
    const scratch where;
    const held_clock clock; // no time-out would pass
    const auto run = [](const std::string& path) {
        return run_as_threads({0, 1}, [&](int rank) {
            id value{};
            bootstrap::exchange(job_of(rank, 2, path), value, {.timeout_ms = 60'000});
        });
    };
    write(where.path, "a file");
    for (const auto& each : run(where.path)) {
        check_error(each, status::device_failure, {}, {where.path, "Not a directory"});
    }
    for (const auto& each : run(where.path + "-missing/exchange")) {
        check_error(
            each, status::device_failure, {}, {"cannot make the directory", "No such file or directory"});
    }
    for (const auto& each : run("")) check_error(each, status::invalid_argument, {}, {"COLLPROBE_PATH"});
    if (geteuid() == 0) {
        // Root may write anywhere but where nobody can.
        for (const auto& each : run("/proc/collprobe"))
            check_error(each, status::device_failure, {}, {"/proc/collprobe"});
    } else {
        const std::string closed = where.root.string() + "/closed";
        files::create_directory(closed);
        files::permissions(closed, files::perms::owner_read | files::perms::owner_exec);
        for (const auto& each : run(closed)) {
            check_error(each, status::device_failure, {}, {closed, "Permission denied"});
        }
    }
}

TEST_CASE("ranks that differ in the size of the job or of the value are named")
{
    const scratch where;
    const held_clock clock; // no time-out would pass
    const auto sizes = run_as_threads({0, 1}, [&](int rank) {
        id value{};
        bootstrap::exchange(job_of(rank, rank == 0 ? 2 : 4, where.path), value, {.timeout_ms = 5'000});
    });
    const auto values = run_as_threads({0, 1}, [&](int rank) {
        id large{};
        int small = 0;
        if (rank == 0) bootstrap::exchange(job_of(0, 2, where.path), large, {.timeout_ms = 5'000});
        if (rank == 1) bootstrap::exchange(job_of(1, 2, where.path), small, {.timeout_ms = 5'000});
    });
    for (const auto& each : sizes) {
        check_error(each, status::mismatch, {1}, {"a job of 4 ranks, rank 0 in one of 2"});
    }
    for (const auto& each : values) {
        check_error(each, status::mismatch, {1}, {"expects a value of 4 bytes, rank 0 has one of 128"});
    }
}

TEST_CASE("two processes that are both rank 0 are both told so")
{
    for (const bool is_later : {false, true}) {
        CAPTURE(is_later);
        const scratch where;
        const held_clock clock; // no time-out would pass
        const auto outcomes = run_as_threads({0, -1}, [&](int rank) {
            if (rank < 0 && is_later) await_file(where, "rank-0");
            id value{};
            bootstrap::exchange(job_of(0, 2, where.path), value, {.timeout_ms = 3'000});
        });
        for (const auto& each : outcomes) {
            check_error(each, status::mismatch, {0}, {"two processes are rank 0", "rank-0 was replaced"});
        }
        CHECK(where.left_nothing());
    }
}

TEST_CASE("a second process of the same rank is found out")
{
    const scratch where;
    const held_clock clock;
    const auto outcomes = run_as_threads({1, -1}, [&](int rank) {
        if (rank < 0) await_file(where, "rank-1");
        const at_exit ends_the_second([&, rank] {
            if (rank == 1) clock.advance_ms(1'000);
        });
        id value{};
        bootstrap::exchange(job_of(1, 3, where.path), value, {.timeout_ms = 1'000});
    });
    check_error(outcomes[0], status::mismatch, {1}, {"two processes are rank 1", "rank-1 was replaced"});
}

TEST_CASE("a rank with less patience ends the exchange for all, which names the missing one")
{
    const scratch where;
    const held_clock clock;
    std::jthread time([&] {
        for (const char* each : {"rank-0", "rank-2"}) await_file(where, each);
        for (const int each : {0, 2}) clock.await_questions(each, 3);
        clock.advance_ms(400);
    });
    const auto outcomes = run_as_threads({0, 2}, [&](int rank) {
        clock.i_am(rank);
        id value{};
        bootstrap::exchange(job_of(rank, 3, where.path), value, {.timeout_ms = rank == 0 ? 20'000 : 400});
    });
    for (const auto& each : outcomes) {
        check_error(each, status::timeout, {1}, {"rank 1 of 3 did not join"});
    }
    CHECK(where.left_nothing());
}

TEST_CASE("a rank that leaves after it joined ends the exchange for all, by name")
{
    const scratch where;
    const std::string begin = where.path + "/" + prefix_of_files(where);
    const held_clock clock; // no time-out would pass
    const auto outcomes = run_as_threads({0, -1}, [&](int rank) {
        if (rank == 0) {
            clock.i_am(0);
            id value{};
            bootstrap::exchange(job_of(0, 3, where.path), value, {.timeout_ms = 5'000});
            return;
        }
        await_file(where, "rank-0");
        write(begin + "rank-1", "not complete yet");
        const std::uint64_t note[] = {2, 3, sizeof(id), 9};
        write(begin + "x", std::string(reinterpret_cast<const char*>(note), sizeof note));
        files::rename(begin + "x", begin + "rank-2");
        clock.await_questions(0, 3); // it has seen the file
        files::remove(begin + "rank-2");
        await_file(where, "root"); // now rank 0 waits a little for rank 1 to read it
        clock.await_questions(0, 2);
        clock.advance_ms(500);
    });
    check_error(outcomes[0], status::peer_failure, {2}, {"rank 2 left before all ranks had joined"});
}

TEST_CASE("a rank that joined but does not take the value is named, and nobody goes on without it")
{
    const scratch where;
    const std::string begin = where.path + "/" + prefix_of_files(where);
    const held_clock clock;
    const auto outcomes = run_as_threads({0, 1, -1}, [&](int rank) {
        if (rank >= 0) {
            clock.i_am(rank);
            const at_exit rank_0_no_longer_waits([&, rank] {
                if (rank == 0) return;
                clock.await_questions(0, 2);
                clock.advance_ms(500);
            });
            id value = made_by(rank);
            bootstrap::exchange(job_of(rank, 3, where.path), value, {.timeout_ms = 1'500});
            return;
        }
        for (const char* each : {"rank-0", "rank-1"}) await_file(where, each);
        clock.advance_ms(1'000, {0, 1}); // rank 0 will be the first that gives up
        // A rank 2 that was killed where it waited.
        const std::uint64_t note[] = {2, 3, sizeof(id), 9};
        write(begin + "x", std::string(reinterpret_cast<const char*>(note), sizeof note));
        files::rename(begin + "x", begin + "rank-2");
        await_file(where, "rank-1", false); // it has the value
        clock.advance_ms(500);
    });
    for (int rank : {0, 1}) {
        check_error(outcomes[std::size_t(rank)], status::timeout, {2}, {"rank 2 did not take the value from " + begin + "root"});
    }
}
