"""Layout of TFRecord files; writes, frames and counts records.

Imports no TensorFlow.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple

import google_crc32c

from bertlib.data import model_inputs
from bertlib.errors import InputError
from bertlib.files import atomic_write, open_any


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
  return {
    name: Feature((max_seq_length,)) for name in model_inputs.TOKEN_FEATURES
  }


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
  with atomic_write(path, "wb") as file:
    for record in records:
      file.write(frame_record(record))
      count += 1
  return count


def frame_record(record: bytes) -> bytes:
  """A record as it stands in a TFRecord file: with length and checksums."""
  length = len(record).to_bytes(8, "little")
  return length + _checksum(length) + record + _checksum(record)


def read_serialized(path: str) -> Iterator[bytes | None]:
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
  features = sorted(layout.items())

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
    for name, feature in features:
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


def restore_input_order(
  rows: Iterable[Mapping[str, Any]],
) -> Iterator[Mapping[str, Any]]:
  """Puts the predictions of length-sorted records back into file order.

  Args:
    rows: predictions with the `input_index` of their record, a feature that
      `record_batches` adds when it sorts. Rows without one are in order.

  Yields:
    The rows by `input_index`, from 0.
  """
  waiting: dict[int, Mapping[str, Any]] = {}
  next_index = 0
  for row in rows:
    if "input_index" not in row:
      yield row
      continue
    waiting[int(row["input_index"])] = row
    while next_index in waiting:
      yield waiting.pop(next_index)
      next_index += 1
