"""Fine-tunes BERT to answer questions about a text, and answers them.

For SQuAD 1.1 and 2.0, and data in their format. Also the module to call from
Python: `Predictor` loads a trained model once and answers whatever it is asked.
"""

from __future__ import annotations

if __name__ == "__main__":  # Check flags before slow imports.
  from bertlib import app
  from bertlib.settings.squad import SquadSettings

  app.parse_flags(SquadSettings, imports_tensorflow=True)

import functools
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import modeling
import optimization
import tokenization
from bertlib import app, estimator_api, files, text_files
from bertlib.checkpoints import finding, loading, model_json, predictor
from bertlib.data import (
  input_pipeline,
  model_inputs,
  record_check,
  squad,
  squad_files,
)
from bertlib.data.squad import (  # noqa: F401
  FeatureWriter,
  InputFeatures,
  SquadExample,
  _check_is_max_context,
  _improve_answer_span,
  convert_examples_to_features,
  read_squad_examples,
)
from bertlib.errors import InputError
from bertlib.files import find_files, write_whole
from bertlib.metrics import squad_decoding, squad_scores
from bertlib.metrics.squad_decoding import (  # noqa: F401 (their names are also here)
  RawResult,
  _compute_softmax,
  _get_best_indexes,
  get_final_text,
  write_predictions,
)
from bertlib.reporting import (
  doctor,
  html_report,
  receipts,
  run_report,
  training_checks,
)
from bertlib.settings import option
from bertlib.settings.squad import SquadSettings
from bertlib.training import (
  estimator_spec,
  model_selection,
  multi_run,
  run_flags,
  session_hooks,
  setup,
  training_run,
)

FLAGS = flags.FLAGS


# Features to batches


def input_fn_builder(
  input_file: str,
  seq_length: int,
  is_training: bool,
  drop_remainder: bool,
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,
  by_length: bool = False,
):
  """`input_pipeline.record_input_fn` over a file of `FeatureWriter`.

  Args:
    input_file: the file.
    seq_length: tokens of its windows.
    is_training: whether the records have the answers; see there too.
    drop_remainder: see there.
    trim: see there.
    seed: see there.
    first_step: see there.
    by_length: see there.

  Returns:
    A function of `params`, which has the `batch_size`.
  """
  return input_pipeline.record_input_fn(
    input_file,
    squad.record_layout(seq_length, is_training),
    is_training,
    drop_remainder,
    trim,
    seed,
    first_step,
    by_length,
  )


# The model


def create_model(
  bert_config: modeling.BertConfig,
  is_training: bool,
  input_ids,
  input_mask,
  segment_ids,
  use_one_hot_embeddings: bool,
  mask_padding: bool = False,
  dropout_seed=None,
  compute: modeling.Compute | None = None,
):
  """The encoder with two scores for each token: answer begins, answer ends.

  Args:
    bert_config: the encoder's sizes.
    is_training: whether dropout is on.
    input_ids: int32 [B, S].
    input_mask: int32 [B, S].
    segment_ids: int32 [B, S].
    use_one_hot_embeddings: see `modeling.BertModel`.
    mask_padding: whether padding gets the lowest score that there is. The
      reference scores it like tokens.
    dropout_seed: see `modeling.dropout`.
    compute: how to compute; None for `modeling.Compute()`. Unpadding, after
      which states at padding are 0, needs `mask_padding`.

  Returns:
    start_logits and end_logits, float32 [B, S].
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
  logits = modeling.span_logits(model.get_sequence_output())
  logits = [tf.cast(scores, tf.float32) for scores in logits]
  if mask_padding:
    logits = [
      tf.where_v2(input_mask > 0, scores, tf.float32.min) for scores in logits
    ]
  return tuple(logits)


def model_fn_builder(
  bert_config: modeling.BertConfig,
  init_checkpoint: str | None,
  learning_rate: float,
  num_train_steps: int | None,
  num_warmup_steps: int | None,
  use_tpu: bool,
  use_one_hot_embeddings: bool,
  mask_padding: bool = False,
  seed: int | None = None,
  log_steps: int = 20,
  compute: modeling.Compute | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` that answers questions, for TPUEstimator.

  Args:
    bert_config: the encoder's sizes.
    init_checkpoint: where the weights start, or None.
    learning_rate: the highest.
    num_train_steps: length of training.
    num_warmup_steps: steps until the highest learning rate.
    use_tpu: whether it runs on a TPU.
    use_one_hot_embeddings: see `modeling.BertModel`.
    mask_padding: see `create_model`.
    seed: of dropout, or None for masks that nothing fixes.
    log_steps: steps between two lines of progress.
    compute: how to compute; None for `modeling.Compute()`.
    options: how to make a step; None for `optimization.StepOptions()`.

  Returns:
    A function of features, labels, mode, params and config. It trains, and
    predicts `unique_ids` [B], `start_logits` and `end_logits` [B, S].
  """

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features

    def build(batch, is_training, dropout_seed=None):
      return create_model(
        bert_config,
        is_training,
        batch["input_ids"],
        batch["input_mask"],
        batch["segment_ids"],
        use_one_hot_embeddings,
        mask_padding,
        dropout_seed,
        compute,
      )

    def loss_fn(batch, dropout_seed):
      losses = [
        modeling.cross_entropy(logits, batch[positions])[0]
        for logits, positions in zip(
          build(batch, True, dropout_seed), ("start_positions", "end_positions")
        )
      ]
      return tf.reduce_mean(losses[0] + losses[1]) / 2.0, {}

    if mode != estimator_api.ModeKeys.TRAIN:
      start_logits, end_logits = build(features, False)
      return estimator_api.TPUEstimatorSpec(
        mode=mode,
        predictions={
          "unique_ids": features["unique_ids"],
          "start_logits": start_logits,
          "end_logits": end_logits,
        },
        scaffold_fn=estimator_spec.restore_trained(
          init_checkpoint, config, use_tpu
        ),
      )
    return estimator_spec.train_spec(
      loss_fn,
      features,
      learning_rate,
      num_train_steps,
      num_warmup_steps,
      use_tpu,
      options or optimization.StepOptions(),
      seed,
      init_checkpoint,
      config,
      params["batch_size"],
      log_steps,
    )

  return model_fn


