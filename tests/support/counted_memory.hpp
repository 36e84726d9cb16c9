// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include <doctest/doctest.h>

namespace collprobe::testing {

/// Memory whose reads and writes are counted as a cache of 1 MiB in front of it would: pages are inaccessible until they
/// are touched, and the page that was first touched longest ago is inaccessible again when 1 MiB are open. So a pass
/// over the memory counts once, and so does what comes back to a page within 1 MiB. Prefetches do not count. One thread
/// at a time may touch such memory.
template <class T>
class counted_memory {
public:
    explicit counted_memory(std::size_t count) : size_((count * sizeof(T) + page - 1) / page * page)
    {
        void* const memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(memory != MAP_FAILED);
        bytes_ = static_cast<unsigned char*>(memory);
    }
    counted_memory(const counted_memory&) = delete;
    counted_memory& operator=(const counted_memory&) = delete;
    ~counted_memory() { munmap(bytes_, size_); }

    T* data() const { return reinterpret_cast<T*>(bytes_); }

    /// How many times `body()` passes over the memory.
    template <class Body>
    double passes(Body body)
    {
        REQUIRE(mprotect(bytes_, size_, PROT_NONE) == 0);
        counting = {bytes_, size_, 0, {}};
        struct sigaction ours = {}, before = {};
        ours.sa_sigaction = &touched;
        ours.sa_flags = SA_SIGINFO;
        REQUIRE(sigaction(SIGSEGV, &ours, &before) == 0);
        body();
        REQUIRE(sigaction(SIGSEGV, &before, nullptr) == 0);
        REQUIRE(mprotect(bytes_, size_, PROT_READ | PROT_WRITE) == 0);
        return static_cast<double>(counting.touched) * static_cast<double>(page) / static_cast<double>(size_);
    }

private:
    static constexpr std::size_t page = 4096;
    static constexpr std::size_t most_open = (std::size_t{1} << 20) / page;
    struct state {
        unsigned char* bytes;
        std::size_t size;
        std::size_t touched; ///< pages
        unsigned char* open[most_open];
    };
    static inline state counting{};

    static void touched(int, siginfo_t* what, void*)
    {
        auto* const at = static_cast<unsigned char*>(what->si_addr);
        if (at < counting.bytes || at >= counting.bytes + counting.size) {
            signal(SIGSEGV, SIG_DFL); // an error of the program
            return;
        }
        unsigned char* const begin = counting.bytes + static_cast<std::size_t>(at - counting.bytes) / page * page;
        unsigned char*& place = counting.open[counting.touched++ % most_open];
        if (place != nullptr) mprotect(place, page, PROT_NONE);
        place = begin;
        mprotect(begin, page, PROT_READ | PROT_WRITE);
    }

    std::size_t size_;
    unsigned char* bytes_ = nullptr;
};

} // namespace collprobe::testing
