# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""cost_model.py [times] [memory]: the tables of cost_model.md, as Markdown, by the formulas there; both without arguments."""
import math
import sys

# Assumed figures, not measured: bytes/s of a rank within a node and to the network, seconds of a message and of a step
# of a tree, ranks of a node.
B_in, B_out, t_msg, t_hop, g = 450e9, 50e9, 1e-6, 5e-6, 8


def print_times():
    print("| S | ranks | native, ms | exchange | fixed point | bytes of a message, S/n |\n|---|---|---|---|---|---|")
    for mib in (64, 256, 1024):
        for n in (8, 64, 512, 4096, 32768, 100000):
            S, m, b = mib * 2**20, n / g, 4
            steps = 4 * t_hop * max(1, math.log2(m))

            def native(size):
                return max(2 * size * (g - 1) / g / B_in, 2 * size / g * (m - 1) / m / B_out) + steps

            exchange = 2 * (n - 1) * t_msg + (2 * S * (g - 1) / g / B_in if m == 1 else 2 * S * (1 - g / n) / B_out)
            fixed = native(9 / b * S) + steps
            cells = [("**%.2f**" if each == min(exchange, fixed) else "%.2f") % (each / native(S)) for each in (exchange, fixed)]
            print(f"| {mib} MiB | {n:,} | {native(S) * 1e3:.2f} | {' | '.join(cells)} | "
                  f"{S / n / 1024:.{1 if S / n < 10240 else 0}f} KiB |")


def print_memory():
    # A rank's memory, its matrix arithmetic (operations/s that a step reaches), ranks; bytes of a code.
    memory, speed, n = 80e9, 400e12, 64
    m, code = n / g, 1 + 2 / 128
    # Bytes of a parameter kept, a rank; bytes that a rank sends across the nodes, times g m / (m - 1).
    choices = {"secondary shard (hpZ)": (2 / g, 2), "own codes (qwZ)": (code / n, 2 * code),
               "own codes and secondary shard": (code / n + 2 / g, code), "the node's codes": (code / g, code)}
    print("| parameters | kept | GB a rank | of its memory | sent across in a step, GB a rank | saved, GB | saved, ms | "
          "pays up to, tokens |\n|---|---|---|---|---|---|---|---|")
    for billions in (7, 13, 30, 70):
        P = billions * 1e9

        def sent(crossing):
            return crossing * P / g * (m - 1) / m

        print(f"| {billions} B | nothing | 0 | 0 | {sent(4) / 1e9:.2f} | 0 | 0 | |")
        for name, (kept_of_each, crossing) in choices.items():
            kept, saved = kept_of_each * P, sent(4) - sent(crossing)
            # A step of T tokens a rank takes 6 P T / speed. A hundredth of the memory is worth a hundredth of a step.
            tokens = saved / B_out / (kept / memory) / (6 * P / speed)
            print(f"| {billions} B | {name} | {kept / 1e9:.2f} | {100 * kept / memory:.1f} % | {sent(crossing) / 1e9:.2f} | "
                  f"{saved / 1e9:.2f} | {saved / B_out * 1e3:.0f} | {tokens:.0f} |")


for table in sys.argv[1:] or ("times", "memory"):
    {"times": print_times, "memory": print_memory}[table]()
