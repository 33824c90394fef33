"""Markdown that several pages of the site have."""

from __future__ import annotations

import pathlib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from bertlib.cli import command_line

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"

# Packages whose versions only the files with the results have.
_UNLISTED = {
  *("numpy", "python", "tensorflow-cpu", "tensorflow-estimator", "tf-keras")
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table, with a line per row of cells."""
  lines = [heads, ["---"] * len(heads), *rows]
  return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def command(line: str) -> str:
  """A command line in lines of at most 80 columns."""
  return textwrap.dedent(command_line.example_lines(line))


def versions(by_name: Mapping[str, str]) -> str:
  """The versions of the packages that compute, and of the code."""
  return ", ".join(
    f"{name} {value[:10] if name == 'commit' else value}"
    for name, value in by_name.items()
    if name not in _UNLISTED
  )


def anchor(heading: str) -> str:
  """Anchor of a heading, the same on GitHub and on the site."""
  return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def version_order(version: str) -> tuple[int, ...]:
  """Key by which versions of this project are sorted."""
  return tuple(map(int, version.split(".")))


def renewed(page: pathlib.Path, **parts: str) -> str:
  """The text of a page with some of its generated parts renewed, by name."""
  text = page.read_text(encoding="utf-8")
  for name, part in parts.items():
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    text = f"{before}{begin}\n{part}\n{end}{after}"
  return text


def renew(page: pathlib.Path, **parts: str) -> None:
  """Renews generated parts of a page in its file."""
  text = renewed(page, **parts)
  page.write_text(text, encoding="utf-8")
