// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/scan/tensor_part.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "naive_digest.hpp"

namespace collprobe::testing::tensor_part_test {
namespace {

using bytes = std::vector<unsigned char>;
#if defined(COLLPROBE_TEST_SANITIZED) || defined(COLLPROBE_TEST_BRIEF)
constexpr int trials = 60;
#else
constexpr int trials = 250;
#endif

class tensors {
public:
    explicit tensors(unsigned seed) : random_(seed) {}

    std::uint64_t below(std::uint64_t end) { return random_() % end; }

    /// Of 1 to 4 dimensions; small, with sizes of 0 and 1, or of a few rows that are longer than a period.
    tensor_shape shape()
    {
        tensor_shape made;
        made.dimensions = 1 + static_cast<int>(below(4));
        std::uint64_t room = below(8) == 0 ? 40000 : 3000;
        for (int d = 0; d < made.dimensions; ++d) {
            const std::uint64_t most = d + 1 == made.dimensions ? room : std::min<std::uint64_t>(room, 20);
            made.size[d] = below(40) == 0 ? 0 : 1 + below(most);
            room = std::max<std::uint64_t>(1, room / std::max<std::uint64_t>(1, made.size[d]));
        }
        std::shuffle(made.size, made.size + made.dimensions, random_);
        return made;
    }
    bytes data(std::uint64_t count)
    {
        bytes made(count);
        for (unsigned char& each : made) each = static_cast<unsigned char>(random_());
        return made;
    }
    /// Cuts a tensor into `count` boxes, along any dimensions.
    std::vector<tensor_box> cut(const tensor_shape& whole, std::uint64_t count)
    {
        std::vector<tensor_box> boxes{{whole, whole}};
        boxes[0].first = whole;
        for (int d = 0; d < whole.dimensions; ++d) boxes[0].first.size[d] = 0;
        while (boxes.size() < count) {
            const auto which = static_cast<std::size_t>(below(boxes.size()));
            const int d = static_cast<int>(below(static_cast<std::uint64_t>(whole.dimensions)));
            tensor_box left = boxes[which];
            const std::uint64_t at = below(left.extent.size[d] + 1);
            tensor_box right = left;
            left.extent.size[d] = at;
            right.first.size[d] += at;
            right.extent.size[d] -= at;
            boxes[which] = left;
            boxes.push_back(right);
        }
        std::shuffle(boxes.begin(), boxes.end(), random_);
        return boxes;
    }
    /// Strides of an order of the dimensions, with gaps here and there.
    tensor_shape strides(const tensor_shape& extent, std::uint64_t& room)
    {
        std::vector<int> order;
        for (int d = extent.dimensions - 1; d >= 0; --d) order.push_back(d);
        if (below(3) == 0) std::shuffle(order.begin(), order.end(), random_);
        tensor_shape made = extent;
        std::uint64_t step = below(4) == 0 ? 1 + below(3) : 1;
        for (const int d : order) {
            made.size[d] = step;
            step *= std::max<std::uint64_t>(1, extent.size[d]);
            if (below(3) == 0) step += below(70);
        }
        room = step + 1;
        return made;
    }
    std::mt19937_64& engine() { return random_; }

private:
    std::mt19937_64 random_;
};

/// Calls `use` with the number of each element of a box in the tensor, and its index in the box.
template <class Use>
void for_each_element(const tensor_shape& whole, const tensor_box& box, Use use)
{
    tensor_shape index = box.extent;
    for (int d = 0; d < index.dimensions; ++d) index.size[d] = 0;
    for (std::uint64_t left = box.extent.elements(); left != 0; --left) {
        std::uint64_t number = 0;
        for (int d = 0; d < index.dimensions; ++d)
            number = number * whole.size[d] + box.first.size[d] + index.size[d];
        use(number, index);
        for (int d = index.dimensions - 1; d >= 0 && ++index.size[d] == box.extent.size[d]; --d) index.size[d] = 0;
    }
}

/// Memory that holds a part and, between its elements, noise. It has no byte more than the part needs.
struct placed_part {
    bytes memory;
    tensor_part part;
};
template <class T>
placed_part place(tensors& random, const bytes& whole, const tensor_shape& shape, const tensor_box& box)
{
    std::uint64_t room = 0;
    const tensor_shape strides = random.strides(box.extent, room);
    std::uint64_t count = box.extent.elements() == 0 ? 0 : 1;
    for (int d = 0; count != 0 && d < box.extent.dimensions; ++d)
        count += (box.extent.size[d] - 1) * strides.size[d];
    const std::uint64_t shift = random.below(9); // bytes: elements need no alignment
    placed_part made{random.data(shift + count * sizeof(T)), {}};
    for_each_element(shape, box, [&](std::uint64_t number, const tensor_shape& index) {
        std::uint64_t at = 0;
        for (int d = 0; d < index.dimensions; ++d) at += index.size[d] * strides.size[d];
        std::memcpy(made.memory.data() + shift + at * sizeof(T), whole.data() + number * sizeof(T), sizeof(T));
    });
    const auto* const first = reinterpret_cast<const T*>(made.memory.data() + shift);
    made.part = tensor_part(view<const T>(first, count), shape, box, strides);
    return made;
}

detail::digest_state state_of(const tensor_part& part) { return digest_part(part).state; }

bytes dense(const bytes& whole, std::size_t size, const tensor_shape& shape, const tensor_box& box)
{
    bytes made;
    for_each_element(shape, box, [&](std::uint64_t number, const tensor_shape&) {
        const auto from = whole.begin() + static_cast<std::ptrdiff_t>(number * size);
        made.insert(made.end(), from, from + static_cast<std::ptrdiff_t>(size));
    });
    return made;
}

template <class T>
void check_cuts(unsigned seed)
{
    tensors random(seed);
    for (int trial = 0; trial < trials; ++trial) {
        const tensor_shape shape = random.shape();
        const bytes whole = random.data(shape.elements() * sizeof(T));
        const std::uint64_t expected = naive_digest(whole);
        REQUIRE(expected == digest(view<const T>(reinterpret_cast<const T*>(whole.data()), shape.elements())));
        detail::digest_state merged;
        for (const tensor_box& box : random.cut(shape, 1 + random.below(16))) {
            const placed_part placed = place<T>(random, whole, shape, box);
            const part_digests found = digest_part(placed.part);
            merged.merge(found.state);
            CHECK(found.content.finish() == naive_digest(dense(whole, sizeof(T), shape, box)));
        }
        REQUIRE(merged.finish() == expected);
    }
}

float float_of(std::uint32_t bits) { return detail::bit_cast<float>(bits); }

/// The nearest number that is not farther from zero, by the parts of its pattern.
std::uint16_t truncated(std::uint32_t bits, element_type to)
{
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return to == element_type::float16 ? float16(float_of(bits)).bits : bfloat16(float_of(bits)).bits;
    }
    if (to == element_type::bfloat16) return static_cast<std::uint16_t>(bits >> 16);
    const std::uint32_t sign = bits >> 16 & 0x8000u;
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent == 255) return static_cast<std::uint16_t>(sign | 0x7c00u);
    if (exponent > 142) return static_cast<std::uint16_t>(sign | 0x7bffu); // 2^16 and more
    if (exponent > 112) return static_cast<std::uint16_t>(sign | (magnitude - (112u << 23)) >> 13);
    if (exponent < 102) return static_cast<std::uint16_t>(sign); // less than the smallest subnormal number
    return static_cast<std::uint16_t>(sign | (0x800000u | (magnitude & 0x7fffffu)) >> (126 - exponent));
}

