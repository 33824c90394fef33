"""The report of sentence vectors: worst errors, intervals and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertlib.reporting import html_report, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.statistics import Estimates
from bertlib.tasks.embeddings import (
  beir,
  embedding_evaluation,
  embedding_inputs,
  retrieval_scores,
  similarity_scores,
)
from bertlib.tasks.embeddings.embedding_evaluation import Evaluation
from bertlib.tasks.embeddings.embedding_examples import Example


def sections(
  dev_set: embedding_inputs.DevSet, evaluation: Evaluation, num_errors: int = 30
) -> list[Section]:
  """Sections on sentence embeddings, for `run_report.Findings`."""
  if evaluation.rankings is not None:
    return [_search_errors(dev_set.retrieval, evaluation.rankings, num_errors)]
  if evaluation.neighbors is not None:
    return [
      _neighbor_errors(dev_set.examples, evaluation.neighbors, num_errors)
    ]
  find_errors = _rank_errors
  if dev_set.kind == "labeled_pairs":
    find_errors = _order_errors
  errors = find_errors(dev_set.examples, evaluation.cosines)
  worst = np.argsort(-errors, kind="stable")[:num_errors]
  rows = []
  for index in worst[errors[worst] > 0]:
    example = dev_set.examples[index]
    rows.append(
      {
        "gold": example.label if example.score is None else example.score,
        "cosine": float(evaluation.cosines[index]),
        "error": float(errors[index]),
        "text": "\n".join(example.texts),
      }
    )
  return [html_report.errors(rows)]


def _rank_errors(
  examples: Sequence[Example], cosines: np.ndarray
) -> np.ndarray:
  """Differences between ranks by cosine and by score, from 0 to 1: [pairs]."""
  from scipy import stats

  scores = [example.score for example in examples]
  difference = stats.rankdata(cosines) - stats.rankdata(scores)
  return np.abs(difference) / max(len(examples) - 1, 1)


def _order_errors(
  examples: Sequence[Example], cosines: np.ndarray
) -> np.ndarray:
  """Share of the pairs with the other label on the wrong side: [pairs]."""
  # Above a pair with label 1 there should be no cosine of one with label 0, and
  # below the latter none of the former.
  is_match = np.array([example.label == "1" for example in examples])
  matches, others = np.sort(cosines[is_match]), np.sort(cosines[~is_match])
  num_above = len(others) - np.searchsorted(others, cosines, "right")
  num_below = np.searchsorted(matches, cosines, "left")
  return np.where(
    is_match, num_above / max(len(others), 1), num_below / max(len(matches), 1)
  )


def _neighbor_errors(
  examples: Sequence[Example],
  neighbors: similarity_scores.Neighbors,
  num_errors: int,
) -> Section:
  """Section on the texts that are most similar to one with another label."""
  (wrong,) = np.nonzero(~neighbors.is_correct.astype(bool))
  order = np.argsort(-neighbors.cosines[wrong], kind="stable")[:num_errors]
  rows = []
  for index in wrong[order]:
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
  return html_report.errors(rows)


def _search_errors(
  retrieval: beir.Retrieval,
  rankings: Mapping[str, Sequence[str]],
  num_errors: int,
) -> Section:
  """Section on the queries whose right document is ranked lowest."""
  lowest = []
  for query, found in rankings.items():
    relevant = retrieval.relevance[query]
    rank, right = next(
      ((rank, id_) for rank, id_ in enumerate(found, 1) if id_ in relevant),
      (len(found) + 1, next(iter(relevant))),
    )
    if rank > 1 and found:
      lowest.append((rank, query, found[0], right))
  lowest = sorted(lowest, key=lambda error: -error[0])[:num_errors]
  needed = {id_ for _, _, *ids in lowest for id_ in ids}
  texts = {id_: text for id_, text in retrieval.corpus if id_ in needed}
  rows: list[dict[str, Any]] = [
    {
      "rank": rank if rank <= len(rankings[query]) else f"over {rank - 1}",
      "query": retrieval.queries[query],
      "found first": texts[found],
      "right": texts.get(right, f"{right} (not in the corpus)"),
    }
    for rank, query, found, right in lowest
  ]
  return html_report.errors(rows)


def estimates(
  dev_set: embedding_inputs.DevSet, evaluation: Evaluation
) -> Estimates:
  """Estimates for sentence embeddings, at the full width."""
  if evaluation.rankings is not None:
    values = retrieval_scores.evaluate_queries(
      dev_set.retrieval.relevance, evaluation.rankings
    )
    return Estimates(
      f"{len(values):,} queries",
      {
        name: statistics.bootstrap(np.mean, values[:, column])
        for column, name in enumerate(retrieval_scores.METRICS)
      },
    )
  if evaluation.neighbors is not None:
    return _neighbor_estimates(dev_set, evaluation)
  gold = embedding_evaluation.gold_values(dev_set.kind, dev_set.examples)
  baselines = {}
  if dev_set.kind != "scored_pairs":
    baselines["average_precision"] = ("random order", float(gold.mean()))
  return Estimates(
    f"{len(dev_set.examples):,} pairs",
    {
      name: statistics.bootstrap(metric, evaluation.cosines, gold)
      for name, metric in similarity_scores.PAIR_METRICS[dev_set.kind].items()
    },
    baselines,
  )


def _neighbor_estimates(
  dev_set: embedding_inputs.DevSet, evaluation: Evaluation
) -> Estimates:
  """Estimates for texts with labels."""
  found = evaluation.neighbors
  labels = [example.label for example in dev_set.examples]
  _, numbers, counts = np.unique(
    labels, return_inverse=True, return_counts=True
  )
  num_same = counts[numbers][found.queries.astype(int)] - 1
  chance = float(num_same.mean()) / (len(labels) - 1)
  return Estimates(
    f"{len(found.queries):,} texts",
    {
      "map": statistics.bootstrap(np.mean, found.precisions),
      "neighbor_accuracy": statistics.fraction_interval(found.is_correct),
    },
    {"neighbor_accuracy": ("any other text", chance)},
  )
