# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Probes on the collectives of a training run: which rank, which tensor, which step.

`collprobe.torch` is for PyTorch. The commands, as collprobe-run and collprobe_merge, are installed beside Python's.
"""

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'collprobe' has no attribute '{name}'")
    from importlib.metadata import version  # of the installed package: in a source tree there is none

    return version("collprobe")
