"""The inputs of KServe's HTTP ``infer``: their data, inline or binary, and their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ext_proc.requests.parsing import shapes, values
from ext_proc.requests.parsing.budget import MAX_DIMENSIONS, MAX_INPUTS, Levels, too_complex
from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.tensors import INTEGERS, READ_INPUTS, Tensor, from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.requests.parsing.json_prefix import Document


def is_unsigned(value: object) -> bool:
    """Return whether a JSON value is an integer of at least 0."""
    return type(value) is int and value >= 0


class Inputs:
    """Reads and checks the inputs of one request.

    Args:
        document: The request's JSON.
        headers: Headers by lower-case name.
        body: The body, as far as it was read.
        blobs: Its binary part; ``None`` = it has none.
        complete: Whether ``body`` is the whole body.
    """

    __slots__ = (
        "_blobs",
        "_complete",
        "_cut",
        "_dimensions",
        "_found",
        "_levels",
        "_offset",
        "_room",
        "largest",
    )

    def __init__(
        self,
        document: Document,
        headers: Mapping[str, str],
        body: memoryview,
        blobs: memoryview | None,
        *,
        complete: bool,
    ) -> None:
        self._blobs = blobs
        self._complete = complete
        self._cut = document.is_cut("inputs")
        self._room = len(body) if document.whole else None
        """Upper bound of the bytes of JSON; ``None`` = unknown."""
        if not document.whole and "content-encoding" not in headers:
            self._room = values.announced(headers)
        self._found: dict[str, Tensor] = {}
        self._offset = 0
        self._dimensions = MAX_DIMENSIONS
        """Dimensions that the inputs not read yet may have."""
        self._levels = Levels()
        self.largest: int | None = None
        """Bytes that the largest input declares; ``None`` = no input of known datatype."""

    def read(self, inputs: object) -> dict[str, Tensor]:
        """Return the relevant inputs, by name; of several of one name the first.

        Raises:
            BadRequest: Triton would reject the inputs.
            UnsoundRequest: A shape contradicts its data, or there are too many inputs.
        """
        if not isinstance(inputs, list):
            raise BadRequest(f"`inputs` must be an array, not {values.json_type(inputs)}")
        if len(inputs) > MAX_INPUTS:
            raise too_complex(f"the request has more than {MAX_INPUTS} inputs; send fewer")
        last = len(inputs) - 1 if self._cut else -1
        for index, item in enumerate(inputs):
            self._read(item, index, cut=index == last)
        return self._found

    def check_harm(self, inputs: object) -> None:
        """Check only the shapes of a request that has other mistakes.

        A replica may read the shapes first.

        Raises:
            UnsoundRequest: A shape declares more elements than the body can have.
        """
        for item in inputs if isinstance(inputs, list) else ():
            shape = item.get("shape") if isinstance(item, dict) else None
            if isinstance(shape, list) and self._room is not None:
                sizes = [size for size in shape if is_unsigned(size)]
                shapes.check_room(shapes.count(sizes, "an input"), self._room, "an input")

    def _read(self, item: object, index: int, *, cut: bool) -> None:
        if not isinstance(item, dict):
            raise BadRequest(f"`inputs[{index}]` must be an object, not {values.json_type(item)}")
        name, datatype = item.get("name"), item.get("datatype")
        inline = "data" in item
        size = None if inline else _binary_size(item, index)
        start, self._offset = self._offset, self._offset + (size or 0)
        if not (isinstance(name, str) and isinstance(datatype, str)):
            if cut:
                return
            raise BadRequest(f"`inputs[{index}]` must have a `name` and a `datatype`, both strings")
        if "\0" in name or "\0" in datatype:
            name, datatype = values.c_text(name), values.c_text(datatype)
            item = item | {"name": name, "datatype": datatype}
        wanted = name in READ_INPUTS and name not in self._found
        present = None
        if inline and _is_empty(item.get("shape")):
            pass  # nor does Triton look at data of a tensor without elements
        elif inline:
            present = self._read_inline(item, index, wanted=wanted, cut=cut)
        elif wanted and size is not None and self._blobs is not None:
            blob = self._blobs[start : start + size]
            if self._complete and len(blob) < size:
                raise BadRequest(
                    f"`inputs[{index}]` declares {size} binary bytes,"
                    f" but the body has only {len(blob)}"
                )
            self._found[name] = Tensor(name, datatype, blob, whole=len(blob) == size)
        self._check_shape(item, index, size, present, cut=cut)

    def _read_inline(
        self, item: dict[str, Any], index: int, *, wanted: bool, cut: bool
    ) -> int | None:
        """Read data in JSON; return its number of elements, ``None`` if unknown."""
        name, datatype, data = item["name"], item["datatype"], item["data"]
        if not isinstance(data, list):
            raise BadRequest(
                f"`inputs[{index}]`.data must be an array, not {values.json_type(data)}"
            )
        if wanted:
            tensor = from_json(name, datatype, data, whole=not cut, levels=self._levels)
            if tensor is not None:
                self._found[name] = tensor
                if len(data) == 1 and isinstance(data[0], str) and not cut:
                    return 1  # a prompt
                if datatype in INTEGERS:
                    width = INTEGERS[datatype].size
                    return len(tensor.data) // width if tensor.whole else None
        return None if cut else shapes.count_json(data, datatype, index, self._levels)

    def _check_shape(
        self, item: dict[str, Any], index: int, size: int | None, present: int | None, *, cut: bool
    ) -> None:
        """Check a declared shape against ``size`` bytes or ``present`` elements of data."""
        shape = item.get("shape")
        if cut and (shape is None or next(reversed(item)) == "shape"):
            return
        if not isinstance(shape, list):
            raise BadRequest(
                f"`inputs[{index}]`.shape must be an array, not {values.json_type(shape)}"
            )
        declared = shapes.count(shape, index, most=self._dimensions)
        self._dimensions -= len(shape)
        datatype = item["datatype"]
        width = shapes.WIDTHS.get(datatype)
        if size is not None:
            if width is not None and declared * width != size:
                shapes.check_bytes(declared, datatype, size, index)
        elif present is not None:
            if declared != present:
                shapes.check_elements(declared, present, index)
        elif "data" in item and self._room is not None:
            shapes.check_room(declared, self._room, index)
        if width is not None and (self.largest is None or declared * width > self.largest):
            self.largest = declared * width


def _is_empty(shape: object) -> bool:
    return isinstance(shape, list) and 0 in shape


def _binary_size(item: dict[str, Any], index: int) -> int | None:
    """Return the size of this input's share of the binary part; ``None`` if it has none."""
    parameters = item.get("parameters")
    if not isinstance(parameters, dict):
        return None
    if "shared_memory_region" in parameters:
        if not isinstance(parameters["shared_memory_region"], str):
            raise BadRequest(f"`inputs[{index}]`.parameters.shared_memory_region must be a string")
        return None
    if "binary_data_size" not in parameters:
        return None
    size: Any = parameters["binary_data_size"]  # compiled, any other type would be checked here
    if not is_unsigned(size):
        raise BadRequest(f"`inputs[{index}]`.parameters.binary_data_size must be a byte count")
    return int(size)