std::vector<std::uint32_t> interesting_floats(tensors& random)
{
    std::vector<std::uint32_t> made;
    for (const std::uint32_t exponent : {0u, 1u, 101u, 102u, 103u, 111u, 112u, 113u, 127u, 142u, 143u, 254u, 255u}) {
        for (const std::uint32_t fraction : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u,
                 0x10000u, 0x18000u, 0x3fffffu, 0x400000u, 0x400001u, 0x7fe000u, 0x7fefffu, 0x7ff000u, 0x7f0000u,
                 0x7f7fffu, 0x7f8000u, 0x7fffffu}) {
            made.push_back(exponent << 23 | fraction);
            made.push_back(0x80000000u | exponent << 23 | fraction);
        }
    }
    for (int i = 0; i < 20000; ++i) made.push_back(static_cast<std::uint32_t>(random.engine()()));
    for (int i = 0; i < 20000; ++i) // of the range of a half
        made.push_back(static_cast<std::uint32_t>((100 + random.below(44)) << 23 | random.below(1 << 23)));
    return made;
}

} // namespace

TEST_CASE("tensor_part - random cuts of random tensors merge to the digest of the whole, on every path")
{
    check_cuts<std::uint8_t>(1);
    check_cuts<bfloat16>(2);
    check_cuts<float>(3);
    check_cuts<double>(4);
}

