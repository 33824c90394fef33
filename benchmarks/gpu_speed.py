"""Sides of `benchmarks.gpu` that are timed: products, ours, transformers.

Each takes the settings of `side_by_side` with `layers`, `hidden`, `heads`,
`batch_size`, `seq_length`, `steps` and `is_training`. Batches have no padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from benchmarks import training_step
from benchmarks.side_by_side import Answer, timed

MODELS = {
  "base": {"layers": 12, "hidden": 768, "heads": 12},
  "large": {"layers": 24, "hidden": 1024, "heads": 16},
}


def products(settings: SimpleNamespace) -> Iterator[Answer]:
  """FLOP/s of large products in bfloat16, the peak that shares refer to."""
  import tensorflow.compat.v1 as tf

  size, count = settings.product_size, 20
  with tf.Graph().as_default():
    initial = tf.random.stateless_uniform([size, size], [1, 2], dtype="float32")
    weights = tf.get_variable(
      "weights", initializer=tf.cast(initial / size, tf.bfloat16)
    )
    matrix = weights
    for _ in range(count):
      matrix = tf.matmul(matrix, weights)
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run(matrix.op)
  yield {"description": f"bfloat16 products of {size} x {size}"}
  while True:
    seconds = timed(session.run, matrix.op)
    yield {"FLOP/s": count * 2 * size**3 / seconds}


def ours(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of ours: training as in run_classifier.py, or prediction."""
  session, fetches, feed, description = make_step(settings)
  training_step.repeat(3, session.run, fetches, feed)
  yield {"description": description}
  while True:
    seconds = timed(
      training_step.repeat, settings.steps, session.run, fetches, feed
    )
    yield {"a step": seconds / settings.steps}


def make_step(
  settings: SimpleNamespace,
) -> tuple[Any, Any, dict[Any, Any], str]:
  """A session with a step, what to run, what to feed, and a description."""
  if settings.is_training:
    _, keywords = training_step.plan(settings)
    description = training_step.describe(keywords)
    return *training_step.make_step(settings, **keywords), description
  import tensorflow.compat.v1 as tf

  import modeling
  import run_classifier

  _, found = training_step.read_flags(
    precision=settings.precision, xla=settings.xla
  )
  compute = found.compute()
  batch = training_step.random_batch(settings)
  with tf.Graph().as_default():
    features = {
      name: tf.placeholder(tf.int32, [None, None][: array.ndim])
      for name, array in batch.items()
    }
    model_fn = run_classifier.model_fn_builder(
      modeling.BertConfig(**training_step.sizes(settings)),
      num_labels=2,
      init_checkpoint=None,
      learning_rate=0.0,
      num_train_steps=None,
      num_warmup_steps=None,
      use_tpu=False,
      use_one_hot_embeddings=False,
      compute=compute,
    )
    spec = model_fn(features, None, "infer", {"batch_size": len(batch)})
    session = tf.Session()
    session.run(tf.global_variables_initializer())
  feed = {features[name]: array for name, array in batch.items()}
  return session, spec.predictions, feed, compute.dtype.name


def transformers(settings: SimpleNamespace) -> Iterator[Answer]:
  """A step of transformers: compiled, in bfloat16, attention by sdpa.

  Without an attention mask, PyTorch takes its flash attention.
  """
  import torch
  import transformers

  device = "cuda" if torch.cuda.is_available() else "cpu"
  torch.manual_seed(1)
  torch.set_float32_matmul_precision("high")
  batch = {
    name: torch.tensor(array, dtype=torch.int64, device=device)
    for name, array in training_step.random_batch(settings).items()
  }
  batch = {
    "input_ids": batch["input_ids"],
    "token_type_ids": batch["segment_ids"],
    "labels": batch["label_ids"],
  }
  model = transformers.AutoModelForSequenceClassification.from_config(
    transformers.BertConfig(**training_step.sizes(settings)),
    attn_implementation="sdpa",
  ).to(device)
  if settings.is_training:
    compiles = device == "cuda"
    torch_step = training_step.torch_step(model, device=device)

    def step(batch, precision):
      torch_step(batch, precision, compiles)

  else:
    model.eval()
    compiled = torch.compile(model) if device == "cuda" else model

    def step(batch, precision):
      with (
        torch.inference_mode(),
        torch.autocast(device, torch.bfloat16, precision == "bfloat16"),
      ):
        compiled(**batch)

  def work(times):
    training_step.repeat(times, step, batch, "bfloat16")
    if device == "cuda":
      torch.cuda.synchronize()

  work(3)
  yield {"description": f"bfloat16, {torch.__version__} on {device}"}
  while True:
    yield {"a step": timed(work, settings.steps) / settings.steps}
