// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/error.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/wait.hpp>
#include <collprobe/device/in_flight.hpp>
#include <collprobe/inspect/detail/rank_exchange.hpp>

namespace collprobe::inline COLLPROBE_ABI::detail {

/// What the inspector calls. Collective: all ranks make the same calls, and the host waits for each.
template <element T>
class summing_calls {
public:
    summing_calls(const summing_calls&) = delete;
    summing_calls& operator=(const summing_calls&) = delete;
    virtual ~summing_calls() = default;

    /// Host memory: the data of the next call (`send`) and the result of the last one (`received`).
    T* send() const noexcept { return send_; }
    const T* received() const noexcept { return received_; }

    /// Sums the first `count` elements of every rank's `send()`.
    virtual void all_reduce(std::uint64_t count) = 0;
    /// As `all_reduce`, on the current contents of device memory; host memory is unchanged. Returns nanoseconds.
    virtual std::int64_t timed_all_reduce(std::uint64_t count) = 0;

protected:
    summing_calls(T* send, const T* received) : send_(send), received_(received) {}

private:
    T* send_;
    const T* received_;
};

/// Makes collective calls one after the other, from host memory to host memory on any device; the host waits for each.
template <element T, communicator Comm>
class blocking_calls {
    using device = typename Comm::device;
    using stream_ref = stream_ref_of<Comm>;

public:
    blocking_calls(Comm& comm, stream_ref on, std::uint64_t send, std::uint64_t receive, call_site where)
        : comm_(comm), on_(on), where_(where), memory_(comm.timeout_ms(), send, receive)
    {
    }

    T* send() const noexcept { return memory_->host_send.data(); }
    const T* received() const noexcept { return memory_->host_received.data(); }

    void all_reduce(std::uint64_t count)
    {
        copied(count, count, [&, this] { enqueue_all_reduce(count); });
    }
    std::int64_t timed_all_reduce(std::uint64_t count)
    {
        const std::int64_t begin = deadline::now_ns();
        enqueue_marked(memory_->done, on_, [&, this] { enqueue_all_reduce(count); });
        wait();
        return deadline::now_ns() - begin;
    }
    /// Gathers the first `count` elements of every rank's `send()`, in the order of the ranks.
    void all_gather(std::uint64_t count)
    {
        const std::uint64_t all = count * static_cast<std::uint64_t>(comm_.size());
        copied(count, all, [&] {
            comm_.all_gather(
                view<const T>(memory_->send.data(), count), view<T>(memory_->received.data(), all), on_, where_);
        });
    }

protected:
    Comm& comm_;
    stream_ref on_;
    call_site where_;

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
    void wait() { comm_.synchronize(on_, where_); }

    in_flight<memory> memory_; ///< if a call has failed, its work may still use the memory
};

/// What the inspector calls, over a communicator.
template <element T, communicator Comm>
class calls_over final : blocking_calls<T, Comm>, public summing_calls<T>, public rank_exchange {
    using sums = blocking_calls<T, Comm>;

public:
    /// Sums of at most `count` elements.
    calls_over(Comm& comm, stream_ref_of<Comm> on, std::uint64_t count, call_site where)
        : sums(comm, on, count, count, where), summing_calls<T>(sums::send(), sums::received())
    {
    }

    void all_reduce(std::uint64_t count) override { sums::all_reduce(count); }
    std::int64_t timed_all_reduce(std::uint64_t count) override { return sums::timed_all_reduce(count); }
    std::vector<std::uint8_t> bytes(const void* own, std::size_t size) override
    {
        const std::size_t all = size * static_cast<std::size_t>(this->comm_.size());
        if (!gathers_ || size > most_) {
            gathers_.emplace(this->comm_, this->on_, size, all, this->where_);
            most_ = size;
        }
        std::memcpy(gathers_->send(), own, size);
        gathers_->all_gather(size);
        return {gathers_->received(), gathers_->received() + all};
    }

private:
    std::optional<blocking_calls<std::uint8_t, Comm>> gathers_;
    std::size_t most_ = 0; ///< bytes of a rank
};

} // namespace collprobe::detail
