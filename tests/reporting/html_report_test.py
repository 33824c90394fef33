"""Tests of the HTML report."""

import html.parser
import math
import os
import re
import subprocess
import sys
import unicodedata

import commands
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import reference_data
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from matplotlib.figure import Figure

from bertlib.data.model_inputs import Lengths
from bertlib.reporting import html_report, report_charts, report_page
from bertlib.reporting.statistics import Interval

pytestmark = pytest.mark.unit

TEXTS = st.text(st.characters(exclude_categories=()))
FEW = hypothesis.settings(
  max_examples=20,
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


class Page(html.parser.HTMLParser):
  """A parsed page.

  Attributes:
    elements: tag, attributes and text of each element, in order of its end; in
      texts, `<code>` is replaced by the character that it escapes.
  """

  VOID = ("meta", "br")

  def __init__(self, page):
    super().__init__()
    self.elements, self._open = [], []
    self.feed(page)
    self.close()
    assert not self._open

  def handle_starttag(self, tag, attrs):
    if tag in self.VOID:
      self.elements.append((tag, dict(attrs), ""))
    else:
      self._open.append((tag, dict(attrs), []))

  def handle_endtag(self, tag):
    opened, attrs, text = self._open.pop()
    assert tag == opened
    text = "".join(text)
    if tag == "code":
      text = text.encode("ascii").decode("unicode_escape")
    self.elements.append((tag, attrs, text))
    if self._open:
      self._open[-1][2].append(text)

  def handle_startendtag(self, tag, attrs):
    self.elements.append((tag, dict(attrs), ""))

  def handle_data(self, data):
    if self._open:
      self._open[-1][2].append(data)

  def texts(self, *tags):
    return [text for tag, _, text in self.elements if tag in tags]


def rows_of(page, table=0):
  """Texts of the cells of a table, by row."""
  tables, rows, row = [], [], []
  for tag, _, text in Page(page).elements:
    if tag in ("th", "td"):
      row.append(text)
    elif tag == "tr":
      rows.append(row)
      row = []
    elif tag == "table":
      tables.append(rows)
      rows = []
  return tables[table]


def points(values):
  return list(enumerate(values))


def sections(text="some"):
  """A section of each kind, with `text` wherever a text is allowed."""
  draw = np.random.default_rng(1)
  labels = [f"{text}{i}" for i in range(3)]
  many = [f"{text}{i}" for i in range(30)]
  confidence = draw.random(50)
  return [
    html_report.curves(text, {text: points(draw.random(300))}, (7, text)),
    html_report.table(text, [{text: text, "f1": 0.5}]),
    html_report.confusion_matrix(labels, *draw.integers(0, 3, (2, 40))),
    html_report.confusion_matrix(many, *draw.integers(0, 30, (2, 400))),
    html_report.calibration(confidence, confidence > 0.4),
    html_report.lengths(
      Lengths(draw.integers(1, 300, 80).tolist(), 128, [0] * 40 + [25] * 40)
    ),
    html_report.errors([{"text": text, "label": text, "confidence": 0.9}]),
    html_report.commands(text, (text, text)),
    html_report.warning(text),
  ]


def of_counts(matrix):
  """Gold and predicted labels of examples with this confusion matrix."""
  cells = np.argwhere(np.array(matrix) >= 0)
  return np.repeat(cells, np.ravel(matrix), axis=0).T


def written(tmp_path, *arguments):
  path = tmp_path / "report.html"
  html_report.write(str(path), *arguments)
  return path.read_bytes().decode()


@pytest.fixture
def drawn(monkeypatch):
  """The Matplotlib axes of all pictures drawn, as a list."""
  axes = []

  def keep(size, draw, caption=""):
    axes.append(Figure(size).subplots())
    draw(axes[-1])
    return caption

  monkeypatch.setattr(report_charts, "picture", keep)
  return axes


# Scalars


def write_events(folder, *events, suffix=""):
  """Writes an event file of (time, step, {tag: value}), as Estimator does."""
  with tf.Graph().as_default():  # FileWriter needs graph mode
    writer = tf.summary.FileWriter(str(folder), filename_suffix=suffix)
  for time, step, values in events:
    summary = tf.Summary(
      value=[
        tf.Summary.Value(tag=tag, simple_value=value)
        for tag, value in values.items()
      ]
    )
    writer.add_event(tf.Event(wall_time=time, step=step, summary=summary))
  writer.close()


@pytest.mark.graph
def test_scalars_of_a_file_writer_are_read(tmp_path):
  write_events(
    tmp_path, (1, 20, {"loss": 0.5}), (2, 10, {"loss": 1.5, "rate": 2.0})
  )
  assert html_report.read_scalars(str(tmp_path)) == {
    "loss": [(10, 1.5), (20, 0.5)],
    "rate": [(10, 2.0)],
  }


@pytest.mark.graph
def test_scalars_of_tensorflow_2_are_read(tmp_path):
  with tf2.summary.create_file_writer(str(tmp_path)).as_default():
    for step in (3, 5):
      tf2.summary.write("loss", step / 2, step)
      tf2.summary.write("note", "not a number", step)
      tf2.summary.write("weights", [1.0, 2.0], step)
  assert html_report.read_scalars(str(tmp_path)) == {
    "loss": [(3, 1.5), (5, 2.5)]
  }


@pytest.mark.graph
def test_later_value_of_a_step_written_twice_is_used(tmp_path):
  # The file that sorts first was written last.
  write_events(tmp_path, (50, 2, {"a": 9.0}), (60, 3, {"a": 8.0}), suffix=".a")
  write_events(tmp_path, (10, 1, {"a": 1.0}), (20, 2, {"a": 2.0}), suffix=".b")
  assert html_report.read_scalars(str(tmp_path)) == {
    "a": [(1, 1.0), (2, 9.0), (3, 8.0)]
  }


@pytest.mark.graph
@pytest.mark.parametrize("num_lost", [1, 8, 20])
def test_incomplete_record_ends_its_file(tmp_path, num_lost):
  write_events(tmp_path, (1, 1, {"a": 1.0}), (2, 2, {"a": 2.0}))
  (path,) = tmp_path.iterdir()
  os.truncate(path, path.stat().st_size - num_lost)
  assert html_report.read_scalars(str(tmp_path)) == {"a": [(1, 1.0)]}


@pytest.mark.graph
def test_other_files_and_folders_are_ignored(tmp_path):
  write_events(tmp_path / "eval", (1, 1, {"a": 1.0}))
  (tmp_path / "checkpoint").write_text("no events")
  assert html_report.read_scalars(str(tmp_path)) == {}


def test_missing_folder_has_no_scalars(tmp_path):
  assert html_report.read_scalars(str(tmp_path / "absent")) == {}


# The page


def test_html_tags_are_balanced(tmp_path):
  Page(written(tmp_path, "A run", {"seed": 1}, sections()))


def test_equal_data_give_equal_bytes(tmp_path):
  pages = [written(tmp_path, "A run", {"a": 1}, sections()) for _ in range(2)]
  assert pages[0] == pages[1]


def test_page_loads_nothing(tmp_path):
  page = written(tmp_path, "A run", {"a": 1}, sections())
  links = [
    value
    for _, attrs, _ in Page(page).elements
    for name, value in attrs.items()
    if name in ("src", "srcset", "href", "xlink:href", "data", "poster")
  ]
  assert links and all(link.startswith("#") for link in links)
  assert not re.search(r"https?:|@import|<script|<link|<!ENTITY", page)
  assert all(url.startswith("#") for url in re.findall(r"url\((.*?)\)", page))


def test_contents_link_to_the_sections(tmp_path):
  page = Page(written(tmp_path, "A run", {}, sections("a & b")))
  ids = {a["id"] for tag, a, _ in page.elements if tag == "section"}
  links = [
    (a["href"][1:], text) for tag, a, text in page.elements if tag == "a"
  ]
  assert {link for link, _ in links} == ids
  assert [text for _, text in links] == page.texts("h2")


def test_facts_are_shown_at_the_top(tmp_path):
  facts = {"seed": 12345, "rate": 2e-5, "f1": 0.98765, "on": True, "off": None}
  page = Page(written(tmp_path, "A run", facts, []))
  assert page.texts("dt") == list(facts)
  assert page.texts("dd") == ["12345", "2e-05", "0.9877", "True", "–"]


def test_elements_with_equal_ids_are_equal(tmp_path):
  page = written(tmp_path, "A run", {}, [*sections(), *sections("other")])
  found = list(
    re.finditer(r'<(?:path|clipPath) [^>]*?id="(\w+)"[^>]*>(<rect.*?>)?', page)
  )
  by_id = {match[1]: match[0] for match in found}
  assert len(by_id) < len(found)
  assert all(by_id[match[1]] == match[0] for match in found)
  used = re.findall(r'(?:url\(|xlink:href=")#(\w+)', page)
  assert used and by_id.keys() == set(used)


def test_page_of_20000_steps_is_smaller_than_a_megabyte(tmp_path):
  values = np.random.default_rng(0).normal(size=20000)
  page = written(
    tmp_path,
    "A run",
    {},
    [
      html_report.curves(
        "Training", {str(i): points(values) for i in range(10)}
      )
    ],
  )
  assert len(page) < 1e6


@pytest.mark.process
def test_import_loads_neither_tensorflow_nor_matplotlib():
  code = "import bertlib.reporting.html_report, sys;"
  code += " print({'tensorflow', 'matplotlib'} & {*sys.modules})"
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=commands.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.stdout == "set()\n", done.stderr


# Text


@FEW
@hypothesis.given(TEXTS)
@hypothesis.example("</title></style><script>alert(1)</script> & \"'")
@hypothesis.example("\\u200b \u200b \0 \r\n \u202e \ud800 \u2028")
def test_any_text_is_escaped_everywhere(tmp_path, drawn, text):
  page = Page(written(tmp_path, text, {text: text}, sections(text)))
  assert page.texts("h1", "dt", "dd") == [text] * 3
  assert page.texts("h2")[:2] == [text] * 2
  assert page.texts("b")[0] == page.texts("bdi")[0] == text
  assert page.texts("td")[0] == page.texts("td")[-3] == text
  assert page.texts("pre") == [text]
  assert f"{text}2" in page.texts("th")
  assert f"{text}29" in page.texts("td")


def test_naughty_strings_are_escaped(golden):
  path = golden("tokenization", "uncased.jsonl.gz")
  strings = [line["text"] for line in reference_data.read_jsonl(path)]
  page = Page(html_report.errors([{"text": text} for text in strings]))
  assert page.texts("td") == strings


def cell_of(text):
  """The HTML of a text in a table."""
  (cell,) = re.findall(
    "<td[^>]*><div[^>]*>(.*?)</div></td>",
    html_report.table("", [{"": text}]),
    flags=re.DOTALL,
  )
  return cell


@hypothesis.given(TEXTS)
@hypothesis.example("\u2028 \x85 \r \u202e \u2066 \ud800")
def test_characters_that_reorder_or_break_text_are_escaped(text):
  categories = {
    unicodedata.category(c) for c in cell_of(text) if c not in "\n\t"
  }
  assert not categories & {"Cc", "Cs", "Zl", "Zp"}
  bidi = {unicodedata.bidirectional(c) for c in cell_of(text)}
  assert not bidi & {
    "LRE",
    "LRO",
    "RLE",
    "RLO",
    "LRI",
    "RLI",
    "FSI",
    "PDF",
    "PDI",
  }


@pytest.mark.parametrize(
  "text",
  [
    "Quoi\u00a0?",
    "Prix\u202f: 12",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\u6771\u4eac\u3000\u90fd",
    "\U0001f469\u200d\U0001f4bb",
    "a\tb",
  ],
  ids=["French", "narrow space", "Persian", "Japanese", "emoji", "tab"],
)
def test_characters_of_ordinary_text_stay(text):
  assert cell_of(text) == text


# The top of the page


def top_of(tmp_path, **top):
  path = tmp_path / "report.html"
  html_report.write(str(path), "A run", {"f1": 0.5}, sections(), **top)
  return path.read_text()


def test_parts_of_the_page_are_in_order(tmp_path):
  page = top_of(
    tmp_path,
    subtitle="a <script>",
    headline=html_report.headline("accuracy", 0.75),
    details={"seed": 7},
  )
  parts = ["<h1>", "a &lt;script&gt;", "0.7500", "<nav>", ">f1<", ">seed<"]
  places = [page.index(part) for part in [*parts, "<h2>"]]
  assert places == sorted(places)
  Page(page)


def test_primary_metric_has_interval_baseline_and_number_of_examples():
  page = html_report.headline(
    "accuracy",
    0.8456,
    "408 examples",
    Interval(0.80741, 0.8775, "Wilson"),
    ("always <1>", 0.68),
    ["Best of 5 seeds"],
  )
  text = Page(f"<html>{page}</html>").texts("html")[0]
  lines = [
    "95% confidence interval 0.8074 to 0.8775 (Wilson)",
    "Baseline 0.6800: always <1>",
    "408 examples",
    "Best of 5 seeds",
  ]
  assert text.split() == ["0.8456accuracy", *"".join(lines).split()]


def test_numbers_in_percent_have_two_decimals():
  page = html_report.headline("f1", 84.5612, "", Interval(80.0, 88.333, ""))
  assert "84.56<" in page and "80.00 to 88.33" in page


def test_metrics_at_the_top_have_their_intervals(tmp_path):
  interval = Interval(0.4, 0.61, "bootstrap")
  facts = {
    "f1": html_report.with_interval(0.5, interval),
    "loss": html_report.with_interval(0.5, None),
  }
  page = Page(written(tmp_path, "A run", facts, []))
  assert page.texts("dd") == ["0.5000 (0.4000 to 0.6100)", "0.5"]


# Tables


def columns_of(rows):
  head, *body = rows_of(html_report.table("", rows))
  return dict(zip(head, zip(*body)))


def test_table_has_a_column_per_key():
  assert rows_of(html_report.table("", [{"a": "x", "b": 1}, {"c": "y"}])) == [
    ["a", "b", "c"],
    ["x", "1", "–"],
    ["–", "–", "y"],
  ]


@pytest.mark.parametrize(
  ("values", "shown"),
  [
    ([0.123456, 0.5, 1.0, 0.0], ("0.1235", "0.5000", "1.0000", "0.0000")),
    ([0.0987654, 0.9], ("0.0988", "0.9000")),
    ([100.0, 91.3456], ("100.00", "91.35")),
    ([123456.7, 3.0], ("123457", "3")),
    ([2e-5, 0.00012345], ("2e-05", "0.0001234")),
    ([1e-6, 1.0], ("1e-06", "1")),
    ([0.5, math.nan, -math.inf], ("0.5000", "nan", "-inf")),
    ([np.float32(0.25), None, np.int64(3)], ("0.2500", "–", "3")),
    ([True, False], ("True", "False")),
  ],
)
def test_numbers_of_a_column_have_equally_many_decimals(values, shown):
  assert columns_of([{"a": v} for v in values])["a"] == shown


def test_numbers_are_aligned_right():
  page = html_report.table("", [{"a": 1, "b": "1", "c": None}, {"a": 0.5}])
  kinds = [a["class"] for tag, a, _ in Page(page).elements if tag == "th"]
  assert kinds == ["number", "short", "number"]


def test_values_of_an_error_have_labels_for_narrow_screens():
  page = html_report.errors([{'a "b" \u202e': "x", "c": 1}])
  labels = [a["data-label"] for tag, a, _ in Page(page).elements if tag == "td"]
  assert labels == ['a "b" \\u202e', "c"]
  assert "data-label" not in html_report.table("", [{"a": 1}])


# Marked spans


def test_spans_are_marked_and_may_overlap():
  spans = [(4, 9, "gold"), (6, 12, "predicted")]
  shown = report_page.marked_text("0123456789 <b> abc", spans)
  assert shown == (
    '0123<mark class="gold">45</mark><mark class="gold predicted">678</mark>'
    '<mark class="predicted">9 &lt;</mark>b&gt; abc'
  )


def plain_parts(content, spans, margin):
  """The parts of a text that are shown."""
  shown = Page(f"<p>{report_page.marked_text(content, spans, margin)}</p>")
  return re.split("… | …\\n| …$", shown.texts("p")[0])


def test_text_far_from_all_spans_is_left_out():
  words = [f"word{i}" for i in range(300)]
  content = " ".join(words)
  spans = [
    (start, start + len(word), "gold")
    for word in ("word100", "word200")
    for start in [content.index(word)]
  ]
  parts = [part.split() for part in plain_parts(content, spans, 20) if part]
  assert parts == [words[98:103], words[198:203]]


@FEW
@hypothesis.given(
  TEXTS, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), max_size=4)
)
def test_marked_spans_are_shown_whole(text, places):
  spans = [
    (start, min(start + size, len(text)), "gold")
    for start, size in places
    if start < len(text)
  ]
  shown = report_page.marked_text(text, spans, margin=3)
  page = Page(f"<p>{shown}</p>")
  marked = "".join(t for tag, _, t in page.elements if tag == "mark")
  inside = sorted({i for start, end, _ in spans for i in range(start, end)})
  assert marked == "".join(text[i] for i in inside)


