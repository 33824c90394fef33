"""Finds the results of the reference and the data sets.

`golden/` holds what the tests need: a slice of the reference's results and, in
`golden/data`, what may be passed on of the data sets. The folders that
`BERT_GOLDEN_DIR` and `BERT_DATA_DIR` name, laid out alike, hold the whole. A
test marked `needs_data` compares with that too and is deselected unless both
are set; it has a counterpart on what is here.
"""

import functools
import gzip
import json
import os

import pytest

_SLICE = os.path.join(os.path.dirname(__file__), "golden")
_VARIABLES = ("BERT_GOLDEN_DIR", "BERT_DATA_DIR")


def golden(*parts):
  """Path of a result of the reference implementation."""
  return _find(parts, _SLICE, "BERT_GOLDEN_DIR")


def data(*parts):
  """Path of a file of the data sets."""
  return _find(parts, os.path.join(_SLICE, "data"), "BERT_DATA_DIR")


def vocab(name):
  """Path of a published vocabulary: uncased, cased, chinese, multi_cased.

  `programs` are the entries of `uncased` that the slice of `programs` needs.
  """
  return data("bert", "vocab", f"{name}.txt")


def read_jsonl(path):
  opener = gzip.open if str(path).endswith(".gz") else open
  with opener(path, "rt", encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def squad_helper_cases(function):
  """Arguments and results of a helper function of the original's SQuAD code."""
  cases = read_jsonl(golden("squad", "helpers.jsonl"))
  return [case for case in cases if case["function"] == function]


def squad_features(name, golden=golden):
  """The entry of the original's features of a SQuAD data set in `runs.json`."""
  with open(golden("squad", "runs.json")) as file:
    runs = json.load(file)["features"]
  (run,) = [r for r in runs if r["features"] == f"{name}_features.jsonl.gz"]
  return run


def unpacked(path, folder):
  """Path of a copy of a `.gz` file in a folder, decompressed."""
  target = folder / os.path.basename(path).removesuffix(".gz")
  with gzip.open(path) as file:
    target.write_bytes(file.read())
  return str(target)


def first_rows(array, expected):
  """Cuts an array to the rows that the slice of the golden file has."""
  return array[: len(expected)] if expected.ndim else array


def _find(parts, folder, variable):
  """Path of a file in the repository, or else in the full data."""
  path = os.path.join(folder, *parts)
  if os.path.exists(path):
    return path
  return os.path.join(os.environ[variable], *parts)


# Plugin of pytest


@pytest.fixture(
  name="golden",
  params=["slice", pytest.param("whole", marks=pytest.mark.needs_data)],
)
def golden_of_slice_and_whole(request):
  """`golden` for files of which the repository holds a part: both in turn."""
  if request.param == "slice":
    return golden
  return functools.partial(os.path.join, os.environ["BERT_GOLDEN_DIR"])


def _missing():
  return [variable for variable in _VARIABLES if not os.environ.get(variable)]


def pytest_report_header():
  if _missing():
    names = " and ".join(_missing())
    return f"{names} not set: compares with tests/golden alone"
  return "compares with tests/golden and with the whole of it"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
  """Deselects tests whose data are missing, and slices beside their whole."""
  if _missing():
    left_out = [item for item in items if item.get_closest_marker("needs_data")]
  else:
    wholes = [item.nodeid for item in items if _part(item) == "whole"]
    slices = {name.replace("whole", "slice") for name in wholes}
    left_out = [i for i in items if _part(i) == "slice" and i.nodeid in slices]
  if left_out:
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _part(item):
  """The part of the results that the fixture `golden` is of."""
  return getattr(item, "callspec", None) and item.callspec.params.get("golden")
