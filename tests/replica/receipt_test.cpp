// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#include <collprobe/replica/receipt.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/local/run.hpp>
#include <collprobe/detail/hexadecimal.hpp>
#include <collprobe/device/host/device.hpp>
#include <collprobe/scan/digest.hpp>

#include "support/errors.hpp"

namespace collprobe::testing::receipt_test {
namespace {

#if defined(COLLPROBE_TEST_SANITIZED) || defined(COLLPROBE_TEST_BRIEF)
constexpr int trials = 40;
#else
constexpr int trials = 300;
#endif
constexpr std::array<element_cast, 2> to_bfloat16{
    element_cast{}, {element_type::bfloat16, cast_rounding::toward_zero}};

/// A model of one tensor, and another beside it.
struct model {
    tensor_shape shape;
    std::vector<float> weights;
    std::vector<float> bias;
};

using boxes = std::vector<tensor_box>;

class cases {
public:
    explicit cases(unsigned seed) : random_(seed) {}

    std::uint64_t below(std::uint64_t end) { return random_() % end; }

    model weights()
    {
        model made;
        made.shape = {4 + below(40), 4 + below(60)};
        if (below(3) == 0) made.shape = {2 + below(6), 2 + below(12), 3 + below(20)};
        made.weights.resize(made.shape.elements());
        made.bias.resize(5 + below(50));
        for (float& each : made.weights) each = 1.0f + static_cast<float>(below(1 << 20)) * 0x1p-20f;
        for (float& each : made.bias) each = 1.0f + static_cast<float>(below(1 << 20)) * 0x1p-20f;
        return made;
    }

