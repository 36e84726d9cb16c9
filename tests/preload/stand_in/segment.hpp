// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/// Memory that processes share, and how they wait for each other in it.
namespace collprobe::stand_in::nccl {

using shared_word = std::atomic<std::uint32_t>;
static_assert(shared_word::is_always_lock_free);

/// Waits while `word` is `seen`, at most that long. A thread of any process may wake it.
inline void wait_on(const shared_word& word, std::uint32_t seen, int milliseconds) noexcept
{
    const timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
    (void)syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}
inline void wake_all(const shared_word& word) noexcept
{
    (void)syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// A file that all ranks of a communicator map. It begins with zeros. Only what is written takes memory.
class segment {
public:
    segment(std::string path, std::size_t bytes) : path_(std::move(path)), bytes_(bytes)
    {
        const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0) return;
        if (ftruncate(file, static_cast<off_t>(bytes_)) == 0) {
            void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (mapped != MAP_FAILED) memory_ = static_cast<unsigned char*>(mapped);
        }
        close(file);
    }
    segment(const segment&) = delete;
    ~segment()
    {
        if (memory_ != nullptr) munmap(memory_, bytes_);
    }
    bool is_mapped() const { return memory_ != nullptr; }
    /// Nobody can find it any more; it goes when the last process does.
    void remove_name() const { (void)unlink(path_.c_str()); }
    template <class T>
    T* at(std::size_t offset) const
    {
        return reinterpret_cast<T*>(memory_ + offset);
    }

private:
    std::string path_;
    std::size_t bytes_;
    unsigned char* memory_ = nullptr;
};

} // namespace collprobe::stand_in::nccl
