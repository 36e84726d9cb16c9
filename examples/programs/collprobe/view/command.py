# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `collprobe`."""
from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from typing import Dict, Iterable, Iterator, List, Optional

from . import compare, comparison_page, inspector, trace, watch
from .lines import BadInput, Entry, Source, Stream, merged, sources_of
from .page import page
from .run import KINDS, Run, Runs
from .words import printable


def path_with(path: str, name: str) -> str:
    """A path with a name before its ending: "page.strict.html"."""
    root, ending = os.path.splitext(path)
    return f"{root}.{''.join(each if each.isascii() and each.isalnum() else '_' for each in name[:100])}{ending}"


def write_whole(path: str, text: str) -> None:
    """Replaces a file, which is never there in part; "-": the standard output."""
    data = text.encode("utf-8", "replace")
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe
        with open(path, "wb") as file:
            file.write(data)
        return
    folder, name = os.path.split(os.path.realpath(path))
    handle, temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        os.unlink(temporary)
        raise


def refuse_inputs(outputs: List[Optional[str]], inputs: List[str]) -> None:
    """No file that is read may be written."""
    for out in outputs:
        for each in inputs:
            if out and out != "-" and os.path.exists(out) and os.path.exists(each) and os.path.samefile(out, each):
                raise BadInput(f"'{printable(out)}' is an input")


def default_output(path: str, ending: str) -> str:
    """Beside the first input."""
    if path == "-":
        return "-"
    return (os.path.splitext(path)[0] if os.path.isfile(path) else path.rstrip("/")) + ending


def name_of(stream: Stream, all_: List[Stream]) -> str:
    """What tells a run or communicator from the others."""
    parts = [stream.run] if len({each.run for each in all_}) > 1 else []
    alike = [each for each in all_ if each.run == stream.run]
    if len(alike) > 1:
        parts.append(stream.communicator)
        if len([each for each in alike if each.communicator == stream.communicator]) > 1:
            parts.append(stream.identity or str(alike.index(stream)))
    return ".".join(parts)


def write_pages(runs: Runs, out: str, bad: int) -> List[str]:
    """A page for each run and communicator; more than one have their names in their files'."""
    streams = list(runs.all)
    written: Dict[str, None] = {}
    for stream, run in runs.all.items():
        name = name_of(stream, streams)
        if name and out == "-":
            raise BadInput("there are several runs or communicators: choose one with --run and --comm, or give -o")
        path = path_with(out, name) if name else out
        while path in written:
            path = path_with(path, "more")
        write_whole(path, page(run, bad))
        written[path] = None
    return list(written)


def run_page(options: argparse.Namespace) -> int:
    sources = sources_of(options.files)
    out = options.out or default_output(options.files[0], ".html")
    refuse_inputs([out], [source.path for source in sources])
    runs = Runs(Run, options.run, options.comm)

    def read(growing: bool) -> bool:
        before = [source.number for source in sources]
        for entry in merged(sources, growing=growing):
            runs.add(entry)
        return before != [source.number for source in sources]

    def bad() -> int:
        return runs.bad + sum(source.bad + source.is_cut for source in sources)

    if not options.follow:
        read(False)
        check_choice(runs, options)
        for path in write_pages(runs, out, bad()):
            if path != "-":
                print(path)
        return 0
    end_by_signals()
    is_first = True
    while True:
        changed = read(True)
        if runs.all and (changed or is_first):
            write_pages(runs, out, bad())
            is_first = False
        if runs.all and all(run.end is not None for run in runs.all.values()):
            return 0
        try:
            time.sleep(options.follow)
        except KeyboardInterrupt:
            read(True)
            if runs.all:
                write_pages(runs, out, bad())
            return 130


def check_choice(runs: Runs, options: argparse.Namespace) -> None:
    """Whether what was asked for is there."""
    if runs.all:
        return
    known = ", ".join(f"'{printable(name)}'" for name in runs.names)
    if options.run is not None and options.run not in runs.names:
        raise BadInput(f"there is no run '{printable(options.run)}'" + (f", only {known}" if known else ""))
    if options.comm is not None and known:
        raise BadInput(f"there is no communicator '{printable(options.comm)}'")
    raise BadInput("there is no line of a run in " + ", ".join(f"'{printable(each)}'" for each in options.files))


