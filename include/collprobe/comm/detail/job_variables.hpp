// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include <collprobe/core/error.hpp>

namespace collprobe::inline COLLPROBE_ABI::bootstrap::detail {

/// A limit beyond the size of any job: a larger number is a mistake.
inline constexpr int max_size = 1 << 20;

/// The variables by which a launcher tells a process its place; null if the launcher has no such variable.
struct launcher {
    const char* name;
    const char* rank;
    const char* size;
    const char* other_size;
    const char* local_rank;
    const char* local_size;
    const char* job_number;
    const char* other_job_number;
};

inline constexpr launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
        nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr, "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", nullptr},
    {"PMI", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr, nullptr},
    // SLURM_NTASKS is the number of tasks of the allocation, which may be larger than that of the step.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", nullptr,
        "SLURM_JOB_ID", "SLURM_STEP_ID"},
};
inline constexpr int launcher_count = sizeof launchers / sizeof launchers[0];
inline constexpr int torchrun = 0;
inline constexpr int slurm = 3;

/// A process's place in its job, as one launcher tells it.
struct place {
    int rank = 0;
    int size = 1;
    int local_rank = 0; ///< -1 if not told
    int local_size = 1; ///< -1 if not told
    std::string job_number; ///< the same on all ranks of the job; empty if there is none
    std::string told_by; ///< "RANK=0, WORLD_SIZE=2"
};

/// Reads the variables of this process's environment and refuses inconsistent values.
class environment {
public:
    explicit environment(const call_site& where) : where_(where) {}

    /// The value of a variable; empty if it is not set. A variable with an empty value is refused, because most often
    /// the user meant to fill it in.
    std::string text(const char* name) const
    {
        const char* const value = std::getenv(name);
        if (value == nullptr) return {};
        if (value[0] == '\0') refuse(std::string(name) + " is set but empty: give it a value or unset it");
        return value;
    }

    place ranks() const
    {
        int chosen = -1;
        place result;
        for (int i = 0; i < launcher_count; ++i) {
            if (!started_by(i)) continue;
            if (chosen < 0) {
                chosen = i;
                result = read(launchers[i]);
            } else if (!nested(chosen, i)) {
                check_agreement(launchers[chosen], result, launchers[i], read(launchers[i]));
            }
        }
        if (chosen < 0) {
            for (const launcher& each : launchers) {
                // Slurm sets its variables also in the shell of an allocation.
                if (&each == &launchers[slurm]) continue;
                for (const char* name : {each.local_rank, each.local_size}) {
                    if (is_set(name)) refuse(shown(name) + " is set, but " + each.rank + " is not");
                }
            }
        }
        return result;
    }

private:
    [[noreturn]] void refuse(const std::string& message) const
    {
        throw error(status::invalid_argument, message, {.call = "bootstrap::job::from_environment", .where = where_});
    }

    static bool is_set(const char* name) { return name != nullptr && std::getenv(name) != nullptr; }

    static std::string shown(const char* name)
    {
        const char* const value = std::getenv(name);
        return std::string(name) + "=" + (value == nullptr ? "" : value);
    }

    int number(const char* name, int least, int most) const
    {
        const std::string digits = text(name);
        long value = 0;
        bool good = digits.size() <= 9;
        for (const char digit : digits) {
            good = good && digit >= '0' && digit <= '9';
            if (good) value = 10 * value + (digit - '0');
        }
        if (!good || value < least || value > most) {
            refuse(shown(name) + ": expected a number from " + std::to_string(least) + " to "
                + std::to_string(most));
        }
        return static_cast<int>(value);
    }

    /// A shell in a Slurm allocation has SLURM_NTASKS, but only a started task has a number.
    static bool started_by(int i)
    {
        return is_set(launchers[i].rank) || (i != slurm && is_set(launchers[i].size));
    }

    /// Whether `outer` started the launcher `inner`, so that they count different things.
    static bool nested(int inner, int outer)
    {
        if (inner == torchrun) return is_set(launchers[torchrun].job_number);
        return outer == slurm;
    }

    place read(const launcher& from) const
    {
        const char* const size = !is_set(from.size) && is_set(from.other_size) ? from.other_size : from.size;
        if (!is_set(from.rank)) refuse(shown(size) + " is set, but " + from.rank + " is not");
        if (!is_set(size)) refuse(shown(from.rank) + " is set, but " + size + " is not");
        place result;
        result.size = number(size, 1, max_size);
        result.rank = number(from.rank, 0, max_size);
        result.told_by = shown(from.rank) + ", " + shown(size);
        if (result.rank >= result.size) refuse(result.told_by + ": expected a rank below the size");

        const bool alone = result.size == 1;
        result.local_rank = alone ? 0 : -1;
        result.local_size = alone ? 1 : -1;
        if (is_set(from.local_size)) {
            result.local_size = number(from.local_size, 1, max_size);
            if (result.local_size > result.size) {
                refuse(shown(from.local_size) + ", " + shown(size)
                    + ": expected no more local ranks than ranks");
            }
        }
        if (is_set(from.local_rank)) {
            const bool known = result.local_size > 0;
            const char* const limit = known && !alone ? from.local_size : size;
            result.local_rank = number(from.local_rank, 0, max_size);
            if (result.local_rank >= (known ? result.local_size : result.size)) {
                refuse(shown(from.local_rank) + ", " + shown(limit) + ": expected a local rank below it");
            }
        }
        result.job_number = job_number(from);
        return result;
    }

    static std::string job_number(const launcher& from)
    {
        if (!is_set(from.job_number)) return {};
        std::string result = shown(from.job_number);
        if (is_set(from.other_job_number)) result += ", " + shown(from.other_job_number);
        return result;
    }

    void check_agreement(
        const launcher& one, const place& first, const launcher& other, const place& second) const
    {
        if (first.rank == second.rank && first.size == second.size) return;
        refuse(first.told_by + " (" + one.name + ") and " + second.told_by + " (" + other.name
            + ") disagree: unset those of the launcher that did not start this process");
    }

    call_site where_;
};

} // namespace collprobe::bootstrap::detail
