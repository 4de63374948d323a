"""Gates: the cell of a recurrent network is one kernel, and only where that is right."""

import pytest

from tests.passes.test_fusion import kernels, plan_of, reasons

CELL = """graph @g(%h: float32[3,4], %c: float32[3,4], %xs: float32[5,3,16]) -> (%y, %d) {{
  %w = constant [{numbers}] : float32[4,16]
  %s = slice(%xs) {{starts=[2,0,0], sizes=[1,3,16], steps=[1,1,1]}} : float32[1,3,16]
  %x = reshape(%s) {{shape=[3,16]}} : float32[3,16]
  %m = matmul(%h, %w) : float32[3,16]
  %a = add(%m, %x) : float32[3,16]
  %i = slice(%a) {{starts=[0,0], sizes=[3,4], steps=[1,1]}} : float32[3,4]
  %f = slice(%a) {{starts=[0,4], sizes=[3,4], steps=[1,1]}} : float32[3,4]
  %o = slice(%a) {{starts=[0,{third}], sizes=[3,4], steps=[1,1]}} : float32[3,4]
  %g = slice(%a) {{starts=[0,12], sizes=[3,4], steps=[1,1]}} : float32[3,4]
  %p = mul(%f, %c) : float32[3,4]
  %t = tanh(%g) : float32[3,4]
  %q = mul(%i, %t) : float32[3,4]
  %d = add(%p, %q) : float32[3,4]
  %u = tanh(%d) : float32[3,4]
  %y = mul(%o, %u) : float32[3,4]
}}"""


def cell(third: int = 8) -> str:
    return CELL.format(numbers=", ".join(f"{i / 64}" for i in range(64)), third=third)


def test_a_recurrent_cell_is_one_kernel_that_reads_its_time_step_through_views() -> None:
    plan = plan_of(cell())
    (group,) = plan.groups
    assert kernels(plan) == [("contraction", list(group.nodes))] and len(group.nodes) == 14
    assert set(group.inputs) == {"h", "c", "xs"} and group.outputs == ("d", "y")


def test_gates_start_at_multiples_of_their_width() -> None:
    plan = plan_of(cell(third=9))
    assert kernels(plan)[0] == ("contraction", ["s", "x", "m", "a"])
    assert "legality.gates_range" in reasons(plan).values()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("-> (%y, %d)", "-> (%y, %d, %a)", "legality.gates_stored"),
        ("%xs: float32[5,3,16])", "%xs: float32[5,3,16], %v: float32[4,16])", "legality.gates_anchor"),
    ],
)
def test_where_the_whole_gemm_is_needed_or_no_constant_multiplies_there_are_no_gates(
    old: str, new: str, rule: str, target: str
) -> None:
    text = cell().replace(old, new)
    text = text.replace("matmul(%h, %w)", "matmul(%h, %v)") if "%v" in new else text
    plan = plan_of(text, target=target)
    assert kernels(plan)[0] == ("contraction", ["s", "x", "m", "a"])
    assert rule in {refusal.rule for refusal in plan.refusals}


def test_gpus_have_gates_too_but_not_any_number_of_them() -> None:
    plan = plan_of(cell(), target="cuda")
    assert [len(g.nodes) for g in plan.groups] == [14]
    numbers = ", ".join(f"{i / 32}" for i in range(4 * 18))
    gates = "\n".join(
        f"%g{i} = slice(%m) {{starts=[0,{2 * i}], sizes=[3,2], steps=[1,1]}} : float32[3,2]" for i in range(9)
    )
    sums = "\n".join(f"%s{i} = add(%{'s' if i > 1 else 'g'}{i - 1}, %g{i}) : float32[3,2]" for i in range(1, 9))
    plan = plan_of(f"""graph @g(%h: float32[3,4]) -> (%s8) {{
      %w = constant [{numbers}] : float32[4,18]
      %m = matmul(%h, %w) : float32[3,18]
      {gates}
      {sums}
    }}""", target="cuda")  # fmt: skip
    assert len(plan.groups) == 2
    (refusal,) = (r for r in plan.refusals if r.rule == "legality.gates_target")
    assert refusal.numbers == {"gates": 9, "most": 8}


def test_a_gate_that_depends_on_a_later_gemm_stays_outside() -> None:
    numbers = ", ".join(f"{i / 8}" for i in range(8))
    plan = plan_of(f"""graph @g(%h: float32[3,2]) -> (%y) {{
      %w = constant [{numbers}] : float32[2,4]
      %m = matmul(%h, %w) : float32[3,4]
      %a = slice(%m) {{starts=[0,0], sizes=[3,2], steps=[1,1]}} : float32[3,2]
      %b = slice(%m) {{starts=[0,2], sizes=[3,2], steps=[1,1]}} : float32[3,2]
      %c = mul(%a, %b) : float32[3,2]
      %n = matmul(%c, %c) {{trans_b=true}} : float32[3,3]
      %v = matmul(%n, %c) : float32[3,2]
      %y = mul(%v, %b) : float32[3,2]
    }}""")
    assert kernels(plan) == [("contraction", ["m", "a", "b", "c"]), ("contraction", ["n"]), ("contraction", ["v", "y"])]


ATTENTION = """graph @g(%x: float32[5,4]) -> (%y{outputs}) {{
  %w = constant [{numbers}] : float32[4,24]
  %m = matmul(%x, %w) : float32[5,24]
  %q = slice(%m) {{starts=[0,0], sizes=[5,8], steps=[1,1]}} : float32[5,8]
  %k = slice(%m) {{starts=[0,8], sizes=[5,8], steps=[1,1]}} : float32[5,8]
  %v = slice(%m) {{starts=[0,16], sizes=[5,8], steps=[1,1]}} : float32[5,8]
  %s = matmul(%q, %k) {{trans_b=true}} : float32[5,5]
  %t = tanh(%s) : float32[5,5]
  %y = matmul(%t, %v) : float32[5,8]
}}"""


@pytest.mark.parametrize(("target", "outputs", "gates"), [("cuda", "", 0), ("cuda", ", %v", 3), ("cpu", "", 3)])
def test_ranges_that_gemms_read_in_place_on_gpus_are_not_stored_one_by_one(
    target: str, outputs: str, gates: int
) -> None:
    """The whole GEMM is stored in wide accesses, which three columns of each unit are not."""
    numbers = ", ".join(f"{i / 96}" for i in range(96))
    plan = plan_of(ATTENTION.format(numbers=numbers, outputs=outputs), target=target)
    assert len({"q", "k", "v"} & set(plan.groups[0].nodes)) == gates
