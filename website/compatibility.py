"""The page on releases of Python and TensorFlow, from the Makefile and CI."""

from __future__ import annotations

import pathlib
import re

from website import markdown

ROOT = pathlib.Path(__file__).resolve().parent.parent

_PAGE = """\
# Compatibility

One code base runs on these releases of TensorFlow and Python. "yes" is a pair
for which TensorFlow has packages, and which `make` installs; **tested** is one
on which the automatic tests run.

{table}
The tests run on Linux and x86-64:

{runs}

Other pairs, macOS, ARM processors and Windows are not part of these runs.
TensorFlow needs no extension: neither tensorflow-text nor TensorFlow Addons.
"""


def page() -> str:
  """Text of the page."""
  releases = _releases()
  tested = _tested(releases)
  columns = sorted({r for found in releases.values() for r in found})
  rows = [
    [
      python,
      *(
        "**tested**" if (python, r) in tested else "yes" if r in found else ""
        for r in columns
      ),
    ]
    for python, found in releases.items()
  ]
  runs = "\n".join(
    f"- Python {python}, TensorFlow {release}: {', '.join(targets)}"
    for (python, release), targets in tested.items()
  )
  return _PAGE.format(
    table=markdown.table(["Python", *columns], rows), runs=runs
  )


def _releases() -> dict[str, list[str]]:
  """Releases of TensorFlow by Python, as the Makefile has them."""
  makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
  lines = re.findall(r"^releases_(3\.\d+) = (.+)$", makefile, re.M)
  return {python: found.split() for python, found in lines}


def _tested(releases) -> dict[tuple[str, str], list[str]]:
  """Targets that CI makes, by Python and release of TensorFlow."""
  script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
  newest = re.search(r'^newest="(.+)"$', script, re.M)[1]
  tested = {}
  for target, arguments in re.findall(r"^make (\S+) (.+)$", script, re.M):
    arguments = arguments.replace("$newest", newest)
    python = re.search(r"PYTHON=python(\S+)", arguments)[1]
    release = re.search(r"==(\d+\.\d+)", arguments)
    release = release[1] if release else releases[python][-1]
    tested.setdefault((python, release), []).append(f"`make {target}`")
  return tested
