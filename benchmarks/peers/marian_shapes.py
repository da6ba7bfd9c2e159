"""The parameters of Marian's `s2s` with LSTM cells: their names, and a width that makes so many of them."""

from __future__ import annotations

BLOCK = 64
"""Its integer products want widths in whole blocks."""

Shapes = dict[str, tuple[int, int]]


def shapes_of(vocabulary: int, embedding: int, width: int, num_layers: int) -> Shapes:
    """Rows and columns of every parameter, by Marian's name."""
    shapes: Shapes = {}

    def cell(prefix: str, size: int) -> None:
        shapes.update({f"{prefix}_W": (size, 4 * width), f"{prefix}_U": (width, 4 * width)})
        shapes[f"{prefix}_b"] = (1, 4 * width)

    def dense(prefix: str, sizes: list[int], size: int) -> None:
        for number, rows in enumerate(sizes):
            suffix = str(number) if len(sizes) > 1 else ""
            shapes.update({f"{prefix}_W{suffix}": (rows, size), f"{prefix}_b{suffix}": (1, size)})

    context = 2 * width
    for side in ("encoder", "decoder"):
        shapes[f"{side}_Wemb"] = (vocabulary, embedding)
    for direction in ("encoder_bi", "encoder_bi_r"):
        cell(direction, embedding)
        for layer in range(2, num_layers + 1):
            cell(f"{direction}_l{layer}_cell1", width)
    dense("decoder_ff_state", [context], width)
    cell("decoder_cell1", embedding)
    shapes.update({"decoder_W_comb_att": (width, context), "decoder_Wc_att": (context, context)})
    shapes.update({"decoder_U_att": (context, 1), "decoder_b_att": (1, context)})
    cell("decoder_cell2", context)
    for layer in range(2, num_layers + 1):
        cell(f"decoder_l{layer}_cell1", width)
    dense("decoder_ff_logit_l1", [embedding, width, context], embedding)
    shapes.update({"decoder_ff_logit_l2_Wt": (vocabulary, embedding), "decoder_ff_logit_l2_b": (1, vocabulary)})
    return shapes


def num_parameters(shapes: Shapes) -> int:
    return sum(rows * columns for rows, columns in shapes.values())


def narrowed(vocabulary: int, embedding: int, num_layers: int, most: int) -> int:
    """The greatest width in whole blocks with at most so many parameters; one block at least."""
    width = BLOCK
    while num_parameters(shapes_of(vocabulary, embedding, width + BLOCK, num_layers)) <= most:
        width += BLOCK
    return width
