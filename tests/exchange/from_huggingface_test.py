"""Tests of what a converted model knows: task, labels, text and names."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from safetensors.numpy import save_file

from bertlib.checkpoints import keras_files, records, rewrite
from bertlib.cli.errors import InputError
from bertlib.data import vocabulary
from bertlib.exchange import from_huggingface, tensor_names, to_huggingface

pytestmark = pytest.mark.unit

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]
CONFIG = {
  "attention_probs_dropout_prob": 0.1,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "hidden_size": 4,
  "initializer_range": 0.02,
  "intermediate_size": 6,
  "max_position_embeddings": 400,
  "num_attention_heads": 2,
  "num_hidden_layers": 1,
  "type_vocab_size": 2,
  "vocab_size": len(WORDS),
}


def tensors(architecture="BertModel", num_labels=3, prefix=""):
  """Random tensors of a Hugging Face class, by name."""
  sizes = {"V": 8, "P": 400, "T": 2, "H": 4, "I": 6, "L": num_labels, "2": 2}
  rng = np.random.default_rng(0)
  parts = {"encoder", "pooler"} | tensor_names.ARCHITECTURES[architecture]
  if architecture == "BertForTokenClassification":
    parts -= {"pooler"}
  found = {}
  for part, rows in tensor_names.name_table(1).items():
    for row in rows if part in parts else ():
      shape = [sizes[axis] for axis in row.axes]
      tensor = rng.normal(size=shape).astype(np.float32)
      found[prefix + row.huggingface] = row.convert(tensor)
  return found


def make_folder(folder, weights, vocab=WORDS, tokenizer=(), **config):
  folder.mkdir()
  save_file(weights, folder / "model.safetensors", {"format": "pt"})
  (folder / "config.json").write_text(json.dumps(CONFIG | config))
  if vocab:
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocab))
  for name, content in dict(tokenizer).items():
    (folder / name).write_text(json.dumps(content))
  return str(folder)


def read(folder, **options):
  return from_huggingface.read(folder, records.all_records(), **options)


def name(*labels):
  return {"id2label": {str(i): label for i, label in enumerate(labels)}}


# Tasks and labels

_SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
_IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
  "architecture, num_labels, config, expected",
  [
    (
      "BertForSequenceClassification",
      3,
      name("good", "bad", "ugly"),
      {"kind": "classification", "labels": ["good", "bad", "ugly"]},
    ),
    (
      "BertForSequenceClassification",
      2,
      {},
      {"kind": "classification", "labels": ["LABEL_0", "LABEL_1"]},
    ),
    (
      "BertForSequenceClassification",
      2,
      {"problem_type": "multi_label_classification", **name("b", "a")},
      {"kind": "multi_label", "labels": ["b", "a"]},
    ),
    (
      "BertForSequenceClassification",
      1,
      name("LABEL_0"),
      {"kind": "regression", "labels": []},
    ),
    (
      "BertForSequenceClassification",
      1,
      {"sentence_transformers": _SIGMOID, **name("match")},
      {"kind": "multi_label", "labels": ["match"]},
    ),
    (
      "BertForSequenceClassification",
      1,
      {"sbert_ce_default_activation_function": _IDENTITY},
      {"kind": "regression", "labels": []},
    ),
    (
      "BertForMultipleChoice",
      1,
      {},
      {"kind": "multiple_choice", "labels": ["0", "1", "2", "3"]},
    ),
    (
      "BertForTokenClassification",
      2,
      name("O", "B-PER"),
      {"script": "run_ner", "labels": ["O", "B-PER"]},
    ),
    (
      "BertForQuestionAnswering",
      0,
      {},
      {"script": "run_squad", "max_seq_length": 384, "doc_stride": 128},
    ),
    ("BertForMaskedLM", 0, {}, {"script": "run_pretraining"}),
    ("BertForPreTraining", 0, {}, {"script": "run_pretraining"}),
    ("BertModel", 0, {}, {"max_seq_length": 400}),
  ],
)
def test_the_task_of_a_class_is_described(
  architecture, num_labels, config, expected, tmp_path
):
  weights = tensors(architecture, num_labels)
  model = read(
    make_folder(tmp_path / "a", weights, architectures=[architecture], **config)
  )
  assert expected.items() <= model.description.items()
  if architecture == "BertModel":
    assert "script" not in model.description


@pytest.mark.graph
@pytest.mark.parametrize(
  "script, architecture, entries",
  [
    (
      "run_classifier",
      "BertForSequenceClassification",
      {
        "kind": "multi_label",
        "labels": ["x", "y", "z"],
        "thresholds": {"x": 0.3, "y": 0.5, "z": 0.9},
      },
    ),
    (
      "run_classifier",
      "BertForMultipleChoice",
      {"kind": "multiple_choice", "labels": ["A", "B"]},
    ),
    (
      "run_squad",
      "BertForQuestionAnswering",
      {
        "version_2_with_negative": True,
        "doc_stride": 32,
        "max_query_length": 9,
        "null_score_diff_threshold": -1.5,
      },
    ),
  ],
)
def test_a_description_survives_a_round_trip(
  script, architecture, entries, tmp_path
):
  num_labels = 1 if entries.get("kind") == "multiple_choice" else 3
  weights = tensors(architecture, num_labels)
  source = make_folder(tmp_path / "a", weights, architectures=[architecture])
  ours = tmp_path / "ours"
  from_huggingface.convert(source, str(ours), records.all_records())
  description = {
    "script": script,
    "max_seq_length": 64,
    "do_lower_case": True,
    "max_input_chars_per_word": 100,
    **entries,
  }
  (ours / "model.json").write_text(json.dumps(description))
  lines = to_huggingface.convert(
    str(ours / "bert_model.ckpt"),
    str(ours / "bert_config.json"),
    str(ours / "vocab.txt"),
    str(tmp_path / "theirs"),
    find_task=records.find,
  )
  assert f"architecture: {architecture}" in lines
  assert any("task_specific_params" in line for line in lines)
  assert read(str(tmp_path / "theirs")).description == description


# Text

_FAST = {
  "added_tokens": [],
  "normalizer": {"type": "BertNormalizer", "lowercase": True},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "model": {"type": "WordPiece", "vocab": {w: i for i, w in enumerate(WORDS)}},
}


def fast(**model):
  return {"tokenizer.json": _FAST | {"model": _FAST["model"] | model}}


@pytest.mark.parametrize(
  "tokenizer, limit",
  [
    ({}, 100),
    (fast(), 100),
    (fast(max_input_chars_per_word=7), 7),
  ],
)
def test_the_limit_of_characters_is_that_of_the_files(
  tokenizer, limit, tmp_path
):
  folder = make_folder(tmp_path / "a", tensors(), tokenizer=tokenizer)
  description = read(folder).description
  assert description["max_input_chars_per_word"] == limit
  tokenizer = vocabulary.load_tokenizer(
    f"{folder}/vocab.txt", True, max_input_chars_per_word=limit
  )
  # `the` is in the vocabulary and `thes` has pieces; neither is too long.
  assert tokenizer.tokenize("thes") == ["the", "##s"]
  assert tokenizer.tokenize("the" + "s" * limit) == ["[UNK]"]


@pytest.mark.parametrize(
  "tokenizer, expected",
  [
    ({"tokenizer_config.json": {"word_tokenizer_type": "mecab"}}, "mecab"),
    (
      {"tokenizer_config.json": {"tokenizer_class": "RoFormerTokenizer"}},
      "RoFormerTokenizer",
    ),
    (
      {"tokenizer.json": _FAST | {"pre_tokenizer": {"type": "Whitespace"}}},
      "pre_tokenizer of tokenizer.json is Whitespace",
    ),
    (
      {"tokenizer.json": _FAST | {"normalizer": {"type": "NFKC"}}},
      "normalizer of tokenizer.json is NFKC",
    ),
    (
      {
        "tokenizer.json": _FAST
        | {
          "normalizer": {
            "type": "BertNormalizer",
            "lowercase": True,
            "strip_accents": False,
          }
        }
      },
      "strip_accents=False",
    ),
    (
      {"tokenizer_config.json": {"tokenize_chinese_chars": False}},
      "tokenize_chinese_chars=False",
    ),
  ],
)
def test_other_rules_for_text_are_named(tokenizer, expected, tmp_path):
  folder = make_folder(tmp_path / "a", tensors(), tokenizer=tokenizer)
  assert any(expected in note for note in read(folder).notes)


def test_a_plain_tokenizer_has_no_notes(tmp_path):
  folder = make_folder(tmp_path / "a", tensors(), tokenizer=fast())
  assert not [note for note in read(folder).notes if note.startswith("note:")]


@pytest.mark.parametrize(
  "tokenizer",
  [
    {"tokenizer_config.json": {"cls_token": "<s>", "unk_token": "<unk>"}},
    {"special_tokens_map.json": {"cls_token": "<s>", "unk_token": "<unk>"}},
    {
      "tokenizer_config.json": {
        "cls_token": {"content": "<s>"},
        "unk_token": {"content": "<unk>"},
      }
    },
    {
      "tokenizer.json": {
        "model": {"unk_token": "<unk>"},
        "post_processor": {"cls": ["<s>", 2], "sep": ["[SEP]", 3]},
      }
    },
  ],
)
def test_special_entries_get_the_names_of_bert(tokenizer, tmp_path):
  vocab = ["[PAD]", "<unk>", "<s>", *WORDS[3:]]
  model = read(make_folder(tmp_path / "a", tensors(), vocab, tokenizer))
  assert model.vocab.decode().split() == WORDS
  assert any("<s> to [CLS]" in note for note in model.notes)


def test_two_entries_for_one_special_token_are_refused(tmp_path):
  vocab = [*WORDS[:5], "<s>", *WORDS[6:]]
  tokenizer = {"tokenizer_config.json": {"cls_token": "<s>"}}
  folder = make_folder(tmp_path / "a", tensors(), vocab, tokenizer)
  with pytest.raises(InputError, match="its cls_token is <s>, but"):
    read(folder)


def test_blank_lines_at_the_end_are_no_entries(tmp_path):
  folder = make_folder(tmp_path / "a", tensors(), [*WORDS, "", ""])
  assert read(folder).vocab.decode().split("\n") == [*WORDS, ""]
  assert vocabulary.read_entries(f"{folder}/vocab.txt") == WORDS


@pytest.mark.parametrize("stated", [True, False])
def test_the_casing_that_was_found_is_kept(stated, tmp_path):
  tokenizer = {"tokenizer_config.json": {"do_lower_case": stated}}
  model = read(make_folder(tmp_path / "a", tensors(), tokenizer=tokenizer))
  assert model.description["do_lower_case"] is stated


# Names of weights


@pytest.mark.parametrize(
  "prefix", ["module.", "_orig_mod.module.", "my.model."]
)
def test_a_prefix_of_all_names_is_taken_off(prefix, tmp_path):
  weights = tensors("BertForSequenceClassification", prefix=prefix)
  model = read(make_folder(tmp_path / "a", weights))
  assert f"prefix taken off all names: {prefix}" in model.notes
  assert "output_weights" in model.variables


def test_names_that_begin_with_bert_have_no_prefix(tmp_path):
  notes = read(make_folder(tmp_path / "a", tensors())).notes
  assert not [note for note in notes if "prefix" in note]


def test_an_error_names_three_tensors(tmp_path):
  weights = tensors() | {f"other.{n}": np.zeros(2, np.float32) for n in "abcde"}
  with pytest.raises(InputError, match=r"other\.a, other\.b, other\.c and 2"):
    read(make_folder(tmp_path / "a", weights))


def test_a_folder_of_2019_is_read(tmp_path):
  folder = make_folder(tmp_path / "a", tensors())
  (tmp_path / "a" / "config.json").rename(tmp_path / "a" / "bert_config.json")
  assert rewrite.model_format(folder) == "huggingface"
  assert read(folder).config["hidden_size"] == 4


@pytest.mark.graph
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_written_back(dtype, tmp_path):
  numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
  weights = {n: t.astype(numpy_dtype) for n, t in tensors().items()}
  source = make_folder(tmp_path / "a", weights, architectures=["BertModel"])
  ours = tmp_path / "ours"
  lines = from_huggingface.convert(source, str(ours))
  assert any(f"--dtype={dtype} writes them back" in line for line in lines)
  to_huggingface.convert(
    str(ours / "bert_model.ckpt"),
    str(ours / "bert_config.json"),
    str(ours / "vocab.txt"),
    str(tmp_path / "theirs"),
    dtype=dtype,
    find_task=records.find,
  )
  written, _ = rewrite.read_huggingface_weights(str(tmp_path / "theirs"))
  for tensor_name, tensor in weights.items():
    found = written[tensor_name.removeprefix("bert.")]
    assert found.dtype == numpy_dtype
    np.testing.assert_array_equal(found, tensor, err_msg=tensor_name)


@pytest.mark.graph
def test_a_checkpoint_of_objects_is_refused_in_one_line(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.Variable([1.0])
    session.run(variable.initializer)
    path = tf.train.Checkpoint(weight=variable).write(
      str(tmp_path / "model"), session=session
    )
  with pytest.raises(InputError, match="object-based checkpoint"):
    rewrite.read_weights(path)


def test_objects_of_tensorflow_models_are_read_by_our_names():
  value = "/.ATTRIBUTES/VARIABLE_VALUE"
  rng = np.random.default_rng(0)
  stored, expected = {}, {}

  def add(name, ours, shape, plain=None):
    stored[f"encoder/{name}{value}"] = rng.normal(size=shape)
    tensor = stored[f"encoder/{name}{value}"]
    expected[ours] = tensor.reshape(plain) if plain else tensor

  parts = ("word", 9), ("position", 7), ("token_type", 2)
  for number, (part, size) in enumerate(parts):
    ours = f"bert/embeddings/{part}_embeddings"
    add(f"layer_with_weights-{number}/embeddings", ours, [size, 6])
  add("layer_with_weights-3/gamma", "bert/embeddings/LayerNorm/gamma", [6])
  for number in range(2):
    theirs = f"layer_with_weights-{number + 4}"
    ours = f"bert/encoder/layer_{number}"
    query = "_attention_layer/_query_dense", "attention/self/query"
    output = "_attention_layer/_output_dense", "attention/output/dense"
    for (scope, name), shape in ((query, [6, 2, 3]), (output, [2, 3, 6])):
      kernel = f"{ours}/{name}/kernel"
      add(f"{theirs}/{scope}/kernel", kernel, shape, [6, 6])
    bias = f"{ours}/attention/self/query/bias"
    add(f"{theirs}/_attention_layer/_query_dense/bias", bias, [2, 3], [6])
    norm = f"{ours}/output/LayerNorm/beta"
    add(f"{theirs}/_output_layer_norm/beta", norm, [6])
  add("layer_with_weights-6/kernel", "bert/pooler/dense/kernel", [6, 6])
  stored[f"masked_lm/dense/kernel{value}"] = np.zeros([6, 6])
  slot = f"encoder/layer_with_weights-0/embeddings/.OPTIMIZER_SLOT/a/m{value}"
  stored[slot] = np.zeros([9, 6])
  found = keras_files.read_objects(stored, stored.get, "model")
  assert found.keys() == expected.keys()
  for name, tensor in expected.items():
    np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize(
  ("theirs", "name"),
  [
    ("bert/tf_bert/bert/embeddings/word_embeddings/weight:0", "embeddings."),
    ("bert/bert/embeddings/position_embeddings/embeddings:0", "embeddings."),
    ("bert/bert/encoder/layer_._3/output/dense/kernel:0", "encoder.layer.3."),
    ("mlm___cls/tf_bert/mlm___cls/predictions/bias:0", "cls.predictions."),
    ("classifier/tf_bert/classifier/kernel:0", "classifier."),
  ],
)
def test_names_of_keras_become_those_of_pytorch(theirs, name):
  found, is_kernel = keras_files.name_in_huggingface(theirs)
  assert found.startswith(name) and found.endswith((".weight", ".bias"))
  assert is_kernel == ("/kernel" in theirs)


def test_a_tf_model_h5_is_read(tmp_path):
  h5py = pytest.importorskip("h5py")
  weights = tensors("BertForSequenceClassification")
  folder = make_folder(tmp_path / "torch", weights, **name("a", "b", "c"))
  expected = read(folder).variables
  (tmp_path / "torch" / "model.safetensors").unlink()
  with h5py.File(tmp_path / "torch" / "tf_model.h5", "w") as file:
    for tensor_name, tensor in weights.items():
      is_kernel = tensor.ndim == 2 and "embeddings" not in tensor_name
      path = tensor_name.replace(".", "/").replace("/layer/", "/layer_._")
      path = path.replace("weight", "kernel") if is_kernel else path
      path = path.replace("LayerNorm/weight", "LayerNorm/gamma")
      path = path.replace("LayerNorm/bias", "LayerNorm/beta")
      top = "classifier" if "classifier" in path else "bert"
      file[f"{top}/tf_bert_for/{path}:0"] = tensor.T if is_kernel else tensor
  found = read(folder).variables
  assert found.keys() == expected.keys()
  for variable, tensor in expected.items():
    np.testing.assert_array_equal(found[variable], tensor)


def test_a_preset_of_keras_hub_is_read(tmp_path):
  h5py = pytest.importorskip("h5py")
  sizes = {
    "vocabulary_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 4,
    "intermediate_dim": 6,
    "dropout": 0.1,
    "max_sequence_length": 5,
    "num_segments": 2,
  }
  preset = {"class_name": "BertBackbone", "config": sizes}
  (tmp_path / "config.json").write_text(json.dumps(preset))
  (tmp_path / "assets" / "tokenizer").mkdir(parents=True)
  vocab = tmp_path / "assets" / "tokenizer" / "vocabulary.txt"
  vocab.write_text("".join(f"{word}\n" for word in WORDS))
  rules = {"class_name": "BertTokenizer", "config": {"lowercase": True}}
  (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
  shapes = {
    "reversible_embedding": [[8, 4]],
    "position_embedding": [[5, 4]],
    "embedding": [[2, 4]],
    "layer_normalization": [[4], [4]],
    "dense": [[4, 4], [4]],
  }
  for layer in ("transformer_encoder", "transformer_encoder_1"):
    for part in ("query", "key", "value"):
      name = f"{layer}/_self_attention_layer/{part}_dense"
      shapes[name] = [[4, 2, 2], [2, 2]]
    shapes |= {
      f"{layer}/_self_attention_layer/output_dense": [[2, 2, 4], [4]],
      f"{layer}/_self_attention_layer_norm": [[4], [4]],
      f"{layer}/_feedforward_intermediate_dense": [[4, 6], [6]],
      f"{layer}/_feedforward_output_dense": [[6, 4], [4]],
      f"{layer}/_feedforward_layer_norm": [[4], [4]],
    }
  rng, stored = np.random.default_rng(0), {}
  with h5py.File(tmp_path / "model.weights.h5", "w") as file:
    for name, both in shapes.items():
      for index, shape in enumerate(both):
        value = rng.normal(size=shape).astype(np.float32)
        stored[name, index] = file[f"layers/{name}/vars/{index}"] = value
  model = read(tmp_path)
  assert model.config["hidden_act"] == "gelu_new"
  assert model.description["do_lower_case"]
  assert len(model.variables) == len(stored)
  for name, key in (
    ("bert/embeddings/word_embeddings", ("reversible_embedding", 0)),
    ("bert/embeddings/LayerNorm/beta", ("layer_normalization", 1)),
    (
      "bert/encoder/layer_1/attention/self/key/kernel",
      ("transformer_encoder_1/_self_attention_layer/key_dense", 0),
    ),
    (
      "bert/encoder/layer_0/attention/output/dense/kernel",
      ("transformer_encoder/_self_attention_layer/output_dense", 0),
    ),
    (
      "bert/encoder/layer_0/output/dense/kernel",
      ("transformer_encoder/_feedforward_output_dense", 0),
    ),
  ):
    found = model.variables[name]
    np.testing.assert_array_equal(found, stored[key].reshape(found.shape))
