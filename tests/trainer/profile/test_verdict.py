"""Verdicts and advice on traces whose answers are known from how they were made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trainer.profile.traces import OTHER_STREAM, US, Trace, about, analysed_story
from trainer.kernels import Choice
from trainer.profile.about import Compiled, Sync
from trainer.profile.advice import advise
from trainer.profile.analysis import Analysis, analyse
from trainer.profile.attribute import COMMUNICATION
from trainer.profile.events import STEP, Event
from trainer.profile.verdict import divide, judge

SECOND = 1e-6


def found(trace: Trace) -> Analysis:
    return analyse(trace.events, host_is_device=False)


def test_the_shares_of_a_step_add_up_to_it() -> None:
    trace = Trace().step(0, 1000).phase("data", 0, 100).phase("forward", 100, 600).phase("loss", 500, 600)
    trace.kernel("gemm", 120, 300, asked=101).kernel("vectorized", 280, 400, asked=103, stream=OTHER_STREAM)
    trace.kernel("ncclDevKernel_AllGather", 390, 500, asked=105, kind="communication", stream=9)
    trace.kernel("gemm", 520, 600, asked=510).kernel("vectorized", 700, 703, asked=690)
    shares = divide(found(trace), about(step_s=1000 * SECOND, useful=600, data_s=100 * SECOND))
    assert shares.total == pytest.approx(1000 * SECOND)
    assert min(shares.launch, shares.compute, shares.memory, shares.communication, shares.data, shares.padding) > 0


def test_a_step_of_tiny_launches_is_launch_bound_however_busy_the_device() -> None:
    analysis = analysed_story()
    verdict = judge(analysis, about(step_s=1.0))
    assert analysis.device_busy_s == pytest.approx(0.984)
    assert verdict.bound == "launch"
    assert verdict.share == pytest.approx(0.8164, abs=1e-4)  # 800.4 ms of fixed costs and 16 ms of gaps
    assert "200,100 kernels" in verdict.said


def test_big_products_are_compute_bound_and_big_pointwise_kernels_bound_by_bandwidth() -> None:
    trace = Trace().step(0, 1000)
    trace.kernel("gemm", 5, 705, asked=0).kernel("vectorized", 705, 1000, asked=2)
    assert judge(found(trace), about(step_s=1000 * SECOND)).bound == "compute"
    trace = Trace().step(0, 1000)
    trace.kernel("gemm", 5, 305, asked=0).kernel("vectorized", 305, 1000, asked=2)
    verdict = judge(found(trace), about(step_s=1000 * SECOND))
    assert (verdict.bound, verdict.share) == (
        "memory-bandwidth",
        pytest.approx(0.69),
    )  # 695 less 5 that any kernel costs


def test_two_thousand_launches_of_real_work_are_not_launch_bound() -> None:
    trace = Trace().step(0, 200_000)
    for place in range(2000):
        trace.kernel("gemm", 10 + place * 100, 110 + place * 100, asked=place * 5, takes=5)
    assert judge(found(trace), about(step_s=0.2)).bound == "compute"


def test_a_slow_loader_makes_a_step_data_bound() -> None:
    trace = Trace().step(0, 1000).phase("data", 0, 700).phase("forward", 700, 1000).kernel("gemm", 710, 1000, asked=700)
    late = about(step_s=1000 * SECOND, data_s=700 * SECOND)
    verdict = judge(found(trace), late)
    assert (verdict.bound, verdict.share) == ("data", pytest.approx(0.7))
    first = advise(found(trace), late, syncs=(), compiled=())[0]
    assert "rows come too late" in first.text
    assert first.gain_s == pytest.approx(700 * SECOND)
    assert "from an address" in advise(found(trace), replace(late, at_address=True), syncs=(), compiled=())[0].text


def test_a_loader_that_catches_up_while_the_profiler_slows_the_step_is_slow_all_the_same() -> None:
    # By the clock a step of 300 waits 700 for its rows; under the profiler it takes 900, mostly the host, and waits for 100 of them.
    trace = Trace().step(0, 1000).phase("data", 0, 100).phase("forward", 100, 1000).kernel("gemm", 710, 1000, asked=700)
    late = about(step_s=1000 * SECOND, data_s=700 * SECOND)
    shares = divide(found(trace), late)
    assert shares.data == pytest.approx(700 * SECOND)
    assert shares.launch == pytest.approx((610 + 5 - 600) * SECOND)
    assert judge(found(trace), late).bound == "data"


def test_so_is_one_of_which_the_recorded_steps_saw_nothing_but_a_moment_under_work() -> None:
    trace = Trace().step(0, 1000).phase("data", 100, 101).kernel("gemm", 0, 1000, asked=0)
    late = about(step_s=1700 * SECOND, data_s=700 * SECOND)
    assert divide(found(trace), late).data == pytest.approx(700 * SECOND)


def test_a_wait_for_rows_that_the_device_works_through_is_none() -> None:
    trace = Trace().step(0, 1000).phase("data", 0, 600).phase("forward", 600, 1000).kernel("gemm", 0, 450, asked=0)
    trace.kernel("gemm", 600, 1000, asked=600)
    shares = divide(found(trace), about(step_s=1000 * SECOND, data_s=600 * SECOND))
    assert shares.data == pytest.approx(150 * SECOND)
    assert shares.total == pytest.approx(1000 * SECOND)


def test_only_communication_with_nothing_beside_it_makes_a_step_communication_bound() -> None:
    def trace(talk_from: float) -> Trace:
        made = Trace().step(0, 1000).kernel("gemm", 5, 400, asked=0)
        return made.kernel(
            "ncclDevKernel_ReduceScatter",
            talk_from,
            talk_from + 600,
            asked=2,
            kind="communication",
            stream=OTHER_STREAM,
        )

    exposed = found(trace(400))
    assert judge(exposed, about(step_s=1000 * SECOND)).bound == "communication"
    reduce = advise(exposed, about(step_s=1000 * SECOND, passes=4), syncs=(), compiled=())
    # All of it sums gradients, in each of 4 passes where one would do; twice the rows a pass would halve it,
    # and what starting costs: 5 until the first kernel and 5 that any kernel costs.
    assert [each.gain_s for each in reduce] == [pytest.approx(450 * SECOND), pytest.approx(305 * SECOND)]
    assert "--reduce step" in reduce[0].text
    hidden = Trace().step(0, 1000).kernel("gemm", 5, 900, asked=0)
    hidden.kernel("ncclDevKernel_ReduceScatter", 50, 650, asked=2, kind="communication", stream=OTHER_STREAM)
    assert judge(found(hidden), about(step_s=1000 * SECOND)).bound == "compute"
    assert {use.layer for use in found(hidden).layers} >= {COMMUNICATION}


def test_padding_takes_its_share_of_the_work_that_grows_with_slots_and_of_no_other() -> None:
    trace = Trace().step(0, 1000).phase("forward", 0, 700).phase("optimiser", 700, 1000)
    trace.kernel("gemm", 0, 605, asked=1).kernel("adamw", 705, 1000, asked=701)
    padded = about(step_s=1000 * SECOND, slots=1000, useful=250, padded=True)
    shares = divide(found(trace), padded)
    assert shares.padding == pytest.approx(450 * SECOND)
    assert shares.compute == pytest.approx(150 * SECOND)
    assert shares.memory == pytest.approx(290 * SECOND)
    verdict = judge(found(trace), padded)
    assert (verdict.bound, verdict.share) == ("padding", pytest.approx(0.45))
    assert "75% of 1,000 slots" in verdict.said
    first = advise(found(trace), padded, syncs=(), compiled=())[0]
    assert "packed rows" in first.text
    assert first.gain_s == pytest.approx(450 * SECOND)


def test_what_the_profiler_adds_is_taken_from_the_hosts_time() -> None:
    trace = Trace().step(0, 1000).kernel("gemm", 500, 1000, asked=490)
    assert judge(found(trace), about(step_s=1000 * SECOND)).bound == "launch"
    shares = divide(found(trace), about(step_s=600 * SECOND))
    assert shares.launch == pytest.approx(105 * SECOND)
    assert shares.total == pytest.approx(600 * SECOND)
    assert judge(found(trace), about(step_s=600 * SECOND)).bound == "compute"


def test_a_fallback_is_named_with_its_launches_and_their_share_of_the_time() -> None:
    trace = Trace().step(0, 14_000).phase("forward", 0, 14_000)
    trace.host("layer", "DeltaNet", 0, 12_000).host("layer", "gated delta kernel", 0, 11_000)
    for place in range(1400):
        trace.kernel("tiny", place * 10 + 1, place * 10 + 3, asked=place * 10)
    slow = about(
        step_s=14_000 * SECOND,
        passes=1,
        layers=(
            Choice(layer="delta", kernel="reference", reason="asked for"),
            Choice(layer="conv", kernel="fla", reason="it has it"),
        ),
    )
    advice = advise(found(trace), slow, syncs=(), compiled=())
    assert advice[0].text.startswith("fused gated delta kernel not in use: 1,100 of 1,400 launches are its fallback")
    assert advice[0].gain_s == pytest.approx(14_000 * SECOND * 11 / 14, rel=0.01)
    assert not advise(found(trace), replace(slow, device="cpu"), syncs=(), compiled=())


def test_more_rows_a_pass_save_launches_but_not_those_that_grow_with_slots() -> None:
    trace = Trace().step(0, 1000).phase("forward", 0, 500).phase("optimiser", 500, 1000)
    trace.host("layer", "gated delta kernel", 0, 200)
    for place in range(100):
        trace.kernel("tiny", place * 10 + 1, place * 10 + 2, asked=place * 10)
    layers = (Choice(layer="delta", kernel="reference", reason=""),)
    advice = advise(
        found(trace), about(step_s=1000 * SECOND, device="cpu", passes=4, layers=layers), syncs=(), compiled=()
    )
    assert "4 passes a step become 2, and 15 of 100 launches go" in advice[0].text  # half of 100 - 20 - 50
    assert advice[0].gain_s == pytest.approx(1000 * SECOND * 0.15, rel=0.01)
    one = about(step_s=1000 * SECOND, device="cpu", passes=1, layers=layers)
    assert not advise(found(trace), one, syncs=(), compiled=())


def test_compiling_is_advised_for_small_operations_between_products() -> None:
    trace = Trace().step(0, 1000).phase("forward", 0, 1000).host("layer", "MLP", 0, 1000)
    for place in range(10):
        trace.kernel("vectorized", place * 100, place * 100 + 50, asked=place * 100)
    eager = about(step_s=1000 * SECOND, passes=1, compiled=False)
    advice = advise(found(trace), eager, syncs=(), compiled=())
    assert advice[0].text.startswith("--compile: 10 of 10 launches")
    assert advice[0].gain_s == pytest.approx(
        ((500 + 50) + 500 / 2) * SECOND, rel=0.01
    )  # gaps, fixed costs, half the work
    assert not advise(found(trace), replace(eager, compiled=True), syncs=(), compiled=())
    assert not any(
        "--compile" in each.text for each in advise(found(trace), replace(eager, padded=True), syncs=(), compiled=())
    )


def test_a_wait_for_the_device_is_named_by_its_source_line() -> None:
    trace = Trace().step(0, 400)
    for at in (0, 100, 200, 300):
        trace.kernel("gemm", at + 2, at + 60, asked=at).host("wait", "cudaStreamSynchronize", at + 4, at + 60)
    syncs = (Sync(where="trainer/optim.py:88 in update", count=4),)
    advice = advise(found(trace), about(step_s=400 * SECOND, passes=1), syncs=syncs, compiled=())
    assert "4 waits a step" in advice[0].text
    assert "trainer/optim.py:88 in update (4 a step)" in advice[0].text
    assert advice[0].gain_s == pytest.approx(3 * 42 * SECOND)


def test_a_recompilation_in_the_window_is_named_with_its_reason() -> None:
    trace = Trace().step(0, 1000).step(1000, 2000).kernel("gemm", 0, 2000, asked=0)
    again = Compiled(kind="graph", name="forward", where="model.py:7", why="size mismatch", seconds=600 * SECOND)
    advice = advise(found(trace), about(step_s=1000 * SECOND, steps=2, passes=1), syncs=(), compiled=(again,))
    assert "1 compiled within the window" in advice[0].text
    assert "forward (model.py:7, size mismatch)" in advice[0].text
    assert advice[0].gain_s == pytest.approx(300 * SECOND)


def test_at_most_three_are_told_the_largest_first_and_none_below_a_hundredth() -> None:
    trace = Trace().step(0, 1000).phase("data", 0, 200).phase("forward", 200, 1000).host("layer", "MLP", 200, 1000)
    for place in range(8):
        trace.kernel("vectorized", 200 + place * 100, 250 + place * 100, asked=200 + place * 100)
    all_of_it = about(step_s=1000 * SECOND, data_s=200 * SECOND, useful=600, compiled=False, checkpointing="full")
    advice = advise(found(trace), all_of_it, syncs=(), compiled=())
    assert len(advice) == 3
    assert [each.gain_s for each in advice] == sorted((each.gain_s for each in advice), reverse=True)
    nothing = Trace().step(0, 1000).kernel("gemm", 0, 1000, asked=0)
    assert advise(found(nothing), about(step_s=1000 * SECOND, passes=1), syncs=(), compiled=()) == ()


def test_computing_activations_again_is_told_with_what_it_costs() -> None:
    trace = Trace().step(0, 1000).phase("backward", 0, 1000).host("layer", "A", 100, 300)
    trace.kernel("gemm", 101, 301, asked=100).kernel("gemm", 301, 1000, asked=310)
    advice = advise(found(trace), about(step_s=1000 * SECOND, passes=1, checkpointing="full"), syncs=(), compiled=())
    assert "--activation-checkpointing selective or none" in advice[0].text
    assert advice[0].gain_s == pytest.approx(200 * SECOND)


def test_products_in_fp32_on_a_gpu_are_told() -> None:
    trace = Trace().step(0, 1000).kernel("sgemm", 0, 1000, asked=0)
    advice = advise(found(trace), about(step_s=1000 * SECOND, passes=1, dtype="fp32"), syncs=(), compiled=())
    assert "--dtype bf16" in advice[0].text


def test_a_trace_of_a_step_in_which_nothing_ran_is_all_launch() -> None:
    events = [Event(kind="phase", name=STEP, start=0, end=100 * US)]
    verdict = judge(analyse(events, host_is_device=False), about(step_s=100 * SECOND))
    assert (verdict.bound, verdict.share) == ("launch", 1.0)