# A trained model from Python


class Answer(NamedTuple):
  """An answer to a question.

  Attributes:
    text: it, as it stands in the passage; "" says that there is none.
    probability: its share among the answers given with it.
    start: its first character in the passage.
    end: the character after its last.
  """

  text: str
  probability: float
  start: int
  end: int


class Predictor(predictor.LoadedModel):
  """A trained model, loaded once, that answers questions.

  ```python
  predictor = run_squad.Predictor("output/squad")
  predictor.predict([("Who left?", "Ann stayed. Bob left.")])[0][0].text
  ```
  """

  script = "run_squad"
  purpose = "answers questions"

  @staticmethod
  def build(description, config, inputs, compute):
    """See base class."""
    del description
    logits = create_model(
      config,
      is_training=False,
      **inputs,
      use_one_hot_embeddings=False,
      mask_padding=True,
      compute=compute,
    )
    return tf.stack(logits, axis=1)

  def predict(
    self,
    pairs: Iterable[tuple[str, str]],
    n_best_size: int = 20,
    max_answer_length: int = 30,
    null_score_diff_threshold: float = 0.0,
  ) -> list[list[Answer]]:
    """Answers questions.

    Args:
      pairs: each a question and a passage.
      n_best_size: answers to a question, at most.
      max_answer_length: tokens of an answer, at most.
      null_score_diff_threshold: above these odds there is no answer, for a
        model of 2.0.

    Returns:
      For each question its answers, the best first. A passage without words
      has none.
    """
    pairs = list(pairs)
    split = [squad.split_words(passage) for _, passage in pairs]
    examples = [
      SquadExample(str(index), question, words)
      for index, ((question, _), (words, _)) in enumerate(zip(pairs, split))
    ]
    description = self.description
    length, may_be_none = (
      description["max_seq_length"],
      description["version_2_with_negative"],
    )
    settings = squad.Settings(
      length,
      description["doc_stride"],
      description["max_query_length"],
      is_training=False,
    )
    windows = list(
      squad.iterate_features(
        squad.make_windows(examples, self.tokenizer, settings),
        length,
        self.tokenizer.inv_vocab,
      )
    )
    logits = np.full([len(windows), 2, length], np.finfo("f").min)
    for index, row in enumerate(self.run(list(map(squad.as_record, windows)))):
      logits[index, :, : row.shape[1]] = row
    finder = squad_decoding.AnswerFinder(
      examples,
      windows,
      [RawResult(w.unique_id, *row) for w, row in zip(windows, logits)],
      description["do_lower_case"],
    )
    found = finder.n_best(n_best_size, max_answer_length, may_be_none)
    answers = []
    for (entries, best, odds), (words, starts) in zip(found, split):
      if not best and not may_be_none:
        answers.append([])
        continue
      listed = [
        Answer(entry.text, probability, *entry.place_in(words, starts))
        for entry, probability in zip(
          entries, squad_decoding.probabilities(entries)
        )
      ]
      if may_be_none:
        chosen = "" if odds > null_score_diff_threshold else best
        listed.sort(key=lambda answer: answer.text != chosen)
      answers.append(listed)
    return answers


# The command line


def define_flags(required: bool = True) -> None:
  """Defines the flags.

  Args:
    required: whether parsing fails where a flag is missing that the command
      needs; False for other programs that use this module.
  """
  option.define(SquadSettings, required=required)


class Data(NamedTuple):
  """The questions of everything that the flags ask for.

  Attributes:
    train: to learn from.
    predict: to answer.
    questions: to score by: the same with their answers.
    unaligned: those of the training set that are left out.
  """

  train: Sequence[SquadExample]
  predict: Sequence[SquadExample]
  questions: Sequence[squad_files.Question]
  unaligned: Sequence[Mapping[str, Any]]


class Start(NamedTuple):
  """What a run begins with, all of it checked.

  Attributes:
    config: the encoder's sizes.
    tokenizer: gives the ids.
    trained: the checkpoint that has all of the model; None for a new one.
    selection: how the best weights are found.
    seeds: of `--seeds`.
    model: what describes the model.
    data: the questions.
  """

  config: modeling.BertConfig
  tokenizer: tokenization.FullTokenizer
  trained: str | None
  selection: model_selection.Selection
  seeds: list[int]
  model: dict[str, Any]
  data: Data


