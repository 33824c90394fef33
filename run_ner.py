"""Fine-tunes BERT to tag words, finds entities by them, and scores these.

Also the module to call from Python: `Predictor` loads a trained model once and
finds the entities of whatever text it is given.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags, logging

import command_line
import estimator_api
import features
import modeling
import ner_data
import optimization
import tokenization
import training
from command_line import InputError, write_whole
from execution import Execution
from ner_data import Sentence

FLAGS = flags.FLAGS


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
  execution: Execution | None = None,
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
    execution: how to compute; None for `Execution()`.

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
    execution=execution,
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
  seed: int | None = None,
  log_steps: int = 20,
  execution: Execution | None = None,
  options: optimization.StepOptions | None = None,
):
  """The `model_fn` that tags words, for TPUEstimator.

  Args:
    bert_config: the encoder's sizes.
    num_labels: L, tags.
    init_checkpoint: where the weights start, or None.
    learning_rate: the highest.
    num_train_steps: length of training.
    num_warmup_steps: steps until the highest learning rate.
    use_tpu: whether it runs on a TPU.
    use_one_hot_embeddings: see `modeling.BertModel`.
    seed: of dropout, or None for masks that nothing fixes.
    log_steps: steps between two lines of progress.
    execution: how to compute; None for `Execution()`.
    options: how to make a step; None for `optimization.StepOptions()`.

  Returns:
    A function of features, labels, mode, params and config. It trains, and
    predicts `unique_ids` [B] and `probabilities` [B, S, L].
  """

  def model_fn(features, labels, mode, params, config=None):
    del labels  # they are among the features
    step_options = options or optimization.StepOptions()
    restore = functools.partial(
      training.initialize_from_checkpoint,
      init_checkpoint,
      config and config.model_dir,
      use_tpu,
    )

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
        execution,
      )

    if mode != estimator_api.ModeKeys.TRAIN:
      return estimator_api.TPUEstimatorSpec(
        mode=mode,
        predictions={
          "unique_ids": features["unique_ids"],
          "probabilities": tf.nn.softmax(build(features, False)),
        },
        scaffold_fn=restore(),
      )

    # Parts of a batch may have more words or fewer; each counts alike.
    num_decided = tf.reduce_sum(tf.cast(features["label_ids"] >= 0, tf.float32))
    num_decided /= step_options.num_micro_batches

    def loss_fn(batch, dropout_seed):
      logits = build(batch, True, dropout_seed)
      return tagging_loss(logits, batch["label_ids"], num_decided), {}

    return training.train_spec(
      loss_fn,
      features,
      learning_rate,
      num_train_steps,
      num_warmup_steps,
      use_tpu,
      step_options,
      seed,
      restore,
      params["batch_size"],
      log_steps,
    )

  return model_fn


# Scores


def score(
  true_tags: Sequence[Sequence[str]], said_tags: Sequence[Sequence[str]]
) -> dict[str, float]:
  """Precision, recall and F1 of whole entities, by seqeval.

  Args:
    true_tags: of each sentence, with prefixes as in BIO or BIOES.
    said_tags: likewise.

  Returns:
    `precision`, `recall` and `f1` over all entities; `precision_X`, `recall_X`,
    `f1_X` and `entities_X` of each type X that the data have; `accuracy` of the
    tags.

  Raises:
    InputError: seqeval is not installed.
  """
  try:
    from seqeval import metrics
  except ModuleNotFoundError as error:
    raise InputError(
      "--do_eval needs the package seqeval: pip install -e '.[ner]'"
    ) from error

  report = metrics.classification_report(
    true_tags, said_tags, output_dict=True, zero_division=0
  )
  names = {"precision": "precision", "recall": "recall", "f1": "f1-score"}
  scores = {
    name: float(report["micro avg"][theirs]) for name, theirs in names.items()
  }
  scores["accuracy"] = float(metrics.accuracy_score(true_tags, said_tags))
  for label, row in report.items():
    if not label.endswith(" avg"):
      for name, theirs in names.items():
        scores[f"{name}_{label}"] = float(row[theirs])
      scores[f"entities_{label}"] = int(row["support"])
  return scores


# A trained model from Python


class Found(NamedTuple):
  """An entity in a text.

  Attributes:
    label: its type.
    text: it, as it stands in the text.
    start: its first character.
    end: the character after its last.
    probability: the lowest of its words' tags.
  """

  label: str
  text: str
  start: int
  end: int
  probability: float


def found_in(
  sentence: Sentence, tags: Sequence[str], probabilities: Sequence[float]
) -> list[Found]:
  """The entities that tags say are in a sentence.

  Args:
    sentence: the sentence.
    tags: of its words.
    probabilities: of these tags.

  Returns:
    The entities, in order.
  """
  found = []
  for label, first, last in ner_data.entities_of(tags):
    start, end = sentence.places[first][0], sentence.places[last - 1][1]
    text = sentence.text[start:end]
    sure = float(min(probabilities[first:last]))
    found.append(Found(label, text, start, end, sure))
  return found


class Predictor:
  """A trained model, loaded once, that finds entities.

  ```python
  predictor = run_ner.Predictor("output/ner")
  predictor.predict(["Ann left Rome."])[0][0].text
  ```
  """

  def __init__(
    self,
    model_dir: str,
    checkpoint: str | None = None,
    batch_size: int = 32,
    precision: str = "float32",
  ):
    """Loads a model.

    Args:
      model_dir: the `--output_dir` of a training run.
      checkpoint: which one; None for the folder's last.
      batch_size: how many windows are looked at together.
      precision: "float32", "bfloat16" or "float16", see `--precision`.

    Raises:
      InputError: the folder holds no such model.
    """
    description = training.load_model_description(model_dir)
    checkpoint = checkpoint or tf.train.latest_checkpoint(model_dir)
    if description.get("script") != "run_ner" or not checkpoint:
      raise InputError(
        f"{model_dir}: holds no model that tags words; name the --output_dir of"
        " a run of run_ner.py"
      )
    self.labels = description["labels"]
    self._max_seq_length = description["max_seq_length"]
    self._batch_size = batch_size
    config = training.load_config(os.path.join(model_dir, training.CONFIG_FILE))
    self._tokenizer = tokenization.FullTokenizer(
      os.path.join(model_dir, training.VOCAB_FILE), description["do_lower_case"]
    )
    with tf.Graph().as_default() as graph:
      self._inputs = {
        name: tf.placeholder(tf.int32, [None, None], name)
        for name in features.TOKEN_FEATURES
      }
      logits = create_model(
        config,
        is_training=False,
        **self._inputs,
        num_labels=len(self.labels),
        use_one_hot_embeddings=False,
        execution=Execution(tf.as_dtype(precision), packs=True),
      )
      self._probabilities = tf.nn.softmax(logits)
      self._session = tf.Session(graph=graph)
      tf.train.Saver(tf.trainable_variables()).restore(
        self._session, checkpoint
      )

  def predict(self, texts: Iterable[str]) -> list[list[Found]]:
    """Finds the entities of texts.

    Args:
      texts: of any length.

    Returns:
      For each text its entities, in order.
    """
    sentences = [ner_data.from_text(text) for text in texts]
    windows = list(
      ner_data.make_windows(sentences, self._tokenizer, self._max_seq_length)
    )
    order = sorted(
      range(len(windows)), key=lambda index: -len(windows[index].input_ids)
    )
    rows = []
    for first in range(0, len(order), self._batch_size):
      batch = order[first : first + self._batch_size]
      longest = len(windows[batch[0]].input_ids)
      records = [
        ner_data.window_record(windows[index], index, longest, None)
        for index in batch
      ]
      feed = {
        tensor: [record[name] for record in records]
        for name, tensor in self._inputs.items()
      }
      rows += zip(batch, self._session.run(self._probabilities, feed))
    said = decide(sentences, windows, rows, self.labels)
    return [found_in(s, *tagged) for s, tagged in zip(sentences, said)]

  def close(self) -> None:
    """Frees the model."""
    self._session.close()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.close()


def decide(
  sentences: Sequence[Sentence],
  windows: Sequence[ner_data.Window],
  rows: Iterable[tuple[int, np.ndarray]],
  labels: Sequence[str],
) -> list[tuple[list[str], list[float]]]:
  """The likeliest tag of each word.

  Args:
    sentences: the sentences.
    windows: of these.
    rows: number and probabilities [S, L] of each window.
    labels: the tags.

  Returns:
    For each sentence its tags and their probabilities. A word that no window
    decides is "O", for certain.
  """
  said = [(["O"] * len(s.words), [1.0] * len(s.words)) for s in sentences]
  for index, probabilities in rows:
    window = windows[index]
    tags, sure = said[window.sentence]
    for place, word in enumerate(window.words):
      if word >= 0:
        best = int(probabilities[place].argmax())
        tags[word] = labels[best]
        sure[word] = float(probabilities[place, best])
  return said


# The command line


def define_flags() -> None:
  """Defines the command line."""
  training.define_model_flags()
  training.define_text_flags()
  training.define_training_flags()
  training.define_epoch_flags()
  training.define_execution_flags()
  training.define_tpu_flags()
  flags.adopt_module_key_flags(training)  # so that --help shows them
  flags.DEFINE_string("train_file", None, "Tagged sentences to learn from.")
  flags.DEFINE_string("dev_file", None, "Tagged sentences to score on.")
  flags.DEFINE_string(
    "predict_file", None, "Sentences to tag; tags in it are not looked at."
  )
  flags.DEFINE_bool("do_train", False, "Whether to train.")
  flags.DEFINE_bool("do_eval", False, "Whether to score on --dev_file.")
  flags.DEFINE_bool("do_predict", False, "Whether to tag --predict_file.")
  flags.DEFINE_integer("train_batch_size", 32, "Windows a step of training.")
  flags.DEFINE_integer("eval_batch_size", 8, "Windows a step of scoring.")
  flags.DEFINE_integer("predict_batch_size", 8, "Windows a step of tagging.")
  flags.DEFINE_integer(
    "word_column", 1, "Column of the word, from 1, or from -1 backwards."
  )
  flags.DEFINE_integer("tag_column", -1, "Column of the tag, likewise.")
  flags.DEFINE_string(
    "delimiter",
    None,
    "Between columns, \\t for a tab; if not given, tabs or, in lines without,"
    " spaces.",
  )
  flags.DEFINE_string(
    "item_delimiter",
    None,
    "For files with a sentence a line, its words in one column and its tags in"
    " another: what is between words, \\x02 for that character.",
  )
  flags.DEFINE_enum(
    "scheme",
    "data",
    ["data", "BIO", "BIOES"],
    "Tags to learn: those of the training data, or others for the same"
    " entities.",
  )
  flags.mark_flags_as_required(["vocab_file", "bert_config_file", "output_dir"])


def main(_) -> None:
  """Does what the flags say: trains, scores, tags."""
  if not (FLAGS.do_train or FLAGS.do_eval or FLAGS.do_predict):
    raise InputError("nothing to do; give --do_train, --do_eval, --do_predict")
  for flag, action in (
    ("train_file", "do_train"),
    ("dev_file", "do_eval"),
    ("predict_file", "do_predict"),
  ):
    if FLAGS[action].value and not FLAGS[flag].value:
      raise InputError(f"--{flag} is needed with --{action}")
  config = training.load_config(FLAGS.bert_config_file)
  training.check_max_seq_length(FLAGS.max_seq_length, config, least=8)
  tokenizer = training.load_tokenizer(
    FLAGS.vocab_file, FLAGS.do_lower_case, config, FLAGS.init_checkpoint
  )
  checkpoint = training.find_model(
    FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.do_train
  )

  # Whatever is wrong with folders and data is said now, not after training.
  train_set = read_tagged("train_file") if FLAGS.do_train else []
  labels = find_labels(train_set, checkpoint)
  model = {
    "script": "run_ner",
    "labels": labels,
    "max_seq_length": FLAGS.max_seq_length,
    "do_lower_case": FLAGS.do_lower_case,
  }
  training.check_output_dir(
    FLAGS.output_dir, model, config, ["script", "labels"]
  )
  scheme = ner_data.find_scheme(labels)
  train_set = repair("train_file", train_set, scheme, labels)
  dev_set = predict_set = []
  if FLAGS.do_eval:
    dev_set = repair("dev_file", read_tagged("dev_file"), scheme, labels)
  if FLAGS.do_predict:
    predict_set = ner_data.read_sentences(FLAGS.predict_file, columns())
  tf.gfile.MakeDirs(FLAGS.output_dir)

  if FLAGS.do_train:
    training.claim_output_dir(FLAGS.output_dir, model, config, FLAGS.vocab_file)
    train(config, tokenizer, train_set, labels)
  if FLAGS.do_eval:
    said = tag("eval", config, tokenizer, dev_set, labels)
    scores = score([s.tags for s in dev_set], [tags for tags, _ in said])
    results = {f"eval_{name}": value for name, value in scores.items()}
    training.write_results(
      os.path.join(FLAGS.output_dir, "eval_results.txt"), results
    )
  if FLAGS.do_predict:
    said = tag("predict", config, tokenizer, predict_set, labels)
    write_predictions(
      os.path.join(FLAGS.output_dir, "test_predictions"), predict_set, said
    )


def columns() -> ner_data.Columns:
  """Where the flags say that words and tags stand."""

  def character(text):
    return text and text.encode().decode("unicode_escape")

  return ner_data.Columns(
    FLAGS.word_column,
    FLAGS.tag_column,
    character(FLAGS.delimiter),
    character(FLAGS.item_delimiter),
  )


def read_tagged(flag: str) -> list[Sentence]:
  """The sentences of a file that has to have tags.

  Args:
    flag: names the file.

  Returns:
    The sentences.

  Raises:
    InputError: a sentence is without tags.
  """
  sentences = ner_data.read_sentences(FLAGS[flag].value, columns())
  for sentence in sentences:
    if sentence.tags is None:
      raise InputError(
        f"{sentence.place}: has words without tags, which --{flag} needs"
      )
  return sentences


def find_labels(
  train_set: Sequence[Sentence], checkpoint: str | None
) -> list[str]:
  """The tags to learn or, of a trained model, those that it has learnt.

  Args:
    train_set: the training data, if there are any.
    checkpoint: of the trained model.

  Returns:
    "O" and the others, sorted.

  Raises:
    InputError: the trained model's folder does not say.
  """
  if not train_set:
    folder = os.path.dirname(checkpoint)
    known = training.load_model_description(FLAGS.output_dir)
    known = known or training.load_model_description(folder)
    if known.get("script") != "run_ner":
      raise InputError(
        f"{folder}: does not say which tags its model has learnt; name the"
        " --output_dir of a run of run_ner.py"
      )
    return known["labels"]
  seen = {tag for sentence in train_set for tag in sentence.tags}
  scheme = FLAGS.scheme if FLAGS.scheme != "data" else ""
  scheme = scheme or ner_data.find_scheme(seen) or "BIO"
  found, _ = ner_data.repaired(train_set, scheme)
  tags = {tag for sentence in found for tag in sentence.tags} - {"O"}
  kinds = {tag[2:] for tag in tags}
  return [
    "O",
    *sorted(
      f"{head}-{kind}" for kind in kinds for head in scheme if head != "O"
    ),
  ]


def repair(
  flag: str,
  sentences: Sequence[Sentence],
  scheme: str,
  labels: Sequence[str],
) -> list[Sentence]:
  """Sentences with tags that the model knows.

  Args:
    flag: names their file.
    sentences: the sentences.
    scheme: of the model's tags.
    labels: the model's tags.

  Returns:
    The sentences, well tagged; how many tags were not is in the log.

  Raises:
    InputError: a tag is not of the model's.
  """
  kinds = {label[2:] for label in labels if label != "O"}
  for sentence in sentences:
    for entity in ner_data.entities_of(sentence.tags):
      if entity.label not in kinds:
        raise InputError(
          f"{sentence.place}: {entity.label!r} (at"
          f" {sentence.words[entity.start]!r}) is no label of the training"
          f" data, which has {', '.join(sorted(kinds))}"
        )
  was_scheme = ner_data.find_scheme(
    tag for sentence in sentences for tag in sentence.tags
  )
  _, num_broken = ner_data.repaired(sentences, was_scheme)
  if num_broken:
    logging.warning(
      "%s: %d tags are not as %s has them, such as an I- that follows on"
      " nothing; taken as the beginning of an entity",
      FLAGS[flag].value,
      num_broken,
      was_scheme or "the data",
    )
  return ner_data.repaired(sentences, scheme)[0]


# Training and tagging


def write_windows(
  name: str,
  sentences: Sequence[Sentence],
  tokenizer: tokenization.FullTokenizer,
  labels: Sequence[str],
) -> tuple[list[ner_data.Window], str]:
  """Makes the windows of sentences, and writes their records.

  Args:
    name: of the file in --output_dir, without `.tf_record`.
    sentences: the sentences.
    tokenizer: gives the ids.
    labels: the tags.

  Returns:
    The windows and the file.
  """
  windows = list(
    ner_data.make_windows(sentences, tokenizer, FLAGS.max_seq_length)
  )
  number = {label: index for index, label in enumerate(labels)}
  path = os.path.join(FLAGS.output_dir, f"{name}.tf_record")
  tag_ids = [
    [number.get(tag, -1) for tag in s.tags] if s.tags else None
    for s in sentences
  ]
  records = [
    ner_data.window_record(
      window, index, FLAGS.max_seq_length, tag_ids[window.sentence]
    )
    for index, window in enumerate(windows)
  ]
  if FLAGS.use_tpu and name != "train":  # takes full batches alone
    records += records[:1] * (-len(records) % FLAGS[f"{name}_batch_size"].value)
  layout = ner_data.record_layout(FLAGS.max_seq_length)
  features.write_records(path, records, layout)
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
  config: modeling.BertConfig,
  labels: Sequence[str],
  num_train_steps: int,
  predict_batch_size: int | None = None,
):
  """The Estimator of the model that the flags describe.

  Args:
    config: the encoder's sizes.
    labels: the tags.
    num_train_steps: length of training; 0 where there is none.
    predict_batch_size: windows a step of tagging, where it tags.

  Returns:
    An `estimator_api.TPUEstimator`.
  """
  execution, options = training.plan_training(training.read_execution(), config)
  model_fn = model_fn_builder(
    bert_config=config,
    num_labels=len(labels),
    init_checkpoint=FLAGS.init_checkpoint,
    learning_rate=FLAGS.learning_rate,
    num_train_steps=num_train_steps,
    num_warmup_steps=int(num_train_steps * FLAGS.warmup_proportion),
    use_tpu=FLAGS.use_tpu,
    use_one_hot_embeddings=FLAGS.use_tpu,
    seed=FLAGS.seed,
    log_steps=FLAGS.log_steps,
    execution=execution,
    options=options,
  )
  return training.build_estimator(
    model_fn,
    FLAGS.output_dir,
    FLAGS.train_batch_size,
    predict_batch_size=predict_batch_size,
    tf_random_seed=FLAGS.seed,
    save_checkpoints_steps=FLAGS.save_checkpoints_steps,
  )


def train(
  config: modeling.BertConfig,
  tokenizer: tokenization.FullTokenizer,
  sentences: Sequence[Sentence],
  labels: Sequence[str],
) -> None:
  """Trains, or goes on where training was stopped.

  Args:
    config: the encoder's sizes.
    tokenizer: gives the ids.
    sentences: those of --train_file.
    labels: the tags.

  Raises:
    InputError: they are not enough for a step.
  """
  windows, path = write_windows("train", sentences, tokenizer, labels)
  num_steps = int(
    len(windows) / FLAGS.train_batch_size * FLAGS.num_train_epochs
  )
  if not num_steps:
    raise InputError(
      f"{FLAGS.train_file}: {len(windows)} windows are not enough for one step"
      f" of --train_batch_size={FLAGS.train_batch_size}"
    )
  steps_done = training.steps_done(FLAGS.output_dir)
  if training.is_trained(FLAGS.output_dir, steps_done, num_steps):
    return
  logging.info(
    "Training on %d windows, from step %d to %d, %d windows a step",
    len(windows),
    steps_done,
    num_steps,
    FLAGS.train_batch_size,
  )
  input_fn = features.record_input_fn(
    path,
    ner_data.record_layout(FLAGS.max_seq_length),
    is_training=True,
    drop_remainder=True,
    trim=not FLAGS.use_tpu,
    seed=FLAGS.seed,
    first_step=steps_done,
    by_length=FLAGS.group_by_length and not FLAGS.use_tpu,
  )
  estimator = build_estimator(config, labels, num_steps)
  estimator.train(input_fn, max_steps=num_steps)


def tag(
  name: str,
  config: modeling.BertConfig,
  tokenizer: tokenization.FullTokenizer,
  sentences: Sequence[Sentence],
  labels: Sequence[str],
) -> list[tuple[list[str], list[float]]]:
  """The model's tags of sentences; see `decide`.

  Args:
    name: what for, "eval" or "predict"; whose batch size it takes.
    config: the encoder's sizes.
    tokenizer: gives the ids.
    sentences: the sentences.
    labels: the tags.

  Returns:
    For each sentence the tags and their probabilities.
  """
  windows, path = write_windows(name, sentences, tokenizer, labels)
  input_fn = features.record_input_fn(
    path,
    ner_data.record_layout(FLAGS.max_seq_length),
    is_training=False,
    drop_remainder=FLAGS.use_tpu,
    trim=not FLAGS.use_tpu,
    by_length=not FLAGS.use_tpu,
  )
  batch_size = FLAGS[f"{name}_batch_size"].value
  rows = build_estimator(config, labels, 0, batch_size).predict(input_fn)
  rows = ((int(row["unique_ids"]), row["probabilities"]) for row in rows)
  with command_line.progress(len(windows), "windows") as bar:
    rows = (bar.update() or row for row in rows)
    return decide(sentences, windows, rows, labels)


def write_predictions(
  path: str,
  sentences: Sequence[Sentence],
  said: Sequence[tuple[Sequence[str], Sequence[float]]],
) -> None:
  """Writes the tags as columns, and the entities as JSON lines.

  Args:
    path: of both files without their endings: `.conll` gets a word and its tag
      a line, `.jsonl` a sentence with its entities, places in characters.
    sentences: the sentences.
    said: of each its tags and their probabilities.
  """
  with (
    write_whole(path + ".conll") as table,
    write_whole(path + ".jsonl") as lines,
  ):
    for sentence, (tags, probabilities) in zip(sentences, said):
      for word, word_tag in zip(sentence.words, tags):
        table.write(f"{word}\t{word_tag}\n")
      table.write("\n")
      line: Mapping[str, Any] = {
        "text": sentence.text,
        "entities": [
          found._asdict() for found in found_in(sentence, tags, probabilities)
        ],
      }
      lines.write(json.dumps(line, ensure_ascii=False) + "\n")
  logging.info("%d sentences tagged in %s.conll and .jsonl", len(said), path)


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
