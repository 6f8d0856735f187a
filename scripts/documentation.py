"""Hooks of mkdocs: the repository's Markdown files as pages, and the reference that is made from the parsers.

Pages of docs/ have their path in that folder, the others that in the repository. Links to source files and folders lead
to pages that show them.
"""

import argparse
import html
import importlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from omegaconf import MISSING

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?!\w+://|#)([^)#\s]+)")
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".sh": "bash"}
WRONG = "## When something goes wrong"


def written_pages() -> list[Path]:
    """Return the Markdown files of the repository that are pages."""
    folders = ("docs", "examples", "studies", "benchmarks", "fairseq_maelm/pretrained")
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))])


def on_files(files: Files, config: Any) -> Files:
    """Add pages outside of docs/, what pages link to, and the generated reference to the files of the site."""
    # docs/README.md is for readers of the repository; the site begins with the README at its root.
    files.remove(files.get_file_from_path("README.md"))
    pages = written_pages()
    linked = {target for page in pages for target in _targets(page)} - set(pages)
    for folder in [each for each in linked if each.is_dir()]:
        linked |= {each for each in folder.iterdir() if each.suffix in LANGUAGES} - {folder}
    for path in [*pages, *(each for each in linked if each.suffix in PICTURES)]:
        if DOCS not in path.parents:  # mkdocs has found those
            files.append(File.generated(config, _name(path), abs_src_path=str(path)))
    for path in sorted(each for each in linked if each.suffix not in PICTURES):
        files.append(File.generated(config, _page_of(path), content=_folder(path) if path.is_dir() else _source(path)))
    for name, text in {
        "commands": "".join(_commands()),
        "options": "".join(_options()),
        "troubleshooting": "".join(_troubleshooting(pages)),
    }.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    # One that fairseq adds: with it every debugging message of Markdown's extensions is shown.
    logging.getLogger().handlers.clear()
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to their place in the site; those to source files and folders to pages that show them."""
    here = (ROOT / page.file.src_uri).parent
    folder = Path(page.file.abs_src_path).parent if page.file.abs_src_path else here

    def lead(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if not target.exists():
            return match[1]
        return os.path.relpath(
            ROOT / (_name(target) if target.suffix in (".md", *PICTURES) else _page_of(target)), here
        )

    return LINK.sub(lead, markdown)


def _targets(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))}


def _name(path: Path) -> str:
    return path.relative_to(DOCS if DOCS in path.parents else ROOT).as_posix()


def _page_of(path: Path) -> str:
    return f"{_name(path)}/index.md" if path.is_dir() else f"{_name(path)}.md"


def _source(path: Path) -> str:
    language = LANGUAGES.get(path.suffix, "text")
    return f"# {path.name}\n\n`{_name(path)}`\n\n````{language}\n{path.read_text(encoding='utf-8')}\n````\n"


def _folder(path: Path) -> str:
    shown = sorted(each for each in path.iterdir() if each.suffix in {*LANGUAGES, ".md"})
    return f"# {_name(path)}\n\n" + "".join(f"- [{each.name}]({each.name})\n" for each in shown)


def _troubleshooting(pages: list[Path]) -> Iterator[str]:
    yield "# Troubleshooting\n\nError messages, their causes and what to do, from all guides.\n"
    for page in pages:
        title, _, rest = page.read_text(encoding="utf-8").partition("\n")
        _, found, section = rest.partition(f"{WRONG}\n")
        if found:
            moved = LINK.sub(lambda match, page=page: f"../{_name((page.parent / match[1]).resolve())}", section)
            yield f"\n## [{title.lstrip('# ')}](../{_name(page)})\n{moved.partition(chr(10) + '## ')[0]}"


def _commands() -> Iterator[str]:
    from fairseq_maelm import cli

    yield "# Commands\n\nEvery sub-command of `maelm`. `--debug` of any of them shows where a failure happened.\n"
    _, parsers = cli.make_parser()
    for title, rows in cli.GROUPS.items():
        yield f"\n## {title}\n"
        for name, summary in rows.items():
            importlib.import_module(cli.module_of(name)).add_arguments(parsers[name])
            yield f"\n### maelm {name}\n\n{_cell(parsers[name].description or summary)}\n\n"
            yield f"````text\n{parsers[name].format_usage()}````\n\n{_table(parsers[name])}"


def _options() -> Iterator[str]:
    import fairseq_maelm
    from fairseq_maelm.options import CommandParser

    fairseq_maelm.register()
    from fairseq import criterions, models, optim, tasks
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    yield "# Options of fairseq-train\n\nThe options that this package adds, with `--user-dir $(maelm user-dir)`.\n"
    for kind, registry in {
        "task": tasks.TASK_DATACLASS_REGISTRY,
        "arch": models.MODEL_DATACLASS_REGISTRY,
        "criterion": criterions.CRITERION_DATACLASS_REGISTRY,
        "optimizer": optim.OPTIMIZER_DATACLASS_REGISTRY,
    }.items():
        for name, dataclass in sorted(registry.items()):
            if dataclass and dataclass.__module__.startswith("fairseq_maelm."):
                parser = CommandParser(add_help=False)
                gen_parser_from_dataclass(parser, dataclass())
                yield f"\n## --{kind} {name}\n\n{_table(parser)}"


def _table(parser: argparse.ArgumentParser) -> str:
    """Return the options of a parser as a Markdown table."""
    actions = [action for action in parser._actions if action.dest != "help"]
    rows = [f"| {_spelling(action)} | {_cell(_help(parser, action))} |\n" for action in actions]
    return "".join(["| option | meaning |\n|---|---|\n", *rows]) if rows else ""


def _spelling(action: argparse.Action) -> str:
    value = action.metavar or (action.dest if not action.option_strings else "")
    if not value and action.nargs != 0:
        value = " | ".join(map(str, action.choices or [])) or {int: "N", float: "X"}.get(action.type, "VALUE")
    return f"`{' '.join([*action.option_strings[-1:], str(value)]).strip()}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    if action.default == MISSING:  # of fairseq's dataclasses
        action.default, action.required = None, True
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"{text} (required)" if action.required and action.option_strings else text


def _cell(text: str) -> str:
    """Escape what Markdown and HTML would read, except in code between backticks."""
    parts = " ".join(text.split()).split("`")
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([\\*_\[\]|])", r"\\\1", html.escape(parts[place], quote=False))
    return "`".join(parts)
