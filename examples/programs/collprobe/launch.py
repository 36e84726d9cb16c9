# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The installed commands."""
import os
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Replaces this process by the program of the command's name in bin/, which finds the others beside the command."""
    name = os.path.basename(sys.argv[0])
    os.environ["PATH"] = os.path.dirname(os.path.abspath(sys.argv[0])) + os.pathsep + os.environ.get("PATH", os.defpath)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    os.execv(path, [path] + sys.argv[1:])
