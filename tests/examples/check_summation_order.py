#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_summation_order.py <summation_order> <folder> [safetensors]

Sums of random and hard terms by every method, with integers of any length and the rounding of IEEE 754 alone: the
program must have the same bits, the same counts of differing elements, and the same largest error and element. Then
inputs that it must refuse, each by one sentence that names the file.
"""
import fractions
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys

from digest_oracle import digest, sums
from tensor_writers import npy, safetensors

program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
random.seed(33)


class Format:
    """Numbers are bit patterns; their values are integers times 2^-1074."""

    def __init__(self, name, descr, digits, largest_exponent):
        self.name, self.descr, self.digits, self.emax = name, descr, digits, largest_exponent
        self.emin = 1 - largest_exponent
        self.bytes = 8 if digits == 53 else 4 if digits == 24 else 2
        self.sign = 1 << 8 * self.bytes - 1
        self.infinity = (2 * largest_exponent + 1) << digits - 1
        self.nan = self.infinity | 1 << digits - 2
        self.letter = {2: "H", 4: "I", 8: "Q"}[self.bytes]

    def is_nan(self, bits):
        return bits & ~self.sign > self.infinity

    def is_finite(self, bits):
        return bits & ~self.sign < self.infinity

    def value(self, bits):
        field, fraction = divmod(bits & ~self.sign, 1 << self.digits - 1)
        if field != 0:
            fraction += 1 << self.digits - 1
        unit = max(field, 1) - 1 + self.emin - (self.digits - 1)
        return (-fraction if bits & self.sign else fraction) << unit + 1074

    def round(self, value, negative_zero=False):
        """To nearest, ties to even."""
        if value == 0:
            return self.sign if negative_zero else 0
        magnitude = abs(value)
        exponent = max(magnitude.bit_length() - 1 - 1074, self.emin)
        shift = exponent - (self.digits - 1) + 1074
        kept, rest = magnitude >> shift, magnitude & (1 << shift) - 1
        half = 1 << shift >> 1
        if rest > half or (rest == half and half and kept & 1):
            kept += 1
        if kept == 1 << self.digits:
            kept, exponent = kept >> 1, exponent + 1
        if exponent > self.emax:
            bits = self.infinity
        elif kept < 1 << self.digits - 1:
            bits = kept
        else:
            bits = (exponent - self.emin + 1 << self.digits - 1) | kept & (1 << self.digits - 1) - 1
        return bits | (self.sign if value < 0 else 0)

    def add(self, a, b):
        if self.is_nan(a) or self.is_nan(b):
            return self.nan
        if not self.is_finite(a) or not self.is_finite(b):
            if self.is_finite(a) or self.is_finite(b):
                return b if self.is_finite(a) else a
            return a if a == b else self.nan
        return self.round(self.value(a) + self.value(b), bool(a & b & self.sign))

    def subtract(self, a, b):
        return self.add(a, b ^ self.sign)

    def to(self, other, bits):
        if self.is_nan(bits):
            return other.nan
        if not self.is_finite(bits):
            return other.infinity | (other.sign if bits & self.sign else 0)
        return other.round(self.value(bits), bool(bits & self.sign))

    def exact(self, terms):
        infinities = {bits for bits in terms if not self.is_finite(bits)}
        if any(self.is_nan(bits) for bits in infinities) or len(infinities) > 1:
            return self.nan
        if infinities:
            return infinities.pop()
        return self.round(sum(map(self.value, terms)), all(bits == self.sign for bits in terms))

    def distance(self, a, b):
        ordered = [-(x & ~self.sign) if x & self.sign else x for x in (a, b)]
        return abs(ordered[0] - ordered[1])

    def pack(self, values):
        return struct.pack(f"<{len(values)}{self.letter}", *values)


HALF, BFLOAT16 = Format("half", "<f2", 11, 15), Format("bfloat16", "|V2", 8, 127)
FLOAT, DOUBLE = Format("float", "<f4", 24, 127), Format("double", "<f8", 53, 1023)
FORMATS = [HALF, BFLOAT16, FLOAT, DOUBLE]


# Orders, as nested pairs of term numbers.
def chain(terms):
    whole = terms[0]
    for term in terms[1:]:
        whole = (whole, term)
    return whole


def halves(terms):
    """Neighbours first; the number of terms is a power of two."""
    middle = len(terms) // 2
    return terms[0] if middle == 0 else (halves(terms[:middle]), halves(terms[middle:]))


def power_below(n):
    return 1 << n.bit_length() - 1


def doubling(n):
    pairs = n - power_below(n)
    return halves([(2 * i, 2 * i + 1) for i in range(pairs)] + list(range(2 * pairs, n)))


def halving(n):
    power = power_below(n)
    parts = [(i, i + power) if i + power < n else i for i in range(power)]
    while len(parts) > 1:
        middle = len(parts) // 2
        parts = [(parts[i], parts[i + middle]) for i in range(middle)]
    return parts[0]


def tree(n, which):
    """NCCL's: a node above n - 1 clears its lowest bit instead; the other tree is mirrored or, of an odd n, shifted."""
    def parent(node):
        bit = node & -node
        up = (node ^ bit) | bit << 1
        return up if up < n else node ^ bit

    def rank(node):
        return node if which == 0 else (node + 1) % n if n % 2 else n - 1 - node

    def below(node):
        return chain([rank(node)] + [below(child) for child in range(1, n) if parent(child) == node])

    return below(0)


