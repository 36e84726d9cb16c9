// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// quantisation_faults [trials of each fault = 20] [seed = 1] [clean trials = as many]
//
// Which planted fault of a quantised all-reduce gets which verdict, when, and whether its place is named. 8 ranks
// average 32,768 elements by codes with blocks of 128, six steps a trial, every step with the fault; by the checks that
// are on by default, and by all. Prints markdown. Exit status 1 if a fault that is larger than the roundings to codes is
// not named by all checks, or if a clean trial has a verdict that only faults have.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <collprobe/collprobe.hpp>
#include <collprobe/fault/faulty.hpp>
#include <collprobe/quant/quantisation_probe.hpp>
#include <collprobe/quant/quantised.hpp>

#include "cpu_timing.hpp"
#include "random.hpp"

using namespace collprobe;

namespace {

constexpr int ranks = 8;
constexpr int nodes = 2; ///< which a wrong divisor counts
constexpr std::uint32_t block = 128;
constexpr std::uint64_t count = 256 * block;
constexpr std::uint64_t blocks_per_slice = count / block / ranks;
constexpr int steps = 6;
constexpr int harmed_rank = 3;
constexpr int its_receiver = 5;

/// What an implementation around the codes can do wrong.
enum class flaw { none, unquantised_part, read_as_half, node_divisor, constant_dither, sums_in_half };

/// What the codes of a buffer decode to: those of slices, one for each rank.
template <element T>
std::vector<T> decoded(const std::vector<T>& x, code_format format)
{
    const detail::codec how = detail::codec::of<T>({.format = format, .block = block});
    const detail::message_slices cut{
        .messages = ranks, .block = block, .stride = count / ranks, .length = count / ranks, .count = count};
    const std::uint64_t bytes = detail::wire_layout::of(how, cut.blocks_per_message()).bytes();
    std::vector<unsigned char> messages(ranks * bytes);
    std::vector<T> result(count);
    quantisation_errors errors;
    std::uint64_t nonfinite = 0;
    detail::encode_reducer<T>{{how, {}}, cut, x.data(), messages.data(), bytes}.run(errors, 0, cut.blocks());
    detail::decode_reducer<T>{how, cut, messages.data(), bytes, result.data()}.run(nonfinite, 0, cut.blocks());
    return result;
}

/// A quantised communicator, that `make` returns, with a flaw. `plain` has the same ranks. The host waits.
template <communicator Comm, class Make>
class flawed : public adaptor<flawed<Comm, Make>, Comm> {
    using base_type = adaptor<flawed, Comm>;
    using base_type::comm_;

public:
    using typename base_type::stream_ref;

    flawed(const Make& make, local::communicator& plain, flaw what, code_format format)
        : base_type(make()), make_(make), plain_(plain), what_(what), format_(format)
    {
    }

    template <element T>
    quantised_outcome make(const collective_call& call, stream_ref stream)
    {
        if (call.what != collective::all_reduce) return base_type::template make<T>(call, stream);
        const view<const T> send = call.sent<T>();
        const view<T> receive = call.received<T>();
        if constexpr (std::is_same_v<T, bfloat16>) {
            if (what_ == flaw::read_as_half) {
                std::vector<float16> bits(send.count());
                std::transform(send.begin(), send.end(), bits.begin(),
                    [](T x) { return detail::bit_cast<float16>(to_bits(x)); });
                const quantised_outcome made = comm_.all_reduce(view(bits), call.operation, stream, call.where);
                stream.synchronize();
                std::transform(bits.begin(), bits.end(), receive.begin(),
                    [](float16 x) { return T(static_cast<float>(x)); });
                return made;
            }
        }
        const quantised_outcome made = base_type::template make<T>(call, stream);
        if (what_ != flaw::none) stream.synchronize();
        if (what_ == flaw::unquantised_part) {
            std::vector<T> exact(send.count());
            plain_.all_reduce(send, view<T>(exact), call.operation, stream);
            stream.synchronize();
            const std::uint64_t part = send.count() / ranks;
            const auto first = static_cast<std::ptrdiff_t>(static_cast<std::uint64_t>(this->rank()) * part);
            std::copy_n(exact.begin() + first, part, receive.begin() + first);
        } else if (what_ == flaw::node_divisor) {
            for (T& x : receive) x = T(static_cast<float>(x) * ranks / nodes);
        } else if (what_ == flaw::sums_in_half) {
            average_in_half(std::vector<T>(send.begin(), send.end()), receive, stream);
        }
        return made;
    }
    void next_step(stream_ref stream, call_site where = call_site::current())
    {
        if (what_ == flaw::constant_dither) comm_ = make_(); // whose first step is this one
        else comm_.next_step(stream, where);
    }

private:
    template <element T>
    void average_in_half(const std::vector<T>& send, view<T> receive, stream_ref stream)
    {
        const std::vector<T> own = decoded(send, format_);
        std::vector<T> all(ranks * count);
        plain_.all_gather(view<const T>(own), view<T>(all), stream);
        stream.synchronize();
        std::vector<T> means(count);
        for (std::uint64_t i = 0; i < count; ++i) {
            float16 sum(0.0f);
            for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                const float16 term(static_cast<float>(all[rank * count + i]));
                sum = float16(static_cast<float>(sum) + static_cast<float>(term));
            }
            means[i] = T(static_cast<float>(sum) / ranks);
        }
        const std::vector<T> result = decoded(means, format_);
        std::copy(result.begin(), result.end(), receive.begin());
    }

