"""Faults that are planted in kernels are found in their machine code, and what looks like them is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tilestitch.codegen.cuda.machine_code import disassemble as disassembly
from tilestitch.codegen.cuda.machine_code.disassemble import disassemble
from tilestitch.codegen.cuda.machine_code.flow import Instruction, MachineCode
from tilestitch.codegen.cuda.machine_code.lint import Widths, lint, main_loops, widths
from tilestitch.codegen.cuda.machine_code.mix import mix_of
from tilestitch.codegen.cuda.machine_code.parameters import accessed
from tilestitch.codegen.cuda.toolchain import nvrtc
from tilestitch.codegen.cuda.toolchain.text import PRELUDE, device_functions
from tilestitch.codegen.errors import DisassemblerError

HEAD = 'extern "C" __global__ void __launch_bounds__(256) kernel'

CLEAN = f"""{HEAD}(float4 *__restrict__ x, float4 *__restrict__ y) {{
  int i = blockIdx.x * 256 + threadIdx.x;
  float4 v = x[i];
  v.x += 1.0f;
  y[i] = v;
}}"""
SUM = f"""{HEAD}(float *__restrict__ x, float *__restrict__ y, int n) {{
  float total = 0.0f;
  for (int i = threadIdx.x; i < n; i += 256) {{ total += x[i] * x[i]; INSIDE }}
  AFTER
  y[threadIdx.x] = total;
}}"""
WAIT = f"""{HEAD}(unsigned *word) {{
  unsigned now;
  do {{ asm volatile("ld.ORDER.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory"); }} while (now == 0u);
  __syncthreads();
  word[threadIdx.x + 1] = now;
}}"""
EXCHANGE = f"""{HEAD}(float *__restrict__ parts, float *__restrict__ weights, float *__restrict__ y, unsigned *word) {{
  parts[blockIdx.x * 256 + threadIdx.x] = y[threadIdx.x];
  ts_grid_barrier(word);
  y[threadIdx.x] = READ(parts + (blockIdx.x ^ 1) * 256 + threadIdx.x) * __ldg(weights + threadIdx.x);
}}"""
STACK = f"""{HEAD}(float *x, int *order) {{
  float mine[64];
  for (int i = 0; i < 64; ++i) mine[i] = x[i * 256 + threadIdx.x];
  for (int i = 0; i < 64; ++i) x[i * 256 + threadIdx.x] = mine[order[i] & 63];
}}"""
ARCHITECTURES = ["sm_80", "sm_90a"]


@cache
def compiled(text: str, architecture: str) -> MachineCode:
    cubin = nvrtc.compile_text(PRELUDE + device_functions("grid.cuh") + text, architecture)
    (code,) = disassemble([(architecture, cubin)])
    return code


def rules(text: str, architecture: str, promised: Widths | None = None) -> set[str]:
    return {finding.rule for finding in lint(compiled(text, architecture), promised)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_is_wrong_with_a_plain_kernel(architecture: str) -> None:
    code = compiled(CLEAN, architecture)
    assert (code.symbol, code.architecture) == ("kernel", architecture)
    assert widths(code) == Widths(16, 16)
    assert lint(code, Widths(16, 16)) == ()
    assert code.flow.loops[-1].members == {max(n for n, i in enumerate(code.instructions) if i.name == "BRA")}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accesses_that_are_narrower_than_was_asked_for(architecture: str) -> None:
    text = SUM.replace("INSIDE", "").replace("AFTER", "")
    assert rules(text, architecture, Widths(4, 4)) == set()
    assert rules(text, architecture, Widths(16, 4)) == {"narrow_load"}
    assert rules(text, architecture, Widths(4, 8)) == {"narrow_store"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_arrays_with_run_time_indices_and_spilled_registers(architecture: str) -> None:
    assert rules(STACK, architecture) == {"local_memory"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("fence", ["__threadfence();", "__threadfence_system();"])
def test_a_fence_of_the_gpu_belongs_after_the_loop(fence: str, architecture: str) -> None:
    assert rules(SUM.replace("INSIDE", fence).replace("AFTER", ""), architecture) == {"fence_in_loop"}
    assert rules(SUM.replace("AFTER", fence).replace("INSIDE", ""), architecture) == set()
    assert rules(SUM.replace("INSIDE", "__threadfence_block();").replace("AFTER", ""), architecture) == set()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_waiting_orders_nothing(architecture: str) -> None:
    assert rules(WAIT.replace("ORDER", "acquire"), architecture) == {"fence_in_loop"}
    assert rules(WAIT.replace("ORDER", "relaxed"), architecture) == set()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_the_kernel_writes_is_read_coherently(architecture: str) -> None:
    """Weights, which nothing writes, may be read past the coherence after the barrier, too."""
    assert rules(EXCHANGE.replace("READ", "*"), architecture) == set()
    (finding,) = lint(compiled(EXCHANGE.replace("READ", "__ldg"), architecture))
    assert finding.rule == "stale_load"
    assert "CONSTANT" in str(finding)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accesses_are_followed_to_their_arguments(architecture: str) -> None:
    text = f"""{HEAD}(float *__restrict__ a, float *__restrict__ b, float *__restrict__ y, int *where, int n) {{
      const float *from = threadIdx.x < n ? a : b;
      y[where[threadIdx.x]] = from[threadIdx.x * 3];
    }}"""
    first = {"sm_80": 0x160, "sm_90a": 0x210}[architecture]
    code = compiled(text, architecture)
    found = {code.instructions[number].name: set() for number in accessed(code)}
    for number, arguments in accessed(code).items():
        found[code.instructions[number].name] |= {(place - first) // 8 for place in arguments}
    assert found == {"LDG": {0, 1, 3}, "STG": {2}}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loops_in_loops(architecture: str) -> None:
    text = f"""{HEAD}(float *x, int n) {{
      for (int i = 0; i < n; ++i) {{
        float total = 0.0f;
        #pragma unroll 1
        for (int j = 0; j < n; ++j) total += x[j] * x[i];
        x[i] = total;
      }}
    }}"""
    code = compiled(text, architecture)
    named = [{code.instructions[n].name for n in loop.members} for loop in code.flow.loops]
    inner = [loop for loop in main_loops(code) if loop.depth == 2]
    assert any("STG" in names for names in named)
    assert inner and all("STG" not in {code.instructions[n].name for n in loop.members} for loop in inner)


def test_a_missing_disassembler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembly, "_of_wheels", lambda: iter(()))
    monkeypatch.setattr(disassembly.shutil, "which", lambda name: None)
    disassembly.find_disassembler.cache_clear()
    try:
        with pytest.raises(DisassemblerError, match=r"pip install 'tilestitch\[cuda-compiler\]'"):
            disassembly.find_disassembler()
    finally:
        disassembly.find_disassembler.cache_clear()


def test_a_disassembler_that_does_not_know_the_architecture(tmp_path: Path) -> None:
    cubin = nvrtc.compile_text(PRELUDE + CLEAN, "sm_80")
    with pytest.raises(DisassemblerError, match=r"machine code for sm_1: .*pip install --upgrade"):
        disassemble([("sm_1", cubin)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_instructions_of_a_kernel_without_loops_for_each_byte_that_it_moves(architecture: str) -> None:
    mix = mix_of(compiled(CLEAN, architecture))
    assert mix.in_loop == 0
    assert mix.groups["global"] == 2
    assert mix.groups["float"] == 1
    assert mix.instructions == sum(mix.groups.values())
    assert mix.per_byte(256, 256 * 32) == pytest.approx(mix.instructions / 32)
    assert mix.per_byte(256, 0) is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_mix_of_a_loop_is_of_its_busiest_part(architecture: str) -> None:
    mix = mix_of(compiled(SUM.replace("INSIDE", "").replace("AFTER", ""), architecture))
    assert 0 < mix.in_loop < mix.instructions
    assert mix.groups["global"] == mix.groups["float"]
    assert mix.per_byte(256, 1024) is None
    assert mix_of(compiled(WAIT.replace("ORDER", "relaxed"), architecture)).in_loop == 0


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (["HMMA", "MEMBAR.ALL.GPU", "HMMA"], 1),
        (["HMMA", "HMMA", "MEMBAR.ALL.GPU"], 1),
        (["HMMA", "HMMA", "MEMBAR.ALL.CTA"], 0),
        (["HMMA", "HMMA", "STG.E.128", "MEMBAR.ALL.GPU"], 0),  # a loop over tiles, whose steps are written out
        (["HMMA", "MEMBAR.ALL.GPU", "HMMA", "STG.E.128"], 1),
    ],
)
def test_where_a_fence_is_in_a_loop_that_multiplies(body: list[str], found: int) -> None:
    opcodes = ["S2R", *body, "BRA", "EXIT"]
    instructions = [Instruction(16 * number, opcode) for number, opcode in enumerate(opcodes)]
    instructions[-2] = Instruction(16 * (len(opcodes) - 2), "BRA", "0x10", "@P0")
    assert len(lint(MachineCode("kernel", "sm_90a", tuple(instructions)))) == found
