#!/usr/bin/env bash
# A CrossEncoder folder without modules.json loads, with another activation.
#
# Versions: sentence-transformers 6.2.0, transformers 5.24.0, torch 2.14.1.
# Expected: config_sentence_transformers.json has the activation and the prompts
#   of a saved CrossEncoder, so a folder with that file gives the scores that it
#   gave before. Releases up to 5.3 had the activation in config.json and wrote
#   no modules.json at all.
# Happens: without a modules.json the file is not read. The folder loads without
#   a warning, with a sigmoid instead of no activation and without the default
#   prompt, so that the order of two texts turns over below.
# Matters: who copies the files of the model and the tokenizer, and even the one
#   that is named after the library, gets other scores. Copy modules.json too,
#   or write "sentence_transformers": {"activation_fn": ...} to config.json,
#   which is read without it (prompts have no such place).
# Output:
#   as saved:                2.210  2.018
#   without modules.json:    0.013  0.369
#   with it in config.json: -4.310 -0.537
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile transformers==5.24.0 \
  sentence-transformers==6.2.0 torch==2.14.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import json
import pathlib
import sys

import torch
import transformers
from sentence_transformers import CrossEncoder

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["search", ":", "red", "green", "apples", "pears"]
PAIRS = [("red apples", "green apples"), ("red apples", "pears")]
IDENTITY = torch.nn.Identity()


def saved(path):
  torch.manual_seed(2)
  config = transformers.BertConfig(
    vocab_size=len(WORDS),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    initializer_range=1.0,
    num_labels=1,
  )
  transformers.BertForSequenceClassification(config).save_pretrained(path)
  vocab = {word: index for index, word in enumerate(WORDS)}
  transformers.BertTokenizer(vocab=vocab).save_pretrained(path)
  model = CrossEncoder(
    str(path),
    activation_fn=IDENTITY,
    prompts={"query": "search: "},
    default_prompt_name="query",
  )
  model.save_pretrained(str(path))


def scores(name):
  found = CrossEncoder(str(path), device="cpu").predict(PAIRS).tolist()
  print(f"{name:23}{found[0]:7.3f}{found[1]:7.3f}")
  return found


path = pathlib.Path(sys.argv[1])
saved(path)
right = scores("as saved:")
(path / "modules.json").unlink()
other = scores("without modules.json:")
config = json.loads((path / "config.json").read_text())
name = "torch.nn.modules.linear.Identity"
config["sentence_transformers"] = {"activation_fn": name}
(path / "config.json").write_text(json.dumps(config))
logits = scores("with it in config.json:")
sigmoids = torch.sigmoid(torch.tensor(logits))
if not torch.allclose(sigmoids, torch.tensor(other), atol=1e-5):
  sys.exit("changed: the folder without modules.json gives no sigmoids")
if (right[0] > right[1]) == (other[0] > other[1]):
  sys.exit("changed: the prompt is used without modules.json")
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/finding.py" "$folder/model"