def main(_) -> None:
  """Does what the flags say: trains, answers, scores."""
  if FLAGS.doctor:
    doctor.diagnose(examine)
    return
  if FLAGS.audit:
    check_flags()
    print_audit(load_audit_tokenizer())
    return
  receipt = receipts.begin(
    __file__, run_flags.is_chief, run_flags.compute_choices
  )
  start = prepare(doctor.simply)
  check_start(start)
  with run_flags.lock_output_dir():
    carry_out(start, receipt)


def carry_out(start: Start, receipt: receipts.Receipt) -> None:
  """Trains, evaluates and predicts as the flags say, all of it checked.

  Args:
    start: what the run begins with.
    receipt: of the run.
  """
  config, tokenizer, selection = start.config, start.tokenizer, start.selection
  data, model = start.data, start.model
  files = FLAGS.train_file, FLAGS.predict_file
  receipt.start(path for path, used in zip(files, data) if used)
  run_flags.log_devices()
  if FLAGS.do_train or not model_json.load_description(FLAGS.output_dir):
    model_json.claim(
      FLAGS.output_dir, model, config, FLAGS.vocab_file, FLAGS.do_train
    )
  if start.seeds:
    multi_run.train_seeds(
      FLAGS.output_dir,
      start.seeds,
      selection.metric,
      ["--nointeractive", *run_flags.choice_flags()],
    )

  predict_windows, key = [], ""
  if data.predict:
    arrays, key = load_windows(
      FLAGS.predict_file, data.predict, tokenizer, is_training=False
    )
    predict_windows = list(
      squad.iterate_features(arrays, FLAGS.max_seq_length, tokenizer.inv_vocab)
    )
  compute_logits = functools.partial(
    predict, config, predict_windows, len(data.predict)
  )
  lengths = None
  if FLAGS.do_train and not start.seeds:
    write_unaligned(data.unaligned)
    lengths = train(
      config,
      tokenizer,
      data.train,
      selection,
      lambda checkpoint: score_logits(
        data.predict,
        predict_windows,
        compute_logits(checkpoint),
        data.questions,
      ),
    )
  checkpoint = training_run.checkpoint_to_use()
  results, sections, warnings = {}, [], []
  if answers_questions():
    if FLAGS.from_logits:
      logits = squad_decoding.load_logits(FLAGS.from_logits, key)
    else:
      logits = compute_logits(checkpoint)
    if FLAGS.save_logits:
      squad_decoding.save_logits(FLAGS.save_logits, key, logits)
    results = decode(data.predict, predict_windows, logits, data.questions)
    if FLAGS.do_eval:
      training_run.write_dev_scores(results, checkpoint)
      sections = report_sections(data.questions)
    warnings = run_report.point_out_collapse(
      *answers_to_compare(data.questions)
    )
  if FLAGS.do_train:
    run_report.write_report(results, selection, sections, lengths, warnings)
  receipt.finish(results, checkpoint)
  if FLAGS.interactive:
    precision = run_flags.read_execution().dtype.name
    with Predictor(
      FLAGS.output_dir, checkpoint or FLAGS.init_checkpoint, precision=precision
    ) as predictor:
      lines = text_files.decode_lines(
        sys.stdin.buffer, "standard input", text_files.from_flags()
      )
      converse(predictor, lines)


# What is asked for, and whether it can be


def prepare(check: doctor.Check) -> Start:
  """Checks and reads all that a run needs; nothing is written yet.

  Whatever is wrong with folders and data is said now, not after training.

  Args:
    check: makes each check.

  Returns:
    What the run begins with.
  """
  seeds = check("flags", check_flags)
  check("output", check_output, after=seeds)
  config = check("config", setup.load_config)
  tokenizer = check("vocabulary", setup.load_tokenizer, config)
  trained = check("checkpoint", find_model)
  selection = check("scores", read_selection)
  model = check("folder", describe_model, config, seeds)
  data = check("data", read_data, selection, after=seeds)
  return Start(config, tokenizer, trained, selection, seeds, model, data)


def examine(doctor: doctor.Doctor) -> None:
  """Makes the checks of a run, and some more.

  Args:
    doctor: makes each check.
  """
  start = prepare(doctor.check)
  doctor.check("weights", check_weights, start.trained, start.config)
  lengths = doctor.check(
    "tokens", check_tokens, start.config, start.tokenizer, start.data
  )
  training_checks.check_training(
    doctor,
    start.config,
    lengths,
    lambda num_windows: count_steps(len(start.data.train), num_windows),
  )


def check_output() -> None:
  """Refuses outputs that would overwrite data, a passage or logits."""
  inputs = [
    FLAGS.train_file,
    FLAGS.predict_file,
    FLAGS.passage_file,
    FLAGS.from_logits,
  ]
  doctor.check_output_dir(
    [
      "*.tf_record",
      "*predictions.json",
      "null_odds.json",
      "unaligned_answers.jsonl",
    ],
    inputs,
  )
  if FLAGS.save_logits:
    model_files = [FLAGS.vocab_file, FLAGS.bert_config_file]
    files.check_outputs([FLAGS.save_logits], inputs + model_files)
  if FLAGS.interactive and FLAGS.passage_file:
    read_passage()


def read_selection() -> model_selection.Selection:
  """How the flags want the best weights found."""
  return run_flags.read_selection(
    ["best_f1", "f1", "exact", "best_exact"]
    if FLAGS.version_2_with_negative
    else ["f1", "exact_match"]
  )


