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
from typing import Any, Callable

from benchmarks import side_by_side
from benchmarks.side_by_side import FLAGS, Answers, Settings, passes, repeat

# Features with another name in transformers.
RENAMED = {
  "input_mask": "attention_mask",
  "segment_ids": "token_type_ids",
  "label_ids": "labels",
}


def main(_: list[str]) -> None:
  """Times steps and reports ratios."""
  sides = side_by_side.chosen([ours, hugging_face, reference])
  side_by_side.compare(sides, name_of_work())


def ours(settings: Settings) -> Answers:
  """A step of ours, as in run_classifier.py; or a prediction."""
  if getattr(settings, "predicts", False):  # a setting of `benchmarks.gpu`
    _, found = read_flags(settings, settings.seq_length)
    compute = found.compute()
    name = compute.dtype.name
    yield from graph_side(settings, name, "infer", compute=compute)
  else:
    _, keywords = plan(settings)
    yield from graph_side(settings, describe(keywords), **keywords)


def reference(settings: Settings) -> Answers:
  """A step of the original."""
  import_from(settings.reference)
  yield from graph_side(settings, "float32")


def hugging_face(settings: Settings) -> Answers:
  """A step of transformers, on a GPU if there is one; or a prediction."""
  import torch
  import transformers

  torch.manual_seed(1)
  batch = torch_batch(settings)
  model = transformers.AutoModelForSequenceClassification.from_config(
    transformers.BertConfig(**sizes(settings))
  ).to(side_by_side.torch_device())
  step = torch_step(model)
  if getattr(settings, "predicts", False):
    step = torch_prediction(model)
  variant, description = side_by_side.best_variant(
    functools.partial(step, batch), settings
  )
  call = step, batch, *variant
  repeat(2, *call)  # compilation again
  yield from passes(description, "a step", settings.steps, *call)


def name_of_work() -> str:
  """Model and batch of the flags, in words."""
  names = {
    (6, 384): "MiniLM",
    (12, 768): "BERT-Base",
    (24, 1024): "BERT-Large",
  }
  sizes = FLAGS.layers, FLAGS.hidden
  model = names.get(sizes, "{} layers of {}".format(*sizes))
  return f"{model}, {FLAGS.batch_size} x {FLAGS.seq_length} tokens"


def sizes(settings: Settings) -> dict[str, int]:
  """Sizes of the model, by the names that all sides use."""
  return {
    "vocab_size": 30522,
    "hidden_size": settings.hidden,
    "num_hidden_layers": settings.layers,
    "num_attention_heads": settings.heads,
    "intermediate_size": 4 * settings.hidden,
    "type_vocab_size": 2,
  }


def random_batch(settings: Settings) -> dict[str, Any]:
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


def torch_batch(settings: Settings) -> dict[str, Any]:
  """The same batch for transformers, int64."""
  import torch

  batch = random_batch(settings)
  # PyTorch has faster attention for batches without a mask.
  del batch["input_mask"]
  device = side_by_side.torch_device()
  return {
    RENAMED.get(name, name): torch.tensor(array, device=device).long()
    for name, array in batch.items()
  }


def import_from(reference: str) -> None:
  """Puts the modules of the original before ours on the path."""
  folder = os.path.abspath(reference)
  sys.path[:0] = [folder, os.path.dirname(folder)]


def plan(settings: Settings) -> tuple[Any, dict[str, Any]]:
  """Config of our model, and keywords for how a step is computed."""
  import modeling

  config = modeling.BertConfig(**sizes(settings))
  # The last layer computes only [CLS].
  keywords = training_plan(settings, config, settings.seq_length, 1)
  return config, {**keywords, "seed": 1}


def read_flags(settings: Settings, max_seq_length: int, **more: Any):
  """Settings of run_classifier.py with the same flags, and the devices."""
  from bertlib.cli import option
  from bertlib.hardware import devices
  from bertlib.tasks.classification.settings import ClassifierSettings

  names = ("precision", "xla", "memory_gb")
  given = {n: getattr(settings, n) for n in names if hasattr(settings, n)}
  given |= {"max_seq_length": max_seq_length, **more}
  flags = option.make(
    ClassifierSettings, train_batch_size=settings.batch_size, **given
  )
  return flags, devices.find_and_choose(flags)


