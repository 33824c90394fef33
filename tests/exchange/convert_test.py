"""Tests of convert_checkpoint.py: its outputs, its modes, what it refuses."""

import errno
import os
import shutil

import commands
import numpy as np
import pytest
import run_outputs
import tensorflow.compat.v1 as tf
import tiny_huggingface as tiny
from parametrize import parametrize
from refused import assert_refused
from safetensors.numpy import load_file
from tiny_huggingface import ENCODER

import convert_checkpoint
from bertlib.checkpoints import checkpoint_files
from bertlib.cli.errors import InputError
from bertlib.io import folder_lock

pytestmark = pytest.mark.graph
BETA = "bert/embeddings/LayerNorm/beta"


@pytest.fixture
def main(tmp_path):
  """Runs the script with flags; returns the names of its output files."""
  target = tmp_path / "output"
  with commands.in_process(convert_checkpoint) as run:

    def main(source, *flags):
      run(f"--input={source}", f"--output={target}", *flags)
      return sorted(os.listdir(target)) if target.exists() else []

    yield main


def test_the_command_prints_what_it_read_and_wrote(tmp_path):
  weights = tiny.tensors("BertForPreTraining")
  source = tiny.write_folder(tmp_path / "source", weights)
  target = tmp_path / "target"
  paths = f"--input={source}", f"--output={target}"
  done = commands.succeed("convert_checkpoint.py", *paths)
  size = sum(tensor.size for tensor in weights.values())
  assert done.stdout == (
    f"read: {source}/model.safetensors, 46 tensors\n"
    "do_lower_case: True, by the capital letters in the vocabulary\n"
    f"written: {target}/bert_model.ckpt, 46 tensors, {size:,} parameters"
    " (encoder, pooler, masked LM head, next sentence head)\n"
  )


def test_files_are_replaced_only_with_overwrite(tmp_path):
  first, other = (tiny.tensors(seed=seed) for seed in range(2))
  target = tmp_path / "ours"
  checkpoint, _ = tiny.convert(tiny.write_folder(tmp_path / "1", first), target)
  before = run_outputs.read_variables(checkpoint)
  source = tiny.write_folder(tmp_path / "2", other)
  with pytest.raises(InputError, match=r"bert_config.json, .* --overwrite"):
    tiny.convert(source, target)
  run_outputs.assert_same_bits(run_outputs.read_variables(checkpoint), before)
  tiny.convert(source, target, overwrite=True)
  tiny.convert_back(checkpoint, tmp_path / "again")
  written = load_file(tmp_path / "again" / "model.safetensors")
  run_outputs.assert_same_bits(written, other)


@pytest.mark.process
@parametrize("kind", "source", "ours")
def test_a_full_disk_leaves_no_incomplete_folder(kind, tmp_path):
  weights = tiny.tensors()
  weights["embeddings.word_embeddings.weight"] = np.zeros((9000, 4), np.float32)
  source = tiny.write_folder(tmp_path / "source", weights, vocab_size=9000)
  tiny.convert(source, tmp_path / "ours")
  paths = f"--input={tmp_path}/{kind}", f"--output={tmp_path}/target"
  line = commands.fail("convert_checkpoint.py", *paths, largest_file=8192)
  assert os.strerror(errno.EFBIG) in line
  assert sorted(os.listdir(tmp_path)) == ["ours", "source"]


def test_an_output_that_another_process_writes_is_refused(main, tmp_path):
  target = str(tmp_path / "output")
  with (
    folder_lock.lock_files([target]),
    pytest.raises(InputError, match=r"output: process .* another --output$"),
  ):
    main("nowhere", f"--output={target}/")


def test_a_folder_in_both_formats_is_read_as_to_asks_for(main, tmp_path):
  folder = tmp_path / "both"
  tiny.write_folder(folder)
  tiny.convert(folder, tmp_path / "ours")
  for file in os.listdir(tmp_path / "ours"):
    os.replace(tmp_path / "ours" / file, folder / file)
  assert_refused("both: has two models, bert_model", main, folder)
  assert "bert_model.ckpt.index" in main(folder, "--to=tensorflow")
  shutil.rmtree(tmp_path / "output")
  assert main(folder, "--to=huggingface") == [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
  ]


