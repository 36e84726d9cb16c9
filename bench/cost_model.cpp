// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

/// cost_model [times] [memory]: the tables of cost_model.md, as Markdown, by the formulas there; both without arguments.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

// Assumed figures, not measured: bytes/s of a rank within a node and to the network, seconds of a message and of a step
// of a tree, ranks of a node.
constexpr double B_in = 450e9, B_out = 50e9, t_msg = 1e-6, t_hop = 5e-6, g = 8;

void print_times()
{
    std::printf("| S | ranks | native, ms | exchange | fixed point | bytes of a message, S/n |\n"
                "|---|---|---|---|---|---|\n");
    for (const double mib : {64.0, 256.0, 1024.0}) {
        for (const double n : {8.0, 64.0, 512.0, 4096.0, 32768.0, 100000.0}) {
            const double S = mib * 1048576, m = n / g, b = 4;
            const double steps = 4 * t_hop * std::fmax(1, std::log2(m));
            const auto native = [&](double bytes) {
                return std::fmax(2 * bytes * (g - 1) / g / B_in, 2 * bytes / g * (m - 1) / m / B_out) + steps;
            };
            const double within = 2 * S * (g - 1) / g / B_in;
            const double exchange = 2 * (n - 1) * t_msg + (m == 1 ? within : 2 * S * (1 - g / n) / B_out);
            const double fixed = native(9 / b * S) + steps;
            const double best = std::fmin(exchange, fixed);
            const int ranks = static_cast<int>(n);
            std::printf("| %.0f MiB | ", mib);
            if (ranks < 1000) std::printf("%d", ranks);
            else std::printf("%d,%03d", ranks / 1000, ranks % 1000);
            std::printf(" | %.2f |", native(S) * 1e3);
            for (const double each : {exchange, fixed}) {
                const char* const mark = each == best ? "**" : "";
                std::printf(" %s%.2f%s |", mark, each / native(S), mark);
            }
            std::printf(S / n < 10240 ? " %.1f KiB |\n" : " %.0f KiB |\n", S / n / 1024);
        }
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
    if (wanted("memory")) print_memory();
    return std::ferror(stdout) != 0 ? 1 : 0;
}
