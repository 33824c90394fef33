#!/usr/bin/env bash
# AutoTokenizer takes the vocabulary of tokenizer.json, not its normalizer.
#
# Versions: transformers 5.24.0, tokenizers 0.23.3.
# Expected: tokenizer.json describes the whole tokenizer, and AutoTokenizer runs
#   it: Tokenizer.from_file and AutoTokenizer give equal tokens for one folder.
# Happens: for a class of its own (by tokenizer_class, or by model_type alone)
#   transformers builds the normalizer and the pre-tokenizer anew, from
#   tokenizer_config.json and defaults. A cased BERT whose tokenizer_config.json
#   lacks do_lower_case is lower-cased; a RoBERTa folder loses its normalizer
#   and its leading space. With "tokenizer_class": "PreTrainedTokenizerFast" the
#   file counts.
# Matters: the same folder gives other ids in transformers than in programs on
#   the tokenizers library (servers in Rust, ONNX folders, browsers), in
#   silence.
# Output:
#   model    tokenizer_class          AutoTokenizer  the file itself
#   bert     none                     paris          Paris
#   bert     PreTrainedTokenizerFast  Paris          Paris
#   roberta  none                     A B            Ġ a b
#   roberta  PreTrainedTokenizerFast  Ġ a b          Ġ a b
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  transformers==5.24.0 tokenizers==0.23.3 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import json
import pathlib
import sys

import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers

transformers.logging.set_verbosity_error()


def cased_bert():
  words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Paris", "paris"]
  return tokenizers.BertWordPieceTokenizer(
    {word: i for i, word in enumerate(words)}, lowercase=False
  )


def uncased_roberta():
  entries = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
  entries += sorted(pre_tokenizers.ByteLevel.alphabet())
  vocabulary = {entry: i for i, entry in enumerate(entries)}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
  tokenizer.normalizer = normalizers.Lowercase()
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
  return tokenizer


def tokens(tokenizer, model_type, class_name, text):
  folder = pathlib.Path(sys.argv[1], f"{model_type}-{class_name}")
  folder.mkdir()
  tokenizer.save(str(folder / "tokenizer.json"))
  settings = {"model_max_length": 512}
  if class_name != "none":
    settings["tokenizer_class"] = class_name
  (folder / "tokenizer_config.json").write_text(json.dumps(settings))
  (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
  loaded = transformers.AutoTokenizer.from_pretrained(folder)
  file = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
  encoded = file.encode(text, add_special_tokens=False)
  return " ".join(loaded.tokenize(text)), " ".join(encoded.tokens)


print(f"{'model':9}{'tokenizer_class':25}{'AutoTokenizer':15}the file itself")
equal = []
for model_type, make, text in (
  ("bert", cased_bert, "Paris"),
  ("roberta", uncased_roberta, "AB"),
):
  for class_name in ("none", "PreTrainedTokenizerFast"):
    loaded, file = tokens(make(), model_type, class_name, text)
    print(f"{model_type:9}{class_name:25}{loaded:15}{file}")
    equal.append(loaded == file)
if equal != [False, True, False, True]:
  sys.exit("changed: AutoTokenizer agrees with tokenizer.json in other cases")
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/finding.py" "$folder"
