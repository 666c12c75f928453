"""What the documentation site adds to mkdocs: pages that lie outside docs/, and mathematics.

Links in the sources are those of the repository, so that they work where the code is hosted. Here
every file they point at gets its place on the site, and the links are rewritten to it:

============================  ==================================================================
docs/PAGE.md                  PAGE.md
another page of Markdown      the same path
program or other text         PATH.md, a page that shows it
folder                        PATH/README.md, a page with its pictures and a list of its files
anything else                 the same path, copied
============================  ==================================================================
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent
DOCS = ROOT / "docs"
OUTSIDE = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "results/README.md", "results/paper/README.md"),
    *("results/paper/why/README.md", "results/fuzz/README.md", "results/soak/README.md"),
)
SHOWN = {".py": "python", ".toml": "toml", ".yml": "yaml", ".txt": "text", "": "bash"}
PICTURES = (".png", ".svg")
# Fenced blocks and inline code come first: what is in them is no link.
CODE_OR_LINK = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)$|`[^`\n]+`|\]\((?P<link>[^)\s]+)\)", re.M | re.S
)
MATH = re.compile(r"^```math\n(.*?)^```$", re.M | re.S)
UNLISTED = "---\nsearch: {exclude: true}\nhide: [toc]\n---\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder in place of FOLDER/*.md in the navigation."""
    config.nav = _expanded(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give every file that a page links to its place on the site."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in [ROOT / name for name in OUTSIDE] + sorted(DOCS.rglob("*.md")):
        for target in _targets(page):
            _add(target, files, config)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, and equations as MathML."""
    source = page.file.abs_src_path
    if source is None:  # a page of ours, complete
        return markdown
    here = posixpath.dirname(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        link = found["link"]
        target = None if link is None else _target(Path(source), link)
        if target is None:
            return found[0]
        _, mark, anchor = link.partition("#")
        return f"]({posixpath.relpath(_uri(target), here)}{mark}{anchor})"

    return MATH.sub(_mathml, CODE_OR_LINK.sub(rewritten, markdown))


def _expanded(nav: Any) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(below) for title, below in nav.items()}
    if isinstance(nav, list):
        return [page for each in nav for page in _pages(each)]
    return nav


def _pages(entry: Any) -> list[Any]:
    if isinstance(entry, str) and "*" in entry:
        return [_uri(page) for page in sorted(DOCS.glob(entry))]
    return [_expanded(entry)]


def _mathml(found: re.Match[str]) -> str:
    lines = (convert(line, display="block") for line in found[1].strip().split("\n\n"))
    return f'<div class="math">{"".join(lines)}</div>'


def _targets(page: Path) -> list[Path]:
    """The files and folders of the repository that a page links to."""
    links = (found["link"] for found in CODE_OR_LINK.finditer(page.read_text("utf-8")))
    found = (_target(page, link) for link in links if link is not None)
    return [target for target in found if target is not None]


def _target(page: Path, link: str) -> Path | None:
    """What a relative link points at; None for addresses, anchors, and what is not there."""
    place = link.partition("#")[0]
    if not place or re.match(r"[a-z]+:|/", place):
        return None
    target = (page.parent / place).resolve()
    return target if target.exists() and target.is_relative_to(ROOT) else None


def _uri(target: Path) -> str:
    """Where a file of the repository is on the site."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    path = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        return f"{path}/README.md"
    return f"{path}.md" if target.suffix in SHOWN else path


def _add(target: Path, files: Files, config: MkDocsConfig) -> None:
    """Show or copy ``target``, unless it is there already."""
    uri = _uri(target)
    if files.get_file_from_path(uri) is not None:
        return
    made = {"inclusion": InclusionLevel.NOT_IN_NAV}
    if target.is_dir():
        files.append(File.generated(config, uri, content=_listing(target), **made))
        for below in _files(target):
            _add(below, files, config)
    elif target.suffix in SHOWN:
        files.append(File.generated(config, uri, content=_source(target), **made))
    else:
        files.append(File.generated(config, uri, abs_src_path=str(target), **made))


def _files(folder: Path) -> list[Path]:
    found = (each for each in folder.rglob("*") if "__pycache__" not in each.parts)
    return sorted(each for each in found if each.is_file())


def _listing(folder: Path) -> str:
    """A page with the pictures of a folder, and links to all its files."""
    lines = [f"{UNLISTED}# {folder.relative_to(ROOT).as_posix()}", ""]
    for each in _files(folder):
        path = each.relative_to(folder).as_posix()
        link = posixpath.relpath(_uri(each), folder.relative_to(ROOT).as_posix())
        picture = f"\n\n    ![{path}]({link})\n" if each.suffix in PICTURES else ""
        lines.append(f"- [{path}]({link}){picture}")
    return "\n".join(lines) + "\n"


def _source(file: Path) -> str:
    """A page that shows a file as it is."""
    fence = "`" * 8
    title = f"{UNLISTED}# {file.relative_to(ROOT).as_posix()}"
    return f"{title}\n\n{fence} {SHOWN[file.suffix]}\n{file.read_text('utf-8')}{fence}\n"
