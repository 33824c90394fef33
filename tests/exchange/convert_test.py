import errno
import io
import json
import os
import pickle
import re
import shutil
import sys
import types

import commands
import numpy as np
import pytest
import reference_data
import run_outputs
import tensorflow.compat.v1 as tf
from safetensors.numpy import load_file, save_file

import convert_checkpoint
import modeling
from bertlib.checkpoints import records
from bertlib.cli.errors import InputError
from bertlib.exchange import from_huggingface, tensor_names, to_huggingface
from bertlib.io import folder_lock

pytestmark = pytest.mark.graph

# All sizes differ, so that swapped axes are noticed.
CONFIG = {
  "attention_probs_dropout_prob": 0.1,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "hidden_size": 4,
  "initializer_range": 0.02,
  "intermediate_size": 6,
  "max_position_embeddings": 9,
  "model_type": "bert",
  "num_attention_heads": 2,
  "num_hidden_layers": 2,
  "type_vocab_size": 5,
  "vocab_size": 13,
}
VOCAB = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\nsat\n##s\n"
NUM_LABELS = 3

ENCODER = {
  "bert.embeddings.word_embeddings.weight": (13, 4),
  "bert.embeddings.position_embeddings.weight": (9, 4),
  "bert.embeddings.token_type_embeddings.weight": (5, 4),
  "bert.embeddings.LayerNorm.weight": (4,),
  "bert.embeddings.LayerNorm.bias": (4,),
}
for n in range(2):
  ENCODER.update(
    {
      f"bert.encoder.layer.{n}.{name}": shape
      for name, shape in {
        "attention.self.query.weight": (4, 4),
        "attention.self.query.bias": (4,),
        "attention.self.key.weight": (4, 4),
        "attention.self.key.bias": (4,),
        "attention.self.value.weight": (4, 4),
        "attention.self.value.bias": (4,),
        "attention.output.dense.weight": (4, 4),
        "attention.output.dense.bias": (4,),
        "attention.output.LayerNorm.weight": (4,),
        "attention.output.LayerNorm.bias": (4,),
        "intermediate.dense.weight": (6, 4),
        "intermediate.dense.bias": (6,),
        "output.dense.weight": (4, 6),
        "output.dense.bias": (4,),
        "output.LayerNorm.weight": (4,),
        "output.LayerNorm.bias": (4,),
      }.items()
    }
  )
POOLER = {"bert.pooler.dense.weight": (4, 4), "bert.pooler.dense.bias": (4,)}
MASKED_LM = {
  "cls.predictions.bias": (13,),
  "cls.predictions.transform.dense.weight": (4, 4),
  "cls.predictions.transform.dense.bias": (4,),
  "cls.predictions.transform.LayerNorm.weight": (4,),
  "cls.predictions.transform.LayerNorm.bias": (4,),
}
NEXT_SENTENCE = {
  "cls.seq_relationship.weight": (2, 4),
  "cls.seq_relationship.bias": (2,),
}
LABELS = {"classifier.weight": (3, 4), "classifier.bias": (3,)}
CHOICE = {"classifier.weight": (1, 4), "classifier.bias": (1,)}
SPAN = {"qa_outputs.weight": (2, 4), "qa_outputs.bias": (2,)}
# Tensors that transformers 5 saves for each class.
ARCHITECTURES = {
  "BertModel": {
    name[len("bert.") :]: shape for name, shape in {**ENCODER, **POOLER}.items()
  },
  "BertForPreTraining": {**ENCODER, **POOLER, **MASKED_LM, **NEXT_SENTENCE},
  "BertForMaskedLM": {**ENCODER, **MASKED_LM},
  "BertForNextSentencePrediction": {**ENCODER, **POOLER, **NEXT_SENTENCE},
  "BertForSequenceClassification": {**ENCODER, **POOLER, **LABELS},
  "BertForTokenClassification": {**ENCODER, **LABELS},
  "BertForMultipleChoice": {**ENCODER, **POOLER, **CHOICE},
  "BertForQuestionAnswering": {**ENCODER, **SPAN},
}

LABEL_HEADS = [
  "BertForTokenClassification",
  "BertForSequenceClassification",
  "BertForMultipleChoice",
]


def random_bits(shapes, seed=0):
  """Arrays of random float32 bit patterns, including NaN and Inf."""
  rng = np.random.default_rng(seed)
  return {
    name: rng.integers(2**32, size=shape, dtype=np.uint32).view(np.float32)
    for name, shape in shapes.items()
  }


def random_normal(shapes, seed=0):
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def write_json(path, value):
  path.write_text(json.dumps(value))


def make_huggingface(folder, tensors, vocab=VOCAB, **config):
  folder.mkdir()
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
  write_json(folder / "config.json", {**CONFIG, **config})
  (folder / "vocab.txt").write_text(vocab)
  return str(folder)