def describe_model(
  config: modeling.BertConfig, seeds: Sequence[int]
) -> dict[str, Any]:
  """What describes the model; refuses a folder of another.

  Args:
    config: the encoder's sizes.
    seeds: of `--seeds`, each of which has a folder of its own.

  Returns:
    What `model_json.claim` takes.

  Raises:
    InputError: --output_dir is another model's, or not as --resume wants it.
  """
  loading.check_has_segments(config, FLAGS.bert_config_file)
  model = {
    "script": "run_squad",
    "version_2_with_negative": FLAGS.version_2_with_negative,
    "max_seq_length": FLAGS.max_seq_length,
    "doc_stride": FLAGS.doc_stride,
    "max_query_length": FLAGS.max_query_length,
    "do_lower_case": FLAGS.do_lower_case,
    **run_flags.compute_choices(),
  }
  must_agree = ["script", "do_lower_case"]
  if FLAGS.do_train:
    must_agree.append("version_2_with_negative")
  model_json.check(
    FLAGS.output_dir,
    model,
    config,
    must_agree,
    vocab_file=FLAGS.vocab_file,
  )
  if FLAGS.do_train and not seeds:
    finding.check_resume(FLAGS.resume, FLAGS.output_dir)
  return model


def read_data(selection: model_selection.Selection) -> Data:
  """Reads the questions of everything that the flags ask for.

  Args:
    selection: says whether training is scored on the way.

  Returns:
    The questions.

  Raises:
    InputError: a file is missing, or something in it is wrong.
  """
  data = Data([], [], [], [])
  if FLAGS.do_train:
    train = read_squad_examples(
      FLAGS.train_file, True, FLAGS.version_2_with_negative, data.unaligned
    )
    data = data._replace(train=train)
  if answers_questions() or selection.eval_steps:
    predict = read_squad_examples(
      FLAGS.predict_file, False, FLAGS.version_2_with_negative
    )
    data = data._replace(predict=predict)
  if FLAGS.do_eval or selection.eval_steps or sweeps():
    data = data._replace(questions=read_answered_questions())
  return data


def check_start(start: Start) -> None:
  """Makes the last checks, before which nothing is written.

  Args:
    start: what the run begins with.

  Raises:
    InputError: there are too few questions, --from_logits are of others, or
      devices or weights do not fit.
  """
  questions = start.data.train
  if 0 < len(questions) * FLAGS.num_train_epochs < FLAGS.train_batch_size:
    # There may be more windows, and making them takes no time.
    windows = squad.make_windows(
      questions, start.tokenizer, settings(is_training=True)
    )
    count_steps(len(questions), len(windows.length))
  if FLAGS.from_logits:
    key = windows_key(FLAGS.predict_file, is_training=False)
    squad_decoding.load_logits(FLAGS.from_logits, key)
  training_checks.check_start(
    start.config,
    start.trained,
    lambda: check_weights(start.trained, start.config),
  )


def check_weights(trained: str | None, config: modeling.BertConfig) -> None:
  """Refuses a checkpoint that is damaged, or not of this model."""
  layout = squad.record_layout(FLAGS.max_seq_length, is_training=False)
  training_checks.check_weights(
    trained or FLAGS.init_checkpoint,
    make_model_fn(config),
    layout,
    FLAGS.output_dir,
  )


def check_tokens(
  config: modeling.BertConfig,
  tokenizer: tokenization.FullTokenizer,
  data: Data,
) -> doctor.Lengths:
  """Makes windows of some of the questions; warns if answers get lost."""
  questions = data.train or data.predict
  some = doctor.sample(questions)
  windows = squad.make_windows(
    some, tokenizer, settings(is_training=bool(data.train))
  )
  cut, lost = squad.find_losses(windows)
  for what, which in (("questions are cut", cut), ("answers get lost", lost)):
    if len(which) > len(some) / 20:
      logging.warning("%d of %d %s", len(which), len(some), what)
  ends = np.cumsum(windows.length)
  return doctor.check_encoded(
    [
      doctor.Encoded(windows.ids[end - length : end].tolist(), int(length))
      for end, length in zip(ends, windows.length)
    ],
    config.vocab_size,
    len(questions) * len(ends) // max(len(some), 1),
  )


def check_flags() -> list[int]:
  """Refuses flags that do not go together; gives the seeds of `--seeds`.

  Raises:
    InputError: something is missing, or has no sense.
  """
  if not (
    FLAGS.do_train or answers_questions() or FLAGS.audit or FLAGS.interactive
  ):
    raise InputError(
      "nothing to do; give one or more of --do_train, --do_predict, --audit,"
      " --interactive"
    )
  for flag, needed, why in (
    ("train_file", FLAGS.do_train or FLAGS.audit, "--do_train and --audit"),
    ("predict_file", answers_questions(), "--do_predict"),
    ("predict_file", FLAGS.do_train and FLAGS.eval_steps, "--eval_steps"),
  ):
    if needed and not FLAGS[flag].value:
      raise InputError(f"--{flag} is needed with {why}")
  if (FLAGS.do_eval or sweeps()) and not answers_questions():
    raise InputError("there are no answers to score; add --do_predict")
  if FLAGS.interactive and FLAGS.passage_file:
    find_files([FLAGS.passage_file])
  folder = os.path.dirname(FLAGS.save_logits or "")
  if folder and not tf.gfile.IsDirectory(folder):
    raise InputError(f"--save_logits={FLAGS.save_logits}: there is no {folder}")
  squad.check_settings(settings(is_training=False))
  return run_flags.read_seeds()


