#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Runs programs of models/ with and without the first stage: loader.py TEST MODELS PRELOAD PROXY. The models of NCCL
and of the engine write what they see to one file, the trace."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from elf_reader import Elf

models, preload, proxy = (os.path.abspath(each) for each in sys.argv[2:5])


def model(name):
    return os.path.join(models, name)


class Run:
    """A finished program: status, what it wrote, and the trace as lines of NCCL's model and of the engine's."""

    def __init__(self, *command, **variables):
        with tempfile.NamedTemporaryFile("r") as trace:
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith(("COLLPROBE_", "MODEL_", "LD_"))}
            environment.update(COLLPROBE_ENGINE=model("libmodel_engine.so"), MODEL_TRACE=trace.name)
            environment.update(variables)
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=50)
            self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
            self.trace = trace.read().splitlines()
        self.nccl = [line for line in self.trace if line.startswith("nccl ")]
        self.hooks = [line[5:] for line in self.trace if line.startswith("hook ")]

    def same_for_the_program(self, other):
        assert self.status == other.status, (self.status, other.status, self.err)
        assert self.out == other.out, (self.out, other.out)
        assert self.nccl == other.nccl, (self.nccl, other.nccl)

    def lines_on_stderr(self, number):
        lines = self.err.splitlines()
        assert len(lines) == number and all(line.startswith("collprobe: ") for line in lines), self.err
        return lines


def plain_and_preloaded(*command, library=None, **variables):
    """The program sees no difference; gives the run with the first stage."""
    plain = Run(*command, **variables)
    assert not plain.hooks
    seen = Run(*command, LD_PRELOAD=library or preload, **variables)
    seen.same_for_the_program(plain)
    assert seen.err == plain.err, seen.err
    return seen


def expect(found, wanted):
    assert found == wanted, "\nfound:\n%s\nwanted:\n%s" % ("\n".join(found), "\n".join(wanted))


def calls(run):
    """The calls that the engine was told of: the kind, the type, the count."""
    lines = [line.split() for line in run.hooks if line.startswith("before ")]
    return [(int(line[1]), int(line[13]), int(line[11])) for line in lines]


