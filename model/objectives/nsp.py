"""Next sentence prediction: does segment B follow segment A (0), or come from elsewhere (1)? (Devlin et al., 2019, Task 2)."""

from __future__ import annotations

from model.objectives.pairs import pair_objective

OBJECTIVE = pair_objective("nsp", recipe="bert")
