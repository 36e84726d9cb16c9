// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Compiled by check.py alone. A line with an expected error must not compile, and its first error must match the regular
// expression: the text of our own static_assert where there is one, else what every compiler says. All others must compile.
#include <cstdint>
#include <utility>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/core/view.hpp>
#include <collprobe/inspect/inspect.hpp>
#include <collprobe/reduce/reproducible.hpp>
#include <collprobe/step/probed.hpp>

using namespace collprobe;

/// A communicator for a line alone, as the compiler tells the same wrong call of a type once.
template <int line>
struct at : adaptor<at<line>, local::communicator> {
    at() : adaptor<at<line>, local::communicator>(local::group(1).communicator(0)) {}
};

// A wrong call is told in words, before anything else: what the collective takes.
void wrong_arguments(const host::stream& stream, std::vector<float> a, std::vector<float> b)
{
    float* const send = a.data();
    float* const receive = b.data();
    const float* const fixed = receive;
    double* const doubles = nullptr;
    at<__LINE__>().all_reduce(send, receive, 4, reduction::sum, stream);
    at<__LINE__>().all_reduce(std::as_const(a), view(b), reduction::sum, stream);
    at<__LINE__>().broadcast(nullptr, receive, 4, 0, stream);
    at<__LINE__>().all_reduce(send, receive, reduction::sum, stream); // error: all_reduce takes .send, receive, operation, stream.
    at<__LINE__>().all_reduce(send, fixed, 4, reduction::sum, stream); // error: all_reduce takes .* and receive not to const
    at<__LINE__>().all_reduce(a, view<const float>(b), reduction::sum, stream); // error: all_reduce takes .* and receive not to const
    at<__LINE__>().all_reduce(send, doubles, 2, reduction::sum, stream); // error: all_reduce takes .* all to one type of element
    at<__LINE__>().all_reduce(a, view(doubles, 2), reduction::sum, stream); // error: all_reduce takes .* all to one type of element
    at<__LINE__>().all_reduce(send, static_cast<void*>(receive), 4, reduction::sum, stream); // error: all_reduce takes .* pointers
    at<__LINE__>().all_reduce(send, receive, 4, reduction::sum); // error: all_reduce takes .*, stream.
    at<__LINE__>().reduce_scatter(send, receive, 4, stream); // error: reduce_scatter takes .*, operation, stream.
    at<__LINE__>().all_gather(a, b, stream); // error: all_gather takes .* of views
    at<__LINE__>().all_gather(send, receive, 4, reduction::sum, stream); // error: all_gather takes .*, stream. of views
    at<__LINE__>().all_to_all(view(a), stream); // error: all_to_all takes .send, receive, stream. of views
    at<__LINE__>().broadcast(send, receive, 4, stream); // error: broadcast takes .*, root, stream.
    at<__LINE__>().all_reduce(send, receive, 4, 0, stream); // error: all_reduce takes .*, operation, stream.
}

void views(std::vector<float> floats, std::vector<double> doubles, const std::vector<float>& constant)
{
    view<float> right = floats;
    view<const float> right_of_const = constant;
    view<float> other_element = doubles; // error: conversion
    view<float> drops_const = constant; // error: conversion
    view<float> pointer_to_void(static_cast<void*>(floats.data()), floats.size()); // error: no matching
}

struct trainer_bfloat16 {
    std::uint16_t bits;
};
template <>
struct collprobe::foreign_element<trainer_bfloat16> {
    using type = bfloat16;
};
void foreign_elements(const host::stream& stream, trainer_bfloat16* values)
{
    local::communicator comm = local::group(1).communicator(0);
    comm.all_reduce({values, 4}, view(values, 4), reduction::sum, stream);
    comm.all_reduce({values, 4}, view<trainer_bfloat16>(values, 4), reduction::sum, stream); // error: write view.pointer, count. without the type in <>
    comm.all_reduce({values, 4}, view<float16>(values, 4), reduction::sum, stream); // error: no matching|conversion
    static_cast<void>(inspect<float16>(comm, stream, 8));
    static_cast<void>(inspect<float8_e5m2>(comm, stream, 8)); // error: no matching function for call to .inspect
}

template <class Contract, class T>
void sum(Contract asked)
{
    std::vector<T> values(4);
    const host::stream stream;
    reproducible comm(local::group(1).communicator(0), asked);
    comm.all_reduce(view<const T>(values), view<T>(values), reduction::sum, stream);
}
void contracts(const host::stream& stream, std::vector<float> values)
{
    using enum reproducibility;
    using enum accumulation;
    sum<contract<size_invariant, float32>, float>({});
    sum<contract<correctly_rounded, float64>, float16>({}); // exact up to 8192 terms
    sum<contract<order_invariant, float32>, float>({}); // error: of a reproducible one, the contract does not hold
    sum<contract<size_invariant, float32>, double>({}); // error: of a reproducible one, the contract does not hold
    sum<contract<size_invariant, float32, float64>, float>({}); // error: a contract names at most one accumulator
    // What is not reduced is under no contract.
    reproducible gathers(local::group(1).communicator(0), contract<order_invariant, float32>{});
    gathers.all_gather(view(values), stream);
    probed inner{reproducible{local::group(1).communicator(0)}};
    probed probe{local::group(1).communicator(0)};
    reproducible copied{probe}; // error: (deleted function|deleted copy constructor).*probed
    reproducible outer{std::move(probe)};
}

template <class Entry>
struct counting_part {
    using entry = Entry;
    template <element T>
    void before(auto&, view<const T>, entry*) const {}
    template <element T>
    void after(auto&, view<const T>, entry*) const {}
    void judge(const part_entries<entry>&, step_record&) const {}
};
struct word {
    std::uint64_t count;
};
struct half_a_word {
    std::uint32_t count;
};
struct summary_that_nothing_makes : counting_part<word> {
    using summary = word;
    void judge_summary(const part_summaries<word>&, step_record&) const {}
};
struct summary_that_nothing_reads : counting_part<word> {
    using summary = word;
    COLLPROBE_HD static word summarize(const word& of) { return of; }
};
struct summed_part : summary_that_nothing_reads {
    void judge_summary(const part_summaries<word>&, step_record&) const {}
};
void parts(local::communicator world)
{
    const probe_options options{.mode = report_mode::summary};
    probed{std::move(world), options, summed_part()};
    probed{std::move(world), options, counting_part<half_a_word>()}; // error: a part needs a type entry of whole 8-byte words
    probed{std::move(world), options, summary_that_nothing_makes()}; // error: needs a static summarize.entry. and judge_summary
    probed{std::move(world), options, summary_that_nothing_reads()}; // error: needs a static summarize.entry. and judge_summary
}
