"""Metrics of the similarity of vectors, for scored and for labeled texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bertlib.tasks.embeddings import nearest_neighbors

# Metrics of each kind of data, the primary one first.
SCORED_PAIRS = ("spearman", "pearson")
LABELED_PAIRS = ("average_precision", "accuracy", "f1")
LABELED_TEXTS = ("map", "neighbor_accuracy")

# Similarities computed at a time: 32 MiB of float32.
_NUM_SIMILARITIES = 2**23


def unit_vectors(vectors: np.ndarray, dim: int | None = None) -> np.ndarray:
  """Vectors of length 1, from their first `dim` values.

  Args:
    vectors: float [N, D].
    dim: None for D.

  Returns:
    float32 [N, dim]. A zero vector stays zero.

  Raises:
    InputError: a vector contains NaN or Inf.
  """
  vectors = nearest_neighbors.check_finite(vectors[:, :dim])
  vectors = vectors.astype(np.float32)
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def cosine_similarities(
  first: np.ndarray, second: np.ndarray, dim: int | None = None
) -> np.ndarray:
  """Cosine similarity of each row of `first` with that row of `second`.

  Args:
    first: float [N, D].
    second: float [N, D].
    dim: number of leading values to use; None for D.

  Returns:
    float32 [N]; 0 for a zero vector.

  Raises:
    InputError: a vector contains NaN or Inf.
  """
  product = unit_vectors(first, dim) * unit_vectors(second, dim)
  return product.sum(axis=1)


def scored_pairs(
  similarities: np.ndarray, scores: np.ndarray
) -> dict[str, float]:
  """Correlation of similarities with gold scores.

  Args:
    similarities: float [N].
    scores: float [N].

  Returns:
    `spearman` and `pearson`, in [-1, 1]; NaN where all values are equal, or if
    there are fewer than two pairs.
  """
  from scipy import stats

  if min(np.ptp(x) if len(x) else 0 for x in (similarities, scores)) == 0:
    return dict.fromkeys(SCORED_PAIRS, float("nan"))
  return {
    "spearman": float(stats.spearmanr(similarities, scores)[0]),
    "pearson": float(stats.pearsonr(similarities, scores)[0]),
  }


def labeled_pairs(
  similarities: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
  """Metrics of similarity as a classifier of pairs.

  A threshold is the midpoint between two adjacent similarities, or lies beyond
  all of them; of several equally good ones it is the highest.

  Args:
    similarities: float [N], in [-1, 1].
    labels: int [N], 1 for pairs that belong together, otherwise 0.

  Returns:
    `average_precision`; `accuracy` and `f1` at the thresholds that maximize
    them, `accuracy_threshold` and `f1_threshold`. Pairs at or above a threshold
    are predicted to belong together. All are NaN without pairs;
    `average_precision` and the two of F1 are NaN without pairs of label 1.
  """
  from sklearn import metrics

  nan = float("nan")
  if not len(labels):
    names = (*LABELED_PAIRS, "accuracy_threshold", "f1_threshold")
    return dict.fromkeys(names, nan)
  order = np.argsort(-similarities, kind="stable")
  gold = labels[order] > 0
  # Element i of these is about the threshold that i pairs reach.
  reached = np.concatenate([[3.0], similarities[order], [-3.0]])
  thresholds = (reached[1:] + reached[:-1]) / 2
  separates = reached[1:] < reached[:-1]
  num_right = np.append(0, gold.cumsum())
  num_predicted = np.arange(len(gold) + 1)
  num_gold = int(gold.sum())
  accuracies = len(gold) - num_gold - num_predicted + 2 * num_right
  accuracies = np.where(separates, accuracies / len(gold), -1)
  results = _best(accuracies, thresholds, "accuracy")
  if not num_gold:
    return results | dict.fromkeys(
      ("average_precision", "f1", "f1_threshold"), nan
    )
  f1 = 2 * num_right / (num_predicted + num_gold)
  results |= _best(np.where(separates, f1, -1), thresholds, "f1")
  precision = metrics.average_precision_score(labels, similarities)
  return results | {"average_precision": float(precision)}


def _best(values, thresholds, name: str) -> dict[str, float]:
  """The largest value of a metric and its threshold, by name."""
  best = int(values.argmax())
  return {
    name: float(values[best]),
    f"{name}_threshold": float(thresholds[best]),
  }


class Neighbors(NamedTuple):
  """Texts ranked by their similarity to a text with a label.

  A text whose label no other text has is only among those ranked.

  Attributes:
    queries: int [Q], the other texts.
    precisions: float64 [Q], average precision of ranking all other texts, those
      of the same label being right.
    nearest: int [Q], the most similar other text.
    cosines: float32 [Q], its cosine similarity.
    is_right: bool [Q], whether it has the same label.
  """

  queries: np.ndarray
  precisions: np.ndarray
  nearest: np.ndarray
  cosines: np.ndarray
  is_right: np.ndarray


def labeled_texts(neighbors: Neighbors) -> dict[str, float]:
  """Retrieval of the texts that have the same label, for each text.

  Returns:
    `map`, the mean average precision of ranking all other texts by cosine
    similarity, the earlier one first where it is equal; `neighbor_accuracy`,
    the fraction of texts whose most similar other text has the same label. NaN
    if no two texts have the same label.
  """
  if not len(neighbors.queries):
    return dict.fromkeys(LABELED_TEXTS, float("nan"))
  return {
    "map": float(neighbors.precisions.mean()),
    "neighbor_accuracy": float(neighbors.is_right.mean()),
  }


def find_neighbors(
  vectors: np.ndarray, labels: np.ndarray, dim: int | None = None
) -> Neighbors:
  """Ranks all other texts by cosine similarity, for each text.

  Args:
    vectors: float [N, D].
    labels: int [N].
    dim: number of leading values to use; None for D.

  Raises:
    InputError: a vector contains NaN or Inf.
  """
  vectors = unit_vectors(vectors, dim)
  _, numbers, counts = np.unique(
    labels, return_inverse=True, return_counts=True
  )
  (queries,) = np.nonzero(counts[numbers] > 1)
  blocks = []
  num_rows = max(1, _NUM_SIMILARITIES // max(1, len(vectors)))
  for start in range(0, len(queries), num_rows):
    rows = queries[start : start + num_rows]
    similarities = vectors[rows] @ vectors.T
    similarities[np.arange(len(rows)), rows] = -np.inf  # the text itself
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
        is_right=found[:, 0],
      )
    )
  if not blocks:
    return Neighbors(queries, *np.empty([4, 0]))
  return Neighbors(*map(np.concatenate, zip(*blocks)))
