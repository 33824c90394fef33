"""SavedModel signatures: from ids or raw text to predictions.

One class per script. Its `signatures` are functions of named tensors, built
from core TensorFlow operations. They do in the graph what the script does in
Python before and after the model. Shapes use the letters of `modeling`, and:
W windows, M masks, L labels.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

import tensorflow as tf

import modeling
import tokenization
from bertlib.compute.fast_compute import FastCompute
from bertlib.data import model_inputs
from bertlib.export import tf1_module, tf_tokenizer
from bertlib.settings import embedding_spec
from bertlib.tasks.classification import classification
from bertlib.tasks.ner import ner
from bertlib.tasks.squad import squad_decoding, squad_features

Tensors = Mapping[str, Any]


class Signature(NamedTuple):
  """A SavedModel signature.

  Attributes:
    inputs: a `tf.TensorSpec` per input.
    function: maps inputs by name to outputs by name.
  """

  inputs: dict[str, tf.TensorSpec]
  function: Callable[[Tensors], Tensors]


class SignatureModel:
  """Base class: a model with its tokenization and decoding in the graph.

  Attributes:
    main: name of the default signature.
    never_split: words that the tokenizer must not split.
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
    """Describes the signatures of a model.

    Args:
      description: contents of `model.json`.
      config: the model's `BertConfig`.
      tokenizer: None for a model that takes only ids.
      seq_length: fixed S of every batch; None for any.
      dtype: see `compute.FastCompute`.
      build_model: builds the graph of the task; None for only the encoder.
    """
    self.description = description
    self.build_model = build_model
    self.config = config
    self.tokenizer = tokenizer
    self.seq_length = seq_length
    self.max_seq_length = seq_length or description["max_seq_length"]
    self.compute = FastCompute(dtype, unpad=seq_length is None)
    self.text = tokenizer and self.graph_tokenizer(tokenizer)
    self._frozen: tf1_module.FrozenGraph | None = None

  def freeze(self, weight_getter: Callable[..., Any]) -> None:
    """Makes the weights constants, see `tf1_module.FrozenGraph`."""
    self._frozen = tf1_module.FrozenGraph(self.build, weight_getter)

  def graph_tokenizer(self, tokenizer) -> tf_tokenizer.GraphTokenizer:
    """The tokenizer as graph operations."""
    return tf_tokenizer.GraphTokenizer(tokenizer)

  def build(self, inputs: Tensors):
    """Builds the model's graph from `model_inputs.TOKEN_FEATURES`."""
    return self.build_model(self.description, self.config, inputs, self.compute)

  def run(self, inputs: Tensors):
    """The outputs of `build`, on any device."""
    with tf.device(None):
      return self._frozen(inputs) if self._frozen else self.build(inputs)

  def ids(self, inputs: Tensors) -> Tensors:
    """Outputs for a batch of ids."""
    raise NotImplementedError

  def signatures(self) -> dict[str, Signature]:
    """All signatures, by name."""
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
    """Specs of int32 [B, S] for each of `model_inputs.TOKEN_FEATURES`."""
    return {
      name: tf.TensorSpec([None, self.seq_length], tf.int32, name)
      for name in model_inputs.TOKEN_FEATURES
    }

  def encode(self, texts: Tensors) -> Tensors:
    """Encodes texts or pairs as ids, mask and segments."""
    return self.text.encode_pairs(
      texts["text_a"],
      texts.get("text_b"),
      self.max_seq_length,
      pads=self.seq_length is not None,
    )


def _texts(*names: str) -> dict[str, tf.TensorSpec]:
  return {name: tf.TensorSpec([None], tf.string, name) for name in names}


class EncoderOutputs(NamedTuple):
  """Outputs of an encoder, float32.

  Attributes:
    states: [B, S, H] of the embeddings and of each layer.
    pooled: [B, H].
  """

  states: list[Any]
  pooled: Any


