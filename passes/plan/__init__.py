"""StitchPlan: which nodes form one kernel, in which order kernels run, where values live, and why not otherwise.

Plain frozen data, JSON in and out (`to_json` and `from_json` are inverse to each other, `from_json` checks all fields).
A plan names nodes and values of the canonical graph, and carries that graph's fingerprint.

What the kinds of group promise to code generation
--------------------------------------------------
*Element-wise*: an INJECTIVE operator with numpy broadcasting, that is every one but concat, pad, iota, gather,
gather_elements and gather_nd. *Pulled*: a VIEW or INJECTIVE node that does not depend on the group's anchor or
reductions and is not stored; code generation evaluates it as an expression at any index that its reader needs.
*Stored*: the value is in `Group.outputs`.

Every group: `nodes` are in topological order, of kind VIEW, INJECTIVE, REDUCTION, CONTRACTION or OPAQUE, and all their
operands and results are static tensors of native dtypes. `inputs` are the non-constant values read from outside,
`constants` the constants read, both without repetition, in order of first use. `outputs` are at least one, all
different. A node may be a member of several groups (each then computes it), but a value is an output of at most one.
A group never depends on its own outputs through the outside. Any dimension may be 0 or 1; shapes may have rank 0.

injective: all nodes are VIEW or INJECTIVE. No anchor. All outputs have the same number of elements, though not always
the same shape.

rowwise: at least one REDUCTION; the first is the `anchor`. There is one iteration shape S and one set of axes A: every
REDUCTION member reads an operand of shape S over exactly the axes A (`axes`, or `axis` of arg_max and arg_min;
`keepdims` may differ). A may be any axes, also none. A *reduced shape* is S with A set to 1, or S without A.
- A node that depends on a REDUCTION member is either *full*: element-wise or broadcast_to, of result shape S;
  or *reduced*: element-wise, or a reshape of a reduced value, of a reduced shape.
  Operands of a reduced node that depend on a reduction have the node's own shape (but for reshape). Operands of a full
  node that depend on a reduction are full, or have the reduced shape with A set to 1, or, where A are the first axes
  of S, the one without A (numpy broadcasting then finds the right row).
- Reshapes and transposes of a full node's value may be stored; in the group only others of them read them.
- A node that does not depend on a REDUCTION member is pulled. If it has shape S it may be stored: it is then full, too.
- Outputs are reductions, reduced nodes, full nodes and such views of these.

contraction: exactly one CONTRACTION, the `anchor`, of result shape T, and no REDUCTION or OPAQUE.
- Prologue: pulled nodes that lead to the anchor's first operand; pulled VIEW nodes that lead to its second operand,
  none of which reads a constant.
- Epilogue: element-wise nodes of result shape exactly T that read the anchor or epilogue nodes, and these in shape T,
  thus at the same index. Their other operands are inputs, constants or pulled nodes, broadcast to T. They may change
  the dtype.
- Gates: slices of the anchor or of an epilogue node of shape T, one step apart, that cut nothing but the last axis,
  into ranges of one width H, each from a multiple of H on, where H divides T's last dimension; let T' be T with H in
  its place. After them are element-wise nodes of result shape exactly T', reading gates and each other in shape T'.
  A group with gates is a matmul by a constant matrix; it has no views and stores values of shape T' only. Thus the
  columns j, H + j, 2H + j... of a row are computed together (the cells of LSTM and GRU, gated linear units). GPUs take
  at most 8 ranges.
- Views: a chain of reshape and transpose, the first reading the anchor or an epilogue node, each other one the view
  before it. There is at most one chain, its end is always stored, and nothing else in the group reads it.
- Outputs are the values of the anchor, of epilogue nodes, of gates and of views.

attention: exactly two CONTRACTION nodes, both matmul: that of queries and keys, and that of weights and
values, which is the `anchor` and depends on the first. No OPAQUE. Every value between the two holds [heads, queries,
keys] in row-major order (views between them are reshapes), or one element for each of its rows.
- Prologue: pulled nodes that lead to the operand with the queries; pulled VIEW nodes, none of which reads a constant,
  that lead to keys and values.
- Scored: element-wise nodes and reshapes after the first matmul; other operands are inputs, constants or pulled.
- Softmax: exactly reduce_max and reduce_sum over the keys, sub, exp, and div (or a product with the quotient), with
  reshapes and casts between them: weights = e / sum(e), e = exp(scores - max(scores)).
- Weighed: nodes after it that are linear in the weights, and `select(is_nan(w), 0, w)`. A weight is NaN only if its
  whole row is.
- Epilogue and views after the anchor as for contraction, without gates. Nothing before the anchor is stored.

opaque: exactly one OPAQUE node, the `anchor`. After window_reduce there may be an epilogue as for contraction, without
views, and the anchor is stored only if needed. All others are alone, and all their results are stored.

stitched: several groups of other kinds, its *parts*, in one kernel. `stages` holds them: the parts of a stage do not
depend on each other and run in parallel (packing), each on its own blocks; a grid barrier separates stages, and values
stored by a stage are read by later ones from memory (global). Every part keeps the promises of its own kind; of the
values that the parts store, `outputs` are those needed outside, the others are temporaries. A node belongs to one part,
unless it is a copy. No path leads from a part through another group to a part. A CPU has only one stage, since a
barrier inside a kernel would cost the same as separate launches.

Stages are tied by a barrier, or by *bands*: then there are two stages, of a contraction and of a rowwise part, without
a grid barrier. The blocks of the GEMM count arrivals per band of rows; the last block to store part of a band computes
the second part's rows of that band. So an element of the second part may depend on the GEMM's results in its own row
only: these have R rows of N elements, N the last dimension of the anchor's result (for a convolution: channels last,
without groups), in the memory order of the GEMM, after reshapes at most. In the second part, A are the last axes, N is
a multiple of the number of elements of A, and values that depend on the GEMM's results have as many elements as they,
element by element at the same row-major position, until they are reduced. GPUs only.

Or stages are tied by *blocks*: each has one part, injective or rowwise, and each block of the launch computes all of
them for one position along some axes (`slabs`). All stored values have these axes, and nothing is reduced, gathered or
sliced along them. GPUs only.

Or stages are tied by *tickets*: the blocks of the launch draw the tiles of the parts, part by part, and a tile waits
for the tiles of earlier parts that it reads, according to the edges of the group's schedule (`TicketSchedule`). Every
element that a tile reads and an earlier part stores is covered by such a wait (`passes.sync.check`). GPUs only.

Or stages are tied by *launches*: every part has its own launch, which begins when all blocks of those that it waits for
have begun (a programmatic edge), and its tiles wait as with tickets (`LaunchesSchedule`). GPUs from sm_90 on.

`passes.fusion.legality.check_group` checks these conditions, `roles_of` determines the part of each node.

Aliases: no group computes a value in `buffers.aliases`. It is a reshape of its root and shares the root's bytes: its
readers read the root's memory. The root is no alias; a native group writes it, or it is an input of the graph.

Places: a value in `buffers.places` is written by its group into a part of another value's memory, the *whole*, which no
group computes: it is assembled by concats and views from its parts, each contiguous within it. Readers of the whole
wait for all its parts.
"""

from tilestitch.passes.errors import PlanError, PlanMismatchError

from .buffers import ALIGNMENT, Buffer, BufferPlan, Place, wholes_of
from .group import SCHEMES, TIES, Group, GroupKind, HostGroup, Stitch
from .refusal import Number, WhyNot
from .stitch_plan import FORMAT, VERSION, PluginRecord, Segment, StitchPlan

__all__ = [
    "ALIGNMENT", "FORMAT", "SCHEMES", "TIES", "VERSION", "Buffer", "BufferPlan", "Group", "GroupKind", "HostGroup",
    "Number", "Place", "PlanError", "PlanMismatchError", "PluginRecord", "Segment", "Stitch", "StitchPlan", "WhyNot",
    "wholes_of",
]  # fmt: skip
