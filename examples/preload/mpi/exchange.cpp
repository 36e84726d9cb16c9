// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace collprobe_mpi {

exchange::exchange(MPI_Comm comm)
{
    mpi().Comm_rank(comm, &rank_);
    mpi().Comm_size(comm, &ranks_);
    if (mpi().Comm_idup(comm, &channel_, &request_) != MPI_SUCCESS) abandon();
}

int exchange::all_gather(const void* send, void* receive, std::size_t bytes)
{
    std::unique_lock lock(mutex_);
    if (is_closed_) return 1;
    send_ = send;
    receive_ = receive;
    bytes_ = bytes;
    answered_.wait(lock, [&, this] { return send_ == nullptr; });
    return succeeded_ ? 0 : 1;
}

void exchange::answer(bool succeeded)
{
    {
        const std::lock_guard lock(mutex_);
        if (!succeeded) is_closed_ = true;
        if (send_ == nullptr) return;
        succeeded_ = succeeded;
        send_ = nullptr;
    }
    answered_.notify_one();
}

bool exchange::is_busy()
{
    const std::lock_guard lock(mutex_);
    return send_ != nullptr;
}

void exchange::abandon()
{
    stage_ = stage::ended;
    answer(false);
}

bool exchange::is_done()
{
    int done = 0;
    MPI_Status status; // MPI_STATUS_IGNORE is an object of the library
    if (mpi().Test(&request_, &done, &status) == MPI_SUCCESS) return done != 0;
    abandon();
    return false;
}

void exchange::progress()
{
    // Each stage may lead to the next at once.
    for (;;) {
        switch (stage_) {
        case stage::opening:
            if (!is_done()) return;
            mpi().Comm_set_errhandler(channel_, mpi().errors_return);
            stage_ = stage::idle;
            break;
        case stage::idle:
            if (!is_leaving_ && !is_busy()) return;
            send_frame();
            break;
        case stage::frame:
            if (!is_done()) return;
            read_frame();
            break;
        case stage::message:
            if (!is_done()) return;
            read_messages(all_.data(), last_bytes_);
            break;
        case stage::ended: return;
        }
    }
}

void exchange::start(std::size_t bytes, stage next)
{
    all_.resize(std::max(all_.size(), bytes * static_cast<std::size_t>(ranks_)));
    const int count = static_cast<int>(bytes);
    stage_ = next;
    if (mpi().Iallgather(own_.data(), count, mpi().byte, all_.data(), count, mpi().byte, channel_, &request_)
        != MPI_SUCCESS) {
        abandon();
    }
}

void exchange::send_frame()
{
    header own;
    own_.resize(std::max(own_.size(), sizeof own + room_));
    {
        const std::lock_guard lock(mutex_);
        if (send_ == nullptr) own.is_last = 1;
        else if (bytes_ > std::numeric_limits<int>::max() - sizeof own) own.is_last = 1;
        else own.bytes = bytes_;
        if (own.bytes != 0 && own.bytes <= room_) std::memcpy(own_.data() + sizeof own, send_, bytes_);
    }
    std::memcpy(own_.data(), &own, sizeof own);
    start(sizeof own + room_, stage::frame);
}

void exchange::read_frame()
{
    const std::size_t apart = sizeof(header) + room_;
    std::uint64_t least = header_of(0, apart).bytes;
    std::uint64_t most = least;
    bool is_last = false;
    for (int rank = 0; rank < ranks_; ++rank) {
        const header of = header_of(rank, apart);
        is_last = is_last || of.is_last != 0;
        least = std::min(least, of.bytes);
        most = std::max(most, of.bytes);
    }
    if (is_last || least != most) {
        say_why(apart);
        abandon();
        mpi().Comm_free(&channel_);
        return;
    }
    const bool is_inside = most <= room_;
    room_ = std::exchange(last_bytes_, most);
    if (is_inside) {
        read_messages(all_.data() + sizeof(header), apart);
    } else {
        own_.resize(std::max<std::size_t>(own_.size(), most));
        {
            const std::lock_guard lock(mutex_);
            if (send_ != nullptr) std::memcpy(own_.data(), send_, bytes_);
        }
        start(most, stage::message);
    }
}

exchange::header exchange::header_of(int rank, std::size_t apart) const
{
    header of;
    std::memcpy(&of, all_.data() + static_cast<std::size_t>(rank) * apart, sizeof of);
    return of;
}

/// Names the first rank that has left, or else one whose message has another size than most.
void exchange::say_why(std::size_t apart)
{
    std::vector<std::uint64_t> sizes;
    for (int rank = 0; rank < ranks_; ++rank) {
        if (header_of(rank, apart).is_last != 0) {
            why_ = "rank " + std::to_string(rank) + " sends no more records";
            return;
        }
        sizes.push_back(header_of(rank, apart).bytes);
    }
    std::nth_element(sizes.begin(), sizes.begin() + ranks_ / 2, sizes.end());
    const std::uint64_t usual = sizes[static_cast<std::size_t>(ranks_ / 2)];
    for (int rank = 0; rank < ranks_; ++rank) {
        if (header_of(rank, apart).bytes == usual) continue;
        why_ = "rank " + std::to_string(rank) + " has made another number of calls in a step";
        return;
    }
}

void exchange::read_messages(const unsigned char* messages, std::size_t apart)
{
    {
        const std::lock_guard lock(mutex_);
        for (int rank = 0; send_ != nullptr && rank < ranks_; ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            std::memcpy(static_cast<unsigned char*>(receive_) + at * bytes_, messages + at * apart, bytes_);
        }
    }
    stage_ = stage::idle;
    answer(true);
}

} // namespace collprobe_mpi
