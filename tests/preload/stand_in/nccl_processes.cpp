// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that are processes, or threads of some: they meet in memory that they share. Environment variables, which must
// be the same on all ranks but for FLIP:
//     STAND_IN_NCCL_DIR=path             folder of the shared memory; /dev/shm unless given
//     STAND_IN_NCCL_DEADLINE_S=s         how long a rank waits for others before the communicator fails; 60 unless given
//     STAND_IN_NCCL_FLIP="r c e b"       bit b of element e is wrong in the result that rank r gets of its collective
//                                        number c on the first communicator of this process; all numbers are from 0
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/support/stand_in/nccl_moves.hpp"

namespace collprobe::stand_in::nccl {

namespace {

std::string given(const char* name, const char* otherwise = "")
{
    const char* const value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}
double deadline_s()
{
    static const double given_s = std::strtod(given("STAND_IN_NCCL_DEADLINE_S", "60").c_str(), nullptr);
    return given_s;
}

using shared_word = std::atomic<std::uint32_t>;
static_assert(shared_word::is_always_lock_free);

// --- What ranks share: a head, then the slots of the ranks. It begins with zeros; only what is written takes memory ---

struct alignas(64) segment_head {
    shared_word ranks, came, formed;
    shared_word passed; ///< number of the last meeting of calls that all have come to
    shared_word exchanged; ///< the same of exchanges
    shared_word failed;
};

/// A call as the other ranks must know it.
struct posted_call {
    std::uint32_t what, type, reduction, root, is_scaled;
    std::uint64_t count;
    factor scale;

    bool matches(const posted_call& other) const
    {
        return what == other.what && type == other.type && reduction == other.reduction && root == other.root
            && is_scaled == other.is_scaled && count == other.count;
    }
};

/// What stands here twice is used in turn: a rank is at most one meeting ahead of those that read.
struct alignas(64) rank_slot {
    static constexpr std::size_t most_bytes = std::size_t{1} << 22;
    shared_word arrived; ///< number of the last meeting of calls that the rank has come to
    shared_word told; ///< the same of exchanges
    posted_call calls[2];
    note notes[2];
    unsigned char sent[2][most_bytes];
};

bool is_reached(const shared_word& counter, std::uint32_t number)
{
    return static_cast<std::int32_t>(counter.load() - number) >= 0;
}

using clock = std::chrono::steady_clock;

std::atomic<std::uint64_t> communicators_here{0};

/// A rank's end of a communicator.
class world_of_processes : public world {
public:
    world_of_processes(std::string path, int ranks)
        : ranks_(ranks), path_(std::move(path)),
          bytes_(sizeof(segment_head) + static_cast<std::size_t>(ranks) * sizeof(rank_slot))
    {
        const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0) return;
        if (ftruncate(file, static_cast<off_t>(bytes_)) == 0) {
            void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (mapped != MAP_FAILED) memory_ = static_cast<unsigned char*>(mapped);
        }
        close(file);
    }
    world_of_processes(const world_of_processes&) = delete;
    ~world_of_processes() override
    {
        if (memory_ != nullptr) munmap(memory_, bytes_);
    }
    /// Whether memory is shared, with ranks of as many.
    bool is_usable()
    {
        if (memory_ == nullptr) return false;
        std::uint32_t none = 0;
        const auto mine = static_cast<std::uint32_t>(ranks_);
        return head().ranks.compare_exchange_strong(none, mine) || none == mine;
    }

    int size() const override { return ranks_; }

    std::uint64_t issue(int) override
    {
        const std::lock_guard lock(guard_);
        return issued_++;
    }

    void run(int rank, std::uint64_t number, const operation& own) override
    {
        {
            std::unique_lock lock(guard_);
            changed_.wait(lock, [&] { return done_ == number || aborted_; });
        }
        if (!aborted_ && !has_failed()) {
            make(rank, own);
        }
        const std::lock_guard lock(guard_);
        // Aborted calls may come out of order.
        if (done_ <= number) done_ = number + 1;
        changed_.notify_all();
    }