@pytest.mark.parametrize(
  "show", [html_report.errors, lambda r: html_report.table("", r)]
)
def test_table_without_rows_says_so(show):
  assert Page(show([])).texts("p") == ["There are none."]


# The confusion matrix


def test_confusion_matrix_has_recall_and_precision():
  page = html_report.confusion_matrix(
    ["a", "b", "c"], *of_counts([[6, 2, 0], [1, 3, 0], [0] * 3])
  )
  assert rows_of(page)[1:] == [
    ["a", "6", "2", "0", "75.0%"],
    ["b", "1", "3", "0", "75.0%"],
    ["c", "0", "0", "0", "–"],
    ["precision", "85.7%", "60.0%", "–", "75.0%"],
  ]


def test_confusion_matrix_is_shaded_by_correctness():
  page = html_report.confusion_matrix(["a", "b"], *of_counts([[3, 1], [0, 5]]))
  cells = [(a["class"], t) for tag, a, t in Page(page).elements if tag == "td"]
  shaded = [cell for cell in cells if cell[0] != "edge"]
  assert shaded == [("right", "3"), ("wrong", "1"), ("right", "5")]


def test_many_labels_show_the_most_frequent_confusions():
  counts = np.diag(np.full(100, 8))
  counts[5, 7], counts[7, 5], counts[40, 2] = 2, 4, 3
  labels = [f"l{i}" for i in range(100)]
  page = html_report.confusion_matrix(labels, *of_counts(counts))
  assert rows_of(page)[1:] == [
    ["l7", "l5", "4", "0.3333"],
    ["l40", "l2", "3", "0.2727"],
    ["l5", "l7", "2", "0.2000"],
  ]


