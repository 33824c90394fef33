"""Markdown that several pages of the site have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table, with a line per row of cells."""
  lines = [heads, ["---"] * len(heads), *rows]
  return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def anchor(heading: str) -> str:
  """Anchor of a heading, the same on GitHub and on the site."""
  return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
