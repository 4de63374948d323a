"""The built-in planners: which fusion rules propose and forbid, in which order."""

from __future__ import annotations

from .attention import Attention
from .band_rule import Bands
from .explore import Explore
from .gates import Gates, OperandViews
from .inplace import InPlace
from .remote import GlobalStitching, Packing
from .rules import Copies, Epilogue, FusionRule, Inline, Rows, Views
from .xla import XlaLimits

REMOTE: tuple[FusionRule, ...] = (InPlace(), Bands(), GlobalStitching(), Packing())

VIEWED: tuple[FusionRule, ...] = (Copies(), OperandViews(), Views(narrow=0))

PLANNERS: dict[str, tuple[FusionRule, ...]] = {
    "none": (),
    "injective": (Inline(),),
    "xla": (XlaLimits(), Epilogue(), Rows(), Inline(), Copies()),
    "stitch": (Attention(), Epilogue(), Gates(), Rows(), Inline(), Copies(), OperandViews(), Views(), *REMOTE),
    "explore": (Attention(), Explore(then=(*VIEWED, *REMOTE)), *VIEWED, *REMOTE),
}
"""`none` gives every operator a kernel, `injective` fuses element-wise chains, `xla` is a baseline to compare with,
`stitch` is the default, `explore` searches by predicted latency."""
