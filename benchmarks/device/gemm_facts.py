"""The fields that tell one kernel of a GEMM from another: in the bundle, in rows, in the compiler's table of tiles."""

TILE_FACTS = ("bm", "bn", "sharing", "alternate", "cluster", "stages")
FACTS = ("kernel", *TILE_FACTS, "parts")
