"""Trains sentence embeddings, evaluates them, encodes texts and searches them.

Also the module to call from Python: `Predictor` loads a trained or published
model once and encodes whatever texts it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.tasks.embeddings.settings import EmbeddingSettings

  app.parse_flags(EmbeddingSettings, imports_tensorflow=True)
else:  # A program that uses the Predictor.
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information(keras_2=True)

import itertools
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from bertlib.checkpoints import model_folder
from bertlib.cli import app, option
from bertlib.cli.errors import InputError
from bertlib.cli.steps import Steps
from bertlib.compute import pooling
from bertlib.data import model_inputs, nearest_neighbors
from bertlib.data.tf_records import TOKEN_FEATURES
from bertlib.exchange import initial_model, resolve, zoo
from bertlib.export import predictor
from bertlib.io import model_files, result_files, vector_files
from bertlib.reporting import receipts, run_report, training_checks
from bertlib.reporting.search_report import Evaluation
from bertlib.settings import embedding_spec
from bertlib.settings.embedding_spec import EmbeddingSpec
from bertlib.task.task_record import Task
from bertlib.tasks.embeddings import (
  embedding_evaluation,
  embedding_inputs,
  embedding_losses,
  embedding_records,
  hard_negatives,
)
from bertlib.tasks.embeddings.embedding_inputs import DevSet
from bertlib.tasks.embeddings.embedding_predictor import VectorPredictor
from bertlib.tasks.embeddings.record import RECORD
from bertlib.tasks.embeddings.settings import EmbeddingSettings
from bertlib.training import loop, runs, text_sets, train_step
from bertlib.training.runs import Run

# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,  # int32 [..., S], any number of texts
  input_mask,  # int32 [..., S], 1 at tokens, 0 at padding
  segment_ids,  # int32 [..., S]
  spec: EmbeddingSpec,  # from hidden states to vectors
  use_one_hot_embeddings: bool,
  dropout_seed=None,
  compute: modeling.Compute | None = None,  # None for `modeling.Compute()`
):
  """Builds the encoder; returns vectors of texts, float32 [..., width].

  They are not normalized yet.
  """
  *outer, length = modeling.get_shape_list(input_ids)
  input_ids, input_mask, segment_ids = (
    tf.reshape(tensor, [math.prod(outer), length])
    for tensor in (input_ids, input_mask, segment_ids)
  )
  model = modeling.BertModel(
    config=bert_config,
    is_training=is_training,
    input_ids=input_ids,
    input_mask=input_mask,
    token_type_ids=segment_ids,
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
    # [CLS] pooling reads nothing else of the last layer.
    output_positions=tf.zeros_like(input_ids[:, :1])
    if spec.pooling == "cls"
    else None,
  )
  vectors = pooling.sentence_vectors(
    model.get_sequence_output(), input_mask, spec
  )
  return tf.reshape(vectors, [*outer, vectors.shape[-1]])


def model_fn_builder(
  bert_config: modeling.BertConfig,
  spec: EmbeddingSpec,
  loss: embedding_losses.LossOptions | None,
  use_one_hot_embeddings: bool,
  **training_arguments: Any,
):
  """The `model_fn` of sentence embeddings, for TPUEstimator.

  `spec` and `use_one_hot_embeddings` are those of `create_model`, `loss` is the
  training objective, None without training. All other arguments are
  `train_step.TrainingArguments`.

  Returns:
    A function of features, labels, mode, params and config. It trains on groups
    of texts, and predicts `vectors` [B, width], normalized if `spec` says so.
  """
  arguments = train_step.TrainingArguments(**training_arguments)

  def build(batch, is_training, dropout_seed=None):
    return create_model(
      bert_config,
      is_training,
      *(batch[name] for name in TOKEN_FEATURES),
      spec,
      use_one_hot_embeddings,
      dropout_seed,
      arguments.compute,
    )

  def training_loss(_):
    return embedding_losses.training_loss(
      loss, lambda batch, seed: build(batch, True, seed)
    )

  def predict(features):
    vectors = pooling.output_vectors(build(features, False), spec)
    return {"vectors": vectors, **train_step.input_index(features)}

  return train_step.make_model_fn(arguments, training_loss, predict)


class Predictor(VectorPredictor, predictor.LoadedModel):
  """Encodes texts as vectors with a trained model.

  ```python
  predictor = run_embeddings.Predictor("output/search")
  vectors = predictor.encode(["How do I resume a run?"], prompt="query")
  ```
  """

  record = RECORD
  scopes = (f"{embedding_spec.PROJECTION_SCOPE}/",)

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class."""
    spec = embedding_spec.from_json(description["embedding"])
    vectors = create_model(
      config,
      is_training=False,
      **inputs,
      spec=spec,
      use_one_hot_embeddings=False,
      compute=compute,
    )
    return pooling.output_vectors(vectors, spec)


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(EmbeddingSettings, required=required)


