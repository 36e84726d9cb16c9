// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The exchange over TCP: ranks are threads that share nothing but a port of this machine.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <collprobe/comm/bootstrap.hpp>

#include "support/bootstrap_ranks.hpp"

using namespace collprobe;
using namespace collprobe::testing;
using bootstrap::job;
using bootstrap::options;
namespace wire = collprobe::bootstrap::detail;

namespace {

/// As large as an ncclUniqueId.
struct id {
    std::array<std::uint8_t, 128> bytes{};
    bool operator==(const id&) const = default;
};

id made_by(int rank, int seed = 0)
{
    id result;
    for (std::size_t i = 0; i < result.bytes.size(); ++i) {
        result.bytes[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(100 * rank + seed));
    }
    return result;
}

/// All ranks exchange and get rank 0's value.
void check_exchange(const std::vector<job>& jobs, const options& settings = {.timeout_ms = 10'000})
{
    std::vector<id> got(jobs.size());
    const auto outcomes = run_as_threads(ranks_below(static_cast<int>(jobs.size())), [&](int rank) {
        id value = made_by(rank);
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, settings);
        got[static_cast<std::size_t>(rank)] = value;
    });
    for (std::size_t rank = 0; rank < jobs.size(); ++rank) {
        CAPTURE(rank);
        CAPTURE(outcomes[rank].message());
        CHECK_FALSE(outcomes[rank].thrown);
        CHECK(got[rank] == made_by(0));
    }
}

std::vector<job> jobs_of(int size, const std::string& address = "127.0.0.1")
{
    const int port = free_port();
    std::vector<job> jobs;
    for (int rank = 0; rank < size; ++rank) {
        jobs.push_back(job_of(rank, size, port));
        jobs.back().master_address = address;
    }
    return jobs;
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
    CHECK(std::string(failure->where().file).find("bootstrap_test.cpp") != std::string::npos);
    for (const std::string& part : parts) {
        CAPTURE(part);
        CHECK(contains(message, part));
    }
}

/// A connection to a port of this machine that the test speaks over itself.
class raw_connection {
public:
    explicit raw_connection(int port)
    {
        const auto until = wire::deadline::in_ms(5'000);
        const wire::address where = wire::resolve("127.0.0.1", port).addresses.at(0);
        do {
            socket_ = wire::descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (connect(socket_.get(), where.get(), where.length) == 0) return;
            sleep_ms(2);
        } while (!until.passed());
        FAIL("no connection");
    }
    void send(const wire::bytes& data) const
    {
        std::size_t sent = 0;
        wire::send_some(socket_.get(), data.data(), data.size(), sent);
    }
    void send(const std::string& text) const { send(wire::bytes(text.begin(), text.end())); }
    /// Fewer bytes if the other side closes.
    wire::bytes receive(std::size_t count) const
    {
        wire::bytes data(count);
        std::size_t received = 0;
        wire::receive_some(socket_.get(), data.data(), count, received);
        data.resize(received);
        return data;
    }
    wire::hash root_nonce() const
    {
        const wire::bytes greeting = receive(wire::greeting_bytes);
        REQUIRE(greeting.size() == wire::greeting_bytes);
        REQUIRE(wire::begins_with_magic(greeting.data(), greeting.size()));
        wire::hash nonce;
        std::memcpy(nonce.data(), greeting.data() + wire::magic_bytes, nonce.size());
        return nonce;
    }
    bool closed() const { return receive(1).empty(); }
    void close() { socket_.close(); }
    void reset() { wire::close_hard(socket_); }

private:
    wire::descriptor socket_;
};

wire::hello hello_of(int rank, int size, std::uint64_t value_bytes = sizeof(id))
{
    wire::hello says;
    says.rank = static_cast<std::uint64_t>(rank);
    says.size = static_cast<std::uint64_t>(size);
    says.value_bytes = value_bytes;
    says.patience_ms = wire::hello::forever;
    says.nonce.fill(42);
    return says;
}

/// A job of `size` ranks, of which those but rank 0 start only after `meanwhile` is done with rank 0.
/// All must succeed, whatever `meanwhile` did. Returns how long rank 0 took after the others came.
void succeeds_in_spite_of(const std::function<void(const job&)>& meanwhile, int size = 3,
    const options& settings = {.timeout_ms = 10'000})
{
    const auto jobs = jobs_of(size);
    std::atomic<bool> done{false};
    std::vector<id> got(jobs.size());
    std::vector<int> ranks = ranks_below(size);
    ranks.push_back(-1);
    std::atomic<std::int64_t> begin_ns{0};
    std::atomic<std::int64_t> slowest_ns{0};
    const auto outcomes = run_as_threads(ranks, [&](int rank) {
        if (rank < 0) {
            meanwhile(jobs[1]);
            begin_ns = wire::deadline::now_ns();
            done = true;
            done.notify_all();
            return;
        }
        if (rank > 0) done.wait(false);
        id value = made_by(rank);
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, settings);
        got[static_cast<std::size_t>(rank)] = value;
        if (rank == 0) slowest_ns = wire::deadline::now_ns() - begin_ns;
    });
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        CAPTURE(i);
        CAPTURE(outcomes[i].message());
        CHECK_FALSE(outcomes[i].thrown);
        if (i < got.size()) CHECK(got[i] == made_by(0));
    }
    // The stray delayed nobody: the time-out of a silent connection is five seconds.
    CHECK(slowest_ns / 1'000'000 < 4'000);
}

std::size_t open_descriptors()
{
    std::size_t count = 0;
    if (DIR* const list = opendir("/proc/self/fd")) {
        while (readdir(list) != nullptr) ++count;
        closedir(list);
    }
    return count;
}

} // namespace

TEST_CASE("one rank exchanges with itself, without a network")
{
    id value = made_by(0);
    bootstrap::exchange_tcp(job{}, value);
    bootstrap::exchange(job{}, value);
    CHECK(value == made_by(0));
}

TEST_CASE("every rank gets rank 0's value")
{
    for (const int size : {2, 3, 8}) {
        CAPTURE(size);
        check_exchange(jobs_of(size));
    }
}

TEST_CASE("256 ranks") { check_exchange(jobs_of(256), {.timeout_ms = 25'000}); }

TEST_CASE("by name, by number, with IPv6")
{
    check_exchange(jobs_of(3, "localhost"));
    if (wire::resolve("::1", 1, AI_NUMERICHOST).addresses.empty() || !wire::open_socket(AF_INET6).open()) {
        MESSAGE("no IPv6 here: not tested");
    } else {
        check_exchange(jobs_of(3, "::1"));
    }
    // A name that rank 0 does not take as where to listen.
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    if (wire::resolve(name, 1).addresses.empty()) {
        MESSAGE("this machine does not know its own name: not tested");
    } else {
        check_exchange(jobs_of(3, name));
    }
}

TEST_CASE("numbers, views and arrays of any size")
{
    const auto jobs = jobs_of(2);
    std::vector<std::uint16_t> many(32 * 1024, 0);
    std::array<double, 3> few{};
    const auto outcomes = run_as_threads({0, 1}, [&](int rank) {
        std::vector<std::uint16_t> own(many.size(), static_cast<std::uint16_t>(rank == 0 ? 4711 : 0));
        std::array<double, 3> three{rank == 0 ? 2.5 : 0.0, 0, 0};
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], view(own), {.timeout_ms = 10'000});
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], three, {.timeout_ms = 10'000});
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], view<int>(), {.timeout_ms = 10'000});
        if (rank == 1) {
            many = own;
            few = three;
        }
    });
    for (const auto& each : outcomes) CHECK(each.message() == "");
    CHECK(many == std::vector<std::uint16_t>(32 * 1024, 4711));
    CHECK(few[0] == 2.5);
    static_assert(!bootstrap::detail::exchangeable<std::string&>);
    static_assert(!bootstrap::detail::exchangeable<const int&>);
    static_assert(!bootstrap::detail::exchangeable<int*&>);
    static_assert(!bootstrap::detail::exchangeable<std::string_view&>);
    static_assert(!bootstrap::detail::exchangeable<view<const int>>);
}

TEST_CASE("exchanges follow each other on the same port and leave nothing open")
{
    const auto jobs = jobs_of(4);
    const std::size_t before = open_descriptors();
    std::atomic<int> wrong{0};
    const auto outcomes = run_as_threads(ranks_below(4), [&](int rank) {
        for (int i = 0; i < 20; ++i) {
            id value = made_by(rank, i);
            bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, {.timeout_ms = 10'000});
            if (!(value == made_by(0, i))) ++wrong;
        }
    });
    for (const auto& each : outcomes) CHECK(each.message() == "");
    CHECK(wrong == 0);
    CHECK(open_descriptors() == before);
}

TEST_CASE("rank 0 may come last")
{
    const auto jobs = jobs_of(3);
    const auto outcomes = run_as_threads(ranks_below(3), [&](int rank) {
        if (rank == 0) sleep_ms(600);
        id value = made_by(rank);
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, {.timeout_ms = 10'000});
    });
    for (const auto& each : outcomes) CHECK(each.message() == "");
}

TEST_CASE("a missing rank is named on every rank, within the time-out")
{
    const auto jobs = jobs_of(5);
    constexpr std::int64_t timeout_ms = 1'500;
    for (const int delayed : {0, 1}) { // whoever waits longest, all are told
        CAPTURE(delayed);
        const std::size_t before = open_descriptors();
        const auto outcomes = run_as_threads({0, 1, 4}, [&](int rank) {
            if (rank == delayed) sleep_ms(400);
            id value = made_by(rank);
            bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, {.timeout_ms = timeout_ms});
        });
        for (const auto& each : outcomes) {
            check_error(each, status::timeout, {2, 3}, {"ranks 2 and 3 of 5 did not join at 127.0.0.1:"});
            CHECK(each.after_ms < timeout_ms + 400);
        }
        CHECK(contains(outcomes[1].message(), "rank 0 reports"));
        CHECK(open_descriptors() == before);
    }
}

TEST_CASE("a peer without rank 0 says where it looked and what it met")
{
    const auto jobs = jobs_of(2);
    const auto run = [&](job of) {
        return run_as_threads({1}, [&](int) {
            id value = made_by(1);
            bootstrap::exchange_tcp(of, value, {.timeout_ms = 300});
        }).at(0);
    };
    const ended refused = run(jobs[1]);
    check_error(refused, status::timeout, {0},
        {"rank 0 at 127.0.0.1:" + std::to_string(jobs[1].port) + " was not reached", "connection refused",
            "attempts in 300 ms", "reported by rank 1 of 2"});
    CHECK(refused.after_ms < 2'000);

    job unknown = jobs[1];
    unknown.master_address = "no-such-machine.invalid";
    check_error(run(unknown), status::timeout, {0}, {"no-such-machine.invalid", "is not known"});
}

TEST_CASE("a peer is not held up by something else at the port")
{
    for (const std::string words : {"", "SSH-2.0-OpenSSH_9.2p1 Debian-2 and more than a greeting has\r\n"}) {
        CAPTURE(words);
        const auto jobs = jobs_of(2);
        wire::descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const wire::address where = wire::resolve("127.0.0.1", jobs[0].port).addresses.at(0);
        REQUIRE(bind(listener.get(), where.get(), where.length) == 0);
        REQUIRE(listen(listener.get(), 8) == 0);
        const auto outcomes = run_as_threads({1, -1}, [&](int rank) {
            if (rank < 0) { // accepts, says its words and holds the connections
                std::vector<wire::descriptor> held;
                while (wire::wait_for(listener.get(), POLLIN, wire::deadline::in_ms(1'000))) {
                    held.emplace_back(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
                    std::size_t sent = 0;
                    wire::send_some(held.back().get(), reinterpret_cast<const std::uint8_t*>(words.data()),
                        words.size(), sent);
                }
                return;
            }
            id value = made_by(rank);
            bootstrap::exchange_tcp(jobs[1], value, {.timeout_ms = 800});
        });
        check_error(outcomes[0], status::timeout, {0},
            {"was not reached", words.empty() ? "says nothing" : "is something else"});
        CHECK(outcomes[0].after_ms < 2'500);
    }
}

TEST_CASE("a port that is taken is an error of rank 0 at once")
{
    const auto jobs = jobs_of(2);
    for (const char* held_address : {"127.0.0.1", "0.0.0.0"}) {
        CAPTURE(held_address);
        wire::descriptor holder(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const wire::address where = wire::resolve(held_address, jobs[0].port).addresses.at(0);
        REQUIRE(bind(holder.get(), where.get(), where.length) == 0);
        REQUIRE(listen(holder.get(), 1) == 0);
        const auto outcomes = run_as_threads({0}, [&](int) {
            id value = made_by(0);
            bootstrap::exchange_tcp(jobs[0], value, {.timeout_ms = 10'000});
        });
        check_error(outcomes[0], status::invalid_argument, {},
            {"port " + std::to_string(jobs[0].port), "is taken", "COLLPROBE_PORT"});
        CHECK(outcomes[0].after_ms < 2'000);
    }
}

TEST_CASE("arguments that no exchange can have")
{
    const auto run = [](const job& of, auto& value) {
        return run_as_threads({0}, [&](int) {
            bootstrap::exchange_tcp(of, value, {.timeout_ms = 100});
        }).at(0);
    };
    id value;
    job of = job_of(0, 2, 4711);
    of.master_address.clear();
    check_error(run(of, value), status::invalid_argument, {}, {"MASTER_ADDR"});
    check_error(run(job_of(0, 2, 0), value), status::invalid_argument, {}, {"port 0", "MASTER_PORT"});
    check_error(run(job_of(2, 2, 4711), value), status::invalid_argument, {}, {"rank 2 of 2"});
    check_error(run(job_of(0, 0, 4711), value), status::invalid_argument, {}, {"rank 0 of 0"});
    std::vector<std::uint8_t> large(64 * 1024 + 1);
    view all(large);
    check_error(run(job_of(0, 2, 4711), all), status::invalid_argument, {}, {"65537 bytes", "at most 65536"});
    view<int> null(nullptr, 3);
    check_error(run(job_of(0, 2, 4711), null), status::invalid_argument, {}, {"value is null"});
}

TEST_CASE("strays that say nothing do not delay the ranks")
{
    std::vector<raw_connection> silent;
    succeeds_in_spite_of([&](const job& of) {
        for (int i = 0; i < 20; ++i) silent.emplace_back(of.port);
        sleep_ms(50);
    });
}

TEST_CASE("a flood of silent strays does not lock the ranks out")
{
    std::vector<raw_connection> silent;
    succeeds_in_spite_of([&](const job& of) {
        for (int i = 0; i < 300; ++i) silent.emplace_back(of.port);
        sleep_ms(50);
    });
    // The oldest had to go.
    CHECK(silent.front().receive(1000).size() == wire::greeting_bytes);
}

TEST_CASE("strays that speak of something else are turned away at once")
{
    succeeds_in_spite_of([](const job& of) {
        raw_connection http(of.port);
        http.root_nonce();
        http.send("GET / HTTP/1.1\r\n\r\n");
        CHECK(http.closed());

        raw_connection endless(of.port);
        for (int i = 0; i < 100; ++i) endless.send(std::string(64 * 1024, 'x'));
        endless.root_nonce();
        CHECK(endless.closed());

        raw_connection almost(of.port); // the right beginning, then noise
        almost.root_nonce();
        almost.send("cprobe01" + std::string(1'000, '\xff'));
        CHECK(almost.receive(10'000).size() <= wire::reply_head_bytes + sizeof(wire::hash));
    });
}

TEST_CASE("strays that go away at any point")
{
    succeeds_in_spite_of([](const job& of) {
        raw_connection(of.port).close();
        raw_connection(of.port).reset();
        for (const std::size_t cut :
            {std::size_t{1}, std::size_t{9}, wire::hello_bytes - 1, wire::hello_bytes}) {
            for (const bool hard : {false, true}) {
                raw_connection leaving(of.port);
                const wire::hash nonce = leaving.root_nonce();
                wire::bytes hello = wire::write_hello(hello_of(1, 3), nonce, wire::prover(of));
                hello.resize(cut);
                leaving.send(hello);
                if (hard) leaving.reset();
            }
        }
    });
}

TEST_CASE("a slow stray is cut off when its time is over")
{
    const auto jobs = jobs_of(2);
    std::atomic<bool> cut_off{false};
    const auto outcomes = run_as_threads({0, -1}, [&](int rank) {
        if (rank < 0) {
            const raw_connection slow(jobs[0].port);
            slow.root_nonce();
            for (int i = 0; i < 8; ++i) {
                slow.send(std::string(1, "cprobe01"[i]));
                sleep_ms(60);
            }
            cut_off = slow.closed();
            return;
        }
        id value;
        bootstrap::exchange_tcp(jobs[0], value, {.timeout_ms = 1'500, .handshake_ms = 200});
    });
    CHECK(cut_off);
    check_error(outcomes[0], status::timeout, {1}, {"turned away 1 connection", "said nothing in time"});
}

TEST_CASE("who has another token gets nothing, and does not disturb")
{
    succeeds_in_spite_of([](const job& of) {
        job other = of;
        other.token = "the token of that job";
        const raw_connection stranger(of.port);
        const wire::hash nonce = stranger.root_nonce();
        stranger.send(wire::write_hello(hello_of(1, 3), nonce, wire::prover(other)));
        const wire::bytes answer = stranger.receive(10'000);
        REQUIRE(answer.size() == wire::reply_head_bytes + sizeof(wire::hash)); // "denied", no value
        CHECK(answer[wire::magic_bytes] == static_cast<std::uint8_t>(wire::reply::denied));
    });

    const auto jobs = jobs_of(2);
    id value = made_by(1);
    const auto outcomes = run_as_threads({0, 1}, [&](int rank) {
        job own = jobs[static_cast<std::size_t>(rank)];
        if (rank == 1) own.token = "another";
        id unused;
        bootstrap::exchange_tcp(own, rank == 1 ? value : unused, {.timeout_ms = 800});
    });
    check_error(outcomes[0], status::timeout, {1},
        {"rank 1 of 2 did not join", "turned away", "(as rank 1) did not prove"});
    check_error(outcomes[1], status::mismatch, {0}, {"did not accept this rank's proof", "token"});
    CHECK(value == made_by(1));
}

TEST_CASE("a recorded hello is worth nothing")
{
    succeeds_in_spite_of([](const job& of) {
        const wire::prover prove(of);
        raw_connection first(of.port);
        const wire::bytes recorded = wire::write_hello(hello_of(1, 3), first.root_nonce(), prove);
        first.send(recorded);
        const std::size_t reply_bytes = wire::reply_head_bytes + sizeof(id) + sizeof(wire::hash);
        CHECK(first.receive(reply_bytes).size() == reply_bytes); // control: it is a good one
        first.close();

        const raw_connection second(of.port);
        second.root_nonce();
        second.send(recorded);
        CHECK(second.receive(10'000).size() == wire::reply_head_bytes + sizeof(wire::hash));
    });
}

TEST_CASE("a recorded hello with a changed rank is worth nothing")
{
    succeeds_in_spite_of([](const job& of) {
        const raw_connection forger(of.port);
        wire::bytes hello = wire::write_hello(hello_of(1, 3), forger.root_nonce(), wire::prover(of));
        hello[wire::magic_bytes] = 2;
        forger.send(hello);
        CHECK(forger.receive(10'000).size() == wire::reply_head_bytes + sizeof(wire::hash));
    });
}

TEST_CASE("who proves itself but does not confirm does not hold its place")
{
    succeeds_in_spite_of([](const job& of) {
        const raw_connection mute(of.port);
        mute.send(wire::write_hello(hello_of(1, 3), mute.root_nonce(), wire::prover(of)));
        const raw_connection wrong(of.port);
        wrong.send(wire::write_hello(hello_of(2, 3), wrong.root_nonce(), wire::prover(of)));
        wrong.send(std::string(sizeof(wire::hash), 'x'));
        sleep_ms(50);
    });
}

TEST_CASE("a server that cannot prove itself gives a peer nothing")
{
    const auto jobs = jobs_of(2);
    wire::descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const wire::address where = wire::resolve("127.0.0.1", jobs[0].port).addresses.at(0);
    REQUIRE(bind(listener.get(), where.get(), where.length) == 0);
    REQUIRE(listen(listener.get(), 8) == 0);
    id value = made_by(1);
    const auto outcomes = run_as_threads({1, -1}, [&](int rank) {
        if (rank == 1) {
            bootstrap::exchange_tcp(jobs[1], value, {.timeout_ms = 800});
            return;
        }
        job other = jobs[0];
        other.token = "guessed";
        while (wire::wait_for(listener.get(), POLLIN, wire::deadline::in_ms(1'000))) {
            const wire::descriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
            const wire::bytes greeting = wire::write_greeting(wire::hash{});
            std::size_t count = 0;
            wire::send_some(peer.get(), greeting.data(), greeting.size(), count);
            wire::bytes hello(wire::hello_bytes);
            count = 0;
            wire::receive_some(peer.get(), hello.data(), hello.size(), count);
            wire::bytes answer;
            const id evil = made_by(0, 66);
            wire::put_reply(answer, wire::reply::value, &evil, sizeof evil, wire::hash{}, wire::hash{},
                wire::prover(other));
            count = 0;
            wire::send_some(peer.get(), answer.data(), answer.size(), count);
        }
    });
    check_error(outcomes[0], status::mismatch, {0}, {"did not prove that it belongs to this job"});
    CHECK(value == made_by(1));
}

TEST_CASE("two processes of the same rank are named on all ranks")
{
    const auto jobs = jobs_of(4);
    const auto outcomes = run_as_threads({0, 1, 2, 2}, [&](int rank) {
        id value = made_by(rank);
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, {.timeout_ms = 10'000});
    });
    for (const std::size_t i : {0u, 2u, 3u}) {
        CAPTURE(i);
        check_error(outcomes[i], status::mismatch, {2}, {"two processes are rank 2: at 127.0.0.1:"});
        CHECK(outcomes[i].after_ms < 5'000);
    }
    CHECK(outcomes[1].thrown); // told so if it was in already, else that rank 0 is gone
}

TEST_CASE("ranks that differ in the size of the job or of the value are named")
{
    const auto run = [](const std::function<void(const std::vector<job>&, int)>& call) {
        const auto jobs = jobs_of(2);
        const auto outcomes = run_as_threads({0, 1}, [&](int rank) { call(jobs, rank); });
        for (const auto& each : outcomes) CHECK(each.after_ms < 5'000);
        return outcomes;
    };
    for (const auto& each : run([](const std::vector<job>&jobs, int rank) {
             job own = jobs[static_cast<std::size_t>(rank)];
             if (rank == 1) own.size = 4;
             id value;
             bootstrap::exchange_tcp(own, value, {.timeout_ms = 10'000});
         })) {
        check_error(each, status::mismatch, {1}, {"a job of 4 ranks, rank 0 in one of 2"});
    }
    for (const auto& each : run([](const std::vector<job>&jobs, int rank) {
             id large;
             int small = 0;
             if (rank == 1) bootstrap::exchange_tcp(jobs[1], small, {.timeout_ms = 10'000});
             if (rank == 0) bootstrap::exchange_tcp(jobs[0], large, {.timeout_ms = 10'000});
         })) {
        check_error(each, status::mismatch, {1}, {"expects a value of 4 bytes, rank 0 has one of 128"});
    }
}

TEST_CASE("a rank that dies after it joined ends the exchange for all, by name")
{
    const auto jobs = jobs_of(4); // rank 3 never comes
    const auto outcomes = run_as_threads({0, 1, -1}, [&](int rank) {
        if (rank < 0) {
            const wire::prover prove(jobs[2]);
            raw_connection dying(jobs[2].port);
            const wire::hash nonce = dying.root_nonce();
            dying.send(wire::write_hello(hello_of(2, 4), nonce, prove));
            dying.receive(wire::reply_head_bytes + sizeof(id) + sizeof(wire::hash));
            const wire::hash consent = prove("consent", nonce, hello_of(2, 4).nonce);
            sleep_ms(500); // until rank 1 has joined
            dying.send(wire::bytes(consent.begin(), consent.end()));
            return;
        }
        id value = made_by(rank);
        bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, {.timeout_ms = 10'000});
    });
    for (const std::size_t i : {0u, 1u}) {
        check_error(outcomes[i], status::peer_failure, {2},
            {"rank 2 left before all ranks had joined", "rank 3 had not"});
        CHECK(outcomes[i].after_ms < 5'000);
    }
}

TEST_CASE("rank 0 that dies ends the wait of its peers")
{
    const auto jobs = jobs_of(3);
    wire::descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const wire::address where = wire::resolve("127.0.0.1", jobs[0].port).addresses.at(0);
    REQUIRE(bind(listener.get(), where.get(), where.length) == 0);
    REQUIRE(listen(listener.get(), 8) == 0);
    id value = made_by(1);
    const auto outcomes = run_as_threads({1, -1}, [&](int rank) {
        if (rank == 1) {
            bootstrap::exchange_tcp(jobs[1], value, {.timeout_ms = 10'000});
            return;
        }
        const wire::prover prove(jobs[0]);
        const wire::descriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        const wire::bytes greeting = wire::write_greeting(wire::hash{});
        std::size_t count = 0;
        wire::send_some(peer.get(), greeting.data(), greeting.size(), count);
        wire::bytes hello(wire::hello_bytes);
        count = 0;
        wire::receive_some(peer.get(), hello.data(), hello.size(), count);
        wire::hello says;
        CHECK(wire::read_hello(hello.data(), wire::hash{}, prove, says));
        wire::bytes answer;
        const id theirs = made_by(0);
        wire::put_reply(answer, wire::reply::value, &theirs, sizeof theirs, wire::hash{}, says.nonce, prove);
        count = 0;
        wire::send_some(peer.get(), answer.data(), answer.size(), count);
        std::uint8_t consent[wire::consent_bytes];
        count = 0;
        wire::receive_some(peer.get(), consent, sizeof consent, count);
    });
    check_error(
        outcomes[0], status::peer_failure, {0}, {"closed the connection before all ranks had joined"});
    CHECK(outcomes[0].after_ms < 5'000);
    CHECK(value == made_by(1)); // all ranks have it, or none
}

TEST_CASE("signals do not disturb")
{
    struct sigaction quiet {};
    quiet.sa_handler = [](int) {};
    struct sigaction before {};
    REQUIRE(sigaction(SIGUSR1, &quiet, &before) == 0);
    {
        const auto jobs = jobs_of(3);
        std::atomic<bool> over{false};
        std::jthread nuisance([&] {
            while (!over) {
                kill(getpid(), SIGUSR1);
                sleep_ms(1);
            }
        });
        const auto outcomes = run_as_threads(ranks_below(3), [&](int rank) {
            if (rank == 0) sleep_ms(200);
            if (rank == 1) sleep_ms(400);
            id value = made_by(rank);
            bootstrap::exchange_tcp(jobs[static_cast<std::size_t>(rank)], value, {.timeout_ms = 10'000});
        });
        over = true;
        for (const auto& each : outcomes) CHECK(each.message() == "");
    }
    sigaction(SIGUSR1, &before, nullptr);
}
