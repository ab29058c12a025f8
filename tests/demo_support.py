"""Records of demos that were not run, for tests."""

from tacache.lab.demo.record import Budget, ModelDemo


def budget(rule: str | None, evaluations: int, psnr: float | None) -> Budget:
    facts = {"seconds": evaluations / 10, "speedup": 50 / evaluations}
    return Budget(rule=rule, evaluations=evaluations, psnr=psnr, **facts)


FULL = budget(None, 50, None)


def demo_of(*rows: Budget) -> ModelDemo:
    """A demo of one prompt with these rows after that of full steps."""
    facts = {"model": "m", "steps": 50, "seed": 0, "prompts": ("a cat",), "profile": "p.json"}
    return ModelDemo(budgets=(FULL, *rows), pictures=(), **facts)
