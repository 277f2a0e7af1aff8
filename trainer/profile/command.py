"""`trainer profile` from its options to its report.

status = profile(RunConfig(shards="data/packed"), steps=3, warm_up=2, padded=False, json=False, trace=None)
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from packer.console import printable
from packer.errors import UserError
from trainer.config import RunConfig
from trainer.loop import digest_of_config, resolve_dtype
from trainer.prepare import prepare
from trainer.profile.collect import collect, steps_made
from trainer.profile.document import Profile
from trainer.ranks import Ranks, start_ranks
from trainer.say import Say
from trainer.setup import make_ready


def profile(config: RunConfig, *, steps: int, warm_up: int, padded: bool, json: bool, trace: Path | None) -> int:
    """Profiles, tells what was found, returns 0. Every rank of a torchrun calls it; rank 0 tells of itself. steps, warm_up: at least 1. Raises UserError for
    wrong use.

    The run's own folder is a temporary one: nothing is left but what `trace` names.
    """
    with start_ranks() as ranks, ExitStack() as stack:
        if padded and ranks.world > 1:
            raise UserError(
                f"--padded and {ranks.world} ranks: ranks would make unlike numbers of passes",
                "profile it in one process",
            )
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainer-profile-"))
        config = dataclasses.replace(
            config, steps=steps_made(warm_up, steps), out=folder, check="off", eval_every=0, resume="never"
        )
        prepared = ranks.together(lambda: prepare(resolve_dtype(config, ranks.device), world=ranks.world))
        digest = ranks.together(lambda: digest_of_config(prepared))
        say = _on_standard_error(ranks)
        ready = make_ready(prepared, ranks, say, None, config_digest=digest)
        say("profile", f"{steps_made(warm_up, steps)} steps, of which {steps} are recorded")
        recording = collect(ready, padded=padded, warm_up=warm_up, steps=steps, trace=trace)
        if ranks.first:
            _tell(Profile.of(recording), json=json)
            if trace is not None:
                say("trace", f"{trace}: open it in ui.perfetto.dev or chrome://tracing")
        ranks.barrier()
    return 0


def _tell(found: Profile, *, json: bool) -> None:
    if json:
        sys.stdout.write(found.to_json())
        sys.stdout.flush()
        return
    from trainer.profile.report import print_profile

    print_profile(found)


def _on_standard_error(ranks: Ranks) -> Say:
    """The report alone is standard output."""

    def say(label: str, text: str) -> None:
        if ranks.first:
            print(f"{label:<7} {printable(text)}", file=sys.stderr, flush=True)

    return say
