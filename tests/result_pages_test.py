"""Pages of results are those that the code generates, and say what it measured.

If one of `docs/` is not, renew it, for example: python -m website.fine_tuning
"""

import dataclasses
import json
import re
import shutil

import pytest
from parametrize import parametrize

from benchmarks import results
from benchmarks.results import Ratio, Result
from website import fine_tuning, markdown, performance, record_features

pytestmark = pytest.mark.unit


@parametrize(
  "module",
  *(fine_tuning, performance),
  pytest.param(record_features, marks=pytest.mark.graph),  # TensorFlow
  ids=lambda module: module.__name__,
)
def test_a_page_in_docs_is_the_generated_one(module):
  assert module.PAGE.read_text(encoding="utf-8") == module.page()


@parametrize(
  "name, table",
  ("results", fine_tuning.summary()),
  ("performance", performance.summary(performance.kept())),
  ids=["results", "performance"],
)
def test_a_table_of_the_readme_is_the_generated_one(name, table):
  text = markdown.README.read_text(encoding="utf-8")
  assert text == markdown.renewed(markdown.README, **{name: table})


# Fine-tuning

RUN = {
  "seed": 1,
  "date": "2026-01-02",
  "processor_seconds": 75.4,
  "precision": "bfloat16",
  "device": {"cpu": "Example CPU", "cores": 2, "gpus": []},
  "versions": {"project": "1.2.0", "commit": "0123456789abcdef"},
  "metrics": {"eval_accuracy": 0.75},
}


@pytest.fixture
def page(tmp_path, monkeypatch):
  def make(ours, peer=()):
    (tmp_path / "fine_tuning").mkdir()
    receipt = {
      "task": "MRPC",
      "title": "MRPC",
      "about": "Paraphrases",
      "model": "some-encoder",
      "metrics": ["eval_accuracy"],
      "data": {},
      "ours": {"commands": ["python run.py --flag"], "runs": ours},
      "peer": {
        "commands": ["python -m benchmarks.finetune_transformers"],
        "runs": list(peer),
      },
    }
    path = tmp_path / "fine_tuning" / "MRPC.json"
    path.write_text(json.dumps(receipt))
    published = {
      "sources": {"paper": {"text": "A paper", "url": "https://example.org"}},
      "tasks": {"MRPC": {"source": "paper", "eval_accuracy": 84.07}},
    }
    (tmp_path / "published.json").write_text(json.dumps(published))
    shutil.copy(fine_tuning.FOLDER / "lockstep.jsonl", tmp_path)
    monkeypatch.setattr(fine_tuning, "FOLDER", tmp_path)
    return fine_tuning.page()

  return make


def with_accuracy(value, **more):
  return {**RUN, "metrics": {"eval_accuracy": value}, **more}


# Welch's interval of the first row: a difference of 10 with a standard error of
# the square root of 7.0711**2 and 14.1421**2, each divided by 2, and
# (25 + 100)**2 / (25**2 + 100**2) degrees of freedom.
@parametrize(
  "ours, peer, shown",
  ([0.8, 0.9], [0.65, 0.85], "none shown: −59.19 to +79.19"),
  ([0.80, 0.81, 0.82], [0.70, 0.71, 0.72], "higher: +7.73 to +12.27"),
  ([0.70, 0.71, 0.72], [0.80, 0.81, 0.82], "lower: −12.27 to −7.73"),
  ([0.8, 0.9], [0.7], "unknown, one seed"),
  ([0.8], [0.7, 0.9], "unknown, one seed"),
  ([0.8, 0.8], [0.7, 0.7], "unknown"),
  ([0.8, 0.9], [], "–"),
)
def test_difference_is_an_interval(page, ours, peer, shown):
  found = page(*([*map(with_accuracy, side)] for side in (ours, peer)))
  row = next(line for line in found.splitlines() if "| accuracy |" in line)
  assert f" {len(ours)} / {len(peer)} | {shown} |" in row


def test_score_is_mean_and_deviation_of_the_newest_version_alone(page):
  scores = ("0.9.0", 0.1), ("0.10.0", 0.8), ("0.10.0", 0.9)
  runs = [
    with_accuracy(score, versions={"project": version})
    for version, score in scores
  ]
  found = page(runs)
  assert "| accuracy | 85.00\N{NBSP}±\N{NBSP}7.07 | – | 2 / 0 |" in found
  assert "0.9.0" not in found


# Performance

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
  text, _, rest = performance.page().partition("<!-- performance: begin -->")
  assert rest and not re.search(r"\d", text)


def test_a_row_has_both_values_the_ratio_and_the_versions():
  page = performance.render([RESULT]).replace("\u00a0", " ")
  assert (
    "| a model | float32, compiled: 3 s | transformers 4.5, float32: 4 s |"
    " **1.38** faster (1.25 to 1.50) |"
    " [1.2, AVX-512, 2 threads, 2001-02-03](#run-1) |\n"
  ) in page
  assert "A processor (AVX2, AVX-512), 2 threads, 2 passes" in page
  assert "this project 1.2, torch 6.7+cpu, transformers 4.5" in page


@parametrize(
  "lowest,highest,word",
  (1.1, 1.2, "faster"),
  (0.8, 0.9, "slower"),
  (0.9, 1.1, "unclear"),
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


def test_the_same_command_on_another_machine_is_another_run():
  other = dataclasses.replace(RESULT, instruction_sets="avx avx2")
  page = performance.render([RESULT, other])
  assert "[1.2, AVX2, 2 threads, 2001-02-03](#run-2)" in page.replace(
    "\u00a0", " "
  )


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