def main(_) -> None:
  """Trains, evaluates and predicts, depending on the flags."""
  settings = option.from_flags(EmbeddingSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, data, teacher = prepare(settings, step)
  if step.is_dry_run:
    return
  with run_report.started(receipt, run) as outcome:
    if run.is_chief:
      result_files.write_bad_rows(run.output_dir, data.bad_rows)
    evaluate = data.dev and write_dev_set(run, data.dev)
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif settings.flags.do_train:
      train_embeddings(run, data, evaluate, teacher)
    outcome.checkpoint = loop.select_checkpoint(run)
    if run.evaluates:
      outcome.add(*evaluate(outcome.checkpoint))
    if run.predicts:
      write_predictions(run, data, outcome.checkpoint)
    outcome.num_examples = {"training examples": len(data.train)}


# Before the run


def prepare(
  asked: EmbeddingSettings, step: Steps
) -> tuple[Run, embedding_inputs.Data, Teacher | None]:
  """Loads the model and reads the texts; writes nothing."""
  settings = step("model", resolve.complete, asked)
  step("output", runs.check_overwrites, settings)
  data = step("texts", embedding_inputs.read_data, settings)
  teacher = step("teacher", find_teacher, settings, data)
  task = step("task", make_task, settings, data, teacher)
  run = step("run", runs.setup, settings, task, step)
  step("vectors", check_vectors, run, teacher)
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    lengths = step("tokens", embedding_inputs.check_text_groups, run, data)
    training_checks.estimate_training(step, run, plan, lengths)
  return run, data, teacher


class Teacher(NamedTuple):
  """A model whose vectors are distilled."""

  width: int  # of its vectors
  # From texts to float32 [texts, width]. A model is loaded for that time only,
  # since the run needs the memory before it, where --seeds starts other
  # processes, and after it.
  encode: Callable[[Sequence[str]], np.ndarray]


def find_teacher(
  settings: EmbeddingSettings, data: embedding_inputs.Data
) -> Teacher | None:
  """Finds --teacher: a file with a vector per training example, or a model."""
  path = settings.objective.teacher
  if not path or not data.train:
    return None
  if path.endswith(".npy"):
    vectors = embedding_inputs.read_vectors(path, len(data.train))
    return Teacher(vectors.shape[1], lambda texts: vectors)
  if initial_model.is_name(path):
    path = zoo.fetch(path)
  description, _ = Predictor.find_model(path)
  spec = embedding_spec.from_json(description["embedding"])
  config = model_folder.load_config(os.path.join(path, model_files.CONFIG))

  def encode(texts):
    with Predictor(path) as model:
      return model.encode(texts)

  return Teacher(spec.width(config.hidden_size), encode)


def make_task(
  settings: EmbeddingSettings,
  data: embedding_inputs.Data,
  teacher: Teacher | None = None,
) -> Task:
  """Describes the task to the functions of `run`."""
  spec = embedding_inputs.find_spec(settings)
  loss, num_texts, loss_bytes = None, 1, 0
  if data.train:
    loss = embedding_inputs.make_loss(settings, spec, data.kind)
    embedding_inputs.check_learns(settings, loss.name, data.train)
    num_texts = max(len(example.texts) for example in data.train)
    loss_bytes = embedding_losses.num_bytes(
      loss, settings.flags.train_batch_size, num_texts
    )
  heads = {}
  if spec.projection_dim:
    heads[f"{embedding_spec.PROJECTION_SCOPE}/kernel"] = (
      "has no projection. Leave out --projection_dim, or train one"
    )
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"spec": spec, "loss": loss},
    features=embedding_records.layout(
      data.kind or "texts",
      num_texts,
      settings.model.max_seq_length,
      teacher and teacher.width,
    ),
    metrics=embedding_evaluation.metric_names(
      data.dev.kind if data.dev else "retrieval", spec.matryoshka_dims
    ),
    loss_bytes=loss_bytes,
    num_output_positions=1 if spec.pooling == "cls" else None,
    description={"embedding": spec.as_json()},
    must_agree=["embedding", "do_lower_case"],
    heads=heads,
  )


def check_vectors(run: Run, teacher: Teacher | None) -> None:
  """Refuses widths that do not fit the model."""
  spec = run.task.model_arguments["spec"]
  width, dims = spec.width(run.config.hidden_size), spec.matryoshka_dims
  if dims and dims[0] != width:
    raise InputError(
      f"--matryoshka_dims={','.join(map(str, dims))}: the largest must be"
      f" {width}, the width of the vectors. --projection_dim changes that width"
    )
  if teacher and teacher.width != width:
    raise InputError(
      f"--teacher: its vectors have {teacher.width} values, but those of the"
      f" model {width}. Give --projection_dim={teacher.width}"
    )