    /// Slices of about equal size along dimension `d`.
    static boxes slices(const tensor_shape& shape, int d, std::uint64_t count)
    {
        boxes made;
        for (std::uint64_t i = 0; i < count; ++i) {
            tensor_box box{shape, shape};
            for (std::uint64_t& each : box.first.size) each = 0;
            box.first.size[d] = shape.size[d] * i / count;
            box.extent.size[d] = shape.size[d] * (i + 1) / count - box.first.size[d];
            if (box.extent.size[d] != 0) made.push_back(box);
        }
        return made;
    }
    boxes cut(const tensor_shape& shape)
    {
        const int d = static_cast<int>(below(static_cast<std::uint64_t>(shape.dimensions)));
        boxes made = slices(shape, d, 1 + below(8));
        if (below(2) == 0) return made;
        const int other = (d + 1) % shape.dimensions;
        boxes finer;
        for (const tensor_box& box : made) {
            tensor_box left = box;
            tensor_box right = box;
            left.extent.size[other] = below(box.extent.size[other] + 1);
            right.first.size[other] += left.extent.size[other];
            right.extent.size[other] -= left.extent.size[other];
            for (const tensor_box& each : {left, right})
                if (each.extent.elements() != 0) finer.push_back(each);
        }
        return finer;
    }

private:
    std::mt19937_64 random_;
};

tensor_part part_of(const std::vector<float>& tensor, const tensor_shape& shape, const tensor_box& box)
{
    return tensor_part{view<const float>(tensor), shape}.within(box);
}

/// Rank r holds box r.
receipt receipt_of(const model& of, const boxes& cut, std::uint64_t step = 7, view<const element_cast> casts = {})
{
    receipt all(step);
    for (std::size_t rank = 0; rank < cut.size(); ++rank) {
        receipt own(step, static_cast<int>(rank));
        own.add("layers.0.weight", part_of(of.weights, of.shape, cut[rank]), casts);
        if (rank == 0) own.add("bias", {view<const float>(of.bias), {of.bias.size()}}, casts);
        all.merge(own);
    }
    return all;
}

bool contains(const tensor_box& box, const tensor_box& inner)
{
    return detail::intersection(box, inner) == inner;
}

/// The box of a single element.
tensor_box box_of(const tensor_shape& shape, std::uint64_t element)
{
    tensor_box box{shape, shape};
    for (int d = shape.dimensions - 1; d >= 0; --d) {
        box.first.size[d] = element % shape.size[d];
        box.extent.size[d] = 1;
        element /= shape.size[d];
    }
    return box;
}

std::vector<std::string> sentences(const std::vector<receipt_finding>& findings)
{
    std::vector<std::string> all;
    for (const receipt_finding& each : findings) all.push_back(describe(each));
    return all;
}

using texts = std::vector<std::string>;

/// The reason why a text is refused; empty if it is not.
std::string refusal(const std::string& text)
{
    const std::string why = testing::refusal([&] { (void)receipt::read(text); });
    return why == "accepted" ? "" : why;
}

/// The text with an end that fits to its other lines.
std::string with_end(std::string text, std::size_t tensors)
{
    const std::uint64_t sum
        = digest(view<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
    return text + R"({"tensors":)" + std::to_string(tensors) + R"(,"digest":")" + detail::hexadecimal(sum) + "\"}\n";
}
std::string without_end(const std::string& text) { return text.substr(0, text.rfind("{\"tensors\"")); }

std::string small_text()
{
    const std::vector<float> data(12, 1.5f);
    receipt own(3, 1);
    own.add("a", {view<const float>(data), {2, 6}}, to_bfloat16);
    own.add("b", {view<const float>(data), {24}, {{0}, {12}}});
    return own.text();
}

} // namespace

TEST_CASE("receipt - any two cuts of the same model agree, also through their texts")
{
    cases random(1);
    for (int trial = 0; trial < trials; ++trial) {
        const model one = random.weights();
        const receipt trainer = receipt_of(one, random.cut(one.shape), 7, to_bfloat16);
        const receipt engine = receipt_of(one, random.cut(one.shape), 7, to_bfloat16);
        CHECK(sentences(verify(trainer, engine)) == texts{});
        CHECK(trainer.find("layers.0.weight")->whole().finish() == digest(view<const float>(one.weights)));
        const std::string text = trainer.text();
        const receipt again = receipt::read(text);
        CHECK(again.text() == text);
        CHECK(sentences(verify(again, engine, {&trainer, 1})) == texts{});
        CHECK(find_gaps(again).empty());
    }
}

TEST_CASE("receipt - where one cut refines the other, or both are slices, the finest common box is named")
{
    model one{{12, 4}, std::vector<float>(48, 2.0f), {1.0f}};
    model two = one;
    two.weights[5 * 4] = 3; // in row 5
    const auto rows = [&](std::uint64_t count) { return cases::slices(one.shape, 0, count); };
    const auto named = [&](const boxes& expected, const boxes& found) {
        const auto findings = verify(receipt_of(one, expected), receipt_of(two, found));
        REQUIRE(findings.size() == 1);
        return findings[0].box;
    };
    CHECK(named(rows(12), rows(6)) == tensor_box{{4, 0}, {2, 4}});
    CHECK(named(rows(6), rows(12)) == tensor_box{{4, 0}, {2, 4}});
    CHECK(named(rows(6), rows(4)) == tensor_box{{0, 0}, {6, 4}});
    CHECK(named(rows(6), cases::slices(one.shape, 1, 2)) == tensor_box{{0, 0}, {12, 4}});
    CHECK(sentences(verify(receipt_of(one, rows(6)), receipt_of(two, rows(6))))
        == texts{"\"layers.0.weight\" [4,0]+[2,4], rank 2: other bits than expected"});
}

TEST_CASE("receipt - shards that are swapped, zero or of the step before are named for what they are")
{
    model now{{8, 4}, std::vector<float>(32), {1.0f}};
    for (std::size_t i = 0; i < 32; ++i) now.weights[i] = static_cast<float>(i + 1);
    model before = now;
    for (float& each : before.weights) each += 0.25f;
    const boxes cut = cases::slices(now.shape, 0, 4);
    const receipt expected = receipt_of(now, cut), older = receipt_of(before, cut, 6);
    struct wrong_shard {
        std::size_t rank;
        const std::vector<float>& data;
        std::size_t box; ///< where the data are from
    };
    const auto told = [&](const std::vector<wrong_shard>& shards) {
        receipt found = receipt_of(now, {});
        for (std::size_t rank = 0; rank < cut.size(); ++rank) {
            tensor_part part = part_of(now.weights, now.shape, cut[rank]);
            for (const wrong_shard& each : shards)
                if (each.rank == rank) part = part_of(each.data, now.shape, cut[each.box]);
            part.box = cut[rank];
            receipt own(7, static_cast<int>(rank));
            own.add("layers.0.weight", part);
            if (rank == 0) own.add("bias", {view<const float>(now.bias), {now.bias.size()}});
            found.merge(own);
        }
        return sentences(verify(expected, found, {&older, 1}));
    };
    const std::string of_1 = "\"layers.0.weight\" [2,0]+[2,4], rank 1: ", of_2 = "\"layers.0.weight\" [4,0]+[2,4], rank 2: ";
    CHECK(told({}) == texts{});
    CHECK(told({{1, std::vector<float>(32), 1}}) == texts{of_1 + "all zeros"});
    CHECK(told({{1, before.weights, 1}}) == texts{of_1 + "the bits of step 6"});
    const std::string moved = of_1 + "the bits that \"layers.0.weight\" [4,0]+[2,4] should have";
    CHECK(told({{1, now.weights, 2}}) == texts{moved});
    CHECK(told({{1, now.weights, 2}, {2, now.weights, 1}})
        == texts{moved, of_2 + "the bits that \"layers.0.weight\" [2,0]+[2,4] should have"});
}

TEST_CASE("receipt - tensors of a whole are named: exchanged, missing, unexpected, of another shape, type or step")
{
    std::vector<float> one(24), two(24), three(24, 3.0f);
    for (std::size_t i = 0; i < 24; ++i) {
        one[i] = static_cast<float>(i + 1);
        two[i] = static_cast<float>(100 - i);
    }
    const tensor_shape shape{4, 6};
    const auto whole = [&](const std::vector<float>& data, const tensor_shape& of) {
        return tensor_part{view<const float>(data), of};
    };
    receipt expected(5);
    expected.add("q", whole(one, shape));
    expected.add("k", whole(two, shape));
    expected.add("only here", whole(three, {24}));
    expected.add("typed", whole(three, {24}));
    receipt found(4);
    found.add("q", whole(two, shape));
    found.add("k", whole(one, {6, 4}));
    found.add("only there", whole(three, {24}));
    found.add("typed", tensor_part{view<const std::int32_t>(std::vector<std::int32_t>(24)), {24}});
    CHECK(sentences(verify(expected, found))
        == texts{"the receipt is of step 4, expected is step 5", "\"k\": the shape is [6,4], expected is [4,6]",
            "\"only here\": missing",
            "\"q\" [0,0]+[4,6]: the bits that \"k\" [0,0]+[4,6] should have",
            "\"typed\": the type is int32, expected is float, and no cast between them is known",
            "\"only there\": not expected"});
    found.step = receipt::no_step;
    CHECK(verify(expected, found)[0].problem == receipt_problem::other_shape);
}

TEST_CASE("receipt - gaps, overlaps and replicas that differ are named")
{
    std::vector<float> data(60);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i + 1);
    const tensor_shape shape{6, 10};
    const auto rank_with = [&](int rank, const tensor_box& box, const std::vector<float>& from) {
        receipt own(1, rank);
        own.add("w", part_of(from, shape, box));
        return own;
    };
    receipt expected(1);
    expected.add("w", {view<const float>(data), shape});
    CHECK(find_gaps(expected).empty());
    CHECK(expected.text().find(R"("shape":[6,10],"casts":[],"digest":")" + detail::hexadecimal(digest(view<const float>(data))))
        != std::string::npos);

