"""What exported models take and give: ids or texts in, answers out.

A class for the models of each script. Its `signatures` are functions of named
tensors, made of TensorFlow's core operations alone, that do in a graph what
the script does around its model on the host. Letters in shapes are those of
`modeling`, and W windows, M masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import tensorflow as tf

import modeling
import tokenization
from bertlib.compute import FastCompute
from bertlib.data import classification, model_inputs, ner, squad_features
from bertlib.export import tf_tokenizer
from bertlib.metrics import squad_decoding

Tensors = Mapping[str, Any]


class Signature(NamedTuple):
  """A function that can be called on an exported model.

  Attributes:
    inputs: a `tf.TensorSpec` of each input.
    function: from the inputs by name to the outputs by name.
  """

  inputs: dict[str, tf.TensorSpec]
  function: Callable[[Tensors], Tensors]


class ExportedModel:
  """A model and the text around it, as operations of a graph.

  Attributes:
    main: name of the signature that is meant where none is named.
    never_split: words that the tokenizer has to leave whole.
  """

  main = "text"
  never_split: tuple[str, ...] = ()

  def __init__(
    self,
    description: Mapping[str, Any],
    config: modeling.BertConfig,
    tokenizer: tokenization.FullTokenizer | None,
    seq_length: int | None = None,
    dtype=tf.float32,
    build_model: Callable[..., Any] | None = None,
  ):
    """Takes a model.

    Args:
      description: of it, as its script wrote it.
      config: its sizes.
      tokenizer: of its texts; None where only ids can be taken.
      seq_length: S of every batch; None for any.
      dtype: see `compute.FastCompute`.
      build_model: builds the graph of a task; None for the encoder alone.
    """
    self.description = description
    self.build_model = build_model
    self.config = config
    self.tokenizer = tokenizer
    self.seq_length = seq_length
    self.max_seq_length = seq_length or description["max_seq_length"]
    self.compute = FastCompute(dtype, unpad=seq_length is None)
    self.text = tokenizer and self.graph_tokenizer(tokenizer)

  def graph_tokenizer(self, tokenizer) -> tf_tokenizer.GraphTokenizer:
    """The tokenizer as operations."""
    return tf_tokenizer.GraphTokenizer(tokenizer)

  def build(self, inputs: Tensors):
    """The graph of the model, from `model_inputs.TOKEN_FEATURES`."""
    return self.build_model(self.description, self.config, inputs, self.compute)

  def ids(self, inputs: Tensors) -> Tensors:
    """What comes out for ids."""
    raise NotImplementedError

  def signatures(self) -> dict[str, Signature]:
    """All that can be called, by name."""
    specs = self.token_specs()
    signatures = {"ids": Signature(specs, self.ids)}
    if self.text:
      signatures |= {
        "text": Signature(_texts("text_a"), lambda x: self.ids(self.encode(x))),
        "pair": Signature(
          _texts("text_a", "text_b"), lambda x: self.ids(self.encode(x))
        ),
        "tokenize": Signature(_texts("text_a", "text_b"), self.encode),
      }
    return signatures

  def token_specs(self) -> dict[str, tf.TensorSpec]:
    """Int32 [B, S] of each of `model_inputs.TOKEN_FEATURES`."""
    return {
      name: tf.TensorSpec([None, self.seq_length], tf.int32, name)
      for name in model_inputs.TOKEN_FEATURES
    }

  def encode(self, texts: Tensors) -> Tensors:
    """Ids, mask and segments of texts or pairs."""
    return self.text.encode_pairs(
      texts["text_a"],
      texts.get("text_b"),
      self.max_seq_length,
      pads=self.seq_length is not None,
    )


def _texts(*names: str) -> dict[str, tf.TensorSpec]:
  return {name: tf.TensorSpec([None], tf.string, name) for name in names}


class Encoder(ExportedModel):
  """Layer outputs, and vectors of texts."""

  def build(self, inputs, is_training: bool = False):
    """See base class; a `modeling.BertModel`."""
    unpad = self.compute.unpad and not is_training
    return modeling.BertModel(
      self.config,
      is_training,
      inputs["input_ids"],
      inputs["input_mask"],
      inputs["segment_ids"],
      compute=dataclasses.replace(self.compute, unpad=unpad),
    )

  def call(self, inputs: Tensors, is_training: bool) -> dict[str, Any]:
    """What TensorFlow Hub expects of an encoder, under its names."""
    model = self.build(self._ours(inputs), is_training)
    layers = [tf.cast(x, tf.float32) for x in model.get_all_encoder_layers()]
    pooled = tf.cast(model.get_pooled_output(), tf.float32)
    return {
      "pooled_output": pooled,
      "sequence_output": layers[-1],
      "encoder_outputs": layers,
      "default": pooled,
    }

  def token_specs(self):
    """See base class; by the names of TensorFlow Hub."""
    specs = super().token_specs()
    return {
      name: tf.TensorSpec(specs[ours].shape, tf.int32, name)
      for ours, name in model_inputs.HUB_NAMES.items()
    }

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    layers = Signature(self.token_specs(), self.layers)
    return signatures | {"layers": layers}

  def _ours(self, inputs: Tensors) -> Tensors:
    return {ours: inputs[name] for ours, name in model_inputs.HUB_NAMES.items()}

  def encode(self, texts):
    """See base class; by the names of TensorFlow Hub."""
    encoded = super().encode(texts)
    return {
      name: encoded[ours] for ours, name in model_inputs.HUB_NAMES.items()
    }

  def ids(self, inputs):
    """See base class."""
    model = self.build(self._ours(inputs))
    states = tf.cast(model.get_sequence_output(), tf.float32)
    mask = tf.cast(inputs["input_mask"], tf.float32)[:, :, tf.newaxis]
    mean = tf.reduce_sum(states * mask, 1) / tf.reduce_sum(mask, 1)
    return {
      "pooled_output": tf.cast(model.get_pooled_output(), tf.float32),
      "mean_output": mean,
      "sequence_output": states,
    }

  def layers(self, inputs: Tensors) -> Tensors:
    """All states: of the embeddings, and of each layer."""
    model = self.build(self._ours(inputs))
    states = [model.get_embedding_output(), *model.get_all_encoder_layers()]
    return {
      # [B, layers + 1, S, H]
      "all_layers": tf.cast(tf.stack(states, axis=1), tf.float32),
      "pooled_output": tf.cast(model.get_pooled_output(), tf.float32),
    }


class Classifier(ExportedModel):
  """Labels of texts."""

  def __init__(self, description, *args, **kwargs):
    """See base class."""
    super().__init__(description, *args, **kwargs)
    self.problem = classification.problem_from_description(description)
    if self.problem.kind == "multiple_choice":
      self.main = "choices"
    elif description.get("has_pairs"):
      self.main = "pair"

  def signatures(self):
    """See base class; a choice is a pair of its own."""
    signatures = super().signatures()
    if self.problem.kind != "multiple_choice":
      return signatures
    size = [None, self.problem.num_labels]
    specs = {
      name: tf.TensorSpec([*size, self.seq_length], tf.int32, name)
      for name in model_inputs.TOKEN_FEATURES
    }
    texts = {
      name: tf.TensorSpec(size, tf.string, name)
      for name in ("text_a", "text_b")
    }
    chosen = {"ids": Signature(specs, self.choose)}
    if self.text:
      chosen["choices"] = Signature(
        texts,
        lambda x: self.ids(
          self.encode({name: tf.reshape(of, [-1]) for name, of in x.items()})
        ),
      )
      chosen["tokenize"] = signatures["tokenize"]
    return chosen

  def choose(self, inputs: Tensors) -> Tensors:
    """Of ids [B, L, S]."""
    return self.ids(
      {
        name: tf.reshape(of, [-1, tf.shape(of)[-1]])
        for name, of in inputs.items()
      }
    )

  def ids(self, inputs):
    """See base class."""
    said, problem = self.build(inputs), self.problem
    if problem.kind == "regression":
      return {"score": said[:, 0]}
    if problem.kind == "multi_label":
      limits = self.description.get("thresholds", {})
      limits = [limits.get(label, 0.5) for label in problem.labels]
      return {"probabilities": said, "has_label": said >= limits}
    if problem.kind == "multiple_choice":
      said = tf.nn.softmax(tf.reshape(said, [-1, problem.num_labels]))
    best = tf.argmax(said, axis=-1)
    label = tf.gather(tf.constant(problem.labels), best)
    return {"probabilities": said, "label": label}


class MaskedLM(ExportedModel):
  """What may stand in place of [MASK]."""

  never_split = ("[MASK]",)
  top_k = 5

  def build(self, inputs):
    """See base class; log probabilities of all words, and of the order."""
    logits, order = self.build_model(
      self.config,
      is_training=False,
      batch=inputs,
      use_one_hot_embeddings=False,
      compute=self.compute,
    )
    num_masked = tf.shape(inputs["masked_lm_positions"])[1]
    logits = tf.reshape(logits, [-1, num_masked, self.config.vocab_size])
    return tf.cast(logits, tf.float32), tf.cast(order, tf.float32)

  def token_specs(self):
    """See base class; and int32 [B, P], `masked_lm_positions`."""
    name = "masked_lm_positions"
    positions = tf.TensorSpec([None, None], tf.int32, name)
    return super().token_specs() | {name: positions}

  def ids(self, inputs):
    """See base class."""
    logits, order = self.build(inputs)
    return {
      "masked_lm_probabilities": tf.nn.softmax(logits),
      "next_sentence_probabilities": tf.nn.softmax(order),
    }

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    for name in {"text", "pair"} & set(signatures):
      signatures[name] = signatures[name]._replace(function=self.fill)
    return signatures

  def encode(self, texts):
    """See base class; masks may stand close to words."""
    apart = {
      name: tf.strings.regex_replace(text, r"\[MASK\]", " [MASK] ")
      for name, text in texts.items()
    }
    return super().encode(apart)

  def fill(self, texts: Tensors) -> Tensors:
    """The likeliest tokens for each mask, [B, M, top_k]; "" where is none."""
    encoded = self.encode(texts)
    vocab = self.tokenizer.inv_vocab
    is_mask = encoded["input_ids"] == self.tokenizer.vocab["[MASK]"]
    places = tf.where(is_mask)
    places = tf.RaggedTensor.from_value_rowids(
      tf.cast(places[:, 1], tf.int32),
      places[:, 0],
      tf.shape(is_mask, tf.int64)[0],
    )
    positions = places.to_tensor(0)
    logits, _ = self.build({**encoded, "masked_lm_positions": positions})
    probabilities, ids = tf.math.top_k(tf.nn.softmax(logits), self.top_k)
    numbers = range(self.config.vocab_size)
    names = [vocab.get(index, str(index)) for index in numbers]
    is_real = tf.ones_like(places).to_tensor(0)[:, :, tf.newaxis] > 0
    tokens = tf.gather(tf.constant(names), ids)
    return {
      "tokens": tf.where(is_real, tokens, ""),
      "probabilities": tf.where(is_real, probabilities, 0.0),
    }


class Tagger(ExportedModel):
  """Tags of words; texts of any length go through in windows.

  The model gives probabilities, float32 [B, S, L].
  """

  def graph_tokenizer(self, tokenizer):
    """See base class."""
    return tf_tokenizer.GraphTokenizer(tokenizer, ner.WORD)

  def ids(self, inputs):
    """See base class."""
    return {"probabilities": self.build(inputs)}

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    if self.text:
      text = Signature(_texts("text"), self.tag)
      signatures = {"ids": signatures["ids"], "text": text}
    return signatures

  def tag(self, texts: Tensors) -> Tensors:
    """Of each word its place, its tag and how sure that is.

    Rows are filled up with -1, "" and 0. `ner.make_windows` says which
    window decides a word.
    """
    tokens = self.text.tokenize(texts["text"])
    lengths = tf.cast(tokens.ids.row_lengths(), tf.int32)
    room = self.max_seq_length - 2
    windows = tf_tokenizer.split_into_windows(
      lengths,
      tf.fill(tf.shape(lengths), room),
      tf.fill(tf.shape(lengths), max(room // 2, 1)),
    )
    ids = tf_tokenizer.gather_windows(tokens.ids, windows)
    said = self.build(self.text.join(ids, ids[:, :0], self.seq_length))

    row, start, length = windows
    end = start + length
    first = tf.where(start > 0, start + room // 4, 0)
    is_last = end == tf.gather(lengths, row)
    last = tf.where(is_last, end, start + room // 4 + room // 2)
    words = tokens.words.values
    is_first = tf.concat([words[:1] >= 0, words[1:] != words[:-1]], axis=0)
    window = tf.cast(ids.value_rowids(), tf.int32)
    place = tf.ragged.range(start, end).values
    piece = tf_tokenizer.gather_windows(
      tokens.ids.with_values(tf.range(tf.size(words))), windows
    ).values
    is_decided = tf.gather(is_first, piece)
    is_decided &= place >= tf.gather(first, window)
    is_decided &= place < tf.gather(last, window)
    column = place - tf.gather(start, window) + 1
    said = tf.gather_nd(said, tf.stack([window, column], axis=1)[is_decided])
    word = tf.gather(words, piece[is_decided])[:, tf.newaxis]
    labels = tf.constant(self.description["labels"])
    num_words = tf.size(tokens.word_starts.values)
    tags = tf.tensor_scatter_nd_update(
      tf.fill([num_words], "O"), word, tf.gather(labels, tf.argmax(said, -1))
    )
    sure = tf.tensor_scatter_nd_update(
      tf.ones([num_words]), word, tf.reduce_max(said, axis=-1)
    )
    by_text = tokens.word_starts.with_values
    return {
      "starts": tokens.word_starts.to_tensor(-1),
      "ends": tokens.word_ends.to_tensor(-1),
      "tags": by_text(tags).to_tensor(""),
      "probabilities": by_text(sure).to_tensor(0.0),
    }


class QuestionAnswering(ExportedModel):
  """Answers to questions, in passages that go through in windows.

  The model gives logits of starts and ends, float32 [B, 2, S].
  """

  n_best_size = 20
  max_answer_length = 30
  null_score_diff_threshold = 0.0

  def __init__(self, description, *args, **kwargs):
    """See base class; InputError where a question leaves no room for text."""
    super().__init__(description, *args, **kwargs)
    squad_features.check_settings(
      squad_features.WindowSettings.of_model(description)._replace(
        max_seq_length=self.max_seq_length
      )
    )

  def ids(self, inputs):
    """See base class."""
    starts, ends = tf.unstack(self.build(inputs), axis=1)
    return {"start_logits": starts, "end_logits": ends}

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    if self.text:
      text = Signature(_texts("question", "passage"), self.answer)
      signatures = {"ids": signatures["ids"], "text": text}
    return signatures

  def answer(self, texts: Tensors) -> Tensors:
    """Of each question the likeliest answer.

    Returns:
      `answer`, string [B]; `start` and `end`, its characters in the passage;
      `score`, the sum of its logits; of models that may find none, `null_odds`.
    """
    passages = self.text.tokenize(texts["passage"])
    queries = self.text.tokenize(texts["question"]).ids
    most = self.description["max_query_length"]
    queries = tf_tokenizer.truncate_rows(
      queries, tf.minimum(queries.row_lengths(), most)
    )
    before = tf.cast(queries.row_lengths(), tf.int32) + 2
    room = self.max_seq_length - before - 1
    windows = tf_tokenizer.split_into_windows(
      tf.cast(passages.ids.row_lengths(), tf.int32),
      room,
      tf.minimum(room, self.description["doc_stride"]),
    )
    row = windows.row
    encoded = self.text.join(
      tf.gather(queries, row),
      tf_tokenizer.gather_windows(passages.ids, windows),
      self.seq_length,
    )
    logits = self.build(encoded)  # [W, 2, S]
    scores, first, last = self._best_spans(
      logits, windows, tf.gather(before, row), passages.ids
    )

    # The best of each question's windows.
    num_rows = tf.shape(texts["question"])[0]
    best = tf.math.unsorted_segment_max(scores, row, num_rows)
    winner = _first_where(scores == tf.gather(best, row), row, num_rows)
    has_answer = best > tf.float32.min
    results = {"score": best}
    if self.description["version_2_with_negative"]:
      none = tf.reduce_sum(logits[:, :, 0], axis=1)
      none = tf.math.unsorted_segment_min(none, row, num_rows)
      results["null_odds"] = tf.where(
        has_answer, none - best, squad_decoding.CERTAIN_ODDS
      )
      has_answer &= results["null_odds"] <= self.null_score_diff_threshold
    first, last = (tf.gather(of, winner) for of in (first, last))
    before = tf.cast(passages.ids.row_starts(), tf.int32)
    start, end = (
      tf.where(has_answer, _values(of, before + piece), 0)
      for of, piece in ((passages.starts, first), (passages.ends, last))
    )
    # Places count the characters of what is UTF-8.
    passage = tf.strings.unicode_transcode(
      texts["passage"], "UTF-8", "UTF-8", errors="ignore"
    )
    text = tf.strings.substr(passage, start, end - start, unit="UTF8_CHAR")
    return results | {"answer": text, "start": start, "end": end}

  def _best_spans(self, logits, windows: tf_tokenizer.Windows, before, pieces):
    """The best answer of each window, as `squad_decoding` chooses.

    Args:
      logits: float32 [W, 2, S].
      windows: the windows.
      before: int32 [W], tokens before the passage in each.
      pieces: ragged [B, None], the passages.

    Returns:
      float32 [W], its score, the lowest float where there is none; int32 [W],
      its first and its last piece in the passage.
    """
    row, start, length = (of[:, tf.newaxis] for of in windows)
    column = tf.range(tf.shape(logits)[2])
    place = column - before[:, tf.newaxis]  # [W, S]
    is_text = (place >= 0) & (place < length)
    # It begins in the window that has most text around its first piece.
    around = tf.minimum(place, length - 1 - place)
    around = tf.cast(around, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    piece = tf.gather(tf.cast(pieces.row_starts(), tf.int32), row)
    piece = tf.where(is_text, piece + start + place, -1)
    num_pieces = tf.size(pieces.values) + 1
    most = tf.math.unsorted_segment_max(around, piece, num_pieces)
    number = tf.range(tf.size(windows.row))[:, tf.newaxis]
    owner = _first_where(
      around == tf.gather(most, tf.maximum(piece, 0)),
      piece,
      num_pieces,
      number + tf.zeros_like(piece),
    )
    is_own = is_text & (number == tf.gather(owner, tf.maximum(piece, 0)))

    count = tf.minimum(self.n_best_size, tf.size(column))
    least = tf.math.top_k(logits, count).values[:, :, -1:]
    allowed = tf.stack([is_own, is_text], axis=1) & (logits >= least)
    span = column - column[:, tf.newaxis]
    span = (span >= 0) & (span < self.max_answer_length)  # [S, S]
    span &= allowed[:, 0, :, tf.newaxis] & allowed[:, 1, tf.newaxis]
    scores = logits[:, 0, :, tf.newaxis] + logits[:, 1, tf.newaxis]
    scores = tf.where(span, scores, tf.float32.min)
    scores = tf.reshape(scores, [tf.shape(logits)[0], -1])  # [W, S * S]
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    first, last = best // tf.size(column), best % tf.size(column)
    to_piece = windows.start - before
    return tf.reduce_max(scores, axis=1), first + to_piece, last + to_piece


def _values(rows, places):
  """Of a ragged tensor's values those at some places; 0 beyond the last."""
  values = tf.concat([rows.values, [0]], axis=0)
  return tf.gather(values, tf.clip_by_value(places, 0, tf.size(values) - 1))


def _first_where(condition, segment, num_segments, number=None):
  """Of each segment the lowest number for which a condition holds.

  Args:
    condition: bool, any shape.
    segment: int32, of that shape; what is below 0 is of none.
    num_segments: how many there are.
    number: int32, of that shape; None for the place, in a shape of one axis.

  Returns:
    int32 [num_segments]; a high number where it holds for none.
  """
  if number is None:
    number = tf.range(tf.size(condition))
  number = tf.where(condition, number, tf.int32.max)
  return tf.math.unsorted_segment_min(number, segment, num_segments)
