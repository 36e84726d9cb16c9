# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_files.py FILE...: whether pages and traces are well made."""
import pathlib
import sys

from page_test import checked
from trace_check import check, load

for name in sys.argv[1:]:
    text = pathlib.Path(name).read_text(encoding="utf-8")
    if name.endswith(".html"):
        checked(text)
    else:
        assert check(load(text)) == [], check(load(text))[:5]
