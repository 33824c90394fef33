"""Wrong input: texts, scores, judgments and models of run_embeddings.py."""

import io

import numpy as np
import wrong_input_world
from wrong_input_files import checkpoint, flip, trained
from wrong_input_row import Row, named

_EVALUATE = "--output_dir={world}/trained_embeddings --nodo_train --do_eval "
_PREDICT = _EVALUATE.replace("--do_eval", "--do_predict")


def embedding(name, arguments="", rule="embeddings", **more):
  return Row(rule, name, "run_embeddings", arguments, **more)


# Rows of texts


def texts(name, content, arguments="", file="train.tsv", rule="embeddings"):
  """A row of a training set; `content` is its text."""
  given = f"--train_file={{case}}/{file} {arguments}"
  return embedding(name, given, rule, files={file: content})


_SCORED = "--text_columns=a,b --score_column=s"
_MATCHES = "--text_columns=a,b --label_column=l"
_TRIPLETS = "--text_columns=a,b,c"
_TEXTS = [
  texts("a pair without a question", "question\tanswer\n\tann sat\n"),
  texts("a row with one text", "question\tanswer\nwho sat\n"),
  texts("a score out of range", "a\tb\ts\nann\tbob\t5\n", _SCORED),
  texts("a score that is NaN", "a\tb\ts\nann\tbob\tnan\n", _SCORED),
  texts("no score", "a\tb\ts\nann\tbob\t1\nann\tcat\t\n", _SCORED),
  texts("a label of a pair", "a\tb\tl\nann\tbob\tyes\n", _MATCHES),
  texts("a negative that is the positive", "a\tb\tc\nx\ty\ty\n", _TRIPLETS),
  texts(
    "an answer that is a list",
    '{"question": "who", "answer": ["ann"]}\n',
    file="train.jsonl",
  ),
  texts(
    "one answer to mine",
    "question\tanswer\na\tb\nc\tb\n",
    "--nodo_train --do_predict --mine_negatives=1",
  ),
  texts(
    "scores to mine",
    "a\tb\ts\nann\tbob\t1\n",
    f"{_SCORED} --nodo_train --do_predict --mine_negatives=1",
  ),
  texts(
    "a range without room",
    "question\tanswer\na\tb\nc\td\n",
    "--nodo_train --do_predict --mine_negatives=3 --range_min=2 --range_max=4",
  ),
  texts("a header again", "question\tanswer\na\tb\nquestion\tanswer\n"),
  embedding(
    "a table to encode without a column",
    "--do_predict --predict_file={case}/a.csv",
    files={"a.csv": "id,text\n7,the cat\n"},
  ),
  texts(
    "texts of one label",
    "text\tlabel\nann\tx\nbob\tx\n",
    "--text_columns=text --label_column=label",
  ),
  *(
    texts(
      name, content, f"--num_train_epochs=9 {more}", rule="nothing to learn"
    )
    for name, content, more in [
      ("equal scores", "a\tb\ts\nann\tbob\t1\nc\td\t1\n", _SCORED),
      ("equal answers", "question\tanswer\na\tx\nb\tx\nc\tx\n", ""),
      ("equal questions", "question\tanswer\na\tx\na\ty\na\tz\n", ""),
      (
        "triplets without negatives",
        "a\tb\tc\nx\ty\t\nz\tv\t\n",
        f"{_TRIPLETS} --loss=triplet",
      ),
    ]
  ),
  embedding("a batch of one pair", "--train_batch_size=1", "nothing to learn"),
]

# Queries, corpora, and texts to encode


def beir(name, file, content):
  files = wrong_input_world.beir() | {file: content}
  return embedding(
    name,
    _EVALUATE + "--dev_file={case}/beir",
    files={f"beir/{path}": text for path, text in files.items()},
  )


def judgments(name, row):
  text = f"query-id\tcorpus-id\tscore\n{row}\n"
  return beir(name, "qrels/test.tsv", text)


_SEARCHES = [
  judgments("no id that is in the corpus", "q0\td8\t1\nq1\td9\t1"),
  judgments("an id that no query has", "q7\td0\t1"),
  judgments("a grade that is a word", "q0\td0\tgood"),
  judgments("no relevant document", "q0\td0\t0"),
  beir(
    "a query without a text", "queries.jsonl", '{"_id": "q0", "text": " "}\n'
  ),
  beir("a repeated id", "corpus.jsonl", '{"_id": "d0", "text": "ann"}\n' * 2),
  embedding(
    "an empty line to encode",
    _PREDICT + "--predict_file={case}/a.txt",
    files={"a.txt": "ann sat\n\nbob sat\n"},
  ),
  embedding(
    "nothing to encode",
    _PREDICT + "--predict_file={case}/a.txt",
    files={"a.txt": ""},
  ),
]

