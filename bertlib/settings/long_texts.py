"""Settings of texts that are longer than the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from bertlib.cli import option


@dataclasses.dataclass(frozen=True)
class LongTextSettings(option.Group):
  """Texts that are longer than the model."""

  SECTION = "data"
  # Whether pairs keep the first text, and lose tokens of the second one.
  keeps_first: ClassVar[bool] = False

  long_texts: str | None = option.choice(
    None,
    ["truncate", "head_tail", "windows"],
    "Texts longer than --max_seq_length: truncate drops their end. head_tail"
    " keeps a quarter of the length from the start, and the rest from the end."
    " windows divides them into overlapping windows and joins the results;"
    " sentence vectors and rerankers are trained on truncated texts then. If"
    " not given, as the model was trained, or else truncate.",
    basic=True,
    kept=True,
  )
  join_windows: str | None = option.choice(
    None,
    ["mean", "max"],
    "Logits of a text from those of its windows: the mean, or the maximum of"
    " each label. If not given, as the model was trained, or else mean.",
    kept=True,
    needs="long_texts=windows",
  )
  doc_stride: int | None = option.integer(
    None,
    "Stride between overlapping windows of a text, in tokens. If not given,"
    " half of the text in a window.",
    option.AT_LEAST_1,
    kept=True,
    needs="long_texts=windows",
  )

  @property
  def has_windows(self) -> bool:
    """True if long texts are divided into windows."""
    return self.long_texts == "windows"

  def in_one_row(self) -> LongTextSettings:
    """Settings for what is not joined: truncates instead of windows."""
    return type(self)() if self.has_windows else self

  @classmethod
  def of_model(cls, description: Mapping[str, Any]) -> LongTextSettings:
    """The settings of a trained model (model.json)."""
    names = dict(option.declarations(cls))
    return cls(**{n: description[n] for n in names if n in description})


class LongDocumentSettings(LongTextSettings):
  """Documents that are longer than the model, each with a query before it."""

  keeps_first = True


TRUNCATE = LongTextSettings()
