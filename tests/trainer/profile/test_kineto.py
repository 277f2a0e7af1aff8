"""What torch's profiler records, as events: as it would record a step on a GPU, and as it does record one on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.profile.analysis import analyse
from trainer.profile.attribute import SHARDING
from trainer.profile.events import Event
from trainer.profile.kineto import events_of

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@dataclass(frozen=True)
class Recorded:
    """One event as torch's profiler hands it out."""

    values: dict[str, object] = field(default_factory=dict)

    def __getattr__(self, name: str) -> object:
        return lambda: self.values[name]


def recorded(name: str, activity: str, start: int, length: int, **more: object) -> Recorded:
    usual = {
        "device_resource_id": 4711,
        "start_thread_id": 1,
        "fwd_thread_id": 0,
        "correlation_id": 0,
        "sequence_nr": -1,
        "nbytes": 0,
        "device_type": SimpleNamespace(__str__=lambda _: "DeviceType.CUDA"),
    }
    return Recorded(
        {"name": name, "activity_type": activity, "start_ns": start, "duration_ns": length, **usual, **more}
    )


def converted(events: list[Recorded], device: torch.device) -> list[Event]:
    profiler = SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))
    return events_of(profiler, device=device)  # type: ignore[arg-type]  # all of a profile that is read


@pytest.mark.parametrize(
    ("name", "activity", "kind"),
    [
        ("cudaLaunchKernel", "cuda_runtime", "launch"),
        ("cudaLaunchKernelExC", "cuda_runtime", "launch"),
        ("cuLaunchKernelEx", "cuda_driver", "launch"),
        ("cudaMemcpyAsync", "cuda_runtime", "launch"),
        ("cudaMemsetAsync", "cuda_runtime", "launch"),
        ("cudaGraphLaunch", "cuda_runtime", "launch"),
        ("hipModuleLaunchKernel", "cuda_runtime", "launch"),
        ("cudaStreamSynchronize", "cuda_runtime", "wait"),
        ("cudaDeviceSynchronize", "cuda_runtime", "wait"),
        ("cudaEventSynchronize", "cuda_runtime", "wait"),
        ("cudaMemcpy", "cuda_runtime", "wait"),
        ("cudaEventRecord", "cuda_runtime", None),
        ("cudaStreamIsCapturing", "cuda_runtime", None),
        ("chunk_gated_delta_rule_fwd_kernel_h", "kernel", "kernel"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(...)", "kernel", "communication"),
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", "copy"),
        ("Memset (Device)", "gpu_memset", "copy"),
        ("phase: forward", "gpu_user_annotation", None),
        ("phase: forward", "user_annotation", "phase"),
        ("layer: MLP", "user_annotation", "layer"),
        ("FSDP::all_gather (layers.0)", "user_annotation", "layer"),
        ("Optimizer.step#AdamW.step", "user_annotation", None),
        ("nccl:all_reduce", "user_annotation", None),
        ("aten::mm", "cpu_op", "op"),
        ("fsdp::all_gather_copy_in", "cpu_op", "op"),
        ("autograd::engine::evaluate_function: MmBackward0", "cpu_op", "node"),
        ("MmBackward0", "cpu_op", "node"),
    ],
)
def test_names_of_a_gpu_trace_have_their_kind(name: str, activity: str, kind: str | None) -> None:
    found = converted([recorded(name, activity, 0, 5)], GPU)
    assert [each.kind for each in found] == ([] if kind is None else [kind])
    if name.startswith("FSDP"):
        assert found[0].name == SHARDING


def test_launch_and_kernel_keep_their_number_and_a_backward_node_the_thread_of_its_forward() -> None:
    events = converted(
        [
            recorded("phase: step", "user_annotation", 0, 200_000),
            recorded("layer: MLP", "user_annotation", 0, 50_000),
            recorded("aten::mm", "cpu_op", 10_000, 20_000, sequence_nr=7),
            # The kernel runs on stream 7; its launch came from an autograd thread, whose number in the profiler is 2.
            recorded(
                "MmBackward0",
                "cpu_op",
                100_000,
                30_000,
                sequence_nr=7,
                fwd_thread_id=1,
                start_thread_id=2,
                device_resource_id=99,
            ),
            recorded("cudaLaunchKernel", "cuda_runtime", 110_000, 5_000, correlation_id=42, device_resource_id=99),
            recorded("gemm", "kernel", 120_000, 60_000, correlation_id=42, device_resource_id=7),
        ],
        GPU,
    )
    found = analyse(events, host_is_device=False)
    assert [(use.layer, use.launches, use.seconds) for use in found.layers] == [("MLP", 1, 60e-6)]


def test_memory_of_the_device_alone_counts() -> None:
    @dataclass(frozen=True)
    class Type:
        name: str

        def __str__(self) -> str:
            return f"DeviceType.{self.name}"

    events = [
        recorded("[memory]", "cpu_instant_event", 0, 0, nbytes=64, device_type=Type("CUDA")),
        recorded("[memory]", "cpu_instant_event", 1, 0, nbytes=32, device_type=Type("CPU")),
    ]
    assert [each.nbytes for each in converted(events, GPU)] == [64]
    assert [each.nbytes for each in converted(events, CPU)] == [32]


def test_a_real_profile_has_layers_in_forward_and_backward() -> None:
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, record_function("phase: step"):
        with record_function("phase: forward"):
            with record_function("layer: first"):
                middle = first(torch.ones(4, 8)).relu()
            with record_function("layer: second"):
                out = second(middle).square()
        with record_function("phase: backward"):
            out.sum().backward()
    events = events_of(profiler, device=CPU)
    found = analyse(events, host_is_device=True)
    launches = {use.layer: use.launches for use in found.layers}
    # Forward: addmm and one more each. Backward: two products and two sums for the second, one product less for the first, whose input wants none.
    assert launches["first"] >= 5
    assert launches["second"] >= 6
    assert {use.phase for use in found.phases} == {"forward", "backward"}
    assert 0 < found.device_busy_s < found.step_s
    assert any(each.nbytes == 4 * 8 * 4 for each in events if each.kind == "allocation")
