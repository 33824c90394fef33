"""Reads HTML pages and pieces of them."""

import html.parser


class Page(html.parser.HTMLParser):
  """Parsed HTML, whose tags are balanced.

  Attributes:
    elements: tag, attributes and text of each element, in order of its end.
  """

  VOID = ("meta", "br", "img")

  def __init__(self, page):
    super().__init__()
    self.elements, self._open = [], []
    self.feed(page)
    self.close()
    assert not self._open

  def handle_starttag(self, tag, attrs):
    if tag in self.VOID:
      self.elements.append((tag, dict(attrs), ""))
    else:
      self._open.append((tag, dict(attrs), []))

  def handle_endtag(self, tag):
    opened, attrs, text = self._open.pop()
    assert tag == opened
    text = "".join(text)
    self.elements.append((tag, attrs, text))
    if self._open:
      self._open[-1][2].append(text)

  def handle_data(self, data):
    if self._open:
      self._open[-1][2].append(data)

  def texts(self, *tags):
    return [text for tag, _, text in self.elements if tag in tags]


def rows_of(page, table=0):
  """Texts of the cells of a table, by row."""
  tables, rows, row = [], [], []
  for tag, _, text in Page(page).elements:
    if tag in ("th", "td"):
      row.append(text)
    elif tag == "tr":
      rows.append(row)
      row = []
    elif tag == "table":
      tables.append(rows)
      rows = []
  return tables[table]
