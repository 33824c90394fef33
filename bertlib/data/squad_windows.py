"""Windows of a data set as the settings want them, made or from the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence

from absl import logging

import tokenization
from bertlib.data import squad
from bertlib.data.squad import SquadExample
from bertlib.settings.squad import SquadSettings


def window_settings(
  settings: SquadSettings, is_training: bool
) -> squad.Settings:
  """How the flags want windows made."""
  return squad.Settings(
    settings.model.max_seq_length,
    settings.doc_stride,
    settings.max_query_length,
    is_training,
  )


def windows_key(settings: SquadSettings, path: str, is_training: bool) -> str:
  """The key in the cache of a data set's windows."""
  return squad.cache_key(
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
) -> tuple[squad.Windows, str]:
  """The windows of a data set, made or from the cache; says what they lose.

  Args:
    settings: of the command.
    path: the data set.
    examples: its questions.
    tokenizer: gives the ids.
    is_training: whether they need answers.

  Returns:
    The windows and the key of the cache.
  """
  key = windows_key(settings, path, is_training)
  # Starting a process takes as long as some thousand questions.
  num_workers = settings.num_workers or min(
    os.cpu_count(), len(examples) // 5000
  )
  windows = squad.cached_windows(
    settings.cache_dir or settings.run.output_dir,
    key,
    lambda: squad.make_windows(
      examples,
      tokenizer,
      window_settings(settings, is_training),
      num_workers,
      True,
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
    settings.max_query_length,
    len(lost),
  )
  if settings.verbose_logging:
    for what, indexes in (("cut", cut), ("answer in no window", lost)):
      for index in indexes:
        logging.info("question %s: %s", examples[index].qas_id, what)
  return windows, key