def test_many_labels_show_recall_and_precision_of_each():
  counts = np.diag(np.full(30, 8))
  counts[1, 2], counts[3, 3] = 8, 0
  labels = [f"l{i}" for i in range(30)]
  page = html_report.confusion_matrix(labels, *of_counts(counts))
  assert rows_of(page, table=1)[2:5] == [
    ["l1", "16", "0.5000", "1.0000"],
    ["l2", "8", "1.0000", "0.5000"],
    ["l3", "0", "–", "–"],
  ]


def test_of_thousands_of_labels_the_most_frequent_are_shown():
  gold = np.repeat([4000, 17, 3], [3, 2, 1])
  labels = [f"l{i}" for i in range(5000)]
  page = html_report.confusion_matrix(labels, gold, gold)
  assert "The 200 most frequent of 5,000 labels" in page
  shown = [row[0] for row in rows_of(page)[1:]]
  assert len(shown) == 200 and shown[-1] == "l4000"
  assert {"l3", "l17"} < set(shown)


# Pictures


def slow_calibration_error(confidences, correct):
  error = 0
  for k in range(10):
    low, high = k / 10, (k + 1) / 10
    inside = [
      (confidence, is_correct)
      for confidence, is_correct in zip(confidences, correct)
      if low <= confidence < high or confidence == high == 1
    ]
    if inside:
      mean = sum(confidence for confidence, _ in inside) / len(inside)
      accuracy = sum(is_correct for _, is_correct in inside) / len(inside)
      error += len(inside) / len(correct) * abs(mean - accuracy)
  return error


