"""The examples that search an index and draw a map, with vectors of words."""

import contextlib
import html.parser
import io
import json
import re
import sys

import commands
import numpy as np
import pytest
import threadpoolctl

import run_embeddings
from bertlib.cli.errors import InputError
from bertlib.settings.embedding_spec import EmbeddingSpec
from examples import search_index, text_map

pytestmark = pytest.mark.unit

ANIMALS = ["cats eat mice", "mice fear cats", "cats and mice sleep"]
STARS = ["stars shine bright", "bright stars <b>burn</b>", "stars burn & shine"]
WORDS = sorted(set(re.findall(r"\w+", " ".join(ANIMALS + STARS))))


class WordCounts:
  """Counts words, where a sentence-embedding model would encode meaning."""

  spec = EmbeddingSpec(prompts={"query": "", "passage": ""})
  encoded: list

  def __init__(self, folder):
    assert folder == "model"

  def encode(self, texts, prompt=None):
    self.encoded.append((prompt, list(texts)))
    return np.float32(
      [[text.split().count(word) for word in WORDS] for text in texts]
    )


@pytest.fixture(autouse=True)
def encoded(monkeypatch):
  """Prompt and texts of each call of the model."""
  calls = []
  monkeypatch.setattr(WordCounts, "encoded", calls, raising=False)
  monkeypatch.setattr(run_embeddings, "Predictor", WordCounts)
  return calls


@pytest.fixture
def lines(tmp_path):
  path = tmp_path / "lines.txt"
  path.write_text("\n".join(["", *ANIMALS, " ", *STARS, ""]))
  return path


def run(example, *flags):
  """Runs an example in this process; gives the lines that it printed."""
  output = io.StringIO()
  with (
    commands.in_process(example) as main,
    contextlib.redirect_stdout(output),
  ):
    main("--model_dir=model", *flags)
  return output.getvalue().splitlines()


# The index


def search(lines, *queries, top_k=2):
  pytest.importorskip("usearch", reason="pip install -e .[search]")
  return run(
    search_index,
    f"--corpus_file={lines}",
    f"--index_file={lines.parent / 'index'}",
    *(f"--query={query}" for query in queries),
    f"--top_k={top_k}",
  )


def test_index_finds_the_most_similar_lines(lines, encoded):
  printed = search(lines, "cats eat", "stars burn")
  assert printed == [
    "cats eat",
    f"{2 / 6**0.5:.3f}\tcats eat mice",
    f"{1 / 6**0.5:.3f}\tmice fear cats",
    "stars burn",
    f"{2 / 6**0.5:.3f}\tstars burn & shine",
    f"{1 / 4**0.5:.3f}\tbright stars <b>burn</b>",
  ]
  assert encoded == [
    ("passage", ANIMALS + STARS),
    ("query", ["cats eat", "stars burn"]),
  ]


def test_second_search_encodes_the_query_alone(lines, encoded):
  first = search(lines, "mice fear cats")
  del encoded[:]
  assert search(lines, "mice fear cats") == first
  assert encoded == [("query", ["mice fear cats"])]


def test_an_index_of_other_lines_is_refused(lines):
  search(lines, "cats")
  lines.write_text("cats\n")
  message = f"index: has 6 vectors of {len(WORDS)} values, but there are 1 line"
  with pytest.raises(InputError, match=message):
    search(lines, "cats")


def test_a_file_that_is_no_index_is_refused_and_kept(lines):
  index = lines.parent / "index"
  index.write_text("no index at all\n" * 10)
  with pytest.raises(InputError, match="index: is not an index"):
    search(lines, "cats")
  assert index.read_text() == "no index at all\n" * 10


# The map


def draw(lines, *flags):
  pytest.importorskip("plotly", reason="pip install -e .[map]")
  path = lines.parent / "map.html"
  # So few points are no work for threads, which would wait for each other.
  with threadpoolctl.threadpool_limits(1):
    printed = run(
      text_map, f"--text_file={lines}", f"--html_file={path}", *flags
    )
  return printed, path.read_text(encoding="utf-8")


class Elements(html.parser.HTMLParser):
  """Start tags with their attributes, and the scripts of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.scripts = [], []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))

  def handle_data(self, data):
    if self.tags and self.tags[-1][0] == "script":
      self.scripts.append(data)


def traces(page):
  """The data of the figure."""
  (script,) = (
    text for text in Elements(page).scripts if "Plotly.newPlot(" in text[:400]
  )
  call = script[script.index("Plotly.newPlot(") :]
  return json.JSONDecoder().raw_decode(call, call.index("["))[0]


def test_map_shows_every_text_in_its_cluster_without_a_network(lines):
  printed, page = draw(lines, "--num_clusters=2")
  assert {line.partition("\t")[0] for line in printed} == {"3"}
  shown = {trace["name"]: trace["text"] for trace in traces(page)}
  assert {*shown} == {line.partition("\t")[2] for line in printed}
  assert sorted(map(sorted, shown.values())) == [
    [
      "bright stars &lt;b&gt;burn&lt;/b&gt;",
      "stars burn &amp; shine",
      "stars shine bright",
    ],
    sorted(ANIMALS),
  ]
  assert not [a for _, a in Elements(page).tags if {"src", "href"} & set(a)]


def test_too_few_texts_are_refused(lines):
  with pytest.raises(InputError, match=r"6 lines .* --num_clusters=7"):
    draw(lines, "--num_clusters=7")


def test_clusters_are_named_after_their_own_words():
  texts = ["red apple", "green apple", "red car", "fast car", "a car"]
  names = text_map.cluster_names(texts, np.array([0, 0, 1, 1, 1]), num_words=1)
  assert names == ["apple", "car"]


def test_hover_text_is_escaped_and_wrapped():
  assert text_map.hover_text("a < b") == "a &lt; b"
  shown = text_map.hover_text("&" * 200).split("<br>")
  assert shown == ["&amp;" * 80, "&amp;" * 80, "&amp;" * 40]
  assert text_map.hover_text("word " * 1000).count("<br>") == 11


# Packages


@pytest.mark.parametrize(
  ("module", "load", "extra"),
  [
    ("usearch.index", search_index.import_index_class, "search"),
    ("plotly.colors", text_map.import_plotly, "map"),
  ],
)
def test_missing_packages_are_named_with_their_extra(
  module, load, extra, monkeypatch
):
  monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(InputError, match=rf"pip install -e '\.\[{extra}\]'"):
    load()
