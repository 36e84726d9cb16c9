// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../hooks.h"

namespace collprobe_preload {

/// What the variables COLLPROBE_* of the environment ask for. README.md has the list.
struct settings {
    enum class channel_kind : std::uint8_t { files, inband };
    enum class step_kind : std::uint8_t { automatic, calls };
    enum class log_kind : std::uint8_t { off, warn, info };

    std::string directory; ///< of all files
    bool jsonl = true; ///< the ranks' own files
    bool prometheus = false;
    bool nvtx = false;
    std::uint64_t every = 0; ///< 0: by the budget
    double budget = 0.01; ///< share of the GPU's time
    bool probed_kinds[collprobe_kinds] = {};
    std::uint64_t least_bytes = 8192; ///< of a rank's input or result, whichever is larger
    std::vector<std::string> communicators; ///< names or keys; empty: all
    bool audit = true;
    channel_kind channel = channel_kind::files;
    step_kind step = step_kind::automatic;
    std::string step_range = "training_step_"; ///< what a range of NVTX that is a step begins with
    double false_alarms_per_step = 1e-4;
    std::string control_file;
    log_kind log = log_kind::warn;
    int global_rank = -1; ///< as the launcher tells it; -1: unknown
    std::string run; ///< the job's name

    /// What the user set, for the file: name and value.
    std::vector<std::pair<std::string, std::string>> given;
    /// What could not be used, each a sentence.
    std::vector<std::string> warnings;

    /// Reads the environment of the process, once.
    static settings from_environment();

    bool wants(const char* name, std::uint64_t key) const;
};

inline constexpr std::uint64_t probe_never = std::uint64_t{1} << 62; ///< steps from one that is probed to the next
/// What a control file says: K of "every=K", 0 for "every=auto", `probe_never` for "off"; nothing for any other text.
std::optional<std::uint64_t> operators_order(std::string_view text) noexcept;

/// One line on the standard error: "collprobe: ...".
void say(const std::string& line) noexcept;

} // namespace collprobe_preload
