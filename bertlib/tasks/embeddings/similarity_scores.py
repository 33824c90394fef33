"""Metrics of the similarity of vectors, for scored and for labeled texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bertlib.data import nearest_neighbors
from bertlib.reporting import statistics

# Metrics of each kind of data, the primary one first.
SCORED_PAIRS = ("spearman", "pearson")
LABELED_PAIRS = ("average_precision", "accuracy", "f1")
LABELED_TEXTS = ("map", "neighbor_accuracy")

# Similarities computed at a time: 32 MiB of float32.
_NUM_SIMILARITIES = 2**23


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
    return dict.fromkeys(SCORED_PAIRS, float("nan"))
  return {
    name: PAIR_METRICS["scored_pairs"][name](similarities, scores)
    for name in SCORED_PAIRS
  }


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
