"""Who asked for what, on traces made by hand."""

from __future__ import annotations

from tests.trainer.profile.traces import AUTOGRAD, HOST, Trace
from trainer.profile.attribute import COMMUNICATION, LOSS, OPTIMISER, REST, Phases, attribute
from trainer.profile.events import Event


def layers(trace: Trace, *, cpu: bool) -> list[tuple[str, str, str]]:
    """(name, layer, phase) of all work, in order."""
    work = sorted(attribute(trace.events, host_is_device=cpu).work, key=lambda each: each.start)
    return [(each.name, each.layer, each.phase) for each in work]


def test_a_forward_operator_belongs_to_the_innermost_layer() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 100)
    trace.host("layer", "Mixer", 10, 60).host("layer", "gated delta kernel", 20, 40)
    for start in (12, 25, 45, 70):
        trace.host("op", "aten::mm", start, start + 5)
    assert [layer for _, layer, _ in layers(trace, cpu=True)] == ["Mixer", "gated delta kernel", "Mixer", REST]


def test_a_backward_operator_belongs_to_the_layer_of_its_forward() -> None:
    trace = Trace().step(0, 200).phase("forward", 0, 100).phase("backward", 100, 200)
    trace.host("layer", "A", 0, 40).host("op", "aten::mm", 5, 10, sequence=3)
    trace.host("layer", "B", 40, 80).host("op", "aten::mul", 45, 50, sequence=4)
    trace.host("node", "MulBackward0", 100, 120, lane=AUTOGRAD, sequence=4, backward=True)
    trace.host("op", "aten::mul", 105, 110, lane=AUTOGRAD)
    trace.host("node", "MmBackward0", 120, 150, lane=AUTOGRAD, sequence=3, backward=True)
    trace.host("op", "aten::mm", 125, 130, lane=AUTOGRAD)
    assert layers(trace, cpu=True)[2:] == [("aten::mul", "B", "backward"), ("aten::mm", "A", "backward")]


def test_a_node_is_made_by_the_last_operator_that_saw_its_number() -> None:
    """A view at the end of a layer is told the number of the node that comes next, which the next layer makes."""
    trace = Trace().step(0, 100).phase("forward", 0, 50).phase("backward", 50, 100)
    trace.host("layer", "A", 0, 10).host("op", "aten::detach", 5, 6, sequence=3)
    trace.host("layer", "B", 10, 20).host("op", "aten::mm", 12, 18, sequence=3)
    trace.host("node", "MmBackward0", 60, 70, sequence=3, backward=True).host("op", "aten::mm", 61, 69)
    assert layers(trace, cpu=True)[-1] == ("aten::mm", "B", "backward")


def test_numbers_of_two_threads_are_not_mixed_up() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 50).phase("backward", 50, 100)
    trace.host("layer", "A", 0, 10).host("op", "aten::mm", 1, 5, sequence=3)
    trace.host("layer", "B", 0, 10, lane=AUTOGRAD).host("op", "aten::mm", 1, 5, lane=AUTOGRAD, sequence=3)
    trace.host("node", "MmBackward0", 60, 70, lane=AUTOGRAD, sequence=3, backward=True)
    trace.host("op", "aten::mm", 61, 69, lane=AUTOGRAD)
    assert layers(trace, cpu=True)[-1] == ("aten::mm", "A", "backward")


def test_a_layer_that_runs_again_in_backward_keeps_its_work() -> None:
    trace = Trace().step(0, 100).phase("backward", 0, 100)
    trace.host("node", "SumBackward0", 0, 90, sequence=9, backward=True).host("layer", "A", 10, 50)
    trace.host("op", "aten::mm", 20, 30, sequence=11)
    assert layers(trace, cpu=True) == [("aten::mm", "A", "backward")]


