"""Tests of the page on performance, and of the results that it shows."""

import dataclasses
import re

import pytest

from benchmarks import results
from benchmarks.results import Ratio, Result
from website import performance

pytestmark = pytest.mark.unit

KEPT = performance.kept()
each_kept = pytest.mark.parametrize(
  "result", KEPT, ids=lambda result: f"{result.benchmark}: {result.work}"
)

RESULT = Result(
  benchmark="training_step",
  work="a model",
  command="python -m benchmarks.training_step --steps=3",
  date="2001-02-03",
  processor="A processor",
  instruction_sets="avx avx2 avx512f",
  threads=2,
  versions={"project": "1.2", "commit": "abc"},
  sides={
    "ours": {"description": "float32, compiled", "versions": {}},
    "hugging face": {
      "description": "float32 (a trial took: ...)",
      "versions": {"transformers": "4.5", "torch": "6.7+cpu"},
    },
  },
  values={"a step": {"ours": [2.0, 4.0], "hugging face": [3.0, 5.0]}},
  ratios=[Ratio("a step", "ours", "hugging face", 1.375, 1.25, 1.5)],
)


@each_kept
def test_kept_ratios_are_those_of_the_kept_values(result):
  pairs = [ratio[:3] for ratio in result.ratios]
  computed = results.compare(result.values, pairs)
  for ratio, again in zip(result.ratios, computed):
    # Some values were kept as printed, with three digits.
    assert ratio[3:] == pytest.approx(again[3:], rel=0.01)


@each_kept
def test_kept_results_have_no_path_of_a_machine(result):
  assert "/" not in result.command
  assert not re.search(r"(^|[ =])/\w", str(result.sides))


def test_the_text_of_the_page_has_no_number():
  assert not re.search(r"\d", performance.render([]))


def test_a_row_has_both_values_the_ratio_and_the_versions():
  page = performance.render([RESULT]).replace("\u00a0", " ")
  assert (
    "| a model | float32, compiled: 3 s | transformers 4.5, float32: 4 s |"
    " **1.38** faster (1.25 to 1.50) |"
    " [1.2, AVX-512, 2 threads, 2001-02-03](#run-1) |\n"
  ) in page
  assert "A processor (AVX2, AVX-512), 2 threads, 2 passes" in page
  assert "this project 1.2, torch 6.7+cpu, transformers 4.5" in page


@pytest.mark.parametrize(
  "lowest,highest,word",
  [(1.1, 1.2, "faster"), (0.8, 0.9, "slower"), (0.9, 1.1, "unclear")],
)
def test_a_ratio_says_which_is_faster(lowest, highest, word):
  ratio = RESULT.ratios[0]._replace(lowest=lowest, highest=highest)
  page = performance.render([dataclasses.replace(RESULT, ratios=[ratio])])
  (found,) = re.findall(r"\*\*1\.38\*\* (\w+)", page)
  assert found == word


def test_a_row_of_the_readme_is_the_newest():
  found = [of_version("0.9.0", processor="Old"), of_version("0.10.0")]
  row = performance.summary(found).splitlines()[2]
  assert "[0.10.0, AVX-512" in row and "run-2)" in row


# The table in README.md

EPOCH = dataclasses.replace(
  RESULT,
  benchmark="mrpc_epoch",
  work="MRPC, minilm",
  command="python -m benchmarks.mrpc_epoch",
  values={"an epoch": RESULT.values["a step"]},
  ratios=[ratio._replace(measure="an epoch") for ratio in RESULT.ratios],
)


def of_version(version, **more):
  versions = {"project": version, "commit": "abc"}
  return dataclasses.replace(EPOCH, versions=versions, **more)


def test_a_row_of_the_readme_has_the_fastest_other_code():
  sides = EPOCH.sides | {"reference": {"description": "", "versions": {}}}
  values = {"an epoch": EPOCH.values["an epoch"] | {"reference": [9.0, 9.0]}}
  ratios = [Ratio("an epoch", "ours", "reference", 3, 3, 3), *EPOCH.ratios]
  result = of_version("0.9.0", sides=sides, values=values, ratios=ratios)
  tables = performance.summary([result])
  assert "transformers" in tables and "google-research" not in tables
