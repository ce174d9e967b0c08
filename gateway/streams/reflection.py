"""Answers to gRPC reflection: the services that clients reach through Envoy. Pure.

Rules:

1. Services are described by the committed ``services.binpb`` (``tidegate_api/generate.py``),
   whatever the replicas are: Triton 2.51 itself has no reflection.
2. A file comes with all files that it depends on, these first.
3. A request that cannot be read, asks nothing or names what is not there has an error as its
   answer, and the stream goes on.

Source: ``grpc/reflection/v1/reflection.proto``; v1alpha has the same messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

VERSIONS: Final = ("v1", "v1alpha")
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
_MAX_NAME: Final = 128
"""Most characters of a name in an error."""


class _UnknownNameError(LookupError):
    """Nothing has this name."""


class Reflection:
    """Answers requests of one version of the protocol.

    Args:
        descriptors: A serialized ``FileDescriptorSet``, each file behind those it depends on.
        version: One of ``VERSIONS``.
    """

    def __init__(self, descriptors: bytes, version: str) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        self._pool: Any = descriptor_pool.DescriptorPool()
        self._files: dict[str, tuple[bytes, ...]] = {}
        services = []
        for each in files:
            self._pool.AddSerializedFile(each.SerializeToString())
            needed = dict.fromkeys(file for name in each.dependency for file in self._files[name])
            self._files[each.name] = (*needed, each.SerializeToString())
            services += [f"{each.package}.{service.name}" for service in each.service]
        self.services: tuple[str, ...] = tuple(sorted(services))
        package = f"grpc.reflection.{version}"
        self._request, self._response = (
            message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in ("ServerReflectionRequest", "ServerReflectionResponse")
        )
        self._answers: dict[str | None, Callable[[Any, Any], None]] = {
            "list_services": self._list,
            "file_by_filename": self._file,
            "file_containing_symbol": self._symbol,
            "file_containing_extension": self._extension,
            "all_extension_numbers_of_type": self._extensions,
        }

    def answer(self, message: bytes) -> bytes:
        """Return the serialized response to a serialized request."""
        response: Any = self._response()
        try:
            request: Any = self._request.FromString(message)
        except DecodeError:
            _refuse(response, INVALID_ARGUMENT, "the request cannot be read")
            return bytes(response.SerializeToString())
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        answer = self._answers.get(request.WhichOneof("message_request"))
        if answer is None:
            _refuse(response, INVALID_ARGUMENT, "the request asks nothing")
        else:
            try:
                answer(request, response)
            except _UnknownNameError as error:
                _refuse(response, NOT_FOUND, str(error))
        return bytes(response.SerializeToString())

    def _list(self, _: Any, response: Any) -> None:
        response.list_services_response.SetInParent()
        for name in self.services:
            response.list_services_response.service.add(name=name)

    def _file(self, request: Any, response: Any) -> None:
        name = request.file_by_filename
        if name not in self._files:
            raise _UnknownNameError(f"no file {_short(name)}")
        response.file_descriptor_response.file_descriptor_proto[:] = self._files[name]

    def _symbol(self, request: Any, response: Any) -> None:
        name = request.file_containing_symbol
        try:
            file = self._pool.FindFileContainingSymbol(name)
        except KeyError:
            try:
                file = self._pool.FindMethodByName(name).containing_service.file
            except KeyError:
                raise _UnknownNameError(f"no symbol {_short(name)}") from None
        response.file_descriptor_response.file_descriptor_proto[:] = self._files[file.name]

    def _extension(self, request: Any, _: Any) -> None:
        asked = request.file_containing_extension
        raise _UnknownNameError(
            f"no extension {asked.extension_number} of {_short(asked.containing_type)}"
        )

    def _extensions(self, request: Any, response: Any) -> None:
        name = request.all_extension_numbers_of_type
        try:
            found = self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise _UnknownNameError(f"no message {_short(name)}") from None
        # The services' messages are of proto3, which has no extensions.
        response.all_extension_numbers_response.base_type_name = found.full_name


def _short(name: str) -> str:
    return repr(name[:_MAX_NAME])


def _refuse(response: Any, code: int, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text