    receipt holes = rank_with(0, {{0, 0}, {6, 4}}, data);
    holes.merge(rank_with(1, {{2, 4}, {4, 6}}, data));
    CHECK(sentences(verify(expected, holes)) == texts{"\"w\" [0,4]+[2,6]: no rank has this part; without it [0,0]+[6,10] cannot be compared"});
    CHECK(sentences(find_gaps(holes)) == texts{"\"w\" [0,4]+[2,6]: no rank has this part"});
    CHECK(holes.text().find(R"("shape":[6,10],"casts":[],"digest":"-")") != std::string::npos);
    CHECK(sentences(find_gaps(receipt::read(holes.text()))) == sentences(find_gaps(holes)));
    CHECK_THROWS_AS(verify(holes, expected), const error&);

    receipt twice = holes;
    twice.merge(rank_with(2, {{0, 3}, {2, 7}}, data));
    CHECK(sentences(verify(expected, twice)) == texts{"\"w\" [0,0]+[6,4], rank 0: overlaps with the part [0,3]+[2,7]"});

    receipt nothing(1);
    nothing.add("w", part_of(data, shape, {{3, 3}, {0, 2}}));
    CHECK(sentences(verify(expected, nothing)) == texts{"\"w\" [0,0]+[6,10]: no rank has this part"});

    // Six ranks hold two halves three times; one of them is damaged: by what is expected, it is known which.
    std::vector<float> damaged = data;
    damaged[33] = -1;
    receipt replicas(1);
    for (int rank = 0; rank < 6; ++rank) {
        const tensor_box half{{rank % 2 == 0 ? 0u : 3u, 0}, {3, 10}};
        replicas.merge(rank_with(rank, half, rank == 5 ? damaged : data));
    }
    CHECK(sentences(find_gaps(replicas)) == texts{"\"w\" [3,0]+[3,10], ranks 1,3,5: not the same bits on all ranks that hold it"});
    CHECK(sentences(verify(expected, replicas)) == texts{"\"w\" [3,0]+[3,10], rank 5: other bits than expected"});
    CHECK(sentences(verify(expected, receipt::read(replicas.text()))) == sentences(verify(expected, replicas)));
    replicas.merge(rank_with(6, {{0, 0}, {3, 10}}, std::vector<float>(60)));
    CHECK(sentences(verify(expected, replicas))
        == texts{"\"w\" [0,0]+[3,10], rank 6: all zeros", "\"w\" [3,0]+[3,10], rank 5: other bits than expected"});
    // Nobody has the expected half; the other half may be wrong too.
    receipt none_right = rank_with(0, {{0, 0}, {3, 10}}, std::vector<float>(60));
    none_right.merge(rank_with(1, {{0, 0}, {3, 10}}, std::vector<float>(60, 1.0f)));
    none_right.merge(rank_with(2, {{3, 0}, {3, 10}}, damaged));
    CHECK(sentences(verify(expected, none_right))
        == texts{"\"w\" [0,0]+[3,10], ranks 0-1: not the same bits on all ranks that hold it",
            "\"w\" [0,0]+[6,10], ranks 0-2: other bits than expected"});
    receipt again = rank_with(4, {{0, 0}, {6, 10}}, data);
    again.merge(rank_with(4, {{0, 0}, {6, 10}}, damaged));
    CHECK(sentences(find_gaps(again)) == texts{"\"w\" [0,0]+[6,10], rank 4: added more than once, with different bits"});

