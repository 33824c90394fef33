"""The page of a report: its HTML, style, tables, text and numbers."""

from __future__ import annotations

import html
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.cli.errors import CONTROLS, printable
from bertlib.io.files import atomic_write

# Colors of the light and the dark theme.
COLORS = {
  "ink": ("#24292f", "#e3e6ea"),
  "quiet": ("#68717d", "#98a2ae"),
  "line": ("#e2e6ea", "#343a42"),
  "paper": ("#ffffff", "#16191d"),
  "main": ("#3a6ea5", "#78ade0"),
  "other": ("#c0622f", "#e8965f"),
}

_STYLE = """
body { margin: 0 auto; padding: 2.5rem 1.5rem 5rem; max-width: 66rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { margin: 0; font-size: 1.75rem; line-height: 1.25; }
h2 { margin: 3rem 0 1rem; padding-bottom: .35rem; font-size: 1.2rem;
  border-bottom: 1px solid var(--line); }
p { max-width: 46rem; }
a, summary { color: var(--main); text-decoration: none; cursor: pointer; }
nav { margin: 1.2rem 0 1.6rem; display: flex; flex-wrap: wrap;
  gap: .2rem 1.4rem; }
code { padding: 0 .2em; border-radius: 3px; font-size: .85em;
  color: var(--quiet); background: var(--line); }
pre { margin: .6rem 0; padding: .8rem 1rem; overflow-x: auto;
  border-radius: 6px; background: color-mix(in srgb, var(--line) 45%,
  transparent); font: .85rem/1.5 ui-monospace, "Liberation Mono", monospace; }
.subtitle { margin: .2rem 0 0; color: var(--quiet); }
.headline { display: flex; flex-wrap: wrap; align-items: center;
  gap: .6rem 2.4rem; margin: 1.6rem 0; padding: 1rem 1.4rem;
  border-left: 4px solid var(--main);
  background: color-mix(in srgb, var(--main) 7%, transparent); }
.headline p { margin: 0; }
.headline .value { font-size: 2.6rem; line-height: 1.15; font-weight: 600; }
dl { margin: 0 0 1.6rem; columns: 2 24rem; column-gap: 3rem; }
dl div { display: flex; justify-content: space-between; gap: 1.5rem;
  padding: .28rem 0; border-bottom: 1px solid var(--line);
  break-inside: avoid; }
dt { flex: none; max-width: 60%; }
dd { margin: 0; text-align: right; }
dt, th, figcaption span, .note, td.edge, dd i { color: var(--quiet); }
dd i { font-style: normal; }
dd, table, figcaption, .headline { font-variant-numeric: tabular-nums; }
.wide { margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; }
th { font-size: .9rem; font-weight: 500; text-align: left; }
td, th { padding: .32rem 1.6rem .32rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
td:last-child, th:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
.short div { white-space: pre; }
.cards td.long:last-child { width: 50%; }
.long div { max-width: 42rem; max-height: 15rem; overflow: auto;
  white-space: pre-wrap; }
.matrix { white-space: nowrap; }
.matrix td, .matrix th { padding: .4rem .7rem; text-align: right; border: 0;
  vertical-align: middle; }
.matrix td { border: 2px solid var(--paper); min-width: 2.5rem; }
.many { font-size: .8rem; }
.many td { padding: .3rem; min-width: 1.2rem; }
.many th + th { padding: .7rem 0; text-align: left;
  writing-mode: vertical-rl; transform: rotate(180deg); }
.matrix .right { background: color-mix(in srgb, var(--main) var(--share),
  transparent); }
.matrix .wrong { background: color-mix(in srgb, var(--other) var(--share),
  transparent); }
.panels { display: grid; gap: 1.6rem 2rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); }
.beside { display: flex; flex-wrap: wrap; align-items: center;
  gap: 1rem 3rem; }
.beside > * { flex: 1 1 20rem; min-width: 0; }
figure { margin: 0; min-width: 0; }
.single figure { max-width: 42rem; }
.narrow { display: none; }
.narrow figure { max-width: 28rem; }
@media (max-width: 38rem) {
  .single { display: none; }
  .narrow { display: block; }
}
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between;
  gap: 0 1rem; }
figcaption span { white-space: nowrap; }
.mark { color: var(--other); font-weight: 700; }
mark { padding: .05em .1em; color: inherit; }
mark.gold { border-bottom: 2px solid var(--main);
  background: color-mix(in srgb, var(--main) 22%, transparent); }
mark.predicted { text-decoration: underline dashed 2px var(--other);
  text-underline-offset: .2em;
  background: color-mix(in srgb, var(--other) 22%, transparent); }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
@media (max-width: 44rem) {
  body { padding: 1.4rem 1rem 3rem; }
  .headline { padding: .8rem 1rem; }
  .cards, .cards tbody, .cards tr, .cards td { display: block; }
  .cards tr:first-child { display: none; }
  .cards tr { padding: .7rem 0; border-bottom: 1px solid var(--line); }
  .cards td, .cards td:last-child, .cards td.long:last-child { display: grid;
    width: auto; grid-template-columns: 5.5rem minmax(0, 1fr);
    gap: 0 1rem; padding: .1rem 0; border: 0; text-align: left; }
  .cards td::before { content: attr(data-label); color: var(--quiet);
    overflow-wrap: anywhere; }
  .cards div { max-height: none; white-space: pre-wrap; }
}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
{style}
</style>
</head>
<body>
<h1>{heading}</h1>
{sections}
</body>
</html>
"""


