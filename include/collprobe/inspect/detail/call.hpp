// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <collprobe/comm/capabilities.hpp>
#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// Makes collective calls one after the other, from host memory to host memory; the host waits for each.
template <element T>
class blocking_calls {
public:
    blocking_calls(const blocking_calls&) = delete;
    blocking_calls& operator=(const blocking_calls&) = delete;
    virtual ~blocking_calls() = default;

    /// Host memory: the data of the next call (`send`) and the result of the last one (`received`).
    T* send() const noexcept { return send_; }
    const T* received() const noexcept { return received_; }

    /// Sums the first `count` elements of every rank's `send()`.
    virtual void all_reduce(std::uint64_t count) = 0;
    /// As `all_reduce`, on the current contents of device memory; host memory is unchanged. Returns nanoseconds.
    virtual std::int64_t timed_all_reduce(std::uint64_t count) = 0;
    /// Gathers the first `count` elements of every rank's `send()`, in the order of the ranks.
    virtual void all_gather(std::uint64_t count) = 0;

protected:
    blocking_calls() = default;

    T* send_ = nullptr;
    const T* received_ = nullptr;
};

/// The same over a communicator, on any device.
template <element T, communicator Comm>
class blocking_calls_over final : public blocking_calls<T> {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

public:
    blocking_calls_over(Comm& comm, stream_ref on, std::uint64_t send, std::uint64_t receive, call_site where)
        : comm_(comm), on_(on), where_(where), memory_(timeout_of(comm), send, receive)
    {
        this->send_ = memory_->host_send.data();
        this->received_ = memory_->host_received.data();
    }

    void all_reduce(std::uint64_t count) override
    {
        copied(count, count, [&, this] { enqueue_all_reduce(count); });
    }
    std::int64_t timed_all_reduce(std::uint64_t count) override
    {
        const std::int64_t begin = deadline::now_ns();
        enqueue_marked(memory_->done, on_, [&, this] { enqueue_all_reduce(count); });
        wait();
        return deadline::now_ns() - begin;
    }
    void all_gather(std::uint64_t count) override
    {
        const std::uint64_t all = count * static_cast<std::uint64_t>(comm_.size());
        copied(count, all, [&] {
            comm_.all_gather(
                view<const T>(memory_->send.data(), count), view<T>(memory_->received.data(), all), on_, where_);
        });
    }

private:
    struct memory {
        memory(std::uint64_t to_send, std::uint64_t to_receive)
            : host_send(to_send), host_received(to_receive), send(to_send), received(to_receive)
        {
        }
        bool finished_by(deadline until) const noexcept { return detail::finished_by(until, done); }

        typename device::template host_buffer<T> host_send;
        typename device::template host_buffer<T> host_received;
        typename device::template buffer<T> send;
        typename device::template buffer<T> received;
        typename device::event done;
    };

    template <class Call>
    void copied(std::uint64_t out, std::uint64_t back, Call call)
    {
        enqueue_marked(memory_->done, on_, [&] {
            device::copy(
                on_, view<const T>(memory_->host_send.data(), out), view<T>(memory_->send.data(), out), where_);
            call();
            device::copy(on_, view<const T>(memory_->received.data(), back),
                view<T>(memory_->host_received.data(), back), where_);
        });
        wait();
    }
    void enqueue_all_reduce(std::uint64_t count)
    {
        comm_.all_reduce(view<const T>(memory_->send.data(), count), view<T>(memory_->received.data(), count),
            reduction::sum, on_, where_);
    }
    /// Waits, with the communicator's deadline if it has one.
    void wait() { synchronize(comm_, on_, where_); }

    Comm& comm_;
    stream_ref on_;
    call_site where_;
    in_flight<memory> memory_; ///< if a call has failed, its work may still use the memory
};

} // namespace collprobe::detail
