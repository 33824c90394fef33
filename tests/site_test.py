"""Tests of the site of the documentation."""

import re
import sys
import urllib.parse

import pytest

from bertlib.cli import option
from bertlib.cli.errors import InputError
from website import build, reference

pytestmark = pytest.mark.process


@pytest.mark.unit
def test_a_folder_with_other_files_than_a_site_is_not_replaced(tmp_path):
  (tmp_path / "notes.md").write_text("kept")
  for output in (tmp_path, tmp_path / "notes.md"):
    with pytest.raises(InputError, match="other files than a site"):
      build.build(output)
  assert (tmp_path / "notes.md").read_text() == "kept"


@pytest.mark.unit
def test_every_page_is_in_the_navigation():
  settings = (build.ROOT / "website" / "zensical.toml").read_text("utf-8")
  listed = re.findall(r'"([\w/]+\.md)"', settings)
  pages = {*reference.pages(), *build.sources()}
  assert sorted(listed) == sorted(
    page for page in pages if page.endswith(".md")
  )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """Folder of the site; building it fails on a broken link between pages."""
  pytest.importorskip("zensical", reason="pip install -e .[docs]")
  folder = tmp_path_factory.mktemp("site") / "site"
  build.build(folder)
  return folder


def links_in(html):
  return re.findall(r'\s(?:href|src)="?([^\s">]+)', html)


def test_pages_load_nothing_else_from_a_network(site):
  for page in site.rglob("*.html"):
    html = page.read_text(encoding="utf-8")
    tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", html)
    loaded = [link for tag in tags for link in links_in(tag)]
    links = {link for link in loaded if "://" in link}
    # For the search of pages that are opened as files.
    assert links <= {"https://unpkg.com/iframe-worker/shim"}, page


def test_links_of_the_site_lead_to_files_and_anchors(site):
  pages = {
    p.resolve(): p.read_text(encoding="utf-8") for p in site.rglob("*.html")
  }
  anchors = {
    page: set(re.findall(r'\s(?:id|name)="?([^\s">]+)', html))
    for page, html in pages.items()
  }
  for page, html in pages.items():
    if page.name == "404.html":
      continue
    for link in links_in(html):
      url = urllib.parse.urlsplit(link)
      if url.scheme or not (url.path or url.fragment):
        continue
      target = (page.parent / url.path).resolve() if url.path else page
      assert target.exists(), f"{page}: {link}"
      if url.fragment and target in anchors:
        fragment = urllib.parse.unquote(url.fragment)
        assert fragment in anchors[target], f"{page}: {link}"


def test_a_broken_link_fails_the_build(tmp_path, monkeypatch):
  pytest.importorskip("zensical", reason="pip install -e .[docs]")
  page = tmp_path / "broken.md"
  page.write_text("# Broken\n\n[nothing](nothing.md)\n")
  monkeypatch.setitem(build.OTHER_PAGES, "about/broken.md", page)
  with pytest.raises(InputError):
    build.build(tmp_path / "site")


def test_a_missing_generator_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "zensical", None)
  with pytest.raises(InputError, match=r"Python 3\.11 or newer"):
    build.build(tmp_path / "site")


def test_every_flag_of_a_command_is_on_its_page(site):
  for command, _, settings in reference.commands():
    html = (site / "reference" / "flags" / f"{command}.html").read_text("utf-8")
    shown = set(re.findall(r'<h3 id="?([^\s">]+)', html))
    assert shown == {name for name, _ in option.declarations(settings)}
