"""Where tests find the reference's results and the data sets.

`golden/` holds what the tests need: a slice of the reference's results and, in
`golden/data`, what may be passed on of the data sets. The folders named by
`BERT_GOLDEN_DIR` and `BERT_DATA_DIR`, laid out alike, hold the whole; a test
marked `needs_data` asks for one of them, or both, and is deselected where the
variable is not set. Each such test has a counterpart on what is here.
"""

import functools
import gzip
import json
import os

import pytest

GOLDEN = "BERT_GOLDEN_DIR"
DATA = "BERT_DATA_DIR"
_SLICE = os.path.join(os.path.dirname(__file__), "golden")
_FOLDERS = {GOLDEN: _SLICE, DATA: os.path.join(_SLICE, "data")}


def golden(*parts):
  """Path of a result of the reference implementation."""
  return _find(GOLDEN, parts)


def data(*parts):
  """Path of a file of the data sets."""
  return _find(DATA, parts)


def vocab(name):
  """Path of a published vocabulary: uncased, cased, chinese, multi_cased.

  `programs` are the entries of `uncased` that the slice of `programs` needs.
  """
  return data("bert", "vocab", f"{name}.txt")


def read_jsonl(path):
  """The JSON values of a `.jsonl` or `.jsonl.gz` file, as a list."""
  opener = gzip.open if path.endswith(".gz") else open
  with opener(path, "rt", encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def first_rows(array, expected):
  """As many rows of an array as the slice has of what is expected."""
  return array[: len(expected)] if expected.ndim else array


def _find(variable, parts):
  """Path of a file of the repository, or else of the whole."""
  path = os.path.join(_FOLDERS[variable], *parts)
  if os.path.exists(path):
    return path
  return os.path.join(os.environ[variable], *parts)


# Plugin of pytest


@pytest.fixture(
  name="golden",
  params=["slice", pytest.param("whole", marks=pytest.mark.needs_data(GOLDEN))],
)
def golden_of_slice_and_whole(request):
  """`golden` for files of which the repository holds a part: both in turn."""
  if request.param == "slice":
    return golden
  return functools.partial(os.path.join, os.environ[GOLDEN])


def pytest_report_header():
  """Says what is compared with the slice only."""
  return [
    f"{variable} is not set: tests that need it are deselected"
    for variable in _FOLDERS
    if not os.environ.get(variable)
  ]


def pytest_collection_modifyitems(config, items):
  """Deselects the tests whose data are not at hand."""
  missing = {variable for variable in _FOLDERS if not os.environ.get(variable)}
  left_out = [
    item
    for item in items
    if any(missing & set(m.args) for m in item.iter_markers("needs_data"))
  ]
  if left_out:
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
