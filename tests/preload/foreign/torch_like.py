#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Opens the library EXTENSION, which is linked to NCCL, as Python opens extensions: at once, and for itself alone."""

import ctypes
import os
import sys

library = ctypes.CDLL(os.environ["EXTENSION"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
sys.exit(library.foreign_work())
