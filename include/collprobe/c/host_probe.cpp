// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>

#include <collprobe/c/detail/probe.hpp>
#include <collprobe/device/host/device.hpp>

namespace collprobe::inline COLLPROBE_ABI::c {

namespace {

/// A communicator whose one collective is the all-gather of the caller.
class callback_communicator : public collectives<callback_communicator, host::device> {
public:
    explicit callback_communicator(step_exchange& by) noexcept : by_(&by) {}
    int rank() const noexcept { return static_cast<int>(by_->heading.rank); }
    int size() const noexcept { return static_cast<int>(by_->heading.ranks); }
    const std::string& name() const noexcept { return by_->name; }
    std::int64_t timeout_ms() const noexcept { return -1; } // the caller's function has one of its own

    static constexpr bool has_collective(collective what) noexcept { return what == collective::all_gather; }
    template <element T>
    void make(const collective_call& call, stream_ref on) const
    {
        step_heading own = by_->heading;
        own.bytes = call.send_count * sizeof(T);
        on.enqueue([by = by_, calls = by_->shown, own, send = call.send, receive = call.receive] {
            by->run(own, calls, send, receive, static_cast<std::size_t>(own.bytes));
        });
    }

private:
    step_exchange* by_;
};

/// Buffers are read at once. The exchange has a thread, so that a late peer holds up no read.
struct host_streams {
    host::stream reads = host::stream::at_once();
    host::stream messages;

    host::stream_ref of(collprobeStream_t) const noexcept { return reads; }
    host::stream_ref exchange(collprobeStream_t) const noexcept { return messages; }
};

} // namespace

any_probe* make_host_probe(step_exchange& exchange, const probe_options& options)
{
    return new probe_of<callback_communicator, host_streams>(options, host_streams(), exchange);
}

} // namespace collprobe::c
