"""Fine-tunes BERT to tag words, finds entities by them, and scores these.

Also the module to call from Python: `Predictor` loads a trained model once and
finds the entities of whatever text it is given.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.ner import NerSettings

  app.parse_flags(NerSettings, imports_tensorflow=True)

import functools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from absl import logging

import modeling
import optimization
import tokenization
from bertlib import app, estimator_api, text_files
from bertlib.checkpoints import finding, model_json, predictor
from bertlib.data import (
  input_pipeline,
  ner,
  record_check,
  tf_records,
)
from bertlib.data.ner import Sentence
from bertlib.errors import InputError
from bertlib.metrics import ner_decoding, ner_scores, result_files
from bertlib.reporting import (
  doctor,
  receipts,
  report_sections,
  run_report,
  task_checks,
  training_checks,
)
from bertlib.settings import option
from bertlib.settings.ner import NerSettings
from bertlib.training import (
  devices,
  estimator_spec,
  model_selection,
  multi_run,
  ner_inputs,
  session_hooks,
  setup,
  training_run,
)

# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,
  input_mask,
  segment_ids,
  num_labels: int,
  use_one_hot_embeddings: bool,
  dropout_seed=None,
  compute: modeling.Compute | None = None,
):
  """The encoder with a score of each tag for every token.

  Args:
    bert_config: the encoder's sizes.
    is_training: whether dropout is on.
    input_ids: int32 [B, S].
    input_mask: int32 [B, S].
    segment_ids: int32 [B, S].
    num_labels: L, tags.
    use_one_hot_embeddings: see `modeling.BertModel`.
    dropout_seed: see `modeling.dropout`.
    compute: how to compute; None for `modeling.Compute()`.

  Returns:
    float32 [B, S, L].
  """
  model = modeling.BertModel(
    config=bert_config,
    is_training=is_training,
    input_ids=input_ids,
    input_mask=input_mask,
    token_type_ids=segment_ids,
    use_one_hot_embeddings=use_one_hot_embeddings,
    dropout_seed=dropout_seed,
    compute=compute,
  )
  logits = modeling.token_classification_logits(
    model.get_sequence_output(),
    num_labels,
    dropout_prob=0.1 if is_training else 0.0,
    dropout_seed=dropout_seed,
  )
  return tf.cast(logits, tf.float32)


def tagging_loss(logits, label_ids, num_decided=None):
  """The mean loss of the words.

  Args:
    logits: float32 [B, S, L].
    label_ids: int32 [B, S], -1 where no word is decided.
    num_decided: float32 [], by which the sum is divided; None for their number.

  Returns:
    float32 [].
  """
  flat = tf.reshape(label_ids, [-1])
  scores = tf.reshape(logits, [-1, logits.shape[-1]])
  losses, _ = modeling.cross_entropy(scores, flat)
  return modeling.weighted_mean(losses, flat >= 0, num_decided)


def model_fn_builder(
  bert_config: modeling.BertConfig,
  num_labels: int,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  **more_arguments: Any,
):
  """The `model_fn` of word tagging, for TPUEstimator.

  `num_labels` is L, the number of tags; `use_one_hot_embeddings` is that of
  `modeling.BertModel`. All other arguments are
  `estimator_spec.TrainingArguments`; more of these may be given by name.

  Returns:
    A function of features, labels, mode, params and config. It trains, and
    predicts `unique_ids` [B] and `probabilities` [B, S, L].
  """
  arguments = estimator_spec.TrainingArguments(
    init_checkpoint,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    use_tpu,
    **more_arguments,
  )

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features

    def build(batch, is_training, dropout_seed=None):
      return create_model(
        bert_config,
        is_training,
        batch["input_ids"],
        batch["input_mask"],
        batch["segment_ids"],
        num_labels,
        use_one_hot_embeddings,
        dropout_seed,
        arguments.compute,
      )

    if mode != estimator_api.ModeKeys.TRAIN:
      return estimator_api.TPUEstimatorSpec(
        mode=mode,
        predictions={
          "unique_ids": features["unique_ids"],
          "probabilities": tf.nn.softmax(build(features, False)),
        },
        scaffold_fn=estimator_spec.restore_trained(arguments, config),
      )

    num_decided = estimator_spec.loss_normalizer(
      features["label_ids"] >= 0, arguments
    )

    def loss_fn(batch, dropout_seed):
      logits = build(batch, True, dropout_seed)
      return tagging_loss(logits, batch["label_ids"], num_decided), {}

    return estimator_spec.train_spec(
      arguments, loss_fn, features, params, config
    )

  return model_fn


class Predictor(predictor.LoadedModel):
  """A trained model, loaded once, that finds entities.

  ```python
  predictor = run_ner.Predictor("output/ner")
  predictor.predict(["Ann left Rome."])[0][0].text
  ```
  """

  script = "run_ner"
  purpose = "tags words"

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class."""
    logits = create_model(
      config,
      is_training=False,
      **inputs,
      num_labels=len(description["labels"]),
      use_one_hot_embeddings=False,
      compute=compute,
    )
    return tf.nn.softmax(logits)

  def predict(self, texts: Iterable[str]) -> list[list[ner_decoding.Found]]:
    """Finds the entities of texts.

    Args:
      texts: of any length.

    Returns:
      For each text its entities, in order.
    """
    sentences = [ner.from_text(text) for text in texts]
    length = self.description["max_seq_length"]
    windows = list(ner.make_windows(sentences, self.tokenizer, length))
    rows = self.run(
      [
        ner.window_record(window, index, length, None)
        for index, window in enumerate(windows)
      ]
    )
    labels = self.description["labels"]
    said = ner_decoding.decide(sentences, windows, enumerate(rows), labels)
    return [
      ner_decoding.found_in(s, *tagged) for s, tagged in zip(sentences, said)
    ]


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags.

  Args:
    required: whether parsing fails where a flag is missing that the command
      needs; False for other programs that use this module.
  """
  option.define(NerSettings, required=required)


class Start(NamedTuple):
  """What a run begins with, all of it checked.

  Attributes:
    settings: with nothing left to decide.
    config: the encoder's sizes.
    tokenizer: gives the ids.
    trained: the checkpoint that has all of the model; None for a new one.
    selection: how the best weights are found.
    seeds: of `--seeds`.
    labels: the tags.
    model: what describes the model.
    data: the sentences.
  """

  settings: NerSettings
  config: modeling.BertConfig
  tokenizer: tokenization.FullTokenizer
  trained: str | None
  selection: model_selection.Selection
  seeds: list[int]
  labels: list[str]
  model: dict[str, Any]
  data: ner_inputs.Data


def main(_) -> None:
  """Does what the flags say: trains, scores, tags."""
  settings = option.from_flags(NerSettings)
  if settings.receipt.doctor:
    doctor.diagnose(settings, examine)
    return
  receipt = receipts.begin(__file__, settings)
  start = prepare(settings, doctor.simply)
  settings = start.settings
  check_start(settings, start)
  with training_run.lock_output_dir(settings):
    carry_out(settings, start, receipt)


def carry_out(
  settings: NerSettings, start: Start, receipt: receipts.Receipt
) -> None:
  """Trains, evaluates and predicts as the flags say, all of it checked.

  Args:
    settings: of the command.
    start: what the run begins with.
    receipt: of the run.
  """
  config, selection, labels = start.config, start.selection, start.labels
  data = start.data
  files = settings.train_file, settings.dev_file, settings.predict_file
  receipt.start(settings, (path for path, used in zip(files, data) if used))
  devices.log_devices(settings.devices, settings.compute)
  if settings.run.do_train:
    model_json.claim(
      settings.run.output_dir, start.model, config, settings.model.vocab_file
    )
  if start.seeds:
    multi_run.train_seeds(
      settings.run.output_dir,
      start.seeds,
      selection.metric,
      ["--nodo_predict", *training_run.choice_flags(settings.compute)],
    )

  def tagger(name, sentences):
    windows, path = write_windows(
      settings, name, sentences, start.tokenizer, labels
    )
    batch_size = getattr(settings.run, f"{name}_batch_size")
    estimator = build_estimator(settings, config, labels, 0, batch_size)
    return functools.partial(
      tag, settings, estimator, sentences, windows, path, labels
    )

  tag_dev_set = tagger("eval", data.dev) if data.dev else None
  lengths = None
  if settings.run.do_train and not start.seeds:
    windows, path = write_windows(
      settings, "train", data.train, start.tokenizer, labels
    )
    num_steps = count_steps(settings, len(windows))
    training_run.train(
      settings,
      build_estimator(settings, config, labels, num_steps),
      train_input_fn(settings, path),
      num_steps,
      f"{len(windows)} windows",
      "windows",
      selection,
      lambda checkpoint: ner_scores.overall(
        ner_decoding.score_tags(data.dev, tag_dev_set(checkpoint))
      ),
      functools.partial(
        record_check.find,
        [path],
        ner.record_layout(settings.model.max_seq_length),
      ),
    )
    lengths = ner.window_lengths(windows, settings.model.max_seq_length)

  checkpoint = training_run.checkpoint_to_use(settings)
  results, sections, warnings = {}, [], []
  if settings.run.do_eval:
    said = tag_dev_set(checkpoint)
    results = ner_decoding.score_tags(data.dev, said)
    training_run.write_dev_scores(settings, results, checkpoint)
    result_files.write_results(
      os.path.join(settings.run.output_dir, "eval_results.txt"), results
    )
    sections = report_sections.ner_sections(data.dev, said, results)
    warnings += run_report.point_out_collapse(
      ner_decoding.answers(tags for tags, _ in said),
      ner_decoding.answers(sentence.tags for sentence in data.dev),
    )
  if settings.run.do_predict:
    said = tagger("predict", data.predict)(checkpoint)
    ner_decoding.write_predictions(
      os.path.join(
        settings.run.output_dir,
        result_files.predictions_name(settings.predict_file),
      ),
      data.predict,
      said,
    )
    warnings += run_report.point_out_collapse(
      ner_decoding.answers(tags for tags, _ in said)
    )
  if settings.run.do_train:
    run_report.write_report(
      settings, results, selection, sections, lengths, warnings
    )
  receipt.finish(results, checkpoint)


# What is asked for, and whether it can be


def prepare(settings: NerSettings, check: doctor.Check) -> Start:
  """Checks and reads all that a run needs; nothing is written yet.

  Whatever is wrong with folders and data is said now, not after training.

  Args:
    settings: of the command.
    check: makes each check.

  Returns:
    What the run begins with.
  """
  seeds = check("flags", check_flags, settings)
  check("output", check_output, settings, after=seeds)
  model_files = check("model", setup.fetch_model, settings.model)
  decided = check("devices", setup.find_devices, settings)
  settings = setup.resolved(settings, model_files, decided)
  config = check("config", setup.load_config, model_files, 8)
  tokenizer = check("vocabulary", setup.load_tokenizer, model_files, config)
  trained = check("checkpoint", setup.find_model, settings)
  selection = check(
    "scores", training_run.read_selection, settings.run, ner_scores.METRICS
  )
  tagged = check(
    "sentences", ner_inputs.read_training_set, settings, after=seeds
  )
  labels = check("tags", find_labels, settings, tagged, trained)
  model = check("folder", describe_model, settings, config, labels, seeds)
  data = check("data", read_data, settings, tagged, labels, selection)
  return Start(
    settings, config, tokenizer, trained, selection, seeds, labels, model, data
  )


def examine(settings: NerSettings, doctor: doctor.Doctor) -> None:
  """Makes the checks of a run, and some more.

  Args:
    settings: of the command.
    doctor: makes each check.
  """
  start = prepare(settings, doctor.check)
  settings = start.settings
  config, labels = start.config, start.labels
  doctor.check(
    "weights", check_weights, settings, start.trained, config, labels
  )
  doctor.check("labels", task_checks.check_tags, labels, start.data)
  lengths = doctor.check(
    "tokens",
    task_checks.check_sentences,
    settings,
    config,
    start.tokenizer,
    start.data,
  )
  training_checks.check_training(
    settings, doctor, config, lengths, functools.partial(count_steps, settings)
  )


def check_flags(settings: NerSettings) -> list[int]:
  """Refuses flags that do not go together; gives the seeds of `--seeds`."""
  doctor.check_actions(settings)
  for flag, action in (
    ("train_file", "do_train"),
    ("dev_file", "do_eval"),
    ("predict_file", "do_predict"),
  ):
    if getattr(settings.run, action) and not getattr(settings, flag):
      raise InputError(f"--{flag} is needed with --{action}")
  return training_run.read_seeds(settings.run)


def check_output(settings: NerSettings) -> None:
  """Refuses an --output_dir where sentences would be overwritten."""
  doctor.check_output_dir(
    settings,
    ["*.tf_record", "predictions*", "test_predictions*"],
    [settings.train_file, settings.dev_file, settings.predict_file],
  )


def describe_model(
  settings: NerSettings,
  config: modeling.BertConfig,
  labels: Sequence[str],
  seeds: Sequence[int],
) -> dict[str, Any]:
  """What describes the model; refuses a folder of another.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    labels: the tags.
    seeds: of `--seeds`, each of which has a folder of its own.

  Returns:
    What `model_json.claim` takes.

  Raises:
    InputError: --output_dir is another model's, or not as --resume wants it.
  """
  model = {
    "script": "run_ner",
    "labels": labels,
    "max_seq_length": settings.model.max_seq_length,
    "do_lower_case": settings.model.do_lower_case,
    **settings.compute.choices,
  }
  model_json.check(
    settings.run.output_dir,
    model,
    config,
    ["script", "labels", "do_lower_case"],
    len(labels),
    settings.model.vocab_file,
  )
  if settings.run.do_train and not seeds:
    finding.check_resume(settings.run.resume, settings.run.output_dir)
  return model


def read_data(
  settings: NerSettings,
  tagged: Sequence[Sentence],
  labels: Sequence[str],
  selection: model_selection.Selection,
) -> ner_inputs.Data:
  """Reads the sentences of everything that the flags ask for.

  Args:
    settings: of the command.
    tagged: those to learn from.
    labels: the tags.
    selection: says whether training is scored on the way.

  Returns:
    The sentences, all well tagged.

  Raises:
    InputError: a file is missing, or something in it is wrong.
  """
  scheme = ner.find_scheme(labels)
  train_set = ner_inputs.repair(settings, "train_file", tagged, scheme, labels)
  dev_set, predict_set = [], []
  if settings.run.do_eval or selection.eval_steps:
    ner_scores.import_seqeval()
    dev_set = ner_inputs.repair(
      settings,
      "dev_file",
      ner_inputs.read_tagged(settings, "dev_file"),
      scheme,
      labels,
    )
  if settings.run.do_predict:
    predict_set = ner.read_sentences(
      settings.predict_file,
      ner_inputs.columns(settings)._replace(tag=None),
      text_files.encoding_of(settings.text),
    )
  return ner_inputs.Data(train_set, dev_set, predict_set)


def check_weights(
  settings: NerSettings,
  trained: str | None,
  config: modeling.BertConfig,
  labels: Sequence[str],
) -> None:
  """Refuses a checkpoint that is damaged, or not of this model."""
  layout = ner.record_layout(settings.model.max_seq_length)
  training_checks.check_weights(
    trained or settings.model.init_checkpoint,
    make_model_fn(settings, config, labels),
    layout,
    settings.run.output_dir,
  )


def find_labels(
  settings: NerSettings, train_set: Sequence[Sentence], checkpoint: str | None
) -> list[str]:
  """The tags to learn or, of a trained model, those that it has learnt.

  Args:
    settings: of the command.
    train_set: the training data, if there are any.
    checkpoint: of the trained model.

  Returns:
    "O" and the others, sorted.

  Raises:
    InputError: the trained model's folder does not say.
  """
  if not train_set:
    folder = os.path.dirname(checkpoint)
    known = model_json.load_description(settings.run.output_dir)
    known = known or model_json.load_description(folder)
    if known.get("script") != "run_ner":
      raise InputError(
        f"{folder}: does not say which tags its model has learnt; name the"
        " --output_dir of a run of run_ner.py"
      )
    return known["labels"]
  seen = {tag for sentence in train_set for tag in sentence.tags}
  scheme = settings.scheme if settings.scheme != "data" else ""
  scheme = scheme or ner.find_scheme(seen) or "BIO"
  found, _ = ner.repaired(train_set, scheme)
  tags = {tag for sentence in found for tag in sentence.tags} - {"O"}
  kinds = {tag[2:] for tag in tags}
  return [
    "O",
    *sorted(
      f"{head}-{kind}" for kind in kinds for head in scheme if head != "O"
    ),
  ]


# Training and tagging


def write_windows(
  settings: NerSettings,
  name: str,
  sentences: Sequence[Sentence],
  tokenizer: tokenization.FullTokenizer,
  labels: Sequence[str],
) -> tuple[list[ner.Window], str]:
  """Makes the windows of sentences, and writes their records.

  Args:
    settings: of the command.
    name: of the file in --output_dir, without `.tf_record`.
    sentences: the sentences.
    tokenizer: gives the ids.
    labels: the tags.

  Returns:
    The windows and the file.
  """
  windows = list(
    ner.make_windows(sentences, tokenizer, settings.model.max_seq_length)
  )
  number = {label: index for index, label in enumerate(labels)}
  path = os.path.join(settings.run.output_dir, f"{name}.tf_record")
  tag_ids = [
    [number.get(tag, -1) for tag in s.tags] if s.tags else None
    for s in sentences
  ]
  records = [
    ner.window_record(
      window, index, settings.model.max_seq_length, tag_ids[window.sentence]
    )
    for index, window in enumerate(windows)
  ]
  if settings.devices.on_tpu and name != "train":  # takes full batches alone
    records += records[:1] * (
      -len(records) % getattr(settings.run, f"{name}_batch_size")
    )
  layout = ner.record_layout(settings.model.max_seq_length)
  tf_records.write_records(path, records, layout)
  per_sentence = Counter(window.sentence for window in windows)
  logging.info(
    "%s: %d sentences in %d windows; %d sentences are too long for one",
    name,
    len(sentences),
    len(windows),
    sum(count > 1 for count in per_sentence.values()),
  )
  return windows, path


def build_estimator(
  settings: NerSettings,
  config: modeling.BertConfig,
  labels: Sequence[str],
  num_train_steps: int,
  predict_batch_size: int | None = None,
):
  """The Estimator of the model that the flags describe.

  Args:
    settings: of the command.
    config: the encoder's sizes.
    labels: the tags.
    num_train_steps: length of training; 0 where there is none.
    predict_batch_size: windows a step of tagging, where it tags.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  compute, options = training_run.plan_training(
    settings, training_run.read_execution(settings), config, num_train_steps
  )
  return training_run.build_estimator(
    settings,
    make_model_fn(settings, config, labels, num_train_steps, compute, options),
    settings.run.output_dir,
    settings.run.train_batch_size,
    predict_batch_size=predict_batch_size,
  )


