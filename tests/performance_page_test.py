"""Tests of the page on performance, and of the results that it shows."""

import dataclasses
import re
import statistics

import pytest

from benchmarks import results
from benchmarks.results import MEASURES, Ratio, Result
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
GOAL = {
  "benchmark": "training_step",
  "work": "a model",
  "measure": "a step",
  "side": "ours",
}


@each_kept
def test_every_field_of_a_kept_result_is_given(result):
  optional = {"ratios", "device", "load", "note", "more"}
  for field in dataclasses.fields(result):
    assert getattr(result, field.name) or field.name in optional, field.name
  assert re.fullmatch(r"\d{4}-\d\d-\d\d", result.date)
  assert {"project", "python"} <= result.versions.keys()
  for by_side in result.values.values():
    assert by_side.keys() <= result.sides.keys()


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


@each_kept
def test_the_page_has_every_kept_result(result):
  page = performance.page().replace("\u00a0", " ")
  assert result.command in page
  slowest_first = sorted(result.ratios, key=lambda r: -r.median)
  beside_the_fastest = {(r.measure, r.side): r for r in slowest_first}
  for ratio in beside_the_fastest.values():
    if any(ratio.measure in s.measures for s in performance.SECTIONS):
      by_side = result.values[ratio.measure]
      show = MEASURES[ratio.measure].show
      pattern = ".*".join(
        re.escape(text)
        for text in (
          f"| {result.work}",
          show(statistics.median(by_side[ratio.side])),
          show(statistics.median(by_side[ratio.against])),
          f"**{ratio.median:.2f}**",
          f"{ratio.lowest:.2f}" if ratio.lowest < ratio.highest else "",
        )
      )
      assert re.search(pattern, page), pattern


def test_the_text_of_the_page_has_no_number():
  assert not re.search(r"\d", performance.render([], []))


def test_a_row_has_both_values_the_ratio_and_the_versions():
  page = performance.render([RESULT], []).replace("\u00a0", " ")
  assert (
    "| a model | float32, compiled: 3 s | transformers 4.5, float32: 4 s |"
    " **1.38** faster (1.25 to 1.50) |"
    "  | [AVX-512, 2 threads, 2001-02-03](#run-1) |\n"
  ) in page
  assert "A processor (AVX2, AVX-512), 2 threads, 2 passes" in page
  assert "this project 1.2, torch 6.7+cpu, transformers 4.5" in page


def test_a_row_names_the_maker_of_the_processor():
  result = dataclasses.replace(RESULT, processor="AMD EPYC")
  page = performance.render([result], []).replace("\u00a0", " ")
  assert "[AMD AVX-512, 2 threads, 2001-02-03](#run-1)" in page


@pytest.mark.parametrize(
  "lowest,highest,word",
  [(1.1, 1.2, "faster"), (0.8, 0.9, "slower"), (0.9, 1.1, "unclear")],
)
def test_a_ratio_says_which_is_faster(lowest, highest, word):
  ratio = RESULT.ratios[0]._replace(lowest=lowest, highest=highest)
  page = performance.render([dataclasses.replace(RESULT, ratios=[ratio])], [])
  (found,) = re.findall(r"\*\*1\.38\*\* (\w+)", page)
  assert found == word


@pytest.mark.parametrize(
  "limit,shown",
  [
    ({"ratio": 1.3}, "1.3: met"),
    ({"ratio": 1.4}, "1.4: **missed**"),
    ({"at_most": 3.5}, "3.5 s: met"),
    ({"at_most": 2.5}, "2.5 s: **missed**"),
    ({"ratio": 1.4, "against": "hugging face"}, "1.4: **missed**"),
  ],
)
def test_a_row_has_its_goal(limit, shown):
  assert f"| {shown} |" in performance.render([RESULT], [GOAL | limit])


@pytest.mark.parametrize(
  "other", [{"threads": 1}, {"against": "reference"}, {"work": "another"}]
)
def test_a_goal_of_something_else_is_listed_as_not_measured(other):
  page = performance.render([RESULT], [GOAL | {"ratio": 7.5} | other])
  row, listed = page.split("## Goals that no run shows")
  assert "7.5" not in row
  assert "| 7.5 |" in listed