    void abort(int) override
    {
        const std::lock_guard lock(guard_);
        aborted_ = true;
        changed_.notify_all();
    }

    bool drain(int) override
    {
        std::unique_lock lock(guard_);
        changed_.wait(lock, [&] { return done_ == issued_ || aborted_; });
        return !aborted_ && !has_failed();
    }

    bool join(int rank) override
    {
        if (head().came.fetch_add(1) + 1 == head().ranks) {
            (void)unlink(path_.c_str()); // it goes when the last process does
            head().formed.store(1);
            return true;
        }
        const bool formed = wait_for(head().formed, 1, [&] {
            std::fprintf(stderr, "NCCL stand-in: rank %d of %d: only %u ranks have come to the communicator\n", rank,
                ranks_, head().came.load());
        });
        if (!formed) (void)unlink(path_.c_str());
        return formed;
    }

    bool exchange(int rank, const note& mine, std::vector<note>& all) override
    {
        const std::uint32_t number = ++exchanges_;
        slot(rank).notes[number % 2] = mine;
        const auto agree = [] { return true; };
        if (!meet_at(&rank_slot::told, head().exchanged, rank, number, "a new communicator", agree)) return false;
        for (int peer = 0; peer < ranks_; ++peer) all.push_back(slot(peer).notes[number % 2]);
        return true;
    }

    ncclResult_t failure() const override { return has_failed() ? ncclRemoteError : ncclSuccess; }

private:
    // --- The parts of the memory ---

    segment_head& head() const { return *reinterpret_cast<segment_head*>(memory_); }
    rank_slot& slot(int rank) const
    {
        return reinterpret_cast<rank_slot*>(memory_ + sizeof(segment_head))[rank];
    }

    // --- Meetings ---

