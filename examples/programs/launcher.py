#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The command `collprobe` of an installation by CMake, and of the source tree. That of the wheel needs no such file."""
import os
import sys

here = os.path.dirname(os.path.realpath(__file__))
for folder in (here, os.path.join(here, os.pardir, "share", "collprobe", "python")):
    if os.path.isfile(os.path.join(folder, "collprobe", "view", "command.py")):
        sys.path[0] = folder
        break
from collprobe.view.command import main  # noqa: E402

sys.exit(main())
