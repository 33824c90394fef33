"""Tests of reading and writing JSON and JSON Lines."""

import json
import math

import numpy as np
import pytest
from parametrize import parametrize
from refused import assert_refused, refusal

from bertlib.cli.errors import InputError
from bertlib.io import json_files

pytestmark = pytest.mark.unit


def write(folder, content):
  (folder / "x.json").write_bytes(content)
  return str(folder / "x.json")


@parametrize(
  "content", b"", b'{"a": ', b"\xff", b'{"a": "\xe9"}', b"{} {}", b"[" * 10**5
)
def test_corrupt_file_is_named(tmp_path, content):
  path = write(tmp_path, content)
  assert refusal(json_files.read, path).startswith(path)


def test_a_byte_order_mark_is_skipped(tmp_path):
  path = write(tmp_path, b'\xef\xbb\xbf{"a": "\xc3\xa9"}\r\n')
  assert json_files.read(path) == {"a": "\xe9"}


@parametrize(
  "schema, problem",
  ({"n": str}, "n is 1, not text"),
  ({"n": int, "m": int}, "has no m"),
  ({"n": int, "m?": int}, None),
  ({"n": (str, float)}, None),
  ({"l": [int]}, 'l[1] is "a", not an integer'),
  ({"o": {"p": dict}}, "o.p is null, not an object"),
  (list, "its content is an object, not a list"),
  (None, None),
)
def test_schema_mismatch_is_described(tmp_path, schema, problem):
  path = write(tmp_path, b'{"n": 1, "l": [1, "a"], "o": {"p": null}}')
  if problem is None:
    assert json_files.read(path, schema)["n"] == 1
    return
  message = refusal(json_files.read, path, schema, "Restore it")
  assert message == f"{path}: {problem}. Restore it"


def test_lines_are_numbered_and_blank_lines_skipped():
  lines = ['{"a": 1}\n', " \n", "[2]\n"]
  assert list(json_files.parse_lines(lines, "x")) == [(1, {"a": 1}), (3, [2])]


def test_line_that_does_not_match_the_schema_is_named():
  values = json_files.parse_lines(["{}", "3", "{"], "x", dict, "Remove it")
  assert next(values) == (1, {})
  assert_refused(r"^x, line 2: .*an object\. Remove it", next, values)
  with pytest.raises(InputError, match=r"^x, line 1: is not JSON.*Remove it"):
    list(json_files.parse_lines(["{"], "x", dict, "Remove it"))


def test_written_json_is_strict():
  value = {"a": [1.5, math.nan, (math.inf, "NaN")], "b": {"c": -math.inf}}
  expected = {"a": [1.5, None, [None, "NaN"]], "b": {"c": None}}
  text = json_files.dumps(value, indent=1)
  assert json.loads(text, parse_constant=pytest.fail) == expected
  assert json_files.finite(expected) == expected
  numbers = {"a": np.float32("nan"), "b": np.array([0.5, np.inf])}
  assert json_files.finite(numbers) == {"a": None, "b": [0.5, None]}
  assert json_files.dumps({"ü": 1}, ensure_ascii=False) == '{"ü": 1}'


def test_null_is_read_as_nan_where_numbers_are_expected():
  read = json_files.with_nan({"a": [None, 1.5], "b": {"c": None}, "d": "x"})
  assert math.isnan(read["a"][0]) and math.isnan(read["b"]["c"])
  assert (read["a"][1], read["d"]) == (1.5, "x")
