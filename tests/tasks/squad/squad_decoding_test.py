"""Tests of decoding SQuAD answers from logits."""

import hashlib
import json
import tempfile
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import reference_data
import run_outputs
import tiny_model
from parametrize import parametrize

import tokenization
from bertlib.cli.errors import InputError
from bertlib.tasks.squad import (
  original_api,
  squad_decoding,
  squad_files,
  squad_windows,
)
from bertlib.tasks.squad.original_api import RawResult
from bertlib.tasks.squad.settings import AnswerSettings
from bertlib.tasks.squad.squad_decoding import AnswerFinder, NbestPrediction
from bertlib.tasks.squad.squad_files import SquadExample
from bertlib.tasks.squad.squad_windows import WindowSettings as Settings

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def tokenizer():
  return tiny_model.tokenizer(*"abcdefgh", "who", "##s", *"(),")


def make_features(examples, tokenizer, settings):
  made = []
  arguments = examples, tokenizer, *settings
  original_api.convert_examples_to_features(*arguments, made.append)
  return made


# Results of the reference


@parametrize("number", *range(11))
def test_files_equal_the_reference(golden, tmp_path, number):
  runs = run_outputs.read_json(golden("squad", "runs.json"))["predictions"]
  run, threshold = runs[number], runs[number]["null_score_diff_threshold"]
  made = reference_data.squad_features(run["features"], golden)
  examples = original_api.read_squad_examples(
    reference_data.unpacked(golden("squad", made["input"]), tmp_path),
    made["is_training"],
    made["version_2_with_negative"],
  )
  vocab = reference_data.vocab(made["vocab"])
  tokenizer = tokenization.FullTokenizer(vocab, made["do_lower_case"])
  keys = ("max_seq_length", "doc_stride", "max_query_length", "is_training")
  windows = make_features(examples, tokenizer, [made[key] for key in keys])
  logits = np.load(golden("squad", run["logits"]))
  keys = "unique_ids", "start_logits", "end_logits"
  rows = zip(*(logits[key].tolist() for key in keys))
  results = [RawResult(*row) for row in rows]
  ends = "predictions.json", "nbest_predictions.json", "null_odds.json"
  keys = "n_best_size", "max_answer_length", "do_lower_case"
  original_api.write_predictions(
    *(examples, windows, results[::-1], *(run[key] for key in keys)),
    *(str(tmp_path / end) for end in ends),
    version_2_with_negative=run["version_2_with_negative"],
    null_score_diff_threshold=threshold or 0.0,
  )
  assert len(run["file_sha256"]) == (2 if threshold is None else 3)
  for golden_name, digest in run["file_sha256"].items():
    end = max(filter(golden_name.endswith, ends), key=len)
    content = (tmp_path / end).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest, golden_name


def test_final_texts_equal_the_reference(golden):
  path = golden("squad", "get_final_text.jsonl")
  for case in reference_data.read_jsonl(path):
    result = case.pop("result")
    assert squad_decoding.get_final_text(**case) == result, case


def test_order_of_indexes_equals_the_reference():
  for case in reference_data.squad_helper_cases("_get_best_indexes"):
    order = original_api._get_best_indexes(case["logits"], case["n_best_size"])
    assert order == case["result"], case


def test_probabilities_equal_the_reference():
  for case in reference_data.squad_helper_cases("_compute_softmax"):
    assert squad_decoding.compute_softmax(case["scores"]) == case["result"]


def write(folder, arguments, **options):
  names = "predictions", "nbest", "odds"
  paths = [str(folder / name) for name in names]
  original_api.write_predictions(*arguments, *paths, **options)
  paths = [folder / name for name in names]
  return [json.loads(path.read_text()) for path in paths if path.exists()]


