"""Mines hard negatives: texts close to a query that are not its positives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from bertlib.cli.absl import logging
from bertlib.data import batch_predictor, beir, nearest_neighbors
from bertlib.data.beir import Retrieval
from bertlib.data.text_groups import Example
from bertlib.io.files import atomic_write
from bertlib.tasks.embeddings.settings import MiningSettings

# Of queries, float32 [queries, width], and of a corpus, one by one.
Vectors = tuple[np.ndarray, Iterable[np.ndarray]]


def write(
  path: str,
  examples: Sequence[Example],  # pairs, with any number of negatives
  encode: Callable[[Iterable[str], Iterable[str]], Vectors],
  options: MiningSettings,
) -> None:
  """Writes the negatives of each pair as JSON Lines, and logs their numbers."""
  pairs = beir.from_lists((e.texts[0], e.texts[1:2], [1.0]) for e in examples)
  rows_of = Counter(example.texts[0] for example in examples)
  texts = dict(pairs.corpus)
  query_vectors, vectors = encode(pairs.queries.values(), texts.values())
  of_positives: dict[tuple[str, str], float] = {}  # by query and document
  (ranked,) = nearest_neighbors.rank(
    pairs,
    query_vectors,
    _scored(pairs, query_vectors, vectors, of_positives),
    options.depth(max(rows_of.values())),
  )
  counts: Counter[int] = Counter()  # of rows, by their number of negatives
  with atomic_write(path, "wb") as file:
    for query, ids, scores in ranked:
      candidates = dict(zip(ids, scores.tolist()))
      right = {
        # Of the same product as those of others: equal vectors have equal ones.
        positive: candidates.pop(positive, of_positives[query, positive])
        for positive in pairs.relevance[query]
      }
      mined = choose(candidates, min(right.values()), options)
      counts[len(mined)] += len(right)
      for positive, score in right.items() if mined else ():
        row = {
          "query": pairs.queries[query],
          "positive": texts[positive],
          "negatives": [texts[document] for document in mined],
          "scores": [round(value, 6) for value in (score, *mined.values())],
        }
        file.write(batch_predictor.json_line(row))
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
  scores: Mapping[str, float],  # of documents, the best first
  lowest_positive: float,  # score of a positive
  options: MiningSettings,
) -> dict[str, float]:
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
  pairs: Retrieval,
  query_vectors: np.ndarray,
  corpus_vectors: Iterable[np.ndarray],
  of_positives: dict[tuple[str, str], float],
) -> Iterator[np.ndarray]:
  """Yields the vectors of a corpus; computes the scores of positives."""
  # So the vectors of the corpus need not be in memory.
  unit_queries = nearest_neighbors.unit_vectors(query_vectors)
  queries_of = defaultdict(list)
  for query, unit_query in zip(pairs.queries, unit_queries):
    for positive in pairs.relevance[query]:
      queries_of[positive].append((query, unit_query))
  for vector, (document, _) in zip(corpus_vectors, pairs.corpus):
    (unit,) = nearest_neighbors.unit_vectors(vector[np.newaxis])
    for query, unit_query in queries_of[document]:
      of_positives[query, document] = float(unit_query @ unit)
    yield vector