    receipt other_step(2);
    CHECK_THROWS_AS(other_step.merge(expected), const error&);
    receipt other_shape(1);
    other_shape.add("w", {view<const float>(data), {10, 6}});
    CHECK_THROWS_AS(other_shape.merge(expected), const error&);
}

TEST_CASE("receipt - all gaps are named as few boxes and parts that can be compared still are")
{
    std::vector<float> data(16);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i + 1);
    const tensor_shape shape{4, 4};
    const auto of = [&](const boxes& held, const std::vector<float>& from) {
        receipt all(1);
        for (std::size_t rank = 0; rank < held.size(); ++rank) {
            receipt own(1, static_cast<int>(rank));
            own.add("w", part_of(from, shape, held[rank]));
            all.merge(own);
        }
        return all;
    };
    CHECK(sentences(find_gaps(of({{{0, 1}, {2, 3}}, {{2, 1}, {2, 3}}}, data)))
        == texts{"\"w\" [0,0]+[4,1]: no rank has this part"});
    CHECK(sentences(find_gaps(of({{{1, 0}, {1, 4}}, {{3, 0}, {1, 4}}}, data)))
        == texts{"\"w\" [0,0]+[1,4]: no rank has this part", "\"w\" [2,0]+[1,4]: no rank has this part"});
    // The hole of a pinwheel.
    const boxes pinwheel{{{0, 0}, {1, 3}}, {{0, 3}, {3, 1}}, {{3, 1}, {1, 3}}, {{1, 0}, {3, 1}}};
    CHECK(sentences(find_gaps(of(pinwheel, data))) == texts{"\"w\" [1,1]+[2,2]: no rank has this part"});
    std::vector<float> damaged = data;
    damaged[5] = -1; // in row 1
    const receipt rows = of(cases::slices(shape, 0, 4), data);
    const boxes three{{{0, 0}, {1, 4}}, {{1, 0}, {1, 4}}, {{2, 0}, {1, 4}}};
    CHECK(sentences(verify(rows, of(three, damaged)))
        == texts{"\"w\" [3,0]+[1,4]: no rank has this part", "\"w\" [1,0]+[1,4], rank 1: other bits than expected"});
    CHECK(sentences(verify(of({{{0, 0}, {4, 4}}}, data), of(three, damaged)))
        == texts{"\"w\" [3,0]+[1,4]: no rank has this part; without it [0,0]+[4,4] cannot be compared"});
}

TEST_CASE("receipt - a rank that is right is not named alone because its part is zero or unchanged or equal to another")
{
    model now{{8, 8}, std::vector<float>(64), {1.0f}};
    for (std::size_t i = 0; i < 64; ++i) now.weights[i] = static_cast<float>(i + 1);
    const auto rows = [&](std::uint64_t count) { return cases::slices(now.shape, 0, count); };
    const texts both{"\"layers.0.weight\" [0,0]+[8,8], ranks 0-1: other bits than expected"};
    model damaged = now;
    damaged.weights[40] = -1; // of rank 1
    model before = now;
    for (std::size_t i = 32; i < 64; ++i) before.weights[i] += 0.5f;
    const receipt older = receipt_of(before, rows(2), 6);
    CHECK(sentences(verify(receipt_of(now, rows(1)), receipt_of(damaged, rows(2)), {&older, 1})) == both);

    receipt expected = receipt_of(now, rows(1)), found = receipt_of(damaged, rows(2));
    for (receipt* each : {&expected, &found}) each->add("tied", {view<const float>(now.weights.data(), 32), {4, 8}});
    CHECK(sentences(verify(expected, found)) == both);

    for (model* each : {&now, &damaged}) std::fill_n(each->weights.begin(), 32, 0.0f);
    CHECK(sentences(verify(receipt_of(now, rows(1)), receipt_of(damaged, rows(2)))) == both);
    // The same across the cut of what is expected; and where it can tell, the rank alone.
    CHECK(sentences(verify(receipt_of(now, cases::slices(now.shape, 1, 2)), receipt_of(damaged, rows(2)))) == both);
    CHECK(sentences(verify(receipt_of(now, rows(4)), receipt_of(damaged, rows(2))))
        == texts{"\"layers.0.weight\" [4,0]+[4,8], rank 1: other bits than expected"});
}

