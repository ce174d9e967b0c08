"""Lookup of data files."""

import pytest

from tidegate.stack import assets
from tidegate.stack.assets import MissingAssetError, asset


@pytest.mark.parametrize("name", ["envoy/bootstrap.yaml", "models/toy-llm/config.pbtxt"])
def test_the_checkout_has_its_assets(name):
    """Both folders are found in a checkout."""
    assert asset(name).is_file()


def test_a_wheel_brings_its_own(tmp_path, monkeypatch):
    """Files inside the package have priority."""
    package = tmp_path / "tidegate"
    (package / "assets" / "models").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(assets, "_PACKAGE", package)
    assert asset("models") == package / "assets" / "models"


def test_a_missing_asset_says_where_it_was_looked_for(tmp_path, monkeypatch):
    """The error names both places and the fix."""
    monkeypatch.setattr(assets, "_PACKAGE", tmp_path / "tidegate")
    with pytest.raises(MissingAssetError, match="reinstall"):
        asset("models")
