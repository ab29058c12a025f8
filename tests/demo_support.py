"""Records of demos that were not run, for tests."""

from pathlib import Path

from PIL import Image

from tacache.instant import instant_plan
from tacache.plan import make_plan
from tacache.profile import Profile
from tacache_lab.demo.record import Budget, DemoPicture, ModelDemo

WAYS = [(None, 20), ("plain", 8), ("linear", 8), ("tasu", 8), ("tasu", 5)]


def budget(rule: str | None, evaluations: int, psnr: float | None) -> Budget:
    facts = {"seconds": evaluations / 10, "speedup": 50 / evaluations}
    return Budget(rule=rule, evaluations=evaluations, psnr=psnr, **facts)


FULL = budget(None, 50, None)


def demo_of(*rows: Budget) -> ModelDemo:
    """A demo of one prompt with these rows after that of full steps."""
    facts = {"model": "m", "steps": 50, "seed": 0, "prompts": ("a cat",), "profile": "p.json"}
    return ModelDemo(budgets=(FULL, *rows), pictures=(), **facts)


def saved_demo(folder: Path, profile: Profile) -> ModelDemo:
    """Two prompts at full and plain steps and by three plans, as a demo leaves them in a folder."""
    profile.save(folder / "p.json")
    prompts, pictures, budgets = ("a <b>red</b> fox", "a boat"), [], []
    for rule, evaluations in WAYS:
        plan = None
        if rule not in (None, "plain"):
            plan = f"{rule}-{evaluations}.json"
            by_rule = make_plan(profile, evaluations=evaluations)
            instant = instant_plan(profile.times, evaluations)
            (by_rule if rule == "tasu" else instant).save(folder / plan)
        full = rule is None
        quality = {"psnr": None if full else 30.0 + evaluations, "ssim": None if full else 0.875}
        facts = {"evaluations": evaluations, "seconds": evaluations / 10, "rule": rule, **quality}
        for i, prompt in enumerate(prompts):
            file = f"{i}-{rule}-{evaluations}.png"
            Image.new("RGB", (8, 8), (evaluations, i, 0)).save(folder / file)
            pictures.append(DemoPicture(prompt=prompt, file=file, **facts))
        tail = {} if full else {"lowest": 20.0, "lost": 1}
        budgets.append(Budget(**facts, **tail, plan=plan, speedup=profile.steps / evaluations))
    return ModelDemo(
        model="tiny-flux", steps=profile.steps, seed=0, prompts=prompts, budgets=tuple(budgets),
        pictures=tuple(pictures), profile="p.json", equivalent_steps={8: 31.4},
    )  # fmt: skip
