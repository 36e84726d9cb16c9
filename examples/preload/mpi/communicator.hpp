// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <collprobe/c/collprobe.h>

#include "../engine/call_period.hpp"
#include "exchange.hpp"
#include "mpi_library.hpp"

namespace collprobe_mpi {

enum class operation : unsigned char { all_reduce, reduce_scatter, all_gather, all_gather_v, broadcast, reduce };

/// A call of the program. What is not of this rank alone is alike on all ranks.
struct collective_call {
    const char* function = ""; ///< as the program calls it
    operation what{};
    MPI_Comm comm{};
    MPI_Datatype type{};
    MPI_Op op{}; ///< of a reduction
    std::uint64_t elements = 0; ///< in the call's own arguments
    int root = 0;
    const char* unseen = nullptr; ///< why it cannot be looked at; null: nothing speaks against it

    // Of this rank.
    const void* input = nullptr;
    std::uint64_t input_count = 0;
    const void* result = nullptr;
    std::uint64_t result_count = 0;
};

class communicator;

/// A call whose input was looked at.
struct open_call {
    communicator* of = nullptr; ///< null: it was not
    std::uint64_t token = 0;
    const void* result = nullptr;
    std::uint64_t result_count = 0;
};

/// The calls of one communicator, their steps and their probe.
class communicator {
public:
    explicit communicator(MPI_Comm comm);
    communicator(communicator&&) = delete;
    ~communicator();

    bool is_of_one_rank() const noexcept { return ranks_ == 1; }
    /// Ends the step before, if the call begins one, and looks at the input.
    open_call begin(const collective_call& call, std::unique_lock<std::mutex>& lock);
    void end(const open_call& call, bool succeeded);

    /// The calls from here on are of this step.
    void mark(std::uint64_t step);
    /// Sends what there is to send, and says what has been found.
    void progress();
    /// No more calls come.
    void finish(std::unique_lock<std::mutex>& lock);
    /// After `finish`, in place of a wait: whether all is done.
    bool is_done();
    /// Waits for the other ranks, as long as is sensible.
    void wait(std::unique_lock<std::mutex>& lock);

    std::uint64_t findings() const noexcept { return findings_; }
    void summarize() const;

private:
    /// What a step has found of a rank, or of none, in one call or several.
    struct news {
        std::string kind;
        int rank;
        std::uint64_t step;
        std::string text;
        std::uint64_t more; // calls
        bool is_known; // the step before had it
    };
    struct said_finding {
        std::string kind;
        int rank;
        std::uint64_t last_step; // by `steps_told_`
    };

    void count_step(const collective_call& call, bool is_seen, std::unique_lock<std::mutex>& lock);
    const char* reason_against(const collective_call& call) const;
    void open(MPI_Comm comm);
    void end_step(std::unique_lock<std::mutex>& lock);
    bool wait_for_steps(std::uint64_t most, std::unique_lock<std::mutex>& lock);
    void take_records();
    void take_record();
    void add_to_news(const collprobeFinding_t& finding);
    void say_news(const news& of) const;
    void stop(const char* reason);
    bool succeeded(collprobeResult_t result);
    [[gnu::format(printf, 2, 3)]] void give_up(const char* format, ...);

    int rank_ = 0;
    int ranks_ = 0;
    bool is_world_ = false;
    bool is_between_groups_ = false;
    bool is_finished_ = false;
    bool is_given_up_ = false;
    std::string name_;
    std::vector<int> world_ranks_; // empty where they are those of the world

    collprobe_preload::call_period period_;
    std::uint64_t calls_ = 0; // that could be looked at
    std::uint64_t step_ = 0;
    bool is_in_step_ = false; // a call has come
    bool is_due_ = true; // this step is looked at
    std::uint64_t steps_begun_ = 0;
    std::uint64_t seen_in_step_ = 0;

    std::unique_ptr<exchange> exchange_;
    collprobeProbe_t probe_ = nullptr;
    std::uint64_t steps_ended_ = 0;
    std::uint64_t steps_told_ = 0;
    std::uint64_t calls_seen_ = 0;
    std::uint64_t findings_ = 0;
    std::vector<news> news_;
    std::vector<said_finding> said_;
    int file_ = -1;
};

} // namespace collprobe_mpi
