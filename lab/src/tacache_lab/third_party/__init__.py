"""Flow models of third parties, which a benchmark runs by name: `tacache bench galaxies-64`.

Their weights are fetched through pip and read as data (`published_files`). What runs them is ours,
written from what their packages say of themselves. They have no prompts: a sample is its seed.
"""

from tacache_lab.third_party.crystals import CRYSTALS
from tacache_lab.third_party.galaxies import GALAXIES
from tacache_lab.third_party.velocity_host import ThirdPartyKind, ThirdPartyModel, VelocityHost

MODELS: dict[str, ThirdPartyModel] = {model.name: model for model in (*GALAXIES, CRYSTALS)}
KINDS: dict[str, ThirdPartyKind] = {name: ThirdPartyKind(model) for name, model in MODELS.items()}

__all__ = ["KINDS", "MODELS", "ThirdPartyModel", "VelocityHost"]
