"""Tests of the page on the files of an output folder."""

import fnmatch
import re

import pytest
import readme_test
import trained_models

pytestmark = pytest.mark.train

PAGE = readme_test.ROOT / "docs" / "reference" / "output_files.md"


def patterns():
  """Names of files on the page; words in capital letters are wildcards."""
  named = re.findall(r"`([^`\s]+)`", PAGE.read_text(encoding="utf-8"))
  return [
    re.sub(r"\b[A-Z]+(?![a-z])|(?<=_)[A-Z]+", "*", name) for name in named
  ]


@pytest.mark.parametrize(
  "name",
  [
    "classifier",
    "squad",
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in ("ner", "embeddings", "pretraining", "reranker")
    ),
  ],
)
def test_every_file_of_a_training_is_on_the_page(name, once, tmp_path):
  folder = trained_models.copy(once, name, tmp_path).folder
  files = [
    path.relative_to(folder).as_posix()
    for path in folder.rglob("*")
    if path.is_file()
  ]
  known = patterns()
  assert [
    file
    for file in files
    if not any(
      fnmatch.fnmatch(file, pattern)
      or (pattern.endswith("/") and file.startswith(pattern))
      for pattern in known
    )
  ] == []
