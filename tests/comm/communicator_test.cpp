// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// What is a communicator; and that each call comes to `make` as it was written, in all of its forms.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <collprobe/comm/communicator.hpp>
#include <collprobe/device/host/device.hpp>

namespace collprobe::testing::communicator_test {
namespace {

struct trainer_bfloat16 {
    std::uint16_t bits;
};
enum trainer_operation { trainer_sum, trainer_largest, trainer_other };

} // namespace
} // namespace collprobe::testing::communicator_test

template <>
struct collprobe::foreign_element<collprobe::testing::communicator_test::trainer_bfloat16> {
    using type = bfloat16;
};
template <>
struct collprobe::foreign_reduction<collprobe::testing::communicator_test::trainer_operation> {
    static constexpr reduction of(testing::communicator_test::trainer_operation operation)
    {
        using namespace testing::communicator_test;
        return operation == trainer_sum ? reduction::sum
            : operation == trainer_largest ? reduction::max
                                           : static_cast<reduction>(77);
    }
};

namespace collprobe::testing::communicator_test {
namespace {

/// Rank 2 of 3; keeps its last call.
struct noting : collectives<noting, host::device> {
    collective_call last;
    int rank() const noexcept { return 2; }
    int size() const noexcept { return 3; }
    template <element T>
    int make(const collective_call& call, stream_ref)
    {
        CHECK(call.type == element_traits<T>::type);
        last = call;
        return 7;
    }
};
static_assert(communicator<noting>);
static_assert(std::is_same_v<outcome_of<noting, float>, int>);

struct may_throw : collectives<may_throw, host::device> {
    int rank() const { return 0; }
    int size() const { return 1; }
    template <element T>
    void make(const collective_call&, stream_ref)
    {
    }
};
struct without_device {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
    template <element T>
    void make(const collective_call&, host::stream_ref)
    {
    }
};
struct makes_nothing : collectives<makes_nothing, host::device> {
    int rank() const noexcept { return 0; }
    int size() const noexcept { return 1; }
};

/// What `noting` must have got.
void check_call(const noting& comm, collective what, const void* send, std::uint64_t send_count, const void* receive,
    std::uint64_t receive_count, unsigned line, reduction operation = reduction::sum, int root = -1)
{
    CAPTURE(name(what));
    CHECK(comm.last.what == what);
    CHECK(comm.last.send == send);
    CHECK(comm.last.send_count == send_count);
    CHECK(comm.last.receive == receive);
    CHECK(comm.last.receive_count == receive_count);
    CHECK(comm.last.operation == operation);
    CHECK(comm.last.root == root);
    CHECK(comm.last.leaves == 1);
    CHECK(comm.last.where.line == line);
    CHECK(std::strstr(comm.last.where.file, "communicator_test.cpp") != nullptr);
}

} // namespace

TEST_CASE("a communicator has a device, observers that do not throw, and makes calls")
{
    CHECK_FALSE(communicator<may_throw>);
    CHECK_FALSE(communicator<without_device>);
    CHECK_FALSE(communicator<makes_nothing>);
    CHECK_FALSE(communicator<int>);
}

TEST_CASE("views, one view, and pointers are the same call")
{
    noting comm;
    const host::stream on;
    std::vector<float> a(12), b(12);
    float* const s = a.data();
    float* const r = b.data();
    const float* const s_const = s;
    const auto size = [&](std::vector<float>& of, std::size_t count) { return view(of).part(0, count); };

    comm.all_reduce(a, view(b), reduction::average, on);
    check_call(comm, collective::all_reduce, s, 12, r, 12, __LINE__ - 1, reduction::average);
    comm.all_reduce(view(b), reduction::max, on);
    check_call(comm, collective::all_reduce, r, 12, r, 12, __LINE__ - 1, reduction::max);
    comm.all_reduce(s_const, r, 12, reduction::min, on);
    check_call(comm, collective::all_reduce, s, 12, r, 12, __LINE__ - 1, reduction::min);
    comm.all_reduce(s, r, a.size(), reduction::sum, on, call_site::named("wte"));
    CHECK(std::strcmp(comm.last.where.name, "wte") == 0);

    comm.reduce_scatter(a, size(b, 4), reduction::sum, on);
    check_call(comm, collective::reduce_scatter, s, 12, r, 4, __LINE__ - 1);
    comm.reduce_scatter(view(a), reduction::sum, on);
    check_call(comm, collective::reduce_scatter, s, 12, s + 8, 4, __LINE__ - 1);
    comm.reduce_scatter(s, r, 4, reduction::sum, on);
    check_call(comm, collective::reduce_scatter, s, 12, r, 4, __LINE__ - 1);

    comm.all_gather(size(a, 4), view(b), on);
    check_call(comm, collective::all_gather, s, 4, r, 12, __LINE__ - 1);
    comm.all_gather(view(b), on);
    check_call(comm, collective::all_gather, r + 8, 4, r, 12, __LINE__ - 1);
    comm.all_gather(s, r, 4, on);
    check_call(comm, collective::all_gather, s, 4, r, 12, __LINE__ - 1);

    comm.all_to_all(a, view(b), on);
    check_call(comm, collective::all_to_all, s, 12, r, 12, __LINE__ - 1);
    comm.all_to_all(s, r, 4, on);
    check_call(comm, collective::all_to_all, s, 12, r, 12, __LINE__ - 1);

    comm.broadcast(a, view(b), 1, on);
    check_call(comm, collective::broadcast, s, 12, r, 12, __LINE__ - 1, reduction::sum, 1);
    comm.broadcast(view(b), 1, on);
    check_call(comm, collective::broadcast, r, 12, r, 12, __LINE__ - 1, reduction::sum, 1);
    comm.broadcast(s, r, 12, 1, on);
    check_call(comm, collective::broadcast, s, 12, r, 12, __LINE__ - 1, reduction::sum, 1);
    comm.broadcast(nullptr, r, 12, 1, on); // not the root
    check_call(comm, collective::broadcast, nullptr, 12, r, 12, __LINE__ - 1, reduction::sum, 1);

    comm.barrier(on);
    check_call(comm, collective::barrier, nullptr, 0, nullptr, 0, __LINE__ - 1);
}

TEST_CASE("leaves, and what make returns, go through the call")
{
    noting comm;
    const host::stream on;
    std::vector<float> a(12), b(12);
    CHECK(comm.all_reduce(a, view(b), reduction::sum, on, {.leaves = 3}) == 7);
    CHECK(comm.last.leaves == 3);
    CHECK(comm.reduce_scatter(a, view(b), reduction::sum, on, {.leaves = 2}) == 7);
    CHECK(comm.last.leaves == 2);
    CHECK(comm.all_gather(a.data(), b.data(), 4, on) == 7);
}

TEST_CASE("another library's elements and reductions are those that they stand for")
{
    noting comm;
    const host::stream on;
    trainer_bfloat16 values[6] = {};
    comm.all_reduce(values, values, 6, trainer_largest, on);
    CHECK(comm.last.type == element_type::bfloat16);
    CHECK(comm.last.operation == reduction::max);
    comm.all_reduce(view(values, 6), trainer_sum, on);
    CHECK(comm.last.operation == reduction::sum);
    comm.all_reduce({values, 6}, view(values, 6), trainer_other, on);
    CHECK(detail::flaw_of_arguments(comm.last, 2, 3) == "operation 77 is no reduction");
}

TEST_CASE("a part in place that does not exist is a wrong count, and leaves are refused by who takes one")
{
    noting comm;
    const host::stream on;
    std::vector<float> values(11), other(11);
    comm.all_gather(view(values), on);
    CHECK(detail::flaw_of_arguments(comm.last, 2, 3)
        == "not size() times as many to receive as to send: send.count() is 3, receive.count() is 11, size() is 3");
    comm.reduce_scatter(view(values), reduction::sum, on);
    CHECK(detail::flaw_of_arguments(comm.last, 2, 3)
        == "not size() times as many to send as to receive: send.count() is 11, receive.count() is 3, size() is 3");
    comm.all_reduce(values, view(other), reduction::sum, on, {.leaves = 2});
    CHECK(detail::flaw_of_arguments(comm.last, 2, 3) == "leaves is 2, and the communicator takes one of each rank");
}

} // namespace collprobe::testing::communicator_test
