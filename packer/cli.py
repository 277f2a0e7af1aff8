"""The command line of packer: options → config → one library call → rendering. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import datetime
from fractions import Fraction
from pathlib import Path

import click

from packer import __version__
from packer.cli_folder import FOLDER_COMMANDS
from packer.cli_repack import repack
from packer.cli_values import choice, segments, share
from packer.completion import files, folders
from packer.console import Commands, cache_option, config_option, context_settings, resolved_toml, voice_options
from packer.errors import UserError
from packer.words import EmptyAnswers, EncoderName, EngineName, Format, Overlong, Policy, Reasoning, Strategy, TrainOn


@click.group(cls=Commands, context_settings=context_settings("PACKER"))
@click.version_option(__version__, prog_name="packer")
def main() -> None:
    """Chat data in, rows of one fixed size out: tokenized once, loss masks exact, packed over the whole corpus.

    \b
    packer build chats.jsonl --tokenizer path/to/tokenizer -o data/packed
    packer stats data/packed
    packer verify data/packed
    """


main.add_command(repack)


def _weighted(text: str) -> tuple[str, Fraction]:
    name, equals, weight = text.rpartition("=")
    if not equals or not name:
        raise UserError(f"--mix {text}: no weight", f"write --mix {text}=1")
    try:
        return name, Fraction(weight)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"--mix {text}: the weight {weight!r} is not a number", f"write --mix {name}=0.5") from None


def _date(text: object) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(str(text))
    except ValueError:
        raise UserError(f"--template-date {text}: not a date", "write it as --template-date 2026-01-31") from None


@main.command(short_help="Pack chat data into rows of one fixed size.")
@click.argument("dataset", nargs=-1, shell_complete=files)
@click.option(
    "-o",
    "--out",
    default="data/packed",
    shell_complete=folders,
    help="Folder to write, or an address that fsspec knows (s3://bucket/packed).",
)
@click.option(
    "--mix",
    multiple=True,
    metavar="NAME=WEIGHT",
    shell_complete=files,
    help="A source with its weight: copies of each conversation, a fraction by seeded choice. Repeatable.",
)
@click.option(
    "--split",
    help="Split to train on, of a hub data set or of files, whose names tell it; several joined by +.  [default: train (train_sft for ultrachat_200k); files: the only one of training]",
)
@click.option("--eval-split", help="Split to pack for evaluation.  [default: none]")
@click.option(
    "--eval-file",
    multiple=True,
    metavar="FILE",
    shell_complete=files,
    help="File, folder or glob to pack for evaluation, whatever it is called. Repeatable.",
)
@click.option(
    "--eval-fraction",
    default="0",
    help="Share of the conversations to set aside for evaluation, by a hash of their content.",
)
@click.option(
    "--group-by",
    metavar="COLUMN",
    help="With --eval-fraction: rows with the same value of this column, or with the same first user message (first-user), are all set aside or none.  [default: none]",
)
@click.option("--config-name", help="Configuration of a data set that has several.  [default: its own default]")
@click.option("--revision", help="Revision of the hub data set.  [default: the newest]")
@click.option("--limit", type=int, help="Read only the first N conversations.  [default: all]")
@click.option(
    "--format",
    type=choice(Format),
    default="auto",
    help="How rows are read: auto, messages, sharegpt, prompt-completion, instruction (any question and answer) or text. auto takes the first that a row has the columns of; text also reads .txt files, a row a line.",
)
@click.option("--column", help="Column that holds the messages (or the text).  [default: as the format has it]")
@click.option(
    "--map",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="Column that holds a field: messages, prompt, completion, instruction, input, context, output, system, tools, chat_template_kwargs, history or text. Repeatable.",
)
@click.option(
    "--empty-answers",
    type=choice(EmptyAnswers),
    default="drop",
    help="A conversation in which the assistant once says nothing: drop it, mask that turn, or keep (learn) it.",
)
@click.option(
    "--tokenizer",
    default="Qwen/Qwen3.8-27B",
    shell_complete=folders,
    help="Hub name, or a folder with a tokenizer.json.",
)
@click.option(
    "--chat-template", type=click.Path(path_type=Path), help="Jinja template to use.  [default: the tokenizer's own]"
)
@click.option(
    "--template-date",
    help="Date for templates that print today's, e.g. 2026-01-31.  [default: such templates are refused]",
)
@click.option("--capacity", type=int, default=8192, help="Slots (tokens) a row: a multiple of 64.")
@click.option(
    "--max-segments", default="auto", help="Most segments a row, pad tail counted: auto, a number, or 0 for no cap."
)
@click.option(
    "--align",
    type=int,
    default=1,
    help="Begin every example at a multiple of so many slots (a divisor of the capacity); 64 makes the chunk grids of gated-delta kernels constant.",
)
@click.option(
    "--strategy",
    type=choice(Strategy),
    default="optimal",
    help="optimal (rows filled to the last token), bfd (best-fit decreasing), ffd (first-fit decreasing) or sequential.",
)
@click.option(
    "--train-on",
    type=choice(TrainOn),
    default="assistant",
    help="What is a target: assistant, last (its last turn only) or all.",
)
@click.option(
    "--control-tokens",
    type=choice(Policy),
    default="split",
    help="Text that spells a control token: split (encoded as text), reject or keep.",
)
@click.option(
    "--overlong",
    type=choice(Overlong),
    default="auto",
    help="What is longer than a row: drop (counted), truncate (whole turns off the end), split or error; auto: split documents, drop chats.",
)
@click.option(
    "--reasoning",
    type=choice(Reasoning),
    default="template",
    help="Reasoning in the data: template (as the template prints it; what it leaves out is counted), every-turn (each turn an example of its own, "
    "with its reasoning), context (printed, not trained on) or strip (removed).",
)
@click.option(
    "--template-arg",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument of the chat template, e.g. enable_thinking=false; a JSON value or text. A row's own chat_template_kwargs go before it. Repeatable.",
)
@click.option(
    "--max-unprinted",
    help="Fail if the template leaves out more than this share of the tokens.  [default: 1% of all but reasoning]",
)
@click.option("--max-loss", default="1%", help="Fail if more than this share of conversations or tokens is left out.")
@click.option(
    "--encoder",
    type=choice(EncoderName),
    default="auto",
    help="What turns text into ids: auto, tokenizers, splintr or fastokens; the ids are the same.",
)
@click.option("--workers", type=int, default=0, help="Processes that tokenize; 0: one a core.")
@click.option(
    "--engine",
    type=choice(EngineName),
    default="local",
    help="Where the work is done: local (processes here) or ray (a cluster).",
)
@click.option("--ray-address", help="Address of the Ray cluster.  [default: one of its own, on this machine]")
@click.option("--seed", type=int, default=0, help="Seed of the order of rows.")
@click.option("--shard-rows", type=int, default=0, help="Rows a shard, a multiple of 16; 0: about 256 MB a shard.")
@click.option(
    "--token-store/--no-token-store",
    default=True,
    help="Keep the tokenized conversations, so that other capacities need no tokenizing.",
)
@click.option("--force", is_flag=True, help="Replace another build in the folder.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Say what would be read, learnt and written, on standard error; print the options as a --config file; and stop.",
)
@voice_options
@cache_option
@config_option
def build(
    dataset: tuple[str, ...],
    out: str,
    mix: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    verbose: bool,
    cache: Path | None,
    **options: object,
) -> None:
    """Pack DATASET (hub name, files or folders; default HuggingFaceH4/ultrachat_200k) into rows.

    \b
    packer build chats.jsonl --tokenizer path/to/tokenizer --capacity 4096 -o data/packed
    packer build chats.jsonl --tokenizer path/to/tokenizer --dry-run > build.toml
    """
    from packer.config import BuildConfig
    from packer.pipeline import build as run_build
    from packer.progress import console_progress
    from packer.report import print_build
    from packer.sources.column_map import parse_map

    if not out:
        raise UserError("--out: no folder was given", "write one behind it: -o data/packed")
    unprinted = options.pop("max_unprinted")
    config = BuildConfig(
        datasets=dataset,
        out=Path(out),
        eval_fraction=share(str(options.pop("eval_fraction")), "--eval-fraction"),
        max_unprinted=None if unprinted is None else share(str(unprinted), "--max-unprinted"),
        max_loss=share(str(options.pop("max_loss")), "--max-loss"),
        max_segments=segments(str(options.pop("max_segments"))),
        template_date=_date(options.pop("template_date")),
        mix=tuple(_weighted(text) for text in mix),
        map=parse_map(options.pop("map")),  # type: ignore[arg-type]  # a tuple of texts
        **options,  # type: ignore[arg-type]  # click has converted each to the field's type
    )
    if dry_run:
        from packer.foresee import foresee
        from packer.report_dry import print_foresight

        seen = foresee(config)
        if not quiet:
            print_foresight(seen, config, out)
        click.echo(f"# packer build --config FILE\n{resolved_toml(click.get_current_context())}", nl=False)
        return
    progress = console_progress(quiet=quiet, verbose=verbose)
    if "://" in out:
        from packer.at_address import build_to

        manifest = build_to(out, config, progress, cache=cache)
    else:
        manifest = run_build(config, progress)
    if not quiet:
        print_build(manifest, out)


for _command in FOLDER_COMMANDS:
    main.add_command(_command)
