"""Tests of SQuAD examples, windows and the audit."""

import collections
import hashlib
import json
import re
import subprocess
import sys
from unittest import mock

import commands
import numpy as np
import pretraining_corpus
import pytest
import reference_data
import run_outputs
import tiny_model
from absl import flags
from parametrize import parametrize
from refused import assert_refused

import tokenization
from bertlib.cli.errors import InputError
from bertlib.tasks.squad import original_api, squad_files, squad_windows
from bertlib.tasks.squad.squad_files import SquadExample
from bertlib.tasks.squad.squad_windows import WindowSettings as Settings

pytestmark = pytest.mark.unit

RUNS = run_outputs.read_json(reference_data.golden("squad", "runs.json"))
RUNS = [run["features"].partition("_features.")[0] for run in RUNS["features"]]

# Questions that the original does not train on: the answers have no-break and
# ideographic spaces.
ALSO_TRAINED_ON = {"ws-5", "ws-8"}

# Type that callers of google-research/bert's functions pass.
Span = collections.namedtuple("Span", ["start", "length"])


def read_golden_examples(run, folder, golden):
  path = reference_data.unpacked(golden("squad", run["input"]), folder)
  examples = original_api.read_squad_examples(
    path, run["is_training"], run["version_2_with_negative"]
  )
  return [e for e in examples if e.qas_id not in ALSO_TRAINED_ON]


@pytest.fixture(scope="module")
def tokenizer():
  return tiny_model.tokenizer(*"abcdefgh", "who", "what", "##s", *"().,")


