// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/quant/detail/block.hpp>
#include <collprobe/quant/detail/codec_kernels.hpp>
#include <collprobe/quant/detail/dither.hpp>
#include <collprobe/quant/detail/hadamard.hpp>

namespace collprobe::testing::block_test {

// The oracle computes in double, from the definitions of the formats, and shares no code with the library.
namespace {

using detail::block_errors;
using detail::block_scale;
using detail::codec;
using detail::isa;

constexpr code_format formats[] = {code_format::int8, code_format::int4, code_format::e4m3};

struct encoded {
    block_scale by;
    std::vector<unsigned char> codes;
    block_errors errors;
    std::uint32_t nonfinite = 0;
    std::vector<float> decoded;
};

/// A block through a path.
encoded run(isa path, const codec& how, const std::vector<float>& x, const std::uint16_t* random = nullptr,
    bool probed = true)
{
    encoded out;
    std::vector<float> padded(x);
    padded.resize(how.block, 0.0f);
    out.codes.resize(how.code_bytes());
    const detail::gradual_underflow as_ieee_has_it;
    detail::encoded_block made;
    detail::encode_blocks(path, how, padded.data(), static_cast<std::uint32_t>(x.size()), random, out.codes.data(),
        probed, &made);
    out.by = made.by;
    out.errors = made.errors;
    out.nonfinite = made.nonfinite;
    out.decoded.resize(how.block);
    detail::decode_block(path, how, out.by.scale, out.codes.data(), out.decoded.data());
    return out;
}

codec make(code_format format, std::uint32_t block, code_rounding rounding = code_rounding::nearest)
{
    return codec::of<float>({.format = format, .block = block, .rounding = rounding});
}

std::vector<float> gaussian(std::size_t count, unsigned seed)
{
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(count);
    for (float& v : x) v = normal(random);
    return x;
}

/// All numbers of e4m3 without a sign, from its definition.
std::vector<double> numbers_of_e4m3()
{
    std::vector<double> all;
    for (int code = 0; code < 0x7f; ++code) {
        const double f = code & 7;
        all.push_back(code < 8 ? std::ldexp(f, -9) : std::ldexp(1 + f / 8, code / 8 - 7));
    }
    return all;
}

} // namespace

TEST_CASE("philox gives the published numbers")
{
    const auto same = [](const detail::philox& a, std::uint32_t w0, std::uint32_t w1, std::uint32_t w2,
                          std::uint32_t w3) {
        return a.word[0] == w0 && a.word[1] == w1 && a.word[2] == w2 && a.word[3] == w3;
    };
    // The known answers of Random123.
    CHECK(same(detail::philox::of(0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
    CHECK(same(detail::philox::of(~0u, ~0u, ~0u, ~0u, ~std::uint64_t{0}), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
        0x6d5451fd));
    CHECK(same(detail::philox::of(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822u),
        0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST_CASE("vectors draw the random bits of the elements")
{
    const detail::dither noise{5, nullptr, 3, 17};
    const std::uint64_t key = noise.key();
    for (const isa path : {isa::vectors}) {
        if (!detail::supports(path)) continue;
        for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{77}, (std::uint64_t{1} << 32) - 3}) {
            std::vector<std::uint16_t> drawn(8 * 37 + 24);
            detail::draw_random_bits(path, noise, key, first, 37, drawn.data());
            for (std::uint32_t i = 0; i < 37 * 8; ++i)
                CHECK(drawn[i] == noise.of_eight(key, first + i / 8).bits16(i % 8));
        }
    }
}

TEST_CASE("codes are the nearest in the format, ties to even")
{
    for (const code_format format : formats) {
        const codec how = make(format, 1024);
        std::vector<double> grid;
        if (is_integer(format)) {
            for (int q = 0; q <= static_cast<int>(largest_code(format)); ++q) grid.push_back(q);
        } else {
            grid = numbers_of_e4m3();
        }
        // With the largest code in the block the scale is 1.
        std::vector<float> x{static_cast<float>(grid.back())};
        std::mt19937_64 random(7);
        for (std::size_t k = 0; k + 1 < grid.size() && x.size() + 4 < 1024; ++k) {
            const auto middle = static_cast<float>((grid[k] + grid[k + 1]) / 2);
            x.push_back(middle);
            x.push_back(-std::nextafter(middle, 0.0f));
            x.push_back(std::nextafter(middle, 1e9f));
            x.push_back(static_cast<float>(grid[k]));
        }
        while (x.size() < 1024) {
            x.push_back(std::ldexp(static_cast<float>(random() % (1 << 24)), -24)
                * static_cast<float>(grid.back()) * (random() % 2 == 0 ? 1.0f : -1.0f));
        }
        const encoded out = run(detail::best_isa(), how, x);
        REQUIRE(out.by.scale == 1.0f);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double wanted = std::abs(double{x[i]});
            std::size_t best = 0;
            for (std::size_t k = 0; k < grid.size(); ++k) {
                const double now = std::abs(grid[k] - wanted);
                const double then = std::abs(grid[best] - wanted);
                if (now < then || (now == then && k % 2 == 0)) best = k;
            }
            CHECK(std::abs(double{out.decoded[i]}) == grid[best]);
            if (grid[best] != 0) CHECK(std::signbit(out.decoded[i]) == std::signbit(x[i]));
        }
    }
}

TEST_CASE("blocks of a run have the codes, scales, elements and errors that each has alone by the portable path")
{
    std::mt19937_64 random(12);
    for (const code_format format : formats) {
        for (const std::uint32_t block : {32u, 64u, 128u, 512u, 1024u}) {
            for (int trial = 0; trial < 40; ++trial) {
                const bool stochastic = trial % 2 == 1;
                const codec how = make(format, block, stochastic ? code_rounding::stochastic : code_rounding::nearest);
                const std::uint32_t blocks = 1 + static_cast<std::uint32_t>(random()) % (1024 / block);
                std::vector<float> x = gaussian(blocks * block, static_cast<unsigned>(random()));
                std::vector<std::uint16_t> dither(x.size());
                for (std::uint16_t& one : dither) one = static_cast<std::uint16_t>(random());
                for (std::uint32_t b = 0; b < blocks; ++b) {
                    float* const own = x.data() + b * block;
                    const int exponent = static_cast<int>(random() % 280) - 150;
                    for (std::uint32_t i = 0; i < block; ++i)
                        own[i] = random() % 9 == 0 ? 0.0f : std::ldexp(own[i], exponent);
                    const float rare[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
                    const std::size_t kind = random() % 8;
                    if (kind < 4) own[random() % block] = rare[kind];
                    if (kind == 4) std::fill_n(own, block, -0.0f);
                }
                std::vector<detail::encoded_block> made(1024 / block);
                std::vector<unsigned char> codes(blocks * how.code_bytes());
                const detail::gradual_underflow as_ieee_has_it;
                const std::uint16_t* const drawn = stochastic ? dither.data() : nullptr;
                detail::encode_blocks(detail::best_isa(), how, x.data(), blocks * block, drawn, codes.data(), true,
                    made.data());
                std::vector<float> decoded(block);
                for (std::uint32_t b = 0; b < blocks; ++b) {
                    const auto begin = x.begin() + b * block;
                    const encoded one = run(isa::portable, how, std::vector<float>(begin, begin + block),
                        stochastic ? drawn + b * block : nullptr);
                    const unsigned char* const own = codes.data() + b * how.code_bytes();
                    CHECK(std::memcmp(one.codes.data(), own, how.code_bytes()) == 0);
                    CHECK(to_bits(one.by.scale) == to_bits(made[b].by.scale));
                    CHECK(to_bits(one.by.inverse) == to_bits(made[b].by.inverse));
                    detail::decode_block(detail::best_isa(), how, made[b].by.scale, own, decoded.data());
                    CHECK(std::memcmp(one.decoded.data(), decoded.data(), block * sizeof(float)) == 0);
                    CHECK(one.nonfinite == made[b].nonfinite);
                    CHECK(one.errors.zeros == made[b].errors.zeros);
                    CHECK(one.errors.zero_codes == made[b].errors.zero_codes);
                    CHECK(one.errors.squares == doctest::Approx(made[b].errors.squares).epsilon(1e-5));
                    CHECK(one.errors.error_squares == doctest::Approx(made[b].errors.error_squares).epsilon(1e-5));
                    const double unit = std::sqrt(double{one.errors.error_squares} * block);
                    CHECK(std::abs(double{one.errors.error_sum} - double{made[b].errors.error_sum}) <= 1e-5 * unit);
                }
            }
        }
    }
}

TEST_CASE("the scale is the least bfloat16 that the largest magnitude needs, beside every bfloat16")
{
    for (const code_format format : formats) {
        const codec how = make(format, 32);
        const double steps = double{largest_code(format)};
        for (std::uint32_t bits = 0x0080; bits < 0x7f00; ++bits) {
            const float scale = std::bit_cast<float>(bits << 16);
            const float product = static_cast<float>(double{scale} * steps);
            if (!is_finite(product)) continue;
            for (const std::int32_t off : {-2, -1, 0, 1, 2}) {
                const float largest = std::bit_cast<float>(to_bits(product) + static_cast<std::uint32_t>(off));
                const float wanted = off > 0 ? std::bit_cast<float>((bits + 1) << 16) : scale;
                if (detail::scale_of(how, largest).scale != wanted) FAIL("scale ", bits, " off ", off);
            }
        }
    }
}

TEST_CASE("a scale that is not finite, which no message has, decodes to NaN")
{
    for (const code_format format : formats) {
        const codec how = make(format, 32);
        const std::vector<unsigned char> codes(how.code_bytes());
        for (const std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u}) {
            std::vector<float> x(32);
            detail::decode_block(detail::best_isa(), how, std::bit_cast<float>(bits), codes.data(), x.data());
            for (const float each : x) CHECK((to_bits(each) & 0x7fffffff) > 0x7f800000);
        }
    }
}

TEST_CASE("vectors give the sums of terms of the portable path, and their squares")
{
    std::mt19937_64 random(13);
    for (const code_format format : formats) {
        for (int trial = 0; trial < 200; ++trial) {
            const codec how = make(format, 64);
            const std::uint32_t terms = 1 + static_cast<std::uint32_t>(random()) % 6;
            constexpr std::uint64_t stride = 80;
            std::vector<unsigned char> codes(terms * stride);
            for (unsigned char& one : codes) one = static_cast<unsigned char>(random());
            for (std::uint32_t t = 0; t < terms; ++t) {
                if (trial % 3 != 0) { // no NaN
                    for (std::uint32_t i = 0; i < 64; ++i) codes[t * stride + i] &= 0x37;
                }
                const float scale = trial % 5 == 1 && t == 1 ? 0x1.8p126f : std::ldexp(1.0f, static_cast<int>(t));
                detail::write_scale(codes.data() + t * stride + 64, 0, scale);
            }
            const detail::block_terms of{codes.data(), codes.data() + 64, stride, terms};
            const float divisor = trial % 2 == 0 ? 1.0f : 3.0f;
            const float factor = trial % 5 == 1 ? 0x1p-126f : 1.0f;
            float sums[2][64];
            const auto a = detail::sum_terms(isa::portable, how, of, divisor, true, factor, sums[0]);
            const auto b = detail::sum_terms(detail::best_isa(), how, of, divisor, true, factor, sums[1]);
            for (std::uint32_t i = 0; i < 64; ++i) {
                const bool both_nan = !(sums[0][i] == sums[0][i]) && !(sums[1][i] == sums[1][i]);
                CHECK((both_nan || to_bits(sums[0][i]) == to_bits(sums[1][i])));
            }
            if (is_finite(a.of_terms)) CHECK(a.of_terms == doctest::Approx(b.of_terms).epsilon(1e-5));
            else CHECK(!is_finite(b.of_terms));
            if (is_finite(a.of_sums)) CHECK(a.of_sums == doctest::Approx(b.of_sums).epsilon(1e-5));
            else CHECK(!is_finite(b.of_sums));
        }
    }
}

TEST_CASE("special blocks")
{
    for (const code_format format : formats) {
        const codec how = make(format, 32);
        SUBCASE("zeros stay zeros")
        {
            const encoded out = run(detail::best_isa(), how, {0.0f, -0.0f, 0.0f});
            CHECK(out.by.scale == 0.0f);
            CHECK(std::all_of(out.decoded.begin(), out.decoded.end(), [](float v) { return to_bits(v) == 0; }));
        }
        SUBCASE("subnormal elements have the smallest normal scale")
        {
            const encoded out = run(detail::best_isa(), how, {0x1p-149f, 0x1p-140f});
            CHECK(out.by.scale == 0x1p-126f);
            for (const float v : out.decoded) CHECK(!is_nan(v));
        }
        SUBCASE("the largest numbers stay finite")
        {
            const float most = std::numeric_limits<float>::max();
            encoded out = run(detail::best_isa(), how, {most, -most, 1.0f});
            CHECK(out.decoded[0] <= most);
            CHECK(out.decoded[1] >= -most);
            CHECK(out.decoded[0] >= 0.98f * most);
            codec sixteen = codec::of<float16>({.format = format, .block = 32});
            out = run(detail::best_isa(), sixteen, {65504.0f, -65504.0f});
            CHECK(out.decoded[0] <= 65504.0f);
            CHECK(out.decoded[0] >= 64000.0f);
            out = run(detail::best_isa(), sixteen, {65520.0f, 1.0f}); // rounds to infinity in this type
            CHECK(is_nan(out.decoded[0]));
            CHECK(out.nonfinite == 1);
        }
        SUBCASE("small numbers of bfloat16 survive")
        {
            const encoded out
                = run(detail::best_isa(), codec::of<bfloat16>({.format = format, .block = 32}), {1e-30f});
            CHECK(out.decoded[0] == doctest::Approx(1e-30f).epsilon(0.01));
        }
    }
}

TEST_CASE("the mean of stochastic codes is the element")
{
    constexpr int draws = 10'000;
    for (const code_format format : formats) {
        const codec how = make(format, 32, code_rounding::stochastic);
        const std::vector<float> x = gaussian(32, 4);
        std::vector<double> sum(32);
        std::mt19937_64 random(8);
        double s = 0;
        for (int draw = 0; draw < draws; ++draw) {
            std::uint16_t random16[32];
            for (std::uint16_t& r : random16) r = static_cast<std::uint16_t>(random());
            const encoded out = run(detail::best_isa(), how, x, random16);
            s = double{out.by.scale};
            for (std::size_t i = 0; i < 32; ++i) sum[i] += double{out.decoded[i]};
        }
        for (std::size_t i = 0; i < 32; ++i) {
            const double unit
                = is_integer(format) ? s : std::ldexp(s, std::max(std::ilogb(double{x[i]} / s), -6) - 3);
            CHECK(std::abs(sum[i] / draws - double{x[i]}) <= 4 * unit / (2 * std::sqrt(double{draws})));
        }
    }
}

TEST_CASE("a rotation there and back is the identity, keeps the energy and is linear")
{
    for (const std::uint32_t block : {32u, 64u, 128u, 1024u}) {
        const detail::rotation turn = detail::rotation::of(block, 5);
        CHECK(turn.length == std::min(block, 128u));
        std::vector<float> x = gaussian(turn.length, block);
        std::vector<float> y(x);
        turn.apply(y.data());
        double before = 0;
        double after = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            before += double{x[i]} * double{x[i]};
            after += double{y[i]} * double{y[i]};
            // The matrix by its definition: the sign of element (i, k) is the parity of i & k.
            double wanted = 0;
            for (std::size_t k = 0; k < x.size(); ++k) {
                const double s = turn.signs[k / 64] >> k % 64 & 1 ? -1 : 1;
                wanted += (__builtin_popcountll(i & k) % 2 == 0 ? s : -s) * double{x[k]};
            }
            CHECK(double{y[i]} == doctest::Approx(wanted * double{turn.factor()}).epsilon(1e-4));
        }
        CHECK(after * turn.energy() == doctest::Approx(before).epsilon(1e-6));
        turn.undo(y.data());
        for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == doctest::Approx(x[i]).epsilon(1e-5));
    }
}

/// What the codes of a buffer did to its numbers, from the definitions.
struct exact_errors {
    double squares = 0;
    double error_squares = 0;
    double error_sum = 0;
    double crest_sum = 0;
    double scale_sum = 0;
    double worst_ratio = 0;
    std::uint64_t worst_block = no_index;
    std::uint64_t zeros = 0;
    std::uint64_t zeroed = 0;
    std::uint64_t zero_blocks = 0;
};

template <class T>
exact_errors exact_errors_of(const std::vector<T>& x, const std::vector<double>& decoded,
    const std::vector<double>& scales, std::uint32_t block)
{
    exact_errors out;
    for (std::size_t at = 0; at < x.size(); at += block) {
        const std::size_t end = std::min(x.size(), at + block);
        double most = 0;
        double squares = 0;
        double error_squares = 0;
        for (std::size_t i = at; i < end; ++i) most = std::max(most, std::abs(static_cast<double>(x[i])));
        for (std::size_t i = at; i < end; ++i) {
            const auto v = static_cast<double>(x[i]);
            const double e = decoded[i] - v;
            squares += v * v;
            error_squares += e * e;
            out.error_sum += e;
            out.zeros += v == 0;
            out.zeroed += decoded[i] == 0 && v != 0;
        }
        out.squares += squares;
        out.error_squares += error_squares;
        if (most == 0) {
            ++out.zero_blocks;
            continue;
        }
        const double rms = std::sqrt(squares / static_cast<double>(end - at));
        out.crest_sum += most / rms;
        out.scale_sum += std::abs(scales[at / block]) / rms;
        if (error_squares / squares > out.worst_ratio) {
            out.worst_ratio = error_squares / squares;
            out.worst_block = at;
        }
    }
    return out;
}

TEST_CASE_TEMPLATE("the errors of a buffer are those of its elements", T, float, bfloat16, float16)
{
    for (const code_format format : formats) {
        for (const std::uint32_t block : {32u, 128u, 1024u}) {
            CAPTURE(name(format));
            CAPTURE(block);
            const codec how = codec::of<T>({.format = format, .block = block});
            const std::vector<float> normal = gaussian((1 << 16) + 77, 77);
            std::vector<T> x(normal.size());
            for (std::size_t i = 0; i < x.size(); ++i) x[i] = T(i % 97 == 0 ? 0.0f : normal[i]);
            for (std::size_t i = 4096 * 7; i < 4096 * 8; ++i) x[i] = T(0.0f);
            x[2000] = T(40.0f);
            const std::uint64_t count = x.size();
            const detail::message_slices cut{1, 1, block, count, 0, count, count, nullptr};
            const detail::wire_layout wire = detail::wire_layout::of(how, cut.blocks());
            std::vector<unsigned char> message(wire.bytes());
            std::vector<T> result(count);
            const detail::encode_reducer<T> encode{
                {how, {}, nullptr, true}, cut, x.data(), message.data(), message.size()};
            quantisation_errors found;
            for (std::uint64_t leaf = 0; leaf < cut.blocks(); leaf += 64) {
                quantisation_errors one;
                encode.run(one, leaf, std::min<std::uint64_t>(64, cut.blocks() - leaf));
                detail::merge(found, one);
            }
            std::uint64_t nonfinite = 0;
            detail::decode_reducer<T>{how, cut, message.data(), message.size(), result.data()}.run(
                nonfinite, 0, cut.blocks());
            CHECK(nonfinite == 0);
            std::vector<double> decoded(count);
            std::vector<double> scales;
            for (std::uint64_t b = 0; b < cut.blocks(); ++b) {
                const auto scale = double{detail::read_block_scale(wire, message.data(), b)};
                scales.push_back(scale);
                for (std::uint64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
                    const int code = detail::read_code(
                        how, message.data() + b * how.code_bytes(), static_cast<std::uint32_t>(i - b * block));
                    const auto units = static_cast<double>(detail::units_of(how, code));
                    decoded[i] = units * scale;
                    CHECK(static_cast<double>(result[i]) == static_cast<double>(T(static_cast<float>(decoded[i]))));
                }
            }
            const exact_errors expected = exact_errors_of(x, decoded, scales, block);
            CHECK(found.count == count);
            CHECK(found.blocks == cut.blocks());
            CHECK(found.zero_blocks == expected.zero_blocks);
            CHECK(found.zeros == expected.zeros);
            CHECK(found.zeroed == expected.zeroed);
            CHECK(found.squares == doctest::Approx(expected.squares).epsilon(1e-6));
            CHECK(found.error_squares == doctest::Approx(expected.error_squares).epsilon(1e-5));
            CHECK(found.error_sum == doctest::Approx(expected.error_sum).epsilon(1e-3));
            CHECK(found.crest_sum == doctest::Approx(expected.crest_sum).epsilon(1e-6));
            CHECK(found.scale_sum == doctest::Approx(expected.scale_sum).epsilon(1e-6));
            CHECK(found.worst_ratio == doctest::Approx(expected.worst_ratio).epsilon(1e-5));
            CHECK(found.worst_block == expected.worst_block);
        }
    }
}

TEST_CASE("rotated elements of a type are clamped to its largest number, as others are")
{
    const codec how = codec::of<float16>({.format = code_format::int4, .rotate = true});
    const std::vector<float16> x(4096, float16(65000.0f));
    const detail::message_slices cut{1, 1, how.block, 4096, 0, 4096, 4096, nullptr};
    std::vector<unsigned char> message(detail::wire_layout::of(how, cut.blocks()).bytes());
    std::vector<float16> result(4096);
    quantisation_errors errors;
    std::uint64_t nonfinite = 0;
    detail::encode_reducer<float16>{{how, {}, nullptr, true}, cut, x.data(), message.data(), message.size()}.run(
        errors, 0, cut.blocks());
    detail::decode_reducer<float16>{how, cut, message.data(), message.size(), result.data()}.run(
        nonfinite, 0, cut.blocks());
    CHECK(nonfinite == 0);
    float most = 0;
    for (const float16 each : result) most = std::max(most, std::abs(static_cast<float>(each)));
    CHECK(most == 65504);
}

TEST_CASE("stochastic codes take the random bits of their elements, wherever blocks start")
{
    for (const code_format format : formats) {
        const codec how = make(format, 32, code_rounding::stochastic);
        const std::vector<float> x = gaussian(300, 9);
        const detail::message_slices cut{3, 1, 32, 100, 0, 100, 300, nullptr}; // slices start at 0, 100, 200
        const detail::wire_layout wire = detail::wire_layout::of(how, cut.blocks_per_message());
        std::vector<unsigned char> messages(3 * wire.bytes());
        const detail::dither noise{1, nullptr, 2, 3};
        quantisation_errors errors;
        detail::encode_reducer<float>{{how, noise, nullptr, true}, cut, x.data(), messages.data(), wire.bytes()}.run(
            errors, 0, cut.blocks());
        for (std::uint32_t i = 0; i < 300; ++i) {
            const unsigned char* const message = messages.data() + i / 100 * wire.bytes();
            const std::uint32_t block = i % 100 / 32;
            const float value = x[i] * (1 / detail::read_block_scale(wire, message, block));
            const std::uint32_t bits16 = noise.of_eight(noise.key(), i / 8).bits16(i % 8);
            CHECK(detail::read_code(how, message + block * how.code_bytes(), i % 100 % 32)
                == detail::code_of(how, value, bits16));
        }
    }
}

TEST_CASE_TEMPLATE("sums of codes are those of their elements in the order of the terms", T, float, bfloat16, float16)
{
    constexpr std::uint32_t terms = 5;
    constexpr std::uint32_t block = 64;
    constexpr std::uint64_t count = 64 * 40 + 13;
    for (const code_format format : formats) {
        const codec how = codec::of<T>({.format = format, .block = block});
        const detail::message_slices cut{1, 1, block, count, 0, count, count, nullptr};
        const detail::wire_layout wire = detail::wire_layout::of(how, cut.blocks());
        const std::uint64_t bytes = wire.bytes();
        std::vector<unsigned char> messages(terms * bytes);
        std::vector<std::vector<T>> decoded(terms, std::vector<T>(count));
        for (std::uint32_t term = 0; term < terms; ++term) {
            std::vector<float> normal = gaussian(count, 100 + term);
            std::vector<T> x(count);
            for (std::size_t i = 0; i < count; ++i) x[i] = T(normal[i] * (i / 64 % 3 == 0 ? 1e-5f : 100.0f));
            if (term == 2) x[700] = T(std::numeric_limits<float>::quiet_NaN());
            if (term == 3) x[64 * 39 + 1] = T(std::numeric_limits<float>::infinity());
            quantisation_errors errors;
            std::uint64_t nonfinite = 0;
            unsigned char* const message = messages.data() + term * bytes;
            detail::encode_reducer<T>{{how, {}, nullptr, true}, cut, x.data(), message, bytes}.run(
                errors, 0, cut.blocks());
            detail::decode_reducer<T>{how, cut, message, bytes, decoded[term].data()}.run(nonfinite, 0, cut.blocks());
            CHECK(errors.nonfinite == (term == 2 || term == 3));
            CHECK(errors.count == count);
            CHECK(errors.blocks == cut.blocks());
            CHECK(errors.zero_blocks == 0);
            CHECK(nonfinite == errors.nonfinite);
        }
        // The elements are floats before they are T: the codes of float, decoded.
        codec exact = how;
        exact.largest = detail::largest_float_of<float>;
        for (const std::uint32_t divisor : {1u, 3u, 4u}) {
            for (const bool probed : {false, true}) {
                std::vector<T> sums(count);
                combined_errors errors;
                detail::combine_reducer<T>{how, cut, messages.data(), bytes, terms, divisor, probed, sums.data(),
                    {how, {}, nullptr, false}, nullptr, 0}
                    .run(errors, 0, cut.blocks());
                double sum_squares = 0;
                double term_squares = 0;
                for (std::size_t i = 0; i < count; ++i) {
                    const std::uint64_t b = i / block;
                    const bool counts = b != 700 / block && b != 39;
                    volatile float sum = 0;
                    for (std::uint32_t term = 0; term < terms; ++term) {
                        const unsigned char* const message = messages.data() + term * bytes;
                        const int code = detail::read_code(
                            how, message + b * how.code_bytes(), static_cast<std::uint32_t>(i % block));
                        const float one
                            = detail::element_of(exact, detail::read_block_scale(wire, message, b), code);
                        sum = sum + one;
                        if (counts) term_squares += double{one} * double{one};
                    }
                    if (counts) sum_squares += double{sum} * double{sum};
                    volatile double by = divisor; // a division, whatever the flags of the build
                    volatile double quotient = static_cast<double>(sum) / by;
                    const T expected(static_cast<float>(quotient));
                    const bool same = is_finite(expected) ? to_bits(expected) == to_bits(sums[i]) : !is_finite(sums[i]);
                    if (!same) FAIL("element ", i, " of ", name(format));
                }
                if (!probed) continue;
                CHECK(errors.term_squares == doctest::Approx(term_squares).epsilon(1e-5));
                CHECK(errors.sum_squares == doctest::Approx(sum_squares).epsilon(1e-5));
            }
        }
    }
}

} // namespace collprobe::testing::block_test
