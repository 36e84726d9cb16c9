// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// cost_model [times] [bytes] [memory]: the tables of cost_model.md, as Markdown; all of them without arguments. Times
/// and memory are of the formulas there. Bytes are those of reductions by in-process ranks, beside the formulas'.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include <collprobe/comm/local/communicator.hpp>
#include <collprobe/comm/node_groups.hpp>
#include <collprobe/reduce/reproducible.hpp>

using namespace collprobe;

namespace {

// Assumed figures, not measured: bytes/s of a rank within a node and to the network, seconds of a message and of a step
// of a tree, ranks of a node.
constexpr double B_in = 450e9, B_out = 50e9, t_msg = 1e-6, t_hop = 5e-6, g = 8;

void print_times()
{
    std::printf("| S | ranks | native, ms | flat | two-level | with overlap_levels | fixed point | "
                "bytes of a message, S/n |\n|---|---|---|---|---|---|---|---|\n");
    for (const double mib : {64.0, 256.0, 1024.0}) {
        for (const double n : {8.0, 64.0, 512.0, 4096.0, 32768.0, 100000.0}) {
            const double S = mib * 1048576, m = n / g, b = 4, w = 8;
            const double steps = 4 * t_hop * std::fmax(1, std::log2(m));
            const auto native = [&](double bytes) {
                return std::fmax(2 * bytes * (g - 1) / g / B_in, 2 * bytes / g * (m - 1) / m / B_out) + steps;
            };
            const double within = 2 * S * (g - 1) / g / B_in;
            const double across = (w / b + 1) * S / g * (m - 1) / m / B_out;
            const double flat = 2 * (n - 1) * t_msg + (m == 1 ? within : 2 * S * (1 - g / n) / B_out);
            const double messages = 2 * (g + m - 2) * t_msg;
            const double two_level = messages + within + across;
            const double overlapped = messages + std::fmax(within, across);
            const double fixed = native(9 / b * S) + steps;
            const double ratios[] = {flat, m == 1 ? flat : two_level, m == 1 ? flat : overlapped, fixed};
            const double best = *std::min_element(ratios, ratios + 4);
            const int ranks = static_cast<int>(n);
            std::printf("| %.0f MiB | ", mib);
            if (ranks < 1000) std::printf("%d", ranks);
            else std::printf("%d,%03d", ranks / 1000, ranks % 1000);
            std::printf(" | %.2f |", native(S) * 1e3);
            for (int i = 0; i < 4; ++i) {
                const char* const mark = ratios[i] == best ? "**" : "";
                std::printf(" %s%.2f%s |", mark, ratios[i] / native(S), mark);
            }
            std::printf(S / n < 10240 ? " %.1f KiB |\n" : " %.0f KiB |\n", S / n / 1024);
        }
    }
}

/// One all-reduce of a MiB a rank: what a rank has sent, beside the formula for partial sums of `partial` bytes.
template <class T, class Contract>
void print_bytes(const char* what, int nodes, int ranks_per_node, double partial)
{
    constexpr std::uint64_t bytes = 1 << 20;
    reduction_outcome flat, two;
    local::run(nodes * ranks_per_node, [&](local::communicator& world) {
        const host::stream on;
        std::vector<T> send(bytes / sizeof(T)), receive(bytes / sizeof(T));
        node_groups groups(world, ranks_per_node);
        const auto reduce = [&](reduction_algorithm how) {
            reproducible comm(world, Contract{}, groups, {.algorithm = how});
            const reduction_outcome outcome
                = comm.all_reduce(view<const T>(send), view<T>(receive), reduction::sum, on);
            on.synchronize();
            return outcome;
        };
        const reduction_outcome by_exchange = reduce(reduction_algorithm::exchange);
        const reduction_outcome in_two_levels = reduce(reduction_algorithm::two_level);
        if (world.rank() == 0) flat = by_exchange, two = in_two_levels;
    });
    const double S = bytes, m = nodes, ranks = ranks_per_node, b = sizeof(T);
    const double model_within = 2 * S * (ranks - 1) / ranks;
    const double model_across = (partial / b + 1) * S / ranks * (m - 1) / m;
    const double native = 2 * S / ranks * (m - 1) / m;
    const auto kib = [](double count) { return count / 1024; };
    std::printf("| %d x %d | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.2f | %.2f |\n", nodes, ranks_per_node, what,
        partial, kib(static_cast<double>(two.bytes_sent - two.bytes_across_nodes)), kib(model_within),
        kib(static_cast<double>(two.bytes_across_nodes)), kib(model_across),
        static_cast<double>(two.bytes_across_nodes) / native, static_cast<double>(flat.bytes_across_nodes) / native);
}

void print_all_bytes()
{
    using enum reproducibility;
    std::printf("| nodes x ranks | sum | bytes of a partial sum | within, KiB | model | across, KiB | model | "
                "across, over native | flat, over native |\n|---|---|---|---|---|---|---|---|---|\n");
    for (const auto& [nodes, ranks] : {std::pair{2, 4}, {4, 2}}) {
        print_bytes<float, contract<size_invariant>>("float, float64", nodes, ranks, 8);
        print_bytes<float, contract<size_invariant, accumulation::float32>>("float, float32", nodes, ranks, 4);
        print_bytes<bfloat16, contract<size_invariant>>("bfloat16, float64", nodes, ranks, 8);
        print_bytes<bfloat16, contract<size_invariant, accumulation::float32>>("bfloat16, float32", nodes, ranks, 4);
        print_bytes<double, contract<size_invariant>>("double, compensated", nodes, ranks, 16);
        print_bytes<float16, contract<correctly_rounded>>("half, exact", nodes, ranks, ranks == 2 ? 4 : 8);
        print_bytes<bfloat16, contract<correctly_rounded>>("bfloat16, exact", nodes, ranks, 2 * ranks);
        print_bytes<float, contract<correctly_rounded>>("float, exact", nodes, ranks, 4 * ranks);
    }
}

void print_memory()
{
    // A rank's memory, its matrix arithmetic (operations/s that a step reaches), ranks.
    constexpr double memory = 80e9, speed = 400e12, n = 64, m = n / g;
    constexpr double code = 1 + 2.0 / 128;
    struct choice {
        const char* name;
        double kept; ///< bytes of a parameter kept, a rank
        double crossing; ///< bytes of a parameter that a rank sends across the nodes, times g m / (m - 1)
    };
    const choice choices[] = {
        {"secondary shard (hpZ)", 2 / g, 2},
        {"own codes (qwZ)", code / n, 2 * code},
        {"own codes and secondary shard", code / n + 2 / g, code},
        {"the node's codes", code / g, code},
    };
    std::printf("| parameters | kept | GB a rank | of its memory | sent across in a step, GB a rank | saved, GB | "
                "saved, ms | pays up to, tokens |\n|---|---|---|---|---|---|---|---|\n");
    for (const double billions : {7.0, 13.0, 30.0, 70.0}) {
        const double P = billions * 1e9;
        const auto sent = [&](double crossing) { return crossing * P / g * (m - 1) / m; };
        std::printf("| %.0f B | nothing | 0 | 0 | %.2f | 0 | 0 | |\n", billions, sent(4) / 1e9);
        for (const choice& each : choices) {
            const double kept = each.kept * P;
            const double saved = sent(4) - sent(each.crossing);
            // A step of T tokens a rank takes 6 P T / speed. A hundredth of the memory is worth a hundredth of a step.
            const double tokens = saved / B_out / (kept / memory) / (6 * P / speed);
            std::printf("| %.0f B | %s | %.2f | %.1f %% | %.2f | %.2f | %.0f | %.0f |\n", billions, each.name,
                kept / 1e9, 100 * kept / memory, sent(each.crossing) / 1e9, saved / 1e9, saved / B_out * 1e3, tokens);
        }
    }
}

} // namespace

int main(int argc, char** argv)
{
    const auto wanted = [&](const char* table) {
        bool found = argc == 1;
        for (int i = 1; i < argc; ++i) found = found || std::strcmp(argv[i], table) == 0;
        return found;
    };
    if (wanted("times")) print_times();
    if (wanted("bytes")) print_all_bytes();
    if (wanted("memory")) print_memory();
    return std::ferror(stdout) != 0 ? 1 : 0;
}