    bool has_failed() const { return head().failed.load(std::memory_order_relaxed) != 0; }
    /// Waits until the counter is there. False after an abort, a failure, or the deadline: then the communicator has
    /// failed, and `complain()` is called.
    template <class Complain>
    bool wait_for(const shared_word& counter, std::uint32_t number, Complain complain)
    {
        const auto begin = clock::now();
        while (!is_reached(counter, number)) {
            if (aborted_ || has_failed()) return false;
            if (clock::now() - begin > std::chrono::duration<double>(deadline_s())) {
                complain();
                head().failed.store(1);
                return false;
            }
            // At first often: a sleep takes as long as a small sum. The process may be told to stop, or others may have died.
            if (clock::now() - begin < std::chrono::milliseconds(1)) std::this_thread::yield();
            else std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        return true;
    }

    /// Waits until all ranks have come to the meeting of that number, and `agree()`. The last one lets all pass.
    template <class Agree>
    bool meet_at(shared_word rank_slot::*came, shared_word& passed, int rank, std::uint32_t number, const char* what,
        Agree agree)
    {
        shared_word& mine = slot(rank).*came;
        mine.store(number);
        const auto all_came = [&] {
            for (int peer = 0; peer < ranks_; ++peer) {
                if (!is_reached(slot(peer).*came, number)) return false;
            }
            return agree();
        };
        const auto complain = [&] {
            std::string missing;
            for (int peer = 0; peer < ranks_; ++peer) {
                if (!is_reached(slot(peer).*came, number)) missing += ' ' + std::to_string(peer);
            }
            std::fprintf(stderr, "NCCL stand-in: rank %d of %d has waited %g s at %s; %s%s\n", rank, ranks_,
                deadline_s(), what,
                missing.empty() ? "all came, with different calls" : "missing:", missing.c_str());
        };
        if (all_came()) {
            if (is_reached(passed, number)) return true;
            passed.store(number);
            return true;
        }
        if (wait_for(passed, number, complain)) return true;
        mine.store(number - 1); // the others go on waiting
        return false;
    }

    // --- Calls ---

    void make(int rank, const operation& own)
    {
        if (own.what == kind::transfers) {
            std::fprintf(stderr, "NCCL stand-in: processes have no send and receive\n");
            std::abort();
        }
        const std::uint64_t call = collectives_++;
        const std::uint32_t meeting = ++meetings_;
        rank_slot& mine = slot(rank);
        mine.calls[meeting % 2] = {static_cast<std::uint32_t>(own.what), static_cast<std::uint32_t>(own.type),
            static_cast<std::uint32_t>(own.reduction), static_cast<std::uint32_t>(own.root), own.scale.is_used ? 1u : 0u,
            own.count, own.scale.is_used ? own.scale.read(own.type) : factor{}};
        send(own, rank, mine.sent[meeting % 2]);
        const auto agree = [&] {
            for (int peer = 1; peer < ranks_; ++peer) {
                if (!slot(peer).calls[meeting % 2].matches(slot(0).calls[meeting % 2])) return false;
            }
            return true;
        };
        if (!meet_at(&rank_slot::arrived, head().passed, rank, meeting, "a call", agree)) return;
        move_all(own, rank, ranks_, [&](int peer) { return slot(peer).sent[meeting % 2]; },
            [&](int peer) { return slot(peer).calls[meeting % 2].scale; }, static_cast<unsigned char*>(own.receive));
        flip_bit(rank, call, own);
    }

    void send(const operation& own, int rank, unsigned char* to) const
    {
        if (own.what == kind::broadcast && rank != own.root) return;
        const bool sends_parts = own.what == kind::reduce_scatter || own.what == kind::all_to_all;
        const std::size_t bytes = own.count * bytes_of(own.type) * (sends_parts ? static_cast<std::size_t>(ranks_) : 1);
        if (bytes > rank_slot::most_bytes) {
            std::fprintf(stderr, "NCCL stand-in: a rank sends at most %zu bytes\n", rank_slot::most_bytes);
            std::abort();
        }
        if (bytes > 0) std::memcpy(to, own.send, bytes);
    }

    void flip_bit(int rank, std::uint64_t call, const operation& own) const
    {
        unsigned long long of_rank = 0, of_call = 0, element = 0, bit = 0;
        if (std::sscanf(given("STAND_IN_NCCL_FLIP").c_str(), "%llu %llu %llu %llu", &of_rank, &of_call, &element, &bit) != 4) return;
        const std::size_t at = element * bytes_of(own.type) + bit / 8;
        const bool is_here = number_here_ == 0 && of_rank == static_cast<std::uint64_t>(rank) && of_call == call
            && at < result_bytes(own, rank, ranks_);
        if (is_here) static_cast<unsigned char*>(own.receive)[at] ^= static_cast<unsigned char>(1u << (bit % 8));
    }

    const int ranks_;
    const std::uint64_t number_here_ = communicators_here.fetch_add(1);
    const std::string path_;
    const std::size_t bytes_;
    unsigned char* memory_ = nullptr;
    std::mutex guard_; // of the next two, and orders calls
    std::uint64_t issued_ = 0;
    std::uint64_t done_ = 0;
    std::condition_variable changed_;
    std::atomic<bool> aborted_{false};
    // Of the call that runs.
    std::uint32_t meetings_ = 0;
    std::uint32_t exchanges_ = 0;
    std::uint64_t collectives_ = 0;
};

} // namespace

std::shared_ptr<world> meet(const std::string& name, int ranks)
{
    const std::string path
        = given("STAND_IN_NCCL_DIR", "/dev/shm") + "/stand_in_nccl_" + std::to_string(std::hash<std::string>()(name));
    const auto made = std::make_shared<world_of_processes>(path, ranks);
    return made->is_usable() ? made : nullptr;
}

std::string new_name()
{
    std::uint64_t random[2] = {};
    if (getrandom(random, sizeof(random), 0) != static_cast<ssize_t>(sizeof(random))) std::abort();
    return std::to_string(random[0]) + "." + std::to_string(random[1]);
}

manners first_manners() { return {.launch_delay_ms = 0, .polls = 3, .calls_itself = true}; }

} // namespace collprobe::stand_in::nccl
