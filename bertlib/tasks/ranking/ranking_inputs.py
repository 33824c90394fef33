"""Inputs of run_reranker.py: groups to train on, documents to rank."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertlib.cli.absl import logging
from bertlib.cli.errors import InputError
from bertlib.data import beir, example_checks, tables
from bertlib.data.beir import Retrieval
from bertlib.data.nearest_neighbors import Ranked
from bertlib.settings import model_description
from bertlib.tasks.ranking import ranking_predictor, ranking_records
from bertlib.tasks.ranking.ranking_records import Groups
from bertlib.tasks.ranking.settings import RankingSettings
from bertlib.training import step_plan, text_sets
from bertlib.training.runs import Run

_FIX = "Fix the file, or write it again"


class Data(NamedTuple):
  """Data of the splits that the run uses."""

  train: Groups | None
  dev: Search | None
  # Pairs to score, or documents to rank.
  predict: Sequence[tuple[str, str]] | Search | None
  bad_rows: Mapping[str, Sequence[str]]  # messages of the skipped rows, by file


def find_loss(settings: RankingSettings) -> str | None:
  """The training objective; None without training."""
  flags, path = settings.objective, settings.train_file
  if not settings.flags.do_train:
    return None
  if flags.loss or flags.teacher or flags.teacher_scores_column:
    return flags.loss or "margin_mse"
  has_lists = ranking_records.has_lists(path, settings.columns)
  return "listwise" if has_lists else "bce"


def describe(settings: RankingSettings, loss: str | None) -> dict[str, str]:
  """Entries of `model.json`: those of the model, and the loss's activation."""
  found = model_description.load(settings.model.folder or "")
  names = {"activation", "query_prefix"} & found.keys()
  entries = {"activation": "sigmoid"} | {name: found[name] for name in names}
  if loss:
    entries["activation"] = "sigmoid" if loss == "bce" else "identity"
  return entries


def read_data(settings: RankingSettings, loss: str | None) -> Data:
  """Reads or checks the files that the run uses."""
  flags = settings.flags
  train = dev = predict = None
  bad_rows: dict[str, list[str]] = {}
  if loss:
    train = ranking_records.open_groups(settings, loss, bad_rows)
    step_plan.count_steps(flags, len(train), "queries")
  if flags.evaluates:
    dev = search_of_folder(settings, "dev_file", is_judged=True)
    dev = dev or search_of_table(settings, bad_rows)
  if flags.do_predict:
    predict = search_of_folder(settings, "predict_file", is_judged=False)
    predict = predict or tables.collect_examples(
      settings.predict_file,
      *ranking_predictor.pair_rows(settings),
      settings.text.bad_rows == "skip",
      bad_rows,
    )
  found = (data for data in (dev, predict) if isinstance(data, Search))
  if settings.candidates and not any(search.is_ordered for search in found):
    raise InputError(
      f"--candidates={settings.candidates}: are those of a folder in the layout"
      " of BEIR. Name one as --dev_file or --predict_file"
    )
  return Data(train, dev, predict, bad_rows)


# Documents to rank


class Search(NamedTuple):
  """Queries, and documents to rank for them."""

  retrieval: Retrieval  # nothing may be judged
  # Ids of documents by id of query, the best first.
  candidates: Mapping[str, Sequence[str]] = {}
  documents: Mapping[str, str] = {}  # their texts by id
  is_ordered: bool = True  # False where a file has the candidates of a query

  def with_candidates(self, candidates: Mapping[str, Sequence[str]]) -> Search:
    """Reads the texts of candidates; warns of those that are empty or wrong."""
    queries = self.retrieval.queries
    candidates = {query: candidates.get(query, ()) for query in queries}
    ids = itertools.chain.from_iterable(candidates.values())
    documents = self.retrieval.texts_of(ids)
    if not any(candidates.values()):
      raise InputError(
        "--candidates: there are none for the queries of the folder. Use the"
        " corpus, queries and candidates of one data set"
      )
    lost = [
      query
      for query, grades in self.retrieval.relevance.items()
      if not any(grades.get(id_, 0) > 0 for id_ in candidates[query])
    ]
    if lost:
      logging.warning(
        "%d of %d queries have no right document among their candidates, such"
        " as %r",
        len(lost),
        len(queries),
        queries[lost[0]],
      )
    if num_empty := sum(not text for text in documents.values()):
      logging.warning("%d documents to rank have no text", num_empty)
    return self._replace(candidates=candidates, documents=documents)

  def pairs(self) -> Iterator[tuple[str, str]]:
    """Yields each query with each of its candidates."""
    for query, ids in self.candidates.items():
      for id_ in ids:
        yield self.retrieval.queries[query], self.documents[id_]

  def ranked(self, logits: Iterable[float]) -> Iterator[Ranked]:
    """Yields queries with their candidates by logit, given those of `pairs`."""
    logits = iter(logits)
    for query, ids in self.candidates.items():
      found = np.array([next(logits) for _ in ids], np.float32)
      # Stable: of equal logits, the better candidate comes first.
      order = np.argsort(-found, kind="stable")
      yield query, [ids[index] for index in order], found[order]


