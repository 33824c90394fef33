"""Inputs of run_embeddings.py: model, groups of texts, teacher, judgments."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertlib.cli.errors import InputError
from bertlib.data import beir, example_checks, text_groups
from bertlib.data.text_groups import Example, kind_of
from bertlib.io.files import open_any
from bertlib.settings import embedding_spec, model_description
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.tasks.embeddings import hard_negatives
from bertlib.tasks.embeddings.embedding_losses import LossOptions
from bertlib.tasks.embeddings.hard_negatives import Mined
from bertlib.tasks.embeddings.record import RECORD
from bertlib.tasks.embeddings.settings import LOSSES_OF_KIND, EmbeddingSettings
from bertlib.training import step_plan, text_sets
from bertlib.training.runs import Run

# The model


def find_spec(settings: EmbeddingSettings) -> EmbeddingSpec:
  """The sentence vectors of the flags or, where none is given, of the model."""
  flags, folder = settings.vectors, settings.model.folder
  description = model_description.load(folder, RECORD) if folder else {}
  spec = embedding_spec.from_json(description.get("embedding", {}))
  names = "pooling", "normalize", "projection_dim"
  values = {name: getattr(flags, name) for name in names}
  if flags.matryoshka_dims:
    values["matryoshka_dims"] = sorted(flags.matryoshka_dims, reverse=True)
  prompts = {"query": flags.query_prefix, "passage": flags.passage_prefix}
  if "document" in spec.prompts:  # which comes before "passage"
    prompts["document"] = flags.passage_prefix
  spec = dataclasses.replace(
    spec, **_given(values), prompts={**spec.prompts, **_given(prompts)}
  )
  spec.prompt(settings.prompt)
  return spec


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in values.items() if value is not None}


def read_vectors(path: str, num_vectors: int) -> np.ndarray:
  """Reads a teacher's vectors, finite and different: float32 [texts, width]."""
  try:
    with open_any(path, "rb") as file:
      vectors = np.lib.format.read_array(file)
  except ValueError:  # of another format
    vectors = np.empty(0)
  is_table = vectors.ndim == 2 and vectors.dtype.kind == "f"
  if not is_table or len(vectors) != num_vectors:
    raise InputError(
      f"{path}: is not an .npy file of float [{num_vectors}, D]. Save one"
      " vector per row of --train_file, in the same order"
    )
  with np.errstate(over="ignore"):
    vectors = vectors.astype(np.float32)
  is_constant = not vectors.any() or (
    len(vectors) > 1 and not np.ptp(vectors, 0).any()
  )
  if is_constant or not np.isfinite(vectors).all():
    raise InputError(
      f"{path}: its vectors are all equal, or not all finite in float32, so"
      " that nothing can be learned from them. Compute them again"
    )
  return vectors


def make_loss(
  settings: EmbeddingSettings, spec: EmbeddingSpec, kind: str
) -> LossOptions:
  """The training objective of the flags for a kind of training data."""
  flags = settings.objective
  name = flags.loss or LOSSES_OF_KIND[kind][0]
  margin = flags.margin
  if margin is None:
    margin = 0.5 if spec.normalize else 5.0
  widths = settings.vectors.matryoshka_dims or spec.matryoshka_dims
  return LossOptions(
    name,
    flags.temperature,
    margin=margin,
    dims=tuple(widths),
    normalize=spec.normalize,
  )


def check_learns(
  settings: EmbeddingSettings, loss: str, examples: Sequence[Example]
) -> None:
  """Refuses a training set on which every gradient of a loss would be 0."""
  has_negatives = any(len(example.texts) > 2 for example in examples)
  compares = loss in ("cosent", "supervised_contrastive")
  compares |= loss == "infonce" and not has_negatives
  if compares and settings.flags.train_batch_size == 1:
    raise InputError(
      f"--train_batch_size=1: --loss={loss} compares the examples of a batch"
      " with each other. Give 2 or more"
    )
  problem = None
  if loss == "cosent" and len({(e.score, e.label) for e in examples}) == 1:
    problem = "all pairs have the same score or label"
  elif loss == "triplet" and not has_negatives:
    problem = "no row has a hard negative"
  elif loss == "infonce" and not _has_candidates(examples):
    problem = "all rows have the same first or the same second text"
  if problem:
    raise InputError(
      f"{settings.train_file}: {problem}, so that --loss={loss} has nothing to"
      " learn. Name other columns, or another loss"
    )