def order_at(order, n, count, element_bytes, place, number):
    if order == "linear":
        return chain(list(range(n)))
    if order == "reversed":
        return chain(list(range(n))[::-1])
    if order == "ring":
        unit = 16 // element_bytes
        length = -(-(-(-count // n)) // unit) * unit
        chunk = place // length
        return chain([(chunk + 1 + k) % n for k in range(n)])
    if order == "tree":
        return tree(n, 0 if place < count - count // 2 else 1)
    if order == "single_tree":
        return tree(n, 0)
    if order == "recursive_doubling":
        return doubling(n)
    if order == "recursive_halving":
        return halving(n)
    if order == "two_level":
        ranks = list(range(n))
        return chain([chain(ranks[first:first + number]) for first in range(0, n, number)])
    raise AssertionError(order)


def dealt(order, leaves, n):
    """The order over ranks, each of which first adds its share of the leaves."""
    if isinstance(order, tuple):
        return dealt(order[0], leaves, n), dealt(order[1], leaves, n)
    short, more = divmod(leaves, n)
    first = order * short + min(order, more)
    return chain(list(range(first, first + short + (order < more))))


def add_in(order, terms, add):
    return add(add_in(order[0], terms, add), add_in(order[1], terms, add)) if isinstance(order, tuple) else terms[order]


def sum_in(order, accumulation, of, terms):
    if accumulation == "exact":
        return of.exact(terms)
    if accumulation == "native":
        return add_in(order, terms, of.add)
    wide = FLOAT if accumulation == "float32" else DOUBLE
    return wide.to(of, add_in(order, [of.to(wide, term) for term in terms], wide.add))


def hard_column(of, n):
    """The terms of one element: alike, of any size, cancelling, subnormal, or near the largest number."""
    kind = random.randrange(9)
    center = random.randrange(1, 2 * of.emax)

    def near(spread):
        field = min(max(center + random.randint(-spread, spread), 0), 2 * of.emax)
        return field << of.digits - 1 | random.getrandbits(of.digits - 1) | (of.sign if random.random() < 0.5 else 0)

    if kind < 4:
        return [near(3) for _ in range(n)]
    if kind == 4:
        return [near(2 * of.emax) for _ in range(n)]
    if kind == 5:
        column = [near(12) for _ in range(n)]
        for i in range(n // 2):
            column[-1 - i] = column[i] ^ of.sign
        random.shuffle(column)
        return column
    if kind == 6:
        return [random.choice((0, of.sign)) | random.getrandbits(of.digits) for _ in range(n)]
    if kind == 7:
        return [random.choice((0, of.sign)) for _ in range(n)]
    center = 2 * of.emax
    return [near(2) for _ in range(n)]


def run(*arguments, code=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


ORDERS = "linear,ring,tree,single_tree,recursive_doubling,recursive_halving,two_level"


def two_level_number(order, ranks):
    """The ranks of a node unless they are given; 0 for orders without a number."""
    return 0 if order != "two_level" else 8 if ranks >= 16 else max(2, ranks // 2)


told_apart = set()  # pairs of methods: the negative control, that the cases do tell methods from each other


def check_case(case, of, source, n, count, ranks, as_type):
    columns = [hard_column(source, n) for _ in range(count)]
    columns[0] = [source.round((k + 1) << 1074) for k in range(n)]  # one at least is left
    for _ in range(random.choice((0, 0, 2)) if count > 1 else 0):
        columns[random.randrange(1, count)][random.randrange(n)] = random.choice(
            (source.nan, source.infinity, source.infinity | source.sign))
    rows = [[column[k] for column in columns] for k in range(n)]
    descr, extra = source.descr, []
    if source is BFLOAT16 and case % 3:
        descr, extra = ("<V2", []) if case % 3 == 1 else ("<u2", ["--type", "bfloat16"])
    if as_type:
        extra += ["--as", of.name]
    place = folder / f"case_{case}"
    if case % 2:
        shape = (n, count // 2, 2) if count % 2 == 0 else (n, count)
        path = npy(place.with_suffix(".npy"), descr, shape, b"".join(map(source.pack, rows)), version=1 + case % 3)
    else:
        path = place
        for k, row in enumerate(rows):
            npy(place / f"rank{k}.npy", descr, (count,), source.pack(row))
    if ranks:
        extra += ["--leaves", "--ranks", ",".join(map(str, ranks))]
    accumulations = ["native", "float32", "float64", "exact"]
    if of is DOUBLE:
        accumulations.remove("float32")
    done = run(path, "--json", "--orders", ORDERS, "--accumulations", ",".join(accumulations),
               "--threads", random.choice((1, 2, 3)), *extra)
    lines = [json.loads(line) for line in done.stdout.splitlines()]

    terms = [[source.to(of, bits) for bits in column] for column in columns]
    right = [of.exact(column) for column in terms]
    finite = [all(map(of.is_finite, column)) for column in terms]
    counted = [i for i in range(count) if finite[i] and of.is_finite(right[i])]
    head = lines[0]
    assert head["kind"] == "input" and head["type"] == of.name and head["elements"] == count, head
    assert head["not_finite"] == finite.count(False), (case, head)
    assert head["sums_too_large"] == sum(finite) - len(counted), (case, head)
    if not all(finite):
        assert head["first_not_finite_index"] == finite.index(False), (case, head)
        assert "left out" in done.stderr

    results, seen = {}, 0
    for line in lines:
        if line["kind"] != "method":
            continue
        method = line["order"], line["accumulation"], line["ranks"]
        assert method not in results and line["type"] == of.name and line["elements"] == count, line
        number = line.get("order_number", 0)
        assert number == two_level_number(line["order"], line["ranks"]), line
        result = []
        for i, column in enumerate(terms):
            order = order_at(line["order"], line["ranks"], count, of.bytes, i, number)
            bits = sum_in(dealt(order, n, line["ranks"]), line["accumulation"], of, column)
            result.append(0 if i not in counted else of.nan if of.is_nan(bits) else bits)  # no digest is about the others
        results[method] = result
        raw = of.pack(result)
        where = f"case {case}, {of.name}, {n} rows: {line}"
        assert int(line["digest"], 16) == digest(*sums(raw), len(raw)), where
        differ = [i for i in counted if result[i] != right[i]]
        errors = {i: of.distance(result[i], right[i]) for i in counted if of.is_finite(result[i])}
        largest = max(errors.values(), default=0)
        assert line["differ"] == len(differ), where
        assert line["overflows"] == len(counted) - len(errors), where
        assert line["largest_ulp"] == largest, where
        if largest:
            assert line["largest_index"] == min(i for i in errors if errors[i] == largest), where
        if errors and len(errors) == len(counted):
            middle = sorted(errors.values())[(len(errors) + 1) // 2 - 1]
            assert line["median_ulp"] <= middle < line["median_ulp"] * 17 / 16 + 1, (where, middle)
        seen += 1
    assert seen == len((ranks or [r for r in (2, 4, 8, 16, 32) if r < n] + [n])) * (7 * (len(accumulations) - 1) + 1), seen

    last = (ranks or [n])[-1]
    native = {method[0]: result for method, result in results.items() if method[1:] == ("native", last)}
    told_apart.update((a, b) for a in native for b in native if native[a] != native[b])
    for line in lines:
        if line["kind"] != "method" and "order" in line:
            assert line.get("order_number", 0) == two_level_number(line["order"], line["ranks"]), (case, line)
        if line["kind"] == "pair":
            assert line.get("other_order_number", 0) == two_level_number(line["other_order"], last), (case, line)
            a = results[line["order"], line["accumulation"], last]
            b = results[line["other_order"], line["other_accumulation"], last]
            assert line["differ"] == sum(a[i] != b[i] for i in counted), (case, line)
        if line["kind"] == "change":
            assert line.get("from_order_number", 0) == two_level_number(line["order"], line["from_ranks"]), (case, line)
            a = results[line["order"], line["accumulation"], line["from_ranks"]]
            b = results[line["order"], line["accumulation"], line["ranks"]]
            assert line["changed"] == sum(a[i] != b[i] for i in counted), (case, line)
            distances = [of.distance(a[i], b[i]) for i in counted if of.is_finite(a[i]) and of.is_finite(b[i])]
            assert line["largest_ulp"] == max(distances, default=0), (case, line)


def check_oracle():
    """The oracle itself against the arithmetic of Python and of struct."""
    for _ in range(300):
        a, b = (random.getrandbits(64) for _ in range(2))
        x, y = struct.unpack("<2d", struct.pack("<2Q", a, b))
        if x == x and y == y and abs(x) + abs(y) < 1e308:
            assert DOUBLE.add(a, b) == struct.unpack("<Q", struct.pack("<d", x + y))[0]
            if abs(x) < 3e38:
                assert DOUBLE.to(FLOAT, a) == struct.unpack("<I", struct.pack("<f", x))[0]
        h = random.getrandbits(16)
        if HALF.is_finite(h):
            assert struct.unpack("<e", struct.pack("<H", h))[0] == (abs(HALF.value(h)) >> 1050) / 2 ** 24 * (-1 if h >> 15 else 1)
            assert struct.unpack("<H", struct.pack("<e", struct.unpack("<e", struct.pack("<H", h))[0]))[0] == h
    try:
        import ml_dtypes
        import numpy
    except ImportError:
        return
    bits = numpy.random.default_rng(1).integers(0, 1 << 32, 2000, dtype=numpy.uint32)
    rounded = bits.view(numpy.float32).astype(ml_dtypes.bfloat16).view(numpy.uint16)
    for value, wanted in zip(bits.tolist(), rounded.tolist()):
        assert FLOAT.is_nan(value) or FLOAT.to(BFLOAT16, value) == wanted


def array(name, of, rows):
    """A file of these numbers: a row a rank."""
    letter = {"<f2": "e", "<f4": "f", "<f8": "d"}[of.descr]
    raw = b"".join(struct.pack(f"<{len(row)}{letter}", *row) for row in rows)
    return npy(folder / "said" / f"{name}.npy", of.descr, (len(rows), len(rows[0])), raw)


def said(*arguments):
    """The screen, its closing sentence on one line."""
    screen = run(*arguments).stdout
    return screen, " ".join(screen.rsplit("\n\n", 1)[1].split())


def lines_of(*arguments):
    """Lines of JSON, in which no number that exists is missing."""
    text = run(*arguments, "--json").stdout
    assert '"inf"' not in text and '"nan"' not in text, text
    return [json.loads(line) for line in text.splitlines()]


def check_conclusions():
    """What the closing sentence says, of data made for it."""
    rows = [[60000, 1], [60000, 2], [-60000, 3], [-60000, 4]]
    screen, end = said(array("over", HALF, rows), "--orders", "linear", "--accumulations", "native,exact")
    assert end.endswith("native linear overflows in 1 element; elsewhere no method has an error."), end
    assert end.startswith("Of the accumulations, only exact has the same bits in the one order tried and for 2 and 4 ranks, "), end
    _, end = said(array("over", HALF, rows))
    assert "; 3 methods overflow, most often native linear: in 1 element; " in end, end

    # Sizes whose squares are no numbers of double. The spread of a sum is measured by two passes over the terms.
    for size in (-320, -165, 0, 160, 305):
        rows = [[random.gauss(0, 1) * 10.0 ** size for _ in range(100)] for _ in range(4)]
        path = array("sized", DOUBLE, rows)
        check_noise(path, rows)
        screen, end = said(path)
        if size > -320:
            assert "no method" not in end and "the largest error of a method, as a vector, is that of native " in end, end
            assert end.endswith(" % of the noise between the ranks."), end
            line = next(line for line in screen.splitlines() if "; correctly rounded " in line)
            gave, right = line.split(" gave ")[1].split("; correctly rounded ")
            assert float(gave) != float(right), line
            method = next(line for line in lines_of(path) if line["kind"] == "method" and line["differ"] and line["ranks"] == 4)
            assert 0 < method["relative_error"] < 1e-14 and 0 < method["error_over_noise"] < 1e-13, method
    rows = [[1e8 + random.gauss(0, 1e-5) for _ in range(100)] for _ in range(4)]
    check_noise(array("near", DOUBLE, rows), rows)
    rows = [[1e300 if k == 0 else 1e-300 * i for i in range(100)] for k in range(3)]
    check_noise(array("outlier", DOUBLE, rows), rows)

    rows = [[0.1 * (i + 1) for i in range(50)]] * 7
    path = array("same", FLOAT, rows)
    assert lines_of(path)[0]["noise"] == 0
    assert said(path)[1].endswith("the ranks are alike, so there is no noise to hold it against."), said(path)
    assert "error_over_noise" not in next(line for line in lines_of(path) if line["kind"] == "method" and line["differ"])

    small = [[float(random.randrange(100)) for _ in range(40)] for _ in range(4)]
    _, end = said(array("exact", FLOAT, small))
    assert end == ("Every method has the same bits on these data, in every order tried and for 2 and 4 ranks; "
                   "no method has an error."), end
    _, end = said("--random", "heavy", "--ranks", 8, "--elements", 5000, "--as", "bfloat16", "--accumulations",
                  "native,float32,float64,exact", "--threads", 1)
    names = end.split("Of the accumulations, ")[1].split(" have the same bits in every order tried")[0]
    assert sorted(names.replace(" and ", ", ").split(", ")) == ["exact", "float32", "float64"], end
    assert f"; the cheapest, {names.split(',')[0]}, costs " in end and "fastest method" in end, end
    _, end = said("--random", "heavy", "--ranks", 8, "--elements", 500, "--orders", "ring")
    assert "in the one order tried" in end, end

    # Elements that are left out are in no digest: 65520 is no half, but a running sum loses both eights.
    left_out = array("left_out", HALF, [[65504, 1], [8, 2], [8, 3]])
    screen, end = said(left_out, "--threads", 1)
    assert "1 element has a sum beyond the largest number of the type: left out" in screen, screen
    assert end.startswith("Every method has the same bits on these data, "), end
    assert len({line["digest"] for line in lines_of(left_out) if line["kind"] == "method" and line["ranks"] == 3}) == 1

    _, end = said("--random", "heavy", "--ranks", 8, "--elements", 5000, "--as", "bfloat16", "--accumulations", "native,float32")
    assert end.startswith("Of the accumulations, only float32 has the same bits in every order tried and for 2, 4 and 8 "
                          "ranks on these data (exact sums have them for any); it costs "), end

    # All errors are alike: they have no spread that a bias could be held against.
    unlucky = [[2048.0] * 3, [1.0] * 3, [1.0] * 3]
    path = array("alike", HALF, unlucky)
    native = next(line for line in lines_of(path, "--orders", "linear") if line["kind"] == "method" and line["ranks"] == 3)
    assert native["differ"] == 3 and "bias" not in native, native
    assert " -  " in next(line for line in said(path, "--orders", "linear")[0].splitlines() if line.startswith("native linear"))
    row = run(path, "--csv", "--orders", "linear").stdout.splitlines()
    assert "nan" not in "".join(row) and "inf" not in "".join(row), row
    assert ["half,linear,native,3" in line and ",,0," in line for line in row].count(True) == 1, row


def check_noise(path, rows):
    """The program's noise, beside a variance by fractions."""
    squares = 0
    for column in zip(*rows):
        terms = [fractions.Fraction(term) for term in column]
        mean = sum(terms) / len(terms)
        squares += len(terms) * sum((term - mean) ** 2 for term in terms) / (len(terms) - 1)
    scale = fractions.Fraction(2) ** 2200
    wanted = fractions.Fraction(math.isqrt(int(squares * scale ** 2)), 1) / scale
    found = fractions.Fraction(lines_of(path)[0]["noise"])
    assert abs(found / wanted - 1) < 1e-9 or abs(found - wanted) < fractions.Fraction(5e-324) * 2, (path, found, wanted)


def check_permutations():
    """Lines of the table stand for methods with equal results only; neither time nor threads choose what they say."""
    # Two large terms that cancel, neighbours, and small ones after them: right in float64 by both orders, as long as the
    # ranks have their places. Elsewhere the small ones are lost, by the one order or by the other.
    columns = []
    for i in range(60):
        before = 2 * random.randrange(3)
        columns.append([0] * before + [2.0 ** 60, -2.0 ** 60] + [float(random.randrange(1, 99)) for _ in range(6 - before)])
    path = array("permuted", FLOAT, list(zip(*columns)))
    arguments = (path, "--permutations", 6, "--orders", "linear,recursive_doubling", "--accumulations", "float64,exact")

    def table():
        text = run(*arguments, "--threads", random.choice((1, 2, 3))).stdout
        return text.split("permutations of the ranks\n\n")[1].split("\n\n")[0]

    found = {}
    for line in lines_of(*arguments):
        if line["kind"] == "method" and line["ranks"] == 8:
            assert line["differ"] == 0, line  # without a permutation they are alike
        if line["kind"] == "permutations":
            found[line["order"], line["accumulation"]] = line["changed"], line["distinct"], line["largest_ulp"]
    assert found["linear", "float64"] != found["recursive_doubling", "float64"], found
    assert len({table() for _ in range(8)}) == 1
    assert "\nfloat64 linear  " in table() and "\nfloat64 recursive_doubling  " in table(), table()


def check_blocks():
    """Orders by place, in a message that is computed in several blocks (of 16384 elements)."""
    n, count = 5, 60011
    path = array("large", FLOAT, [[random.gauss(0, 1) for _ in range(count)] for _ in range(n)])
    raw = path.read_bytes()[-4 * n * count:]
    rows = [struct.unpack_from(f"<{count}f", raw, 4 * k * count) for k in range(n)]

    def add(a, b):  # rounded to double, then to float: that is as if rounded once
        return struct.unpack("<f", struct.pack("<f", a + b))[0]

    seen = 0
    for line in lines_of(path, "--orders", "ring,tree", "--accumulations", "native", "--threads", 3):
        if line["kind"] != "method" or line["ranks"] != n:
            continue
        result = [add_in(order_at(line["order"], n, count, 4, i, 0), [row[i] for row in rows], add) for i in range(count)]
        raw = struct.pack(f"<{count}f", *result)
        assert int(line["digest"], 16) == digest(*sums(raw), len(raw)), line
        seen += 1
    assert seen == 2


def check_file_order():
    """Rank 2 is before rank 10, in whichever sequence a shell names their files."""
    place = folder / "ordered"
    columns = [hard_column(FLOAT, 12) for _ in range(64)]
    files = [npy(place / f"grad_{k}.npy", "<f4", (64,), FLOAT.pack([column[k] for column in columns])) for k in range(12)]

    def digests(*paths):
        return [line["digest"] for line in lines_of(*paths, "--orders", "linear,tree") if line["kind"] == "method"]

    wanted = digests(place)
    assert digests(*sorted(files)) == wanted and digests(*files[::-1]) == wanted and sorted(files) != files
    swapped = folder / "swapped"
    for k, path in enumerate(sorted(files)):
        (swapped / path.name).parent.mkdir(exist_ok=True)
        shutil.copy(path, swapped / f"grad_{k}.npy")
    assert digests(swapped) != wanted  # the negative control: the sequence matters
    assert "sorted by their names (grad_2 before grad_10)" in " ".join(run("--help").stdout.split())


def check_refusals():
    place = folder / "bad"
    one = FLOAT.pack([1, 2, 3, 4])
    good = npy(place / "good.npy", "<f4", (2, 2), one)

    def refused(*arguments, says):
        done = run(*arguments, code=2)
        assert done.stdout == "", arguments
        message = done.stderr
        assert message.startswith("summation_order: ") and message.count("\n") == 1, (arguments, message)
        for each in says:
            assert each in message, (arguments, each, message)

    text = place / "text.npy"
    text.write_text("no array, a text\n")
    refused(text, says=["text.npy'", "no NumPy file"])
    cut = place / "cut.npy"
    for length in (0, 5, 11, 60, 127, 135, 143):
        cut.write_bytes(good.read_bytes()[:length])
        refused(cut, says=["cut.npy'"])
    longer = place / "longer.npy"
    longer.write_bytes(good.read_bytes() + b"more")
    refused(longer, says=["longer.npy'", "needs 16 bytes, and there are 20"])
    refused(npy(place / "fortran.npy", "<f4", (2, 2), one, fortran=True), says=["fortran.npy'", "Fortran's order", "C order"])
    refused(npy(place / "integers.npy", "<i4", (2, 2), one), says=["integers.npy'", "int32", "half, bfloat16, float or double"])
    refused(npy(place / "words.npy", "<u2", (2, 4), one), says=["words.npy'", "uint16", "--type bfloat16"])
    refused(npy(place / "big.npy", ">f4", (2, 2), one), says=["big.npy'", ">f4"])
    refused(npy(place / "objects.npy", "|O", (2, 2), one), says=["objects.npy'", "|O"])
    refused(npy(place / "nothing.npy", "<f4", (2, 0), b""), says=["nothing.npy'", "no element"])
    refused(npy(place / "one.npy", "<f4", (1, 4), one), says=["one.npy'", "one rank"])
    refused(npy(place / "row.npy", "<f4", (4,), one), says=["row.npy'", "one rank", "(ranks, ...)"])
    refused(good, npy(place / "other.npy", "<f4", (4,), one), says=["other.npy'", "shape (4,)", "shape (2, 2)", "good.npy'"])
    refused(good, npy(place / "half.npy", "<f2", (2, 2), one[:8]), says=["half.npy'", "type half", "type float"])
    refused(place / "none.npy", says=["none.npy'", "No such file"])
    refused(place / "no\x1b[31m\x07ne.npy", says=["no?[31m?ne.npy'", "No such file"])
    refused(place / "no\nne.npy", says=["no?ne.npy'"])
    coloured = place / "\x1b[31mred\x07.npy"
    coloured.write_text("no array, a text\n")
    refused(coloured, says=["?[31mred?.npy'", "no NumPy file"])
    for raw in (FLOAT.pack([1, 2, 3, 4]), FLOAT.pack([1, FLOAT.nan, 3, 4])):
        done = run(npy(coloured, "<f4", (2, 2), raw))
        assert "from " + str(place) + "/?[31mred?.npy" in done.stdout and "\x1b" not in done.stdout + done.stderr, done
        assert "\x1b" not in run(coloured, "--json").stderr
    for wrong in ([coloured, "--random", "normal"], ["--\x1b[1m"], [good, "--orders", "\x1b"], [good, "--ranks", "\x1b"],
                  [good, "--as", "\x1b"]):
        assert "\x1b" not in run(*wrong, code=2).stderr, wrong
    twice = run(place / "a\nb.npy", "--random", "normal", code=2).stderr
    assert "'" + str(place) + "/a?b.npy' is the input" in twice, twice
    assert "none?/a.svg" in run(good, "--svg", place / "none\x1b/a.svg", code=1).stderr
    empty = folder / "no_arrays"
    empty.mkdir()
    refused(empty, says=["no_arrays'", "no .npy file"])
    npy(empty / "only.npy", "<f4", (4,), one)
    refused(empty, says=["no_arrays'", "one rank"])
    nan = FLOAT.pack([FLOAT.nan] * 4)
    refused(npy(place / "nan.npy", "<f4", (2, 2), nan), says=["nan.npy[0]'", "NaN", "finite terms"])
    some = npy(place / "some.npy", "<f4", (2, 3), FLOAT.pack([0, FLOAT.nan, 1, 2, 3, 4]))
    text_of_some = run(some).stdout
    assert "1 element has NaN or infinity, the first in '" in text_of_some, text_of_some
    assert "some.npy[0]' at element 1: left out" in text_of_some, text_of_some
    rounded = run(array("rounded", FLOAT, [[1e6, 1], [1, 2]]), "--as", "half").stdout
    assert "1 element, rounded to half, has NaN or infinity, the first in '" in rounded, rounded
    assert " 1 element of float, from " in run(array("single", FLOAT, [[1], [2]])).stdout
    for wrong in (["--random", "flat"], ["--ranks", "3"], [good, "--random", "normal"], [], ["--orders", "spiral", good],
                  ["--orders", "ring:2", good], [good, "--ranks", "3"], [good, "--json", "--csv"], [good, "--as", "int8"],
                  [good, "--as", "double", "--accumulations", "float32"]):
        assert "Try --help" in run(*wrong, code=2).stderr
    # Options without an effect on this input.
    for wrong, says in (([good, "--elements", 5], "--elements: belongs to --random"),
                        ([good, "--tensor", "a"], "--tensor: belongs to .safetensors files"),
                        (["--random", "wide", "--tensor", "a"], "--tensor: belongs to files"),
                        ([good, "--type", "bfloat16"], "--type: no .npy file has what NumPy calls uint16"),
                        (["--random", "wide", "--type", "bfloat16"], "--type: belongs to files")):
        assert run(*wrong, code=2).stderr == f"summation_order: {says}\nTry --help.\n", wrong


def check_safetensors():
    rows = [[HALF.round(random.getrandbits(12) << 1074) for _ in range(50)] for _ in range(3)]
    raw = b"".join(map(HALF.pack, rows))
    as_npy = npy(folder / "three.npy", "<f2", (3, 50), raw)
    one = safetensors(folder / "one.safetensors", {"a": ("F16", [3, 50], raw)})
    # The odd byte before it leaves the second tensor's elements unaligned.
    two = safetensors(folder / "two.safetensors", {"odd": ("U8", [1], b"x"), "a": ("F16", [3, 50], raw)})
    def methods(*arguments):
        lines = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
        return [(line["order"], line["accumulation"], line["digest"], line["differ"]) for line in lines if line["kind"] == "method"]
    wanted = methods(as_npy)
    assert methods(one) == wanted and methods(two, "--tensor", "a") == wanted
    for arguments, says in (([two], "--tensor NAME was expected"), ([two, "--tensor", "b"], 'no tensor "b"')):
        assert says in run(*arguments, code=2).stderr


check_oracle()
sizes = [2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 20, 24, 27, 31, 32, 33, 8]
for case, n in enumerate(sizes):
    source = FORMATS[(case + case // 4) % 4]
    of = FORMATS[(case // 2) % 4] if case % 5 == 4 else source
    ranks = sorted(random.sample(range(2, n + 1), min(3, n - 1))) if case % 4 == 3 else None
    check_case(case, of, source, n, random.choice((1, 7, 16, 33, 50, 64)), ranks, of is not source)
orders = ORDERS.split(",")
assert all((a, b) in told_apart for a in orders for b in orders if a != b), sorted(told_apart)
check_conclusions()
check_permutations()
check_blocks()
check_file_order()
check_refusals()
if "safetensors" in sys.argv:
    check_safetensors()
print("summation_order: as the oracle in all cases")
