"""Random kernels, as a latency model sees them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tilestitch.cost_model.facts import Arithmetic, KernelFacts, Launch, Part, Role, Tail, Traffic

UNITS = ("fma", "mma", "wgmma", "alu", "special", "scalar")
DTYPES = ("float32", "float16", "bfloat16", "tfloat32", "float64", "int8", "int32", "bool")
ROLES: dict[str, Role] = dict(zip("abcdefgh", ("weight", "activation", "temporary") * 3, strict=False))
"""By the name of a tensor, which has one role for all parts."""


@st.composite
def traffic(draw: st.DrawFn) -> Traffic:
    footprint = draw(st.integers(0, 40).map(lambda bits: 1 << bits)) - 1
    again = draw(st.sampled_from([0, 1, 3, 64]))
    name = draw(st.sampled_from(sorted(ROLES)))
    return Traffic(name, footprint * (1 + again), footprint, ROLES[name])


arithmetic = st.builds(
    Arithmetic,
    st.sampled_from(UNITS),
    st.sampled_from(DTYPES),
    st.integers(0, 44).map(lambda bits: (1 << bits) - 1),
    st.sampled_from([0.25, 0.9, 1.0]),
)
tails = st.builds(Tail, st.integers(0, 64), st.integers(0, 1 << 20), st.integers(1, 200), st.integers(0, 4))
parts = st.builds(
    Part,
    st.sampled_from(["injective", "rowwise", "contraction"]),
    st.sampled_from(DTYPES),
    st.lists(traffic(), max_size=3).map(tuple),
    st.lists(traffic(), max_size=2).map(tuple),
    st.lists(arithmetic, max_size=3).map(tuple),
    elements=st.integers(0, 1 << 30),
    tasks=st.sampled_from([0, 1, 5, 131, 132, 133, 2000, 1 << 20]),
    threads=st.sampled_from([1, 32, 128, 256, 1024]),
    registers=st.sampled_from([0, 16, 64, 168, 255]),
    shared_bytes=st.sampled_from([0, 100, 48 << 10, 200 << 10, 1 << 20]),
    static_shared_bytes=st.sampled_from([0, 4096]),
    barriers=st.integers(0, 9),
    grid_barriers=st.integers(0, 2),
    steps=st.sampled_from([0, 1, 24, 500]),
    ahead=st.integers(1, 5),
    tail=st.none() | tails,
)
stages = st.lists(st.lists(parts, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
banded = st.builds(lambda a, b, tail: Launch(((a,), (replace(b, tail=tail),)), "band"), parts, parts, tails)
launches = st.one_of(st.builds(Launch, stages), banded)
kernels = st.lists(launches, min_size=1, max_size=2).map(lambda found: KernelFacts(tuple(found)))