def a1_every_call():
    """Each wrapper passes on all arguments, the result and errno, and tells the engine what the call is."""
    run = plain_and_preloaded(model("model_linked"), "functions")
    stream, comm = "0x77", "21903001"
    before = "before %d comm " + comm + " stream " + stream + \
        " send %s receive %s count %d type %d operation %d root %d depth 0 tag %d %d"
    tag = 123456789012
    wanted = [
        (0, "0x1", "0x2", 3, 4, 5, 0, 0), (0, "0xb", "0xc", 13, 14, 15, 0, tag),
        (1, "0x15", "0x16", 23, 24, 25, 0, 0), (1, "0x1f", "0x20", 33, 34, 35, 0, 0),
        (2, "0x29", "0x2a", 43, 44, 0, 0, 0), (2, "0x33", "0x34", 53, 54, 0, 0, tag),
        (3, "0x3d", "0x3e", 63, 64, 0, 65, 0), (3, "0x47", "0x48", 73, 74, 0, 75, 0),
        (3, "0x51", "0x51", 82, 83, 0, 84, 0), (4, "0x5b", "0x5c", 93, 94, 95, 96, 0),
        (4, "0x65", "0x66", 103, 104, 105, 106, tag), (5, "0x6f", "0x70", 113, 114, 0, 0, 0),
        (5, "0x79", "0x7a", 123, 124, 0, 0, tag), (6, "0x83", "0x84", 133, 134, 0, 135, 0),
        (6, "0x8d", "0x8e", 143, 144, 0, 145, tag), (7, "0x97", "0x98", 153, 154, 0, 155, 0),
        (7, "0xa1", "0xa2", 163, 164, 0, 165, tag), (8, "0xab", "(nil)", 172, 173, 0, 174, 0),
        (9, "(nil)", "0xb5", 182, 183, 0, 184, 0), (10, "0xbf", "(nil)", 192, 193, 0, 194, 0),
        (11, "(nil)", "(nil)", 0, 0, 0, 201, 0), (12, "(nil)", "(nil)", 2, 0, 0, 0, 0)]
    lines = [line for line in run.hooks if line.startswith("before") and "comm " + comm in line]
    expect(lines, [before % (each + (each[-1] != 0,)) for each in wanted])
    results = [line.split()[2] for line in run.hooks if line.startswith("after ")]
    assert results == ["0"] * 22 + ["4"], results
    expect([line for line in run.hooks if not line.startswith(("before", "after", "comm_made"))], [
        "operation_made 21903001 6 0.25 8", "operation_made 21903001 6 0 8", "operation_ended 21903001 6",
        "window_made 21903001 232", "comm_polled 21903001 0 0", "comm_ends 21903001 1"])
    # Between before and after of a call is NCCL, with the same.
    start = run.trace.index("hook " + before % (wanted[0] + (0,)))
    expect(run.trace[start + 1:start + 3],
           ["nccl AllReduce 0x1 0x2 3 4 5 -1 21903001 0x77 - errno 33", "hook after 0 0"])

    run = plain_and_preloaded(model("model_linked"), "communicators")
    made = [line[10:] for line in run.hooks if line.startswith("comm_made ")]
    one = Run(model("model_linked"), "one call", LD_PRELOAD=preload).hooks[0].split()[6]
    text = "%d of 21903 id %d %s parent %d origin %d ranks %d rank %d device %d blocking %d color %d key %d " \
        "excluded %d %d name %s result 0 depth 0"
    ids = [line.split()[5] for line in made]
    assert ids[0] == ids[1] == ids[2] == one != ids[3] != "0"
    comm, none = 21903001, (0, 0, 0, -1, "-")
    wanted = [
        (comm, 128, one, 0, 0, 8, 3, -1, -1) + none, (comm + 1, 128, one, 0, 0, 4, 2, -1, 0, 0, 0, 0, -1, "a name"),
        (comm + 2, 128, one, 0, 0, 4, 2, -1, -1) + none,
        (comm + 3, 256, ids[3], 0, 0, 16, 15, -1, 0, 0, 0, 0, -1, "a name"),
        (comm + 4, 128, "0", 0, 0, 3, 0, 2, -1) + none, (comm + 5, 128, "0", 0, 0, 3, 1, 1, -1) + none,
        (comm + 6, 128, "0", 0, 0, 3, 2, 0, -1) + none, (comm + 7, 128, "0", 0, 0, 2, 0, 0, -1) + none,
        (comm + 8, 128, "0", 0, 0, 2, 1, 1, -1) + none,
        (comm + 9, 0, "0", comm, 1, -1, -1, -1, -1, 4, 5, 0, -1, "-"),
        (comm + 10, 0, "0", comm, 1, -1, -1, -1, 0, 4, 5, 0, -1, "a name"),
        (0, 0, "0", comm, 1, -1, -1, -1, -1, -1, 5, 0, -1, "-"),
        (comm + 11, 0, "0", comm, 2, -1, -1, -1, -1, 0, 0, 2, 6, "-"),
        (comm + 12, 0, "0", comm, 2, -1, -1, -1, 0, 0, 0, 2, 6, "a name"),
        (comm + 13, 0, "0", comm, 3, 10, -1, -1, -1) + none, (comm + 14, 128, one, 0, 3, 10, 9, -1, -1) + none,
        (comm + 15, 128, one, 0, 0, 4, 2, -1, 0) + none]
    expect(made, [text % each for each in wanted])
    ends = [line for line in run.hooks if line.startswith("comm_ends")]
    expect(ends, ["comm_ends %d %d" % each for each in (
        (comm + 1, 0), (comm + 1, 1), (comm + 2, 2), (comm + 3, 3), (comm, 3), (comm + 14, 4))])


