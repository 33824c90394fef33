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


def test_metrics_have_no_ratio():
  assert results.pairs_with("ours", VALUES) == [("a step", "ours", "other")]


def test_lines_are_appended_and_read_as_they_were(tmp_path):
  first, second = make(work="one"), make(work="two", device="a GPU")
  path = tmp_path / "results.jsonl"
  for result in (first, second):
    results.append(path, result)
  assert results.read(path) == [first, second]


def test_a_line_without_a_field_is_refused(tmp_path):
  path = tmp_path / "results.jsonl"
  results.append(path, make())
  path.write_text(path.read_text().replace('"command"', '"words"'))
  with pytest.raises(TypeError, match="words"):
    results.read(path)


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


def test_commands_have_the_variables_that_change_results(monkeypatch):
  variables = {"ONEDNN_MAX_CPU_ISA": "AVX2", "TF_CPP_MIN_LOG_LEVEL": "2"}
  monkeypatch.setattr(results.os, "environ", variables)
  command = results.command_line("benchmarks.a", [])
  assert command == "ONEDNN_MAX_CPU_ISA=AVX2 python -m benchmarks.a"


def test_medians_and_ratios_are_printed(capsys):
  results.show(make())
  assert capsys.readouterr().out == (
    "a step, ours: 2 s\n"
    "  other / ours: median 2.00, from 1.00 to 3.00\n"
    "a step, other: 4 s\n"
    "spearman, ours: 0.5000\n"
    "spearman, other: 0.4000\n"
  )


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


@pytest.mark.parametrize("name", ["float32", "float32, torch.compile"])
def test_only_variant_that_fails_is_an_error(name):
  with pytest.raises(OSError, match="no compiler"):
    side_by_side.fastest({name: fail}, 1)
