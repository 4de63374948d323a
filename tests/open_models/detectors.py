"""Detectors as PyTorch's older exporter writes torchvision's: images of any size, and as many boxes as are found.

The size that the image is scaled to comes of float arithmetic with its height and width. Candidates are what exceeds a
threshold (NonZero), at most so many (TopK with the lesser of two sizes); overlapping ones go (NonMaxSuppression).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from tests.open_models.fixture import OpenFixture
from tests.open_models.sizes import Feeds, Sizes
from tests.open_models.styles import INT64, Script
from tests.open_models.vision import convolved

CHANNELS, CLASSES, ANCHORS, POOLED = 8, 3, 2, 3
SHORTER, LONGER, MULTIPLE = 32.0, 56.0, 8.0
MOST_CANDIDATES, MOST_BOXES, THRESHOLD, OVERLAP = 40, 50, 0.95, 0.5
FLOAT, INTEGER, NARROW, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
SIDES = (20, 64)
node, info = helper.make_node, helper.make_tensor_value_info


@dataclass(frozen=True)
class Image:
    """One image: as it came, and scaled, before it was padded."""

    scaled: str
    padded: str


@dataclass(frozen=True)
class Found:
    """Boxes [N, 4] in pixels of the scaled image, scores and classes [N]."""

    boxes: str
    scores: str
    classes: str


def one_stage() -> OpenFixture:
    """RetinaNet: candidates of each level, of all classes together, then one suppression."""
    b = Script(seed=16)
    image = scaled_and_padded(b)
    levels = pyramid(b, image.padded)
    found = _best(b, _candidates_of_all(b, image, levels))
    height, width = (_ratio(b, image, axis) for axis in (1, 2))
    columns = b.op("Split", found.boxes, b.ints(1, 1, 1, 1), outputs=4, axis=1)
    flat = [b.op("Squeeze", column, b.ints(1)) for column in columns]
    original = [b.op("Mul", column, width if place % 2 == 0 else height) for place, column in enumerate(flat)]
    boxes = b.op("Concat", *(b.op("Unsqueeze", column, b.ints(1)) for column in original), axis=1)
    return _finished(b, "one_stage", {"boxes": boxes, "scores": found.scores, "labels": found.classes})


def two_stage() -> OpenFixture:
    """Faster R-CNN: the boxes of a first stage are cut out of the level that fits their size."""
    b = Script(seed=13)
    image = scaled_and_padded(b)
    levels = pyramid(b, image.padded)
    found = _best(b, _candidates_of_all(b, image, levels))
    number = b.op("Expand", b.number(0.0), b.vector(b.size(found.boxes, 0), 1))
    regions = b.op("Concat", number, found.boxes, axis=1)
    features = _cut_out(b, levels, regions)
    flat = b.op("Flatten", features, axis=1)
    width = CHANNELS * POOLED * POOLED
    scores = b.op("Gemm", flat, b.weight(CLASSES, width, scale=0.2), b.weight(CLASSES, scale=0.1), transB=1)
    return _finished(b, "two_stage", {"boxes": found.boxes, "scores": b.op("Softmax", scores, axis=-1)})


# --- the image --------------------------------------------------------------------------------------------------------


def scaled_and_padded(b: Script) -> Image:
    """The shorter side as SHORTER, but the longer at most LONGER; padded to a multiple of MULTIPLE."""
    x = b.op("Div", b.op("Sub", "image", b.number(0.45)), b.number(0.22))
    sides = b.op("Slice", b.op("Shape", x), b.ints(-2), b.ints(INT64.max), b.ints(0), b.ints(1))
    least, most = (
        b.op("Cast", b.op(reduction, sides, keepdims=0), to=FLOAT) for reduction in ("ReduceMin", "ReduceMax")
    )
    wanted = ((least, SHORTER), (most, LONGER))
    scale = b.op("Min", *(b.op("Mul", b.op("Reciprocal", side), b.number(limit)) for side, limit in wanted))
    batch = b.op("Unsqueeze", x, b.ints(0))
    sizes = []
    for axis in (2, 3):
        size = b.op("Floor", b.op("Mul", b.op("Cast", b.size(batch, axis), to=FLOAT), scale))
        sizes.append(b.op("Unsqueeze", size, b.ints(0)))
    whole = b.op("Slice", b.op("Shape", batch), b.ints(0), b.ints(2), b.ints(0))
    shape = b.op("Concat", whole, b.op("Cast", b.op("Concat", *sizes, axis=0), to=INTEGER), axis=0)
    scaled = b.op(
        "Resize", batch, "", "", shape, mode="linear", coordinate_transformation_mode="half_pixel"
    )  # fmt: skip
    scaled = b.op("Gather", scaled, b.constant(np.int64(0)), axis=0)
    padded = b.op("Pad", scaled, _pads(b, scaled), mode="constant")
    return Image(scaled, b.op("Unsqueeze", padded, b.ints(0)))


def _pads(b: Script, x: str) -> str:
    """PyTorch counts pads from the last axis, begin and end in turns; ONNX from the first, begins before ends."""
    missing = []
    for axis in (2, 1):
        size = b.size(x, axis)
        whole = b.op("Ceil", b.op("Div", b.op("Cast", size, to=FLOAT), b.number(MULTIPLE)))
        rounded = b.op("Cast", b.op("Mul", whole, b.number(MULTIPLE)), to=INTEGER)
        missing += [b.ints(0), b.op("Unsqueeze", b.op("Sub", rounded, size), b.ints(0))]
    pads = b.op("Concat", *missing, b.ints(0), b.ints(0), axis=0)
    absent = b.op("Sub", b.ints(6), b.op("Gather", b.op("Shape", pads), b.ints(0), axis=0))
    zero = helper.make_tensor("value", INTEGER, [1], [0])
    pads = b.op("Concat", pads, b.op("ConstantOfShape", absent, value=zero), axis=0)
    pairs = b.op("Reshape", pads, b.ints(-1, 2))
    pairs = b.op("Slice", pairs, b.ints(-1), b.ints(INT64.min), b.ints(0), b.ints(-1))
    return b.op("Reshape", b.op("Transpose", pairs, perm=[1, 0]), b.ints(-1))


def pyramid(b: Script, image: str) -> list[str]:
    """Features at a quarter and at an eighth of the image's size; the coarser ones are added to the finer."""
    fine = b.op("Relu", convolved(b, b.op("Relu", convolved(b, image, 3, CHANNELS, 3, 2)), CHANNELS, CHANNELS, 3, 2))
    coarse = b.op("Relu", convolved(b, fine, CHANNELS, CHANNELS, 3, 2))
    sizes = b.op("Concat", *(b.op("Unsqueeze", b.size(fine, axis), b.ints(0)) for axis in (2, 3)), axis=0)
    whole = b.op("Slice", b.op("Shape", coarse), b.ints(0), b.ints(2), b.ints(0))
    shape = b.op("Concat", whole, sizes, axis=0)
    grown = b.op(
        "Resize", coarse, "", "", shape, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip
    return [b.op("Add", convolved(b, fine, CHANNELS, CHANNELS, 1), grown), coarse]


# --- candidates -------------------------------------------------------------------------------------------------------


def _candidates_of_all(b: Script, image: Image, levels: list[str]) -> Found:
    """All levels are put together and, at lengths that follow from their sizes, taken apart again."""
    scores = b.op("Concat", *(_head(b, level, CLASSES, 3.0) for level in levels), axis=1)
    offsets = b.op("Concat", *(_head(b, level, 4, 0.3) for level in levels), axis=1)
    anchors = b.op("Concat", *(_anchors(b, image.padded, level) for level in levels), axis=0)
    places = [b.op("Mul", b.size(level, 2), b.size(level, 3)) for level in levels]
    total = b.constant(np.int64(0))
    for count in places:
        total = b.op("Add", count, total)
    each = b.op("Cast", b.op("Div", b.size(scores, 1), total), to=INTEGER)
    start, found = b.ints(0), []
    for count in places:
        end = b.op("Add", start, b.op("Unsqueeze", b.op("Mul", count, each), b.ints(0)))
        first = (b.op("Slice", part, start, end, b.ints(1)) for part in (scores, offsets))
        own = [b.op("Gather", part, b.constant(np.int64(0)), axis=0) for part in first]
        found.append(_candidates(b, image, own[0], own[1], b.op("Slice", anchors, start, end, b.ints(0))))
        start = end
    return Found(
        *(b.op("Concat", *parts, axis=0) for parts in zip(*((f.boxes, f.scores, f.classes) for f in found)))
    )  # fmt: skip


def _head(b: Script, level: str, width: int, scale: float) -> str:
    """[1, A * WIDTH, H, W] as [1, H * W * A, WIDTH]."""
    weight = b.weight(ANCHORS * width, CHANNELS, 1, 1, scale=scale * CHANNELS**-0.5)
    x = b.op("Conv", level, weight, kernel_shape=[1, 1])
    batch, height, columns = (b.size(x, axis) for axis in (0, 2, 3))
    x = b.op("Transpose", b.reshape(x, batch, -1, width, height, columns), perm=[0, 3, 4, 1, 2])
    return b.reshape(x, batch, -1, width)


def _anchors(b: Script, image: str, level: str) -> str:
    """Boxes around the pixels of a level, [H * W * A, 4], as far apart as the level is coarser than the image."""
    rows, columns = (_distances(b, image, level, axis) for axis in (2, 3))
    shapes = b.op("Shape", rows), b.op("Shape", columns)
    both = b.op("Concat", *shapes, axis=0)
    down = b.op("Expand", b.op("Reshape", rows, b.op("Concat", shapes[0], b.ints(1), axis=0)), both)
    along = b.op("Expand", b.op("Reshape", columns, b.op("Concat", b.ints(1), shapes[1], axis=0)), both)
    flat = [b.op("Unsqueeze", b.op("Reshape", part, b.ints(-1)), b.ints(1)) for part in (along, down, along, down)]
    shifts = b.op("Cast", b.op("Reshape", b.op("Concat", *flat, axis=1), b.ints(-1, 1, 4)), to=FLOAT)
    sizes = np.array([[6, 10], [12, 8]], np.float32) / 2
    around = b.constant(np.concatenate([-sizes, sizes], 1)[None])
    return b.op("Reshape", b.op("Add", shifts, around), b.ints(-1, 4))


def _distances(b: Script, image: str, level: str, axis: int) -> str:
    size, whole = b.size(level, axis), b.size(image, axis)
    stride = b.op("Cast", b.op("Div", whole, size), to=NARROW)
    bounds = (b.constant(np.int32(0)), b.op("Cast", size, to=NARROW), b.constant(np.int32(1)))
    return b.op("Reshape", b.op("Mul", b.op("Range", *bounds), stride), b.ints(-1))


def _candidates(b: Script, image: Image, scores: str, offsets: str, anchors: str) -> Found:
    """The best of one level: SCORES [N, CLASSES], OFFSETS and ANCHORS [N, 4]."""
    classes = b.size(scores, 1)
    flat = b.op("Reshape", b.op("Sigmoid", scores), b.ints(-1))
    places = b.op("Transpose", b.op("NonZero", b.op("Greater", flat, b.number(THRESHOLD))), perm=[1, 0])
    chosen = b.op("Squeeze", places, b.ints(1))
    both = b.op("Concat", b.ints(MOST_CANDIDATES), b.op("Unsqueeze", b.size(chosen, 0), b.ints(0)), axis=0)
    count = b.op("Reshape", b.op("ReduceMin", both, keepdims=0), b.ints(1))
    best, order = b.op("TopK", b.op("GatherND", flat, places), count, outputs=2, axis=-1)
    chosen = b.op("Gather", chosen, order, axis=0)
    rows, kinds = b.op("Div", chosen, classes), b.op("Mod", chosen, classes)
    boxes = _moved(b, b.op("Gather", anchors, rows, axis=0), b.op("Gather", offsets, rows, axis=0))
    return Found(_clipped(b, image, boxes), best, kinds)


def _column(b: Script, x: str, place: int) -> str:
    return b.op("Slice", x, b.ints(place), b.ints(INT64.max), b.ints(1), b.ints(4))


def _moved(b: Script, anchors: str, offsets: str) -> str:
    """Corners of boxes whose centres and sizes are relative to those of the anchors."""
    half, corners = b.number(0.5), []
    for axis in (0, 1):
        low, high = _column(b, anchors, axis), _column(b, anchors, axis + 2)
        size = b.op("Sub", high, low)
        centre = b.op("Add", low, b.op("Mul", size, half))
        centre = b.op("Add", b.op("Mul", _column(b, offsets, axis), size), centre)
        grown = b.op("Exp", b.op("Clip", _column(b, offsets, axis + 2), "", b.number(4.135)))
        reach = b.op("Mul", b.op("Mul", grown, size), half)
        corners.append((b.op("Sub", centre, reach), b.op("Add", centre, reach)))
    (left, right), (top, bottom) = corners
    return b.op("Concat", left, top, right, bottom, axis=1)


def _clipped(b: Script, image: Image, boxes: str) -> str:
    sides = []
    for place, axis in ((0, 2), (1, 1)):
        part = b.op("Slice", boxes, b.ints(place), b.ints(INT64.max), b.ints(1), b.ints(2))
        limit = b.op("Cast", b.size(image.scaled, axis), to=FLOAT)
        part = b.op("Min", b.op("Max", part, b.number(0)), limit)
        sides.append(b.op("Unsqueeze", part, b.ints(2)))
    return b.reshape(b.op("Concat", *sides, axis=2), b.size(boxes, 0), b.size(boxes, 1))


def _best(b: Script, found: Found) -> Found:
    """What suppression leaves, classes apart; nothing is asked of no boxes."""
    nothing = b.op("Equal", b.op("ReduceProd", b.op("Shape", found.boxes), keepdims=0), b.constant(np.int64(0)))
    none, one, first, last = b.ints(), b.number(1), b.ints(0), b.ints(1)
    nothing_kept = [node("Identity", [none], ["kept_none"])]
    empty = helper.make_graph(nothing_kept, "none", [], [info("kept_none", INTEGER, ["n"])])
    limits = (b.ints(INT64.max), b.constant(np.array([OVERLAP], np.float32)))
    column = b.ints(2)
    nodes = [
        node("ReduceMax", [found.boxes], ["most"], keepdims=0), node("Add", ["most", one], ["apart"]),
        node("Cast", [found.classes], ["kinds"], to=FLOAT), node("Mul", ["kinds", "apart"], ["shift"]),
        node("Unsqueeze", ["shift", last], ["shifts"]), node("Add", [found.boxes, "shifts"], ["shifted"]),
        node("Unsqueeze", ["shifted", first], ["all_boxes"]), node("Unsqueeze", [found.scores, first], ["row"]),
        node("Unsqueeze", ["row", first], ["all_scores"]),
        node("NonMaxSuppression", ["all_boxes", "all_scores", *limits], ["selected"]),
        node("Gather", ["selected", column], ["places"], axis=1), node("Squeeze", ["places", last], ["kept_some"]),
    ]  # fmt: skip
    some = helper.make_graph(nodes, "some", [], [info("kept_some", INTEGER, ["n"])])
    kept = b.op("If", nothing, then_branch=empty, else_branch=some)
    kept = b.op("Slice", kept, b.ints(0), b.ints(MOST_BOXES), b.ints(0), b.ints(1))
    return Found(*(b.op("Gather", part, kept, axis=0) for part in (found.boxes, found.scores, found.classes)))


# --- regions ----------------------------------------------------------------------------------------------------------


def _cut_out(b: Script, levels: list[str], regions: str) -> str:
    """REGIONS [N, 1 + 4] of the level that each belongs to, [N, CHANNELS, POOLED, POOLED]."""
    low, high = (b.op("Gather", regions, b.ints(*places), axis=1) for places in ((1, 2), (3, 4)))
    areas = b.op("ReduceProd", b.op("Sub", high, low), axes=[1], keepdims=0)
    belongs = b.op("Cast", b.op("Greater", b.op("Sqrt", areas), b.number(9)), to=INTEGER)
    sizes = (b.size(regions, 0), CHANNELS, POOLED, POOLED)
    result = b.op("ConstantOfShape", b.vector(*sizes))
    for number, level in enumerate(levels):
        places = b.op("NonZero", b.op("Equal", belongs, b.constant(np.int64(number))))
        places = b.op("Squeeze", b.op("Transpose", places, perm=[1, 0]), b.ints(1))
        own = b.op("Gather", regions, places, axis=0)
        image = b.op("Cast", b.op("Squeeze", b.op("Gather", own, b.ints(0), axis=1), b.ints(1)), to=INTEGER)
        cut = b.op(
            "RoiAlign", level, b.op("Gather", own, b.ints(1, 2, 3, 4), axis=1), image, output_height=POOLED,
            output_width=POOLED, sampling_ratio=2, spatial_scale=1 / (4 << number),
            coordinate_transformation_mode="output_half_pixel",
        )  # fmt: skip
        rows = b.op("Reshape", places, b.ints(-1, 1, 1, 1))
        rows = b.expand(rows, b.size(rows, 0), *sizes[1:])
        result = b.op("ScatterElements", result, rows, cut, axis=0)
    return result


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def _ratio(b: Script, image: Image, axis: int) -> str:
    """Of the side of the image as it came to that of the scaled one."""
    return b.op("Div", *(b.op("Cast", b.size(x, axis), to=FLOAT) for x in ("image", image.scaled)))


def _finished(b: Script, name: str, outputs: dict[str, str]) -> OpenFixture:
    b.nodes += [node("Identity", [value], [key], name=f"/{key}") for key, value in outputs.items()]
    shapes: dict[str, list[str | int]] = {"boxes": ["found", 4], "scores": ["found"], "labels": ["found"]}
    if name == "two_stage":
        shapes["scores"] = ["found", CLASSES]
    results = [info(key, INTEGER if key == "labels" else FLOAT, shapes[key]) for key in outputs]
    model = b.model(name, [info("image", FLOAT, [3, "height", "width"])], results, b.opset)
    return OpenFixture(model, {"height": SIDES, "width": SIDES}, _pictures)


def _pictures(sizes: Sizes, random: np.random.Generator) -> Feeds:
    """Bright ones and dark ones, in which there is less to find."""
    brightness = random.random(dtype=np.float32)
    return {"image": brightness * random.random((3, sizes["height"], sizes["width"]), np.float32)}
