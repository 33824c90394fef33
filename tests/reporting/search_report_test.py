"""Tests of what reports show of a search."""

import pytest
from html_pages import rows_of

from bertlib.data import beir
from bertlib.reporting import search_report

pytestmark = pytest.mark.unit


def test_queries_that_a_ranking_makes_worse_are_shown():
  corpus = [("a", "ann"), ("b", "bob"), ("c", "dan")]
  relevance = {"q": {"a": 1}, "p": {"b": 1}}
  found = beir.Retrieval({"q": "who ?", "p": "where ?"}, corpus, relevance)
  before = {"q": ["a", "b"], "p": ["c", "b"]}
  after = {"q": ["b", "a"], "p": ["b", "c"]}
  page = search_report.made_worse(found, before, after).content
  assert "1 of 2 queries are made worse." in page
  _, row = rows_of(page)
  assert row == ["1.0000", "0.6309", "who ?", "ann", "bob"]