def test_question_without_spans_in_1_1_equals_the_reference(tmp_path):
  path = reference_data.golden("squad", "odd_predictions.jsonl")
  cases = reference_data.read_jsonl(path)
  (case,) = [case for case in cases if not case["version_2_with_negative"]]
  texts = (case[key] for key in ("qas_id", "question_text", "doc_tokens"))
  example = SquadExample(*texts)
  tokenizer = tokenization.FullTokenizer(reference_data.vocab("uncased"))
  keys = ("max_seq_length", "doc_stride", "max_query_length")
  settings = [*(case[key] for key in keys), False]
  (window,) = make_features([example], tokenizer, settings)
  result = RawResult(window.unique_id, case["start_logits"], case["end_logits"])
  sizes = case["n_best_size"], case["max_answer_length"]
  found = write(tmp_path, ([example], [window], [result], *sizes, True))
  assert found == [case["predictions"], case["nbest"]]


def zero_results(examples, tokenizer):
  """Arguments of `write` for logits that are all 0."""
  windows = make_features(examples, tokenizer, Settings(8, 4, 2, False))
  results = [RawResult(w.unique_id, [0.0] * 8, [0.0] * 8) for w in windows]
  return examples, windows, results, 20, 30, True


def test_empty_paragraph_has_no_answer(tmp_path, tokenizer):
  """The reference fails here too."""
  examples = [SquadExample("q", "who", []), SquadExample("p", "who", ["a"])]
  arguments = zero_results(examples, tokenizer)
  is_v2 = {"version_2_with_negative": True}
  predictions, n_best, odds = write(tmp_path, arguments, **is_v2)
  assert [entry["text"] for entry in n_best["q"]] == [""]
  assert predictions == {"q": "", "p": "a"}
  assert odds == {"q": squad_decoding.CERTAIN_ODDS, "p": 0.0}
  predictions, _, _ = write(tmp_path, arguments)
  assert predictions == {"q": "empty", "p": "a"}


# Compatibility with google-research/bert


def test_results_of_other_questions_are_not_needed(tmp_path, tokenizer):
  examples = [SquadExample(name, "who", [*"abcdefgh"]) for name in "pq"]
  windows = make_features(examples, tokenizer, Settings(8, 2, 2, False))
  # Of an unrelated class, as users may have.
  windows = [types.SimpleNamespace(**vars(window)) for window in windows]
  rng = np.random.default_rng(0)
  results = [RawResult(w.unique_id, *rng.normal(size=[2, 8])) for w in windows]
  sizes = 20, 30, True
  _, n_best = write(tmp_path, (examples, windows, results, *sizes))
  results = [r for r, w in zip(results, windows) if w.example_index == 0]
  _, of_one = write(tmp_path, (examples[:1], windows, results, *sizes))
  assert of_one == {"p": n_best["p"]}


def test_results_may_have_different_lengths(tmp_path, tokenizer):
  examples = [SquadExample("q", "who", [*"abcdef"])]
  windows = make_features(examples, tokenizer, Settings(8, 3, 2, False))
  lengths = [len(window.tokens) for window in windows]
  assert len(set(lengths)) > 1
  results = []
  for window, length in zip(windows, lengths):
    starts = [0.0] * (length - 2) + [20.0 - length, 0.0]
    results.append(RawResult(window.unique_id, starts, [1.0] * length))
  predictions, _ = write(tmp_path, (examples, windows, results, 20, 1, True))
  assert predictions == {"q": "f"}


def test_open_temporary_files_receive_the_predictions(tmp_path, tokenizer):
  arguments = zero_results([SquadExample("q", "who", ["a"])], tokenizer)
  with tempfile.NamedTemporaryFile("r", dir=tmp_path) as held:
    others = (str(tmp_path / name) for name in ("nbest", "odds"))
    original_api.write_predictions(*arguments, held.name, *others)
    assert json.load(held) == {"q": "a"}
    with open(held.name) as file:
      assert json.load(file) == {"q": "a"}


@hypothesis.given(st.data())
def test_best_answers_are_the_first_of_the_n_best(tokenizer, data):
  text = st.text("abcd", max_size=9).map(list)
  texts = data.draw(st.lists(text, min_size=1, max_size=3))
  examples = [SquadExample(str(i), "who", text) for i, text in enumerate(texts)]
  windows = make_features(examples, tokenizer, Settings(8, 2, 2, False))
  scores = st.lists(st.integers(-2, 2).map(float), min_size=8, max_size=8)
  results = [
    RawResult(w.unique_id, data.draw(scores), data.draw(scores))
    for w in windows
  ]
  sizes = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
  finder = original_api.finder_of(examples, windows, results, True)
  settings = AnswerSettings(*sizes, version_2_with_negative=True)
  for (entries, *answer), best in zip(
    finder.nbest_predictions(settings), finder.best_predictions(settings)
  ):
    assert tuple(answer) == best
    texts = [entry.text for entry in entries]
    assert len(set(texts)) == len(texts)
    assert {"", best[0]} <= {*texts}
    scores = [entry.score for entry in entries if entry.text]
    assert scores == sorted(scores, reverse=True)