def a2_dependencies():
    """The first stage needs libc alone, of glibc 2.17 or older, and is small."""
    for path in (preload, proxy):
        elf = Elf(path)
        assert elf.needed == ["libc.so.6"], elf.needed
        versions = elf.versions()
        assert list(versions) == ["libc.so.6"], versions
        newest = max(tuple(map(int, each[6:].split("."))) for each in versions["libc.so.6"])
        assert newest <= (2, 17), versions
        assert os.path.getsize(path) < 100000, os.path.getsize(path)
        assert dict(elf.dynamic).get(24) is None, "symbols are bound when it is loaded"
        assert dict(elf.dynamic).get(27, 8) == 8, "it has constructors"
    assert Elf(proxy).soname == "libnccl.so.2"
    assert Elf(preload).soname == "libcollprobe_preload.so"


def a2_other_programs():
    """Programs without NCCL do not notice the first stage."""
    programs = [["true"], ["sh", "-c", "echo $0; exit 7"], [sys.executable, "-c", "import ctypes; print(5); exit(3)"]]
    if os.path.exists(model("model_static")):
        programs.append([model("model_static")])
    for program in programs:
        for library in (preload, proxy):
            for variables in ({}, {"LD_BIND_NOW": "1"}):
                run = plain_and_preloaded(*program, library=library, **variables)
                assert not run.trace and not run.err, (run.trace, run.err)