def test_a_missing_config_is_refused(main, tmp_path):
  shapes = tiny.variable_shapes(ENCODER)
  checkpoint = tiny.write_checkpoint(tmp_path / "run", shapes)
  (tmp_path / "run" / "bert_config.json").unlink()
  assert_refused("Name the file with --bert_config", main, checkpoint)


@parametrize(
  "source, message",
  ({"words": [*"abcd"]}, r"\(vocab.txt: the vocabulary has no \[UNK\], "),
  (
    {
      "files": {
        "modules.json": [
          {"type": f"sentence_transformers.models.{name}", "path": path}
          for name, path in (("Transformer", ""), ("Pooling", "."))
        ],
        "tokenizer_config.json": {"model_max_length": 2},
      }
    },
    r"\(model.json: max_seq_length is 2, not an integer from 3",
  ),
)
def test_what_cannot_be_used_is_not_written(source, message, tmp_path):
  folder = tiny.write_folder(tmp_path / "source", **source)
  fault = f"source: cannot .* converted {message}"
  assert_refused(fault, tiny.convert, folder, tmp_path / "ours")
  assert not (tmp_path / "ours").exists()


@pytest.fixture
def run_of_two_steps(tmp_path):
  """Output folder of training, with two checkpoints whose weights differ."""
  shapes = tiny.variable_shapes(ENCODER) | {f"{BETA}/adam_m": (4,)}
  first = tiny.write_checkpoint(tmp_path / "run", shapes)
  last = str(tmp_path / "run" / "model.ckpt-9")
  doubled = {n: 2 * v for n, v in run_outputs.read_variables(first).items()}
  checkpoint_files.write_variables(last, doubled)
  names = [f"{tmp_path}/run/model.ckpt-5", first, last]
  tf.train.update_checkpoint_state(str(tmp_path / "run"), last, names)
  return tmp_path / "run"


@parametrize("form", "{0}/model.ckpt-7,{0}/model.ckpt-9", "{0}")
def test_checkpoints_are_averaged_stripped_and_renamed(
  form, main, run_of_two_steps, tmp_path
):
  main(form.format(run_of_two_steps), "--average=2", "--rename=^bert/=>b/")
  averaged = run_outputs.read_variables(tmp_path / "output" / "model.ckpt-9")
  assert f"{BETA}/adam_m".replace("bert", "b") not in averaged
  np.testing.assert_array_equal(
    averaged[BETA.replace("bert", "b")],
    1.5 * run_outputs.read_variables(run_of_two_steps / "model.ckpt-7")[BETA],
  )


@parametrize(
  "flags, message",
  (["--average=4"], "keeps 3 checkpoints of a training run, not 4"),
  (["--strip_optimizer", "--to=huggingface"], "with a second command"),
  (["--rename=a=>b", "--compare=x"], "with a second command"),
)
def test_incompatible_flags_are_refused(flags, message, main, run_of_two_steps):
  assert_refused(message, main, run_of_two_steps, *flags)


def test_a_checkpoint_agrees_with_its_converted_folder(
  main, run_of_two_steps, tmp_path, capsys
):
  checkpoint = str(run_of_two_steps / "model.ckpt-9")
  tiny.convert_back(checkpoint, tmp_path / "theirs")
  assert main(checkpoint, f"--compare={tmp_path / 'theirs'}") == []
  assert capsys.readouterr().out.endswith(
    f"{len(ENCODER)} variables are bitwise equal, 0 are not\n"
    "they agree within 0.0001\n"
  )


def test_the_exit_status_is_1_if_models_differ(run_of_two_steps):
  flags = (
    f"--input={run_of_two_steps}/model.ckpt-7 --compare={run_of_two_steps}"
  )
  done = commands.run("convert_checkpoint.py", *flags.split())
  assert done.returncode == 1
  assert done.stdout.endswith("they do not agree within 0.0001\n")
