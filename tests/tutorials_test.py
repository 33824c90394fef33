"""Two tutorials run as they are written, with a tiny encoder and few steps.

The slow tests of readme_test.py run them all.
"""

import string

import pytest
import readme_test
import tiny_model

pytestmark = pytest.mark.process

# Files of the checkout that the tutorials use.
USED = ("*.py", "bertlib", "demo", "sample_text.txt", "website")


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


def write_environment(folder):
  (folder / "bin").mkdir(parents=True)
  pip = folder / "bin" / "pip"
  pip.write_text("#!/bin/sh\n")
  pip.chmod(0o755)
  (folder / "bin" / "activate").write_text(f"PATH={folder / 'bin'}:$PATH\n")


@pytest.mark.parametrize(
  "tutorial", ["classify_your_texts", "pretrain_on_your_text"]
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
  page = readme_test.ROOT / "docs" / "tutorials" / f"{tutorial}.md"
  for block in readme_test.blocks_of(page):
    if block.language and not block.remark.startswith("not tested"):
      done = readme_test.paste(block, checkout, data)
      assert done.returncode == 0, f"{block.location}\n{done.stdout[-4000:]}"
