# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_inspection.py FILE RANKS ORDER: that the JSON lines of inspect_all_reduce are of so many ranks, of all
types, and of that order ("any" for any)."""

import sys

from json_lines import lines_of

path, ranks, order = sys.argv[1], int(sys.argv[2]), sys.argv[3]
digits = {"half": 11, "bfloat16": 8, "float": 24, "double": 53}
size = {"half": 2, "bfloat16": 2, "float": 4, "double": 8}
types = set()
for row in lines_of(path, "inspection"):
    types.add(row["element"])
    assert row["schema"] == 1 and row["ranks"] == ranks, row
    assert order in ("any", row["order_class"]), row
    assert row["run_stable"] is True and row["ranks_agree"] is True, row
    assert row["partial_sum_precision"] == (digits[row["element"]] if ranks > 2 else None), row
    assert row["roundings_per_element"] == ranks - 1, row
    assert row["reproduced"] == 1, row
    assert 0 < row["rms_ulp"] < row["max_ulp"] <= ranks * ranks, row
    seconds = row["median_us"] * 1e-6
    algbw = row["count"] * size[row["element"]] / seconds / 1e9
    assert abs(row["algbw_gbs"] / algbw - 1) < 1e-12, row
    assert abs(row["busbw_gbs"] / (algbw * 2 * (ranks - 1) / ranks) - 1) < 1e-12, row
assert types == set(digits), types
