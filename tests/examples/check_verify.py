#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_verify.py <collprobe_verify> <folder>

Runs collprobe_verify on safetensors, NumPy files and receipts that are written here: equal ones, cut and cast in other
ways, and each with one fault, which must be named.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys

import tensor_writers
from digest_oracle import ALL, digest, sums

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
random.seed(1)


def run(*arguments, code=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    shown = f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == code, shown
    return done.stdout + done.stderr


def expect(text, *wanted):
    for each in wanted:
        assert each in text, f"lacks: {each}\n{text}"


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def words(values):
    return list(struct.unpack(f"<{len(values)}I", floats(values)))


def bfloat16(values, nearest=True):
    rounded = [(w + 0x7fff + (w >> 16 & 1) if nearest else w) >> 16 for w in words(values)]
    return struct.pack(f"<{len(values)}H", *rounded)


def safetensors(name, tensors):
    return tensor_writers.safetensors(folder / name, tensors, {"__metadata__": {"format": "pt"}})


def npy(name, *contents, **of):
    return tensor_writers.npy(folder / name, *contents, **of)


def line(members):
    return json.dumps(members, separators=(",", ":")) + "\n"


def shards(path, values, count, rows=48, columns=48, only=None):
    """A receipt of a matrix by blocks of rows, written from nothing but the documents. `only`: of that one block."""
    height = rows // count
    parts, total = [], [0, 0]
    for rank in range(count) if only is None else [only]:
        raw = floats(values[rank * height * columns:][:height * columns])
        own = sums(raw, rank * len(raw))
        total = [(a + b) & ALL for a, b in zip(total, own)]
        parts.append({"first": [rank * height, 0], "extent": [height, columns], "sums": [f"{own[0]:#x}", f"{own[1]:#x}"],
                      "content": f"{digest(*sums(raw), len(raw)):#x}", "ranks": str(rank), "casts": []})
    whole = "-" if only is not None else f"{digest(*total, 4 * rows * columns):#x}"
    tensor = {"tensor": "h.0.weight", "type": "float", "bytes": 4, "shape": [rows, columns], "casts": [], "digest": whole,
              "parts": parts}
    text = line({"collprobe_receipt": 2, "step": 7}) + line(tensor)
    (folder / path).write_text(text + line({"tensors": 1, "digest": f"{digest(*sums(text.encode()), len(text)):#x}"}))
    return folder / path


rows, columns = 48, 48
weights = [random.gauss(0, 1) for _ in range(rows * columns)]
bias = [random.gauss(0, 1) for _ in range(100)]
mask = bytes(random.randrange(2) for _ in range(17))
before = [w + 1 for w in weights]


def model(name, weights=weights, bias=bias, **more):
    return safetensors(name, {"h.0.weight": ("F32", [rows, columns], floats(weights)), "bias": ("F32", [100], floats(bias)),
                              "mask": ("BOOL", [17], mask), **more})


whole = model("whole.safetensors")
older = model("older.safetensors", before, [b + 1 for b in bias])
receipt = folder / "whole.receipt"
expect(run("--write", receipt, "--step", 7, "--cast", "bfloat16", whole), "3 tensors of step 7")
written = {each.get("tensor"): each for each in map(json.loads, receipt.read_text().splitlines())}
assert written[None]["tensors"] == 3 and written["h.0.weight"]["casts"][0] == "bfloat16 nearest_even", written
assert [written["mask"][key] for key in ("type", "bytes", "shape")] == ["bool", 1, [17]], written
expect(run(receipt, receipt), "equal: 3 tensors of step 7, found in 3 parts")
expect(run(receipt, whole), "equal: 3 tensors")
expect(run(whole, receipt), "equal: 3 tensors")
expect(run(receipt, older, "--older", older, code=1), '"h.0.weight" [0,0]+[48,48]: the bits of an unknown step', "2 differences")

# Two files of one model; one of them alone lacks tensors.
first = safetensors("1-of-2.safetensors", {"h.0.weight": ("F32", [rows, columns], floats(weights))})
second = safetensors("2-of-2.safetensors", {"bias": ("F32", [100], floats(bias)), "mask": ("BOOL", [17], mask)})
expect(run(receipt, first, second), "equal: 3 tensors")
expect(run(receipt, first, code=1), '"bias": missing', '"mask": missing', "2 differences")
expect(run(receipt, whole, safetensors("more.safetensors", {"lora": ("F16", [2], b"1234")}), code=1), '"lora": not expected')

# An engine that holds the weights in 16 bits, by either rounding; and one that has float, of which 16 bits are expected.
engine = {"mask": ("BOOL", [17], mask)}
for nearest in (True, False):
    engine["h.0.weight"] = ("BF16", [rows, columns], bfloat16(weights, nearest))
    engine["bias"] = ("BF16", [100], bfloat16(bias, nearest))
    path = safetensors("engine.safetensors", engine)
    if nearest:
        expect(run(receipt, path), "equal: 3 tensors")
        expect(run(path, whole), "equal: 3 tensors")
    else:
        expect(run(receipt, path, code=1), "cast to bfloat16 by toward_zero, another rounding than is stated")
        expect(run(path, whole, code=1), "cast to bfloat16 by toward_zero, another rounding than is stated")
        strict = folder / "toward_zero.receipt"
        run("--write", strict, "--step", 7, "--cast", "bfloat16:toward_zero", whole)
        expect(run(strict, path), "equal: 3 tensors")
plain = folder / "plain.receipt"
run("--write", plain, whole)
expect(run(plain, safetensors("engine.safetensors", engine), code=1), 
       '"bias": the type is bfloat16, expected is float, and no cast between them is known')
expect(run(whole, path, code=1), ": write the expected one with --write OUT.receipt --cast bfloat16")

# One wrong bit. (What is said of zeros, copies, older bits and exchanged parts is tested in tests/replica.)
flipped = list(weights)
flipped[1234] = struct.unpack("<f", struct.pack("<I", words(weights)[1234] ^ 1))[0]
expect(run(receipt, model("flipped.safetensors", flipped), code=1), '"h.0.weight" [0,0]+[48,48]: other bits than expected',
       "1 difference;")

# Data is cut by the expected parts, so that the shard is named.
quarters = shards("quarters.receipt", weights, 4)
expect(run(quarters, first), "equal: 1 tensor of step 7, found in 4 parts")
expect(run(shards("eighths.receipt", weights, 8), quarters), "equal: 1 tensor of step 7, found in 4 parts")
flat = safetensors("flipped.safetensors", {"h.0.weight": ("F32", [rows, columns], floats(flipped))})
expect(run(quarters, flat, code=1), '"h.0.weight" [24,0]+[12,48]: other bits than expected', "1 difference;")
expect(run(quarters, shards("flipped.receipt", flipped, 8), code=1), '"h.0.weight" [24,0]+[12,48], ranks 4-5: other bits')
turned = [weights[c * columns + r] for r in range(rows) for c in range(columns)]
turned = safetensors("turned.safetensors", {"h.0.weight": ("F32", [rows, columns], floats(turned))})
expect(run(quarters, turned, code=1), '"h.0.weight" [0,0]+[48,48]: other bits than expected: rows and columns are exchanged', "1 difference;")

# An engine of 16 bits that has the step before.
engine |= {"h.0.weight": ("BF16", [rows, columns], bfloat16(before)), "bias": ("BF16", [100], bfloat16(bias))}
path = safetensors("engine.safetensors", engine)
expect(run(receipt, path, "--older", older, code=1), '"h.0.weight" [0,0]+[48,48]: the bits of an unknown step', "1 difference;")

# The same tensor in two files, of which one is wrong.
good = safetensors("good.safetensors", {"h.0.weight": ("F32", [rows, columns], floats(weights))})
wrong = run(quarters, good, flat, code=1)
expect(wrong, '"h.0.weight" [24,0]+[12,48]: other bits than expected, in \'', "flipped.safetensors'", "1 difference;")
assert "good.safetensors" not in wrong, wrong

# Receipts of ranks.
halves = []
for rank in range(2):
    text = receipt.read_text()
    path = folder / f"rank{rank}.receipt"
    half = safetensors("half.safetensors", {f"shard{rank}": ("F32", [rows // 2, columns],
                                                            floats(weights[rank * rows // 2 * columns:][:rows // 2 * columns]))})
    run("--write", path, "--step", 7, "--rank", rank, half)
    expect(path.read_text(), f'"ranks":"{rank}"')
    halves.append(path)
expect(run("--write", folder / "merged.receipt", *halves), "2 tensors of step 7")
expect(run(folder / "merged.receipt", *halves), "equal: 2 tensors of step 7, found in 2 parts")
run("--write", folder / "late.receipt", "--step", 6, "--rank", 1, half)
expect(run(folder / "merged.receipt", halves[0], folder / "late.receipt", code=1), "late.receipt' is of step 6, expected is step 7",
       "1 difference;")
expect(run("--write", folder / "merged.receipt", halves[0], folder / "late.receipt", code=2), "receipts of different steps: 7 and 6")

run("--write", folder / "late.receipt", "--step", 6, "--rank", 1, half)
expect(run(safetensors("both.safetensors", {f"shard{r}": ("F32", [rows // 2, columns], floats(weights[r * rows // 2 * columns:][:rows // 2 * columns])) for r in (0, 1)}),
           halves[0], folder / "late.receipt", code=1),
       "late.receipt' is of step 6, '", "rank0.receipt' is of step 7", "1 difference;")
one_rank = shards("one-rank.receipt", weights, 4, only=1)
expect(run(one_rank, whole, code=2), "one-rank.receipt: ", "no rank has this part. The expected file must be complete: merge")

# NumPy files, in both orders.
values = [random.gauss(0, 1) for _ in range(6)]
c_order = npy("w.npy", "<f4", [2, 3], floats(values))
run("--write", folder / "w.receipt", c_order)
npy("w.npy", "<f4", [2, 3], floats([values[i] for i in (0, 3, 1, 4, 2, 5)]), fortran=True)
expect(run(folder / "w.receipt", folder / "w.npy"), "equal: 1 tensor of no step")
npy("w.npy", "<f4", [2, 3], floats(values[::-1]))
expect(run(folder / "w.receipt", folder / "w.npy", code=1), '"w" [0,0]+[2,3]: other bits than expected')
run("--write", folder / "w.receipt", npy("number.npy", "<i8", [], struct.pack("<q", 3)))

# Bad input.
expect(run(receipt, code=2), "one file alone")
expect(run(receipt, folder / "none.receipt", code=2), "cannot read '", "No such file or directory")
expect(run(receipt, folder, code=2), "Is a directory")
expect(run(folder / "none.safetensors", receipt, code=2), "No such file")
expect(run("--step", 3, receipt, receipt, code=2), "--write")
for step in (-1, -5, "99999999999999999999", "1e3", "+1", " 1"):
    expect(run("--write", folder / "x.receipt", "--step", step, whole, code=2), "no number from 0 to 10^19 - 1")
for rank in (-1, 1 << 20, 1 << 31, 1 << 40):
    run("--write", folder / "x.receipt", "--rank", rank, whole, code=2)
for option in (("--cast", "bfloat16"), ("--rank", 3)):
    expect(run("--write", folder / "x.receipt", *option, receipt, code=2), "it is a receipt; --rank and --cast are for files with data")
expect(run("--write", folder / "x.receipt", "--older", older, whole, code=2), "--older")
assert not (folder / "x.receipt").exists()
if not (folder / "pipe.safetensors").exists():
    os.mkfifo(folder / "pipe.safetensors")
expect(run(receipt, folder / "pipe.safetensors", code=2), "pipe.safetensors': it is not a regular file")
expect(run(receipt, "/dev/null", code=2), "it is not a regular file")
(folder / "other.bin").write_bytes(b"PK")
expect(run(receipt, folder / "other.bin", code=2), "other.bin: neither *.safetensors nor *.npy, and not a receipt\n")
expect(run("--write", folder / "x.receipt", "--cast", "int8", whole, code=2), "--cast: 'int8' is not bfloat16 or half")
(folder / "old.receipt").write_text("collprobe receipt 1\nstep 7\n")
expect(run(folder / "old.receipt", whole, code=2), "old.receipt: line 1: a receipt of version 1: write it again")
cut = folder / "cut.receipt"
cut.write_bytes(receipt.read_bytes()[:-30])
expect(run(cut, whole, code=2), "cut.receipt: line ")
raw = whole.read_bytes()
for length in (0, 5, 8, 40, len(raw) - 1):
    (folder / "cut.safetensors").write_bytes(raw[:length])
    expect(run(receipt, folder / "cut.safetensors", code=2), "cut.safetensors: ")
for key, value, reason in (("shape", [1 << 40, 1 << 40], "too large"), ("shape", [3], "the shape needs 12 bytes"),
                           ("shape", [1] * 9, "more than 8 dimensions"), ("data_offsets", [0, 1 << 40], "not within the file"),
                           ("data_offsets", "x", "h.0.weight"), ("dtype", "F4", 'does not know: "F4"'), ("dtype", 3, "h.0.weight")):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], key: value}
    text = json.dumps({"h.0.weight": entry}).encode()
    (folder / "bad.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"12345678")
    expect(run(receipt, folder / "bad.safetensors", code=2), reason)
# A header that is no safetensors one, with data that would be equal.
equal = safetensors("equal.safetensors", {"a": ("F32", [2], floats([1, 2]))})
A = '"dtype":"F32","shape":[2],"data_offsets":'


def bad(header, data, *reasons):
    text = header.encode()
    (folder / "bad.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    shown = run(equal, folder / "bad.safetensors", code=2)
    expect(shown, "bad.safetensors: ", *reasons)
    assert "json" not in shown and ".cpp" not in shown and "\x1b" not in shown and shown.count("\n") == 1, shown


two, other = floats([1, 2]), floats([3, 4])
bad(f'{{"a":{{{A}[8,16]}},"a":{{{A}[0,8]}}}}', two + other, 'the header has "a" twice')
bad('{"a":{"shape":[3],' + A + '[0,8]}}', two, 'the header has "shape" twice')
bad(f'{{"a":{{{A}[0,8]}},"b":{{{A}[4,12]}}}}', two + other, 'tensor "b": its data begins at byte 4, and that of the tensors before ends at 8')
bad(f'{{"a":{{{A}[8,16]}}}}', other + two, 'tensor "a": its data begins at byte 8, and that of the tensors before ends at 0')
bad(f'{{"a":{{{A}[0,8]}}}}', two + other, "8 bytes belong to no tensor")
bad("{}", two, "8 bytes belong to no tensor")
for number in ("2.5", "2.0", "-2", "1e30", "1e0", "18446744073709551618", "true", "null", '"2"', "[2]"):
    bad('{"a":{' + A.replace("[2]", f"[{number}]") + "[0,8]}}", two, "'shape' is no list of integers from 0 to 2^64 - 1")
    bad(f'{{"a":{{{A}[0,{number}]}}}}', two, "'data_offsets' is no list of integers")
bad('{"a\\n\\u001b[31m":{' + A + "[0,4]}}", two, 'tensor "a\\x0a\\x1b[31m": the shape needs 8 bytes')
bad('{"a":{' + A.replace("F32", "F\\n4") + "[0,8]}}", two, 'does not know: "F\\x0a4"')
bad('{"a":3}', two, "tensor \"a\": there is no 'dtype'")
bad('{"a":', two, "the header is no JSON, from its byte 6 on")
bad("[1]", two, "the header is no JSON object")
right = f'{{"a":{{{A}[0,8]}}}}'
for hole in ("\0", "\0" * 16, "\0" + right): # a parser in C may take it for the end
    bad(right + hole, two, f"the header is no JSON, from its byte {len(right) + 1} on")


def bad_npy(shape, *reasons, version=1, order="False", descr="'<f4'", more="", behind="  \n"):
    header = ("{'shape': %s, 'fortran_order': %s, 'descr': %s%s}%s" % (shape, order, descr, more, behind)).encode()
    (folder / "a.npy").write_bytes(b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + two)
    expect(run(equal, folder / "a.npy", code=2 if reasons else 0), *reasons)


for shape in ("(2,)", "(1, 2)", "(2, 1, )", "( 2 ,)"):
    path = equal
    equal = safetensors("like.safetensors", {"a": ("F32", [int(n) for n in shape.strip("( )").split(",") if n.strip()], two)})
    bad_npy(shape)
    bad_npy(shape, version=3)
    equal = path
for shape in ("(1 2)", "(2)", "2,", "(,2)", "(2,,)", "(-2,)", "(2", "(2,", "(2.0,)", "[2]", "", "(1 2,)"):
    bad_npy(shape, "no shape")
bad_npy("(2,)", "a version that this program does not know", version=9)
bad_npy("(2,)", "a type without an end", descr="'<f4")
bad_npy("(2,)", "a type with several fields", descr="[('a', '<f4')]")
bad_npy("(2,)", "the header has 'shape' twice", more=", 'shape': (2,)")
bad_npy("(2,)", 'the header has a key that the format has not: "other"', more=", 'other': 1")
bad_npy("(2,)", "the header has more than a dictionary", behind=" x\n")
bad_npy("(2,)", "the header's dictionary has no end", more=" 'fortran_order': False")
bad_npy("(2,), 'descr': '<f4', 'x", "the header has a key that the format has not")
bad_npy("(2,)", "'fortran_order' is not True or False", order="0")
for length in range(0, 128, 7):
    (folder / "cut.npy").write_bytes((folder / "w.npy").read_bytes()[:length])
    run(receipt, folder / "cut.npy", code=2)
for trial in range(60):  # anything but a crash
    damaged = bytearray(raw if trial % 2 else (folder / "w.npy").read_bytes())
    for _ in range(3):
        damaged[random.randrange(min(300, len(damaged)))] = random.randrange(256)
    path = folder / ("damaged.safetensors" if trial % 2 else "damaged.npy")
    path.write_bytes(damaged)
    done = subprocess.run([program, str(receipt), str(path)], capture_output=True)
    assert done.returncode in (0, 1, 2), (trial, done)
expect(run("--help"), "--older PATH", "Exit status: 0 equal", "*.npy file has the file's name")
print("collprobe_verify: all as expected")