def search_of_folder(
  settings: RankingSettings, flag: str, is_judged: bool
) -> Search | None:
  """The search of a folder in the layout of BEIR, if a flag names one."""
  path, run_file = getattr(settings, flag), settings.candidates
  if not beir.is_beir(path):
    return None
  settings.need("candidates", f"{flag}={path}")
  everything = beir.read_unjudged(path)
  search = Search(beir.read(path) if is_judged else everything)
  if os.path.isdir(run_file):  # an encoder, which finds them in the run
    return search
  run = read_run(run_file, everything.queries)
  best = {query: ids[: settings.top_k] for query, ids in run.items()}
  search = search.with_candidates(best)
  for query, ids in search.candidates.items():
    for id_ in ids:
      if id_ not in search.documents:
        raise InputError(
          f"{run_file}: the document {id_!r} of query {query!r} is not in the"
          f" corpus of {path}. Use the run and the corpus of one data set"
        )
  return search


def read_run(path: str, queries: Mapping[str, str]) -> dict[str, list[str]]:
  """Reads a run file of TREC; of equal scores the higher id comes first."""
  # Its columns: id of a query, Q0, id of a document, rank, score, name of the
  # run. As in trec_eval, the rank does not count, and scores are float32.
  scores: dict[str, dict[str, np.float32]] = {}
  for number, line in enumerate(tables.read_lines(path, None), start=1):
    where, cells = f"{path}, line {number}", line.split()
    if len(cells) != 6:
      raise InputError(
        f"{where}: has {len(cells)} columns, not six: query, Q0, document,"
        f" rank, score, name. {_FIX}"
      )
    query, _, document, _, score, _ = cells
    value, of_query = tables.parse_number(score), scores.setdefault(query, {})
    if query not in queries:
      problem = f"the query {query!r} is not in the queries.jsonl of the folder"
    elif document in of_query:
      problem = f"query {query!r} has the document {document!r} twice"
    elif value is None:
      problem = f"the score {score!r} is not a number"
    else:
      of_query[document] = np.float32(value)
      continue
    raise InputError(f"{where}: {problem}. {_FIX}")
  return {
    query: sorted(found, key=lambda id_: (found[id_], id_), reverse=True)
    for query, found in scores.items()
  }


def search_of_table(
  settings: RankingSettings, bad_rows: dict[str, list[str]]
) -> Search:
  """The search for the right documents among those of each query."""
  path, columns = settings.dev_file, settings.columns
  ranking_records.has_lists(path, columns)  # refuses other columns
  groups = ranking_records.read_table(settings, path, columns, None, bad_rows)
  found = beir.from_lists(group[:3] for group in groups)
  # The right ones come last: a model that gives equal logits has found none.
  candidates = {
    query: sorted(grades, key=lambda id_: grades[id_] > 0)
    for query, grades in found.relevance.items()
  }
  if max(map(len, candidates.values()), default=0) < 2:
    raise InputError(
      f"{path}: no query has a relevant document and another, so that there is"
      " nothing to rank. Name other columns, or a file with negatives"
    )
  return Search(found, is_ordered=False).with_candidates(candidates)


# Lengths


def warn_of_long_queries(run: Run, data: Data) -> None:
  """Warns of queries that leave documents less than half of the length."""
  length = run.settings.model.max_seq_length
  queries = (group.query for group in data.train or ())
  for found in (data.dev, data.predict):
    if isinstance(found, Search):
      queries = itertools.chain(queries, found.retrieval.queries.values())
  lengths = map(len, run.tokenizer.encode_batch(queries))
  if num_long := sum(number > length // 2 for number in lengths):
    logging.warning(
      "%d queries have more than half of the --max_seq_length=%d tokens, and"
      " leave documents less",
      num_long,
      length,
    )


def check_pairs(run: Run, data: Data) -> example_checks.LengthSummary:
  """Encodes some of the pairs, in a dry run."""
  found = data.train or data.predict or data.dev
  if isinstance(found, Search):
    found = [*found.pairs()]
  pairs = sample = example_checks.sample(found)
  if data.train:
    pairs = [(g.query, text) for g in sample for text in g.documents]
  return text_sets.check_sample(run, pairs, len(found), len(sample))
