// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the all-reduce benchmarks share, over any communicator and device: the communicator's own all-reduce and
// those under a contract, in turn within each round, on the same buffers.
//
// A time is that of the slowest rank, from a barrier to the end of the work on its stream, over the calls between
// them (several for small buffers). `ms` is the median of the rounds; `ratio` the median of each round's own ratio
// to what is in the first column, since neighbours in time share what else the machine does.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/core/element.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/detail/math.hpp>
#include <collprobe/quant/quantised.hpp>
#include <collprobe/reduce/reproducible.hpp>

#include "cpu_timing.hpp"

namespace collprobe::bench {

/// What is compared with the communicator's own all-reduce: the contract by its default accumulator, fp64; the same level,
/// added in float; exact (the level order_invariant is the same when it is done by exchange); the contract
/// order_invariant, by the communicator's own all-reduce of integers; widened to float, the communicator's own, rounded, of
/// 16-bit types; by codes of 8 and 4 bits, blocks of 128.
enum class method { size_invariant, float32, correctly_rounded, fixed_point, upcast, int8, int4 };

constexpr const char* name(method which)
{
    constexpr const char* names[] = {"size_invariant", "float32", "correctly_rounded", "fixed_point", "upcast", "int8", "int4"};
    return names[static_cast<int>(which)];
}

struct all_reduce_settings {
    std::uint64_t scratch_bytes = reproducible_options{}.scratch_bytes;
    double seconds = 1; ///< of each line
    int rounds = 5; ///< of each line, at least
    int calls = 100; ///< between two barriers, at most
};

/// One way to do it and its times, in seconds a call.
struct timed_call {
    std::string name;
    std::function<void()> enqueue;
    std::vector<double> times = {};
    std::vector<double> ratios = {}; ///< to the first

    double seconds() const { return median(times); }
    double ratio() const { return median(ratios); }
};

/// to[i] = from[i] for 1024 bytes of `from`, or of a warp's share: a body for `for_each` over blocks of `width`.
template <floating_element From, floating_element To, int width>
struct convert {
    const From* from;
    To* to;
    std::uint64_t count;
    COLLPROBE_HD void operator()(std::uint64_t block) const
    {
        const std::uint64_t first = block * width;
        const std::uint64_t end = first + width < count ? first + width : count;
        for (std::uint64_t i = first; i < end; ++i) to[i] = static_cast<To>(static_cast<float>(from[i]));
    }
};

/// One rank's buffers and calls. All ranks make it and call `measure` alike.
template <floating_element T, communicator Comm>
class all_reduce_bench {
    using device = typename Comm::device;

public:
    all_reduce_bench(const Comm& comm, std::uint64_t most_bytes, const all_reduce_settings& settings)
        : comm_(comm), settings_(settings), send_(most_bytes / sizeof(T)), receive_(most_bytes / sizeof(T))
    {
        device::for_each(stream_, send_.size(),
            fill_like_gradient<T>{send_.data(), static_cast<std::uint64_t>(comm.rank()) << 40});
        device::fill(stream_, view<T>(receive_), T{});
        stream_.synchronize();
    }

    /// A way to do it, timed with the others. Ratios are to the first.
    void add(std::string name, std::function<void()> enqueue) { calls_.push_back({std::move(name), std::move(enqueue)}); }

    /// The communicator's own.
    void add_native()
    {
        add("native", [this] { comm_.all_reduce(send(), receive(), reduction::sum, stream_); });
    }

    /// Leaves out what T cannot have.
    void add(method which)
    {
        using enum reproducibility;
        switch (which) {
        case method::size_invariant: return add_contract(which, contract<size_invariant>{});
        case method::float32: return add_contract(which, contract<size_invariant, accumulation::float32>{});
        case method::correctly_rounded: return add_contract(which, contract<correctly_rounded>{});
        case method::fixed_point:
            return add_contract(which, contract<order_invariant>{}, reduction_algorithm::fixed_point);
        case method::upcast:
            if constexpr (sizeof(T) == 2) {
                wide_ = typename device::template buffer<float>(send_.size());
                add(name(which), [this] { reduce_upcast(); });
            }
            return;
        case method::int8: return add_codes(which, code_format::int8);
        case method::int4: return add_codes(which, code_format::int4);
        }
    }