@hypothesis.given(
  st.text(st.sampled_from("aBé中(),.ſ\u0301 \t\n\u00a0\u200b-"), max_size=30),
  st.integers(0, 2**32 - 1),
)
def test_an_answer_has_the_characters_of_its_pieces(tokenizer, passage, seed):
  rng = np.random.default_rng(seed)
  words, _ = squad_files.split_words(passage)
  examples = [SquadExample("q", "who", words, context=passage)]
  arguments = examples, tokenizer, Settings(12, 3, 2, False)
  columns = squad_windows.convert_examples_to_windows(*arguments)
  windows = [*original_api.iterate_features(columns, 12, tokenizer)]
  logits = rng.normal(size=[2, len(windows), 12])
  tokens, offsets = tokenizer.tokenize_with_offsets(passage)
  finder = AnswerFinder(examples, columns, logits, tokenizer, True)
  (prelims,) = finder.prelim_predictions(20, 30)
  for prelim in prelims:
    found = finder.with_text(prelim)
    assert found.text == passage[found.start : found.end] != ""
    pieces = [
      token
      for token, (start, end) in zip(tokens, offsets)
      if found.start <= start and end <= found.end
    ]
    window = windows[prelim.feature_index]
    assert window.tokens[prelim.start_index : prelim.end_index + 1] == pieces


LOGITS = st.floats(-1e4, 1e4, width=32)
ENTRIES = st.builds(NbestPrediction, st.text(), LOGITS, LOGITS)
ENTRIES = st.lists(ENTRIES, min_size=1, max_size=4)


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.dictionaries(st.text(), ENTRIES, min_size=1, max_size=3))
@hypothesis.example({4711: [NbestPrediction("a", 1.0, 2.0)]})  # in old code
def test_nbest_file_equals_the_output_of_json(tmp_path_factory, n_best):
  path = tmp_path_factory.getbasetemp() / "n_best.json"
  squad_decoding.write_nbest_predictions(str(path), n_best)
  written = json.loads(path.read_text())
  assert path.read_text() == json.dumps(written, indent=4) + "\n"
  assert {
    name: [(e["text"], e["start_logit"], e["end_logit"]) for e in entries]
    for name, entries in written.items()
  } == {
    str(name): [entry[:3] for entry in entries]
    for name, entries in n_best.items()
  }


def windows_of(text, tokenizer):
  examples = [SquadExample("q", "who", text.split())]
  arguments = examples, tokenizer, Settings(8, 2, 2, False)
  return squad_windows.convert_examples_to_windows(*arguments)


@pytest.fixture
def saved(tmp_path, tokenizer):
  """Path of saved logits, which are those of three windows; the windows."""
  windows = windows_of("a b c d e f g h", tokenizer)
  path = tmp_path / "logits.npz"
  logits = np.ones([2, 3, 8], np.float32)
  squad_windows.save_logits(str(path), windows, logits)
  return path, windows, logits


def test_logits_of_other_windows_are_refused(saved, tokenizer):
  path, _, _ = saved
  other = windows_of("a b c d e f h g", tokenizer)
  with pytest.raises(InputError, match="is of other questions"):
    squad_windows.load_logits(str(path), other)


def test_logits_with_a_flipped_bit_are_refused_or_the_same(saved):
  path, windows, logits = saved
  content = path.read_bytes()
  for bit in range(0, 8 * len(content), 31):
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << bit % 8
    path.write_bytes(flipped)
    try:
      found = squad_windows.load_logits(str(path), windows)
    except InputError:
      continue
    np.testing.assert_array_equal(found, logits)