TEST_CASE("tensor_part - long rows, columns and a transposed layout of more than 64 KiB")
{
    tensors random(5);
    for (const tensor_shape& shape : {tensor_shape{3, 30011}, tensor_shape{30011, 3}, tensor_shape{257, 301}}) {
        const bytes whole = random.data(shape.elements() * 4);
        const std::uint64_t expected = naive_digest(whole);
        for (const std::uint64_t ranks : {1u, 2u, 7u, 16u}) {
            for (const int d : {0, 1}) {
                detail::digest_state all;
                for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                    tensor_box box{{0, 0}, shape};
                    box.first.size[d] = shape.size[d] * rank / ranks;
                    box.extent.size[d] = shape.size[d] * (rank + 1) / ranks - box.first.size[d];
                    all.merge(state_of(place<float>(random, whole, shape, box).part));
                }
                CHECK(all.finish() == expected);
            }
        }
        std::vector<float> columns(shape.elements());
        for_each_element(shape, {{0, 0}, shape}, [&](std::uint64_t number, const tensor_shape& at) {
            std::memcpy(&columns[at.size[1] * shape.size[0] + at.size[0]], whole.data() + 4 * number, 4);
        });
        const tensor_part part{view(columns), shape, {{}, shape}, {1, shape.size[0]}};
        CHECK(digest_part(part).state.finish() == expected);
    }
}

TEST_CASE("tensor_part - a cast in the same read gives the digest of a converted copy, whatever its rounding")
{
    tensors random(6);
    const std::vector<std::uint32_t> bits = interesting_floats(random);
    std::vector<float> values(bits.size());
    std::memcpy(values.data(), bits.data(), 4 * bits.size());
    for (const element_type to : {element_type::bfloat16, element_type::float16}) {
        for (const cast_rounding rounding : {cast_rounding::nearest_even, cast_rounding::toward_zero}) {
            const element_cast cast{to, rounding};
            std::vector<std::uint16_t> narrow;
            for (const std::uint32_t each : bits) {
                const bool nearest = rounding == cast_rounding::nearest_even;
                if (!nearest) narrow.push_back(truncated(each, to));
                else if (to == element_type::float16) narrow.push_back(float16(float_of(each)).bits);
                else narrow.push_back(bfloat16(float_of(each)).bits);
            }
            bytes raw(2 * narrow.size());
            std::memcpy(raw.data(), narrow.data(), raw.size());
            const std::uint64_t expected = naive_digest(raw);
            const tensor_part whole{view(values), {values.size()}};
            CHECK(digest_part(whole, {&cast, 1}).casts.at(0).finish() == expected);
            // In columns of memory with gaps, along with the digest of the floats themselves.
            const tensor_shape shape{values.size() / 8, 8};
            const bytes floats(reinterpret_cast<const unsigned char*>(bits.data()),
                reinterpret_cast<const unsigned char*>(bits.data()) + 4 * shape.elements());
            raw.resize(2 * shape.elements());
            detail::digest_state casts, originals;
            for (const tensor_box& box : random.cut(shape, 5)) {
                const placed_part placed = place<float>(random, floats, shape, box);
                const part_digests found = digest_part(placed.part, {&cast, 1});
                originals.merge(found.state);
                casts.merge(found.casts.at(0));
            }
            CHECK(originals.finish() == naive_digest(floats));
            CHECK(casts.finish() == naive_digest(raw));
        }
    }
}

TEST_CASE("tensor_part - flat shards of any size, padded at the end, merge to the whole by few boxes")
{
    tensors random(7);
    for (int trial = 0; trial < trials; ++trial) {
        const tensor_shape shape = random.shape();
        const std::uint64_t elements = shape.elements();
        const std::uint64_t ranks = 1 + random.below(16);
        const std::uint64_t length = (elements + ranks - 1) / ranks + random.below(3);
        bytes padded = random.data(2 * length * ranks);
        const bytes whole(padded.begin(), padded.begin() + static_cast<std::ptrdiff_t>(2 * elements));
        detail::digest_state all;
        for (std::uint64_t rank = 0; rank < ranks; ++rank) {
            const auto* const shard = reinterpret_cast<const float16*>(padded.data()) + rank * length;
            const auto parts = flat_parts(view<const float16>(shard, length), shape, rank * length);
            CHECK(parts.size() <= static_cast<std::size_t>(2 * shape.dimensions - 1));
            for (const tensor_part& each : parts) all.merge(digest_part(each).state);
        }
        REQUIRE(all.finish() == naive_digest(whole));
    }
    const float number = 3;
    CHECK(flat_parts(view(&number, 1), {}, 0).size() == 1);
    CHECK(flat_parts(view(&number, 1), {}, 1).empty());
    CHECK(digest_part(tensor_part(view(&number, 1), {})).state.finish() == digest(view(&number, 1)));
}

