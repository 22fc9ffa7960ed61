"""Finds the tensors of one quantised weight, and checks that they fit together. No torch.

The stored tensors decide whether a module is quantised: many modules that a config does not exclude
are not (usually the head). The config only says how to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from quire.errors import CorruptModel, UnsupportedModel
from quire.weights.formats import READABLE, StoredTensor
from quire.weights.quantised.layout import Layout, Quantisation
from quire.weights.stored_names import stored_name
from quire.weights.within import Within, of_expert

# Endings of the tensor that identifies a weight, after the module's name: for AWQ and GPTQ,
# compressed-tensors, MXFP4, and all others.
LEADS = (".qweight", ".weight_packed", "_blocks", ".weight")
BLOCK = 32  # least columns whose codes share words in a GroupedMatrix
FLOATS = ("F32", "F16", "BF16")
POWERS = ("U8", "F8_E8M0")  # powers of two
STATES = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
# Endings of all tensors that may belong to a weight.
ROLES = (
    *(".weight", ".weight_packed", ".qweight", "_blocks", ".SCB", ".weight_format", *STATES),
    *(".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", ".scales"),
    *("_scales", ".qzeros", ".weight_zero_point", ".g_idx", ".weight_g_idx"),
    *(".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map"),
)
# Tensors beside a quantised weight that are not needed: scales of activations and of KV are
# computed, and shapes are known.
NOT_NEEDED = (
    *("weight_shape", "input_scale", "output_scale", "input_zero_point", "output_zero_point"),
    *("k_scale", "v_scale", "q_scale", "prob_scale", "input_scale_ub", "act_scale"),
    *("k_zero_point", "v_zero_point", "q_zero_point", "input_global_scale"),
    *("activation_scale", "kv_scale"),
)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A weight [N, K] of several stored tensors, by their endings. `wanted`: the rows to be read,
    None: all."""

    name: str
    shape: tuple[int, int]
    layout: Layout
    tensors: Mapping[str, StoredTensor]
    wanted: range | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of its wanted rows in the files, and about as many in memory."""
        whole = sum(tensor.num_bytes for tensor in self.tensors.values())
        return whole if self.wanted is None else whole * len(self.wanted) // self.shape[0]

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.layout.group or self.shape[1]

    def rows(self, first: int, count: int) -> StoredMatrix:
        """The weight with only some of its wanted rows."""
        wanted = range(self.shape[0]) if self.wanted is None else self.wanted
        return replace(self, wanted=wanted[first : first + count])


Source = StoredTensor | StoredMatrix


def stored_matrix(
    name: str,
    shape: tuple[int, ...],
    within: Within,
    stored: Mapping[str, StoredTensor],
    said: Quantisation | None,
) -> StoredMatrix | None:
    """The tensors of a weight, by its name in Hugging Face's files; None if it is stored as plain
    numbers, or missing."""
    found = _lead(name, stored)
    if len(shape) != 2 or found is None:
        return None
    module, lead = found
    tensor = stored[f"{module}{lead}"]
    if lead == ".weight" and tensor.format.name in READABLE:
        return None
    if said is None:
        raise UnsupportedModel(
            f"{tensor.path.name}: {tensor.name!r} is stored as {tensor.format.name}, and no "
            "quantization_config in config.json says how to read it. Take the file that the tool "
            "wrote (quantize_config.json) along, or the original weights."
        )
    layout = said.layout_of(module)
    if layout is None:
        raise CorruptModel(
            f"{said.source} says that {module!r} is not quantised, but it is stored as "
            f"{tensor.name!r} in {tensor.format.name}"
        )
    where, rows = f"{tensor.path.name}: {module}", within.of or shape[0]
    if within.transposed and layout.kind != "mxfp4":  # MXFP4 files are [out, in] anyway
        raise UnsupportedModel(
            f"{where} is quantised [in, out]; quire reads plain numbers that way"
        )
    there = {role: one for role in ROLES if (one := stored.get(f"{module}{role}")) is not None}
    made = StoredMatrix(name, (rows, shape[1]), layout, there)
    wanted = _WANTED[layout.kind](made)
    tensors = {role: one for role, one in there.items() if role in wanted}
    if within.expert is not None:
        tensors = {role: of_expert(one, within.expert, where) for role, one in tensors.items()}
    made = replace(made, tensors=tensors)
    _check(made, wanted, where)
    if within.of is None:
        return made
    return replace(made, wanted=range(rows)[within.first :: within.step][: shape[0]])


def beside(module_tensor: str) -> bool:
    """Whether a tensor may stay unread, as it is no part of a weight."""
    return module_tensor.rpartition(".")[2] in NOT_NEEDED


def _lead(name: str, stored: Collection[str]) -> tuple[str, str] | None:
    """The stored name of a module, and the ending of the tensor that identifies its weight."""
    module = name.removesuffix(".weight")
    for lead in LEADS:
        found = stored_name(f"{module}{lead}", stored)
        if found in stored:
            return found.removesuffix(lead), lead
    return None


def num_words(count: int, layout: Layout) -> int:
    """The 32-bit words that so many codes take, without gaps."""
    return -(-count * layout.bits // 32)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tensor of a weight: its allowed formats and shapes."""

    formats: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ()  # empty: any
    required: bool = True


