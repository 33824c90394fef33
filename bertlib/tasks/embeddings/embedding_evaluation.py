"""Evaluates sentence vectors, at the full width and at those of Matryoshka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.data import nearest_neighbors, retrieval_scores
from bertlib.data.text_groups import Example
from bertlib.reporting import statistics

# Documents of the ranking of a query.
_MAX_RANK = 1000

# Similarities computed at a time: 32 MiB of float32.
_NUM_SIMILARITIES = 2**23

# Metrics by kind of dev set, the primary one first.
METRICS = {
  "scored_pairs": ("spearman", "pearson"),
  "labeled_pairs": ("average_precision", "accuracy", "f1"),
  "labeled_texts": ("map", "neighbor_accuracy"),
  "retrieval": retrieval_scores.METRICS,
}


class Evaluation(NamedTuple):
  """Metrics, and what those of the full width were computed from."""

  results: dict[str, float]  # by name
  cosines: np.ndarray | None = None  # float32 [pairs]
  # Ids of the documents found, the best first, by id of query.
  rankings: Mapping[str, Sequence[str]] | None = None
  neighbors: Neighbors | None = None  # of texts with labels


def metric_names(kind: str, dims: Sequence[int]) -> list[str]:
  """Names of the metrics, the primary one first."""
  # `kind` is a key of `METRICS`, and `dims` are the widths of the vectors, the
  # largest first, whose metrics have no suffix.
  return [name + suffix for suffix in _suffixes(dims) for name in METRICS[kind]]


def _suffixes(dims: Sequence[int]) -> dict[str, int | None]:
  """Widths by the suffix of their metrics."""
  return {"": None, **{f"_{dim}": dim for dim in dims[1:]}}


def evaluate_examples(
  kind: str,  # a key of `METRICS`
  examples: Sequence[Example],
  vectors: np.ndarray,  # float32 [distinct texts, width]
  positions: np.ndarray,  # rows of `vectors`, [examples, texts]
  dims: Sequence[int],  # see `metric_names`
) -> Evaluation:
  """Evaluates pairs or texts with scores or labels."""
  gold = gold_values(kind, examples)

  def evaluate(dim: int | None) -> Evaluation:
    if kind == "labeled_texts":
      found = find_neighbors(vectors[positions[:, 0]], gold, dim)
      return Evaluation(labeled_texts(found), neighbors=found)
    first, second = (vectors[column] for column in positions.T)
    cosines = cosine_similarities(first, second, dim)
    score = scored_pairs if kind == "scored_pairs" else labeled_pairs
    return Evaluation(score(cosines, gold), cosines=cosines)

  by_suffix = {suffix: evaluate(dim) for suffix, dim in _suffixes(dims).items()}
  results = {
    f"eval_{name}{suffix}": value
    for suffix, evaluation in by_suffix.items()
    for name, value in evaluation.results.items()
  }
  return by_suffix[""]._replace(results=results)


def gold_values(kind: str, examples: Sequence[Example]) -> np.ndarray:
  """Scores of pairs, labels of pairs (1 or 0), or labels of texts: [rows]."""
  if kind == "scored_pairs":
    return np.array([example.score for example in examples])
  labels = np.array([example.label for example in examples])
  return labels.astype(int) if kind == "labeled_pairs" else labels


def evaluate_retrieval(
  query_ids: Sequence[str],
  query_vectors: np.ndarray,  # float32 [queries, width]
  document_ids: Sequence[str],
  document_vectors: Iterable[np.ndarray],  # read once, block by block
  # Grades by id of query and of relevant document.
  relevance: Mapping[str, Mapping[str, int]],
  dims: Sequence[int],  # see `metric_names`
) -> Evaluation:
  """Evaluates a search by cosine similarity in a corpus."""
  widths = _suffixes(dims)
  # One more, since a document with the id of the query is left out, as in BEIR.
  found = nearest_neighbors.search(
    query_vectors, document_vectors, _MAX_RANK + 1, widths.values()
  )
  rankings = {
    suffix: {
      query: [id_ for i in row if (id_ := document_ids[i]) != query][:_MAX_RANK]
      for query, row in zip(query_ids, indices)
    }
    for suffix, (_, indices) in zip(widths, found)
  }
  results = retrieval_scores.evaluate_all(relevance, rankings)
  return Evaluation(results, rankings=rankings[""])


# Scores of similarities


def cosine_similarities(
  first: np.ndarray, second: np.ndarray, dim: int | None = None
) -> np.ndarray:
  """Cosines of the rows of two arrays, float32 [rows]; 0 for a zero vector."""
  unit_vectors = nearest_neighbors.unit_vectors
  return (unit_vectors(first, dim) * unit_vectors(second, dim)).sum(axis=1)


def scored_pairs(
  similarities: np.ndarray, scores: np.ndarray
) -> dict[str, float]:
  """Spearman and Pearson correlation with gold scores; NaN if all are equal."""
  if min(map(np.ptp, (similarities, scores))) == 0:
    return dict.fromkeys(METRICS["scored_pairs"], float("nan"))
  metrics = PAIR_METRICS["scored_pairs"].items()
  return {name: metric(similarities, scores) for name, metric in metrics}


def labeled_pairs(
  similarities: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
  """Average precision; accuracy and F1 at the thresholds that are best."""
  # Similarities are in [-1, 1]; labels are 1 for pairs that belong together.
  order = np.argsort(-similarities, kind="stable")
  gold = labels[order] > 0
  # Element i of these is about the threshold that i pairs reach.
  reached = np.concatenate([[3.0], similarities[order], [-3.0]])
  # A threshold is the midpoint between two adjacent similarities, or lies
  # beyond all of them; of several equally good ones it is the highest.
  thresholds = (reached[1:] + reached[:-1]) / 2
  separates = reached[1:] < reached[:-1]
  num_correct = np.append(0, gold.cumsum())
  num_predicted = np.arange(len(gold) + 1)
  num_gold = int(gold.sum())
  accuracies = len(gold) - num_gold - num_predicted + 2 * num_correct
  accuracies = np.where(separates, accuracies / len(gold), -1)
  results = _best(accuracies, thresholds, "accuracy")
  if not num_gold:
    names = ("average_precision", "f1", "f1_threshold")
    return results | dict.fromkeys(names, float("nan"))
  f1 = 2 * num_correct / (num_predicted + num_gold)
  results |= _best(np.where(separates, f1, -1), thresholds, "f1")
  precision = _average_precision(labels, similarities)
  return results | {"average_precision": precision}


def _best(values, thresholds, name: str) -> dict[str, float]:
  """The largest value of a metric and its threshold, by name."""
  best = int(values.argmax())
  return {
    name: float(values[best]),
    f"{name}_threshold": float(thresholds[best]),
  }


_average_precision = statistics.from_sklearn("average_precision_score")

# Those of pairs that need no threshold, of similarities and gold values.
PAIR_METRICS = {
  "scored_pairs": {
    "spearman": statistics.from_scipy("spearmanr"),
    "pearson": statistics.from_scipy("pearsonr"),
  },
  "labeled_pairs": {
    "average_precision": lambda cosines, gold: _average_precision(gold, cosines)
  },
}


class Neighbors(NamedTuple):
  """Texts ranked by their similarity to a text with a label, as columns."""

  # Texts whose label another one has too. The others are only ranked.
  queries: np.ndarray
  # float64, average precision of ranking all other texts, those of the same
  # label being right.
  precisions: np.ndarray
  nearest: np.ndarray  # the most similar other text
  cosines: np.ndarray  # float32, of the nearest
  is_correct: np.ndarray  # whether the nearest has the same label


def labeled_texts(neighbors: Neighbors) -> dict[str, float]:
  """Retrieval of the texts with the same label."""
  return {
    "map": float(neighbors.precisions.mean()),
    "neighbor_accuracy": float(neighbors.is_correct.mean()),
  }


def find_neighbors(
  vectors: np.ndarray, labels: np.ndarray, dim: int | None = None
) -> Neighbors:
  """Ranks all other texts by cosine similarity, for each text."""
  # At least two texts have the same label, see `text_groups`.
  vectors = nearest_neighbors.unit_vectors(vectors, dim)
  _, numbers, counts = np.unique(
    labels, return_inverse=True, return_counts=True
  )
  (queries,) = np.nonzero(counts[numbers] > 1)
  blocks = []
  num_rows = max(1, _NUM_SIMILARITIES // len(vectors))
  for start in range(0, len(queries), num_rows):
    rows = queries[start : start + num_rows]
    similarities = vectors[rows] @ vectors.T
    similarities[np.arange(len(rows)), rows] = -np.inf  # the text itself
    # Stable: of equally similar texts, the earlier one comes first.
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :-1]
    found = numbers[order] == numbers[rows, np.newaxis]
    row, rank = np.nonzero(found)
    precision = found.cumsum(axis=1)[row, rank] / (rank + 1)
    nearest = order[:, 0]
    blocks.append(
      Neighbors(
        queries=rows,
        precisions=np.bincount(row, precision) / found.sum(axis=1),
        nearest=nearest,
        cosines=similarities[np.arange(len(rows)), nearest],
        is_correct=found[:, 0],
      )
    )
  return Neighbors(*map(np.concatenate, zip(*blocks)))
