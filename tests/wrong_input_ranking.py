"""Wrong input: lists, scores, run files and models of run_reranker.py."""

from wrong_input_row import Row, named

_EVALUATE = "--output_dir={world}/trained_reranker --nodo_train --do_eval "
_RANK = _EVALUATE + "--dev_file={world}/beir --candidates={case}/a.trec"


def ranking(name, arguments, rule="ranking", **more):
  return Row(rule, name, "run_reranker", arguments, **more)


def texts(name, content, arguments, file="train.tsv", **more):
  """A row of a training set; `content` is its text."""
  given = f"--train_file={{case}}/{file} {arguments}"
  return ranking(name, given, files={file: content}, **more)


def run_file(name, content, **more):
  return ranking(name, _RANK, files={"a.trec": content}, **more)


def beir(name, judgments, arguments=""):
  """Training on judgments of the folder of the world."""

  def copied(file):
    return lambda world: open(f"{world}/beir/{file}").read()

  files = {file: copied(file) for file in ("corpus.jsonl", "queries.jsonl")}
  files["qrels/train.tsv"] = "query-id\tcorpus-id\tscore\n" + judgments
  return ranking(name, f"--train_file={{case}} {arguments}", files=files)


_SCORED = "--text_columns=a,b --score_column=s"
_LABELED = "--text_columns=a,b --label_column=s"
_LISTS = "--text_columns=a,b,c"
_TEACHER = _LISTS + " --teacher_scores_column=t"
_JSON = '{"a": "x", "b": "y", "c": ["z"], "t": %s}\n'
_TEXTS = [
  texts("a list without a negative", "a\tb\tc\nx\ty\tz\nv\tw\t\n", _LISTS),
  texts(
    "positives alone", "a\tb\nx\ty\n", "--text_columns=a,b --loss=bce"
  ),
  texts(
    "a margin without a negative",
    '{"a": "x", "b": "y", "c": [], "t": [1]}\n',
    _TEACHER,
    "train.jsonl",
  ),
  texts("a list without a positive", "a\tb\ts\nx\ty\t0\nx\tz\t0\n",
        _LABELED + " --loss=listwise"),
  texts("a margin without a positive",
        "a\tb\ts\nx\ty\t1\nx\tz\t0\nv\tw\t0\n",
        _LABELED + " --teacher={world}/trained_reranker"),
  texts("a header alone", "a\tb\tc\n", _LISTS),
  texts(
    "a row without a positive",
    "a\tb\tc\nx\t\tz\n" + "x\ty\tz\n" * 8,
    _LISTS + " --bad_rows=skip",
    logged="bad rows skipped: 1, the first: ",
  ),
  texts("a score above 1", "a\tb\ts\nx\ty\t2\n", _SCORED),
  texts("a score below 0", "a\tb\ts\nx\ty\t-1\n", _SCORED + " --loss=listwise"),
  texts("too few scores", _JSON % "[1]", _TEACHER, "train.jsonl"),
  texts("a teacher's NaN", _JSON % "[1, NaN]", _TEACHER, "train.jsonl"),
  texts("one text", "a\nx\n", "--text_columns=a"),
  texts(
    "pairs with two labels",
    "a\tb\ts\n" + "x\ty\t1\nx\tz\t0\nx\ty\t0\n" * 4,
    _LABELED,
    logged="train.tsv: 4 pairs have another label or score than an equal pair",
  ),
  beir("judgments without negatives", "q0\td0\t1\n"),
  ranking("rows of standard input", "--train_file=- " + _LISTS,
          stdin=b"a\tb\tc\n" + b"x\ty\tz\n" * 8),
]  # fmt: skip

_LINE = "q0 Q0 d0 1 2.5 name\n"
_RUNS = [
  run_file("a run of five columns", "q0 Q0 d0 1 2.5\n"),
  run_file("an unknown query", _LINE.replace("q0", "q9")),
  run_file("an unknown document", _LINE.replace("d0", "d9")),
  run_file("a document twice", _LINE * 2),
  run_file("an empty run", "\n"),
  run_file(
    "queries without a right document",
    _LINE + "\n",
    logged="3 of 4 queries have no right document among their candidates",
  ),
  ranking(
    "nothing to rank",
    _EVALUATE + "--dev_file={case}/a.tsv --text_columns=a,b",
    files={"a.tsv": "a\tb\nx\ty\n"},
  ),
]

_OTHERS = named(
  "ranking",
  "run_reranker",
  """
no candidates: EVALUATE --dev_file={world}/beir
candidates of a table:
  EVALUATE --dev_file={world}/lists.tsv --candidates={world}/trained_embeddings
candidates of a classifier:
  EVALUATE --dev_file={world}/beir --candidates={world}/trained
no judgments to train on: --train_file={world}/beir
scores of a folder: --train_file={world}/beir --teacher_scores_column=t
two teachers: --teacher={world}/trained_reranker --teacher_scores_column=t
margins without a teacher: --loss=margin_mse
a teacher of another task: --teacher={world}/trained_embeddings
a folder of labels: --output_dir={world}/trained
""",
  EVALUATE=_EVALUATE,
)

ROWS = [*_TEXTS, *_RUNS, *_OTHERS]
