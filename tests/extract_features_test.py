"""Tests of feature extraction: the command and its functions."""

import functools
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
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_model
from parametrize import parametrize

import extract_features
import modeling
import tokenization
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError

pytestmark = pytest.mark.graph

WORDS = "the cat dog sat ran on mat ##s ."
VOCAB = [*tiny_model.SPECIAL, *WORDS.split()]
CONFIG = tiny_model.config(
  len(VOCAB), hidden_size=8, num_hidden_layers=2, max_position_embeddings=24
)
TEXTS = ["the cat sat", "dogs ||| cats", "", "the mat " * 9, "on", "ran ."]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-\d+)?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with texts and a small model with random weights."""
  folder = tmp_path_factory.mktemp("features")
  (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
  tiny_model.write_files(folder, VOCAB, CONFIG)
  with tf.Graph().as_default(), tf.Session() as session:
    modeling.BertModel(CONFIG, False, tf.zeros([1, 1], tf.int32))
    rng = np.random.default_rng(0)
    for variable in tf.trainable_variables():
      # Larger than initial weights, so that hidden states differ clearly.
      variable.load(rng.normal(scale=0.3, size=variable.shape), session)
    tf.train.Saver().save(session, str(folder / "model.ckpt"))
  sentence_model(folder / "sentences", folder)
  return folder


def flags(folder, **changed):
  values = {
    "input_file": folder / "texts.txt",
    "vocab_file": folder / "vocab.txt",
    "bert_config_file": folder / "bert_config.json",
    "init_checkpoint": folder / "model.ckpt",
    "max_seq_length": 16,
    "batch_size": 4,
  }
  return commands.as_flags(values | changed)


def extract(output_file, folder, standard_input=None, **changed):
  """Runs the command; returns its log."""
  return commands.succeed(
    "extract_features.py",
    f"--output_file={output_file}",
    *flags(folder, **changed),
    input=standard_input,
  ).stderr


@pytest.fixture(scope="module")
def extracted(folder):
  """JSONL of the texts with both layers, and the log."""
  log = extract(folder / "texts.jsonl", folder, layers="-1,0")
  return (folder / "texts.jsonl").read_text(), log


def states(text):
  """Hidden states of each line of JSONL: [num_tokens, num_layers, H]."""
  for line in map(json.loads, text.splitlines()):
    layers = [token["layers"] for token in line["features"]]
    yield np.array([[x["values"] for x in token] for token in layers])


def assert_same_text(text, expected):
  """Checks that texts are equal but for the last digits of numbers."""
  assert NUMBER.sub("#", text) == NUMBER.sub("#", expected)
  numbers, others = (
    [float(number) for number in NUMBER.findall(t)] for t in (text, expected)
  )
  np.testing.assert_allclose(numbers, others, rtol=0, atol=1e-5)


@parametrize(
  "changed",
  {"batch_size": 1},
  pytest.param({"num_replicas": 3}, marks=pytest.mark.train),
  ids=str,
)
def test_features_do_not_depend_on_batches_and_replicas(
  folder, extracted, tmp_path, changed
):
  output_file = tmp_path / "new" / "same.jsonl"
  extract(output_file, folder, layers="-1,0", **changed)
  assert_same_text(output_file.read_text(), extracted[0])


def test_output_equals_the_reference(tmp_path, golden):
  program = functools.partial(golden, "programs")
  vocab = run_outputs.read_json(program("runs.json"))["vocab"]
  extract(
    tmp_path / "output.jsonl",
    tmp_path,
    input_file=program("features_input.txt"),
    vocab_file=reference_data.vocab(vocab),
    bert_config_file=program("bert_config.json"),
    init_checkpoint=program("bert_model.ckpt.index").removesuffix(".index"),
    do_lower=True,
    layers="-1,-2",
    max_seq_length=24,
  )
  with gzip.open(program("features_output.jsonl.gz"), "rt") as file:
    assert_same_text((tmp_path / "output.jsonl").read_text(), file.read())


def test_log_reports_truncation_and_restored_variables(extracted):
  _, log = extracted
  assert "1 lines truncated to 16 tokens" in log
  assert "39 of 39 variables restored" in log


def test_vectors_of_several_layers_are_concatenated(
  folder, extracted, tmp_path
):
  extract(tmp_path / "max.jsonl", folder, layers="-1,0", pooling="max")
  lines = reference_data.read_jsonl(tmp_path / "max.jsonl")
  assert [line["linex_index"] for line in lines] == list(range(len(TEXTS)))
  expected = [text.max(axis=0).ravel() for text in states(extracted[0])]
  vectors = [line["vector"] for line in lines]
  np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_npz_has_the_last_layer_of_standard_input(folder, extracted, tmp_path):
  extract(
    tmp_path / "mean.npz",
    folder,
    standard_input=(folder / "texts.txt").read_text(),
    input_file="-",
    pooling="mean",
    output_format="npz",
  )
  vectors = np.load(tmp_path / "mean.npz")["vectors"]
  expected = [text[:, 0].mean(axis=0) for text in states(extracted[0])]
  np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


PIECES = [" ||| ", "||| ", " ", "|", "a", "é", "\t", "\r"]


@pytest.mark.unit
@hypothesis.given(
  st.lists(st.lists(st.sampled_from(PIECES)).map("".join), max_size=5)
)
def test_lines_are_split_into_pairs_like_the_reference(tmp_path_factory, lines):
  path = tmp_path_factory.getbasetemp() / "lines.txt"
  path.write_bytes("".join(line + "\n" for line in lines).encode())
  expected = []
  for index, line in enumerate(lines):
    pair = re.match(r"^(.*) \|\|\| (.*)$", line.strip())
    texts = pair.groups() if pair else (line.strip(), None)
    expected.append((index, *texts))
  assert list(extract_features.read_examples(str(path))) == expected


# Functions of google-research/bert


class CharacterTokenizer:
  """The minimal interface of a tokenizer."""

  def tokenize(self, text):
    return list(text)

  def convert_tokens_to_ids(self, tokens):
    return [len(token) + ord(token[0]) for token in tokens]


def convert(texts, seq_length):
  return extract_features.convert_examples_to_features(
    [extract_features.InputExample(7, *texts)], seq_length, CharacterTokenizer()
  )


@pytest.mark.unit
@parametrize(
  "texts, seq_length, tokens, type_ids",
  (("abc", None), 6, "[CLS] a b c [SEP]", [0] * 6),
  (("abcdef", None), 5, "[CLS] a b c [SEP]", [0] * 5),
  (("ab", "c"), 7, "[CLS] a b [SEP] c [SEP]", [0, 0, 0, 0, 1, 1, 0]),
  (("abcd", "xy"), 7, "[CLS] a b [SEP] x y [SEP]", [0, 0, 0, 0, 1, 1, 1]),
  (("abc", "xyz"), 6, "[CLS] a b [SEP] x [SEP]", [0, 0, 0, 0, 1, 1]),
  (("", ""), 3, "[CLS] [SEP]", [0] * 3),
)
def test_examples_are_converted_to_features(
  texts, seq_length, tokens, type_ids
):
  tokens = tokens.split()
  padding = [0] * (seq_length - len(tokens))
  ids = CharacterTokenizer().convert_tokens_to_ids(tokens)
  (converted,) = convert(texts, seq_length)
  assert converted.unique_id == 7
  assert converted.tokens == tokens
  assert converted.input_ids == ids + padding
  assert converted.input_mask == [1] * len(tokens) + padding
  assert converted.input_type_ids == type_ids


@pytest.mark.unit
def test_seq_length_without_room_for_special_tokens_is_rejected():
  with pytest.raises(ValueError):
    convert(("a", None), 1)


def test_model_fn_returns_the_layer_outputs_of_the_command(
  folder, extracted, variables
):
  converted = extract_features.convert_examples_to_features(
    extract_features.read_examples(str(folder / "texts.txt")),
    16,
    tokenization.FullTokenizer(str(folder / "vocab.txt")),
  )
  assert len(converted) == len(TEXTS)
  model_fn = extract_features.model_fn_builder(
    CONFIG, str(folder / "model.ckpt"), [-1, 0], False, False
  )
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = extract_features.input_fn_builder(converted, 16)(
      {"batch_size": len(TEXTS)}
    )
    batch = tf.data.make_one_shot_iterator(dataset).get_next()
    spec = model_fn(batch, None, "infer", {})
    table, *_ = tf.trainable_variables()
    assert table.dtype.name.endswith("_ref") == (variables == "reference")
    session.run(tf.global_variables_initializer())
    predicted = session.run(spec.predictions)
  assert predicted["unique_id"].tolist() == list(range(len(TEXTS)))
  for number, expected in enumerate(states(extracted[0])):
    for layer in range(2):
      found = predicted[f"layer_output_{layer}"][number][: len(expected)]
      np.testing.assert_allclose(found, expected[:, layer], rtol=0, atol=1e-5)


@parametrize("pooling", "mean", "max", "cls")
def test_pooling_equals_numpy_over_tokens_only(pooling):
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


def sentence_model(target, folder, **embedding):
  """Copies the model to a folder with `model.json` and a projection."""
  target.mkdir()
  for name in ("vocab.txt", "bert_config.json"):
    shutil.copy(folder / name, target)
  rng = np.random.default_rng(1)
  variables = run_outputs.read_variables(folder / "model.ckpt") | {
    "sentence_projection/kernel": rng.normal(size=(8, 5)).astype(np.float32),
    "sentence_projection/bias": rng.normal(size=5).astype(np.float32),
  }
  checkpoint_files.write_variables(str(target / "bert_model.ckpt"), variables)
  description = {
    "script": "run_embeddings",
    "max_seq_length": 12,
    "do_lower_case": True,
    "embedding": {
      "pooling": "cls",
      "normalize": True,
      "projection_dim": 5,
      "projection_activation": "tanh",
      "prompts": {"query": "the cat ", "passage": "the dog "},
      **embedding,
    },
  }
  (target / "model.json").write_text(json.dumps(description))
  return target


@pytest.fixture
def vectors_of(folder, tmp_path):
  """Runs the command with npz output on lines of text; returns vectors."""

  def vectors_of(lines, **changed):
    text, output = tmp_path / "lines.txt", tmp_path / "vectors.npz"
    text.write_text("".join(f"{line}\n" for line in lines))
    own = dict.fromkeys(("vocab_file", "bert_config_file", "max_seq_length"))
    changed = own | {"input_file": text, "output_format": "npz"} | changed
    extract(output, folder, **changed)
    return np.load(output)["vectors"]

  return vectors_of


LINES = ["the cat sat", "", "dogs ran on the mat ." * 5]


@pytest.fixture
def plain(folder):
  """Flags of the model without `model.json`, with the same length."""
  names = {"vocab_file": "vocab.txt", "bert_config_file": "bert_config.json"}
  files = {flag: folder / name for flag, name in names.items()}
  return files | {"max_seq_length": 12}


def test_a_sentence_model_writes_the_vectors_it_was_trained_for(
  folder, vectors_of, plain
):
  model = folder / "sentences"
  variables = run_outputs.read_variables(model / "bert_model.ckpt")
  states = vectors_of(LINES, pooling="cls", **plain)
  expected = np.tanh(
    states @ variables["sentence_projection/kernel"]
    + variables["sentence_projection/bias"]
  )
  expected /= np.linalg.norm(expected, axis=1, keepdims=True)
  vectors = vectors_of(LINES, init_checkpoint=model)
  np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_a_prompt_is_put_before_each_line(folder, tmp_path, vectors_of):
  given = {
    "init_checkpoint": sentence_model(
      tmp_path / "model", folder, default_prompt="passage"
    )
  }
  vectors = [
    vectors_of(LINES, **given),
    vectors_of(LINES, prompt="query", **given),
  ]
  lines = [text + line for text in ("the dog ", "the cat ") for line in LINES]
  expected = vectors_of(lines, init_checkpoint=folder / "sentences")
  np.testing.assert_allclose(
    np.concatenate(vectors), expected, rtol=0, atol=1e-6
  )


def test_pooling_of_the_flags_leaves_projection_and_prompt_out(
  folder, tmp_path, vectors_of, plain
):
  model = sentence_model(tmp_path / "a", folder, default_prompt="query")
  given = {"max_seq_length": 12, "pooling": "mean"}
  vectors = vectors_of(LINES, init_checkpoint=model, **given)
  expected = vectors_of(LINES, **plain, pooling="mean")
  np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)


@pytest.fixture
def refuse(folder, tmp_path):
  """Runs a command that must fail and keep the earlier output."""

  def refuse(largest_file=None, **changed):
    output_file = tmp_path / "output.jsonl"
    output_file.write_text("earlier")
    line = commands.fail(
      "extract_features.py",
      *flags(folder, **({"output_file": output_file} | changed)),
      largest_file=largest_file,
    )
    assert os.listdir(tmp_path) == ["output.jsonl"]
    assert output_file.read_text() == "earlier"
    return line

  return refuse


@parametrize(
  "changed, words",
  ({"prompt": "query"}, "--prompt=query: {}/model.ckpt is not a model of"),
  (
    {"prompt": "question", "init_checkpoint": "{}/sentences"},
    "--prompt=question: the model has passage, query",
  ),
  ({"output_format": "npz"}, "--pooling"),
  ({"layers": -1, "input_file": "{}/empty"}, "{}/empty: has no lines"),
)
def test_wrong_input_is_refused(refuse, folder, changed, words):
  (folder / "empty").touch()
  changed = {name: str(value).format(folder) for name, value in changed.items()}
  assert words.format(folder) in refuse(**changed)


@pytest.mark.unit
@parametrize("layers", "2", "-3", "", "-1,", "last", "0.5")
def test_invalid_layers_are_refused(layers):
  with pytest.raises(InputError, match=f"--layers={layers}: .* -2 to 1, .* 2 "):
    extract_features.parse_layers(layers, num_hidden_layers=2)


@pytest.mark.process
def test_full_disk_keeps_the_earlier_output(refuse):
  # Enough space for the records, but not for the results.
  line = refuse(layers=-1, largest_file=4000)
  assert "File too large" in line and "Make room" in line


def test_published_model_is_found_by_name(
  folder, extracted, tmp_path, monkeypatch
):
  cached = tmp_path / "cache" / "uncased_L-2_H-128_A-2"
  cached.mkdir(parents=True)
  for name in ("vocab.txt", "bert_config.json"):
    shutil.copy(folder / name, cached)
  for path in folder.glob("model.ckpt.*"):
    shutil.copy(path, cached / f"bert_{path.name}")
  monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
  brought = dict.fromkeys(("vocab_file", "bert_config_file"))
  output = tmp_path / "output.jsonl"
  extract(output, folder, layers="-1,0", init_checkpoint="bert-tiny", **brought)
  assert output.read_text() == extracted[0]
