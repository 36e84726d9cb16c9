# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check.py FILE COMPILER ARGUMENT...: compiles the file once. Exactly its lines with `; // error: REGULAR EXPRESSION` have
errors, and the first of each matches."""
import re
import subprocess
import sys

path, *command = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    wanted = {number: found[1] for number, line in enumerate(file, 1) if (found := re.search(r"; // error: (.+)", line))}
said = subprocess.run([*command, path], stderr=subprocess.PIPE, text=True, check=False).stderr

# The line of an error: its own, or the one that asks for its instance. g++ tells that before the error, clang++ behind it.
place = re.escape(path) + r":(\d+):"
first, asked = {}, None
for error in re.finditer(r"(?:^(?!.*\berror: ).*\n)*?^(?P<text>.*\berror: .*)\n(?P<behind>(?:^(?!.*\berror: ).*: note: .*requested here\n|^ .*\n)*)",
                         said, re.M):
    before = re.findall(place + r".*required from here", error[0])
    behind = re.findall(place + r".*requested here", error["behind"])
    own = re.match(place, error["text"])
    asked = own[1] if own else (behind or before or [asked])[-1]
    first.setdefault(int(asked), error["text"])

wrong = [f"{path}:{number}: {wanted.get(number, 'compiles')} is wanted, but: {first.get(number, 'compiles')}"
         for number in sorted(wanted.keys() | first.keys())
         if number not in wanted or not re.search(wanted[number], first.get(number, ""))]
sys.exit("\n".join(wrong + [said] if wrong else []) or (0 if wanted else "no line is wrong"))