def _has_candidates(examples: Sequence[Example]) -> bool:
  """True if infonce compares a positive with any other text."""
  candidates = {text for example in examples for text in example.texts[1:]}
  right: dict[str, set[str]] = {}
  for example in examples:
    right.setdefault(example.texts[0], set()).add(example.texts[1])
  return any(candidates - texts for texts in right.values())


# The data


class DevSet(NamedTuple):
  """The dev set: examples, or queries and a corpus with judgments."""

  # See `settings.text_groups.kind_of`; "retrieval" for the latter.
  kind: str
  examples: Sequence[Example]  # empty for retrieval
  retrieval: beir.Retrieval | None


class Data(NamedTuple):
  """Data of the splits that the run uses."""

  # Of the training data, see `settings.text_groups.kind_of`; None without.
  kind: str | None
  train: Sequence[Example]
  dev: DevSet | None  # None without evaluation
  predict: Sequence[str]  # texts to encode
  corpus: Sequence[str]  # texts to search
  queries: Sequence[str]  # queries to search for
  bad_rows: Mapping[str, Sequence[str]]  # messages of the skipped rows, by file
  mined: Mined | None = None  # to find negatives for


def read_data(settings: EmbeddingSettings) -> Data:
  """Reads the files that the run uses."""
  flags, columns = settings.flags, settings.train_columns
  mines = flags.do_predict and settings.mining.mine_negatives
  bad_rows: dict[str, list[str]] = {}
  path, examples, mined = settings.train_file, [], None
  if settings.mines_folder:
    mined = hard_negatives.of_folder(path)
  elif flags.do_train or mines:
    examples = text_groups.read_examples(
      path, columns, settings.max_score, settings.text, bad_rows
    )
  train = examples if flags.do_train else []
  if train:
    step_plan.count_steps(flags, len(train), "examples")
  if mines and examples:
    mined = hard_negatives.of_examples(examples)
    if len({example.texts[1] for example in examples}) == 1:
      raise InputError(
        f"{path}: all rows have the same second text, so that there are no"
        " others to mine. Name other --text_columns"
      )
  return Data(
    kind_of(columns) if train else None,
    train,
    _read_dev_set(settings, bad_rows),
    *(
      _read_texts(settings, flag, bad_rows)
      for flag in ("predict_file", "corpus_file", "query_file")
    ),
    bad_rows,
    mined,
  )


def _read_dev_set(
  settings: EmbeddingSettings, bad_rows: dict[str, list[str]]
) -> DevSet | None:
  """Reads --dev_file, if the run evaluates."""
  path = settings.dev_file
  if not settings.flags.evaluates:
    return None
  if beir.is_beir(path):
    return DevSet("retrieval", (), beir.read(path))
  columns = settings.dev_columns
  kind = kind_of(columns)
  examples = text_groups.read_examples(
    path, columns, settings.max_score, settings.text, bad_rows
  )
  if kind in ("pairs", "triplets"):
    # A pair of two equal texts only adds to the corpus.
    found = beir.from_lists(
      (query, texts, [float(texts[0] != query)] + [0.0] * (len(texts) - 1))
      for (query, *texts), *_ in examples
    )
    if not found.queries:
      raise InputError(
        "--dev_file: each pair has two equal texts, so that there is nothing to"
        " find. Give pairs of different texts"
      )
    return DevSet("retrieval", (), found)
  return DevSet(kind, examples, None)


def _read_texts(
  settings: EmbeddingSettings, flag: str, bad_rows: dict[str, list[str]]
) -> Sequence[str]:
  path = getattr(settings, flag)
  if not path or not settings.flags.do_predict:
    return ()
  columns = settings.text_columns
  return text_groups.read_texts(path, settings.text, columns, bad_rows)


# Of a dry run


def check_text_groups(run: Run, data: Data) -> example_checks.LengthSummary:
  """Encodes the texts of some of the examples, or some of the texts."""
  groups = [example.texts for example in data.train]
  if not groups and data.dev:
    groups = [example.texts for example in data.dev.examples]
    if data.dev.retrieval:
      groups = [[text] for text in data.dev.retrieval.queries.values()]
  groups = groups or [[text] for text in (*data.predict, *data.queries)]
  sample = example_checks.sample(groups)
  texts = [*itertools.chain.from_iterable(sample)]
  pairs = ((text, None) for text in texts)
  return text_sets.check_sample(run, pairs, len(groups), len(sample), texts)
