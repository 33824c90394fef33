"""Markdown that several pages of the site have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

# Packages whose versions only the files with the results have.
_UNLISTED = {
  *("numpy", "python", "tensorflow-cpu", "tensorflow-estimator", "tf-keras"),
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table, with a line per row of cells."""
  lines = [heads, ["---"] * len(heads), *rows]
  return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


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
