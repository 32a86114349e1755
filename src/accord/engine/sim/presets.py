"""Profiles of engines that are not here: an 8B and a 70B model on H100s, by a roofline.

From NVIDIA's data sheet, an H100 SXM has 989 TFLOP/s of dense BF16, 3.35 TB/s of memory bandwidth
and 80 GB. A dense model takes 2 FLOPs a parameter and token, and 4 a layer, token of context and
unit of width for attention; it reads all weights each step, and the context of each sequence
that writes. What of the peak is reached is stated here: ``COMPUTE`` of arithmetic in large batches,
``BANDWIDTH`` of memory, and ``LINKS`` of both where eight cards have to talk to each other.
Published coefficients for prefill that come out above 100% of the peak exist; these cannot.

Shapes are those of Llama 3.1 (arXiv:2407.21783): layers, width, KV heads x 128 x 2 bytes x 2.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from accord.engine.base import Prices
from accord.engine.sim.profile import Profile, load_profile
from accord.errors import UsageError

FLOPS = 989e12
BYTES_S = 3.35e12
MEMORY = 80e9

COMPUTE = 0.50
BANDWIDTH = 0.75
LINKS = 0.80
KV_SHARE = 0.90
"""Of a card's memory, weights and cache together."""


def _llama(
    name: str, *, parameters: float, layers: int, width: int, kv_heads: int, cards: int
) -> Profile:
    link = LINKS if cards > 1 else 1.0
    flops = FLOPS * cards * COMPUTE * link
    bytes_s = BYTES_S * cards * BANDWIDTH * link
    kv_bytes = 2 * 2 * 128 * kv_heads * layers
    kv_tokens = int((MEMORY * cards * KV_SHARE - 2 * parameters) / kv_bytes)
    return Profile(
        name=name,
        source=f"roofline: {cards} x H100 SXM, BF16, {COMPUTE:.0%} of FLOP/s, {BANDWIDTH:.0%} of "
        f"bandwidth" + (f", {LINKS:.0%} of both over NVLink" if cards > 1 else ""),
        overhead_s=0.0015,
        weights_s=2 * parameters / bytes_s,
        token_s=2 * parameters / flops,
        sequence_s=2e-5,
        kv_s=kv_bytes / bytes_s,
        attention_s=4 * layers * width / flops,
        request_s=0.004,
        window=131_072,
        kv_tokens=kv_tokens // 16 * 16,
        concurrency=256,
        batch_tokens=8192,
        prices=Prices(prompt=0.0, completion=0.0),
    )


DEFAULT = "70b"
"""What ``sim`` alone means."""

PRESETS = {
    "8b": _llama("8b", parameters=8.03e9, layers=32, width=4096, kv_heads=8, cards=1),
    "70b": _llama("70b", parameters=70.6e9, layers=80, width=8192, kv_heads=8, cards=4),
}
"""By what follows ``sim:``."""

FITTED = Path(__file__).parent / "profiles"
"""Engines as measured by ``accord calibrate``, a file each."""


def known_profiles() -> list[str]:
    """The names of the profiles that come along."""
    return [*PRESETS, *sorted(path.stem for path in FITTED.glob("*.json"))]


def profile_of(name: str) -> Profile:
    """The profile of that name, or in that file. Raises UsageError for neither."""
    if name in PRESETS:
        return PRESETS[name]
    fitted = FITTED / f"{name}.json"
    if name in known_profiles():
        return load_profile(fitted)
    path = Path(name)
    with suppress(RuntimeError):  # a home that nobody has
        path = path.expanduser()
    if not path.exists():
        raise UsageError(
            f"there is no profile {name!r}; there are {', '.join(known_profiles())}, "
            "and `accord calibrate URL` writes one of your engine to a file"
        )
    return load_profile(path)
