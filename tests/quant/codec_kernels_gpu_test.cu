// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// The kernels against the reducers on the host: the same bits of codes, scales, elements and residuals, and
// the same errors. Small, because a run without a GPU executes PTX.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <collprobe/detail/reduce_blocks.hpp>
#include <collprobe/device/cuda/device.hpp>
#include <collprobe/quant/cuda/codec_kernels.cuh>

#include "support/device_copy.cuh"
#include "support/needs_gpu.hpp"

using namespace collprobe;
namespace cu = collprobe::cuda; // CUDA has a namespace cuda, too
namespace quant = collprobe::detail;

namespace {

using testing::device_copy;
using bytes = std::vector<unsigned char>;

/// One stream and workspace for all: each reduction leaves them as the next one needs them.
struct bench {
    cu::stream stream;
    cu::workspace scratch;

    template <class Reducer>
    auto reduce(const Reducer& reducer, std::uint64_t blocks)
    {
        cu::pinned_buffer<decltype(reducer.finish(reducer.identity()))> result(1);
        cu::device::reduce(stream.get(), reducer, blocks, result.data(), scratch);
        stream.synchronize();
        return result[0];
    }
    /// By so many blocks of threads.
    template <class Reducer>
    auto reduce_by(unsigned grid, const Reducer& reducer, std::uint64_t blocks)
    {
        using result_type = decltype(reducer.finish(reducer.identity()));
        cu::pinned_buffer<result_type> result(1);
        cu::detail::reduce_kernel<Reducer, result_type><<<grid, 256, 0, stream.get()>>>(reducer, blocks,
            cu::detail::plan_of(reducer, blocks), result.data(),
            cu::detail::partial_results{static_cast<unsigned long long*>(scratch.partials())},
            scratch.ticket(), reduction_times{});
        REQUIRE(cudaGetLastError() == cudaSuccess);
        stream.synchronize();
        return result[0];
    }
};

template <class Reducer>
auto reduce_on_host(const Reducer& reducer, std::uint64_t blocks)
{
    return reducer.finish(quant::reduce_blocks(reducer, blocks));
}

/// What is quantised, and how.
struct setting {
    quantisation how;
    quant::message_slices cut;
    bool residual = false;
    bool probed = true;
    std::size_t offset = 0; ///< of the buffer's begin behind an aligned place, in elements

    std::uint64_t message_bytes(const quant::codec& codec) const
    {
        return quant::wire_layout::of(codec, cut.blocks_per_message()).bytes();
    }
};

quant::message_slices one_slice(std::uint32_t block, std::uint64_t count)
{
    return {1, 1, block, count, 0, count, count};
}

/// Blocks of all kinds: numbers of any size, zeros, equal ones, and some with what is not finite or rare.
template <class T>
std::vector<T> adversarial(std::size_t count, std::uint32_t block, unsigned seed)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    constexpr int range = std::is_same_v<T, collprobe::float16> ? 14 : 125;
    const auto largest = [] {
        using traits = element_traits<T>;
        return quant::bit_cast<T>(static_cast<typename traits::bits_type>(traits::smallest_nonfinite - 1));
    }();
    const float infinity = std::numeric_limits<float>::infinity();
    const auto smallest = quant::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(1));
    std::vector<T> data(count);
    for (std::size_t begin = 0; begin < count; begin += block) {
        const unsigned kind = random() % 9;
        const float scale = std::ldexp(1.0f, static_cast<int>(random() % (2 * range)) - range);
        for (std::size_t k = begin; k < count && k < begin + block; ++k) {
            const float x = normal(random);
            const unsigned die = random() % 64;
            data[k] = T(x * scale);
            if (kind == 0) data[k] = T(die == 0 ? -0.0f : 0.0f);
            if (kind == 1) data[k] = T(scale);
            if (kind == 2)
                data[k] = quant::bit_cast<T>(static_cast<typename element_traits<T>::bits_type>(die % 5));
            if (kind == 3 && die == 0) data[k] = T(infinity - infinity);
            if (kind == 3 && die == 1) data[k] = T(die % 2 == 0 ? infinity : -infinity);
            if (kind == 4 && die < 2) data[k] = die == 0 ? largest : T(-static_cast<float>(largest));
            if (kind == 5 && die < 9) data[k] = die < 3 ? T(0.0f) : die < 6 ? T(-0.0f) : smallest;
            if (kind == 6)
                data[k] = T(std::ldexp(
                    x, static_cast<int>(die) - 32 < -range ? -range : static_cast<int>(die) % range));
        }
    }
    return data;
}
template <class T>
std::vector<T> gaussian(std::size_t count, unsigned seed)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<T> data(count);
    for (T& one : data) one = T(normal(random));
    return data;
}

