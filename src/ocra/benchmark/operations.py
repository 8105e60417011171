"""How much arithmetic one image costs: multiply-adds, counted from the config."""

from __future__ import annotations

from ocra.config import ModelConfig

FORMULA = "share of peak = 2 · multiply-adds · (3 if training else 1) · images/s / GEMM FLOP/s"


def multiply_adds(config: ModelConfig) -> int:
    """Multiply-adds of one image's pass forward: matrix products, convolutions and routing, nothing else.

    A training step is counted as three passes: forward, gradient of the inputs, gradient of the weights.
    The first glimpse needs no product with the hidden states, which are zero.
    """
    hidden, latent = config.hidden, config.object_capsules * config.capsule_size
    inputs = config.features + (hidden if config.feedback else 0)
    each_glimpse = (
        _convolutions(config)
        + 4 * hidden * (inputs + latent)
        + hidden * config.primary_capsules * config.primary_size
        + _objects(config, latent)
        + hidden * _written(config)
        + _attention(config)
    )
    recurrence = 2 * 4 * hidden * hidden
    return config.glimpses * each_glimpse + (config.glimpses - 1) * recurrence


def _convolutions(config: ModelConfig) -> int:
    rows, columns = (config.glimpse_size,) * 2 if config.attention else (config.height, config.width)
    first = rows * columns * config.filters * config.channels * 25
    second = (rows // 2) * (columns // 2) * config.filters * config.filters * 9
    return first + second


def _objects(config: ModelConfig, latent: int) -> int:
    if not config.capsules:
        return config.primary_capsules * config.primary_size * latent + latent * config.object_capsules
    votes = config.primary_capsules * config.primary_size * latent
    weighted_sums_and_agreements = (2 * config.routings - 1) * config.primary_capsules * latent
    return votes + weighted_sums_and_agreements


def _written(config: ModelConfig) -> int:
    if config.attention:
        return config.channels * config.write_size**2
    return config.channels * config.height * config.width


def _attention(config: ModelConfig) -> int:
    if not config.attention:
        return 0
    height, width, read, write = config.height, config.width, config.glimpse_size, config.write_size
    reading = read * height * width + read * read * width
    writing = write * write * width + height * write * width
    return config.channels * (reading + writing) + 2 * 4 * config.hidden