TEST_CASE("receipt - every altered number is in a finding with its rank and no finding is of right numbers alone")
{
    cases random(7);
    int known = 0;
    for (int trial = 0; trial < 3 * trials; ++trial) {
        model now = random.weights();
        for (float& each : now.weights) each = random.below(20) == 0 ? 1.0f : 0.0f;
        model before = now;
        before.weights[random.below(now.weights.size())] = 2.0f;
        const boxes cut = random.cut(now.shape);
        model bad = now;
        for (std::uint64_t faults = 1 + random.below(2); faults != 0; --faults) {
            const tensor_box shard = cut[random.below(cut.size())];
            const std::uint64_t kind = random.below(3); // of the step before, zero, another number
            for (std::uint64_t i = 0; i < now.weights.size(); ++i) {
                if (!contains(shard, box_of(now.shape, i))) continue;
                if (kind < 2 || random.below(9) == 0) bad.weights[i] = kind == 0 ? before.weights[i] : kind == 1 ? 0.0f : 3.0f;
            }
        }
        const receipt older = receipt_of(before, random.cut(now.shape), 6);
        const auto findings = verify(receipt_of(now, random.cut(now.shape)), receipt_of(bad, cut), {&older, 1});
        std::vector<bool> right(findings.size()); // all that the finding says is right
        for (std::uint64_t i = 0; i < now.weights.size(); ++i) {
            if (now.weights[i] == bad.weights[i]) continue;
            const tensor_box element = box_of(now.shape, i);
            int holder = 0;
            while (!contains(cut[static_cast<std::size_t>(holder)], element)) ++holder;
            bool named = false;
            for (std::size_t k = 0; k < findings.size(); ++k) {
                const std::vector<int>& ranks = findings[k].ranks;
                if (!contains(findings[k].box, element) || std::find(ranks.begin(), ranks.end(), holder) == ranks.end()) continue;
                named = right[k] = true;
            }
            CHECK(named);
        }
        for (std::size_t k = 0; k < findings.size(); ++k) {
            CHECK(right[k]);
            known += findings[k].problem != receipt_problem::altered;
        }
    }
    CHECK(known > trials / 10);
}

TEST_CASE("receipt - a tensor that is stale or another one as a whole is named so for any cuts and as a cast")
{
    std::vector<float> one(64), two(64);
    for (std::size_t i = 0; i < 64; ++i) {
        one[i] = static_cast<float>(i) + 1.125f;
        two[i] = 100.5f - static_cast<float>(i);
    }
    const auto narrowed = [](const std::vector<float>& from) {
        std::vector<bfloat16> all;
        for (const float each : from) all.push_back(bfloat16(each));
        return all;
    };
    const tensor_shape shape{8, 8};
    const auto add = [&](receipt& to, const char* name, const auto& data, const boxes& held) {
        using T = typename std::remove_cvref_t<decltype(data)>::value_type;
        const view<const element_cast> casts = sizeof(T) == 4 ? view<const element_cast>(to_bfloat16)
                                                              : view<const element_cast>();
        for (const tensor_box& each : held) to.add(name, tensor_part{view<const T>(data), shape}.within(each), casts);
    };
    const auto rows = [&](std::uint64_t count) { return cases::slices(shape, 0, count); };
    const boxes columns = cases::slices(shape, 1, 3);
    receipt expected(7);
    add(expected, "k", two, rows(4));
    add(expected, "q", one, rows(4));
    const texts exchanged{"\"k\" [0,0]+[8,8]: the bits that \"q\" [0,0]+[8,8] should have",
        "\"q\" [0,0]+[8,8]: the bits that \"k\" [0,0]+[8,8] should have"};
    const texts stale{"\"q\" [0,0]+[8,8]: the bits of step 6"};
    for (const boxes& held : {rows(1), rows(2), rows(4), columns}) {
        receipt swapped(7), swapped_casts(7);
        add(swapped, "k", one, held);
        add(swapped, "q", two, held);
        add(swapped_casts, "k", narrowed(one), held);
        add(swapped_casts, "q", narrowed(two), held);
        CHECK(sentences(verify(expected, swapped)) == exchanged);
        CHECK(sentences(verify(expected, swapped_casts)) == exchanged);
        CHECK(sentences(verify(swapped_casts, swapped)) == texts{});

        receipt wanted(7), older(6), found(7), found_cast(7);
        add(wanted, "q", one, rows(4));
        add(older, "q", two, columns);
        add(found, "q", two, held);
        add(found_cast, "q", narrowed(two), held);
        CHECK(sentences(verify(wanted, found, {&older, 1})) == stale);
        CHECK(sentences(verify(wanted, found_cast, {&older, 1})) == stale);
    }
    // One shard of a cast.
    receipt older(6), found(7);
    add(older, "q", two, rows(4));
    add(found, "q", narrowed(one), {{{0, 0}, {4, 8}}, {{4, 0}, {2, 8}}});
    add(found, "q", narrowed(two), {{{6, 0}, {2, 8}}});
    receipt wanted(7);
    add(wanted, "q", one, rows(4));
    CHECK(sentences(verify(wanted, found, {&older, 1})) == texts{"\"q\" [6,0]+[2,8]: the bits of step 6"});
}

