// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <collprobe/core/config.hpp>

namespace collprobe::inline COLLPROBE_ABI::report::detail {

/// The style sheet of a page (report/html.hpp). Colours are custom properties: `--text*` have a contrast of at least
/// 4.5 on `--page` and `--box`, `--mark*` at least 3 (WCAG 2.1, 1.4.3 and 1.4.11). Marks are of Okabe and Ito's
/// palette, whose colours can be told apart with any colour vision. Lengths in drawings are tenths of a unit.
inline constexpr const char* html_style = R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --box: #f6f7f9; --edge: #d5d8dd; --known: #e3e8ee;
  --text: #1b1e23; --text-soft: #555c66;
  --mark-1: #0072b2; --mark-2: #d55e00; --mark-3: #009e73; --mark-4: #cc79a7;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #16181d; --box: #1e2127; --edge: #3a3f48; --known: #2d333c;
    --text: #e8eaed; --text-soft: #a8afba;
    --mark-1: #56b4e9; --mark-2: #d55e00; --mark-3: #009e73; --mark-4: #cc79a7;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 1240px; background: var(--page); color: var(--text);
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.25rem 0 .4rem; font-size: 1.2rem; }
h3 { margin: 1.25rem 0 .4rem; font-size: 1rem; }
p { margin: .4rem 0; max-width: 75ch; }
.kind, .facts, .note, figcaption span { color: var(--text-soft); }
.kind { margin: 0; font-size: .85rem; }
.facts { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .4rem 0 0; padding: 0; list-style: none; }
.facts li { overflow-wrap: anywhere; }
td, th { overflow-wrap: break-word; max-width: 26rem; }
.note { font-size: .9rem; }
.verdict { display: flex; align-items: center; gap: 1rem; margin: 1.1rem 0; padding: .9rem 1.1rem;
  background: var(--box); border-left: .4rem solid var(--level); border-radius: .25rem; }
.none { --level: var(--text-soft); } .fine { --level: var(--mark-3); }
.look { --level: var(--mark-1); } .act { --level: var(--mark-2); }
.sign { flex: none; text-align: center; font-weight: 700; }
.sign i { display: grid; place-items: center; width: 2.6rem; height: 2.6rem; margin: 0 auto .15rem;
  background: var(--level); color: var(--page); font: 700 1.6rem/1 system-ui, sans-serif; print-color-adjust: exact; }
.none i, .fine i { border-radius: 50%; }
.look i { clip-path: polygon(50% 0, 100% 50%, 50% 100%, 0 50%); }
.act i { clip-path: polygon(30% 0, 70% 0, 100% 30%, 100% 70%, 70% 100%, 30% 100%, 0 70%, 0 30%); }
.verdict p { margin: 0; font-size: 1.2rem; line-height: 1.35; overflow-wrap: anywhere; }
.scroll { overflow: auto; max-height: 30rem; border: 1px solid var(--edge); border-radius: .25rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--edge); }
tr:last-child > * { border-bottom: 0; }
thead th { position: sticky; top: 0; background: var(--box); white-space: nowrap; }
tbody th { font-weight: 600; }
.n { text-align: right; white-space: nowrap; }
.wide td { min-width: 8rem; } .wide td.n { min-width: 0; } .wide tbody th { min-width: 5.5rem; }
.wide th .note { display: block; font-weight: 400; }
.list { width: fit-content; max-width: 100%; } .list tbody th { font-weight: 400; min-width: 9rem; }
details { margin-top: .25rem; font-size: .85rem; }
summary { color: var(--text-soft); cursor: pointer; }
details .scroll { max-height: 18rem; } details table { font-size: .8rem; }
details td, details th { padding: .15rem .4rem; }
details thead th, details thead .n { white-space: normal; } details tbody th { white-space: nowrap; }
.charts { display: grid; gap: 1.1rem 1.25rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 520px; break-inside: avoid; }
figcaption { min-height: 2.9em; font-size: .9rem; }
figcaption b { display: block; }
.map { max-width: 860px; } .map figcaption { max-width: 75ch; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--text-soft); font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
.map svg text { font-size: 10.5px; } .map svg .named { fill: var(--text); font-weight: 700; }
@media (min-width: 640px) { .map svg text { font-size: 6.4px; } }
path { fill: none; }
.grid { stroke: var(--edge); stroke-width: 8; }
.frame { stroke: var(--text-soft); stroke-width: 10; }
.line { stroke-width: 16; stroke-linejoin: round; }
.c1 { stroke: var(--mark-1); } .c2 { stroke: var(--mark-4); stroke-dasharray: 60 35; }
.c3 { stroke: var(--mark-2); }
.band { stroke-width: 4; stroke-dasharray: none; fill-opacity: .2; stroke-opacity: .75; }
.band.c1 { fill: var(--mark-1); } .band.c2 { fill: var(--mark-4); }
.head { stroke-width: 14; stroke-dasharray: none; fill: var(--page); } .head.c3 { fill: var(--mark-2); }
.rule { stroke: var(--mark-2); stroke-width: 10; stroke-dasharray: 20 25; }
.mark { fill: var(--mark-2); } .hollow { fill: var(--page); stroke: var(--mark-2); stroke-width: 14; }
.known { fill: var(--known); } .apart { fill: var(--mark-1); }
.charts .key { white-space: nowrap; }
.key i { display: inline-block; width: 1.5em; margin: 0 .3em .25em 0; border-top: 2px solid; vertical-align: middle; }
i.k1 { border-color: var(--mark-1); } i.k2 { border-color: var(--mark-4); border-top-style: dashed; }
i.k3 { border-color: var(--mark-2); }
i.kb { height: .7em; border: 1px solid var(--mark-1);
  background: linear-gradient(color-mix(in srgb, var(--mark-1) 20%, transparent) 0 0); margin-bottom: .1em; }
i.cell { width: .8em; height: 1.1em; border: 0; margin-bottom: .15em; --fill: var(--mark-1);
  background: linear-gradient(to top, var(--fill) var(--high), var(--known) var(--high)); print-color-adjust: exact; }
.h0 { --high: 0%; } .h1 { --high: 30%; } .h2 { --high: 55%; } .h3 { --high: 80%; }
i.h4 { --high: 100%; --fill: var(--mark-2); }
.glyph { color: var(--mark-2); }
@media print {
  body { max-width: none; padding: 0; font-size: .8rem; }
  .scroll { overflow: visible; max-height: none; } thead th { position: static; }
  details:not([open]) { display: none; } h2, h3 { break-after: avoid; } tr { break-inside: avoid; }
  path, .verdict { print-color-adjust: exact; }
}
)css";

} // namespace collprobe::report::detail
