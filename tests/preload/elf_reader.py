# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The reader of ELF files of collprobe-check."""
import importlib.machinery
import importlib.util
import os
import sys

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/preload/collprobe-check")
loader = importlib.machinery.SourceFileLoader("collprobe_check", path)
sys.dont_write_bytecode = True
check = importlib.util.module_from_spec(importlib.util.spec_from_loader("collprobe_check", loader))
loader.exec_module(check)
Elf = check.Elf
