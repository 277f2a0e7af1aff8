"""Numbers of a step from traces made by hand: every expected value is reckoned from how the trace was made."""

from __future__ import annotations

import pytest

from tests.trainer.profile.traces import AUTOGRAD, OTHER_STREAM, Trace, analysed_story
from trainer.profile.analysis import analyse
from trainer.profile.names import does_work, is_product

US = 1e-6


def us(value: float) -> object:
    return pytest.approx(value * US, abs=1e-12)


def test_a_device_that_is_busy_98_percent_of_the_time_may_do_little() -> None:
    found = analysed_story()
    assert found.launches == 200_100
    assert found.step_s == pytest.approx(1.0)
    assert found.device_busy_s == pytest.approx(0.984)  # 200,000 x 4 µs + 100 x 1.84 ms
    assert found.enqueue_s == pytest.approx(1.0)
    assert found.useful_s == pytest.approx(0.1836)  # 100 x (1.84 ms - 4 µs)
    assert found.cpu_wait_s == pytest.approx(0.016)
    assert found.fixed_s == pytest.approx(0.8004)
    assert found.enqueue_s > found.useful_s


def test_what_runs_at_once_on_two_streams_counts_once() -> None:
    trace = Trace().step(0, 100)
    trace.kernel("gemm", 10, 60, asked=0).kernel("gemm", 40, 80, asked=2, stream=OTHER_STREAM)
    found = analyse(trace.events, host_is_device=False)
    assert found.device_busy_s == us(70)
    assert found.layers[0].seconds == us(90)  # work is not time: both did theirs
    assert found.cpu_wait_s == us(30)


def test_a_step_is_the_mean_of_the_window_and_ends_with_the_device() -> None:
    trace = Trace().step(0, 100).step(100, 200)
    trace.kernel("gemm", 10, 60, asked=0).kernel("gemm", 150, 260, asked=140)
    found = analyse(trace.events, host_is_device=False)
    assert (found.steps, found.launches) == (2, 1)
    assert found.step_s == us(130)
    assert found.device_busy_s == us(80)


def test_work_before_and_after_the_steps_is_no_part_of_them() -> None:
    trace = Trace().kernel("gemm", 10, 60, asked=0).step(100, 200).kernel("gemm", 120, 150, asked=110)
    found = analyse(trace.events, host_is_device=False)
    assert found.launches == 1
    assert found.device_busy_s == us(30)
    assert [use.seconds for use in found.layers] == [us(30)]
    with pytest.raises(ValueError, match="no step"):
        analyse(Trace().events, host_is_device=False)


def test_idle_time_is_the_loaders_only_while_the_host_waits_for_rows() -> None:
    # The device still has work for 20 of the 60 that the host waits for its rows.
    trace = Trace().step(0, 200).phase("data", 40, 100).phase("forward", 100, 200)
    trace.kernel("gemm", 10, 60, asked=0).kernel("gemm", 120, 200, asked=110)
    found = analyse(trace.events, host_is_device=False)
    assert found.data_wait_s == us(40)
    assert found.cpu_wait_s == us(10 + 20)
    assert found.enqueue_s == us(140)


def test_communication_counts_as_waiting_only_where_nothing_is_computed_beside_it() -> None:
    trace = Trace().step(0, 100).kernel("gemm", 0, 50, asked=0)
    trace.kernel("ncclDevKernel_ReduceScatter", 30, 80, asked=5, kind="communication", stream=OTHER_STREAM)
    found = analyse(trace.events, host_is_device=False)
    assert found.communication_s == us(30)
    assert found.hidden_communication_s == us(20)
    assert found.device_busy_s == us(80)
    assert found.cpu_wait_s == us(20)


def test_waits_of_the_host_are_not_enqueueing_and_what_they_cost_is_the_idle_time_after_them() -> None:
    trace = Trace().step(0, 400)
    # A sync in each of four layers: the device runs dry, and 40 µs pass until it has work again.
    for at in (0, 100, 200, 300):
        trace.kernel("gemm", at + 10, at + 70, asked=at, takes=4)
        trace.host("wait", "cudaStreamSynchronize", at + 4, at + 70)
    trace.kernel("gemm", 395, 400, asked=390, takes=4)
    found = analyse(trace.events, host_is_device=False)
    assert found.waits == 4
    assert found.wait_s == us(4 * 66)
    assert found.enqueue_s == us(400 - 4 * 66)
    # Three waits are followed by 30 + 10 until the next kernel starts, the last by 25.
    assert found.idle_after_waits_s == us(3 * 40 + 25)


