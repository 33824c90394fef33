"""Mines hard negatives: texts close to a query that are not its positives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from bertlib.cli.absl import logging
from bertlib.data import nearest_neighbors
from bertlib.io import json_files
from bertlib.io.files import atomic_write
from bertlib.tasks.embeddings.embedding_inputs import Pairs
from bertlib.tasks.embeddings.settings import MiningSettings


def write(
  path: str,
  pairs: Pairs,
  query_vectors: np.ndarray,  # float32 [queries, width]
  corpus_vectors: Iterable[np.ndarray],  # of each text of the corpus
  options: MiningSettings,
) -> None:
  """Writes the negatives of each pair as JSON Lines, and logs their numbers."""
  depth = options.depth(pairs.most_rows)
  of_positives: dict[tuple[int, int], float] = {}  # by query and document
  ((scores, found),) = nearest_neighbors.search(
    query_vectors,
    _scored(pairs, query_vectors, corpus_vectors, of_positives),
    depth + 1,  # the text of the query itself is left out
  )
  counts: Counter[int] = Counter()  # of rows, by their number of negatives
  with atomic_write(path) as file:
    for number, (query, positives) in enumerate(pairs.queries.items()):
      others = (
        (int(document), float(score))
        for document, score in zip(found[number], scores[number])
        if pairs.corpus[document] != query
      )
      candidates = dict(itertools.islice(others, depth))
      right = {
        # Of the same product as those of others: equal vectors have equal ones.
        positive: candidates.pop(positive, of_positives[number, positive])
        for positive in positives
      }
      mined = choose(candidates, min(right.values()), options)
      counts[len(mined)] += len(right)
      for positive, score in right.items() if mined else ():
        row = {
          "query": query,
          "positive": pairs.corpus[positive],
          "negatives": [pairs.corpus[document] for document in mined],
          "scores": [round(value, 6) for value in (score, *mined.values())],
        }
        file.write(json_files.dumps(row, ensure_ascii=False) + "\n")
  wanted, num_empty = options.mine_negatives, counts.pop(0, 0)
  num_rows = sum(counts.values())
  logging.info(
    "Negatives of %d rows: %s; %d of them have fewer than %d. %d more rows have"
    " none and are left out",
    num_rows,
    path,
    num_rows - counts[wanted],
    wanted,
    num_empty,
  )


def choose(
  scores: Mapping[int, float],  # of documents, the best first
  lowest_positive: float,  # score of a positive
  options: MiningSettings,
) -> dict[int, float]:
  """The negatives among the documents found for a query, the best first."""
  limit = np.inf
  if options.absolute_margin is not None:
    limit = lowest_positive - options.absolute_margin
  if options.relative_margin is not None:
    share = abs(lowest_positive) * options.relative_margin
    limit = min(limit, lowest_positive - share)
  kept = [item for item in scores.items() if item[1] <= limit]
  first = options.range_min
  return dict(kept[first : first + options.mine_negatives])


def _scored(
  pairs: Pairs,
  query_vectors: np.ndarray,
  corpus_vectors: Iterable[np.ndarray],
  of_positives: dict[tuple[int, int], float],
) -> Iterator[np.ndarray]:
  """Yields the vectors of a corpus; computes the scores of positives."""
  # So the vectors of the corpus need not be in memory.
  queries_of: dict[int, list[int]] = {}
  for number, positives in enumerate(pairs.queries.values()):
    for positive in positives:
      queries_of.setdefault(positive, []).append(number)
  unit_queries = nearest_neighbors.unit_vectors(query_vectors)
  for document, vector in enumerate(corpus_vectors):
    (unit,) = nearest_neighbors.unit_vectors(vector[np.newaxis])
    for query in queries_of[document]:
      of_positives[query, document] = float(unit_queries[query] @ unit)
    yield vector
