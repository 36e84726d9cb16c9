// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <collprobe/core/record.hpp>
#include <collprobe/core/record/inspection.hpp>

namespace collprobe::inline COLLPROBE_ABI::report {

/// Something that takes the records of a run: derive from it for a format of one's own. `sinks` calls it, from one
/// thread, in this order: `open`, records, `close`.
/// Errors: every function may throw. The sink is not called again then, and `sinks` tells it once.
class sink {
public:
    virtual ~sink() = default;

    /// What the message about a failure names: the path of the file, for instance.
    virtual std::string target() const = 0;
    /// Before the first record.
    virtual void open(const run_record&) {}
    virtual void on_step(const step_record&, const record_context&) {}
    virtual void on_alarm(const finding&, const record_context&) {}
    virtual void on_inspection(const inspection&, const record_context&) {}
    /// Behind the records that were there, and at least once a second: where a sink that writes its file as a whole
    /// may do so.
    virtual void flush(const record_context&) {}
    /// Behind the last record.
    virtual void close(const record_context&) {}

protected:
    sink() = default;
    sink(const sink&) = default;
    sink(sink&&) = default;
    sink& operator=(const sink&) = default;
    sink& operator=(sink&&) = default;
};

} // namespace collprobe::report