def test_loss_and_optimiser_are_known_by_the_part_of_the_step_and_backward_by_its_forward() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 40).phase("loss", 20, 40).phase("backward", 40, 80)
    trace.phase("optimiser", 80, 100).host("op", "aten::mm", 25, 30, sequence=5)
    trace.host("node", "CrossEntropyBackward", 50, 60, sequence=5, backward=True).host("op", "aten::mul", 51, 59)
    trace.host("op", "aten::_fused_adamw_", 85, 95)
    assert layers(trace, cpu=True) == [
        ("aten::mm", LOSS, "loss"),
        ("aten::mul", LOSS, "backward"),
        ("aten::_fused_adamw_", OPTIMISER, "optimiser"),
    ]


def test_a_kernel_belongs_to_what_its_launch_belongs_to_however_late_it_runs() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 20).phase("optimiser", 20, 100)
    trace.host("layer", "A", 0, 15).host("op", "aten::mul", 5, 12).kernel("vectorized", 60, 70, asked=6)
    trace.kernel("ncclDevKernel_AllGather", 30, 40, asked=14, kind="communication")
    work = sorted(attribute(trace.events, host_is_device=False).work, key=lambda each: each.start)
    assert [(each.layer, each.phase) for each in work] == [(COMMUNICATION, "forward"), ("A", "forward")]
    assert work[1].operator == "aten::mul"


def test_an_operator_that_only_calls_others_is_not_work_and_views_are_none() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 100)
    trace.host("op", "aten::linear", 10, 50).host("op", "aten::t", 11, 13).host("op", "aten::addmm", 15, 45)
    trace.host("op", "aten::expand", 16, 18).host("op", "aten::empty", 60, 62).host("node", "MyFunction", 70, 90)
    trace.host("op", "aten::mul", 72, 80)
    found = attribute(trace.events, host_is_device=True)
    assert [(each.name, each.own) for each in found.work] == [("aten::addmm", 30_000), ("aten::mul", 8_000)]
    assert len(found.launches) == 2


def test_a_step_of_an_operator_counts_only_where_the_operator_is_made_of_steps() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 100)
    trace.host("op", "aten::sum", 0, 10).host("op", "aten::fill_", 2, 4)  # a sum, which fills what it sums into
    trace.host("op", "aten::to", 20, 30).host("op", "aten::_to_copy", 21, 29).host("op", "aten::copy_", 23, 28)
    trace.host("op", "aten::constant_pad_nd", 40, 60).host("op", "aten::fill_", 42, 46).host(
        "op", "aten::copy_", 50, 58
    )
    trace.host("op", "aten::outer", 70, 90).host("op", "aten::fill_", 71, 73).host("op", "aten::mul", 75, 85)
    work = attribute(trace.events, host_is_device=True).work
    assert sorted((each.start // 1000, each.name, each.own // 1000) for each in work) == [
        (0, "aten::sum", 10),
        (23, "aten::copy_", 5),
        (42, "aten::fill_", 4),
        (50, "aten::copy_", 8),
        (71, "aten::fill_", 2),
        (75, "aten::mul", 10),
    ]


def test_a_compiled_graph_is_work_and_what_it_calls_is_not_counted_twice() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 100).host("graph", "compiled graph", 10, 60)
    trace.host("op", "aten::mm", 20, 45)
    work = attribute(trace.events, host_is_device=True).work
    assert {each.name: each.own for each in work} == {"aten::mm": 25_000, "compiled graph": 25_000}


def test_a_part_of_the_step_has_what_lies_in_no_part_inside_it() -> None:
    events = [
        Event(kind="phase", name=name, start=start, end=end, lane=HOST)
        for name, start, end in (("step", 0, 100), ("forward", 10, 60), ("loss", 40, 50), ("backward", 60, 90))
    ]
    phases = Phases(events)
    assert [phases.at(moment) for moment in (5, 10, 39, 40, 50, 59, 60, 89, 95)] == [
        "",
        "forward",
        "forward",
        "loss",
        "forward",
        "forward",
        "backward",
        "backward",
        "",
    ]
    assert phases.exclusive() == [
        ("forward", 10, 40),
        ("loss", 40, 50),
        ("forward", 50, 60),
        ("backward", 60, 90),
    ]
