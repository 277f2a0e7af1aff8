"""The loss: our chunked sum over supervised tokens beside cross-entropy over all logits, each a process of its own, interleaved, 2 threads.

Half of the tokens are supervised. Memory is told twice: of the whole process, and of the loss, which is what a process holds beyond one that has only
made the inputs (the library, hidden states, the weight). The weight's gradient counts as the loss's, on both sides.

python -m tests.benchmarks.bench_loss                            # vocabulary 152,000, 2,048 tokens, width 1,024
"""

from __future__ import annotations

import argparse
import statistics

from tests.benchmarks.harness import add_outputs, interleave, leave, python, spread, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=152_000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    add_outputs(parser)
    arguments = parser.parse_args()
    sizes = ["--vocabulary", arguments.vocabulary, "--tokens", arguments.tokens, "--width", arguments.width]
    results = interleave(
        {way: python("loss_process", way, *sizes) for way in ("ours", "plain", "inputs")}, repeats=arguments.repeats
    )
    ours, plain, inputs = (results[name] for name in ("ours", "plain", "inputs"))
    before = statistics.median(inputs.memory)
    lines = []
    for name, found in (("ours", ours), ("plain", plain)):
        seconds = spread([own["seconds"] for own in found.own], "{:.2f}")
        memory = spread([bytes_ / 1e6 for bytes_ in found.memory])
        alone = (statistics.median(found.memory) - before) / 1e6
        lines.append([name, seconds, memory, f"{alone:,.0f}", f"{found.own[0]['loss']:.4f}"])
    figures = {
        "time": statistics.median(own["seconds"] for own in ours.own)
        / statistics.median(own["seconds"] for own in plain.own),
        "peak memory of the loss": (statistics.median(ours.memory) - before)
        / (statistics.median(plain.memory) - before),
        "peak memory of the process": statistics.median(ours.memory) / statistics.median(plain.memory),
    }
    for field in ("loss", "norm"):
        a, b = ours.own[0][field], plain.own[0][field]
        assert abs(a - b) <= 1e-4 * abs(b), f"{field} differs: {a} and {b}"
    leave(
        arguments,
        {"ratios": figures},
        table(["", "seconds, forward and backward", "peak memory, MB", "of the loss, MB", "loss"], lines),
        table(["ours ÷ plain", "ratio"], [[name, f"{value:.2f}"] for name, value in figures.items()]),
    )


if __name__ == "__main__":
    main()
