"""Builds the site of the documentation.

    python -m website.build --output=output/site

Pages are the Markdown files of docs/, those in `OTHER_PAGES`, and those on
flags, which `website.reference` generates. Zensical renders them, and a broken
link is an error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS
from bertlib.cli.errors import InputError
from website import markdown, reference

ROOT = markdown.ROOT

# Pages of the site from outside of docs/, by their path in the site.
OTHER_PAGES = {
  "about/changelog.md": "CHANGELOG.md",
  "about/contributing.md": "CONTRIBUTING.md",
  "about/security.md": "SECURITY.md",
  "about/benchmarks.md": "benchmarks/README.md",
  "about/examples.md": "examples/README.md",
  "about/experiments.md": "experiments/README.md",
}

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def sources() -> dict[str, pathlib.Path]:
  """The file of each page and image, by its path in the site."""
  found = {
    path.relative_to(ROOT / "docs").as_posix(): path
    for path in sorted((ROOT / "docs").rglob("*"))
    if path.is_file()
  }
  return found | {page: ROOT / path for page, path in OTHER_PAGES.items()}


def write_pages(folder: pathlib.Path) -> None:
  """Writes all pages, with links between them, to a folder."""
  files, generated = sources(), reference.pages()
  page_of = {path: page for page, path in files.items()}
  page_of |= {ROOT / "docs" / page: page for page in generated}
  for page in page_of.values():
    target = folder / page
    target.parent.mkdir(parents=True, exist_ok=True)
    if page in generated:
      target.write_text(generated[page](), encoding="utf-8")
    elif target.suffix == ".md":
      text = _links_within_site(files[page], page, page_of)
      target.write_text(text, encoding="utf-8")
    else:
      shutil.copy(files[page], target)
  shutil.copy(ROOT / "website" / "style.css", folder)


def _links_within_site(
  path: pathlib.Path, page: str, page_of: dict[pathlib.Path, str]
) -> str:
  """The text of a page, with links to files as links to their pages."""

  def link(found):
    target = pathlib.Path(os.path.normpath(path.parent / found[1]))
    if target not in page_of:  # broken
      return found[1]
    return os.path.relpath(page_of[target], os.path.dirname(page))

  return _LINK.sub(link, path.read_text(encoding="utf-8"))


def build(output: pathlib.Path) -> None:
  """Builds the site in a folder; an earlier site there is replaced."""
  names = {path.name for path in output.glob("*")}
  is_site = {"index.html", "style.css"} <= names
  if output.is_file() or (names and not is_site):
    raise InputError(
      f"--output={output}: has other files than a site, which would be lost."
      " Name another folder"
    )
  with tempfile.TemporaryDirectory() as temporary:
    project = pathlib.Path(temporary)
    write_pages(project / "pages")
    settings = (ROOT / "website" / "zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace('"ROOT"', json.dumps(str(ROOT)))
    (project / "zensical.toml").write_text(settings, encoding="utf-8")
    if not importlib.util.find_spec("zensical"):
      raise InputError(
        "Zensical is not installed. Run make docs with Python 3.11 or newer."
      )
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    if subprocess.run(command, cwd=project).returncode:
      raise InputError("Zensical: see its messages above.")
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(project / "site", output)


def main(_: list[str]) -> None:
  """Builds the site in --output."""
  build(pathlib.Path(FLAGS.output))


if __name__ == "__main__":
  side_by_side.run(
    main, side_by_side.define, output=("output/site", "Folder of the site.")
  )