class Encoder(SignatureModel):
  """Encoder outputs: all layers, pooled output and mean of the tokens."""

  def build(self, inputs, is_training: bool = False):
    """See base class; `EncoderOutputs`."""
    unpad = self.compute.unpad and not is_training
    model = modeling.BertModel(
      self.config,
      is_training,
      inputs["input_ids"],
      inputs["input_mask"],
      inputs["segment_ids"],
      compute=dataclasses.replace(self.compute, unpad=unpad),
    )
    states = [model.get_embedding_output(), *model.get_all_encoder_layers()]
    return EncoderOutputs(
      [tf.cast(state, tf.float32) for state in states],
      tf.cast(model.get_pooled_output(), tf.float32),
    )

  def call(self, inputs: Tensors, is_training: bool) -> dict[str, Any]:
    """Outputs of an encoder under the names of TensorFlow Hub."""
    outputs = self.build(self._token_features(inputs), is_training)
    return {
      "pooled_output": outputs.pooled,
      "sequence_output": outputs.states[-1],
      "encoder_outputs": outputs.states[1:],
      "default": outputs.pooled,
    }

  def token_specs(self):
    """See base class; with the names of TensorFlow Hub."""
    specs = super().token_specs()
    return {
      hub_name: tf.TensorSpec(specs[name].shape, tf.int32, hub_name)
      for name, hub_name in model_inputs.HUB_NAMES.items()
    }

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    layers = Signature(self.token_specs(), self.layers)
    return signatures | {"layers": layers}

  def _token_features(self, inputs: Tensors) -> Tensors:
    names = model_inputs.HUB_NAMES.items()
    return {name: inputs[hub_name] for name, hub_name in names}

  def encode(self, texts):
    """See base class; with the names of TensorFlow Hub."""
    encoded = super().encode(texts)
    names = model_inputs.HUB_NAMES.items()
    return {hub_name: encoded[name] for name, hub_name in names}

  def ids(self, inputs):
    """See base class."""
    outputs = self.run(self._token_features(inputs))
    states = outputs.states[-1]
    mask = tf.expand_dims(tf.cast(inputs["input_mask"], tf.float32), 2)
    mean = tf.reduce_sum(states * mask, 1) / tf.reduce_sum(mask, 1)
    return {
      "pooled_output": outputs.pooled,
      "mean_output": mean,
      "sequence_output": states,
    }

  def layers(self, inputs: Tensors) -> Tensors:
    """Hidden states of the embeddings and of every layer."""
    outputs = self.run(self._token_features(inputs))
    return {
      "all_layers": tf.stack(outputs.states, axis=1),  # [B, layers + 1, S, H]
      "pooled_output": outputs.pooled,
    }


class Classifier(SignatureModel):
  """Labels of texts or pairs."""

  def __init__(self, description, *args, **kwargs):
    """See base class."""
    super().__init__(description, *args, **kwargs)
    self.problem = classification.problem_from_description(description)
    if self.problem.kind == "multiple_choice":
      self.main = "choices"
    elif description.get("has_pairs"):
      self.main = "pair"

  def signatures(self):
    """See base class; for multiple choice, each choice is encoded as a pair."""
    signatures = super().signatures()
    if self.problem.kind != "multiple_choice":
      return signatures
    shape = [None, self.problem.num_labels]
    specs = {
      name: tf.TensorSpec([*shape, self.seq_length], tf.int32, name)
      for name in model_inputs.TOKEN_FEATURES
    }
    texts = {
      name: tf.TensorSpec(shape, tf.string, name)
      for name in ("text_a", "text_b")
    }
    choice_signatures = {"ids": Signature(specs, self.choose)}
    if self.text:
      choice_signatures["choices"] = Signature(
        texts,
        lambda inputs: self.ids(
          self.encode({k: tf.reshape(v, [-1]) for k, v in inputs.items()})
        ),
      )
      choice_signatures["tokenize"] = signatures["tokenize"]
    return choice_signatures

  def choose(self, inputs: Tensors) -> Tensors:
    """Multiple-choice outputs for ids [B, L, S]."""
    return self.ids(
      {k: tf.reshape(v, [-1, tf.shape(v)[-1]]) for k, v in inputs.items()}
    )

  def ids(self, inputs):
    """See base class."""
    outputs, problem = self.run(inputs), self.problem
    if problem.kind == "regression":
      return {"score": outputs[:, 0]}
    if problem.kind == "multi_label":
      thresholds = self.description.get("thresholds", {})
      thresholds = [thresholds.get(label, 0.5) for label in problem.labels]
      return {"probabilities": outputs, "has_label": outputs >= thresholds}
    if problem.kind == "multiple_choice":
      outputs = tf.nn.softmax(tf.reshape(outputs, [-1, problem.num_labels]))
    best = tf.argmax(outputs, axis=-1)
    label = tf.gather(tf.constant(problem.labels), best)
    return {"probabilities": outputs, "label": label}


