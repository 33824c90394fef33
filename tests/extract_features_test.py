"""Tests of the features of texts, as a command and in its parts."""

import gzip
import json
import os
import re
import shutil

import commands
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import reference_data
import tensorflow.compat.v1 as tf

import extract_features
import modeling
import tokenization
from bertlib.errors import InputError
from bertlib.files import open_any

pytestmark = pytest.mark.graph

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = [*SPECIAL, "the", "cat", "dog", "sat", "ran", "on", "mat", "##s", "."]
CONFIG = modeling.BertConfig(
  vocab_size=len(VOCAB),
  hidden_size=8,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=16,
  max_position_embeddings=24,
  type_vocab_size=2,
)
TEXTS = ["the cat sat", "dogs ||| cats", "", "the mat " * 9, "on", "ran ."]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-\d+)?")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with texts and a small model of random weights."""
  place = tmp_path_factory.mktemp("features")
  (place / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
  (place / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
  (place / "bert_config.json").write_text(CONFIG.to_json_string())
  with tf.Graph().as_default(), tf.Session() as session:
    modeling.BertModel(CONFIG, False, tf.zeros([1, 1], tf.int32))
    rng = np.random.default_rng(0)
    for variable in tf.trainable_variables():
      # Larger than new weights are, so that no two tokens come out alike.
      variable.load(rng.normal(scale=0.3, size=variable.shape), session)
    tf.train.Saver().save(session, str(place / "model.ckpt"))
  return place


def flags(place, **changed):
  values = {
    "input_file": place / "texts.txt",
    "vocab_file": place / "vocab.txt",
    "bert_config_file": place / "bert_config.json",
    "init_checkpoint": place / "model.ckpt",
    "max_seq_length": 16,
    "batch_size": 4,
  }
  return commands.as_flags(values | changed)


def extract(output_file, place, standard_input=None, **changed):
  """Writes the output file; gives the log."""
  return commands.succeed(
    "extract_features.py",
    f"--output_file={output_file}",
    *flags(place, **changed),
    input=standard_input,
  ).stderr


@pytest.fixture(scope="module")
def extracted(place):
  """The JSONL of the texts, both layers, and the log."""
  log = extract(place / "texts.jsonl", place, layers="-1,0")
  return (place / "texts.jsonl").read_text(), log


def states(text):
  """Of each line of a JSONL, its numbers: [tokens, layers, H]."""
  return [
    np.array(
      [
        [layer["values"] for layer in token["layers"]]
        for token in json.loads(line)["features"]
      ]
    )
    for line in text.splitlines()
  ]


def assert_same_text(text, expected):
  """Equal character by character, but for the last digits of numbers."""
  assert NUMBER.sub("#", text) == NUMBER.sub("#", expected)
  numbers, others = (
    [float(number) for number in NUMBER.findall(t)] for t in (text, expected)
  )
  np.testing.assert_allclose(numbers, others, rtol=0, atol=1e-5)


# Whole runs


def test_replicas_give_the_features_of_one(place, extracted, tmp_path):
  replicated = tmp_path / "replicated.jsonl"
  extract(replicated, place, layers="-1,0", num_replicas=3)
  assert_same_text(replicated.read_text(), extracted[0])


def test_output_equals_the_reference(tmp_path, golden):
  def program(name):
    return golden("programs", name)

  checkpoint = program("bert_model.ckpt.index").removesuffix(".index")
  with open(program("runs.json")) as file:
    vocab = json.load(file)["vocab"]
  extract(
    tmp_path / "output.jsonl",
    tmp_path,
    input_file=program("features_input.txt"),
    vocab_file=reference_data.vocab(vocab),
    bert_config_file=program("bert_config.json"),
    init_checkpoint=checkpoint,
    do_lower=True,
    layers="-1,-2",
    max_seq_length=24,
  )
  with gzip.open(program("features_output.jsonl.gz"), "rt") as file:
    assert_same_text((tmp_path / "output.jsonl").read_text(), file.read())


def test_batch_size_changes_nothing(place, extracted, tmp_path):
  extract(tmp_path / "one.jsonl", place, layers="-1,0", batch_size=1)
  assert_same_text((tmp_path / "one.jsonl").read_text(), extracted[0])


def test_log_says_what_was_cut_and_restored(extracted):
  _, log = extracted
  assert "1 lines cut to 16 tokens" in log
  assert "39 of 39 variables restored" in log


def test_vectors_of_several_layers_are_joined(place, extracted, tmp_path):
  extract(tmp_path / "max.jsonl", place, layers="-1,0", pooling="max")
  lines = reference_data.read_jsonl(str(tmp_path / "max.jsonl"))
  assert [line["linex_index"] for line in lines] == list(range(len(TEXTS)))
  expected = [text.max(axis=0).ravel() for text in states(extracted[0])]
  vectors = [line["vector"] for line in lines]
  np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_npz_has_the_last_layer_of_standard_input(place, extracted, tmp_path):
  extract(
    tmp_path / "mean.npz",
    place,
    standard_input=(place / "texts.txt").read_text(),
    input_file="-",
    pooling="mean",
    output_format="npz",
  )
  vectors = np.load(tmp_path / "mean.npz")["vectors"]
  expected = [text[:, 0].mean(axis=0) for text in states(extracted[0])]
  np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


# Texts to records


PIECES = [" ||| ", "||| ", " ", "|", "a", "é", "\t", "\r"]


@pytest.mark.unit
@hypothesis.given(
  st.lists(st.lists(st.sampled_from(PIECES)).map("".join), max_size=5)
)
def test_lines_part_as_the_reference_parts_them(tmp_path_factory, lines):
  path = tmp_path_factory.getbasetemp() / "lines.txt"
  path.write_bytes("".join(line + "\n" for line in lines).encode())
  expected = []
  for index, line in enumerate(lines):
    pair = re.match(r"^(.*) \|\|\| (.*)$", line.strip())
    texts = pair.groups() if pair else (line.strip(), None)
    expected.append((index, *texts))
  assert list(extract_features.read_examples(str(path))) == expected


@pytest.mark.graph
def test_what_editors_and_other_encodings_leave_does_not_matter(place):
  (place / "odd.txt").write_bytes(b"\xef\xbb\xbfthe c\xe9at\r\non ||| mat")
  (place / "plain.txt").write_bytes(b"the cat\non ||| mat\n")
  tokenizer = tokenization.FullTokenizer(str(place / "vocab.txt"))
  odd, plain = (
    list(
      extract_features.encode_examples(
        extract_features.read_examples(str(place / name)), tokenizer, 8
      )
    )
    for name in ("odd.txt", "plain.txt")
  )
  assert odd == plain


# Features as other code calls for them


class CharacterTokenizer:
  """A tokenizer with nothing but what other code's tokenizers have."""

  def tokenize(self, text):
    return list(text)

  def convert_tokens_to_ids(self, tokens):
    return [len(token) + ord(token[0]) for token in tokens]


@pytest.mark.unit
@pytest.mark.parametrize(
  ("texts", "seq_length", "tokens", "type_ids"),
  [
    (("abc", None), 6, "[CLS] a b c [SEP]", [0] * 6),
    (("abcdef", None), 5, "[CLS] a b c [SEP]", [0] * 5),
    (("ab", "c"), 7, "[CLS] a b [SEP] c [SEP]", [0, 0, 0, 0, 1, 1, 0]),
    (("abcd", "xy"), 7, "[CLS] a b [SEP] x y [SEP]", [0, 0, 0, 0, 1, 1, 1]),
    (("abc", "xyz"), 6, "[CLS] a b [SEP] x [SEP]", [0, 0, 0, 0, 1, 1]),
    (("", ""), 3, "[CLS] [SEP]", [0] * 3),
  ],
)
def test_examples_become_features(texts, seq_length, tokens, type_ids):
  (converted,) = extract_features.convert_examples_to_features(
    [extract_features.InputExample(7, *texts)], seq_length, CharacterTokenizer()
  )
  tokens = tokens.split()
  padding = [0] * (seq_length - len(tokens))
  ids = CharacterTokenizer().convert_tokens_to_ids(tokens)
  assert converted.unique_id == 7
  assert converted.tokens == tokens
  assert converted.input_ids == ids + padding
  assert converted.input_mask == [1] * len(tokens) + padding
  assert converted.input_type_ids == type_ids


@pytest.mark.unit
def test_no_room_for_special_tokens():
  with pytest.raises(ValueError):
    extract_features.convert_examples_to_features(
      [extract_features.InputExample(0, "a", None)], 1, CharacterTokenizer()
    )


@pytest.fixture(params=["resource", "reference"])
def variable_op(request):
  """Makes variables of one kind; gives the type of their operations."""
  if request.param == "resource":
    yield "VarHandleOp"
    return
  tf.disable_resource_variables()
  try:
    yield "VariableV2"
  finally:
    tf.enable_resource_variables()


def test_layer_outputs_are_those_of_the_command(place, extracted, variable_op):
  examples = extract_features.read_examples(str(place / "texts.txt"))
  assert len(examples) == len(TEXTS)
  converted = extract_features.convert_examples_to_features(
    examples, 16, tokenization.FullTokenizer(str(place / "vocab.txt"))
  )
  model_fn = extract_features.model_fn_builder(
    CONFIG, str(place / "model.ckpt"), [-1, 0], False, False
  )
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = extract_features.input_fn_builder(converted, 16)(
      {"batch_size": len(TEXTS)}
    )
    batch = tf.data.make_one_shot_iterator(dataset).get_next()
    spec = model_fn(batch, None, "infer", {})
    assert {v.op.type for v in tf.trainable_variables()} == {variable_op}
    session.run(tf.global_variables_initializer())
    predicted = session.run(spec.predictions)
  assert predicted["unique_id"].tolist() == list(range(len(TEXTS)))
  for number, expected in enumerate(states(extracted[0])):
    tokens = converted[number].tokens
    for layer in range(2):
      np.testing.assert_allclose(
        predicted[f"layer_output_{layer}"][number][: len(tokens)],
        expected[:, layer],
        rtol=0,
        atol=1e-5,
      )


# The model


@pytest.mark.graph
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_pooling_equals_numpy_on_the_tokens_alone(pooling):
  rng = np.random.default_rng(0)
  states = rng.normal(size=[3, 5, 2, 4]).astype(np.float32) - 9
  lengths = [5, 3, 1]
  mask = np.array([[1] * n + [0] * (5 - n) for n in lengths], np.int32)
  states[mask == 0] = 1e6
  with tf.Graph().as_default(), tf.Session() as session:
    pooled = session.run(
      extract_features.pool(tf.constant(states), tf.constant(mask), pooling)
    )
  reduce = {"mean": np.mean, "max": np.max, "cls": lambda x, axis: x[0]}
  expected = [
    reduce[pooling](row[:n], axis=0).ravel() for row, n in zip(states, lengths)
  ]
  np.testing.assert_allclose(pooled, expected, rtol=1e-6)


# Results to files


@pytest.mark.unit
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_both_formats_hold_the_same_vectors(tmp_path, scheme):
  vectors = np.random.default_rng(0).normal(size=[5, 3]).astype(np.float32)
  rows = [{"unique_id": i, "vectors": row} for i, row in enumerate(vectors)]
  path = f"{scheme}{tmp_path}/vectors"
  with open_any(f"{path}.npz", "wb") as file:
    extract_features.write_npz(file, iter(rows), num_rows=5, width=3)
  with open_any(f"{path}.jsonl", "w") as file:
    extract_features.write_jsonl(file, iter(rows), [-1], tokenizer=None)
  with np.load(tmp_path / "vectors.npz") as arrays:
    assert arrays.files == ["vectors"]
    np.testing.assert_array_equal(arrays["vectors"], vectors, strict=True)
  lines = reference_data.read_jsonl(str(tmp_path / "vectors.jsonl"))
  assert lines == [
    {"linex_index": i, "vector": [round(float(x), 6) for x in row]}
    for i, row in enumerate(vectors)
  ]


# What is refused, and how


@pytest.fixture
def refuse(place, tmp_path):
  """Runs a command that has to fail and leave earlier output as it was."""

  def refuse(largest_file=None, **changed):
    output_file = tmp_path / "output.jsonl"
    output_file.write_text("earlier")
    line = commands.fail(
      "extract_features.py",
      *flags(place, **({"output_file": output_file} | changed)),
      largest_file=largest_file,
    )
    assert os.listdir(tmp_path) == ["output.jsonl"]
    assert output_file.read_text() == "earlier"
    return line

  return refuse


def test_a_missing_input_file(refuse, place):
  line = refuse(input_file=place / "gone.txt", layers=-1)
  assert f"{place}/gone.txt: No such file" in line


def test_an_empty_input_file(refuse, place):
  (place / "empty.txt").write_text("")
  line = refuse(input_file=place / "empty.txt", layers=-1)
  assert f"{place}/empty.txt: has no lines" in line


def test_a_missing_checkpoint(refuse, place):
  line = refuse(init_checkpoint=place / "gone.ckpt")
  assert f"{place}/gone.ckpt: no such checkpoint" in line


def test_sequences_longer_than_the_positions(refuse):
  line = refuse(max_seq_length=25)
  assert "--max_seq_length=25" in line and "24" in line


def test_more_layers_than_the_model_has(refuse):
  line = refuse()  # the default asks for four
  assert "--layers=-1,-2,-3,-4" in line and "from -2 to 1" in line


@pytest.mark.unit
@pytest.mark.parametrize("layers", ["2", "-3", "", "-1,", "last", "0.5"])
def test_layers_that_are_none(layers):
  with pytest.raises(InputError, match=f"--layers={layers}: .* -2 to 1, .* 2 "):
    extract_features.parse_layers(layers, num_hidden_layers=2)


def test_npz_without_pooling(refuse):
  assert "--pooling" in refuse(output_format="npz")


def test_an_output_file_that_cannot_be_written(refuse, place):
  line = refuse(output_file=place / "nowhere" / "x.jsonl", layers=-1)
  assert f"{place}/nowhere/x.jsonl" in line and "No such file" in line


@pytest.mark.process
def test_a_full_disk(refuse):
  # Room for the records, but not for the results.
  line = refuse(layers=-1, largest_file=4000)
  assert "File too large" in line and "Make room" in line


# A model by its name.


def test_a_published_model_by_name(place, tmp_path, monkeypatch):
  folder = tmp_path / "cache" / "uncased_L-2_H-128_A-2"
  folder.mkdir(parents=True)
  for name in ("vocab.txt", "bert_config.json"):
    shutil.copy(place / name, folder)
  for path in place.glob("model.ckpt.*"):
    shutil.copy(path, folder / f"bert_{path.name}")
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  shown = {"output_file": tmp_path / "vectors.npz", "pooling": "mean"}
  brought = {"vocab_file": None, "bert_config_file": None}
  given = flags(
    place, **brought, **shown, init_checkpoint="bert-tiny", output_format="npz"
  )
  commands.succeed("extract_features.py", *given)
  vectors = np.load(tmp_path / "vectors.npz")["vectors"]
  given = flags(place, **shown, output_format="npz")
  commands.succeed("extract_features.py", *given)
  assert np.array_equal(np.load(tmp_path / "vectors.npz")["vectors"], vectors)


def test_sizes_and_vocabulary_are_needed_without_a_name(place, tmp_path):
  given = flags(place, vocab_file=None, output_file=tmp_path / "out")
  done = commands.run("extract_features.py", *given)
  assert done.returncode == 1
  assert "--vocab_file" in done.stderr.splitlines()[-1]