CONFIDENCES = st.one_of(
  st.floats(0, 1), st.integers(0, 10).map(lambda k: k / 10)
)


@FEW
@hypothesis.given(
  st.lists(st.tuples(CONFIDENCES, st.booleans()), min_size=1, max_size=40)
)
def test_calibration_error_matches_a_plain_loop(drawn, cases):
  confidences, correct = zip(*cases)
  shown = re.search(
    "error ([0-9.]+)[.]</b>", html_report.calibration(confidences, correct)
  )
  expected = slow_calibration_error(confidences, correct)
  assert float(shown[1]) == pytest.approx(expected, abs=0.500001e-4)


def test_calibration_counts_each_prediction_once(drawn):
  html_report.calibration([0.0, 0.05, 0.1, 0.3, 0.999, 1.0], [True] * 6)
  counts = [text.get_text() for text in drawn[0].texts]
  assert counts == ["2", "1", "0", "1", "0", "0", "0", "0", "0", "2"]


def test_counts_of_many_predictions_are_short(drawn):
  bins = {0.3: 999, 0.5: 1744, 0.7: 9999, 1.0: 123_456}
  confidences = np.repeat([*bins], [*bins.values()])
  html_report.calibration(confidences, np.ones(len(confidences), bool))
  counts = [text.get_text() for text in drawn[0].texts]
  assert counts[3::2] == ["999", "1.7k", "10k", "123k"]


