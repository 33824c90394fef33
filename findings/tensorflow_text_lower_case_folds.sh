#!/usr/bin/env bash
# "lower_case" of tensorflow-text's BertTokenizer also replaces ß, ², ™ and ….
#
# Versions: tensorflow-cpu 2.21.0, tensorflow-text 2.21.1, tokenizers 0.23.3.
# Expected: lower case and stripped accents, as BERT's vocabularies were made.
#   For these texts Python's str.lower and the BertNormalizer of tokenizers
#   agree.
# Happens: lower_case is case folding with compatibility normalization (NFKC): ß
#   becomes ss, x² becomes x2, ™ becomes tm, … becomes three periods, the
#   ligature ﬁ becomes fi, a fullwidth letter becomes the usual one.
# Matters: models behind the BERT preprocessors of TensorFlow Hub saw these ids.
#   Another tokenizer with the same vocabulary gives others, without [UNK] or an
#   error: German above all, and texts with numbers, trademarks and typography.
# Output:
#   text     str.lower   tokenizers  tensorflow-text
#   Straße   straße      straße      strasse
#   5m²      5m²         5m²         5m2
#   Acme™    acme™       acme™       acmetm
#   wait…    wait…       wait…       wait...
#   ﬁne      ﬁne         ﬁne         fine
#   ＢＩＧ      ｂｉｇ         ｂｉｇ         big
#   BERT     bert        bert        bert
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile \
  tensorflow-cpu==2.21.0 tokenizers==0.23.3 || exit 2
# It requires tensorflow, which would be installed over tensorflow-cpu.
"$folder/venv/bin/pip" install --quiet --no-compile --no-deps \
  tensorflow-text==2.21.1 || exit 2
cat > "$folder/finding.py" <<'PYTHON'
import sys

import tensorflow as tf
import tensorflow_text
import tokenizers

TEXTS = ["Straße", "5m²", "Acme™", "wait…", "ﬁne", "ＢＩＧ", "BERT"]
NO_VOCABULARY = tf.lookup.StaticVocabularyTable(
  tf.lookup.KeyValueTensorInitializer(["[UNK]"], tf.constant([0], tf.int64)), 1
)


def by_tensorflow_text(text):
  # The unknown words are returned as text, so no vocabulary is needed.
  tokenizer = tensorflow_text.BertTokenizer(
    NO_VOCABULARY, token_out_type=tf.string, unknown_token=None, lower_case=True
  )
  words = tokenizer.tokenize([text]).flat_values.numpy()
  return b"".join(words).decode()


normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
print(f"{'text':9}{'str.lower':12}{'tokenizers':12}tensorflow-text")
others_agree, changed = True, []
for text in TEXTS:
  lower, folded = text.lower(), by_tensorflow_text(text)
  normalized = normalizer.normalize_str(text)
  print(f"{text:9}{lower:12}{normalized:12}{folded}")
  others_agree &= lower == normalized
  if folded != lower:
    changed.append(text)
if not others_agree or changed != TEXTS[:-1]:
  sys.exit("changed: the three agree on other texts than before")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
