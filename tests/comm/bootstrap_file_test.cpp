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
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

#include "support/bootstrap_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using bootstrap::job;
namespace files = std::filesystem;
namespace wire = collprobe::bootstrap::detail;

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
    const scratch& where, const std::vector<int>& ranks, int size, std::int64_t timeout_ms = 10'000,
    const std::function<void(int)>& before = [](int) {})
{
    std::atomic<int> wrong{0};
    auto outcomes = run_as_threads(ranks, [&](int rank) {
        before(rank);
        id value = made_by(rank);
        bootstrap::exchange_file(job_of(rank, size, 0), value, where.path, {.timeout_ms = timeout_ms});
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

void check_error(const ended& outcome, status code, const std::vector<int>& culprits,
    const std::vector<std::string>& parts)
{
    const auto failure = outcome.failure();
    REQUIRE(failure.has_value());
    const std::string message = failure->what();
    CAPTURE(message);
    CHECK(failure->code() == code);
    CHECK(failure->culprits() == culprits);
    CHECK(std::string(failure->where().file).find("bootstrap_file_test.cpp") != std::string::npos);
    for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(contains(message, part));
    }
}

void write(const std::string& path, const std::string& content)
{
    std::ofstream(path, std::ios::binary) << content;
}
void write(const std::string& path, const wire::bytes& content)
{
    write(path, std::string(content.begin(), content.end()));
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
    check_all_well(exchange(where, ranks_below(64), 64, 20'000));
    CHECK(where.left_nothing());
}

TEST_CASE("one rank needs no directory")
{
    id value = made_by(0);
    bootstrap::exchange_file(job{}, value, "/nowhere/at/all");
    CHECK(value == made_by(0));
}

TEST_CASE("the job's path decides how to exchange")
{
    const scratch where;
    const auto outcomes = run_as_threads({0, 1}, [&](int rank) {
        job of = job_of(rank, 2, 0); // no port: only files will do
        of.path = where.path;
        id value = made_by(rank);
        bootstrap::exchange(of, value, {.timeout_ms = 10'000});
    });
    check_all_well(outcomes);
}

TEST_CASE("exchanges follow each other in the same directory")
{
    const scratch where;
    std::atomic<int> wrong{0};
    const auto outcomes = run_as_threads(ranks_below(4), [&](int rank) {
        for (int i = 0; i < 10; ++i) {
            id value = made_by(rank, i);
            bootstrap::exchange_file(job_of(rank, 4, 0), value, where.path, {.timeout_ms = 10'000});
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
        check_all_well(exchange(where, ranks_below(3), 3, 10'000, [last](int rank) {
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
    const job earlier = job_of(0, 3, 0);
    const wire::prover prove(earlier);
    wire::hash old_root{};
    old_root.fill(1);
    wire::hash old_peer{};
    old_peer.fill(2);

    wire::rank_note note;
    note.says.rank = 1;
    note.says.size = 3;
    note.says.value_bytes = sizeof(id);
    note.says.patience_ms = wire::hello::forever;
    note.says.nonce = old_peer;
    note.answer = old_root;

    wire::bytes answer;
    wire::put(answer, wire::magic, wire::magic_bytes);
    wire::put_number(answer, static_cast<std::uint64_t>(wire::reply::go), 4);
    wire::put(answer, old_root);
    wire::put_number(answer, 3, 4);
    for (int i = 0; i < 3; ++i) wire::put(answer, old_peer);
    wire::put(answer, prove("root file", old_root, wire::hash{}, answer.data(), answer.size()));

    for (const int last : {0, 1, 2}) { // who finds the old files first
        CAPTURE(last);
        const scratch where;
        files::create_directory(where.path);
        write(where.path + "/collprobe-rank-1", wire::write_rank_note(note, prove));
        write(where.path + "/collprobe-rank-7", "noise");
        write(where.path + "/collprobe-new-2-00", "half");
        write(where.path + "/collprobe-root", answer);
        check_all_well(exchange(where, ranks_below(3), 3, 10'000, [last](int rank) {
            if (rank == last) sleep_ms(150);
        }));
        CHECK(where.left_nothing());
    }
}

TEST_CASE("a missing rank is named on every rank, within the time-out")
{
    for (const int delayed : {0, 4}) {
        CAPTURE(delayed);
        const scratch where;
        const auto outcomes = exchange(where, {0, 1, 4}, 5, 1'600, [delayed](int rank) {
            if (rank == delayed) sleep_ms(300);
        });
        for (const auto& each : outcomes) {
            check_error(each, status::timeout, {2, 3}, {"ranks 2 and 3 of 5 did not join in " + where.path});
            CHECK(each.after_ms < 2'300);
        }
        CHECK(contains(outcomes[1].message(), "rank 0 reports"));
        CHECK(where.left_nothing());
    }
}

TEST_CASE("a peer without rank 0 says where it waited, and takes its file away")
{
    const scratch where;
    const auto outcomes = exchange(where, {1}, 2, 200);
    check_error(
        outcomes[0], status::timeout, {0}, {"rank 0 did not answer in " + where.path + " within 200 ms"});
    CHECK(files::is_empty(where.path));
}

TEST_CASE("who has another token gets nothing")
{
    const scratch where;
    id value = made_by(1);
    const auto outcomes = run_as_threads({0, 1}, [&](int rank) {
        id unused{};
        bootstrap::exchange_file(job_of(rank, 2, 0, rank == 0 ? "this" : "that"), rank == 0 ? unused : value,
            where.path, {.timeout_ms = 600});
    });
    check_error(
        outcomes[0], status::timeout, {1}, {"rank 1 of 2 did not join", "no proof", "collprobe-rank-1"});
    check_error(outcomes[1], status::timeout, {0}, {"rank 0 did not answer"});
    CHECK(value == made_by(1));
}

TEST_CASE("files that are no files of an exchange do not disturb")
{
    const scratch where;
    files::create_directory(where.path);
    check_all_well(exchange(where, ranks_below(3), 3, 10'000, [&](int rank) {
        if (rank != 2) return;
        sleep_ms(100); // rank 0 has cleared by now and looks at what there is
        write(where.path + "/collprobe-rank-2", std::string(1'000'000, 'x'));
        write(where.path + "/collprobe-rank-99", "short");
        write(where.path + "/collprobe-rank-2x", "");
        mkfifo((where.path + "/collprobe-rank-98").c_str(), 0600);
        sleep_ms(50);
    }));
}

TEST_CASE("a directory that cannot be used is an error of each rank at once")
{
    const scratch where;
    const auto run = [](const std::string& path) {
        return run_as_threads({0, 1}, [&](int rank) {
            id value{};
            bootstrap::exchange_file(job_of(rank, 2, 0), value, path, {.timeout_ms = 10'000});
        });
    };
    write(where.path, "a file");
    for (const auto& each : run(where.path)) {
        check_error(each, status::device_failure, {}, {where.path, "not a directory"});
        CHECK(each.after_ms < 3'000);
    }
    for (const auto& each : run(where.path + "-missing/exchange")) {
        check_error(
            each, status::device_failure, {}, {"cannot make the directory", "no such file or directory"});
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
            check_error(each, status::device_failure, {}, {closed, "permission denied"});
        }
    }
}

TEST_CASE("ranks that differ in the size of the job or of the value are named")
{
    const scratch where;
    const auto sizes = run_as_threads({0, 1}, [&](int rank) {
        id value{};
        bootstrap::exchange_file(
            job_of(rank, rank == 0 ? 2 : 4, 0), value, where.path, {.timeout_ms = 5'000});
    });
    const auto values = run_as_threads({0, 1}, [&](int rank) {
        id large{};
        int small = 0;
        if (rank == 0) bootstrap::exchange_file(job_of(0, 2, 0), large, where.path, {.timeout_ms = 5'000});
        if (rank == 1) bootstrap::exchange_file(job_of(1, 2, 0), small, where.path, {.timeout_ms = 5'000});
    });
    for (const auto& each : sizes) {
        check_error(each, status::mismatch, {1}, {"a job of 4 ranks, rank 0 in one of 2"});
        CHECK(each.after_ms < 3'000);
    }
    for (const auto& each : values) {
        check_error(each, status::mismatch, {1}, {"expects a value of 4 bytes, rank 0 has one of 128"});
    }
}

TEST_CASE("a second process of the same rank is found out")
{
    const scratch where;
    const auto outcomes = run_as_threads({1, -1}, [&](int rank) {
        if (rank < 0) sleep_ms(200);
        id value{};
        bootstrap::exchange_file(job_of(1, 3, 0), value, where.path, {.timeout_ms = 1'000});
    });
    check_error(outcomes[0], status::mismatch, {1}, {"two processes are rank 1", "collprobe-rank-1"});
    CHECK(outcomes[0].after_ms < 900);
}

TEST_CASE("a rank that gives up after it joined ends the exchange for all, by name")
{
    const scratch where;
    const auto outcomes = run_as_threads({0, 1, -1}, [&](int rank) {
        if (rank < 0) { // rank 2: confirms, then leaves without waiting
            const wire::prover prove(job_of(2, 3, 0));
            wire::rank_note note;
            note.says.rank = 2;
            note.says.size = 3;
            note.says.value_bytes = sizeof(id);
            note.says.patience_ms = wire::hello::forever;
            note.says.nonce.fill(9);
            sleep_ms(100);
            write(where.path + "/x", wire::write_rank_note(note, prove));
            files::rename(where.path + "/x", where.path + "/collprobe-rank-2");
            std::string answer;
            while (answer.size() < 100) {
                sleep_ms(1);
                std::ifstream in(where.path + "/collprobe-root", std::ios::binary);
                answer.assign(std::istreambuf_iterator<char>(in), {});
            }
            std::memcpy(note.answer.data(), answer.data() + wire::magic_bytes + 4, note.answer.size());
            write(where.path + "/x", wire::write_rank_note(note, prove));
            files::rename(where.path + "/x", where.path + "/collprobe-rank-2");
            sleep_ms(120);
            files::remove(where.path + "/collprobe-rank-2");
            return;
        }
        // Rank 1 is played by a file that never confirms.
        if (rank == 1) {
            const wire::prover prove(job_of(1, 3, 0));
            wire::rank_note note;
            note.says.rank = 1;
            note.says.size = 3;
            note.says.value_bytes = sizeof(id);
            note.says.patience_ms = wire::hello::forever;
            note.says.nonce.fill(8);
            sleep_ms(100);
            write(where.path + "/y", wire::write_rank_note(note, prove));
            files::rename(where.path + "/y", where.path + "/collprobe-rank-1");
            return;
        }
        id value{};
        bootstrap::exchange_file(job_of(0, 3, 0), value, where.path, {.timeout_ms = 3'000});
    });
    check_error(outcomes[0], status::peer_failure, {2}, {"rank 2 left before all ranks had joined"});
}