def end_by_signals() -> None:
    """SIGTERM ends a program as Ctrl-C does, and that also where a shell has put the program into the background."""
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for each in signal.SIGINT, signal.SIGTERM:
        signal.signal(each, stop)


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError("must be above 0, and at most a million")
    return value


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="collprobe", description="Looks at runs by their JSON lines (report::json_lines): afterwards, or while they "
        "are written.")
    parser.add_argument("--version", action="version", version="collprobe " + version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, help_: str, exit_status: str = "") -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_[0].upper() + help_[1:] + ".", epilog=exit_status)
        return sub

    def takes_files(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("files", metavar="FILE", nargs="+", help="of one rank or of several, or folders of *.jsonl; "
                         "-: the standard input")
        sub.add_argument("--run", metavar="NAME", help="only this run")
        sub.add_argument("--comm", metavar="NAME", help="only this communicator")

    sub = command("page", "writes a report to open in a browser", "Exit status: 0 written; 2 bad input.")
    takes_files(sub)
    sub.add_argument("-o", "--out", metavar="PATH", help="the page (FILE.html); of several runs each has its name in it")
    sub.add_argument("--follow", metavar="SECONDS", type=seconds, help="writes the page so often while the files grow, "
                     "until every run has ended")
    sub.set_defaults(do=run_page)

    sub = command("compare", "compares two runs, bit for bit", "Exit status: 0 identical; 1 something differs; 2 the "
                  "input cannot be read, lacks lines, or holds nothing to compare.")
    sub.add_argument("a", metavar="A", help="the first run: a file, or a folder of *.jsonl, of one rank or of several")
    sub.add_argument("b", metavar="B", help="the second run")
    sub.add_argument("--run-a", metavar="NAME", help="its name, where the files of A have several runs")
    sub.add_argument("--run-b", metavar="NAME", help="its name, where the files of B have several runs")
    sub.add_argument("--jsonl", metavar="PATH", help="writes the comparison there, a JSON line for each communicator")
    sub.add_argument("--html", metavar="PATH", help="writes the comparison there, a page to open in a browser")
    sub.set_defaults(do=run_compare)

    sub = command("trace", "writes a Chrome trace, for ui.perfetto.dev and chrome://tracing",
                  "Exit status: 0 written; 2 bad input.")
    takes_files(sub)
    sub.add_argument("-o", "--out", metavar="PATH", help="the trace (FILE.trace.json)")
    sub.add_argument("--steps", metavar="FIRST:LAST", help="only these steps")
    sub.set_defaults(do=run_trace)

    sub = command("inspector", "writes the lines in the dialect of NCCL Inspector", "Exit status: 0 written; 2 bad input.")
    takes_files(sub)
    sub.add_argument("-o", "--out", metavar="PATH", default="-", help="the lines (the standard output)")
    sub.set_defaults(do=run_inspector)

    sub = command("watch", "shows runs while they are written: the newest step, and alarms. Where the output is no "
                  "terminal, it is a line for each update, and the table at the end",
                  "Exit status: 0 every run has ended; 1 timeout; 2 bad input, or --once and nothing there; 130 Ctrl-C.")
    sub.add_argument("files", metavar="FILE", nargs="+", help="files of one run or of several, of one rank or of several; "
                     "waits for them")
    sub.add_argument("--once", action="store_true", help="shows what is there, and ends")
    sub.add_argument("--timeout", metavar="SECONDS", type=seconds, help="ends, with status 1, if nothing is written for "
                     "so long")
    sub.set_defaults(do=run_watch)

    sub = command("members", "says what the members of the lines mean, by record: a \"?\" behind a name: not in every "
                  "line; then the unit, if it has one", "Exit status: 0 written; 2 there is no such name.")
    sub.add_argument("name", metavar="NAME", nargs="?", help="only this record, as call_audit, or member")
    sub.set_defaults(do=run_members)
    return parser


def run_compare(options: argparse.Namespace) -> int:
    inputs = [source.path for source in sources_of([options.a]) + sources_of([options.b])]
    refuse_inputs([options.jsonl, options.html], inputs)
    result = compare.compare_files(options.a, options.b, options.run_a, options.run_b)
    if options.jsonl:
        write_whole(options.jsonl, result.lines)
    if options.html:
        write_whole(options.html, comparison_page.comparison_page(result.comparisons))
    sys.stdout.write(result.text)
    return result.status


def run_trace(options: argparse.Namespace) -> int:
    sources = sources_of(options.files)
    out = options.out or default_output(options.files[0], ".trace.json")
    refuse_inputs([out], [source.path for source in sources])
    write_lines(out, trace.trace_lines(selected(sources, options), trace.steps_of(options.steps)))
    return 0


def run_inspector(options: argparse.Namespace) -> int:
    sources = sources_of(options.files)
    refuse_inputs([options.out], [source.path for source in sources])
    write_lines(options.out, inspector.inspector_lines(selected(sources, options)))
    return 0


def selected(sources: List[Source], options: argparse.Namespace) -> Iterator[Entry]:
    """The entries of the runs that were asked for."""
    any_ = False
    for entry in merged(sources):
        is_wanted = options.run in (None, entry.stream.run) and options.comm in (None, entry.stream.communicator)
        if is_wanted and entry.kind in KINDS:
            any_ = True
            yield entry
    bad = sum(source.bad + source.is_cut for source in sources)
    if bad:
        print(f"collprobe: {bad} line{'s' if bad > 1 else ''} could not be read", file=sys.stderr)
    if not any_:
        raise BadInput("there is no line of " + ("the run" if options.run or options.comm else "a run") + " in "
                       + ", ".join(f"'{printable(each)}'" for each in options.files))


def write_lines(out: str, texts: Iterable[str]) -> None:
    if out == "-":
        for text in texts:
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
        return
    with open(out, "wb") as file:
        for text in texts:
            file.write(text.encode("utf-8", "replace"))
    print(out)


def run_members(options: argparse.Namespace) -> int:
    with open(os.path.join(os.path.dirname(__file__), "members.txt"), encoding="utf-8") as file:
        records = [record.split("\n") for record in file.read().strip().split("\n\n")]

    def is_wanted(row: str) -> bool:
        names = [each.rstrip("?") for each in row.strip().split("  ")[0].split(", ")]
        return options.name in names or options.name == names[0].split(".")[-1]

    if options.name:
        records = [rows if is_wanted(rows[0]) else [rows[0], *filter(is_wanted, rows[1:])] for rows in records]
    shown = ["\n".join(rows) + "\n" for rows in records if len(rows) > 1]
    if not shown:
        raise BadInput(f"there is no record and no member '{printable(options.name)}'")
    print("\n".join(shown), end="")
    return 0


def run_watch(options: argparse.Namespace) -> int:
    end_by_signals()
    return watch.watch([Source(path) for path in options.files], options.once, options.timeout)


def version() -> str:
    """Of the wheel; an installation by CMake and a source tree have no number of their own."""
    from importlib import metadata

    try:
        return metadata.version("collprobe")
    except metadata.PackageNotFoundError:
        return "(not from a wheel)"


def main(words: Optional[List[str]] = None) -> int:
    for stream in sys.stdout, sys.stderr:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    options = arguments().parse_args(words)
    try:
        result: int = options.do(options)
        sys.stdout.flush()
        return result
    except BadInput as problem:
        message, status = str(problem), 2
    except BrokenPipeError:  # nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as problem:
        message = f"'{printable(problem.filename)}': {problem.strerror}" if problem.filename else str(problem)
        status = 2
    except KeyboardInterrupt:
        return 130
    print(f"collprobe {options.command}: {message}", file=sys.stderr)
    return status
