// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/report/file.hpp>

#include "communicator.hpp"
#include "settings.hpp"

namespace collprobe_preload {

/// Writes what the communicators have measured, on a thread of its own: a file of JSON lines for the process,
/// `<COLLPROBE_DIR>/<host>-pid<pid>.jsonl`. README.md lists the lines. The thread waits for no GPU.
class writer {
public:
    explicit writer(const settings& options);

    /// Creates the file and begins the thread. False if there can be no thread.
    bool start();
    const std::string& failure() const noexcept { return failure_; }
    std::uint64_t started_ns() const noexcept { return process_.started_ns; }
    /// What the records of a communicator say of it. `device`: its UUID.
    collprobe::run_record run_of(const communicator& of, const std::string& device) const;

    /// Any thread; the communicator is never freed.
    void add(communicator* made) noexcept;
    communicator* first() const noexcept { return first_.load(std::memory_order_acquire); }
    /// Waits until the records of an ended communicator are written, but no longer than the GPU and one
    /// second allow.
    void wait_for(const communicator& ended) noexcept;

private:
    void work() noexcept;
    void finish() noexcept;
    bool look_at(communicator& each);
    bool take(communicator& of, slot& next);
    void begin(communicator& of);
    void end(communicator& of);
    void write_call(communicator& of, const slot& done);
    void tell_nonfinite(const communicator& of, const slot& done);
    void write_coverage(const communicator& of);
    void read_control_file();
    void flush() noexcept;

    const settings& options_;
    collprobe::run_record process_;
    std::string failure_;
    std::string path_;
    std::optional<collprobe::report::line_file> file_;
    std::string lines_; ///< not written yet
    std::uint64_t lost_ = 0; ///< records that could not be written
    int told_alarms_ = 0;
    std::string last_order_; ///< in the control file
    std::atomic<communicator*> first_{nullptr};
    std::atomic<std::uint32_t> rounds_{0}; ///< of the thread over all communicators
    std::atomic<bool> stopping_{false};
    std::atomic<bool> stopped_{false};
};

/// The UUID of a device as nvidia-smi prints it; empty if the driver cannot tell.
std::string uuid_of(int device);
/// Appends bytes in base64 (RFC 4648).
void append_base64(std::string& out, const unsigned char* bytes, std::size_t count);

} // namespace collprobe_preload
