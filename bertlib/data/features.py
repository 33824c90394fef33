"""From text to batches of numbers: encoding, TFRecords, input pipelines.

TensorFlow is imported where it is used, so that making data does not pay for
it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import google_crc32c

import tokenization
from bertlib.command_line import InputError, open_any, write_whole

# The features with a place for every token, which end in padding.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")

# TensorFlow Hub's name of each of them.
HUB_NAMES = {
  "input_ids": "input_word_ids",
  "input_mask": "input_mask",
  "segment_ids": "input_type_ids",
}


class Feature(NamedTuple):
  """How one feature of a record is laid out; for writing and for reading.

  Attributes:
    shape: of one example, () for a single value.
    is_float: float32 if true, else int64 in files and int32 in tensors.
    default: what a record without this feature has, or None where each record
      must have it.
    limit: of integers, which have to be in [0, limit); None for any. Only
      `record_check` and `range_mark` look at it.
  """

  shape: tuple[int, ...] = ()
  is_float: bool = False
  default: float | None = None
  limit: int | None = None


# A layout of records: features by name.
Layout = Mapping[str, Feature]


def token_layout(max_seq_length: int) -> dict[str, Feature]:
  """The layout of `TOKEN_FEATURES`, each `max_seq_length` long."""
  return {name: Feature((max_seq_length,)) for name in TOKEN_FEATURES}


def pretraining_layout(
  max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, Feature]:
  """The layout of pretraining records.

  Args:
    max_seq_length: S, tokens of an example.
    max_predictions_per_seq: P, places for its masks.

  Returns:
    What `write_records` and `parse_records` take.
  """
  masks = (max_predictions_per_seq,)
  return token_layout(max_seq_length) | {
    "masked_lm_positions": Feature(masks),
    "masked_lm_ids": Feature(masks),
    "masked_lm_weights": Feature(masks, is_float=True),
    "next_sentence_labels": Feature((1,)),
  }


# Text to ids


def split_pair(text: str) -> tuple[str, str | None]:
  """The two texts before and after the last " ||| ", or one and None."""
  text_a, separator, text_b = text.rpartition(" ||| ")
  return (text_a, text_b) if separator else (text, None)


class EncodedPair(NamedTuple):
  """A text or a pair of texts as the model takes it.

  Attributes:
    input_ids: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], padded with 0.
    input_mask: 1 at tokens, 0 at padding.
    segment_ids: 1 at the tokens of B and its [SEP], else 0.
    num_cut: tokens that did not fit.
  """

  input_ids: list[int]
  input_mask: list[int]
  segment_ids: list[int]
  num_cut: int


def encode_pair(
  tokenizer: tokenization.FullTokenizer,
  text_a: str,
  text_b: str | None,
  max_seq_length: int,
) -> EncodedPair:
  """Encodes one text, or two, in `max_seq_length` places.

  Args:
    tokenizer: gives the ids.
    text_a: the first text.
    text_b: the second; None, or a text without tokens, for none.
    max_seq_length: length of the result, in tokens.

  Returns:
    An `EncodedPair`.

  Raises:
    InputError: `max_seq_length` has no room for [CLS] and [SEP].
  """
  if max_seq_length < 2:
    raise InputError(f"max_seq_length={max_seq_length}: has to be 2 at least")
  ids_a = tokenizer.encode(text_a)
  ids_b = tokenizer.encode(text_b) if text_b else []
  room = max_seq_length - (3 if ids_b else 2)
  keep_a, keep_b = fit_pair(len(ids_a), len(ids_b), room)
  num_cut = len(ids_a) - keep_a + len(ids_b) - keep_b
  cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
  first = [cls, *ids_a[:keep_a], sep]
  second = [*ids_b[:keep_b], sep] if keep_b else []
  used = len(first) + len(second)
  padding = [0] * (max_seq_length - used)
  return EncodedPair(
    first + second + padding,
    [1] * used + padding,
    [0] * len(first) + [1] * len(second) + padding,
    num_cut,
  )


class Lengths(NamedTuple):
  """How long the examples of a data set are, in tokens.

  Attributes:
    num_tokens: of each example, those that the model sees.
    limit: the most that it can see.
    num_cut: of each example, those that did not fit.
  """

  num_tokens: list[int]
  limit: int
  num_cut: list[int]


def fit_pair(length_a: int, length_b: int, room: int) -> tuple[int, int]:
  """Cuts the longer of two texts until both fit; of equal ones the second.

  Args:
    length_a: of the first, in tokens.
    length_b: of the second.
    room: tokens in all.

  Returns:
    How many tokens of each stay.
  """
  room = max(room, 0)
  keep_b = min(length_b, max(room // 2, room - length_a))
  return min(length_a, room - keep_b), keep_b


def _truncate_seq_pair(
  tokens_a: list[Any], tokens_b: list[Any], max_length: int
) -> None:
  """Truncates two lists in place as `fit_pair` says."""
  keep_a, keep_b = fit_pair(len(tokens_a), len(tokens_b), max_length)
  del tokens_a[keep_a:]
  del tokens_b[keep_b:]


# Records


def write_records(
  path: str, rows: Iterable[Mapping[str, Any]], layout: Layout
) -> int:
  """Writes examples as a TFRecord file, whole or not at all.

  Args:
    path: the file.
    rows: one mapping an example, with a value or a list for each feature of
      the layout.
    layout: what to write.

  Returns:
    How many were written.
  """
  return write_serialized(path, map(record_encoder(layout), rows))


def write_serialized(path: str, records: Iterable[bytes]) -> int:
  """Writes the bytes of records as a TFRecord file, whole or not at all.

  `tf.io.TFRecordWriter` writes the same.

  Args:
    path: the file.
    records: what `record_encoder` makes.

  Returns:
    How many were written.
  """
  count = 0
  with write_whole(path, "wb") as file:
    for record in records:
      file.write(framed(record))
      count += 1
  return count


def framed(record: bytes) -> bytes:
  """A record as it stands in a TFRecord file: with length and checksums."""
  length = len(record).to_bytes(8, "little")
  return length + _checksum(length) + record + _checksum(record)


def read_framed(path: str) -> Iterator[bytes | None]:
  """The records of a TFRecord file; None for a corrupt one, which ends it."""
  with open_any(path, "rb") as file:
    while start := file.read(12):
      length = start[:8]
      if _checksum(length) != start[8:]:
        yield None
        return
      size = int.from_bytes(length, "little")
      record, checksum = file.read(size), file.read(4)
      if len(record) < size or _checksum(record) != checksum:
        yield None
        return
      yield record


def _checksum(data: bytes) -> bytes:
  """TFRecord's: CRC-32C, rotated by 15 bits and with a number added."""
  crc = google_crc32c.value(data)
  rotated = crc >> 15 | crc << 17
  return (rotated + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def record_encoder(layout: Layout) -> Callable[[Mapping[str, Any]], bytes]:
  """A function that serializes examples of one layout.

  It gives the bytes of a `tf.train.Example` with its features in the order of
  their names, in a tenth of the time and without TensorFlow.

  Args:
    layout: the features.

  Returns:
    A function of a mapping with a value or a list for each feature; or with
    bytes, the `varint`s of its values.
  """
  varints = _Varints()
  in_order = sorted(layout.items())

  # In a protocol buffer each message stands behind a tag and its length.
  def field(tag, content):
    return bytes([tag]) + varints[len(content)] + content

  @functools.cache
  def entry_start(name, is_float, size):
    """All of an entry that comes before the `size` bytes of its values."""
    values = field(0x0A, bytes(size)) if size else b""
    one_of = field(0x12 if is_float else 0x1A, values)
    entry = field(0x0A, name.encode()) + field(0x12, one_of)
    return field(0x0A, entry)[: -size or None]

  def encode(row):
    entries = []
    for name, feature in in_order:
      value = row[name]
      values = [value] if feature.shape == () else value
      if isinstance(values, bytes):
        content = values
      elif feature.is_float:
        content = struct.pack(f"<{len(values)}f", *values)
      else:
        content = varints.encode(values)
      entries += entry_start(name, feature.is_float, len(content)), content
    return field(0x0A, b"".join(entries))

  return encode


class _Varints(dict):
  """int -> its `varint`; remembers most."""

  def encode(self, values):
    """The bytes of several numbers; quickly where all are below 128."""
    try:
      content = bytes(values)  # which needs numbers below 256
      if content.isascii():
        return content
    except (TypeError, ValueError):
      pass
    return b"".join(map(self.__getitem__, values))

  def __missing__(self, number):
    encoded = varint(number)
    if 0 <= number < 2**18:  # a vocabulary's worth
      self[number] = encoded
    return encoded


def varint(number: int) -> bytes:
  """An integer as protocol buffers encode it: seven bits a byte, low first."""
  rest = int(number) & 0xFFFFFFFFFFFFFFFF  # as two's complement
  encoded = bytearray()
  while rest > 0x7F:
    encoded.append(rest & 0x7F | 0x80)
    rest >>= 7
  encoded.append(rest)
  return bytes(encoded)


def count_records(path: str) -> int:
  """Counts the records of a TFRecord file by its lengths alone.

  Args:
    path: the file.

  Returns:
    How many whole records it has.

  Raises:
    InputError: the file ends in the middle of a record, or has none.
  """
  with open_any(path, "rb") as file:
    file.seek(0, 2)
    end = file.tell()
    count = position = 0
    while position < end:
      file.seek(position)
      start = file.read(12)
      if len(start) == 12 and _checksum(start[:8]) != start[8:]:
        raise InputError(
          f"{path}: record {count} (the first is 0) is corrupt, or this is no"
          " TFRecord file. Copy or make the file again"
        )
      # A record is its length, the length's checksum, itself, its checksum.
      position += 8 + 4 + int.from_bytes(start[:8], "little") + 4
      if position > end:
        raise InputError(
          f"{path}: cut off at byte {end}, in record {count + 1}. Make the"
          " file again"
        )
      count += 1
  if not count:
    raise InputError(f"{path}: holds no records. Make the file again")
  return count


def with_limits(layout: Layout, limits: Mapping[str, int]) -> Layout:
  """A layout whose integers have upper limits, exclusive, by name."""
  return {
    name: feature._replace(limit=limits.get(name, feature.limit))
    for name, feature in layout.items()
  }


def range_mark(batch: Mapping[str, Any], layout: Layout):
  """Marks a batch with values out of range, which may fail nowhere else.

  An id that has no embedding may give zeros without an error. What the mark is
  added to is computed on the model's device, so that reading stays as fast.

  Args:
    batch: int32 by name.
    layout: has the limits; see `Feature`.

  Returns:
    float32 []: 0, or NaN where a value is out of its range.
  """
  import tensorflow as tf

  is_bad = [
    tf.reduce_any((batch[name] < 0) | (batch[name] >= feature.limit))
    for name, feature in layout.items()
    if feature.limit is not None and name in batch
  ]
  return tf.where(tf.reduce_any(tf.stack(is_bad)), float("nan"), 0.0)


def parse_records(serialized, layout: Layout) -> dict[str, Any]:
  """Reads a batch of records.

  Args:
    serialized: string [B].
    layout: what they hold.

  Returns:
    By name, a tensor [B, ...] of int32 (which is what a TPU has) or float32.
  """
  import tensorflow as tf

  def fixed_length(feature):
    return tf.io.FixedLenFeature(
      feature.shape,
      tf.float32 if feature.is_float else tf.int64,
      feature.default,
    )

  parsed = tf.io.parse_example(
    serialized, {name: fixed_length(f) for name, f in layout.items()}
  )
  return narrow_integers(parsed)


def narrow_integers(tensors: Mapping[str, Any]) -> dict[str, Any]:
  """Casts int64 tensors to int32, the only integers that a TPU has."""
  import tensorflow as tf

  return {
    name: tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tensor
    for name, tensor in tensors.items()
  }


# Input pipelines


def record_input_fn(
  input_file: str,
  layout: Layout,
  is_training: bool,
  drop_remainder: bool,
  trim: bool = False,
  seed: int = 0,
  first_step: int = 0,
  by_length: bool = False,
):
  """An `input_fn` over a TFRecord file of a fine-tuning task.

  Args:
    input_file: the file.
    layout: what its records hold.
    is_training: whether examples are shuffled and repeated without end.
    drop_remainder: whether a last, smaller batch is left out.
    trim: whether padding common to a batch is cut off; not for a TPU.
    seed: of the shuffling.
    first_step: steps already done, where training goes on.
    by_length: whether batches are of examples of like length. In training that
      is a choice of who meets whom; else see `in_order`.

  Returns:
    A function of `params`, which has the `batch_size`; where it has a
    `traced_step` too, training's batches come from that step on, whole and with
    the `record_file` and `record_number` of each example, see `record_places`.

  Raises:
    InputError: the file is cut off or empty.
  """
  num_records = count_records(input_file)

  def input_fn(params):
    batch_size, shard = whole_batch(params)
    traced_step = params.get("traced_step")
    if is_training:
      step = first_step if traced_step is None else traced_step
      return shuffled_record_batches(
        input_file,
        layout,
        batch_size,
        trim,
        num_records,
        seed,
        first_record=step * batch_size,
        by_length=by_length,
        shard=shard if traced_step is None else None,
        with_places=traced_step is not None,
      )
    return record_batches(
      input_file, layout, batch_size, drop_remainder, trim, by_length, shard
    )

  return input_fn


def record_batches(
  files: str | Sequence[str],
  layout: Layout,
  batch_size: int,
  drop_remainder: bool,
  trim: bool,
  by_length: bool = False,
  shard: Shard | None = None,
):
  """A dataset of batches, in the order of the files.

  Args:
    files: TFRecord files.
    layout: what their records hold.
    batch_size: B, examples.
    drop_remainder: whether a last, smaller batch is left out.
    trim: whether padding common to a batch is cut, see `trim_padding`.
    by_length: whether the records are sorted, some thousands at a time, the
      longest first, which leaves little padding; see `in_order`.
    shard: what is read of each batch, all of which are whole; None for all.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  import tensorflow as tf

  records = tf.data.TFRecordDataset(files)
  if not by_length:
    return _batches(records, layout, batch_size, drop_remainder, trim, shard)

  def sort(places, block):
    order = tf.argsort(-_num_tokens(block, layout), stable=True)
    places = tf.cast(tf.gather(places, order), tf.int32)
    return places, tf.gather(block, order)

  places = records.enumerate().batch(2**13).map(sort).unbatch()
  return _batches(places, layout, batch_size, drop_remainder, trim, shard)


def in_order(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
  """Puts what comes of sorted records back into the order of the files.

  Args:
    rows: each with the `place` of its record, which `record_batches` adds to
      the features of those that it sorts; rows without are in order.

  Yields:
    The rows, by their places from 0 on.
  """
  waiting: dict[int, Mapping[str, Any]] = {}
  next_place = 0
  for row in rows:
    if "place" not in row:
      yield row
      continue
    waiting[int(row["place"])] = row
    while next_place in waiting:
      yield waiting.pop(next_place)
      next_place += 1


def shuffled_record_batches(
  files: str | Sequence[str],
  layout: Layout,
  batch_size: int,
  trim: bool,
  num_records: int,
  seed: int,
  first_record: int = 0,
  by_length: bool = False,
  shard: Shard | None = None,
  with_places: bool = False,
):
  """An endless dataset of batches in shuffled order, see `shuffle_epochs`.

  Args:
    files: TFRecord files.
    layout: what their records hold.
    batch_size: B, examples.
    trim: whether padding common to a batch is cut, see `trim_padding`.
    num_records: how many records the files have together.
    seed: fixes the order.
    first_record: records already done, where training goes on.
    by_length: whether batches are of like lengths, see `group_by_length`.
    shard: what is read of each batch; None for all.
    with_places: whether the features have `record_file` and
      `record_number` too, see `record_places`.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  import tensorflow as tf

  def group(order, epoch, records):
    lengths = _num_tokens(records[-1] if with_places else records, layout)
    return group_by_length(order, lengths, batch_size, seed, epoch)

  records = tf.data.TFRecordDataset(files)
  if with_places:
    names = [files] if isinstance(files, str) else files
    records = tf.data.Dataset.from_tensor_slices(names).flat_map(record_places)
  records = shuffle_epochs(
    records, num_records, seed, first_record, group if by_length else None
  )
  return _batches(records, layout, batch_size, True, trim, shard)


def streamed_record_batches(
  files: Sequence[str],
  layout: Layout,
  batch_size: int,
  trim: bool,
  num_records: int,
  seed: int,
  first_record: int = 0,
  shard: Shard | None = None,
  with_places: bool = False,
):
  """An endless dataset of batches in streamed order, see `stream_epochs`.

  Args:
    files: TFRecord files.
    layout: what their records hold.
    batch_size: B, examples.
    trim: whether padding common to a batch is cut, see `trim_padding`.
    num_records: how many records the files have together.
    seed: fixes the order.
    first_record: records already done, where training goes on.
    shard: what is read of each batch; None for all.
    with_places: whether the features have `record_file` and
      `record_number` too, see `record_places`.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  records = stream_epochs(
    files, num_records, seed, first_record, with_places=with_places
  )
  return _batches(records, layout, batch_size, True, trim, shard)


def record_places(file):
  """A dataset of a file's records and where each of them is.

  Args:
    file: string [], a TFRecord file.

  Returns:
    A `tf.data.Dataset` of the file's name, string []; the record's number in
    it, from 0, int64 []; and the record, string [].
  """
  import tensorflow as tf

  records = tf.data.TFRecordDataset(file).enumerate()
  return records.map(lambda number, record: (file, number, record))


def _num_tokens(serialized, layout: Layout):
  """Of each record how many tokens it has: int32 [A]."""
  import tensorflow as tf

  mask = {"input_mask": layout["input_mask"]}
  tokens = tf.reduce_sum(parse_records(serialized, mask)["input_mask"], axis=-1)
  if tokens.shape.rank > 1:  # the longest choice of an example
    tokens = tf.reduce_max(tokens, axis=1)
  return tokens


class Shard(NamedTuple):
  """The rows of each batch that a process reads, and its replicas share.

  Attributes:
    index: the process's number, from 0.
    count: how many processes there are.
    num_replicas: parts that its rows come in, batches by themselves.
  """

  index: int = 0
  count: int = 1
  num_replicas: int = 1

  def split(self, records, batch_size: int):
    """The parts of this process: [num_replicas, rows of a part, ...].

    Args:
      records: [batch_size, ...], a whole batch.
      batch_size: a multiple of the number of all replicas.
    """
    import tensorflow as tf

    rows = batch_size // self.count
    own = records[self.index * rows :][:rows]
    return tf.reshape(
      own, [self.num_replicas, rows // self.num_replicas, *own.shape[1:]]
    )

  def example_numbers(self, place, batch_size: int):
    """The examples in a part, by their numbers over all epochs.

    Args:
      place: int64 [], the part's number, over all steps.
      batch_size: of whole batches.

    Returns:
      int64 [rows of a part].
    """
    import tensorflow as tf

    step, part = place // self.num_replicas, place % self.num_replicas
    rows = batch_size // (self.count * self.num_replicas)
    first = step * batch_size + (self.index * self.num_replicas + part) * rows
    return first + tf.range(rows, dtype=tf.int64)


def share_batches(batches, num_replicas: int):
  """Cuts batches into equal parts.

  Args:
    batches: a `tf.data.Dataset` of feature dictionaries.
    num_replicas: parts of a batch.

  Returns:
    A dataset of the parts, those of a batch one after the other, each with the
    number of examples in the batch, int32 []. Its last example is repeated
    where they do not go up.
  """
  import tensorflow as tf

  def cut(batch):
    size = tf.shape(next(iter(batch.values())))[0]
    rows = -(-size // num_replicas)
    index = tf.minimum(tf.range(rows * num_replicas), size - 1)
    index = tf.reshape(index, [num_replicas, rows])
    parts = {name: tf.gather(tensor, index) for name, tensor in batch.items()}
    return tf.data.Dataset.from_tensor_slices(
      (parts, tf.fill([num_replicas], size))
    )

  return batches.flat_map(cut).prefetch(tf.data.AUTOTUNE)


def whole_batch(params: Mapping[str, Any]) -> tuple[int, Shard | None]:
  """How large a batch of all processes is, and what is read of it here.

  Args:
    params: of an `input_fn`. Its `batch_size` is of all processes, but on a
      TPU, whose hosts each get their own.

  Returns:
    The size, and the shard; None for all of it.
  """
  if "context" not in params:
    return params["batch_size"], params.get("shard")
  _, index, count, _ = params["context"].current_input_fn_deployment()
  shard = Shard(index, count) if count > 1 else None
  return params["batch_size"] * count, shard


def _batches(
  records, layout, batch_size, drop_remainder, trim, shard: Shard | None = None
):
  """Batches of serialized records, or of those with their places."""
  import tensorflow as tf

  def parse(*batch):
    *place, serialized = batch
    names = ["record_file", "record_number"] if len(place) == 2 else ["place"]
    return parse_records(serialized, layout) | dict(zip(names, place))

  batches = records.batch(batch_size, drop_remainder=drop_remainder)
  if shard:

    def parts(*batch):
      own = tuple(shard.split(tensor, batch_size) for tensor in batch)
      return tf.data.Dataset.from_tensor_slices(own)

    batches = batches.flat_map(parts)
  batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
  if trim:
    batches = batches.map(trim_padding, num_parallel_calls=tf.data.AUTOTUNE)
  return batches.prefetch(tf.data.AUTOTUNE)


def shuffle_epochs(
  dataset, num_elements: int, seed: int, first_element=0, reorder=None
):
  """Repeats a dataset without end, each epoch in an order of its own.

  Every order is equally likely, however the elements come, and the order of an
  epoch is a function of the seed and the epoch's number: training that goes on
  in the middle sees what it would have seen. All elements are held in memory.

  Args:
    dataset: a `tf.data.Dataset`.
    num_elements: how many it has.
    seed: a number.
    first_element: how many elements, over the epochs, are already done.
    reorder: None, or what makes another order, int32 [num_elements], of the
      shuffled one, the epoch's number and all elements.

  Returns:
    The endless `tf.data.Dataset`.
  """
  import tensorflow as tf

  first_epoch, done = divmod(first_element, num_elements)

  def shuffle(epoch, elements):
    order = tf.random.experimental.stateless_shuffle(
      tf.range(num_elements), seed=tf.stack([tf.cast(seed, tf.int64), epoch])
    )
    if reorder is not None:
      order = reorder(order, epoch, elements)
    return tf.data.Dataset.from_tensor_slices(
      tf.nest.map_structure(lambda tensor: tf.gather(tensor, order), elements)
    )

  epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
  all_elements = dataset.batch(num_elements).repeat()
  return (
    tf.data.Dataset.zip((epochs, all_elements)).flat_map(shuffle).skip(done)
  )


def group_by_length(
  order, lengths, batch_size: int, seed: int, epoch, num_batches: int = 32
):
  """Changes a random order so that batches are of examples of like length.

  Examples are sorted within stretches of some batches; the batches then come
  in random order. What is left over at both ends of an epoch, and meets the
  epochs before and after it in a batch, stays as it is.

  Args:
    order: int32 [A], the examples' numbers in random order.
    lengths: int32 [A], of the examples by number, in tokens.
    batch_size: B, examples.
    seed: fixes, with the epoch, the order of the batches.
    epoch: int64 [], its number.
    num_batches: batches in a stretch.

  Returns:
    int32 [A], another order of the same numbers.
  """
  import tensorflow as tf

  num_examples = tf.size(order)
  before = epoch * tf.cast(num_examples, tf.int64)  # fills whole batches, or so
  first = tf.cast(-before % batch_size, tf.int32)
  last = first + (num_examples - first) // batch_size * batch_size
  inner = order[first:last]
  stretch = tf.range(tf.size(inner)) // (num_batches * batch_size)
  longest = tf.reduce_max(lengths)
  key = stretch * (longest + 1) + tf.gather(lengths, inner)
  inner = tf.gather(inner, tf.argsort(key, stable=True))
  seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
  batches = tf.random.experimental.stateless_shuffle(
    tf.reshape(inner, [-1, batch_size]), tf.random.fold_in(seeds, 1)
  )
  return tf.concat(
    [order[:first], tf.reshape(batches, [-1]), order[last:]], axis=0
  )


def stream_epochs(
  files: Sequence[str],
  num_records: int,
  seed: int,
  first_record: int = 0,
  num_open: int = 16,
  block_size: int = 2**15,
  with_places: bool = False,
):
  """Repeats files of records without end, each epoch in an order of its own.

  For more records than memory holds. An epoch reads the files in random order,
  `num_open` at once and a record of each in turn, and shuffles what comes in
  blocks, a few of which are in memory. As in `shuffle_epochs`, the order is a
  function of the seed and the epoch's number.

  Args:
    files: TFRecord files.
    num_records: how many records they have together.
    seed: a number.
    first_record: how many records, over the epochs, are already done.
    num_open: files read at once.
    block_size: records shuffled together.
    with_places: whether to tell where each is, see `record_places`.

  Returns:
    The endless `tf.data.Dataset` of serialized records.
  """
  import tensorflow as tf

  first_epoch, done = divmod(first_record, num_records)
  blocks_done, done_in_block = divmod(done, block_size)

  def read_epoch(epoch):
    seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
    records = tf.data.Dataset.from_tensor_slices(
      tf.random.experimental.stateless_shuffle(tf.constant(files), seeds)
    ).interleave(
      record_places if with_places else tf.data.TFRecordDataset,
      cycle_length=num_open,
    )
    first_block = tf.where(epoch == first_epoch, blocks_done, 0)
    first_block = tf.cast(first_block, tf.int64)
    blocks = records.skip(first_block * block_size).batch(block_size)
    return (
      blocks.prefetch(1)
      .enumerate(first_block)
      .flat_map(
        lambda number, block: tf.data.Dataset.from_tensor_slices(
          tf.nest.map_structure(
            lambda tensor: tf.random.experimental.stateless_shuffle(
              tensor, tf.random.fold_in(seeds, number)
            ),
            block,
          )
        )
      )
    )

  epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
  return epochs.flat_map(read_epoch).skip(done_in_block)


def trim_padding(features: dict[str, Any], multiple: int = 8) -> dict[str, Any]:
  """Cuts off the padding that all rows of a batch have in common.

  What the model computes for tokens does not depend on it. Lengths are rounded
  up, since each new shape costs the library a compilation.

  Args:
    features: with `input_mask` int32 [B, S], or [B, C, S] where an example has
      choices.
    multiple: of which the new length is, as far as S allows.

  Returns:
    The features, those of `TOKEN_FEATURES` as [..., S'] (and `input_type_ids`,
    which is what extract_features.py calls segment ids), and `label_ids` too
    where tokens have labels.
  """
  import tensorflow as tf

  mask = features["input_mask"]
  rows = tf.reshape(mask, [-1, tf.shape(mask)[-1]])
  used = tf.where(tf.reduce_any(rows > 0, axis=0))[:, 0]  # places with tokens
  length = tf.reduce_max(tf.concat([used, [0]], axis=0)) + 1
  length = (length + multiple - 1) // multiple * multiple
  names = [
    name for name in (*TOKEN_FEATURES, "input_type_ids") if name in features
  ]
  labels = features.get("label_ids")
  if labels is not None and labels.shape.rank == 2 and labels.dtype.is_integer:
    names.append("label_ids")
  return features | {name: features[name][..., :length] for name in names}
