"""Models of all training scripts on random examples, for checks of graphs.

The tests use them at the size of `CONFIG`; `benchmarks.gpu` also larger ones.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags

import modeling
import run_classifier
import run_embeddings
import run_ner
import run_pretraining
import run_reranker
import run_squad
from bertlib.cli import option
from bertlib.data import tf_records
from bertlib.data.text_groups import Example
from bertlib.hardware import devices
from bertlib.hardware.devices import Devices
from bertlib.tasks.classification.classification import Problem
from bertlib.tasks.classification.settings import ClassifierSettings
from bertlib.tasks.embeddings import embedding_inputs
from bertlib.tasks.embeddings.settings import EmbeddingSettings
from bertlib.tasks.ner.settings import NerSettings
from bertlib.tasks.pretraining import pretraining_instances
from bertlib.tasks.pretraining.settings import PretrainingSettings
from bertlib.tasks.ranking.settings import RankingSettings
from bertlib.tasks.squad.settings import SquadSettings
from bertlib.training import loop
from bertlib.training.runs import Run

VOCAB_SIZE = 23
CONFIG = modeling.BertConfig(
  vocab_size=VOCAB_SIZE,
  hidden_size=8,
  num_hidden_layers=1,
  num_attention_heads=2,
  intermediate_size=8,
  initializer_range=0.2,
  max_position_embeddings=16,
  type_vocab_size=2,
)
LENGTH, BATCH_SIZE = 10, 4
LABELS = ("a", "b", "c")


def settings_of(command, *arguments: str):
  """Settings of a command."""
  values = flags.FlagValues()
  option.define(command, values, required=False)
  values(
    [
      "command",
      "--output_dir=out",
      f"--max_seq_length={LENGTH}",
      f"--train_batch_size={BATCH_SIZE}",
      "--learning_rate=1e-2",
      *arguments,
    ]
  )
  return option.read_flags(command, values)


def run_of(
  name: str, *arguments: str, config: modeling.BertConfig = CONFIG
) -> Run:
  """A run of a task, without loading anything."""
  first, _, kind = name.partition(" ")
  command = {
    "squad": SquadSettings,
    "ner": NerSettings,
    "pretraining": PretrainingSettings,
    "embeddings": EmbeddingSettings,
    "reranking": RankingSettings,
  }.get(first, ClassifierSettings)
  more = ["--warmup_proportion=0"]
  if first == "pretraining":
    more = ["--max_predictions_per_seq=3", "--num_warmup_steps=0"]
    if kind == "electra":
      more.append("--objective=electra")
  settings = settings_of(command, *more, *arguments)
  if first == "squad":
    task = run_squad.make_task(settings)
  elif first == "ner":
    task = run_ner.make_task(settings, LABELS)
  elif first == "pretraining":
    task = run_pretraining.make_task(settings)
    if kind == "packed":
      layout = pretraining_instances.record_layout(
        LENGTH, 3, max_sequences_per_row=4
      )
      task = dataclasses.replace(task, features=layout)
    elif kind == "electra":  # whose draws are added to batches
      draws = {"masked_lm_draws": tf_records.Feature((3,), is_float=True)}
      task = dataclasses.replace(task, features=task.features | draws)
  elif first == "embeddings":
    texts = LABELS[: {"triplets": 3, "labeled_texts": 1}.get(kind, 2)]
    train_set = [Example(list(texts), score) for score in (0.0, 1.0)]
    data = embedding_inputs.Data(kind, train_set, None, (), (), (), {})
    task = run_embeddings.make_task(settings, data)
  elif first == "reranking":
    data = types.SimpleNamespace(train=types.SimpleNamespace(num_documents=3))
    task = run_reranker.make_task(settings, kind, data)
  else:
    problem = Problem(first, () if first == "regression" else LABELS)
    data = types.SimpleNamespace(problem=problem, metrics=[], model_task="task")
    task = run_classifier.make_task(settings, data)
    if kind == "weighted":
      weights = {"label_weights": [0.5, 1.0, 2.0]}
      arguments = {**task.model_arguments, **weights}
      task = dataclasses.replace(task, model_arguments=arguments)
  # Without looking for devices.
  found = devices.choose(settings.compute, Devices(settings.devices))
  return Run(settings, found, task, config, None, None, None)


def model_of(name: str, *arguments: str):
  """A task's `model_fn` and the layout of its features, see `run_of`."""
  made = run_of(name, *arguments)
  return loop.model_fn_of(made, num_train_steps=50), made.task.features


def random_batch(
  layout: tf_records.Layout,
  batch_size: int = BATCH_SIZE,
  vocab_size: int = VOCAB_SIZE,
) -> Mapping[str, Any]:
  """Examples with some padding, and targets in range."""
  random = np.random.default_rng(0)
  length = layout["input_ids"].shape[-1]
  limits = {
    "input_ids": vocab_size,
    "masked_lm_ids": vocab_size,
    "masked_lm_positions": length,
    "label_ids": len(LABELS),
    "start_positions": length,
    "end_positions": length,
    "text_ids": 1000,
  }
  batch = {}
  for name, (shape, is_float, *_) in layout.items():
    values = random.integers(0, limits.get(name, 2), [batch_size, *shape])
    if name == "labels":
      values[:, 0] = 1  # of documents: a query has a relevant one
    batch[name] = values.astype(np.float32 if is_float else np.int32)
  lengths = random.integers(length * 4 // 10, length, [batch_size, 1])
  mask = np.arange(length) < lengths
  shape = batch["input_mask"].shape
  mask = mask.reshape(batch_size, *[1] * (len(shape) - 2), length)
  batch["input_mask"] = np.broadcast_to(mask, shape).astype(np.int32)
  return batch
