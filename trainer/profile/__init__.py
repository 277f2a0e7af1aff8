"""`trainer profile`: where a step's time goes, what bounds it, and what to do about it.

`collect` runs the trainer's own steps under torch's profiler and turns what it saw into `events`; everything from there to the verdict is a pure
function of a list of events, so that it is tested on constructed traces whose answers are known.

    events ── attribute ──▶ work by step, phase, layer ── analysis ──▶ numbers ── verdict, advice ──▶ report
"""
