// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "communicator.hpp"
#include "mpi_library.hpp"

namespace collprobe_mpi {

/// What the variables COLLPROBE_* of the environment ask for.
struct settings {
    bool is_enabled = true;
    std::string directory; ///< of the JSON lines; empty: none
    std::string run;
    std::uint64_t every = 1;
    std::uint64_t least_bytes = 8192; ///< of a call that is looked at
    std::uint64_t calls_of_step = 0; ///< 0: by the period
    double false_alarms = 0; ///< 0: as the library has it
    std::uint64_t wait_s = 60; ///< for other ranks, beyond what the program itself waits

    static settings from_environment();
};
const settings& wishes();

/// The layer of this process. It begins with the first collective call and ends in MPI_Finalize.
class layer {
public:
    /// Never destroyed: the process may end while a probe's thread waits.
    static layer& get();

    open_call begin(const collective_call& call);
    void end(const open_call& call, bool succeeded);
    /// A non-blocking call whose request is `request`.
    void keep(MPI_Request request, const open_call& call);
    /// Which of the requests are of such calls, by their place. Empty: none, without a search.
    std::vector<std::size_t> find_kept(std::size_t count, const MPI_Request* requests);
    void end_kept(MPI_Request request, bool succeeded);
    bool has_kept() const noexcept { return kept_count_.load(std::memory_order_relaxed) != 0; }
    void mark(std::uint64_t step);
    void progress();

    /// On behalf of a communicator: its step ends, and results that have not come do not count any more.
    void drop_kept(const communicator& of);
    void count_unseen(const collective_call& call, const char* reason);
    std::uint64_t next_file() noexcept { return files_++; }

private:
    struct kept_call {
        MPI_Request request;
        open_call call;
    };
    struct unseen_calls {
        const char* function;
        const char* reason;
        MPI_Datatype type;
        MPI_Op op;
        std::string text; // of it, without the number
        std::uint64_t count;
    };

    layer() = default;
    void start();
    communicator* find(MPI_Comm comm);
    void end_freed(std::unique_lock<std::mutex>& lock);
    void finalize();
    void summarize() const;
    static int on_delete(MPI_Comm comm, int key, void* value, void* extra);

    std::mutex mutex_;
    int key_ = 0; // of the attribute that holds a communicator's object
    bool is_started_ = false;
    bool is_over_ = false;
    std::vector<std::unique_ptr<communicator>> communicators_;
    std::vector<communicator*> freed_; // by the program
    std::vector<kept_call> kept_;
    std::atomic<std::size_t> kept_count_{0};
    std::uint64_t files_ = 0;
    std::uint64_t late_results_ = 0;
    std::vector<unseen_calls> unseen_;
    bool has_mark_ = false;
    std::uint64_t mark_ = 0;
};

} // namespace collprobe_mpi