def test_calibration_shows_the_accuracy_of_each_bin(drawn):
  html_report.calibration([0.61, 0.65, 0.69, 0.9], [True, False, False, True])
  heights = [bar.get_height() for bar in drawn[0].patches]
  assert heights[6] == pytest.approx(1 / 3)
  x, y = drawn[0].lines[-1].get_data()
  assert (x[6], y[6]) == pytest.approx((0.65, 1 / 3))
  assert np.flatnonzero(np.isfinite(y)).tolist() == [6, 9]


def test_calibration_without_predictions_says_so():
  page = Page(html_report.calibration([], []))
  assert page.texts("p") == ["There are no predictions."]


@FEW
@hypothesis.given(
  st.lists(st.integers(0, 2000), min_size=1, max_size=30), st.integers(1, 600)
)
def test_no_bar_crosses_the_limit(drawn, lengths, limit):
  html_report.lengths(Lengths(lengths, limit, [0] * len(lengths)))
  line = drawn[-1].lines[0].get_xdata()[0]
  bars = drawn[-1].patches
  fits = [bar.get_height() for bar in bars if bar.get_x() < line]
  assert sum(fits) == sum(length <= limit for length in lengths)
  assert sum(bar.get_height() for bar in bars) == len(lengths)
  ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
  assert all(start >= line or end <= line for start, end in ends)