TEST_CASE("receipt - what a text cannot have is refused where it is added and a merge that is refused adds nothing")
{
    const std::vector<float> data(4, 1.0f);
    const tensor_part part{view<const float>(data), {4}};
    receipt own(1, receipt::most_ranks - 1);
    const std::vector<element_cast> casts(17);
    own.add("w", part, {casts.data(), 16});
    CHECK(receipt::read(own.text()).text() == own.text());
    CHECK_THROWS_AS(own.add("v", part, {casts.data(), 17}), const error&);
    CHECK_THROWS_AS(own.add("v", part, {}, "bfloat16"), const error&);
    CHECK_THROWS_AS(receipt(1, receipt::most_ranks).add("w", part), const error&);
    CHECK_THROWS_AS(receipt(1, 0x7fffffff).add("w", part), const error&);

    receipt other(1, 0);
    other.add("a", part);
    other.add("w", {view<const float>(data), {2, 2}});
    const std::string before = own.text();
    CHECK_THROWS_WITH_AS(own.merge(other), doctest::Contains("\"w\" is float of 4 bytes [4]"), const error&);
    CHECK(own.text() == before);

    // Many tensors on as many ranks as there can be.
    std::string text = "{\"collprobe_receipt\":2,\"step\":null}\n";
    for (int i = 100; i < 120; ++i) {
        text += R"({"tensor":")" + std::to_string(i) + R"(","type":"float","bytes":4,"shape":[1],"casts":[],"digest":"-",)"
            R"("parts":[{"first":[0],"extent":[1],"sums":["0x1","0x1"],"content":"0x1","ranks":"0-1048575","casts":[]}]})" "\n";
    }
    CHECK(receipt::read(with_end(text, 20)).tensors()[19].parts.at(0).ranks.size() == receipt::most_ranks);
}

TEST_CASE("receipt - a copy in 16 bits is held against the stated rounding, in both directions")
{
    cases random(4);
    for (int trial = 0; trial < trials / 4; ++trial) {
        const model one = random.weights();
        std::vector<bfloat16> nearest, truncated;
        for (const float each : one.weights) {
            nearest.push_back(bfloat16(each));
            truncated.push_back(bfloat16::from_bits(
                static_cast<std::uint16_t>(detail::bit_cast<std::uint32_t>(each) >> 16)));
        }
        receipt trainer(7);
        for (const tensor_box& box : random.cut(one.shape))
            trainer.add("w", part_of(one.weights, one.shape, box), to_bfloat16);
        const auto engine = [&](const std::vector<bfloat16>& weights) {
            receipt made(7);
            for (const tensor_box& box : random.cut(one.shape))
                made.add("w", tensor_part{view<const bfloat16>(weights), one.shape}.within(box));
            return made;
        };
        CHECK(sentences(verify(trainer, engine(nearest))) == texts{});
        CHECK(sentences(verify(engine(nearest), trainer)) == texts{});
        for (const receipt_finding& each : verify(trainer, engine(truncated))) {
            CHECK(each.problem == receipt_problem::other_rounding);
            CHECK(describe(each).find("cast to bfloat16 by toward_zero, another rounding than is stated")
                != std::string::npos);
        }
        CHECK(!verify(trainer, engine(truncated)).empty());
        nearest[random.below(nearest.size())].bits ^= 4;
        const auto altered = verify(trainer, engine(nearest));
        REQUIRE(altered.size() == 1);
        CHECK(altered[0].problem == receipt_problem::altered);
        receipt without(7);
        without.add("w", {view<const float>(one.weights), one.shape});
        CHECK(verify(without, engine(nearest))[0].problem == receipt_problem::other_type);
    }
}

