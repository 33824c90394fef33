"""Tests of the HTML page of a comparison."""

import pytest
import run_folders
from html_report_test import Page, rows_of, write_events
from matplotlib.figure import Figure

from bertlib.reporting import (
  comparison_page,
  html_report,
  recorded_runs,
  report_charts,
)
from bertlib.tasks import records

pytestmark = pytest.mark.graph


def page_of(tmp_path, *names):
  """The page on the runs in these folders."""
  runs = recorded_runs.find_runs(
    [str(tmp_path / name) for name in names], records.find
  )
  path = tmp_path / "page.html"
  comparison_page.write_page(str(path), runs)
  return path.read_text(encoding="utf-8")


def write_pair(tmp_path, **changed):
  """Two runs, of which the second one has the higher accuracy."""
  for name, accuracy in (("a", 0.5), ("b<i>", 0.75)):
    run_folders.write_run(
      tmp_path / name,
      results={"eval_accuracy": accuracy, "eval_loss": 0.25},
      **changed,
    )


def test_the_best_value_is_bold_and_no_other(tmp_path):
  write_pair(tmp_path)
  page = page_of(tmp_path, "a", "b<i>")
  bold = [
    text
    for tag, attributes, text in Page(page).elements
    if tag == "td" and "700" in attributes.get("style", "")
  ]
  assert bold == ["0.7500"]
  assert rows_of(page)[2][:3] == ["b<i>", "0.7500", "0.2500"]


def test_facts_name_the_best_run(tmp_path):
  write_pair(tmp_path)
  page = Page(page_of(tmp_path, "a", "b<i>"))
  facts = dict(zip(page.texts("dt"), page.texts("dd")))
  assert facts == {"best accuracy": "0.7500 (b<i>)", "dev data": "the same"}


def test_other_dev_data_are_warned_of_first(tmp_path):
  write_pair(tmp_path)
  other = {"train_file": "a" * 64, "dev_file": "f" * 64}
  run_folders.write_run(tmp_path / "c", data=other)
  page = Page(page_of(tmp_path, "a", "c"))
  assert page.texts("h2")[0] == "Warning"
  assert "with other dev data than a: c" in page.texts("section")[0]


def test_each_run_has_a_line_and_a_place_in_the_legend(tmp_path, monkeypatch):
  rows = [{"step": 1, "accuracy": 0.1}, {"step": 2, "accuracy": 0.2}]
  write_pair(tmp_path, dev_scores=rows)
  for name in ("a", "b<i>"):
    write_events(tmp_path / name, (1, 1, {"loss": 0.9}), (2, 2, {"loss": 0.8}))
  drawn = []

  def keep(size, draw, caption):
    drawn.append(Figure(size).subplots())
    draw(drawn[-1])
    return caption

  monkeypatch.setattr(report_charts, "picture", keep)
  page = Page(page_of(tmp_path, "a", "b<i>"))
  assert page.texts("b") == ["training loss", "dev accuracy"]
  assert page.texts("bdi") == ["a", "b<i>"]
  training, dev = (
    [line.get_xydata().tolist() for line in axes.lines] for axes in drawn
  )
  assert training == [[[1, pytest.approx(0.9)], [2, pytest.approx(0.8)]]] * 2
  assert dev == [[[1, 0.1], [2, 0.2]]] * 2
  colors = {line.get_color() for line in drawn[0].lines}
  assert len(colors) == 2


def test_without_events_no_curve_is_drawn(tmp_path):
  write_pair(tmp_path)
  assert "Nothing was recorded." in page_of(tmp_path, "a", "b<i>")
  assert html_report.read_scalars(str(tmp_path / "a")) == {}


@pytest.mark.parametrize(
  ("predicted", "has_test"),
  [([["yes", "no"] * 10, ["no"] * 20], True), ([], False)],
)
def test_tests_and_intervals_are_explained(tmp_path, predicted, has_test):
  for name, labels in zip("ab", predicted or [(), ()]):
    run_folders.write_run(
      tmp_path / name,
      results={"eval_macro_f1": 0.5, "labels": '["no", "yes"]'},
      predictions=[
        {
          "guid": f"dev-{n}",
          "gold": ["no", "yes"][n % 3 == 0],
          "predicted": label,
        }
        for n, label in enumerate(labels)
      ],
    )
  page = page_of(tmp_path, "a", "b")
  assert ("McNemar" in page) == has_test
  assert ("paired bootstrap" in page) == has_test
