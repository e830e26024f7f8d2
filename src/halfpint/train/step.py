"""One update of the weights: the losses of its batches, their gradients, and the optimizer.

On an accelerator, where all batches are of one shape, forward and backward pass are a CUDA graph, and so is the
update: the host copies a batch and replays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from halfpint.checkpoints.foreign_network import AnyNetwork
from halfpint.model.batch import Batch
from halfpint.model.taps import Taps
from halfpint.objectives.objective import Objective, Seen
from halfpint.train.gradients import EagerGradients, Gradients, GraphedGradients
from halfpint.train.master import MasterUpdate, MasterWeights
from halfpint.train.optimizers import make_optimizer
from halfpint.train.parallel import Ranks
from halfpint.train.settings import Settings
from halfpint.train.update import GraphedUpdate, Update


class Step:
    """What a step works on: the network, what is learned beside it, gradients and optimizer."""

    def __init__(
        self,
        network: AnyNetwork,
        objectives: Sequence[tuple[Objective, float]],
        settings: Settings,
        ranks: Ranks,
        *,
        graphed: bool,
    ) -> None:
        self.network, self.objectives, self.settings, self.ranks = network, objectives, settings, ranks
        self.device = next(network.parameters()).device
        learned = [objective.modules for objective, _ in objectives if objective.modules is not None]
        self.trained = nn.ModuleList([network, *learned]).train()
        self.parameters = [each for each in self.trained.parameters() if each.requires_grad]
        flat = graphed and settings.precision == "bf16" and settings.optimizer == "adamw"
        self.master = MasterWeights(self.trained) if flat else None
        self.update = self._make_update(graphed=graphed)
        self.taps = _joined([objective.taps for objective, _ in objectives])
        self.kinds = sorted({kind for objective, _ in objectives for kind in objective.heads})
        self.gradients: Gradients
        if graphed:
            self.gradients = GraphedGradients(self.loss, self.parameters, self.device, self.master)
        else:
            self.gradients = EagerGradients(self.loss, self.parameters, self.device)
        self.total = torch.zeros((), device=self.device)

    def _make_update(self, *, graphed: bool) -> Update | MasterUpdate:
        if self.master is not None:
            return MasterUpdate(self.master, self.settings)
        optimizer = make_optimizer(self.trained.named_parameters(), self.settings)
        records = graphed and isinstance(optimizer, torch.optim.AdamW)
        return (GraphedUpdate if records else Update)(optimizer, self.parameters, self.settings.clip)

    def weights(self) -> dict[str, Tensor]:
        """All that is trained, in full precision, by name."""
        return dict(self.trained.state_dict()) if self.master is None else self.master.named()

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        if self.master is None:
            self.trained.load_state_dict(dict(tensors))
        else:
            self.master.load(tensors)

    def finish(self) -> None:
        """The modules as anybody else expects them."""
        if self.master is not None:
            self.master.release()
        self.trained.eval()

    def __call__(self, batches: Sequence[Batch], lr: float) -> Tensor:
        """One update; the step's loss, or this rank's share of it, good until the next step."""
        scales = self.scales(batches)
        self.total.zero_()
        last = len(batches) - 1
        for index, batch in enumerate(batches):
            self.total += self.gradients.add(batch, scales, first=index == 0, last=index == last)
        if self.master is None:
            self.ranks.sum_gradients(self.parameters)
        else:
            for flat in self.master.grads:
                self.ranks.sum(flat)
        self.update(lr)
        self.gradients.clear()
        return self.total

    def scales(self, batches: Sequence[Batch]) -> Tensor:
        """Of every loss of every objective, its weight over its count in the whole step."""
        weights = torch.tensor([weight for objective, weight in self.objectives for _ in objective.names])
        counts = torch.zeros_like(weights)
        for batch in batches:  # of a small step some rank may have none
            counts += self._counts(batch)
        if self.ranks.world > 1:
            counts = self.ranks.sum(counts.to(self.device))
        return weights.to(counts.device) / counts.clamp(min=1e-9)

    def _counts(self, batch: Batch) -> Tensor:
        counted = ((objective, objective.counts(batch)) for objective, _ in self.objectives)
        return torch.stack([found[name].float() for objective, found in counted for name in objective.names])

    def loss(self, batch: Batch, scales: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            output = self.network.encoder(batch, self.taps)
            answers = {kind: self.network.answer(kind, output, batch) for kind in self.kinds}
        seen = Seen(output, answers, self.network)
        found = ((objective, objective.losses(seen, batch)) for objective, _ in self.objectives)
        values = torch.stack([losses[name] for objective, losses in found for name in objective.names])
        return (values * scales.to(values.device)).sum()


def _joined(every: Sequence[Taps]) -> Taps:
    names = ("hidden", "scores", "probabilities", "vectors")
    return Taps(**{name: tuple(sorted({layer for taps in every for layer in getattr(taps, name)})) for name in names})
