#!/usr/bin/env python3
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
"""html_check.py <page.html>...

Reads pages of report/html.hpp as a browser would, by Python's html.parser, and stops at the first that has tags which do not
nest, anything that refers outside of the page, a drawing without name, description or numbers in a table below it, text
below 10 pixels on a telephone, data that are no JSON or whose verdict is not that of the page, or colours of too little
contrast in the light or the dark scheme.
"""
import html.parser
import json
import pathlib
import re
import sys

VOID = set("area base br col embed hr img input link meta source track wbr path".split())
REFERENCES = set("src href srcset action data poster cite background xlink:href".split())


class Page(html.parser.HTMLParser):
    """Elements as (tag, attributes, children, texts), in the order of the document."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.root = {"tag": "", "attributes": {}, "children": [], "text": ""}
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert len(self.open) == 1, f"not closed: {self.open[-1]['tag']}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute of {tag} comes twice"
        element = {"tag": tag, "attributes": dict(attributes), "children": [], "text": ""}
        self.open[-1]["children"].append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open[-1]["tag"] == tag, f"</{tag}> closes <{self.open[-1]['tag']}>, at {self.getpos()}"
        self.open.pop()

    def handle_data(self, text):
        self.open[-1]["text"] += text


def walk(element):
    for child in element["children"]:
        yield child, element
        yield from walk(child)


def text_of(element):
    return element["text"] + "".join(text_of(child) for child in element["children"])


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """WCAG 2.1."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_style(style):
    schemes = [dict(re.findall(r"(--[a-z0-9-]+):\s*(#[0-9a-f]{6})", block))
               for block in re.findall(r":root\s*\{([^}]*)\}", style)]
    assert len(schemes) == 2, "a light and a dark scheme"
    assert re.search(r"@media screen and \(prefers-color-scheme: dark\) \{\s*:root", style), "dark is for screens only"
    assert schemes[0]["--page"] == "#ffffff" and schemes[1]["--page"] == "#16181d"
    lowest = {"text": 99.0, "mark": 99.0}
    for scheme in schemes:
        assert scheme.keys() == schemes[0].keys(), "the schemes have the same names"
        for name, colour in scheme.items():
            for surface in ("--page", "--box", "--known"):
                ratio = contrast(colour, scheme[surface])
                if name.startswith("--text"):
                    assert ratio >= 4.5, f"{name} on {surface}: {ratio:.2f}"
                    lowest["text"] = min(lowest["text"], ratio)
                if name.startswith("--mark") and (surface == "--page" or name in ("--mark-1", "--mark-2")):
                    assert ratio >= 3, f"{name} on {surface}: {ratio:.2f}"
                    lowest["mark"] = min(lowest["mark"], ratio)
    rest = re.sub(r":root\s*\{[^}]*\}", "", style)
    assert not re.search(r"#[0-9a-f]{3,8}\b|rgb\(", rest), "all colours are properties of :root"
    assert not re.search(r"(?<![-\w])color:(?!\s*var\(--(text|page|mark-2))", rest), "text has a colour of text"
    assert "@media print" in style
    assert not re.search(r"@import|url\(|@font-face|animation|transition", style)
    return lowest


def check(path):
    text = path.read_bytes().decode("utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "http" not in text, "a reference to the network"
    root = Page(text).root
    elements = list(walk(root))
    tags = [element["tag"] for element, _ in elements]
    assert not set(tags) & {"link", "iframe", "img", "object", "embed", "base", "form", "use", "image", "animate"}
    ids = [element["attributes"]["id"] for element, _ in elements if "id" in element["attributes"]]
    assert len(ids) == len(set(ids)), "an id comes twice"
    assert [element["tag"] for element, _ in elements].count("h1") == 1
    assert root["children"][0]["attributes"]["lang"] == "en"
    for element, _ in elements:
        for name, value in element["attributes"].items():
            assert name not in REFERENCES or (value or "").startswith("#"), f"{element['tag']} has {name}"
            assert not name.startswith("on"), f"{element['tag']} has {name}"
    style = next(element for element, _ in elements if element["tag"] == "style")["text"]
    lowest = check_style(style)

    drawings = 0
    for element, parent in elements:
        if element["tag"] != "svg":
            continue
        drawings += 1
        attributes = element["attributes"]
        assert attributes["role"] == "img"
        named = {child["attributes"]["id"]: child for child in element["children"] if child["tag"] in ("title", "desc")}
        assert list(named) == attributes["aria-labelledby"].split()
        assert [child["tag"] for child in named.values()] == ["title", "desc"]
        assert all(child["text"].strip() for child in named.values())
        below = parent["children"][parent["children"].index(element) + 1]
        assert below["tag"] == "details", f"numbers below {attributes['aria-labelledby']}"
        rows = [inner for inner, _ in walk(below) if inner["tag"] == "tr"]
        assert len(rows) >= 2, "a table with numbers"
        assert parent["tag"] == "figure" and any(child["tag"] == "figcaption" for child in parent["children"])
        width = float(attributes["viewbox"].split()[2])
        size = 10.5 if parent["attributes"].get("class") == "map" else 11.5
        assert f"font-size: {size}px" in style or f"font: {size}px" in style
        assert size * 368 / width >= 9.5, "text of a drawing at 400 pixels"
    for element, _ in elements:
        if element["tag"] != "table":
            continue
        rows = [inner for inner, _ in walk(element) if inner["tag"] == "tr"]
        widths = {len(row["children"]) for row in rows}
        assert len(widths) == 1, f"rows of different lengths: {widths}"
        assert all(cell["tag"] == "th" and cell["attributes"]["scope"] == "col" for cell in rows[0]["children"])

    scripts = [element for element, _ in elements if element["tag"] == "script"]
    assert len(scripts) == 1 and scripts[0]["attributes"] == {"type": "application/json", "id": "collprobe-data"}
    assert "<" not in scripts[0]["text"]
    data = json.loads(scripts[0]["text"])
    verdict = next(element for element, _ in elements if element["attributes"].get("id") == "verdict")
    assert text_of(verdict) == data["verdict"]
    series = data["series"]
    length = len(series["first_step"])
    assert length == len(series["steps"]) <= 2000 and sum(series["steps"]) == data["steps"]
    for name, one in series.items():
        for array in one.values() if isinstance(one, dict) else [one]:
            assert len(array) == length, name
        if isinstance(one, dict) and {"mean", "low", "high"} <= one.keys():
            for mean, low, high in zip(one["mean"], one["low"], one["high"]):
                assert mean is None or low - 1e-4 * abs(low) <= mean <= high + 1e-4 * abs(high), name
    if data["steps"]:
        assert drawings >= 6, drawings
    assert len(text.encode()) < 2_000_000
    print(f"{path.name}: {len(text.encode())} bytes, {drawings} drawings, contrast of text at least {lowest['text']:.1f}, "
          f"of marks at least {lowest['mark']:.1f}")


if len(sys.argv) < 2:
    sys.exit(__doc__)
for argument in sys.argv[1:]:
    check(pathlib.Path(argument))
