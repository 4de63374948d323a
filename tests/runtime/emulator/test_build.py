"""Building kernels for the emulated device: the cache, and refusals that say what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.emulator.kernels import kernel, numbers, run
from tilestitch.runtime.emulator import EmulatorBuildError, EmulatorOptions, EmulatorUnsupportedError, Kernels
from tilestitch.runtime.emulator.ptx import translate_asm
from tilestitch.runtime.emulator.translate import translate

COPY = kernel("float* y, float* x", "  y[threadIdx.x] = x[threadIdx.x];")


def test_equal_kernels_are_compiled_once(tmp_path: Path) -> None:
    options = EmulatorOptions(cache=tmp_path)
    for _ in range(2):
        y = np.zeros(32, np.float32)
        run(COPY, [y, numbers(32)], options=options)
        np.testing.assert_array_equal(y, numbers(32))
    names = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert [name for name in names if name != "header"] == ["device", "kernels"]
    Kernels({"kernel": COPY}, EmulatorOptions(cache=tmp_path, checked=False))
    assert len(list(tmp_path.glob("kernels-*"))) == 2


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmulatorBuildError, match=r"cannot be made \(Not a directory\); choose another with XDG_CACHE"):
        Kernels({"kernel": COPY}, EmulatorOptions(cache=tmp_path / "file" / "cache"))


def test_a_full_disk_is_no_fault_of_the_kernel(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec g++ "$@"\n'
        'echo "fatal error: error writing to /tmp/a.s: No space left on device" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    with pytest.raises(EmulatorBuildError, match=r"g\+\+ cannot write to .*: No space left on device; free disk"):
        Kernels({"kernel": COPY}, EmulatorOptions(cache=tmp_path / "cache", compiler=str(compiler)))


def test_kernels_with_the_same_helper_functions_share_a_translation_unit() -> None:
    helper = "static __device__ __forceinline__ float helper(float x) { return max(x, 0.0f) + %s; }\n"
    body = "{{\n  y[threadIdx.x] = helper(y[threadIdx.x]);\n}}\n".replace("{{", "{").replace("}}", "}")
    texts = {
        name: helper % value + f'extern "C" __global__ void __launch_bounds__(32) {name}(float* y) {body}'
        for name, value in (("one", "1"), ("two", "2"))
    }
    kernels = Kernels(texts)
    y = np.full(32, -1, np.float32)
    kernels.launch("one", (1, 1, 1), (32, 1, 1), [y])
    kernels.launch("two", (1, 1, 1), (32, 1, 1), [y])
    np.testing.assert_array_equal(y, 3)


def test_no_compiler() -> None:
    with pytest.raises(EmulatorBuildError, match="there is no no-such-compiler; install one"):
        Kernels({"kernel": COPY}, EmulatorOptions(compiler="no-such-compiler"))


def test_a_kernel_that_does_not_compile() -> None:
    with pytest.raises(EmulatorBuildError, match=r"kernel\.cu:5:.*no_such_function"):
        Kernels({"kernel": kernel("float* x", "  x[0] = no_such_function(x[1]);")})


def test_what_the_emulator_does_not_stand_in_for() -> None:
    wait = kernel("float* x", '  asm volatile("tcgen05.wait.ld.sync;" ::: "memory");')
    with pytest.raises(EmulatorUnsupportedError, match=r"PTX instruction tcgen05\.wait\.ld\.sync"):
        Kernels({"kernel": wait})
    with pytest.raises(EmulatorUnsupportedError, match=r"PTX instruction 'wgmma\.mma_async\.sp\.sync"):
        translate_asm('asm("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {d}, a, b, m, 0;");')
    with pytest.raises(EmulatorUnsupportedError, match="must be `const __grid_constant__ CUtensorMap`"):
        translate('extern "C" __global__ void f(CUtensorMap x) {}')
    with pytest.raises(EmulatorUnsupportedError, match="nvcuda::wmma"):
        Kernels({"kernel": "#include <mma.h>\n" + COPY})
    with pytest.raises(EmulatorUnsupportedError, match="no `extern"):
        Kernels({"kernel": "int x;"})


def test_arguments_and_extents_are_checked() -> None:
    kernels = Kernels({"kernel": COPY})
    x = numbers(32)
    with pytest.raises(ValueError, match="2 parameters, 1 arguments"):
        kernels.launch("kernel", (1, 1, 1), (32, 1, 1), [x])
    with pytest.raises(ValueError, match="1 to 1024 threads"):
        kernels.launch("kernel", (1, 1, 1), (32, 33, 1), [x, x])
    with pytest.raises(ValueError, match="not C-contiguous"):
        kernels.launch("kernel", (1, 1, 1), (32, 1, 1), [x, numbers(8, 8).T])
    with pytest.raises(EmulatorBuildError, match="no kernel 'other'"):
        kernels.launch("other", (1, 1, 1), (32, 1, 1), [x, x])


@pytest.mark.parametrize(
    "bad", [{"block_order": "sorted"}, {"thread_order": "adversarial"}, {"resident_blocks": 0}], ids=str
)
def test_options_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give"):
        EmulatorOptions(**bad)  # type: ignore[arg-type]


def test_asm_becomes_calls_on_as_many_lines() -> None:
    text = (
        'a;\nasm volatile("ld.acquire.gpu.global.u32 %0, [%1];"\n : "=r"(x[f(1, 2)])\n : "l"(p + 4) : "memory");\nb;\n'
    )
    translated = translate_asm(text)
    assert "emu_ptx::ld_acquire_gpu_global_u32((x[f(1, 2)]), emu_address(p + 4));" in translated
    assert translated.count("\n") == text.count("\n") and translated.splitlines()[-1] == "b;"


def test_predicated_asm() -> None:
    text = (
        'asm volatile("{\\n .reg .pred p;\\n setp.ne.b32 p, %0, 0;\\n @p cp.async.ca.shared.global [%1], [%2], %3;\\n'
        ' @!p trap;\\n}\\n" :: "r"((int)go), "r"(to), "l"(from), "n"(8));'
    )
    assert translate_asm(text) == (
        "do { { bool p = 0; p = ((int)go) != 0; "
        "if (p) { emu_cp_async((uint32_t(to)), emu_pointer(emu_address(from)), (8), (8)); } "
        "if (!p) emu_ptx::trap(); } } while (0);"
    )


def test_labels_branches_and_names_of_registers() -> None:
    text = (
        'asm volatile("{.reg .pred %%p;\\nW: mbarrier.try_wait.parity.shared::cta.b64 %%p, [%0+8], 1;\\n"'
        ' "@!%%p bra W;\\nmov.u32 %1, %%laneid;}" :: "r"(b), "r"(x));'
    )
    assert translate_asm(text) == (
        "do { __label__ W; { bool p = 0; W:; "
        '{ p = emu_mbarrier_test(emu_pointer(uint32_t((b) + (8))), 1, 1, 1, "mbarrier.try_wait", __LINE__); } '
        "if (!p) goto W; emu_ptx::mov_u32((x), emu_registers::laneid()); } } while (0);"
    )


def test_headers_of_cuda_are_left_out_and_lines_keep_their_numbers() -> None:
    ours = ("cuda.h", "cuda_fp16.h", "cooperative_groups.h", "cuda/barrier", "cuda/std/type_traits")
    text = "".join(f"#include <{name}>\n" for name in (*ours, "cuda/atomic"))
    assert translate(text) == "\n" * len(ours) + "#include <cuda/atomic>\n"


def test_shared_declarations() -> None:
    assert translate("__shared__ alignas(64) half tile[2][33];").startswith(
        "auto& tile = emu_shared<half[2][33]>(0, 64"
    )
    assert translate("  extern __shared__ __align__(16) uchar pool[];") == (
        "  uchar* pool = static_cast<uchar*>(emu_dynamic_shared(16, alignof(uchar), __LINE__));"
    )
    with pytest.raises(EmulatorUnsupportedError, match="shared variable"):
        translate("__shared__ float a[2], b[2];")
