// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include <collprobe/c/collprobe.h>
#include <collprobe/core/error.hpp>

/// The exchange of a step by the caller's all-gather.
namespace collprobe::inline COLLPROBE_ABI::c {

/// What a rank says before its message: whether the ranks' messages fit together is known before they travel. Its size
/// and its first two members stay the same in all versions.
struct step_heading {
    static constexpr std::uint64_t known_magic = 0x6f72706c6c6f63; ///< the bytes "collpro"

    std::uint64_t magic = known_magic;
    std::uint64_t version = 0;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 0;
    std::uint64_t serial = 0; ///< 1 for the first step
    std::uint64_t step = 0; ///< the caller's number
    std::uint64_t calls = 0; ///< calls and values that the rank has shown
    std::uint64_t digest = 0; ///< of these
    std::uint64_t bytes = 0; ///< of the message
    std::uint32_t every = 0;
    std::uint32_t expectations = 0;
    double false_alarms = 0;
    std::uint64_t unused[6] = {};
};
static_assert(sizeof(step_heading) == 128);

/// A call, or a value, that the caller has shown in a step.
struct shown_call {
    std::uint64_t digest; ///< of this call and those before it
    std::uint64_t token; ///< 0: a value
    int call; ///< `collprobeCall_t`; of a value -1 - `collprobeExpectation_t`
    int type; ///< -1: a number
    int operation;
    std::uint64_t count;
    const char* name;
    bool has_result;

    std::string text() const;
};

/// Sends the messages of a rank's steps by the caller's function. If the messages do not fit together, all ranks learn
/// so and no message is sent; the next step may go well. If the caller's function fails, no later step is sent.
class step_exchange {
public:
    struct failure {
        status code;
        std::string text;
    };

    step_exchange(const step_heading& of_rank, const char* communicator, collprobeAllGatherFunction_t function,
        void* context)
        : heading(of_rank), name(communicator), function_(function), context_(context)
    {
    }

    /// On the thread of the exchange. `shown` has `calls` of the heading. False if there are no messages.
    bool run(const step_heading& own, const std::vector<shown_call>* shown, const void* send, void* receive,
        std::size_t bytes) noexcept;

    /// Takes the oldest failure; false if there is none.
    bool take_failure(failure& out);
    /// Whether the caller's function has failed, and how.
    bool is_broken(std::string& text);

    // The thread of the caller sets these, and `all_gather` copies them.
    step_heading heading;
    const std::vector<shown_call>* shown = nullptr;
    const std::string name;

private:
    void fail(status code, const std::string& text);
    /// Calls the caller's function.
    bool gather(const void* send, void* receive, std::size_t bytes, std::uint64_t step);
    /// Why the messages do not fit; empty if they do.
    std::string difference(const step_heading& own, const std::vector<shown_call>& shown);
    std::string first_other_call(const step_heading& own, const std::vector<shown_call>& shown);

    collprobeAllGatherFunction_t function_;
    void* context_;
    std::vector<step_heading> headings_; ///< of all ranks
    std::vector<unsigned char> scratch_;
    bool stopped_ = false; ///< on the thread of the exchange

    std::mutex guard_; ///< of the members below
    std::deque<failure> failures_;
    std::string broken_;
};

} // namespace collprobe::c
