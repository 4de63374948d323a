"""When kernels run that share a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilestitch.cost_model.laws.makespan import MOST_GRIDS, NOTHING, Span, Work, makespan_us, spans

DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]
Edges = list[tuple[int, int]]


def work(body_us: float, blocks: int = 1, room: float = 0.0, gap_us: float = 0.0, **more: object) -> Work:
    """On a device with one kind of room, of which a block takes a share."""
    resident = int(1 / room + 1e-9) if room else 1000
    return replace(Work(gap_us, body_us, blocks, resident, (room,)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("works", "edges", "expected"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([work(5, gap_us=1)], [], [(1, 1, 6)], id="a gap, then the body"),
        pytest.param([work(1, gap_us=1), work(2, gap_us=1)], [(0, 1)], [(1, 1, 2), (3, 3, 5)], id="a chain"),
        pytest.param(
            [work(1, 1, 0.5), work(2, 1, 0.5), work(3, 1, 0.5), work(1, 1, 0.5)], DIAMOND,
            [(0, 0, 1), (1, 1, 3), (1, 1, 4), (4, 4, 5)], id="branches that fit side by side",
        ),
        pytest.param(
            [work(1, 1, 1), work(2, 1, 1), work(2, 1, 1), work(1, 1, 1)], DIAMOND,
            [(0, 0, 1), (1, 1, 3), (1, 3, 5), (5, 5, 6)], id="branches that each fill the device",
        ),
        pytest.param([work(6, 6, 0.25)], [], [(0, 0, 6)], id="two rounds of blocks"),
        pytest.param(  # rounds of 3 us: four blocks, then two; the other kernel's two blocks run beside these
            [work(6, 6, 0.25), work(1, 2, 0.25)], [], [(0, 0, 6), (0, 3, 4)], id="room beside the last round",
        ),
        pytest.param(  # the second waits for the first, and the small third, for which there is room, for the second
            [work(4, 3, 0.25), work(4, 2, 0.25), work(1, 1, 0.125)], [],
            [(0, 0, 4), (0, 0, 8), (0, 4, 5)], id="the head of the queue goes first",
        ),
        pytest.param(
            [work(4, 3, 0.25), work(4, 2, 0.25, whole=True)], [], [(0, 0, 4), (0, 4, 8)], id="all blocks or none",
        ),
        pytest.param(
            [work(4, rates=(0.75,)), work(4, rates=(0.75,))], [], [(0, 0, 6), (0, 0, 6)], id="bandwidth is shared",
        ),
        pytest.param(  # until 6, each at half its pace; the rest of the second alone
            [work(3, rates=(1.0,)), work(4, rates=(1.0,))], [], [(0, 0, 6), (0, 0, 7)], id="until one has ended",
        ),
        pytest.param(
            [work(4, rates=(1.0, 0.0)), work(4, rates=(0.0, 1.0))], [], [(0, 0, 4), (0, 0, 4)], id="unlike kernels",
        ),
        pytest.param(
            [work(4, rates=(0.0,), cache=0.6, uncached=0.5), work(4, rates=(0.5,), cache=0.4)], [],
            [(0, 0, 4), (0, 0, 4)], id="both in the cache",
        ),
        pytest.param(  # at 1.5 times what DRAM gives, until the kernel in 4 * 1.5 has ended
            [work(4, rates=(0.0,), cache=0.6, uncached=1.0), work(4, rates=(0.5,), cache=0.5)], [],
            [(0, 0, 6), (0, 0, 6)], id="not together in the cache",
        ),
        pytest.param(  # a round of two blocks takes 0.7 * 4/3, one of a single block half of that: 1.4 together
            [work(4, 3, 0.01, resident=2, rates=(0.7,))] * 2, [], [(0, 0, 4.8), (0, 2, 6.8)], id="equal parts",
        ),
        pytest.param(  # two blocks at a time need all that there is for 0.9 * 2/3 of the time, the third 0.75 of it
            [work(4, 3, 0.01, resident=2, rates=(0.9,))] * 2, [], [(0, 0, 5.2), (0, 2.4, 7.6)], id="long rounds",
        ),
        pytest.param([work(2, 1, 3.0), work(1, 1, 1)], [], [(0, 0, 2), (0, 2, 3)], id="a block that fits nowhere"),
        pytest.param([work(0, 1, 1), work(3, 1, 1)], [(0, 1)], [(0, 0, 0), (0, 0, 3)], id="a kernel of no time"),
    ],
)  # fmt: skip
def test_cases_by_hand(works: list[Work], edges: Edges, expected: list[tuple[float, float, float]]) -> None:
    found = spans(works, edges)
    assert [tuple(span) for span in found] == [pytest.approx(one) for one in expected]
    assert makespan_us(spans(works, edges)) == pytest.approx(max((end for _, _, end in expected), default=0.0))


def test_higher_priorities_go_first() -> None:
    works = [work(1, 1, 1), work(1, 1, 1), work(5)]
    assert makespan_us(spans(works, [(1, 2)])) == 7  # 0, then 1, then what waits for it
    assert makespan_us(spans(works, [(1, 2)], [0, 1, 0])) == 6


def test_only_so_many_kernels_run_at_a_time() -> None:
    assert makespan_us(spans([work(1)] * MOST_GRIDS, [])) == 1
    assert makespan_us(spans([work(1)] * (MOST_GRIDS + 1), [])) == 2


def test_kernels_of_very_many_blocks_take_as_long_alone() -> None:
    assert spans([work(8, 2**31, 0.25, gap_us=1)], []) == [Span(1, 1, pytest.approx(9))]


WORKS = st.lists(
    st.builds(
        lambda gap_us, body_us, blocks, room, rates, cache: work(
            body_us, blocks, room, gap_us, rates=rates, cache=cache, uncached=min(1.0, rates[0] + 0.1)
        ),
        st.floats(0.0, 2.0), st.floats(0.0, 50.0), st.integers(1, 40), st.sampled_from([0.01, 0.05, 0.1, 0.3, 1.0]),
        st.tuples(st.floats(0, 1), st.floats(0, 1)), st.floats(0, 1),
    ),
    max_size=9,
)  # fmt: skip


@given(WORKS, st.data())
@settings(deadline=None)
def test_dependences_are_kept_and_no_bound_is_broken(works: list[Work], data: st.DataObject) -> None:
    """Nothing starts before what it waits for has ended; the longest path, the room and the bandwidth are bounds."""
    pairs = [(i, j) for j in range(len(works)) for i in range(j)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    priorities = data.draw(st.lists(st.integers(0, 5), min_size=len(works), max_size=len(works)))
    found = spans(works, edges, priorities)
    near = 1e-6
    for number, (span, one) in enumerate(zip(found, works)):
        before = [found[i].end_us for i, j in edges if j == number]
        assert span.ready_us == pytest.approx(max(before, default=0.0) + one.gap_us)
        assert span.ready_us <= span.start_us + near
        assert span.end_us - span.start_us >= one.body_us - near
    total_us = makespan_us(found)
    room_us = sum(one.body_us / -(-one.blocks // one.resident) * one.blocks * one.room[0] for one in works)
    assert total_us >= room_us - near
    assert total_us >= sum(one.body_us * one.rates[1] for one in works) - near


@given(st.integers(1, 300), st.integers(1, 100), st.floats(0.0005, 0.02), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None)
def test_a_kernel_alone_takes_what_it_takes_alone(
    blocks: int, resident: int, room: float, rate: float, cache: float
) -> None:
    """Also where there would be room for more blocks by threads and registers of the whole device."""
    room = min(room, 1 / resident)
    one = Work(1.0, 8.0, blocks, resident, (room,), rates=(rate,), cache=cache, uncached=1.0)
    assert spans([one], []) == [Span(1, 1, pytest.approx(9))]


@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 12), st.floats(0.05, 1.0))
@settings(deadline=None)
def test_what_kernels_use_is_delivered_in_whole(count: int, blocks: int, resident: int, rate: float) -> None:
    """However many of their blocks are in the last round."""
    one = Work(0.0, 8.0, blocks, resident, (0.001,), rates=(0.0, rate))
    assert makespan_us(spans([one] * count, [])) >= max(8.0, count * 8.0 * rate) * (1 - 1e-9)


@given(WORKS)
@settings(deadline=None)
def test_a_chain_takes_the_sum(works: list[Work]) -> None:
    chain = [(number - 1, number) for number in range(1, len(works))]
    unseen_us = len(works) * NOTHING  # gaps and bodies that are none
    assert makespan_us(spans(works, chain)) == pytest.approx(
        sum(one.alone_us for one in works), rel=1e-6, abs=2 * unseen_us
    )


@given(WORKS, st.permutations(range(9)))
@settings(deadline=None)
def test_equal_questions_have_equal_answers(works: list[Work], priorities: list[int]) -> None:
    given = priorities[: len(works)]
    assert spans(works, [], given) == spans(works, [], given)


@pytest.mark.parametrize("us", [float("nan"), float("inf"), -1.0])
def test_times_that_are_none_are_refused(us: float) -> None:
    for wrong in (Work(0.0, us), Work(us, 1.0)):
        with pytest.raises(ValueError, match=r"kernel 1 takes .* times are finite"):
            spans([Work(0.0, 1.0), wrong], [])


@pytest.mark.parametrize("edges", [[(0, 0)], [(0, 1), (1, 0)], [(2, 0), (0, 1), (1, 0)], [(0, 1), (1, 2), (2, 1)]])
def test_a_cycle_is_refused(edges: Edges) -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        spans([work(1)] * 3, edges)


@pytest.mark.parametrize("edge", [(-1, 0), (0, -1), (0, 3), (3, 0)])
def test_edges_of_other_kernels_are_refused(edge: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is not between two of 3 kernels"):
        spans([work(1)] * 3, [edge])


def test_every_kernel_has_a_priority_or_none_has() -> None:
    with pytest.raises(ValueError, match="2 priorities of 3 kernels"):
        spans([work(1)] * 3, [], [0, 1])


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -0.1])
def test_shares_that_are_none_are_refused(share: float) -> None:
    for wrong in ({"room": (0.1, share)}, {"rates": (share,)}, {"cache": share}, {"uncached": share}):
        with pytest.raises(ValueError, match="give shares of the device"):
            Work(0.0, 1.0, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give shares of the device"):
        Work(0.0, 1.0, rates=(1.5,))


def test_kernels_of_no_time_end_when_they_start() -> None:
    """Two thousand, in a chain and side by side."""
    chain = [(number - 1, number) for number in range(1, 2000)]
    assert makespan_us(spans([work(0, 1, 1)] * 2000, chain)) == 0
    assert makespan_us(spans([work(0, 3, 1)] * 2000, [])) == 0


def test_a_cooperative_kernel_that_the_device_cannot_hold_runs_alone() -> None:
    """After what was before it, and before what is after it."""
    works = [work(3, 1, 0.5), work(5, 5, 0.5, whole=True), work(1, 2, 0.5, whole=True)]
    assert [(span.start_us, span.end_us) for span in spans(works, [])] == [
        (0, 3), (3, pytest.approx(8)), (pytest.approx(8), pytest.approx(9)),
    ]  # fmt: skip


def test_what_one_block_needs_of_shared_memory_decides_how_many_kernels_run_side_by_side() -> None:
    """Of kernels whose block needs all of it one runs at a time, beside those that need none."""
    all_of_it, none_of_it = Work(0.0, 2.0, room=(0.1, 1.0)), Work(0.0, 2.0, room=(0.1, 0.0))
    assert makespan_us(spans([all_of_it] * 3, [])) == 6
    assert makespan_us(spans([none_of_it] * 3 + [all_of_it], [])) == 2
