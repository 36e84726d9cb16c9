// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "tests/support/stand_in/nccl_moves.hpp"

/// Ranks that are threads of one process.
namespace collprobe::stand_in::nccl {

namespace {

class world_of_threads : public world {
public:
    explicit world_of_threads(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}

    int size() const override { return static_cast<int>(ranks_.size()); }

    std::uint64_t issue(int rank) override
    {
        const std::lock_guard lock(guard_);
        return at(rank).issued++;
    }

    void run(int rank, std::uint64_t number, const operation& own) override
    {
        std::unique_lock lock(guard_);
        member& self = at(rank);
        changed_.wait(lock, [&] { return self.done == number || self.aborted; });
        if (!self.aborted) {
            self.posted = &own;
            const std::uint64_t round = rounds_;
            if (++arrived_ == size() && agree()) {
                arrived_ = 0;
                ++rounds_;
                changed_.notify_all();
            }
            changed_.wait(lock, [&] { return rounds_ != round || self.aborted; });
            if (rounds_ != round) {
                lock.unlock();
                move(rank, own, round);
                lock.lock();
            } else {
                --arrived_;
            }
        }
        // Aborted calls may come out of order.
        if (self.done <= number) self.done = number + 1;
        changed_.notify_all();
    }

    void abort(int rank) override
    {
        const std::lock_guard lock(guard_);
        at(rank).aborted = true;
        changed_.notify_all();
    }
    bool drain(int rank) override
    {
        std::unique_lock lock(guard_);
        member& self = at(rank);
        changed_.wait(lock, [&] { return self.done == self.issued || self.aborted; });
        return !self.aborted;
    }
    bool join(int rank) override
    {
        std::unique_lock lock(guard_);
        ++joined_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return joined_ == size() || at(rank).aborted; });
        return joined_ == size();
    }

    bool exchange(int rank, const note& mine, std::vector<note>& all) override
    {
        std::unique_lock lock(guard_);
        member& self = at(rank);
        self.told = mine;
        const std::uint64_t round = exchanges_;
        if (++exchanging_ == size()) {
            exchanging_ = 0;
            ++exchanges_;
            told_.clear();
            for (const member& each : ranks_) told_.push_back(each.told);
            changed_.notify_all();
        }
        changed_.wait(lock, [&] { return exchanges_ != round || self.aborted; });
        if (exchanges_ == round) {
            --exchanging_;
            return false;
        }
        all = told_; // the next exchange cannot end before this rank has come to it
        return true;
    }

private:
    struct member {
        std::uint64_t issued = 0;
        std::uint64_t done = 0;
        bool aborted = false;
        const operation* posted = nullptr;
        note told{};
    };
    member& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

    /// Ranks that call different things never get through, as in NCCL at its kindest.
    bool agree()
    {
        const operation& first = *at(0).posted;
        for (int rank = 1; rank < size(); ++rank) {
            const operation& other = *at(rank).posted;
            const bool same = other.what == first.what && other.count == first.count && other.type == first.type
                && other.reduction == first.reduction && other.root == first.root
                && other.scale.is_used == first.scale.is_used;
            if (!same) return false;
        }
        return true;
    }

    /// All ranks are here, and none goes before all have read.
    void move(int rank, const operation& own, std::uint64_t round)
    {
        const std::size_t bytes = result_bytes(own, rank, size());
        // Not from `new`: tests count that. Ranks may be in place, so the result is written at the end.
        auto* const result = static_cast<unsigned char*>(std::malloc(bytes + 1));
        if (own.what == kind::transfers) receive_all(rank, own);
        else move_all(own, rank, size(), [this](int peer) { return static_cast<const unsigned char*>(at(peer).posted->send); },
            [&](int peer) { return own.scale.is_used ? at(peer).posted->scale.read(own.type) : factor{}; }, result);
        {
            std::unique_lock lock(guard_);
            if (++read_ == size()) {
                read_ = 0;
                read_rounds_ = round + 1;
                changed_.notify_all();
            }
            changed_.wait(lock, [&] { return read_rounds_ > round; });
        }
        if (bytes > 0) std::memcpy(own.receive, result, bytes);
        std::free(result);
    }

    /// The k-th receive from a peer takes its k-th send to this rank.
    void receive_all(int rank, const operation& own)
    {
        std::map<int, std::size_t> taken;
        for (const transfer& wanted : *own.transfers) {
            if (wanted.is_send) continue;
            std::size_t skip = taken[wanted.peer]++;
            for (const transfer& offered : *at(wanted.peer).posted->transfers) {
                if (!offered.is_send || offered.peer != rank || skip-- != 0) continue;
                std::memcpy(wanted.to, offered.from, wanted.bytes);
                break;
            }
        }
    }

    std::mutex guard_;
    std::condition_variable changed_;
    std::vector<member> ranks_;
    int arrived_ = 0;
    std::uint64_t rounds_ = 0;
    int read_ = 0;
    std::uint64_t read_rounds_ = 0;
    int joined_ = 0;
    int exchanging_ = 0;
    std::uint64_t exchanges_ = 0;
    std::vector<note> told_;
};

/// Worlds that not all of their ranks have come to yet.
struct forming_worlds {
    struct entry {
        std::shared_ptr<world> of;
        int came = 0;
    };
    std::mutex guard;
    std::map<std::string, entry> by_name;
    std::uint64_t next = 1;

    // Never destroyed: ranks may come from static destructors.
    static forming_worlds& instance()
    {
        static forming_worlds* const only = new forming_worlds;
        return *only;
    }
};

} // namespace

std::shared_ptr<world> meet(const std::string& name, int ranks)
{
    forming_worlds& forming = forming_worlds::instance();
    const std::lock_guard lock(forming.guard);
    auto& [of, came] = forming.by_name[name];
    if (!of) of = std::make_shared<world_of_threads>(ranks);
    std::shared_ptr<world> found = of;
    if (found->size() != ranks) return nullptr;
    if (++came == ranks) forming.by_name.erase(name);
    return found;
}

std::string new_name()
{
    forming_worlds& forming = forming_worlds::instance();
    const std::lock_guard lock(forming.guard);
    return std::to_string(forming.next++);
}

manners first_manners() { return {}; }

} // namespace collprobe::stand_in::nccl
