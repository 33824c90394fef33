"""Markdown that several pages of the site have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table, with a line per row of cells."""
  lines = [heads, ["---"] * len(heads), *rows]
  return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
