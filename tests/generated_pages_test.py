"""Generated pages in the repository are those that the code generates."""

import pytest

from website import fine_tuning, markdown, performance, record_features


@pytest.mark.parametrize(
  "module",
  [
    pytest.param(fine_tuning, marks=pytest.mark.unit),
    pytest.param(performance, marks=pytest.mark.unit),
    pytest.param(record_features, marks=pytest.mark.graph),  # TensorFlow
  ],
  ids=lambda module: module.__name__,
)
def test_a_page_in_docs_is_the_generated_one(module):
  # If this fails, renew the page, for example: python -m website.fine_tuning
  assert module.PAGE.read_text(encoding="utf-8") == module.page()


@pytest.mark.unit
@pytest.mark.parametrize(
  ("name", "table"),
  [
    ("results", fine_tuning.summary()),
    ("performance", performance.summary(performance.kept())),
  ],
  ids=["results", "performance"],
)
def test_a_table_of_the_readme_is_the_generated_one(name, table):
  text = markdown.README.read_text(encoding="utf-8")
  assert text == markdown.with_table(text, name, table)
