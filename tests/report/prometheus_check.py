# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""prometheus_check.py FOLDER SOURCE

Reads what write_samples has written to FOLDER with the parser of prometheus_client, and checks that dashboard and
alarm rules of SOURCE/examples/grafana ask only for series that are written. With promtool, that reads files and rules too. Exit status 77 without prometheus_client.
"""
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys

try:
    from prometheus_client.parser import text_string_to_metric_families as parse_classic
except ImportError:
    print("prometheus_client is missing (Debian: python3-prometheus-client)")
    sys.exit(77)

FOLDER, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
RANKS, LIMIT = 8, 40
COMMON = {"job", "comm", "rank", "node"}
KIND = {"_total": "counter"}


def read(path):
    """The families of a file, and its samples as {(name, labels): value}; each of them with a HELP, TYPE and once."""
    text = path.read_bytes().decode("utf-8")  # strict
    families = list(parse_classic(text))
    samples = {}
    for family in families:
        assert family.samples, f"{path}: {family.name} has no sample"
        assert family.documentation.strip(), f"{path}: {family.name} has no HELP"
        for sample in family.samples:
            suffix = sample.name[sample.name.rfind("_"):]
            wanted = KIND.get(suffix, "gauge")
            assert family.type == wanted, f"{path}: {sample.name} is a {family.type}"
            assert COMMON <= set(sample.labels), sample
            assert sample.value == sample.value, f"{path}: {sample.name} is NaN"
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples, f"{path}: twice: {key}"
            samples[key] = sample.value
    return families, samples


def check_runs():
    """The labels of each metric that any file has. No two ranks write the same series, and all the same help."""
    emitted, together, helps = collections.defaultdict(set), set(), collections.defaultdict(set)
    for rank in range(RANKS):
        families, samples = read(FOLDER / "prometheus" / "ranks" / f"rank{rank}.prom")
        assert len(samples) <= LIMIT, f"{len(samples)} series"
        assert not together & samples.keys(), "two ranks write the same series"
        together |= samples.keys()
        for family in families:
            helps[family.name].add((family.documentation, family.type))
    for path in sorted(FOLDER.glob("prometheus/*/*.prom")):
        for name, labels in read(path)[1]:
            emitted[name] |= {label for label, _ in labels}
    assert all(len(each) == 1 for each in helps.values()), helps
    return emitted


def queried(query):
    """{metric: labels} of a query of PromQL, where all labels that stand outside braces count for all metrics."""
    query = re.sub(r'"(?:\\.|[^"\\])*"', '""', query)
    grouped = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", query)
    grouped += re.findall(r"label_values\(.*,([^,]*)\)", query)
    others = set(re.findall(r"\w+", " ".join(grouped)))
    metrics = collections.defaultdict(set)
    for metric, inside in re.findall(r"\b((?:collprobe|node)_\w+)(?:\{([^}]*)\})?", query):
        metrics[metric] |= others | set(re.findall(r"(\w+)\s*(?:=|!)", inside))
    return metrics


def unknown_in(query, emitted, legend=""):
    """What the query asks for and nobody writes."""
    found = queried(query)
    assert found, f"no metric in {query}"
    problems = []
    for metric, labels in found.items():
        if metric not in emitted:
            problems.append(metric)
            continue
        labels = labels | set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)) if len(found) == 1 else labels
        problems += [f"{metric}{{{label}}}" for label in sorted(labels - emitted[metric])]
    return problems


def check_queries(emitted):
    emitted = dict(emitted, node_textfile_mtime_seconds={"file", "instance"})
    for name in emitted:
        emitted[name] = emitted[name] | {"instance"}  # Prometheus adds it
    dashboard = json.loads((SOURCE / "examples/grafana/dashboard.json").read_text())
    assert dashboard["schemaVersion"] == 42
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert {"job", "comm", "rank"} <= set(variables)
    queries = [(each["definition"], "") for each in variables.values() if each["type"] == "query"]
    panels = [each for each in dashboard["panels"] if each["type"] != "row"]
    assert len({each["id"] for each in dashboard["panels"]}) == len(dashboard["panels"])
    places = set()
    for panel in panels:
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["id"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not places & cells, f"{panel['title']} covers another panel"
        places |= cells
        queries += [(target["expr"], target["legendFormat"]) for target in panel["targets"]]
    for name in re.findall(r"\$(\w+)", " ".join(query for query, _ in queries)):
        assert name in variables or name.startswith("__"), f"no variable {name}"

    rules = (SOURCE / "examples/grafana/alarm_rules.yml").read_text()
    expressions = re.findall(r"^ +expr: (.*)$", rules, re.M)
    for part in ("alert", "expr", "for", "severity", "summary", "advice"):
        assert len(re.findall(rf"^ +(?:- )?{part}: \S", rules, re.M)) == len(expressions) > 5, part
    queries += [(query, "") for query in expressions]

    for query, legend in queries:
        problems = unknown_in(query, emitted, legend)
        assert not problems, f"{query}: nobody writes {problems}"
    asked = set().union(*(queried(query) for query, _ in queries))
    assert not emitted.keys() - asked, f"nobody looks at {emitted.keys() - asked}"

    # The check finds what it looks for.
    for query, legend, problem in (
            ("sum(collprobe_stepz)", "", "collprobe_stepz"),
            ('rate(collprobe_step{jobs="a"}[5m])', "", "collprobe_step{jobs}"),
            ("max by (job, bucket) (collprobe_step)", "", "collprobe_step{bucket}"),
            ("collprobe_step", "{{kind}}", "collprobe_step{kind}"),
            ("collprobe_step > on (colour) collprobe_loss", "", "collprobe_loss{colour}"),
            ('label_values(collprobe_step{job=~"$job"}, gpu)', "", "collprobe_step{gpu}")):
        assert problem in unknown_in(query, emitted, legend), query


def check_with_promtool():
    promtool = shutil.which("promtool")
    if not promtool:
        return
    for path in sorted(FOLDER.glob("prometheus/*/*.prom")):
        subprocess.run([promtool, "check", "metrics"], input=path.read_bytes(), check=True)
    rules = pathlib.Path(__file__).with_name("alarm_rules_test.yml")
    subprocess.run([promtool, "test", "rules", rules], check=True, stdout=subprocess.DEVNULL)


series = check_runs()
check_queries(series)
check_with_promtool()