class Html(str):
  """Text that is HTML already, which `escape` and `format_value` keep."""


def write(
  path: str,
  title: str,
  facts: Mapping[str, Any],
  sections: Sequence[str],
  subtitle: str = "",
  headline: str = "",
  details: Mapping[str, Any] | None = None,
) -> None:
  """Writes the page: headline, `facts` and `details` by name, then sections."""
  links, parts = [], []
  for n, part in enumerate(sections):
    heading = re.search("<h2>(.*?)</h2>", part, re.DOTALL)[1]
    links.append(f'<a href="#part-{n}">{heading}</a>')
    parts.append(part.replace("<section", f'<section id="part-{n}"', 1))
  top = [f'<p class="subtitle">{escape(subtitle)}</p>'] if subtitle else []
  top += [headline, "\n".join(["<nav>", *links, "</nav>"]), *_facts(facts)]
  light, dark = (
    "; ".join(f"--{name}: {pair[i]}" for name, pair in COLORS.items())
    for i in (0, 1)
  )
  page = _PAGE.format(
    title=re.sub("</?code>", "", escape(title)),
    heading=escape(title),
    light=light,
    dark=dark,
    style=_STYLE.strip(),
    sections="\n".join(filter(None, [*top, *_facts(details or {}), *parts])),
  )
  with atomic_write(path) as file:
    file.write(page)


def _facts(facts: Mapping[str, Any]) -> list[str]:
  """Values by name, in two columns where the page is wide."""
  rows = [
    f"<div><dt>{escape(name)}</dt>"
    f'<dd dir="auto">{format_value(value)}</dd></div>'
    for name, value in facts.items()
  ]
  return ["\n".join(["<dl>", *rows, "</dl>"])] if rows else []


def section(title: str, *parts: str) -> str:
  """Parts under a heading."""
  return "\n".join(
    ["<section>", f"<h2>{escape(title)}</h2>", *parts, "</section>"]
  )


def beside(picture: str, *parts: str) -> str:
  """A picture with text beside it."""
  return "\n".join(
    ['<div class="beside">', picture, "<div>", *parts, "</div>", "</div>"]
  )


def note(content: str) -> str:
  """A paragraph in a lighter color."""
  return f'<p class="note">{content}</p>'


