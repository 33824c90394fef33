"""The report of sentence vectors: worst errors and intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertlib.data.text_groups import Example
from bertlib.reporting import html_report, search_report, statistics
from bertlib.reporting.html_report import Section
from bertlib.reporting.statistics import Interval
from bertlib.tasks.embeddings import embedding_evaluation, embedding_inputs
from bertlib.tasks.embeddings.embedding_evaluation import Evaluation, Neighbors


def sections(
  dev_set: embedding_inputs.DevSet, evaluation: Evaluation
) -> list[Section]:
  """Sections on sentence embeddings, for `run_report.Findings`."""
  if evaluation.rankings is not None:
    return [search_report.errors(dev_set.retrieval, evaluation.rankings)]
  if evaluation.neighbors is not None:
    return [_neighbor_errors(dev_set.examples, evaluation.neighbors)]
  gold = embedding_evaluation.gold_values(dev_set.kind, dev_set.examples)
  if dev_set.kind == "labeled_pairs":
    # Distance from the threshold of pairs on its wrong side.
    threshold = evaluation.results["eval_accuracy_threshold"]
    errors = (1 - 2 * gold) * (evaluation.cosines - threshold)
  else:
    errors = _rank_errors(gold, evaluation.cosines)
  worst = np.argsort(-errors, kind="stable")[: html_report.NUM_ERRORS]
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
  return [html_report.table("Worst errors", rows)]


def _rank_errors(scores: np.ndarray, cosines: np.ndarray) -> np.ndarray:
  """Differences between ranks by cosine and by score, from 0 to 1: [pairs]."""
  from scipy import stats

  difference = stats.rankdata(cosines) - stats.rankdata(scores)
  return np.abs(difference) / max(len(scores) - 1, 1)


def _neighbor_errors(
  examples: Sequence[Example], neighbors: Neighbors
) -> Section:
  """Section on the texts that are most similar to one with another label."""
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
  return html_report.table("Worst errors", rows)


def intervals(
  dev_set: embedding_inputs.DevSet, evaluation: Evaluation
) -> dict[str, Interval | None]:
  """Intervals of the metrics of sentence embeddings, at the full width."""
  if evaluation.rankings is not None:
    return search_report.intervals(
      dev_set.retrieval.relevance, evaluation.rankings
    )
  if found := evaluation.neighbors:
    return {
      "map": statistics.bootstrap(np.mean, found.precisions),
      "neighbor_accuracy": statistics.fraction_interval(found.is_correct),
    }
  gold = embedding_evaluation.gold_values(dev_set.kind, dev_set.examples)
  return {
    name: statistics.bootstrap(metric, evaluation.cosines, gold)
    for name, metric in embedding_evaluation.PAIR_METRICS[dev_set.kind].items()
  }