def test_lengths_are_those_before_truncation(drawn):
  page = Page(
    html_report.lengths(Lengths([100] * 3 + [228], 128, [0, 0, 0, 100]))
  )
  truncated, longest = page.texts("p")
  assert truncated == (
    "1 of 4 examples (25.0%) were truncated, which removed 100 of 528 tokens"
    " (18.9%)."
  )
  assert longest.startswith("Median length 100 tokens, maximum 228.")
  assert drawn[0].get_ylabel() == "examples"


def test_without_truncation_the_report_says_so(drawn):
  page = Page(html_report.lengths(Lengths([5, 6], 128, [0, 0])))
  assert page.texts("p")[0] == "None of 2 examples was truncated."


def test_lengths_of_windows_are_not_those_of_examples(drawn):
  """Truncated tokens of a question count once, not once per window."""
  section = html_report.lengths(
    Lengths([20, 20, 9], 20, [4, 0], "questions", [2, 1])
  )
  assert "<h2>Lengths of windows</h2>" in section
  divided, truncated, longest = Page(section).texts("p")
  assert divided == (
    "3 windows of 2 questions: 1 (50.0%) did not fit into one window and were"
    " divided into overlapping ones."
  )
  assert truncated == (
    "1 of 2 questions (50.0%) were truncated, which removed 4 tokens."
  )
  assert longest.startswith("Median length 20 tokens")
  assert drawn[0].get_ylabel() == "windows"