def make_tensorflow(folder, shapes, vocab=VOCAB, **config):
  """Writes a checkpoint with `tf.train.Saver`, like a training run."""
  folder.mkdir()
  with tf.Graph().as_default(), tf.Session() as session:
    for name, value in random_normal(shapes).items():
      tf.get_variable(name, initializer=value)
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver()
    path = saver.save(session, str(folder / "model.ckpt"), global_step=7)
  write_json(folder / "bert_config.json", {**CONFIG, **config})
  (folder / "vocab.txt").write_text(vocab)
  return path


def tensorflow_shapes(*shapes):
  """Shapes of the TensorFlow variables for Hugging Face tensors."""
  table = tensor_names.name_table(CONFIG["num_hidden_layers"])
  rows = {row.huggingface: row for part in table.values() for row in part}
  return {
    rows[name].tensorflow: shape[::-1] if rows[name].transposed else shape
    for part in shapes
    for name, shape in part.items()
  }


def read_checkpoint(folder):
  reader = tf.train.load_checkpoint(f"{folder}/bert_model.ckpt")
  return {
    name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
  }


def to_tensorflow(folder, tmp_path, **options):
  target = tmp_path / "tensorflow"
  lines = from_huggingface.convert(
    folder, str(target), records.all_records(), **options
  )
  print(*lines, sep="\n")
  return target


def write_huggingface(checkpoint, tmp_path, **options):
  target = tmp_path / "huggingface"
  source = os.path.dirname(checkpoint)
  lines = to_huggingface.convert(
    checkpoint,
    f"{source}/bert_config.json",
    f"{source}/vocab.txt",
    str(target),
    **options,
    find_task=records.find,
  )
  print(*lines, sep="\n")
  return target


def build_graph(config):
  """The encoder and all heads, as the training scripts build them."""
  model = modeling.BertModel(
    config, is_training=False, input_ids=tf.zeros([1, 3], tf.int32)
  )
  modeling.masked_lm_logits(
    config,
    model.get_sequence_output(),
    model.get_embedding_table(),
    tf.zeros([1, 1], tf.int32),
  )
  modeling.next_sentence_logits(config, model.get_pooled_output())
  modeling.span_logits(model.get_sequence_output())
  modeling.classification_logits(model.get_pooled_output(), NUM_LABELS)
  return model


# Names and layouts


def test_the_name_table_matches_the_graph_of_modeling():
  with tf.Graph().as_default():
    build_graph(modeling.BertConfig.from_dict(CONFIG))
    graph = {v.op.name: tuple(v.shape.as_list()) for v in tf.global_variables()}
  assert graph == tensorflow_shapes(
    ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE, SPAN, LABELS
  )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_round_trip_from_huggingface_is_bitwise_exact(architecture, tmp_path):
  tensors = random_bits(ARCHITECTURES[architecture])
  source = make_huggingface(
    tmp_path / "source", tensors, architectures=[architecture]
  )
  middle = to_tensorflow(source, tmp_path)
  target = write_huggingface(f"{middle}/bert_model.ckpt", tmp_path)
  run_outputs.assert_same_bits(load_file(target / "model.safetensors"), tensors)
  assert run_outputs.read_json(target / "config.json")["architectures"] == [
    architecture
  ]
  assert (target / "vocab.txt").read_text() == VOCAB


def test_kernels_alone_are_transposed(tmp_path):
  tensors = random_normal(ARCHITECTURES["BertForPreTraining"])
  target = to_tensorflow(make_huggingface(tmp_path / "a", tensors), tmp_path)
  checkpoint = read_checkpoint(target)
  kernels = {
    name.replace("/layer_", "/layer.").replace("/", "."): value
    for name, value in checkpoint.items()
    if name.endswith("/kernel")
  }
  run_outputs.assert_same_bits(
    kernels,
    {
      name.replace(".weight", ".kernel"): tensor.T
      for name, tensor in tensors.items()
      if re.search(r"(dense|query|key|value)\.weight", name)
    },
  )
  for name, other in (
    ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings"),
    ("cls/seq_relationship/output_weights", "cls.seq_relationship"),
  ):
    np.testing.assert_array_equal(checkpoint[name], tensors[f"{other}.weight"])


# Contents of a Hugging Face folder


def test_old_layer_norm_names_are_read(tmp_path):
  tensors = random_normal(ARCHITECTURES["BertModel"])
  old = {
    name.replace("Norm.weight", "Norm.gamma").replace(
      "Norm.bias", "Norm.beta"
    ): tensor
    for name, tensor in tensors.items()
  }
  target = to_tensorflow(make_huggingface(tmp_path / "old", old), tmp_path)
  np.testing.assert_array_equal(
    read_checkpoint(target)["bert/embeddings/LayerNorm/gamma"],
    tensors["embeddings.LayerNorm.weight"],
  )


