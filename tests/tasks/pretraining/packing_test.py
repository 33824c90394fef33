"""Tests of packing: several sequences in one row."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parametrize import parametrize
from pretraining_corpus import DOCUMENTS, Corpus, make

import create_pretraining_data
from bertlib.tasks.pretraining import pretraining_instances
from bertlib.tasks.pretraining.objectives import MLM, MLM_NSP
from bertlib.tasks.pretraining.recipe import Recipe

pytestmark = pytest.mark.unit


@given(
  lengths=st.lists(st.integers(1, 20)),
  max_predictions=st.integers(4, 9),
  max_sequences=st.integers(1, 5),
  data=st.data(),
)
def test_each_sequence_is_in_one_row_that_has_room(
  lengths, max_predictions, max_sequences, data
):
  num_masked = [data.draw(st.integers(0, min(4, n))) for n in lengths]
  arguments = lengths, num_masked, 20, max_predictions, max_sequences
  rows = pretraining_instances.assign_rows(*arguments)
  numbers = [number for row in rows for number in row]
  assert sorted(numbers) == list(range(len(lengths)))
  for row in rows:
    assert 1 <= len(row) <= max_sequences
    assert sum(lengths[number] for number in row) <= 20
    assert sum(num_masked[number] for number in row) <= max_predictions
  assert rows == pretraining_instances.assign_rows(*arguments)


# Of distributions that allow to fill 0.985 of the rows.
LENGTHS = {
  "uniform": lambda rng: rng.randint(5, 128),
  "half of a row": lambda rng: int(rng.gauss(64, 25)),
  "short": lambda rng: 5 + int(rng.expovariate(1 / 20)),
  "shorter than a third": lambda rng: 5 + int(rng.expovariate(1 / 40)),
  "mostly full": lambda rng: rng.choice([128, 128, 128, rng.randint(5, 128)]),
}


@parametrize("kind", *LENGTHS)
def test_tokens_fill_the_rows(kind):
  rng = random.Random(0)
  draw = LENGTHS[kind]
  lengths = [min(max(draw(rng), 5), 128) for _ in range(5000)]
  masks = [round(0.15 * length) for length in lengths]
  rows = pretraining_instances.assign_rows(lengths, masks, 128, 22, 8)
  assert sum(lengths) / (128 * len(rows)) >= 0.98


def sequences(record):
  """The sequences of a packed record: what the record of each has."""
  used = int(sum(record["masked_lm_weights"]))
  positions = record["masked_lm_positions"][:used]
  masks = dict(zip(positions, record["masked_lm_ids"]))
  for number in range(1, max(record["sequence_ids"]) + 1):
    ids = record["sequence_ids"]
    places = [place for place, one in enumerate(ids) if one == number]
    assert places == list(range(places[0], places[-1] + 1))
    positions = [record["position_ids"][place] for place in places]
    assert positions == list(range(len(places)))
    label = None
    if "next_sentence_labels" in record:
      assert record["next_sentence_positions"][number - 1] == places[0]
      assert record["next_sentence_weights"][number - 1] == 1
      label = record["next_sentence_labels"][number - 1]
    yield (
      tuple(record["input_ids"][place] for place in places),
      tuple(record["segment_ids"][place] for place in places),
      tuple((p - places[0], masks[p]) for p in places if p in masks),
      label,
    )


def alone(record):
  """The same of a record of one sequence."""
  length = sum(record["input_mask"])
  used = int(sum(record["masked_lm_weights"]))
  return (
    tuple(record["input_ids"][:length]),
    tuple(record["segment_ids"][:length]),
    tuple(zip(record["masked_lm_positions"][:used], record["masked_lm_ids"])),
    record.get("next_sentence_labels", [None])[0],
  )


@given(
  documents=DOCUMENTS,
  segments=st.sampled_from(["pairs", "sentences", "documents"]),
  most=st.integers(1, 4),
)
def test_packed_rows_hold_all_sequences(vocab_file, documents, segments, most):
  corpus = Corpus(documents)
  options = {"max_seq_length": 40, "max_predictions_per_seq": 6}
  options |= {"dupe_factor": 1, "segments": segments, "short_seq_prob": 0.5}
  records, counts = make(corpus, vocab_file, **options)
  options |= {"pack": True, "max_sequences_per_row": most}
  packed, packed_counts = make(corpus, vocab_file, **options)
  found = [list(sequences(record)) for record in packed]
  sequences_found = Counter(one for row in found for one in row)
  assert sequences_found == Counter(map(alone, records))
  assert packed_counts["records"] == len(packed)
  assert packed_counts["sequences"] == counts["records"] == len(records)
  sizes = Counter(map(len, found))
  for size in range(1, most + 1):
    assert packed_counts[f"rows of {size} sequences"] == sizes[size]
  by_length = [n for n in packed_counts if n.startswith("sequences of")]
  assert sum(packed_counts[name] for name in by_length) == len(records)
  objective = MLM_NSP if segments == "pairs" else MLM
  layout = pretraining_instances.record_layout(
    40, 6, objective, most, is_written=True
  )
  for record in packed:
    is_used = [int(number > 0) for number in record["sequence_ids"]]
    assert record["input_mask"] == is_used
    assert set(record) == set(layout)


# Documents of one sentence of three to four tokens.
SHORT = Corpus([[[1 + n % 2]] for n in range(60)])


def test_rows_that_could_hold_more_are_reported(vocab_file, tmp_path, caplog):
  (tmp_path / "text").write_bytes(b"".join(SHORT.lines * 20))

  def report(most):
    options = {"max_seq_length": 64, "dupe_factor": 1, "segments": "sentences"}
    options |= {"pack": True, "max_sequences_per_row": most}
    recipe = Recipe(vocab_file=vocab_file, **options)
    paths = [str(tmp_path / "text")], [str(tmp_path / "out")]
    counts = create_pretraining_data.write_in_memory(recipe, *paths)
    caplog.clear()
    with caplog.at_level("INFO"):
      create_pretraining_data.report(counts, recipe)
    return caplog.text

  text = report(4)
  assert "--max_sequences_per_row=4: too small for these texts" in text
  assert text.rstrip().endswith("Give 19")  # of 3.5 tokens each
  text = report(19)
  assert "too small" not in text and "Tokens fill 0.9" in text