def test_lengths_without_examples_say_so():
  page = Page(html_report.lengths(Lengths([], 128, [])))
  assert page.texts("p") == ["There are no examples."]


def test_short_curve_shows_every_point(drawn):
  values = [(10, 1.0), (20, 4.0), (30, 2.0)]
  html_report.curves("", {"loss": values})
  assert list(zip(*drawn[0].lines[0].get_data())) == values
  assert not drawn[0].collections


def test_long_curve_shows_mean_minimum_and_maximum(drawn):
  values = np.random.default_rng(2).normal(size=20000)
  values[12345] = 99
  html_report.curves("", {"loss": points(values)})
  steps, means = drawn[0].lines[0].get_data()
  grouped = values.reshape(200, 100)
  np.testing.assert_allclose(means, grouped.mean(axis=1))
  np.testing.assert_allclose(steps, np.arange(200) * 100 + 49.5)
  band = drawn[0].collections[0].get_paths()[0].vertices
  assert band[:, 1].min() == values.min() and band[:, 1].max() == 99


@hypothesis.given(st.integers(1, 2000))
def test_groups_of_neighboring_points_have_equal_sizes(num_points):
  drawn_at = report_charts.thin_out(points(range(num_points)))[0]
  assert len(drawn_at) <= 200
  sizes = np.diff(drawn_at)
  assert len(sizes) == 0 or sizes.max() - sizes.min() <= 1


def test_nan_and_inf_are_counted_and_not_drawn(drawn):
  values = [1.0, math.nan, 3.0, math.inf, 5.0]
  page = html_report.curves("", {"loss": points(values)})
  shown = drawn[0].lines[0].get_ydata()
  np.testing.assert_array_equal(shown, [1, math.nan, 3, math.nan, 5])
  assert "2 NaN or Inf, last 5" in page


def test_marked_step_is_in_every_panel(drawn):
  page = html_report.curves(
    "", {"a": [(1, 1.0)], "b": points(range(9))}, (1200, "best")
  )
  for axes in drawn:
    assert axes.lines[-1].get_xdata()[0] == 1200
    assert axes.get_xlim()[1] > 1200
  assert "best</bdi>, step 1,200." in page