def test_position_ids_and_equal_copies_are_left_out_and_named(tmp_path, capsys):
  tensors = random_normal(ARCHITECTURES["BertForMaskedLM"])
  extra = {
    "bert.embeddings.position_ids": np.arange(9)[np.newaxis],
    "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
    "cls.predictions.decoder.weight": tensors[
      "bert.embeddings.word_embeddings.weight"
    ],
  }
  source = make_huggingface(tmp_path / "copies", {**tensors, **extra})
  target = to_tensorflow(source, tmp_path)
  assert f"left out: {', '.join(extra)}\n" in capsys.readouterr().out
  assert len(read_checkpoint(target)) == len(tensors)


def zeros(*shape, dtype=np.float32):
  return np.zeros(shape, dtype)


@pytest.mark.parametrize(
  ("changed", "config", "message"),
  [
    ({"bert.embeddings.LayerNorm.gamma": zeros(4)}, {}, "Norm.weight twice"),
    ({"cls.predictions.decoder.weight": zeros(13, 4)}, {}, "weight differs"),
    ({"cls.predictions.decoder.bias": zeros(13)}, {}, "decoder.bias differs"),
    (
      {"adapter.up": zeros(2), "lm_head.bias": zeros(13)},
      {},
      "does not have: adapter.up, lm_head.bias",
    ),
    (
      {
        "bert.encoder.layer.1.output.dense.bias": None,
        "cls.predictions.transform.dense.weight": None,
      },
      {},
      "has no bert.encoder.layer.1.output.dense.bias, cls.pred",
    ),
    (
      {"bert.embeddings.LayerNorm.bias": zeros(4, dtype=np.float64)},
      {},
      "bert.embeddings.LayerNorm.bias (float64)",
    ),
    ({}, {"num_hidden_layers": 1}, "not have: bert.encoder.layer.1"),
    ({}, {"intermediate_size": 8}, "intermediate.dense.weight is (6, 4)"),
    ({}, {"vocab": "a\n" * 14}, "has 14 pieces, the model only 13"),
    ({}, {"model_type": "roberta"}, 'model_type is "roberta"'),
    ({}, {"position_embedding_type": "relative_key"}, '"relative_key"'),
    ({}, {"is_decoder": True}, "is_decoder is true"),
    ({}, {"add_cross_attention": True}, "add_cross_attention is true"),
    ({}, {"hidden_act": "silu"}, 'hidden_act "silu"'),
  ],
)
def test_tensors_and_models_that_do_not_fit_are_refused(
  changed, config, message, tmp_path
):
  tensors = random_normal(ARCHITECTURES["BertForMaskedLM"]) | changed
  tensors = {name: t for name, t in tensors.items() if t is not None}
  source = make_huggingface(tmp_path / "source", tensors, **config)
  with pytest.raises(InputError, match=re.escape(message)):
    to_tensorflow(source, tmp_path)


def test_a_copy_replaces_a_missing_original(tmp_path):
  tensors = random_normal(ARCHITECTURES["BertForMaskedLM"])
  bias = tensors.pop("cls.predictions.bias")
  tensors["cls.predictions.decoder.bias"] = bias
  target = to_tensorflow(make_huggingface(tmp_path / "a", tensors), tmp_path)
  np.testing.assert_array_equal(
    read_checkpoint(target)["cls/predictions/output_bias"], bias
  )


def test_all_shards_are_read(tmp_path):
  tensors = random_bits(ARCHITECTURES["BertModel"])
  source = tmp_path / "shards"
  make_huggingface(source, tensors)
  os.remove(source / "model.safetensors")
  names = sorted(tensors)
  shards = {"one.safetensors": names[:9], "two.safetensors": names[9:]}
  for shard, held in shards.items():
    save_file({name: tensors[name] for name in held}, source / shard)
  weight_map = {name: shard for shard in shards for name in shards[shard]}
  write_json(
    source / "model.safetensors.index.json", {"weight_map": weight_map}
  )
  middle = to_tensorflow(str(source), tmp_path)
  target = write_huggingface(f"{middle}/bert_model.ckpt", tmp_path)
  run_outputs.assert_same_bits(load_file(target / "model.safetensors"), tensors)


@pytest.mark.parametrize("dtype", [np.float16, tf.bfloat16.as_numpy_dtype])
def test_16_bit_tensors_become_float32_exactly(dtype, tmp_path, capsys):
  tensors = random_normal(ARCHITECTURES["BertModel"])
  name = "embeddings.word_embeddings.weight"
  tensors[name] = tensors[name].astype(dtype)
  target = to_tensorflow(make_huggingface(tmp_path / "half", tensors), tmp_path)
  wide = read_checkpoint(target)["bert/embeddings/word_embeddings"]
  assert wide.dtype == np.float32
  np.testing.assert_array_equal(wide.astype(dtype), tensors[name])
  assert (
    f"widened: 1 tensors of {np.dtype(dtype).name}" in capsys.readouterr().out
  )


def test_a_truncated_safetensors_file_is_refused(tmp_path):
  source = tmp_path / "truncated"
  make_huggingface(source, random_normal(ARCHITECTURES["BertModel"]))
  content = (source / "model.safetensors").read_bytes()
  (source / "model.safetensors").write_bytes(content[:-1])
  with pytest.raises(InputError, match="safetensors: incomplete or corrupt"):
    to_tensorflow(str(source), tmp_path)


