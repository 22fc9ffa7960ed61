"""The page at `/`: one document with all its parts, which loads nothing from other servers.

It has no data itself. The content policy allows exactly our own scripts and styles, by their
hashes. Answers of the server are put into the page as text and never as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from quire.base.version import __version__
from quire.report.page import ASSETS as REPORT_ASSETS
from quire.report.page import hashed, licensed_uplot

ASSETS = Path(__file__).parent / "assets"
_STYLES = (REPORT_ASSETS / "uplot/uPlot.min.css", REPORT_ASSETS / "report.css", ASSETS / "page.css")
_SCRIPTS = (
    REPORT_ASSETS / "base.js",
    *(ASSETS / name for name in ("client.js", "rows.js", "live.js", "batches.js", "new_batch.js")),
)


@dataclass(frozen=True, slots=True)
class Page:
    """The document and the headers it is sent with."""

    html: bytes
    headers: dict[str, str]


@cache
def page() -> Page:
    """The same for every visitor."""
    theme = _read(REPORT_ASSETS / "theme.js")
    scripts = [licensed_uplot(), *map(_read, _SCRIPTS)]
    styles = "\n".join(map(_read, _STYLES))
    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined
    )
    html = environment.get_template("page.html.jinja").render(
        version=__version__,
        theme=Markup(theme),
        styles=Markup(styles),
        scripts=[Markup(script) for script in scripts],
    )
    policy = _policy([theme, *scripts], styles)
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
    }
    return Page(html.encode(), headers)


def _policy(scripts: Sequence[str], styles: str) -> str:
    allowed = " ".join(map(hashed, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {hashed(styles)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