def write_data(folder, *questions, context="a b c d"):
  """Writes data; a question is (id, answers) or a complete JSON object."""
  qas = []
  for q in questions:
    if not isinstance(q, dict):
      answers = [{"text": text, "answer_start": start} for text, start in q[1]]
      q = {"id": q[0], "question": "what", "answers": answers}
    qas.append(q)
  path = folder / "data.json"
  data = {"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}
  path.write_text(json.dumps(data))
  return str(path)


def make_windows(examples, tokenizer, *settings):
  arguments = examples, tokenizer, Settings(*settings)
  return squad_windows.convert_examples_to_windows(*arguments)


# Results of the original


@parametrize("name", *RUNS)
def test_examples_equal_those_of_the_original(tmp_path, name, golden):
  run = reference_data.squad_features(name, golden)
  expected = reference_data.read_jsonl(golden("squad", run["examples"]))
  examples = read_golden_examples(run, tmp_path, golden)
  for example in examples:
    # Which the original does not have.
    del example.answer_offset, example.context, example.answer_start
  assert [vars(example) for example in examples] == expected


@pytest.mark.graph
@parametrize("name", *RUNS)
def test_features_equal_those_of_the_original(tmp_path, name, golden):
  run = reference_data.squad_features(name, golden)
  length = run["max_seq_length"]
  created, vocab = [], reference_data.vocab(run["vocab"])
  keys = "max_seq_length", "doc_stride", "max_query_length", "is_training"
  original_api.convert_examples_to_features(
    read_golden_examples(run, tmp_path, golden),
    tokenization.FullTokenizer(vocab, run["do_lower_case"]),
    *(run[key] for key in keys),
    created.append,
  )
  expected = reference_data.read_jsonl(golden("squad", run["features"]))
  assert len(created) == len(expected) == run["count_features"]
  for feature, golden_feature in zip(created, expected):
    first = golden_feature.pop("context_first")
    words = dict(enumerate(golden_feature.pop("token_to_orig"), first))
    is_best = map(bool, golden_feature.pop("is_max_context"))
    best = dict(enumerate(is_best, first))
    for key in ("input_ids", "input_mask", "segment_ids"):
      golden_feature[key] += [0] * (length - len(golden_feature[key]))
    found = {key: getattr(feature, key) for key in golden_feature}
    assert found == golden_feature
    assert feature.token_to_orig_map == words
    assert feature.token_is_max_context == best

  path = str(tmp_path / "features.tf_record")
  with original_api.FeatureWriter(path, run["is_training"]) as writer:
    for feature in created:
      writer.process_feature(feature)
  assert writer.num_features == len(created)
  digest = hashlib.sha256()
  for record in pretraining_corpus.read_file(path):
    values = pretraining_corpus.parsed(record)
    line = json.dumps(values, sort_keys=True, separators=(",", ":"))
    digest.update(f"{line}\n".encode())
  assert digest.hexdigest() == run["tf_record_content_sha256"]


def test_max_context_equals_that_of_the_original():
  for case in reference_data.squad_helper_cases("_check_is_max_context"):
    spans = [Span(*span) for span in case["doc_spans"]]
    positions = np.arange(len(case["best_span"]))
    for index in range(len(spans)):
      expected = [index in best for best in case["best_span"]]
      one_by_one = [
        squad_windows.check_is_max_context(spans, index, position)
        for position in positions.tolist()
      ]
      assert one_by_one == expected, case
      together = squad_windows.check_is_max_context(spans, index, positions)
      assert together == expected, case


def test_improved_answer_spans_equal_those_of_the_original():
  for case in reference_data.squad_helper_cases("_improve_answer_span"):
    expected = case.pop("result")
    del case["function"]
    tokenizer = tokenization.BasicTokenizer()
    span = original_api._improve_answer_span(**case, tokenizer=tokenizer)
    assert list(span) == expected, case


def test_order_of_training_records_equals_that_of_the_original():
  function = "shuffle of the training examples"
  for case in reference_data.squad_helper_cases(function):
    assert squad_windows.reference_order(case["n"]) == case["result"]


# Windows


def test_lost_tokens_are_counted_once_per_question(tokenizer):
  texts = [("what a b", [*"abcd"]), ("what a", []), ("what a", ["c"])]
  examples = [SquadExample("q", text, words) for text, words in texts]
  windows = make_windows(examples, tokenizer, 8, 2, 2, False)
  assert windows.length.tolist() == [8, 7, 6]
  first, *_ = original_api.iterate_features(windows, 8, tokenizer)
  assert " ".join(first.tokens) == "[CLS] what a [SEP] a b c [SEP]"
  truncated, _ = squad_windows.find_incomplete_questions(windows)
  assert truncated.tolist() == [0]


def test_an_answer_outside_every_window_is_found(tokenizer):
  words = [*"abcdef"]
  examples = [
    SquadExample("long", "what", words, "b c d e", 1, 4),
    SquadExample("short", "what", words, "b c", 1, 2),
    SquadExample("none", "what", words, "", -1, -1, is_impossible=True),
  ]
  windows = make_windows(examples, tokenizer, 7, 1, 3, True)
  _, lost = squad_windows.find_incomplete_questions(windows)
  assert lost.tolist() == [0]


SCRIPT = f"""
import sys
sys.path.insert(0, {commands.ROOT!r})
print("imported")
import tokenization
from bertlib.tasks.squad import squad_files, squad_windows

if __name__ == "__main__":
  tokenizer = tokenization.FullTokenizer(sys.argv[1])
  examples = [
    squad_files.SquadExample(str(i), "what a", list("abcdefgh") * (i % 4))
    for i in range(1600)
  ]
  settings = squad_windows.WindowSettings(16, 4, 8, False)
  one, two = (
    squad_windows.convert_examples_to_windows(
      examples, tokenizer, settings, num_workers
    )
    for num_workers in (1, 2)
  )
  assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(one, two))
  assert "tensorflow" not in sys.modules
  print("equal")
"""


@pytest.mark.process
def test_workers_create_equal_windows_without_the_script(tmp_path, tokenizer):
  """A training script would make every worker import TensorFlow."""
  (tmp_path / "script.py").write_text(SCRIPT)
  (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.vocab))
  command = [sys.executable, tmp_path / "script.py", tmp_path / "vocab.txt"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.stdout == "imported\nequal\n", done.stderr


def test_the_audit_equals_counts_of_real_windows(tmp_path, golden):
  run = reference_data.squad_features("v20_one_answer_128", golden)
  examples = read_golden_examples(run, tmp_path, golden)
  tokenizer = tokenization.FullTokenizer(reference_data.vocab("uncased"))
  rows = squad_windows.audit(examples, tokenizer, [48, 128], [24, 64], 12)
  assert len(rows) == 4
  for row in rows:
    sizes = row["max_seq_length"], row["doc_stride"]
    windows = make_windows(examples, tokenizer, *sizes, 12, True)
    truncated, lost = squad_windows.find_incomplete_questions(windows)
    assert row["questions"] == run["count_examples"]
    assert row["windows"] == len(windows.length)
    assert row["questions truncated"] == len(truncated) > 0
    assert row["answers in no window"] == len(lost)
  assert max(row["answers in no window"] for row in rows) > 0


# Reading


def test_words_are_split_at_the_white_space_of_the_original():
  words, starts = squad_files.split_words("\u202f ab\tc\u00a0d\u3000e\r\nf \n")
  assert words == ["ab", "c\u00a0d\u3000e", "f"]
  assert starts == [2, 5, 12]


def test_answers_that_are_not_at_answer_start_are_listed(tmp_path, caplog):
  wrong = ("off", [("d", 2)]), ("split", [("x", 3)])
  path = write_data(tmp_path, ("good", [("b", 2)]), *wrong)
  unaligned = []
  examples = original_api.read_squad_examples(path, True, unaligned=unaligned)
  assert [example.qas_id for example in examples] == ["good"]
  assert unaligned == [
    {"id": "off", "answer": "d", "found": "b"},
    {"id": "split", "answer": "x", "found": "b"},
  ]
  assert f"{path}: 2 of 3 questions skipped" in caplog.text


@parametrize(
  "context, start, answer, expected",
  ("had 17\u00a0000 mills", 4, "17\u00a0000", "17\u00a0000"),
  ("had 17\u00a0000 mills", 4, "17 000", "17\u00a0000"),
  ("had 17\u202f000 mills", 4, "17\u00a0000", "17\u202f000"),
  ("had\u00a017 \u00a0000", 3, "\u00a017 000", "17 \u00a0000"),
  ("a\u00a017\u00a0of\u00a017", 8, "17", "17"),
  ("a cafe\u0301 b", 2, "caf\u00e9", "cafe\u0301"),
  ("a caf\u00e9", 2, "cafe\u0301", "caf\u00e9"),
  ("한국 사람", 0, "\u1112\u1161\u11ab\u1100\u116e\u11a8", "한국"),
  ("in \uff11\uff19 by", 3, "19", "\uff11\uff19"),
  ("in 19 by", 3, "\uff11\uff19", "19"),
  ("the ﬁrst one", 4, "first", "ﬁrst"),
  ("inter\u00adnational law", 0, "international", "inter\u00adnational"),
  (" The mill", 0, " The", "The"),
  # Words that have the answer twice.
  *(("中国人在中国，中国", start, "中国", "中国") for start in (0, 4, 7)),
  ("人 (中国，中国)", 6, "中国", "中国"),
)
def test_an_answer_is_found_in_the_characters_of_its_context(
  tmp_path, context, start, answer, expected
):
  path = write_data(tmp_path, ("q", [(answer, start)]), context=context)
  characters = sorted({*context} | {*answer} - {" "})
  words = [w for c in characters for w in (c, f"##{c}")]
  encoder = tokenization.FullTokenizer(
    {w: i for i, w in enumerate(["[UNK]", *words])}, do_lower_case=False
  )
  examples = original_api.read_squad_examples(path, is_training=True)
  (encoded,) = squad_windows.encode_examples(examples, encoder, True)
  _, offsets = encoder.tokenize_with_offsets(context)
  first, last = offsets[encoded.start], offsets[encoded.end]
  assert context[first[0] : last[1]] == expected
  assert first[0] == context.index(expected, start)


@parametrize(
  "context, start, answer",
  ("a caf\u00e9", 2, "cafe\u0301s"),
  ("a caf\u00e9", 3, "cafe\u0301"),
  ("the ﬁrst one", 4, "f"),
  ("\u00a0a", 0, "b"),
)
def test_an_answer_not_in_context_is_refused(tmp_path, context, start, answer):
  path = write_data(tmp_path, ("q", [(answer, start)]), context=context)
  with pytest.raises(InputError) as refused:
    original_api.read_squad_examples(path, is_training=True)
  assert str(refused.value).startswith(path)


@parametrize(
  "question",
  {},
  {"answers": None, "is_impossible": None},
  {"answers": [{"text": "b"}]},
  {"answers": [{"text": "b", "answer_start": None}]},
  {"answers": [{"text": "", "answer_start": -1}]},
  {"question": ""},
)
def test_prediction_needs_no_answers(tmp_path, question):
  question = {"id": "q", "question": "who"} | question
  path = write_data(tmp_path, question)
  (example,) = original_api.read_squad_examples(path, is_training=False)
  assert example.orig_answer_text is None


@parametrize(
  "impossible",
  {"answers": [], "is_impossible": True},
  {"is_impossible": True},
  {"answers": [{"text": "c", "answer_start": 4}], "is_impossible": True},
  {"answers": []},
  {},
  {"answers": [{"text": "", "answer_start": -1}], "is_impossible": None},
)
def test_questions_with_and_without_answers_can_be_mixed(tmp_path, impossible):
  impossible = {"id": "n", "question": "who"} | impossible
  path = write_data(tmp_path, ("q", [("b", 2)]), impossible)
  examples = original_api.read_squad_examples(path, True, True)
  assert [e.is_impossible for e in examples] == [False, True]


@parametrize(
  "answers, message",
  ([("b", 2), ("c", 4)], "has 2 answers"),
  ([("\u200b", 1)], "cannot be at answer_start 1 "),
  ([("b", None)], "cannot be at answer_start None"),
)
def test_invalid_training_answers_are_refused(tmp_path, answers, message):
  path = write_data(tmp_path, ("good", [("b", 2)]), ("bad", answers))
  with pytest.raises(InputError, match=f"question bad: .*{message}"):
    original_api.read_squad_examples(path, is_training=True)


@parametrize("length, query_length", (67, 64), (5, 2), (4, 8))
def test_lengths_that_the_error_names_leave_room(length, query_length):
  settings = Settings(length, 128, query_length, True)
  with pytest.raises(InputError) as refused:
    squad_windows.check_settings(settings)
  *_, (name, value) = re.findall(r"--(\w+)=(\d+)", str(refused.value))
  squad_windows.check_settings(settings._replace(**{name: int(value)}))
  with pytest.raises(InputError, match="--doc_stride=0"):
    squad_windows.check_settings(Settings(384, 0, 64, True))


# For code written for google-research/bert


@parametrize(
  "answer, shown",
  (("to Rome", 2, 3), (2, 3, False)),
  (("", -1, -1, True), (-1, -1, True)),
  ((None, None, None), None),
  (("Ann", 0, 0), None),
)
def test_text_of_an_example_is_that_of_the_original(answer, shown):
  example = SquadExample("q1", "Who?", ["Ann", "went", "to", "Rome"], *answer)
  expected = "qas_id: q1, question_text: Who?, doc_tokens: [Ann went to Rome]"
  if shown:
    names = "start_position", "end_position", "is_impossible"
    expected += "".join(f", {n}: {value}" for n, value in zip(names, shown))
  assert str(example) == repr(example) == expected


def test_version_2_with_negative_defaults_to_the_flag(tmp_path):
  question = {"id": "q", "question": "what", "is_impossible": True}
  path = write_data(tmp_path, question)
  assert_refused("question q", original_api.read_squad_examples, path, False)
  values = flags.FlagValues()
  name = "version_2_with_negative"
  flags.DEFINE_bool(name, True, "Help.", flag_values=values)
  with mock.patch.object(flags, "FLAGS", values):
    (example,) = original_api.read_squad_examples(path, False)
  assert example.qas_id == "q"