def training_plan(
  settings: Settings,
  config: Any,
  max_seq_length: int,
  num_output_positions: int | None = None,
  **more: Any,
) -> dict[str, Any]:
  """How run_classifier.py computes a step, as keywords of its `model_fn`."""
  from bertlib.task.task_record import StepShape
  from bertlib.training import step_plan

  flags, found = read_flags(settings, max_seq_length, **more)
  shape = StepShape(max_seq_length, num_output_positions=num_output_positions)
  planned = step_plan.plan_training(
    flags, found, found.compute(), config, shape
  )
  return planned._asdict()


def describe(keywords: dict[str, Any]) -> str:
  """Describes how our step is computed."""
  compute, count = keywords["compute"], keywords["num_micro_batches"]
  ways = [compute.dtype.name]
  ways += ["compiled"] if compute.jit_compile else []
  ways += ["recomputed"] if compute.recompute else []
  if count > 1:
    ways.append(f"{count} micro-batches")
  return ", ".join(ways)


def graph_side(
  settings: Settings, description: str, mode: str = "train", **keywords: Any
) -> Answers:
  """A side of ours or of the original, whose functions have the same names.

  The mode is that of Estimator: "train" or "infer".
  """
  import modeling
  import run_classifier

  batch = random_batch(settings)
  shape = [settings.batch_size if mode == "train" else None, None]
  shapes = {name: shape[: array.ndim] for name, array in batch.items()}
  config = modeling.BertConfig(**sizes(settings))
  model_fn = make_model_fn(run_classifier, config, num_labels=2, **keywords)
  yield from feed(settings, description, model_fn, batch, shapes, mode)


def feed(
  settings: Settings,
  description: str,
  model_fn: Callable,
  batch: dict[str, Any],
  shapes: dict[str, Any],
  mode: str = "train",
  **first: Any,
) -> Answers:
  """A side whose graph gets the same batch in each step."""
  import tensorflow.compat.v1 as tf

  def placeholders():
    return {
      name: tf.placeholder(array.dtype, shapes[name])
      for name, array in batch.items()
    }

  session, features, spec = start_session(
    model_fn, placeholders, settings.batch_size, mode
  )
  fed = {features[name]: array for name, array in batch.items()}
  fetches = spec.train_op if mode == "train" else spec.predictions
  call = session.run, fetches, fed
  repeat(2, *call)
  yield from passes(description, "a step", settings.steps, *call, **first)


def make_model_fn(script: Any, config: Any, **more: Any) -> Callable:
  """The `model_fn` of a script, of ours or of the original."""
  arguments = {
    "bert_config": config,
    "init_checkpoint": None,
    "learning_rate": 5e-5,
    "num_train_steps": 1000,
    "num_warmup_steps": 10,
    "use_tpu": False,
    "use_one_hot_embeddings": False,
  }
  return script.model_fn_builder(**{**arguments, **more})


def start_session(
  model_fn: Callable, make_features: Callable, batch_size: int, mode="train"
) -> tuple[Any, Any, Any]:
  """A session with new weights, features and spec of the graph of a model."""
  import tensorflow.compat.v1 as tf

  with tf.Graph().as_default():
    features = make_features()
    spec = model_fn(features, None, mode, {"batch_size": batch_size})
    copies = tf.local_variables_initializer()  # 16-bit copies of weights
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(copies)
  return session, features, spec


def torch_step(model: Any, dynamic: bool | None = None) -> Callable:
  """Makes a training step of a PyTorch model."""
  import torch

  from benchmarks.torch_training import make_optimizer

  optimizer = make_optimizer(model, learning_rate=5e-5)
  model.train()
  compiled = torch.compile(model, dynamic=dynamic)  # in its first call

  def step(batch, precision, compiles):
    with autocast(model, precision):
      loss = (compiled if compiles else model)(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()  # waits for a GPU

  return step


def torch_prediction(model: Any) -> Callable:
  """Makes a function that predicts with a PyTorch model."""
  import torch

  model.eval()
  compiled = torch.compile(model)

  @torch.inference_mode()
  def predict(batch, precision, compiles):
    with autocast(model, precision):
      outputs = (compiled if compiles else model)(**batch)
    outputs.loss.item()

  return predict


def autocast(model: Any, precision: str) -> Any:
  """PyTorch's context in which a model computes products in a precision."""
  import torch

  device, dtype = model.device.type, getattr(torch, precision)
  return torch.autocast(device, dtype, enabled=precision != "float32")


if __name__ == "__main__":
  side_by_side.run(
    main,
    **side_by_side.MODEL,
    steps=(3, "Steps per pass."),
  )