TEST_CASE("tensor_part - a changed, moved or transposed part has another digest; a part within a part has its own")
{
    tensors random(9);
    for (int trial = 0; trial < trials; ++trial) {
        const std::uint64_t side = 2 + random.below(40);
        const tensor_shape shape{side + random.below(50), side + random.below(50)};
        bytes whole = random.data(shape.elements() * 4);
        const tensor_box box{{random.below(shape.size[0] - side + 1), random.below(shape.size[1] - side + 1)}, {side, side}};
        placed_part placed = place<float>(random, whole, shape, box);
        const std::uint64_t before = digest_part(placed.part).state.finish();
        CHECK(digest_part(placed.part.transposed()).state.finish() != before);
        CHECK(digest_part(placed.part.transposed().transposed()).state.finish() == before);
        tensor_part moved = placed.part;
        moved.box.first.size[1] = (moved.box.first.size[1] + 1) % (shape.size[1] - side + 1);
        CHECK((digest_part(moved).state.finish() == before) == (moved.box == placed.part.box));
        const tensor_box inner{{random.below(shape.size[0]), random.below(shape.size[1])}, {5, 9}};
        const tensor_box common = detail::intersection(box, inner);
        tensor_part own = placed.part.within(inner);
        CHECK(own.box == common);
        CHECK(digest_part(own).state.first == state_of(place<float>(random, whole, shape, common).part).first);
        const std::uint64_t at = (box.first.size[0] + random.below(side)) * shape.size[1] + box.first.size[1];
        whole[4 * at + random.below(4)] ^= static_cast<unsigned char>(1u << random.below(8));
        CHECK(digest_part(place<float>(random, whole, shape, box).part).state.finish() != before);
    }
}

TEST_CASE("tensor_part - bad parts are refused, with the reason")
{
    const std::vector<float> memory(24);
    const auto code_of = [](auto&& make, const char* reason) {
        try {
            make();
        } catch (const error& caught) {
            CHECK(std::string(caught.what()).find(reason) != std::string::npos);
            return caught.code() == status::invalid_argument;
        }
        return false;
    };
    const view<const float> all(memory);
    CHECK(code_of([&] { tensor_part(all, {5, 5}); }, "more than the 24 elements"));
    CHECK(code_of([&] { tensor_part(all, {4, 6}, {{1, 0}, {4, 6}}); }, "not within the shape"));
    CHECK(code_of([&] { tensor_part(all, {4, 6}, {{~std::uint64_t{0}, 0}, {2, 6}}); }, "not within the shape"));
    CHECK(code_of([&] { tensor_part(all, {4, 6}, {{0}, {4, 6}}); }, "number of dimensions"));
    CHECK(code_of([&] { tensor_part(all, {4, 6}, {{0, 0}, {4, 6}}, {7, 1}); }, "more than the 24"));
    CHECK(code_of([&] { tensor_part(all, {4, 6}, {{0, 0}, {4, 6}}, {std::uint64_t{1} << 63, 1}); }, "more than the 24"));
    CHECK(code_of([&] { tensor_part(view<const float>(nullptr, 24), {4, 6}); }, "null"));
    CHECK(code_of([&] { tensor_part(all, {1, 1, 1, 1, 1, 1, 1, 1, 24}); }, "8 dimensions"));
    CHECK(code_of([&] { tensor_part(all, {std::uint64_t{1} << 32, std::uint64_t{1} << 31}); }, "2^63 bytes"));
    CHECK(code_of([&] { flat_parts(all, {std::uint64_t{1} << 62, 0}, 0); }, "2^63 bytes"));
    CHECK(code_of([&] { (void)tensor_part(all, {4, 6}).transposed(); }, "not equal"));
    CHECK_NOTHROW(tensor_part(all, {std::uint64_t{1} << 40, 6}, {{std::uint64_t{1} << 39, 0}, {4, 6}}));
    CHECK_NOTHROW(tensor_part(view<const float>(), {4, 0, 6}));
    try {
        const element_cast cast{element_type::float8_e4m3};
        (void)digest_part(tensor_part(view<const float>(memory), {24}), {&cast, 1});
        FAIL("no error");
    } catch (const error& caught) {
        CHECK(caught.code() == status::unsupported);
    }
}

} // namespace collprobe::testing::tensor_part_test
