# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The C entry (include/collprobe/c/collprobe.h) by ctypes."""
from __future__ import annotations

import ctypes as c
import os
from typing import Any, Optional

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL = range(4)
SUM, PROD, MAX, MIN, AVG = range(5)
EQUAL, DISTINCT = range(2)
HOST, CUDA = range(2)
TABLE, JSON = range(2)

SUCCESS = 0
NOT_READY = 1
MISMATCH = 3
UNSUPPORTED = 7

NO_BUFFER = c.c_void_p(-1).value
UNKNOWN = -1.7976931348623157e308

AllGather = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t)


class Options(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("all_gather", AllGather), ("context", c.c_void_p), ("device", c.c_int),
        ("every", c.c_int), ("calls", c.c_int), ("expectations", c.c_int), ("false_alarms", c.c_double),
        ("name", c.c_char_p),
    ]


class Step(c.Structure):
    _fields_ = [
        ("size", c.c_size_t), ("loss", c.c_double), ("weight", c.c_double), ("gradient_norm", c.c_double),
        ("device_loss", c.c_void_p),
    ]


class FoundBy(c.Structure):
    """collprobeFinding_t"""

    _fields_ = [
        ("size", c.c_size_t), ("step", c.c_uint64), ("kind", c.c_char_p), ("text", c.c_char_p),
        ("call", c.c_char_p), ("rank", c.c_int), ("call_index", c.c_int), ("exact", c.c_int),
        ("element", c.c_uint64), ("statistic", c.c_double), ("threshold", c.c_double),
    ]


class LibraryError(RuntimeError):
    """A call of the C entry that did not succeed."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


_functions = {
    "Create": (c.POINTER(c.c_void_p), c.c_int, c.c_int, c.POINTER(Options)),
    "Destroy": (c.c_void_p,),
    "ObserveInput": (c.c_void_p, c.c_int, c.c_int, c.c_int, c.c_void_p, c.c_uint64, c.c_char_p, c.c_void_p,
                     c.POINTER(c.c_uint64)),
    "ObserveResult": (c.c_void_p, c.c_uint64, c.c_void_p, c.c_uint64, c.c_void_p),
    "ExpectNumber": (c.c_void_p, c.c_int, c.c_char_p, c.c_double),
    "ExpectBuffer": (c.c_void_p, c.c_int, c.c_char_p, c.c_int, c.c_void_p, c.c_uint64, c.c_void_p),
    "EndStep": (c.c_void_p, c.c_uint64, c.POINTER(Step), c.c_void_p),
    "Poll": (c.c_void_p, c.c_int),
    "GetFinding": (c.c_void_p, c.c_uint64, c.POINTER(FoundBy)),
    "GetValue": (c.c_void_p, c.c_char_p, c.c_int, c.POINTER(c.c_double)),
    "GetText": (c.c_void_p, c.c_int, c.c_char_p, c.POINTER(c.c_char_p)),
    "SaveState": (c.c_void_p, c.c_void_p, c.POINTER(c.c_size_t)),
    "RestoreState": (c.c_void_p, c.c_void_p, c.c_size_t),
}
# The version that this file was written for: 10000 major + 100 minor + patch. Before 1.0 a minor version may change.
_version = 200

_loaded: Optional[c.CDLL] = None


def path() -> str:
    """Where the C library is: $COLLPROBE_LIBRARY, else in the folder of the package."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libcollprobe.so")
    return os.environ.get("COLLPROBE_LIBRARY") or beside


def load() -> c.CDLL:
    global _loaded
    if _loaded is not None:
        return _loaded
    try:
        library = c.CDLL(path())
        version = library.collprobeGetVersion()
    except (OSError, AttributeError) as reason:
        raise ImportError(
            f"collprobe: its library could not be loaded ({reason}); install the wheel, or set COLLPROBE_LIBRARY to "
            "the path of libcollprobe.so") from None
    if version // 100 != _version // 100:
        raise ImportError(
            f"collprobe: {path()} has version {version // 10000}.{version // 100 % 100}, this package needs "
            f"{_version // 10000}.{_version // 100 % 100}: install both from one wheel")
    for name, arguments in _functions.items():
        function = getattr(library, "collprobe" + name)
        function.argtypes, function.restype = arguments, c.c_int
    library.collprobeGetLastError.restype = c.c_char_p
    _loaded = library
    return library


def call(name: str, *arguments: Any) -> int:
    """SUCCESS or NOT_READY; everything else is raised."""
    library = load()
    code: int = getattr(library, "collprobe" + name)(*arguments)
    if code > NOT_READY:
        raise LibraryError(code, library.collprobeGetLastError().decode(errors="replace"))
    return code