def _check(matrix: StoredMatrix, tensors: Mapping[str, _Wanted], where: str) -> None:
    """Refuse a weight whose tensors are not those of its layout."""
    rows, columns = matrix.shape
    if columns % matrix.group:
        raise UnsupportedModel(
            f"{where}: {columns} columns are not whole groups of {matrix.group}; quire reads "
            "weights that are"
        )
    if matrix.layout.kind != "fp8" and columns % BLOCK:
        raise UnsupportedModel(f"{where}: {columns} columns; quire reads multiples of {BLOCK}")
    for role, wanted in tensors.items():
        tensor = matrix.tensors.get(role)
        if tensor is None:
            if wanted.required:
                raise CorruptModel(f"{where}{role} is missing")
            continue
        if tensor.format.name not in wanted.formats:
            raise CorruptModel(
                f"{where}{role} is stored as {tensor.format.name}; its config asks for "
                f"{' or '.join(wanted.formats)}"
            )
        if wanted.shapes and tensor.shape not in wanted.shapes:
            raise CorruptModel(
                f"{where}{role} has the shape {tensor.shape}; a weight of {rows} x {columns} in "
                f"groups of {matrix.group} asks for {' or '.join(str(s) for s in wanted.shapes)}"
            )


def _awq(matrix: StoredMatrix) -> dict[str, _Wanted]:
    (rows, columns), groups = matrix.shape, matrix.shape[1] // matrix.group
    return {
        ".qweight": _Wanted(("I32",), ((columns, rows // 8),)),
        ".qzeros": _Wanted(("I32",), ((groups, rows // 8),)),
        ".scales": _Wanted(FLOATS, ((groups, rows),)),
    }


def _gptq(matrix: StoredMatrix) -> dict[str, _Wanted]:
    rows, columns = matrix.shape
    groups, symmetric = columns // matrix.group, matrix.layout.symmetric
    zeros = (groups, num_words(rows, matrix.layout))
    return {
        ".qweight": _Wanted(("I32",), ((num_words(columns, matrix.layout), rows),)),
        ".qzeros": _Wanted(("I32",), (zeros,), required=not symmetric),
        ".scales": _Wanted(FLOATS, ((groups, rows),)),
        ".g_idx": _Wanted(("I32",), ((columns,),), required=False),
    }


def _packed(matrix: StoredMatrix) -> dict[str, _Wanted]:
    rows, columns = matrix.shape
    zeros = _Wanted(("I32",), ((num_words(rows, matrix.layout), columns // matrix.group),))
    given = matrix.tensors.get(".weight_zero_point")
    if given is not None and given.format.name == "I8":  # a single one is not packed
        zeros = _Wanted(("I8",), ((), (1,)))
    return {
        ".weight_packed": _Wanted(("I32",), ((rows, num_words(columns, matrix.layout)),)),
        ".weight_scale": _Wanted(FLOATS, _scale_shapes(matrix)),
        ".weight_zero_point": replace(zeros, required=not matrix.layout.symmetric),
        ".weight_g_idx": _Wanted(("I32", "I64"), ((columns,),), required=False),
    }


def _int(matrix: StoredMatrix) -> dict[str, _Wanted]:
    shapes, symmetric = _scale_shapes(matrix), matrix.layout.symmetric
    if ".SCB" in matrix.tensors:  # bitsandbytes: the largest magnitude of each row
        largest = _Wanted(("F32",), ((matrix.shape[0],),))
        layout = _Wanted(("U8",), required=False)
        weight = _Wanted(("I8",), (matrix.shape,))
        return {".weight": weight, ".SCB": largest, ".weight_format": layout}
    return {
        ".weight": _Wanted(("I8",), (matrix.shape,)),
        ".weight_scale": _Wanted(FLOATS, shapes),
        ".weight_zero_point": _Wanted(("I8",), shapes, required=not symmetric),
    }


def _scale_shapes(matrix: StoredMatrix) -> tuple[tuple[int, ...], ...]:
    """One scale for each group, for each row, or for all."""
    (rows, columns), group = matrix.shape, matrix.group
    if group < columns:
        return ((rows, columns // group),)
    return (rows, 1), (rows,), (1,), (), (1, 1)


def _fp8(matrix: StoredMatrix) -> dict[str, _Wanted]:
    rows, columns = matrix.shape
    shapes: tuple[tuple[int, ...], ...] = ((rows, 1), (rows,), (1,), (), (1, 1))
    if matrix.layout.block is not None:
        tall, wide = matrix.layout.block
        shapes = ((-(-rows // tall), -(-columns // wide)),)
    formats = (*FLOATS, *POWERS)
    inverse = ".weight_scale_inv" in matrix.tensors
    return {
        ".weight": _Wanted(("F8_E4M3",), (matrix.shape,)),
        ".weight_scale_inv" if inverse else ".weight_scale": _Wanted(formats, shapes),
    }


def _nf4(matrix: StoredMatrix) -> dict[str, _Wanted]:
    count, tensors = matrix.shape[0] * matrix.shape[1], matrix.tensors
    nested = ".weight.nested_absmax" in tensors
    state = next((one for one in STATES if one in tensors), STATES[0])
    return {
        ".weight": _Wanted(("U8",), ((count // 2, 1), (1, count // 2))),
        ".weight.absmax": _Wanted(("U8",) if nested else ("F32",)),
        ".weight.quant_map": _Wanted(("F32",), ((16,),)),
        ".weight.nested_absmax": _Wanted(("F32",), required=nested),
        ".weight.nested_quant_map": _Wanted(("F32",), ((256,),), required=nested),
        state: _Wanted(("U8",)),
    }


def _mxfp4(matrix: StoredMatrix) -> dict[str, _Wanted]:
    rows, groups = matrix.shape[0], matrix.shape[1] // matrix.group
    if ".weight_packed" in matrix.tensors:
        return {
            ".weight_packed": _Wanted(("U8",), ((rows, matrix.shape[1] // 2),)),
            ".weight_scale": _Wanted(POWERS, ((rows, groups),)),
        }
    return {
        "_blocks": _Wanted(("U8",), ((rows, groups, matrix.group // 2),)),
        "_scales": _Wanted(POWERS, ((rows, groups),)),
    }


def _nvfp4(matrix: StoredMatrix) -> dict[str, _Wanted]:
    (rows, columns), packed = matrix.shape, ".weight_packed" in matrix.tensors
    return {
        ".weight_packed" if packed else ".weight": _Wanted(("U8",), ((rows, columns // 2),)),
        ".weight_scale": _Wanted(("F8_E4M3",), ((rows, columns // matrix.group),)),
        ".weight_global_scale" if packed else ".weight_scale_2": _Wanted(("F32",), ((), (1,))),
    }


def _ternary(matrix: StoredMatrix) -> dict[str, _Wanted]:
    rows, columns = matrix.shape
    if rows % 4:
        raise UnsupportedModel(f"{matrix.name}: {rows} rows; quire reads multiples of 4")
    return {
        ".weight": _Wanted(("U8",), ((rows // 4, columns),)),
        ".weight_scale": _Wanted(FLOATS, ((1,), ())),
    }


_WANTED: dict[str, Callable[[StoredMatrix], dict[str, _Wanted]]] = {
    "awq": _awq,
    "gptq": _gptq,
    "packed": _packed,
    "int": _int,
    "fp8": _fp8,
    "nf4": _nf4,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "ternary": _ternary,
}
