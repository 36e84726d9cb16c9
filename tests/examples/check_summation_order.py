#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""check_summation_order.py <summation_order> <folder> [safetensors]

Sums of random and hard terms, with Python's numbers and fractions alone: the program must have the same bits, the same
counts of differing elements, and the same largest error and element. (What the other orders are is tested in tests/sum, beside
this file, and with MPI.) Then inputs that it must refuse, each
by one sentence that names the file.
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
    """A type of floating-point numbers; its values are Python's, which hold them exactly."""

    def __init__(self, name, descr, letter, digits, largest_exponent):
        self.name, self.descr, self.letter, self.digits, self.emax = name, descr, letter, digits, largest_exponent
        self.bytes = 8 if digits == 53 else 4 if digits == 24 else 2
        self.sign = 1 << 8 * self.bytes - 1

    def pack(self, values):
        raw = [struct.pack("<" + self.letter, math.nan if math.isnan(value) else value) for value in values]
        return b"".join(each[-self.bytes:] for each in raw)  # of bfloat16: the upper half of a float

    def bits(self, value):
        return int.from_bytes(self.pack([value]), "little")

    def value(self, bits):
        raw = bits.to_bytes(self.bytes, "little")
        return struct.unpack("<" + self.letter, (bytes(2) + raw)[-4:] if self.letter == "f" else raw)[0]

    def round(self, value):
        """A number of double, or a fraction, to nearest, ties to even."""
        try:
            near = float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
        if self.digits == 53 or near == 0 or not math.isfinite(near):
            return near
        exponent = math.frexp(near)[1]
        if abs(value) < fractions.Fraction(2) ** (exponent - 1):
            exponent -= 1  # `near` is a power of two, and above it
        unit = fractions.Fraction(2) ** (max(exponent, 2 - self.emax) - self.digits)
        rounded = round(value / unit if isinstance(value, fractions.Fraction) else near / float(unit)) * unit
        if abs(rounded) >= 2 ** (self.emax + 1):
            return math.copysign(math.inf, near)
        return math.copysign(float(rounded), near)

    def exact(self, terms):
        if any(terms) and all(map(math.isfinite, terms)):
            return self.round(sum(map(fractions.Fraction, terms)))
        return sum(terms[1:], terms[0])

    def distance(self, a, b):
        ordered = [-(x & ~self.sign) if x & self.sign else x for x in (a, b)]
        return abs(ordered[0] - ordered[1])


HALF, BFLOAT16 = Format("half", "<f2", "e", 11, 15), Format("bfloat16", "|V2", "f", 8, 127)
FLOAT, DOUBLE = Format("float", "<f4", "f", 24, 127), Format("double", "<f8", "d", 53, 1023)
FORMATS = [HALF, BFLOAT16, FLOAT, DOUBLE]


# Orders, as nested pairs of term numbers.
def chain(terms):
    whole = terms[0]
    for term in terms[1:]:
        whole = (whole, term)
    return whole


def halving(n):
    power = 1 << n.bit_length() - 1
    parts = [(i, i + power) if i + power < n else i for i in range(power)]
    while len(parts) > 1:
        middle = len(parts) // 2
        parts = [(parts[i], parts[i + middle]) for i in range(middle)]
    return parts[0]