/// Elements with the same bits, where NaN is NaN.
template <class T>
bool same_elements(const std::vector<T>& a, const std::vector<T>& b)
{
    if (a.size() != b.size()) return false;
    for (std::size_t k = 0; k < a.size(); ++k) {
        if (to_bits(a[k]) == to_bits(b[k]) || (is_nan(a[k]) && is_nan(b[k]))) continue;
        MESSAGE("element " << k << ": " << static_cast<float>(a[k]) << " and " << static_cast<float>(b[k]));
        return false;
    }
    return true;
}
bool same_bytes(const bytes& a, const bytes& b)
{
    if (a.size() != b.size()) return false;
    for (std::size_t k = 0; k < a.size(); ++k) {
        if (a[k] == b[k]) continue;
        MESSAGE("byte " << k << " of " << a.size() << ": " << int{a[k]} << " and " << int{b[k]});
        return false;
    }
    return true;
}

/// Both add the squares of a block in float, whose rounding adds up: over the chain of 16 sums and their tree on the host,
/// over a lane's 32 elements and the tree of lanes on a GPU.
double tolerance_of(std::uint32_t block) { return ((block / 16 + 4) + (32 + 5)) * 0x1p-24; }
bool is_near(double a, double b, double scale) { return std::abs(a - b) <= scale; }

/// `distinct`: no two blocks are equally bad.
void check_errors(
    const quantisation_errors& found, const quantisation_errors& expected, double tolerance, bool distinct)
{
    CHECK(found.count == expected.count);
    CHECK(found.nonfinite == expected.nonfinite);
    CHECK(found.zeros == expected.zeros);
    CHECK(found.zeroed == expected.zeroed);
    CHECK(found.saturated == expected.saturated);
    CHECK(found.blocks == expected.blocks);
    CHECK(found.zero_blocks == expected.zero_blocks);
    CHECK(is_near(found.squares, expected.squares, tolerance * expected.squares));
    CHECK(is_near(found.error_squares, expected.error_squares, tolerance * expected.error_squares));
    CHECK(is_near(found.error_sum, expected.error_sum,
        tolerance * std::sqrt(expected.error_squares) * std::sqrt(static_cast<double>(expected.count))));
    CHECK(is_near(found.crest_sum, expected.crest_sum, tolerance * expected.crest_sum));
    CHECK(is_near(found.scale_sum, expected.scale_sum, tolerance * expected.scale_sum));
    CHECK(is_near(found.worst_ratio, expected.worst_ratio, 10 * tolerance * expected.worst_ratio));
    if (!distinct) return;
    CHECK(found.worst_block == expected.worst_block);
}

std::string text(const setting& of)
{
    const quantisation& how = of.how;
    return std::string(name(how.format)) + " " + name(how.rounding) + " B=" + std::to_string(how.block) + (how.rotate ? " rotated" : "")
        + (of.residual ? " residual" : "")
        + (of.probed ? "" : " unprobed") + " messages "
        + std::to_string(of.cut.messages) + "x" + std::to_string(of.cut.slices_per_message) + " length "
        + std::to_string(of.cut.length) + " first " + std::to_string(of.cut.first) + " count "
        + std::to_string(of.cut.count) + " offset " + std::to_string(of.offset);
}

constexpr std::uint64_t step_number = 77;

template <class T>
struct codec_check {
    bench& on;
    const setting& of;
    bool distinct;
    quant::codec how = quant::codec::of<T>(of.how);
    device_copy<std::uint64_t> step{{step_number}};
    std::uint64_t stride = of.message_bytes(how);
    double tolerance = tolerance_of(of.how.block);

    quant::block_encoder encoder(
        const quant::codec& codec, const std::uint64_t* read_step, float* residual) const
    {
        return {codec, {of.how.seed, read_step, 3, 8}, residual, of.probed};
    }
    quant::encode_reducer<T> encode(
        const T* source, unsigned char* messages, float* residual, const std::uint64_t* read_step) const
    {
        return {encoder(how, read_step, residual), of.cut, source, messages, stride};
    }
    std::vector<float> some_residual(unsigned seed) const
    {
        return of.residual ? gaussian<float>(of.cut.blocks() * of.how.block, seed) : std::vector<float>();
    }
    static float* pointer(std::vector<float>& from) { return from.empty() ? nullptr : from.data(); }