def test_losses_of_both_sets_are_in_one_panel(drawn):
  page = html_report.losses(points([3.0, 2.0]), [(1, 2.5)], (1, "best f1"))
  axes, _ = drawn  # the other is for a narrow screen
  training, dev, marked = axes.lines
  assert list(zip(*training.get_data())) == [(0, 3.0), (1, 2.0)]
  assert list(zip(*dev.get_data())) == [(1, 2.5)]
  assert marked.get_xdata()[0] == 1
  assert training.get_linestyle() != dev.get_linestyle()
  assert (
    "solid: training, last 2<" in page and "dashed: dev set, last 2.5<" in page
  )


@pytest.mark.parametrize("losses", [([], [(5, 1.0)]), ([(5, 1.0)], [])])
def test_one_of_the_losses_may_be_missing(drawn, losses):
  page = html_report.losses(*losses)
  assert len(drawn[0].lines) == 1
  assert ("dev set" in page) == bool(losses[1])


STATISTICS = {
  "metric": "f1",
  "seeds": [3, 4, 5],
  "scores": [0.5, 0.75, 0.25],
  "median": 0.5,
  "mean": 0.5,
  "standard_deviation": 0.25,
  "confidence_interval": [-0.121, 1.121],
  "collapsed": [5],
  "best_seed": 4,
}


def test_seeds_are_dots_over_their_mean_and_its_interval(drawn):
  page = html_report.seeds(STATISTICS)
  (axes,) = drawn
  mean, dots = axes.lines
  assert mean.get_xdata()[0] == 0.5
  assert dots.get_xdata().tolist() == [0.5, 0.75, 0.25]
  labels = [label.get_text() for label in axes.get_yticklabels()]
  assert labels == ["seed 3", "seed 4", "seed 5"]
  assert [row[0] for row in rows_of(page)[1:]] == [
    *("3", "4", "5", "median", "mean", "standard deviation")
  ]
  assert rows_of(page)[2] == ["4", "0.7500", "kept as the best"]
  assert rows_of(page)[3] == ["5", "0.2500", "collapsed"]
  assert rows_of(page)[5][2] == "95% confidence interval -0.1210 to 1.1210"


@pytest.mark.parametrize(
  "section",
  [
    lambda: html_report.losses(points([3.0, 2.0]), []).partition("narrow")[2],
    lambda: html_report.curves("a", {"f1": points([3.0, 2.0])}),
    lambda: html_report.seeds(STATISTICS),
    lambda: html_report.calibration([0.5], [True]),
    lambda: html_report.lengths(Lengths([9], 128, [0])),
  ],
)
def test_text_of_pictures_is_legible_on_a_phone(section):
  content_width = 390 - 2 * 16  # pixels, within the padding of the body
  svg = re.search("<svg .*?</svg>", section(), re.DOTALL)[0]
  width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])
  sizes = re.findall(r"font(?:-size)?: ([\d.]+)px", svg)
  assert sizes
  for size in sizes:
    assert float(size) * content_width / width >= 10


@pytest.mark.filterwarnings("error")
def test_equal_seeds_are_drawn_without_a_warning():
  nothing = {"scores": [0.5] * 3, "confidence_interval": [math.nan] * 2}
  Page(html_report.seeds(STATISTICS | nothing))


@pytest.mark.parametrize("named", [{}, {"loss": []}])
def test_curves_without_values_say_so(named):
  page = Page(html_report.curves("Training", named))
  assert page.texts("p") == ["Nothing was recorded."]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
  "values",
  [
    [0.5],
    [math.nan],
    [math.inf, -math.inf] * 200,
    [0.1234567] * 300,
    [1e38, -1e38] * 150,
    [1e-8, 2e-8],
    [12345678, 12345679],
  ],
)
def test_extreme_values_are_drawn_without_a_warning(values):
  Page(html_report.curves("", {"odd": points(values)}, (3, "best")))
