"""Mines hard negatives: texts close to a query that are not its positives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.cli.absl import logging
from bertlib.data import batch_predictor, beir, nearest_neighbors
from bertlib.data.beir import Retrieval
from bertlib.data.text_groups import Example
from bertlib.io.files import atomic_write
from bertlib.tasks.embeddings.settings import MiningSettings

# Of queries, float32 [queries, width], and of a corpus, one by one.
Vectors = tuple[np.ndarray, Iterable[np.ndarray]]


class Mined(NamedTuple):
  """Queries with positives, and documents that may be negatives."""

  pairs: Retrieval
  most_positives: int  # of a query, equal ones too


def of_examples(examples: Sequence[Example]) -> Mined:
  """Mines the positives of all pairs, which may have negatives already."""
  pairs = beir.from_lists((e.texts[0], e.texts[1:2], [1.0]) for e in examples)
  rows_of = Counter(example.texts[0] for example in examples)
  return Mined(pairs, max(rows_of.values()))


def of_folder(path: str) -> Mined:
  """Mines the corpus of a folder in the layout of BEIR."""
  pairs = beir.read(path, "train")
  return Mined(pairs, max(map(len, map(_right, pairs.relevance.values()))))


def _right(grades: Mapping[str, float]) -> list[str]:
  return [document for document, grade in grades.items() if grade > 0]


def write(
  path: str,
  mined: Mined,
  encode: Callable[[Iterable[str], Iterable[str]], Vectors],
  options: MiningSettings,
) -> None:
  """Writes the negatives of each pair as JSON Lines, and logs their numbers."""
  pairs = mined.pairs
  query_vectors, vectors = encode(
    pairs.queries.values(), (text for _, text in pairs.corpus)
  )
  of_positives: dict[tuple[str, str], float] = {}  # by query and document
  (ranked,) = nearest_neighbors.rank(
    pairs,
    query_vectors,
    _scored(pairs, query_vectors, vectors, of_positives),
    options.depth(mined.most_positives),
  )
  found = {id_ for _, ids, _ in ranked for id_ in ids}
  texts = pairs.texts_of(found.union(id_ for _, id_ in of_positives))
  counts: Counter[int] = Counter()  # of rows, by their number of negatives
  with atomic_write(path, "wb") as file:
    for query, ids, scores in ranked:
      # By text: copies in a corpus are one document, whose score is theirs.
      candidates = dict(zip((texts[id_] for id_ in ids), scores.tolist()))
      for text in ("", pairs.queries[query]):
        candidates.pop(text, None)
      right = {
        # Of the same product as those of others: equal vectors have equal ones.
        text: candidates.pop(text, of_positives[query, positive])
        for positive in _right(pairs.relevance[query])
        if (text := texts.get(positive))
      }
      negatives = choose(candidates, min(right.values(), default=0), options)
      counts[len(negatives)] += len(right)
      for positive, score in right.items() if negatives else ():
        row = {
          "query": pairs.queries[query],
          "positive": positive,
          "negatives": [*negatives],
          "scores": [round(value, 6) for value in (score, *negatives.values())],
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
  scores: Mapping[str, float],  # by document, the best first
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
    for positive in _right(pairs.relevance[query]):
      queries_of[positive].append((query, unit_query))
  for vector, (document, _) in zip(corpus_vectors, pairs.corpus):
    (unit,) = nearest_neighbors.unit_vectors(vector[np.newaxis])
    for query, unit_query in queries_of[document]:
      of_positives[query, document] = float(unit_query @ unit)
    yield vector
