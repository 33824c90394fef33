"""Evaluates sentence vectors, at the full width and at those of Matryoshka."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.data import nearest_neighbors
from bertlib.data.beir import Retrieval
from bertlib.data.text_groups import Example
from bertlib.reporting import html_report, search_report, statistics
from bertlib.reporting.search_report import Evaluation, Report

# Documents of the ranking of a query.
_MAX_RANK = 1000

# Similarities computed at a time: 32 MiB of float32.
_NUM_SIMILARITIES = 2**23

# Metrics by kind of dev set, the primary one first.
METRICS = {
  "scored_pairs": ("spearman", "pearson"),
  "labeled_pairs": ("average_precision", "accuracy", "f1"),
  "labeled_texts": ("map", "neighbor_accuracy"),
  "retrieval": search_report.METRICS,
}


def metric_names(kind: str, dims: Sequence[int]) -> list[str]:
  """Names of the metrics, the primary one first."""
  # `kind` is a key of `METRICS`, and `dims` are the widths of the vectors, the
  # largest first, whose metrics have no suffix.
  return [name + suffix for suffix in _suffixes(dims) for name in METRICS[kind]]


def _suffixes(dims: Sequence[int]) -> dict[str, int | None]:
  """Widths by the suffix of their metrics."""
  return {"": None, **{f"_{dim}": dim for dim in dims[1:]}}


def distinct_texts(examples: Sequence[Example]) -> tuple[list[str], np.ndarray]:
  """Distinct texts, and the positions of those of each example among them."""
  numbers: dict[str, int] = {}
  positions = [
    [numbers.setdefault(text, len(numbers)) for text in example.texts]
    for example in examples
  ]
  return list(numbers), np.array(positions)


def evaluate_examples(
  kind: str,  # a key of `METRICS`
  examples: Sequence[Example],
  vectors: np.ndarray,  # float32 [texts, width], of `distinct_texts`
  dims: Sequence[int],  # see `metric_names`
) -> Evaluation:
  """Evaluates pairs or texts with scores or labels."""
  gold, (_, positions) = gold_values(kind, examples), distinct_texts(examples)

  def evaluate(dim: int | None) -> Evaluation:
    if kind == "labeled_texts":
      found = find_neighbors(vectors[positions[:, 0]], gold, dim)
      report = functools.partial(report_neighbors, examples, found)
      return Evaluation(labeled_texts(found), report)
    first, second = (vectors[column] for column in positions.T)
    cosines = cosine_similarities(first, second, dim)
    score = scored_pairs if kind == "scored_pairs" else labeled_pairs
    results = score(cosines, gold)
    threshold = results.get("accuracy_threshold")
    report = functools.partial(report_pairs, examples, gold, cosines, threshold)
    return Evaluation(results, report)

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
  retrieval: Retrieval,
  query_vectors: np.ndarray,  # float32 [queries, width]
  document_vectors: Iterable[np.ndarray],  # read once, block by block
  dims: Sequence[int],  # see `metric_names`
) -> Evaluation:
  """Evaluates a search by cosine similarity in a corpus."""
  widths = _suffixes(dims)
  found = nearest_neighbors.rank(
    retrieval, query_vectors, document_vectors, _MAX_RANK, widths.values()
  )
  rankings = {
    suffix: {query: ids for query, ids, _ in ranked}
    for suffix, ranked in zip(widths, found)
  }
  return search_report.evaluate(retrieval, rankings)


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


# The report: worst errors and intervals


def report_pairs(
  examples: Sequence[Example],
  gold: np.ndarray,  # of `gold_values`
  cosines: np.ndarray,  # float32 [pairs]
  threshold: float | None,  # of the accuracy of pairs with labels
) -> Report:
  """The worst errors of pairs, and intervals of their metrics."""
  if threshold is None:
    metrics, errors = PAIR_METRICS["scored_pairs"], _rank_errors(gold, cosines)
  else:
    metrics = PAIR_METRICS["labeled_pairs"]
    # Distance from the threshold of pairs on its wrong side.
    errors = (1 - 2 * gold) * (cosines - threshold)
  worst = np.argsort(-errors, kind="stable")[: html_report.NUM_ERRORS]
  rows = []
  for index in worst[errors[worst] > 0]:
    example = examples[index]
    rows.append(
      {
        "gold": example.label if example.score is None else example.score,
        "cosine": float(cosines[index]),
        "error": float(errors[index]),
        "text": "\n".join(example.texts),
      }
    )
  intervals = {
    name: statistics.bootstrap(metric, cosines, gold)
    for name, metric in metrics.items()
  }
  return [html_report.table("Worst errors", rows)], intervals


def _rank_errors(scores: np.ndarray, cosines: np.ndarray) -> np.ndarray:
  """Differences between ranks by cosine and by score, from 0 to 1: [pairs]."""
  from scipy import stats

  difference = stats.rankdata(cosines) - stats.rankdata(scores)
  return np.abs(difference) / max(len(scores) - 1, 1)


def report_neighbors(
  examples: Sequence[Example], neighbors: Neighbors
) -> Report:
  """The texts closest to one with another label, and intervals of metrics."""
  (wrong,) = np.nonzero(~neighbors.is_correct.astype(bool))
  order = np.argsort(-neighbors.cosines[wrong], kind="stable")
  rows = []
  for index in wrong[order[: html_report.NUM_ERRORS]]:
    text, other = (
      examples[int(numbers[index])]
      for numbers in (neighbors.queries, neighbors.nearest)
    )
    rows.append(
      {
        "label": text.label,
        "label of neighbor": other.label,
        "cosine": float(neighbors.cosines[index]),
        "text": text.texts[0],
        "nearest text": other.texts[0],
      }
    )
  return [html_report.table("Worst errors", rows)], {
    "map": statistics.bootstrap(np.mean, neighbors.precisions),
    "neighbor_accuracy": statistics.fraction_interval(neighbors.is_correct),
  }