TEST_CASE("receipt - names and types of all kinds survive the text")
{
    const std::vector<float> data(4, 1.0f);
    receipt own(12, 3);
    const std::string names[] = {"a b", "line\nbreak", "\"quoted\\\"", "\xc3\xa4\xe2\x82\xac", std::string("nul\0l", 5), "\x7f", "end 1",
        std::string(70000, 'n')};
    for (const std::string& name : names) own.add(name, {view<const float>(data), {2, 2}});
    own.add("bits", tensor_part{view<const float16>(std::vector<float16>(3)), {3}}, {}, "int16");
    own.add("number", {view<const float>(data), {}});
    own.add("none", {view<const float>(data), {4, 0}});
    const receipt again = receipt::read(own.text());
    CHECK(again.text() == own.text());
    CHECK(again.tensors().count() == 11);
    for (const std::string& name : names) CHECK(again.find(name) != nullptr);
    CHECK(again.find("bits")->type == "int16");
    CHECK(again.find("a b")->parts.at(0).ranks == std::vector<int>{3});
    CHECK(sentences(verify(own, again)) == texts{});
    CHECK_THROWS_AS(own.add("", {view<const float>(data), {4}}), const error&);
    CHECK_THROWS_AS(own.add("no \xff UTF-8", {view<const float>(data), {4}}), const error&);
    CHECK_THROWS_AS(own.add("x", {view<const float>(data), {4}}, {}, "two words"), const error&);
    CHECK_THROWS_AS(own.add("number", {view<const float>(data), {4}}), const error&);
}

TEST_CASE("receipt - a text that is cut off or changed in any byte is refused")
{
    const std::string text = small_text();
    CHECK(refusal(text).empty());
    for (std::size_t length = 0; length < text.size(); ++length) CHECK(!refusal(text.substr(0, length)).empty());
    CHECK(refusal(text.substr(0, text.size() / 2)).find("cut off") != std::string::npos);
    CHECK(!refusal(text + "\n").empty());
    CHECK(!refusal(text + text).empty());
    for (std::size_t at = 0; at < text.size(); ++at) {
        for (const char byte : {'\0', '0', '9', ' ', '\n', '-', '[', '\x7f'}) {
            std::string changed = text;
            if (changed[at] == byte) continue;
            changed[at] = byte;
            if (refusal(changed).empty()) FAIL("byte " << at);
        }
    }
    CHECK(refusal("collprobe receipt 1\nstep 3\n").find("line 1: a receipt of version 1: write it again") != std::string::npos);
    CHECK(refusal("{\"collprobe_receipt\":3}\n").find("line 1: not a receipt of a version") != std::string::npos);
}

