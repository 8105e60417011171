"""Other ways to run the same network: compiled, without a compiler, exported, in bfloat16."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from model_variants import PAPER, SMALL, VARIATIONS, assert_same_trace, lively, random_images

from ocra.model.kernels import compiled_or_eager
from ocra.model.ocra import OCRA

TESTS = Path(__file__).parent


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a Python of its own, which can find the helpers of these tests."""
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_compiled_step_agrees_with_the_plain_one() -> None:
    """Outputs and deferred gradients, at the first glimpse and at later ones, for any number of glimpses."""
    config = SMALL
    plain, images = lively(config), random_images(config)
    compiled = OCRA(config)
    compiled.load_state_dict(plain.state_dict())
    compiled.defer_weight_gradients = True
    compiled.compile_step()
    expected, trace = plain(images), compiled(images)
    assert_same_trace(trace, expected, rtol=1e-4, atol=1e-5)
    for result in (expected, trace):
        (result.scores.square().sum() + result.canvas.square().sum()).backward()
    for (name, ours), theirs in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(
            ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert_same_trace(compiled(images, glimpses=7), plain(images, glimpses=7), rtol=1e-4, atol=1e-5)


class Scale:
    """Something whose method has to be compiled anew for each of its numbers."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def times(self, values: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        return values * self.factor * (2 if twice else 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_networks_compiled_in_one_process_do_not_use_up_each_others_variants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`ocra reproduce` trains five networks one after the other. No C++ compiler is needed to count variants."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=1):
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for factor in (2.0, 3.0, 5.0):
            times = compiled_or_eager(Scale(factor).times)
            assert torch.equal(times(torch.ones(4), twice=True), torch.full((4,), 2 * factor))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 3


WITHOUT_COMPILER = """
import warnings
from model_variants import SMALL, assert_same_trace, lively, random_images
model, images = lively(SMALL), random_images(SMALL)
expected = model(images)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model.compile_step()
    assert_same_trace(model(images), expected)
    assert_same_trace(model(images), expected)
said = [str(warning.message) for warning in caught if "going on uncompiled" in str(warning.message)]
assert len(said) == 1, said
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_goes_on_uncompiled_where_there_is_no_compiler(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-such-compiler")
    result = run(WITHOUT_COMPILER, CXX=missing, CC=missing, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["small", "colour without attention"])
def test_a_fixed_number_of_glimpses_can_be_exported(name: str, tmp_path: Path) -> None:
    config = VARIATIONS[name]
    model, images = lively(config).eval(), random_images(config)
    torch.export.save(torch.export.export(model, (images,), {"glimpses": 2}), tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2").module()
    other = random_images(config, seed=9)
    assert_same_trace(exported(other, glimpses=2), model(other, glimpses=2), rtol=1e-5, atol=1e-6)


BFLOAT16_WORKS = "import torch; a = torch.rand(64, 64, dtype=torch.bfloat16); a @ a"
IN_BFLOAT16 = """
import torch
from model_variants import PAPER, VARIATIONS, flat, lively, random_images
configs = [PAPER["multimnist-3"], *VARIATIONS.values()]
for config in configs:
    model = lively(config)
    for images in (random_images(config), torch.zeros(2, *config.image_shape)):
        with torch.autocast("cpu", torch.bfloat16):
            trace = model(images, record=True)
            loss = trace.scores.sum() + trace.canvas.float().square().sum() + trace.capsule_lengths.sum()
            if trace.readout is not None:
                loss = loss + trace.readout.square().sum()
        model.zero_grad()
        loss.backward()
        assert trace.scores.dtype == torch.float32
        for name, value in flat(trace).items():
            assert value.isfinite().all(), (config, name)
        for name, parameter in model.named_parameters():
            assert parameter.grad.isfinite().all(), (config, name)
    exact = model(images, record=True)
    assert (trace.scores - exact.scores).abs().max() < 0.1 * config.glimpses, config
"""


def test_bfloat16_autocast_is_finite() -> None:
    """In a process of its own: some virtual machines announce matrix units they have not, and die of it."""
    environment: dict[str, str] = {}
    if run(BFLOAT16_WORKS).returncode == -signal.SIGILL:
        environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
        if run(BFLOAT16_WORKS, **environment).returncode == -signal.SIGILL:
            pytest.skip("needs a processor that survives a bfloat16 matrix product")
    result = run(IN_BFLOAT16, **environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("name", ["multimnist-3", "svhn-12"])
def test_a_cuda_device_gives_the_same_answers(name: str) -> None:
    model, images = lively(PAPER[name]), random_images(PAPER[name])
    expected = model(images)
    trace = model.cuda()(images.cuda())
    torch.testing.assert_close(trace.scores.cpu(), expected.scores, rtol=1e-2, atol=1e-3)
