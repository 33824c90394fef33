"""Folders of transformers with byte-level BPE or unigram, to the end."""

import functools
import json
import os

import commands
import pytest
import run_outputs
import tiny_subword
from parametrize import parametrize
from reference_data import read_jsonl
from refused import refusal
from safetensors.numpy import load_file

from bertlib.data import vocabulary
from bertlib.exchange import from_huggingface
from bertlib.export import OnnxModel, tokenizer_files

tokenizers = pytest.importorskip("tokenizers", reason=".[tokenizers]")
pytest.importorskip("onnx", reason="pip install -e .[onnx]")
pytest.importorskip("onnxruntime", reason=".[test]")

pytestmark = pytest.mark.unit

TEXTS = ["the cat sat", "a dog, there", "don't play <s> here", "cafés [1]"]


@pytest.mark.train
@parametrize("kind", *tiny_subword.KINDS)
def test_a_classifier_is_trained_evaluated_exported_converted(kind, tmp_path):
  tensors = tiny_subword.write_folder(tmp_path / "theirs", kind)
  rows = "".join(f"{text}\tthe mat\t{n % 2}\n" for n, text in enumerate(TEXTS))
  for split in ("train", "dev"):
    (tmp_path / f"{split}.tsv").write_text(rows)
  (tmp_path / "pairs.txt").write_text("".join(f"{t}\tthe mat\n" for t in TEXTS))
  trained, outputs = tmp_path / "trained", tmp_path / "predictions"
  # The longest text that 16 positions with an offset of 2 have room for.
  commands.succeed(
    "run_classifier.py",
    *("--do_train", "--do_eval", "--task_name=tsv", f"--data_dir={tmp_path}"),
    *("--text_b_column=2", "--label_column=3", "--max_seq_length=14"),
    "--xla=off",
    *("--train_batch_size=2", "--learning_rate=1e-2", "--num_train_epochs=1"),
    f"--init_checkpoint={tmp_path}/theirs",
    f"--output_dir={trained}",
  )
  assert not (trained / "vocab.txt").exists()
  described = json.loads((trained / "model.json").read_text())
  found = vocabulary.hash_of(f"{trained}/tokenizer.json")
  assert found == described["vocab_sha256"]
  commands.succeed(
    "run_classifier.py",
    *("--do_predict", f"--predict_file={tmp_path}/pairs.txt"),
    *(f"--init_checkpoint={trained}", f"--output_dir={outputs}"),
  )
  expected = [
    row["probabilities"]
    for row in read_jsonl(outputs / "pairs_predictions.jsonl")
  ]
  commands.succeed(
    *("export_model.py", "--format=onnx", f"--model_dir={trained}"),
    f"--export_dir={tmp_path}/onnx",
  )
  pairs = [(text, "the mat") for text in TEXTS]
  with OnnxModel(str(tmp_path / "onnx")) as model:
    for found, wanted in zip(model.predict(pairs), expected, strict=True):
      assert found.probabilities == pytest.approx(wanted, abs=1e-5)
  # The tokenizer there makes the same inputs, but for names in texts.
  there = tokenizers.Tokenizer.from_file(f"{tmp_path}/onnx/tokenizer.json")
  encoded = there.encode_batch(pairs[:2])
  assert {len(each.ids) for each in encoded} == {
    max(sum(each.attention_mask) for each in encoded)
  }
  commands.succeed(
    *("convert_checkpoint.py", "--to=huggingface", f"--input={trained}"),
    f"--output={tmp_path}/back",
  )
  names = load_file(tmp_path / "back" / "model.safetensors").keys()
  assert {f"roberta.{n}" for n in tensors if "pooler" not in n} <= names
  assert {"classifier.dense.weight", "classifier.out_proj.bias"} <= names
  config = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
  assert config["model_max_length"] == 14


def write_merges(folder, *added, newline="\n"):
  """Writes a folder of byte-level BPE without a tokenizer.json."""
  tiny_subword.write_folder(folder, "BPE")
  path = folder / "tokenizer.json"
  model = json.loads(path.read_text())["model"]
  path.unlink()
  size = len(model["vocab"])
  vocab = model["vocab"] | {"<mask>": size}
  if added:  # in the place of others, as the model has no room for more
    vocab = {name: i for name, i in vocab.items() if i < size - len(added)}
    names = {name: i for i, name in enumerate(added, len(vocab))}
    (folder / "added_tokens.json").write_text(json.dumps(names))
  merges = [
    " ".join(pair) for pair in model["merges"] if "".join(pair) in vocab
  ]
  lines = ["#version: 0.2", *merges, ""]
  (folder / "vocab.json").write_text(json.dumps(vocab))
  (folder / "merges.txt").write_bytes(newline.join(lines).encode())


def converted(folder, target):
  """The tokenizer of a folder that is converted."""
  from_huggingface.convert(str(folder), str(target))
  return vocabulary.load_tokenizer(f"{target}/tokenizer.json", False)


@parametrize("newline", "\n", "\r\n")
def test_merges_are_converted(tmp_path, newline):
  write_merges(tmp_path / "a", newline=newline)
  tiny_subword.write_folder(tmp_path / "b", "BPE")
  one, other = (converted(tmp_path / n, tmp_path / f"to_{n}") for n in "ab")
  assert one.vocab == other.vocab
  assert one.special_ids == other.special_ids
  assert one.encode(tiny_subword.TEXT) == other.encode(tiny_subword.TEXT)


