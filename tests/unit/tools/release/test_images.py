"""Images are named by digest in a release."""

from __future__ import annotations

import pytest

from tools.release.images import ROOT, pinned, unpinned

DIGEST = f"sha256:{'a1' * 32}"
DOCKERFILE = "ARG PYTHON=python:3.12\nARG SLIM=python:3.12-slim\nFROM ${PYTHON} AS build\n"


def test_images_by_tag_are_found_where_files_name_them() -> None:
    """In a Dockerfile's arguments and in a compose file, each once; our own are not meant."""
    compose = "  image: nvcr.io/nvidia/tritonserver:24.10-py3\n  image: tidegate:local\n" * 2
    assert unpinned(DOCKERFILE) == ["python:3.12", "python:3.12-slim"]
    assert unpinned(compose) == ["nvcr.io/nvidia/tritonserver:24.10-py3"]


def test_a_digest_stands_behind_the_tag_that_it_is_of() -> None:
    """One image's name may begin another's."""
    text = pinned(DOCKERFILE, lambda name: f"sha256:{'b' if 'slim' in name else 'a'}{'1' * 63}")
    assert f"PYTHON=python:3.12@sha256:a{'1' * 63}\n" in text
    assert f"SLIM=python:3.12-slim@sha256:b{'1' * 63}\n" in text
    assert unpinned(text) == []
    assert pinned(text, pytest.fail) == text


@pytest.mark.parametrize("rest", ["@sha256:abc", "@md5:1", "@"])
def test_what_is_no_digest_pins_nothing(rest: str) -> None:
    """A digest that was shortened by hand names no image."""
    assert unpinned(f"ARG ENVOY=envoyproxy/envoy:v1.40.0{rest}\n") == ["envoyproxy/envoy:v1.40.0"]


def test_every_image_of_the_files_is_seen() -> None:
    """A form that the check does not know would pass a release."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    assert unpinned(pinned(text, lambda _: DIGEST)) == []
    named = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert all(each.startswith("${") or each == "base" for each in named)