    Make make_; ///< a communicator like `comm_`
    local::communicator& plain_;
    flaw what_;
    code_format format_;
};

/// A fault: in the codes' messages, or around them.
struct scenario {
    const char* label;
    flaw what = flaw::none;
    std::vector<fault> of_messages = {};
    code_rounding rounding = code_rounding::nearest;
    bool in_bfloat16 = false;
    bool names_pair = false; ///< sender and receiver of the damaged message
    bool is_clean = false;
    bool is_hidden = false; ///< by the roundings to codes, which are larger
    double size = 1; ///< of the gradient: a loss scale
    error_feedback feedback = error_feedback::none;
};

/// `bits`: those of a code. A message has the codes of its blocks, then their scales in bfloat16.
std::vector<scenario> scenarios(int bits)
{
    const std::uint64_t codes = blocks_per_slice * block * static_cast<std::uint64_t>(bits) / 8;
    const std::uint64_t scales = 2 * blocks_per_slice;
    const std::uint64_t message = its_receiver * (codes + scales);
    const fault any{.phase = fault_phase::during, .rank = harmed_rank, .call = 0, .period = 1, .first = message + codes,
        .elements = blocks_per_slice};
    fault doubled = any; // the lowest bit of the exponent
    doubled.stride = 2;
    doubled.mask = 0x80;
    fault stale = any;
    stale.kind = fault_kind::stale;
    stale.call = 1;
    stale.elements = scales;
    fault flipped = any;
    flipped.first = message + codes / 3;
    flipped.elements = 1;
    flipped.mask = 1;
    const code_rounding stochastic = code_rounding::stochastic;
    return {
        {.label = "none, nearest", .is_clean = true},
        {.label = "none, stochastic", .rounding = stochastic, .is_clean = true},
        {.label = "none, nearest, bfloat16", .in_bfloat16 = true, .is_clean = true},
        {.label = "none, errors fed back", .is_clean = true, .feedback = error_feedback::all},
        {.label = "the owner keeps its part unquantised", .what = flaw::unquantised_part},
        {.label = "bfloat16 read as half", .what = flaw::read_as_half, .in_bfloat16 = true},
        {.label = "divided by the nodes", .what = flaw::node_divisor},
        {.label = "divided by the nodes, errors fed back", .what = flaw::node_divisor, .feedback = error_feedback::all},
        {.label = "sums in half", .what = flaw::sums_in_half, .is_hidden = true},
        {.label = "sums in half, some beyond 65504", .what = flaw::sums_in_half, .size = 0x1p13},
        {.label = "the same dither in all steps", .what = flaw::constant_dither, .rounding = stochastic},
        {.label = "scales of the step before in one message", .of_messages = {stale}, .names_pair = true},
        {.label = "scales of one message off by 2", .of_messages = {doubled}, .names_pair = true},
        {.label = "one bit of one code", .of_messages = {flipped}, .names_pair = true},
    };
}

struct tally {
    int pairs = 0; ///< that were named rightly
    int by_verdict[static_cast<int>(quantisation_verdict::negligible) + 1] = {};
    std::vector<int> first_step = {}; ///< of those that were named
};

bool is_of_faults(quantisation_verdict verdict)
{
    return verdict >= quantisation_verdict::corrupt && verdict <= quantisation_verdict::biased;
}

