"""Where tests find the reference's results and the real data sets.

Small results are here, in `golden/`; `BERT_GOLDEN_DIR` names the folder with
all of them, `BERT_DATA_DIR` that of the data. A test that needs one which is
not set, or a file that is not there, is skipped and says so.
"""

import gzip
import json
import os

import pytest


def golden(*parts):
  """Path of a result of the reference implementation, or skips the test."""
  shipped = os.path.join(os.path.dirname(__file__), "golden", *parts)
  return shipped if os.path.isfile(shipped) else _path("BERT_GOLDEN_DIR", parts)


def data(*parts):
  """Path of a file of the real data sets, or skips the test."""
  return _path("BERT_DATA_DIR", parts)


def vocab(name):
  """Path of a published vocabulary: uncased, cased, chinese, multi_cased."""
  return data("bert", "vocab", f"{name}.txt")


def read_jsonl(path):
  """The JSON values of a `.jsonl` or `.jsonl.gz` file, as a list."""
  opener = gzip.open if path.endswith(".gz") else open
  with opener(path, "rt", encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def _path(variable, parts):
  folder = os.environ.get(variable)
  if not folder:
    pytest.skip(f"{variable} is not set")
  path = os.path.join(folder, *parts)
  if not os.path.exists(path):
    pytest.skip(f"{path} is not there")
  return path