def test_merges_may_have_added_tokens_in_a_file_of_their_own(tmp_path):
  write_merges(tmp_path / "a", "<mask>", "a dog")
  loaded = converted(tmp_path / "a", tmp_path / "to_a")
  mask, dog = loaded.vocab["<mask>"], loaded.vocab["a dog"]
  assert loaded.special_ids.mask == mask == dog - 1
  assert dog in loaded.encode("the cat, a dog")
  assert mask not in loaded.encode("the <mask>")


def test_an_added_token_behind_a_gap_is_refused(tmp_path):
  write_merges(tmp_path / "a", "<mask>")
  (tmp_path / "a" / "added_tokens.json").write_text('{"dog": 999}')
  message = refusal(from_huggingface.read, str(tmp_path / "a"))
  assert "added_tokens.json: dog does not continue the ids" in message


def test_merges_that_are_none_are_refused_in_one_line(tmp_path):
  write_merges(tmp_path / "a")
  (tmp_path / "a" / "merges.txt").write_text("a b c\n")
  message = refusal(from_huggingface.read, str(tmp_path / "a"))
  assert "merges.txt: tokenizers" in message
  assert "\n" not in message


def test_merges_without_a_vocabulary_are_refused(tmp_path):
  write_merges(tmp_path / "a")
  (tmp_path / "a" / "vocab.json").unlink()
  message = refusal(from_huggingface.read, str(tmp_path / "a"))
  assert "vocab.json: cannot be read (No such file" in message


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
_BYTE_LEVEL |= {"trim_offsets": True, "use_regex": True}


@parametrize("kind", *tiny_subword.KINDS)
@parametrize("processor", None, _BYTE_LEVEL)
def test_special_tokens_that_a_file_lacks_are_named_and_written(
  kind, processor, tmp_path
):
  tiny_subword.write_folder(tmp_path / "a", kind)
  path = tmp_path / "a" / "tokenizer.json"
  run_outputs.edit_json(path, post_processor=processor)
  config = {"tokenizer_class": "PreTrainedTokenizerFast"}
  (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps(config))
  notes = from_huggingface.read(str(tmp_path / "a")).notes
  assert any("adds no special tokens" in note for note in notes)

  loaded = converted(tmp_path / "a", tmp_path / "b")
  description = {"max_seq_length": 9}
  tokenizer_files.write_subword(str(tmp_path), loaded.rules, description, False)
  written = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
  encoded = written.encode(*TEXTS[:2])
  pair = map(loaded.convert_ids_to_tokens, loaded.encode_batch(TEXTS[:2]))
  expected = loaded.special_tokens.join(*pair)
  assert (encoded.tokens, encoded.type_ids) == expected


@parametrize("has_segments", False, True)
def test_the_inputs_of_a_model_are_written(has_segments, tmp_path):
  rules = json.loads(tiny_subword.content("BPE"))
  description = {"max_seq_length": 9}
  options = rules, description, has_segments
  tokenizer_files.write_subword(str(tmp_path), *options)
  config = run_outputs.read_json(tmp_path / "tokenizer_config.json")
  assert ("token_type_ids" in config["model_input_names"]) is has_segments


@parametrize("value", None, "1")
def test_padding_that_decides_positions_is_a_number(tmp_path, value):
  tiny_subword.write_folder(tmp_path / "a", "BPE")
  run_outputs.edit_json(tmp_path / "a" / "config.json", pad_token_id=value)
  message = refusal(from_huggingface.read, str(tmp_path / "a"))
  assert f"pad_token_id is {json.dumps(value)}, but must be" in message


@parametrize("kind", *tiny_subword.KINDS)
def test_files_of_early_versions_do_not_name_their_kind(kind, tmp_path):
  # Those of roberta-base and xlm-roberta-base.
  tiny_subword.write_folder(tmp_path / "a", kind)
  path = tmp_path / "a" / "tokenizer.json"
  rules = json.loads(path.read_text())
  assert rules["model"].pop("type") == kind
  path.write_text(json.dumps(rules))
  loaded = converted(tmp_path / "a", tmp_path / "to_a")
  package = tokenizers.Tokenizer.from_str(tiny_subword.content(kind))
  expected = package.encode("a dog, there", add_special_tokens=False).ids
  assert loaded.encode("a dog, there") == expected


def test_further_heads_are_left_out_by_a_line(tmp_path):
  tiny_subword.write_folder(tmp_path / "a", "Unigram")
  for name in ("sparse_linear.pt", "colbert_linear.pt"):
    (tmp_path / "a" / name).write_bytes(b"")
  notes = from_huggingface.read(str(tmp_path / "a")).notes
  assert "left out: colbert_linear.pt, sparse_linear.pt" in notes


@parametrize(
  "name, message",
  ("bpe.codes", "is a vocabulary of fastBPE"),
  ("sentencepiece.bpe.model", "without a tokenizer.json. Write one with A"),
)
def test_files_of_other_tokenizers_are_refused(name, message, tmp_path):
  tiny_subword.write_folder(tmp_path / "a", "BPE")
  os.rename(tmp_path / "a" / "tokenizer.json", tmp_path / "a" / name)
  assert message in refusal(from_huggingface.read, str(tmp_path / "a"))


def test_casing_is_that_of_the_file(tmp_path):
  tiny_subword.write_folder(tmp_path / "a", "Unigram")
  read = functools.partial(from_huggingface.read, do_lower_case=True)
  assert refusal(read, str(tmp_path / "a")).startswith("--do_lower_case: ")
