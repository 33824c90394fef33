"""Windows of a run: made or read from the cache, and audited.

The audit counts truncated questions and answers that no window contains.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import os
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import numpy as np
from absl import logging

import tokenization
from bertlib import PREFIX
from bertlib.cli import terminal
from bertlib.data import model_inputs
from bertlib.io import json_files
from bertlib.io.files import atomic_write, open_any
from bertlib.settings.squad import SquadSettings
from bertlib.tasks.squad import squad_examples, squad_features, squad_spans
from bertlib.tasks.squad.squad_examples import SquadExample
from bertlib.tasks.squad.squad_features import Windows, WindowSettings


def window_settings(
  settings: SquadSettings, is_training: bool
) -> WindowSettings:
  """Window settings of a run."""
  return WindowSettings(
    settings.model.max_seq_length,
    settings.doc_stride,
    settings.max_query_length,
    is_training,
  )


def windows_key(settings: SquadSettings, path: str, is_training: bool) -> str:
  """Cache key of a data set's windows with the settings of a run."""
  return cache_key(
    path,
    settings.model.vocab_file,
    window_settings(settings, is_training)._asdict()
    | {
      "do_lower_case": settings.model.do_lower_case,
      "version_2_with_negative": settings.version_2_with_negative,
    },
  )


def load_windows(
  settings: SquadSettings,
  path: str,
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  is_training: bool,
) -> tuple[Windows, str]:
  """Makes the windows of a data set, or reads them; and their cache key."""
  key = windows_key(settings, path, is_training)
  # Starting a process takes as long as converting some thousand questions.
  num_workers = settings.num_workers or min(
    settings.devices.num_threads or os.cpu_count(), len(examples) // 5000
  )
  windows = cached_windows(
    settings.cache_dir or settings.run.output_dir,
    key,
    lambda: squad_features.convert_examples_to_windows(
      examples,
      tokenizer,
      window_settings(settings, is_training),
      num_workers,
      True,
    ),
  )
  truncated, lost = squad_features.find_incomplete_questions(windows)
  logging.info(
    "%s: %d questions in %d windows; %d questions truncated to %d tokens, %d"
    " answers in no window",
    path,
    len(examples),
    len(windows.length),
    len(truncated),
    settings.max_query_length,
    len(lost),
  )
  if settings.verbose_logging:
    for note, indices in (
      ("truncated", truncated),
      ("answer in no window", lost),
    ):
      for index in indices:
        logging.info("question %s: %s", examples[index].qas_id, note)
  return windows, key


def cache_key(
  data_file: str, vocab_file: str, settings: Mapping[str, Any]
) -> str:
  """Hash of data, vocabulary, settings, code and Python's Unicode version."""
  digest = hashlib.sha256()
  for path in (data_file, vocab_file, *_code_files()):
    with open_any(path, "rb") as file:
      digest.update(hashlib.sha256(file.read()).digest())
  digest.update(json_files.dumps(settings, sort_keys=True).encode())
  digest.update(unicodedata.unidata_version.encode())
  return digest.hexdigest()


@functools.cache
def _code_files() -> list[str]:
  """Source files of the code that creates windows."""
  # Those are the modules of this project that read, split or encode text: what
  # `squad_examples` and `squad_features` import, and what that imports.
  # Settings are left out, since their values are part of the key.
  found: set[str] = set()
  waiting = [squad_examples.__name__, squad_features.__name__]
  while waiting:
    name = waiting.pop()
    path = _source_file(name)
    if path and path not in found and ".settings" not in name:
      found.add(path)
      with open(path, encoding="utf-8") as file:
        waiting += _imported_names(ast.parse(file.read()))
  return sorted(found)


def _source_file(name: str) -> str | None:
  """Source file of a module of this project; None for other names."""
  root = os.path.dirname(os.path.abspath(tokenization.__file__))
  path = os.path.join(root, *name.removeprefix(PREFIX).split(".")) + ".py"
  return path if os.path.isfile(path) else None


def _imported_names(code: ast.Module) -> Iterator[str]:
  """Names of the modules that a module may import."""
  for node in ast.walk(code):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def cached_windows(
  folder: str, key: str, create: Callable[[], Windows]
) -> Windows:
  """Reads windows from the cache, or creates and caches them."""
  path = os.path.join(folder, f"windows-{key[:16]}.npz")
  try:
    with open_any(path, "rb") as file, np.load(file) as arrays:
      if arrays["key"].item() == key:
        windows = Windows(*(arrays[name] for name in Windows._fields))
        logging.info("Windows read from %s", path)
        return windows
  except FileNotFoundError:
    pass
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
    logging.warning("%s: is corrupt (%s); creating it again", path, error)
  windows = create()
  with atomic_write(path, "wb") as file:
    np.savez(file, key=key, **windows._asdict())
  return windows


# Audit


def print_audit(
  settings: SquadSettings, tokenizer: tokenization.FullTokenizer
) -> None:
  """Prints the audit of --train_file, see `audit`."""
  unaligned: list[dict[str, Any]] = []
  examples = squad_examples.read_squad_examples(
    settings.train_file, True, settings.version_2_with_negative, unaligned
  )
  rows = audit(
    examples,
    tokenizer,
    settings.audit_max_seq_lengths,
    settings.audit_doc_strides,
    settings.max_query_length,
  )
  terminal.print_table(
    [row | {"unaligned answers": len(unaligned)} for row in rows]
  )


def audit(
  examples: Sequence[SquadExample],
  tokenizer: tokenization.FullTokenizer,
  max_seq_lengths: Sequence[int],
  doc_strides: Sequence[int],
  max_query_length: int,
) -> list[dict[str, int]]:
  """Counts windows and lost answers for every window length and stride."""
  encoded = [
    (len(e.query), len(e.document.ids), e.start, e.end)
    for e in squad_spans.encode_examples(examples, tokenizer, is_training=True)
  ]
  rows = []
  for length, stride in itertools.product(max_seq_lengths, doc_strides):
    squad_features.check_settings(
      squad_features.WindowSettings(length, stride, max_query_length, True)
    )
    num_windows = num_lost = 0
    for query_length, num_tokens, start, end in encoded:
      room = length - min(query_length, max_query_length) - 3
      spans = model_inputs.make_doc_spans(num_tokens, room, stride)
      num_windows += len(spans)
      num_lost += start >= 0 and not any(
        first <= start and end < first + size for first, size in spans
      )
    rows.append(
      {
        "max_seq_length": length,
        "doc_stride": stride,
        "questions": len(examples),
        "windows": num_windows,
        "questions truncated": sum(
          row[0] > max_query_length for row in encoded
        ),
        "answers in no window": num_lost,
      }
    )
  return rows