def validate_flags_or_throw(bert_config: modeling.BertConfig) -> None:
  """Checks the flags, which also have to go with the model.

  Args:
    bert_config: the encoder's sizes.

  Raises:
    InputError: something is missing, or contradicts something else.
  """
  check_flags()
  loading.check_max_seq_length(FLAGS.max_seq_length, bert_config)
  tokenization.validate_case_matches_checkpoint(
    FLAGS.do_lower_case, FLAGS.init_checkpoint
  )


def answers_questions() -> bool:
  """Whether --predict_file is to be answered."""
  return bool(FLAGS.do_predict or FLAGS.from_logits)


def sweeps() -> bool:
  """Whether several settings are to be tried."""
  return bool(
    numbers("sweep_n_best_size")
    or numbers("sweep_max_answer_length")
    or numbers("sweep_null_threshold", float)
  )


def settings(is_training: bool) -> squad.Settings:
  """How the flags want windows made."""
  return squad.Settings(
    FLAGS.max_seq_length, FLAGS.doc_stride, FLAGS.max_query_length, is_training
  )


def numbers(flag: str, kind: type = int) -> list[Any]:
  """The numbers of a list flag.

  Args:
    flag: its name.
    kind: int or float.

  Returns:
    The numbers; none if the flag is not given.

  Raises:
    InputError: one is none, or an integer below 1.
  """
  values = FLAGS[flag].value or []
  try:
    read = [kind(value) for value in values]
  except ValueError:
    read = [None]
  if None in read or (kind is int and any(value < 1 for value in read)):
    raise InputError(
      f"--{flag}={','.join(values)}: give numbers with commas between"
    )
  return read


def find_model() -> str | None:
  """The checkpoint that has all of the model; None for a new one.

  Raises:
    InputError: it is not there, or of a model for something else.
  """
  needs_no_model = FLAGS.from_logits and not FLAGS.interactive
  checkpoint = finding.find_model(
    FLAGS.init_checkpoint,
    FLAGS.output_dir,
    may_be_new=FLAGS.do_train or needs_no_model,
  )
  if checkpoint:
    check_has_head(checkpoint)
  return checkpoint


def check_has_head(checkpoint: str) -> None:
  """Refuses a checkpoint of a model that does not answer questions.

  Args:
    checkpoint: its path.

  Raises:
    InputError: it lacks the weights for that.
  """
  name = "cls/squad/output_weights"
  if name not in dict(tf.train.list_variables(checkpoint)):
    raise InputError(
      f"{checkpoint}: was not trained on questions (it has no {name}). Train"
      " it with --do_train into another --output_dir, or name one that was"
    )


def read_answered_questions() -> list[squad_files.Question]:
  """The questions of --predict_file, with answers to score by.

  Raises:
    InputError: one has none, and data of 1.1 has no such questions.
  """
  questions = squad_files.read_questions(FLAGS.predict_file)
  for question in questions:
    if not question.answers and not FLAGS.version_2_with_negative:
      raise InputError(
        f"{FLAGS.predict_file}, question {question.id}: has no answer to score"
        " by. Leave out --do_eval, or give --version_2_with_negative"
      )
  return questions


def write_unaligned(unaligned: Sequence[Mapping[str, Any]]) -> None:
  """Lists the answers that could not be used, in --output_dir."""
  path = in_output_dir("unaligned_answers.jsonl")
  with write_whole(path) as file:
    for answer in unaligned:
      file.write(json.dumps(answer, ensure_ascii=False) + "\n")
  if unaligned:
    logging.info("Answers that could not be used are listed in %s", path)


def load_audit_tokenizer() -> tokenization.FullTokenizer:
  """The tokenizer of --audit, which needs neither a model nor a folder."""
  setup.fill_in_model_flags()
  if not FLAGS.vocab_file:
    raise InputError("--vocab_file is needed with --audit")
  return loading.load_tokenizer(
    FLAGS.vocab_file, FLAGS.do_lower_case, None, FLAGS.init_checkpoint
  )


def print_audit(tokenizer: tokenization.FullTokenizer) -> None:
  """Prints what settings would cut off --train_file."""
  unaligned: list[dict[str, Any]] = []
  examples = read_squad_examples(
    FLAGS.train_file, True, FLAGS.version_2_with_negative, unaligned
  )
  rows = squad.audit(
    examples,
    tokenizer,
    numbers("audit_max_seq_lengths"),
    numbers("audit_doc_strides"),
    FLAGS.max_query_length,
  )
  print_table([row | {"unaligned answers": len(unaligned)} for row in rows])


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
  """Prints rows with the same keys as a table."""
  cells = [list(rows[0])]
  for row in rows:
    cells.append(
      [f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()]
    )
  widths = [max(map(len, column)) for column in zip(*cells)]
  for row in cells:
    print("  ".join(map(str.rjust, row, widths)))


# Training and answering


def windows_key(path: str, is_training: bool) -> str:
  """The key in the cache of a data set's windows."""
  return squad.cache_key(
    path,
    FLAGS.vocab_file,
    settings(is_training)._asdict()
    | {
      "do_lower_case": FLAGS.do_lower_case,
      "version_2_with_negative": FLAGS.version_2_with_negative,
    },
  )


