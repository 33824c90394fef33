"""Tests of what the report of a run says at its top, and in which order."""

import json
import re
import shlex
import types

import pytest
import run_folders
from event_files_test import write_events
from html_pages import Page, rows_of
from parametrize import parametrize

from bertlib.cli import option
from bertlib.hardware.devices import Devices
from bertlib.io.result_files import Selection
from bertlib.reporting import html_report, run_report
from bertlib.reporting.statistics import Interval
from bertlib.settings.common import DeviceSettings
from bertlib.task import task_record
from bertlib.task.task_record import TaskRecord
from bertlib.tasks.classification.settings import ClassifierSettings

pytestmark = pytest.mark.graph

RECEIPT = run_folders.receipt(
  "out",
  started="2026-11-22T20:59:30+00:00",
  ended="2026-11-22T22:01:33+00:00",
  device={"cpu": "A processor", "cores": 2, "gpus": []},
)


@pytest.fixture
def make_run(tmp_path):
  """Makes a run; `metrics` are those of its task, the primary one first."""

  def make(metrics=("accuracy", "f1", "loss"), seeds=(), receipt=RECEIPT):
    (tmp_path / "run.json").write_text(json.dumps(receipt))
    folder = str(tmp_path)
    settings = option.make(ClassifierSettings, output_dir=folder, seed=12)
    return types.SimpleNamespace(
      settings=settings,
      flags=settings.flags,
      devices=Devices(DeviceSettings(), precision="bfloat16"),
      seeds=list(seeds),
      output_dir=folder,
      path=lambda name: str(tmp_path / name),
      selection=Selection(0, metrics[0]),
      on_tpu=False,
      task=types.SimpleNamespace(
        name="own",
        record=TaskRecord("own"),
        metrics=metrics,
        description={"task": "mrpc"},
      ),
    )

  return make


def report(run, found=None, num_examples=None):
  found = found or run_report.Findings()
  outcome = run_report.Outcome(run, None, found, num_examples or {})
  run_report.write_report(outcome)
  with open(run.path("report.html"), encoding="utf-8") as file:
    return file.read()


def rows_under(page, title):
  """Cells of the rows below the heads of a table."""
  section = page.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
  return rows_of(section)[1:]


def test_settings_are_what_the_run_was_made_with(make_run):
  counts = {"training examples": 3668, "dev examples": 0}
  page = report(make_run(), num_examples=counts)
  assert "run_classifier.py · mrpc · 2026-11-22</p>" in page
  assert rows_under(page, "Settings") == [
    ["started", "2026-11-22 20:59:30+00:00"],
    ["ended", "2026-11-22 22:01:33+00:00"],
    ["device", "A processor"],
    ["precision", "bfloat16"],
    ["seed", "12"],
    ["training examples", "3,668"],
  ]


@parametrize("gpus, text", (["H200"], "H200"), (["A", "B", "A"], "2 × A, B"))
def test_gpus_are_the_device(make_run, gpus, text):
  receipt = RECEIPT | {"device": {**RECEIPT["device"], "gpus": gpus}}
  page = report(make_run(receipt=receipt))
  assert ["device", text] in rows_under(page, "Settings")


@parametrize(
  "metrics, shown",
  (("accuracy", "f1", "loss"), "accuracy"),
  (("f1", "accuracy"), "f1"),
  (("loss", "f1"), "f1"),
  (("best_f1", "accuracy"), "accuracy"),
  (("not_computed", "f1"), "f1"),
)
def test_the_primary_metric_comes_first(make_run, metrics, shown):
  results = {"eval_accuracy": 0.75, "eval_f1": 0.5, "best_f1": 0.9, "loss": 1.0}
  page = report(make_run(metrics), run_report.Findings(results))
  value = {"accuracy": "0.7500", "f1": "0.5000"}[shown]
  assert re.findall("<b>(.*?)</b><br>(.*?)</p>", page) == [(value, shown)]


