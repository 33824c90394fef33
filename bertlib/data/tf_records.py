"""TFRecord files: layouts, writing and reading. Imports no TensorFlow."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from bertlib.cli.errors import InputError
from bertlib.io import file_kinds
from bertlib.io.files import atomic_write, open_any


class Feature(NamedTuple):
  """Shape, type and range of a feature, for writing and reading records."""

  shape: tuple[int, ...] = ()  # per example; () for a single value
  is_float: bool = False  # float32; else int64 in files and int32 in tensors
  # Of a record without it, or a list of its values; None: required.
  default: float | list[float] | None = None
  # Integers must be in [0, limit). Only `training_records` and the loss of
  # pretraining check it.
  limit: int | None = None
  # The last axis has a value per token: common padding may be removed.
  per_token: bool = False
  is_text: bool = False  # bytes, a single value; written only
  # The first axis has a row per text of the record, at most as many as `shape`
  # says, whose tokens `NUM_TOKENS` counts. Batches have zeros elsewhere.
  varies: bool = False


# The features with one value per token, padded at the end.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
# Of features that vary, which are not padded in files.
NUM_TOKENS = "num_tokens"

# Layout of records: features by name.
Layout = Mapping[str, Feature]

# Bytes read at a time to count records.
_BLOCK_BYTES = 2**20


def token_layout(
  max_seq_length: int, num_texts: int | None = None
) -> dict[str, Feature]:
  """Layout of `TOKEN_FEATURES`: [S], or [num_texts, S]."""
  shape = (max_seq_length,)
  if num_texts is not None:
    shape = (num_texts, *shape)
  return dict.fromkeys(TOKEN_FEATURES, Feature(shape, per_token=True))


# Records


def write_records(
  path: str, rows: Iterable[Mapping[str, Any]], layout: Layout
) -> int:
  """Writes examples to a TFRecord file, atomically; returns their number."""
  # A row holds a value or a list for each feature.
  return write_serialized(path, map(record_encoder(layout), rows))


def write_serialized(path: str, records: Iterable[bytes]) -> int:
  """Writes records as `tf.io.TFRecordWriter` does; returns their number."""
  count = 0
  with atomic_write(path, "wb") as file:
    for record in records:
      file.write(frame_record(record))
      count += 1
  return count


def frame_record(record: bytes) -> bytes:
  """Adds the length and checksums that TFRecord files store per record."""
  length = len(record).to_bytes(8, "little")
  return length + _checksum(length) + record + _checksum(record)


def framed_bytes(record: bytes) -> int:
  """Bytes that a record takes in a TFRecord file, see `frame_record`."""
  return len(record) + 16  # its length, and two checksums


def read_serialized(path: str) -> Iterator[bytes | None]:
  """Yields serialized records; None, and then nothing, at a corrupt one."""
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
  """TFRecord checksum: CRC-32C, rotated by 15 bits, plus a constant."""
  import google_crc32c  # not where a model only predicts

  crc = google_crc32c.value(data)
  rotated = crc >> 15 | crc << 17
  return (rotated + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def record_encoder(layout: Layout) -> Callable[[Mapping[str, Any]], bytes]:
  """Function that serializes a row, a value, list or bytes per feature."""
  # Equals a serialized `tf.train.Example` with features sorted by name, in a
  # tenth of the time and without TensorFlow.
  varints = Varints()
  features = sorted(layout.items())

  # A protocol buffer stores each message after its tag and length.
  def field(tag, content):
    return bytes([tag]) + varints[len(content)] + content

  @functools.cache
  def entry_start(name, tag, size):
    """The bytes of an entry before the `size` bytes of its values."""
    values = field(0x0A, bytes(size)) if size else b""
    one_of = field(tag, values)
    entry = field(0x0A, name.encode()) + field(0x12, one_of)
    return field(0x0A, entry)[: -size or None]

  def encode(row):
    entries = []
    for name, feature in features:
      value = row[name]
      values = [value] if feature.shape == () else value
      if isinstance(value, bytes):
        # text, or already concatenated `varint`s
        content = value
      elif feature.is_float:
        content = struct.pack(f"<{len(values)}f", *values)
      else:
        content = varints.encode(values)
      tag = 0x0A if feature.is_text else 0x12 if feature.is_float else 0x1A
      entries += entry_start(name, tag, len(content)), content
    return field(0x0A, b"".join(entries))

  return encode


class Varints(dict):
  """Cache of `varint`, by integer."""

  def encode(self, values: Sequence[int]) -> bytes:
    """Concatenated `varint`s of several numbers; fast if all are below 128."""
    try:
      content = bytes(values)  # ValueError for numbers above 255
      if content.isascii():
        return content
    except (TypeError, ValueError):
      pass
    return b"".join(map(self.__getitem__, values))

  def __missing__(self, number):
    encoded = varint(number)
    if 0 <= number < 2**18:  # larger than any vocabulary
      self[number] = encoded
    return encoded


def varint(number: int) -> bytes:
  """Encodes an integer for protocol buffers: 7 bits per byte, lowest first."""
  rest = int(number) & 0xFFFFFFFFFFFFFFFF  # as two's complement
  encoded = bytearray()
  while rest > 0x7F:
    encoded.append(rest & 0x7F | 0x80)
    rest >>= 7
  encoded.append(rest)
  return bytes(encoded)


def count_records(path: str) -> int:
  """Counts records of a TFRecord file; InputError if truncated or empty."""
  # Decodes lengths only: records of one layout have few sizes, so that most are
  # found here.
  sizes: dict[bytes, int] = {}  # of framed records, by their first 12 bytes
  with open_any(path, "rb") as file:
    file.seek(0, 2)
    end = file.tell()
    count = position = 0
    while position < end:
      file.seek(position)
      block = file.read(_BLOCK_BYTES)
      offset, last = 0, len(block) - 12
      if last < 0:
        break
      while offset <= last:
        start = block[offset : offset + 12]
        if start not in sizes:
          if _checksum(start[:8]) != start[8:]:
            if not count:
              file_kinds.check(path, block, file_kinds.RECORDS)
            raise InputError(
              f"{path}: record {count} (the first is 0) is corrupt, or this is"
              " not a TFRecord file. Copy or make the file again"
            )
          # Length, checksum of the length, record, checksum of the record.
          sizes[start] = 8 + 4 + int.from_bytes(start[:8], "little") + 4
        offset += sizes[start]
        count += 1
      position += offset
  if position != end:
    number = count + (position < end)
    raise InputError(
      f"{path}: truncated at byte {end}, in record {number}. Make the file"
      " again"
    )
  if not count:
    raise InputError(f"{path}: holds no records. Make the file again")
  return count


def restore_input_order(
  rows: Iterable[Mapping[str, Any]],
) -> Iterator[Mapping[str, Any]]:
  """Puts predictions of length-sorted records back into file order."""
  waiting: dict[int, Mapping[str, Any]] = {}
  next_index = 0
  for row in rows:
    # Added by `input_pipeline.record_batches` where it sorts.
    if "input_index" not in row:
      yield row
      continue
    waiting[int(row["input_index"])] = row
    while next_index in waiting:
      yield waiting.pop(next_index)
      next_index += 1