# pytorch_model.bin


def make_pytorch(folder, content):
  make_huggingface(folder, random_normal(ENCODER))
  os.remove(folder / "model.safetensors")
  (folder / "pytorch_model.bin").write_bytes(content)
  return str(folder)


def test_pytorch_weights_are_read(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = random_bits(ARCHITECTURES["BertForSequenceClassification"])
  file = io.BytesIO()
  torch.save({n: torch.from_numpy(t) for n, t in tensors.items()}, file)
  source = make_pytorch(tmp_path / "bin", file.getvalue())
  middle = to_tensorflow(source, tmp_path)
  target = write_huggingface(f"{middle}/bert_model.ckpt", tmp_path)
  run_outputs.assert_same_bits(load_file(target / "model.safetensors"), tensors)


def test_pytorch_weights_are_written(tmp_path):
  torch = pytest.importorskip("torch")
  tensors = random_bits(ARCHITECTURES["BertForSequenceClassification"])
  middle = to_tensorflow(make_huggingface(tmp_path / "a", tensors), tmp_path)
  target = write_huggingface(
    f"{middle}/bert_model.ckpt", tmp_path, as_pytorch=True
  )
  assert not (target / "model.safetensors").exists()
  written = torch.load(target / "pytorch_model.bin", weights_only=True)
  run_outputs.assert_same_bits(
    {name: tensor.numpy() for name, tensor in written.items()}, tensors
  )


@pytest.mark.unit
def test_without_pytorch_its_file_is_not_written(tmp_path, monkeypatch):
  source = make_huggingface(tmp_path / "a", random_normal(ENCODER))
  checkpoint = f"{to_tensorflow(source, tmp_path)}/bert_model.ckpt"
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(InputError, match="can write it: pip install torch"):
    write_huggingface(checkpoint, tmp_path, as_pytorch=True)
  assert not (tmp_path / "huggingface").exists()


@pytest.mark.unit
@pytest.mark.parametrize(
  ("make", "module", "found", "message"),
  [
    (make_huggingface, "safetensors.numpy", None, "pip install safetensors"),
    (make_pytorch, "torch", None, "can read it: pip install torch"),
    (
      make_pytorch,
      "torch",
      types.SimpleNamespace(__version__="2.5.1+cpu"),
      r"needs PyTorch 2\.6 .* not 2\.5\.1",
    ),
  ],
)
def test_a_package_that_reading_needs_is_named(
  tmp_path, monkeypatch, make, module, found, message
):
  content = b"" if make is make_pytorch else random_normal(ENCODER)
  source = make(tmp_path / "source", content)
  monkeypatch.setitem(sys.modules, module, found)
  with pytest.raises(InputError, match=message):
    to_tensorflow(source, tmp_path)


@pytest.mark.unit
def test_pytorch_weights_beside_others_are_refused(tmp_path, monkeypatch):
  source = make_huggingface(tmp_path / "a", random_normal(ENCODER))
  checkpoint = f"{to_tensorflow(source, tmp_path)}/bert_model.ckpt"
  target = write_huggingface(checkpoint, tmp_path)
  before = (target / "model.safetensors").read_bytes()
  monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
  with pytest.raises(InputError, match="would read it instead of pytorch_mod"):
    write_huggingface(checkpoint, tmp_path, overwrite=True, as_pytorch=True)
  assert (target / "model.safetensors").read_bytes() == before


class MakesFolder:
  """Creates a folder when unpickled, which shows that code was executed."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (self.path,)


@pytest.mark.unit
@pytest.mark.parametrize("form", ["pickle", "zip"])
def test_pickled_code_is_not_executed(form, tmp_path):
  torch = pytest.importorskip("torch")
  mark = tmp_path / "mark"
  harmful = {"embeddings.word_embeddings.weight": MakesFolder(str(mark))}
  file = io.BytesIO()
  if form == "zip":
    torch.save(harmful, file)
  else:
    pickle.dump(harmful, file)
  source = make_pytorch(tmp_path / "bin", file.getvalue())
  with pytest.raises(InputError, match="corrupt, or contains more than weigh"):
    to_tensorflow(source, tmp_path)
  assert not mark.exists()


# Config, vocabulary, labels


@pytest.mark.parametrize(
  "huggingface_name, name",
  [
    ("gelu", "gelu"),
    ("gelu_new", "gelu_new"),
    ("gelu_pytorch_tanh", "gelu_tanh"),
    ("relu", "relu"),
    ("tanh", "tanh"),
    ("linear", "linear"),
  ],
)
def test_activations_are_renamed_both_ways(huggingface_name, name, tmp_path):
  source = make_huggingface(
    tmp_path / "a", random_normal(ENCODER), hidden_act=huggingface_name
  )
  middle = to_tensorflow(source, tmp_path)
  target = write_huggingface(f"{middle}/bert_model.ckpt", tmp_path)
  names = [
    run_outputs.read_json(folder / file)["hidden_act"]
    for folder, file in ((middle, "bert_config.json"), (target, "config.json"))
  ]
  assert names == [name, huggingface_name]


def test_other_keys_of_the_config_survive_a_round_trip(tmp_path):
  keys = {
    "layer_norm_eps": 1e-5,
    "problem_type": "multi_label_classification",
    "id2label": {"0": "nein", "1": "vielleicht", "2": "ja"},
    "label2id": {"nein": 0, "vielleicht": 1, "ja": 2},
    "architectures": ["BertForSequenceClassification"],
  }
  tensors = random_normal(ARCHITECTURES["BertForSequenceClassification"])
  source = make_huggingface(
    tmp_path / "a", tensors, torch_dtype="float16", **keys
  )
  middle = to_tensorflow(source, tmp_path)
  target = write_huggingface(f"{middle}/bert_model.ckpt", tmp_path)
  assert run_outputs.read_json(target / "config.json") == {**CONFIG, **keys}


def test_labels_come_from_the_training_run(tmp_path):
  shapes = tensorflow_shapes(ENCODER, POOLER, LABELS)
  stale = {"0": "x", "1": "y", "2": "z"}
  checkpoint = make_tensorflow(tmp_path / "run", shapes, id2label=stale)
  write_json(
    tmp_path / "run" / "model.json", {"task": "tsv", "labels": ["a", "b", "c"]}
  )
  target = write_huggingface(checkpoint, tmp_path)
  config = run_outputs.read_json(target / "config.json")
  assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
  assert config["label2id"] == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
  "trained, architecture, problem_type",
  [
    ("run_ner", "BertForTokenClassification", None),
    (
      "run_classifier classification",
      "BertForSequenceClassification",
      "single_label_classification",
    ),
    (
      "run_classifier multi_label",
      "BertForSequenceClassification",
      "multi_label_classification",
    ),
    (
      "run_classifier regression",
      "BertForSequenceClassification",
      "regression",
    ),
    ("run_classifier multiple_choice", "BertForMultipleChoice", None),
  ],
)
def test_the_architecture_is_that_of_the_training_run(
  trained, architecture, problem_type, tmp_path
):
  checkpoint = make_tensorflow(
    tmp_path / "run",
    tensorflow_shapes(ENCODER, POOLER, CHOICE),
    architectures=[name for name in LABEL_HEADS if name != architecture],
    problem_type="of an earlier model",
  )
  description = dict(zip(("script", "kind"), trained.split()))
  if trained == "run_ner":
    description["labels"] = ["O", "B-PER", "I-PER"]
  write_json(tmp_path / "run" / "model.json", description)
  target = write_huggingface(checkpoint, tmp_path)
  config = run_outputs.read_json(target / "config.json")
  assert config["architectures"] == [architecture]
  assert config.get("problem_type") == problem_type


def test_labels_for_a_head_of_another_size_are_ignored(tmp_path):
  shapes = tensorflow_shapes(ENCODER, POOLER, LABELS)
  checkpoint = make_tensorflow(
    tmp_path / "run", shapes, id2label={"0": "no", "1": "yes"}
  )
  config = run_outputs.read_json(
    write_huggingface(checkpoint, tmp_path) / "config.json"
  )
  assert list(config["id2label"].values()) == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize("num_pieces", [9, 2])
def test_the_vocabulary_comes_from_tokenizer_json(tmp_path, num_pieces):
  source = tmp_path / "fast"
  make_huggingface(source, random_normal(ENCODER))
  os.remove(source / "vocab.txt")
  pieces = VOCAB.split()[:num_pieces]
  ids = {piece: i for i, piece in enumerate(pieces)}
  content = {
    "added_tokens": [{"id": 9, "content": "[NEW]"}],
    "model": {"type": "WordPiece", "vocab": dict(reversed(ids.items()))},
    "normalizer": {"type": "BertNormalizer", "lowercase": True},
  }
  write_json(source / "tokenizer.json", content)
  if num_pieces < 9:
    with pytest.raises(InputError, match=r"tokenizer\.json: the ids have gaps"):
      to_tensorflow(str(source), tmp_path)
    return
  target = to_tensorflow(str(source), tmp_path)
  assert (target / "vocab.txt").read_text() == VOCAB + "[NEW]\n"


@pytest.mark.parametrize(
  "file, content",
  [
    ("added_tokens.json", {"dog": 9, "cow": 10}),
    (
      "tokenizer_config.json",
      {
        "added_tokens_decoder": {
          "10": {"content": "cow"},
          "9": {"content": "dog"},
          "0": {"content": "[PAD]"},
        }
      },
    ),
    (
      "tokenizer.json",
      {
        "added_tokens": [
          {"id": 0, "content": "[PAD]"},
          {"id": 9, "content": "dog"},
          {"id": 10, "content": "cow"},
        ]
      },
    ),
  ],
)
@pytest.mark.parametrize("ending", ["", "\n"])
def test_added_tokens_are_appended_to_the_vocabulary(
  file, content, ending, tmp_path
):
  source = tmp_path / "a"
  make_huggingface(source, random_normal(ENCODER), VOCAB.strip() + ending)
  write_json(source / file, content)
  target = to_tensorflow(str(source), tmp_path)
  assert (target / "vocab.txt").read_text() == VOCAB + "dog\ncow\n"


@pytest.mark.parametrize(
  "added, num_appended",
  [
    ({"gap": 10}, 0),
    ({"a": 9, "two\nlines": 10, "b": 11}, 1),
    ({"a": 9, "b": 10, "c": 11, "d": 12, "beyond vocab_size": 13}, 4),
  ],
)
def test_added_tokens_that_do_not_continue_the_vocabulary_are_named(
  added, num_appended, tmp_path, capsys
):
  source = tmp_path / "a"
  make_huggingface(source, random_normal(ENCODER))
  write_json(source / "added_tokens.json", added)
  target = to_tensorflow(str(source), tmp_path)
  appended, left_out = [*added][:num_appended], [*added][num_appended:]
  pieces = (target / "vocab.txt").read_text().split("\n")
  assert pieces == [*VOCAB.split(), *appended, ""]
  names = ", ".join(map(repr, left_out))
  assert f"are left out: {names}\n" in capsys.readouterr().out


@pytest.mark.unit
def test_a_folder_without_vocabulary_is_refused(tmp_path):
  source = tmp_path / "a"
  make_huggingface(source, random_normal(ENCODER))
  os.remove(source / "vocab.txt")
  with pytest.raises(InputError, match=r"has no vocab\.txt .* --vocab_file"):
    to_tensorflow(str(source), tmp_path)


def do_lower_case_of(folder, tmp_path, **options):
  target = to_tensorflow(str(folder), tmp_path, **options)
  return run_outputs.read_json(target / "bert_config.json")["do_lower_case"]


@pytest.mark.parametrize(
  ("file", "content", "options", "lowercase"),
  [
    ("tokenizer_config.json", {"do_lower_case": False}, {}, False),
    ("tokenizer_config.json", {"do_lower_case": True}, {}, True),
    (
      "tokenizer_config.json",
      {"do_lower_case": True},
      {"do_lower_case": False},
      False,
    ),
    (
      "tokenizer.json",
      {"normalizer": {"type": "BertNormalizer", "lowercase": False}},
      {},
      False,
    ),
  ],
)
def test_casing_comes_from_files_of_the_tokenizer_or_the_argument(
  file, content, options, lowercase, tmp_path
):
  source = tmp_path / "a"
  make_huggingface(source, random_normal(ENCODER))
  write_json(source / file, content)
  assert do_lower_case_of(source, tmp_path, **options) is lowercase


@pytest.mark.parametrize(
  "name, lowercase",
  [
    ("uncased", True),
    ("cased", False),
    ("chinese", True),
    ("multi_cased", False),
  ],
)
def test_casing_is_inferred_from_capital_letters(name, lowercase, tmp_path):
  vocab_file = reference_data.vocab(name)
  tensors = random_normal(ENCODER)
  name = "bert.embeddings.word_embeddings.weight"
  tensors[name] = np.zeros((120000, 4), np.float32)
  source = make_huggingface(tmp_path / "a", tensors, vocab_size=120000)
  found = do_lower_case_of(source, tmp_path, vocab_file=vocab_file)
  assert found is lowercase


def test_casing_is_written_to_tokenizer_config(tmp_path):
  checkpoint = make_tensorflow(
    tmp_path / "run", tensorflow_shapes(ENCODER, POOLER), do_lower_case=False
  )
  target = write_huggingface(checkpoint, tmp_path)
  config = run_outputs.read_json(target / "tokenizer_config.json")
  assert config["do_lower_case"] is False


def test_unsupported_tokenizer_options_are_reported(tmp_path, capsys):
  source = tmp_path / "a"
  make_huggingface(source, random_normal(ENCODER))
  write_json(
    source / "tokenizer_config.json",
    {"do_lower_case": True, "strip_accents": False},
  )
  to_tensorflow(str(source), tmp_path)
  assert "not support strip_accents=False" in capsys.readouterr().out


# Contents of a checkpoint


def test_optimizer_state_is_left_out_and_counted(tmp_path, capsys):
  shapes = tensorflow_shapes(ENCODER, POOLER)
  kernel = "bert/pooler/dense/kernel"
  state = {
    f"{kernel}/adam_m": (4, 4),
    f"{kernel}/adam_v": (4, 4),
    "loss_scale/scale": (),
    "global_step": (),
  }
  checkpoint = make_tensorflow(tmp_path / "run", {**shapes, **state})
  target = write_huggingface(checkpoint, tmp_path)
  assert len(load_file(target / "model.safetensors")) == len(shapes)
  assert "left out: 4 tensors of the optimizer" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("parts", "more", "architecture", "message"),
  [
    (
      [ENCODER, POOLER, NEXT_SENTENCE, LABELS],
      {},
      None,
      "a label head and a next sentence head.*--architecture",
    ),
    ([ENCODER], {}, "BertForQuestionAnswering", "has no span head, which Bert"),
    (
      [ENCODER],
      {"bert/embedding_hidden/kernel": (4, 4)},
      None,
      "does not have: bert/embedding_hidden/ker",
    ),
  ],
)
def test_variables_that_no_class_has_are_refused(
  parts, more, architecture, message, tmp_path
):
  shapes = tensorflow_shapes(*parts) | more
  checkpoint = make_tensorflow(tmp_path / "run", shapes)
  with pytest.raises(InputError, match=message):
    write_huggingface(checkpoint, tmp_path, architecture=architecture)


def test_heads_that_the_architecture_lacks_are_left_out(tmp_path, capsys):
  shapes = tensorflow_shapes(ENCODER, POOLER, NEXT_SENTENCE, LABELS)
  checkpoint = make_tensorflow(tmp_path / "run", shapes)
  architecture = "BertForNextSentencePrediction"
  target = write_huggingface(checkpoint, tmp_path, architecture=architecture)
  shapes = {
    n: t.shape for n, t in load_file(target / "model.safetensors").items()
  }
  assert shapes == ARCHITECTURES[architecture]
  assert "left out: output_bias, output_weights" in capsys.readouterr().out


def test_an_outdated_architecture_in_the_config_is_ignored(tmp_path):
  shapes = tensorflow_shapes(ENCODER, POOLER, LABELS)
  checkpoint = make_tensorflow(
    tmp_path / "run", shapes, architectures=["BertModel"]
  )
  config = run_outputs.read_json(
    write_huggingface(checkpoint, tmp_path) / "config.json"
  )
  assert config["architectures"] == ["BertForSequenceClassification"]


# Output files


def test_files_are_replaced_only_with_overwrite(tmp_path):
  tensors = [random_bits(ARCHITECTURES["BertModel"], seed) for seed in (1, 2)]
  first, other = (
    make_huggingface(tmp_path / str(number), each)
    for number, each in enumerate(tensors)
  )
  target = to_tensorflow(first, tmp_path)
  before = read_checkpoint(target)
  with pytest.raises(InputError, match=r"bert_config.json, .* --overwrite"):
    to_tensorflow(other, tmp_path)
  run_outputs.assert_same_bits(read_checkpoint(target), before)
  to_tensorflow(other, tmp_path, overwrite=True)
  again = write_huggingface(f"{target}/bert_model.ckpt", tmp_path)
  written = load_file(again / "model.safetensors")
  run_outputs.assert_same_bits(written, tensors[1])


@pytest.fixture
def large_model(tmp_path):
  shapes = {**ENCODER, "bert.embeddings.word_embeddings.weight": (9000, 4)}
  source = make_huggingface(
    tmp_path / "source", random_bits(shapes), vocab_size=9000
  )
  to_tensorflow(source, tmp_path)
  return tmp_path


@pytest.mark.process
@pytest.mark.parametrize("kind", ["source", "tensorflow"])
def test_a_full_disk_leaves_no_incomplete_folder(large_model, kind):
  line = commands.fail(
    "convert_checkpoint.py",
    f"--input={large_model / kind}",
    f"--output={large_model / 'target'}",
    largest_file=8192,
  )
  assert os.strerror(errno.EFBIG) in line
  assert sorted(os.listdir(large_model)) == ["source", "tensorflow"]


# The command line


@pytest.fixture
def main(tmp_path):
  """Runs the script with flags; returns the names of its output files."""
  target = tmp_path / "output"
  with commands.in_process(convert_checkpoint) as run:

    def main(source, *flags):
      run(f"--input={source}", f"--output={target}", *flags)
      return sorted(os.listdir(target)) if target.exists() else []

    yield main


def test_a_folder_in_both_formats_is_read_as_to_asks_for(main, tmp_path):
  folder = tmp_path / "both"
  make_huggingface(folder, random_bits(ENCODER))
  converted = to_tensorflow(str(folder), tmp_path)
  for file in os.listdir(converted):
    os.replace(converted / file, folder / file)
  with pytest.raises(InputError, match="holds a TensorFlow checkpoint and"):
    main(folder)
  assert "bert_model.ckpt.index" in main(folder, "--to=tensorflow")
  shutil.rmtree(tmp_path / "output")
  assert main(folder, "--to=huggingface") == [
    "config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "vocab.txt",
  ]


def test_a_missing_config_is_refused(main, tmp_path):
  checkpoint = make_tensorflow(tmp_path / "run", tensorflow_shapes(ENCODER))
  os.remove(tmp_path / "run" / "bert_config.json")
  with pytest.raises(InputError, match="Name the file with --bert_config"):
    main(checkpoint)


def test_the_command_prints_what_it_read_and_wrote(tmp_path):
  tensors = random_bits(ARCHITECTURES["BertForPreTraining"])
  source = make_huggingface(tmp_path / "source", tensors)
  target = tmp_path / "target"
  done = commands.succeed(
    "convert_checkpoint.py", f"--input={source}", f"--output={target}"
  )
  assert done.stdout == (
    f"read: {source}/model.safetensors, 46 tensors\n"
    "do_lower_case: True, by the capital letters in the vocabulary\n"
    "task: run_pretraining, fills masks\n"
    f"written: {target}/bert_model.ckpt, 46 tensors, 495 parameters"
    " (encoder, pooler, masked LM head, next sentence head)\n"
  )


# Rewriting and comparing


@pytest.fixture
def run_of_two_steps(tmp_path):
  """Output folder of training, with two checkpoints whose weights differ."""
  folder = tmp_path / "run"
  folder.mkdir()
  write_json(folder / "bert_config.json", CONFIG)
  (folder / "vocab.txt").write_text(VOCAB)
  with tf.Graph().as_default(), tf.Session() as session:
    variables = [
      tf.get_variable(name, initializer=value)
      for name, value in random_normal(tensorflow_shapes(ENCODER)).items()
    ]
    tf.get_variable("bert/embeddings/LayerNorm/beta/adam_m", [4])
    step = tf.train.create_global_step()
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver()
    for _ in range(2):
      session.run([step.assign_add(1), [v.assign_add(v) for v in variables]])
      saver.save(session, str(folder / "model.ckpt"), step)
  return folder


BETA = "bert/embeddings/LayerNorm/beta"


@pytest.mark.parametrize("form", ["{0}/model.ckpt-1,{0}/model.ckpt-2", "{0}"])
def test_checkpoints_are_averaged_stripped_and_renamed(
  form, main, run_of_two_steps, tmp_path
):
  flags = ["--average=2", "--rename=^bert/=>b/"]
  main(form.format(run_of_two_steps), *flags)
  averaged = run_outputs.read_variables(tmp_path / "output" / "model.ckpt-2")
  assert f"{BETA}/adam_m".replace("bert", "b") not in averaged
  np.testing.assert_array_equal(
    averaged[BETA.replace("bert", "b")],
    1.5 * run_outputs.read_variables(run_of_two_steps / "model.ckpt-1")[BETA],
  )


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--dry_run"], "--dry_run: needs --rename"),
    (["--text_file=x"], "--text_file: needs --compare"),
    (["--average=3"], "keeps 2 checkpoints of a training run, not 3"),
    (["--strip_optimizer", "--to=huggingface"], "with a second command"),
    (["--rename=a=>b", "--compare=x"], "with a second command"),
    (["--output="], "--output=: names no file or folder"),
  ],
)
def test_incompatible_flags_are_refused(flags, message, main, run_of_two_steps):
  with pytest.raises(InputError, match=message):
    main(run_of_two_steps, *flags)


def test_a_checkpoint_agrees_with_its_converted_folder(
  main, run_of_two_steps, tmp_path, capsys
):
  checkpoint = str(run_of_two_steps / "model.ckpt-2")
  target = write_huggingface(checkpoint, tmp_path)
  assert main(checkpoint, f"--compare={target}") == []
  assert capsys.readouterr().out.endswith(
    f"{len(ENCODER)} variables are bitwise equal, 0 are not\n"
    "they agree within 0.0001\n"
  )


def test_the_exit_status_is_1_if_models_differ(run_of_two_steps, tmp_path):
  text_file = tmp_path / "text.txt"
  text_file.write_text("the cat sat\n")
  done = commands.run(
    "convert_checkpoint.py",
    f"--input={run_of_two_steps}/model.ckpt-1",
    f"--compare={run_of_two_steps}",
    f"--text_file={text_file}",
    "--do_lower_case",
  )
  assert done.returncode == 1
  assert done.stdout.endswith("they do not agree within 0.0001\n")


# Invalid input


# The output


@pytest.mark.parametrize(
  ("to", "name"),
  [("tensorflow", "bert_config.json"), ("huggingface", "config.json")],
)
def test_an_existing_output_is_refused_before_weights_are_read(
  tmp_path, to, name
):
  source, target = tmp_path / "source", tmp_path / "target"
  for folder, file in ((source, "config.json"), (target, name)):
    folder.mkdir()
    (folder / file).write_text("{}")
  with (
    commands.in_process(convert_checkpoint) as run,
    pytest.raises(InputError, match=rf"target: has {name} already"),
  ):
    run(f"--input={source}", f"--output={target}", f"--to={to}")


def test_an_output_that_another_process_writes_is_refused(tmp_path):
  target = tmp_path / "target"
  with (
    commands.in_process(convert_checkpoint) as run,
    folder_lock.lock_files([str(target)]),
    pytest.raises(InputError, match=r"target: process .* another --output$"),
  ):
    run("--input=nowhere", f"--output={target}/")
