"""Trains rerankers, evaluates them and ranks documents.

Also the module to call from Python: `Predictor` loads a trained model once
and scores whatever pairs it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib.cli import app
  from bertlib.exchange import initial_model
  from bertlib.tasks.ranking.settings import RankingSettings

  app.parse_flags(
    RankingSettings, imports_tensorflow=True, checks=[initial_model.check]
  )
else:  # A program that uses the Predictor.
  from bertlib.cli import tensorflow_log

  tensorflow_log.hide_information(keras_2=True)

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import modeling
from bertlib.cli import app, lazy_module, option
from bertlib.cli.steps import Steps
from bertlib.compute import fast_compute
from bertlib.data import batch_predictor, nearest_neighbors
from bertlib.data.beir import Retrieval
from bertlib.data.nearest_neighbors import Ranked
from bertlib.data.tf_records import TOKEN_FEATURES
from bertlib.exchange import resolve
from bertlib.export import predictor
from bertlib.io import files, json_files, result_files
from bertlib.reporting import (
  receipts,
  run_report,
  search_report,
  training_checks,
)
from bertlib.reporting.search_report import Evaluation
from bertlib.task.task_record import Task
from bertlib.tasks.ranking import (
  ranking_inputs,
  ranking_predictor,
  ranking_records,
)
from bertlib.tasks.ranking.ranking_inputs import Search
from bertlib.tasks.ranking.ranking_predictor import RankingPredictor
from bertlib.tasks.ranking.ranking_records import Group, Groups
from bertlib.tasks.ranking.record import RECORD
from bertlib.tasks.ranking.settings import RankingSettings
from bertlib.training import loop, runs, text_sets, train_step
from bertlib.training.runs import Run

run_embeddings = lazy_module.load("run_embeddings")

# Documents whose vectors are computed at a time.
_NUM_DOCUMENTS = 8192

# Documents to rank, and what gives their logits by a checkpoint.
WrittenSearch = tuple[Search, Callable[["str | None"], np.ndarray]]

# Logit of a missing document: its softmax is 0.
_LOWEST = -1e9

# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,  # int32 [..., S], any number of pairs
  input_mask,  # int32 [..., S], 1 at tokens, 0 at padding
  segment_ids,  # int32 [..., S]
  use_one_hot_embeddings: bool,
  dropout_seed=None,
  compute: modeling.Compute | None = None,  # None for `modeling.Compute()`
):
  """Builds a cross-encoder; returns the logit of each pair, float32 [...]."""
  shape = modeling.get_shape_list(input_ids)
  inputs = [
    tf.reshape(tensor, [-1, shape[-1]])
    for tensor in (input_ids, input_mask, segment_ids)
  ]
  pairs = None
  # A TPU needs static shapes.
  if len(shape) > 2 and not use_one_hot_embeddings:
    pairs = fast_compute.present_rows(inputs[1][:, 0])
    num_pairs = tf.shape(inputs[0])[0]
    inputs = [tf.gather(tensor, pairs) for tensor in inputs]
  model = modeling.BertModel(
    bert_config,
    is_training,
    *inputs,
    use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
    output_positions=tf.zeros_like(inputs[0][:, :1]),  # [CLS]
  )
  logits = modeling.classification_logits(
    model.get_pooled_output(),
    1,
    dropout_prob=is_training * bert_config.classifier_dropout,
    dropout_seed=dropout_seed,
  )
  logits = tf.cast(logits, tf.float32)[:, 0]
  if pairs is not None:  # those of missing documents are 0
    logits = tf.scatter_nd(pairs[:, tf.newaxis], logits, [num_pairs])
  return tf.reshape(logits, shape[:-1])


def model_fn_builder(
  bert_config: modeling.BertConfig,
  loss: str | None,
  use_one_hot_embeddings: bool,
  **training_arguments: Any,
):
  """The `model_fn` of a reranker, for TPUEstimator.

  `loss` is a key of `LOSSES`, None without training, and
  `use_one_hot_embeddings` that of `modeling.BertModel`. All other arguments are
  `train_step.TrainingArguments`.

  Returns:
    A function of features, labels, mode, params and config. It trains on
    queries with their documents, and predicts `logits` of pairs.
  """
  arguments = train_step.TrainingArguments(**training_arguments)

  def build(batch, is_training, dropout_seed=None):
    return create_model(
      bert_config,
      is_training,
      *(batch[name] for name in TOKEN_FEATURES),
      use_one_hot_embeddings,
      dropout_seed,
      arguments.compute,
    )

  def training_loss(features):
    weights = loss_weights(loss, features)
    total = train_step.loss_normalizer(weights, arguments)
    return lambda batch, seed: (
      total_loss(loss, build(batch, True, seed), batch, total),
      {},
    )

  def predict(features):
    logits = build(features, False)
    return {"logits": logits, **train_step.input_index(features)}

  return train_step.make_model_fn(arguments, training_loss, predict)


# Losses: means of terms of the documents of a batch, B queries with their
# documents. `labels` and `teacher_scores` are float32 [B, documents], and a
# missing document has no tokens.


def loss_weights(name: str, features: Mapping[str, Any]):
  """1 for each of the terms that count, else 0: float32 [B, terms]."""
  is_document = _documents(features)
  if name == "listwise":
    return is_document[:, :1]
  return is_document if name == "bce" else is_document[:, 1:]


def total_loss(name: str, logits, features: Mapping[str, Any], total_weight):
  """A loss of `LOSSES`, float32 []: the sum of its terms by `total_weight`."""
  # Logits are float32 [B, documents].
  terms = LOSSES[name](logits, features) * loss_weights(name, features)
  return tf.reduce_sum(terms) / total_weight


def _documents(features: Mapping[str, Any]):
  """1 for each document, 0 for a missing one: float32 [B, documents]."""
  return tf.cast(features["input_mask"][..., 0], tf.float32)


def _bce(logits, features):
  return tf.nn.sigmoid_cross_entropy_with_logits(
    labels=features["labels"], logits=logits
  )


def _listwise(logits, features):
  labels = features["labels"]
  target = labels / tf.reduce_sum(labels, axis=1, keepdims=True)
  logits = tf.where(_documents(features) > 0, logits, _LOWEST + 0 * logits)
  losses = tf.nn.softmax_cross_entropy_with_logits(labels=target, logits=logits)
  return losses[:, tf.newaxis]


def _margin_mse(logits, features):
  # The first document is the positive.
  difference = logits - features["teacher_scores"]
  return tf.square(difference[:, :1] - difference[:, 1:])


LOSSES = {"bce": _bce, "listwise": _listwise, "margin_mse": _margin_mse}


class Predictor(RankingPredictor, predictor.LoadedModel):
  """Scores and ranks documents with a trained reranker.

  ```python
  predictor = run_reranker.Predictor("output/reranker")
  predictor.score([("Who left?", "He went away."), ("Who left?", "Ann sat.")])
  ```
  """

  record = RECORD

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class; logits, float32 [B, 1]."""
    del description
    logits = create_model(
      config,
      is_training=False,
      **inputs,
      use_one_hot_embeddings=False,
      compute=compute,
    )
    return logits[:, tf.newaxis]


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags, see `option.define`."""
  option.define(RankingSettings, required=required)


def main(_) -> None:
  """Trains, evaluates and predicts, depending on the flags."""
  settings = option.from_flags(RankingSettings)
  with receipts.begin(__file__, settings) as (receipt, step):
    run, data = prepare(settings, step)
  if step.is_dry_run:
    return
  with run_report.started(receipt, run) as outcome:
    if run.is_chief:
      result_files.write_bad_rows(run.output_dir, data.bad_rows)
    dev_set = data.dev and write_search(
      run, "eval", data.dev, run.flags.eval_batch_size
    )
    if run.seeds:
      loop.train_seeds(run, "--nodo_predict")
    elif settings.flags.do_train:
      train_reranker(run, data.train, dev_set)
    outcome.checkpoint = loop.select_checkpoint(run)
    if run.evaluates:
      evaluation, ranked = evaluate(dev_set, outcome.checkpoint)
      outcome.add(*evaluation)
      write_run(run.path("eval_run.trec"), ranked)
    if run.predicts:
      write_predictions(run, data.predict, outcome.checkpoint)
    if data.train:
      outcome.num_examples = {"training queries": len(data.train)}


# Before the run


def prepare(
  asked: RankingSettings, step: Steps
) -> tuple[Run, ranking_inputs.Data]:
  """Loads the model and reads the data; writes nothing."""
  settings = step("model", resolve.complete, asked)
  step("output", runs.check_overwrites, settings)
  loss = step("loss", ranking_inputs.find_loss, settings)
  data = step("texts", ranking_inputs.read_data, settings, loss)
  step("models", check_models, settings)
  task = step("task", make_task, settings, loss, data)
  run = step("run", runs.setup, settings, task, step)
  step("queries", ranking_inputs.warn_of_long_queries, run, data)
  plan = loop.check_start(run, step)
  if step.is_dry_run:
    lengths = step("tokens", ranking_inputs.check_pairs, run, data)
    training_checks.estimate_training(step, run, plan, lengths)
  return run, data


def make_task(
  settings: RankingSettings, loss: str | None, data: ranking_inputs.Data
) -> Task:
  """Describes the task to the functions of `run`."""
  num_documents = data.train.num_documents if data.train else 1
  return Task(
    record=RECORD,
    model_fn_builder=model_fn_builder,
    model_arguments={"loss": loss},
    features=ranking_records.layout(
      loss, num_documents, settings.model.max_seq_length
    ),
    metrics=search_report.METRICS,
    description=ranking_inputs.describe(settings, loss),
    must_agree=["activation", "do_lower_case"],
    num_outputs=1,
    unit="queries" if loss else "pairs",
    num_output_positions=1,  # [CLS]
  )


def check_models(settings: RankingSettings) -> None:
  """Refuses a teacher, or an encoder that finds candidates, of another task."""
  if settings.objective.teacher:
    Predictor.find_model(settings.objective.teacher)
  if settings.candidates and os.path.isdir(settings.candidates):
    run_embeddings.Predictor.find_model(settings.candidates)


# Training


def train_reranker(
  run: Run,
  groups: Groups,
  dev_set: WrittenSearch | None,  # evaluated during training
) -> None:
  """Trains on queries with their documents."""
  path = run.path("train.tf_record")
  ranking_records.write_records(
    path,
    groups_to_encode(run, groups),
    run.task.features,
    run.tokenizer,
    text_sets.training_cutting(run),
  )
  loop.train_on_records(
    run,
    path,
    len(groups),
    lambda checkpoint: evaluate(dev_set, checkpoint)[0].results,
  )


def groups_to_encode(run: Run, groups: Groups) -> Iterator[Group]:
  """Yields groups with the prefix of queries and the scores of --teacher."""
  prefix, scores = query_prefix(run), None
  if run.settings.objective.teacher:
    scores = iter(teacher_scores(run, groups))
  for group in groups:
    group = group._replace(query=prefix + group.query)
    if scores:
      of_documents = [*itertools.islice(scores, len(group.documents))]
      group = group._replace(teacher_scores=of_documents)
    yield group


def teacher_scores(run: Run, groups: Groups) -> np.ndarray:
  """Logits of --teacher for all documents of groups, float32 [documents]."""
  folder = run.settings.objective.teacher
  inputs = ((group.query, group.documents) for group in groups)
  path = path_by_hash(run, "teacher_{}.npy", Predictor, folder, inputs)
  if not files.exists(path):
    logging.info("Scoring %d queries by %s", len(groups), folder)
    pairs = (
      (group.query, text) for group in groups for text in group.documents
    )
    with Predictor(folder) as model:
      scores = model.logits(pairs)
    with files.atomic_write(path, "wb") as file:
      np.lib.format.write_array(file, scores)
  logging.info("Scores of %s are those in %s", folder, path)
  with files.open_any(path, "rb") as file:
    return np.lib.format.read_array(file)


def path_by_hash(
  run: Run,
  name: str,  # with {} for the hash
  model: type[predictor.LoadedModel],
  folder: str,
  inputs: Iterable[Any],
) -> str:
  """Path of the file that keeps what the model of a folder makes of inputs."""
  description, checkpoint = model.find_model(folder)
  key = hashlib.sha256(json_files.dumps(description).encode())
  weights = map(receipts.fingerprint, files.checkpoint_files(checkpoint))
  for value in itertools.chain((w["sha256"] for w in weights), inputs):
    key.update(repr(value).encode())
  return run.path(name.format(key.hexdigest()[:16]))


# Evaluation and prediction


def write_search(
  run: Run, name: str, search: Search, batch_size: int
) -> WrittenSearch:
  """Writes the records of pairs to rank; finds candidates without a run."""
  if not search.candidates:
    found = find_candidates(run, search.retrieval)
    search = search.with_candidates(found)
  return search, write_pairs(run, name, search.pairs(), batch_size)


def find_candidates(run: Run, retrieval: Retrieval) -> dict[str, Sequence[str]]:
  """Candidates by the encoder of --candidates, which are kept."""
  folder, k = run.settings.candidates, run.settings.top_k
  queries, encoder = retrieval.queries, run_embeddings.Predictor
  inputs = itertools.chain([k], queries.items(), retrieval.corpus)
  path = path_by_hash(run, "candidates_{}.json", encoder, folder, inputs)
  if not files.exists(path):
    texts = (text for _, text in retrieval.corpus)
    blocks = batch_predictor.blocks(texts, _NUM_DOCUMENTS)
    with encoder(folder) as model:
      vectors = model.encode(queries.values(), model.spec.query_prompt)
      prompt = model.spec.passage_prompt
      of_corpus = (row for part in blocks for row in model.encode(part, prompt))
      (ranked,) = nearest_neighbors.rank(retrieval, vectors, of_corpus, k)
    with files.atomic_write(path) as file:
      file.write(json_files.dumps({query: ids for query, ids, _ in ranked}))
  logging.info("Candidates of %s are those in %s", folder, path)
  return json_files.read(path)


def write_pairs(
  run: Run, name: str, pairs: Iterable[tuple[str, str]], batch_size: int
) -> Callable[[str | None], np.ndarray]:
  """Writes the records of pairs; returns what scores them by a checkpoint."""
  prefix = query_prefix(run)
  pairs = ((prefix + query, document) for query, document in pairs)
  texts = text_sets.write(run, name, pairs, batch_size)

  def logits(checkpoint):  # None for the initial model
    rows = loop.predict_texts(run, texts, checkpoint)
    found = (row["logits"] for row in rows)
    return ranking_predictor.join_windows(texts.num_rows, found)

  return logits


def query_prefix(run: Run) -> str:
  """Text before each query, which some published models have."""
  return run.task.description.get("query_prefix", "")


def evaluate(
  dev_set: WrittenSearch, checkpoint: str | None
) -> tuple[Evaluation, list[Ranked]]:
  """Metrics of a checkpoint, or of the initial model, and its rankings."""
  search, logits = dev_set
  ranked = [*search.ranked(logits(checkpoint))]
  found = {"": {query: ids for query, ids, _ in ranked}}
  if search.is_ordered:
    found["_before"] = search.candidates
  return search_report.evaluate(search.retrieval, found), ranked


def write_predictions(
  run: Run, predict: Sequence[tuple[str, str]] | Search, checkpoint: str | None
) -> None:
  """Writes scores of the pairs of --predict_file, or ranks its documents."""
  path = run.settings.predict_file.rstrip("/")
  name = f"predict_{result_files.stem_of(path)}"
  batch_size = run.flags.predict_batch_size
  output = run.path(result_files.predictions_name(path))
  activate = functools.partial(ranking_predictor.activate, run.task.description)
  if not isinstance(predict, Search):
    logits = write_pairs(run, name, predict, batch_size)
    scores = activate(logits(checkpoint))
    formats = ranking_predictor.FORMATS
    batch_predictor.write_files(output, formats, predict, scores)
    return
  search, logits = write_search(run, name, predict, batch_size)
  ranked = [*search.ranked(logits(checkpoint))]
  run_file = run.path(f"{result_files.name_with(path, 'run')}.trec")
  write_run(run_file, ranked)
  with files.atomic_write(f"{output}.jsonl", "wb") as file:
    for query, ids, logits in ranked:
      documents = [
        {"id": id_, "score": score, "text": search.documents[id_]}
        for id_, score in zip(ids, activate(logits).tolist())
      ]
      line = {"id": query, "query": search.retrieval.queries[query]}
      file.write(batch_predictor.json_line({**line, "documents": documents}))


def write_run(path: str, ranked: Iterable[Ranked]) -> None:
  """Writes a run file of TREC, see `ranking_inputs.read_run`; scores fall."""
  with files.atomic_write(path) as file:
    for query, ids, logits in ranked:
      last = np.float32(np.inf)
      for rank, (id_, logit) in enumerate(zip(ids, logits), start=1):
        # Programs order equal scores by id; nine digits keep a float32.
        last = min(logit, np.nextafter(last, np.float32(-np.inf)))
        file.write(f"{query} Q0 {id_} {rank} {last:.9g} run_reranker\n")


if __name__ == "__main__":
  app.run(main)
