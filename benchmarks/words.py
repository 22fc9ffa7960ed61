"""The command line of a benchmark, told by the module's own docstring."""

from __future__ import annotations

import argparse


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Its first line is the summary, the rest is shown below the options."""
    summary, _, details = (doc or "").partition("\n")
    return argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
