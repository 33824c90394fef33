"""Records to batches: parsing, shuffling, bucketing, sharding, trimming."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bertlib.data import model_inputs, tf_records


def with_limits(
  layout: tf_records.Layout, limits: Mapping[str, int]
) -> tf_records.Layout:
  """A layout whose integers have upper limits, exclusive, by name."""
  return {
    name: feature._replace(limit=limits.get(name, feature.limit))
    for name, feature in layout.items()
  }


def range_mark(batch: Mapping[str, Any], layout: tf_records.Layout):
  """Marks a batch with values out of range, which may fail nowhere else.

  An id that has no embedding may give zeros without an error. What the mark is
  added to is computed on the model's device, so that reading stays as fast.

  Args:
    batch: int32 by name.
    layout: has the limits; see `Feature`.

  Returns:
    float32 []: 0, or NaN where a value is out of its range.
  """
  is_bad = [
    tf.reduce_any((batch[name] < 0) | (batch[name] >= feature.limit))
    for name, feature in layout.items()
    if feature.limit is not None and name in batch
  ]
  return tf.where(tf.reduce_any(tf.stack(is_bad)), float("nan"), 0.0)


def parse_records(serialized, layout: tf_records.Layout) -> dict[str, Any]:
  """Reads a batch of records.

  Args:
    serialized: string [B].
    layout: what they hold.

  Returns:
    By name, a tensor [B, ...] of int32 (which is what a TPU has) or float32.
  """

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
  return {
    name: tf.cast(tensor, tf.int32) if tensor.dtype == tf.int64 else tensor
    for name, tensor in tensors.items()
  }


# Input pipelines


def record_input_fn(
  input_file: str,
  layout: tf_records.Layout,
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
      is a choice of who meets whom; else see `restore_input_order`.

  Returns:
    A function of `params`, which has the `batch_size`; where it has a
    `traced_step` too, training's batches come from that step on, whole and with
    the `record_file` and `record_number` of each example, see
    `records_with_source`.

  Raises:
    InputError: the file is cut off or empty.
  """
  num_records = tf_records.count_records(input_file)

  def input_fn(params):
    batch_size, shard = global_batch_size_and_shard(params)
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
        with_source=traced_step is not None,
      )
    return record_batches(
      input_file, layout, batch_size, drop_remainder, trim, by_length, shard
    )

  return input_fn