def a2_broken_engine():
    """Whatever is wrong with the engine: the same output and status, and one line on stderr."""
    plain = Run(model("model_linked"), "functions")
    assert plain.status == 5 and len(plain.nccl) > 25
    engine = model("libmodel_engine.so")
    with tempfile.TemporaryDirectory() as folder:
        def there(name, content):
            path = os.path.join(folder, name)
            with open(path, "wb") as file:
                file.write(content)
            return path
        with open(engine, "rb") as file:
            content = file.read()
        # Up to the last byte of what is loaded: cut anywhere before, the loader does not see it.
        end = max(start + length for _, start, length in Elf(engine).loads)
        broken = [(os.path.join(folder, "absent.so"), "absent.so"), (there("empty.so", b""), "not complete"),
                  (there("text.so", b"no library\n" * 100), "invalid ELF header"),
                  (there("cut.so", content[:end - 1]), "not complete"),
                  (there("half.so", content[:end // 2]), "not complete"),
                  (there("head.so", content[:70]), "not complete"), (model("libmodel_library.so"), "is no engine")]
        for path, reason in broken:
            run = Run(model("model_linked"), "functions", LD_PRELOAD=preload, COLLPROBE_ENGINE=path)
            run.same_for_the_program(plain)
            assert reason in run.lines_on_stderr(1)[0], run.err
            assert not run.hooks
        for state, reason in (("has another abi", "another version"), ("has no device", "no device")):
            run = Run(model("model_linked"), "functions", LD_PRELOAD=preload, MODEL_ENGINE=state)
            run.same_for_the_program(plain)
            assert reason in run.lines_on_stderr(1)[0], run.err
            assert not run.hooks
        # Without the variable it is beside the first stage.
        own = shutil.copy(preload, folder)
        run = Run(model("model_linked"), "functions", LD_PRELOAD=own, COLLPROBE_ENGINE="")
        run.same_for_the_program(plain)
        assert folder + "/libcollprobe_engine.so" in run.lines_on_stderr(1)[0], run.err
        shutil.copy(engine, os.path.join(folder, "libcollprobe_engine.so"))
        run = Run(model("model_linked"), "functions", LD_PRELOAD=own, COLLPROBE_ENGINE="")
        run.same_for_the_program(plain)
        assert not run.err and len(calls(run)) == 23


def a2_not_wanted():
    """COLLPROBE_ENABLE=0: the engine is not opened. Nor is it before a communicator is made."""
    run = plain_and_preloaded(model("model_linked"), "functions", COLLPROBE_ENABLE="0")
    assert "engine opened" not in run.trace
    run = Run(model("model_linked"), "functions", LD_PRELOAD=preload)
    assert run.trace.index("engine opened") > run.trace.index("nccl MemAlloc 64"), run.trace


def a3_rtld_local():
    """A library that is opened as Python opens its extensions: there RTLD_NEXT finds no NCCL."""
    run = plain_and_preloaded(model("model_host"), "one call", model("libmodel_library.so"))
    assert run.status == 5 and calls(run) == [(0, 4, 3)], (run.status, run.trace)
    python = "import ctypes, sys; sys.exit(ctypes.CDLL(%r).model_run(b'functions'))" % model("libmodel_library.so")
    run = plain_and_preloaded(sys.executable, "-c", python)
    assert run.status == 5 and len(calls(run)) == 23, (run.status, run.err)


def a3_two_nccls():
    """Each object keeps the NCCL that it would have without the first stage, whatever is loaded besides."""
    local, own = model("libmodel_library.so"), model("libmodel_own_nccl.so")
    shared = model("nccl_later/libnccl.so.2")
    for order in ([local, own], [own, local], [own, "+" + local], ["+" + local, own], ["+" + own, local],
                  [local, "+!" + shared, local], [own, "+!" + model("nccl/libnccl.so.2"), own],
                  ["!" + own, "+" + local, own], ["!" + local, "+" + own, local]):
        for scenario in ("functions", "groups", "forwards"):
            run = plain_and_preloaded(model("model_host"), scenario, *order)
            assert ": 4 " not in run.out.replace("P(1), stream): 4", ""), run.out
            if scenario == "functions":
                assert len(calls(run)) == 46, len(calls(run))
    # Two wheels in one process.
    run = plain_and_preloaded(model("model_host"), "one call", local, own)
    made = [line.split()[3] for line in run.hooks if line.startswith("comm_made")]
    assert made == ["21903", "23203"], made
    run = plain_and_preloaded(model("model_host"), "one call", "!" + own, "+" + local, own)
    made = [line.split()[3] for line in run.hooks if line.startswith("comm_made")]
    assert made == ["21903", "23203"], made
    # A global one comes first for those that are loaded later, as the loader has it.
    run = plain_and_preloaded(model("model_host"), "one call", "+" + local, own)
    made = [line.split()[3] for line in run.hooks if line.startswith("comm_made")]
    assert made == ["21903", "21903"], made


def a3_no_nccl():
    """A wrapper without an NCCL behind it returns an error and says so once, or takes the one that it is told of."""
    python = "import ctypes, sys; own = ctypes.CDLL(None); " \
        "sys.exit(10 * own.ncclGroupStart() + own.ncclGroupEnd())"
    run = Run(sys.executable, "-c", python, LD_PRELOAD=preload)
    assert run.status == 22, run.status
    assert "ncclGroupStart: no NCCL was found" in run.lines_on_stderr(1)[0]
    for library in (preload, proxy):
        run = Run(sys.executable, "-c", python, LD_PRELOAD=library, COLLPROBE_NCCL_PATH=model("nccl/libnccl.so.2"))
        assert run.status == 0 and not run.err, (run.status, run.err)
        expect(run.nccl, ["nccl GroupStart", "nccl GroupEnd"])
    # A function that the loaded one lacks.
    python = "import ctypes, sys; own = ctypes.CDLL(None); own.ncclAllReduce(*[None] * 7); sys.exit(own.ncclBcast(*[None] * 6))"
    run = Run(sys.executable, "-c", python, LD_PRELOAD=preload, COLLPROBE_NCCL_PATH=model("libmodel_next.so"))
    assert run.status == 5, run.status


def a3_other_interposer():
    """Another interposer after the first stage is called if that is wanted, and one before it anyway."""
    shim = model("libmodel_next.so")
    linked = model("model_linked"), "one call"
    loaded = model("model_host"), "one call", model("libmodel_library.so")  # where the shim's RTLD_NEXT finds nothing
    for command, order, chain, is_called in ((linked, (preload, shim), "0", False), (loaded, (preload, shim), "0", False),
                                             (linked, (preload, shim), "1", True), (linked, (shim, preload), "0", True)):
        run = Run(*command, LD_PRELOAD=":".join(order), COLLPROBE_CHAIN=chain)
        assert ("other interposer" in run.trace) == is_called and calls(run) == [(0, 4, 3)], run.trace
    assert run.trace.index("other interposer") < run.trace.index("hook after 0 0")


def a4_reentry():
    """What NCCL calls through its PLT, and what the engine calls, is not the program's."""
    run = plain_and_preloaded(model("model_linked"), "functions")
    assert sum(each[0] == 3 for each in calls(run)) == 3, calls(run) # one by ncclBcast
    assert "nccl Bcast" in run.trace
    assert any("nccl Broadcast 0x51 0x51 82 83 -1 84 21903001 0x77 -" in line for line in run.nccl), run.nccl
    assert run.nccl[-1] == "nccl CommGetAsyncError 21903001" # of ncclCommDestroy
    assert sum(line.startswith("comm_polled") for line in run.hooks) == 1, run.hooks
    quiet = run.hooks
    run = Run(model("model_linked"), "functions", LD_PRELOAD=preload, MODEL_ENGINE="calls nccl")
    expect(run.hooks, quiet)
    assert sum("nccl AllGather (nil)" in line for line in run.nccl) == 2 * 23
    # With the proxy also what NCCL calls of the functions that are not wrapped.
    other = Run(model("model_linked"), "functions", LD_PRELOAD=proxy, MODEL_ENGINE="calls nccl")
    expect(other.hooks, quiet)


def a5_group_depth():
    run = plain_and_preloaded(model("model_linked"), "groups")
    depth = [re.search(r"depth (\d)", line).group(1) for line in run.hooks if line.startswith("before")]
    assert depth == ["1", "2", "1", "0"], depth
    expect([line for line in run.hooks if line.startswith("group_ended")],
           ["group_ended 0 0", "group_ended 0 0", "group_ended 0 1", "group_ended 0 0"])
    outer = run.trace.index("hook group_ended 0 0")
    assert run.trace[outer - 1] == "nccl GroupEnd" and run.trace[outer - 2] == "nccl GroupEnd"
    made = [line.split() for line in run.hooks if line.startswith("comm_made")]
    assert [(line[1], line[-1]) for line in made] == \
        [("21903001", "0"), ("21903002", "1"), ("21903003", "1"), ("21903004", "1")], made
    # Handles that come with the end of the group are looked for there, with what the calls had said.
    late = plain_and_preloaded(model("model_linked"), "groups", MODEL_NCCL="late handles")
    assert [line[:-8] for line in late.hooks if line.startswith("comm_made")] == \
        [line[:-8] for line in run.hooks if line.startswith("comm_made")], late.hooks
    assert late.hooks.index("group_ended 0 1") < late.hooks.index(
        next(line for line in late.hooks if "21903002" in line))
    failed = plain_and_preloaded(model("model_linked"), "groups", MODEL_NCCL="late handles, group fails")
    assert "group_ended 1 0" in failed.hooks and "21903002" not in "".join(
        line for line in failed.hooks if line.startswith("comm_made")), failed.hooks
    none = plain_and_preloaded(model("model_linked"), "groups", MODEL_NCCL="no group")
    assert not [line for line in none.hooks if line.startswith("group_ended")], none.hooks
    depth = [re.search(r"depth (\d)", line).group(1) for line in none.hooks if line.startswith("before")]
    assert depth == ["0"] * 4, depth


def a6_polls():
    """A communicator that is not ready is told as such; the polls have what NCCL said."""
    run = plain_and_preloaded(model("model_linked"), "polls", MODEL_NCCL="in progress")
    assert "result 7 depth 0" in run.hooks[0], run.hooks
    expect(run.hooks[1:4], ["comm_polled 21903001 0 7", "comm_polled 21903001 0 7", "comm_polled 21903001 0 0"])


def a9_fork_passes_through():
    """In a child the calls reach NCCL and no hook; the parent goes on."""
    run = plain_and_preloaded(model("model_linked"), "fork")
    assert "child 3\n" in run.out
    assert sum("nccl AllReduce" in line for line in run.nccl) == 3
    assert calls(run) == [(0, 7, 3)], run.hooks
    assert run.trace.count("engine opened") == 1


def a9_threads_open_once():
    """Communicators of several threads: the engine is opened once, and told of all of them."""
    for variables in ({}, {"MODEL_ENGINE": "is slow"}):
        run = Run(model("model_linked"), "threads", LD_PRELOAD=preload, **variables)
        assert run.status == 5, (run.status, run.err)
        assert run.trace.count("engine opened") == 1
        assert len([line for line in run.hooks if line.startswith("comm_made")]) == 8, run.hooks
        assert len(calls(run)) == 8


def a12_cost():
    """A call costs less than 50 ns more, with an engine that returns at once and without one."""
    def times(**variables):
        run = Run(model("model_cost"), MODEL_TRACE="", **variables)
        assert run.status == 0 and not run.err, (run.status, run.err)
        return [float(each) for each in re.findall(r"[\d.]+(?= ns)", run.out)]
    plain = times()
    for name, variables in (("no engine", {"COLLPROBE_ENABLE": "0"}), ("engine", {"MODEL_ENGINE": "is quick"})):
        more = [after - before for before, after in zip(plain, times(LD_PRELOAD=preload, **variables))]
        print("%-9s: an all-reduce costs %.1f ns more, the start and end of a group %.1f ns, a poll %.1f ns"
              % ((name,) + tuple(more)))
        assert max(more) < 50, more


def a14_mark_step():
    run = Run(model("model_linked"), "steps", LD_PRELOAD=preload)
    assert [line for line in run.hooks if line.startswith("mark_step")] == \
        ["mark_step 6", "mark_step %d" % (2**40 + 7), "mark_step %d" % (2**40 + 8)], run.hooks
    plain = Run(model("model_linked"), "steps")
    plain.same_for_the_program(run)
    python = "import ctypes; mark = getattr(ctypes.CDLL(None), 'collprobe_mark_step', None); " \
        "mark and mark(ctypes.c_uint64(2**63)); print(mark is not None)"
    assert Run(sys.executable, "-c", python, LD_PRELOAD=preload).out == "True\n"
    assert Run(sys.executable, "-c", python).out == "False\n"


def proxy_by_name():
    """A program that opens libnccl.so.2: the plain preload sees nothing, the proxy all, and the program the same."""
    for scenario in ("functions", "communicators", "groups", "forwards"):
        path = model("nccl_later")
        plain = Run(model("model_by_name"), scenario, LD_LIBRARY_PATH=path)
        assert plain.status == 5 and plain.nccl, plain.out
        blind = Run(model("model_by_name"), scenario, LD_LIBRARY_PATH=path, LD_PRELOAD=preload)
        blind.same_for_the_program(plain)
        assert not blind.hooks
        for variables in ({"LD_LIBRARY_PATH": path}, {"COLLPROBE_NCCL_PATH": path + "/libnccl.so.2"}):
            seen = Run(model("model_by_name"), scenario, LD_PRELOAD=proxy, **variables)
            seen.same_for_the_program(plain)
            assert not seen.err, seen.err
        if scenario == "functions":
            assert len(calls(seen)) == 23, calls(seen)
    # Linked programs and libraries, too; NCCL itself is loaded by nobody else then.
    for command in ([model("model_linked"), "functions"],
                    [model("model_host"), "functions", model("libmodel_library.so")]):
        seen = plain_and_preloaded(*command, library=proxy)
        assert len(calls(seen)) == 23


def proxy_python():
    """ctypes by name."""
    python = """if True:
        import ctypes, sys
        nccl = ctypes.CDLL("libnccl.so.2")
        comm, version = ctypes.c_void_p(), ctypes.c_int()
        class Id(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 128)]
        unique = Id()
        assert nccl.ncclGetVersion(ctypes.byref(version)) == 0
        assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
        assert nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, 1) == 0
        assert nccl.ncclAllReduce(ctypes.c_void_p(1), ctypes.c_void_p(2), ctypes.c_size_t(2**40), 7, 0, comm, None) == 0
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        print(version.value, nccl.ncclGetErrorString(0).decode())
        """
    path = model("nccl_later")
    plain = Run(sys.executable, "-c", python, LD_LIBRARY_PATH=path)
    assert plain.out == "23203 no error\n", plain.err
    seen = Run(sys.executable, "-c", python, LD_LIBRARY_PATH=path, LD_PRELOAD=proxy)
    seen.same_for_the_program(plain)
    assert calls(seen) == [(0, 7, 2**40)], seen.hooks
    # By its path the real one is opened first, as JAX does.
    by_path = python.replace("import ctypes, sys", "import ctypes, sys; ctypes.CDLL(%r)" % (path + "/libnccl.so.2"))
    seen = Run(sys.executable, "-c", by_path, LD_PRELOAD=proxy)
    seen.same_for_the_program(plain)
    assert calls(seen) == [(0, 7, 2**40)], seen.hooks


def proxy_forwards():
    """Other functions keep all their arguments and results; those that NCCL lacks return an error."""
    run = plain_and_preloaded(model("model_linked"), "many arguments", library=proxy)
    wanted = "1 2.5 3 4.5 -5 6 7 8 9.5 10 11.5 12.5 13.5 14.5 15.5 16.5 17.5"
    assert any("DevCommCreate" in line and line.endswith(wanted) for line in run.nccl), run.nccl
    run = plain_and_preloaded(model("model_linked"), "forwards", library=proxy)
    assert "made 42 42 team 1 8 1" in run.out and "no error" in run.out, run.out
    python = "import ctypes; nccl = ctypes.CDLL('libnccl.so.2'); handle = ctypes.c_void_p(); " \
        "nccl.ncclGetLastError.restype = ctypes.c_char_p; " \
        "print(nccl.ncclParamBind(ctypes.byref(handle), b'x'), nccl.pncclParamBind(ctypes.byref(handle), b'x'), " \
        "nccl.ncclCommMemStats(), nccl.ncclGetLastError(%s))"
    for version, comm, wanted in (("nccl", "None", "5 5 5 b'collprobe: NCCL has no such function'"),
                                  ("nccl_later", "23203001", "0 0 5 b'none'")):
        run = Run(sys.executable, "-c", python % comm, LD_PRELOAD=proxy,
                  COLLPROBE_NCCL_PATH=model(version + "/libnccl.so.2"))
        assert run.out == wanted + "\n" and not run.err, (run.out, run.err)


def proxy_finds_nccl():
    """In the wheel beside a loaded package, and never itself."""
    with tempfile.TemporaryDirectory() as folder:
        site = os.path.join(folder, "lib/python3/site-packages")
        os.makedirs(os.path.join(site, "torch/lib"))
        os.makedirs(os.path.join(site, "nvidia/nccl/lib"))
        host = shutil.copy(model("model_by_name"), os.path.join(site, "torch/lib/program"))
        wheel = os.path.join(site, "nvidia/nccl/lib/libnccl.so.2")
        shutil.copy(model("nccl_later/libnccl.so.2"), wheel)
        run = Run(host, "one call", LD_PRELOAD=proxy)
        assert run.status == 5 and "23203001" in "".join(run.nccl), (run.out, run.err)
        # A copy or a link of the proxy is no NCCL.
        os.remove(wheel)
        os.symlink(proxy, wheel)
        shutil.copy(model("nccl/libnccl.so.2"), os.path.join(folder, "lib"))
        run = Run(host, "one call", LD_PRELOAD=proxy, COLLPROBE_NCCL_PATH=proxy)
        assert run.status == 5 and "21903001" in "".join(run.nccl), (run.out, run.err)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