TEST_CASE("receipt - a text with a right digest but wrong lines is refused with the line, or read, and never crashes")
{
    const std::string body = without_end(small_text());
    CHECK(refusal(with_end(body, 2)).empty());
    CHECK(refusal(with_end(body, 3)).find("line 4: another number of tensors") != std::string::npos);
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string changed = body;
        const std::size_t at = changed.find(from);
        REQUIRE(at != std::string::npos);
        return refusal(with_end(changed.replace(at, from.size(), to), 2));
    };
    const auto refused = [&](const std::string& from, const std::string& to, const char* reason) {
        CAPTURE(to);
        CHECK_MESSAGE(with(from, to).find(reason) != std::string::npos, with(from, to));
    };
    const std::string shape = R"("shape":[2,6])";
    refused(R"("float")", R"("bfloat16")", "line 2: the type's name is that of a type with another size");
    // What numbers a field cannot have.
    refused(R"("step":3)", R"("step":18446744073709551616)", "line 1: a number that is too large");
    refused(R"("bytes":4)", R"("bytes":3)", "line 2: elements have");
    refused(R"("bytes":4)", R"("bytes":-4)", "line 2: no number where one must be");
    refused(R"("bytes":4)", R"("bytes":4294967300)", "line 2: a number that is too large");
    refused(shape, R"("shape":[2,9223372036854775807])", "line 2: a tensor of 2^63 bytes or more");
    refused(shape, R"("shape":[1,1,1,1,1,1,1,1,1])", "more than 8 dimensions");
    refused(R"("extent":[2,6])", R"("extent":[3,6])", "line 2: a part that is not within");
    refused(R"("first":[0,0],"extent":[2,6])", R"("first":[1,0],"extent":[18446744073709551615,6])", "not within");
    refused(R"("ranks":"1")", R"("ranks":"0-1048576")", "a rank of 2^20 or more");
    refused(R"("ranks":"1")", R"("ranks":"4,4")", "do not ascend");
    refused(R"("ranks":"1")", R"("ranks":"-1")", "no number where one must be");
    refused(R"("ranks":"1")", R"("ranks":"2-1")", "do not ascend");
    refused(R"("tensor":"b")", R"("tensor":"a")", "line 3: a tensor for the second time");
    refused("bfloat16 nearest_even", "int8 nearest_even", "a cast that is not known");
    refused(R"("casts":["bfloat16 nearest_even",)", R"("casts":[)", "a part with other casts than its tensor");
    // Other types, other JSON of the same value, keys that are repeated, missing or in another order.
    for (const char* other : {"\"3\"", "3.0", "3e0", "+3", "03", "-3", "true", "[3]", "{}", " 3", ""})
        CHECK(!with(R"("step":3)", std::string("\"step\":") + other).empty());
    for (const char* other : {"\"2\"", "2.0", "02", "0x2", "[2]", "-2", "", "null", "2,"})
        CHECK(!with(shape, std::string("\"shape\":[") + other + ",6]").empty());
    for (const char* other : {"[2,6", "[2,6]]", "[2,6,]", "[,2,6]", "[2 ,6]", "[[2,6]]", "{}", "null", "\"[2,6]\""})
        CHECK(!with(shape, std::string("\"shape\":") + other).empty());
    refused(shape, "\"shape\":" + std::string(100000, '['), "no number where one must be");
    refused(R"("parts":[)", R"("parts":[)" + std::string(100000, '['), "not '{\"first\":' where it must be");
    refused(shape, shape + "," + shape, "not ',\"casts\":' where it must be");
    refused("," + shape, "", "not ',\"shape\":' where it must be");
    refused(R"("type":"float","bytes":4)", R"("bytes":4,"type":"float")", "not ',\"type\":' where it must be");
    // Names.
    refused(R"("tensor":"a")", R"("tensor":"")", "a tensor without a name");
    refused(R"("tensor":"a")", R"("tensor":3)", "not '\"' where it must be");
    refused(R"("type":"float")", R"("type":"two words")", "letters, digits and underscores alone");
    for (const char* bytes : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\x80"})
        refused(R"("tensor":"a")", std::string("\"tensor\":\"") + bytes + '"', "a name that is no UTF-8");
    for (const char* bytes : {"\\n", "\\u0", "\\u000", "\\u00g0", "\\u0080", "\\u00c3\\u00a4", "\\u20ac", "\\ud83d", "\n", "\x01"})
        CHECK(!with(R"("tensor":"a")", std::string("\"tensor\":\"") + bytes + '"').empty());

    std::mt19937_64 random(5);
    int read = 0;
    for (int trial = 0; trial < 50 * trials; ++trial) {
        std::string changed = body;
        for (std::uint64_t changes = 1 + random() % 3; changes != 0; --changes) {
            const std::size_t at = 20 + random() % (changed.size() - 20);
            const std::size_t from = 20 + random() % (changed.size() - 20);
            const std::size_t length = random() % 12;
            switch (random() % 4) {
            case 0: changed.erase(at, length); break;
            case 1: changed.insert(at, changed.substr(from, length)); break;
            case 2: changed[at] = "0123456789abcdefx[]{}:,-\"\\\n"[random() % 27]; break;
            default: changed[at] = static_cast<char>(random()); break;
            }
        }
        const std::string text = with_end(changed, 2);
        if (refusal(text).empty()) {
            ++read;
            CHECK(receipt::read(receipt::read(text).text()).text() == receipt::read(text).text());
        }
    }
    CHECK(read > 0);
}

TEST_CASE("receipt - tensors of more than 2^32 elements have their places")
{
    const std::uint64_t half = std::uint64_t{1} << 39;
    const std::vector<float> data(16, 2.0f);
    receipt own(1);
    own.add("w", {view<const float>(data), {2 * half, 16}, {{half, 0}, {1, 16}}});
    CHECK(receipt::read(own.text()).text() == own.text());
    CHECK(sentences(find_gaps(own)) == texts{"\"w\" [0,0]+[549755813888,16]: no rank has this part",
            "\"w\" [549755813889,0]+[549755813887,16]: no rank has this part"});
}

TEST_CASE("receipt - ranks gather the whole, each from its own parts")
{
    const model one = cases(6).weights();
    const boxes cut = cases::slices(one.shape, 0, 3);
    const receipt expected = receipt_of(one, cases::slices(one.shape, 1, 2));
    local::run(4, [&](local::communicator& world) {
        host::stream stream;
        receipt own(7, world.rank());
        if (static_cast<std::size_t>(world.rank()) < cut.size()) {
            const tensor_part part = part_of(one.weights, one.shape, cut[static_cast<std::size_t>(world.rank())]);
            own.add("layers.0.weight", part);
        }
        if (world.rank() == 3) own.add("bias", {view<const float>(one.bias), {one.bias.size()}});
        const receipt all = gather_receipts(world, own, stream);
        CHECK(sentences(verify(expected, all)) == texts{});
        CHECK(all.find("bias")->parts.at(0).ranks == std::vector<int>{3});
    });
}

} // namespace collprobe::testing::receipt_test
