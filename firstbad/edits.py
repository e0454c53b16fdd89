"""The kinds of edits that are tried on the region of a fault, in this order; a new kind is a function in a new file.

What the probe saw comes first, then what needs nothing but the op itself, then searches over many values, and last what
only describes.
"""

from __future__ import annotations

from firstbad.cause import Edits
from firstbad.edits_bent import constants, let_through
from firstbad.edits_constant import call_numbers, caps, input_factors, output_factors
from firstbad.edits_dropped import dropped
from firstbad.edits_groups import group_norms
from firstbad.edits_hashed import hashed
from firstbad.edits_in_place import in_place
from firstbad.edits_laws import by_place, lines
from firstbad.edits_layout import (
    grouped,
    looked_up,
    moved,
    moved_in_part,
    moved_weights,
    operand_heads,
    reread,
    shifted,
    views,
)
from firstbad.edits_mask import masks, triangles
from firstbad.edits_mixed import along, turned
from firstbad.edits_noise import noise, statistics
from firstbad.edits_noise import sums as sums_in_few_bits
from firstbad.edits_norm import norms
from firstbad.edits_padding import as_read, padding
from firstbad.edits_partial import copies, described, unwritten, unwritten_stretch
from firstbad.edits_parts import in_parts
from firstbad.edits_pointwise import functions, grids, pieces, shares
from firstbad.edits_precision import read, saturated, stored
from firstbad.edits_rotary import rotary
from firstbad.edits_rows import choices, neighbours, operands, partners
from firstbad.edits_rows import statistics as other_rows
from firstbad.edits_shape import shapes
from firstbad.edits_slots import slots, unshown
from firstbad.edits_structure import doubled, left_out, put_in, sums, swapped
from firstbad.edits_table import tables
from firstbad.edits_terms import terms
from firstbad.edits_variant import activations, convolutions, softmaxes, written_out
from firstbad.edits_weights import bias, held, other_weights
from firstbad.wiring import as_seen, earlier, overwritten, rewired

EDITS: Edits = (
    overwritten,
    slots,
    as_seen,
    held,
    in_place,
    hashed,
    tables,
    as_read,
    padding,
    copies,
    shapes,
    left_out,
    sums,
    bias,
    activations,
    written_out,
    rotary,
    call_numbers,
    norms,
    group_norms,
    softmaxes,
    convolutions,
    in_parts,
    masks,
    triangles,
    shares,
    choices,
    unwritten,
    unwritten_stretch,
    unshown,
    looked_up,
    stored,
    grids,
    pieces,
    lines,
    dropped,
    output_factors,
    other_rows,
    moved,
    moved_in_part,
    moved_weights,
    views,
    grouped,
    operand_heads,
    partners,
    operands,
    functions,
    neighbours,
    doubled,
    swapped,
    other_weights,
    earlier,
    terms,
    by_place,
    along,
    turned,
    saturated,
    shifted,
    rewired,
    put_in,
    read,
    statistics,
    reread,
    input_factors,
    constants,
    let_through,
    caps,
    sums_in_few_bits,
    noise,
    described,
)
