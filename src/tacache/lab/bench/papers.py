"""The thresholds that the paper names for its models, by family."""

from tacache.errors import TACacheError

# tau_k and tau_d of BAGEL, FLUX.1-dev and Wan2.1-1.3B (appendix A)
THRESHOLDS = {"bagel": (0.06, 0.6), "flux": (0.04, 0.4), "wan": (0.03, 0.3)}


def thresholds(rule: str, variant: str) -> tuple[float, float]:
    """Read tau_k and tau_d from what follows a rule's colon: TAU_K/TAU_D, or a family."""
    if variant in THRESHOLDS:
        return THRESHOLDS[variant]
    try:
        tau_k, tau_d = (float(part) for part in variant.split("/"))
    except ValueError as error:
        raise TACacheError(
            f"{rule}:{variant}: thresholds are TAU_K/TAU_D, as in {rule}:0.06/0.6, or the paper's "
            f"for {', '.join(THRESHOLDS)}"
        ) from error
    return tau_k, tau_d