class Embedder(SignatureModel):
  """Vectors of texts, with a signature for each prompt of the model."""

  main = "embed"

  def __init__(self, description, *args, **kwargs):
    """See base class."""
    super().__init__(description, *args, **kwargs)
    self.spec = embedding_spec.from_json(description["embedding"])

  def signatures(self):
    """See base class; instead of pairs, texts with a prefix."""
    signatures = {"ids": Signature(self.token_specs(), self.ids)}
    if not self.text:
      return signatures
    prefixes = {"embed": self.spec.prompt(None)}
    prefixes |= {f"embed_{k}": v for k, v in self.spec.prompts.items()}
    for name, prefix in prefixes.items():
      encode = functools.partial(self._encode_with, prefix)
      signatures[name] = Signature(
        _texts("text"), lambda inputs, encode=encode: self.ids(encode(inputs))
      )
    tokenize = functools.partial(self._encode_with, "")
    return signatures | {"tokenize": Signature(_texts("text"), tokenize)}

  def _encode_with(self, prefix: str, inputs: Tensors) -> Tensors:
    return self.encode({"text_a": tf.strings.join([prefix, inputs["text"]])})

  def ids(self, inputs):
    """See base class; float32 [B, D]."""
    return {"vectors": self.run(inputs)}


class MaskedLM(SignatureModel):
  """Top-k predictions for each [MASK]."""

  never_split = ("[MASK]",)
  top_k = 5

  def build(self, inputs):
    """See base class.

    Returns:
      Masked-LM logits, float32 [B, P, V], and next-sentence logits, float32
      [B, 2].
    """
    logits, next_sentence_logits = self.build_model(
      self.config,
      is_training=False,
      batch=inputs,
      use_one_hot_embeddings=False,
      compute=self.compute,
    )
    size = tf.shape(inputs["masked_lm_positions"])
    logits = tf.reshape(logits, [*tf.unstack(size), self.config.vocab_size])
    return (
      tf.cast(logits, tf.float32),
      tf.cast(next_sentence_logits, tf.float32),
    )

  def token_specs(self):
    """See base class; adds `masked_lm_positions`, int32 [B, P]."""
    name = "masked_lm_positions"
    positions = tf.TensorSpec([None, None], tf.int32, name)
    return super().token_specs() | {name: positions}

  def ids(self, inputs):
    """See base class."""
    logits, next_sentence_logits = self.run(inputs)
    return {
      "masked_lm_probabilities": tf.nn.softmax(logits),
      "next_sentence_probabilities": tf.nn.softmax(next_sentence_logits),
    }

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    for name in {"text", "pair"} & set(signatures):
      signatures[name] = signatures[name]._replace(function=self.fill)
    return signatures

  def encode(self, texts):
    """See base class; words may adjoin [MASK] without a space."""
    separated = {
      name: tf.strings.regex_replace(text, r"\[MASK\]", " [MASK] ")
      for name, text in texts.items()
    }
    return super().encode(separated)

  def fill(self, texts: Tensors) -> Tensors:
    """Top-k tokens and probabilities per mask, [B, M, top_k]; "", 0 padding."""
    encoded = self.encode(texts)
    vocab = self.tokenizer.inv_vocab
    is_mask = encoded["input_ids"] == self.tokenizer.vocab["[MASK]"]
    indices = tf.where(is_mask)
    positions = tf.RaggedTensor.from_value_rowids(
      tf.cast(indices[:, 1], tf.int32),
      indices[:, 0],
      tf.shape(is_mask, tf.int64)[0],
    )
    logits, _ = self.run(
      {**encoded, "masked_lm_positions": positions.to_tensor(0)}
    )
    probabilities, ids = tf.math.top_k(tf.nn.softmax(logits), self.top_k)
    entries = [vocab.get(i, str(i)) for i in range(self.config.vocab_size)]
    is_real = tf.ones_like(positions).to_tensor(0)[:, :, tf.newaxis] > 0
    tokens = tf.gather(tf.constant(entries), ids)
    return {
      "tokens": tf.where(is_real, tokens, ""),
      "probabilities": tf.where(is_real, probabilities, 0.0),
    }


