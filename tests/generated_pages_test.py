"""Generated pages in the repository are those that the code generates."""

import pytest

from website import fine_tuning, performance, record_features


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