    /// Returns the messages.
    bytes check_encode(const std::vector<T>& data) const
    {
        bytes expected(of.cut.messages * stride, 0xa5);
        std::vector<float> residual = some_residual(5);
        const device_copy<unsigned char> messages(bytes(expected.size(), 0x5a)); // every byte is written, padding too
        const device_copy<float> kept(residual);
        const device_copy<T> source(data, of.offset * sizeof(T));
        const quantisation_errors found = on.reduce(
            encode(source.data(), messages.data(), of.residual ? kept.data() : nullptr, step.data()),
            of.cut.blocks());
        const quantisation_errors errors = reduce_on_host(
            encode(data.data(), expected.data(), pointer(residual), &step_number), of.cut.blocks());
        CHECK(same_bytes(messages.read(), expected));
        CHECK(same_elements(kept.read(), residual));
        check_errors(found, errors, tolerance, distinct && of.probed);
        return expected;
    }
    void check_decode(const bytes& messages) const
    {
        std::vector<T> expected(of.cut.count, T(3.25f));
        const device_copy<T> result(expected, of.offset * sizeof(T));
        const device_copy<unsigned char> from(messages);
        const std::uint64_t found = on.reduce(
            quant::decode_reducer<T>{how, of.cut, from.data(), stride, result.data()}, of.cut.blocks());
        const std::uint64_t nonfinite = reduce_on_host(
            quant::decode_reducer<T>{how, of.cut, messages.data(), stride, expected.data()}, of.cut.blocks());
        CHECK(found == nonfinite);
        CHECK(same_elements(result.read(), expected));
    }

    /// Adds up messages of so many terms, of which the first `messages` of the cut are.
    void check_combine(const bytes& messages, std::uint32_t terms, std::uint32_t divisor, code_format out_format,
        bool to_codes) const
    {
        CAPTURE(terms);
        CAPTURE(divisor);
        CAPTURE(to_codes);
        quantisation how_out = of.how;
        how_out.format = out_format;
        const quant::codec out = quant::codec::of<T>(how_out);
        const std::uint64_t blocks = of.cut.blocks_per_message();
        const std::uint64_t codes_stride = quant::wire_layout::of(out, of.cut.blocks_per_slice()).bytes();
        std::vector<T> expected(to_codes ? 0 : of.cut.count, T(3.25f));
        bytes codes(to_codes ? codes_stride * of.cut.slices_per_message : 0, 0xa5);
        std::vector<float> residual = to_codes ? some_residual(6) : std::vector<float>();
        const device_copy<T> result(expected, of.offset * sizeof(T));
        const device_copy<unsigned char> made(bytes(codes.size(), 0x5a));
        const device_copy<float> kept(residual);
        const device_copy<unsigned char> from(messages);
        const auto reducer = [&](const unsigned char* in, T* elements, unsigned char* to, float* rest,
                                 const std::uint64_t* read_step) {
            return quant::combine_reducer<T>{how, of.cut, in, stride, terms, divisor, of.probed,
                to_codes ? nullptr : elements, encoder(out, read_step, rest), to, codes_stride};
        };
        const combined_errors found = on.reduce(reducer(from.data(), result.data(), made.data(),
                                                    residual.empty() ? nullptr : kept.data(), step.data()),
            blocks);
        const combined_errors errors = reduce_on_host(
            reducer(messages.data(), expected.data(), codes.data(), pointer(residual), &step_number), blocks);
        CHECK(same_elements(result.read(), expected));
        CHECK(same_bytes(made.read(), codes));
        CHECK(same_elements(kept.read(), residual));
        check_errors(found.errors, errors.errors, tolerance, distinct && of.probed);
        CHECK(is_near(found.term_squares, errors.term_squares, tolerance * errors.term_squares));
        CHECK(is_near(found.sum_squares, errors.sum_squares, tolerance * errors.sum_squares));
    }
};

template <class T>
void check_all(bench& on, const setting& of, const std::vector<T>& data, bool distinct, unsigned variant)
{
    CAPTURE(std::string(element_traits<T>::name));
    CAPTURE(text(of));
    const codec_check<T> check{on, of, distinct};
    const bytes messages = check.check_encode(data);
    check.check_decode(messages);
    constexpr std::uint32_t divisors[] = {1, 3, 4};
    check.check_combine(messages, of.cut.messages, divisors[variant % 3], static_cast<code_format>(variant / 2 % 3),
        variant % 2 == 0);
}

