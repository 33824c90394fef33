"""Clusters the lines of a file and draws them as a map, one HTML file.

  python -m examples.text_map --model_dir=output/search \
    --text_file=lines.txt --html_file=output/map.html

Every point is a line; texts of similar meaning are close to each other. The
mouse shows the text of a point, and a double click in the legend shows one
cluster alone. The file needs no network. It has a few megabytes, since the code
that draws it is inside.

Clusters are found by k-means on all values of the vectors, and named after the
words that are most characteristic of them (c-TF-IDF, Grootendorst 2022). t-SNE
lays out the points in two dimensions. All of this is scikit-learn, which is
installed anyway. Drawing needs plotly: `pip install -e '.[map]'`.
"""

from __future__ import annotations

import html
import textwrap

import numpy as np
from absl import flags
from sklearn import cluster, manifold
from sklearn.feature_extraction import text as text_features

import run_embeddings
from bertlib.cli import app, terminal
from bertlib.cli.errors import InputError
from bertlib.data import nearest_neighbors
from bertlib.io import files, text_files

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  flags.DEFINE_string(
    "model_dir", None, "Folder of a sentence-embedding model.", required=True
  )
  flags.DEFINE_string(
    "text_file", None, "Text file; each line is a point.", required=True
  )
  flags.DEFINE_string("html_file", None, "The map to write.", required=True)
  flags.DEFINE_integer("num_clusters", 10, "Number of clusters.", lower_bound=2)
  flags.DEFINE_integer("seed", 1, "Seed of clusters and layout.")


def main(_) -> None:
  """Writes the map and prints the names and sizes of the clusters."""
  plotly = import_plotly()
  lines = map(str.strip, text_files.read_lines(FLAGS.text_file))
  texts = [line for line in lines if line]
  if len(texts) < max(4, FLAGS.num_clusters):
    raise InputError(
      f"{FLAGS.text_file}: {len(texts)} lines of text are too few for"
      f" --num_clusters={FLAGS.num_clusters}. A map needs as many lines as"
      " clusters, and at least 4"
    )
  model = run_embeddings.Predictor(FLAGS.model_dir)
  vectors = nearest_neighbors.unit_vectors(model.encode(texts))
  clusters = cluster.KMeans(
    FLAGS.num_clusters, n_init=10, random_state=FLAGS.seed
  ).fit_predict(vectors)
  names = cluster_names(texts, clusters)
  figure = draw(plotly, texts, layout(vectors), clusters, names)
  with files.atomic_write(FLAGS.html_file) as file:
    file.write(figure.to_html(include_plotlyjs=True))
  for name, size in zip(names, np.bincount(clusters)):
    terminal.show(str(size), name)


def layout(vectors: np.ndarray) -> np.ndarray:
  """Points float32 [N, 2]; vectors that are similar have close points."""
  return manifold.TSNE(
    metric="cosine",
    init="pca",
    perplexity=min(30, (len(vectors) - 1) / 3),
    random_state=FLAGS.seed,
  ).fit_transform(vectors)


def cluster_names(
  texts: list[str], clusters: np.ndarray, num_words: int = 3
) -> list[str]:
  """Names of clusters: the words with the largest c-TF-IDF.

  The weight of word w in cluster c is the share of w in the words of c, times
  log(1 + A / f), where A is the mean number of words per cluster and f that of
  w in all of them.

  Args:
    texts: texts.
    clusters: int [N], the cluster of each text, from 0.
    num_words: words per name.
  """
  names = [f"cluster {number}" for number in range(clusters.max() + 1)]
  documents = [
    " ".join(text for text, c in zip(texts, clusters) if c == number)
    for number in range(len(names))
  ]
  counter = text_features.CountVectorizer(stop_words="english")
  try:
    counts = counter.fit_transform(documents).toarray()
  except ValueError:  # no words
    return names
  words = counter.get_feature_names_out()
  sizes = counts.sum(axis=1, keepdims=True)
  weights = counts / np.maximum(sizes, 1)
  weights = weights * np.log1p(sizes.mean() / counts.sum(axis=0))
  for number, row in enumerate(weights):
    best = np.argsort(-row, kind="stable")[:num_words]
    found = [words[word] for word in best if row[word] > 0]
    names[number] = ", ".join(found) or names[number]
  return names


def draw(plotly, texts, points, clusters, names):
  """A figure with a trace for each cluster."""
  figure = plotly.graph_objects.Figure(
    layout={
      "title": f"{len(texts)} texts",
      "template": "plotly_white",
      "colorway": plotly.colors.qualitative.Dark24,
      "hovermode": "closest",
      "xaxis": {"visible": False},
      "yaxis": {"visible": False, "scaleanchor": "x"},
    }
  )
  for number, name in enumerate(names):
    (rows,) = np.nonzero(clusters == number)
    figure.add_scatter(
      x=points[rows, 0],
      y=points[rows, 1],
      mode="markers",
      marker={"size": 7, "opacity": 0.7},
      name=html.escape(name),
      text=[hover_text(texts[row]) for row in rows],
      hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )
  return figure


def hover_text(text: str) -> str:
  """The beginning of a text as lines of HTML."""
  lines = textwrap.wrap(text, width=80, max_lines=12)
  return "<br>".join(map(html.escape, lines))


def import_plotly():
  """Imports `plotly` with its modules `colors` and `graph_objects`.

  Raises:
    InputError: the package is not installed.
  """
  try:
    import plotly.colors
    import plotly.graph_objects
  except ModuleNotFoundError as error:
    raise InputError(
      "the map needs the package plotly: pip install -e '.[map]'"
    ) from error
  return plotly


if __name__ == "__main__":
  define_flags()
  app.run(main)
