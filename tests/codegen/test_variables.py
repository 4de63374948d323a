"""What TVM's passes are not to look through is hidden from them, and there again afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm.script import tirx as T

from tilestitch.codegen.cpu.target import host_target
from tilestitch.codegen.cpu.toolchain.build import lower
from tilestitch.codegen.variables import VARIABLE, hide_unsigned, hide_variables, show, show_variables


@T.prim_func(s_tir=True)
def by_open(out: T.handle, size: T.int64, parts: T.int64) -> None:
    memory = T.match_buffer(out, (64,), "float32")
    each: T.let[T.int64] = T.Div(size, parts)
    start: T.let[T.int64] = T.Select(each < T.int64(3), each, T.int64(3))
    memory[start * T.int64(2)] = T.float32(1)


@T.prim_func(s_tir=True)
def by_constant(out: T.handle, size: T.int64, parts: T.int64) -> None:
    memory = T.match_buffer(out, (64,), "float32")
    each: T.let[T.int64] = T.Div(size, T.int64(8))
    memory[each + T.Div(size, parts)] = T.float32(1)


@T.prim_func(s_tir=True)
def elements(out: T.handle, size: T.int64, parts: T.int64) -> None:
    memory = T.match_buffer(out, (64,), "float32")
    each: T.let[T.int64] = T.Div(size, T.int64(8))
    data: T.let[T.float32] = memory[each]
    vector: T.let[T.float32x4] = T.Broadcast(data, 4)
    memory[T.Ramp(each, T.int64(1), 4)] = vector


def hidden(func: Any) -> int:
    return int(func.script().count(VARIABLE))


def test_scalars_of_kernels_that_divide_by_what_a_run_knows_are_hidden_and_shown() -> None:
    func = hide_variables(by_open)
    assert hidden(func) == 2
    assert tvm_ffi.structural_equal(show_variables(func), by_open)


def test_scalars_of_other_kernels_are_seen() -> None:
    assert hidden(hide_variables(by_constant)) == 0


def test_elements_are_hidden_in_every_kernel() -> None:
    func = hide_variables(elements)
    assert hidden(func) == 2
    assert tvm_ffi.structural_equal(show_variables(func), elements)


@pytest.mark.parametrize("func", [by_open, by_constant, elements], ids=["open", "constant", "elements"])
def test_what_is_seen_again_has_no_calls(func: Any) -> None:
    assert hidden(show_variables(hide_variables(func))) == 0


@T.prim_func(s_tir=True)
def quotients(out: T.handle, size: T.int64, parts: T.int64) -> None:
    memory = T.match_buffer(out, (64,), "float32")
    few: T.let[T.int64] = T.min(size, T.int64(9))
    each: T.let[T.int64] = T.max(few, T.int64(0))
    other: T.let[T.int64] = T.Div(size, parts)
    for i in range(each):
        memory[i // T.int64(3)] = T.float32(1)
    memory[other // T.int64(8)] = T.float32(1)


def test_scalars_are_hidden_unless_the_sign_of_a_dividend_depends_on_them() -> None:
    func = hide_unsigned(quotients)
    assert hidden(func) == 1
    assert "other: T.let[T.int64] = T.call_extern" in func.script()
    assert tvm_ffi.structural_equal(show(func), quotients)


def test_conditions_tell_signs() -> None:
    @T.prim_func(s_tir=True)
    def compared(out: T.handle, size: T.int64, parts: T.int64) -> None:
        memory = T.match_buffer(out, (64,), "float32")
        least: T.let[T.int64] = T.max(parts, T.int64(0))
        other: T.let[T.int64] = T.Div(size, parts)
        if least < size:
            memory[size // T.int64(3) + other] = T.float32(1)

    assert hidden(hide_unsigned(compared)) == 1


def test_lowering_divides_what_cannot_be_negative_as_before() -> None:
    text = lower(quotients, "kernel", host_target())["kernel"].script()
    assert "T.Div(i, T.int64(3))" in text
    assert VARIABLE not in text


def test_kernels_that_divide_by_constants_alone_are_left_as_they_are() -> None:
    assert hidden(hide_unsigned(elements)) == 0