def make_model_fn(
  settings: NerSettings,
  config: modeling.BertConfig,
  labels: Sequence[str],
  num_train_steps: int = 0,
  compute: modeling.Compute | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` as the flags want it, see `model_fn_builder`."""
  return model_fn_builder(
    bert_config=config,
    num_labels=len(labels),
    init_checkpoint=settings.model.init_checkpoint,
    learning_rate=settings.optimizer.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=int(
      num_train_steps * settings.optimizer.warmup_proportion
    ),
    use_tpu=settings.devices.on_tpu,
    use_one_hot_embeddings=settings.devices.on_tpu,
    seed=settings.run.seed,
    log_steps=settings.run.log_steps,
    compute=compute,
    options=options,
  )


def count_steps(settings: NerSettings, num_windows: int) -> int:
  """The steps of training on so many windows."""
  return training_run.count_steps(settings.run, num_windows, "windows")


def check_start(settings: NerSettings, start: Start) -> None:
  """Makes the last checks, before which nothing is written.

  Args:
    settings: of the command.
    start: what the run begins with.

  Raises:
    InputError: there are too few windows, or devices or weights do not fit.
  """
  sentences = start.data.train
  # Each sentence makes a window at least.
  if (
    0
    < len(sentences) * settings.run.num_train_epochs
    < settings.run.train_batch_size
  ):
    windows = ner.make_windows(
      sentences, start.tokenizer, settings.model.max_seq_length
    )
    count_steps(settings, len(list(windows)))
  training_checks.check_start(
    settings,
    start.config,
    start.trained,
    lambda: check_weights(settings, start.trained, start.config, start.labels),
  )


def train_input_fn(settings: NerSettings, path: str):
  """The `input_fn` of training from the step on that has been reached.

  Args:
    settings: of the command.
    path: of the records.
  """
  return input_pipeline.record_input_fn(
    path,
    ner.record_layout(settings.model.max_seq_length),
    is_training=True,
    drop_remainder=True,
    trim=not settings.devices.on_tpu,
    seed=settings.run.seed,
    first_step=finding.steps_done(settings.run.output_dir),
    by_length=settings.run.group_by_length and not settings.devices.on_tpu,
  )


def tag(
  settings: NerSettings,
  estimator,
  sentences: Sequence[Sentence],
  windows: Sequence[ner.Window],
  path: str,
  labels: Sequence[str],
  checkpoint: str | None,
) -> list[tuple[list[str], list[float]]]:
  """A model's tags of sentences; see `decide`.

  Args:
    settings: of the command.
    estimator: the model.
    sentences: the sentences.
    windows: of these.
    path: of the windows' records.
    labels: the tags.
    checkpoint: of the model; None where it is that of --init_checkpoint.

  Returns:
    For each sentence the tags and their probabilities.
  """
  input_fn = input_pipeline.record_input_fn(
    path,
    ner.record_layout(settings.model.max_seq_length),
    is_training=False,
    drop_remainder=settings.devices.on_tpu,
    trim=not settings.devices.on_tpu,
    by_length=not settings.devices.on_tpu,
  )

  def rows():
    found = estimator.predict(input_fn, checkpoint_path=checkpoint)
    for row in session_hooks.follow(found, len(windows), "windows"):
      yield int(row["unique_ids"]), row["probabilities"]

  return ner_decoding.decide(sentences, windows, rows(), labels)


if __name__ == "__main__":
  app.run(main)
