"""Benchmark of a training step, against transformers and the original.

BERT with a classifier, random weights and dropout 0.1, a batch without padding:
loss, gradients, clipping to norm 1, Adam. Against Hugging Face transformers
with PyTorch's fused AdamW and, with `--reference`, the original.

    python -m benchmarks.training_step --batch_size=16 --seq_length=128 \
        --reference=bert --reference_python=python3.7
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Callable

from absl import flags

from benchmarks import side_by_side
from benchmarks.side_by_side import Answer, timed

FLAGS = flags.FLAGS


def define_flags() -> None:
  """Defines the flags."""
  side_by_side.define_flags()
  flags.adopt_module_key_flags(side_by_side)
  define_model_flags()
  flags.DEFINE_integer("steps", 3, "Steps per pass.", lower_bound=1)


def define_model_flags() -> None:
  """Defines the flags of model, batch and memory."""
  flags.DEFINE_integer("layers", 12, "Layers.")
  flags.DEFINE_integer(
    "hidden", 768, "Hidden size H; the intermediate size is 4 H."
  )
  flags.DEFINE_integer("heads", 12, "Attention heads.")
  flags.DEFINE_integer("batch_size", 16, "Examples per step.")
  flags.DEFINE_integer("seq_length", 128, "Tokens per example.")
  flags.DEFINE_enum("xla", "auto", ["auto", "on", "off"], "Ours.")
  flags.DEFINE_integer("gradient_accumulation_steps", 1, "Micro-batches.")
  flags.DEFINE_bool(
    "recompute_activations", False, "Gradient checkpointing, on both sides."
  )
  flags.DEFINE_float("memory_gb", None, "Ours: sets the two flags above.")


def main(_: list[str]) -> None:
  """Times steps and reports ratios."""
  side_by_side.compare([ours, hugging_face, reference], name_of_work())


# Sides


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of ours, as in run_classifier.py."""
  _, keywords = plan(settings)
  yield from graph_side(settings, describe(keywords), **keywords)


