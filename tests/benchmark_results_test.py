"""Tests of what all benchmarks share: comparisons, and lines of results."""

import pytest

from benchmarks import results, side_by_side

pytestmark = pytest.mark.unit

VALUES = {
  "a step": {"ours": [2.0, 2.0, 4.0], "other": [6.0, 4.0, 4.0]},
  "spearman": {"ours": [0.5], "other": [0.4]},
}


def make(**fields):
  ratios = results.compare(VALUES, results.pairs_with("ours", VALUES))
  sides = {name: {"description": "", "versions": {}} for name in VALUES}
  defaults = {"benchmark": "a", "work": "b", "command": "c", "date": "d"}
  return results.Result(
    **{**defaults, **fields},
    **results.processor(),
    threads=2,
    versions={},
    sides=sides,
    values=VALUES,
    ratios=ratios,
  )


def test_ratios_are_those_of_each_pass():
  pairs = [("a step", "ours", "other")]
  assert results.compare(VALUES, pairs) == [
    results.Ratio("a step", "ours", "other", 2.0, 1.0, 3.0)
  ]


def test_lines_are_appended_and_read_as_they_were(tmp_path):
  first, second = make(work="one"), make(work="two", device="a GPU")
  path = tmp_path / "results.jsonl"
  for result in (first, second):
    results.append(path, result)
  assert results.read(path) == [first, second]


@pytest.mark.parametrize(
  "words,shown",
  [
    (["--glue_dir=/home/me/glue"], " --glue_dir=glue"),
    (["--glue_dir=glue/MRPC/"], " --glue_dir=MRPC/"),
    (["--files=/a/b.txt,../c/d.txt"], " --files=b.txt,d.txt"),
    (["--vocab", "/home/me/vocab.txt"], " --vocab vocab.txt"),
    (["--passes=3", "--json_file=/a/b.jsonl", "--x"], " --passes=3 --x"),
    (["--json_file", "/a/b.jsonl"], ""),
    (["--launcher=taskset -c 0"], " '--launcher=taskset -c 0'"),
  ],
)
def test_commands_have_no_folders(words, shown, monkeypatch):
  monkeypatch.setattr(results.os, "environ", {"HOME": "/home/me"})
  command = results.command_line("benchmarks.a", words)
  assert command == "python -m benchmarks.a" + shown


def fail():
  raise OSError("no compiler")


def test_variant_that_cannot_be_compiled_is_named_and_skipped():
  variants = side_by_side.with_compiled("float32", "auto")
  assert variants == {"float32": False, "float32, torch.compile": True}
  best, description = side_by_side.fastest(
    {name: fail if compiles else dict for name, compiles in variants.items()}, 1
  )
  assert best == "float32"
  assert "float32, torch.compile failed: OSError" in description