def record_batches(
  files: str | Sequence[str],
  layout: tf_records.Layout,
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
      longest first, which leaves little padding; see `restore_input_order`.
    shard: what is read of each batch, all of which are whole; None for all.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  records = tf.data.TFRecordDataset(files)
  if not by_length:
    return _batches(records, layout, batch_size, drop_remainder, trim, shard)

  def sort(places, block):
    order = tf.argsort(-_num_tokens(block, layout), stable=True)
    places = tf.cast(tf.gather(places, order), tf.int32)
    return places, tf.gather(block, order)

  places = records.enumerate().batch(2**13).map(sort).unbatch()
  return _batches(places, layout, batch_size, drop_remainder, trim, shard)


def shuffled_record_batches(
  files: str | Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  trim: bool,
  num_records: int,
  seed: int,
  first_record: int = 0,
  by_length: bool = False,
  shard: Shard | None = None,
  with_source: bool = False,
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
    with_source: whether the features have `record_file` and
      `record_number` too, see `records_with_source`.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """

  def group(order, epoch, records):
    lengths = _num_tokens(records[-1] if with_source else records, layout)
    return group_by_length(order, lengths, batch_size, seed, epoch)

  records = tf.data.TFRecordDataset(files)
  if with_source:
    names = [files] if isinstance(files, str) else files
    records = tf.data.Dataset.from_tensor_slices(names).flat_map(
      records_with_source
    )
  records = shuffle_epochs(
    records, num_records, seed, first_record, group if by_length else None
  )
  return _batches(records, layout, batch_size, True, trim, shard)


def streamed_record_batches(
  files: Sequence[str],
  layout: tf_records.Layout,
  batch_size: int,
  trim: bool,
  num_records: int,
  seed: int,
  first_record: int = 0,
  shard: Shard | None = None,
  with_source: bool = False,
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
    with_source: whether the features have `record_file` and
      `record_number` too, see `records_with_source`.

  Returns:
    A `tf.data.Dataset` of feature dictionaries.
  """
  records = stream_epochs(
    files, num_records, seed, first_record, with_source=with_source
  )
  return _batches(records, layout, batch_size, True, trim, shard)


def records_with_source(file):
  """A dataset of a file's records and where each of them is.

  Args:
    file: string [], a TFRecord file.

  Returns:
    A `tf.data.Dataset` of the file's name, string []; the record's number in
    it, from 0, int64 []; and the record, string [].
  """
  records = tf.data.TFRecordDataset(file).enumerate()
  return records.map(lambda number, record: (file, number, record))


def _num_tokens(serialized, layout: tf_records.Layout):
  """Of each record how many tokens it has: int32 [A]."""
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
    step, part = place // self.num_replicas, place % self.num_replicas
    rows = batch_size // (self.count * self.num_replicas)
    first = step * batch_size + (self.index * self.num_replicas + part) * rows
    return first + tf.range(rows, dtype=tf.int64)


def split_batches(batches, num_replicas: int):
  """Cuts batches into equal parts.

  Args:
    batches: a `tf.data.Dataset` of feature dictionaries.
    num_replicas: parts of a batch.

  Returns:
    A dataset of the parts, those of a batch one after the other, each with the
    number of examples in the batch, int32 []. Its last example is repeated
    where they do not go up.
  """

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


def global_batch_size_and_shard(
  params: Mapping[str, Any],
) -> tuple[int, Shard | None]:
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

  def parse(*batch):
    *place, serialized = batch
    names = (
      ["record_file", "record_number"] if len(place) == 2 else ["input_index"]
    )
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
  with_source: bool = False,
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
    with_source: whether to tell where each is, see `records_with_source`.

  Returns:
    The endless `tf.data.Dataset` of serialized records.
  """
  first_epoch, done = divmod(first_record, num_records)
  blocks_done, done_in_block = divmod(done, block_size)

  def read_epoch(epoch):
    seeds = tf.stack([tf.cast(seed, tf.int64), epoch])
    records = tf.data.Dataset.from_tensor_slices(
      tf.random.experimental.stateless_shuffle(tf.constant(files), seeds)
    ).interleave(
      records_with_source if with_source else tf.data.TFRecordDataset,
      cycle_length=num_open,
    )
    first_block = tf.where(epoch == first_epoch, blocks_done, 0)
    first_block = tf.cast(first_block, tf.int64)
    blocks = records.skip(first_block * block_size).batch(block_size)

    def shuffle(number, block):
      shuffled = functools.partial(
        tf.random.experimental.stateless_shuffle,
        seed=tf.random.fold_in(seeds, number),
      )
      return tf.data.Dataset.from_tensor_slices(
        tf.nest.map_structure(shuffled, block)
      )

    return blocks.prefetch(1).enumerate(first_block).flat_map(shuffle)

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
  mask = features["input_mask"]
  rows = tf.reshape(mask, [-1, tf.shape(mask)[-1]])
  used = tf.where(tf.reduce_any(rows > 0, axis=0))[:, 0]  # places with tokens
  length = tf.reduce_max(tf.concat([used, [0]], axis=0)) + 1
  length = (length + multiple - 1) // multiple * multiple
  names = [
    name
    for name in (*model_inputs.TOKEN_FEATURES, "input_type_ids")
    if name in features
  ]
  labels = features.get("label_ids")
  if labels is not None and labels.shape.rank == 2 and labels.dtype.is_integer:
    names.append("label_ids")
  return features | {name: features[name][..., :length] for name in names}