/// The steps of one trial, as rank 0 sees them.
template <class T>
std::vector<step_record> run_trial(const scenario& of, code_format format, std::uint64_t seed, bool all_checks)
{
    std::vector<step_record> records;
    local::run(ranks, [&](local::communicator& world) {
        const auto make = [&] {
            faulty<local::communicator> wire(world, of.of_messages, {.calls = {collective::all_to_all}});
            return quantised<faulty<local::communicator>>(std::move(wire),
                {.format = format, .block = block, .rounding = of.rounding, .seed = seed, .feedback = of.feedback},
                {.least_bytes = 1});
        };
        quantisation_checks checks;
        checks.messages = all_checks;
        flawed<quantised<faulty<local::communicator>>, decltype(make)> codes(make, world, of.what, format);
        probed probe(std::move(codes), {}, quantisation_probe({}, checks));
        const host::stream stream;
        std::vector<T> gradient(count);
        std::vector<T> mean(count);
        for (std::uint64_t step = 0; step < steps; ++step) {
            random_numbers common(seed);
            random_numbers own(seed + 1'000'000 * (step * ranks + static_cast<std::uint64_t>(world.rank()) + 1));
            for (T& x : gradient) x = T(static_cast<float>(of.size * (0.3 * common.normal() + own.normal())));
            probe.all_reduce(view<const T>(gradient), view<T>(mean), reduction::average, stream);
            probe.end_step(step, stream);
            step_record record;
            if (probe.wait(record) && world.rank() == 0) records.push_back(record);
            stream.synchronize();
        }
    });
    return records;
}

void count_trial(const std::vector<step_record>& records, tally& into)
{
    auto gravest = quantisation_verdict::unknown;
    int first = -1;
    bool pair = false;
    for (const step_record& record : records) {
        const call_quantisation& said = record.calls.at(0).quantisation;
        if (gravest == quantisation_verdict::unknown || said.verdict < gravest) gravest = said.verdict;
        if (!is_of_faults(said.verdict)) continue;
        if (first < 0) first = static_cast<int>(record.step);
        pair = pair
            || (said.damaged_pairs == 1 && said.damaged_sender == harmed_rank
                && said.damaged_receiver == its_receiver);
    }
    ++into.by_verdict[static_cast<int>(gravest)];
    into.pairs += pair;
    if (first >= 0) into.first_step.push_back(first);
}

/// Whether the row is as it must be.
bool print_row(const scenario& of, code_format format, bool all_checks, int trials, const tally& found)
{
    const int named = static_cast<int>(found.first_step.size());
    std::string verdicts;
    for (int each = 0; each <= static_cast<int>(quantisation_verdict::negligible); ++each) {
        if (found.by_verdict[each] == 0) continue;
        verdicts += (verdicts.empty() ? "" : ", ") + std::string(name(static_cast<quantisation_verdict>(each)));
        if (found.by_verdict[each] != trials) verdicts += " " + std::to_string(found.by_verdict[each]);
    }
    const std::string first = found.first_step.empty() ? "-" : std::to_string(bench::median(found.first_step));
    const std::string pairs = of.names_pair ? std::to_string(found.pairs) : "-";
    std::printf("| %s | %s | %s | %d | %d | %s | %s | %s |\n", of.label, name(format),
        all_checks ? "all" : "default", trials, named, pairs.c_str(), first.c_str(), verdicts.c_str());
    std::fflush(stdout);
    if (of.is_clean) return named == 0;
    return !all_checks || of.is_hidden || (named == trials && (!of.names_pair || found.pairs == trials));
}

} // namespace

int main(int argc, char** argv)
{
    const int trials = argc > 1 ? std::atoi(argv[1]) : 20;
    const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const int clean_trials = argc > 3 ? std::atoi(argv[3]) : trials;
    std::puts("| fault | codes | checks | trials | named | pair right | from step | verdicts |");
    std::puts("|---|---|---|--:|--:|--:|--:|---|");
    bool right = trials > 0;
    for (const code_format format : {code_format::int8, code_format::int4}) {
        for (const scenario& each : scenarios(format == code_format::int8 ? 8 : 4)) {
            for (const bool all_checks : {false, true}) {
                tally found;
                const int tried = each.is_clean ? clean_trials : trials;
                for (int trial = 0; trial < tried; ++trial) {
                    const std::uint64_t own_seed = seed * 1000 + static_cast<std::uint64_t>(trial);
                    count_trial(each.in_bfloat16 ? run_trial<bfloat16>(each, format, own_seed, all_checks)
                                                 : run_trial<float>(each, format, own_seed, all_checks), found);
                }
                right = print_row(each, format, all_checks, tried, found) && right;
            }
        }
    }
    return right ? 0 : 1;
}
