"""Sides of `benchmarks.gpu` that are timed: products, ours, transformers.

Each takes the settings of `side_by_side` with `layers`, `hidden`, `heads`,
`batch_size`, `seq_length`, `steps` and `is_training`. Batches have no padding.
"""

from __future__ import annotations

from benchmarks import training_step
from benchmarks.side_by_side import Answers, Settings, repeat, timed

MODELS = {
  "base": {"layers": 12, "hidden": 768, "heads": 12},
  "large": {"layers": 24, "hidden": 1024, "heads": 16},
  "toy": {"layers": 1, "hidden": 16, "heads": 2},
}


def products(settings: Settings) -> Answers:
  """FLOP/s of large products in bfloat16, the peak that shares refer to."""
  import tensorflow.compat.v1 as tf

  size, count = settings.size, 20
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


def ours(settings: Settings) -> Answers:
  """A step of ours: training as in run_classifier.py, or prediction."""
  if settings.is_training:
    yield from training_step.ours(settings)
    return
  _, found = training_step.read_flags(settings, settings.seq_length)
  compute = found.compute()
  yield from training_step.graph_side(
    settings, compute.dtype.name, "infer", compute=compute
  )


def transformers(settings: Settings) -> Answers:
  """A step of transformers: compiled, in bfloat16, attention by sdpa."""
  import torch
  import transformers

  device = "cuda" if torch.cuda.is_available() else "cpu"
  torch.manual_seed(1)
  torch.set_float32_matmul_precision("high")
  batch = training_step.torch_batch(settings, device)
  del batch["attention_mask"]  # without it, PyTorch takes its flash attention
  model = transformers.AutoModelForSequenceClassification.from_config(
    transformers.BertConfig(**training_step.sizes(settings)),
    attn_implementation="sdpa",
  ).to(device)
  compiles = device == "cuda"
  if settings.is_training:
    step = training_step.torch_step(model, device=device)
  else:
    model.eval()
    compiled = torch.compile(model) if compiles else model

    @torch.inference_mode()
    def step(batch, precision, compiles):
      with torch.autocast(device, torch.bfloat16):
        compiled(**batch)

  def work(times):
    repeat(times, step, batch, "bfloat16", compiles)
    if device == "cuda":
      torch.cuda.synchronize()

  work(3)
  yield {"description": f"bfloat16, {torch.__version__} on {device}"}
  while True:
    yield {"a step": timed(work, settings.steps) / settings.steps}