class Tagger(SignatureModel):
  """Tags of words. Long texts are split into overlapping windows.

  The model outputs probabilities, float32 [B, S, L].
  """

  def graph_tokenizer(self, tokenizer):
    """See base class."""
    return tf_tokenizer.GraphTokenizer(tokenizer, ner.WORD)

  def ids(self, inputs):
    """See base class."""
    return {"probabilities": self.run(inputs)}

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    if self.text:
      text = Signature(_texts("text"), self.tag)
      signatures = {"ids": signatures["ids"], "text": text}
    return signatures

  def tag(self, texts: Tensors) -> Tensors:
    """Predicts the tag of each word.

    Each word takes its tag from one window, see `ner.make_windows`.

    Returns:
      `starts` and `ends`, int32 [B, words], character offsets padded with -1;
      `tags`, string [B, words], padded with ""; `probabilities` of the tags,
      float32 [B, words], padded with 0.
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
    probabilities = self.run(self.text.join(ids, ids[:, :0], self.seq_length))

    # A window decides the words that begin in [first, last): its middle half,
    # extended to the ends of the text.
    row, start, length = windows
    end = start + length
    first = tf.where(start > 0, start + room // 4, 0)
    is_last = end == tf.gather(lengths, row)
    last = tf.where(is_last, end, start + room // 4 + room // 2)
    words = tokens.words.values
    is_first = tf.concat([words[:1] >= 0, words[1:] != words[:-1]], axis=0)
    window = tf.cast(ids.value_rowids(), tf.int32)
    position = tf.ragged.range(start, end).values  # in the text
    piece = tf_tokenizer.gather_windows(
      tokens.ids.with_values(tf.range(tf.size(words))), windows
    ).values
    is_decided = tf.gather(is_first, piece)
    is_decided &= position >= tf.gather(first, window)
    is_decided &= position < tf.gather(last, window)
    column = position - tf.gather(start, window) + 1
    probabilities = tf.gather_nd(
      probabilities, tf.stack([window, column], axis=1)[is_decided]
    )  # [words, L]
    word = tf.gather(words, piece[is_decided])[:, tf.newaxis]
    labels = tf.constant(self.description["labels"])
    num_words = tf.size(tokens.word_starts.values)
    tags = tf.tensor_scatter_nd_update(
      tf.fill([num_words], "O"),
      word,
      tf.gather(labels, tf.argmax(probabilities, -1)),
    )
    tag_probabilities = tf.tensor_scatter_nd_update(
      tf.ones([num_words]), word, tf.reduce_max(probabilities, axis=-1)
    )
    by_text = tokens.word_starts.with_values
    return {
      "starts": tokens.word_starts.to_tensor(-1),
      "ends": tokens.word_ends.to_tensor(-1),
      "tags": by_text(tags).to_tensor(""),
      "probabilities": by_text(tag_probabilities).to_tensor(0.0),
    }


class QuestionAnswering(SignatureModel):
  """Answers to questions. Long passages are split into overlapping windows.

  The model outputs start and end logits, float32 [B, 2, S].
  """

  n_best_size = 20
  max_answer_length = 30

  def __init__(self, description, *args, **kwargs):
    """See base class; InputError if a question leaves no room for text."""
    super().__init__(description, *args, **kwargs)
    self.null_score_diff_threshold = description.get(
      "null_score_diff_threshold", 0.0
    )
    squad_features.check_settings(
      squad_features.WindowSettings.of_model(description)._replace(
        max_seq_length=self.max_seq_length
      )
    )

  def ids(self, inputs):
    """See base class."""
    starts, ends = tf.unstack(self.run(inputs), axis=1)
    return {"start_logits": starts, "end_logits": ends}

  def signatures(self):
    """See base class."""
    signatures = super().signatures()
    if self.text:
      text = Signature(_texts("question", "passage"), self.answer)
      signatures = {"ids": signatures["ids"], "text": text}
    return signatures

  def answer(self, texts: Tensors) -> Tensors:
    """Predicts the best answer to each question.

    Returns:
      `answer`, string [B]; `start` and `end`, int32 [B], character offsets in
      the passage; `score`, float32 [B], sum of the start and end logits;
      `null_odds`, float32 [B], of models trained with unanswerable questions.
    """
    passages = self.text.tokenize(texts["passage"])
    queries = self.text.tokenize(texts["question"]).ids
    max_query_length = self.description["max_query_length"]
    queries = tf_tokenizer.truncate_rows(
      queries, tf.minimum(queries.row_lengths(), max_query_length)
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
    logits = self.run(encoded)  # [W, 2, S]
    scores, first, last = self._best_spans(
      logits, windows, tf.gather(before, row), passages.ids
    )

    # The best answer over each question's windows.
    num_rows = tf.shape(texts["question"])[0]
    best = tf.math.unsorted_segment_max(scores, row, num_rows)
    winner = _first_where(scores == tf.gather(best, row), row, num_rows)
    has_answer = best > tf.float32.min
    results = {"score": best}
    if self.description["version_2_with_negative"]:
      null_score = tf.reduce_sum(logits[:, :, 0], axis=1)
      null_score = tf.math.unsorted_segment_min(null_score, row, num_rows)
      results["null_odds"] = tf.where(
        has_answer, null_score - best, squad_decoding.CERTAIN_ODDS
      )
      has_answer &= results["null_odds"] <= self.null_score_diff_threshold
    first, last = tf.gather(first, winner), tf.gather(last, winner)
    row_start = tf.cast(passages.ids.row_starts(), tf.int32)
    start, end = (
      tf.where(has_answer, _gather_values(offsets, row_start + piece), 0)
      for offsets, piece in ((passages.starts, first), (passages.ends, last))
    )
    # Offsets do not count bytes that are not UTF-8.
    passage = tf.strings.unicode_transcode(
      texts["passage"], "UTF-8", "UTF-8", errors="ignore"
    )
    text = tf.strings.substr(passage, start, end - start, unit="UTF8_CHAR")
    return results | {"answer": text, "start": start, "end": end}

  def _best_spans(self, logits, windows: tf_tokenizer.Windows, before, pieces):
    """The best answer of each window, as in `squad_decoding`.

    Args:
      logits: float32 [W, 2, S].
      windows: of the passages.
      before: int32 [W], number of tokens before the passage.
      pieces: ragged [B, None], ids of the passages.

    Returns:
      Score, float32 [W], the lowest float if there is no answer; first and last
      piece in the passage, both int32 [W].
    """
    row, start, length = (values[:, tf.newaxis] for values in windows)
    column = tf.range(tf.shape(logits)[2])
    position = column - before[:, tf.newaxis]  # [W, S], in the window
    is_text = (position >= 0) & (position < length)
    # An answer starts in the window with the most context around its start.
    context = tf.minimum(position, length - 1 - position)
    context = tf.cast(context, tf.float64) + 0.01 * tf.cast(length, tf.float64)
    piece = tf.gather(tf.cast(pieces.row_starts(), tf.int32), row)
    piece = tf.where(is_text, piece + start + position, -1)
    num_pieces = tf.size(pieces.values) + 1
    max_context = tf.math.unsorted_segment_max(context, piece, num_pieces)
    window = tf.range(tf.size(windows.row))[:, tf.newaxis]
    best_window = _first_where(
      context == tf.gather(max_context, tf.maximum(piece, 0)),
      piece,
      num_pieces,
      window + tf.zeros_like(piece),
    )
    has_max_context = is_text & (
      window == tf.gather(best_window, tf.maximum(piece, 0))
    )

    count = tf.minimum(self.n_best_size, tf.size(column))
    lowest = tf.math.top_k(logits, count).values[:, :, -1:]
    allowed = tf.stack([has_max_context, is_text], axis=1) & (logits >= lowest)
    span = column - column[:, tf.newaxis]
    span = (span >= 0) & (span < self.max_answer_length)  # [S, S]
    span &= allowed[:, 0, :, tf.newaxis] & allowed[:, 1, tf.newaxis]
    scores = logits[:, 0, :, tf.newaxis] + logits[:, 1, tf.newaxis]
    scores = tf.where(span, scores, tf.float32.min)
    num_spans = tf.size(column) ** 2
    scores = tf.reshape(scores, [tf.shape(logits)[0], num_spans])  # [W, S * S]
    best = tf.argmax(scores, axis=1, output_type=tf.int32)
    first, last = best // tf.size(column), best % tf.size(column)
    to_piece = windows.start - before
    return tf.reduce_max(scores, axis=1), first + to_piece, last + to_piece


def _gather_values(rows, indices):
  """Gathers from the flat values of a ragged tensor; 0 beyond the last."""
  values = tf.concat([rows.values, [0]], axis=0)
  return tf.gather(values, tf.clip_by_value(indices, 0, tf.size(values) - 1))


def _first_where(condition, segment, num_segments, values=None):
  """The lowest value per segment where a condition holds.

  Args:
    condition: bool, any shape.
    segment: int32, same shape; negative segments are ignored.
    num_segments: int.
    values: int32, same shape; None for indices, if the shape has one axis.

  Returns:
    int32 [num_segments]; `tf.int32.max` where the condition never holds.
  """
  if values is None:
    values = tf.range(tf.size(condition))
  values = tf.where(condition, values, tf.int32.max)
  return tf.math.unsorted_segment_min(values, segment, num_segments)