def test_the_headline_and_all_metrics_have_intervals(make_run):
  results = {"eval_accuracy": 0.75, "eval_f1": 0.5}
  intervals = {
    "accuracy": Interval(0.7, 0.8, "Wilson"),
    "f1": Interval(0.4, 0.6, "bootstrap"),
  }
  page = report(make_run(), run_report.Findings(results, intervals=intervals))
  assert "0.7000 to 0.8000 (Wilson)" in page
  assert rows_under(page, "Metrics") == [
    ["accuracy", "0.7500", "0.7000 to 0.8000"],
    ["f1", "0.5000", "0.4000 to 0.6000"],
  ]


def test_all_seeds_come_first_and_are_named(make_run, tmp_path):
  statistics = {
    "metric": "accuracy",
    "seeds": [3, 4],
    "scores": [0.5, 0.75],
    "median": 0.625,
    "mean": 0.625,
    "standard_deviation": 0.176,
    "confidence_interval": [-0.96, 2.21],
    "collapsed": [3],
    "best_seed": 4,
  }
  (tmp_path / "seeds.json").write_text(json.dumps(statistics))
  found = run_report.Findings(
    {"eval_accuracy": 0.75},
    [html_report.table("Of the task", [])],
    [html_report.warning("Careful")],
  )
  page = report(make_run(seeds=[3, 4]), found)
  assert ["seeds", "3, 4"] in rows_under(page, "Settings")
  assert "Best of 2 seeds</p>" in page
  titles = re.findall("<h2>(.*?)</h2>", page)
  assert titles == ["Warning", "Metrics", "Seeds", "Of the task", "Settings"]
  rows = [["3", "0.5000", "collapsed"], ["4", "0.7500", "kept as the best"]]
  assert rows_under(page, "Seeds")[:2] == rows


def test_losses_are_in_one_picture_with_the_best_step(make_run, tmp_path):
  first, second = {"loss": 0.9, "rate": 2.0}, {"loss": 0.8}
  write_events(tmp_path, (1, 1, first), (2, 2, second))
  (tmp_path / "dev_scores.jsonl").write_text(
    '{"step": 1, "loss": 0.7, "accuracy": 0.1}\n{"step": 2, "accuracy": 0.0}\n'
  )
  page = report(make_run())
  captions = [" ".join(text.split()) for text in Page(page).texts("figcaption")]
  assert captions == [
    "loss ━ training last 0.8000 ━ dev set last 0.7000",
    "dev accuracy last 0.0000",
    "rate last 2.0000",
  ]
  assert "best accuracy, step 1." in page


@parametrize("script", "run_classifier", "run_pretraining")
def test_the_command_to_predict_needs_the_folder_and_its_input(script):
  folder = "a model's folder; $HOME"
  ((_, shown),) = run_report.predict_command(task_record.find(script), folder)
  (command,) = Page(shown).texts("pre")
  # A shell joins the lines, unlike `shlex`.
  start, *flags = shlex.split(command.replace("\\\n", " "))[1:]
  assert start == f"{script}.py"
  named = {flag.partition("=")[0] for flag in flags}
  assert named == {"--do_predict", "--predict_file", "--output_dir"}
  assert f"--output_dir={folder}" in flags
  assert run_report.predict_command(TaskRecord("a_script"), folder) == []


@parametrize(
  "answers, gold, collapsed",
  (["yes"] * 20, None, True),
  (["yes"] * 19, None, False),  # may be chance
  (["yes"] * 19 + ["no"], None, False),
  (["yes"] * 3, ["yes", "no", "no"], True),
  (["yes"] * 3, ["no"] * 3, False),
  ([], [], False),
)
def test_equal_predictions_are_described(answers, gold, collapsed):
  sections = run_report.collapse_warning(answers, gold)
  assert bool(sections) == collapsed
  for _, text in sections:
    assert "&#x27;yes&#x27;" in text and str(len(answers)) in text


def test_labels_that_are_never_predicted_are_named(caplog):
  found = run_report.missing_labels_warning
  assert found("cab", "aaabbc", "Do it") == []
  (warning,) = found("aad", "aaabbc", "Do it")
  assert "Never predicted" in warning.content
  assert caplog.messages == [
    "Never predicted: b (2 of 6 in the dev set), c (1 of 6 in the dev set)."
    " Do it"
  ]
