"""What the rows of data for sentence vectors are, by the columns named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bertlib.cli.errors import InputError


class Columns(NamedTuple):
  """Columns of a file, each by its name or its number from 1.

  Attributes:
    texts: the anchor, the positive, and the hard negatives.
    score: similarity of the two texts, or None.
    label: label of the two texts or of the text, or None.
  """

  texts: Sequence[str]
  score: str | None = None
  label: str | None = None


def kind_of(columns: Columns) -> str:
  """Kind of the rows, by the columns that are named.

  Raises:
    InputError: the columns do not go together, or one is named twice.
  """
  if not columns.texts:
    raise InputError(
      "--text_columns must be given: the columns of the texts, such as"
      " question,answer"
    )
  value = f"--text_columns={','.join(columns.texts)}"
  if not all(columns.texts) or len(set(columns.texts)) < len(columns.texts):
    raise InputError(
      f"{value}: has an empty or repeated name. Name each column once"
    )
  has_score, has_label = columns.score is not None, columns.label is not None
  kinds = {
    # Two texts that belong together are a pair; with more that do not belong to
    # the first (hard negatives), a triplet.
    (1, False, False): "texts",
    (1, False, True): "labeled_texts",
    (2, False, False): "pairs",
    (2, True, False): "scored_pairs",
    (2, False, True): "labeled_pairs",
    (3, False, False): "triplets",
  }
  kind = kinds.get((min(len(columns.texts), 3), has_score, has_label))
  if kind is None:
    raise InputError(
      f"{value} with --score_column={columns.score or ''} and"
      f" --label_column={columns.label or ''}: a score belongs to two texts, a"
      " label to one or two. Name the columns of one kind of data"
    )
  return kind
