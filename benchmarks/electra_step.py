"""Benchmark of a step of ELECTRA's pretraining, against the Model Garden.

`run_pretraining.py --objective=electra` and tf-models-official's
`electra/pretraining`, both with dropout, clipping and AdamW, on a batch without
padding; theirs compiled by XLA and not. First both compute the loss with equal
weights, samples and no dropout.

    python -m benchmarks.electra_step --layers=12 --hidden=256 --heads=4 \
        --peer_python=garden/bin/python
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from benchmarks import side_by_side, training_step
from benchmarks.side_by_side import Answers, Settings, passes, repeat

PACKAGE = "tf-models-official"
NUM_PREDICTIONS = 19
CONFIG = {
  "embedding_size": 128,
  "generator_hidden_size": 0.25,
  "hidden_act": "gelu_tanh",
}


def main(_: list[str]) -> None:
  """Compares losses, times steps and reports ratios."""
  sides = side_by_side.chosen([ours, garden], [PACKAGE])
  sides += [
    side._replace(name="garden-compiled", settings={"jit_compile": True})
    for side in sides[1:]
  ]
  side_by_side.compare(sides, f"ELECTRA, {training_step.name_of_work()}")


def random_batch(settings: Settings) -> tuple[dict[str, Any], Any]:
  """Features of a batch, and samples [B, P] for its masks."""
  import numpy as np

  batch = training_step.random_batch(settings)
  del batch["label_ids"]
  rng = np.random.RandomState(2)
  shape = settings.batch_size, NUM_PREDICTIONS
  positions = np.linspace(1, settings.seq_length - 1, NUM_PREDICTIONS)
  positions = np.tile(positions.astype(np.int32), [settings.batch_size, 1])
  labels = np.take_along_axis(batch["input_ids"], positions, 1)
  np.put_along_axis(batch["input_ids"], positions, 103, 1)
  batch |= {
    "masked_lm_positions": positions,
    "masked_lm_ids": labels,
    "masked_lm_weights": np.ones(shape, np.float32),
    "masked_lm_draws": rng.rand(*shape).astype(np.float32),
  }
  samples = rng.randint(1000, 30000, shape).astype(np.int32)
  return batch, np.where(rng.rand(*shape) < 0.3, labels, samples)


def weights(variables: Iterable[Any]) -> list[Any]:
  """Values that are equal where two libraries name variables alike."""
  import numpy as np

  found = []
  words = r"query|key|value|layer_\d+|gamma|beta|bias"
  for variable in variables:
    shape = variable.shape.as_list()
    parts = sorted({*re.findall(words, variable.name)})
    key = zlib.crc32(f"{parts} {np.prod(shape)}".encode())
    values = np.random.RandomState(key).normal(0, 0.05, shape)
    found.append(values + ("gamma" in parts))
  return found


def ours(settings: Settings) -> Answers:
  """A step of ours, as in run_pretraining.py."""
  import tensorflow.compat.v1 as tf

  import modeling
  import run_pretraining
  from bertlib.tasks.pretraining import electra, objectives

  config, keywords = training_step.plan(settings)
  config = modeling.BertConfig.from_dict(config.to_dict() | CONFIG)
  batch, samples = random_batch(settings)
  objective = {"objective": objectives.ELECTRA}
  sample_tokens = electra.sample_tokens
  electra.sample_tokens = lambda *_: tf.constant(samples.ravel())
  with tf.Graph().as_default(), tf.Session() as session:
    features = {name: tf.constant(array) for name, array in batch.items()}
    inputs = config, False, features, False
    model = run_pretraining.create_encoder(*inputs, **objective)
    loss, _ = run_pretraining.pretraining_loss(
      config, model, features, **objective
    )
    variables = tf.trainable_variables()
    for variable, value in zip(variables, weights(variables)):
      variable.load(value, session)
    outputs = [float(session.run(loss))]
  electra.sample_tokens = sample_tokens

  model_fn = training_step.make_model_fn(
    run_pretraining, config, **keywords, **objective
  )
  description = training_step.describe(keywords)
  shapes = {name: array.shape for name, array in batch.items()}
  yield from training_step.feed(
    settings, description, model_fn, batch, shapes, outputs=outputs
  )


def garden(settings: Settings) -> Answers:
  """A step of the task `electra/pretraining`."""
  import tensorflow as tf
  from official.core import exp_factory
  from official.nlp import tasks  # noqa: F401 (registers the experiment)
  from official.nlp.configs import pretraining_experiments  # noqa: F401
  from official.nlp.modeling.models import electra_pretrainer
  from official.nlp.tasks import electra_task

  batch, samples = random_batch(settings)
  config = exp_factory.get_exp_config("electra/pretraining")
  encoders = config.task.model
  for scale, encoder in (
    (1, encoders.discriminator_encoder.bert),
    (CONFIG["generator_hidden_size"], encoders.generator_encoder.bert),
  ):
    encoder.embedding_size = CONFIG["embedding_size"]
    encoder.num_layers = settings.layers
    encoder.hidden_size = width = int(settings.hidden * scale)
    encoder.num_attention_heads = max(width // 64, 1)
    encoder.intermediate_size = 4 * width
  config.task.model.num_masked_tokens = NUM_PREDICTIONS
  config.task.train_data.use_next_sentence_label = False
  task = electra_task.ElectraPretrainTask(config.task)
  model = task.build_model()
  metrics = task.build_metrics(training=True)
  names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
  inputs = {
    names.get(name, name): tf.constant(array) for name, array in batch.items()
  }
  sample = electra_pretrainer.sample_from_softmax
  electra_pretrainer.sample_from_softmax = lambda logits, disallow: tf.one_hot(
    samples, logits.shape[-1]
  )
  model(inputs, training=False)
  variables = model.trainable_variables
  for variable, value in zip(variables, weights(variables)):
    variable.assign(value)
  found = model(inputs, training=False)
  outputs = [float(task.build_losses(inputs, found, metrics))]
  electra_pretrainer.sample_from_softmax = sample
  schedule = config.trainer.optimizer_config
  schedule.learning_rate.polynomial.decay_steps = 10**6
  schedule.warmup.polynomial.warmup_steps = 10
  optimizer = task.create_optimizer(schedule)
  compiled = getattr(settings, "jit_compile", False)
  step = tf.function(task.train_step, jit_compile=compiled)

  def call():
    return step(inputs, model, optimizer, metrics)["loss"].numpy()

  repeat(2, call)
  description = f"float32{', compiled' * compiled}"
  versions = side_by_side.versions() | {PACKAGE: metadata.version(PACKAGE)}
  first = {"outputs": outputs, "versions": versions}
  yield from passes(description, "a step", settings.steps, call, **first)


if __name__ == "__main__":
  side_by_side.run(
    main,
    **side_by_side.MODEL,
    steps=(3, "Steps per pass."),
  )
