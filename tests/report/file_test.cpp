// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include <doctest/doctest.h>

#include <collprobe/detail/thread.hpp>
#include <collprobe/report/file.hpp>

#include "support/checks.hpp"
#include "temporary_folder.hpp"

namespace collprobe::testing::file_test {
namespace {

template <class Write>
std::string failure_of(const Write& write)
{
    try {
        write();
    } catch (const error& problem) {
        CHECK(problem.code() == status::device_failure);
        return problem.what();
    }
    return "";
}

/// No file of this process may grow beyond that size while this object lives.
class small_disk {
public:
    explicit small_disk(rlim_t bytes)
    {
        getrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit now{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &now);
    }
    ~small_disk() { setrlimit(RLIMIT_FSIZE, &before_); }

private:
    rlimit before_{};
};

} // namespace

TEST_CASE("lines are appended; a file that was there is emptied or kept")
{
    const temporary_folder folder;
    const std::string path = folder.path("lines");
    {
        report::line_file file(path);
        file.append("a\nb\n");
        file.append("");
        report::line_file moved(std::move(file));
        moved.append("c\n");
        moved.close();
        moved.close();
    }
    CHECK(read_file(path) == "a\nb\nc\n");
    report::line_file(path, true).append("d\n");
    CHECK(read_file(path) == "a\nb\nc\nd\n");
    report::line_file(path).append("e\n");
    CHECK(read_file(path) == "e\n");
}

TEST_CASE("an own file is new, or this user's; no link, no second name of another file")
{
    const temporary_folder folder;
    const std::string path = folder.path("own");
    report::line_file::own(path).append("a\n");
    struct stat made {};
    REQUIRE(::stat(path.c_str(), &made) == 0);
    CHECK((made.st_mode & 0777) == 0600);
    report::line_file::own(path).append("b\n");
    CHECK(read_file(path) == "a\nb\n");
    const std::string link = folder.path("link");
    REQUIRE(::symlink(path.c_str(), link.c_str()) == 0);
    CHECK(contains(failure_of([&] { report::line_file::own(link); }), "cannot write '" + link + "': "));
    const std::string dangling = folder.path("dangling");
    REQUIRE(::symlink(folder.path("none").c_str(), dangling.c_str()) == 0);
    CHECK(contains(failure_of([&] { report::line_file::own(dangling); }), "cannot write"));
    CHECK(::access(folder.path("none").c_str(), F_OK) != 0);
    const std::string second = folder.path("second");
    REQUIRE(::link(path.c_str(), second.c_str()) == 0);
    CHECK(contains(failure_of([&] { report::line_file::own(second); }), "File exists"));
    CHECK(read_file(path) == "a\nb\n");
}

TEST_CASE("lines that do not fit on the disk are taken back as a whole")
{
    const temporary_folder folder;
    const std::string path = folder.path("lines");
    report::line_file file(path);
    {
        const small_disk limit(10);
        file.append("12345\n");
        CHECK(contains(failure_of([&] { file.append("123456789\n"); }), "cannot write '" + path + "': File too large"));
        CHECK(read_file(path) == "12345\n");
    }
    file.append("123456789\n");
    CHECK(read_file(path) == "12345\n123456789\n");
}

TEST_CASE("nothing is written to a file of the program that has the descriptor by now")
{
    const temporary_folder folder;
    const std::string own = folder.path("own");
    const int next = ::dup(0); // the number that the file will have
    ::close(next);
    report::line_file lines(own);
    lines.append("first\n");
    ::close(next); // as a program does that closes what it does not know
    std::FILE* const other = std::fopen(folder.path("other").c_str(), "w");
    REQUIRE(other != nullptr);
    REQUIRE(::fileno(other) == next);
    CHECK(contains(failure_of([&] { lines.append("second\n"); }), own));
    CHECK(std::fputs("theirs\n", other) >= 0);
    CHECK(std::fclose(other) == 0);
    CHECK(read_file(folder.path("other")) == "theirs\n");
    CHECK(read_file(own) == "first\n");
}

TEST_CASE("a file that cannot be opened or written is an error that names it")
{
    const temporary_folder folder;
    CHECK(contains(failure_of([&] { report::line_file(folder.path("none/lines")); }),
        "cannot write '" + folder.path("none/lines") + "': No such file or directory"));
    CHECK(contains(failure_of([&] { report::replace_file(folder.path("none/text"), "x"); }), "No such file"));
    CHECK(contains(failure_of([&] { report::replace_file(folder.path("."), "x"); }), "cannot write '"));
    if (access("/dev/full", W_OK) == 0) {
        CHECK(contains(failure_of([] { report::line_file("/dev/full").append("x\n"); }),
            "cannot write '/dev/full': No space left on device"));
    }
}

TEST_CASE("a file is replaced as a whole; on an error the old one stays, and nothing else")
{
    const temporary_folder folder;
    const std::string path = folder.path("text.prom");
    report::replace_file(path, "old");
    {
        const small_disk limit(10);
        CHECK(contains(failure_of([&] { report::replace_file(path, std::string(100, 'x')); }), "File too large"));
    }
    CHECK(read_file(path) == "old");
    report::replace_file(path, std::string(100, 'x'));
    CHECK(read_file(path) == std::string(100, 'x'));
    CHECK(folder.files() == 1);
}

TEST_CASE("a link stays a link, and what is no regular file stays what it is")
{
    const temporary_folder folder;
    const std::string path = folder.path("text");
    const std::string link = folder.path("link");
    report::replace_file(path, "old");
    REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
    report::replace_file(link, "new");
    CHECK(read_file(path) == "new");
    struct stat found {};
    REQUIRE(lstat(link.c_str(), &found) == 0);
    CHECK(S_ISLNK(found.st_mode));
    report::replace_file("/dev/null", "text");
    REQUIRE(stat("/dev/null", &found) == 0);
    CHECK(S_ISCHR(found.st_mode));
    const std::string fifo = folder.path("fifo");
    REQUIRE(mkfifo(fifo.c_str(), 0666) == 0);
    CHECK(contains(failure_of([&] { report::replace_file(fifo, "x"); }), "cannot write")); // nobody reads
    CHECK(contains(failure_of([&] { report::line_file file(fifo); }), "cannot write"));
}

TEST_CASE("several writers of one file replace it one after the other, and a reader sees it whole")
{
    const temporary_folder folder;
    const std::string path = folder.path("text");
    std::atomic<int> failures{0};
    {
        std::vector<detail::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&, t] {
                const std::string text(static_cast<std::size_t>(1 + 30'000 * t), static_cast<char>('a' + t));
                for (int i = 0; i < 200; ++i) {
                    try {
                        report::replace_file(path, text);
                        const std::string seen = read_file(path);
                        const std::size_t whole = seen.empty() ? 0 : 1 + 30'000 * static_cast<std::size_t>(seen[0] - 'a');
                        if (seen.empty() || seen != std::string(whole, seen[0])) ++failures;
                    } catch (const error&) {
                        ++failures;
                    }
                }
            });
        }
    }
    CHECK(failures == 0);
    CHECK(folder.files() == 1);
}

} // namespace collprobe::testing::file_test
