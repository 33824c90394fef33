"""The examples that search an index and draw a map, with vectors of words."""

import contextlib
import html
import io
import json
import re
import sys

import commands
import html_pages
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


@pytest.fixture(autouse=True)
def encoded(monkeypatch):
  """Prompt and texts of each call of the model."""
  calls = []

  class WordCounts:
    """Counts words, where a sentence-embedding model would encode meaning."""

    spec = EmbeddingSpec(prompts={"query": "", "passage": ""})

    def __init__(self, folder):
      assert folder == "model"

    def encode(self, texts, prompt=None):
      calls.append((prompt, list(texts)))
      return np.float32([[t.split().count(w) for w in WORDS] for t in texts])

  monkeypatch.setattr(run_embeddings, "Predictor", WordCounts)
  return calls


@pytest.fixture
def lines(tmp_path):
  path = tmp_path / "lines.txt"
  path.write_text("\n".join(["", *ANIMALS, " ", *STARS, ""]))
  return path


def run(example, *flags):
  """Runs an example in this process; gives the lines that it printed."""
  with (
    commands.in_process(example) as main,
    contextlib.redirect_stdout(io.StringIO()) as output,
  ):
    main("--model_dir=model", *flags)
  return output.getvalue().splitlines()


def search(lines, *queries):
  pytest.importorskip("usearch", reason="pip install -e .[search]")
  index = f"--index_file={lines.parent / 'index'}", "--top_k=2"
  asked = [f"--query={query}" for query in queries]
  return run(search_index, f"--corpus_file={lines}", *index, *asked)


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
  queries = "query", ["cats eat", "stars burn"]
  assert encoded == [("passage", ANIMALS + STARS), queries]


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


def draw(lines, *flags):
  pytest.importorskip("plotly", reason="pip install -e .[map]")
  path = lines.parent / "map.html"
  files = f"--text_file={lines}", f"--html_file={path}"
  # So few points are no work for threads, which would wait for each other.
  with threadpoolctl.threadpool_limits(1):
    printed = run(text_map, *files, *flags)
  text = path.read_text(encoding="utf-8")
  return printed, html_pages.Page(text.replace('<meta charset="utf-8" />', ""))


def traces(page):
  """The data of the figure, which the last script of the page draws."""
  *_, script = page.texts("script")
  call = script[script.index("Plotly.newPlot(") :]
  return json.JSONDecoder().raw_decode(call, call.index("["))[0]


def test_map_shows_every_text_in_its_cluster_without_a_network(lines):
  printed, page = draw(lines, "--num_clusters=2")
  assert {line.partition("\t")[0] for line in printed} == {"3"}
  shown = {trace["name"]: trace["text"] for trace in traces(page)}
  assert {*shown} == {line.partition("\t")[2] for line in printed}
  clusters = [sorted(map(html.escape, texts)) for texts in (STARS, ANIMALS)]
  assert sorted(map(sorted, shown.values())) == clusters
  for _, attributes, _ in page.elements:
    assert not {"src", "href"} & set(attributes)


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
