// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include <collprobe/device/host/stream.hpp>

/// What the handles of the stand-in runtime point at. CUDA's headers only declare these structures.
///
/// Locks protect the runtime's own tables. None is held while work runs, and threads that serve
/// streams take none: they would order streams that nothing orders.
namespace collprobe::stand_in {

/// Ends streams on a thread of its own. CUDA's destroy calls do not wait, and a host stream's
/// destructor does; joining it on the caller's thread would also order the caller after its work.
class reaper {
public:
    static reaper& instance()
    {
        static reaper own;
        return own;
    }
    void take(std::unique_ptr<host::stream> dying)
    {
        const std::lock_guard lock(guard_);
        queue_.push_back(std::move(dying));
        if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
        changed_.notify_one();
    }
    /// Waits until all that was taken has ended.
    void drain()
    {
        std::unique_lock lock(guard_);
        drained_.wait(lock, [this] { return queue_.empty() && !ending_; });
    }
    ~reaper()
    {
        {
            const std::lock_guard lock(guard_);
            stop_ = true;
            changed_.notify_one();
        }
        if (thread_.joinable()) thread_.join();
    }

private:
    void run()
    {
        std::unique_lock lock(guard_);
        for (;;) {
            changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
            if (queue_.empty()) return;
            std::vector<std::unique_ptr<host::stream>> dying;
            dying.swap(queue_);
            ending_ = true;
            lock.unlock();
            dying.clear();
            lock.lock();
            ending_ = false;
            drained_.notify_all();
        }
    }

    std::mutex guard_;
    std::condition_variable changed_;
    std::condition_variable drained_;
    std::vector<std::unique_ptr<host::stream>> queue_;
    bool ending_ = false;
    bool stop_ = false;
    std::thread thread_;
};

/// One captured call, in the order of the calls: work, a record or a wait on a branch. A branch is a
/// stream that took part; event numbers are per record, so recording anew disturbs no earlier wait.
struct graph_operation {
    std::size_t branch = 0;
    std::function<void(host::stream_ref)> issue; ///< empty for records and waits
    std::size_t event = 0;
    bool is_record = false;
};

struct graph_body {
    std::vector<graph_operation> operations;
    std::size_t branches = 1; ///< branch 0 is the stream that began the capture
    std::size_t events = 0;
};

/// How many operations of each branch a point comes after.
using frontier = std::vector<std::size_t>;

inline void merge(frontier& into, const frontier& other)
{
    if (into.size() < other.size()) into.resize(other.size());
    for (std::size_t branch = 0; branch < other.size(); ++branch) {
        if (into[branch] < other[branch]) into[branch] = other[branch];
    }
}

/// A capture under way or ended. All of it is protected by `captures::guard`.
struct capture {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    unsigned long long number = 0;
    std::thread::id owner;
    bool valid = true;
    bool ended = false;
    graph_body body;
    std::vector<CUstream_st*> members; ///< per branch; null if the stream was destroyed
    std::vector<frontier> reached; ///< per branch, what its end comes after
    frontier work; ///< per branch, how many operations it has

    std::size_t add_branch(CUstream_st* stream, frontier start)
    {
        members.push_back(stream);
        reached.push_back(std::move(start));
        work.push_back(0);
        body.branches = members.size();
        return members.size() - 1;
    }
    void add_work(std::size_t branch, std::function<void(host::stream_ref)> issue)
    {
        body.operations.push_back({branch, std::move(issue), 0, false});
        frontier& end = reached[branch];
        if (end.size() <= branch) end.resize(branch + 1);
        end[branch] = ++work[branch];
    }
    /// Whether the end of the origin comes after all work of all branches.
    bool joined() const
    {
        frontier end = reached[0];
        end.resize(work.size());
        for (std::size_t branch = 0; branch < work.size(); ++branch) {
            if (end[branch] < work[branch]) return false;
        }
        return true;
    }
};

/// All captures under way. Where there is none, calls look at an atomic count only.
struct captures {
    static captures& instance()
    {
        static captures own;
        return own;
    }
    std::mutex guard;
    std::vector<std::shared_ptr<capture>> active;
    std::atomic<unsigned> count{0};
    unsigned long long next_number = 1;
};

/// What an event recorded in a capture stands for.
struct captured_point {
    std::shared_ptr<capture> of;
    std::size_t event = 0;
    frontier reached;
};

} // namespace collprobe::stand_in

struct CUstream_st {
    CUstream_st(int on, bool waits_for_default, bool default_stream)
        : device(on),
          blocking(waits_for_default),
          is_default(default_stream),
          queue(std::make_unique<collprobe::host::stream>())
    {
    }
    static unsigned long long next_number()
    {
        static std::atomic<unsigned long long> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
    }
    ~CUstream_st() { collprobe::stand_in::reaper::instance().take(std::move(queue)); }

    const int device;
    const bool blocking;
    const bool is_default;
    const unsigned long long number = next_number(); ///< never that of another stream
    std::unique_ptr<collprobe::host::stream> queue;
    std::atomic<bool> capturing{false};
    // Protected by captures::guard.
    std::shared_ptr<collprobe::stand_in::capture> capture;
    std::size_t branch = 0;
};

struct CUevent_st {
    using time_point = std::chrono::steady_clock::time_point;

    CUevent_st(int on, bool is_timed) : device(on), timed(is_timed) {}
    const int device;
    const bool timed;
    std::mutex guard;
    collprobe::host::event recorded;
    std::shared_ptr<time_point> passed; ///< when the stream got there; written before `recorded` is over
    std::shared_ptr<collprobe::stand_in::captured_point> captured;
};

struct CUgraph_st {
    std::shared_ptr<const collprobe::stand_in::graph_body> body;
};

struct CUgraphExec_st {
    explicit CUgraphExec_st(std::shared_ptr<const collprobe::stand_in::graph_body> what)
        : body(std::move(what)), events(body->events)
    {
        for (std::size_t branch = 1; branch < body->branches; ++branch) {
            branches.push_back(std::make_unique<collprobe::host::stream>());
        }
    }
    ~CUgraphExec_st()
    {
        for (auto& branch : branches) collprobe::stand_in::reaper::instance().take(std::move(branch));
    }

    /// Every branch starts after the work on `on`, and the work on `on` after this call follows all
    /// branches. A graph does not overlap with its own last launch.
    void launch(collprobe::host::stream_ref on)
    {
        const std::lock_guard lock(guard);
        if (last.recorded()) on.wait(last);
        collprobe::host::event edge;
        edge.record(on);
        for (const auto& branch : branches) branch->wait(edge);
        for (const collprobe::stand_in::graph_operation& step : body->operations) {
            const collprobe::host::stream_ref branch
                = step.branch == 0 ? on : *branches[step.branch - 1];
            if (step.issue) {
                step.issue(branch);
            } else if (step.is_record) {
                events[step.event].record(branch);
            } else {
                branch.wait(events[step.event]);
            }
        }
        for (const auto& branch : branches) {
            edge.record(*branch);
            on.wait(edge);
        }
        last.record(on);
    }

    std::mutex guard;
    const std::shared_ptr<const collprobe::stand_in::graph_body> body;
    std::vector<collprobe::host::event> events;
    std::vector<std::unique_ptr<collprobe::host::stream>> branches;
    collprobe::host::event last;
};
