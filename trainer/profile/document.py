"""All that a profile found, and as one JSON document.

Profile.of(recording).to_json()
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from trainer.profile.about import About, Compiled, Sync
from trainer.profile.advice import Advice, advise
from trainer.profile.analysis import Analysis, analyse
from trainer.profile.collect import Recording
from trainer.profile.verdict import Shares, Verdict, divide, enqueue_s, judge, profiler_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """found: as recorded, under the profiler. shares: of the step as it is without. memory: bytes at most in each part of a step."""

    about: About
    found: Analysis
    shares: Shares
    verdict: Verdict
    advice: tuple[Advice, ...]
    syncs: tuple[Sync, ...]
    compiled: tuple[Compiled, ...]
    memory: dict[str, int]

    @classmethod
    def of(cls, recording: Recording) -> Profile:
        """Analyses what was recorded."""
        about = recording.about
        found = analyse(recording.events, host_is_device=about.device == "cpu")
        return cls(
            about=about,
            found=found,
            shares=divide(found, about),
            verdict=judge(found, about),
            advice=advise(found, about, syncs=recording.syncs, compiled=recording.compiled),
            syncs=recording.syncs,
            compiled=recording.compiled,
            memory=recording.memory,
        )

    @property
    def step_s(self) -> float:
        """A step without what the profiler adds."""
        return self.shares.total

    @property
    def cpu_wait_s(self) -> float:
        """The device idle because nothing was asked of it, without what the profiler adds."""
        return max(self.found.cpu_wait_s - profiler_s(self.found, self.about), 0.0)

    @property
    def enqueue_s(self) -> float:
        """Seconds a step that the CPU takes to ask for its operations, without what the profiler adds."""
        return enqueue_s(self.found, self.about)

    def to_json(self) -> str:
        """Seconds and counts of a step, mean over the window."""
        found, about, shares = self.found, self.about, self.shares
        document = {
            "step_s": self.step_s,
            "step_by_clock_s": about.plain_step_s,
            "step_under_profiler_s": found.step_s,
            "device_busy_s": found.device_busy_s,
            "enqueue_s": self.enqueue_s,
            "cpu_wait_s": self.cpu_wait_s,
            "data_wait_s": self.shares.data,
            "communication_s": found.communication_s,
            "hidden_communication_s": found.hidden_communication_s,
            "useful_s": found.useful_s,
            "fixed_s": found.fixed_s,
            "recompute_s": found.recompute_s,
            "waits_per_step": found.waits,
            "launches_per_step": found.launches,
            "ops_per_useful_token": found.launches / about.useful_tokens,
            "syncs": [asdict(each) for each in self.syncs],
            "compiled": [asdict(each) for each in self.compiled],
            "layers": [
                {
                    "layer": use.layer,
                    "launches": use.launches,
                    "seconds": use.seconds,
                    "top": [{"name": name, "seconds": seconds} for name, seconds in use.top],
                }
                for use in found.layers
            ],
            "phases": [{**asdict(use), "peak_memory_bytes": self.memory.get(use.phase)} for use in found.phases],
            "shares": {name: seconds / self.step_s for name, seconds in asdict(shares).items()},
            "verdict": f"{self.verdict.bound}-bound",
            "share": self.verdict.share,
            "said": self.verdict.said,
            "advice": [asdict(each) for each in self.advice],
            "about": {**asdict(about), "padding": about.padding},
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
