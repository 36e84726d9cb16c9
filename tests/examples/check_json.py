# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""Reads JSON lines strictly and checks that every name of the schema is there, and nothing that is not JSON.
(What is no finite number is one of the strings "nan", "inf" and "-inf".)

check_json.py FILE RANKS STEPS [RUN ...]
"""
import json
import sys

STEP = {"schema", "kind", "run", "step", "ranks", "false_alarms_per_step", "loss", "grad_norm", "cosine", "noise_scale", "findings"}
SUMMARY = STEP - {"step", "false_alarms_per_step"} | {"steps", "suspicious_steps", "verdict", "test_accuracy"}
FROM_A_FILE = {"comm", "writer", "time_us", "records_dropped"}
RUN = {"schema", "kind", "run", "job", "comm", "comm_id", "host", "device", "writer", "global_rank", "ranks", "nodes",
       "pid", "started_us", "version", "settings"}
END = {"schema", "kind", "run", "steps", "suspicious_steps", "alarms", "verdict"} | FROM_A_FILE
CALL = {"bucket", "line", "call", "type", "collective_seq_id", "input_sizes", "output_sizes", "digest", "result_norm", "grad_norm", "cosine",
        "nonfinite", "results_agree", "inputs", "gradient", "reduction"}
INPUTS = {"count", "sum", "sum_of_squares", "absolute_maximum", "digest"}
SPREAD = {"mean", "std", "std_sample", "range", "cv"}
EXTREMES = {"min", "min_rank", "max", "max_rank", "finite"}
PARTS = {
    "loss": {"mean", "std", "std_sample", "range"},
    "grad_norm": {"mean", "std", "cv"},
    "cosine": {"mean_pairwise", "pooled", "predicted", "leave_one_out"},
}
FINDING = {"check", "ranks", "other_rank", "bucket", "exact", "statistic", "threshold", "index", "false_alarms_per_step",
           "damage", "advice", "source"}


def refuse(word):
    raise ValueError(word + " is not JSON")


def read(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        return [json.loads(line, parse_constant=refuse) for line in file]


def check_numbers(value):
    """That a string where a number belongs is one of three."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            check_numbers(each)
        return
    assert isinstance(value, (int, float)) or value in ("nan", "inf", "-inf"), value


def check_object(line, more=frozenset()):
    assert line["schema"] == 1
    assert set(line) == (STEP | more if line["kind"] == "step" else SUMMARY), sorted(line)
    for part, names in PARTS.items():
        more_of_ranks = ({"by_rank"} | EXTREMES) & set(line[part])
        if line["kind"] == "step" and part != "cosine":
            names = SPREAD
        assert set(line[part]) - {"pairwise"} == names | more_of_ranks, (part, sorted(line[part]))
        check_numbers(line[part])
    check_numbers(line["noise_scale"])
    for finding in line["findings"]:
        more = set() if line["kind"] == "step" else {"first_step", "last_step", "steps"}
        more |= {"evidence"} if finding["check"] == "unlike" else set()
        more |= {"step"} if line["kind"] == "summary" else set()
        more |= {"text"} & set(finding)
        assert set(finding) == FINDING | more, sorted(finding)


def check_trainer(path, ranks, steps, runs):
    lines = [line for line in read(path) if line["kind"] != "alarm"]
    assert len(lines) == len(runs) * (steps + 3), len(lines)
    for number, run in enumerate(runs):
        begin, *own, end, summary = lines[number * (steps + 3):(number + 1) * (steps + 3)]
        assert set(begin) == RUN and begin["kind"] == "run" and begin["run"] == run and begin["ranks"] == ranks, begin
        assert set(end) == END and end["kind"] == "end" and end["steps"] == steps and end["records_dropped"] == 0, end
        assert end["verdict"] == summary["verdict"]
        own.append(summary)
        calls = 0
        for step, line in enumerate(own):
            if step < steps:
                often = {"first_call", "lateness", "evidence", "weak_evidence", "silent_evidence", "nonfinite_by_rank",
                         "left_out"} & set(line)
                check_object(line, FROM_A_FILE | {"calls", "expectations", "result_norm"} | often)
                squares = sum(call["result_norm"] ** 2 for call in line["calls"])
                assert abs(line["result_norm"] ** 2 - squares) <= 1e-12 * squares
                (samples,) = line["expectations"]
                assert set(samples) == {"name", "line", "expected", "holds", "values", "groups"}, samples
                assert samples["name"] == "samples" and samples["expected"] == "distinct" and samples["holds"]
                assert samples["groups"] == list(range(ranks)) and len(samples["values"]) == ranks
                assert len(line["loss"]["by_rank"]) == len(line["grad_norm"]["by_rank"]) == ranks
                for call in line["calls"]:
                    assert set(call) - {"lateness", "headroom", "times", "excess"} == CALL, sorted(call)
                    assert set(call["grad_norm"]) - EXTREMES == SPREAD, sorted(call["grad_norm"])
                    assert call["collective_seq_id"] == calls and int(call["digest"], 16) < 2**64
                    assert set(call["inputs"]) - {"zero"} == INPUTS, sorted(call["inputs"])
                    assert all(len(by_rank) == ranks for by_rank in call["inputs"].values())
                    calls += 1
            else:
                check_object(line)
            assert line["run"] == run and line["ranks"] == ranks
            assert line["kind"] == ("step" if step < steps else "summary")
            assert step == steps or line["step"] == step
            assert len(line["cosine"]["leave_one_out"]) == ranks
            defined = [line["loss"]["mean"], line["loss"]["std"], line["grad_norm"]["mean"]]
            assert all(isinstance(value, float) or isinstance(value, int) for value in defined)
            if ranks == 1:  # nothing to compare a rank with
                assert line["loss"]["std_sample"] == "nan" and line["cosine"]["mean_pairwise"] == "nan"
        assert summary["steps"] == steps and 0 <= summary["test_accuracy"] <= 1
        values = sorted(line["loss"]["std"] for line in own[:-1])
        median = (values[(steps - 1) // 2] + values[steps // 2]) / 2
        assert abs(summary["loss"]["std"] - median) <= 1e-15 * abs(median)


check_trainer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
print("as it should be")
