// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// STAND_IN_NCCL_COUNTS=file: at exit a line of JSON is appended: how often each function was entered. A child after
// fork() writes none.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "tests/preload/stand_in/nccl_names.hpp"
#include "tests/support/stand_in/stand_in.hpp"

namespace {

const pid_t process_of_the_library = getpid();

constexpr const char* names[] = {
#define STAND_IN_NCCL_NAME(name) #name,
    STAND_IN_NCCL_NAMES(STAND_IN_NCCL_NAME)
#undef STAND_IN_NCCL_NAME
};

__attribute__((destructor)) void write_counts()
{
    const char* const wanted = std::getenv("STAND_IN_NCCL_COUNTS");
    if (wanted == nullptr || getpid() != process_of_the_library) return;
    std::string line;
    for (const char* const name : names) {
        const std::uint64_t calls = collprobe::stand_in::calls(name);
        if (calls == 0) continue;
        line += (line.empty() ? "\"" : ", \"") + std::string(name) + "\": " + std::to_string(calls);
    }
    const char* const rank = std::getenv("RANK");
    line = std::string("{\"rank\": ") + (rank == nullptr ? "null" : rank) + ", \"calls\": {" + line + "}}\n";
    const int file = open(wanted, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::perror(wanted);
    if (file >= 0) close(file);
}

} // namespace
