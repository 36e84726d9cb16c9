// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "mpi_library.hpp"

namespace collprobe_mpi {

/// Gathers the messages of a probe over the ranks of a communicator, without a thread level that the program did not
/// ask for: the probe's thread hands its message over, and the program's thread sends it by non-blocking calls of MPI,
/// within calls that the program makes anyway. A duplicate of the communicator carries the messages.
///
/// The messages go in frames: all-gathers whose size every rank knows from the frames before. A probe sends two
/// messages a step, so a frame has room for a message as long as the last but one; a longer message follows in an
/// all-gather of its own. A rank's last frame has no message. So ranks that disagree about the number or the size of
/// messages find that out from the same frame, and none waits for a message that does not come.
class exchange {
public:
    /// On the program's thread. Starts to duplicate `comm`: collective, but waits for no rank.
    explicit exchange(MPI_Comm comm);
    exchange(exchange&&) = delete;

    /// On the probe's thread: blocks until all messages are there. Not 0: the exchange has ended before.
    int all_gather(const void* send, void* receive, std::size_t bytes);

    /// On the program's thread: does what can be done without a wait.
    void progress();
    /// The next frame of this rank is its last one.
    void leave() { is_leaving_ = true; }
    /// Whether the last frame is through, or MPI has failed. Then `all_gather` fails.
    bool has_ended() const noexcept { return stage_ == stage::ended; }
    /// Ends the exchange without the other ranks. A frame under way stays with MPI.
    void abandon();

    /// Whether a message is being sent, or waits for that.
    bool is_busy();
    /// A sentence without a full stop.
    const std::string& why_it_ended() const noexcept { return why_; }

private:
    enum class stage : unsigned char { opening, idle, frame, message, ended };
    struct header {
        std::uint64_t is_last = 0;
        std::uint64_t bytes = 0; // of the message
    };

    bool is_done();
    void send_frame();
    void read_frame();
    header header_of(int rank, std::size_t apart) const;
    void say_why(std::size_t apart);
    void read_messages(const unsigned char* messages, std::size_t apart);
    void start(std::size_t bytes, stage next);
    void answer(bool succeeded);

    MPI_Comm channel_{};
    MPI_Request request_{};
    stage stage_ = stage::opening;
    bool is_leaving_ = false;
    int rank_ = 0;
    int ranks_ = 0;
    std::string why_ = "MPI has failed";
    std::size_t room_ = 0; // of a frame, for a message
    std::size_t last_bytes_ = 0; // of the last message: the room of the next frame but one
    std::vector<unsigned char> own_;
    std::vector<unsigned char> all_;

    // Between the two threads.
    std::mutex mutex_;
    std::condition_variable answered_;
    const void* send_ = nullptr; // null: no message
    void* receive_ = nullptr;
    std::size_t bytes_ = 0;
    bool succeeded_ = false;
    bool is_closed_ = false;
};

} // namespace collprobe_mpi
