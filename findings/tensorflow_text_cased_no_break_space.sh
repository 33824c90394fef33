#!/usr/bin/env bash
# A no-break space glues two words to one [UNK], but only without lower_case.
#
# Versions: tensorflow-cpu 2.21.0, tensorflow-text 2.21.1, tokenizers 0.23.3.
# Expected: white space separates words, the no-break space (U+00A0) of web
#   pages and word processors too, whatever lower_case is. BERT says so in its
#   own code (category Zs), and tokenizers does it with both casings.
# Happens: BertTokenizer of tensorflow-text splits at a no-break space only with
#   lower_case=True, where normalization has made a usual space of it. Without,
#   "new york" is one word, no entry of any vocabulary: [UNK]. The narrow one
#   (U+202F) of French and the ideographic space (U+3000) are alike.
# Matters: cased models, most multilingual ones, lose both words, and the same
#   text looks right to whoever prints it. Replace these spaces before
#   tokenizing.
# Output:
#   separator  casing  tokenizers  tensorflow-text
#   U+0020     lower   new york    new york
#   U+0020     cased   new york    new york
#   U+00A0     lower   new york    new york
#   U+00A0     cased   new york    [UNK]
#   U+202F     lower   new york    new york
#   U+202F     cased   new york    [UNK]
#   U+3000     lower   new york    new york
#   U+3000     cased   new york    [UNK]
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

VOCABULARY = ["[UNK]", "[CLS]", "[SEP]", "new", "york"]
SEPARATORS = " \u00a0\u202f\u3000"


def by_tensorflow_text(text, lower_case):
  table = tf.lookup.StaticVocabularyTable(
    tf.lookup.KeyValueTensorInitializer(
      VOCABULARY, tf.range(len(VOCABULARY), dtype=tf.int64)
    ),
    num_oov_buckets=1,
  )
  tokenizer = tensorflow_text.BertTokenizer(
    table, lower_case=lower_case, token_out_type=tf.string
  )
  tokens = tokenizer.tokenize([text]).flat_values.numpy()
  return " ".join(token.decode() for token in tokens)


def by_tokenizers(text, lower_case):
  tokenizer = tokenizers.BertWordPieceTokenizer(
    {token: i for i, token in enumerate(VOCABULARY)}, lowercase=lower_case
  )
  return " ".join(tokenizer.encode(text, add_special_tokens=False).tokens)


print("separator  casing  tokenizers  tensorflow-text")
is_so = True
for separator in SEPARATORS:
  for lower_case in (True, False):
    text = f"new{separator}york"
    right = by_tokenizers(text, lower_case)
    found = by_tensorflow_text(text, lower_case)
    casing = "lower" if lower_case else "cased"
    print(f"U+{ord(separator):04X}     {casing}   {right:10}  {found}")
    glued = not lower_case and separator != " "
    is_so &= right == "new york"
    is_so &= found == ("[UNK]" if glued else "new york")
if not is_so:
  sys.exit("changed: tensorflow-text treats these spaces in another way")
PYTHON
TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
  "$folder/venv/bin/python" "$folder/finding.py"