def test_each_table_is_of_one_version():
  found = [of_version("0.9.0", processor="Old"), of_version("0.10.0")]
  newer, older = performance.render(found, []).split("Version 0.9.0 ")
  assert newer.index("## Training step") < newer.index("Version 0.10.0 of")
  assert newer.count("#run-2)") == 1 and "#run-1)" not in newer
  assert older.count("#run-1)") == 1 and "#run-2)" not in older


def test_metrics_are_shown_with_their_difference():
  values = {"spearman": {"ours": [0.5, 0.6], "sentence transformers": [0.4]}}
  sides = {name: RESULT.sides["ours"] for name in values["spearman"]}
  result = dataclasses.replace(
    RESULT, benchmark="embeddings", values=values, sides=sides, ratios=[]
  )
  page = performance.render([result], [])
  assert "0.5500" in page
  assert "| +0.1500 |" in page


def test_each_kept_goal_is_of_a_known_measure_and_limit():
  for goal in performance.goals():
    assert goal["measure"] in MEASURES
    assert ("ratio" in goal) != ("at_most" in goal)


# Tables in README.md


def test_tables_of_the_readme_are_those_of_the_results():
  # If this fails: python -m website.performance
  text = performance.README.read_text(encoding="utf-8")
  assert text == performance.with_summary(text)


STEP = dataclasses.replace(
  RESULT,
  work="BERT-Base, 16 x 128 tokens",
  command="python -m benchmarks.training_step",
)


def of_version(version, **more):
  versions = {"project": version, "commit": "abc"}
  return dataclasses.replace(STEP, versions=versions, **more)


def test_the_readme_has_the_newest_version_and_then_the_newest_date():
  found = [
    of_version("0.9.0", date="2001-02-05"),
    of_version("0.10.0", date="2001-02-03"),
    of_version("0.10.0", date="2001-02-04"),
  ]
  tables = performance.summary(found)
  assert re.findall(r"^Version (.+) of", tables, re.M) == ["0.10.0"]
  assert re.findall(r"2001-\S+\)", tables) == [
    "2001-02-04](docs/results/performance.md#run-3)"
  ]


def tokenizer_result(version, text, ratio=1.375):
  kinds = ("ids", "tokens with offsets")
  return of_version(
    version,
    benchmark="tokenizer_speed",
    work=f"9 lines of {text}",
    sides={"ours": {**STEP.sides["ours"], "description": ""}}
    | {"tokenizers": {"description": "", "versions": {"tokenizers": "0.1"}}},
    values={kind: {"ours": [2e-5], "tokenizers": [3e-5]} for kind in kinds},
    ratios=[
      Ratio(kind, "ours", "tokenizers", ratio, ratio, ratio) for kind in kinds
    ],
  )


def test_each_table_of_the_readme_is_of_one_version():
  found = [
    of_version("0.9.0"),
    tokenizer_result("0.10.0", "novels.txt", 1.25),
    tokenizer_result("0.10.0", "some_zh_lines.txt", 1.75),
  ]
  newer, older = performance.summary(found).split("Version 0.9.0 ")
  assert newer.startswith("Version 0.10.0 ")
  for text, ratio in (("English", "1.25"), ("Chinese", "1.75")):
    for kind in ("ids", "tokens with offsets"):
      row = rf"^\| {text} text to {kind}, as .*\*\*{ratio}\*\* faster"
      assert re.search(row, newer, re.M), row
  assert "Training step" in older and "Training step" not in newer


def test_a_row_of_the_readme_has_the_fastest_other_code():
  sides = STEP.sides | {"reference": {"description": "", "versions": {}}}
  values = {"a step": STEP.values["a step"] | {"reference": [9.0, 9.0]}}
  ratios = [Ratio("a step", "ours", "reference", 3, 3, 3), *STEP.ratios]
  result = of_version("0.9.0", sides=sides, values=values, ratios=ratios)
  tables = performance.summary([result])
  assert "transformers" in tables and "google-research" not in tables
