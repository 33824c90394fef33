"""Tests that every tutorial runs, with a tiny encoder and few steps."""

import json
import string

import pytest
import readme_test
import tiny_model

pytestmark = pytest.mark.process

# Files of the checkout that the tutorials use.
USED = ("*.py", "bertlib", "demo", "sample_text.txt", "website")

# Tutorials that continue others.
AFTER = {"serve_raw_text": ["classify_your_texts"]}

TUTORIALS = sorted(
  path.stem
  for path in readme_test.ROOT.glob("docs/tutorials/*.md")
  if not any(path.stem in earlier for earlier in AFTER.values())
)


def write_encoder(folder):
  """A model with random weights that knows all letters, in lower case."""
  folder.mkdir(parents=True)
  signs = string.ascii_lowercase + string.digits + string.punctuation
  pad, *special = tiny_model.SPECIAL
  unused = [f"[unused{number}]" for number in range(99)]
  pieces = [f"##{sign}" for sign in signs]
  vocabulary = [pad, *unused, *special, *signs, *pieces]
  config = tiny_model.config(
    len(vocabulary), num_hidden_layers=2, max_position_embeddings=512
  )
  tiny_model.write_files(folder, vocabulary, config)
  tiny_model.write_encoder(folder / "bert_model.ckpt", config)
  description = {
    "script": "run_embeddings",
    "max_seq_length": 128,
    "do_lower_case": True,
    "embedding": {"pooling": "mean", "normalize": True},
  }
  (folder / "model.json").write_text(json.dumps(description))


def write_environment(folder):
  (folder / "bin").mkdir(parents=True)
  pip = folder / "bin" / "pip"
  pip.write_text("#!/bin/sh\n")
  pip.chmod(0o755)
  (folder / "bin" / "activate").write_text(f"PATH={folder / 'bin'}:$PATH\n")


# These take over half a minute each, and CI has half an hour in all.
SLOW = (
  *("embedding_search", "search_and_rerank"),
  *("move_a_project", "serve_raw_text"),
)


@pytest.mark.parametrize(
  "tutorial",
  [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in TUTORIALS
  ],
)
def test_a_tutorial_runs_as_it_is_written(tutorial, tmp_path):
  checkout, data = tmp_path / "checkout", tmp_path / "data"
  checkout.mkdir()
  data.mkdir()
  for pattern in USED:
    for path in readme_test.ROOT.glob(pattern):
      (checkout / path.name).symlink_to(path)
  readme_test.write_data(data)
  write_encoder(checkout / "output" / "minilm")
  write_environment(checkout / ".venv")
  for name in [*AFTER.get(tutorial, []), tutorial]:
    page = readme_test.ROOT / "docs" / "tutorials" / f"{name}.md"
    for block in readme_test.blocks_of(page):
      if block.language and not block.remark.startswith("not tested"):
        done = readme_test.paste(block, checkout, data)
        assert done.returncode == 0, f"{block.location}\n{done.stdout[-4000:]}"
