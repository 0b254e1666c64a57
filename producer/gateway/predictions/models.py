"""Find the model of the fleet that a client of Replicate names as `owner/name:version`."""

from collections.abc import Mapping
from dataclasses import dataclass

from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.prediction import short_digest
from imagefleet.shared.jobs.queues import DEFAULT_MODEL


@dataclass(frozen=True, kw_only=True)
class FleetModels:
    """The models that requests may name."""

    offers: Mapping[str, Offer]
    aliases: Mapping[str, str]
    """It holds the models by their other names."""

    def named(self, name: str) -> str | None:
        """Return the fleet's name of a model; None stands for its default model.

        The owner is ignored, unless the fleet's name has it. A name that nobody offers is returned
        without it; admission refuses it.
        """
        short = name.partition("/")[2] or name
        for each in (name, short):
            model = self.aliases.get(each, each)
            if model in self.offers:
                return None if model == DEFAULT_MODEL else model
        model = self.aliases.get(short, short)
        return None if model == DEFAULT_MODEL else model

    def of_version(self, version: str) -> str | None:
        """Return the model of a version: a digest of its weights, a name, or both joined by `:`.

        Raises Problem.
        """
        for each in self.offers.values():
            if short_digest(each.digest) == short_digest(version):
                return each.model
        name, _, digest = version.partition(":")
        model = self.named(name)
        offer = self.offers.get(model or DEFAULT_MODEL)
        if digest and offer is not None and short_digest(offer.digest) != short_digest(digest):
            limit = f"is not served; that of {offer.model} is {short_digest(offer.digest)}"
            raise wrong_field("version", version, limit)
        return model

    def offer(self, name: str) -> Offer | None:
        """Return what workers offer of a model; None if none does."""
        return self.offers.get(self.named(name) or DEFAULT_MODEL)
