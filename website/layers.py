"""Draws docs/images/layers.svg: the folders of the project and their imports.

python -m website.layers
"""

from __future__ import annotations

import ast
import pathlib
from collections import defaultdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "layers.svg"

# Rows of the picture from the top, with what is in them.
ROWS = {
  "commands": "run_*.py, create_*.py, export_model.py, ...",
  "bertlib/tasks": "examples, records, decoding and scores, by task",
  "bertlib/reporting": "checks before a run, receipt, report",
  "bertlib/training": "the run of an Estimator",
  "bertlib/export": "SavedModels that take text",
  "bertlib/exchange": "other libraries, published models",
  "bertlib/checkpoints": "find, load, initialize and write models",
  "bertlib/data": "tables, TFRecords, batches, vocabularies",
  "bertlib/compute": "kernels: unpadding, XLA, oneDNN, 8 bits",
  "bertlib/compat": "what programs for TensorFlow 1 need",
  "bertlib/settings": "flags of the commands",
  "bertlib/io": "files, text, JSON, locks",
  "bertlib/cli": "declared flags, errors, output",
  "libraries": "modeling.py, tokenization.py, optimization.py",
}
LIBRARIES = ("modeling", "tokenization", "optimization")

_WIDTH, _HEIGHT, _STEP = 330, 40, 56
_LEFT, _TOP = 210, 12


def imports() -> dict[str, set[str]]:
  """Rows from which the modules of each row import."""
  found = defaultdict(set)
  for path in [*ROOT.glob("*.py"), *ROOT.glob("bertlib/**/*.py")]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
      for name in _imported(node):
        if row := _row_of(name.split(".")):
          found[_row_of_file(path)].add(row)
  return {row: found[row] - {row} for row in ROWS}


def _imported(node: ast.AST) -> list[str]:
  """Full names that an import statement imports."""
  if isinstance(node, ast.Import):
    return [alias.name for alias in node.names]
  if isinstance(node, ast.ImportFrom) and node.module:
    return [f"{node.module}.{alias.name}" for alias in node.names]
  return []


def _row_of_file(path: pathlib.Path) -> str:
  return _row_of(path.relative_to(ROOT).with_suffix("").parts)


def _row_of(parts) -> str | None:
  """The row of a module by the parts of its name; None for other packages."""
  if parts[0] in LIBRARIES:
    return "libraries"
  if parts[0] == "bertlib":
    folder = "/".join(parts[:2])
    return folder if folder in ROWS else None  # a name for programs
  return "commands" if (ROOT / f"{parts[0]}.py").exists() else None


def picture() -> str:
  """The picture as SVG: an arc for each import across a row."""
  places = {row: _TOP + number * _STEP for number, row in enumerate(ROWS)}
  parts = []
  for row, targets in imports().items():
    for target in sorted(targets, key=list(ROWS).index):
      start, end = (places[name] + _HEIGHT / 2 for name in (row, target))
      reach = _LEFT - 18 * abs(end - start) / _STEP
      parts.append(
        f'<path d="M{_LEFT} {start:g} C{reach:g} {start:g} {reach:g} {end:g}'
        f' {_LEFT} {end:g}" fill="none" stroke="#7986cb"'
        ' marker-end="url(#arrow)"/>'
      )
  for row, contents in ROWS.items():
    y = places[row]
    parts.append(
      f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
      ' fill="#e8eaf6" stroke="#5c6bc0"/>'
      f'<text x="{_LEFT + 12}" y="{y + 17}" font-weight="bold">{row}</text>'
      f'<text x="{_LEFT + 12}" y="{y + 33}" font-size="11">{contents}</text>'
    )
  width, height = _LEFT + _WIDTH + 12, _TOP + len(ROWS) * _STEP
  body = "\n".join(parts)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    ' font-family="sans-serif" font-size="13">\n'
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4"'
    ' markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#5c6bc0"/></marker></defs>\n'
    f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
    f"{body}\n</svg>\n"
  )


if __name__ == "__main__":
  PICTURE.write_text(picture(), encoding="utf-8")
