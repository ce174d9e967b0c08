"""The toy model's settings."""

import pytest
from toyllm.settings import read_settings


def test_the_environment_overrides_parameters():
    """An environment variable overrides the parameter of the configuration."""
    settings = read_settings({"cache_blocks": "12"}, {"TOY_LLM_CACHE_BLOCKS": "99"})
    assert settings.cache_blocks == 99


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cache_blocks": "many"}, "cache_blocks is 'many'"),
        ({"cache_blocks": "0"}, "cache_blocks is 0"),
        ({"time_scale": "-1"}, "time_scale is -1"),
        ({"time_scale": "nan"}, "time_scale is nan"),
        ({"stats_period_ms": "0"}, "stats_period_ms is 0"),
        ({"cache_block": "1"}, "unknown parameter 'cache_block'"),
    ],
)
def test_a_bad_value_is_named(parameters, message):
    """An invalid value is an error that names it."""
    with pytest.raises(ValueError, match=message):
        read_settings(parameters, {})