def load_windows(
  path: str,
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  is_training: bool,
) -> tuple[squad.Windows, str]:
  """The windows of a data set, made or from the cache; says what they lose.

  Args:
    path: the data set.
    examples: its questions.
    tokenizer: gives the ids.
    is_training: whether they need answers.

  Returns:
    The windows and the key of the cache.
  """
  key = windows_key(path, is_training)
  # Starting a process takes as long as some thousand questions.
  num_workers = FLAGS.num_workers or min(os.cpu_count(), len(examples) // 5000)
  windows = squad.cached_windows(
    FLAGS.cache_dir or FLAGS.output_dir,
    key,
    lambda: squad.make_windows(
      examples, tokenizer, settings(is_training), num_workers, True
    ),
  )
  cut, lost = squad.find_losses(windows)
  logging.info(
    "%s: %d questions in %d windows; %d questions cut to %d tokens, %d answers"
    " in no window",
    path,
    len(examples),
    len(windows.length),
    len(cut),
    FLAGS.max_query_length,
    len(lost),
  )
  if FLAGS.verbose_logging:
    for what, indexes in (("cut", cut), ("answer in no window", lost)):
      for index in indexes:
        logging.info("question %s: %s", examples[index].qas_id, what)
  return windows, key


def count_steps(num_questions: int, num_windows: int) -> int:
  """The steps that the flags ask for, which it says in windows too.

  Args:
    num_questions: of the training set.
    num_windows: made of them.

  Returns:
    The steps, at least one.

  Raises:
    InputError: there are not enough for one.
  """
  count = num_questions if FLAGS.steps_from == "questions" else num_windows
  num_steps = run_flags.count_steps(count, FLAGS.steps_from)
  logging.info(
    "--steps_from=%s: %g passes over %d %s are %d steps, and %.2f passes over"
    " the %d windows",
    FLAGS.steps_from,
    FLAGS.num_train_epochs,
    count,
    FLAGS.steps_from,
    num_steps,
    num_steps * FLAGS.train_batch_size / num_windows,
    num_windows,
  )
  return num_steps


def build_estimator(config: modeling.BertConfig, num_train_steps: int):
  """The Estimator of the model that the flags describe.

  Args:
    config: the encoder's sizes.
    num_train_steps: length of training; 0 where there is none.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  compute, options = training_run.plan_training(
    run_flags.read_execution(unpad=FLAGS.mask_padding), config, num_train_steps
  )
  return training_run.build_estimator(
    make_model_fn(config, num_train_steps, compute, options),
    FLAGS.output_dir,
    FLAGS.train_batch_size,
    predict_batch_size=FLAGS.predict_batch_size,
  )


def make_model_fn(
  config: modeling.BertConfig,
  num_train_steps: int = 0,
  compute: modeling.Compute | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` as the flags want it, see `model_fn_builder`."""
  return model_fn_builder(
    bert_config=config,
    init_checkpoint=FLAGS.init_checkpoint,
    learning_rate=FLAGS.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=int(num_train_steps * FLAGS.warmup_proportion),
    use_tpu=FLAGS.use_tpu,
    use_one_hot_embeddings=FLAGS.use_tpu,
    mask_padding=FLAGS.mask_padding,
    seed=FLAGS.seed,
    log_steps=FLAGS.log_steps,
    compute=compute,
    options=options,
  )


def train(
  config: modeling.BertConfig,
  tokenizer: tokenization.FullTokenizer,
  examples: Sequence[SquadExample],
  selection: model_selection.Selection,
  evaluate: model_selection.Evaluate,
) -> model_inputs.Lengths:
  """Trains, or goes on where training was stopped.

  Args:
    config: the encoder's sizes.
    tokenizer: gives the ids.
    examples: the questions of --train_file.
    selection: how it is scored on the way.
    evaluate: scores a checkpoint.

  Returns:
    How long the windows are, of which nothing is cut.
  """
  windows, _ = load_windows(
    FLAGS.train_file, examples, tokenizer, is_training=True
  )
  num_steps = count_steps(len(examples), len(windows.length))
  path = in_output_dir("train.tf_record")
  with FeatureWriter(path, is_training=True) as writer:
    for window in squad.iterate_features(
      windows,
      FLAGS.max_seq_length,
      tokenizer.inv_vocab,
      squad.reference_order(len(examples)),
    ):
      writer.process_feature(window)
  input_fn = input_fn_builder(
    path,
    FLAGS.max_seq_length,
    is_training=True,
    drop_remainder=True,
    trim=FLAGS.mask_padding and not FLAGS.use_tpu,
    seed=FLAGS.seed,
    first_step=finding.steps_done(FLAGS.output_dir),
    by_length=FLAGS.group_by_length and not FLAGS.use_tpu,
  )
  training_run.train(
    build_estimator(config, num_steps),
    input_fn,
    num_steps,
    f"{len(examples)} questions in {len(windows.length)} windows",
    "windows",
    selection,
    evaluate,
    functools.partial(
      record_check.find,
      [path],
      squad.record_layout(FLAGS.max_seq_length, is_training=True),
    ),
  )
  num_tokens = [int(length) for length in windows.length]
  nothing_cut = [0] * len(num_tokens)
  return model_inputs.Lengths(num_tokens, FLAGS.max_seq_length, nothing_cut)


def predict(
  config: modeling.BertConfig,
  windows: Sequence[squad.Window],
  num_questions: int,
  checkpoint: str | None,
) -> np.ndarray:
  """The model's scores of all windows.

  Args:
    config: the encoder's sizes.
    windows: the windows.
    num_questions: of which they are made.
    checkpoint: of the model; None where it is that of --init_checkpoint.

  Returns:
    float32 [2, windows, max_seq_length], starts and ends; the lowest number
    at padding that was left out.
  """
  logits = np.full(
    [2, len(windows), FLAGS.max_seq_length], np.finfo("f").min, "f"
  )
  trim = FLAGS.mask_padding and not FLAGS.use_tpu
  batches = list(windows)
  if FLAGS.use_tpu:
    batches += batches[:1] * (-len(batches) % FLAGS.predict_batch_size)
  if not batches:
    return logits
  path = in_output_dir("eval.tf_record")
  with FeatureWriter(path, is_training=False) as writer:
    for window in batches:
      writer.process_feature(window)
  input_fn = input_fn_builder(
    path,
    FLAGS.max_seq_length,
    is_training=False,
    drop_remainder=FLAGS.use_tpu,
    trim=trim,
    by_length=trim,
  )
  rows = build_estimator(config, 0).predict(
    input_fn, checkpoint_path=checkpoint
  )
  start = time.time()
  for row in session_hooks.follow(rows, len(batches), "windows"):
    index = row["unique_ids"] - squad.FIRST_UNIQUE_ID
    for kind, name in enumerate(("start_logits", "end_logits")):
      logits[kind, index, : len(row[name])] = row[name]
  seconds = time.time() - start
  logging.info(
    "%d windows of %d questions in %.1f s: %.1f questions/s",
    len(windows),
    num_questions,
    seconds,
    num_questions / seconds,
  )
  return logits


# Decoding


def find_answers(
  examples: Sequence[SquadExample],
  windows: Sequence[squad.Window],
  logits: np.ndarray,
) -> squad_decoding.AnswerFinder:
  """What finds the answers that the model's scores say.

  Args:
    examples: the questions.
    windows: their windows.
    logits: [2, windows, max_seq_length], the model's scores.
  """
  results = [
    RawResult(window.unique_id, *scores)
    for window, *scores in zip(windows, *logits)
  ]
  return squad_decoding.AnswerFinder(
    examples, windows, results, FLAGS.do_lower_case
  )


def score_logits(
  examples: Sequence[SquadExample],
  windows: Sequence[squad.Window],
  logits: np.ndarray,
  questions: Sequence[squad_files.Question],
) -> dict[str, float]:
  """The scores of the answers, with nothing written; see `decode`."""
  finder = find_answers(examples, windows, logits)
  return score_best(
    examples,
    finder,
    questions,
    FLAGS.n_best_size,
    FLAGS.max_answer_length,
    FLAGS.null_score_diff_threshold,
  )


def decode(
  examples: Sequence[SquadExample],
  windows: Sequence[squad.Window],
  logits: np.ndarray,
  questions: Sequence[squad_files.Question] | None,
) -> dict[str, float]:
  """Writes the answers; scores them, and tries other settings, if so asked.

  Args:
    examples: the questions.
    windows: their windows.
    logits: [2, windows, max_seq_length], the model's scores.
    questions: the accepted answers, if they are needed.

  Returns:
    The scores by name; none if they are not asked for.
  """
  finder = find_answers(examples, windows, logits)
  answers, odds = squad_decoding.write_answers(
    examples,
    finder,
    FLAGS.n_best_size,
    FLAGS.max_answer_length,
    in_output_dir("predictions.json"),
    in_output_dir("nbest_predictions.json"),
    in_output_dir("null_odds.json"),
    FLAGS.version_2_with_negative,
    FLAGS.null_score_diff_threshold,
  )
  logging.info("Answers to %d questions in %s", len(examples), FLAGS.output_dir)
  impossible = [
    name for name, odd in odds.items() if odd == squad_decoding.CERTAIN_ODDS
  ]
  if impossible:
    logging.warning(
      "%d questions have no span that could be an answer, such as %s",
      len(impossible),
      impossible[0],
    )
  scores = {}
  if FLAGS.do_eval:
    scores = score(questions, answers, odds, FLAGS.null_score_diff_threshold)
    training_run.write_results(in_output_dir("eval_results.txt"), scores)
    if FLAGS.version_2_with_negative:
      logging.info(
        "F1 is %.2f at --null_score_diff_threshold=%s, and best, %.2f, at %s",
        scores["f1"],
        FLAGS.null_score_diff_threshold,
        scores["best_f1"],
        scores["best_f1_thresh"],
      )
  if sweeps():
    print_table(list(sweep(examples, finder, questions)))
  return scores


def in_output_dir(name: str) -> str:
  """The path of a file in --output_dir."""
  return os.path.join(FLAGS.output_dir, name)


def score(
  questions: Sequence[squad_files.Question],
  answers: Mapping[str, str],
  odds: Mapping[str, float],
  threshold: float,
) -> dict[str, float]:
  """The scores that the flags ask for.

  Args:
    questions: the accepted answers.
    answers: the model's by question id, whatever the odds of none.
    odds: of none, by question id.
    threshold: above which there is none.

  Returns:
    Scores by name.
  """
  if FLAGS.version_2_with_negative:
    return squad_scores.evaluate_v2(
      questions, answers, odds, threshold, answer_nothing=-math.inf
    )
  score_one = squad_scores.score_v1
  if FLAGS.eval_metric == "chinese":
    score_one = squad_scores.score_chinese
  return squad_scores.evaluate_v1(questions, answers, score_one)


def sweep(
  examples: Sequence[SquadExample],
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
) -> Iterator[dict[str, float]]:
  """Scores with all combinations of the settings that the flags list.

  Args:
    examples: the questions.
    finder: finds their answers.
    questions: the accepted answers.

  Yields:
    The settings with their scores.
  """
  for size, length in itertools.product(
    numbers("sweep_n_best_size") or [FLAGS.n_best_size],
    numbers("sweep_max_answer_length") or [FLAGS.max_answer_length],
  ):
    row = {"n_best_size": size, "max_answer_length": length}
    best = functools.partial(
      score_best, examples, finder, questions, size, length
    )
    if not FLAGS.version_2_with_negative:
      yield row | best(0.0)
      continue
    thresholds = numbers("sweep_null_threshold", float)
    for threshold in thresholds or [FLAGS.null_score_diff_threshold]:
      scores = best(threshold)
      shown = ("exact", "f1", "best_f1", "best_f1_thresh")
      yield row | {"null_threshold": threshold} | {k: scores[k] for k in shown}


def score_best(
  examples: Sequence[SquadExample],
  finder: squad_decoding.AnswerFinder,
  questions: Sequence[squad_files.Question],
  n_best_size: int,
  max_answer_length: int,
  threshold: float,
) -> dict[str, float]:
  """The scores of the answers that one setting of the decoder finds.

  Args:
    examples: the questions.
    finder: finds their answers.
    questions: the accepted answers.
    n_best_size: see `squad_decoding.AnswerFinder`.
    max_answer_length: likewise.
    threshold: see `score`.

  Returns:
    Scores by name.
  """
  names = [example.qas_id for example in examples]
  texts, odds = zip(*finder.best(n_best_size, max_answer_length))
  by_name = dict(zip(names, texts)), dict(zip(names, odds))
  return score(questions, *by_name, threshold)


def answers_to_compare(
  questions: Sequence[squad_files.Question],
) -> tuple[list[str], list[str] | None]:
  """Predicted answers, and the gold ones where they are known.

  Args:
    questions: with the accepted answers; none if these were not read.
  """
  predicted = squad_files.read_json(in_output_dir("predictions.json"))
  gold = [
    next((answer.text for answer in question.answers), "")
    for question in questions
  ]
  return (
    [text or "no answer" for text in predicted.values()],
    [text or "no answer" for text in gold] if questions else None,
  )


def report_sections(
  questions: Sequence[squad_files.Question], num_errors: int = 30
) -> list[str]:
  """What a report shows of the answers in --output_dir.

  Args:
    questions: with the accepted answers.
    num_errors: wrong answers shown, the most certain ones.

  Returns:
    Sections of `report`.
  """
  answers = squad_files.read_json(in_output_dir("predictions.json"))
  listed = squad_files.read_json(in_output_dir("nbest_predictions.json"))
  score_one = squad_scores.score_v1
  if FLAGS.version_2_with_negative:
    score_one = squad_scores.score_v2
  elif FLAGS.eval_metric == "chinese":
    score_one = squad_scores.score_chinese
  sure, right, errors = [], [], []
  for question in questions:
    said = answers[question.id]
    accepted = [answer.text for answer in question.answers]
    probability = next(
      (n["probability"] for n in listed[question.id] if n["text"] == said), 0.0
    )
    found = score_one(said, accepted)
    sure.append(probability)
    right.append(found.exact == 1)
    if found.f1 < 0.5:
      errors.append(
        {
          "question": question.text,
          "is": " / ".join(dict.fromkeys(accepted)) or "no answer",
          "said": said or "no answer",
          "probability": probability,
          "text": question.context,
        }
      )
  errors.sort(key=lambda error: -error["probability"])
  return [
    html_report.calibration(sure, right),
    html_report.errors(errors[:num_errors]),
  ]


# Conversation


def read_passage() -> str:
  """The text of --passage_file.

  Raises:
    InputError: it has none, or is not of --encoding.
  """
  passage = text_files.read_text(FLAGS.passage_file, text_files.from_flags())
  if not passage.strip():
    raise InputError(f"{FLAGS.passage_file}: has no passage in it")
  return passage


def converse(predictor: Predictor, lines: Iterable[str]) -> None:
  """Answers questions about one passage, and prints the answers.

  Args:
    predictor: the model.
    lines: a question each; before them, if there is no --passage_file, the
      passage and a blank line.

  Raises:
    InputError: there is no passage.
  """
  lines = iter(lines)
  say = print if sys.stdin.isatty() else lambda *_, **__: None
  if FLAGS.passage_file:
    passage = read_passage()
  else:
    say("The passage, and a blank line after it:")
    passage = "".join(itertools.takewhile(str.strip, lines))
  if not passage.strip():
    raise InputError("standard input: has no passage in it")
  say("Questions, one a line:")
  for line in lines:
    if not line.strip():
      continue
    (answers,) = predictor.predict(
      [(line.strip(), passage)],
      FLAGS.n_best_size,
      FLAGS.max_answer_length,
      FLAGS.null_score_diff_threshold,
    )
    for answer in answers[:3]:
      place = f"{answer.start}-{answer.end}" if answer.text else "-"
      text = answer.text or "(no answer)"
      app.show(f"{answer.probability:.3f}", f"{place:>11}", text, sep="  ")
    print(flush=True)


if __name__ == "__main__":
  app.run(main)