def reference(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of the original."""
  import_from(settings.reference)
  yield from graph_side(settings, "float32")


def hugging_face(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of transformers."""
  import torch
  import transformers

  torch.manual_seed(1)
  names = ["input_ids", "attention_mask", "token_type_ids", "labels"]
  batch = {
    name: torch.tensor(array, dtype=torch.int64)
    for name, array in zip(names, random_batch(settings).values())
  }
  model = transformers.AutoModelForSequenceClassification.from_config(
    transformers.BertConfig(**sizes(settings))
  )
  if settings.recompute_activations:
    model.gradient_checkpointing_enable()
  step = torch_step(model, settings.gradient_accumulation_steps)
  variant, description = side_by_side.best_variant(
    functools.partial(step, batch),
    settings.peer_precision,
    settings.torch_compile,
  )
  yield {"description": description}
  while True:
    seconds = timed(repeat, settings.steps, step, batch, *variant)
    yield {"a step": seconds / settings.steps}


# Helpers


def name_of_work() -> str:
  """Model and batch of the flags, in words."""
  names = {(12, 768): "BERT-Base", (24, 1024): "BERT-Large"}
  sizes = FLAGS.layers, FLAGS.hidden
  model = names.get(sizes, "{} layers of {}".format(*sizes))
  return f"{model}, {FLAGS.batch_size} x {FLAGS.seq_length} tokens"


def sizes(settings: SimpleNamespace) -> dict[str, int]:
  """Sizes of the model, by the names that all sides use."""
  return {
    "vocab_size": 30522,
    "hidden_size": settings.hidden,
    "num_hidden_layers": settings.layers,
    "num_attention_heads": settings.heads,
    "intermediate_size": 4 * settings.hidden,
    "type_vocab_size": 2,
  }


def random_batch(settings: SimpleNamespace) -> dict[str, Any]:
  """Features of a batch without padding, int32."""
  import numpy as np

  rng = np.random.RandomState(1)
  shape = settings.batch_size, settings.seq_length
  batch = {
    "input_ids": rng.randint(1000, 30000, shape),
    "input_mask": np.ones(shape),
    "segment_ids": np.zeros(shape),
    "label_ids": rng.randint(0, 2, shape[:1]),
  }
  return {name: array.astype(np.int32) for name, array in batch.items()}


def import_from(reference: str) -> None:
  """Puts the modules of the original before ours on the path."""
  folder = os.path.abspath(reference)
  sys.path[:0] = [folder, os.path.dirname(folder)]


def repeat(times: int, function: Callable, *args: Any) -> None:
  """Calls a function several times."""
  for _ in range(times):
    function(*args)


def plan(settings: SimpleNamespace) -> tuple[Any, dict[str, Any]]:
  """Config of our model, and keywords for how a step is computed."""
  import modeling

  config = modeling.BertConfig(**sizes(settings))
  compute, options = training_plan(
    config,
    step_shape(settings),
    train_batch_size=settings.batch_size,
    max_seq_length=settings.seq_length,
    precision=settings.precision,
    xla=settings.xla,
    gradient_accumulation_steps=settings.gradient_accumulation_steps,
    recompute_activations=settings.recompute_activations,
    memory_gb=settings.memory_gb,
  )
  return config, {"compute": compute, "options": options, "seed": 1}


def step_shape(settings: SimpleNamespace):
  """Sizes of a step of a classifier, whose last layer computes only [CLS]."""
  from bertlib.training.memory_plan import StepShape

  return StepShape(settings.seq_length, num_output_positions=1)


def read_flags(**values: Any):
  """Settings of run_classifier.py with these flags, and the devices."""
  from bertlib.cli import option
  from bertlib.exchange import resolve
  from bertlib.settings.classifier import ClassifierSettings

  flags = option.make(ClassifierSettings, **values)
  return flags, resolve.find_devices(flags)


def training_plan(config: Any, shape: Any, **values: Any):
  """Plan of a step of run_classifier.py, with values of flags by name."""
  from bertlib.training import step_plan

  flags, found = read_flags(**values)
  return step_plan.plan_training(flags, found, found.compute(), config, shape)


def describe(keywords: dict[str, Any]) -> str:
  """Describes how our step is computed."""
  compute, options = keywords["compute"], keywords["options"]
  ways = [compute.dtype.name]
  ways += ["compiled"] if compute.jit_compile else []
  ways += ["recomputed"] if compute.recompute else []
  if options.num_micro_batches > 1:
    ways.append(f"{options.num_micro_batches} micro-batches")
  return ", ".join(ways)


def graph_side(
  settings: SimpleNamespace, description: str, **keywords: Any
) -> Iterator[Answer]:
  """A side of ours or of the original, whose functions have the same names."""
  session, train_op, feed = make_step(settings, **keywords)
  repeat(2, session.run, train_op, feed)
  yield {"description": description}
  while True:
    seconds = timed(repeat, settings.steps, session.run, train_op, feed)
    yield {"a step": seconds / settings.steps}


def make_step(
  settings: SimpleNamespace, **keywords: Any
) -> tuple[Any, Any, dict[Any, Any]]:
  """A session with a training step, its op, and the batch to feed."""
  import tensorflow.compat.v1 as tf

  import modeling

  batch = random_batch(settings)

  def placeholders():
    return {
      name: tf.placeholder(tf.int32, [settings.batch_size, None][: array.ndim])
      for name, array in batch.items()
    }

  config = modeling.BertConfig(**sizes(settings))
  session, features, train_op = training_session(
    placeholders, config, settings.batch_size, num_train_steps=1000, **keywords
  )
  return session, train_op, {features[n]: array for n, array in batch.items()}


def training_session(
  make_features: Callable, config: Any, batch_size: int, **more: Any
) -> tuple[Any, Any, Any]:
  """A session with the graph of a training step and its weights."""
  import tensorflow.compat.v1 as tf

  import run_classifier

  arguments = {
    "bert_config": config,
    "num_labels": 2,
    "init_checkpoint": None,
    "learning_rate": 5e-5,
    "num_warmup_steps": 10,
    "use_tpu": False,
    "use_one_hot_embeddings": False,
  }
  model_fn = run_classifier.model_fn_builder(**{**arguments, **more})
  with tf.Graph().as_default():
    features = make_features()
    spec = model_fn(features, None, "train", {"batch_size": batch_size})
    copies = tf.local_variables_initializer()  # 16-bit copies of weights
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(copies)
  return session, features, spec.train_op


def torch_step(
  model: Any,
  num_micro_batches: int = 1,
  dynamic: bool | None = None,
  device: str = "cpu",
) -> Callable:
  """Makes a training step of a PyTorch model."""
  import torch

  from benchmarks.torch_optimizer import make_optimizer

  optimizer = make_optimizer(model, learning_rate=5e-5)
  model.train()
  compiled = torch.compile(model, dynamic=dynamic)  # in its first call

  def step(batch, precision, compiles):
    forward = compiled if compiles else model
    chunks = [tensor.chunk(num_micro_batches) for tensor in batch.values()]
    for micro_batch in zip(*chunks):
      with torch.autocast(
        device, torch.bfloat16, enabled=precision == "bfloat16"
      ):
        loss = forward(**dict(zip(batch, micro_batch))).loss / num_micro_batches
      loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

  return step


if __name__ == "__main__":
  from bertlib.cli import app

  define_flags()
  app.run(main)
