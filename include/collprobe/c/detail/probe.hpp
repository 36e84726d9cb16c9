// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/c/collprobe.h>
#include <collprobe/c/detail/step_exchange.hpp>
#include <collprobe/c/detail/types.hpp>
#include <collprobe/core/record.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/step/step_observation.hpp>
#include <collprobe/step/probe_options.hpp>
#include <collprobe/step/probed.hpp>

/// Probes of all kinds behind one interface. Arguments were checked before.
namespace collprobe::inline COLLPROBE_ABI::c {

/// A buffer as C tells it. Without one the rank sends or gets nothing.
struct buffer {
    element_type type;
    const void* data;
    std::uint64_t count;
    bool is_there;

    template <class T>
    view<const T> as() const noexcept
    {
        return {static_cast<const T*>(data), is_there ? count : 0};
    }
};

class any_probe {
public:
    virtual ~any_probe() = default;
    virtual int rank() const noexcept = 0;
    virtual int ranks() const noexcept = 0;
    virtual std::uint64_t observe(collective call, reduction operation, const buffer& input, call_site where,
        collprobeStream_t on) = 0;
    virtual void observe_result(std::uint64_t token, const buffer& result, collprobeStream_t on) = 0;
    virtual void expect(expectation what, const char* name, double value) = 0;
    virtual void expect(expectation what, const char* name, const buffer& value, collprobeStream_t on) = 0;
    virtual void end_step(std::uint64_t step, const step_observation& seen, collprobeStream_t on) = 0;
    virtual bool poll(step_record& out, bool wait) = 0;
    virtual std::uint64_t pending() const noexcept = 0;
    virtual std::vector<std::uint64_t> state() const = 0;
    virtual void restore(view<const std::uint64_t> state) = 0;

    /// Of a probe around NCCL alone.
    virtual void all_reduce(const buffer&, void*, reduction, call_site, collprobeStream_t) {}
    virtual void reduce_scatter(const buffer&, void*, reduction, call_site, collprobeStream_t) {}
    virtual void all_gather(const buffer&, void*, call_site, collprobeStream_t) {}
    virtual void copy_then_all_gather(const buffer&, void*, std::uint64_t, call_site, collprobeStream_t,
        view<const collprobeStream_t>, view<const collprobeStream_t>) {}
};

/// Integers are not read, so the code for one type of them serves all.
template <class Use>
void with_read_type(element_type type, const Use& use)
{
    if (is_floating(type)) with_floating_type(type, use);
    else use(std::uint8_t{});
}

/// `Streams`: gives the stream of a caller's stream, and the one of the exchange.
template <class Comm, class Streams>
class probe_of : public any_probe {
public:
    template <class... Arguments>
    probe_of(const probe_options& options, Streams streams, Arguments&&... arguments)
        : streams_(std::move(streams)), probe_(Comm(std::forward<Arguments>(arguments)...), options, call_site{})
    {
    }

    int rank() const noexcept override { return probe_.rank(); }
    int ranks() const noexcept override { return probe_.size(); }

    std::uint64_t observe(collective call, reduction operation, const buffer& input, call_site where,
        collprobeStream_t on) override
    {
        std::uint64_t token = 0;
        with_read_type(input.type, [&, this]<class T>(T) {
            const auto observed = input.is_there
                ? probe_.observe(input.as<T>(), streams_.of(on), call, operation, where)
                : probe_.template observe_no_input<T>(input.count, streams_.of(on), call, operation, where);
            token = observed.number();
        });
        return token;
    }
    void observe_result(std::uint64_t token, const buffer& result, collprobeStream_t on) override
    {
        with_read_type(result.type, [&, this]<class T>(T) {
            const auto of = probe_.observed(token);
            if (result.is_there) of.result(result.as<T>(), streams_.of(on), call_site{});
            else of.no_result(streams_.of(on), call_site{});
        });
    }
    void expect(expectation what, const char* name, double value) override
    {
        if (what == expectation::equal) probe_.expect_equal(name, value, call_site{});
        else probe_.expect_distinct(name, value, call_site{});
    }
    void expect(expectation what, const char* name, const buffer& value, collprobeStream_t on) override
    {
        collprobe::detail::with_type(value.type, [&, this]<class T>(T) {
            if (what == expectation::equal) probe_.expect_equal(name, value.as<T>(), streams_.of(on), call_site{});
            else probe_.expect_distinct(name, value.as<T>(), streams_.of(on), call_site{});
        });
    }
    void end_step(std::uint64_t step, const step_observation& seen, collprobeStream_t on) override
    {
        probe_.end_step(step, seen, streams_.exchange(on), call_site{});
    }
    bool poll(step_record& out, bool wait) override { return wait ? probe_.wait(out, call_site{}) : probe_.poll(out); }
    std::uint64_t pending() const noexcept override { return probe_.pending_steps(); }
    std::vector<std::uint64_t> state() const override { return probe_.evidence_state(); }
    void restore(view<const std::uint64_t> state) override { probe_.restore_evidence(state, call_site{}); }

protected:
    Streams streams_;
    probed<Comm> probe_;
};

/// The caller owns it.
any_probe* make_host_probe(step_exchange& exchange, const probe_options& options);
#if defined(COLLPROBE_C_CUDA)
any_probe* make_cuda_probe(step_exchange& exchange, const probe_options& options);
#endif
#if defined(COLLPROBE_C_NCCL)
any_probe* make_nccl_probe(collprobeNcclComm_t comm, const char* name, const probe_options& options);
void start_group();
void end_group();
#endif

} // namespace collprobe::c