# Models


def vectors(*shape, save=np.save, last=None):
  """Bytes of an .npy file of different numbers, the last one `last`."""
  array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
  if last is not None:
    array[-1, -1] = last
  with io.BytesIO() as file:
    save(file, array)
    return file.getvalue()


def save_ones(file, array):
  np.save(file, np.ones_like(array))


_DISTILL = "--text_columns=answer --loss=distillation --teacher="


def teacher(name, content, rule="embeddings"):
  given = _DISTILL + "{case}/teacher.npy"
  return embedding(name, given, rule, files={"teacher.npy": content})


_BESIDE = "--init_checkpoint={case}/model.ckpt"
_MODELS = [
  teacher("too few vectors", vectors(3, 8)),
  teacher("an .npz file of vectors", vectors(4, 8, save=np.savez)),
  teacher("a vector beyond float32", vectors(4, 8, last=1e300)),
  teacher("equal vectors", vectors(4, 8, save=save_ones), "nothing to learn"),
  teacher("vectors that are a text", "1 2 3\n"),
  teacher("vectors of another width", vectors(4, 4)),
  embedding(
    "a file of vectors that is missing",
    _DISTILL + "{case}/teacher.npy",
    kind=OSError,
  ),
  embedding("a teacher that is a classifier", _DISTILL + "{world}/trained"),
  embedding(
    "no config beside the checkpoint",
    f"--bert_config_file= {_BESIDE}",
    files=checkpoint(),
  ),
  embedding(
    "a corrupt trained checkpoint",
    "--output_dir={case}/trained --nodo_train --do_eval"
    " --dev_file={world}/beir",
    files=trained("trained_embeddings", data=flip(900)),
  ),
]

# Outputs over inputs


def overwriting(name, file, arguments, content="ann sat\n"):
  return embedding(
    name, "--output_dir={case} " + arguments, files={file: content}
  )


_OUTPUTS = [
  overwriting(
    "pairs to mine",
    "a_negatives.jsonl",
    "--do_predict --mine_negatives=1 --nodo_train"
    " --train_file={case}/a_negatives.jsonl",
    '{"question": "ann", "answer": "sat"}\n',
  ),
  overwriting(
    "queries",
    "a_results.jsonl",
    "--do_predict --corpus_file={world}/lines.txt"
    " --query_file={case}/a_results.jsonl",
  ),
  overwriting(
    "vectors of a teacher",
    "a_vectors.npy",
    "--text_columns=answer --loss=distillation --teacher={case}/a_vectors.npy",
    vectors(4, 8),
  ),
]

# No files of their own

_ARGUMENTS = """
no such column: --text_columns=question,reply
a column twice: --text_columns=question,question
no columns: --text_columns=
a score of one text: --text_columns=answer --score_column=x
a training set that is missing: --train_file={case}/a.tsv
no dev set during training: --eval_steps=1
widths without a range: --matryoshka_dims=8,0
dev scores out of range:
  --do_eval --dev_file={world}/scored.tsv --dev_score_column=score
a folder that is no data set: EVALUATE --dev_file={world}/mrpc
no such split: EVALUATE --dev_file={world}/beir/qrels/dev.tsv
no corpus: PREDICT --query_file={world}/lines.txt
an unknown prompt: PREDICT --predict_file={world}/lines.txt --prompt=queries
an unknown prompt after training:
  --do_predict --predict_file={world}/lines.txt --prompt=query
an unknown metric: --best_metric=beauty
standard input for two:
  PREDICT --predict_file=- --corpus_file={world}/lines.txt --query_file=-
distillation without a teacher: --loss=distillation
a loss of other data: --loss=triplet
a width that is too large: --matryoshka_dims=16,8
a model to use that is missing:
  --nodo_train --do_eval --dev_file={world}/beir --init_checkpoint=
a projection that is missing:
  EVALUATE --dev_file={world}/beir --projection_dim=4
another pooling: --output_dir={world}/trained_embeddings --pooling=cls
"""
_OTHERS = named(
  "embeddings",
  "run_embeddings",
  _ARGUMENTS,
  EVALUATE=_EVALUATE,
  PREDICT=_PREDICT,
)

ROWS = [*_TEXTS, *_SEARCHES, *_MODELS, *_OUTPUTS, *_OTHERS]
