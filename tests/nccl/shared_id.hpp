// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include <nccl.h>

#include "support/nccl_owner.hpp"

namespace collprobe::testing {

/// An id that rank 0 makes, for all ranks of the machine: by the file `name` in the folder RANKS_FOLDER, which ranks.sh
/// has made for this run. A name serves once.
inline ncclUniqueId shared_id(int rank, const std::string& name)
{
    const char* const folder = std::getenv("RANKS_FOLDER");
    if (folder == nullptr) throw std::runtime_error("RANKS_FOLDER is not set: start the ranks by bench/gpu/ranks.sh");
    const std::filesystem::path file = std::filesystem::path(folder) / name;
    ncclUniqueId id{};
    if (rank == 0) {
        id = new_nccl_id();
        const std::filesystem::path part = file.string() + ".part";
        std::ofstream(part, std::ios::binary).write(id.internal, sizeof id.internal);
        std::filesystem::rename(part, file); // all of it, or nothing
        return id;
    }
    for (int waited_ms = 0; !std::filesystem::exists(file); ++waited_ms) {
        if (waited_ms > 60'000) throw std::runtime_error("rank 0 has made no id within a minute");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!std::ifstream(file, std::ios::binary).read(id.internal, sizeof id.internal))
        throw std::runtime_error("no id in " + file.string());
    return id;
}

} // namespace collprobe::testing
