#!/usr/bin/env bash
# The release candidates of tokenizers 1.0 give ids, and nothing else.
#
# Versions: tokenizers 1.0.0rc3 beside 0.23.3.
# Expected: 1.0 does what 0.23 does, perhaps by other names. `pip install --pre`
#   for the candidate of another package (such as TensorFlow) is harmless.
# Happens: --pre takes tokenizers 1.0.0rc3, in which the same file gives the same
#   ids, but encodings have no offsets and no words. There is no way to train, to
#   build a tokenizer, to read one from a string, or to give words for a text.
# Matters: answers of SQuAD, tags of given words and masks of whole words need
#   offsets or words; a vocabulary needs a trainer. `tokenizers<1` keeps the
#   candidates out, with --pre too.
# Output:
#   0.23.3 and 1.0.0-rc.3: equal ids [0, 1, 2]
#   gone from encodings: offsets, tokens, word_ids
#   gone from Tokenizer: from_str, get_vocab, token_to_id, to_str, train
#   gone modules: decoders, models, trainers
#   --pre takes: tokenizers-1.0.0rc3
#   --pre with tokenizers<1 takes: tokenizers-0.23.3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 0.23.3 1.0.0rc3; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet --no-compile \
    "tokenizers==$version" || exit 2
done
cat > "$folder/tokenizer.json" <<'JSON'
{
  "version": "1.0",
  "added_tokens": [],
  "normalizer": null,
  "pre_tokenizer": {"type": "WhitespaceSplit"},
  "post_processor": null,
  "decoder": null,
  "model": {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": {"play": 0, "##ing": 1, "cards": 2, "[UNK]": 3}
  }
}
JSON
cat > "$folder/finding.py" <<'PYTHON'
import importlib.util
import json
import sys

import tokenizers

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
encoding = tokenizer.encode("playing cards")
modules = ("decoders", "models", "trainers")
print(
  json.dumps(
    [
      tokenizers.__version__,
      [*encoding.ids],
      [n for n in ("offsets", "tokens", "word_ids") if hasattr(encoding, n)],
      [
        name
        for name in ("from_str", "get_vocab", "token_to_id", "to_str", "train")
        if hasattr(tokenizers.Tokenizer, name)
      ],
      [m for m in modules if importlib.util.find_spec(f"tokenizers.{m}")],
    ]
  )
)
PYTHON
for version in 0.23.3 1.0.0rc3; do
  "$folder/$version/bin/python" "$folder/finding.py" \
    "$folder/tokenizer.json" >> "$folder/rows"
done
taken() {
  "$folder/0.23.3/bin/pip" install --quiet --pre --dry-run --ignore-installed \
    --no-deps --report "$folder/report" "$1" || exit 2
  python3 -c 'import json, sys
package = json.load(open(sys.argv[1]))["install"][0]["metadata"]
print("{name}-{version}".format(**package))' "$folder/report"
}
python3 - "$folder/rows" "$(taken tokenizers)" "$(taken 'tokenizers<1')" <<'PYTHON'
import json
import sys

old, new = map(json.loads, open(sys.argv[1]))
equal = "equal" if old[1] == new[1] else "other"
print(f"{old[0]} and {new[0]}: {equal} ids {new[1]}")
names = ("gone from encodings", "gone from Tokenizer", "gone modules")
for name, before, after in zip(names, old[2:], new[2:]):
  print(f"{name}: {', '.join(n for n in before if n not in after)}")
print(f"--pre takes: {sys.argv[2]}")
print(f"--pre with tokenizers<1 takes: {sys.argv[3]}")
if equal != "equal" or any(new[2:]):
  sys.exit("changed: the candidate gives other ids, or more than ids")
if "-0." in sys.argv[2] or "-0." not in sys.argv[3]:
  sys.exit("changed: --pre takes another version")
PYTHON