/// All valid settings of one quantisation, chosen by a number.
setting make_setting(std::mt19937& random, code_format format, std::uint32_t block)
{
    setting of;
    of.how.format = format;
    of.how.block = block;
    of.how.rotate = random() % 3 == 0;
    of.residual = random() % 4 == 0;
    if (!of.residual && random() % 3 == 0) of.how.rounding = code_rounding::stochastic;
    of.probed = random() % 4 != 0;
    of.offset = random() % 3 == 0 ? random() % 8 : 0;
    quant::message_slices& cut = of.cut;
    cut.messages = 1 + random() % 6;
    cut.slices_per_message = 1 + random() % 3;
    cut.block = block;
    const std::uint64_t most = 6000 / (cut.messages * cut.slices_per_message);
    cut.length = 1 + random() % most;
    if (random() % 3 == 0) cut.length = (cut.length + block - 1) / block * block;
    cut.first = random() % 3 == 0 ? random() % 100 : random() % 4 * 8;
    cut.stride = cut.first + cut.length + random() % 20;
    const std::uint64_t slices = std::uint64_t{cut.messages} * cut.slices_per_message;
    cut.count = cut.stride * slices;
    if (random() % 2 == 0) cut.count -= random() % (cut.stride * 2 < cut.count ? cut.stride * 2 : cut.count);
    return of;
}

template <class T>
void check_matrix(unsigned seed)
{
    bench on;
    std::mt19937 random(seed);
    unsigned variant = 0;
    for (std::uint32_t block = 32; block <= 1024; block *= 2) {
        for (const code_format format : {code_format::int8, code_format::int4, code_format::e4m3}) {
            for (int draw = 0; draw < 3; ++draw) {
                const setting of = make_setting(random, format, block);
                check_all<T>(on, of, adversarial<T>(of.cut.count, block, ++variant), false, variant);
            }
        }
    }
}

} // namespace

TEST_CASE("a GPU codes blocks as the host does - float, settings at random") { check_matrix<float>(1); }
TEST_CASE("a GPU codes blocks as the host does - bfloat16, settings at random") { check_matrix<bfloat16>(2); }
TEST_CASE("a GPU codes blocks as the host does - float16, settings at random")
{
    check_matrix<collprobe::float16>(3);
}

TEST_CASE("counts around a block, of which a warp has several, one, and a part")
{
    bench on;
    for (const std::uint32_t block : {32u, 128u, 1024u}) {
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{block - 1},
                 std::uint64_t{block}, std::uint64_t{block + 1}, std::uint64_t{3 * block + 17}}) {
            setting of;
            of.how.block = block;
            of.cut = one_slice(block, count);
            of.how.format = count % 2 == 0 ? code_format::int8 : code_format::int4;
            if (count != 0) check_all<float>(on, of, gaussian<float>(count, 7), true, 2);
            else check_all<float>(on, of, {}, true, 2);
        }
    }
}

TEST_CASE("several slots: the worst block is found, whatever blocks of threads look for it")
{
    bench on;
    for (const bool rotate : {false, true}) {
        for (const code_format format : {code_format::int8, code_format::e4m3}) {
            setting of;
            of.how.format = format;
            of.how.rotate = rotate;
            of.cut = one_slice(128, 40'000 + 3);
            std::vector<float> data = gaussian<float>(of.cut.count, 11);
            data[23'456] = 100;
            check_all<float>(on, of, data, true, 2);
            const codec_check<float> check{on, of, true};
            const device_copy<float> source(data);
            const device_copy<unsigned char> messages(bytes(check.stride, 0));
            const auto reducer = check.encode(source.data(), messages.data(), nullptr, check.step.data());
            const quantisation_errors expected = on.reduce(reducer, of.cut.blocks());
            for (const unsigned grid : {1u, 3u}) {
                const quantisation_errors again = on.reduce_by(grid, reducer, of.cut.blocks());
                CHECK(std::memcmp(&again, &expected, sizeof again) == 0);
            }
        }
    }
}

TEST_CASE("many terms are added in their order")
{
    bench on;
    setting of;
    of.cut = {11, 1, 128, 700, 0, 700, 7700};
    const std::vector<bfloat16> data = adversarial<bfloat16>(of.cut.count, 128, 4);
    const codec_check<bfloat16> check{on, of, false};
    const bytes messages = check.check_encode(data);
    for (const std::uint32_t terms : {1u, 2u, 4u, 5u, 8u, 11u})
        check.check_combine(messages, terms, terms, code_format::int8, terms % 2 == 0);
}
