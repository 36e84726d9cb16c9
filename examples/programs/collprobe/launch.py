# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The installed commands."""
import os
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Replaces this process by the program of the command's name in bin/."""
    name = os.path.basename(sys.argv[0])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    os.execv(path, [path] + sys.argv[1:])