def test_a_launch_that_a_full_queue_holds_up_is_waiting_not_enqueueing() -> None:
    trace = Trace().step(0, 1000)
    for place in range(9):
        trace.kernel("gemm", 10 + place * 100, 110 + place * 100, asked=place * 2, takes=2)
    trace.kernel("gemm", 910, 1000, asked=18, takes=900)
    found = analyse(trace.events, host_is_device=False)
    # 10 usual launches are let pass before one counts as held up.
    assert found.enqueue_s == us(1000 - 900 + 10 * 2)


def test_the_longest_fixed_cost_is_five_microseconds() -> None:
    trace = Trace().step(0, 100).kernel("gemm", 0, 100, asked=0)
    found = analyse(trace.events, host_is_device=False)
    assert (found.fixed_s, found.useful_s) == (us(5), us(95))


def test_on_a_cpu_operations_are_the_work_and_what_lies_between_them_is_starting_them() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 100)
    trace.host("op", "aten::linear", 10, 60).host("op", "aten::mm", 20, 50).host("op", "aten::mul", 70, 80)
    found = analyse(trace.events, host_is_device=True)
    assert found.launches == 2
    assert found.device_busy_s == us(40)
    assert found.cpu_wait_s == us(60)
    assert found.product_s == us(25)
    assert found.enqueue_s == us(100 - 30)  # 40 of work, of which 2 x 5 is what any operator costs
    assert (found.phases[0].phase, found.phases[0].launches) == ("forward", 2)


def test_on_a_cpu_waiting_for_rows_or_ranks_is_not_enqueueing() -> None:
    trace = Trace().step(0, 100).phase("data", 0, 30).phase("forward", 30, 100).host("op", "aten::mm", 30, 60)
    trace.host("communication", "gloo:all_reduce", 50, 90, lane=AUTOGRAD)
    found = analyse(trace.events, host_is_device=True)
    assert found.data_wait_s == us(30)
    assert found.communication_s == us(30)
    assert found.enqueue_s == us(100 - 30 - 25 - 30)


def test_launches_are_counted_by_type_of_layer() -> None:
    trace = Trace().step(0, 1000).phase("forward", 0, 500).phase("optimiser", 900, 1000)
    for layer in range(4):
        at = layer * 100
        trace.host("layer", "DeltaNet", at, at + 90).host("layer", "gated delta kernel", at + 10, at + 60)
        for place in range(10):
            trace.kernel("elementwise", at + place * 5, at + place * 5 + 4, asked=at + 10 + place * 5)
        trace.kernel("gemm", at + 60, at + 80, asked=at + 70)
    trace.kernel("adamw", 950, 960, asked=910)
    found = analyse(trace.events, host_is_device=False)
    assert {use.layer: use.launches for use in found.layers} == {
        "gated delta kernel": 40,
        "DeltaNet": 4,
        "optimiser": 1,
    }
    by_seconds = {use.layer: use.seconds for use in found.layers}
    assert by_seconds["gated delta kernel"] == us(160)
    assert found.layers[0].top == (("elementwise", us(160)),)
    assert found.fusible == 0  # a compiler does not see into a kernel, and products are none


def test_what_is_computed_again_in_backward_is_told_apart() -> None:
    trace = Trace().step(0, 100).phase("forward", 0, 40).phase("backward", 40, 100)
    trace.host("layer", "A", 0, 20).kernel("gemm", 0, 20, asked=1)
    trace.host("layer", "A", 50, 70, lane=AUTOGRAD).kernel("gemm", 60, 80, asked=51, lane=AUTOGRAD)
    trace.kernel("gemm", 80, 100, asked=75, lane=AUTOGRAD)
    assert analyse(trace.events, host_is_device=False).recompute_s == us(20)


@pytest.mark.parametrize(
    ("operator", "kernel", "product"),
    [
        ("aten::mm", "", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", True),
        ("aten::linalg_solve_triangular", "", True),
        ("", "chunk_gated_delta_rule_fwd_kernel_h", True),
        ("", "nvjet_tst_128x256", True),
        ("aten::mul", "vectorized_elementwise_kernel", False),
        ("aten::_foreach_norm", "", False),
        ("", "ampere_bf16_s16816gemm_bf16_128x64", True),
        ("aten::index_select", "", False),
        ("aten::cumsum", "", False),
        ("", "layer_norm_fwd_kernel", False),
    ],
)
def test_products_are_known_by_name(operator: str, kernel: str, product: bool) -> None:
    assert is_product(operator, kernel) is product


def test_views_and_empty_memory_are_no_work() -> None:
    for name in ("view", "t", "slice", "empty_strided", "new_empty", "detach", "_local_scalar_dense"):
        assert not does_work(f"aten::{name}"), name
    for name in ("copy_", "mul", "fill_", "cat", "zeros_like", "index_put_"):
        assert does_work(f"aten::{name}"), name