    /// Times all that was added, on `bytes` of data. Collective.
    const std::vector<timed_call>& measure(std::uint64_t bytes)
    {
        count_ = bytes / sizeof(T);
        const int repeats = static_cast<int>(std::clamp<std::uint64_t>(
            (std::uint64_t{1} << 20) / bytes, 1, static_cast<std::uint64_t>(settings_.calls)));
        for (timed_call& each : calls_) {
            each.times.clear();
            each.ratios.clear();
            (void)slowest(each, repeats); // warms up
        }
        double spent = 0;
        for (int round = 0; round < settings_.rounds || (spent < settings_.seconds && round < 1000); ++round) {
            for (timed_call& each : calls_) {
                each.times.push_back(slowest(each, repeats));
                each.ratios.push_back(each.times.back() / calls_[0].times.back());
                spent += each.times.back() * repeats; // the same number on all ranks
            }
        }
        return calls_;
    }

    /// The buffers of the present size, and the stream, for calls of the caller's own.
    view<const T> send() const { return view<const T>(send_.data(), count_); }
    view<T> receive() const { return view<T>(receive_.data(), count_); }
    typename Comm::stream_ref stream() const { return stream_; }

private:
    template <class Contract>
    void add_contract(method which, Contract asked, reduction_algorithm how = reduction_algorithm::automatic)
    {
        using reducer = reproducible<Comm, Contract>;
        if constexpr (reducer::template contract_holds_for<T>) {
            add_reduction(which, std::make_shared<reducer>(
                comm_, asked, reproducible_options{.scratch_bytes = settings_.scratch_bytes, .algorithm = how}));
        }
    }

    void add_codes(method which, code_format format)
    {
        if constexpr (sizeof(T) <= 4) {
            add_reduction(which,
                std::make_shared<quantised<Comm>>(comm_, quantisation{.format = format}, quantised_options{.least_bytes = 1}));
        }
    }

    template <class Own>
    void add_reduction(method which, std::shared_ptr<Own> comm)
    {
        add(name(which), [this, comm] { comm->all_reduce(send(), receive(), reduction::sum, stream_); });
    }

    void reduce_upcast()
    {
        if constexpr (sizeof(T) == 2) {
            constexpr int width = static_cast<int>(device::body_bytes / sizeof(T));
            const std::uint64_t blocks = (count_ + width - 1) / width;
            const view<float> wide(wide_.data(), count_);
            device::for_each(stream_, blocks, convert<T, float, width>{send_.data(), wide.data(), count_});
            comm_.all_reduce(view<const float>(wide), wide, reduction::sum, stream_);
            device::for_each(stream_, blocks, convert<float, T, width>{wide.data(), receive_.data(), count_});
        }
    }

    /// Seconds a call, of the slowest rank.
    double slowest(const timed_call& what, int repeats)
    {
        comm_.barrier(stream_);
        stream_.synchronize();
        const double own = seconds([&] {
            for (int i = 0; i < repeats; ++i) what.enqueue();
            stream_.synchronize();
        }, &real_seconds) / repeats;
        device::fill(stream_, view<double>(own_), own);
        comm_.all_reduce(view<const double>(own_.data(), 1), view<double>(own_), reduction::max, stream_);
        device::copy(stream_, view<const double>(own_.data(), 1), view<double>(slowest_));
        stream_.synchronize();
        return *slowest_.data();
    }

    Comm comm_;
    all_reduce_settings settings_;
    std::uint64_t count_ = 0;
    typename device::template buffer<T> send_, receive_;
    typename device::template buffer<float> wide_;
    typename device::template buffer<double> own_{1};
    typename device::template host_buffer<double> slowest_{1};
    typename device::stream stream_; // behind the buffers, so that it is gone before they are
    std::vector<timed_call> calls_; // gone first: the contracts' memory is used on the stream
};

} // namespace collprobe::bench