# Training and encoding


def train_embeddings(
  run: Run,
  data: embedding_inputs.Data,
  evaluate: Callable[[str], Evaluation] | None,  # of `write_dev_set`
  teacher: Teacher | None,
) -> None:
  """Trains on groups of texts."""
  spec = run.task.model_arguments["spec"]
  path, teacher_vectors = run.path("train.tf_record"), None
  prefixes = spec.prompt(None), spec.prompt(None)
  if data.kind in ("pairs", "triplets"):
    prefixes = spec.query_prefix, spec.passage_prefix
  if teacher:
    texts = [example.texts[0] for example in data.train]
    teacher_vectors = teacher.encode(texts)[:, np.newaxis]
  embedding_records.write_records(
    path,
    data.train,
    run.task.features,
    run.tokenizer,
    prefixes,
    teacher_vectors,
    text_sets.training_cutting(run),
  )
  num_examples = len(data.train)
  loop.train_on_records(
    run, path, num_examples, lambda checkpoint: evaluate(checkpoint).results
  )


def write_texts(
  run: Run,
  name: str,  # see `text_sets.write`
  batch_size: int,
  *texts: tuple[str, Iterable[str]],  # texts after their prefix
) -> Callable[[str | None], Iterator[np.ndarray]]:
  """Writes the records of texts; returns what encodes them by a checkpoint."""
  rows = ((prefix + t, None, prefix) for prefix, part in texts for t in part)
  written = text_sets.write(run, name, rows, batch_size)
  normalizes = run.task.model_arguments["spec"].normalize

  def encode(checkpoint):  # None for the initial model
    found = loop.predict_texts(run, written, checkpoint)
    vectors = (row["vectors"] for row in found)
    return model_inputs.join_vectors(vectors, written.num_rows, normalizes)

  return encode


def write_search(
  run: Run,
  name: str,
  batch_size: int,
  queries: Collection[str],
  corpus: Iterable[str],
) -> Callable[[str | None], hard_negatives.Vectors]:
  """Like `write_texts`, of queries and the texts of a corpus."""
  spec = run.task.model_arguments["spec"]
  texts = (spec.query_prefix, queries), (spec.passage_prefix, corpus)
  encode = write_texts(run, name, batch_size, *texts)

  def encode_both(checkpoint):
    vectors = encode(checkpoint)
    return np.stack([*itertools.islice(vectors, len(queries))]), vectors

  return encode_both


def write_dev_set(run: Run, data: DevSet) -> Callable[[str | None], Evaluation]:
  """Writes the records of a dev set; returns what evaluates a checkpoint."""
  spec = run.task.model_arguments["spec"]
  records, dims = (run, "eval", run.flags.eval_batch_size), spec.matryoshka_dims
  if data.retrieval:
    queries, corpus, _ = data.retrieval
    texts = queries.values(), (text for _, text in corpus)
    search = write_search(*records, *texts)
    return lambda checkpoint: embedding_evaluation.evaluate_retrieval(
      data.retrieval, *search(checkpoint), dims
    )
  texts, _ = embedding_evaluation.distinct_texts(data.examples)
  # They have the model's default prefix.
  encode = write_texts(*records, (spec.prompt(None), texts))
  return lambda checkpoint: embedding_evaluation.evaluate_examples(
    data.kind, data.examples, np.stack([*encode(checkpoint)]), dims
  )


def write_predictions(
  run: Run, data: embedding_inputs.Data, checkpoint: str | None
) -> None:
  """Writes vectors of texts, the results of a search, and hard negatives."""
  settings, size = run.settings, run.flags.predict_batch_size
  stem_of, name_with = result_files.stem_of, result_files.name_with
  if path := data.predict and settings.predict_file:
    prefix = run.task.model_arguments["spec"].prompt(settings.prompt)
    texts = f"predict_{stem_of(path)}", size, (prefix, data.predict)
    vectors = write_texts(run, *texts)(checkpoint)
    output = run.path(name_with(path, "vectors.npy"))
    vector_files.write_npy(output, vectors, len(data.predict))
  if path := data.queries and settings.query_file:
    texts = f"search_{stem_of(path)}", size, data.queries, data.corpus
    vectors = write_search(run, *texts)(checkpoint)
    (found,) = nearest_neighbors.search(*vectors, settings.top_k)
    output = run.path(name_with(path, "results.jsonl"))
    nearest_neighbors.write_search_results(
      output, data.queries, data.corpus, *found
    )
  if path := data.mined and settings.train_file.rstrip("/"):
    records = f"mine_{stem_of(path)}", size
    hard_negatives.write(
      run.path(name_with(path, "negatives.jsonl")),
      data.mined,
      lambda *texts: write_search(run, *records, *texts)(checkpoint),
      settings.mining,
    )


if __name__ == "__main__":
  app.run(main)
