# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The command `collprobe`: pages, comparisons and traces of runs, made from their JSON lines.

A run writes JSON lines (report::json_lines); these modules read them afterwards, or while the run goes on. They need
Python's standard library alone, 3.9 or newer, and neither the C library nor PyTorch.
"""
