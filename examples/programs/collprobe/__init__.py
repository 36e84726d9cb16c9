# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Probes on the collectives of a training run: which rank, which tensor, which step.

`collprobe.torch` is for PyTorch. The commands, as collprobe-run and collprobe_merge, are installed beside Python's.
"""
from importlib.metadata import version as _version

__version__ = _version("collprobe")