def order_at(order, n, count, element_bytes, place, number):
    if order == "linear":
        return chain(list(range(n)))
    if order == "ring":
        unit = 16 // element_bytes
        length = -(-(-(-count // n)) // unit) * unit
        chunk = place // length
        return chain([(chunk + 1 + k) % n for k in range(n)])
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


def add_in(order, terms, of):
    if not isinstance(order, tuple):
        return terms[order]
    return of.round(add_in(order[0], terms, of) + add_in(order[1], terms, of))


def sum_in(order, accumulation, of, terms):
    """A sum of two numbers in double, rounded again to a type of half the digits, is as if rounded once."""
    if accumulation == "exact":
        return of.exact(terms)
    return of.round(add_in(order, terms, {"native": of, "float32": FLOAT, "float64": DOUBLE}[accumulation]))


def hard_column(of, n):
    """The terms of one element: alike, of any size, cancelling, zeros, subnormal, or near the largest number."""
    kind = random.randrange(9)
    center = 2 * of.emax if kind == 8 else random.randrange(1, 2 * of.emax)
    spread = {4: 2 * of.emax, 5: 12, 8: 2}.get(kind, 3)
    column = []
    for _ in range(n):
        field = 0 if kind == 6 else min(max(center + random.randint(-spread, spread), 0), 2 * of.emax)
        bits = 0 if kind == 7 else field << of.digits - 1 | random.getrandbits(of.digits - 1)
        column.append(of.value(bits | random.choice((0, of.sign))))
    if kind == 5:
        for i in range(n // 2):
            column[-1 - i] = -column[i]
        random.shuffle(column)
    return column


def run(*arguments, code=0):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


ORDERS = "linear,ring,recursive_halving,two_level"


def two_level_number(order, ranks):
    """The ranks of a node unless they are given; 0 for orders without a number."""
    return 0 if order != "two_level" else 8 if ranks >= 16 else max(2, ranks // 2)


told_apart = set()  # pairs of methods: the negative control, that the cases do tell methods from each other


def check_case(case, of, source, n, count, ranks, as_type):
    columns = [hard_column(source, n) for _ in range(count)]
    columns[0] = [float(k + 1) for k in range(n)]  # one at least is left
    for _ in range(random.choice((0, 0, 2)) if count > 1 else 0):
        columns[random.randrange(1, count)][random.randrange(n)] = random.choice((math.nan, math.inf, -math.inf))
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

    terms = [list(map(of.round, column)) for column in columns]
    right = [of.exact(column) for column in terms]
    finite = [all(map(math.isfinite, column)) for column in terms]
    counted = [i for i in range(count) if finite[i] and math.isfinite(right[i])]
    right = list(map(of.bits, right))
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
            found = sum_in(dealt(order, n, line["ranks"]), line["accumulation"], of, column)
            result.append(of.bits(found) if i in counted else 0)  # no digest is about the others
        results[method] = result
        raw = b"".join(bits.to_bytes(of.bytes, "little") for bits in result)
        where = f"case {case}, {of.name}, {n} rows: {line}"
        assert int(line["digest"], 16) == digest(*sums(raw), len(raw)), where
        differ = [i for i in counted if result[i] != right[i]]
        errors = {i: of.distance(result[i], right[i]) for i in counted if math.isfinite(of.value(result[i]))}
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
    assert seen == len((ranks or [r for r in (2, 4, 8, 16, 32) if r < n] + [n])) * (4 * (len(accumulations) - 1) + 1), seen

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
            distances = [of.distance(a[i], b[i]) for i in counted if math.isfinite(of.value(a[i])) and math.isfinite(of.value(b[i]))]
            assert line["largest_ulp"] == max(distances, default=0), (case, line)


def array(name, of, rows):
    """A file of these numbers: a row a rank."""
    return npy(folder / "said" / f"{name}.npy", of.descr, (len(rows), len(rows[0])), b"".join(map(of.pack, rows)))


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
    _, end = said(array("over", HALF, [[60000, 1], [60000, 2], [-60000, 3], [-60000, 4]]))
    assert "; 3 methods overflow, most often native linear: in 1 element; " in end, end
    _, end = said(array("exact", FLOAT, [[float(random.randrange(100)) for _ in range(40)] for _ in range(4)]))
    assert end == ("Every method has the same bits on these data, in every order tried and for 2 and 4 ranks; "
                   "no method has an error."), end
    heavy = ("--random", "heavy", "--ranks", 8, "--elements", 5000, "--as", "bfloat16")
    _, end = said(*heavy, "--accumulations", "native,float32,float64,exact", "--threads", 1)
    names = end.split("Of the accumulations, ")[1].split(" have the same bits in every order tried")[0]
    assert sorted(names.replace(" and ", ", ").split(", ")) == ["exact", "float32", "float64"], end
    assert f"; the cheapest, {names.split(',')[0]}, costs " in end and "fastest method" in end, end
    _, end = said(*heavy, "--accumulations", "native,float32")
    assert end.startswith("Of the accumulations, only float32 has the same bits in every order tried and for 2, 4 and 8 "
                          "ranks on these data (exact sums have them for any); it costs "), end

    # Elements that are left out are in no digest: 65520 is no half, but a running sum loses both eights.
    left_out = array("left_out", HALF, [[65504, 1], [8, 2], [8, 3]])
    screen, end = said(left_out, "--threads", 1)
    assert "1 element has a sum beyond the largest number of the type: left out" in screen, screen
    assert end.startswith("Every method has the same bits on these data, "), end
    assert len({line["digest"] for line in lines_of(left_out) if line["kind"] == "method" and line["ranks"] == 3}) == 1

    # All errors are alike: they have no spread that a bias could be held against.
    path = array("alike", HALF, [[2048.0] * 3, [1.0] * 3, [1.0] * 3])
    native = next(line for line in lines_of(path, "--orders", "linear") if line["kind"] == "method" and line["ranks"] == 3)
    assert native["differ"] == 3 and "bias" not in native, native
    assert " -  " in next(line for line in said(path, "--orders", "linear")[0].splitlines() if line.startswith("native linear"))
    row = run(path, "--csv", "--orders", "linear").stdout.splitlines()
    assert "nan" not in "".join(row) and "inf" not in "".join(row), row


def check_noise():
    """The program's noise between the ranks, beside a variance by fractions; also of sizes whose squares are no numbers."""
    near = [[1e8 + random.gauss(0, 1e-5) for _ in range(100)] for _ in range(4)]
    far = [[1e300 if k == 0 else 1e-300 * i for i in range(100)] for k in range(3)]
    sized = [[[random.gauss(0, 1) * 10.0 ** size for _ in range(100)] for _ in range(4)] for size in (-320, -165, 0, 160, 305)]
    for number, rows in enumerate([near, far, *sized]):
        path = array(f"noise{number}", DOUBLE, rows)
        squares = 0
        for column in zip(*rows):
            terms = [fractions.Fraction(term) for term in column]
            mean = sum(terms) / len(terms)
            squares += len(terms) * sum((term - mean) ** 2 for term in terms) / (len(terms) - 1)
        scale = fractions.Fraction(2) ** 2200
        wanted = fractions.Fraction(math.isqrt(int(squares * scale ** 2)), 1) / scale
        found = fractions.Fraction(lines_of(path)[0]["noise"])
        assert abs(found / wanted - 1) < 1e-9 or abs(found - wanted) < fractions.Fraction(5e-324) * 2, (path, found, wanted)
        if number > 2:  # one of the sizes whose sums have errors
            assert said(path)[1].endswith(" % of the noise between the ranks."), said(path)
            method = next(line for line in lines_of(path) if line["kind"] == "method" and line["differ"] and line["ranks"] == 4)
            assert 0 < method["relative_error"] < 1e-14 and 0 < method["error_over_noise"] < 1e-13, method
    path = array("same", FLOAT, [[0.1 * (i + 1) for i in range(50)]] * 7)
    assert lines_of(path)[0]["noise"] == 0
    assert said(path)[1].endswith("the ranks are alike, so there is no noise to hold it against."), said(path)
    assert "error_over_noise" not in next(line for line in lines_of(path) if line["kind"] == "method" and line["differ"])


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
    """An order by place, in a message that is computed in several blocks (of 16384 elements)."""
    n, count = 5, 60011
    rows = [[FLOAT.round(random.gauss(0, 1)) for _ in range(count)] for _ in range(n)]
    found, = (line["digest"] for line in lines_of(array("large", FLOAT, rows), "--orders", "ring", "--accumulations", "native",
              "--threads", 3) if line["kind"] == "method" and line["ranks"] == n)
    raw = FLOAT.pack([add_in(order_at("ring", n, count, 4, i, 0), terms, FLOAT) for i, terms in enumerate(zip(*rows))])
    assert int(found, 16) == digest(*sums(raw), len(raw)), found


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
    """Those of the readers of arrays are tested with collprobe_verify."""
    place = folder / "bad"
    one = FLOAT.pack([1, 2, 3, 4])
    good = npy(place / "good.npy", "<f4", (2, 2), one)

    def refused(*arguments, says):
        done = run(*arguments, code=2)
        message = done.stderr
        assert done.stdout == "" and message.startswith("summation_order: ") and message.count("\n") == 1, (arguments, done)
        for each in says:
            assert each in message, (arguments, each, message)

    empty = folder / "no_arrays"
    empty.mkdir()
    refused(empty, says=["no_arrays'", "no .npy file"])
    npy(empty / "only.npy", "<f4", (4,), one)
    refused(empty, says=["no_arrays'", "one rank"])
    for name, descr, shape, raw, says in (
            ("integers", "<i4", (2, 2), one, ["int32", "half, bfloat16, float or double"]),
            ("words", "<u2", (2, 4), one, ["uint16", "--type bfloat16"]), ("big", ">f4", (2, 2), one, [">f4"]),
            ("nothing", "<f4", (2, 0), b"", ["no element"]), ("one", "<f4", (1, 4), one, ["one rank"]),
            ("row", "<f4", (4,), one, ["one rank", "(ranks, ...)"]),
            ("nan", "<f4", (2, 2), FLOAT.pack([math.nan] * 4), ["NaN", "finite terms"])):
        refused(npy(place / f"{name}.npy", descr, shape, raw), says=[f"{name}.npy", *says])
    refused(npy(place / "fortran.npy", "<f4", (2, 2), one, fortran=True), says=["fortran.npy'", "Fortran's order", "C order"])
    refused(good, npy(place / "other.npy", "<f4", (4,), one), says=["other.npy'", "shape (4,)", "shape (2, 2)", "good.npy'"])
    refused(good, npy(place / "half.npy", "<f2", (2, 2), one[:8]), says=["half.npy'", "type half", "type float"])
    refused(place / "no\x1b[31m\x07\nne.npy", says=["no?[31m??ne.npy'", "No such file"])
    coloured = npy(place / "\x1b[31mred\x07.npy", "<f4", (2, 2), FLOAT.pack([1, math.nan, 3, 4]))
    done = run(coloured)
    assert "from " + str(place) + "/?[31mred?.npy" in done.stdout and "\x1b" not in done.stdout + done.stderr, done
    some = npy(place / "some.npy", "<f4", (2, 3), FLOAT.pack([0, math.nan, 1, 2, 3, 4]))
    text_of_some = run(some).stdout
    assert "1 element has NaN or infinity, the first in '" in text_of_some, text_of_some
    assert "some.npy[0]' at element 1: left out" in text_of_some, text_of_some
    rounded = run(array("rounded", FLOAT, [[1e6, 1], [1, 2]]), "--as", "half").stdout
    assert "1 element, rounded to half, has NaN or infinity, the first in '" in rounded, rounded
    assert " 1 element of float, from " in run(array("single", FLOAT, [[1], [2]])).stdout
    for wrong in (["--random", "flat"], ["--ranks", "3"], [coloured, "--random", "normal"], [good, "--orders", "ring:2"],
                  [good, "--ranks", "3"], [good, "--json", "--csv"], [good, "--as", "int8\x1b"],
                  [good, "--as", "double", "--accumulations", "float32"]):
        message = run(*wrong, code=2).stderr
        assert "Try --help" in message and "\x1b" not in message, (wrong, message)
    # Options without an effect on this input.
    for wrong, says in (([good, "--elements", 5], "--elements: belongs to --random"),
                        ([good, "--tensor", "a"], "--tensor: belongs to .safetensors files"),
                        (["--random", "wide", "--tensor", "a"], "--tensor: belongs to files"),
                        ([good, "--type", "bfloat16"], "--type: no .npy file has what NumPy calls uint16"),
                        (["--random", "wide", "--type", "bfloat16"], "--type: belongs to files")):
        assert run(*wrong, code=2).stderr == f"summation_order: {says}\nTry --help.\n", wrong


def check_safetensors():
    rows = [[HALF.round(float(random.getrandbits(12))) for _ in range(50)] for _ in range(3)]
    raw = b"".join(map(HALF.pack, rows))
    as_npy = npy(folder / "three.npy", "<f2", (3, 50), raw)
    one = safetensors(folder / "one.safetensors", {"a": ("F16", [3, 50], raw)})
    # The odd byte before it leaves the second tensor's elements unaligned.
    two = safetensors(folder / "two.safetensors", {"odd": ("U8", [1], b"x"), "a": ("F16", [3, 50], raw)})

    def methods(*arguments):
        return [(line["order"], line["accumulation"], line["digest"], line["differ"]) for line in lines_of(*arguments)
                if line["kind"] == "method"]

    wanted = methods(as_npy)
    assert methods(one) == wanted and methods(two, "--tensor", "a") == wanted
    for arguments, says in (([two], "--tensor NAME was expected"), ([two, "--tensor", "b"], 'no tensor "b"')):
        assert says in run(*arguments, code=2).stderr


sizes = [2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 20, 24, 27, 31, 32, 33, 8]
for case, n in enumerate(sizes):
    source = FORMATS[(case + case // 4) % 4]
    of = FORMATS[(case // 2) % 4] if case % 5 == 4 else source
    ranks = sorted(random.sample(range(2, n + 1), min(3, n - 1))) if case % 4 == 3 else None
    check_case(case, of, source, n, random.choice((1, 7, 16, 33, 50, 64)), ranks, of is not source)
orders = ORDERS.split(",")
assert all((a, b) in told_apart for a in orders for b in orders if a != b), sorted(told_apart)
check_conclusions()
check_noise()
check_permutations()
check_blocks()
check_file_order()
check_refusals()
if "safetensors" in sys.argv:
    check_safetensors()
print("summation_order: as the oracle in all cases")
