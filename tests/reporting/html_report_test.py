"""Tests of the HTML of reports."""

import base64
import math
import re
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from html_pages import Page, rows_of
from parametrize import parametrize

from bertlib.reporting import html_report
from bertlib.reporting.html_report import Section

pytestmark = pytest.mark.unit

TEXTS = st.text(st.characters(exclude_categories=()))


def points(values):
  return list(enumerate(values))


def sections(text="some"):
  """A section of each kind, with `text` wherever a text is allowed."""
  values = np.random.default_rng(1).random(300)
  lines = {text: points(values), "other": points(values)}
  return [
    html_report.warning(text),
    Section(text, html_report.curves(text, lines, 7) + html_report.note(text)),
    html_report.table(text, [{text: text, "f1": 0.5}], text),
  ]


def written(tmp_path, *arguments):
  path = tmp_path / "report.html"
  html_report.write_page(str(path), *arguments)
  return path.read_bytes().decode()


def pictures(page):
  """The SVG of the pictures of a page."""
  found = re.findall('src="data:image/svg[+]xml;base64,(.*?)"', page)
  return [base64.b64decode(data).decode() for data in found]


def test_page_loads_nothing(tmp_path):
  page = written(tmp_path, "A run", sections())
  links = [
    value
    for _, attrs, _ in Page(page).elements
    for name, value in attrs.items()
    if name in ("src", "srcset", "href", "data", "poster")
  ]
  assert {link[:5] for link in links} == {"data:"}
  for text in (page, *pictures(page)):
    assert not re.search("@import|<script|<link|<!ENTITY|url[(][^#]", text)


def test_page_of_20000_steps_is_smaller_than_a_megabyte(tmp_path):
  values = points(np.random.default_rng(0).normal(size=20000))
  curves = [html_report.curves(str(i), {"": values}) for i in range(10)]
  assert len(written(tmp_path, "", [Section("", "".join(curves))])) < 1e6


@hypothesis.given(TEXTS)
@hypothesis.example("\\u200b \u200b \0 \r\n \u202e \ud800 \u2028 \u2066 \x85")
def test_characters_that_reorder_or_break_text_are_escaped(text):
  for character in html_report.escape(text):
    assert character in "\n\t" or unicodedata.category(character) not in (
      *("Cc", "Cs", "Zl", "Zp"),
    )
    # Embeddings, overrides and isolates of a direction.
    kind = unicodedata.bidirectional(character)
    assert kind in ("L", "R", "AL") or kind[:2] not in ("LR", "RL", "FS", "PD")


@parametrize(
  "text", "</title></style><script>alert(1)</script> & \"'", "$x \0\n\ud800"
)
def test_any_text_is_escaped_everywhere(tmp_path, text):
  page = Page(written(tmp_path, text, sections(text), html_report.note(text)))
  (shown,) = Page(f"<p>{html_report.escape(text)}</p>").texts("p")
  assert page.texts("title", "h1", "b") == [shown] * 3
  assert page.texts("h2")[1:] + page.texts("td")[:1] == [shown] * 3


@parametrize(
  "text",
  "Prix\u202f: 12",
  "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
  "\U0001f469\u200d\U0001f4bb",
  "a\tb\n",
  ids=["narrow space", "Persian", "emoji", "tab"],
)
def test_characters_of_ordinary_text_stay(text):
  assert html_report.escape(text) == text


def test_table_has_a_column_per_key_and_numbers_on_the_right():
  rows = [{"a": "x", "b": 1, "c": 0.5}, {"a": None, "d": "y"}]
  page = html_report.table("", rows).content
  assert rows_of(page) == [
    ["a", "b", "c", "d"],
    ["x", "1", "0.5000", "–"],
    ["–", "–", "–", "y"],
  ]
  kinds = [a.get("class") for tag, a, _ in Page(page).elements if tag == "th"]
  assert kinds == [None, "number", "number", None]


@parametrize(
  "value, text",
  (0.123456, "0.1235"),
  (1.0, "1.0000"),
  (12345.6, "12345.60"),
  (2e-5, "2e-05"),
  (math.nan, "nan"),
  (-math.inf, "-inf"),
  (np.float32(0.25), "0.2500"),
  (np.int64(3), "3"),
  (True, "True"),
  (None, "–"),
)
def test_numbers_have_about_four_digits(value, text):
  assert html_report.format_value(value) == text


def test_lines_are_named_with_their_last_values():
  lines = {"a": points([3.0, 2.5]), "<b>": points([1.0, math.nan])}
  page = html_report.curves("loss", lines, marked_step=1)
  assert Page(page).texts("b") == ["loss"]
  spans = " ".join(Page(page).texts("span"))
  assert "a last 2.5000" in spans and "<b> last nan" in spans
  (svg,) = pictures(page)
  assert "#3b82c4" in svg and "#d4722a" in svg


@pytest.mark.filterwarnings("error")
@parametrize(
  "values",
  [0.5],
  [math.nan],
  [math.inf, -math.inf] * 200,
  [1e38, -1e38] * 150,
  [1e-8, 2e-8],
  [12345678, 12345679],
)
def test_extreme_values_are_drawn_without_a_warning(values):
  assert pictures(html_report.curves("", {"odd": points(values)}, 3))