def grid(rows: Sequence[Mapping[str, Any]], cards: bool = False) -> str:
  """A table; with `cards`, each row is a card on a narrow screen."""
  if not rows:
    return note("There are none.")
  heads, columns = [], []
  for name in dict.fromkeys(name for row in rows for name in row):
    values = [row.get(name) for row in rows]
    if all(value is None or _is_number(value) for value in values):
      kind, shown = "number", format_column(values)
    else:
      kind = "long" if any(len(str(v)) > 32 for v in values) else "short"
      shown = [format_value(value) for value in values]
    heads.append(f'<th class="{kind}">{escape(name)}</th>')
    label = f' data-label="{printable(html.escape(name))}"' if cards else ""
    cell = f'<td class="{kind}"{label}><div dir="auto">'
    columns.append([f"{cell}{value}</div></td>" for value in shown])
  style = ' class="cards"' if cards else ""
  return "\n".join(
    [
      f'<div class="wide"><table{style}>',
      f"<tr>{''.join(heads)}</tr>",
      *(f"<tr>{''.join(cells)}</tr>" for cells in zip(*columns)),
      "</table></div>",
    ]
  )


def marked_text(
  content: str, spans: Sequence[tuple[int, int, str]], margin: int = 160
) -> Html:
  """Text with marked spans, shortened where it is far from all of them."""
  # A span is its first character, the one after the last, and "gold" or
  # "predicted". Spans may overlap.
  ends = {index for start, end, _ in spans for index in (start, end)}
  parts = []
  for first, last in _excerpts(content, spans, margin):
    parts.append("" if first == 0 else "… ")
    cuts = sorted({first, last} | {i for i in ends if first < i < last})
    for start, end in zip(cuts, cuts[1:]):
      piece = escape(content[start:end])
      kinds = {kind for a, b, kind in spans if a <= start and end <= b}
      if kinds:
        piece = f'<mark class="{" ".join(sorted(kinds))}">{piece}</mark>'
      parts.append(piece)
    parts.append("" if last == len(content) else " …\n")
  return Html("".join(parts).rstrip("\n"))


def _excerpts(
  content: str, spans: Sequence[tuple[int, int, str]], margin: int
) -> list[tuple[int, int]]:
  """Segments of a text, of whole words, that have all spans."""
  found: list[tuple[int, int]] = []
  for start, end, _ in sorted(spans) or [(0, margin, "")]:
    first, last = max(0, start - margin), min(len(content), end + margin)
    while first > 0 and not content[first - 1].isspace() and first < start:
      first += 1
    while last < len(content) and not content[last].isspace() and last > end:
      last -= 1
    if found and first <= found[-1][1]:
      first, last = found[-1][0], max(last, found.pop()[1])
    found.append((first, last))
  return found


# Text and numbers


def format_column(values: Sequence[Any]) -> list[str]:
  """Formats a column of numbers, if possible with equally many decimals."""
  sizes = [abs(v) for v in values if _is_float(v) and v and math.isfinite(v)]
  largest, smallest = max(sizes, default=1), min(sizes, default=1)
  num_decimals = max(0, 4 - math.ceil(math.log10(largest)))
  if num_decimals > 6 or largest > 1e4 * smallest:
    return [format_value(value) for value in values]
  return [
    f"{v:.{num_decimals}f}" if _is_float(v) else format_value(v) for v in values
  ]


def format_value(value: Any) -> str:
  """Formats a value as HTML, floats with four significant digits."""
  if value is None:
    return "–"
  if not _is_float(value):
    return escape(value)
  return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _is_number(value: Any) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
  return isinstance(value, (float, np.floating))


def format_duration(seconds: float) -> str:
  """Hours, minutes and seconds, such as "1 h 02 min 03 s"."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours} h {minutes:02} min {seconds:02} s"
  return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def percent(part: int, whole: int) -> str:
  """A fraction in percent."""
  return f"{part / whole:.1%}" if whole else "–"


def escape(value: Any) -> str:
  """Text as HTML; control characters become escapes such as `\\x00`."""
  if isinstance(value, Html):
    return value
  return CONTROLS.sub(_escape_control, html.escape(str(value)))


def _escape_control(match: re.Match[str]) -> str:
  """Line breaks and tabs stay: they are the layout of the text."""
  char = match[0]
  return char if char in "\n\t" else f"<code>{printable(char)}</code>"
